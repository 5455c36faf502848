"""Sizes of real models: spaces whose every case has one of them.

A space that is drawn from freely reaches the hidden size or the vocabulary of a model only by luck,
and never under limits that keep cases cheap. So a search of a nightly lane on a device takes turns:
every so many examples (`Limits.real_every`) come from a space that is held at one such size.
"""

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from biprop.errors import RestrictionError
from biprop.generation.sizes import smallest_sizes
from biprop.generation.space import Space
from biprop.signature.restrictions import Domain

__all__ = ["CONTEXT", "REAL_DIMS", "RealSize", "held_at", "real_sizes"]

# By the names that signatures use for them: hidden and intermediate sizes, heads, the vocabulary.
REAL_DIMS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "H": (8192, 4096),
        "K": (8192, 4096),
        "N": (8192,),
        "I": (14_336,),
        "D": (128,),
        "V": (151_936,),
    }
)
CONTEXT = 4096
_LENGTH = "length"
# A few long sequences: what many of them would show, many short ones show for less.
_WATCHED_MAX = 2
_SEQUENCES_MAX = 3
_WORK_MAX = 1 << 33


@attrs.frozen(kw_only=True)
class RealSize:
    """One size to be held.

    Attributes:
        name: Of a free dimension, or `length` for the tokens of a sequence.
        size: Exactly this for a dimension, at least this for a sequence.
    """

    name: str
    size: int


def real_sizes(space: Space) -> tuple[RealSize, ...]:
    """Return the real sizes that cases of a space may have; empty where its lane wants none."""
    limits, signature = space.limits, space.signature
    if not limits.real_every:
        return ()
    found = [
        RealSize(name=name, size=size)
        for name in signature.free_dims
        for size in REAL_DIMS.get(name, ())
    ]
    if signature.sequence_wise and limits.length_max >= CONTEXT:
        found.append(RealSize(name=_LENGTH, size=CONTEXT))
    return tuple(real for real in found if _is_possible(space, real))


def held_at(space: Space, real: RealSize) -> Space:
    """Return a space of which every case has a real size; other sizes shrink to make room."""
    if real.name == _LENGTH:
        limits = attrs.evolve(
            space.limits,
            length_min=real.size,
            watched_max=_WATCHED_MAX,
            sequences_max=_SEQUENCES_MAX,
            # Pairs of tokens grow with the square of a length, and leave no room for wide heads.
            context_work_max=max(space.limits.context_work_max, _WORK_MAX),
        )
        return attrs.evolve(space, limits=limits)
    others = tuple(item for item in space.restrictions.domains if item.name != real.name)
    only = Domain(name=real.name, low=real.size, high=real.size)
    restrictions = attrs.evolve(space.restrictions, domains=(*others, only))
    return attrs.evolve(space, restrictions=restrictions)


def _is_possible(space: Space, real: RealSize) -> bool:
    """Return whether the restrictions leave sizes for the other dimensions too."""
    if real.name == _LENGTH:
        return True
    if not space.restrictions.domain(real.name).admits(real.size):
        return False
    restrictions = held_at(space, real).restrictions
    try:
        smallest_sizes(space.signature.free_dims, restrictions.check_against(space.signature))
    except RestrictionError:
        return False
    return True
