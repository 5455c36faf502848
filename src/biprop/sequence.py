"""Logical sequences: what decides their outputs apart from the batch they lie in.

A sequence knows nothing of rows, slots or launches (`biprop.layout`) and holds no values: those are
recipes (`biprop.data`), keyed by the sequence's `id`.
"""

import attrs

from biprop.errors import CaseError

__all__ = ["NEIGHBOUR_ID_FIRST", "LogicalSequence"]

# Neighbours never share an id with a watched sequence, so removing one changes no other value.
NEIGHBOUR_ID_FIRST = 1024


@attrs.frozen(kw_only=True)
class LogicalSequence:
    """One sequence of a case.

    Attributes:
        id: Key of its data; unique within a case.
        length: Tokens, prompt included.
        prompt_length: Leading tokens that are computed but not active.
        position_start: Position of its first token.
    """

    id: int
    length: int
    prompt_length: int = 0
    position_start: int = 0

    def __attrs_post_init__(self) -> None:
        """Refuse a sequence that has no active token."""
        if self.id < 0 or self.position_start < 0:
            raise CaseError(
                f"Sequence id={self.id} with position_start={self.position_start}: "
                "both must be 0 or more."
            )
        if not 0 <= self.prompt_length < self.length:
            raise CaseError(
                f"Sequence id={self.id} has length={self.length} and "
                f"prompt_length={self.prompt_length}: at least one token must follow the prompt."
            )

    @property
    def active_count(self) -> int:
        """Tokens that are compared."""
        return self.length - self.prompt_length
