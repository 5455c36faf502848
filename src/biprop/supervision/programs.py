"""A judge of programs whose cache lives in a child process, so that nothing it does can end this.

This module imports no torch. A child that dies or hangs while it judges a program is a verdict,
CRASHES; the next program is given to another child. What the child does says
`biprop.supervision.caches`; without a child `biprop.supervision.programs_in_process` judges.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Protocol, Self

import attrs

from biprop.case import Json, canonical_json
from biprop.errors import TargetError
from biprop.judgment import Verdict
from biprop.kvcache.converting import (
    CONVERTER,
    program_outcome_from_data,
    program_to_data,
)
from biprop.kvcache.model import Model
from biprop.kvcache.poisons import FILLS_FINITE, has_nonfinite_poison, with_finite_poison
from biprop.kvcache.records import CacheReference, Program, ProgramCause, ProgramOutcome
from biprop.provenance import Provenance
from biprop.supervision.child import WORKER_COMMAND, BrokenOffHangError, Child, ChildDiedError
from biprop.supervision.messages import encode

__all__ = [
    "REPEATS_QUICK",
    "BrokenOffProgramError",
    "ProgramJudge",
    "ProgramLedger",
    "SupervisedPrograms",
]

# The first program of a cache compiles its kernels.
_FIRST_FACTOR = 3
# Runs that a violation rests on while it is shrunk; the smallest program is judged as any other.
REPEATS_QUICK = 2
# Seconds, and times what the slowest program took so far, after which one is taken for hung then.
_QUICK_SECONDS = 2.0
_QUICK_FACTOR = 10


class BrokenOffProgramError(KeyboardInterrupt):
    """Ctrl-C came when a program had failed already.

    Attributes:
        program: It.
        outcome: What was seen of it, which is not unseen.
    """

    def __init__(self, program: Program, outcome: ProgramOutcome) -> None:
        """Keep both."""
        super().__init__()
        self.program = program
        self.outcome = outcome


class ProgramJudge(Protocol):
    """Judges programs of one cache; the same program gets the same answer within a process.

    Attributes:
        reference: How the cache is found again.
        provenance: Device, versions and digests of the process that runs it.
    """

    reference: CacheReference
    provenance: Provenance

    def judge(
        self, program: Program, *, fresh: bool = False, quick: bool = False
    ) -> ProgramOutcome:
        """Return the outcome of one program.

        Args:
            program: What is run.
            fresh: Judge it even if it has an outcome.
            quick: For shrinking: a violation is run twice only, and no power is measured.
        """

    def close(self) -> None:
        """Let go of what runs it."""


class ProgramLedger:
    """The outcomes of this process by program: a violation that was seen is not unseen.

    Without it Hypothesis calls a cache that differs from run to run flaky instead of reporting it.
    """

    def __init__(self, *, entries_max: int = 20_000) -> None:
        """Start empty."""
        self._entries: OrderedDict[str, tuple[ProgramOutcome, bool]] = OrderedDict()
        self._entries_max = entries_max

    def find(self, key: str, *, quick: bool) -> ProgramOutcome | None:
        """Return the outcome of a program by its digest, None where it has none.

        What was judged quickly answers only who asks quickly.
        """
        known = self._entries.get(key)
        if known is None or (known[1] and not quick):
            return None
        return known[0]

    def keep(self, key: str, outcome: ProgramOutcome, *, quick: bool) -> None:
        """Remember `outcome`, unless a violation is known already that rests on as many runs."""
        known = self._entries.get(key)
        if known is not None and known[0].verdict.is_violation and known[1] <= quick:
            return
        self._entries[key] = (outcome, quick)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)


class SupervisedPrograms:
    """Judges programs of one cache in a child process (see `ProgramJudge`).

    Attributes:
        reference: How the cache is found again.
        provenance: Of the worker.
    """

    def __init__(
        self,
        reference: CacheReference,
        *,
        device: str = "cpu",
        timeout: float = 60.0,
        repeats: int = 5,
        is_deterministic: bool = False,
        command: Sequence[str] = WORKER_COMMAND,
        child: Child | None = None,
    ) -> None:
        """Find the cache in a worker, and make one of the smallest shape.

        Whether the reference may run at all is checked by whoever read it.

        Args:
            reference: The cache.
            device: Where it lives.
            timeout: Seconds that one operation of a program may take; those of the first program
                get three times as much.
            repeats: Runs in all that a violation rests on.
            is_deterministic: Whether programs ask for deterministic algorithms.
            command: What starts a worker.
            child: A worker to share with other judges of the same device, which this one will not
                end; None: one of its own.

        Raises:
            BipropError: The cache cannot be found or made, or making it takes too long; the
                sentence says why. One that kills its worker when it is made raises nothing: its
                programs are judged CRASHES.
        """
        self.reference = reference
        self._child = (
            Child(device=device, is_deterministic=is_deterministic, command=command)
            if child is None
            else child
        )
        self._owns_child = child is None
        self._timeout = timeout
        self._repeats = repeats
        self._ledger = ProgramLedger()
        self._opened_in = self._asked_in = 0
        # Seconds that the slowest program took which was not ended.
        self._slowest = 0.0
        self._cache = 0
        try:
            self.provenance = self._open(first=True)
        except BaseException:
            self.close()
            raise

    def judge(
        self, program: Program, *, fresh: bool = False, quick: bool = False
    ) -> ProgramOutcome:
        """Return the outcome of one program, CRASHES if it killed the worker or hung."""
        text = canonical_json(program_to_data(program))
        key = hashlib.sha256(text.encode()).hexdigest()
        outcome = None if fresh else self._ledger.find(key, quick=quick)
        if outcome is None:
            outcome = self._judge(program, quick=quick)
            if outcome.verdict is Verdict.CRASHES and not self._child.is_running:
                outcome = self._crash(program, outcome)
            self._ledger.keep(key, outcome, quick=quick)
        return outcome

    def close(self) -> None:
        """End the worker if it is this judge's own."""
        if self._owns_child:
            self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, *, first: bool = False) -> Provenance:
        message: dict[str, Json] = {
            "do": "open cache",
            "reference": CONVERTER.unstructure(self.reference),
            # A target may be named by a path relative to the folder that this process is in now.
            "folder": str(Path.cwd()),
            "trial": first,
        }
        try:
            answer = self._child.ask(message, seconds=self._timeout * _FIRST_FACTOR)
        except ChildDiedError as error:
            if first and not error.is_hung:
                return self._open()
            raise TargetError(
                f"Cache {self.reference.target} {error.reason} while it was loaded and made: make "
                "one in a process of its own to see why."
            ) from None
        self._opened_in = self._child.starts
        self._cache = int(str(answer["cache"]))
        return CONVERTER.structure(answer["provenance"], Provenance)

    def _judge(self, program: Program, *, quick: bool, is_second: bool = False) -> ProgramOutcome:
        if not self._child.is_running or self._opened_in != self._child.starts:
            self._open()
        factor = 1 if self._asked_in == self._opened_in else _FIRST_FACTOR
        seconds = self._timeout * factor
        if quick:
            # Many smaller programs of one that hung are tried, and most of them hang too.
            seconds = min(seconds, max(_QUICK_SECONDS * factor, _QUICK_FACTOR * self._slowest))
        start = perf_counter()
        self._asked_in = self._opened_in
        message: dict[str, Json] = {
            "do": "program",
            "cache": self._cache,
            "repeats": REPEATS_QUICK if quick else self._repeats,
            "measure": not quick,
            "program": program_to_data(program),
        }
        try:
            answer = self._child.ask(encode(message), seconds=seconds)
        except ChildDiedError as error:
            if not error.stage and not is_second:
                # It died before it began, of what an earlier program left behind.
                return self._judge(program, quick=quick, is_second=True)
            return self._crashed(program, error)
        except BrokenOffHangError as error:
            raise BrokenOffProgramError(program, self._crashed(program, error.death)) from None
        self._slowest = max(self._slowest, perf_counter() - start)
        outcome = program_outcome_from_data(answer["outcome"])
        if answer["device_is_lost"]:
            # Its process ends by itself; nothing more is asked of it.
            self._child.give_up()
        return outcome

    def _crashed(self, program: Program, death: ChildDiedError) -> ProgramOutcome:
        step = death.launches if death.stage == "program" else None
        # What was run is known only to the worker that is gone: the account tells what it can.
        model = Model(program.shape, vocabulary=program.vocabulary)
        ops = program.ops if step is None else program.ops[: step + 1]
        count = sum(model.apply(op) for op in ops)
        return ProgramOutcome(
            verdict=Verdict.CRASHES,
            cause=ProgramCause(verdict=Verdict.CRASHES),
            step=step,
            message=f"The cache {death.reason}.",
            is_hung=death.is_hung,
            coverage=model.coverage,
            ops_run=count,
            requested_backend=self.reference.backend,
        )

    def _crash(self, program: Program, outcome: ProgramOutcome) -> ProgramOutcome:
        """Return CRASHES, its cause non-finite if only a non-finite poison kills the worker."""
        if not has_nonfinite_poison(program):
            return outcome
        for fill in FILLS_FINITE:
            try:
                milder = self._judge(with_finite_poison(program, fill), quick=True)
            except KeyboardInterrupt:
                raise BrokenOffProgramError(program, outcome) from None
            if milder.verdict is Verdict.CRASHES:
                return outcome
        assert outcome.cause is not None, "a crash has a cause"
        return attrs.evolve(outcome, cause=attrs.evolve(outcome.cause, finite=False))
