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

__all__ = ["TokenPool", "rank_of", "token_pool"]


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
        shared_prefix: Tokens before this index take the values of the first sequence.
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
    shared_prefix: int = 0

    @property
    def watched_token_count(self) -> int:
        """Tokens of watched sequences, which are the first ones."""
        return self.start[self.watched_count]

    @cached_property
    def loud(self) -> Tensor:
        """bool: whether the neighbours' loudness applies: neighbours past the shared prefix."""
        loud = self.token >= self.shared_prefix
        loud[: self.watched_token_count] = False
        return loud

    @cached_property
    def compared(self) -> Tensor:
        """int64: the pool index of each watched active token, in logical order."""
        active = self.active[: self.watched_token_count].numpy()
        return torch.from_numpy(active.nonzero()[0])

    @cached_property
    def rank(self) -> Tensor:
        """int64 `[n]`: the place of each token in `compared`, -1 where it is not compared."""
        return rank_of(self.compared, len(self.sequence_of))

    @cached_property
    def compared_ids(self) -> Tensor:
        """int32: the id of the sequence of each compared token."""
        return self.sequence_id[self.compared]

    @cached_property
    def compared_tokens(self) -> Tensor:
        """int32: the index in its sequence of each compared token."""
        return self.token[self.compared]

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


def rank_of(places: Tensor, count: int) -> Tensor:
    """Return int64 `[count]`: where each index stands in `places`, -1 where it does not."""
    rank = np.full(count, -1)
    rank[places.numpy()] = np.arange(len(places))
    return torch.from_numpy(rank)


def token_pool(case: Case, layout: Layout) -> TokenPool:
    """Return the pool of a case under a layout; only the layout's neighbours matter."""
    sequences = (*case.sequences, *neighbours_of(case, layout.neighbours))
    ids, lengths, prompts, firsts = np.array(
        [(item.id, item.length, item.prompt_length, item.position_start) for item in sequences],
        dtype=np.int64,
    ).T
    ends = lengths.cumsum()
    start, watched_count = (0, *ends.tolist()), len(case.sequences)
    # numpy takes a fraction of the time that torch takes for a few thousand tokens.
    sequence_of = np.arange(len(sequences)).repeat(lengths)
    token = np.arange(start[-1]) - (ends - lengths).repeat(lengths)
    token_32 = token.astype(np.int32)
    own_id, own_length = (column.astype(np.int32).repeat(lengths) for column in (ids, lengths))
    value_id, value_length = own_id, own_length
    if case.shared_prefix:
        # The length goes with the values: pairs over tokens stay below it.
        shared = token < case.shared_prefix
        value_id = np.where(shared, np.int32(case.sequences[0].id), own_id)
        value_length = np.where(shared, np.int32(case.sequences[0].length), own_length)
    own_id_there, token_there = torch.from_numpy(own_id), torch.from_numpy(token_32)
    return TokenPool(
        sequences=sequences,
        watched_count=watched_count,
        tokens=Tokens(
            sequence_id=torch.from_numpy(value_id),
            token=token_there,
            length=torch.from_numpy(value_length),
        ),
        start=start,
        sequence_of=torch.from_numpy(sequence_of),
        sequence_id=own_id_there,
        token=token_there,
        position=torch.from_numpy(token + firsts.repeat(lengths) if firsts.any() else token),
        active=torch.from_numpy(token >= prompts.repeat(lengths)),
        shared_prefix=case.shared_prefix,
    )
