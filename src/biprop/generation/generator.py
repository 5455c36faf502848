"""Draw one case: classes, population, dimensions, composition, data.

Every case is legal by construction. The order of the questions puts structure before numbers and
the simplest answer first, so that a case drawn choice by choice shrinks well (`biprop.strategies`).
"""

import math

from biprop.case import Against, Case, Judged
from biprop.errors import UnsupportedError
from biprop.generation.classes import judged_kinds
from biprop.generation.composition import draw_classes, draw_transforms
from biprop.generation.conditioned import draw_conditioned, rescaled
from biprop.generation.data_mixture import draw_data, simplest_data
from biprop.generation.draw import Draw
from biprop.generation.exact import exact_rows, with_exact_rows
from biprop.generation.legal import illegal
from biprop.generation.population import Population, draw_alone, draw_population, pairs_of
from biprop.generation.room import (
    SCORES_MAX,
    costs,
    room_for_tokens,
    scores,
    smallest,
    work_max,
)
from biprop.generation.sizes import draw_size, settled_sizes
from biprop.generation.space import Limits, Space
from biprop.sequence import LogicalSequence
from biprop.signature import Restrictions
from biprop.signature.roles import has_contexts
from biprop.transforms import transform_to_data

__all__ = [
    "draw_case",
    "draw_sizes",
    "illegal_in",
    "judged_in",
    "simplest_case",
]

# Drawn values of `scalar` arguments: usual first, then those that only scalars may have.
_SCALARS = (1.0, 1e-6, 1e-5, 0.5, 2.0, 0.0, -0.25)
_SCALARS_USUAL = _SCALARS[:5]
# Query heads that share one head of keys; 1 leaves the sizes as they were drawn.
_GROUPS = (1, 1, 2, 2, 4, 8)
# Narrow dtypes show a changed order only in sums of many terms.
_TERMS_MIN = 64
# Terms of the shortest sums that are swept.
_SWEPT_TERMS_MIN = 8
# Terms of a sum that the other sizes of a product leave room for, where they can.
_PRODUCT_TERMS = 8


def draw_case(draw: Draw, space: Space, *, allow_empty: bool = False) -> Case:
    """Draw one legal case.

    Args:
        draw: Source of choices; the same choices give the same case.
        space: What may be drawn; where it says `only`, a case of relation A or P, which has no
            transforms.
        allow_empty: Allow a case without transforms, which shows nothing.

    Raises:
        RestrictionError: No sizes meet the restrictions.
        UnsupportedError: The signature has nothing to judge in this direction.
    """
    if space.only is not None:
        return _draw_against(draw, space, space.only)
    # Gradients of parameters ask fewer questions, which a shrinker takes for simpler: so they are
    # the first option.
    judged = draw.choice(judged_in(space)[::-1])
    present = draw_classes(draw, space, judged=judged, allow_empty=allow_empty)
    population = draw_population(
        draw, space, judged=judged, present=present, tokens_max=room_for_tokens(space)
    )
    transforms = draw_transforms(draw, space, population, judged=judged, present=present)
    if space.is_swept and space.signature.token_wise:
        population, transforms = with_exact_rows(draw, space, population, transforms)
    sizes = draw_sizes(draw, space, population)
    data = draw_data(
        draw,
        space.signature,
        sizes,
        judged=judged,
        backward_signature=space.backward_signature,
        op_class=space.op_class,
        length=max(sequence.length for sequence in population.sequences),
        is_narrow=space.dtype != "float32",
    )
    return Case(
        dtype=space.dtype,
        judged=judged,
        dims=sizes,
        sequences=population.sequences,
        shared_prefix=population.shared_prefix,
        data=data.data,
        policy_state=data.policy_state,
        scalars={item.name: draw.choice(_SCALARS) for item in space.signature.scalars},
        transforms=tuple(transform_to_data(transform) for transform in transforms),
        execution=space.execution,
        seed=draw.integer(0, (1 << 32) - 1),
    )


def _draw_against(draw: Draw, space: Space, against: Against) -> Case:
    """Draw one case of relation A or P: sequences alone, on conditioned data."""
    judged = draw.choice(judged_in(space)[::-1])
    population = draw_alone(draw, space, judged=judged, tokens_max=room_for_tokens(space))
    backward_signature = space.backward_signature
    data, policy_state = draw_conditioned(
        draw, space.signature, judged=judged, backward_signature=backward_signature
    )
    case = Case(
        dtype=space.dtype,
        judged=judged,
        dims=_with_choices(space, draw_sizes(draw, space, population)),
        sequences=population.sequences,
        data=data,
        policy_state=policy_state,
        scalars={item.name: draw.choice(_SCALARS_USUAL) for item in space.signature.scalars},
        execution=space.execution,
        seed=draw.integer(0, (1 << 32) - 1),
        against=against,
    )
    return rescaled(space.signature, case, backward_signature=backward_signature)


def _with_choices(space: Space, sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes with two ids at least: of one alone, the gradient of a logprob is zero."""
    for argument in space.signature.arguments:
        name = argument.parameter
        if argument.kind == "token" and name is not None and sizes[name] == 1:
            wider = {**sizes, name: 2}
            sizes = wider if _restrictions(space).admits(wider) else sizes
    return sizes


def simplest_case(space: Space) -> Case:
    """Return the simplest case: one sequence of one token, ones, the smallest sizes, no transform.

    Raises:
        RestrictionError: No sizes meet the restrictions.
        UnsupportedError: The signature has nothing to judge in this direction.
    """
    judged = judged_in(space)[0]
    data = simplest_data(space.signature, judged, space.backward_signature)
    return Case(
        dtype=space.dtype,
        judged=judged,
        dims=smallest(space),
        sequences=(LogicalSequence(id=0, length=1),),
        data=data.data,
        policy_state=data.policy_state,
        scalars={item.name: _SCALARS[0] for item in space.signature.scalars},
        execution=space.execution,
    )


def illegal_in(space: Space, case: Case) -> str:
    """Return why `case` is illegal for the kernel of a space; empty if it is legal."""
    return illegal(
        space.signature,
        case,
        backward_signature=space.backward_signature,
        restrictions=space.restrictions,
        registered=space.registered,
        declaration=space.declaration,
        align=space.align,
        has_reference=any(item.relation == "A" for item in space.against),
        backends=tuple(item.backend for item in space.against if item.relation == "P"),
        forms=space.forms,
        takes_shards=space.takes_shards,
    )


def judged_in(space: Space) -> tuple[Judged, ...]:
    """Return what can be judged in a space.

    Raises:
        UnsupportedError: Nothing can.
    """
    signature = space.signature
    kinds = judged_kinds(signature, space.direction, backward_signature=space.backward_signature)
    if not kinds:
        raise UnsupportedError(
            f"The signature {signature.text!r} has no gradient to judge: it has no float argument."
        )
    return kinds


def draw_sizes(draw: Draw, space: Space, population: Population) -> dict[str, int]:
    """Draw the free dimensions within limits and restrictions."""
    names, restrictions = space.signature.free_dims, _restrictions(space)
    reduced = _reduced(space)
    sizes = {name: _size(draw, space, restrictions, name, reduced) for name in names}
    sizes |= _table_sizes(draw, space, restrictions, population)
    aliased = draw.choice((False,) * 9 + (True,))
    if names and aliased:
        # Some mistakes need two equal extents: square tiles, rows taken for columns.
        name = draw.choice(sorted(names))
        rows = [exact_rows(space, population)]
        if has_contexts(space.signature):
            rows.append(population.longest)
        wanted = draw.choice([*rows, *sizes.values()])
        sizes[name] = max(1, min(wanted, _dim_max(space, name, reduced)))
    sizes = _with_product(draw, space, sizes, population, reduced)
    sizes = settled_sizes(sizes, restrictions, keep=reduced)
    sizes = _within_limits(space, restrictions, sizes, population, reduced)
    return _grouped(draw, restrictions, sizes) if has_contexts(space.signature) else sizes


def _with_product(
    draw: Draw,
    space: Space,
    sizes: dict[str, int],
    population: Population,
    reduced: tuple[str, ...],
) -> dict[str, int]:
    """Give rows times sizes the product whose turn it is, by the size that is summed over."""
    product = space.swept_product()
    if product is None or not reduced or not space.signature.token_wise:
        return sizes
    longest, rows = reduced[0], exact_rows(space, population)
    others = [name for name in sizes if name != longest] if draw.choice((True, True, False)) else []
    for name in others:
        # A sum of a few terms shows little, so that the other sizes leave room for more.
        sizes = {**sizes, name: max(1, min(sizes[name], product // (_PRODUCT_TERMS * rows)))}
    share = math.prod((rows, *(sizes[name] for name in others)))
    size = (product - 1) // share + draw.choice((1, 1, 1, 0))
    return {**sizes, longest: max(1, min(size, _dim_max(space, longest, reduced)))}


def _table_sizes(
    draw: Draw, space: Space, restrictions: Restrictions, population: Population
) -> dict[str, int]:
    """Let several tokens read one row, mostly: the gradient of a row read once is no sum."""
    if space.direction != "backward":
        return {}
    return {
        name: draw_size(draw, max(1, population.tokens // 4), low=restrictions.domain(name).low)
        for name in space.signature.table_dims
        if draw.choice((True, True, True, False))
    }


def _grouped(draw: Draw, restrictions: Restrictions, sizes: dict[str, int]) -> dict[str, int]:
    """Let some heads share keys: by chance alone, two numbers hardly divide each other."""
    for condition in restrictions.remainders:
        heads, keys = condition.name, condition.divisor
        if not isinstance(keys, str) or condition.remainder:
            continue
        ratio = draw.choice(_GROUPS)
        wanted = {**sizes, keys: max(1, min(sizes[keys], sizes[heads] // ratio))}
        others = [name for name in sizes if name != keys]
        settled = settled_sizes(wanted, restrictions, keep=others)
        # A smaller number of keys costs less; a restriction may ask for a larger one.
        if settled[keys] <= sizes[keys] and all(settled[name] == sizes[name] for name in others):
            sizes = settled
    return sizes


def _restrictions(space: Space) -> Restrictions:
    return space.restrictions.check_against(space.signature)


def _dim_max(space: Space, name: str, reduced: tuple[str, ...]) -> int:
    limits = space.limits
    if has_contexts(space.signature):
        return limits.head_dim_max if name in reduced else limits.heads_max
    return limits.dim_max if space.signature.token_wise else limits.dim_sequence_max


def _reduced(space: Space) -> tuple[str, ...]:
    """Dimensions that are summed over, or may be: the last of every float input."""
    contracted = tuple(
        name for name in space.signature.contracted_dims if name in space.signature.free_dims
    )
    if contracted and not has_contexts(space.signature):
        return contracted
    last = (item.free_dims[-1].name for item in space.signature.token_arguments if item.free_dims)
    return tuple(dict.fromkeys(name for name in last if name is not None))


def _size(
    draw: Draw, space: Space, restrictions: Restrictions, name: str, reduced: tuple[str, ...]
) -> int:
    domain = restrictions.domain(name)
    limit = _dim_max(space, name, reduced)
    if domain.choices:
        # Attention multiplies every size by the square of a length, so larger choices are left out.
        bounded = has_contexts(space.signature)
        near = [size for size in domain.choices if not bounded or size <= limit]
        return draw.choice(near or domain.choices[:1])
    # A domain above the limit is drawn from its lower end, up to twice the least size.
    high = min(domain.high, max(2 * domain.low, limit))
    # A sum of fewer terms shows little, and chance meets such sizes often enough.
    least = _SWEPT_TERMS_MIN if name in reduced and high >= _TERMS_MIN else 1
    swept = space.swept(name, low=max(least, domain.low), high=high)
    if swept is not None:
        return swept

    def one() -> int:
        return draw_size(draw, high, low=domain.low, constants=space.constants)

    # Narrow sums hide more, so most dimensions are long there; float32 shows short sums too, which
    # have boundaries of their own. Asked first, so that a small size needs no further question.
    again = (False, True) if space.dtype == "float32" else (False, True, True, True)
    longer = name in reduced and draw.choice(again)
    size = one()
    if size < _TERMS_MIN and longer:
        size = max(size, one(), one())
    return size


def _within_limits(
    space: Space,
    restrictions: Restrictions,
    sizes: dict[str, int],
    population: Population,
    reduced: tuple[str, ...],
) -> dict[str, int]:
    """Halve dimensions until the case fits, those that are not summed over first."""
    limits: Limits = space.limits
    least, room = smallest(space), work_max(space)
    tokens, pairs = population.tokens, pairs_of(space, population)
    # Every round halves one dimension, so their bits bound the rounds.
    for _ in range(32 * (len(sizes) + 1)):
        elements, work = costs(space, sizes, tokens=tokens, pairs=pairs)
        held = scores(space, sizes, pairs=pairs)
        if elements <= limits.elements_max and work <= room and held <= SCORES_MAX:
            return sizes
        larger = [name for name in sizes if sizes[name] > least[name]]
        if not larger:
            return sizes
        if held > SCORES_MAX:
            # The size of a head is no part of that.
            larger = [name for name in larger if name not in reduced] or larger
        name = max(larger, key=lambda key: sizes[key] * (1 if key in reduced else 4))
        halved = {**sizes, name: max(least[name], (sizes[name] + 1) // 2)}
        settled = settled_sizes(halved, restrictions)
        # A restriction may pull the size back up: the smallest sizes always meet all of them.
        sizes = settled if settled[name] < sizes[name] else least
    return least
