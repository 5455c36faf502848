"""The output layer, `logits = hidden @ weight^T`: a matrix product in a fixed order; record only.

Both backends are those of `biprop.kernels.det_gemm` and `biprop.kernels.det_gemm_triton`, named for
what the chain takes and gives: the sum over H is the same tree, whatever the batch and however many
ranks share it. Logits and log probability in one, without `[T, V]` logits, are
`biprop.kernels.linear_logp`.

Shapes: T packed tokens, H features, V vocabulary.
"""

from torch import Tensor

from biprop.kernels import det_gemm
from biprop.kernels.deferred import triton_backend
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["OPERATOR", "backward", "forward", "reference"]


def reference(hidden: Tensor, weight: Tensor, *, reduce: Reducer) -> Tensor:
    """Multiply in float32, every sum over H by `reduce`.

    Args:
        hidden: `[T, H]` of a float dtype.
        weight: `[V, H]` of the same dtype.
        reduce: Sums the products over H.

    Returns:
        `logits`, `[T, V]` of the dtype of `hidden`.
    """
    return det_gemm.reference(hidden, weight, reduce=reduce)


def forward(hidden: Tensor, weight: Tensor, *, shards: int = 1) -> Tensor:
    """Multiply on fixed tiles, the sum over H as a tree.

    Args:
        hidden: `[T, H]` of a float dtype, any strides.
        weight: `[V, H]` of the same dtype, any strides.
        shards: 1, 2, 4 or 8 ranks that hold a part of H each.

    Returns:
        `logits`, `[T, V]` of the dtype of `hidden`, the same bits for any number of ranks.

    Raises:
        UsageError: So many ranks cannot hold a subtree each.
    """
    return det_gemm.forward(hidden, weight, shards=shards)


def backward(
    dlogits: Tensor,
    hidden: Tensor,
    weight: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dweight: Tensor,
) -> Tensor:
    """Differentiate on fixed tiles; `dweight` is added to, in blocks cut by position.

    Args:
        dlogits: `[T, V]`, upstream gradient of the dtype of `hidden`.
        hidden: As for `forward`.
        weight: As for `forward`.
        offsets: int32 `[B+1]`, cumulative live lengths in logical order.
        order: int32 `[T]`, slots of the live tokens in logical order first.
        position: int64 `[T]`, by slot.
        dweight: float32 `[V, H]`, accumulates over launches that hold whole sequences.

    Returns:
        `dhidden`, `[T, H]` of the dtype of `hidden`.
    """
    return det_gemm.backward(dlogits, hidden, weight, offsets, order, position, dweight)


_TRITON = "biprop.kernels.det_gemm_triton"
_SIGNATURE = parse_signature("hidden[T,H], weight[V,H] -> logits[T,V]")

OPERATOR = Operator(
    name="lm_head",
    op_class="reduction",
    forms=(
        Form(
            name="packed",
            signature=_SIGNATURE,
            backward_signature=parse_backward(
                "dlogits[T,V], hidden[T,H], weight[V,H], offsets: offsets[B+1], order: order[T], "
                "position: position[T], dweight!: float32[V,H] -> dhidden[T,H]",
                _SIGNATURE,
            ),
            implementations=(
                Implementation(backend="torch", forward=forward, backward=backward),
                triton_backend(
                    _TRITON, kernels=("det_gemm_tile", "det_gemm_join", "det_gemm_dweight_tile")
                ),
            ),
            reference=reference,
            takes_shards=True,
        ),
    ),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8", "shards"),
        parameter_gradients=("T1", "T2", "T4", "T5", "T6", "T8"),
        chain_index=6,
    ),
    restrictions=parse_restrictions("H=1..65536 V=1..262144"),
)
