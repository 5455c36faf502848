"""The sticky ledger: the verdicts of this process by kernel and case.

Without it Hypothesis calls a target that differs from run to run flaky instead of reporting it. It
lives in the process that asks, so it outlasts workers that die.
"""

from collections import OrderedDict

import attrs

from biprop.judgment import Outcome
from biprop.relations import JudgeOptions

__all__ = ["Ledger"]


@attrs.frozen(kw_only=True)
class _Entry:
    outcome: Outcome
    options: JudgeOptions


class Ledger:
    """Remembers outcomes, and forgets the oldest when there are too many."""

    def __init__(self, *, entries_max: int = 20_000) -> None:
        """Start empty."""
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._entries_max = entries_max

    def find(self, key: str, options: JudgeOptions) -> Outcome | None:
        """Return the outcome known for `key`, None where `options` ask for more than it rests on.

        A violation answers every options but `fresh`: asking more closely cannot unsee it.
        """
        entry = self._entries.get(key)
        if entry is None or options.fresh:
            return None
        if entry.outcome.verdict.is_violation or entry.options.covers(options):
            return entry.outcome
        return None

    def keep(self, key: str, options: JudgeOptions, outcome: Outcome) -> None:
        """Remember `outcome`, unless a violation is known already."""
        known = self._entries.get(key)
        if known is not None and known.outcome.verdict.is_violation:
            return
        self._entries[key] = _Entry(outcome=outcome, options=options)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
