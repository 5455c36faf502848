"""One live line on a terminal while a search runs; nothing elsewhere."""

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
    from biprop.strategies.search import Event

__all__ = ["progress"]


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
