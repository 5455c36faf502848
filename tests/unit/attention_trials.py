"""Trials of the attention kernels, shared by their unit tests: sequences, launches and results.

No test stands here. Whole cases with transforms are built by biprop itself and run by tests/props.
"""

from collections.abc import Callable, Sequence

import attrs
import pytest
import torch
from tests.unit.kernel_trials import DEVICE, all_same, backend_of, normal, tensors_of, wide
from torch import Tensor

from biprop.kernels.attention import OPERATOR

__all__ = [
    "OPERATOR",
    "Launch",
    "Lay",
    "Part",
    "Results",
    "Tokens",
    "arguments_of",
    "attend",
    "drawn",
    "each_form",
    "each_kernel",
    "offsets_of",
    "packed",
    "padded",
    "revealing",
    "whole",
]


@attrs.frozen(kw_only=True, eq=False)
class Tokens:
    """What one sequence brings, by token.

    Attributes:
        q: `[S, HQ, D]`.
        k: `[S, HK, D]`.
        v: `[S, HK, D]`.
        dout: `[S, HQ, D]`.
        dlse: float32 `[S, HQ]`.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    dlse: Tensor


@attrs.frozen(kw_only=True)
class Part:
    """Queries of one sequence in one launch, with all contexts before the last of them.

    Attributes:
        sequence: Its index; the part of a sequence without tokens may name any.
        start: First query.
        stop: Past the last query, and past the last context.
    """

    sequence: int = 0
    start: int = 0
    stop: int = 0


@attrs.frozen(kw_only=True)
class Launch:
    """Where the tokens of parts lie.

    Attributes:
        parts: One a segment or row.
        form: `packed` or `padded`.
        query_slots: Slots of the queries of each part, over all rows.
        context_slots: The same for its contexts.
        query_shape: Of the slots of queries, `(TQ,)` or `(B, Q)`.
        context_shape: Of those of contexts.
    """

    parts: tuple[Part, ...]
    form: str
    query_slots: tuple[tuple[int, ...], ...]
    context_slots: tuple[tuple[int, ...], ...]
    query_shape: tuple[int, ...]
    context_shape: tuple[int, ...]


@attrs.frozen(kw_only=True, eq=False)
class Results:
    """What a part gave, by token: queries for the first three, contexts for the others."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor

    def same_as(self, canonical: "Results", part: Part, *, first_key: int = 0) -> list[str]:
        """Name what differs from the whole sequence alone; contexts count from `first_key`."""
        queries, contexts = slice(part.start, part.stop), slice(first_key, part.stop)
        pairs = {
            name: (
                getattr(self, name),
                getattr(canonical, name)[queries],
            )
            for name in ("out", "lse", "dq")
        } | {
            name: (getattr(self, name)[first_key:], getattr(canonical, name)[contexts])
            for name in ("dk", "dv")
        }
        return [name for name, (left, right) in pairs.items() if not all_same(left, right)]


def drawn(
    length: int, *, heads: tuple[int, int], width: int, dtype: torch.dtype, seed: int = 0
) -> Tokens:
    """Draw unit normal numbers for one sequence; `heads` are HQ and HK."""
    sizes = ((heads[0], width), (heads[1], width), (heads[1], width), (heads[0], width))
    q, k, v, dout = (
        normal(length, *size, dtype=dtype, seed=seed * 5 + index)
        for index, size in enumerate(sizes)
    )
    dlse = normal(length, heads[0], dtype=torch.float32, seed=seed * 5 + 4)
    return Tokens(q=q, k=k, v=v, dout=dout, dlse=dlse)


def revealing(
    length: int,
    *,
    heads: tuple[int, int],
    width: int,
    dtype: torch.dtype,
    seed: int = 0,
    first: int = 0,
) -> Tokens:
    """Draw a sequence whose sums over tokens show any change of order.

    What is summed spans 20 binades and comes in pairs of both signs, a token apart, and its weights
    are nearly the same in a pair: so a sum is mostly rounding. With `first=1` the first token has
    no partner, so that the edge of a tile of even size parts a pair.
    """
    tokens = drawn(length, heads=heads, width=width, dtype=dtype, seed=seed)
    place = torch.arange(length, device=DEVICE) + first
    pair = (place // 2).clamp(max=length - 1)
    signs = (1 - 2 * (place % 2)).to(dtype)[:, None, None]

    def signed(values: Tensor, offset: int) -> Tensor:
        return wide(*values.shape, dtype=dtype, seed=seed + offset)[pair] * signs

    return attrs.evolve(
        tokens,
        q=tokens.q[pair] / 16,
        k=tokens.k[pair],
        v=signed(tokens.v, 1000),
        dout=signed(tokens.dout, 2000),
        # Without it in one head, what all keys of a query share is rounding too.
        dlse=tokens.dlse * (torch.arange(heads[0], device=DEVICE) > 0),
    )


def whole(sequences: Sequence[Tokens]) -> tuple[Part, ...]:
    """Return every sequence with all its tokens."""
    return tuple(Part(sequence=index, stop=len(tokens.q)) for index, tokens in enumerate(sequences))


def packed(parts: Sequence[Part], *, dead: tuple[int, int] = (0, 0)) -> Launch:
    """Lay parts one after the other, and dead queries and contexts after them."""
    counts = [part.stop - part.start for part in parts], [part.stop for part in parts]
    ends = [[sum(side[:index]) for index in range(len(side) + 1)] for side in counts]
    query_slots, context_slots = (
        tuple(tuple(range(side[index], side[index + 1])) for index in range(len(parts)))
        for side in ends
    )
    return Launch(
        parts=tuple(parts),
        form="packed",
        query_slots=query_slots,
        context_slots=context_slots,
        query_shape=(ends[0][-1] + dead[0],),
        context_shape=(ends[1][-1] + dead[1],),
    )


def padded(parts: Sequence[Part], *, before: tuple[int, int] = (0, 0), after: int = 0) -> Launch:
    """Give each part a row, with dead queries and contexts before, and after all but the longest.

    Args:
        parts: One a row.
        before: Dead slots before the queries and before the contexts of each row.
        after: Dead slots after those of the longest row.
    """
    sizes = (
        max(part.stop - part.start for part in parts) + before[0] + after,
        max(part.stop for part in parts) + before[1] + after,
    )
    query_slots = tuple(
        tuple(row * sizes[0] + before[0] + index for index in range(part.stop - part.start))
        for row, part in enumerate(parts)
    )
    context_slots = tuple(
        tuple(row * sizes[1] + before[1] + index for index in range(part.stop))
        for row, part in enumerate(parts)
    )
    return Launch(
        parts=tuple(parts),
        form="padded",
        query_slots=query_slots,
        context_slots=context_slots,
        query_shape=(len(parts), sizes[0]),
        context_shape=(len(parts), sizes[1]),
    )


def offsets_of(counts: Sequence[int]) -> Tensor:
    """Return cumulative counts, int32."""
    ends = [sum(counts[:index]) for index in range(len(counts) + 1)]
    return torch.tensor(ends, dtype=torch.int32, device=DEVICE)


def arguments_of(
    launch: Launch, sequences: Sequence[Tokens], *, fill: float = 0.0
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return `dout` and `dlse`, then `q`, `k` and `v`, then offsets or masks."""

    def placed(name: str, slots: tuple[tuple[int, ...], ...], shape: tuple[int, ...]) -> Tensor:
        like = getattr(sequences[0], name)
        values = torch.full((*shape, *like.shape[1:]), fill, dtype=like.dtype, device=DEVICE)
        flat = values.view(-1, *like.shape[1:])
        for part, places in zip(launch.parts, slots, strict=True):
            tokens = getattr(sequences[part.sequence], name)[part.stop - len(places) : part.stop]
            flat[torch.tensor(places, dtype=torch.int64, device=DEVICE)] = tokens
        return values

    queries, contexts = launch.query_slots, launch.context_slots
    upstream = tuple(placed(name, queries, launch.query_shape) for name in ("dout", "dlse"))
    inputs = (
        placed("q", queries, launch.query_shape),
        placed("k", contexts, launch.context_shape),
        placed("v", contexts, launch.context_shape),
    )
    if launch.form == "packed":
        lengths = ([len(places) for places in side] for side in (queries, contexts))
        return upstream, inputs, tuple(offsets_of(side) for side in lengths)
    shapes = (launch.query_shape, launch.context_shape)
    masks = [torch.zeros(shape, dtype=torch.bool, device=DEVICE) for shape in shapes]
    for mask, side in zip(masks, (queries, contexts), strict=True):
        live = [slot for places in side for slot in places]
        mask.view(-1)[torch.tensor(live, dtype=torch.int64, device=DEVICE)] = True
    return upstream, inputs, tuple(masks)


def attend(
    backend: str, launch: Launch, sequences: Sequence[Tokens], *, fill: float = 0.0
) -> list[Results]:
    """Run forward and backward once, and read back what each part gave."""
    kernel = backend_of(OPERATOR, backend, form=launch.form)
    assert kernel.backward is not None
    upstream, inputs, ends = arguments_of(launch, sequences, fill=fill)
    out, lse = tensors_of(kernel.forward(*inputs, *ends))
    gradients = tensors_of(kernel.backward(*upstream, *inputs, out, lse, *ends))
    axes = len(launch.query_shape)
    flat = [values.flatten(0, axes - 1) for values in (out, lse, *gradients)]
    return [
        Results(
            **{name: side[list(queries)] for name, side in zip(("out", "lse", "dq"), flat[:3],
                strict=True)},
            **{name: side[list(contexts)] for name, side in zip(("dk", "dv"), flat[3:],
                strict=True)},
        )
        for queries, contexts in zip(launch.query_slots, launch.context_slots, strict=True)
    ]  # fmt: skip


Lay = Callable[[Sequence[Part]], Launch]

each_form = pytest.mark.parametrize("lay", [packed, padded], ids=["packed", "padded"])

# In the interpreter a launch costs as much as a hundred of the torch backend: not all pairs there.
each_kernel = pytest.mark.parametrize(
    ("backend", "dtype", "lay"),
    [
        ("torch", torch.float32, packed),
        ("torch", torch.float32, padded),
        ("torch", torch.bfloat16, packed),
        ("torch", torch.bfloat16, padded),
        ("triton", torch.float32, packed),
        ("triton", torch.bfloat16, padded),
    ],
    ids=lambda value: getattr(value, "__name__", str(value).removeprefix("torch.")),
)
