"""Trials of the planted kernels, shared by the tests of power; `biprop.power` is what they try.

No test stands here. Everything is drawn by seed (`RandomDraw`), so a trial is the same each time.
"""

import os
import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

import attrs
import torch

from biprop.case import Case, Dtype
from biprop.generation import LIMITS, Limits, RandomDraw, Space, draw_case
from biprop.judgment import Outcome
from biprop.kernels.planted import Extent, Planted
from biprop.minimize import Minimised
from biprop.operators import Kernel
from biprop.power.benches import planted_bench, planted_space
from biprop.power.methods import cases_of
from biprop.power.trials import seek, shrink
from biprop.relations import JudgeOptions
from biprop.relations.invariance import judge_invariance
from biprop.signature.roles import has_contexts
from biprop.transforms import class_of, transforms_of

__all__ = [
    "FocusedDraw",
    "cases_for",
    "cases_of",
    "device_of",
    "find_failure",
    "judge_quickly",
    "minimise_failure",
    "space_of",
    "without_class",
]

# Triton compiles for no CPU, and planted kernels are summed element by element: both by one thread.
os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)

# Cases of few and short sums, where many are needed and none should take long; an interpreted
# kernel needs a millisecond a row.
SMALL = attrs.evolve(LIMITS["interpreter"], tokens_max=40, dim_max=64, dim_sequence_max=16)
# Attention sums over the tokens of a sequence once for each of its queries.
SHORT = attrs.evolve(
    SMALL, length_max=8, watched_max=2, sequences_max=4, padding_max=3, dim_sequence_max=8
)

Option = TypeVar("Option")
# What a draw of a size (`biprop.generation.sizes`) calls a boundary, and a constant of a space.
_FOCUS = ("edge", "constant")


def space_of(
    planted: Planted, dtype: Dtype, *, classes: Sequence[str] = (), is_small: bool = False
) -> Space:
    """Return what is drawn for a planted kernel and for its twin.

    Args:
        planted: The kernel.
        dtype: Of the cases.
        classes: Wanted; empty: all.
        is_small: Whether cases are small: little larger than where the defect begins to show.
    """
    limits = None
    if is_small and not planted.interpreted:
        short = has_contexts(planted.kernel().signature)
        limits = _grown(SHORT if short else SMALL, planted.extent)
    return planted_space(planted, dtype, classes=tuple(classes), limits=limits)


def _grown(limits: Limits, extent: Extent) -> Limits:
    """Return limits within which the smallest failing structure lies, with room for a transform."""
    return attrs.evolve(
        limits,
        tokens_max=max(limits.tokens_max, extent.slots + extent.slots // 8),
        dim_max=max(limits.dim_max, *extent.dims.values(), 1),
        length_max=max(limits.length_max, extent.length + 2),
    )


class FocusedDraw(RandomDraw):
    """Draws sizes at a boundary, and of those a constant, two times of three."""

    def choice(self, options: Sequence[Option]) -> Option:
        """Return one of `options`, and rather than others the words for such sizes."""
        for option in options:
            if option in _FOCUS and self.integer(0, 2):
                return option
        return super().choice(options)


def cases_for(planted: Planted, name: str, *, seed: int, count: int) -> Iterator[Case]:
    """Draw small cases of one class, in the first dtype.

    Where a planted kernel is rare, its sizes are the constants, and are preferred.
    """
    space = space_of(planted, planted.dtypes[0], classes=[name], is_small=True)
    if planted.rare is None:
        yield from cases_of(space, seed=seed, count=count)
        return
    highest = max(space.limits.tokens_max, space.limits.dim_max)
    sizes = tuple(size for size in range(2, highest + 1) if planted.rare(size))
    focused = attrs.evolve(space, constants=sizes)
    seeds = random.Random(seed)
    for _ in range(count):
        yield draw_case(FocusedDraw(seeds.getrandbits(64)), focused)


def device_of(planted: Planted) -> str:
    """Return where a planted kernel is tried: on a CPU, unless its defect shows on a GPU alone."""
    return "cpu" if "cpu" in planted.devices else "cuda"


def judge_quickly(
    kernel: Kernel, case: Case, *, rate: float | None = None, device: str = "cpu"
) -> Outcome:
    """Judge a case without measuring its evidence."""
    options = JudgeOptions(measure=False, rate=rate)
    return judge_invariance(kernel, case, device=device, options=options)


def find_failure(
    planted: Planted, dtype: Dtype, *, seed: int, count: int
) -> tuple[Case, Outcome] | None:
    """Return the first failing case of those drawn, None where none fails."""
    bench = planted_bench(planted, dtype, device=device_of(planted))
    sought = seek(bench, cases_of(bench.space, seed=seed, count=count))
    if sought.case is None or sought.outcome is None:
        return None
    return sought.case, sought.outcome


def minimise_failure(planted: Planted, case: Case, outcome: Outcome) -> Minimised:
    """Shrink a failing case as a search would."""
    bench = planted_bench(planted, case.dtype, device=device_of(planted))
    return shrink(bench, case, outcome)


def without_class(case: Case, name: str) -> Case:
    """Return a case without the transforms of one class."""
    kept = zip(case.transforms, transforms_of(case), strict=True)
    return attrs.evolve(
        case, transforms=tuple(data for data, item in kept if class_of(item) != name)
    )
