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
    """Collects the new behaviours of one epoch.

    Attributes:
        texts: Of the first ones.
        found: All of them, as words of 32 bits.
    """

    def __init__(self, known: frozenset[int]) -> None:
        """Begin with what the cell has shown before."""
        self._known = known
        self.texts: list[str] = []
        self.found: set[int] = set()

    def add(self, texts: Iterator[str]) -> None:
        """Add those of a case."""
        for text in texts:
            word = hash_words(text)
            if word in self._known or word in self.found:
                continue
            if len(self._known) + len(self.found) >= BEHAVIOURS_MAX:
                return
            self.found.add(word)
            if len(self.texts) < _TEXTS_MAX:
                self.texts.append(text)
