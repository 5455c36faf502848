"""Processes killed at each write of a store, before its rename and after it: nothing is torn.

A campaign whose searches are pretended loses one process after the other, each at another point.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import attrs
from tests.unit.campaign_fakes import open_fake, plan, reconciled, run

from biprop.campaign.messages import Hands, Settings

# Folder of the file that is written, and when the process is killed. In this order each comes up.
POINTS = tuple(
    f"{folder} {moment}"
    for folder in ("begun", "raw", "causes", "epochs", "findings")
    for moment in ("before", "after")
)


def open_torn(settings: Settings, device: str) -> Hands:
    """Return hands whose process is killed at the point that `points.txt` names first."""
    path = settings.store.parent / "points.txt"
    left = path.read_text().splitlines()
    if left:
        folder, moment = left[0].split()

        def killed_at(rename: Callable[..., object]) -> Callable[..., object]:
            def torn(source: Path, target: Path) -> object:
                is_it = Path(target).parent.name == folder
                if is_it and moment == "before":
                    die()
                found = rename(source, target)
                if is_it:
                    die()
                return found

            return torn

        def die() -> None:
            # The file is no part of the store.
            path.write_text("\n".join(left[1:]))
            os.kill(os.getpid(), signal.SIGKILL)

        Path.replace = killed_at(Path.replace)  # type: ignore[method-assign, assignment]
        Path.rename = killed_at(Path.rename)  # type: ignore[method-assign, assignment]
        os.link = killed_at(os.link)  # type: ignore[assignment]
    return open_fake(settings, device)


def test_a_process_may_be_killed_at_any_write(tmp_path: Path) -> None:
    """Each point costs at most the epoch that ran there, and all that was told is in the store."""

    points = tmp_path / "points.txt"
    points.write_text("\n".join(POINTS))
    what = attrs.evolve(plan(tmp_path / "store", open_hands=open_torn), seed=3)
    _, events = run(what, epochs=8)
    while points.read_text():
        run(what, epochs=3)
    snapshot = reconciled(tmp_path / "store")
    lost = sum(cell.sum.lost for cell in snapshot.cells)
    assert any(event.kind == "lost" for event in events)
    # None is begun before its file is, nor lost after its record; shrinking is no epoch.
    assert lost == len(POINTS) - 4
