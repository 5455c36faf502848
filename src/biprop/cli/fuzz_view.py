"""What is shown on standard error while a campaign runs, and written as JSON lines.

A terminal has one live table, below the lines of what was found. Elsewhere there are these lines,
and one that says how it stands now and then.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from biprop.campaign.events import Event, Status, event_to_data
from biprop.campaign.text import counted, duration
from biprop.cli.output import complain
from biprop.errors import UsageError

__all__ = ["shown", "status_line", "status_table"]

_SECONDS_A_LINE = 30.0
# Of the JSON lines; a live table changes every second.
_SECONDS_A_STATUS = 10.0
_SECONDS_A_LINE_MIN = 2.0
# Lines of a short campaign.
_LINES = 20
# Processes that a table names; more of them are counted.
_WORKERS_SHOWN = 16


@contextmanager
def shown(
    *, is_live: bool, events: Path | None, budget: float
) -> Iterator[Callable[[Event], None]]:
    """Show events; yields what is told of them.

    Args:
        is_live: Whether standard error is a terminal.
        events: File that gets a JSON line for each; None: none.
        budget: Seconds of the campaign.

    Raises:
        UsageError: The file cannot be written.
    """
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with _opened(events) as stream:
        writes = _Writer(stream)
        if not is_live:
            pause = max(_SECONDS_A_LINE_MIN, min(_SECONDS_A_LINE, budget / _LINES))
            lines = _Lines(console, pause)

            def tell(event: Event) -> None:
                writes(event)
                lines(event)

            yield tell
            return
        with Live(console=console, auto_refresh=False, transient=True) as live:

            def tell_live(event: Event) -> None:
                writes(event)
                if event.text:
                    console.print(_printable(event.text))
                live.update(status_table(event.status), refresh=event.kind != "epoch")

            yield tell_live


def status_line(status: Status) -> str:
    """Return how a campaign stands in one line."""
    words = [
        f"{duration(status.seconds)}, {duration(status.seconds_left)} left",
        f"{status.cells_seen}/{status.cells} cells",
        counted(status.epochs, "epoch"),
        (
            f"{counted(status.examples, 'example')} ({status.examples_a_second:.1f}/s, "
            f"{status.compared_a_second:.1f} sequences/s)"
        ),
        f"{status.share_in_kernels:.0%} in kernels",
        _found(status),
    ]
    if status.lost:
        words.append(_lost(status))
    if status.waiting:
        words.append(f"WAITING: {status.waiting}")
    return "; ".join(words)


def status_table(status: Status) -> Table:
    """Return how a campaign stands as a table: what is counted, then what each process does."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    table.add_row("time", f"{duration(status.seconds)}, {duration(status.seconds_left)} left")
    over = f", {status.cells_over} not searched any further" if status.cells_over else ""
    table.add_row("cells", f"{status.cells_seen} of {status.cells} had a turn{over}")
    table.add_row(
        "examples",
        f"{status.examples} in {counted(status.epochs, 'epoch')}, "
        f"{status.examples_a_second:.1f}/s, {status.compared_a_second:.1f} sequences/s",
    )
    table.add_row("in kernels", f"{status.share_in_kernels:.0%} of the time")
    lost = f", {_lost(status)}" if status.lost else ""
    table.add_row("findings", _found(status) + lost)
    if status.waiting:
        table.add_row("waiting", _printable(status.waiting))
    for worker in status.workers[:_WORKERS_SHOWN]:
        table.add_row(
            f"worker {worker.worker}",
            f"{worker.doing} {_printable(worker.cell)} "
            f"{duration(worker.seconds)}, {counted(worker.examples, 'example')}"
            if worker.cell
            else worker.doing,
        )
    if len(status.workers) > _WORKERS_SHOWN:
        table.add_row("", f"and {len(status.workers) - _WORKERS_SHOWN} more")
    return table


class _Lines:
    """Prints lines where there is no terminal."""

    def __init__(self, console: Console, pause: float) -> None:
        self._console = console
        self._pause = pause
        self._printed = time.monotonic()

    def __call__(self, event: Event) -> None:
        if event.text:
            self._console.print(_printable(event.text))
        now = time.monotonic()
        if event.kind == "ended" or (event.kind == "status" and now - self._printed >= self._pause):
            self._printed = now
            self._console.print(_printable(status_line(event.status)))


class _Writer:
    """Writes JSON lines; where that fails, it says so once and goes on without."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._is_broken = False
        self._status_at = -math.inf

    def __call__(self, event: Event) -> None:
        if self._stream is None:
            return
        if event.kind == "status":
            if event.at - self._status_at < _SECONDS_A_STATUS:
                return
            self._status_at = event.at
        try:
            self._stream.write(json.dumps(event_to_data(event)) + "\n")
            self._stream.flush()
        except OSError as error:
            if not self._is_broken:
                complain(f"--events cannot be written: {error.strerror or error}.")
            self._is_broken = True


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
        return
    try:
        stream = path.open("a", encoding="ascii")
    except OSError as error:
        raise UsageError(
            f"--events {str(path)!r} cannot be written: {error.strerror or error}; give another."
        ) from error
    try:
        yield stream
    finally:
        # What could not be written is tried once more, and was complained of.
        with suppress(OSError):
            stream.close()


def _found(status: Status) -> str:
    words = f"{counted(status.findings, 'finding')} in the store"
    if status.to_shrink:
        words += f", {status.to_shrink} to be shrunk"
    if status.known:
        words += f", {status.known} known"
    if status.fixed:
        words += f", {status.fixed} fixed"
    return words


def _lost(status: Status) -> str:
    return "1 process lost" if status.lost == 1 else f"{status.lost} processes lost"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
