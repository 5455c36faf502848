"""The structured back end: strategies in which every choice is drawn.

Sequences, compositions, layouts and cases, for people's own properties and for `@example`. All
shrink natively toward one sequence, one token, zeros and no transform. Searches use
`biprop.strategies.seeded`, which finds more.
"""

from collections.abc import Sequence

from hypothesis import strategies as st

from biprop.case import Case, Dtype, Execution
from biprop.errors import UsageError
from biprop.generation import Limits, Space, draw_case, wanted_classes
from biprop.generation.composition import draw_classes, draw_transforms
from biprop.generation.generator import judged_in
from biprop.generation.population import draw_population
from biprop.generation.room import room_for_tokens
from biprop.generation.space import Direction
from biprop.layout import Layout
from biprop.sequence import NEIGHBOUR_ID_FIRST, LogicalSequence
from biprop.signature import parse_restrictions, parse_signature
from biprop.strategies.draws import HypothesisDraw
from biprop.transforms import Transform, apply_all

__all__ = ["cases", "layouts", "sequences", "space_of", "transforms"]


def sequences(
    *,
    min_count: int = 1,
    max_count: int = 8,
    min_length: int = 1,
    max_length: int = 70,
    prompts: bool = True,
    max_position_start: int = 0,
) -> "st.SearchStrategy[tuple[LogicalSequence, ...]]":
    """Draw watched sequences with the ids 0, 1, ...

    They shrink to `min_count` sequences of `min_length` tokens without a prompt, from position 0. A
    length is the sum of prompt and active tokens, so that each shrinks alone.

    Args:
        min_count: Sequences, at least 1.
        max_count: Sequences, at most.
        min_length: Tokens of each, at least 1.
        max_length: Tokens of each, at most.
        prompts: Whether some have leading tokens that are not compared.
        max_position_start: Largest position of a first token.

    Raises:
        UsageError: The bounds contradict each other.
    """
    if not 1 <= min_count <= max_count <= NEIGHBOUR_ID_FIRST:
        raise UsageError(
            f"min_count={min_count} and max_count={max_count}: give 1 <= min_count <= max_count."
        )
    if not 1 <= min_length <= max_length:
        raise UsageError(
            f"min_length={min_length} and max_length={max_length}: "
            "give 1 <= min_length <= max_length."
        )

    @st.composite
    def build(draw: st.DrawFn) -> tuple[LogicalSequence, ...]:
        source = HypothesisDraw(draw)
        found: list[LogicalSequence] = []
        for index in range(source.integer(min_count, max_count)):
            active = source.integer(min_length, max_length)
            prompt = source.integer(0, max_length - active) if prompts else 0
            start = source.integer(0, max_position_start) if max_position_start else 0
            found.append(
                LogicalSequence(
                    id=index, length=prompt + active, prompt_length=prompt, position_start=start
                )
            )
        return tuple(found)

    return build()


def transforms(
    signature: str,
    *,
    classes: Sequence[str] = (),
    direction: Direction = "forward",
    dtype: Dtype = "float32",
    align: int = 1,
) -> "st.SearchStrategy[tuple[Transform, ...]]":
    """Draw compositions that are legal for a signature; they shrink to no transform.

    Args:
        signature: Notation of `biprop.signature.parse_signature`.
        classes: `T1`, `T4.finite`, ...; empty: all that apply.
        direction: Whether outputs or gradients are judged.
        dtype: Of every float argument without a dtype of its own.
        align: Bytes that base pointers must be aligned to.

    Raises:
        BipropError: The signature, a class or the direction cannot be used.
    """
    space = space_of(signature, classes=classes, direction=direction, dtype=dtype, align=align)

    @st.composite
    def build(draw: st.DrawFn) -> tuple[Transform, ...]:
        source = HypothesisDraw(draw)
        judged = source.choice(judged_in(space))
        present = draw_classes(source, space, judged=judged, allow_empty=True)
        population = draw_population(
            source, space, judged=judged, present=present, tokens_max=room_for_tokens(space)
        )
        return draw_transforms(source, space, population, judged=judged, present=present)

    return build()


def layouts(
    signature: str,
    *,
    classes: Sequence[str] = (),
    direction: Direction = "forward",
    dtype: Dtype = "float32",
    align: int = 1,
) -> "st.SearchStrategy[Layout]":
    """Draw layouts that are legal for a signature; they shrink to the canonical one.

    Arguments and errors are those of `transforms`.
    """
    drawn = transforms(signature, classes=classes, direction=direction, dtype=dtype, align=align)
    return drawn.map(apply_all)


def cases(
    signature: str,
    *,
    dtype: Dtype = "float32",
    direction: Direction = "forward",
    classes: Sequence[str] = (),
    dims: str = "",
    align: int = 1,
    threads: int = 1,
    constants: Sequence[int] = (),
    limits: Limits | None = None,
) -> "st.SearchStrategy[Case]":
    """Draw legal cases; they shrink to one sequence of one token, zeros, and no transform.

    Args:
        signature: Notation of `biprop.signature.parse_signature`.
        dtype: Of every float argument without a dtype of its own.
        direction: Whether outputs or gradients are judged.
        classes: `T1`, `T4.finite`, ...; empty: all that apply.
        dims: Restrictions, in the notation of `biprop.signature.parse_restrictions`.
        align: Bytes that base pointers must be aligned to.
        threads: Intra-op threads of torch on the CPU.
        constants: Sizes that are drawn more often, with their neighbours.
        limits: How large a case may be; None: as in a search on a CPU.

    Raises:
        BipropError: The signature, a class, a restriction or the direction cannot be used.
    """
    space = space_of(
        signature,
        dtype=dtype,
        direction=direction,
        classes=classes,
        dims=dims,
        align=align,
        threads=threads,
        constants=constants,
        limits=limits,
    )

    @st.composite
    def build(draw: st.DrawFn) -> Case:
        return draw_case(HypothesisDraw(draw), space, allow_empty=True)

    return build()


def space_of(
    signature: str,
    *,
    dtype: Dtype = "float32",
    direction: Direction = "forward",
    classes: Sequence[str] = (),
    dims: str = "",
    align: int = 1,
    threads: int = 1,
    constants: Sequence[int] = (),
    limits: Limits | None = None,
) -> Space:
    """Return the space that the arguments of `cases` describe.

    Raises:
        BipropError: The signature, a class, a restriction or the direction cannot be used.
    """
    parsed = parse_signature(signature)
    restrictions = parse_restrictions(dims).check_against(parsed)
    space = Space(
        signature=parsed,
        restrictions=restrictions,
        dtype=dtype,
        direction=direction,
        classes=wanted_classes(classes),
        align=align,
        execution=Execution(threads=threads),
        constants=tuple(constants),
        limits=limits or Limits(),
    )
    # Fails now, with the caller on the stack, and not in the middle of a search.
    judged_in(space)
    room_for_tokens(space)
    return space
