"""The journal: which case is being judged right now, on disk before it is launched.

When a process dies with its machine, the file is all that is left; `leftovers` finds the files
whose writer is gone. That says nothing against the kernel yet: most processes are ended from
outside. A worker that dies under a living supervisor needs no journal: its supervisor reports it.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import attrs

from biprop.case import Case, Json, canonical_json, case_from_data
from biprop.errors import BipropError
from biprop.operators import KernelReference
from biprop.provenance import Provenance
from biprop.supervision.messages import CONVERTER

__all__ = ["FORMAT", "Entries", "Journal", "Leftover"]

FORMAT = "biprop-inflight-1"


@attrs.frozen(kw_only=True)
class Leftover:
    """A case that was being judged when its process died.

    Attributes:
        path: The file.
        reference: The kernel.
        device: Where it ran.
        case: The case.
        provenance: Of the process that is gone.
        is_second: Whether it was being judged again, because an earlier process died of it, or at
            the same time.
        is_told: Whether people were told of it.
    """

    path: Path
    reference: KernelReference
    device: str
    case: Case
    provenance: Provenance
    is_second: bool = False
    is_told: bool = False


class Entries(Protocol):
    """What names cases on disk for as long as they are judged; a `Journal` does."""

    def entries(
        self,
        *,
        reference: KernelReference,
        device: str,
        case_texts: Sequence[str],
        provenance: Provenance | None = None,
        is_due: bool = False,
    ) -> AbstractContextManager[None]:
        """Name several cases that are judged together, or one; see `Journal.entries`."""


class Journal:
    """Files `inflight-<process>-<number>.json` in one folder, one a case that is being judged.

    What people were told of and is yet to be judged again is named `ended-...` instead.
    """

    def __init__(self, folder: Path) -> None:
        """Write into `folder`, which is made when it is first needed."""
        self._folder = folder
        self._count = 0

    @contextmanager
    def entry(
        self,
        *,
        reference: KernelReference,
        device: str,
        case_text: str,
        provenance: Provenance | None = None,
        is_second: bool = False,
    ) -> Iterator[Path]:
        """Name a case on disk for as long as it is being judged.

        Args:
            reference: The kernel.
            device: Where it runs.
            case_text: The case as JSON.
            provenance: Of the process that judges it; None where it is not known.
            is_second: Whether it is judged again after its process was gone.
        """
        self._count += 1
        path = self._folder / f"inflight-{os.getpid()}-{self._count}.json"
        content: dict[str, Json] = {
            "format": FORMAT,
            "process": os.getpid(),
            "device": device,
            "reference": CONVERTER.unstructure(reference),
            "second": is_second,
        }
        if provenance is not None:
            content["provenance"] = CONVERTER.unstructure(provenance)
        head = canonical_json(content)
        self._folder.mkdir(parents=True, exist_ok=True)
        # A reader sees the whole file or none: the name appears after the text is complete.
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(f'{head[:-1]},"case":{case_text}}}\n', encoding="ascii")
        unfinished.replace(path)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def entries(
        self,
        *,
        reference: KernelReference,
        device: str,
        case_texts: Sequence[str],
        provenance: Provenance | None = None,
        is_due: bool = False,
    ) -> Iterator[None]:
        """Name several cases on disk for as long as they are judged together; see `entry`.

        Args:
            reference: The kernel.
            device: Where it runs.
            case_texts: The cases as JSON.
            provenance: Of the process that judges them; None where it is not known.
            is_due: Whether whoever has no time left judges these all the same: a set of them
                failed, and which of its cases does is to be told; the case has lost its device, and
                whether it does again is; or the process that was given the case died before it
                began it, of what an earlier one left behind.
        """
        del is_due
        with ExitStack() as stack:
            for text in case_texts:
                stack.enter_context(
                    self.entry(
                        reference=reference, device=device, case_text=text, provenance=provenance
                    )
                )
            yield

    def leftovers(self) -> tuple[Leftover, ...]:
        """Return what processes that are no longer alive were judging."""
        paths = (
            path for kind in ("inflight", "ended") for path in self._folder.glob(f"{kind}-*.json")
        )
        found = (_read(path) for path in sorted(paths))
        return tuple(leftover for leftover in found if leftover is not None)

    def mark_told(self, leftover: Leftover) -> None:
        """Remember that people were told of a case that is yet to be judged again."""
        kind, _, rest = leftover.path.name.partition("-")
        if kind != "ended" and leftover.path.exists():
            leftover.path.replace(leftover.path.with_name(f"ended-{rest}"))


def _read(path: Path) -> Leftover | None:
    try:
        data = json.loads(path.read_text(encoding="ascii"))
        if data["format"] != FORMAT or _is_alive(int(data["process"])):
            return None
        device = str(data["device"])
        provenance = data.get("provenance", {"device": device})
        return Leftover(
            path=path,
            reference=CONVERTER.structure(data["reference"], KernelReference),
            device=device,
            case=case_from_data(data["case"]),
            provenance=CONVERTER.structure(provenance, Provenance),
            is_second=bool(data.get("second", False)),
            is_told=path.name.startswith("ended-"),
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
