"""Full prefills: what each token of a sequence gives where nothing is cached.

They are what decoding and chunks are held against, bit for bit; and what these are held against
within a tolerance, the float32 reference, and how much another order of keys would show.

Shapes: L tokens of a sequence, HQ heads of queries, HK of contexts, D features.
"""

from typing import Protocol

import attrs
import torch
from torch import Tensor

from biprop.errors import TargetError, UnsupportedError, words_of
from biprop.execution.orders import ORDERS
from biprop.execution.proxies import changed_share
from biprop.kvcache.protocol import ATTENTION, CacheImplementation
from biprop.kvcache.records import Program
from biprop.kvcache.values import TORCH_DTYPES, Rows
from biprop.operators import Kernel, Operator, Reducer, Registry

__all__ = [
    "FreshPrefill",
    "OperatorPrefill",
    "Prefill",
    "kernel_of",
    "order_power",
    "reference",
    "yardstick_of",
]

# Queries, and heads of them, that power is measured on.
_QUERIES_MAX = 8
_HEADS_MAX = 2


class Prefill(Protocol):
    """Makes full prefills."""

    def full(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return `out` `[L, HQ, D]` and `lse` `[L, HQ]` of all tokens of a sequence alone."""


class OperatorPrefill:
    """Full prefills by a registered attention operator, in its packed form."""

    def __init__(self, kernel: Kernel, program: Program) -> None:
        """Round keys and values as the program's cache stores them."""
        self._kernel = kernel
        self._shape = program.shape

    def full(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return `out` `[L, HQ, D]` and `lse` `[L, HQ]` of all tokens of a sequence alone.

        Raises:
            TargetError: The operator raised: it is the yardstick here, not what is judged.
        """
        dtype, storage = TORCH_DTYPES[self._shape.dtype], TORCH_DTYPES[self._shape.storage]
        k, v = (side.to(storage).to(dtype) for side in (rows.k, rows.v))
        offsets = offsets_of(len(rows), device=rows.q.device)
        try:
            returned = self._kernel.function(rows.q, k, v, offsets, offsets, **self._kernel.call)
        except (UnsupportedError, torch.OutOfMemoryError):
            raise
        # Whatever it raises is a fault of the yardstick.
        except Exception as error:
            raise TargetError(
                f"Operator {self._kernel.name} with backend={self._kernel.backend!r} raised "
                f"{type(error).__name__} ({words_of(error)}) in a full prefill: correct the "
                "operator, or give it sizes that it takes."
            ) from error
        assert isinstance(returned, tuple), "the packed form has two outputs"
        out, lse = returned
        return out, lse


class FreshPrefill:
    """Full prefills by a fresh cache of the same kind, for all tokens at once."""

    def __init__(
        self, implementation: CacheImplementation, program: Program, device: torch.device
    ) -> None:
        """Make a cache for each prefill."""
        self._implementation = implementation
        self._program = program
        self._device = device

    def full(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return `out` `[L, HQ, D]` and `lse` `[L, HQ]` of all tokens of a sequence alone."""
        cache = self._implementation.make(self._program.shape, self._device)
        offsets = offsets_of(len(rows), device=self._device)
        cache.allocate("s0")
        # Copies: what a cache does to its arguments must not change what it is held against.
        cache.append(("s0",), rows.k.clone(), rows.v.clone(), offsets)
        return cache.attend(("s0",), rows.q.clone(), offsets)


def offsets_of(*counts: int, device: torch.device) -> Tensor:
    """Return int32 `[len(counts) + 1]`, where segments of so many tokens begin and end."""
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    return torch.tensor(ends, dtype=torch.int32, device=device)


def kernel_of(operator: Operator, *, form: str, backend: str) -> Kernel:
    """Return an operator's kernel of a backend, its first one where it has no such backend.

    Raises:
        TargetError: The operator has no such form.
    """
    found = [kernel for kernel in operator.kernels() if kernel.form == form]
    if not found:
        raise TargetError(f"Operator {operator.name!r} has no form {form!r}: name one that has it.")
    return next((kernel for kernel in found if kernel.backend == backend), found[0])


def yardstick_of(registry: Registry | None) -> Kernel | None:
    """Return the attention kernel whose reference says what any cache has to give.

    None where no registry is given, or it has no such operator.
    """
    for operator in () if registry is None else registry.operators:
        if operator.name == ATTENTION:
            return kernel_of(operator, form="packed", backend="torch")
    return None


def reference(kernel: Kernel, rows: Rows, program: Program, *, start: int) -> tuple[Tensor, Tensor]:
    """Return the float32 reference of the tokens from `start` on: `out` and `lse`, float32.

    Args:
        kernel: Of the attention operator; it has a reference.
        rows: All tokens of the sequence.
        program: Says how keys and values are stored.
        start: First token whose results are wanted.
    """
    return _referenced(kernel, rows, program, start=start, reduce=_plain_sum)


def order_power(kernel: Kernel, rows: Rows, program: Program) -> float:
    """Return the share of results whose bits change when sums are taken in other orders.

    Of a few of the last tokens and the first heads, rounded as the cache's results are.

    Args:
        kernel: Of the attention operator; it has a reference.
        rows: All tokens of the sequence, at least one.
        program: Says how keys and values are stored.
    """
    group = program.shape.query_heads // program.shape.heads
    heads = max(1, min(program.shape.heads, _HEADS_MAX // group))
    per_head = min(group, _HEADS_MAX)
    start = max(0, len(rows) - _QUERIES_MAX)
    by_head = rows.q.reshape(len(rows), program.shape.heads, group, program.shape.width)
    q = by_head[:, :heads, :per_head].flatten(1, 2)
    fewer = attrs.evolve(
        rows, q=q.cpu(), k=rows.k[:, :heads].cpu(), v=rows.v[:, :heads].cpu(), ids=None
    )
    dtype = TORCH_DTYPES[program.shape.dtype]
    by_order = [
        _referenced(kernel, fewer, program, start=start, reduce=reduce) for reduce in ORDERS
    ]
    changed = total = 0.0
    for place, results in enumerate(zip(*by_order, strict=True)):
        rounded = [item.to(dtype) if place == 0 else item for item in results]
        changed += rounded[0].numel() * changed_share(rounded)
        total += rounded[0].numel()
    return changed / total


def _referenced(
    kernel: Kernel, rows: Rows, program: Program, *, start: int, reduce: Reducer
) -> tuple[Tensor, Tensor]:
    assert kernel.reference is not None, "the caller looked"
    storage = TORCH_DTYPES[program.shape.storage]
    k, v = (side.to(storage).float() for side in (rows.k, rows.v))
    q = rows.q[start:].float()
    device = q.device
    returned = kernel.reference(
        q,
        k,
        v,
        offsets_of(len(q), device=device),
        offsets_of(len(k), device=device),
        reduce=reduce,
        **kernel.call,
    )
    assert isinstance(returned, tuple), "the packed form has two outputs"
    out, lse = returned
    return out, lse


def _plain_sum(values: Tensor, dim: int) -> Tensor:
    return values.sum(dim)
