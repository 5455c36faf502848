"""The thirteen fixed configurations that RL-Kernel's forward harness runs, as cases.

Four samples of 11, 16, 13 and 19 tokens with prompts of 8: all in one launch, the same in chunks of
7, each alone, each alone in chunks, permuted to 2-0-3-1, and padded to 20 slots on either side
(https://github.com/RL-Align/RL-Kernel, `build_config_matrix` of its forward invariance harness on
the workload `ws1-qwen3-8b-dense-primary-v6`). There the batch is the canonical side and here each
sample alone is: so the four single samples are the canonical side of the batch's case, which
compares them with it, and those in chunks share a case too. Generated cases
(`biprop.generation.generator`) go far beyond these; they stand beside them, so that no
configuration that others gate on depends on luck.

In Triton's interpreter a launch costs so much that these cases would take longer than the whole
search: there several configurations are composed into one case, as far as they are legal together.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import attrs

from biprop.case import Case, Judged
from biprop.data.recipe import SEQUENCES, TOKENS
from biprop.errors import BipropError
from biprop.generation.classes import wanted_classes
from biprop.generation.data_mixture import Data, draw_data
from biprop.generation.draw import RandomDraw
from biprop.generation.generator import illegal_in, judged_in, simplest_case
from biprop.generation.sizes import settled_sizes
from biprop.generation.space import Space
from biprop.layout.records import Fill, Side
from biprop.sequence import LogicalSequence
from biprop.signature.roles import has_contexts
from biprop.transforms import (
    AddNeighbours,
    PadSlots,
    PermuteRows,
    SplitBatch,
    Transform,
    class_of,
    transform_to_data,
)

__all__ = [
    "CONFIGURATIONS",
    "FixedConfiguration",
    "fixed_cases",
    "fixed_configurations",
    "is_composed",
]

# As that harness orders them.
CONFIGURATIONS = (
    "batch",
    "batch, chunked",
    *(f"sample {index}" for index in range(4)),
    *(f"sample {index}, chunked" for index in range(4)),
    "batch, permuted",
    "batch, padded right",
    "batch, padded left",
)
_LENGTHS = (11, 16, 13, 19)
_PROMPT = 8
_CHUNK = 7
_PADDED = 20
_SAMPLES = tuple(
    LogicalSequence(id=index, length=length, prompt_length=_PROMPT)
    for index, length in enumerate(_LENGTHS)
)
# Which configurations have a case of their own, and which share one where cases are dear. The
# samples alone are the canonical side of the batch, or its launches where gradients of parameters
# are added up over a complete set.
_SEPARATE = (
    ("batch", "sample 0", "sample 1", "sample 2", "sample 3"),
    ("batch, chunked",),
    ("sample 0, chunked", "sample 1, chunked", "sample 2, chunked", "sample 3, chunked"),
    ("batch, permuted",),
    ("batch, padded right",),
    ("batch, padded left",),
)
_COMPOSED = (
    (*_SEPARATE[0], "batch, permuted", "batch, padded left"),
    ("batch, chunked", *_SEPARATE[2], "batch, padded right"),
)
# Of `PermuteRows`, the first one that puts four samples into the order 2, 0, 3, 1.
PERMUTATION_SEED = 17
# Padding holds a token there. Where a sum over tokens is compared it may not spoil it.
_FILLS: tuple[Fill, ...] = ("large", "one")
_NO_CHUNKS = "A launch holds whole sequences, whose tokens are not cut into chunks."
# Sums of fewer terms hide a changed order from narrow dtypes; other sizes only cost time.
_TERMS = 64
_OTHER = 4
# The size of heads multiplies the square of a length.
_TERMS_OF_CONTEXTS = 16
# Draws of data for each configuration, of which the most revealing one is taken.
_DRAWS = 32
# How surely a design shows another order of sums.
_SCORES = {
    "ties_squares": 3,
    "ties_exponentials": 3,
    "peak_keys": 3,
    "pairs": 2,
    "swamp": 2,
    "peak_squares": 1,
    "peak_exponentials": 1,
    "mix": 1,
}
# What an upstream gradient adds whose pairs meet in the sums that are judged.
_FITTING = 4
_CONSTANT = {"zeros", "ones"}


@attrs.frozen(kw_only=True)
class FixedConfiguration:
    """One configuration and one thing that is compared in it.

    Attributes:
        name: One of `CONFIGURATIONS`.
        judged: What is compared.
        case: Several configurations share one; None where the kernel cannot take it.
        reason: Why it cannot.
    """

    name: str
    judged: Judged
    case: Case | None = None
    reason: str = ""


def is_composed(space: Space) -> bool:
    """Return whether the cases are too dear for the lane, so that configurations share them."""
    return sum(_LENGTHS) > space.limits.tokens_max


def fixed_cases(space: Space) -> tuple[Case, ...]:
    """Return the cases of the configurations that a kernel can take, each once."""
    found = (item.case for item in fixed_configurations(space))
    return tuple({case.digest: case for case in found if case is not None}.values())


def fixed_configurations(space: Space) -> tuple[FixedConfiguration, ...]:
    """Return all thirteen configurations, for everything that can be judged in a space.

    Dimensions are small, data reveal the order of sums wherever the mixture of the space has such
    designs, and the same space gives the same cases.
    """
    try:
        kinds = judged_in(space)
        sizes = _sizes(space)
    except BipropError as error:
        return tuple(
            FixedConfiguration(name=name, judged="outputs", reason=str(error))
            for name in CONFIGURATIONS
        )
    groups = _COMPOSED if is_composed(space) else _SEPARATE
    return tuple(
        configuration
        for judged in kinds
        for number, names in enumerate(groups)
        for configuration in _group(space, names, judged, sizes, number=number)
    )


def _group(
    space: Space, names: Sequence[str], judged: Judged, sizes: dict[str, int], *, number: int
) -> tuple[FixedConfiguration, ...]:
    """Return configurations that share a case: what each adds to it, if it is legal there."""
    data = _data(space, sizes, judged=judged, number=number)
    case = attrs.evolve(
        simplest_case(space),
        judged=judged,
        dims=sizes,
        sequences=_SAMPLES,
        data=data.data,
        policy_state=data.policy_state,
        seed=number,
    )
    composed: tuple[Transform, ...] = ()
    reasons: dict[str, str] = {}
    for name in names:
        reasons[name] = _NO_CHUNKS
        for transforms in _compositions(space, name, judged):
            added = [item for item in transforms if item not in composed]
            trial = (*composed, *added)
            reasons[name] = _unwanted(space, trial) or illegal_in(space, _with(case, trial))
            if not reasons[name]:
                composed = trial
                break
    case = _with(case, composed)
    return tuple(
        FixedConfiguration(name=name, judged=judged, case=None if reason else case, reason=reason)
        for name, reason in reasons.items()
    )


def _with(case: Case, transforms: Sequence[Transform]) -> Case:
    return attrs.evolve(case, transforms=tuple(map(transform_to_data, transforms)))


def _compositions(space: Space, name: str, judged: Judged) -> tuple[tuple[Transform, ...], ...]:
    """Return compositions that make a configuration; the first one that is legal is taken."""
    what, _, how = name.partition(", ")
    is_complete = judged == "parameter_gradients"
    # Where the samples in chunks share a case with the batch, they are in the batch too.
    is_batch = what == "batch" or is_composed(space)
    together: tuple[Transform, ...] = ()
    if not is_complete and (is_batch or not how):
        together = (AddNeighbours(count=0),)
    if how == "permuted":
        return ((*together, PermuteRows(seed=PERMUTATION_SEED)),)
    if how.startswith("padded"):
        side: Side = "left" if how.endswith("left") else "right"
        amount = _padding(space)
        return tuple((*together, PadSlots(side=side, amount=amount, fill=fill)) for fill in _FILLS)
    if how == "chunked":
        cuts = _chunk_cuts(space, is_batch=is_batch, is_complete=is_complete)
        return ((*together, SplitBatch(cuts=cuts)),) if cuts else ()
    if is_complete:
        return ((SplitBatch(cuts=tuple(range(1, len(_SAMPLES)))),),)
    return (together,)


def _padding(space: Space) -> int:
    """Return how many dead slots pad every sample; end to end they lie beside all of them."""
    if space.signature.layout in {"padded", "query_context"}:
        return _PADDED - max(_LENGTHS)
    return sum(_PADDED - length for length in _LENGTHS)


def _chunk_cuts(space: Space, *, is_batch: bool, is_complete: bool) -> tuple[int, ...]:
    """Return where tokens are cut into chunks; nowhere where launches hold whole sequences."""
    signature = space.signature
    is_whole = is_complete and (space.backward_signature or signature).sequence_wise
    if not has_contexts(signature) and (is_whole or not signature.token_wise):
        return ()
    if has_contexts(signature) or not (is_batch or is_complete):
        # Each sample is cut by itself.
        return tuple(range(_CHUNK, max(_LENGTHS), _CHUNK))
    ends = [0, *accumulate(_LENGTHS)]
    return tuple(
        cut
        for start, end in pairwise(ends)
        for cut in (*range(start + _CHUNK, end, _CHUNK), end)
        if cut < ends[-1]
    )


def _unwanted(space: Space, transforms: Sequence[Transform]) -> str:
    wanted = wanted_classes(space.classes)
    others = [name for name in map(class_of, transforms) if name not in wanted]
    return f"{others[0]} was not asked for." if others else ""


def _sizes(space: Space) -> dict[str, int]:
    """Return small dimensions; those that are summed over hold enough terms.

    Raises:
        RestrictionError: No sizes meet the restrictions.
    """
    signature = space.signature
    restrictions = space.restrictions.check_against(signature)
    in_contexts = has_contexts(signature)
    summed = [name for name in signature.contracted_dims if name in signature.free_dims]
    if space.op_class == "elementwise" and space.direction == "backward":
        # Rows of a table are picked, not summed: the gradients of few of them have several terms.
        summed = []
    # Without a contraction, sums are within the rows of an input; scores always are.
    last = [item.free_dims[-1].name for item in signature.token_arguments if item.free_dims]
    long = (not in_contexts and summed) or last
    terms = _TERMS_OF_CONTEXTS if in_contexts else _TERMS
    if space.direction == "backward" and not in_contexts:
        # A gradient is a sum over what an output has.
        long += [item.free_dims[-1].name for item in signature.judged_outputs if item.free_dims]
    sizes = {name: terms if name in long else _OTHER for name in signature.free_dims}
    if is_composed(space):
        # Heads make launches of many programs, which the interpreter runs one by one.
        heads = {dim.name for item in signature.token_arguments for dim in item.free_dims[:-1]}
        sizes |= {name: 2 if in_contexts else 1 for name in sizes if name in heads}
    for condition in restrictions.remainders:
        if isinstance(condition.divisor, str) and not condition.remainder:
            # Two query heads share one of keys.
            sizes[condition.divisor] = max(1, sizes[condition.name] // 2)
    return settled_sizes(sizes, restrictions, keep=[name for name in long if name is not None])


def _data(space: Space, sizes: dict[str, int], *, judged: Judged, number: int) -> Data:
    """Return the most revealing recipes of a few draws, other ones for each configuration."""
    drawn = [
        draw_data(
            RandomDraw(number * _DRAWS + step),
            space.signature,
            sizes,
            judged=judged,
            backward_signature=space.backward_signature,
            op_class=space.op_class,
            length=max(_LENGTHS),
        )
        for step in range(_DRAWS)
    ]
    return max(drawn, key=lambda found: _score(found, judged))


def _score(data: Data, judged: Judged) -> tuple[int, bool]:
    recipes = (*data.data.values(), *data.policy_state.values())
    designs = sum(_SCORES.get(recipe.kind, 0) for recipe in recipes)
    # What a gradient is a sum over: other pairs cancel in no term of it, and other pairs of
    # sequences have only one of the two among the samples.
    fitting = sum(
        0 < pairing.mask < len(_SAMPLES) if axis == SEQUENCES else axis != TOKENS
        for name, recipe in data.data.items()
        for axis, pairing in recipe.pairing.items()
        if name.startswith("d") and (axis == SEQUENCES) == (judged == "parameter_gradients")
    )
    # An operator without sums only has to tell rows apart.
    return designs + _FITTING * fitting, any(item.kind not in _CONSTANT for item in recipes)
