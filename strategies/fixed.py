"""The fixed configurations in a search: judged before anything is drawn, and counted apart.

What they are says `biprop.generation.fixed`. They are beside the generated cases: neither examples
nor what a class needs are counted by them. Only declared operators are run in them.
"""

import attrs

from biprop.case import Case
from biprop.generation import Space
from biprop.generation.fixed import FixedConfiguration, fixed_configurations, is_composed
from biprop.judgment import Outcome, Verdict
from biprop.reports.records import FixedCount

__all__ = ["FixedTally"]


@attrs.define(kw_only=True, eq=False)
class FixedTally:
    """The fixed configurations of one search, and what became of them.

    Attributes:
        configurations: All of them, once for everything that is judged; empty where none is run.
        is_composed: Whether several of them share a case.
        launches: Launches made.
    """

    configurations: tuple[FixedConfiguration, ...] = ()
    is_composed: bool = False
    launches: int = 0
    _outcomes: dict[str, Outcome] = attrs.field(init=False, factory=dict)

    @classmethod
    def of(cls, space: Space) -> "FixedTally":
        """Return the configurations of a space: none where nothing is declared."""
        if space.declaration is None or space.only is not None:
            return cls()
        return cls(configurations=fixed_configurations(space), is_composed=is_composed(space))

    def cases(self) -> tuple[Case, ...]:
        """Return their cases, each once."""
        found = (item.case for item in self.configurations)
        return tuple({case.digest: case for case in found if case is not None}.values())

    def add(self, case: Case, outcome: Outcome) -> None:
        """Keep what came of a case."""
        self._outcomes[case.digest] = outcome
        self.launches += outcome.launches

    def count(self) -> FixedCount | None:
        """Return the counts; None where none is run."""
        if not self.configurations:
            return None
        judged: set[str] = set()
        powered: set[str] = set()
        reasons: dict[str, str] = {}
        for item in self.configurations:
            reason = item.reason
            outcome = None if item.case is None else self._outcomes.get(item.case.digest)
            if outcome is not None:
                reason = outcome.rejected
                if outcome.verdict is Verdict.UNSUPPORTED:
                    reason = outcome.message
            elif not reason:
                reason = "the search ended before"
            if reason:
                reasons.setdefault(item.name, reason)
                continue
            judged.add(item.name)
            if outcome is not None and "powered" in outcome.classes.values():
                powered.add(item.name)
        return FixedCount(
            configurations=len({item.name for item in self.configurations}),
            judged=len(judged),
            powered=len(powered),
            # What can be compared of a configuration in one way and not in another was judged.
            not_applicable={name: text for name, text in reasons.items() if name not in judged},
            is_composed=self.is_composed,
        )
