"""What a search has seen: examples by class and by what was judged, and what is still lacking.

Counting only; which cases are drawn and when a search ends says `biprop.strategies.search`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from biprop.case import Against, Case, Judged
from biprop.generation import CLASSES, Space, applicability
from biprop.generation.generator import judged_in
from biprop.judgment import Outcome
from biprop.layout.neighbours import neighbour_lengths
from biprop.reports.records import ClassCount, JudgedCount
from biprop.strategies.probing import PROBES
from biprop.transforms import apply_all, class_of, transforms_of

__all__ = ["Tally", "classes_in", "sizes_in"]

_NONE = ClassCount()
# After a class's first example, every eighth is run twice on the canonical side.
_REPEAT_EVERY = 8


@attrs.define(kw_only=True, eq=False)
class Tally:
    """Counts of one search.

    Attributes:
        space: What is searched.
        powered_min: Powered examples that each class needs, and each relation A or P.
        examples: Cases of relation I judged.
        examples_against: Cases of relations A and P judged.
        reasons_against: Why a relation A or P is not judged, by its name; empty for one that is.
        rejected: Of these, cases whose canonical run raised.
        launches: Launches made.
        power_shares: Share of each case that was compared.
        power_kind: `order` or `value`; empty before anything was compared.
        actual_backend: What ran.
        rejection: Message of the first rejected case.
    """

    space: Space
    powered_min: int
    examples: int = 0
    examples_against: int = 0
    reasons_against: dict[str, str] = attrs.field(factory=dict)
    rejected: int = 0
    launches: int = 0
    power_shares: list[float] = attrs.field(factory=list)
    power_kind: str = ""
    actual_backend: str = ""
    rejection: str = ""
    _largest: dict[str, int] = attrs.field(init=False, factory=dict)
    # Cases that ran and whose sizes were not looked at yet.
    _ran: list[Case] = attrs.field(init=False, factory=list)
    _reasons: dict[Judged, dict[str, str]] = attrs.field(init=False)
    _counts: dict[tuple[Judged, str], ClassCount] = attrs.field(init=False, factory=dict)
    _drawn: dict[tuple[Judged, str], int] = attrs.field(init=False, factory=dict)
    # Sets alone: from how many cases of a class on the next repeat is wanted.
    _repeat_at: dict[tuple[Judged, str], int] = attrs.field(init=False, factory=dict)
    _judged: dict[Judged, int] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        """Find out which classes apply to what is judged."""
        space = self.space
        self._reasons = {
            judged: applicability(
                space.signature,
                judged=judged,
                backward_signature=space.backward_signature,
                registered=space.registered,
                declaration=space.declaration,
                classes=space.classes,
                forms=space.forms,
                takes_shards=space.takes_shards,
            )
            for judged in judged_in(space)
        }

    def wants_repeat(self, case: Case) -> bool:
        """Count a case about to be judged; say whether to run its canonical side twice."""
        repeat = False
        for name in classes_in(case):
            key = (case.judged, name)
            drawn = self._drawn.get(key, 0)
            repeat = repeat or drawn % _REPEAT_EVERY == 0
            self._drawn[key] = drawn + 1
        return repeat

    def wants_repeat_of(self, cases: Sequence[Case]) -> bool:
        """Count a set about to be judged; say whether to run its canonical side twice.

        One repeat serves all classes of a set, so that it is wanted where any of them has none, or
        has had none for as many examples as of a case alone.
        """
        if len(cases) == 1:
            return self.wants_repeat(cases[0])
        judged = cases[0].judged
        shown = Counter((judged, name) for case in cases for name in classes_in(case))
        due = [key for key in shown if self._drawn.get(key, 0) >= self._repeat_at.get(key, 0)]
        for key, count in shown.items():
            drawn = self._drawn.get(key, 0)
            self._drawn[key] = drawn + count
            if due:
                self._repeat_at[key] = drawn + _REPEAT_EVERY
        return bool(due)

    def add(self, case: Case, outcome: Outcome) -> None:
        """Count a case that was judged."""
        if case.against is None:
            self.examples += 1
        else:
            self.examples_against += 1
        self.launches += outcome.launches
        self.actual_backend = self.actual_backend or outcome.actual_backend
        if outcome.rejected:
            self.rejected += 1
            self.rejection = self.rejection or outcome.rejected
            return
        self._ran.append(case)
        if outcome.power is not None and case.against is None:
            self.power_kind = outcome.power.kind
            self.power_shares.append(outcome.power.share)
        if case.against is None:
            self._judged[case.judged] = self._judged.get(case.judged, 0) + 1
        for name, evidence in outcome.classes.items():
            key = (case.judged, name)
            before = self._counts.get(key, ClassCount())
            self._counts[key] = attrs.evolve(
                before,
                examples=before.examples + 1,
                powered=before.powered + (evidence == "powered"),
                vacuous=before.vacuous + (evidence == "vacuous"),
                unpowered=before.unpowered + (evidence == "unpowered"),
                tolerance_share=_larger(before.tolerance_share, outcome.tolerance_share),
            )

    def settle(self) -> None:
        """Look at what was left for when there is time: no case is drawn by it."""
        for case in self._ran:
            for name, size in sizes_in(case).items():
                self._largest[name] = max(size, self._largest.get(name, 0))
        self._ran.clear()

    @property
    def largest(self) -> dict[str, int]:
        """Return the largest sizes of the cases that ran, as a report names them."""
        self.settle()
        return dict(self._largest)

    @property
    def is_mostly_rejected(self) -> bool:
        """Whether more than half of the canonical runs raised."""
        return 2 * self.rejected > self.examples + self.examples_against

    def judged_least(self, against: Against) -> Judged:
        """Return what was judged least often of what a relation A or P can be judged of."""
        kinds = tuple(self._reasons)
        return min(
            kinds, key=lambda judged: self._counts.get((judged, against.name), _NONE).examples
        )

    def lacks(self, against: Against) -> bool:
        """Whether a relation A or P has too few powered examples."""
        return not self.reasons_against.get(against.name) and any(
            self._counts.get((judged, against.name), _NONE).powered < self.powered_min
            for judged in self._reasons
        )

    def lacking(self) -> frozenset[tuple[Judged, str]]:
        """Return what has too few powered examples, as what is judged and class."""
        return frozenset(
            (judged, name)
            for judged, reasons in self._reasons.items()
            for name, reason in reasons.items()
            if not reason
            and self._counts.get((judged, name), ClassCount()).powered < self.powered_min
        )

    def lacking_text(self) -> str:
        """Say which classes and relations lack examples; empty if none does, or none applies."""
        lacking = self.lacking() | {
            (judged, against.name)
            for against in self.space.against
            if self.lacks(against)
            for judged in self._reasons
            if self._counts.get((judged, against.name), _NONE).powered < self.powered_min
        }
        if not lacking:
            return ""
        several = len(self._reasons) > 1
        words = [
            f"{name}{' (' + judged.replace('_', ' ') + ')' if several else ''} has "
            f"{self._counts.get((judged, name), ClassCount()).powered} of {self.powered_min}"
            for judged, name in sorted(lacking)
        ]
        return (
            f"Too few powered examples: {', '.join(words)}; raise --max-examples, or leave a class "
            "out with --transforms."
        )

    def class_counts(self) -> dict[str, ClassCount]:
        """Return the counts by class, then by relation, and a reason where one is not judged."""
        classes = {name: self._class_count(name) for name in CLASSES}
        names = [item.name for item in self.space.against]
        if PROBES in self.reasons_against:
            names.append(PROBES)
        return classes | {name: self._row(name) for name in names}

    def judged_counts(self) -> dict[Judged, JudgedCount]:
        """Return examples of relation I, and what lacks evidence, by what was judged."""
        lacking = sorted(self.lacking())
        return {
            judged: JudgedCount(
                examples=self._judged.get(judged, 0),
                lacking=tuple(name for what, name in lacking if what == judged),
            )
            for judged in self._reasons
        }

    def applies(self) -> bool:
        """Whether any class applies at all."""
        return any(not reason for reasons in self._reasons.values() for reason in reasons.values())

    def _class_count(self, name: str) -> ClassCount:
        reasons = [table[name] for table in self._reasons.values()]
        return attrs.evolve(self._sum(name), reason=reasons[0] if all(reasons) else "")

    def _row(self, name: str) -> ClassCount:
        return attrs.evolve(self._sum(name), reason=self.reasons_against.get(name, ""))

    def _sum(self, name: str) -> ClassCount:
        found = [self._counts.get((judged, name), _NONE) for judged in self._reasons]
        largest = None
        for count in found:
            largest = _larger(largest, count.tolerance_share)
        return ClassCount(
            examples=sum(count.examples for count in found),
            powered=sum(count.powered for count in found),
            vacuous=sum(count.vacuous for count in found),
            unpowered=sum(count.unpowered for count in found),
            tolerance_share=largest,
        )


def _larger(one: float | None, other: float | None) -> float | None:
    """Return the larger of two numbers of which either may be missing."""
    return max((number for number in (one, other) if number is not None), default=None)


def classes_in(case: Case) -> tuple[str, ...]:
    """Return the counted classes of a case's composition, each once."""
    present: Iterable[str] = {class_of(transform) for transform in transforms_of(case)}
    return tuple(name for name in CLASSES if name in present)


def sizes_in(case: Case) -> dict[str, int]:
    """Return the sizes of a case: its dimensions, `length`, `sequences` and `tokens`."""
    neighbours = neighbour_lengths(case, apply_all(transforms_of(case)).neighbours)
    lengths = [sequence.length for sequence in case.sequences]
    return {
        **case.dims,
        "length": max(lengths),
        "sequences": len(lengths) + len(neighbours),
        "tokens": sum(lengths) + sum(neighbours),
    }
