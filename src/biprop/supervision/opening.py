"""How a worker is asked to open a target, and targets that are opened before any is searched.

That a typo is refused at once: a worker imports them and finds out their signatures, and runs
nothing.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from biprop.case import Json
from biprop.errors import BipropError
from biprop.operators import KernelReference
from biprop.supervision.child import Child, ChildDiedError
from biprop.supervision.messages import CONVERTER

__all__ = ["FIRST_FACTOR", "opening", "refusals"]

# The first case of a kernel compiles it, and its file is imported.
FIRST_FACTOR = 3


def opening(reference: KernelReference, *, trial: dict[str, Json] | None = None) -> dict[str, Json]:
    """Return the message that has a worker load a kernel.

    Args:
        reference: The kernel.
        trial: The simplest case, to be run as well; None: nothing is run.
    """
    return {
        "do": "open",
        "reference": CONVERTER.unstructure(reference),
        # A target may be named by a path relative to the folder that this process is in now.
        "folder": str(Path.cwd()),
        "trial": trial,
    }


def refusals(
    references: Sequence[KernelReference], *, child: Child, timeout: float
) -> Iterator[BipropError | None]:
    """Yield for each target why it cannot be opened, None where it can.

    One that ends or hangs its worker is left to whoever searches it, who says so of its cell.

    Args:
        references: Of targets.
        child: Opens them.
        timeout: Seconds of one run; opening one may take three times as much.

    Raises:
        DeviceError: No worker starts.
    """
    child.start()
    for reference in references:
        try:
            child.ask(opening(reference), seconds=timeout * FIRST_FACTOR)
        except ChildDiedError:
            yield None
        except BipropError as error:
            yield error
        else:
            yield None
