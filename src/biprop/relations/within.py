"""A canonical run held against another one within a tolerance: what relations A and P share.

Which other run that is decide `biprop.relations.accuracy` and `biprop.relations.parity`; how far
values may lie apart says the case; that they lie so far apart says `biprop.bits`. A kernel that
fails is run again as in relation I: one that differs from itself is no matter of accuracy.
"""

from collections.abc import Callable

import attrs
from torch import Tensor

from biprop.bits import Agreement, compare_within
from biprop.case import Against, Case
from biprop.errors import BipropError, OutputError, UnsupportedError
from biprop.execution import Run
from biprop.judgment import ClassEvidence, Mismatch, Outcome, Power, Verdict
from biprop.relations.causes import cause_of
from biprop.relations.comparison import difference_of, recorded
from biprop.relations.repeats import Repeats, estimate_rate, find_flip
from biprop.relations.runs import Raised, Runs

__all__ = ["Within", "WithinDifference", "compare_runs_within", "mismatch_of"]


@attrs.frozen(kw_only=True)
class WithinDifference:
    """What two runs show against each other within a tolerance.

    Attributes:
        mismatches: One for every output that leaves it, in signature order.
        elements: Elements compared.
        telling: Of these, elements of which the other side is finite and not zero.
        share: Largest error as a share of what is allowed.
        reason: Why the comparison says nothing; empty where it says something.
        own_wrote: Why the own run is none, where its kernel wrote into an argument that carries no
            mark; else empty.
        other_wrote: Likewise of the other run.
    """

    mismatches: tuple[Mismatch, ...]
    elements: int
    telling: int
    share: float
    reason: str = ""
    own_wrote: str = ""
    other_wrote: str = ""


def compare_runs_within(own: Run, other: Run, against: Against) -> WithinDifference:
    """Compare all outputs of a run with those of another one, of the same names and tokens."""
    names = tuple(own.outputs)
    pairs = [(own.outputs[name], other.outputs[name]) for name in names]
    unread = (*own.unread, *other.unread)
    agreements, written = compare_within(
        pairs, atol=against.atol, rtol=against.rtol, flags=[item.flag for item in unread]
    )
    told = [item.sentence if is_so else "" for item, is_so in zip(unread, written, strict=True)]
    return WithinDifference(
        mismatches=tuple(
            mismatch_of(name, *pair, found, runs=(own, other))
            for name, pair, found in zip(names, pairs, agreements, strict=True)
            if found.elements_beyond
        ),
        elements=sum(found.elements_compared for found in agreements),
        telling=sum(found.elements_telling for found in agreements),
        share=max((found.share for found in agreements), default=0.0),
        own_wrote=next(filter(None, told[: len(own.unread)]), ""),
        other_wrote=next(filter(None, told[len(own.unread) :]), ""),
    )


class Within:
    """What the runs of one case of relation A or P amount to."""

    def __init__(
        self,
        runs: Runs,
        *,
        role: str,
        other: Callable[[], Run],
        is_repeated: bool,
        compare: Callable[[Run, Run, Against], WithinDifference] = compare_runs_within,
    ) -> None:
        """Judge the canonical run against another one.

        Args:
            runs: Make the runs.
            role: Stage of the other run.
            other: Makes the other run.
            is_repeated: Whether the other side may differ from run to run too.
            compare: Takes both runs, the canonical one first.
        """
        against = runs.case.against
        assert against is not None, "the caller looked"
        self._runs = runs
        self._case: Case = runs.case
        self._against = against
        self._role = role
        self._other = other
        self._is_repeated = is_repeated
        self._compare = compare
        self._raised_in = ""

    def outcome(self) -> Outcome | BipropError:
        """Judge the case; an error to be raised is returned."""
        own = self._runs.canonical()
        if isinstance(own, Raised):
            return self._rejected(own)
        other = self._runs.run(self._role, self._other)
        if isinstance(other, Raised):
            return self._rejected(other)
        found = self._runs.waited(lambda: self._compared(own, other))
        if isinstance(found, Raised):
            return self._rejected(found)
        flip = self._flip(own, other, differ=bool(found.mismatches))
        if isinstance(flip, Raised):
            # The other side condemns nobody.
            is_own = flip.role == "canonical"
            return self._crashed(flip, own) if is_own else self._rejected(flip)
        if flip is not None and flip.mismatches:
            return self._flipped(flip, own, other)
        if found.mismatches:
            return self._inaccurate(found, own, other)
        return self._agrees(found, own, other)

    def _compared(self, own: Run, other: Run) -> WithinDifference | Raised:
        missing = next((name for name in own.outputs if name not in other.outputs), "")
        if missing:
            message = f"Output '{missing}' has no counterpart in the {self._role} run."
            return Raised(message=message, error=OutputError(message), role=self._role)
        found = self._compare(own, other, self._against)
        for wrote in filter(None, (found.own_wrote, found.other_wrote)):
            return Raised(message=wrote, error=OutputError(wrote))
        return found

    def _flip(self, own: Run, other: Run, *, differ: bool) -> Repeats | Raised | None:
        """Repeat as asked until a side differs from itself; None without repeats."""
        options = self._runs.options
        count = options.repeats if differ or options.rate is not None else 1
        own_count = max(count, 2) if options.repeat_canonical else count
        if own_count == 1:
            return None
        sides = [("canonical", own, own_count)]
        if self._is_repeated:
            sides.append((self._role, other, count))
        found = find_flip(sides, self._again)
        if found is None:
            return Repeats(runs=count)
        if isinstance(found, Repeats):
            return estimate_rate(found, self._again, runs_max=options.repeats_max)
        return Raised(message=found, role=self._raised_in)

    def _again(self, role: str) -> Run | str:
        run = (
            self._runs.canonical(wait=True)
            if role == "canonical"
            else self._runs.run(role, self._other, wait=True)
        )
        if not isinstance(run, Raised):
            return run
        self._raised_in = role
        return f"{run.message} (in a repeat of the {role} run)"

    def _rejected(self, raised: Raised) -> Outcome | BipropError:
        """Return what a side that raised amounts to: alone, it condemns nobody."""
        if isinstance(raised.error, UnsupportedError):
            return self._runs.filled(Outcome(verdict=Verdict.UNSUPPORTED, message=raised.message))
        if raised.error is not None:
            return raised.error
        where = f" (in the {raised.role} run)" if raised.role not in {"", "canonical"} else ""
        return self._runs.filled(
            Outcome(verdict=Verdict.VACUOUS, rejected=f"{raised.message}{where}")
        )

    def _crashed(self, raised: Raised, own: Run) -> Outcome:
        outcome = Outcome(
            verdict=Verdict.CRASHES,
            cause=cause_of(self._case, Verdict.CRASHES),
            message=raised.message,
            classes=self._classes("powered"),
        )
        return self._runs.filled(outcome, own)

    def _flipped(self, flip: Repeats, own: Run, other: Run) -> Outcome:
        """Return NONDETERMINISTIC; where the other side flips, nothing is said of this one."""
        if flip.role != "canonical":
            message = f"Two runs of the {flip.role} side differ, so that it is no yardstick."
            return self._runs.filled(Outcome(verdict=Verdict.VACUOUS, message=message), own, other)
        outcome = Outcome(
            verdict=Verdict.NONDETERMINISTIC,
            cause=cause_of(self._case, Verdict.NONDETERMINISTIC, output=flip.mismatches[0].output),
            mismatches=flip.mismatches,
            rate=flip.rate,
            repeats=flip.runs,
            message="Two runs of the same canonical configuration differ.",
            classes=self._classes("powered"),
        )
        return self._runs.filled(outcome, own, other)

    def _inaccurate(self, found: WithinDifference, own: Run, other: Run) -> Outcome:
        outcome = Outcome(
            verdict=Verdict.INACCURATE,
            cause=cause_of(self._case, Verdict.INACCURATE, output=found.mismatches[0].output),
            mismatches=found.mismatches,
            power=_power(found),
            repeats=self._runs.options.repeats,
            classes=self._classes("powered"),
            tolerance_share=recorded(found.share),
        )
        return self._runs.filled(outcome, own, other)

    def _agrees(self, found: WithinDifference, own: Run, other: Run) -> Outcome:
        options = self._runs.options
        reason = found.reason
        if not reason and not found.elements:
            reason = "Nothing was compared."
        elif not reason and options.measure and not found.telling:
            reason = "All that was compared is zero or not finite: no error could have shown."
        outcome = Outcome(
            verdict=Verdict.VACUOUS if reason else Verdict.HOLDS,
            message=reason,
            power=_power(found) if found.elements else None,
            repeats=options.repeats if options.rate is not None else 1,
            classes=self._classes("powered" if found.telling else "unpowered"),
            tolerance_share=recorded(found.share),
        )
        return self._runs.filled(outcome, own, other)

    def _classes(self, shown: ClassEvidence) -> dict[str, ClassEvidence]:
        return {self._against.name: shown} if self._runs.options.measure else {}


def _power(found: WithinDifference) -> Power:
    return Power(kind="magnitude", share=found.telling / max(1, found.elements))


def mismatch_of(
    name: str, own: Tensor, other: Tensor, found: Agreement, *, runs: tuple[Run, Run]
) -> Mismatch:
    """Return how one output leaves its tolerance; both runs say where its rows come from."""
    assert found.first is not None, "something lies beyond"
    by_token = runs[0].index[name] is not None
    return Mismatch(
        output=name,
        dtype=_dtype(own),
        other_dtype="" if own.dtype == other.dtype else _dtype(other),
        elements=found.elements_beyond,
        elements_compared=found.elements_compared,
        tokens=found.tokens_beyond if by_token else 0,
        tokens_compared=found.tokens_compared if by_token else 0,
        first=difference_of(name, own, other, found.first, runs=runs),
        max_abs_error=recorded(found.max_abs_error),
        mean_abs_error=recorded(found.mean_abs_error),
        max_rel_error=recorded(found.max_rel_error),
    )


def _dtype(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")
