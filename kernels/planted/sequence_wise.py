"""Planted defects of kernels that see whole sequences: each beside its twin, one line apart."""

from itertools import pairwise

import torch
from torch import Tensor

from biprop.kernels.planted.records import Extent, Planted
from biprop.kernels.planted.sums import running_sum, split_sum

__all__ = ["SEQUENCE_WISE"]

_MASKED = "x[B,S,H], live: mask[B,S] -> y[B,H]"
_LENGTHS = "x[B,S,H], lengths: lengths[B] -> y[B,H]"
_PACKED = "x[T,H], offsets: offsets[B+1] -> y[T,H]"
_POOLED = "x[T,H], offsets: offsets[B+1] -> y[B,H]"
_POSITIONS = "x[B,S,H], position: position[B,S] -> y[B,S,H]; token_local"


def _over_slots(x: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep[:, :, None], x.float(), torch.zeros(())).movedim(1, -1)


def _over_tokens(rows: Tensor, pieces: int) -> Tensor:
    return split_sum(rows.float().movedim(0, -1), pieces)


def masked_sum_by_product(x: Tensor, live: Tensor) -> Tensor:
    """Dead slots are masked by multiplication."""
    terms = (x.float() * live[:, :, None]).movedim(1, -1)
    return running_sum(terms).to(x.dtype)


def masked_sum(x: Tensor, live: Tensor) -> Tensor:
    """Dead slots are left out by selection."""
    terms = _over_slots(x, live)
    return running_sum(terms).to(x.dtype)


def sum_by_longest(x: Tensor, lengths: Tensor) -> Tensor:
    """The number of pieces follows the longest sequence of the batch."""
    keep = torch.arange(x.shape[1])[None, :] < lengths[:, None]
    terms = _over_slots(x, keep)
    rows = [terms[row, :, : int(length)] for row, length in enumerate(lengths)]
    longest = int(lengths.max())
    return torch.stack([split_sum(row, -(-longest // 4)) for row in rows]).to(x.dtype)


def sum_by_own_length(x: Tensor, lengths: Tensor) -> Tensor:
    """The number of pieces follows the length of the sequence itself."""
    keep = torch.arange(x.shape[1])[None, :] < lengths[:, None]
    terms = _over_slots(x, keep)
    rows = [terms[row, :, : int(length)] for row, length in enumerate(lengths)]
    return torch.stack([split_sum(row, max(1, -(-row.shape[-1] // 4))) for row in rows]).to(x.dtype)


def sum_past_length(x: Tensor, lengths: Tensor) -> Tensor:
    """One slot too many is read where the row goes on."""
    keep = torch.arange(x.shape[1])[None, :] <= lengths[:, None]
    return running_sum(_over_slots(x, keep)).to(x.dtype)


def sum_up_to_length(x: Tensor, lengths: Tensor) -> Tensor:
    """As many slots are read as the sequence is long."""
    keep = torch.arange(x.shape[1])[None, :] < lengths[:, None]
    return running_sum(_over_slots(x, keep)).to(x.dtype)


def _scan(x: Tensor, starts: set[int]) -> Tensor:
    state = torch.zeros_like(x[0], dtype=torch.float32)
    out = torch.zeros_like(x)
    for slot in range(x.shape[0]):
        if slot in starts:
            state = torch.zeros_like(state)
        state = state + x[slot].float()
        out[slot] = state.to(x.dtype)
    return out


def scan_over_boundaries(x: Tensor, offsets: Tensor) -> Tensor:
    """The running sum is not reset where a segment starts at a multiple of four."""
    starts = {start for start in offsets.tolist() if start == 0 or start % 4}
    return _scan(x, starts)


def scan_in_segments(x: Tensor, offsets: Tensor) -> Tensor:
    """The running sum is reset where a segment starts."""
    starts = set(offsets.tolist())
    return _scan(x, starts)


def _segments(x: Tensor, offsets: Tensor) -> list[Tensor]:
    bounds = offsets.tolist()
    return [x[low:high] for low, high in pairwise(bounds)]


def pooled_by_average(x: Tensor, offsets: Tensor) -> Tensor:
    """The number of pieces follows the average length of the batch."""
    segments = _segments(x, offsets)
    pieces = max(1, -(-sum(map(len, segments)) // (4 * len(segments))))
    return torch.stack([_over_tokens(rows, pieces) for rows in segments]).to(x.dtype)


def pooled(x: Tensor, offsets: Tensor) -> Tensor:
    """The number of pieces is fixed."""
    segments = _segments(x, offsets)
    pieces = 1
    return torch.stack([_over_tokens(rows, pieces) for rows in segments]).to(x.dtype)


def pooled_by_segment_count(x: Tensor, offsets: Tensor) -> Tensor:
    """Segments are split over idle workers while there are fewer segments than four."""
    segments = _segments(x, offsets)
    pieces = max(1, 4 // max(1, len(segments)))
    return torch.stack([_over_tokens(rows, pieces) for rows in segments]).to(x.dtype)


def pooled_in_four(x: Tensor, offsets: Tensor) -> Tensor:
    """Segments are split in four."""
    segments = _segments(x, offsets)
    pieces = 4
    return torch.stack([_over_tokens(rows, pieces) for rows in segments]).to(x.dtype)


def rotate_by_slot(x: Tensor, position: Tensor) -> Tensor:
    """The sign alternates with the slot instead of the position."""
    index = torch.arange(x.shape[1])[None, :].expand_as(position)
    return torch.where(index[:, :, None] % 2 == 1, -x, x)


def rotate_by_position(x: Tensor, position: Tensor) -> Tensor:
    """The sign alternates with the position."""
    index = position
    return torch.where(index[:, :, None] % 2 == 1, -x, x)


SEQUENCE_WISE = (
    Planted(
        name="masked_sum_by_product",
        mechanism="MEMB",
        signature=_MASKED,
        function=masked_sum_by_product,
        healthy=masked_sum,
        exposed_by=("T4.nonfinite",),
        extent=Extent(slots=4, dims={"H": 2}, length=4),
        dims="H=1..64",
    ),
    Planted(
        name="sum_by_longest",
        mechanism="SPLIT",
        signature=_LENGTHS,
        function=sum_by_longest,
        healthy=sum_by_own_length,
        exposed_by=("T1", "T3"),
        extent=Extent(slots=10, dims={"H": 1}, length=5),
        dims="H=1..64",
    ),
    Planted(
        name="sum_past_length",
        mechanism="INDEX",
        signature=_LENGTHS,
        function=sum_past_length,
        healthy=sum_up_to_length,
        exposed_by=("T4.finite", "T4.nonfinite"),
        extent=Extent(slots=4, dims={"H": 2}, length=4),
        dims="H=1..64",
    ),
    Planted(
        name="scan_over_boundaries",
        mechanism="SEGM",
        signature=_PACKED,
        function=scan_over_boundaries,
        healthy=scan_in_segments,
        exposed_by=("T1", "T2"),
        extent=Extent(slots=6, dims={"H": 1}, length=5),
        dims="H=1..64",
    ),
    Planted(
        name="pooled_by_average",
        mechanism="BSTAT",
        signature=_POOLED,
        function=pooled_by_average,
        healthy=pooled,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=6, dims={"H": 1}, length=6),
        dims="H=1..64",
    ),
    Planted(
        name="pooled_by_segment_count",
        mechanism="SPLIT",
        signature=_POOLED,
        function=pooled_by_segment_count,
        healthy=pooled_in_four,
        exposed_by=("T1", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=5, dims={"H": 1}, length=4),
        dims="H=1..64",
    ),
    Planted(
        name="rotate_by_slot",
        mechanism="POS",
        signature=_POSITIONS,
        function=rotate_by_slot,
        healthy=rotate_by_position,
        exposed_by=("T4.finite", "T4.nonfinite"),
        extent=Extent(slots=3, dims={"H": 2}, length=3),
        dims="H=1..64",
    ),
)
