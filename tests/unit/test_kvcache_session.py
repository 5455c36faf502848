"""Runs of programs: healthy caches hold, and every promise that is broken is told by its name."""

from collections.abc import Sequence

import attrs
import pytest
import torch
from tests.unit.concatenating_cache import ConcatenatingCache, make, operator_of
from tests.unit.kernel_trials import DEVICE
from tests.unit.program_samples import append, program_of, random_program
from torch import Tensor

from biprop.data.recipe import Pairing, Recipe
from biprop.errors import UnsupportedError
from biprop.judgment import Verdict
from biprop.kernels import OPERATORS
from biprop.kernels.attention import OPERATOR as ATTENTION
from biprop.kernels.paged import OPERATOR as PAGED
from biprop.kvcache.interpreter import judge_program
from biprop.kvcache.protocol import CacheFactory, CacheOperator
from biprop.kvcache.records import (
    CHECKS,
    Allocate,
    Decode,
    Defragment,
    Evict,
    Fork,
    Free,
    Generate,
    Op,
    Poison,
    Program,
    ProgramOutcome,
    Read,
    Rescore,
)
from biprop.kvcache.session import Session
from biprop.operators import Operator, Registry

A, B = Allocate(sequence="s0"), Allocate(sequence="s1")
REGISTRY = Registry(operators=OPERATORS)
CONCATENATING = operator_of(make)
FLAT = {name: Recipe(kind="ones") for name in ("q", "k", "v")}
SIGNED = {
    "q": Recipe(kind="zeros"),
    "v": Recipe(kind="swamp", pairing={"@": Pairing(role="antisymmetric", mask=3)}),
}


def judged(
    cache: CacheOperator,
    program: Program,
    *,
    attention: Operator | None = ATTENTION,
    backend: int = 0,
    device: str = "cpu",
) -> ProgramOutcome:
    """Judge a program, with two runs of a violation."""
    return judge_program(
        cache,
        cache.implementations[backend],
        attention,
        program,
        device=device,
        repeats=2,
        registry=REGISTRY,
    )


def broken(**methods: object) -> CacheFactory:
    """Return what makes a concatenating cache with other methods."""
    return type("Broken", (ConcatenatingCache,), methods)


class TestHealthy:
    """Caches without a fault."""

    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize("cache", [CONCATENATING, PAGED], ids=["concatenating", "paged"])
    def test_random_programs_hold(self, cache: CacheOperator, seed: int) -> None:
        """Whatever a program does, a healthy cache keeps every promise, in every dtype."""

        dtype = ("float32", "bfloat16", "float16")[seed % 3]
        storage = dtype if seed % 2 else ("float32", "bfloat16", "float16")[seed % 3]
        layout = ("NHD", "HND")[seed % 2]
        program = random_program(
            seed, dtype=dtype, storage=storage, layout=layout, heads=2, query_heads=4
        )

        outcome = judged(cache, program)

        assert outcome.verdict is Verdict.HOLDS, outcome
        assert outcome.ops_run == len(program.ops)
        assert outcome.comparisons > len(program.ops)
        assert (outcome.requested_backend, outcome.actual_backend) == ("torch", "torch")

    @pytest.mark.parametrize("storage", ["bfloat16", "float16"])
    def test_narrower_storage_holds(self, storage: str) -> None:
        """Keys and values that are rounded when they are stored are so in a full prefill too."""

        program = random_program(6, storage=storage)

        assert judged(PAGED, program).verdict is Verdict.HOLDS

    @pytest.mark.parametrize("seed", [0, 3])
    def test_fresh_cache_may_make_the_full_prefill(self, seed: int) -> None:
        """Without an attention operator a cache is held against a fresh one of its own kind."""

        outcome = judged(PAGED, random_program(seed), attention=None)

        assert outcome.verdict is Verdict.HOLDS
        assert outcome.power is not None

    def test_fresh_cache_is_held_against_what_attention_is(self) -> None:
        """Results that are the same in every way, and wrong, are inaccurate."""

        def attend(
            self: ConcatenatingCache, sequences: Sequence[str], q: Tensor, offsets: Tensor
        ) -> tuple[Tensor, Tensor]:
            out, lse = ConcatenatingCache.attend(self, sequences, q, offsets)
            return torch.zeros_like(out), lse

        normal = Recipe(kind="normal")
        program = attrs.evolve(
            program_of(A, append(("s0", 3))), data={"q": normal, "k": normal, "v": normal}
        )

        outcome = judged(operator_of(broken(attend=attend)), program, attention=None)

        assert outcome.verdict is Verdict.INACCURATE
        assert outcome.cause is not None
        assert (outcome.cause.check, outcome.cause.output) == ("accuracy", "out")

    def test_fresh_cache_is_given_the_tokens_of_the_sequence_alone(self) -> None:
        """A cache of which nothing is declared may depend on how long a sequence is."""

        def attend(
            self: ConcatenatingCache, sequences: Sequence[str], q: Tensor, offsets: Tensor
        ) -> tuple[Tensor, Tensor]:
            assert max(map(self.length, sequences)) <= 5
            return ConcatenatingCache.attend(self, sequences, q, offsets)

        decode = Decode(sequences=("s0",))
        program = program_of(A, append(("s0", 3)), decode, decode)

        outcome = judged(operator_of(broken(attend=attend)), program, attention=None)

        assert outcome.verdict is Verdict.HOLDS, outcome

    def test_kernels_hold_and_are_named(self) -> None:
        """The Triton backend computes in its own kernels, which the outcome names."""

        fork = Fork(sequence="s1", parent="s0", at=1)
        program = program_of(A, append(("s0", 3)), fork, Decode(sequences=("s1", "s0")))

        # Where there is a GPU, kernels are compiled for it.
        outcome = judged(PAGED, program, backend=1, device=str(DEVICE))

        assert outcome.verdict is Verdict.HOLDS, outcome
        is_compiled = DEVICE.type == "cuda"
        assert outcome.actual_backend == ("triton" if is_compiled else "triton-interpreter")
        named = {fact.kernel for fact in outcome.facts}
        assert named <= set(PAGED.implementations[1].kernels)
        assert "paged_attention_tile" in named

    def test_nothing_compared_is_vacuous(self) -> None:
        """A program without a sequence shows nothing."""

        outcome = judged(CONCATENATING, program_of(Defragment(), Read(sequence="s0")))

        assert (outcome.verdict, outcome.ops_run) == (Verdict.VACUOUS, 1)

    def test_illegal_operations_are_passed_over(self) -> None:
        """What is not legal where it stands reaches no cache, and is not counted."""

        program = program_of(Free(sequence="s0"), A, A, append(("s1", 1)), append(("s0", 1)))

        outcome = judged(CONCATENATING, program)

        assert (outcome.verdict, outcome.ops_run) == (Verdict.HOLDS, 2)

    def test_power_follows_the_data(self) -> None:
        """Values that are all equal show no other order of keys, and values that cancel do."""

        # In bfloat16 and with as many tokens that their order matters.
        ops = (A, append(("s0", 12)))
        program = program_of(*ops, dtype="bfloat16", storage="bfloat16")
        flat, signed = (attrs.evolve(program, data=data) for data in (FLAT, SIGNED))

        powers = [judged(CONCATENATING, one).power for one in (flat, signed)]

        assert powers[0] == 0
        assert powers[1] is not None
        assert powers[1] > 0.4


def _after_length(self: ConcatenatingCache, sequence: str) -> int:
    return max(0, len(self.held[sequence][0]) - 1)


def _flipped(self: ConcatenatingCache, sequence: str) -> tuple[Tensor, Tensor]:
    k, v = self.held[sequence]
    return k, -v


def _late_chunk(
    self: ConcatenatingCache, sequences: Sequence[str], q: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    out, lse = ConcatenatingCache.attend(self, sequences, q, offsets)
    is_late = any(self.length(name) > 4 for name in sequences)
    return (out * 1.5 if is_late else out), lse


def _lse_of_one(
    self: ConcatenatingCache, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    out, lse = ConcatenatingCache.decode(self, sequences, q, k, v)
    return out, lse + float(len(sequences) > 1)


def _fork_short(self: ConcatenatingCache, sequence: str, parent: str, at: int) -> None:
    k, v = self.held[parent]
    self.held[sequence] = (k[:at].clone(), torch.zeros_like(v[:at]))


def _fork_loses_in_attend(
    self: ConcatenatingCache, sequences: Sequence[str], q: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    out, lse = ConcatenatingCache.attend(self, sequences, q, offsets)
    return (out + 1 if "s1" in sequences else out), lse


def _free_all(self: ConcatenatingCache, sequence: str) -> None:
    del self.held[sequence]
    self.held = {name: (-k, v) for name, (k, v) in self.held.items()}


def _rescored_otherwise(
    self: ConcatenatingCache, sequences: Sequence[str], q: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    out, lse = ConcatenatingCache.attend(self, sequences, q, offsets)
    # Only where more than what was stored last is asked again.
    self.seen = getattr(self, "seen", 0) + 1  # type: ignore[attr-defined]  # of this test alone
    return (-out if self.seen > 1 else out), lse  # type: ignore[attr-defined]  # likewise


def _scaled_in_place(
    self: ConcatenatingCache, sequences: Sequence[str], q: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    q.mul_(0.5)
    return ConcatenatingCache.attend(self, sequences, q, offsets)


FORKED = (A, append(("s0", 3)), Fork(sequence="s1", parent="s0", at=2))
BREAKS: tuple[tuple[str, str, dict[str, object], tuple[Op, ...]], ...] = (
    ("input", "", {"attend": _scaled_in_place}, (A, append(("s0", 1)))),
    ("length", "", {"length": _after_length}, (A, append(("s0", 1)))),
    ("chunk", "out", {"attend": _late_chunk}, (A, append(("s0", 3)), append(("s0", 2)))),
    (
        "reuse",
        "out",
        {"attend": _late_chunk},
        (A, append(("s0", 1)), Free(sequence="s0"), B, append(("s1", 5))),
    ),
    ("decode", "lse", {"decode": _lse_of_one}, (A, B, Decode(sequences=("s1", "s0")))),
    ("stored", "v", {"read": _flipped}, (A, append(("s0", 1)), Read(sequence="s0"))),
    ("fork", "v", {"fork": _fork_short}, FORKED),
    ("prefix", "out", {"attend": _fork_loses_in_attend}, (*FORKED, append(("s1", 1)))),
    (
        "untouched",
        "k",
        {"free": _free_all},
        (A, B, append(("s0", 1), ("s1", 1)), Free(sequence="s0")),
    ),
    (
        "rescore",
        "out",
        {"attend": _rescored_otherwise},
        (A, append(("s0", 2)), Rescore(sequence="s0")),
    ),
)


class TestBroken:
    """Caches with one fault each."""

    @pytest.mark.parametrize(
        ("check", "output", "methods", "ops"), BREAKS, ids=[name for name, *_ in BREAKS]
    )
    def test_promise_is_named(
        self, check: str, output: str, methods: dict[str, object], ops: tuple[Op, ...]
    ) -> None:
        """A fault is told by the promise that it breaks, at the operation that shows it."""

        outcome = judged(operator_of(broken(**methods)), program_of(*ops, Defragment()))

        assert outcome.verdict is Verdict.DRIFTS
        assert outcome.cause is not None
        assert (outcome.cause.check, outcome.cause.output) == (check, output)
        assert outcome.cause.finite
        assert outcome.step == len(ops) - 1
        assert (outcome.difference is None) == (check in {"input", "length"})
        assert judged(CONCATENATING, program_of(*ops)).verdict is Verdict.HOLDS

    def test_every_promise_has_a_test(self) -> None:
        """The faults above, in accuracy and from run to run break all promises that there are."""

        assert {name for name, *_ in BREAKS} | {"accuracy", "repeat"} == set(CHECKS)

    def test_what_is_kept_must_be_copied(self) -> None:
        """A cache that keeps the caller's memory loses what it stored when that is used again."""

        def append_views(
            self: ConcatenatingCache, sequences: Sequence[str], k: Tensor, v: Tensor, _: Tensor
        ) -> None:
            (name,) = sequences
            self.held[name] = (k, v)

        outcome = judged(
            operator_of(broken(append=append_views)),
            program_of(A, append(("s0", 2)), Read(sequence="s0")),
        )

        assert outcome.cause is not None
        assert outcome.cause.check == "chunk"

    def test_results_may_lie_in_memory_that_is_used_again(self) -> None:
        """They are read before the next call."""

        workspace = torch.zeros(64, 1, 4)

        def in_workspace(
            self: ConcatenatingCache, sequences: Sequence[str], q: Tensor, offsets: Tensor
        ) -> tuple[Tensor, Tensor]:
            out, lse = ConcatenatingCache.attend(self, sequences, q, offsets)
            here = workspace[: len(out), : out.shape[1], : out.shape[2]]
            here.copy_(out)
            return here, lse

        program = program_of(A, append(("s0", 2)), append(("s0", 3)), Rescore(sequence="s0"))

        assert judged(operator_of(broken(attend=in_workspace)), program).verdict is Verdict.HOLDS

    def test_first_difference_is_told(self) -> None:
        """Sequence, token, coordinate, both patterns and how many elements differ."""

        def read(self: ConcatenatingCache, sequence: str) -> tuple[Tensor, Tensor]:
            k, v = self.held[sequence]
            other = v.clone()
            other[1, 0, 2] = 0.0
            other[2] = 0.0
            return k, other

        ones = {"v": FLAT["v"]}
        program = program_of(A, append(("s0", 3)), Read(sequence="s0"))

        outcome = judged(operator_of(broken(read=read)), attrs.evolve(program, data=ones))

        found = outcome.difference
        assert found is not None
        assert (found.sequence, found.token, found.coordinate) == ("s0", 1, (0, 2))
        assert (found.expected_bits, found.got_bits) == ("0x3f800000", "0x00000000")
        assert (found.elements, found.elements_compared) == (5, 12)
        assert (found.max_abs_error, found.dtype) == (1.0, "float32")

    def test_chunk_is_counted_from_the_first_token(self) -> None:
        """A difference in a later chunk is told at its token of the sequence."""

        ops = (A, append(("s0", 3)), append(("s0", 2)))

        outcome = judged(operator_of(broken(attend=_late_chunk)), program_of(*ops))

        assert outcome.difference is not None
        assert outcome.difference.token == 3

    def test_evicted_tokens_are_stored_again_unseen(self) -> None:
        """A cache that forgets more than it should is caught by what is read after an eviction."""

        def evict(self: ConcatenatingCache, sequence: str, keep: int) -> None:
            k, v = self.held[sequence]
            self.held[sequence] = (k[:keep], v[:keep].roll(1, 0))

        ops = (A, append(("s0", 4)), Evict(sequence="s0", keep=3))

        outcome = judged(operator_of(broken(evict=evict)), program_of(*ops))

        assert outcome.cause is not None
        assert (outcome.cause.check, outcome.step) == ("untouched", 2)

    @pytest.mark.parametrize("output", ["logp", "token"])
    def test_generation_is_rescored(self, output: str) -> None:
        """Ids that decoding picked have other log probabilities under teacher forcing."""

        def decode(
            self: ConcatenatingCache, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
        ) -> tuple[Tensor, Tensor]:
            out, lse = ConcatenatingCache.decode(self, sequences, q, k, v)
            # A factor leaves the largest logit what it is.
            return (out * 2 if output == "logp" else -out), lse

        generate = Generate(sequence="s0", count=3)
        program = program_of(A, append(("s0", 2)), generate, vocabulary=7)
        assert judged(CONCATENATING, program).verdict is Verdict.HOLDS

        outcome = judged(operator_of(broken(decode=decode)), program)

        assert outcome.cause is not None
        assert (outcome.cause.check, outcome.cause.output) == ("rescore", "logp")
        assert outcome.difference is not None
        # The first id follows from a token that was appended.
        assert outcome.difference.token == 3


class TestRaising:
    """Caches that raise, or give something else."""

    def test_exception_is_a_crash(self) -> None:
        """Class and text are kept, and the operation is told."""

        def defragment(self: ConcatenatingCache) -> None:
            raise ValueError(f"no room for {len(self.held)}")

        program = program_of(A, append(("s0", 1)), Defragment())

        outcome = judged(operator_of(broken(defragment=defragment)), program)

        assert outcome.verdict is Verdict.CRASHES
        assert (outcome.step, outcome.message) == (2, "ValueError: no room for 1")
        assert outcome.cause is not None
        assert (outcome.cause.check, outcome.cause.output) == ("", "")

    def test_leaving_is_a_crash(self) -> None:
        """A cache that would end the process is judged."""

        def free(_self: ConcatenatingCache, _sequence: str) -> None:
            raise SystemExit(3)

        outcome = judged(operator_of(broken(free=free)), program_of(A, Free(sequence="s0")))

        assert (outcome.verdict, outcome.message) == (Verdict.CRASHES, "SystemExit: 3")

    def test_cache_that_cannot_be_made_is_a_crash(self) -> None:
        """A factory that raises for a shape is judged at the first operation."""

        def refuse(_shape: object, _device: torch.device) -> ConcatenatingCache:
            raise RuntimeError("too large")

        outcome = judged(operator_of(refuse), program_of(Defragment(), A))

        assert (outcome.verdict, outcome.step) == (Verdict.CRASHES, 0)

    @pytest.mark.parametrize(
        ("returned", "words"),
        [
            (None, "returned NoneType of attend"),
            ((1, 2), "returned int for out of attend"),
            ((torch.zeros(1, 1, 4), torch.zeros(1)), "returned [1] of torch.float32"),
            (
                (torch.zeros(1, 1, 4).double(), torch.zeros(1, 1)),
                "returned [1, 1, 4] of torch.float64",
            ),
        ],
    )
    def test_something_else_is_a_crash(self, returned: object, words: str) -> None:
        """What is not of the shape and dtype that was asked for is told."""

        def attend(*_: object) -> object:
            return returned

        program = program_of(A, append(("s0", 1)))

        outcome = judged(operator_of(broken(attend=attend)), program)

        assert outcome.verdict is Verdict.CRASHES
        assert words in outcome.message

    def test_declining_is_no_violation(self) -> None:
        """A cache that says that it cannot do something is not blamed for it."""

        def defragment(_self: ConcatenatingCache) -> None:
            raise UnsupportedError("This cache never moves a page.")

        outcome = judged(operator_of(broken(defragment=defragment)), program_of(A, Defragment()))

        assert outcome.verdict is Verdict.UNSUPPORTED
        assert outcome.cause is None


class TestSession:
    """Sessions as machines use them."""

    def test_outcome_stays_after_a_violation(self) -> None:
        """Nothing more is run, and the same outcome is returned."""

        session = Session(
            operator=CONCATENATING,
            implementation=operator_of(broken(read=_flipped)).implementations[0],
            attention=ATTENTION,
            program=program_of(),
        )
        assert session.apply(A) is None
        assert session.apply(append(("s0", 1))) is None

        found = session.apply(Read(sequence="s0"))
        again = session.apply(Poison(fill="zero"))
        last = session.finish()

        assert found is not None
        assert again is not None
        assert found.cause == again.cause == last.cause
        assert found.step == again.step == last.step == 2
        assert last.ops_run == 3

    def test_model_is_the_account(self) -> None:
        """What is legal next is drawn from the session's own account."""

        session = Session(
            operator=CONCATENATING,
            implementation=CONCATENATING.implementations[0],
            attention=ATTENTION,
            program=program_of(),
        )
        session.apply(A)
        session.apply(append(("s0", 3)))

        assert session.model.sequences["s0"].length == 3
        assert session.finish().verdict is Verdict.HOLDS
