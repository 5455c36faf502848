"""Trials of the planted kernels, shared by the tests of power: draw, find, minimise.

No test stands here. Everything is drawn by seed (`RandomDraw`), so a trial is the same each time.
"""

import os
import random
from collections.abc import Iterator, Sequence

import attrs
import torch

from biprop.case import Case, Dtype
from biprop.execution.nonzeros import nonzeros_of
from biprop.generation import LIMITS, RandomDraw, Space, draw_case, legal_for, wanted_classes
from biprop.judgment import Outcome
from biprop.kernels.planted import Planted
from biprop.loading import source_constants
from biprop.minimize import Minimised, minimise
from biprop.operators import Kernel
from biprop.relations import JudgeOptions
from biprop.relations.invariance import judge_invariance
from biprop.signature.roles import has_contexts
from biprop.transforms import class_of, transforms_of

__all__ = [
    "cases_of",
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
TINY = attrs.evolve(SMALL, tokens_max=6, length_max=4, watched_max=1, dim_max=12, padding_max=2)


def space_of(
    planted: Planted, dtype: Dtype, *, classes: Sequence[str] = (), is_small: bool = False
) -> Space:
    """Return what is drawn for a planted kernel and for its twin."""
    kernel = planted.kernel()
    limits = LIMITS["cpu"]
    if is_small:
        limits = SHORT if has_contexts(kernel.signature) else SMALL
    return Space(
        signature=kernel.signature,
        restrictions=kernel.restrictions,
        dtype=dtype,
        direction=planted.direction,
        classes=wanted_classes(classes),
        constants=source_constants(kernel.function),
        limits=TINY if planted.interpreted else limits,
    )


def cases_of(space: Space, *, seed: int, count: int) -> Iterator[Case]:
    """Draw cases; another seed draws others."""
    seeds = random.Random(seed)
    for _ in range(count):
        yield draw_case(RandomDraw(seeds.getrandbits(64)), space)


def judge_quickly(kernel: Kernel, case: Case, *, rate: float | None = None) -> Outcome:
    """Judge a case without measuring its evidence."""
    return judge_invariance(kernel, case, options=JudgeOptions(measure=False, rate=rate))


def find_failure(
    planted: Planted, space: Space, *, seed: int, count: int
) -> tuple[Case, Outcome] | None:
    """Return the first failing case of those drawn, None where none fails."""
    kernel = planted.kernel()
    for case in cases_of(space, seed=seed, count=count):
        outcome = judge_quickly(kernel, case)
        if outcome.verdict.is_violation:
            return case, outcome
    return None


def minimise_failure(planted: Planted, case: Case, outcome: Outcome) -> Minimised:
    """Shrink a failing case as a search would."""
    kernel = planted.kernel()
    seen: dict[str, Outcome] = {}

    def judge(candidate: Case) -> Outcome:
        # A verdict is sticky, as in a search.
        key = candidate.digest
        if key not in seen:
            seen[key] = judge_quickly(kernel, candidate, rate=outcome.rate)
        return seen[key]

    return minimise(
        case,
        outcome,
        judge=judge,
        signature=kernel.signature,
        legal=legal_for(kernel),
        nonzeros=nonzeros_of(kernel.signature),
        constants=source_constants(kernel.function),
    )


def without_class(case: Case, name: str) -> Case:
    """Return a case without the transforms of one class."""
    kept = zip(case.transforms, transforms_of(case), strict=True)
    return attrs.evolve(
        case, transforms=tuple(data for data, item in kept if class_of(item) != name)
    )
