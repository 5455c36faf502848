"""Assemble the commands, and end with their exit codes."""

import sys
from collections.abc import Sequence

import click

from biprop.cli.check import check
from biprop.cli.keep import keep
from biprop.cli.output import complain, emit
from biprop.cli.replay import replay
from biprop.cli.show import show
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
      1    violated: drifts, differs from run to run, or crashes
      2    wrong use, unsupported, or cannot run
      3    vacuous: too little evidence either way
      130  stopped with Ctrl-C
    """  # noqa: D301  # \b keeps the lines as they are


for _command in (check, show, replay, keep):
    app.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    try:
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
        complain("Stopped with Ctrl-C.")
        code = _INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)
