"""Conditioned data: what relations A and P are judged on.

On data that cancels, a healthy kernel leaves every relative tolerance. So values are plain, weights
are scaled by K**-1/2 of the dimension that is summed over, logits have unit deviation, and upstream
gradients are scaled such that gradients have it too. How large the values of a tensor must be
follows from the kinds of all tensors and the sizes alone: `rescaled` says so of any case, and one
that is off by more than a factor of two is illegal (`unconditioned`). The data that reveals a
changed order is drawn by `biprop.generation.data_mixture`.
"""

import math
from collections.abc import Mapping

import attrs

from biprop.case import Case, Judged
from biprop.data.recipe import KINDS_CONDITIONED, Recipe
from biprop.generation.draw import Draw
from biprop.generation.needs import recipes_needed
from biprop.signature import Argument, Signature
from biprop.signature.roles import has_contexts

__all__ = ["draw_conditioned", "rescaled", "unconditioned"]

# Weights, simplest last: a case of one kind alone is the rarer one.
_KINDS = (*("normal",) * 5, "uniform", "integers", "ones")
# What shrinking may leave: zeros harm no kernel.
_ALLOWED = ("zeros", *KINDS_CONDITIONED)
# Powers of two that an exponent may be off, since sizes next to each other may round differently.
_SLACK = 1


def draw_conditioned(
    draw: Draw,
    signature: Signature,
    *,
    judged: Judged,
    backward_signature: Signature | None = None,
) -> tuple[dict[str, Recipe], dict[str, Recipe]]:
    """Draw a kind for every tensor with tokens, and for every parameter.

    `rescaled` sets the exponents, once the case is there.
    """
    data, parameters = recipes_needed(signature, judged, backward_signature)
    names = (*data, *parameters)
    if draw.choice((True, False)):
        kinds = dict.fromkeys(names, draw.choice(_KINDS))
    else:
        kinds = {name: draw.choice(_KINDS) for name in names}
    return (
        {name: Recipe(kind=kinds[name]) for name in data},
        {name: Recipe(kind=kinds[name]) for name in parameters},
    )


def rescaled(
    signature: Signature, case: Case, *, backward_signature: Signature | None = None
) -> Case:
    """Return a case of relation A or P with the exponents that its kinds and sizes ask for."""
    exponents = _exponents(signature, case, backward_signature)

    def scaled(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
        return {
            name: attrs.evolve(recipe, exponent=exponents.get(name, 0))
            for name, recipe in recipes.items()
        }

    return attrs.evolve(case, data=scaled(case.data), policy_state=scaled(case.policy_state))


def unconditioned(
    signature: Signature, case: Case, *, backward_signature: Signature | None = None
) -> str:
    """Return why the data of a case would condemn a healthy kernel; empty if it would not."""
    for name, recipe in (*case.data.items(), *case.policy_state.items()):
        if recipe.kind not in _ALLOWED:
            return (
                f"The recipe of '{name}' is of kind {recipe.kind!r}, and a tolerance is judged on "
                f"{', '.join(_ALLOWED)} only."
            )
        if recipe.pairing or recipe.holes or recipe.at_target:
            return f"The recipe of '{name}' follows a design, and a tolerance is judged without."
    for name, exponent in _exponents(signature, case, backward_signature).items():
        found = {**case.data, **case.policy_state}[name].exponent
        if abs(found - exponent) > _SLACK:
            return (
                f"The recipe of '{name}' has exponent={found}, and a tolerance is judged at "
                f"{exponent}."
            )
    return ""


def _exponents(
    signature: Signature, case: Case, backward_signature: Signature | None
) -> dict[str, int]:
    """Return the exponent by name of every tensor whose values are not zero."""
    recipes = {**case.data, **case.policy_state}
    data, parameters = recipes_needed(signature, case.judged, backward_signature)
    tensors = {
        name: item
        for name, item in (*data.items(), *parameters.items())
        if name in recipes and recipes[name].kind != "zeros"
    }
    # Whole numbers up to 4 deviate by 2.6.
    found = {name: -(recipes[name].kind == "integers") for name in tensors}
    forward = {name: item for name, item in tensors.items() if name == item.name}
    gained = 0
    for axis in _summed(signature, forward):
        holders = [name for name, item in forward.items() if _carries(item, axis)]
        # A parameter where there is one, as a model scales its weights.
        chosen = [name for name in holders if name in parameters] or holders
        even = all(recipes[name].kind == "ones" for name in holders)
        lost = _root(case.dims[axis], even=even)
        found[chosen[-1]] -= lost
        gained += lost
    even = all(recipes[name].kind == "ones" for name in tensors)
    # What a parameter's gradient adds up over tokens, parameters have no part in.
    even_tokens = all(recipes[name].kind == "ones" for name in tensors if name in data)
    for name, item in tensors.items():
        if name in forward:
            continue
        if case.judged == "parameter_gradients":
            tokens = sum(sequence.length for sequence in case.sequences)
            found[name] -= _root(tokens, even=even_tokens)
        else:
            found[name] += gained - _root(_fanned(signature, item, case), even=even)
        if case.against is not None and not case.against.rtol:
            # Nothing but the absolute tolerance is left for the rounding of the largest values.
            found[name] -= 1
    return found


def _summed(signature: Signature, forward: Mapping[str, Argument]) -> tuple[str, ...]:
    """Return free dimensions that are summed over between two tensors; attention scales itself."""
    if has_contexts(signature):
        return ()
    return tuple(
        axis
        for axis in signature.contracted_dims
        if axis in signature.free_dims
        and sum(_carries(item, axis) for item in forward.values()) > 1
    )


def _fanned(signature: Signature, output: Argument, case: Case) -> int:
    """Return over how many elements of an output the gradient of a token argument is a sum."""
    kept = {dim.name for item in signature.token_arguments for dim in item.free_dims}
    return math.prod(dim.size(case.dims) for dim in output.free_dims if dim.name not in kept)


def _carries(item: Argument, axis: str) -> bool:
    return any(dim.name == axis for dim in item.free_dims)


def _root(size: int, *, even: bool) -> int:
    """Return log2 of what a sum of so many terms grows by: all of it where nothing cancels."""
    return round(math.log2(size) / (1 if even else 2))
