"""Expansion on a GPU: one launch of one kernel for a whole tensor.

The torch operations of `biprop.data.block` and `biprop.data.kinds` need dozens of launches for each
block of a tensor. They are the definition, and serve every other device; the kernel gives the same
bits. Triton is imported by the first tensor that is expanded by it.
"""

import contextlib
import functools
import importlib.util
import math
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from biprop.data.block import Block
from biprop.data.kinds.ties_exponentials import exponentials_tables
from biprop.data.plan import CODES, Plan, plan_of
from biprop.data.recipe import Recipe
from biprop.data.transfer import moved

__all__ = ["expand_by_kernel", "expand_plan", "has_kernel", "takes_kernel"]

# Slices and elements of a tile: rows of a few hundred elements lie side by side, longer ones alone,
# so that the rows of a mixture, each of another recipe, seldom share a program.
_TILE_SHORT = (8, 128)
_TILE_LONG = (1, 1024)
_WIDTH_SHORT_MAX = 512
# Elements of a slice that one program expands, where they do not depend on each other.
_SPAN = 8192
# By device, dtypes and what is fixed when it is compiled: before every launch of a function Triton
# asks of each of its many constants whether it changed, which takes longer than the launch.
_COMPILED: dict[tuple[object, ...], Any] = {}
# Counts are 32-bit numbers in the kernel; where an element lies is a 64-bit one.
_COUNT_MAX = 1 << 30


def takes_kernel(recipe: Recipe, block: Block) -> bool:
    """Return whether a tensor is expanded by the kernel: on a GPU, where Triton compiles for it.

    Mixtures of mixtures and tensors of more slices than 32 bits count are left to torch.
    """
    if block.device.type != "cuda" or not has_kernel():
        return False
    kinds = [recipe.kind] if recipe.kind != "mix" else [inner.kind for inner in recipe.rows]
    slices = _slice_count(block) * math.ceil(block.sizes[-1] / _SPAN)
    return all(kind in CODES for kind in kinds) and max(slices, block.sizes[-1]) < _COUNT_MAX


@functools.cache
def has_kernel() -> bool:
    """Return whether Triton is there and compiles: its interpreter would be slower than torch."""
    return importlib.util.find_spec("triton") is not None and not _is_interpreted()


def expand_by_kernel(
    recipe: Recipe, block: Block, *, tile: tuple[int, int] | None = None
) -> Tensor:
    """Return a whole tensor of `block`'s dtype, `[rows, *sizes]`, from one launch.

    Args:
        recipe: What it holds.
        block: The tensor, whose `coordinates` are not looked at. On the CPU Triton's interpreter
            expands it, for tests.
        tile: Slices and elements of a tile, powers of two, if not by the size of the last axis.

    Raises:
        CaseError: A point names an axis that the tensor does not have.
    """
    return expand_plan(plan_of(recipe, block), block, tile=tile)


def expand_plan(
    plan: Plan, block: Block, *, tile: tuple[int, int] | None = None, table: Tensor | None = None
) -> Tensor:
    """Return what `expand_by_kernel` does, of a plan whose table may lie on the device already."""
    rows = 1 if block.tokens is None else block.tokens.count
    out = torch.empty((rows, *block.sizes), dtype=block.number_format.dtype, device=block.device)
    if tile is None:
        tile = _TILE_SHORT if block.sizes[-1] <= _WIDTH_SHORT_MAX else _TILE_LONG
    with _selected(block.device):
        _launch(plan, block, out, tile, moved(plan.table, block.device) if table is None else table)
    return out


def _launch(plan: Plan, block: Block, out: Tensor, tile: tuple[int, int], table: Tensor) -> None:
    slices, width = _slice_count(block), block.sizes[-1]
    span = _SPAN if plan.by_element else width
    parts = math.ceil(width / span)
    allowed, costs, crowd = exponentials_tables(block.device)
    tokens = block.tokens
    nothing = _nothing(block.device)
    kernel = _kernel_module()
    grid = (math.ceil(slices / tile[0]) * parts, 1, 1)
    arguments = (
        out,
        table,
        nothing if tokens is None else tokens.sequence_id.contiguous(),
        nothing if tokens is None else tokens.token.contiguous(),
        nothing if tokens is None else tokens.length.contiguous(),
        table if block.target is None else block.target.long().contiguous(),
        allowed,
        costs,
        crowd,
        slices,
        math.prod(block.sizes[:-1]),
        len(block.sizes) - 1,
        width,
        0 if tokens is None else tokens.count,
        plan.first,
        plan.record_count,
        plan.record_size,
        span,
        parts,
        len(costs),
    )
    fixed = {"CODES": plan.codes, "MIXED": plan.mixed, "R": tile[0], "W": tile[1]}
    if _is_interpreted():
        kernel.expand_slices[grid](*arguments, **fixed)
        return
    dtypes = (item.dtype for item in arguments if isinstance(item, Tensor))
    key = (out.device, *dtypes, *fixed.values())
    compiled = _COMPILED.get(key)
    if compiled is None:
        _COMPILED[key] = kernel.expand_slices[grid](*arguments, **fixed, **kernel.OPTIONS)
    else:
        compiled[grid](*arguments, *fixed.values())


def _slice_count(block: Block) -> int:
    rows = 1 if block.tokens is None else block.tokens.count
    return rows * math.prod(block.sizes[:-1])


def _selected(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which Triton launches on a device."""
    if device.type == "cuda":
        return torch.cuda.device(device)
    # The interpreter computes with numpy, which warns of what is cut to the dtype's range below.
    return np.errstate(all="ignore")


@functools.cache
def _nothing(device: torch.device) -> Tensor:
    """Return what stands for the tokens of a parameter, and is not read."""
    return torch.zeros(1, dtype=torch.int32, device=device)


@functools.cache
def _kernel_module() -> ModuleType:
    # Imported on use: Triton is slow to import, and not everywhere installed.
    from biprop.data import device_triton  # noqa: PLC0415

    return device_triton


@functools.cache
def _is_interpreted() -> bool:
    # Triton decides when the function is defined, so the function is asked.
    from triton.runtime.jit import JITFunction  # noqa: PLC0415

    return not isinstance(_kernel_module().expand_slices, JITFunction)
