"""Sizes of free dimensions that a probe asks for, within the restrictions of an operator."""

from collections.abc import Collection, Iterable, Mapping

import attrs

from biprop.signature import Restrictions, Signature

__all__ = ["Sizes"]

# Sizes that are tried for a dimension that nothing is asked of, and steps of the whole search.
_SIZES_TRIED = 64
# Libraries leave their tensor cores to sizes that fill a tile, so a dimension has one where it may.
_SIZES_ROOMY = (64, 32, 16, 128)
_STEPS_MAX = 20_000


@attrs.frozen(kw_only=True)
class Sizes:
    """A signature, and what its free dimensions may be.

    Attributes:
        signature: Of the kernel.
        restrictions: Of its free dimensions.
    """

    signature: Signature
    restrictions: Restrictions

    def choose(
        self, wanted: Mapping[str, Iterable[int]], *, roomy: Collection[str] = ()
    ) -> dict[str, int] | None:
        """Return the first possible of the sizes wanted, and the least of all others.

        Args:
            wanted: By dimension, the best first.
            roomy: Dimensions that shall fill a tile, where they may.

        Returns:
            None where none of the sizes wanted is possible.

        Raises:
            RestrictionError: The restrictions do not fit the signature.
        """
        allowed = self.restrictions.check_against(self.signature)
        # Those that are wanted come first, so that the others give way to them.
        choices = {name: _least(allowed, name) for name in self.signature.free_dims}
        choices |= {name: (*_SIZES_ROOMY, *choices[name]) for name in roomy if name in choices}
        choices |= wanted
        names = sorted(choices, key=lambda name: (name not in wanted, name not in roomy))
        steps = iter(range(_STEPS_MAX))

        def search(sizes: dict[str, int]) -> dict[str, int] | None:
            if len(sizes) == len(names):
                return sizes
            name = names[len(sizes)]
            for size in choices[name]:
                if next(steps, None) is None:
                    return None
                tried = {**sizes, name: size}
                if allowed.admits(tried) and (found := search(tried)) is not None:
                    return found
            return None

        return search({})


def _least(restrictions: Restrictions, name: str) -> Iterable[int]:
    domain = restrictions.domain(name)
    return domain.choices or range(domain.low, min(domain.high, domain.low + _SIZES_TRIED) + 1)
