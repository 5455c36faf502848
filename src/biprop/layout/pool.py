"""The token pool: every logical token of a case once, in logical order.

Index maps (`biprop.layout.launches`) point into a pool; the values of its tokens are expanded by
`biprop.execution.arguments`. Watched sequences come first, so that the pool without neighbours is a
prefix of every other pool of the case.
"""

from functools import cached_property

import attrs
import numpy as np
import torch
from torch import Tensor

from biprop.case import Case
from biprop.data.expand import Tokens
from biprop.layout.neighbours import neighbours_of
from biprop.layout.records import Layout
from biprop.sequence import LogicalSequence

__all__ = ["TokenPool", "token_pool"]


@attrs.frozen(kw_only=True, eq=False)
class TokenPool:
    """Every logical token of a case and of its neighbours.

    All tensors lie on the CPU and have one element a token, `[n]`.

    Attributes:
        sequences: Watched sequences, then neighbours.
        watched_count: How many of them are watched.
        tokens: Whose values each token takes: its own, or those of the shared prefix.
        start: First token of each sequence, then the token count.
        sequence_of: int64, index into `sequences`.
        sequence_id: int32, id of the token's own sequence.
        token: int32, index in its sequence.
        position: int64.
        active: bool, whether the contract governs its outputs.
        watched: bool.
        loud: bool, whether the neighbours' loudness applies: neighbours past the shared prefix.
    """

    sequences: tuple[LogicalSequence, ...]
    watched_count: int
    tokens: Tokens
    start: tuple[int, ...]
    sequence_of: Tensor
    sequence_id: Tensor
    token: Tensor
    position: Tensor
    active: Tensor
    watched: Tensor
    loud: Tensor

    @property
    def watched_token_count(self) -> int:
        """Tokens of watched sequences, which are the first ones."""
        return self.start[self.watched_count]

    @cached_property
    def compared(self) -> Tensor:
        """int64: the pool index of each watched active token, in logical order."""
        return (self.active & self.watched).nonzero()[:, 0]

    @cached_property
    def rank(self) -> Tensor:
        """int64 `[n]`: the place of each token in `compared`, -1 where it is not compared."""
        rank = torch.full_like(self.sequence_of, -1)
        rank[self.compared] = torch.arange(len(self.compared))
        return rank

    @cached_property
    def words(self) -> Tensor:
        """int64 `[n]`: sequence id and token in one word."""
        return (self.sequence_id.long() << 32) + self.token

    @cached_property
    def starts(self) -> Tensor:
        """int64: `start` as a tensor."""
        return torch.tensor(self.start)

    @cached_property
    def last(self) -> Tensor:
        """int64: the pool index of the last token of each sequence."""
        return self.starts[1:] - 1


def token_pool(case: Case, layout: Layout) -> TokenPool:
    """Return the pool of a case under a layout; only the layout's neighbours matter."""
    sequences = (*case.sequences, *neighbours_of(case, layout.neighbours))
    columns = np.array(
        [(item.id, item.length, item.prompt_length, item.position_start) for item in sequences],
        dtype=np.int64,
    ).T
    lengths = columns[1]
    ends = lengths.cumsum()

    def repeated(numbers: "np.ndarray[tuple[int, ...], np.dtype[np.signedinteger]]") -> Tensor:
        # numpy takes a fraction of the time that torch takes for a few thousand tokens.
        return torch.from_numpy(numbers.repeat(lengths))

    count, watched_count = int(ends[-1]), len(case.sequences)
    token = torch.arange(count).sub_(repeated(ends - lengths))
    own_id, own_length = (repeated(column.astype(np.int32)) for column in columns[:2])
    watched = torch.arange(count) < int(ends[watched_count - 1])
    token_32 = token.to(torch.int32)
    value_id, value_length = own_id, own_length
    if case.shared_prefix:
        # The length goes with the values: pairs over tokens stay below it.
        shared = token < case.shared_prefix
        value_id = own_id.masked_fill(shared, case.sequences[0].id)
        value_length = own_length.masked_fill(shared, case.sequences[0].length)
    return TokenPool(
        sequences=sequences,
        watched_count=watched_count,
        tokens=Tokens(sequence_id=value_id, token=token_32, length=value_length),
        start=(0, *ends.tolist()),
        sequence_of=repeated(np.arange(len(sequences))),
        sequence_id=own_id,
        token=token_32,
        position=repeated(columns[3]).add_(token),
        active=token >= repeated(columns[2]),
        watched=watched,
        loud=(token >= case.shared_prefix) & ~watched,
    )
