"""The sweep: boundary sizes in turn, so that a short search meets each of them.

Sizes that are drawn one by one meet a given boundary by chance only, and two of them together
hardly ever. So three of four cases of a search take the size whose turn it is, the number of rows
and every free dimension each in an order of its own. All others are drawn as before
(`biprop.generation.sizes`).
"""

import random
from collections.abc import Sequence
from functools import lru_cache

import attrs

from biprop.data.words import hash_words

__all__ = ["SWEPT_OF", "Sweep", "boundaries", "boundaries_beside"]

# Of so many cases the last is drawn by chance.
SWEPT_OF = 4
# Of so many turns all but the last belong to what a kernel asks about, where it asks at all; and of
# so many of those, all but the last to the very numbers, the last to one beside them.
_OWN_OF = 3
_EXACT_OF = 3
# Of so many cases one has a product of sizes at a boundary, in place of the sizes themselves.
_PRODUCT_OF = 8
# A product below is met by chance.
_PRODUCT_MIN = 16


@attrs.frozen(kw_only=True)
class Sweep:
    """Whose turn it is.

    Attributes:
        seed: Of the search; another seed takes the sizes in another order.
        index: Of the case in the search, from 0.
    """

    seed: int
    index: int = attrs.field(validator=attrs.validators.ge(0))

    @property
    def is_on(self) -> bool:
        """Whether the case takes its sizes from the sweep."""
        return self.index % SWEPT_OF < SWEPT_OF - 1

    def size(
        self,
        axis: str,
        *,
        low: int,
        high: int,
        thresholds: Sequence[int] = (),
        constants: Sequence[int] = (),
    ) -> int | None:
        """Return the size whose turn it is along an axis; None where there is no sweep, or no size.

        Two of three turns belong to `thresholds`, which two differs from axis to axis; of these,
        two of three are thresholds themselves, the others are the numbers beside one. All other
        turns belong to the boundaries that every kernel may have, and to `constants`.

        Args:
            axis: What is swept; each has an order of its own.
            low: Least size.
            high: Greatest size.
            thresholds: Sizes that the kernel itself asks about.
            constants: Sizes that its module mentions.
        """
        if not self.is_on:
            return None
        number, place = divmod(self.index, SWEPT_OF)
        turn = number * (SWEPT_OF - 1) + place
        own, beside, others = _values(low, high, tuple(thresholds), tuple(constants))
        if not own:
            return self._taken(axis, others, turn)
        around, place = divmod(turn, _OWN_OF)
        place = (place + hash_words("turn", axis, self.seed, around)) % _OWN_OF
        if place == _OWN_OF - 1:
            return self._taken(axis, others, around)
        own_turn = around * (_OWN_OF - 1) + place
        around, place = divmod(own_turn, _EXACT_OF)
        if place == _EXACT_OF - 1 and beside:
            return self._taken(axis, beside, around)
        return self._taken(axis, own, around * (_EXACT_OF - 1) + min(place, _EXACT_OF - 2))

    def product(self, thresholds: Sequence[int]) -> int | None:
        """Return the product of sizes whose turn it is; None in most cases, which have none.

        What a kernel asks about may be the elements of a tensor, or all multiplications.
        """
        values = tuple(size for size in thresholds if size >= _PRODUCT_MIN)
        turn, place = divmod(self.index, _PRODUCT_OF)
        return self._taken("product", values, turn) if self.is_on and place == 1 else None

    def _taken(self, axis: str, values: tuple[int, ...], turn: int) -> int | None:
        """Return one of `values` without replacement: all of them come before one comes again."""
        if not values:
            return None
        around, place = divmod(turn, len(values))
        return _shuffled(values, hash_words("sweep", axis, self.seed, len(values), around))[place]


@lru_cache(maxsize=4096)
def _shuffled(values: tuple[int, ...], seed: int) -> tuple[int, ...]:
    order = list(values)
    random.Random(seed).shuffle(order)
    return tuple(order)


@lru_cache(maxsize=4096)
def _values(
    low: int, high: int, thresholds: tuple[int, ...], constants: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    own = tuple(size for size in thresholds if low <= size <= high)
    beside = boundaries_beside(own, low=low, high=high)
    others = set(boundaries(high, low=low, constants=constants)) - {*own, *beside}
    return own, beside, tuple(sorted(others))


def boundaries_beside(sizes: Sequence[int], *, low: int = 1, high: int) -> tuple[int, ...]:
    """Return the numbers beside some sizes that are none of them, ascending."""
    found = {near for size in sizes for near in (size - 1, size + 1)} - set(sizes)
    return tuple(sorted(size for size in found if low <= size <= high))


def boundaries(high: int, *, low: int = 1, constants: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the sizes of `low..high` at a boundary, ascending.

    Boundaries are powers of two, three times a power of two, and `constants`, each with the numbers
    beside it.
    """
    exponents = range(high.bit_length() + 1)
    bases = {factor << exponent for exponent in exponents for factor in (1, 3)}
    bases.update(constants)
    return tuple(
        size
        for size in sorted({*bases, *boundaries_beside(sorted(bases), high=high + 1)})
        if low <= size <= high
    )
