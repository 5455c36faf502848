"""Operators for the tests of the suite, in a module that search processes can import.

No test stands here. Each breaks in one way, or not at all, on launches of several rows.
"""

import os
import signal
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from biprop.operators import (
    Form,
    Implementation,
    InvarianceDeclaration,
    OpClass,
    Operator,
    Reducer,
    Registry,
)
from biprop.signature import parse_restrictions, parse_signature

__all__ = [
    "BORROWING",
    "DRIFTING",
    "HEALTHY",
    "KILLING",
    "OWN_FAULT",
    "REGISTRY",
    "made",
]

Parts = Mapping[str, Implementation]


def made(
    name: str,
    forward: Callable[..., object],
    *,
    chain_index: int,
    op_class: OpClass = "elementwise",
    reference: Callable[..., object] | None = None,
    built_from: tuple[str, ...] = (),
    transforms: tuple[str, ...] = ("T1",),
) -> Operator:
    """Return an operator of one form and backend, without gradients."""
    return Operator(
        name=name,
        op_class=op_class,
        forms=(
            Form(
                name="packed",
                signature=parse_signature("x[T,H] -> y[T,H]"),
                implementations=(Implementation(backend="torch", forward=forward),),
                reference=reference,
            ),
        ),
        declaration=InvarianceDeclaration(
            transforms=transforms, backward=False, chain_index=chain_index
        ),
        restrictions=parse_restrictions("H=2..8"),
        built_from=built_from,
    )


def negated(x: Tensor) -> Tensor:
    """Return `-x`, which no batch can change."""
    return -x


def scaled_by_batch(x: Tensor) -> Tensor:
    """Return `x`, halved where a launch has several rows."""
    return x if len(x) < 2 else x / 2


def scaled_reference(x: Tensor, *, reduce: Reducer) -> Tensor:  # noqa: ARG001  # nothing is summed
    """Return what `scaled_by_batch` returns for a row alone."""
    return x.float()


def killing(x: Tensor) -> Tensor:
    """Return `x`; end the process where a launch has several rows."""
    if len(x) > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return x.clone()


def composed(x: Tensor, *, own_fault: bool, parts: Parts | None = None) -> Tensor:
    """Return twice what the part returns; with a fault of its own, one more where it is a batch."""
    part = (parts or {}).get("drifting")
    found = scaled_by_batch(x) if part is None else part.forward(x)
    assert isinstance(found, Tensor)
    fault = torch.ones_like(found) if own_fault and len(x) > 1 else torch.zeros_like(found)
    return 2 * found + fault


HEALTHY = made("healthy", negated, chain_index=0)
DRIFTING = made("drifting", scaled_by_batch, chain_index=2, reference=scaled_reference)
KILLING = made("killing", killing, chain_index=3)
BORROWING = made(
    "borrowing", partial(composed, own_fault=False), chain_index=4, built_from=("drifting",)
)
OWN_FAULT = made(
    "own_fault", partial(composed, own_fault=True), chain_index=1, built_from=("drifting",)
)
REGISTRY = Registry(operators=(DRIFTING, KILLING, BORROWING, OWN_FAULT, HEALTHY))
