"""Bounds, names and quotations that every text of a command line shares.

No grammar is known here: `biprop.signature.parser`, `biprop.signature.restrictions` and
`biprop.signature.texts` read their own, and raise their own errors through these helpers.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from keyword import iskeyword

from biprop.errors import BipropError

__all__ = [
    "NAME_LENGTH_MAX",
    "NUMBER_MAX",
    "TEXT_LENGTH_MAX",
    "advice_on",
    "checked_text",
    "fault_of_name",
    "nearest",
    "number_of",
    "quoted",
]

# Far above any real signature, far below what would take time or memory to read.
TEXT_LENGTH_MAX = 4000
NAME_LENGTH_MAX = 64
# No dimension of a kernel is larger; products of a few such numbers stay exact in 64 bits.
NUMBER_MAX = 2**24

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What editors and web pages make of the characters that the notation uses.
_LOOKALIKES = {
    "\u2192": "->",
    "\u21d2": "->",
    "\u2013": "-",
    "\u2014": "-",
    "\u2212": "-",
    "\u00d7": "*",
    "\u2026": "..",
    "\u00a0": "a plain space",
    "\u200b": "nothing there",
    "\ufeff": "nothing there",
    "\uff0c": ",",
    "\uff1a": ":",
    "\uff1b": ";",
}


def quoted(text: str, *, length_max: int = 40) -> str:
    """Quote a text for an error message: ASCII only, one line, not longer than `length_max`."""
    shown = text if len(text) <= length_max else text[: length_max - 3] + "..."
    return ascii(shown)


def checked_text(text: object, *, what: str, error: type[BipropError]) -> str:
    """Return the text with runs of white space made one space.

    Args:
        text: What the user wrote; anything but a bounded ASCII string is refused.
        what: What the text is, as a sentence begins: "The signature".
        error: Class of what is raised.

    Raises:
        BipropError: Of class `error`, if the text cannot be read at all.
    """
    if not isinstance(text, str):
        raise error(f"{what} is of type {type(text).__name__}: write it as a string.")
    if len(text) > TEXT_LENGTH_MAX:
        raise error(
            f"{what} has {len(text)} characters: write at most {TEXT_LENGTH_MAX} characters."
        )
    for index, character in enumerate(text):
        if not (" " <= character <= "~" or character in "\t\n\r"):
            instead = _LOOKALIKES.get(character)
            advice = f"write {instead} instead" if instead else "use printable ASCII only"
            raise error(
                f"{what} has the character U+{ord(character):04X} at index {index}: {advice}."
            )
    return " ".join(text.split())


def fault_of_name(text: str) -> str | None:
    """Say why the text is no usable name, None if it is one.

    Names are written into stand-alone scripts and JSON keys, so they are ASCII identifiers of a
    bounded length.
    """
    if not text:
        return "is empty"
    if text[0].isdigit():
        return "begins with a digit"
    if not _NAME.fullmatch(text):
        return "is no identifier"
    if iskeyword(text):
        return "is a Python keyword"
    if len(text) > NAME_LENGTH_MAX:
        return f"is longer than {NAME_LENGTH_MAX} characters"
    return None


def number_of(digits: str, *, least: int = 1) -> int | None:
    """Return the number that the digits mean, None if it lies outside `least` to `NUMBER_MAX`."""
    # Python refuses to convert thousands of digits with a message of its own: count them first.
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(NUMBER_MAX)):
        return None
    number = int(digits)
    return number if least <= number <= NUMBER_MAX else None


def advice_on(name: str, known: Iterable[str]) -> str:
    """Return what to write in the place of an unknown name, as the end of a sentence."""
    names = tuple(dict.fromkeys(known))
    meant = nearest(name, names)
    return f"write {quoted(meant)}" if meant else f"use {', '.join(names)}"


def nearest(text: str, known: Iterable[str]) -> str | None:
    """Return the known word that a mistyped one most likely means, None if none is close."""
    matches = get_close_matches(text, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
