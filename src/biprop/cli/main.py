"""Assemble the commands, and end with their exit codes."""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from biprop.cli.cache import cache
from biprop.cli.check import check
from biprop.cli.fuzz import fuzz
from biprop.cli.keep import keep
from biprop.cli.matrix import matrix
from biprop.cli.output import complain, emit
from biprop.cli.power import power
from biprop.cli.replay import replay
from biprop.cli.report import report
from biprop.cli.show import show
from biprop.cli.stacks import stacks
from biprop.errors import BipropError

__all__ = ["app", "main"]

_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="biprop", message="biprop %(version)s")
def app() -> None:
    """Find where a kernel's bits depend on what else is in the batch.

    The same model, tokens and policy state must give the same bits on every active token. What
    breaks that is shrunk to a few non-zero elements, stored as a fixture, and replayed anywhere.

    \b
    Exit codes:
      0    held; replay: fixed, or not reproduced here
      1    violated: drifts, differs from run to run, is inaccurate, crashes, falls back;
           matrix: a cell is not green; power: something planted was missed
      2    wrong use, unsupported, or cannot run
      3    vacuous: too little evidence either way
      130  stopped by Ctrl-C or SIGTERM
    """  # noqa: D301  # \b keeps the lines as they are


for _command in (check, cache, stacks, matrix, fuzz, power, report, show, replay, keep):
    app.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    try:
        with _terminated_as_interrupted():
            code = app.main(
                args=None if arguments is None else list(arguments),
                prog_name="biprop",
                standalone_mode=False,
            )
    except BipropError as error:
        complain(str(error))
        code = 2
    except click.exceptions.NoArgsIsHelpError as error:
        emit(error.format_message() + "\n")
        code = 2
    except click.ClickException as error:
        complain(error.format_message())
        code = 2
    except (click.Abort, KeyboardInterrupt):
        complain("Stopped by Ctrl-C or SIGTERM.")
        code = _INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, so that what was found is printed and stored."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may say what a signal does.
        yield
        return

    def interrupt(*_: object) -> None:
        # `timeout` sends it twice, and the second may not break what the first has begun to store.
        # No SIG_IGN, which processes that are started later would inherit.
        signal.signal(signal.SIGTERM, lambda *_: None)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
