"""The log probabilities from hidden states and in one pass: accuracy, and the facts of each.

Bounds are those of rounding, worked out from the data. That a token keeps its bits under every
transform is shown by tests/props.
"""

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

import attrs
import pytest
import torch
from tests.unit.kernel_trials import (
    BACKENDS,
    DEVICE,
    STORAGES,
    all_same,
    backend_of,
    each_backend,
    each_dtype,
    normal,
    place,
    plain_sum,
    tensors_of,
)
from tests.unit.sample_fixtures import outcome, sample
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from biprop.bits import same_bits
from biprop.case import Case
from biprop.data.recipe import SEQUENCES, Pairing, Recipe
from biprop.execution import prepare, run_canonical
from biprop.execution.power import measure_power
from biprop.judgment import Verdict
from biprop.kernels import batch_invariant_logp, linear_logp, logp, tiles
from biprop.operators import Operator
from biprop.reports.drift import checked_object
from biprop.reports.records import CellReport, Finding
from biprop.sequence import LogicalSequence
from biprop.supervision.resolve import describe

EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.bfloat16)}
# Tokens, width and vocabulary: one of each, odd, and past a tile of rows, a panel and a block.
SIZES = ((1, 1, 1), (3, 17, 5), (33, 70, 140))
INF, NAN = torch.inf, torch.nan

each_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
each_candidate = pytest.mark.parametrize("backend", ["reference", *BACKENDS])


@attrs.frozen(kw_only=True, eq=False)
class Exact:
    """Results in float64, with bounds of what rounding may do to each."""

    logp: Tensor
    lse: Tensor
    dhidden: Tensor
    dweight: Tensor
    logp_bound: Tensor
    dhidden_bound: Tensor
    dweight_bound: Tensor


@attrs.frozen(kw_only=True, eq=False)
class Trial:
    """Arguments of linear_logp: two sequences, scattered over slots of which some are dead.

    Attributes:
        hidden: `[T, H]`, NaN where no token lives.
        weight: `[V, H]`.
        target: `[T]`.
        dlogp: `[T]`, upstream.
        live: `[T]`.
        layout: Offsets, order and position.
    """

    hidden: Tensor
    weight: Tensor
    target: Tensor
    dlogp: Tensor
    live: Tensor
    layout: Sequence[Tensor]

    @classmethod
    def of(cls, sizes: tuple[int, int, int], dtype: torch.dtype, *, dead: int = 3) -> "Trial":
        """Draw `sizes` tokens, features and tokens of the vocabulary, and add dead slots."""
        tokens, width, vocabulary = sizes
        generator = torch.Generator().manual_seed(5)
        slots = torch.randperm(tokens + dead, generator=generator)[:tokens]
        lengths, starts = [tokens // 2, tokens - tokens // 2], [7, 0]
        layout = place(lengths, slots.tolist(), starts=starts, slot_count=tokens + dead)
        live = torch.zeros(tokens + dead, dtype=torch.bool)
        live[slots] = True
        hidden = normal(tokens + dead, width, dtype=dtype)
        hidden[~live.to(DEVICE)] = NAN
        target = torch.randint(vocabulary, (tokens + dead,), generator=generator)
        dlogp = normal(tokens + dead, dtype=torch.float32, seed=2)
        return cls(
            hidden=hidden,
            weight=normal(vocabulary, width, dtype=dtype, seed=1) / width**0.5,
            target=target.to(DEVICE),
            dlogp=torch.where(live.to(DEVICE), dlogp, 0.0),
            live=live.to(DEVICE),
            layout=(layout.offsets, layout.order, layout.position),
        )

    @property
    def slots(self) -> Tensor:
        """Slots of the live tokens, in logical order."""
        return self.layout[1][: int(self.live.sum())].long()

    def exact(self) -> Exact:
        """Return the results of the live tokens in logical order, in float64."""
        slots, wide = self.slots, self.weight.double().requires_grad_()
        hidden = self.hidden[slots].double().requires_grad_()
        logits = hidden @ wide.t()
        found = logits.log_softmax(-1).gather(1, self.target[slots, None])[:, 0]
        upstream = self.dlogp[slots].double()
        dhidden, dweight = torch.autograd.grad(found, (hidden, wide), upstream)
        eps, narrow = EPS[torch.float32], EPS[self.weight.dtype]
        vocabulary, width = wide.shape
        hidden, wide, logits = hidden.detach(), wide.detach(), logits.detach()
        # A sum of n terms errs by at most n roundings of the sum of their magnitudes.
        logit = (width + 1) * eps * (hidden.abs() @ wide.abs().t()).amax(1)
        error = 2 * logit + (vocabulary + 16) * eps * (1 + logits.logsumexp(-1).abs())
        share = logits.softmax(-1).scatter_(1, self.target[slots, None], 1.0)
        gradient = share * upstream.abs()[:, None] * (error + 4 * narrow)[:, None]
        gradient = gradient + share * upstream.abs()[:, None] * (vocabulary + len(slots)) * eps
        return Exact(
            logp=found.detach(),
            lse=logits.logsumexp(-1),
            dhidden=dhidden,
            dweight=dweight,
            logp_bound=error,
            dhidden_bound=gradient @ wide.abs() + narrow * dhidden.abs(),
            dweight_bound=gradient.t() @ hidden.abs(),
        )

    def forward(self, backend: str, *, form: str = "indexed") -> tuple[Tensor, Tensor]:
        """Return `logp` and `lse`."""
        selection = (self.live, self.layout[1]) if form == "indexed" else ()
        arguments = (self.hidden, self.weight, self.target, *selection)
        if backend == "reference":
            references = {entry.name: entry.reference for entry in linear_logp.OPERATOR.forms}
            reference = references[form]
            assert reference is not None
            found = tensors_of(reference(*arguments, reduce=plain_sum))
        else:
            kernel = backend_of(linear_logp.OPERATOR, backend, form=form)
            found = tensors_of(kernel.forward(*arguments))
        values, lse = found
        return values, lse

    def backward(self, backend: str) -> tuple[Tensor, Tensor]:
        """Return `dhidden` and `dweight`."""
        backward = backend_of(linear_logp.OPERATOR, backend).backward
        assert backward is not None
        dweight = torch.zeros(self.weight.shape, device=DEVICE)
        _, lse = self.forward(backend, form="packed")
        (dhidden,) = tensors_of(
            backward(
                *(self.dlogp, self.hidden, self.weight, self.target, lse, *self.layout, dweight)
            )
        )
        return dhidden, dweight


def triton_module(operator: str) -> ModuleType:
    """Import a Triton backend: TRITON_INTERPRET is set by then."""
    return import_module(f"biprop.kernels.{operator}_triton")


def is_within(actual: Tensor, exact: Tensor, bound: Tensor) -> bool:
    """Return whether no element leaves its bound."""
    return bool(((actual.double() - exact).abs() <= bound).all())


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Keeps the bytes of the largest tensor that is made."""

    largest = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Call an operation, and look at what it made."""
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.largest = max(self.largest, made.untyped_storage().nbytes())
        return made


class TestLinearLogp:
    """From hidden states and the weight of the output layer."""

    @each_size
    @each_dtype
    @each_candidate
    def test_forward_is_that_of_float64(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int, int]
    ) -> None:
        """Both results are float32, and as near as rounding lets them be, for every dtype."""

        trial = Trial.of(sizes, dtype)
        exact = trial.exact()
        logp_T, lse_T = (values[trial.slots] for values in trial.forward(backend))
        assert (logp_T.dtype, lse_T.dtype) == (torch.float32, torch.float32)
        assert is_within(logp_T, exact.logp, exact.logp_bound)
        assert is_within(lse_T, exact.lse, exact.logp_bound)

    @each_size
    @each_dtype
    @each_backend
    def test_backward_is_that_of_float64(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int, int]
    ) -> None:
        """Both gradients are those of autograd, up to rounding; slots of no token get 0."""

        trial = Trial.of(sizes, dtype)
        exact = trial.exact()
        dhidden, dweight = trial.backward(backend)
        assert (dhidden.dtype, dweight.dtype) == (dtype, torch.float32)
        assert is_within(dhidden[trial.slots], exact.dhidden, exact.dhidden_bound)
        assert is_within(dweight, exact.dweight, exact.dweight_bound)
        assert not dhidden[~trial.live].any()

    @each_dtype
    @each_backend
    def test_selected_tokens_have_the_bits_of_all_rows(
        self, backend: str, dtype: torch.dtype
    ) -> None:
        """Read through their order, live tokens keep their bits, and dead slots get 0."""

        trial = Trial.of((20, 33, 70), dtype, dead=17)
        every = trial.forward(backend, form="packed")
        for dense, indexed in zip(every, trial.forward(backend), strict=True):
            assert all_same(indexed[trial.live], dense[trial.live])
            assert not indexed[~trial.live].any()

    def test_selection_keeps_tokens_independent(self) -> None:
        """The indexed form may be cut at any token and gathered: no argument makes sequences."""

        assert [form.signature.token_wise for form in linear_logp.OPERATOR.forms] == [True, True]

    def test_stretches_of_the_vocabulary_are_joined(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Programs that share a row's vocabulary, the last one less of it, give its results."""

        monkeypatch.setattr(triton_module("linear_logp"), "STRETCH", 128)
        trial = Trial.of((3, 5, 140), torch.float32)
        exact = trial.exact()
        logp_T, lse_T = (values[trial.slots] for values in trial.forward("triton"))
        assert is_within(logp_T, exact.logp, exact.logp_bound)
        assert is_within(lse_T, exact.lse, exact.logp_bound)

    def test_both_forms_launch_the_same_compiled_kernels(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Arguments have the same types and constants: of one source, two kernels may differ."""

        launched: list[object] = []

        def note(kernel: object, _: object, arguments: tuple[object, ...], **given: object) -> None:
            kinds = [getattr(value, "dtype", type(value)) for value in arguments]
            launched.append((kernel, kinds, given["constants"]))

        module = triton_module("linear_logp")
        monkeypatch.setattr(module, "launch", note)
        trial = Trial.of((3, 5, 7), torch.bfloat16)
        tensors = (trial.hidden, trial.weight, trial.target)
        module.forward(*tensors)
        dense = launched.copy()
        launched.clear()
        module.forward_indexed(*tensors, trial.live, trial.layout[1])
        assert len(dense) == 2
        assert launched == dense

    def test_a_long_sum_of_equal_terms_stays_within_the_tolerance(self) -> None:
        """The gradient is exactly zero: terms that are rounded alike would add up their errors."""

        vocabulary = 127_062
        ones = torch.ones((vocabulary, 1), device=DEVICE)
        hidden = torch.zeros((1, 1), device=DEVICE)
        target = torch.tensor([5], device=DEVICE)
        _, lse = linear_logp.forward(hidden, ones, target)
        whole = torch.tensor([0, 1], dtype=torch.int32, device=DEVICE)
        first = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        upstream = torch.full((1,), 0.5, device=DEVICE)
        found = linear_logp.backward(
            upstream, hidden, ones, target, lse, whole, first, first.long(), torch.zeros_like(ones)
        )
        assert found.abs().item() < 1e-5

    def test_chunks_of_the_vocabulary_change_no_bit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Gradients of a part of the vocabulary after the other are those of all of it."""

        trial = Trial.of((18, 20, 140), torch.float32)
        whole = trial.backward("triton")
        monkeypatch.setattr(triton_module("linear_logp"), "CHUNK", 128)
        assert all(map(all_same, trial.backward("triton"), whole))

    @each_backend
    def test_logits_are_never_held_at_once(
        self, backend: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No tensor is as large as the logits of all tokens, forward or backward."""

        monkeypatch.setattr(triton_module("linear_logp"), "CHUNK", 128)
        trial = Trial.of((100, 4, 192), torch.float32)
        logits = trial.hidden.new_empty((len(trial.hidden), len(trial.weight)))
        seen = Allocations()  # type: ignore[no-untyped-call]  # as above
        with seen:
            trial.backward(backend)
        assert 0 < seen.largest < logits.nbytes * 3 // 4

    def test_the_tiles_of_a_gpu_are_as_near(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Several blocks of positions in a tile, wide panels, and groups of few blocks."""

        monkeypatch.setattr(linear_logp, "row_count", lambda *_: 50)
        monkeypatch.setattr(linear_logp, "panel_across", lambda _, width: tiles.padded(width))
        monkeypatch.setattr(tiles, "_ELEMENTS_MAX", 5 * tiles.BLOCK_COUNT * 128)
        trial = Trial.of((150, 70, 130), torch.float32)
        exact = trial.exact()
        assert is_within(trial.forward("torch")[0][trial.slots], exact.logp, exact.logp_bound)
        dhidden, dweight = trial.backward("torch")
        assert is_within(dhidden[trial.slots], exact.dhidden, exact.dhidden_bound)
        assert is_within(dweight, exact.dweight, exact.dweight_bound)

    @each_backend
    def test_nothing_gives_nothing(self, backend: str) -> None:
        """A launch without tokens has empty results, and leaves the accumulator as it was."""

        trial = Trial.of((0, 4, 6), torch.float32, dead=0)
        dhidden, dweight = trial.backward(backend)
        assert [len(values) for values in trial.forward(backend)] == [0, 0]
        assert dhidden.shape == (0, 4)
        assert not dweight.any()

    @each_backend
    @pytest.mark.parametrize("store", STORAGES.values(), ids=STORAGES)
    def test_storage_changes_no_bit(self, backend: str, store: Callable[[Tensor], Tensor]) -> None:
        """Every argument may be a view of anything."""

        trial = Trial.of((20, 19, 37), torch.bfloat16)
        moved = attrs.evolve(
            trial,
            **{
                name: store(getattr(trial, name))
                for name in ("hidden", "weight", "target", "dlogp", "live")
            },
            layout=[store(values) for values in trial.layout],
        )
        results = (*trial.forward(backend), *trial.backward(backend))
        assert all(map(all_same, results, (*moved.forward(backend), *moved.backward(backend))))

    def test_chunks_of_the_reference_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Products taken a few at a time give the bits of all at once."""

        trial = Trial.of((9, 33, 20), torch.float32, dead=0)
        arguments = (trial.hidden, trial.weight, trial.target)
        whole = linear_logp.reference(*arguments, reduce=tiles.halving_sum)
        monkeypatch.setattr(linear_logp, "REFERENCE_ELEMENTS_MAX", 33 * 7)
        parts = linear_logp.reference(*arguments, reduce=tiles.halving_sum)
        assert all(map(all_same, parts, whole))


class TestPower:
    """Whether data could show another order of the sum that is the weight's gradient."""

    @pytest.mark.parametrize(("kind", "has_power"), [("pairs", True), ("zeros", False)])
    def test_the_weight_is_seen_through_all_tokens(self, kind: str, *, has_power: bool) -> None:
        """Every row of the weight takes a share of every token, so that partners cancel in it."""

        over_sequences = {
            role: {SEQUENCES: Pairing(role=role, mask=1)} for role in ("symmetric", "antisymmetric")
        }
        case = Case(
            dtype="float32",
            judged="parameter_gradients",
            dims={"H": 3, "V": 50},
            sequences=tuple(LogicalSequence(id=at, length=4) for at in range(6)),
            data={
                "hidden": Recipe(kind="normal", pairing=over_sequences["symmetric"]),
                "target": Recipe(kind="integers", pairing=over_sequences["symmetric"]),
                "dlogp": Recipe(kind=kind, pairing=over_sequences["antisymmetric"]),
            },
            policy_state={"weight": Recipe(kind="normal")},
        )
        prepared = prepare(linear_logp.OPERATOR.kernels()[0], case, device="cpu")
        share = measure_power(prepared, run_canonical(prepared)).share
        assert (share > 0.5) == has_power


class TestOnePass:
    """From logits, in one pass over the vocabulary."""

    @each_dtype
    @each_candidate
    @pytest.mark.parametrize("vocabulary", [1, 5, 130, 1100])
    def test_results_are_those_of_float64(
        self, backend: str, dtype: torch.dtype, vocabulary: int
    ) -> None:
        """Forward and gradient are as near as rounding lets them be, over one block and several."""

        logits = (normal(19, vocabulary, dtype=torch.float32) * 8).to(dtype)
        dlogp = normal(19, dtype=torch.float32, seed=1)
        target = torch.arange(19, device=DEVICE) * 7 % vocabulary
        leaf = logits.double().requires_grad_()
        exact = leaf.log_softmax(-1).gather(1, target[:, None])[:, 0]
        (gradient,) = torch.autograd.grad(exact, leaf, dlogp.double())
        found, dlogits = run(backend, dlogp, logits, target)
        error = (vocabulary + 16) * EPS[torch.float32] * (1 + leaf.detach().abs().amax(1))
        assert found.dtype == torch.float32
        assert is_within(found, exact.detach(), error)
        share = leaf.detach().softmax(-1).scatter_(1, target[:, None], 1.0)
        bound = share * dlogp.double().abs()[:, None] * (error + EPS[dtype])[:, None]
        assert is_within(dlogits, gradient, bound)

    @each_dtype
    @each_backend
    def test_padded_rows_have_the_bits_of_packed_ones(
        self, backend: str, dtype: torch.dtype
    ) -> None:
        """Rows of slots, in any storage, are so many tokens."""

        logits, dlogp = normal(6, 7, 150, dtype=dtype), normal(6, 7, dtype=torch.float32, seed=1)
        target = torch.arange(42, device=DEVICE).view(6, 7)
        packed = run(backend, dlogp.flatten(), logits.flatten(0, 1), target.flatten())
        padded = run(backend, dlogp, STORAGES["gap"](logits), STORAGES["transposed"](target))
        assert all_same(padded[0], packed[0].view(6, 7))
        assert all_same(padded[1], packed[1].view(6, 7, 150))

    @each_candidate
    def test_infinite_logits_mean_what_they_do_in_two_passes(self, backend: str) -> None:
        """-Inf is impossible, alone in a block and in a row; +Inf and NaN spread over a row."""

        logits = torch.full((7, 700), -INF, device=DEVICE)
        logits[0, [0, 650]] = torch.tensor([-100.0, 100.0], device=DEVICE)
        logits[1, 650] = 2.0
        logits[3, [0, 300, 650]] = torch.tensor([90.0, INF, 90.0], device=DEVICE)
        logits[4, 300] = NAN
        logits[5] = NAN
        logits[6, 300] = INF
        target = torch.full((7,), 650, device=DEVICE)
        found, _ = run(backend, torch.ones(7, device=DEVICE), logits, target)
        twice, _ = logp.reference(logits, target, reduce=plain_sum)
        expected = torch.tensor([0.0, 0.0, NAN, -INF, NAN, NAN, -INF], device=DEVICE)
        assert bool((same_bits(found, expected) | (found == expected)).all())
        assert bool((same_bits(found, twice) | (found == twice)).all())

    @each_candidate
    def test_an_ignored_target_is_none(self, backend: str) -> None:
        """Its row has log probability 0 and no gradient, whatever its logits are."""

        logits = normal(3, 40, dtype=torch.float32)
        logits[1] = NAN
        target = torch.tensor([3, batch_invariant_logp.IGNORE_INDEX, 3], device=DEVICE)
        found, dlogits = run(backend, torch.ones(3, device=DEVICE), logits, target)
        assert (found != 0).tolist() == [True, False, True]
        assert dlogits.any(dim=1).tolist() == [True, False, True]

    def test_the_blocks_of_a_gpu_are_as_near(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A block wider than the vocabulary gives what several narrow ones give, up to rounding."""

        logits, target = normal(5, 300, dtype=torch.float32), torch.arange(5, device=DEVICE)
        dlogp = torch.ones(5, device=DEVICE)
        narrow = run("torch", dlogp, logits, target)
        monkeypatch.setattr(batch_invariant_logp, "_block_width", lambda _: 4096)
        for wide, few in zip(run("torch", dlogp, logits, target), narrow, strict=True):
            assert is_within(wide, few.double(), few.abs() * 300 * EPS[torch.float32])

    @each_backend
    def test_nothing_gives_nothing(self, backend: str) -> None:
        """Two rows of no slots have no results."""

        nothing = torch.zeros(2, 0, device=DEVICE)
        logits, target = torch.zeros(2, 0, 5, device=DEVICE), nothing.long()
        found, dlogits = run(backend, nothing, logits, target)
        assert (found.shape, dlogits.shape) == ((2, 0), (2, 0, 5))


class TestOwner:
    """Who looks after an operator."""

    @pytest.mark.parametrize("operator", [logp.OPERATOR, batch_invariant_logp.OPERATOR])
    def test_log_probabilities_name_theirs(self, operator: Operator) -> None:
        """Every kernel of the operator, and what is told of it, carries the link."""

        owners = {kernel.owner for kernel in operator.kernels()}
        owners.add(describe(operator.kernels()[0], device="cpu").owner)
        assert owners == {"https://github.com/RL-Align/RL-Kernel/issues/96"}

    @pytest.mark.parametrize(("owner", "told"), [("https://example.org/1",) * 2, ("", None)])
    def test_drift_records_name_the_owner(self, owner: str, told: str | None) -> None:
        """The record of a finding has the link of its cell, or none."""

        report = CellReport(
            reference=sample().reference,
            dtype="float32",
            direction="forward",
            device="cpu",
            verdict=Verdict.DRIFTS,
            findings=(Finding(fixture=sample(), outcome=outcome()),),
            owner=owner,
        )
        (record,) = json.loads(json.dumps(checked_object(report)["drift"]))
        assert record["owner"] == told


def run(backend: str, dlogp: Tensor, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return `logp` and `dlogits` of batch_invariant_logp."""
    if backend == "reference":
        leaf = logits.clone().requires_grad_()
        found = batch_invariant_logp.reference(leaf, target, reduce=plain_sum)
        (dlogits,) = torch.autograd.grad(found, leaf, dlogp)
        return found.detach(), dlogits
    form = "padded" if logits.dim() == 3 else "packed"
    kernel = backend_of(batch_invariant_logp.OPERATOR, backend, form=form)
    assert kernel.backward is not None
    (found,) = tensors_of(kernel.forward(logits, target))
    (dlogits,) = tensors_of(kernel.backward(dlogp, logits, target))
    return found, dlogits
