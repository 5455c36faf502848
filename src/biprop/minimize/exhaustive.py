"""Exhaustive search: the smallest structure that fails, by trying all in the order of their cost.

The yardstick of the minimiser, which only walks downhill: `ci/smallest` runs this for the planted
kernels, and `tests/power` compares what `biprop.minimize.minimise` reaches with what stands here.
Far too dear for findings.

A structure is everything of a case but its data: sequences and their lengths, transforms with
their fields, and dimensions. It fails if any of a fixed list of designs fails: a few listed
numbers, cancelling values, normal ones (`designs`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, combinations, product

import attrs

from biprop.case import Case, Judged
from biprop.data.recipe import Recipe
from biprop.errors import BipropError
from biprop.generation.legal import recipes_needed
from biprop.judgment import Outcome
from biprop.layout import CANONICAL
from biprop.layout.physical import physical
from biprop.minimize.cost import Cost, cost
from biprop.minimize.designs import designs
from biprop.sequence import LogicalSequence
from biprop.signature import Signature
from biprop.signature.roles import has_contexts
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    GatherActive,
    MoveStorage,
    PackRows,
    PadSlots,
    PermuteRows,
    PlaceWatched,
    ReplaceNeighbours,
    SplitBatch,
    Transform,
    apply_all,
    transform_to_data,
    transforms_of,
)

__all__ = ["Bounds", "Smallest", "designs", "in_words", "search_smallest", "structures"]

_ONES = Recipe(kind="ones")


@attrs.frozen(kw_only=True)
class Bounds:
    """Which structures are tried.

    Attributes:
        slots: Physical slots at most.
        dims: Largest size by free dimension.
        wide: Free dimensions above 1 at most.
        transforms: Active transforms at most, as the cost counts them.
        sequences: Watched sequences at most.
        length: Tokens of a watched sequence at most, and of a neighbour with a length of its own.
    """

    slots: int
    dims: Mapping[str, int]
    wide: int = 8
    transforms: int = 1
    sequences: int = 2
    length: int = 2


@attrs.frozen(kw_only=True)
class Smallest:
    """What a search found.

    Attributes:
        case: The first failing case in the order of the cost; None where the bounds were exhausted.
        cost: Its cost.
        structures: Structures tried.
        runs: Cases judged.
    """

    case: Case | None
    cost: Cost | None
    structures: int
    runs: int


def search_smallest(
    signature: Signature,
    base: Case,
    bounds: Bounds,
    *,
    judged: Iterable[Judged],
    judge: Callable[[Case], Outcome],
    legal: Callable[[Case], str],
) -> Smallest:
    """Return the first failing structure.

    Args:
        signature: Forward signature of the kernel, without a registered backward.
        base: Gives dtype, scalars and switches; `biprop.generation.simplest_case` does.
        bounds: Which structures are tried.
        judged: What may be compared.
        judge: Judges a case.
        legal: Says why a case is illegal, or nothing.
    """
    tried = runs = 0
    kinds = tuple(judged)
    for structure in structures(signature, base, bounds, judged=kinds, legal=legal):
        tried += 1
        for case in designs(signature, structure):
            runs += 1
            if judge(case).verdict.is_violation:
                found = cost(signature, case)
                return Smallest(case=case, cost=found, structures=tried, runs=runs)
    return Smallest(case=None, cost=None, structures=tried, runs=runs)


def structures(
    signature: Signature,
    base: Case,
    bounds: Bounds,
    *,
    judged: Iterable[Judged],
    legal: Callable[[Case], str],
) -> Iterator[Case]:
    """Yield all legal structures within bounds in the order of their cost, with ones for data."""
    for _, surroundings in sorted(_levels(signature, base, bounds, judged).items()):
        # One number of slots after the other, so that dimensions are multiplied out only as far as
        # needed.
        kept = _distinct(signature, surroundings)
        sized = (
            attrs.evolve(case, dims=dims)
            for case in kept
            for dims in _sizes(signature.free_dims, bounds)
        )
        for case in sorted(sized, key=lambda case: cost(signature, case)):
            if not legal(case):
                yield case


def _levels(
    signature: Signature, base: Case, bounds: Bounds, judged: Iterable[Judged]
) -> dict[int, list[Case]]:
    """Return sequences with compositions by slots; dimensions are 2, so that strides differ."""
    levels: dict[int, list[Case]] = {}
    for kind in judged:
        data, parameters = recipes_needed(signature, kind)
        plain = attrs.evolve(
            base,
            judged=kind,
            dims=dict.fromkeys(signature.free_dims, 2),
            data=dict.fromkeys(data, _ONES),
            policy_state=dict.fromkeys(parameters, _ONES),
        )
        for case in _surroundings(signature, plain, bounds):
            found = cost(signature, case)
            if found.slots <= bounds.slots and found.transforms <= bounds.transforms:
                levels.setdefault(found.slots, []).append(case)
    return levels


def _distinct(signature: Signature, cases: list[Case]) -> list[Case]:
    """Return the cheapest case of each call, without calls that change nothing."""
    seen = set()
    kept = []
    for case in sorted(cases, key=lambda case: cost(signature, case)):
        try:
            calls = [
                physical(signature, case, layout)
                for layout in (CANONICAL, apply_all(transforms_of(case)))
            ]
        except BipropError:
            continue
        key = (case.judged, case.sequences, calls[1])
        if calls[0] != calls[1] and key not in seen:
            seen.add(key)
            kept.append(case)
    return kept


def _surroundings(signature: Signature, plain: Case, bounds: Bounds) -> Iterator[Case]:
    """Yield sequences with compositions, some of them illegal, duplicates of one cost included."""
    lengths = range(1, bounds.length + 1)
    for count in range(1, bounds.sequences + 1):
        for chosen in product(lengths, repeat=count):
            sequences = tuple(
                LogicalSequence(id=index, length=length) for index, length in enumerate(chosen)
            )
            case = attrs.evolve(plain, sequences=sequences)
            room = bounds.slots - cost(signature, case).slots
            if room < 0:
                continue
            for composition in _compositions(signature, bounds, room):
                transforms = tuple(map(transform_to_data, composition))
                placed = attrs.evolve(case, transforms=transforms)
                yield placed
                if any(isinstance(item, GatherActive) for item in composition):
                    yield from _with_prompts(placed)


def _compositions(
    signature: Signature, bounds: Bounds, room: int
) -> Iterator[tuple[Transform, ...]]:
    cut = _schedule(bounds.slots)
    if has_contexts(signature):
        cut = chain(_schedule(bounds.length), _of_contexts(bounds, room))
    alone = tuple(chain(_padding(room), cut, _elsewhere()))
    for count in (None, *range(room + 1)):
        population = () if count is None else (AddNeighbours(count=count),)
        options = alone if count is None else (*_around(bounds, count), *alone)
        for size in range(bounds.transforms + 1):
            for chosen in combinations(options, size):
                if len({type(item) for item in chosen}) == size:
                    yield (*population, *chosen)


def _around(bounds: Bounds, count: int) -> Iterator[Transform]:
    yield PermuteRows(seed=1)
    yield PermuteRows(seed=2)
    for before in range(1, count + 1):
        yield PlaceWatched(before=before)
    if count:
        yield ReplaceNeighbours(loudness=4)
        for length in range(1, bounds.length + 1):
            yield ReplaceNeighbours(length=length)


def _padding(room: int) -> Iterator[Transform]:
    for fill in ("zero", "nan"):
        for amount in range(room + 1):
            yield PadSlots(amount=amount, fill=fill)
            yield PadSlots(side="left", amount=amount, fill=fill)
        for count in (1, 2, 3):
            yield AddDeadRows(count=count, fill=fill)


def _schedule(end: int) -> Iterator[Transform]:
    for cut in range(1, end):
        yield SplitBatch(cuts=(cut,))


def _elsewhere() -> Iterator[Transform]:
    yield GatherActive()
    yield GatherActive(scatter=1)
    yield MoveStorage(offset=1)
    yield MoveStorage(gap=1)
    yield MoveStorage(transposed=True)
    yield MoveStorage(gap=1, transposed=True)


def _of_contexts(bounds: Bounds, room: int) -> Iterator[Transform]:
    """Yield what only queries and contexts have."""
    for amount in range(1, room + 1):
        for fill in ("zero", "nan"):
            yield PadSlots(amount=amount, contexts_only=True, fill=fill)
            yield PadSlots(side="left", amount=amount, contexts_only=True, fill=fill)
    # A query alone, between two others.
    for token in range(1, bounds.length - 1):
        yield SplitBatch(cuts=(token, token + 1))
    for per_row in (2, 3):
        yield PackRows(per_row=per_row)


def _with_prompts(case: Case) -> Iterator[Case]:
    first, rest = case.sequences[0], case.sequences[1:]
    for prompt in range(1, first.length):
        sequence = attrs.evolve(first, prompt_length=prompt)
        yield attrs.evolve(case, sequences=(sequence, *rest))


def _sizes(names: tuple[str, ...], bounds: Bounds) -> Iterator[dict[str, int]]:
    for sizes in product(*(range(1, bounds.dims[name] + 1) for name in names)):
        if sum(size > 1 for size in sizes) <= bounds.wide:
            yield dict(zip(names, sizes, strict=True))


def in_words(case: Case) -> str:
    """Return the structure of a case on one line: sequences, transforms, dimensions."""
    parts = []
    for sequence in case.sequences:
        prompt = f", {sequence.prompt_length} of them prompt" if sequence.prompt_length else ""
        parts.append(f"sequence of {sequence.length}{prompt}")
    for transform in transforms_of(case):
        fields = {
            field.name: getattr(transform, field.name)
            for field in attrs.fields(type(transform))  # type: ignore[arg-type]  # a record
            if getattr(transform, field.name) != field.default
        }
        listed = ", ".join(f"{name}={value}" for name, value in fields.items())
        parts.append(f"{type(transform).__name__}({listed})")
    parts += [f"{name}={size}" for name, size in case.dims.items()]
    return "; ".join(parts)
