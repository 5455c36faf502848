"""Read the fields of a JSON value, and name the path of whatever is wrong.

Nothing here knows what a contract demands (`biprop.contract.cells` and the two layouts do).
"""

import json
import math
from collections.abc import Collection
from typing import NoReturn, TypeVar

import attrs

from biprop.errors import ContractError

__all__ = ["TEXT_BYTES_MAX", "Field", "parse_object"]

# Ten times the largest contract known; what is longer is none.
TEXT_BYTES_MAX = 1 << 18
_STRING_MAX = 2000
# Of a key or a value that an error shows.
_KEY_MAX = 80
_SHOWN_MAX = 60

_Word = TypeVar("_Word", bound=str)


@attrs.frozen
class Field:
    """A value of the file, and where it stands.

    Attributes:
        value: As JSON gives it.
        path: Keys from the top, joined by dots; empty at the top.
    """

    value: object
    path: str = ""

    def refuse(self, demand: str) -> NoReturn:
        """Raise the error of this field: what it is, and what it must be."""
        raise ContractError(f"{self.path or 'The contract'} is {_shown(self.value)}: {demand}.")

    def fields(
        self, required: Collection[str], *, optional: Collection[str] = ()
    ) -> "dict[str, Field]":
        """Return the fields of an object, all required ones and no unknown ones.

        Raises:
            ContractError: It is no object, a key is missing, or one is unknown.
        """
        found = self.items()
        for key in required:
            if key not in found:
                raise ContractError(f"{self.at(key)} is missing: add it.")
        known = (*required, *optional)
        for key, field in found.items():
            if key not in known:
                raise ContractError(
                    f"{field.path} is an unknown key: use {', '.join(known) or 'none here'}."
                )
        return found

    def items(self) -> "dict[str, Field]":
        """Return the fields of an object, whatever their keys."""
        if not isinstance(self.value, dict):
            self.refuse("an object is needed here")
        return {key: Field(value, self.at(key)) for key, value in self.value.items()}

    def elements(self) -> "tuple[Field, ...]":
        """Return the elements of a list."""
        if not isinstance(self.value, list):
            self.refuse("a list is needed here")
        return tuple(Field(value, f"{self.path}[{i}]") for i, value in enumerate(self.value))

    def text(self) -> str:
        """Return a string that is not blank, of one line."""
        if not isinstance(self.value, str):
            self.refuse("a string is needed here")
        if not self.value.strip():
            self.refuse("write what is meant")
        if len(self.value) > _STRING_MAX or not self.value.isprintable():
            self.refuse(f"write one line of at most {_STRING_MAX} printable characters")
        return self.value

    def texts(self) -> tuple[str, ...]:
        """Return a list of strings, none of them twice."""
        found: list[str] = []
        for element in self.elements():
            text = element.text()
            if text in found:
                element.refuse("it stands there twice, leave one")
            found.append(text)
        return tuple(found)

    def one_of(self, known: tuple[_Word, ...]) -> _Word:
        """Return one of a few words."""
        text = self.text()
        found = next((word for word in known if word == text), None)
        if found is None:
            self.refuse(f"use one of {', '.join(known)}")
        return found

    def number(self) -> float:
        """Return a number that can be a threshold: finite and not negative."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            self.refuse("a number is needed here")
        try:
            number = float(self.value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number < 0:
            self.refuse("a finite number of 0 or more is needed here")
        # -0.0 is 0.
        return number + 0.0

    def demand(self, wanted: str, why: str) -> None:
        """Refuse any value but one word.

        Raises:
            ContractError: It is another.
        """
        if self.value != wanted:
            self.refuse(f"{why}, write {wanted!r}")

    def demand_flag(self, *, wanted: bool, why: str) -> None:
        """Refuse any value but one of true and false.

        Raises:
            ContractError: It is the other, or neither.
        """
        if self.value is not wanted:
            self.refuse(f"{why}, write {json.dumps(wanted)}")

    def at(self, key: str) -> str:
        """Return the path of a key below this field."""
        shown = key if key.isidentifier() and len(key) <= _KEY_MAX else _shown(key)
        return f"{self.path}.{shown}" if self.path else shown


def parse_object(raw: bytes) -> Field:
    """Return the top of a JSON text.

    Raises:
        ContractError: It is too long, no UTF-8, no JSON, no object, nested too deeply, or has a key
            twice.
    """
    if len(raw) > TEXT_BYTES_MAX:
        raise ContractError(
            f"The contract is longer than {TEXT_BYTES_MAX} bytes: give a smaller file."
        )
    try:
        top = Field(json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_object))
    except ContractError:
        raise
    except UnicodeError as error:
        raise ContractError("The contract is no UTF-8: give the file unchanged.") from error
    except json.JSONDecodeError as error:
        raise ContractError(
            f"The contract is no valid JSON ({error.msg} in line {error.lineno}): correct the file."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ContractError(
            "The contract has a number of thousands of digits, or is nested too deeply: give a "
            "contract file."
        ) from error
    top.items()
    return top


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            # A later value would quietly replace the one that a reader saw first.
            raise ContractError(f"The contract has the key {_shown(key)} twice: leave one.")
        found[key] = value
    return found


def _shown(value: object) -> str:
    """Return a value for a message: ASCII, one line, short."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of many digits"
    text = ascii(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."
