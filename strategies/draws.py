"""Hypothesis behind the `Draw` protocol: every choice is its own, and shrinks natively."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from hypothesis import strategies as st

__all__ = ["HypothesisDraw"]

Option = TypeVar("Option")


class HypothesisDraw:
    """Choices of Hypothesis; whole numbers shrink to the lower bound, options to the first."""

    def __init__(self, draw: Callable[["st.SearchStrategy[int]"], int]) -> None:
        """Take the `draw` of a composite strategy, or that of `strategies.data()`."""
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """Draw a whole number of `low..high`; it shrinks to `low`."""
        return low + self._draw(_upto(high - low))

    def choice(self, options: Sequence[Option]) -> Option:
        """Draw one of `options`; it shrinks to the first."""
        # By index: equal options are weights, which sampling from the options themselves would keep
        # too, but options need not be hashable, and an index makes strategies that are shared.
        return options[self._draw(_upto(len(options) - 1))]


@lru_cache(maxsize=4096)
def _upto(high: int) -> "st.SearchStrategy[int]":
    return st.integers(min_value=0, max_value=high)
