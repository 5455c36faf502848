"""What every part of a lane says of itself: the sources, the device and the versions that ran.

Records only. What a part showed stands in `records`.
"""

import re
from typing import Literal

import attrs

from biprop.errors import BipropError

__all__ = [
    "DIGITS_SHOWN",
    "FORMAT",
    "Device",
    "EvidenceError",
    "Run",
    "Versions",
    "is_format",
    "is_sha256",
    "same_run",
]

FORMAT = "biprop-evidence-1"
# Of a digest, in texts.
DIGITS_SHOWN = 12
_SHA256 = re.compile(r"[0-9a-f]{64}")


class EvidenceError(BipropError, ValueError):
    """A file that is no evidence, or evidence that cannot be used."""


def is_format(_: object, __: object, value: str) -> None:
    """Refuse evidence of another format.

    Raises:
        EvidenceError: It is another one.
    """
    if value != FORMAT:
        raise EvidenceError(f"format={value!r} is unknown: this version reads {FORMAT}.")


def is_sha256(_: object, __: object, value: str) -> None:
    """Refuse what is no digest of sources.

    Raises:
        EvidenceError: It is none.
    """
    if not _SHA256.fullmatch(value):
        raise EvidenceError(f"source_sha256={value!r} is no SHA-256: write 64 hexadecimal digits.")


@attrs.frozen(kw_only=True)
class Device:
    """The device of a run; of several alike, the first.

    Attributes:
        kind: `cuda` or `cpu`.
        name: As its maker calls it.
        capability: Of a GPU, e.g. `9.0`; empty for others.
        driver: Version of its driver; empty where it cannot be told.
        count: How many were visible.
    """

    kind: Literal["cuda", "cpu"]
    name: str
    capability: str
    driver: str
    count: int


@attrs.frozen(kw_only=True)
class Versions:
    """Versions of what ran; empty where something is not installed."""

    biprop: str
    python: str
    torch: str
    cuda: str
    triton: str
    hypothesis: str
    numpy: str


@attrs.frozen(kw_only=True)
class Run:
    """What every part says of itself.

    Attributes:
        date: Of its last command, UTC.
        certifies: Whether it ran on a GPU: a run elsewhere tries the plumbing, and certifies none.
        source_sha256: Digest of the sources that ran (`biprop.provenance.source_sha256`).
        device: Where.
        versions: With what.
        commands: In order, from the root of the repository.
        seconds: Wall time of all of them.
        is_complete: Whether everything of the part ran to its end.
        is_met: Whether everything was as it should be.
    """

    date: str
    certifies: bool
    source_sha256: str = attrs.field(validator=is_sha256)
    device: Device
    versions: Versions
    commands: tuple[str, ...]
    seconds: float
    is_complete: bool
    is_met: bool


def same_run(one: Run, other: Run) -> bool:
    """Return whether two runs may stand in one file: the same sources, device and versions."""
    names = ("certifies", "source_sha256", "device", "versions")
    return all(getattr(one, name) == getattr(other, name) for name in names)
