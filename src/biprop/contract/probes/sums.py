"""Probes of sums: products over a dimension, squares over a width, exponentials over a vocabulary.

What a signature computes is guessed, and the float32 reference tells whether the guess was right.
"""

import math

from biprop.contract.probes.designs import cancelling, norm_design, ones
from biprop.contract.probes.records import (
    ACCUMULATION,
    PRODUCTS,
    Absent,
    Expected,
    Probe,
    explicit,
    point,
    probe_case,
)
from biprop.contract.probes.sizes import Sizes
from biprop.data.recipe import Point
from biprop.signature import Argument, Signature

__all__ = ["logprob_probes", "reduction_probes"]

_FINE = 1 + 2.0**-12
# Whole tiles of 64 first: libraries leave their tensor cores to sizes that are multiples.
_DEPTH_MIN = 516
_DEPTHS = (1088, *range(1024, 1537), *range(1023, _DEPTH_MIN - 1, -1))
_DEPTHS_SMALL = (64, 32, 16, *range(2, 64), 1)
_RANGES = (64, 32, 16, *range(1, 64))
_WIDTHS = (1024, *range(1023, 3, -1), *range(1025, 2049))
_VOCABULARIES = range(1024, 2048)
_TOKENS = 16


def reduction_probes(sizes: Sizes) -> tuple[Probe | Absent, ...]:
    """Return the probes of a product over a contracted dimension, or of a norm without one."""
    signature = sizes.signature
    if not signature.contracted_dims:
        reason = "no dimension is contracted, so no products are known to be added"
        return _norm(sizes), Absent(name=PRODUCTS, reason=reason)
    depths = _depths(signature)
    if len(depths) != 1:
        return _neither("only a sum over one dimension of its tokens can be probed")
    outputs = _float_outputs(signature)
    (depth,) = depths
    return (
        _sum(sizes, depth, outputs=outputs),
        _product(sizes, depth, outputs=outputs),
    )


def logprob_probes(sizes: Sizes) -> tuple[Probe | Absent, ...]:
    """Return the probes of a log of a sum of exponentials, of logits or of products."""
    signature = sizes.signature
    outputs = _float_outputs(signature)
    vocabulary = next(
        (item.parameter for item in signature.arguments if item.kind == "token"), None
    )
    if vocabulary is None or vocabulary not in signature.free_dims:
        return _neither("no target says which dimension is the vocabulary")
    depths = _depths(signature, beside=vocabulary)
    if not depths:
        reason = "logits are given, so no products are known to be added"
        return _exponentials(sizes, vocabulary), Absent(name=PRODUCTS, reason=reason)
    # Of a target that is drawn, only the log of the sum is known.
    outputs = tuple(item for item in outputs if item.name == "lse")
    if len(depths) != 1 or not outputs:
        return _neither("no output is the log of the sum of one product")
    (depth,) = depths
    return (
        _sum(sizes, depth, outputs=outputs, vocabulary=vocabulary),
        _product(sizes, depth, outputs=outputs, vocabulary=vocabulary),
    )


def _sum(
    sizes: Sizes, depth: str, *, outputs: tuple[Argument, ...], vocabulary: str = ""
) -> Probe | Absent:
    """Sum numbers that cancel, and ones where there is a second column.

    With a vocabulary, its first logit is the sum and the others are 0, of which exp(-129) is left
    beside it.
    """
    signature = sizes.signature
    found = sizes.choose({depth: _DEPTHS}, roomy=_widths(outputs, vocabulary))
    if found is None:
        low, high = min(_DEPTHS), max(_DEPTHS)
        return Absent(name=ACCUMULATION, reason=f"{depth} cannot be from {low} to {high}")
    columns = [cancelling(found[depth])]
    *vectors, last = _carriers(signature, depth)
    column = _column_of(last, outputs, depth)
    if column in found and found[column] > 1:
        columns.append(ones(found[depth]))
    at: dict[str, int] = {vocabulary: 0} if vocabulary in _texts(last) else {}
    points = [
        point(number, {depth: index} | at | ({column: place} if len(columns) > 1 else {}))
        for place, numbers in enumerate(columns)
        for index, number in enumerate(numbers)
        if number
    ]
    recipes = {item.name: explicit(point(1.0)) for item in vectors}
    expected = tuple(
        Expected(
            output=output.name,
            value=sum(numbers),
            at={column: place} if len(columns) > 1 else {},
        )
        for output in outputs
        for place, numbers in enumerate(columns)
    )
    return Probe(
        name=ACCUMULATION,
        case=probe_case(
            signature,
            dtype="bfloat16",
            dims=found,
            recipes=recipes | {last.name: explicit(*points)},
            length=_TOKENS,
        ),
        expected=expected,
    )


def _product(
    sizes: Sizes, depth: str, *, outputs: tuple[Argument, ...], vocabulary: str = ""
) -> Probe | Absent:
    """Multiply a number of 13 bits by 1, once from either side where there is room."""
    signature = sizes.signature
    if len(_carriers(signature, depth)) == 1:
        return Absent(name=PRODUCTS, reason=f"nothing is multiplied along {depth}")
    wanted = {depth: _DEPTHS_SMALL} | ({vocabulary: _RANGES} if vocabulary else {})
    found = sizes.choose(wanted, roomy=_widths(outputs, vocabulary))
    if found is None:
        return Absent(name=PRODUCTS, reason=f"{' or '.join(wanted)} cannot be from 1 to 64")
    # A logit of 16 leaves the others little of a sum of exponentials.
    scale = 8.0 if vocabulary else 1.0
    vector, partner, value = [point(scale * _FINE, {depth: 0})], [point(1.0)], scale * _FINE
    if found[depth] > 1:
        vector.append(point(scale, {depth: 1}))
        partner.append(point(_FINE, {depth: 1}))
        value += scale * _FINE
    others = found[vocabulary] - 1 if vocabulary else 0
    value += math.log1p(others * math.exp(-value))
    first, *rest = _carriers(signature, depth)
    recipes = {first.name: explicit(*vector)}
    for item in rest:
        row = {vocabulary: 0} if vocabulary in _texts(item) else {}
        recipes[item.name] = explicit(
            *(Point(at=each.at | row, value=each.value) for each in partner)
        )
    return Probe(
        name=PRODUCTS,
        case=probe_case(signature, dtype="float32", dims=found, recipes=recipes, length=_TOKENS),
        expected=tuple(
            Expected(output=item.name, value=value, is_exact=not vocabulary) for item in outputs
        ),
    )


def _exponentials(sizes: Sizes, vocabulary: str) -> Probe | Absent:
    """Sum the exponentials of equal logits: a bfloat16 sum of ones stops at 256."""
    found = sizes.choose({vocabulary: _VOCABULARIES})
    if found is None:
        low, high = _VOCABULARIES[0], _VOCABULARIES[-1]
        reason = f"{vocabulary} cannot be from {low} to {high}"
        return Absent(name=ACCUMULATION, reason=reason)
    log = math.log(found[vocabulary])
    expected = tuple(
        Expected(output=item.name, value=sign * log, is_exact=False)
        for item in _float_outputs(sizes.signature)
        for name, sign in (("logp", -1), ("lse", 1))
        if item.name == name
    )
    if not expected:
        return Absent(name=ACCUMULATION, reason="no output is called logp or lse")
    case = probe_case(sizes.signature, dtype="bfloat16", dims=found, recipes={}, length=_TOKENS)
    return Probe(name=ACCUMULATION, case=case, expected=expected)


def _norm(sizes: Sizes) -> Probe | Absent:
    """Divide whole numbers by their root mean square, in every tensor with tokens."""
    signature = sizes.signature
    last = {item.free_dims[-1].text for item in signature.token_arguments if item.free_dims}
    if len(last) != 1 or not all(item.free_dims for item in signature.token_arguments):
        reason = "only a norm over the last dimension of all tensors can be probed"
        return Absent(name=ACCUMULATION, reason=reason)
    (width,) = last
    outputs = tuple(
        output for output in _float_outputs(signature) if _texts(output)[-1:] == (width,)
    )
    found = sizes.choose({width: _WIDTHS}) if width in signature.free_dims else None
    design = norm_design(found[width]) if found is not None else None
    if found is None or design is None or not outputs:
        low, high = min(_WIDTHS), max(_WIDTHS)
        return Absent(name=ACCUMULATION, reason=f"{width} cannot be from {low} to {high}")
    numbers = explicit(
        *(point(number, {width: index}) for index, number in enumerate(design.numbers))
    )
    recipes = {item.name: numbers for item in signature.token_arguments}
    recipes |= {parameter.name: explicit(point(1.0)) for parameter in signature.parameters}
    return Probe(
        name=ACCUMULATION,
        case=probe_case(
            signature,
            dtype="bfloat16",
            dims=found,
            recipes=recipes,
            length=_TOKENS,
        ),
        expected=tuple(
            Expected(output=output.name, value=value, at={width: index})
            for output in outputs
            for index, value in design.expected
        ),
    )


def _neither(reason: str) -> tuple[Absent, ...]:
    return Absent(name=ACCUMULATION, reason=reason), Absent(name=PRODUCTS, reason=reason)


def _float_outputs(signature: Signature) -> tuple[Argument, ...]:
    return tuple(output for output in signature.judged_outputs if output.is_float)


def _widths(outputs: tuple[Argument, ...], vocabulary: str) -> tuple[str, ...]:
    """Return the dimensions that make a matrix of a product: the last of outputs, a vocabulary."""
    last = (output.free_dims[-1].text for output in outputs if output.free_dims)
    return (*last, vocabulary)


def _depths(signature: Signature, *, beside: str = "") -> tuple[str, ...]:
    """Return the contracted dimensions, unless one of them is no free dimension of a token."""
    names = tuple(name for name in signature.contracted_dims if name != beside)
    of_tokens = {dim.text for item in signature.token_arguments for dim in item.free_dims}
    return names if set(names) <= of_tokens else ("", *names)


def _carriers(signature: Signature, depth: str) -> tuple[Argument, ...]:
    """Return the float inputs along a dimension, one with tokens first."""
    return tuple(
        item
        for item in (*signature.token_arguments, *signature.parameters)
        if depth in _texts(item)
    )


def _column_of(item: Argument, outputs: tuple[Argument, ...], depth: str) -> str:
    """Return the dimension that an input and all outputs share; empty if there is none."""
    shared = [text for text in _texts(item) if text != depth]
    return next((text for text in shared if all(text in _texts(each) for each in outputs)), "")


def _texts(item: Argument) -> tuple[str, ...]:
    return tuple(dim.text for dim in item.free_dims)
