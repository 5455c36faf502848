"""The one question that the generator asks: which of these?

Behind it stand three sources of choices: `RandomDraw` here, and the two of `biprop.strategies`,
where Hypothesis draws either one seed or every choice. What is drawn says
`biprop.generation.generator`.
"""

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ["Draw", "RandomDraw"]

Option = TypeVar("Option")


class Draw(Protocol):
    """A source of choices; the same choices give the same case."""

    def integer(self, low: int, high: int) -> int:
        """Return a whole number of `low..high`, both included; `low` is the simplest."""

    def choice(self, options: Sequence[Option]) -> Option:
        """Return one of `options`, the simplest first; repeats are weights."""


class RandomDraw:
    """Choices of a seeded random generator."""

    def __init__(self, seed: int) -> None:
        """Start at `seed`, any whole number."""
        # No cryptography: the same seed must give the same case under every Python.
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """Return a whole number of `low..high`, each equally often."""
        return self._random.randint(low, high)

    def choice(self, options: Sequence[Option]) -> Option:
        """Return one of `options`, each equally often."""
        return options[int(self._random.random() * len(options))]
