"""Does a side repeat itself, and if not, how often does it differ?

A kernel that differs from run to run must not be taken for one that drifts: after a mismatch both
sides are run again. How many runs are enough says `biprop.relations.options`; the runs are made by
the caller.
"""

from collections.abc import Callable, Iterable
from time import perf_counter

import attrs

from biprop.execution import Run
from biprop.judgment import Mismatch
from biprop.relations.comparison import compare_runs, differing_outputs

__all__ = ["Again", "Repeats", "Side", "estimate_rate", "find_flip"]

# Runs a side once more; a message where it raised.
Again = Callable[[str], Run | str]
# Role, first run, and how often the side is to be run in all.
Side = tuple[str, Run, int]

# A rate known from this many differing runs is off by a factor of about two at most.
_DIFFERING_MIN = 3
# The verdict is certain by then; the estimate of a slow kernel may be rough.
_SECONDS_MAX = 5.0
# Different results that are told apart; further ones count as differing from all of them.
_RESULTS_MAX = 4


@attrs.frozen(kw_only=True, eq=False)
class Repeats:
    """What repeating showed.

    Attributes:
        runs: Runs of the side, the first included.
        role: The side that differs from itself; empty where none does.
        first: Its first run.
        other: The first repeat that differs.
        mismatches: Outputs in which two of its runs differ, in signature order.
        rate: Share of its runs that differ from the most frequent result.
    """

    runs: int
    role: str = ""
    first: Run | None = None
    other: Run | None = None
    mismatches: tuple[Mismatch, ...] = ()
    rate: float = 0.0


def find_flip(sides: Iterable[Side], again: Again) -> Repeats | str | None:
    """Run the sides in turn until one differs from its first run.

    Returns:
        The side that differs; None where all repeat themselves; a message where one raised.
    """
    pending = tuple(sides)
    done = 1
    while any(count > done for _, _, count in pending):
        done += 1
        for role, first, count in pending:
            if count < done:
                continue
            run = again(role)
            if isinstance(run, str):
                return run
            if differing_outputs(first, run):
                return Repeats(runs=done, role=role, first=first, other=run)
    return None


def estimate_rate(found: Repeats, again: Again, *, runs_max: int) -> Repeats:
    """Run a side that differs from itself on, until its rate is known well enough.

    Args:
        found: What `find_flip` returned.
        again: Runs the side once more.
        runs_max: Runs of the side at most, those before included.
    """
    assert found.first is not None
    assert found.other is not None
    # Runs before the flip gave the first result.
    results = [(found.first, found.runs - 1), (found.other, 1)]
    shown = {item.output: item for item in _mismatches(found.first, found.other)}
    runs = found.runs
    started = perf_counter()
    while (
        runs - max(count for _, count in results) < _DIFFERING_MIN
        and runs < runs_max
        and perf_counter() - started < _SECONDS_MAX
    ):
        run = again(found.role)
        if isinstance(run, str):
            break
        runs += 1
        for place, (known, count) in enumerate(results):
            if not differing_outputs(known, run):
                results[place] = (known, count + 1)
                break
        else:
            # What differs in one pair of runs need not differ in another: the cause names the first
            # output that differs in any.
            for item in _mismatches(found.first, run):
                shown.setdefault(item.output, item)
            if len(results) < _RESULTS_MAX:
                results.append((run, 1))
    most = max(count for _, count in results)
    in_order = tuple(shown[name] for name in found.first.outputs if name in shown)
    return attrs.evolve(found, runs=runs, mismatches=in_order, rate=(runs - most) / runs)


def _mismatches(first: Run, other: Run) -> tuple[Mismatch, ...]:
    return compare_runs(first, other, repeated=True).mismatches
