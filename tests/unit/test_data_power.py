"""The order-revealing kinds reveal a changed order of a sum, where normal data shows nothing.

Orders are emulated in float32: each function below adds the terms of a row in another order, and a
rate is the share of rows whose narrow output changes when one order replaces another.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from biprop.data.expand import Tokens, expand
from biprop.data.recipe import Pairing, Recipe

Order = Callable[[torch.Tensor], torch.Tensor]
Operator = Callable[[torch.Tensor, Order], torch.Tensor]

ROWS = 400
NARROW = (torch.bfloat16, torch.float16)


def chain(terms: torch.Tensor) -> torch.Tensor:
    """Add `[rows, n]` from first to last."""
    total = terms[:, 0]
    for index in range(1, terms.shape[1]):
        total = total + terms[:, index]
    return total


def reverse(terms: torch.Tensor) -> torch.Tensor:
    """Add from last to first."""
    return chain(terms.flip(1))


def tree(terms: torch.Tensor) -> torch.Tensor:
    """Add neighbours, then neighbouring sums, for a power of two of terms."""
    while terms.shape[1] > 1:
        terms = terms[:, 0::2] + terms[:, 1::2]
    return terms[:, 0]


def halves(terms: torch.Tensor) -> torch.Tensor:
    """Add the second half to the first, and so on, as shuffles of a warp do."""
    while terms.shape[1] > 1:
        half = terms.shape[1] // 2
        terms = terms[:, :half] + terms[:, half:]
    return terms[:, 0]


def lanes(terms: torch.Tensor) -> torch.Tensor:
    """Add in 8 interleaved lanes, then the lanes as a tree, as vector units do."""
    columns = terms.reshape(len(terms), -1, 8)
    total = columns[:, 0]
    for index in range(1, columns.shape[1]):
        total = total + columns[:, index]
    return tree(total)


def blocks(terms: torch.Tensor) -> torch.Tensor:
    """Add 4 blocks as trees, then the blocks in a chain, as split reductions do."""
    parts = terms.reshape(len(terms), 4, -1)
    return chain(torch.stack([tree(parts[:, index]) for index in range(4)], dim=1))


# Neighbours in this list differ in order; so do the first and the last.
ORDERS: tuple[Order, ...] = (chain, lanes, tree, reverse, blocks, chain)


def plain_sum(x: torch.Tensor, order: Order) -> torch.Tensor:
    """Sum a row."""
    return order(x)


def rms_norm(x: torch.Tensor, order: Order) -> torch.Tensor:
    """Normalise by the root mean square."""
    return x * (order(x * x) / x.shape[1] + 1e-6).rsqrt()[:, None]


def layer_norm(x: torch.Tensor, order: Order) -> torch.Tensor:
    """Normalise by mean and variance."""
    centred = x - (order(x) / x.shape[1])[:, None]
    return centred * (order(centred * centred) / x.shape[1] + 1e-5).rsqrt()[:, None]


def softmax(x: torch.Tensor, order: Order) -> torch.Tensor:
    """Divide exponentials by their sum."""
    powers = (x - x.amax(dim=1, keepdim=True)).exp()
    return powers / order(powers)[:, None]


def logp_of_peak(x: torch.Tensor, order: Order) -> torch.Tensor:
    """Return the log-probability of the largest element."""
    return -order((x - x.amax(dim=1, keepdim=True)).exp()).log()


def rates(operator: Operator, recipe: Recipe, size: int, dtype: torch.dtype) -> list[float]:
    """Return the share of rows that change, for each change of order in `ORDERS`."""
    token = torch.arange(ROWS, dtype=torch.int32)
    tokens = Tokens(
        sequence_id=torch.zeros_like(token), token=token, length=torch.full_like(token, ROWS)
    )
    x = expand(
        recipe, seed=4, name="x", tokens=tokens, dims=("H",), sizes=(size,), dtype=dtype
    ).float()
    outputs = [operator(x, order).to(dtype).reshape(ROWS, -1) for order in ORDERS]
    return [float((a != b).any(dim=1).float().mean()) for a, b in pairwise(outputs)]


def own(kind: str) -> Recipe:
    """Return a signed recipe in which every row sums to zero."""
    return Recipe(kind=kind, pairing={"H": Pairing(role="own")})


def shared(kind: str) -> Recipe:
    """Return a signed recipe in which all rows share one matching."""
    return Recipe(kind=kind, pairing={"H": Pairing(role="antisymmetric", mask=13)})


@pytest.mark.parametrize("dtype", NARROW, ids=str)
class TestNarrowOutputs:
    """Shares of rows of a narrow output that a changed order changes."""

    @pytest.mark.parametrize("kind", ["pairs", "swamp"])
    def test_signed_sums_show_every_change(self, kind: str, dtype: torch.dtype) -> None:
        """Of rows of 256 signed terms, 80 % and more change; at 64 terms, 60 %."""
        assert min(rates(plain_sum, own(kind), 256, dtype)) >= 0.8
        assert min(rates(plain_sum, own(kind), 64, dtype)) >= 0.6

    @pytest.mark.parametrize("kind", ["pairs", "swamp"])
    def test_a_shared_matching_shows_most(self, kind: str, dtype: torch.dtype) -> None:
        """With one matching for all rows, 70 % and more of rows of 256 terms change."""
        assert min(rates(plain_sum, shared(kind), 256, dtype)) >= 0.7

    @pytest.mark.parametrize("recipe", [own("pairs"), own("swamp"), shared("swamp")])
    def test_two_trees_are_told_apart(
        self, recipe: Recipe, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Trees that add neighbours or halves first differ in half and more of the rows.

        With one XOR mask a row, both would always give exactly zero.
        """
        monkeypatch.setitem(globals(), "ORDERS", (tree, halves))

        assert rates(plain_sum, recipe, 256, dtype)[0] >= 0.5

    def test_short_swamps_show_something(self, dtype: torch.dtype) -> None:
        """At 16 terms a fifth and more of the rows change."""
        assert min(rates(plain_sum, own("swamp"), 16, dtype)) >= 0.2

    @pytest.mark.parametrize("operator", [rms_norm, layer_norm])
    def test_norms_show_changes_on_ties(self, operator: Operator, dtype: torch.dtype) -> None:
        """A fifth and more of the rows change at 256 elements and above, a tenth at 64."""
        recipe = Recipe(kind="ties_squares")

        assert min(rates(operator, recipe, 64, dtype)) >= 0.1
        for size in (256, 1024):
            assert min(rates(operator, recipe, size, dtype)) >= 0.2

    def test_softmax_shows_changes_on_ties(self, dtype: torch.dtype) -> None:
        """Fifteen hundredths and more of the rows change, from 64 to 1,024 elements."""
        recipe = Recipe(kind="ties_exponentials")

        for size in (64, 256, 1024):
            assert min(rates(softmax, recipe, size, dtype)) >= 0.15

    def test_log_probabilities_show_changes_on_peaks(self, dtype: torch.dtype) -> None:
        """Two fifths and more of the peaks' log-probabilities change."""
        recipe = Recipe(kind="peak_exponentials")

        for size in (64, 256, 1024):
            assert min(rates(logp_of_peak, recipe, size, dtype)) >= 0.4


class TestNormalData:
    """The same changes under normal data: why the kinds exist."""

    @pytest.mark.parametrize("operator", [plain_sum, rms_norm, softmax, logp_of_peak])
    @pytest.mark.parametrize("size", [64, 256])
    def test_bfloat16_outputs_hide_every_change(self, operator: Operator, size: int) -> None:
        """Below a twentieth of the rows change, in whatever order their sums are made."""
        assert max(rates(operator, Recipe(kind="normal"), size, torch.bfloat16)) < 0.05

    def test_float32_outputs_show_most_changes(self) -> None:
        """The orders are different indeed: float32 sums of normal float32 data change."""
        assert min(rates(plain_sum, Recipe(kind="normal"), 256, torch.float32)) > 0.5


class TestEqualOrders:
    """The emulation itself."""

    @pytest.mark.parametrize("operator", [plain_sum, rms_norm, softmax])
    def test_an_order_compared_with_itself_changes_nothing(
        self, operator: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a change of order no row changes, so the rates above measure orders."""
        monkeypatch.setitem(globals(), "ORDERS", (tree, tree))

        assert rates(operator, own("pairs"), 256, torch.bfloat16) == [0.0]
