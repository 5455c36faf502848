"""What the commands write: results to standard output, single sentences to standard error.

What the texts say is the part of `biprop.reports`.
"""

import os
import sys
import tempfile
from pathlib import Path

from biprop.errors import UsageError

__all__ = ["check_report_path", "complain", "emit", "write_report"]


def emit(text: str) -> None:
    """Write a result.

    Raises:
        UsageError: It cannot be written, as on a full disk.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # A reader such as `head` wants no more of it; without this, Python complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise UsageError(
            f"Standard output cannot be written: {error.strerror or error}; write elsewhere."
        ) from error


def complain(sentence: str) -> None:
    """Write one line to standard error, without the control codes of a text that it quotes."""
    shown = "".join(character if character.isprintable() else " " for character in sentence)
    sys.stderr.write(f"biprop: {' '.join(shown.split())}\n")


def check_report_path(path: Path) -> None:
    """Refuse a report that cannot be written, before minutes are spent on it.

    Raises:
        UsageError: The sentence says why.
    """
    try:
        if path.exists():
            with path.open("a"):
                pass
        else:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
    except OSError as error:
        raise _unwritable(path, error) from error


def write_report(path: Path, text: str) -> None:
    """Write the report that --report-json asks for.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    reason = error.strerror or error
    return UsageError(f"--report-json {str(path)!r} cannot be written: {reason}; give another.")
