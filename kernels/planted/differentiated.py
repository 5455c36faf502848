"""A forward with a backward of one's own, so that either can be broken without the other."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["differentiated"]


class _Differentiated(torch.autograd.Function):
    """Calls the forward, and for gradients the backward, with the same tensors."""

    @staticmethod
    def forward(
        ctx: "torch.autograd.function.FunctionCtx",
        function: Callable[..., Tensor],
        backward: Callable[..., tuple[Tensor | None, ...]],
        *tensors: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.given = backward  # type: ignore[attr-defined]  # the context carries what it is given
        return function(*tensors)

    @staticmethod
    def backward(
        ctx: "torch.autograd.function.FunctionCtx", *upstream: Tensor
    ) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # type: ignore[attr-defined]  # set by save_for_backward
        found = ctx.given(upstream[0], *tensors)  # type: ignore[attr-defined]  # set in forward
        return None, None, *found


def differentiated(
    function: Callable[..., Tensor],
    backward: Callable[..., tuple[Tensor | None, ...]],
    *tensors: Tensor,
) -> Tensor:
    """Return `function(*tensors)`, whose gradients are what `backward` returns.

    Args:
        function: The forward.
        backward: Called with the upstream gradient and `tensors`; returns a gradient for each of
            those that have one, and None for the others.
        *tensors: What both are called with.
    """
    y: Tensor = _Differentiated.apply(function, backward, *tensors)  # type: ignore[no-untyped-call]  # torch's own
    return y
