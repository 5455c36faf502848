"""Transforms: records that change what surrounds a sequence, and their composition.

One file a class of DESIGN. A transform sets its own fields of the layout and no others, so the
order of a composition does not matter; what the layout means physically says `biprop.layout`, which
transforms are legal for a signature says `biprop.generation.legal`.
"""

from collections.abc import Iterable

import attrs

from biprop.case import Case, TransformData
from biprop.errors import CaseError
from biprop.layout import CANONICAL, Layout
from biprop.transforms.base import LATER, Transform
from biprop.transforms.neighbours import ReplaceNeighbours
from biprop.transforms.padding import AddDeadRows, PadSlots
from biprop.transforms.population import AddNeighbours
from biprop.transforms.position import PermuteRows, PlaceWatched
from biprop.transforms.schedule import SplitBatch
from biprop.transforms.selection import GatherActive, PackRows, UseForm
from biprop.transforms.shards import Shards
from biprop.transforms.storage import MoveStorage

__all__ = [
    "TRANSFORMS",
    "AddDeadRows",
    "AddNeighbours",
    "GatherActive",
    "MoveStorage",
    "PackRows",
    "PadSlots",
    "PermuteRows",
    "PlaceWatched",
    "ReplaceNeighbours",
    "Shards",
    "SplitBatch",
    "Transform",
    "UseForm",
    "apply_all",
    "class_of",
    "transform_from_data",
    "transform_to_data",
    "transforms_of",
]

TRANSFORMS: tuple[type[Transform], ...] = (
    AddNeighbours,
    PlaceWatched,
    PermuteRows,
    ReplaceNeighbours,
    PadSlots,
    AddDeadRows,
    SplitBatch,
    GatherActive,
    PackRows,
    MoveStorage,
    UseForm,
    Shards,
)


def apply_all(transforms: Iterable[Transform], layout: Layout = CANONICAL) -> Layout:
    """Return `layout` after a composition."""
    for transform in transforms:
        layout = transform.apply(layout)
    return layout


def class_of(transform: Transform) -> str:
    """Return the class as it is counted; T4 is `T4.finite` or `T4.nonfinite`."""
    if isinstance(transform, (PadSlots, AddDeadRows)):
        return "T4.finite" if transform.is_finite else "T4.nonfinite"
    return transform.transform_class


def transforms_of(case: Case) -> tuple[Transform, ...]:
    """Return the composition of a case.

    Raises:
        CaseError: A name is unknown or appears twice, or a value is wrong.
    """
    names = [data.name for data in case.transforms]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise CaseError(f"Transform {twice[0]} appears twice: give one.")
    return tuple(transform_from_data(data) for data in case.transforms)


def transform_from_data(data: TransformData) -> Transform:
    """Return the transform of its data.

    Raises:
        CaseError: The name is unknown, or a value is missing, unknown or wrong.
    """
    for kind in TRANSFORMS:
        if kind.__name__ == data.name:
            return _build(kind, data)
    known = ", ".join(kind.__name__ for kind in TRANSFORMS)
    raise CaseError(f"Transform {data.name!r} is unknown: there are {known}.")


def transform_to_data(transform: Transform) -> TransformData:
    """Return the data of a transform, all fields written out but for later ones that say nothing.

    A field that a transform was given later (`base.LATER`) is left out at its default, so that the
    ids of older fixtures stay.
    """
    values = attrs.asdict(
        transform,  # type: ignore[arg-type]  # every transform is an attrs record
        filter=lambda field, value: not (field.metadata.get(LATER) and value == field.default),
    )
    return TransformData(name=type(transform).__name__, values=values)


def _build(kind: type[Transform], data: TransformData) -> Transform:
    fields = {field.name: field.type for field in attrs.fields(kind)}  # type: ignore[arg-type]
    for name, value in data.values.items():
        if name not in fields:
            raise CaseError(f"Transform {data.name} has no {name!r}: it has {', '.join(fields)}.")
        wanted = {int: int, bool: bool}.get(fields[name], tuple if name == "cuts" else str)
        if type(value) is not wanted:
            raise CaseError(f"Transform {data.name}: {name}={value!r} is no {wanted.__name__}.")
    try:
        return kind(**data.values)
    except ValueError as error:
        raise CaseError(f"Transform {data.name}: {error.args[0]}.") from error
