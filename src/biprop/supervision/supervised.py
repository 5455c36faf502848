"""A judge whose kernel runs in a child process, so that nothing it does can end this one.

This process imports no torch. A child that dies or hangs while it judges a case is a verdict,
CRASHES; the next case is given to another child. The judging itself is
`biprop.relations.judging`.
"""

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Self

import attrs

from biprop.case import Case, Dtype, Execution, Json, canonical_json, case_to_data
from biprop.data.recipe import Point
from biprop.errors import CaseError, TargetError
from biprop.judgment import Outcome, Verdict, outcome_from_data
from biprop.operators import KernelReference
from biprop.relations import JUDGE_OPTIONS, JudgeOptions, cause_of
from biprop.relations.sharpening import FILLS_TRIED, has_nonfinite_fill, with_finite_fill
from biprop.supervision.child import WORKER_COMMAND, BrokenOffHangError, Child, ChildDiedError
from biprop.supervision.journal import Entries
from biprop.supervision.ledger import Ledger
from biprop.supervision.messages import CONVERTER, encode
from biprop.supervision.opening import FIRST_FACTOR, opening
from biprop.supervision.pending import Pending, Steps, finished, pending_of
from biprop.supervision.records import BrokenOffError, Description

__all__ = ["SupervisedJudge"]


class SupervisedJudge:
    """Judges cases of one kernel in a child process (see `Judge`).

    Attributes:
        reference: How the kernel is found again, its signature written out.
        description: What the kernel is.
    """

    def __init__(
        self,
        *,
        reference: KernelReference,
        device: str = "cpu",
        timeout: float = 60.0,
        dtype: Dtype = "float32",
        direction: Literal["forward", "backward"] = "forward",
        execution: Execution | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        child: Child | None = None,
        journal: Entries | None = None,
    ) -> None:
        """Load the kernel, and run it once on the simplest case of `dtype` and `direction`.

        Whether the reference may run at all is checked by whoever read it (`biprop.fixtures.load`).

        Args:
            reference: The kernel.
            device: Where it runs: `cpu`, `cuda:0`, ...
            timeout: Seconds that one run of the kernel may take; the first case gets three times as
                much.
            dtype: Of the simplest case.
            direction: Of the simplest case.
            execution: Switches of the cases to come; None: as they are by default.
            command: What starts a worker.
            child: A worker to share with other judges of the same device, which this judge will not
                end; None: one of its own.
            journal: Where the case being judged is named on disk; None: nowhere.

        Raises:
            BipropError: The kernel cannot be found, described or run; the sentence says why. A
                kernel that kills its worker on the simplest case raises nothing: its cases are
                judged CRASHES.
        """
        self._child = _child(device, execution, command) if child is None else child
        self._owns_child = child is None
        self._timeout = timeout
        self._journal = journal
        self._ledger = Ledger()
        self._asked: set[tuple[int, str]] = set()
        self._is_careful = False
        self._opened_in = 0
        self._kernel = 0
        self._dtype: Dtype = dtype
        self._direction: Literal["forward", "backward"] = direction
        self._execution = execution
        self._trial: dict[str, Json] = {
            "dtype": dtype,
            "direction": direction,
            "execution": CONVERTER.unstructure(execution or Execution()),
        }
        self.reference = reference
        try:
            self.description = self._open(first=True)
        except BaseException:
            self.close()
            raise

    def judge(self, case: Case, options: JudgeOptions = JUDGE_OPTIONS) -> Outcome:
        """Return the outcome of one case, CRASHES if it killed the worker."""
        return finished(self._alone(case, options))

    def judge_set(
        self, cases: Sequence[Case], options: Sequence[JudgeOptions]
    ) -> tuple[Outcome, ...]:
        """Return the outcome of each of several layouts of one case (see `Judge`)."""
        return finished(self._together(cases, options))

    def begin(self, cases: Sequence[Case], options: Sequence[JudgeOptions]) -> Pending:
        """Have one case or several layouts judged in the worker meanwhile (see `AheadJudge`)."""
        return pending_of(cases, self._together(cases, options))

    def nonzeros(self, case: Case, name: str, limit: int) -> tuple[Point, ...] | None:
        """List the values of one tensor that are not zero; None where there are more than `limit`.

        None too where the worker dies of it: nothing of the target runs, so that is a want of
        memory.
        """
        if not self._child.is_running or self._opened_in != self._child.starts:
            self._open()
        message: dict[str, Json] = {
            "do": "nonzeros",
            "kernel": self._kernel,
            "case": case_to_data(case),
            "name": name,
            "limit": limit,
        }
        try:
            answer = self._child.ask(message, seconds=self._timeout)
        except ChildDiedError:
            return None
        points = answer["points"]
        return None if points is None else CONVERTER.structure(points, tuple[Point, ...])

    def relative(self, backend: str) -> "SupervisedJudge":
        """Return a judge of the same operator and form under another backend, in the same worker.

        Raises:
            BipropError: There is no such backend, or it cannot be run.
        """
        # What differs from backend to backend is found in the registry.
        reference = attrs.evolve(self.reference, backend=backend, backward_signature="")
        return SupervisedJudge(
            reference=reference,
            device=self._child.device,
            timeout=self._timeout,
            dtype=self._dtype,
            direction=self._direction,
            execution=self._execution,
            child=self._child,
            journal=self._journal,
        )

    def close(self) -> None:
        """End the worker if it is this judge's own."""
        if self._owns_child:
            self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, *, first: bool = False) -> Description:
        message = opening(self.reference, trial=self._trial if first else None)
        try:
            answer = self._child.ask(message, seconds=self._timeout * FIRST_FACTOR)
        except ChildDiedError as error:
            if first:
                return self._open()
            raise TargetError(
                f"Target {self.reference.target} {error.reason} while it was loaded: "
                "import it in a process of its own to see why."
            ) from None
        self._opened_in = self._child.starts
        self._kernel = int(str(answer["kernel"]))
        self.reference = CONVERTER.structure(answer["reference"], KernelReference)
        return CONVERTER.structure(answer["description"], Description)

    def _alone(self, case: Case, options: JudgeOptions, *, is_due: bool = False) -> Steps[Outcome]:
        text = canonical_json(case_to_data(case))
        key = _key(text)
        outcome = self._ledger.find(key, options)
        if outcome is None:
            outcome = yield from self._judge(case, text, options, is_due=is_due)
            if outcome.verdict is Verdict.CRASHES and not self._child.is_running:
                outcome = yield from self._crash(case, outcome, options)
            self._ledger.keep(key, options, outcome)
        return outcome

    def _together(
        self, cases: Sequence[Case], options: Sequence[JudgeOptions]
    ) -> Steps[tuple[Outcome, ...]]:
        asked = list(zip(cases, options, strict=True))
        # Whether one of them fails, and it is not known which: that is found out, come what may.
        is_due = False
        if len(asked) > 1 and not self._is_careful:
            outcomes = yield from self._as_set(asked)
            if outcomes:
                return outcomes
            is_due = outcomes is None
        found: list[Outcome] = []
        try:
            for one in asked:
                outcome = yield from self._alone(*one, is_due=is_due)
                found.append(outcome)
                is_due = is_due and not outcome.verdict.is_violation
        except BrokenOffError as error:
            raise BrokenOffError((*found, *error.outcomes)) from None
        except KeyboardInterrupt:
            raise BrokenOffError(tuple(found)) from None
        return tuple(found)

    def _judge(
        self,
        case: Case,
        text: str,
        options: JudgeOptions,
        *,
        is_second: bool = False,
        is_due: bool = False,
    ) -> Steps[Outcome]:
        if not self._child.is_running or self._opened_in != self._child.starts:
            self._open()
        asking = attrs.evolve(options, careful=options.careful or self._is_careful)
        head = encode(
            {"do": "judge", "kernel": self._kernel, "options": CONVERTER.unstructure(asking)}
        )
        # The case's text is made already, for the ledger: it is not made twice.
        line = head.rstrip()[:-1] + f',"case":{text}}}\n'.encode()
        seconds = self._timeout * self._factor(case)
        with self._on_disk((text,), is_due=is_due or is_second):
            try:
                answer = yield from self._answered(line, seconds)
            except ChildDiedError as error:
                if not error.stage and not is_second:
                    # It died before it began, of what an earlier case left behind.
                    return (yield from self._judge(case, text, options, is_second=True))
                return _crashed(case, error)
            except BrokenOffHangError as error:
                raise BrokenOffError((_crashed(case, error.death),)) from None
        outcome = outcome_from_data(answer["outcome"])
        if not answer["device_is_lost"]:
            return outcome
        # Its process ends by itself; nothing more is asked of it.
        self._child.give_up()
        if asking.careful:
            return outcome
        # The error was seen late, where both runs are waited for. From now on each run is waited
        # for: a kernel that breaks once breaks again, and each time costs a process.
        self._is_careful = True
        try:
            # Without it, nobody knows whether it breaks again: it is judged whatever time is left.
            again = yield from self._judge(case, text, options, is_due=True)
        except KeyboardInterrupt:
            raise BrokenOffError((outcome,)) from None
        return again if again.verdict is Verdict.CRASHES else outcome

    def _as_set(
        self, asked: Sequence[tuple[Case, JudgeOptions]]
    ) -> Steps[tuple[Outcome, ...] | None]:
        """Return the outcomes of a set; else each of its cases is to be judged alone.

        None where it failed, and it is not known which of them does: of a set too that a worker
        died of, as the case that it is about kills the next one. Empty where nothing failed: one of
        them was judged before, or they cannot be judged as a set.
        """
        case = asked[0][0]
        data = case_to_data(case)
        layouts = [CONVERTER.unstructure(case.transforms) for case, _ in asked]
        texts = [canonical_json({**data, "transforms": layout}) for layout in layouts]
        keys = [(_key(text), options) for text, (_, options) in zip(texts, asked, strict=True)]
        if any(self._ledger.find(*key) for key in keys):
            return ()
        if not self._child.is_running or self._opened_in != self._child.starts:
            self._open()
        message: dict[str, Json] = {
            "do": "judge set",
            "kernel": self._kernel,
            "options": CONVERTER.unstructure(tuple(options for _, options in asked)),
            "case": data,
            "layouts": layouts,
        }
        # On a device, all launches of a set are waited for at once; what they compile, they share.
        waits = 0 if self._child.device == "cpu" else len(texts)
        seconds = self._timeout * (self._factor(case) + waits)
        with self._on_disk(texts):
            try:
                answer = yield from self._answered(encode(message), seconds)
            except ChildDiedError:
                return None
        if answer["device_is_lost"]:
            self._child.give_up()
            # One by one each run is waited for, so that the error belongs to the run that made it.
            self._is_careful = True
            return None
        found = answer["outcomes"]
        if not found:
            return () if isinstance(found, list) else None
        assert isinstance(found, list)
        outcomes = tuple(map(outcome_from_data, found))
        for key, outcome in zip(keys, outcomes, strict=True):
            self._ledger.keep(*key, outcome)
        return outcomes

    def _answered(self, line: bytes, seconds: float) -> Steps[dict[str, Json]]:
        """Ask the worker, wait, and return its answer; dropped instead, the worker is ended."""
        self._child.send(line, seconds=seconds)
        try:
            yield
        except GeneratorExit:
            self._child.drop()
            raise
        return self._child.take()

    def _on_disk(
        self, texts: Sequence[str], *, is_due: bool = False
    ) -> AbstractContextManager[object]:
        """Return what has cases named on disk for as long as they are judged."""
        if self._journal is None:
            return nullcontext()
        return self._journal.entries(
            reference=self.reference,
            device=self._child.device,
            case_texts=texts,
            provenance=self.description.provenance,
            is_due=is_due,
        )

    def _factor(self, case: Case) -> int:
        """Return how much longer than usual a case may take: what comes first is compiled."""
        asked = (self._opened_in, f"{case.dtype} {case.judged}")
        factor = 1 if asked in self._asked else FIRST_FACTOR
        self._asked.add(asked)
        return factor

    def _crash(self, case: Case, outcome: Outcome, options: JudgeOptions) -> Steps[Outcome]:
        """Return CRASHES, its cause non-finite if only a non-finite fill kills the worker."""
        if not has_nonfinite_fill(case):
            return outcome
        for fill in FILLS_TRIED:
            milder = with_finite_fill(case, fill)
            try:
                text = canonical_json(case_to_data(milder))
                other = yield from self._judge(milder, text, options)
            except CaseError:
                # This fill is illegal for the kernel.
                continue
            except KeyboardInterrupt:
                raise BrokenOffError((outcome,)) from None
            if other.verdict is Verdict.CRASHES:
                return outcome
        assert outcome.cause is not None, "a crash has a cause"
        return attrs.evolve(outcome, cause=attrs.evolve(outcome.cause, finite=False))


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _child(device: str, execution: Execution | None, command: Sequence[str]) -> Child:
    is_deterministic = execution is not None and execution.deterministic_algorithms
    return Child(device=device, is_deterministic=is_deterministic, command=command)


def _crashed(case: Case, death: ChildDiedError) -> Outcome:
    # What the classes did to the call is known only to the worker that is gone.
    return Outcome(
        verdict=Verdict.CRASHES,
        cause=cause_of(case, Verdict.CRASHES),
        message=f"The target {death.reason}.",
        is_hung=death.is_hung,
        launches=death.launches,
    )
