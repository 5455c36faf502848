"""PyTorch's functions where a signature cannot name their arguments: each is one thin call.

`biprop check` passes tensors by position and takes numbers, booleans and None by keyword; a shape,
or a flag that varies with the launch, needs a function of its own. `ci.lanes.known` names these.
"""

from torch import Tensor
from torch.nn import functional

__all__ = ["causal_attention", "even_attention", "layer_norm", "rms_norm"]


def rms_norm(values: Tensor, weight: Tensor) -> Tensor:
    """Normalise the last dimension of `[T,H]` by its root mean square."""
    return functional.rms_norm(values, (values.shape[-1],), weight)


def layer_norm(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise the last dimension of `[T,H]` to mean 0 and deviation 1."""
    return functional.layer_norm(values, (values.shape[-1],), weight, bias)


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,  # noqa: FBT001  # passed by position, as every argument of a signature
) -> Tensor:
    """Attend over `[B,H,Q,D]` and `[B,H,C,D]`, each query to the contexts up to its own."""
    return functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def even_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend over `[B,H,Q,D]` and `[B,H,C,D]`, each query to all contexts.

    Flash attention takes no tensor whose last dimension is strided, and says so; such a tensor is
    copied, so that only its address is left to go wrong.
    """
    query, key, value = (
        item if item.stride(-1) == 1 else item.contiguous() for item in (query, key, value)
    )
    return functional.scaled_dot_product_attention(query, key, value)
