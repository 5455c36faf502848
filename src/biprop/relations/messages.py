"""Foreign exceptions as text: neither they nor their frames, which hold tensors, stay alive.

What is done with the text says `biprop.relations.invariance`.
"""

from biprop.errors import words_of

__all__ = ["TargetExitError", "message_of"]

_LENGTH_MAX = 400


class TargetExitError(Exception):
    """A target raised what would have ended the process; its text is the message of that."""


def message_of(error: BaseException) -> str:
    """Return class and message of an exception as one line of bounded length."""
    if isinstance(error, TargetExitError):
        return str(error)
    shown = "".join(letter for letter in words_of(error) if letter.isprintable()).rstrip(".")
    if len(shown) > _LENGTH_MAX:
        shown = shown[: _LENGTH_MAX - 3] + "..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__
