"""The switches of the process that a case fixes, set around its launches and put back after.

They are chosen in `biprop.case.Execution`; what the process had is told by `biprop.provenance`.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import attrs
import torch
from torch.backends import cuda, cudnn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import deterministic

from biprop.case import Execution, SdpaBackend

__all__ = ["switched"]

_SDPA: Mapping[SdpaBackend, SDPBackend] = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@contextmanager
def switched(execution: Execution) -> Iterator[None]:
    """Set what `execution` says, where the process has it otherwise, until the block ends."""
    before = _state()
    try:
        _set(_wanted(execution), before)
        with _attention(execution.sdpa_backend):
            yield
    finally:
        _set(before, _state())


@attrs.frozen(kw_only=True)
class _State:
    """Switches by the names that torch has for them."""

    threads: int
    deterministic: bool
    fill_uninitialized: bool
    matmul_tf32: bool
    cudnn_tf32: bool
    # Reduced precision, and whether a product may be split over its inner dimension.
    bf16_reduced: tuple[bool, bool]
    fp16_reduced: tuple[bool, bool]


@cache
def _wanted(execution: Execution) -> _State:
    return _State(
        threads=execution.threads,
        deterministic=execution.deterministic_algorithms,
        # Memory without values is poisoned by `biprop.execution.poison`, in either mode.
        fill_uninitialized=False,
        matmul_tf32=execution.tf32,
        cudnn_tf32=execution.tf32,
        bf16_reduced=(execution.bf16_reduced_precision, True),
        fp16_reduced=(execution.fp16_reduced_precision, True),
    )


def _state() -> _State:
    return _State(
        threads=torch.get_num_threads(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        fill_uninitialized=deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]  # torch gives its module a property
        matmul_tf32=cuda.matmul.allow_tf32,
        cudnn_tf32=cudnn.allow_tf32,
        bf16_reduced=(
            cuda.matmul.allow_bf16_reduced_precision_reduction,
            cuda.matmul.allow_bf16_reduced_precision_reduction_split_k,
        ),
        fp16_reduced=(
            cuda.matmul.allow_fp16_reduced_precision_reduction,
            cuda.matmul.allow_fp16_reduced_precision_reduction_split_k,
        ),
    )


def _set(wanted: _State, has: _State) -> None:
    if wanted == has:
        return
    if has.threads != wanted.threads:
        torch.set_num_threads(wanted.threads)
    if has.deterministic != wanted.deterministic:
        torch.use_deterministic_algorithms(wanted.deterministic)
    if has.fill_uninitialized != wanted.fill_uninitialized:
        deterministic.fill_uninitialized_memory = wanted.fill_uninitialized  # type: ignore[attr-defined]  # likewise
    if has.matmul_tf32 != wanted.matmul_tf32:
        cuda.matmul.allow_tf32 = wanted.matmul_tf32
    if has.cudnn_tf32 != wanted.cudnn_tf32:
        cudnn.allow_tf32 = wanted.cudnn_tf32
    if has.bf16_reduced != wanted.bf16_reduced:
        cuda.matmul.allow_bf16_reduced_precision_reduction = wanted.bf16_reduced
    if has.fp16_reduced != wanted.fp16_reduced:
        cuda.matmul.allow_fp16_reduced_precision_reduction = wanted.fp16_reduced


def _attention(backend: SdpaBackend) -> AbstractContextManager[object]:
    return nullcontext() if backend == "any" else sdpa_kernel(_SDPA[backend])
