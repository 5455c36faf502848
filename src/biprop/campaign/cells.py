"""The cells of a campaign: what is searched, and the targets among it that people name.

Records and listing only. Ids depend on what was named alone, so that every shard lists the same and
each takes its own part. Registered ones are listed by `biprop.campaign.registered`, which imports
kernels; what is done with a cell says `biprop.campaign.hands`.
"""

from collections.abc import Sequence

import attrs

from biprop.campaign.records import CellInfo
from biprop.case import Dtype
from biprop.errors import UsageError
from biprop.generation.space import Direction
from biprop.kvcache.records import CacheReference
from biprop.kvcache.shape import CacheLayout
from biprop.operators import KernelReference
from biprop.power.manifest import Entry

__all__ = [
    "CacheWork",
    "Cell",
    "KernelWork",
    "entry_cells",
    "sharded",
    "target_cells",
]


@attrs.frozen(kw_only=True)
class KernelWork:
    """A kernel to search.

    Attributes:
        reference: The kernel.
        dtype: Of the cases.
        direction: Whether outputs or gradients are judged.
        classes: Of transforms that are drawn; empty: all that apply.
    """

    reference: KernelReference
    dtype: Dtype
    direction: Direction
    classes: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class CacheWork:
    """A cache to search.

    Attributes:
        reference: The cache.
        layout: Of its pages.
        dtype: Of queries, keys and values; what is stored is drawn.
    """

    reference: CacheReference
    layout: CacheLayout
    dtype: Dtype


@attrs.frozen(kw_only=True)
class Cell:
    """One cell.

    Attributes:
        info: What it is, for records.
        work: What is searched.
    """

    info: CellInfo
    work: KernelWork | CacheWork

    @property
    def id(self) -> str:
        """Its id."""
        return self.info.id


def entry_cells(entries: Sequence[Entry]) -> tuple[Cell, ...]:
    """Return the cells of the entries of a manifest."""
    return tuple(
        _target_cell(
            entry.name,
            entry.reference(),
            dtype=dtype,
            direction=entry.direction,
            classes=entry.classes,
        )
        for entry in entries
        for dtype in entry.dtypes
    )


def target_cells(
    reference: KernelReference, *, dtypes: Sequence[Dtype], directions: Sequence[Direction]
) -> tuple[Cell, ...]:
    """Return the cells of a target that the command line names."""
    return tuple(
        _target_cell(reference.target, reference, dtype=dtype, direction=direction)
        for dtype in dtypes
        for direction in directions
    )


def sharded(cells: Sequence[Cell], *, part: int, count: int) -> tuple[Cell, ...]:
    """Return part `part` of `count`, counted from 1, of cells in order of their ids.

    Raises:
        UsageError: Two cells have one id, or none is left.
    """
    ordered = sorted(cells, key=lambda cell: cell.id)
    ids = [cell.id for cell in ordered]
    twice = [name for name in ids if ids.count(name) > 1]
    if twice:
        raise UsageError(f"Two cells are called {twice[0]!r}: name each target once.")
    found = tuple(ordered[part - 1 :: count])
    if not found:
        raise UsageError(
            f"--shard {part}/{count} has no cell, there are {len(ordered)}: use fewer shards."
        )
    return found


def _target_cell(
    name: str,
    reference: KernelReference,
    *,
    dtype: Dtype,
    direction: Direction,
    classes: tuple[str, ...] = (),
) -> Cell:
    info = CellInfo(
        id=f"{name}-{dtype}-{direction}",
        operator=reference.operator,
        form="given",
        backend=reference.backend,
        dtype=dtype,
        direction=direction,
    )
    work = KernelWork(reference=reference, dtype=dtype, direction=direction, classes=classes)
    return Cell(info=info, work=work)
