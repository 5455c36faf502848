"""What a check was asked for, so that options are read in one place and obeyed in another.

`biprop.cli.check` fills it, `biprop.cli.searching` obeys it.
"""

from typing import Literal

import attrs

from biprop.case import Dtype, Execution
from biprop.cli.options import Side
from biprop.cli.session import Home
from biprop.operators import KernelReference

__all__ = ["Request"]


@attrs.frozen(kw_only=True)
class Request:
    """Options of a check, read and in range.

    Attributes:
        reference: The kernel.
        dtype: Of its float arguments.
        device: Where it runs.
        directions: What is judged, one after the other.
        classes: Transform classes that may be drawn.
        execution: Switches of the process that runs the kernel.
        max_examples: Of each direction; None: as the profile says.
        seed: Of the search.
        profile: How thorough it is.
        timeout: Seconds after which a launch counts as hung.
        home: Where it writes.
        quiet: Whether no live line is shown.
    """

    reference: KernelReference
    dtype: Dtype
    device: str
    directions: tuple[Side, ...]
    classes: tuple[str, ...]
    execution: Execution
    max_examples: int | None
    seed: int
    profile: Literal["dev", "pr", "nightly"]
    timeout: float
    home: Home
    quiet: bool
