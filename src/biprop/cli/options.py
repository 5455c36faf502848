"""Options that commands share, and option values read and refused in one sentence each.

No torch here: `biprop --help` and every refusal come at once. What the words mean in a case says
`biprop.generation`; the device is looked at by the worker.
"""

import re
from enum import StrEnum
from pathlib import Path
from typing import Literal

import click

from biprop.case import DTYPES, Dtype
from biprop.errors import DeviceError, UsageError
from biprop.operators import TRANSFORM_CLASSES

__all__ = [
    "Direction",
    "Side",
    "json_option",
    "parse_classes",
    "parse_device",
    "parse_dtype",
    "store_option",
    "timeout_option",
]

Side = Literal["forward", "backward"]

_ALIASES: dict[str, Dtype] = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
}
_CLASSES = (*TRANSFORM_CLASSES, "T4.finite", "T4.nonfinite")

store_option = click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where found fixtures lie.  [default: .hypothesis/found of the project]",
)
timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(0.1, 86_400),
    default=60.0,
    metavar="SECONDS",
    show_default=True,
    help="After which one run of the kernel counts as hung; the first one gets three times that.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."
)


class Direction(StrEnum):
    """What is judged: outputs, gradients, or both."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BOTH = "both"

    @property
    def parts(self) -> tuple[Side, ...]:
        """Return the directions to judge, one after the other."""
        if self is Direction.BOTH:
            return ("forward", "backward")
        return ("forward",) if self is Direction.FORWARD else ("backward",)


def parse_dtype(text: str) -> Dtype:
    """Return the dtype of its name or common short form.

    Raises:
        UsageError: It is none.
    """
    name = _ALIASES.get(text, text)
    for dtype in DTYPES:
        if name == dtype:
            return dtype
    raise UsageError(f"--dtype {text!r} is unknown: use {', '.join(DTYPES)}.")


def parse_device(text: str) -> str:
    """Return a device text of the form `cpu`, `cuda` or `cuda:N`.

    Raises:
        DeviceError: It has another form.
    """
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", text):
        raise DeviceError(f"--device {text!r} is unknown: use cpu, cuda or cuda:N.")
    return text


def parse_classes(text: str) -> tuple[str, ...]:
    """Return the transform classes of `T1,T4`, all of them for an empty text.

    Raises:
        UsageError: One is unknown or given twice.
    """
    if not text.strip():
        return TRANSFORM_CLASSES
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in _CLASSES:
            raise UsageError(
                f"--transforms: {name!r} is no transform class; use {', '.join(_CLASSES)}."
            )
        if names.count(name) > 1:
            raise UsageError(f"--transforms names {name} twice: name it once.")
    return names
