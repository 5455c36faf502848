"""Which cell gets the next epoch: a floor for each, and the rest of the time where there is news.

The rule, all of it:

1. A cell that has had less than half of an equal share of all time so far comes first; of several,
   the one with the least time.
2. Otherwise it is the turn of the cell that showed most new behaviours a second of late, where the
   last epoch counts for half, the one before it for a quarter, and so on; of several, the one with
   the least time.

So half of the time goes round, whatever happens, and the other half goes where it pays. Behaviours
run out (`biprop.campaign.behaviours`); where no cell has news, the second rule goes round as well.
A cell that is searched right now waits, unless all are. One that cannot be searched gets no further
epochs.
"""

from collections.abc import Iterable

import attrs

from biprop.campaign.cells import Cell
from biprop.campaign.records import EpochRecord
from biprop.data.words import hash_words
from biprop.judgment import Verdict

__all__ = ["FLOOR", "Scheduler", "Turn", "epoch_seconds"]

# Share of an equal share of the time that each cell gets before anything else is weighed.
FLOOR = 0.5
_MEMORY = 0.5
# Epochs in a row that could not go on.
_ERRORS_MAX = 3
# Turns of each cell that a campaign should have time for, where it is short.
_TURNS_MIN = 3
_SECONDS_MIN = 1.0
_SECONDS_MAX = 60.0
_NO_MORE = (Verdict.UNSUPPORTED.value, Verdict.FALLBACK.value)


@attrs.define(kw_only=True, eq=False)
class Turn:
    """One cell, and what it has had.

    Attributes:
        cell: The cell.
        order: Among cells with the same time.
        seconds: Of all its epochs.
        epochs: How many ended.
        begun: How many were begun, for their seeds.
        running: How many are under way.
        rate: New behaviours a second, of late.
        errors: Epochs in a row that could not go on.
        known: Behaviours seen, as words.
        over: Why it gets no further epochs; empty while it does.
    """

    cell: Cell
    order: int
    seconds: float = 0.0
    epochs: int = 0
    begun: int = 0
    running: int = 0
    rate: float = 0.0
    errors: int = 0
    known: set[int] = attrs.field(factory=set)
    over: str = ""


class Scheduler:
    """The turns of all cells.

    Attributes:
        turns: By id of the cell.
    """

    def __init__(self, cells: Iterable[Cell], *, seed: int) -> None:
        """Begin with cells that had nothing yet, in an order that follows from the seed."""
        self.turns = {cell.id: Turn(cell=cell, order=hash_words(cell.id, seed)) for cell in cells}

    def next(self) -> Turn | None:
        """Return whose turn it is, and count it as begun; None where no cell is left."""
        open_turns = [turn for turn in self.turns.values() if not turn.over]
        if not open_turns:
            return None
        waiting = [turn for turn in open_turns if not turn.running] or open_turns
        fair = sum(turn.seconds for turn in open_turns) / len(open_turns)
        behind = [
            turn
            for turn in waiting
            if (not turn.epochs and not turn.running) or turn.seconds < FLOOR * fair
        ]
        if behind:
            chosen = min(behind, key=_least)
        else:
            chosen = min(waiting, key=lambda turn: (-turn.rate, *_least(turn)))
        chosen.begun += 1
        chosen.running += 1
        return chosen

    def ended(self, record: EpochRecord, behaviours: frozenset[int] = frozenset()) -> Turn:
        """Count an epoch of this campaign that ended, one way or the other."""
        turn = self.turns[record.cell]
        turn.running = max(0, turn.running - 1)
        turn.epochs += 1
        turn.seconds += record.seconds
        turn.known |= behaviours
        news = record.behaviour_count / max(record.seconds, _SECONDS_MIN)
        turn.rate = (1 - _MEMORY) * turn.rate + _MEMORY * news
        is_own_error = record.verdict == "ERROR" and not (record.is_lost or record.is_stopped)
        turn.errors = turn.errors + 1 if is_own_error else 0
        if record.verdict in _NO_MORE or turn.errors >= _ERRORS_MAX:
            turn.over = record.message or record.verdict
        return turn

    def not_begun(self, cell: str) -> None:
        """Count an epoch that never began, as its process died before."""
        turn = self.turns[cell]
        turn.running = max(0, turn.running - 1)


def epoch_seconds(*, budget: float, workers: int, cells: int) -> float:
    """Return how long an epoch is: short enough for several turns of each cell, and no minute."""
    share = budget * workers / max(1, cells) / _TURNS_MIN
    return min(_SECONDS_MAX, max(_SECONDS_MIN, share))


def _least(turn: Turn) -> tuple[float, int]:
    return (turn.seconds, turn.order)
