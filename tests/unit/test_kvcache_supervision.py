"""Caches in a worker: those that crash or hang, those that cannot be found, and one answer each."""

import textwrap
from pathlib import Path

import attrs
import pytest
from tests.unit.concatenating_cache import ConcatenatingCache, make, operator_of
from tests.unit.program_samples import append, program_of, random_program

from biprop.errors import BipropError, TargetError
from biprop.judgment import Verdict
from biprop.kernels import OPERATORS
from biprop.kernels.attention import OPERATOR as ATTENTION
from biprop.kvcache.records import (
    Allocate,
    CacheReference,
    Defragment,
    Free,
    Poison,
    Program,
    ProgramOutcome,
    Read,
)
from biprop.operators import Registry
from biprop.registry import find_cache
from biprop.supervision import Child
from biprop.supervision.caches import check_cache, resolve_cache
from biprop.supervision.programs import REPEATS_QUICK, BrokenOffProgramError, SupervisedPrograms
from biprop.supervision.programs_in_process import InProcessPrograms

A = Allocate(sequence="s0")
REGISTRY = Registry(operators=OPERATORS)
CACHES = """
import os, sys
import torch
from tests.unit.concatenating_cache import ConcatenatingCache, make

class Aborting(ConcatenatingCache):
    def defragment(self):
        os.abort()

class Spinning(ConcatenatingCache):
    def defragment(self):
        while True:
            pass

class Leaving(ConcatenatingCache):
    def free(self, sequence):
        os._exit(7)

class Fragile(ConcatenatingCache):
    poisoned = ""

    def poison(self, fill):
        self.poisoned = fill
        return True

    def free(self, sequence):
        if self.poisoned == "nan":
            os.abort()

class Half:
    def allocate(self, sequence):
        pass

def healthy(shape, device): return make(shape, device)
def aborting(shape, device): return Aborting(shape, device)
def spinning(shape, device): return Spinning(shape, device)
def leaving(shape, device): return Leaving(shape, device)
def fragile(shape, device): return Fragile(shape, device)
def half(shape, device): return Half()
def raising(shape, device): raise ValueError("not on a Monday")
def deadly(shape, device): os.abort()
def sleeping(shape, device):
    while True:
        pass
"""


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of caches."""
    path = tmp_path_factory.mktemp("caches") / "caches.py"
    root = str(Path(__file__).resolve().parents[2])
    path.write_text(f"import sys\nsys.path.insert(0, {root!r})\n{textwrap.dedent(CACHES)}")
    return path


def reference(targets: Path, name: str) -> CacheReference:
    """Return how a cache of the file is found."""
    target = f"{targets}:{name}"
    return CacheReference(cache=target, target=target, attention="attention")


def judge(
    child: Child, targets: Path, name: str, program: Program, *, timeout: float = 5.0
) -> tuple[Verdict, str, object]:
    """Judge a program of a cache of the file; return verdict, message and step."""
    with SupervisedPrograms(reference(targets, name), timeout=timeout, child=child) as judge:
        outcome = judge.judge(program)
    return outcome.verdict, outcome.message, outcome.step


class TestSupervised:
    """Caches that would end the process that asks."""

    def test_healthy_cache_holds(self, child: Child, targets: Path) -> None:
        """A cache from a file is judged as any other, and its file is known."""

        program = random_program(2)
        with SupervisedPrograms(reference(targets, "healthy"), child=child) as judge:
            outcome = judge.judge(program)
            assert len(judge.provenance.target_digest) == 16

        assert outcome.verdict is Verdict.HOLDS
        assert outcome.ops_run == len(program.ops)

    def test_registered_cache_holds(self, child: Child) -> None:
        """A registered cache is found by its name, the small model's operators too."""

        paged = CacheReference(cache="paged", target="paged", backend="torch")
        with SupervisedPrograms(paged, child=child) as judge:
            outcome = judge.judge(random_program(3))

        assert outcome.verdict is Verdict.HOLDS

    @pytest.mark.parametrize(
        ("name", "told", "timeout"),
        [
            ("aborting", "was killed by SIGABRT in stage 'program', at defragment (caches", 5.0),
            ("spinning", "hung for 3 s in stage 'program', at defragment (caches.py:", 1.0),
        ],
    )
    def test_death_is_a_crash_at_its_operation(
        self, child: Child, targets: Path, name: str, told: str, timeout: float
    ) -> None:
        """A cache that is killed or hangs is CRASHES, and the operation is known."""

        program = program_of(A, append(("s0", 3)), Defragment(), Read(sequence="s0"))

        verdict, message, step = judge(child, targets, name, program, timeout=timeout)

        assert (verdict, step) == (Verdict.CRASHES, 2)
        assert told in message

    def test_next_program_gets_another_worker(self, child: Child, targets: Path) -> None:
        """After a death the same judge goes on, and remembers what it saw."""

        program = program_of(A, Free(sequence="s0"))
        with SupervisedPrograms(reference(targets, "leaving"), timeout=5.0, child=child) as judge:
            first = judge.judge(program)
            after = judge.judge(program_of(A, append(("s0", 1))))
            again = judge.judge(program)

        assert first.verdict is Verdict.CRASHES
        assert "exit status 7" in first.message
        assert after.verdict is Verdict.HOLDS
        assert again is first

    def test_crash_by_nan_alone_is_a_non_finite_cause(self, child: Child, targets: Path) -> None:
        """A cache that dies of NaN, and of nothing finite, has a cause of its own."""

        program = program_of(A, Poison(fill="nan"), Free(sequence="s0"))
        with SupervisedPrograms(reference(targets, "fragile"), timeout=5.0, child=child) as judge:
            outcome = judge.judge(program)

        assert outcome.verdict is Verdict.CRASHES
        assert outcome.cause is not None
        assert not outcome.cause.finite

    def test_a_crash_is_told_though_its_cause_is_not_known(
        self, child: Child, targets: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C came while it was asked whether it is of NaN alone."""

        program = program_of(A, Poison(fill="nan"), Free(sequence="s0"))
        with SupervisedPrograms(reference(targets, "fragile"), timeout=5.0, child=child) as judge:
            own = judge._judge

            def interrupted(program: Program, *, quick: bool) -> ProgramOutcome:
                if quick:
                    raise KeyboardInterrupt
                return own(program, quick=quick)

            monkeypatch.setattr(judge, "_judge", interrupted)
            with pytest.raises(KeyboardInterrupt) as broken:
                judge.judge(program)

        assert isinstance(broken.value, BrokenOffProgramError)
        assert broken.value.program == program
        assert broken.value.outcome.verdict is Verdict.CRASHES

    def test_cache_that_dies_when_it_is_made_is_a_crash(self, child: Child, targets: Path) -> None:
        """A factory that kills its worker raises nothing: its programs are judged."""

        verdict, message, _ = judge(child, targets, "deadly", program_of(A))

        assert verdict is Verdict.CRASHES
        assert "SIGABRT" in message

    def test_cache_that_is_never_made_is_refused(self, child: Child, targets: Path) -> None:
        """A factory that hangs would hang in every program: that is said once, with its place."""

        with pytest.raises(TargetError, match=r"hung for 1\.5 s .* at sleeping"):
            SupervisedPrograms(reference(targets, "sleeping"), timeout=0.5, child=child)

    def test_class_makes_caches_too(self, child: Child, targets: Path) -> None:
        """A target may name the class itself."""

        verdict, message, _ = judge(child, targets, "Spinning", program_of(A, append(("s0", 2))))

        assert verdict is Verdict.HOLDS, message

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("half", "returned Half, which has no append"),
            ("raising", "raised for CacheShape"),
            ("absent", "absent"),
        ],
    )
    def test_what_is_no_cache_is_refused(
        self, child: Child, targets: Path, name: str, told: str
    ) -> None:
        """A sentence says what is wrong with the target, before any program."""

        with pytest.raises(BipropError, match=told):
            SupervisedPrograms(reference(targets, name), child=child)

    def test_unknown_name_is_refused(self, child: Child) -> None:
        """The sentence lists what is registered."""

        absent = CacheReference(cache="heap", target="heap", backend="torch")

        with pytest.raises(TargetError, match="No cache 'heap' is registered: there are paged"):
            SupervisedPrograms(absent, child=child)


class TestResolving:
    """From a reference to a cache."""

    def test_backend_that_there_is_not_is_refused(self) -> None:
        """The sentence lists the backends."""

        paged = CacheReference(cache="paged", target="paged", backend="jax")

        with pytest.raises(TargetError, match="no backend 'jax': there are torch, triton"):
            resolve_cache(paged, REGISTRY, find_cache)

    def test_attention_of_a_registered_cache_is_found(self) -> None:
        """Full prefills are made by the operator that the cache names."""

        paged = CacheReference(cache="paged", target="paged", backend="triton")

        found = resolve_cache(paged, REGISTRY, find_cache)

        assert found.implementation.backend == "triton"
        assert found.attention is ATTENTION

    def test_target_names_its_attention_or_none(self, targets: Path) -> None:
        """An unregistered cache is held against an operator only if the reference says so."""

        named = reference(targets, "healthy")
        alone = attrs.evolve(named, attention="")
        wrong = attrs.evolve(named, attention="retention")

        assert resolve_cache(named, REGISTRY, find_cache).attention is ATTENTION
        assert resolve_cache(alone, REGISTRY, find_cache).attention is None
        with pytest.raises(TargetError, match="No operator 'retention' is registered"):
            resolve_cache(wrong, REGISTRY, find_cache)

    def test_registered_caches_can_be_made(self) -> None:
        """The torch backend passes what a target is asked for."""

        paged = CacheReference(cache="paged", target="paged", backend="torch")

        check_cache(resolve_cache(paged, REGISTRY, find_cache), device="cpu")


class TestInProcess:
    """Judges without a worker."""

    def test_same_program_gets_the_same_answer(self) -> None:
        """A violation that was seen once is not unseen, whatever the cache does next."""

        made: list[int] = []

        class Tossing(ConcatenatingCache):
            def length(self, sequence: str) -> int:
                return len(self.held[sequence][0]) + (not made)

        cache = operator_of(Tossing)
        judge = InProcessPrograms(cache, cache.implementations[0], ATTENTION)
        first = judge.judge(program_of(A))
        made.append(0)

        assert first.verdict is Verdict.DRIFTS
        assert judge.judge(program_of(A)) is first
        assert judge.judge(program_of(A), fresh=True).verdict is Verdict.HOLDS
        assert judge.judge(program_of(A)) is first

    def test_quick_answer_does_not_stand_for_a_thorough_one(self) -> None:
        """Shrinking asks quickly; who asks thoroughly afterwards gets all repeats."""

        class Longer(ConcatenatingCache):
            def length(self, sequence: str) -> int:
                return len(self.held[sequence][0]) + 1

        cache = operator_of(Longer)
        judge = InProcessPrograms(cache, cache.implementations[0], ATTENTION, repeats=4)
        quick = judge.judge(program_of(A), quick=True)
        thorough = judge.judge(program_of(A))

        assert (quick.repeats, thorough.repeats) == (REPEATS_QUICK, 4)
        assert judge.judge(program_of(A), quick=True) is thorough

    def test_power_is_measured_unless_quick(self) -> None:
        """A quick answer says nothing of the data."""

        cache = operator_of(make)
        judge = InProcessPrograms(cache, cache.implementations[0], ATTENTION)
        program = program_of(A, append(("s0", 2)))

        assert judge.judge(program, quick=True).power is None
        assert judge.judge(program).power is not None

    def test_reference_and_provenance_are_told(self) -> None:
        """What fixtures record is there without a worker too."""

        cache = operator_of(make)
        judge = InProcessPrograms(cache, cache.implementations[0], ATTENTION)

        assert judge.reference.cache == "concatenating"
        assert judge.provenance.device == "cpu"
        judge.close()
