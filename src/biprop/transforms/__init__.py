"""Transforms: records that change what surrounds a sequence, and their composition.

One file a class of DESIGN. A transform sets its own fields of the layout and no others, so the
order of a composition does not matter; what the layout means physically says `biprop.layout`, which
transforms are legal for a signature says `biprop.generation.legal`.
"""

from collections.abc import Iterable
from functools import cache, lru_cache

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
_BY_NAME = {kind.__name__: kind for kind in TRANSFORMS}
# The same few transforms are read from their data again and again, by name and values as text.
_READ: dict[tuple[str, str], Transform] = {}
_KNOWN_MAX = 4096


def apply_all(transforms: Iterable[Transform], layout: Layout = CANONICAL) -> Layout:
    """Return `layout` after a composition."""
    return _applied(tuple(transforms), layout)


# A composition is asked for its layout several times an example.
@lru_cache(maxsize=_KNOWN_MAX)
def _applied(transforms: tuple[Transform, ...], layout: Layout) -> Layout:
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
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CaseError(f"Transform {twice} appears twice: give one.")
    return tuple(map(transform_from_data, case.transforms))


def transform_from_data(data: TransformData) -> Transform:
    """Return the transform of its data.

    Raises:
        CaseError: The name is unknown, or a value is missing, unknown or wrong.
    """
    key = (data.name, repr(data.values))
    found = _READ.get(key)
    if found is None:
        kind = _BY_NAME.get(data.name)
        if kind is None:
            known = ", ".join(_BY_NAME)
            raise CaseError(f"Transform {data.name!r} is unknown: there are {known}.")
        if len(_READ) >= _KNOWN_MAX:
            _READ.clear()
        found = _READ[key] = _build(kind, data)
    return found


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
    fields = _wanted(kind)
    for name, value in data.values.items():
        if name not in fields:
            raise CaseError(f"Transform {data.name} has no {name!r}: it has {', '.join(fields)}.")
        if type(value) is not fields[name]:
            wanted = fields[name].__name__
            raise CaseError(f"Transform {data.name}: {name}={value!r} is no {wanted}.")
    try:
        return kind(**data.values)
    except ValueError as error:
        raise CaseError(f"Transform {data.name}: {error.args[0]}.") from error


# Once for each kind: every case is read many times.
@cache
def _wanted(kind: type[Transform]) -> dict[str, type]:
    """Return the type that the data of each field has."""
    return {
        field.name: {int: int, bool: bool}.get(field.type, tuple if field.name == "cuts" else str)
        for field in attrs.fields(kind)  # type: ignore[arg-type]  # every transform is an attrs record
    }
