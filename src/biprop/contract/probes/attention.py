"""Probes of attention: the sum of values, their products with weights, and the scores.

What a signature computes is guessed, and the float32 reference tells whether the guess was right.
"""

import math

from biprop.contract.probes.designs import SUM, cancelling
from biprop.contract.probes.records import (
    ACCUMULATION,
    PRODUCTS,
    SCORES,
    Absent,
    Expected,
    Probe,
    explicit,
    point,
    probe_case,
)
from biprop.contract.probes.sizes import Sizes
from biprop.data.recipe import TOKENS
from biprop.signature import Argument, Signature
from biprop.signature.roles import Roles, roles_of

__all__ = ["attention_probes"]

_FINE = 1 + 2.0**-12
# Few enough tokens that a case is cheap where a program is interpreted, and a power of 2, so that
# equal weights are exact.
_CONTEXTS = 128
_CONTEXTS_SHORT = 64
# Scores of two keys that differ by 2**-12 then differ by 2**-4, before they are scaled.
_QUERY = 2.0**8


def attention_probes(sizes: Sizes) -> tuple[Probe | Absent, ...]:
    """Return the probes of an attention whose queries and contexts are those of one sequence."""
    signature = sizes.signature
    roles = roles_of(signature)
    dims = sizes.choose({}, roomy=[name for name in (roles.score_dim, roles.value_dim) if name])
    outputs = tuple(
        output
        for output in signature.judged_outputs
        if output.is_float and roles.value_dim in {dim.text for dim in output.free_dims}
    )
    if dims is None or not outputs or not _is_plain(roles):
        reason = "queries, keys and values cannot be told from the signature"
        return tuple(Absent(name=name, reason=reason) for name in (ACCUMULATION, PRODUCTS, SCORES))
    return (
        _value_sum(signature, dims, roles, outputs),
        _value_product(signature, dims, roles, outputs),
        _scores(signature, dims, roles, outputs),
    )


def _is_plain(roles: Roles) -> bool:
    """Return whether there is one tensor of queries, of keys and of values, and nothing else."""
    groups = (roles.queries, roles.keys, roles.values)
    return all(len(group) == 1 for group in groups) and roles.keys != roles.values


def _value_sum(
    signature: Signature, dims: dict[str, int], roles: Roles, outputs: tuple[Argument, ...]
) -> Probe:
    """Average numbers that cancel, at equal weights.

    Scores are 0, so that weights are 1, or 2**-7 where they are divided before the sum.
    """
    values = explicit(
        *(
            point(number, {TOKENS: index})
            for index, number in enumerate(cancelling(_CONTEXTS))
            if number
        )
    )
    return Probe(
        name=ACCUMULATION,
        case=probe_case(
            signature,
            dtype="bfloat16",
            dims=dims,
            recipes={roles.values[0].name: values},
            length=_CONTEXTS,
            prompt_length=_CONTEXTS - 1,
        ),
        expected=_all(outputs, SUM / _CONTEXTS),
    )


def _value_product(
    signature: Signature, dims: dict[str, int], roles: Roles, outputs: tuple[Argument, ...]
) -> Probe:
    """Average values of 13 bits, all the same, at equal weights."""
    return Probe(
        name=PRODUCTS,
        case=probe_case(
            signature,
            dtype="float32",
            dims=dims,
            recipes={roles.values[0].name: explicit(point(_FINE))},
            length=_CONTEXTS_SHORT,
            prompt_length=_CONTEXTS_SHORT - 1,
        ),
        expected=_all(outputs, _FINE),
    )


def _scores(
    signature: Signature, dims: dict[str, int], roles: Roles, outputs: tuple[Argument, ...]
) -> Probe | Absent:
    """Choose between keys that TF32 cannot tell apart, half of them of value 1, half of 0."""
    axis = roles.score_dim
    if axis is None or axis not in dims:
        return Absent(name=SCORES, reason="queries and keys share no free dimension")
    first = range(_CONTEXTS_SHORT // 2)
    recipes = {
        roles.queries[0].name: explicit(point(_QUERY, {axis: 0})),
        roles.keys[0].name: explicit(
            point(1.0), *(point(_FINE, {TOKENS: index}) for index in first)
        ),
        roles.values[0].name: explicit(*(point(1.0, {TOKENS: index}) for index in first)),
    }
    difference = _QUERY * (_FINE - 1) / math.sqrt(dims[axis])
    return Probe(
        name=SCORES,
        case=probe_case(
            signature,
            dtype="float32",
            dims=dims,
            recipes=recipes,
            length=_CONTEXTS_SHORT,
            prompt_length=_CONTEXTS_SHORT - 1,
        ),
        expected=_all(outputs, 1 / (1 + math.exp(-difference)), is_exact=False),
    )


def _all(
    outputs: tuple[Argument, ...], value: float, *, is_exact: bool = True
) -> tuple[Expected, ...]:
    return tuple(Expected(output=output.name, value=value, is_exact=is_exact) for output in outputs)
