"""Probes as records: a case, and what its outputs must be.

Nothing is computed here; `biprop.relations.probes` runs the cases and compares.
"""

from collections.abc import Mapping

import attrs

from biprop.case import Case, Dtype
from biprop.data.recipe import Point, Recipe
from biprop.sequence import LogicalSequence
from biprop.signature import Signature

__all__ = [
    "ACCUMULATION",
    "PRODUCTS",
    "SCORES",
    "Absent",
    "Expected",
    "Probe",
    "ProbePlan",
    "explicit",
    "point",
    "probe_case",
]

ACCUMULATION = "bf16_accumulation"
PRODUCTS = "float32_products"
SCORES = "float32_scores"


@attrs.frozen(kw_only=True)
class Expected:
    """What active elements of one output must be.

    Attributes:
        output: Name of the output.
        value: The value; where it must be met exactly, the dtype of the output holds it.
        at: Index by dimension of the elements that are meant; empty: all of them.
        is_exact: Whether the value must be met exactly; else within the forward accuracy of the
            contract, since no float holds it.
    """

    output: str
    value: float
    at: dict[str, int] = attrs.field(factory=dict)
    is_exact: bool = True


@attrs.frozen(kw_only=True)
class Probe:
    """One case, and what float32 arithmetic makes of it.

    Attributes:
        name: `bf16_accumulation`, `float32_products` or `float32_scores`.
        case: Without transforms, judged by its outputs, of the dtype that the name says.
        expected: At least one.
    """

    name: str
    case: Case
    expected: tuple[Expected, ...]


@attrs.frozen(kw_only=True)
class Absent:
    """A probe that there is not.

    Attributes:
        name: As of `Probe`.
        reason: Why, as the end of a sentence.
    """

    name: str
    reason: str


@attrs.frozen(kw_only=True)
class ProbePlan:
    """What can be probed of a signature, and what cannot.

    Attributes:
        probes: Each name once.
        absent: The other names that the class has.
    """

    probes: tuple[Probe, ...]
    absent: tuple[Absent, ...]


def point(value: float, at: Mapping[str, int] | None = None) -> Point:
    """Return a value of an explicit recipe; without a place, of all elements."""
    return Point(at=dict(at or {}), value=value.hex())


def explicit(*points: Point) -> Recipe:
    """Return a recipe of zeros and points; a later point overrides an earlier one."""
    return Recipe(kind="explicit", points=points)


def probe_case(
    signature: Signature,
    *,
    dtype: Dtype,
    dims: dict[str, int],
    recipes: Mapping[str, Recipe],
    length: int,
    prompt_length: int = 0,
) -> Case:
    """Return a case of one sequence.

    Args:
        signature: Of the kernel.
        dtype: Of the case.
        dims: Sizes of the free dimensions.
        recipes: By tensor; those without one are zero.
        length: Tokens of the sequence.
        prompt_length: How many of them are not compared.
    """

    def recipe_of(name: str) -> Recipe:
        return recipes.get(name, Recipe(kind="zeros"))

    return Case(
        dtype=dtype,
        dims=dims,
        sequences=(LogicalSequence(id=0, length=length, prompt_length=prompt_length),),
        data={item.name: recipe_of(item.name) for item in signature.token_arguments},
        policy_state={item.name: recipe_of(item.name) for item in signature.parameters},
        scalars={item.name: 1.0 for item in signature.scalars},
    )
