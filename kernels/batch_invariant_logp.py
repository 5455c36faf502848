"""Log probability of a target in one pass over the logits: reference, torch backend, record.

`logp = logits[target] - lse`, where `lse = log(sum(exp(logits)))`: the counterpart of the
batch-invariant log probability of https://github.com/RL-Align/RL-Kernel/issues/96. The vocabulary
is read once, in blocks of fixed width from its first token on; a running maximum and a running sum,
which is rescaled when the maximum grows, take the place of a second pass. Source: Milakov and
Gimelshein, Online normalizer calculation for softmax, 2018 (https://arxiv.org/abs/1805.02867).
`biprop.kernels.logp` makes two passes, and saves its `lse`; here nothing is saved, and the backward
makes the pass again.

The Triton backend is `biprop.kernels.batch_invariant_logp_triton`, and shares no arithmetic with
this module. Every dtype of logits gives float32 results.

Shapes: N tokens, those of `[T]` or of `[B, S]`; V vocabulary, R rows of a tile, W tokens of the
vocabulary in a block.
"""

from collections.abc import Iterator

import attrs
import torch
from torch import Tensor

from biprop.kernels import logp
from biprop.kernels.deferred import triton_backend
from biprop.kernels.tiles import elementwise_row_count, halving_sum, tile_of_rows
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["IGNORE_INDEX", "OPERATOR", "backward", "forward", "reference"]

# A target that is none, as in torch.nn.functional.cross_entropy.
IGNORE_INDEX = -100


def reference(
    logits: Tensor, target: Tensor, *, reduce: Reducer, ignore_index: int = IGNORE_INDEX
) -> Tensor:
    """Compute in float32, the sum of the exponentials by `reduce`.

    Args:
        logits: `[..., V]` of a float dtype.
        target: int64 `[...]` in [0, V), or `ignore_index`.
        reduce: Sums the exponentials over V.
        ignore_index: As for `forward`.

    Returns:
        `logp`, float32 `[...]`.
    """
    is_ignored = target == ignore_index
    # Taken out before anything is computed, so that a NaN among them has no gradient either.
    logits = logits.masked_fill(is_ignored.unsqueeze(-1), 0.0)
    found, _ = logp.reference(logits, target.masked_fill(is_ignored, 0), reduce=reduce)
    return torch.where(is_ignored, 0.0, found)


def forward(logits: Tensor, target: Tensor, *, ignore_index: int = IGNORE_INDEX) -> Tensor:
    """Compute on fixed tiles, in one pass.

    Args:
        logits: `[..., V]` of a float dtype, any strides; -Inf means impossible. A row of nothing
            else has lse -Inf and logp NaN; a row that holds +Inf or NaN has lse +Inf or NaN.
        target: int64 `[...]` in [0, V), or `ignore_index`.
        ignore_index: The target of a row that is to have logp 0 and no gradient.

    Returns:
        `logp`, float32 `[...]`.
    """
    logits_NV, target_N = logits.reshape(-1, logits.shape[-1]), target.reshape(-1)
    logp_N = torch.empty(len(logits_NV), dtype=torch.float32, device=logits.device)
    for tile in _tiles(logits_NV, target_N):
        lse_R1, chosen_R1 = _reduced(tile)
        is_ignored_R1 = tile.target == ignore_index
        logp_R = torch.where(is_ignored_R1, 0.0, chosen_R1 - lse_R1)[:, 0]
        logp_N[tile.start : tile.start + tile.count] = logp_R[: tile.count]
    return logp_N.view(target.shape)


def backward(
    dlogp: Tensor, logits: Tensor, target: Tensor, *, ignore_index: int = IGNORE_INDEX
) -> Tensor:
    """Differentiate on fixed tiles: `dlogp * ([v = target] - exp(logits - lse))`.

    Args:
        dlogp: float32 `[...]`, upstream gradient of `logp`.
        logits: As for `forward`.
        target: As for `forward`.
        ignore_index: As for `forward`.

    Returns:
        `dlogits`, `[..., V]` of the dtype of `logits`.
    """
    logits_NV, target_N = logits.reshape(-1, logits.shape[-1]), target.reshape(-1)
    dlogp_N1 = dlogp.reshape(-1, 1)
    dlogits_NV = torch.empty(logits_NV.shape, dtype=logits.dtype, device=logits.device)
    for tile in _tiles(logits_NV, target_N):
        lse_R1, _ = _reduced(tile)
        own = slice(tile.start, tile.start + tile.count)
        is_ignored_R1 = tile.target == ignore_index
        dlogp_R1 = tile_of_rows(dlogp_N1, tile.start, rows=tile.rows, width=1)
        for first, block_RW in tile.blocks():
            share_RW = torch.exp(block_RW - lse_R1)
            token_W = torch.arange(first, first + tile.width, device=logits.device)
            is_target_RW = token_W == tile.target
            gradient_RW = torch.where(is_target_RW, 1.0 - share_RW, -share_RW) * dlogp_R1
            gradient_RW = torch.where(is_ignored_R1, 0.0, gradient_RW).to(logits.dtype)
            dlogits_NW = dlogits_NV[own, first : first + tile.width]
            dlogits_NW.copy_(gradient_RW[: tile.count, : dlogits_NW.shape[1]])
    return dlogits_NV.view(logits.shape)


@attrs.frozen(kw_only=True, eq=False)
class _Tile:
    """Rows that are computed together.

    Attributes:
        logits: `[N, V]`, of all rows.
        target: int64 `[R, 1]`, 0 past the last row.
        start: First row.
        count: Rows that there are; the others are filled up.
        width: W.
    """

    logits: Tensor
    target: Tensor
    start: int
    count: int
    width: int

    @property
    def rows(self) -> int:
        """R."""
        return len(self.target)

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the first token of each block of the vocabulary, and its float32 `[R, W]`."""
        for first in range(0, self.logits.shape[1], self.width):
            block_NW = self.logits[:, first : first + self.width]
            yield (
                first,
                tile_of_rows(
                    block_NW, self.start, rows=self.rows, width=self.width, fill=-torch.inf
                ),
            )


def _block_width(device: torch.device) -> int:
    """Return W, a multiple of 64: exp meets whole vectors. A GPU pays for the block."""
    return 128 if device.type == "cpu" else 4096


def _tiles(logits_NV: Tensor, target_N: Tensor) -> Iterator[_Tile]:
    width = _block_width(logits_NV.device)
    rows = elementwise_row_count(logits_NV.device, width)
    for start in range(0, len(logits_NV), rows):
        count = min(rows, len(logits_NV) - start)
        target_R1 = target_N.new_zeros((rows, 1))
        target_R1[:count, 0] = target_N[start : start + count]
        yield _Tile(logits=logits_NV, target=target_R1, start=start, count=count, width=width)


def _reduced(tile: _Tile) -> tuple[Tensor, Tensor]:
    """Return `lse` and the target's logit, both float32 `[R, 1]`, in one pass."""
    shape, device = tile.target.shape, tile.target.device
    largest_R1 = torch.full(shape, -torch.inf, dtype=torch.float32, device=device)
    total_R1, chosen_R1, shift_R1 = (
        torch.zeros(shape, dtype=torch.float32, device=device) for _ in range(3)
    )
    for first, block_RW in tile.blocks():
        after_R1 = torch.maximum(largest_R1, block_RW.amax(dim=1, keepdim=True))
        # Shifted by -Inf, a row of nothing else would be NaN.
        shift_R1 = torch.where(after_R1.isinf(), 0.0, after_R1)
        part_R = halving_sum(torch.exp(block_RW - shift_R1), 1)
        total_R1 = total_R1 * torch.exp(largest_R1 - shift_R1) + part_R[:, None]
        place_R1 = tile.target - first
        is_here_R1 = (place_R1 >= 0) & (place_R1 < tile.width)
        found_R1 = block_RW.gather(1, place_R1.clamp(0, tile.width - 1))
        chosen_R1 = torch.where(is_here_R1, found_R1, chosen_R1)
        largest_R1 = after_R1
    return shift_R1 + torch.log(total_R1), chosen_R1


_TRITON = "biprop.kernels.batch_invariant_logp_triton"
_IMPLEMENTATIONS = (
    Implementation(backend="torch", forward=forward, backward=backward),
    triton_backend(
        _TRITON, kernels=("batch_invariant_logp_rows", "batch_invariant_logp_dlogits_tile")
    ),
)


def _form(name: str, axes: str, option: str) -> Form:
    signature = parse_signature(
        f"logits[{axes},V], target: token(V)[{axes}] -> logp: float32[{axes}]{option}"
    )
    return Form(
        name=name,
        signature=signature,
        backward_signature=parse_backward(
            f"dlogp: float32[{axes}], logits[{axes},V], target: token(V)[{axes}] "
            f"-> dlogits[{axes},V]{option}",
            signature,
        ),
        implementations=_IMPLEMENTATIONS,
        reference=reference,
    )


OPERATOR = Operator(
    name="batch_invariant_logp",
    op_class="logprob",
    forms=(_form("packed", "T", ""), _form("padded", "B,S", "; token_local")),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"), chain_index=8
    ),
    restrictions=parse_restrictions("V=1..262144"),
    owner="https://github.com/RL-Align/RL-Kernel/issues/96",
)
