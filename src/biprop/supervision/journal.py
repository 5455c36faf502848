"""The journal: which case is being judged right now, on disk before it is launched.

When a process dies with its machine, the file is all that is left; `leftovers` finds the files
whose writer is gone. A worker that dies under a living supervisor needs no journal: its supervisor
reports it.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from biprop.case import Case, canonical_json, case_from_data
from biprop.errors import BipropError
from biprop.operators import KernelReference
from biprop.supervision.messages import CONVERTER

__all__ = ["FORMAT", "Journal", "Leftover"]

FORMAT = "biprop-inflight-1"


@attrs.frozen(kw_only=True)
class Leftover:
    """A case that was being judged when its process died.

    Attributes:
        path: The file.
        reference: The kernel.
        device: Where it ran.
        case: The case.
    """

    path: Path
    reference: KernelReference
    device: str
    case: Case


class Journal:
    """Files `inflight-<process>-<number>.json` in one folder, one a case that is being judged."""

    def __init__(self, folder: Path) -> None:
        """Write into `folder`, which is made when it is first needed."""
        self._folder = folder
        self._count = 0

    @contextmanager
    def entry(self, *, reference: KernelReference, device: str, case_text: str) -> Iterator[Path]:
        """Name a case on disk for as long as it is being judged.

        Args:
            reference: The kernel.
            device: Where it runs.
            case_text: The case as JSON.
        """
        self._count += 1
        path = self._folder / f"inflight-{os.getpid()}-{self._count}.json"
        head = canonical_json(
            {
                "format": FORMAT,
                "process": os.getpid(),
                "device": device,
                "reference": CONVERTER.unstructure(reference),
            }
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        # A reader sees the whole file or none: the name appears after the text is complete.
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(f'{head[:-1]},"case":{case_text}}}\n', encoding="ascii")
        unfinished.replace(path)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def leftovers(self) -> tuple[Leftover, ...]:
        """Return what processes that are no longer alive were judging."""
        found = (_read(path) for path in sorted(self._folder.glob("inflight-*.json")))
        return tuple(leftover for leftover in found if leftover is not None)


def _read(path: Path) -> Leftover | None:
    try:
        data = json.loads(path.read_text(encoding="ascii"))
        if data["format"] != FORMAT or _is_alive(int(data["process"])):
            return None
        return Leftover(
            path=path,
            reference=CONVERTER.structure(data["reference"], KernelReference),
            device=str(data["device"]),
            case=case_from_data(data["case"]),
        )
    except (OSError, ValueError, KeyError, TypeError, BipropError):
        # Another version's file, or one that its writer has just removed: left alone.
        return None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
