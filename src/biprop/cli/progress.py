"""What is shown on standard error while a search or a matrix runs.

A search has one live line on a terminal, and none elsewhere. Of a matrix, which runs for minutes,
every cell that ends is told, and a terminal has a live line beside.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

if TYPE_CHECKING:
    from biprop.reports.suite import SuiteCell
    from biprop.strategies.search import Event
    from biprop.suite import SuiteEvent

__all__ = ["matrix_progress", "progress"]

# Cells at work that a live line names; more of them say no more.
_SHOWN = 2


@contextmanager
def progress(title: str, *, quiet: bool) -> "Iterator[Callable[[Event], None]]":
    """Show a line with examples and findings on standard error; yields what is told of events."""
    if quiet:
        yield lambda _: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        found = 0

        def tell(event: "Event") -> None:
            nonlocal found
            found += event.kind == "finding"
            doing = ", minimising" if event.kind == "failure" else ""
            bar.update(
                task,
                completed=event.examples,
                total=event.example_count,
                description=f"{title}: {found} found{doing}",
            )

        yield tell


@contextmanager
def matrix_progress(*, is_live: bool) -> "Iterator[Callable[[SuiteEvent], None]]":
    """Tell every cell that ends; yields what is told of events.

    Args:
        is_live: Whether standard error is a terminal, which has a live line of cells at work too.
    """
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not is_live) as bar:
        task = bar.add_task("starting", total=None)
        working: dict[str, None] = {}

        def tell(event: "SuiteEvent") -> None:
            if event.kind == "begun":
                working[event.cell.id] = None
            else:
                working.pop(event.cell.id, None)
                width = len(str(event.count))
                console.print(f"{event.done:>{width}}/{event.count}  {_told(event.cell)}")
            names = ", ".join([*working][:_SHOWN]) or "ending"
            bar.update(task, completed=event.done, total=event.count, description=names)

        yield tell


def _told(cell: "SuiteCell") -> str:
    """Return verdict and id of a cell that ended, and what it took."""
    report = cell.report
    cost = "" if report is None else f"  {report.examples} examples, {report.seconds:.1f} s"
    return f"{cell.word:<16}{cell.id}{cost}"
