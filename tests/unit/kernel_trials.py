"""Trials of the kernels, shared by their unit tests: data, layouts, runs and marks.

No test stands here. Whole cases with transforms are built by biprop itself and run by tests/props.
"""

import os
from collections.abc import Callable

import attrs
import pytest
import torch
from torch import Tensor

from biprop.bits import same_bits
from biprop.kernels.det_gemm import OPERATOR as DET_GEMM
from biprop.kernels.logp import OPERATOR as LOGP
from biprop.kernels.rms_norm import OPERATOR as RMS_NORM
from biprop.operators import Implementation, Operator

__all__ = [
    "BACKENDS",
    "DET_GEMM",
    "DEVICE",
    "DTYPES",
    "EPS",
    "LOGP",
    "RMS_NORM",
    "RUNS",
    "STORAGES",
    "Run",
    "Sequences",
    "Trial",
    "all_same",
    "backend_of",
    "each_backend",
    "each_dtype",
    "each_run",
    "each_run_with_weight",
    "in_order",
    "normal",
    "place",
    "plain_sum",
    "run_det_gemm",
    "run_rms_norm",
    "tensors_of",
    "wide",
]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    # Without a GPU the Triton backend runs in Triton's interpreter; it reads this when first used.
    os.environ.setdefault("TRITON_INTERPRET", "1")

BACKENDS = ["torch", "triton"]
DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-6


@attrs.frozen(kw_only=True, eq=False)
class Sequences:
    """Where the live tokens of a launch lie.

    Attributes:
        offsets: int32 `[B+1]`.
        order: int32, by logical token, dead slots last.
        position: int64, by slot.
    """

    offsets: Tensor
    order: Tensor
    position: Tensor

    @property
    def live_slots(self) -> Tensor:
        """Slots of the live tokens in logical order."""
        return self.order[: int(self.offsets[-1])].long()


def place(lengths: list[int], slots: list[int], *, starts: list[int], slot_count: int) -> Sequences:
    """Place sequences of `lengths` into `slots`, in logical order; the other slots are dead."""
    offsets = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    dead = [slot for slot in range(slot_count) if slot not in set(slots)]
    position = torch.zeros(slot_count, dtype=torch.int64)
    tokens = [start + token for length, start in zip(lengths, starts, strict=True)
              for token in range(length)]  # fmt: skip
    position[torch.tensor(slots, dtype=torch.int64)] = torch.tensor(tokens, dtype=torch.int64)
    return Sequences(
        offsets=torch.tensor(offsets, dtype=torch.int32, device=DEVICE),
        order=torch.tensor(slots + dead, dtype=torch.int32, device=DEVICE),
        position=position.to(DEVICE),
    )


def in_order(lengths: list[int], *, starts: list[int] | None = None) -> Sequences:
    """Place sequences one after the other, without dead slots."""
    count = sum(lengths)
    return place(lengths, list(range(count)), starts=starts or [0] * len(lengths), slot_count=count)


def normal(*sizes: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Draw unit normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator).to(device=DEVICE, dtype=dtype)


def wide(*sizes: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Draw numbers of 20 binades, whose sums show any change of order."""
    generator = torch.Generator().manual_seed(seed)
    exponent = torch.randint(-10, 11, sizes, generator=generator)
    values = torch.randn(*sizes, generator=generator) * torch.exp2(exponent.float())
    return values.to(device=DEVICE, dtype=dtype)


def offset_by(values: Tensor, elements: int) -> Tensor:
    """Copy to an address that many elements past an aligned one."""
    memory = torch.full((values.numel() + elements,), 3, dtype=values.dtype, device=DEVICE)
    return memory[elements:].view(values.shape).copy_(values)


def with_gap(values: Tensor) -> Tensor:
    """Copy so that three elements lie between two rows."""
    last = values.shape[-1]
    memory = torch.full((*values.shape[:-1], last + 3), 3, dtype=values.dtype, device=DEVICE)
    return memory[..., :last].copy_(values)


def transposed(values: Tensor) -> Tensor:
    """Copy so that the first dimension is the innermost one."""
    memory = torch.empty(*reversed(values.shape), dtype=values.dtype, device=DEVICE)
    return memory.permute(*reversed(range(values.dim()))).copy_(values)


def every_second(values: Tensor) -> Tensor:
    """Copy so that no two elements touch."""
    memory = torch.full((*values.shape, 2), 3, dtype=values.dtype, device=DEVICE)
    return memory[..., 0].copy_(values)


STORAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "offset_1": lambda values: offset_by(values, 1),
    "offset_4": lambda values: offset_by(values, 4),
    "gap": with_gap,
    "transposed": transposed,
    "every_second": every_second,
}


def backend_of(operator: Operator, backend: str, *, form: str = "packed") -> Implementation:
    """Return an implementation of an operator."""
    found = next(candidate for candidate in operator.forms if candidate.name == form)
    return next(entry for entry in found.implementations if entry.backend == backend)


def tensors_of(values: object) -> tuple[Tensor, ...]:
    """Return what a kernel returned as a tuple."""
    items = values if isinstance(values, tuple) else (values,)
    assert all(isinstance(item, Tensor) for item in items)
    return items


def all_same(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors hold the same bits."""
    return bool(same_bits(left, right).all())


def plain_sum(values: Tensor, dim: int) -> Tensor:
    """Sum in the order of torch."""
    return values.sum(dim)


@attrs.frozen(kw_only=True, eq=False)
class Trial:
    """One operator on one set of tokens: everything that a test compares.

    Attributes:
        outputs: What the forward returned, by token.
        token_gradients: The gradient of the token argument, by token.
        dweight: The accumulated gradient of the weight; without elements where there is none.
    """

    outputs: tuple[Tensor, ...]
    token_gradients: Tensor
    dweight: Tensor

    def at(self, slots: Tensor) -> "Trial":
        """Return the same trial with only the tokens of `slots`."""
        return attrs.evolve(
            self,
            outputs=tuple(output[slots] for output in self.outputs),
            token_gradients=self.token_gradients[slots],
        )

    def same_as(self, other: "Trial") -> bool:
        """Return whether all bits are the same."""
        pairs = zip(self.outputs, other.outputs, strict=True)
        return (
            all(all_same(left, right) for left, right in pairs)
            and all_same(self.token_gradients, other.token_gradients)
            and all_same(self.dweight, other.dweight)
        )


Run = Callable[..., Trial]


def run_rms_norm(
    backend: str, rows: Tensor, upstream: Tensor, sequences: Sequences, *, dweight: Tensor | None =
        None
) -> Trial:  # fmt: skip
    """Run rms_norm forward and backward on rows `[T, H]`."""
    kernel = backend_of(RMS_NORM, backend)
    assert kernel.backward is not None
    width = rows.shape[1]
    weight = normal(width, dtype=rows.dtype, seed=7)
    total = torch.zeros(width, device=DEVICE) if dweight is None else dweight
    y, rstd = tensors_of(kernel.forward(rows, weight, eps=EPS))
    layout = (sequences.offsets, sequences.order, sequences.position)
    (dx,) = tensors_of(kernel.backward(upstream, rows, weight, rstd, *layout, total, eps=EPS))
    return Trial(outputs=(y, rstd), token_gradients=dx, dweight=total)


def run_det_gemm(
    backend: str, rows: Tensor, upstream: Tensor, sequences: Sequences, *, dweight: Tensor | None =
        None
) -> Trial:  # fmt: skip
    """Run det_gemm forward and backward on rows `[T, K]`, N = K."""
    kernel = backend_of(DET_GEMM, backend)
    assert kernel.backward is not None
    width = rows.shape[1]
    weight = wide(width, width, dtype=rows.dtype, seed=7)
    total = torch.zeros(width, width, device=DEVICE) if dweight is None else dweight
    outputs = tensors_of(kernel.forward(rows, weight))
    layout = (sequences.offsets, sequences.order, sequences.position)
    (dx,) = tensors_of(kernel.backward(upstream, rows, weight, *layout, total))
    return Trial(outputs=outputs, token_gradients=dx, dweight=total)


def run_logp(
    backend: str, rows: Tensor, upstream: Tensor, _: Sequences, *, dweight: Tensor | None = None
) -> Trial:
    """Run logp forward and backward on rows `[T, V]`; targets and upstream follow the rows."""
    kernel = backend_of(LOGP, backend)
    assert kernel.backward is not None
    # From the row's own values, so that a row keeps its target wherever it lies.
    finite = torch.where(rows.isfinite(), rows, torch.zeros_like(rows))
    target = finite.argmax(dim=1)
    logp, lse = tensors_of(kernel.forward(rows, target))
    (dlogits,) = tensors_of(kernel.backward(upstream[:, 0].float(), rows, target, lse))
    empty = torch.zeros(0, device=DEVICE) if dweight is None else dweight
    return Trial(outputs=(logp, lse), token_gradients=dlogits, dweight=empty)


RUNS: dict[str, Run] = {"rms_norm": run_rms_norm, "det_gemm": run_det_gemm, "logp": run_logp}
WITH_WEIGHT = {name: RUNS[name] for name in ("rms_norm", "det_gemm")}

each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=("float32", "bfloat16"))
each_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
each_run_with_weight = pytest.mark.parametrize("run", WITH_WEIGHT.values(), ids=WITH_WEIGHT)
