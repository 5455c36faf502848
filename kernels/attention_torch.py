"""Attention on fixed tiles: the torch backend of `biprop.kernels.attention`, forward and backward.

Queries and contexts are copied into zero-filled tiles of `tile_of` positions, counted from position
0 of their sequence, and all products are batches of `lane_count` pairs of such tiles, a shape that
follows D alone. A tile of queries meets the tile of contexts of its own positions first, then the
one before it, down to position 0: so in each step every tile of contexts is met at most once, and
meets the tiles of queries in the order of their positions. Past its own positions no query sees a
key, and before them it sees all: only the first step has a mask.

Shapes: B sequences, N live tokens, T tiles, L lanes (a tile of queries and a head), R rows of a
tile of queries, K rows of a tile of contexts, HQ, HK heads, D features, W padded D.
"""

from collections.abc import Iterator

import attrs
import torch
from torch import Tensor

from biprop.data.transfer import moved, moved_all
from biprop.kernels.tiles import halving_sum

__all__ = [
    "backward_packed",
    "backward_padded",
    "forward_packed",
    "forward_padded",
    "lane_count",
    "tile_of",
]

_TILE = 32
# On a GPU the calls are the cost, and there are fewer steps with longer tiles.
_TILE_GPU = 128
WIDTH_STEP = 16


def forward_packed(
    q: Tensor, k: Tensor, v: Tensor, query_offsets: Tensor, context_offsets: Tensor
) -> tuple[Tensor, Tensor]:
    """Attend; arguments and results as those of `biprop.kernels.attention.reference_packed`."""
    plan = _plan(_segments(query_offsets), _segments(context_offsets), q, k)
    return _forward(plan, q, k, v)


def forward_padded(
    q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor, context_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Attend; arguments and results as those of `biprop.kernels.attention.reference_padded`."""
    flat = tuple(values.flatten(0, 1) for values in (q, k, v))
    plan = _plan(_runs(query_mask), _runs(context_mask), *flat[:2])
    out, lse = _forward(plan, *flat)
    return out.view(q.shape), lse.view(q.shape[:-1])


def backward_packed(
    dout: Tensor,
    dlse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    query_offsets: Tensor,
    context_offsets: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiate.

    Args:
        dout: `[TQ, HQ, D]`, upstream gradient of the dtype of `q`.
        dlse: float32 `[TQ, HQ]`, upstream gradient of `lse`.
        q: As for `forward_packed`.
        k: As for `forward_packed`.
        v: As for `forward_packed`.
        out: As `forward_packed` returned it.
        lse: As `forward_packed` returned it.
        query_offsets: As for `forward_packed`.
        context_offsets: As for `forward_packed`.

    Returns:
        `dq`, `dk` and `dv`, of the shapes and dtypes of `q`, `k` and `v`; zero where no token is.
    """
    plan = _plan(_segments(query_offsets), _segments(context_offsets), q, k)
    return _backward(plan, dout, dlse, q, k, v, out, lse)


def backward_padded(
    dout: Tensor,
    dlse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    query_mask: Tensor,
    context_mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiate; as `backward_packed`, with `[B, Q]` for `[TQ]` and `[B, C]` for `[TC]`."""
    flat = tuple(values.flatten(0, 1) for values in (dout, dlse, q, k, v, out, lse))
    plan = _plan(_runs(query_mask), _runs(context_mask), *flat[2:4])
    dq, dk, dv = _backward(plan, *flat)
    return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


def lane_count(device: torch.device) -> int:
    """Return how many pairs of tiles one product takes, whatever the batch.

    A product of 16 pairs is cheap on a CPU even where one is wanted; a GPU has room for more.
    """
    return 16 if device.type == "cpu" else 256


def tile_of(device: torch.device) -> int:
    """Return the positions of a tile, whatever the batch."""
    return _TILE if device.type == "cpu" else _TILE_GPU


@attrs.frozen(kw_only=True, eq=False)
class _Side:
    """Where the live tokens of each sequence lie, on the CPU.

    Attributes:
        first: int64 `[B]`, slot of its first token, counted over all rows.
        count: int64 `[B]`.
    """

    first: Tensor
    count: Tensor


@attrs.frozen(kw_only=True, eq=False)
class _Tokens:
    """Tokens that lie in tiles.

    Attributes:
        slots: int64 `[N]`, where they lie in the arguments.
        others: int64, the other slots of the arguments.
        tiles: int64 `[N]`, the tile of each token.
        rows: int64 `[N]`, its row there.
        tile_count: Of all sequences.
        tile: Rows of a tile.
    """

    slots: Tensor
    others: Tensor
    tiles: Tensor
    rows: Tensor
    tile_count: int
    tile: int

    @classmethod
    def of(
        cls, slots: Tensor, tiles: Tensor, rows: Tensor, *, tile_count: int, like: Tensor
    ) -> "_Tokens":
        """Make the record from tensors on the CPU, for arguments such as `like`."""
        is_other = torch.ones(len(like), dtype=torch.bool)
        is_other[slots] = False
        slots, others, tiles, rows = moved_all(
            like.device, [slots, is_other.nonzero()[:, 0], tiles, rows]
        )
        return cls(
            slots=slots,
            others=others,
            tiles=tiles,
            rows=rows,
            tile_count=tile_count,
            tile=tile_of(like.device),
        )

    def tiled(self, values_NHD: Tensor, lanes: int) -> Tensor:
        """Copy `[slots, H, D]` into zero-filled float32 tiles `[lanes, R, W]`, H lanes each."""
        head_count, width = values_NHD.shape[1:]
        shape = (lanes, self.tile, -(-width // WIDTH_STEP) * WIDTH_STEP)
        tiles = torch.zeros(shape, dtype=torch.float32, device=values_NHD.device)
        rows = values_NHD.index_select(0, self.slots)
        self._by_token(tiles, head_count)[self.tiles, self.rows, :, :width] = rows.float()
        return tiles

    def untiled(self, tiles: Tensor, like: Tensor, *, fill: float = 0.0) -> Tensor:
        """Copy tiles back into a tensor of the shape and dtype of `like`, `fill` elsewhere."""
        head_count, width = like.shape[1:]
        rows = self._by_token(tiles, head_count)[self.tiles, self.rows, :, :width]
        values = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        # A zero that fills a tile up may turn -0 into +0, where another launch has no such zero.
        values[self.slots] = (rows + 0.0).to(like.dtype)
        values[self.others] = fill
        return values

    def _by_token(self, tiles: Tensor, head_count: int) -> Tensor:
        used = tiles[: self.tile_count * head_count]
        return used.view(self.tile_count, head_count, *tiles.shape[1:]).transpose(1, 2)


@attrs.frozen(kw_only=True, eq=False)
class _Plan:
    """Which tiles meet in which step.

    Attributes:
        queries: Queries that have a key, in tiles sorted from the last position to the first.
        contexts: All live contexts.
        own: int64 `[T]`, for each tile of queries the tile of contexts of the same positions.
        counts: How many tiles of queries meet a tile of contexts in each step: the first ones.
    """

    queries: _Tokens
    contexts: _Tokens
    own: Tensor
    counts: list[int]


def _segments(offsets: Tensor) -> _Side:
    ends = offsets.to(device="cpu", dtype=torch.int64)
    return _Side(first=ends[:-1], count=ends.diff())


def _runs(mask: Tensor) -> _Side:
    is_live = mask.cpu()
    row_count, slot_count = is_live.shape
    count = is_live.sum(1)
    if not slot_count:
        return _Side(first=count, count=count)
    rows = torch.arange(row_count) * slot_count
    return _Side(first=rows + is_live.byte().argmax(1), count=count)


def _plan(queries: _Side, contexts: _Side, q: Tensor, k: Tensor) -> _Plan:
    tile = tile_of(q.device)
    # A query before position 0 has no key, and is in no tile.
    start = (contexts.count - queries.count).clamp(min=0)
    seen = torch.minimum(queries.count, contexts.count)
    first_tile = start // tile
    tile_count = torch.where(seen > 0, (start + seen - 1) // tile + 1 - first_tile, 0)
    sequence, index = _ragged(tile_count)
    index = index + first_tile[sequence]
    order = index.argsort(descending=True, stable=True)
    place = order.argsort()
    query_sequence, token = _ragged(seen)
    position = token + start[query_sequence]
    ahead = (tile_count.cumsum(0) - tile_count - first_tile)[query_sequence]
    skipped = queries.count - seen
    context_tiles = -(-contexts.count // tile)
    base = context_tiles.cumsum(0) - context_tiles
    context_sequence, key = _ragged(contexts.count)
    return _Plan(
        queries=_Tokens.of(
            (queries.first + skipped)[query_sequence] + token,
            place[ahead + position // tile],
            position % tile,
            tile_count=len(order),
            like=q,
        ),
        contexts=_Tokens.of(
            contexts.first[context_sequence] + key,
            base[context_sequence] + key // tile,
            key % tile,
            tile_count=int(context_tiles.sum()),
            like=k,
        ),
        own=moved((base[sequence] + index)[order], q.device),
        counts=index.bincount().flip(0).cumsum(0).flip(0).tolist(),
    )


def _ragged(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Number the items of each group from 0, and name the group of each."""
    group = torch.repeat_interleave(torch.arange(len(counts)), counts)
    ahead = counts.cumsum(0) - counts
    return group, torch.arange(len(group)) - ahead[group]


@attrs.frozen(kw_only=True, eq=False)
class _Step:
    """One step: pairs of a tile of queries and a tile of contexts, each with a head.

    Attributes:
        tiles: int64, the tile of contexts of each pair of tiles.
        count: Lanes of these, which are the first of all.
        padded: The same, up to a multiple of `lane_count`.
        lanes: int64 `[padded]`, the lane of tiles of contexts for each.
        is_first: Whether both tiles hold the same positions.
    """

    tiles: Tensor
    count: int
    padded: int
    lanes: Tensor
    is_first: bool

    def scores(self, q_LRW: Tensor, k_LKW: Tensor, *, scale: float) -> Tensor:
        """Return the scores of `count` lanes, -Inf where a key comes after its query."""
        k_LWK = k_LKW.index_select(0, self.lanes).transpose(1, 2)
        scores_LRK = _products(q_LRW[: self.padded], k_LWK)[: self.count] * scale
        if self.is_first:
            row = torch.arange(scores_LRK.shape[2], device=scores_LRK.device)
            scores_LRK.masked_fill_(row > row[:, None], -torch.inf)
        return scores_LRK


def _steps(plan: _Plan, *, head_count: int, shared_count: int) -> Iterator[_Step]:
    device = plan.own.device
    per_product = lane_count(device)
    total = _up(len(plan.own) * head_count, per_product)
    head = torch.arange(head_count, device=device) // (head_count // shared_count)
    lanes = torch.zeros(total, dtype=torch.int64, device=device)
    used = plan.own[:, None] * shared_count + head
    lanes[: used.numel()] = used.flatten()
    for step, tile_count in enumerate(plan.counts):
        count = tile_count * head_count
        padded = _up(count, per_product)
        yield _Step(
            tiles=plan.own[:tile_count] - step,
            count=count,
            padded=padded,
            # Lanes that only fill up may read any tile: nobody reads their products.
            lanes=(lanes[:padded] - step * shared_count).clamp(min=0),
            is_first=not step,
        )


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Multiply lane by lane, always the same number of lanes in one call."""
    step = lane_count(left.device)
    starts = range(0, len(left), step)
    return torch.cat([left[at : at + step] @ right[at : at + step] for at in starts])


def _forward(plan: _Plan, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    head_count, width = q.shape[1:]
    shared_count = k.shape[1]
    lanes = _up(plan.queries.tile_count * head_count, lane_count(q.device))
    q_LRW = plan.queries.tiled(q, lanes)
    k_LKW, v_LKW = (
        plan.contexts.tiled(side, plan.contexts.tile_count * shared_count) for side in (k, v)
    )
    out_LRW = torch.zeros_like(q_LRW)
    total_LR = torch.zeros(q_LRW.shape[:2], dtype=torch.float32, device=q.device)
    largest_LR = torch.full_like(total_LR, -torch.inf)
    for step in _steps(plan, head_count=head_count, shared_count=shared_count):
        count = step.count
        scores_LRK = step.scores(q_LRW, k_LKW, scale=width**-0.5)
        before_LR = largest_LR[:count]
        # Every row sees a key in the first step, if only its own: the largest is no -Inf after it.
        after_LR = torch.maximum(before_LR, scores_LRK.amax(2))
        rescale_LR = torch.exp(before_LR - after_LR)
        weights = q_LRW.new_zeros((step.padded, *scores_LRK.shape[1:]))
        weights[:count] = torch.exp(scores_LRK - after_LR[:, :, None])
        parts_LRW = _products(weights, v_LKW.index_select(0, step.lanes))
        total_LR[:count] = total_LR[:count] * rescale_LR + halving_sum(weights[:count], 2)
        out_LRW[:count] = out_LRW[:count] * rescale_LR[:, :, None] + parts_LRW[:count]
        largest_LR[:count] = after_LR
    out_LRW = out_LRW / total_LR[:, :, None]
    lse_LR1 = (largest_LR + torch.log(total_LR))[:, :, None]
    lse = plan.queries.untiled(lse_LR1, q[:, :, :1].float(), fill=-torch.inf)
    return plan.queries.untiled(out_LRW, q), lse.squeeze(2)


def _backward(
    plan: _Plan,
    dout: Tensor,
    dlse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    head_count, width = q.shape[1:]
    shared_count = k.shape[1]
    scale = width**-0.5
    lanes = _up(plan.queries.tile_count * head_count, lane_count(q.device))
    q_LRW, dout_LRW, out_LRW = (plan.queries.tiled(side, lanes) for side in (q, dout, out))
    lse_LR1, dlse_LR1 = (
        plan.queries.tiled(side[:, :, None], lanes)[:, :, :1] for side in (lse, dlse)
    )
    k_LKW, v_LKW = (
        plan.contexts.tiled(side, plan.contexts.tile_count * shared_count) for side in (k, v)
    )
    # The gradient of lse reaches a score as its share, as that of the total does, with no minus.
    delta_LR1 = halving_sum(dout_LRW * out_LRW, 2)[:, :, None] - dlse_LR1
    dq_LRW, dk_LKW, dv_LKW = (torch.zeros_like(side) for side in (q_LRW, k_LKW, v_LKW))
    for step in _steps(plan, head_count=head_count, shared_count=shared_count):
        count, padded = step.count, step.padded
        scores_LRK = step.scores(q_LRW, k_LKW, scale=scale)
        dweights = _products(dout_LRW[:padded], v_LKW.index_select(0, step.lanes).transpose(1, 2))
        weights = q_LRW.new_zeros((padded, *scores_LRK.shape[1:]))
        weights[:count] = torch.exp(scores_LRK - lse_LR1[:count])
        # A weight of zero silences whatever a key after its query gives, Inf included.
        dscores = (dweights - delta_LR1[:padded]).masked_fill_(weights == 0, 0.0).mul_(weights)
        dq_LRW[:count] += _products(dscores, k_LKW.index_select(0, step.lanes))[:count]
        for gradient, left, right in ((dk_LKW, dscores, q_LRW), (dv_LKW, weights, dout_LRW)):
            parts = _products(left.transpose(1, 2), right[:padded])[:count]
            _add_to_tiles(gradient, step.tiles, parts, shared_count=shared_count)
    return (
        plan.queries.untiled(dq_LRW * scale, q),
        plan.contexts.untiled(dk_LKW * scale, k),
        plan.contexts.untiled(dv_LKW, v),
    )


def _add_to_tiles(
    gradient_LKW: Tensor, tiles: Tensor, parts_LKW: Tensor, *, shared_count: int
) -> None:
    """Add lanes to the tiles of contexts that they met, the heads of a group to one another."""
    shape = (shared_count, *parts_LKW.shape[1:])
    summed = halving_sum(parts_LKW.view(len(tiles), shared_count, -1, *shape[1:]), 2)
    by_tile = gradient_LKW.view(-1, *shape)
    # No tile is met twice in a step, so nothing is added in an order of its own.
    by_tile[tiles] = by_tile[tiles] + summed
