"""Options that commands share, and option values read and refused in one sentence each.

No torch here: `biprop --help` and every refusal come at once. What the words mean in a case says
`biprop.generation`; the device is looked at by the worker.
"""

import math
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import click

from biprop.case import DTYPES, SDPA_BACKENDS, Dtype, Execution, SdpaBackend
from biprop.errors import DeviceError, UsageError
from biprop.machine import is_device
from biprop.operators import TRANSFORM_CLASSES

__all__ = [
    "Direction",
    "Seconds",
    "Side",
    "check_backend",
    "execution_options",
    "json_option",
    "lookup_option",
    "names_in",
    "parse_classes",
    "parse_device",
    "parse_dtype",
    "profile_option",
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
_BACKENDS_CPU: tuple[SdpaBackend, ...] = ("any", "math", "flash")
_CLASSES = (*TRANSFORM_CLASSES, "T4.finite", "T4.nonfinite")


class Seconds(click.FloatRange):
    """Seconds between 0.1 and a day; what is no number is refused."""

    def __init__(self) -> None:
        """Set the bounds."""
        super().__init__(0.1, 86_400)

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the number; a NaN lies in every range for click."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return seconds


store_option = click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where found fixtures lie.  [default: .hypothesis/found of the project]",
)
lookup_option = click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where to look for an id: where fixtures lie, or the store of a campaign.  "
    "[default: both of the project]",
)
timeout_option = click.option(
    "--timeout",
    type=Seconds(),
    default=60.0,
    metavar="SECONDS",
    show_default=True,
    help="After which one run of the kernel counts as hung; the first one gets three times that.",
)
profile_option = click.option(
    "--profile",
    type=click.Choice(["dev", "pr", "nightly"]),
    default="pr",
    show_default=True,
    help="How thorough the search is.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."
)
_EXECUTION_OPTIONS = (
    click.option(
        "--threads",
        type=click.IntRange(1, 256),
        default=1,
        metavar="N",
        show_default=True,
        help="Intra-op threads of torch on the CPU.",
    ),
    click.option(
        "--sdpa-backend",
        type=click.Choice(SDPA_BACKENDS),
        default="any",
        show_default=True,
        help="Kernels that scaled_dot_product_attention may choose from.",
    ),
    click.option("--tf32", is_flag=True, help="Let TF32 stand in for float32 on CUDA."),
    click.option(
        "--bf16-reduced-precision",
        is_flag=True,
        help="Let products of bfloat16 on CUDA add in bfloat16, as torch does by itself.",
    ),
    click.option(
        "--fp16-reduced-precision",
        is_flag=True,
        help="Let products of float16 on CUDA add in float16, as torch does by itself.",
    ),
    click.option(
        "--deterministic", is_flag=True, help="Use torch's deterministic algorithms alone."
    ),
)


def execution_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the switches of the process to a command, which gets them as `execution`."""

    # Click hands over one value an option.
    @wraps(command)
    def with_execution(
        *,
        threads: int,
        deterministic: bool,
        tf32: bool,
        sdpa_backend: str,
        **others: Any,  # noqa: ANN401
    ) -> int:
        execution = Execution(
            threads=threads,
            deterministic_algorithms=deterministic,
            tf32=tf32,
            bf16_reduced_precision=others.pop("bf16_reduced_precision"),
            fp16_reduced_precision=others.pop("fp16_reduced_precision"),
            sdpa_backend=next(name for name in SDPA_BACKENDS if name == sdpa_backend),
        )
        return command(execution=execution, **others)

    decorated: Callable[..., int] = with_execution
    for option in reversed(_EXECUTION_OPTIONS):
        decorated = option(decorated)
    return decorated


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
    if not is_device(text):
        raise DeviceError(f"--device {text!r} is unknown: use cpu, cuda or cuda:N.")
    return text


def check_backend(execution: Execution, device: str) -> None:
    """Refuse kernels of attention that torch does not have for the device.

    Raises:
        UsageError: There is none, so that every case would raise.
    """
    backend = execution.sdpa_backend
    if device == "cpu" and backend not in _BACKENDS_CPU:
        raise UsageError(
            f"--sdpa-backend {backend} has no kernel on the CPU: "
            f"use {', '.join(_BACKENDS_CPU)}, or --device cuda."
        )


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


def names_in(option: str, text: str | None) -> tuple[str, ...]:
    """Return the names of a list; none where the option was left out.

    Raises:
        UsageError: There is none in it, or one is empty or given twice.
    """
    if text is None:
        return ()
    if not text.strip():
        raise UsageError(f"{option} {text!r} names nothing: name one or more, or leave it out.")
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not name:
            raise UsageError(f"{option} {text!r} names nothing between two commas: take one out.")
        if names.count(name) > 1:
            raise UsageError(f"{option} names {name} twice: name it once.")
    return names
