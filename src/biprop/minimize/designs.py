"""Designs: data that show an order of addition at a stated structure, a list of them.

The exhaustive search tries them at every structure (`biprop.minimize.exhaustive`), shrinking at
some that are smaller than what it has (`biprop.minimize.redesign`).
"""

from collections.abc import Iterator

from biprop.case import Case
from biprop.data.recipe import TOKENS, Pairing, Point, Recipe
from biprop.generation.legal import recipes_needed
from biprop.minimize.edits import with_recipe
from biprop.signature import Signature
from biprop.signature.roles import has_contexts, roles_of

__all__ = ["designs"]

# As in biprop.minimize.points: the small number is lost unless the large ones cancel first.
_CANCELLING = (4096.0, -4096.0, 2.0**-12)
# Its square is a tie beside ones.
_PEAK = 4096.0


def designs(signature: Signature, structure: Case) -> Iterator[Case]:
    """Yield a structure with every design of the list, the most telling first.

    Over each axis along which a tensor of tokens may be summed: three listed numbers that cancel
    (at six places), drawn values that cancel (`swamp`, `pairs`), and one large number first or last
    in a crowd of ones; at last normal values. Where keys weigh what is summed, all of it once with
    equal keys and once with a key that outweighs the others.
    """
    for base, peaked in _bases(signature, structure):
        for name, axis, size in _axes(signature, structure):
            if name == peaked:
                continue
            for places in _triples(size):
                yield _listed(base, name, axis, tuple(zip(places, _CANCELLING, strict=True)))
            paired = {axis: Pairing(role="own")}
            for kind in ("swamp", "pairs"):
                yield with_recipe(base, name, Recipe(kind=kind, pairing=paired))
            for place in dict.fromkeys((0, size - 1)):
                yield _listed(base, name, axis, ((None, 1.0), (place, _PEAK)))
    normal = structure
    for name in (*structure.data, *structure.policy_state):
        normal = with_recipe(normal, name, Recipe(kind="normal"))
    yield normal


def _bases(signature: Signature, structure: Case) -> Iterator[tuple[Case, str]]:
    """Yield a structure as it is, and with a first key that takes all the weight; its name."""
    yield structure, ""
    if has_contexts(signature) and any(item.length > 1 for item in structure.sequences):
        for key in roles_of(signature).keys[:1]:
            yield _listed(structure, key.name, TOKENS, ((None, 1.0), (0, _PEAK))), key.name


def _axes(signature: Signature, structure: Case) -> Iterator[tuple[str, str, int]]:
    """Yield name, axis and size of what may be summed: the last dimension of tensors, or tokens."""
    tensors, _ = recipes_needed(signature, structure.judged)
    lengths = dict.fromkeys(sequence.length for sequence in structure.sequences)
    over_tokens = signature.sequence_wise or structure.judged == "parameter_gradients"
    if has_contexts(signature) and structure.judged == "outputs":
        # Queries are summed over their features alone.
        queries = {item.name for item in roles_of(signature).queries}
        tensors = {name: item for name, item in tensors.items() if name not in queries}
    for name, argument in tensors.items():
        free = [(dim.text, dim.size(structure.dims)) for dim in argument.free_dims[-1:]]
        for axis, size in [(TOKENS, length) for length in lengths] if over_tokens else free:
            if size > 1:
                yield name, axis, size


def _triples(size: int) -> list[tuple[int, int, int]]:
    """Return places of the two large numbers and of the small one."""
    if size < 3:
        return []
    last, middle = size - 1, size // 2
    chosen = [
        (0, last, middle),
        (0, middle, last),
        (middle, last, 0),
        (0, 1, last),
        (middle, middle + 1, 0),
        (last - 1, last, 0),
    ]
    return [
        places for places in dict.fromkeys(chosen) if len({*places}) == 3 and max(places) <= last
    ]


def _listed(case: Case, name: str, axis: str, values: tuple[tuple[int | None, float], ...]) -> Case:
    points = tuple(
        Point(at={} if place is None else {axis: place}, value=value.hex())
        for place, value in values
    )
    return with_recipe(case, name, Recipe(kind="explicit", points=points))
