"""What the commands write: results to standard output, single sentences to standard error.

What the texts say is the part of `biprop.reports`.
"""

import os
import sys

from biprop.errors import UsageError

__all__ = ["complain", "emit"]


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
