"""What a supervisor and its worker say to each other: JSON objects, one a line, of bounded size.

Both ends use the same functions; how lines cross processes says `biprop.supervision.pipes`. Only
errors of `biprop.errors` cross by class and sentence, so that a command reports them as if raised
in its own process.
"""

import json
from collections.abc import Mapping

import attrs
import cattrs

from biprop import errors
from biprop.case import Json
from biprop.errors import BipropError
from biprop.judgment import record_converter
from biprop.operators import CallValue, InvarianceDeclaration

__all__ = ["CONVERTER", "LINE_BYTES_MAX", "decode", "encode", "error_from_data", "error_to_data"]

# An outcome has a few kilobytes, a case with every number written out a few hundred.
LINE_BYTES_MAX = 1 << 24


def encode(message: Mapping[str, Json]) -> bytes:
    """Return `message` as one line of ASCII."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Json]:
    """Return the message of one line.

    Raises:
        ValueError: The line holds no JSON object.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("no JSON object")  # noqa: TRY004  # a fault of the line, as any other
    return message


def error_to_data(error: BipropError) -> dict[str, Json]:
    """Return class and sentence of `error`."""
    return {"class": type(error).__name__, "sentence": str(error)}


def error_from_data(data: object) -> BipropError:
    """Return the error of class and sentence, a `BipropError` where the class is unknown."""
    assert isinstance(data, dict)
    kind = getattr(errors, str(data["class"]), BipropError)
    assert isinstance(kind, type)
    assert issubclass(kind, BipropError)
    return kind(str(data["sentence"]))


def _call_value(value: object) -> CallValue:
    if value is None or type(value) in {int, float, bool}:
        return value  # type: ignore[return-value]  # narrowed by the line above
    raise ValueError("needs a number, true, false or null")


def _converter() -> cattrs.Converter:
    converter = record_converter()
    converter.register_structure_hook(CallValue, lambda value, _: _call_value(value))
    # An empty declaration differs from none, so its fields are written out.
    converter.register_unstructure_hook(InvarianceDeclaration, attrs.asdict)
    return converter


CONVERTER = _converter()
