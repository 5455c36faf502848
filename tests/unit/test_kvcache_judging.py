"""What runs of a program amount to: repeats, poison, accuracy, fallbacks."""

from collections.abc import Sequence

import attrs
import pytest
import torch
from tests.unit.concatenating_cache import ConcatenatingCache, make, operator_of
from tests.unit.program_samples import append, program_of
from torch import Tensor

from biprop.data.recipe import Point, Recipe
from biprop.errors import CaseError, TargetError, UsageError
from biprop.judgment import Verdict
from biprop.kernels.attention import OPERATOR as ATTENTION
from biprop.kernels.paged import OPERATOR as PAGED
from biprop.kernels.paged.cache import PagedCache
from biprop.kernels.paged.paged_torch import FUNCTIONS
from biprop.kvcache.interpreter import judge_program
from biprop.kvcache.poisons import has_nonfinite_poison, with_finite_poison
from biprop.kvcache.protocol import CacheFactory, CacheImplementation, CacheOperator
from biprop.kvcache.records import (
    Allocate,
    Decode,
    Generate,
    Poison,
    Program,
    ProgramOutcome,
    Read,
    Rescore,
)
from biprop.kvcache.shape import CacheShape, Fill
from biprop.launch_log import interpreted_launch
from biprop.operators import Operator

A = Allocate(sequence="s0")
ONE = program_of(A, append(("s0", 3)))


def judged(factory: CacheFactory, program: Program, *, repeats: int = 5) -> ProgramOutcome:
    """Judge a program of a cache against the attention operator."""
    cache = operator_of(factory)
    return judge_program(cache, cache.implementations[0], ATTENTION, program, repeats=repeats)


class TestRepeats:
    """A violation is run again."""

    def test_same_in_all_runs_drifts(self) -> None:
        """Runs that all give the same difference are a drift, and are counted."""

        class Shifted(ConcatenatingCache):
            def read(self, sequence: str) -> tuple[Tensor, Tensor]:
                k, v = self.held[sequence]
                return k + 1, v

        outcome = judged(Shifted, program_of(A, append(("s0", 1)), Read(sequence="s0")), repeats=4)

        assert outcome.verdict is Verdict.DRIFTS
        assert (outcome.repeats, outcome.rate) == (4, None)

    def test_other_difference_in_a_run_is_nondeterministic(self) -> None:
        """Runs of the same program that differ say so, with their rate."""

        made: list[int] = []

        class Counting(ConcatenatingCache):
            def __init__(self, shape: CacheShape, device: torch.device) -> None:
                super().__init__(shape, device)
                made.append(0)

            def read(self, sequence: str) -> tuple[Tensor, Tensor]:
                k, v = self.held[sequence]
                return k, v + float(len(made) % 4 == 1)

        outcome = judged(Counting, program_of(A, append(("s0", 1)), Read(sequence="s0")))

        assert outcome.verdict is Verdict.NONDETERMINISTIC
        assert outcome.cause is not None
        assert (outcome.cause.check, outcome.cause.output) == ("repeat", "v")
        # Runs 1 and 5 of 5 differ from the others.
        assert (outcome.rate, outcome.repeats) == (0.4, 5)

    def test_exception_with_an_address_repeats_itself(self) -> None:
        """Messages of crashes may differ from run to run."""

        class Raising(ConcatenatingCache):
            def length(self, sequence: str) -> int:
                raise KeyError(sequence, object())

        outcome = judged(Raising, program_of(A))

        assert (outcome.verdict, outcome.repeats) == (Verdict.CRASHES, 5)


class _SlackCache(PagedCache):
    """Adds what lies behind the last token of a page, times zero or times `factor`."""

    factor = 0.0

    def attend(self, sequences: Sequence[str], q: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Attend, and read memory that holds no token."""
        out, lse = super().attend(sequences, q, offsets)
        for name in sequences:
            used = self.lengths[name] % self.shape.block_size
            if used:
                slack = self.pages.v[self.tables[name][-1], used:].float().sum()
                out = out + (slack * self.factor).to(out.dtype)
        return out, lse


def slack(factor: float) -> CacheFactory:
    """Return what makes a cache that reads unused memory."""

    def made(shape: CacheShape, device: torch.device) -> PagedCache:
        cache = _SlackCache(shape, device, functions=FUNCTIONS)
        cache.factor = factor
        return cache

    return made


class TestPoison:
    """Causes that only what is not finite shows."""

    PROGRAM = program_of(A, Poison(fill="zero"), append(("s0", 1)))

    @pytest.mark.parametrize("fill", ["inf", "nan"])
    def test_zero_weight_times_nan_is_a_cause_of_its_own(self, fill: Fill) -> None:
        """A cache that fails with NaN or infinities only has a non-finite cause."""

        program = _poisoned(self.PROGRAM, fill)

        outcome = judged(slack(0.0), program)

        assert outcome.verdict is Verdict.DRIFTS
        assert outcome.cause is not None
        assert not outcome.cause.finite
        assert outcome.cause.key.endswith("nonfinite")
        assert judged(slack(0.0), _poisoned(self.PROGRAM, "garbage")).verdict is Verdict.HOLDS

    def test_garbage_that_counts_is_a_finite_cause(self) -> None:
        """A cache that fails with finite garbage too has a finite cause."""

        outcome = judged(slack(1.0), _poisoned(self.PROGRAM, "nan"))

        assert outcome.cause is not None
        assert outcome.cause.finite

    def test_cause_without_a_part_of_the_poison_is_finite(self) -> None:
        """A difference that has nothing to do with the poison is not blamed on it."""

        program = program_of(A, Poison(fill="nan"), append(("s0", 2)), Read(sequence="s0"))

        class Shifted(ConcatenatingCache):
            def read(self, sequence: str) -> tuple[Tensor, Tensor]:
                k, v = self.held[sequence]
                return k, v + 1

        outcome = judged(Shifted, program)

        assert outcome.cause is not None
        assert outcome.cause.finite

    def test_finite_poison_takes_the_place(self) -> None:
        """What is not finite is replaced, and all else stays."""

        program = _poisoned(self.PROGRAM, "inf")

        assert has_nonfinite_poison(program)
        assert with_finite_poison(program, "zero") == self.PROGRAM
        assert not has_nonfinite_poison(self.PROGRAM)


def _poisoned(program: Program, fill: Fill) -> Program:
    ops = tuple(Poison(fill=fill) if isinstance(op, Poison) else op for op in program.ops)
    return attrs.evolve(program, ops=ops)


def _attention(factor: float) -> Operator:
    """Return the attention operator, its torch results multiplied."""

    def scaled(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        returned = ATTENTION.forms[0].implementations[0].forward(*arguments)
        assert isinstance(returned, tuple)
        out, lse = returned
        return out * factor, lse

    form = ATTENTION.forms[0]
    one = attrs.evolve(form.implementations[0], forward=scaled)
    return attrs.evolve(ATTENTION, forms=(attrs.evolve(form, implementations=(one,)),))


class _ScaledCache(ConcatenatingCache):
    """Gives the results that the attention operator above gives, by a factor."""

    factor = 1.01

    def attend(self, sequences: Sequence[str], q: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Attend, a hundredth too much."""
        out, lse = super().attend(sequences, q, offsets)
        return out * self.factor, lse


class TestAccuracy:
    """The float32 reference, by the contract's tolerances."""

    def test_cache_that_agrees_with_a_wrong_prefill_is_inaccurate(self) -> None:
        """Bits that are the same on both sides may be wrong on both."""

        cache = operator_of(_ScaledCache)

        outcome = judge_program(cache, cache.implementations[0], _attention(1.01), ONE, repeats=2)

        assert outcome.verdict is Verdict.INACCURATE
        assert outcome.cause is not None
        assert (outcome.cause.check, outcome.cause.output) == ("accuracy", "out")
        assert outcome.difference is not None
        assert outcome.difference.max_abs_error is not None

    def test_cancelling_data_are_not_held_against_a_tolerance(self) -> None:
        """Where values cancel, a healthy cache leaves every relative tolerance."""

        cache = operator_of(_ScaledCache)
        signed = attrs.evolve(ONE, data={"v": Recipe(kind="swamp")})

        outcome = judge_program(cache, cache.implementations[0], _attention(1.01), signed)

        assert outcome.verdict is Verdict.HOLDS

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    @pytest.mark.parametrize("kind", ["normal", "uniform", "ones"])
    def test_healthy_cache_is_accurate(self, dtype: str, kind: str) -> None:
        """The torch backend stays within the contract on data that are conditioned."""

        data = {name: Recipe(kind=kind) for name in ("q", "k", "v")}
        program = program_of(A, append(("s0", 20)), dtype=dtype, storage=dtype, block_size=4)

        assert judged(make, attrs.evolve(program, data=data)).verdict is Verdict.HOLDS


def _triton(factory: CacheFactory, *kernels: str) -> CacheOperator:
    implementation = CacheImplementation(backend="triton", make=factory, kernels=kernels)
    return CacheOperator(name="posing", implementations=(implementation,))


class _LaunchingCache(ConcatenatingCache):
    """Says that it launches kernels, in which it does all its work."""

    names: tuple[str, ...] = ("write", "tile")

    def append(self, sequences: Sequence[str], k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """Store tokens in a launch."""
        with interpreted_launch(self.names[0]):
            super().append(sequences, k, v, offsets)

    def attend(self, sequences: Sequence[str], q: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Attend in a launch."""
        with interpreted_launch(self.names[-1]):
            return super().attend(sequences, q, offsets)

    def read(self, sequence: str) -> tuple[Tensor, Tensor]:
        """Read in a launch."""
        with interpreted_launch(self.names[0]):
            return super().read(sequence)


class TestFallback:
    """What computes in the place of a Triton backend."""

    def judge(self, cache: CacheOperator, *, attention: Operator = ATTENTION) -> ProgramOutcome:
        """Judge a short program; full prefills are torch's here."""
        torch_alone = attrs.evolve(
            attention,
            forms=tuple(
                attrs.evolve(form, implementations=form.implementations[:1])
                for form in attention.forms
            ),
        )
        return judge_program(cache, cache.implementations[0], torch_alone, ONE)

    def test_declared_kernels_are_no_fallback(self) -> None:
        """A backend that does its work in the kernels that it declares is judged as any other."""

        outcome = self.judge(_triton(_LaunchingCache, "write", "tile"))

        assert outcome.verdict is Verdict.HOLDS, outcome
        assert [fact.kernel for fact in outcome.facts] == ["write", "tile"]

    def test_undeclared_kernel_is_told(self) -> None:
        """A kernel that is launched and not declared is named."""

        outcome = self.judge(_triton(_LaunchingCache, "write"))

        assert outcome.verdict is Verdict.FALLBACK
        assert "launches tile, which it does not declare" in outcome.message
        assert outcome.cause is not None
        assert outcome.cause.check == ""

    def test_torch_in_its_place_is_told(self) -> None:
        """Operators of torch that compute floats are named."""

        class Half(_LaunchingCache):
            def attend(
                self, sequences: Sequence[str], q: Tensor, offsets: Tensor
            ) -> tuple[Tensor, Tensor]:
                return ConcatenatingCache.attend(self, sequences, q, offsets)

        outcome = self.judge(_triton(Half, "write", "tile"))

        assert outcome.verdict is Verdict.FALLBACK
        assert "attend of cache posing" in outcome.message
        assert "lets torch compute (aten." in outcome.message
        # What a fallback shows needs no repeat.
        assert outcome.repeats == 1

    def test_no_launch_is_told(self) -> None:
        """A call that has work and launches nothing is told, whatever moves the bits."""

        outcome = self.judge(_triton(make, "write", "tile"))

        assert outcome.verdict is Verdict.FALLBACK
        assert outcome.step == 1
        assert "launches none of its kernels (write, tile)" in outcome.message

    def test_torch_backend_is_not_watched(self) -> None:
        """Torch may compute in a torch backend."""

        assert self.judge(operator_of(make)).verdict is Verdict.HOLDS


class TestYardsticks:
    """What is asked for and cannot be had is no fault of the cache."""

    def test_vocabulary_needs_a_registry(self) -> None:
        """The small model is made of registered operators."""

        program = program_of(A, Generate(sequence="s0", count=1), vocabulary=5)
        cache = PAGED.implementations[0]

        with pytest.raises(UsageError, match="give one"):
            judge_program(PAGED, cache, ATTENTION, program)

    def test_operator_that_raises_is_told(self) -> None:
        """A full prefill that cannot be made is an error of the operator."""

        def refuse(*_: Tensor) -> tuple[Tensor, Tensor]:
            raise ValueError("not today")

        form = ATTENTION.forms[0]
        one = attrs.evolve(form.implementations[0], forward=refuse)
        wrong = attrs.evolve(ATTENTION, forms=(attrs.evolve(form, implementations=(one,)),))

        with pytest.raises(TargetError, match="not today"):
            judge_program(PAGED, PAGED.implementations[0], wrong, ONE)

    def test_point_of_an_unknown_axis_is_refused(self) -> None:
        """A recipe is used as it stands, or refused."""

        point = Point(at={"N": 1}, value="0x1p0")
        data = {"k": Recipe(kind="explicit", points=(point,))}

        with pytest.raises(CaseError, match="axis='N'"):
            judged(make, attrs.evolve(ONE, data=data))

    def test_fresh_cache_that_raises_is_judged(self) -> None:
        """Where the cache itself makes full prefills, its exceptions are its own."""

        made: list[int] = []

        def second_fails(shape: CacheShape, device: torch.device) -> ConcatenatingCache:
            made.append(0)
            if len(made) % 2 == 0:
                raise MemoryError("one is enough")
            return ConcatenatingCache(shape, device)

        cache = operator_of(second_fails)

        outcome = judge_program(cache, cache.implementations[0], None, ONE)

        assert (outcome.verdict, outcome.message) == (
            Verdict.CRASHES,
            "MemoryError: one is enough",
        )

    def test_rescoring_nothing_compares_nothing_more(self) -> None:
        """A sequence without tokens has nothing to be scored, nor to be decoded from."""

        program = program_of(A, Rescore(sequence="s0"), append(("s0", 0)), Read(sequence="s0"))

        assert judged(make, program).verdict is Verdict.HOLDS
        assert judged(make, program_of(A, Decode(sequences=("s0",)))).verdict is Verdict.HOLDS
