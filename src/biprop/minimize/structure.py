"""Shrink the structure: transforms, sequences, sizes and switches, one place at a time.

Moves that change two places at once stand in `biprop.minimize.trades`, recipes in
`biprop.minimize.recipes`.
"""

from collections.abc import Callable
from functools import partial

import attrs

from biprop.case import Case, Execution, with_value
from biprop.data.recipe import TOKENS
from biprop.errors import BipropError
from biprop.layout.records import FILLS
from biprop.minimize.edits import (
    find,
    keep_sequences,
    recipes_of,
    with_cuts_moved,
    with_ids,
    with_length,
    with_lengths,
    with_neighbours,
    with_transform,
)
from biprop.minimize.integers import descend
from biprop.minimize.points import replaced
from biprop.minimize.trial import Trial
from biprop.signature.roles import has_contexts
from biprop.transforms import AddNeighbours, PadSlots, SplitBatch

__all__ = ["finish_structure", "shrink_structure"]

_SEEDS = 4
# Numbers of transforms that have no effect below these, where the transform is dropped instead.
_LOWEST = {
    ("PlaceWatched", "before"): 1,
    ("PermuteRows", "seed"): 1,
    ("AddDeadRows", "count"): 1,
    ("PackRows", "per_row"): 2,
    ("Shards", "count"): 2,
}


def shrink_structure(trial: Trial, *, landmarks: tuple[int, ...] = ()) -> bool:
    """Lower all places once; return whether any was lowered.

    Args:
        trial: Holds the best case.
        landmarks: Empty for the first, coarse rounds.
    """
    before = trial.case
    _drop_transforms(trial)
    _drop_sequences(trial)
    _lower_lengths(trial, landmarks)
    for name in trial.case.dims:
        _lower_dim(trial, name, landmarks)
    _lower_transforms(trial, landmarks)
    return trial.case != before


def finish_structure(trial: Trial) -> bool:
    """Simplify switches, scalars, ids and the seed; return whether anything changed."""
    before = trial.case
    # Another attention backend would be another kernel, so that choice stays.
    plain = Execution(sdpa_backend=trial.case.execution.sdpa_backend)
    trial.accept(attrs.evolve(trial.case, execution=plain))
    for name, value in attrs.asdict(plain).items():
        trial.put(("execution", name), value)
    for name in trial.case.scalars:
        _ = trial.put(("scalars", name), 1.0) or trial.put(("scalars", name), 0.0)
    trial.accept(_renumbered(trial.case))
    for seed in range(min(_SEEDS, trial.case.seed)):
        if trial.put(("seed",), seed):
            break
    return trial.case != before


def _drop_transforms(trial: Trial) -> None:
    trial.accept(attrs.evolve(trial.case, transforms=()))
    index = len(trial.case.transforms) - 1
    while index >= 0:
        trial.put(("transforms", index), None)
        index -= 1
    trial.put(("shared_prefix",), 0)


def _drop_sequences(trial: Trial) -> None:
    _keep_failing_sequence(trial)
    size = len(trial.case.sequences) // 2
    while size >= 1:
        start = 0
        while start < len(trial.case.sequences) and len(trial.case.sequences) > 1:
            ids = [sequence.id for sequence in trial.case.sequences]
            kept = set(ids[:start] + ids[start + size :])
            if not kept or not _keep(trial, kept):
                start += size
        size //= 2


def _keep_failing_sequence(trial: Trial) -> None:
    mismatches = trial.outcome.mismatches
    if len(trial.case.sequences) > 1 and mismatches and mismatches[0].first.sequence_id >= 0:
        _keep(trial, {mismatches[0].first.sequence_id})


def _keep(trial: Trial, ids: set[int]) -> bool:
    """Keep some sequences, with or without neighbours in place of the others."""
    case = trial.case
    kept = keep_sequences(case, ids)
    if not kept.sequences:
        return False
    if trial.accept(kept):
        return True
    if case.judged == "parameter_gradients":
        return False
    present = find(case, AddNeighbours)
    count = present.count if present else 0
    dropped = [sequence.length for sequence in case.sequences if sequence.id not in ids]
    return trial.accept(with_neighbours(kept, count + len(dropped))) or trial.accept(
        with_neighbours(kept, count + sum(dropped))
    )


def _lower_lengths(trial: Trial, landmarks: tuple[int, ...]) -> None:
    for index in range(len(trial.case.sequences)):
        length = trial.case.sequences[index].length
        put = partial(_put_length, trial, index)
        reached = descend(put, value=length, low=1, landmarks=landmarks)
        if reached == length > 1:
            # Rows of a signature without mask or lengths must stay equally long.
            put = partial(_put_length, trial, None)
            descend(put, value=length, low=1, landmarks=landmarks)
        for name in ("prompt_length", "position_start"):
            _lower(trial, ("sequences", index, name), low=0, landmarks=landmarks)
    if has_contexts(trial.signature) and len(trial.case.sequences) > 1:
        # A shorter row beside a long one is only more dead slots, so all become shorter at once.
        shortest = min(sequence.length for sequence in trial.case.sequences)
        descend(partial(_put_shortest, trial), value=shortest, low=1, landmarks=landmarks)


def _put_shortest(trial: Trial, length: int) -> bool:
    less = min(sequence.length for sequence in trial.case.sequences) - length

    def edit(case: Case) -> Case:
        for index, sequence in enumerate(case.sequences):
            case = with_length(case, index, sequence.length - less)
        return case

    longest = max(sequence.length for sequence in trial.case.sequences)
    return _try(trial, edit, (TOKENS, longest - less))


def _put_length(trial: Trial, index: int | None, length: int) -> bool:
    def edit(case: Case) -> Case:
        return with_lengths(case, length) if index is None else with_length(case, index, length)

    if _try(trial, edit, (TOKENS, length)):
        return True
    old = trial.case.sequences[index or 0].length

    def along(case: Case) -> Case:
        # Cuts at tokens: one before the end stays there, as in decode.
        return with_cuts_moved(edit(case), old - length)

    if has_contexts(trial.signature) and find(trial.case, SplitBatch) is not None:
        return _try(trial, along, (TOKENS, length)) or _try_seeds(trial, along)
    return _try_seeds(trial, edit)


def _try_seeds(trial: Trial, edit: Callable[[Case], Case]) -> bool:
    """Try a shorter sequence with other values: what tells at one length may not at another."""
    drawn = {recipe.kind for recipe in recipes_of(trial.case).values()}
    if drawn <= {"zeros", "ones", "explicit"} or not trial.signature.sequence_wise:
        return False
    try:
        shorter = edit(trial.case)
    except BipropError:
        return False
    return any(trial.accept(attrs.evolve(shorter, seed=seed)) for seed in range(2))


def _lower_dim(trial: Trial, name: str, landmarks: tuple[int, ...]) -> None:
    path = ("dims", name)
    descend(
        lambda value: _try(trial, lambda case: with_value(case, path, value), (name, value)),
        value=trial.case.dims[name],
        low=1,
        landmarks=landmarks,
    )


def _try(trial: Trial, edit: Callable[[Case], Case], size: tuple[str, int]) -> bool:
    """Try a smaller size, then the same with listed values in other places."""
    try:
        candidate = edit(trial.case)
    except BipropError:
        return False
    return trial.accept(candidate) or any(
        trial.accept(again) for again in replaced(candidate, axis=size[0], size=size[1])
    )


def _lower(
    trial: Trial, path: tuple[int | str, ...], *, low: int, landmarks: tuple[int, ...]
) -> None:
    value = trial.get(path)
    assert isinstance(value, int)
    descend(lambda new: trial.put(path, new), value=value, low=low, landmarks=landmarks)


def _lower_transforms(trial: Trial, landmarks: tuple[int, ...]) -> None:
    neighbours = find(trial.case, AddNeighbours)
    if neighbours is not None:
        descend(
            lambda count: trial.accept(with_neighbours(trial.case, count)),
            value=neighbours.count,
            low=0,
            landmarks=landmarks,
        )
    pad = find(trial.case, PadSlots)
    if pad is not None and has_contexts(trial.signature):
        # Fewer dead slots; the bool that says so counts less than they do.
        trial.accept(with_transform(trial.case, attrs.evolve(pad, contexts_only=True)))
    for index, data in enumerate(trial.case.transforms):
        for name, value in data.values.items():
            path = ("transforms", index, "values", name)
            if isinstance(value, bool):
                trial.put(path, value=False)
            elif isinstance(value, int):
                low = _LOWEST.get((data.name, name), 0)
                # A seed is no size: only its smallest values are simpler.
                marks = () if name in {"seed", "scatter"} else landmarks
                _lower(trial, path, low=low, landmarks=marks)
            elif isinstance(value, tuple):
                _move_cuts(trial, landmarks)
                _lower_cuts(trial, path, landmarks)
            elif name != "form":
                # A form is no simpler than another: it is needed, or goes with its transform.
                _simplify_word(trial, path, value)


def _move_cuts(trial: Trial, landmarks: tuple[int, ...]) -> None:
    """Move cuts at tokens towards the first one together: the launches between them stay as long.

    A launch of one query, as in decode, would be another launch if only one of its cuts moved.
    """
    split = find(trial.case, SplitBatch)
    if split is None or len(split.cuts) < 2 or not has_contexts(trial.signature):
        return
    first = split.cuts[0]
    put = partial(_put_first_cut, trial)
    descend(put, value=first, low=1, landmarks=landmarks)


def _put_first_cut(trial: Trial, cut: int) -> bool:
    split = find(trial.case, SplitBatch)
    assert split is not None, "moving cuts keeps them"
    return trial.accept(with_cuts_moved(trial.case, split.cuts[0] - cut))


def _lower_cuts(trial: Trial, path: tuple[int | str, ...], landmarks: tuple[int, ...]) -> None:
    index = 0
    while index < len(_cuts(trial, path)):
        cuts = _cuts(trial, path)
        if len(cuts) > 1 and trial.put(path, cuts[:index] + cuts[index + 1 :]):
            continue
        low = cuts[index - 1] + 1 if index else 1
        put = partial(_put_cut, trial, path, index)
        descend(put, value=cuts[index], low=low, landmarks=landmarks)
        index += 1


def _put_cut(trial: Trial, path: tuple[int | str, ...], index: int, cut: int) -> bool:
    cuts = _cuts(trial, path)
    return trial.put(path, (*cuts[:index], cut, *cuts[index + 1 :]))


def _cuts(trial: Trial, path: tuple[int | str, ...]) -> tuple[int, ...]:
    cuts = trial.get(path)
    assert isinstance(cuts, tuple)
    return cuts


def _simplify_word(trial: Trial, path: tuple[int | str, ...], value: str) -> None:
    simpler = FILLS[: FILLS.index(value)] if value in FILLS else ("right",)
    for word in simpler:
        if word == value or trial.put(path, word):
            break


def _renumbered(case: Case) -> Case:
    """Return `case` with ids from 0 on."""
    return with_ids(case, {item.id: index for index, item in enumerate(case.sequences)})
