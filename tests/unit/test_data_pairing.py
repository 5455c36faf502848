"""Pairing makes exact zero sums, in every dtype, over dimensions, tokens and sequences."""

import pytest
import torch

from biprop.bits import same_bits
from biprop.data.expand import Tokens, expand
from biprop.data.recipe import Pairing, Recipe

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS_PAIRED = ("integers", "normal", "uniform", "wide", "pairs", "swamp")
ROWS = 40


def tokens_of(lengths: dict[int, int]) -> Tokens:
    """Return the tokens of sequences given as id -> length, in that order."""
    rows = [(key, token, size) for key, size in lengths.items() for token in range(size)]
    columns = torch.tensor(rows, dtype=torch.int32).T
    return Tokens(sequence_id=columns[0], token=columns[1], length=columns[2])


def build(
    kind: str,
    pairing: dict[str, Pairing],
    size: int,
    *,
    tokens: Tokens | None = None,
    dtype: torch.dtype = torch.float32,
    name: str = "x",
    holes: bool = False,
) -> torch.Tensor:
    """Expand `[n, size]` with the dimension H."""
    return expand(
        Recipe(kind=kind, pairing=pairing, holes=holes),
        seed=9,
        name=name,
        tokens=tokens_of({0: ROWS}) if tokens is None else tokens,
        dims=("H",),
        sizes=(size,),
        dtype=dtype,
    )


def cancels(values: torch.Tensor, dim: int) -> bool:
    """Say whether the exact sum over `dim` is zero because every value stands beside its negative.

    A sum of floats would have to be exact to show it; the sorted values are.
    """
    ordered = values.double().sort(dim=dim).values
    return bool((ordered == -ordered.flip(dim)).all())


def over(axis: str, role: str, mask: int = 0) -> dict[str, Pairing]:
    """Return a pairing of one axis."""
    return {axis: Pairing(role=role, mask=mask)}  # type: ignore[arg-type]  # a role by its name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS_PAIRED)
class TestOverDimensions:
    """Pairing of the positions of a dimension."""

    @pytest.mark.parametrize("mask", [1, 3, 5, 32, 63])
    @pytest.mark.parametrize("size", [2, 64, 256])
    def test_antisymmetric_rows_sum_to_zero(
        self, kind: str, dtype: torch.dtype, mask: int, size: int
    ) -> None:
        """Partners are exact negatives in the dtype itself, whatever the rounding before.

        A mask beyond the size is cut to the bits that the size has.
        """
        values = build(kind, over("H", "antisymmetric", mask), size, dtype=dtype)

        assert cancels(values, 1)
        assert values.any()

    @pytest.mark.parametrize("mask", [1, 2, 3])
    def test_small_masks_match_each_position_with_its_xor(
        self, kind: str, dtype: torch.dtype, mask: int
    ) -> None:
        """Below 4 the partner of k is k XOR mask, in both roles."""
        partner = torch.arange(64) ^ mask
        signed = build(kind, over("H", "antisymmetric", mask), 64, dtype=dtype)
        equal = build(kind, over("H", "symmetric", mask), 64, dtype=dtype)

        # x + 0.0 makes +0 of -0: an integer zero is its own partner.
        assert same_bits(signed + 0.0, 0.0 - signed[:, partner]).all()
        assert same_bits(equal, equal[:, partner]).all()

    @pytest.mark.parametrize("mask", [5, 13, 32])
    def test_larger_masks_match_by_two_masks(
        self, kind: str, dtype: torch.dtype, mask: int
    ) -> None:
        """No XOR explains a whole row: trees of halves would give exactly zero in any order."""
        values = build(kind, over("H", "antisymmetric", mask), 64, dtype=dtype)
        index = torch.arange(64)
        explained = [(values == -values[:, index ^ other]).all(dim=1) for other in range(1, 64)]

        assert float(torch.stack(explained).any(dim=0).float().mean()) < 0.1

    @pytest.mark.parametrize("size", [2, 4, 8, 64, 1024])
    def test_own_rows_sum_to_zero(self, kind: str, dtype: torch.dtype, size: int) -> None:
        """Every value stands beside its negative, at every power of two."""
        values = build(kind, over("H", "own"), size, dtype=dtype)

        assert cancels(values, 1)
        assert values.any()

    def test_own_rows_are_matched_by_masks_of_their_own(
        self, kind: str, dtype: torch.dtype
    ) -> None:
        """Each position has its partner at some XOR, most rows need two, and rows differ."""
        values = build(kind, over("H", "own"), 64, dtype=dtype)
        index = torch.arange(64)
        opposite = torch.stack([values == -values[:, index ^ mask] for mask in range(1, 64)])
        explained = opposite.all(dim=2)

        assert opposite.any(dim=0).all()
        assert float(explained.any(dim=0).float().mean()) < 0.25
        # The masks that match half of a row or more, row by row.
        halves = (opposite.float().mean(dim=2) >= 0.5).int()
        assert len({tuple(row) for row in halves.T.tolist()}) > 20

    def test_products_of_both_roles_sum_to_zero(self, kind: str, dtype: torch.dtype) -> None:
        """A product of an antisymmetric and a symmetric tensor of one mask sums to zero."""
        values = build(kind, over("H", "symmetric", 5), 64, dtype=dtype)
        other = build(kind, over("H", "antisymmetric", 5), 64, dtype=dtype, name="w")

        assert len(set(values.flatten().tolist())) >= 9
        assert cancels(values.double() * other.double(), 1)

    def test_flat_positions_are_all_equal(self, kind: str, dtype: torch.dtype) -> None:
        """A flat row is one value, and rows differ."""
        values = build(kind, over("H", "flat"), 33, dtype=dtype)

        assert same_bits(values, values[:, :1].expand_as(values)).all()
        assert len(set(values[:, 0].tolist())) > 5

    def test_a_tail_without_partner_is_scaled_down(self, kind: str, dtype: torch.dtype) -> None:
        """At a size that is no power of two the rest is below 2**-20 of the largest values."""
        for role, mask in (("antisymmetric", 5), ("own", 0)):
            values = build(kind, over("H", role, mask), 100, dtype=dtype).double()
            assert float(values.sum(dim=1).abs().max() / values.abs().max()) < 2.0**-18

    def test_resizing_keeps_every_paired_value(self, kind: str, dtype: torch.dtype) -> None:
        """Matching by XOR needs no sort: a shorter row is the beginning of a longer one."""
        pairing = over("H", "antisymmetric", 5)
        long, short = (build(kind, pairing, size, dtype=dtype) for size in (256, 64))

        assert same_bits(long[:, :64], short).all()

    def test_holes_take_a_quarter_of_the_pairs(self, kind: str, dtype: torch.dtype) -> None:
        """Both partners of a hole are zero, and everything else keeps its value."""
        pairing = over("H", "antisymmetric", 3)
        plain = build(kind, pairing, 256, dtype=dtype)
        holed = build(kind, pairing, 256, dtype=dtype, holes=True)
        kept = same_bits(plain, holed)

        assert (kept | (holed == 0)).all()
        assert cancels(holed, 1)
        share = float(((holed == 0) & (plain != 0)).float().sum() / (plain != 0).float().sum())
        assert 0.2 < share < 0.3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
class TestOverTokensAndSequences:
    """Pairing along the axes that no dimension names."""

    def test_tokens_pair_inside_their_sequence(self, dtype: torch.dtype) -> None:
        """Sequences of even length sum to zero, one without its last partner nearly."""
        tokens = tokens_of({0: 8, 3: 4, 7: 5})
        values = build("pairs", over("@", "antisymmetric", 1), 16, tokens=tokens, dtype=dtype)

        assert cancels(values[:8], 0)
        assert cancels(values[8:12], 0)
        assert cancels(values[12:16], 0)
        assert float(values[16].double().abs().max() / values.double().abs().max()) <= 2.0**-23

    def test_a_causal_prefix_keeps_its_pairs(self, dtype: torch.dtype) -> None:
        """Masks do not depend on the length: a longer sequence has the same values at its start."""
        for role in ("antisymmetric", "own", "symmetric"):
            pairing = over("@", role, 0 if role == "own" else 1)
            short = build("pairs", pairing, 16, tokens=tokens_of({0: 8}), dtype=dtype)
            long = build("pairs", pairing, 16, tokens=tokens_of({0: 24}), dtype=dtype)
            assert same_bits(short, long[:8]).all()

    def test_own_tokens_draw_a_mask_for_each_sequence(self, dtype: torch.dtype) -> None:
        """Whole groups of eight tokens sum to zero, with several masks among the sequences."""
        tokens = tokens_of(dict.fromkeys(range(12), 8))
        values = build("pairs", over("@", "own"), 16, tokens=tokens, dtype=dtype)
        by_sequence = values.reshape(12, 8, 16)
        index = torch.arange(8)
        masks = [
            next(mask for mask in range(1, 8) if (sequence == -sequence[index ^ mask]).all())
            for sequence in by_sequence
        ]

        assert len(set(masks)) > 2

    def test_sequences_pair_by_id(self, dtype: torch.dtype) -> None:
        """Token by token, partner sequences are negatives, however long each is."""
        tokens = tokens_of({4: 3, 5: 6})
        values = build("pairs", over("#", "antisymmetric", 1), 16, tokens=tokens, dtype=dtype)

        assert same_bits(values[:3], -values[3:6]).all()
        assert values[6:].any()

    def test_flat_sequences_and_tokens_share_their_values(self, dtype: torch.dtype) -> None:
        """Flat over both axes leaves one row for all."""
        pairing = over("@", "flat") | over("#", "flat")
        values = build("pairs", pairing, 16, tokens=tokens_of({0: 3, 9: 2}), dtype=dtype)

        assert same_bits(values, values[:1].expand_as(values)).all()

    def test_axes_combine(self, dtype: torch.dtype) -> None:
        """Antisymmetric over tokens and a dimension sums to zero along either."""
        pairing = over("@", "antisymmetric", 2) | over("H", "antisymmetric", 3)
        values = build("pairs", pairing, 32, tokens=tokens_of({0: 8}), dtype=dtype).double()

        assert cancels(values, 0)
        assert cancels(values, 1)


class TestWhoFollows:
    """Which kinds follow a pairing."""

    @pytest.mark.parametrize(
        "kind",
        ["zeros", "ones", "iota", "peak_squares", "ties_squares", "peak_exponentials", "peak_keys"],
    )
    def test_kinds_with_a_design_of_their_own_do_not(self, kind: str) -> None:
        """Their values are the same with and without a pairing."""
        pairing = over("H", "antisymmetric", 3) | over("@", "symmetric", 1)

        assert same_bits(build(kind, pairing, 64), build(kind, {}, 64)).all()

    def test_a_dimension_of_one_element_pairs_with_nothing(self) -> None:
        """Size 1 is no pair and is not scaled down."""
        values = build("pairs", over("H", "antisymmetric", 1), 1)

        assert same_bits(values, build("pairs", {}, 1)).all()
