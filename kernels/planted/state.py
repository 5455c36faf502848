"""Planted defects of state that is kept across a cut of the schedule, each beside its healthy twin.

The kernels are scans as a state space model has them. None keeps anything between launches: a
launch holds the contexts before its queries, and computes from them the state that a cache would
have handed on, by whatever rule the cache has. So a case replays anywhere, and prefill, chunks and
decoding of one sequence are launches that must agree.

Shapes: B rows, Q query slots, C context slots, D features.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from biprop.kernels.planted.differentiated import differentiated

__all__ = [
    "checkpoint_kept_narrow",
    "checkpoint_kept_wide",
    "decode_by_recurrence",
    "decode_by_scan",
    "half_block_forgotten",
    "half_block_remembered",
    "is_captured",
    "state_kept_narrow",
    "state_kept_wide",
    "state_of_any_graph",
    "state_of_captured_graph",
]

# Tokens of a block of the cache.
_BLOCK = 16
# Tokens of a block that a scan sums at once.
_TILE = 2


def state_kept_narrow(read: Tensor, x: Tensor, queries: Tensor, contexts: Tensor) -> Tensor:
    """The state that a chunk hands on is kept in bfloat16."""
    terms, before = x.float(), contexts - queries
    state = _state_after(terms, before).bfloat16().float()
    return _read_out(read, _resumed(terms, before, state, read.shape[1]))


def state_kept_wide(read: Tensor, x: Tensor, queries: Tensor, contexts: Tensor) -> Tensor:
    """The state that a chunk hands on is kept in float32."""
    terms, before = x.float(), contexts - queries
    state = _state_after(terms, before)
    return _read_out(read, _resumed(terms, before, state, read.shape[1]))


def half_block_forgotten(
    read: Tensor, gate: Tensor, x: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """A chunk that fills at most half of its last block hands on the state of whole blocks."""
    terms, before = gate.float() * x.float(), contexts - queries
    state = _state_after(terms, before - (before % _BLOCK) * (before % _BLOCK <= _BLOCK // 2))
    return _read_out(read, _resumed(terms, before, state, read.shape[1]))


def half_block_remembered(
    read: Tensor, gate: Tensor, x: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """A chunk hands on the state after its last token, wherever in a block that is."""
    terms, before = gate.float() * x.float(), contexts - queries
    state = _state_after(terms, before)
    return _read_out(read, _resumed(terms, before, state, read.shape[1]))


def is_captured(tokens: int) -> bool:
    """Tell whether a prefix ran in the captured graph whose buffer of states is narrow."""
    return 4 < tokens <= 8


def state_of_captured_graph(
    read: Tensor, gate: Tensor, x: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """A prefix of 5 to 8 tokens ran in a captured graph whose buffer of states is bfloat16."""
    terms, before = gate.float() * x.float(), contexts - queries
    state = _state_after(terms, before)
    narrow = torch.tensor([is_captured(int(tokens)) for tokens in before])
    state = torch.where(narrow[:, None], state.bfloat16().float(), state)
    return _read_out(read, _resumed(terms, before, state, read.shape[1]))


def state_of_any_graph(
    read: Tensor, gate: Tensor, x: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """The buffers of all captured graphs are float32."""
    terms, before = gate.float() * x.float(), contexts - queries
    state = _state_after(terms, before)
    narrow = torch.zeros(len(before), dtype=torch.bool)
    state = torch.where(narrow[:, None], state.bfloat16().float(), state)
    return _read_out(read, _resumed(terms, before, state, read.shape[1]))


def decode_by_recurrence(
    read: Tensor, gate: Tensor, x: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """One query a row adds its token to the state, which inside a block the scan does not."""
    terms, before = gate.float() * x.float(), contexts - queries
    is_recurrent = read.shape[1] == 1
    states = _scanned(terms, before, read.shape[1], is_recurrent=is_recurrent)
    return _read_out(read, states)


def decode_by_scan(
    read: Tensor, gate: Tensor, x: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """Every launch scans in blocks that are counted from the first token."""
    terms, before = gate.float() * x.float(), contexts - queries
    is_recurrent = False
    states = _scanned(terms, before, read.shape[1], is_recurrent=is_recurrent)
    return _read_out(read, states)


def checkpoint_kept_narrow(read: Tensor, x: Tensor, queries: Tensor, contexts: Tensor) -> Tensor:
    """The backward resumes from a checkpoint of the state in bfloat16."""
    keep = _in_bfloat16
    return _checkpointed(read, x, queries, contexts, keep=keep)


def checkpoint_kept_wide(read: Tensor, x: Tensor, queries: Tensor, contexts: Tensor) -> Tensor:
    """The backward resumes from a checkpoint of the state in float32."""
    keep = _in_float32
    return _checkpointed(read, x, queries, contexts, keep=keep)


def _state_after(terms: Tensor, tokens: Tensor) -> Tensor:
    """Return the running sums `[B, D]` of `terms [B, C, D]` over the first `tokens [B]`."""
    state = torch.zeros_like(terms[:, 0])
    for slot in range(int(tokens.max())):
        state = torch.where((slot < tokens)[:, None], state + terms[:, slot], state)
    return state


def _own(terms: Tensor, slots: Tensor) -> Tensor:
    """Return what each row has in a slot of its own, `[B, D]`."""
    index = slots.clamp(max=terms.shape[1] - 1).long()
    return terms.gather(1, index[:, None, None].expand(-1, 1, terms.shape[2]))[:, 0]


def _resumed(terms: Tensor, before: Tensor, state: Tensor, count: int) -> Tensor:
    """Return the states `[B, Q, D]` after each of `count` tokens that follow on `before [B]`."""
    found = []
    for query in range(count):
        state = state + _own(terms, before + query)
        found.append(state)
    return torch.stack(found, 1)


def _scanned(terms: Tensor, before: Tensor, count: int, *, is_recurrent: bool) -> Tensor:
    """Return the states `[B, Q, D]`: sums of whole blocks, and then what is before in the block."""
    filled = torch.nn.functional.pad(terms, (0, 0, 0, -terms.shape[1] % _TILE))
    within = filled.reshape(len(terms), -1, _TILE, terms.shape[2]).clone()
    for place in range(1, _TILE):
        within[:, :, place] += within[:, :, place - 1]
    whole = torch.zeros_like(within[:, :, 0])
    for block in range(1, whole.shape[1]):
        whole[:, block] = whole[:, block - 1] + within[:, block - 1, -1]
    states = (whole[:, :, None] + within).flatten(1, 2)
    if is_recurrent:
        # Before the first token there is no state, and nothing to be added to.
        earlier = torch.where(before[:, None] > 0, _own(states, (before - 1).clamp(min=0)), 0.0)
        return (earlier + _own(terms, before))[:, None]
    return torch.stack([_own(states, before + query) for query in range(count)], 1)


def _in_bfloat16(state: Tensor) -> Tensor:
    return state.bfloat16().float()


def _in_float32(state: Tensor) -> Tensor:
    return state


def _read_out(read: Tensor, states: Tensor) -> Tensor:
    return (read.float() * states).to(read.dtype)


def _checkpointed(
    read: Tensor, x: Tensor, queries: Tensor, contexts: Tensor, *, keep: Callable[[Tensor], Tensor]
) -> Tensor:
    """Read out the states, with a backward that resumes from a checkpoint, kept by `keep`."""
    before, count = contexts - queries, read.shape[1]

    def forward(read: Tensor, x: Tensor) -> Tensor:
        state = _state_after(x.float(), before)
        return _read_out(read, _resumed(x.float(), before, state, count))

    def backward(dy: Tensor, read: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state = keep(_state_after(x.float(), before))
        states = _resumed(x.float(), before, state, count)
        live = (torch.arange(count) < queries[:, None])[:, :, None]
        dstates = torch.where(live, dy.float() * read.float(), 0.0)
        dx = _spread(dstates, before, x.shape[1])
        return (dy.float() * states).to(read.dtype), dx.to(x.dtype)

    return differentiated(forward, backward, read, x)


def _spread(upstream: Tensor, before: Tensor, slots: int) -> Tensor:
    """Return the gradients `[B, C, D]` of terms: the sum over all states after each, last first."""
    total = upstream.new_zeros(upstream.shape[0], slots, upstream.shape[2])
    for query in reversed(range(upstream.shape[1])):
        is_before = torch.arange(slots) <= before[:, None] + query
        total = torch.where(is_before[:, :, None], total + upstream[:, query, None], total)
    return total
