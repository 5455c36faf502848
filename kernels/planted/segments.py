"""Planted defects of packed segments whose boundaries get lost, each beside its healthy twin.

The kernels are scans and sums over the tokens of a segment. Who finds no start where one is adds
what another sequence has.

Shapes: T packed tokens, B segments, H features.
"""

from itertools import pairwise

import torch
from torch import Tensor

from biprop.kernels.planted.differentiated import differentiated
from biprop.kernels.planted.sums import running_sum

__all__ = [
    "all_starts_of_a_tile",
    "documents_as_bool",
    "documents_as_numbers",
    "gradient_in_segments",
    "gradient_over_boundaries",
    "is_summed_by_tile",
    "one_start_a_tile",
    "short_segment_as_it_is",
    "short_segment_as_tile",
    "starts_where_offsets_say",
    "starts_where_positions_fall",
]

# Tokens of a tile of the scan.
_TILE = 4
# Tokens of the tile that sums a short segment.
_TILE_SHORT = 12


def documents_as_bool(x: Tensor, offsets: Tensor) -> Tensor:
    """The number of a document is cast to bool, so that all but the first one are one document."""
    document = _documents(x, offsets).bool()
    starts = document.int().diff(prepend=torch.tensor([-1])) != 0
    return _scanned(x, starts)


def documents_as_numbers(x: Tensor, offsets: Tensor) -> Tensor:
    """The number of a document stays a number."""
    document = _documents(x, offsets)
    starts = document.int().diff(prepend=torch.tensor([-1])) != 0
    return _scanned(x, starts)


def starts_where_positions_fall(
    x: Tensor,
    position: Tensor,
    offsets: Tensor,  # noqa: ARG001  # what the defect is
) -> Tensor:
    """A segment starts where positions fall, so that one that begins as another ends does not.

    The other one may be a single token, or the segment may begin at a later position.
    """
    starts = position.diff(prepend=position[:1]) < 0
    return _scanned(x, starts)


def starts_where_offsets_say(
    x: Tensor,
    position: Tensor,  # noqa: ARG001  # as its neighbour above is called
    offsets: Tensor,
) -> Tensor:
    """A segment starts where offsets say so, whatever its first position."""
    starts = _starts(x, offsets)
    return _scanned(x, starts)


def one_start_a_tile(x: Tensor, offsets: Tensor) -> Tensor:
    """A tile of four tokens knows one start: a second one in the same tile is lost."""
    starts = _starts(x, offsets)
    return _scanned(x, _first_of_tiles(starts))


def all_starts_of_a_tile(x: Tensor, offsets: Tensor) -> Tensor:
    """A tile knows all starts in it."""
    starts = _starts(x, offsets)
    return _scanned(x, starts)


def is_summed_by_tile(tokens: int) -> bool:
    """Tell whether a segment goes to the kernel of short ones that sums a whole tile."""
    return 8 < tokens <= 12


def short_segment_as_tile(x: Tensor, offsets: Tensor) -> Tensor:
    """A segment of 9 to 12 tokens is summed as a tile of 12, whoever has the last of them."""
    ends = [start + _reach(stop - start) for start, stop in pairwise(offsets.tolist())]
    return _pooled(x, offsets, ends)


def short_segment_as_it_is(x: Tensor, offsets: Tensor) -> Tensor:
    """A segment is summed to its end."""
    ends = [start + (stop - start) for start, stop in pairwise(offsets.tolist())]
    return _pooled(x, offsets, ends)


def gradient_over_boundaries(x: Tensor, offsets: Tensor) -> Tensor:
    """The backward takes all segments of a launch for one, the forward does not."""
    bounds = offsets[[0, -1]]
    return _differentiated(x, offsets, bounds)


def gradient_in_segments(x: Tensor, offsets: Tensor) -> Tensor:
    """The backward knows the segments of the forward."""
    bounds = offsets
    return _differentiated(x, offsets, bounds)


def _documents(x: Tensor, offsets: Tensor) -> Tensor:
    """Return the number of the segment of each token, int64 `[T]`; slots past the last have one."""
    return torch.searchsorted(offsets[1:].long(), torch.arange(len(x)), right=True)


def _starts(x: Tensor, offsets: Tensor) -> Tensor:
    """Tell which tokens are the first of a segment, bool `[T]`."""
    return torch.isin(torch.arange(len(x)), offsets.long())


def _first_of_tiles(starts: Tensor) -> Tensor:
    """Keep the first start of each tile."""
    filled = torch.nn.functional.pad(starts, (0, -len(starts) % _TILE)).view(-1, _TILE)
    return (filled & (filled.cumsum(1) == 1)).flatten()[: len(starts)]


def _scanned(x: Tensor, starts: Tensor) -> Tensor:
    """Return the running sums of `x`, which begin again at each start."""
    rows, total = [], torch.zeros(x.shape[1])
    for row, is_start in zip(x.float().unbind(), starts.tolist(), strict=True):
        total = row + 0.0 if is_start else total + row
        rows.append(total)
    return torch.stack(rows).to(x.dtype)


def _reach(tokens: int) -> int:
    """Return how many tokens are summed for a segment."""
    return _TILE_SHORT if is_summed_by_tile(tokens) else tokens


def _pooled(x: Tensor, offsets: Tensor, ends: list[int]) -> Tensor:
    """Return the sum of each segment from its start to an end, `[B, H]`."""
    starts = offsets[:-1].tolist()
    parts = [x[start:end].float() for start, end in zip(starts, ends, strict=True)]
    return torch.stack([running_sum(part.movedim(0, -1)) for part in parts]).to(x.dtype)


def _differentiated(x: Tensor, offsets: Tensor, bounds: Tensor) -> Tensor:
    """Scan in the segments of `offsets`, and differentiate in those of `bounds`."""

    def forward(x: Tensor) -> Tensor:
        return _scanned(x, _starts(x, offsets))

    def backward(dy: Tensor, x: Tensor) -> tuple[Tensor]:
        # Of a running sum it is the running sum from the other end.
        starts = _starts(x, bounds.flip(0).neg() + len(x))
        return (_scanned(dy.flip(0), starts).flip(0).to(x.dtype),)

    return differentiated(forward, backward, x)
