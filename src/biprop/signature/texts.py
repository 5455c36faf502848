"""Read the two other texts of a command line: targets and fixed arguments.

Nothing is imported or evaluated here: `biprop.loading` imports a target once it is allowed to.
"""

import math
import re
import unicodedata

import attrs

from biprop.errors import TargetError, UsageError
from biprop.signature.words import (
    TEXT_LENGTH_MAX,
    checked_text,
    fault_of_name,
    quoted,
)

__all__ = ["INTEGER_MAX", "CallValue", "Target", "parse_call", "parse_target"]

CallValue = int | float | bool | None

CALL_COUNT_MAX = 64
# What a C integer of 64 bits holds, as kernels are handed no more.
INTEGER_MAX = 2**63 - 1

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]{1,32}\.?[0-9]{0,32}|\.[0-9]{1,32})(?:[eE][+-]?[0-9]{1,4})?")
_WORDS: dict[str, CallValue] = {"True": True, "False": False, "None": None}
_FORMS = "write module:name or file.py:name"


@attrs.frozen(kw_only=True)
class Target:
    """Where a callable is found.

    Attributes:
        module: Dotted name of its module, None if it is named by file.
        file: Path of its file as written, None if it is named by module.
        name: Its name in there, dotted for a member of a class.
    """

    module: str | None = None
    file: str | None = None
    name: str

    @property
    def text(self) -> str:
        """The target as a command line names it."""
        return f"{self.module or self.file}:{self.name}"


def parse_target(text: str) -> Target:
    """Read `module:qual.name` or `file.py:name`, and import nothing.

    Raises:
        TargetError: The text names neither.
    """
    if not isinstance(text, str):
        raise TargetError(f"The target is of type {type(text).__name__}: {_FORMS}.")
    text = text.strip()
    if not text:
        raise TargetError(f"The target is empty: {_FORMS}.")
    if len(text) > TEXT_LENGTH_MAX:
        raise TargetError(f"The target has {len(text)} characters: {_FORMS}.")
    if any(unicodedata.category(character)[0] == "C" for character in text):
        raise TargetError(f"Target {quoted(text)} has a control character: {_FORMS}.")
    # The last colon, as a path may have one of its own (C:\kernels.py:norm).
    place, colon, name = text.rpartition(":")
    place, name = place.strip(), name.strip()
    if not colon:
        advice = f"write {text}:name" if text.endswith(".py") else _FORMS
        raise TargetError(f"Target {quoted(text)} has no ':': {advice}.")
    if not place:
        raise TargetError(f"Target {quoted(text)} has nothing before its ':': {_FORMS}.")
    if not name:
        raise TargetError(f"Target {quoted(text)} has nothing after its ':': {_FORMS}.")
    for part in name.split("."):
        fault = fault_of_name(part)
        if fault:
            raise TargetError(
                f"Target {quoted(text)} has the name {quoted(name)}, of which {quoted(part)} "
                f"{fault}: write the name of a function after the ':'."
            )
    if place.endswith(".py"):
        return Target(file=place, name=name)
    if re.search(r"[/\\~]", place):
        raise TargetError(
            f"Target {quoted(text)} has the path {quoted(place)}, which is not a .py file: "
            "write file.py:name."
        )
    for part in place.split("."):
        fault = fault_of_name(part)
        if fault:
            raise TargetError(
                f"Target {quoted(text)} has the module {quoted(place)}, of which {quoted(part)} "
                f"{fault}: {_FORMS}."
            )
    return Target(module=place, name=name)


def parse_call(text: str) -> dict[str, CallValue]:
    """Read fixed keyword arguments: `eps=1e-6, flag=True`; an empty text fixes nothing.

    Values are integers, floats, True, False or None; nothing is evaluated.

    Raises:
        UsageError: The text cannot be read.
    """
    text = checked_text(text, what="The text of --call", error=UsageError)
    if not text:
        return {}
    pieces = [piece.strip() for piece in text.split(",")]
    if len(pieces) > CALL_COUNT_MAX:
        raise UsageError(f"--call has {len(pieces)} arguments: write at most {CALL_COUNT_MAX}.")
    call: dict[str, CallValue] = {}
    for piece in pieces:
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not piece:
            raise UsageError(f"--call {quoted(text)} has an extra comma: drop it.")
        if not equals:
            raise UsageError(f"--call {quoted(piece)} has no '=': write name=value.")
        fault = fault_of_name(name)
        if fault:
            raise UsageError(f"--call {quoted(piece)} has a name that {fault}: write name=value.")
        if name in call:
            raise UsageError(f"--call has the argument {quoted(name)} twice: write it once.")
        call[name] = _value(value, name=name)
    return call


def _value(text: str, *, name: str) -> CallValue:
    """Read one literal."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        # Never a float instead, whose value would be another; long digits are not even converted.
        integer = int(text) if len(text) <= 2 * len(str(INTEGER_MAX)) else INTEGER_MAX + 1
        if abs(integer) <= INTEGER_MAX:
            return integer
    elif _FLOAT.fullmatch(text):
        number = float(text)
        if math.isfinite(number):
            return number
    word = text.capitalize()
    advice = f"write {word}" if word in _WORDS else "write a finite number, True, False or None"
    raise UsageError(f"--call has {name}={quoted(text)}: {advice}.")
