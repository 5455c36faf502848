"""The behaviours of a cell: which are known, and which are new.

Short texts, counted as words of 32 bits. What is told as one says `biprop.campaign.facts`.
"""

from collections.abc import Iterator

from biprop.data.words import hash_words

__all__ = ["BEHAVIOURS_MAX", "Behaviours"]

# Of one cell; what comes after it is not counted, so that memory stays as it is.
BEHAVIOURS_MAX = 4096
# Texts of one epoch that are kept for people.
_TEXTS_MAX = 64


class Behaviours:
    """Collects the new behaviours of one epoch."""

    def __init__(self, known: frozenset[int]) -> None:
        """Begin with what the cell has shown before."""
        self._known = known
        self._texts: list[str] = []
        self._found: set[int] = set()
        self._later: list[Iterator[str]] = []

    @property
    def texts(self) -> list[str]:
        """Those of the first ones."""
        self.settle()
        return self._texts

    @property
    def found(self) -> set[int]:
        """All of them, as words of 32 bits."""
        self.settle()
        return self._found

    def add(self, texts: Iterator[str]) -> None:
        """Add those of a case."""
        self.add_later(texts)
        self.settle()

    def add_later(self, texts: Iterator[str]) -> None:
        """Add those of a case when there is time for it: they are asked for only at the end."""
        self._later.append(texts)

    def settle(self) -> None:
        """Look at all that was left for later."""
        later, self._later = self._later, []
        for texts in later:
            self._look_at(texts)

    def _look_at(self, texts: Iterator[str]) -> None:
        for text in texts:
            word = hash_words(text)
            if word in self._known or word in self._found:
                continue
            if len(self._known) + len(self._found) >= BEHAVIOURS_MAX:
                return
            self._found.add(word)
            if len(self._texts) < _TEXTS_MAX:
                self._texts.append(text)
