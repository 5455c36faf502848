"""The mixture of data: recipes that let a changed order show, chosen by the signature.

First a family is drawn, then recipes within it. Signed families make exact sums zero, so that an
output is the rounding itself; squares and exponentials put results on rounding ties; `mix` gives
every token another design, for kernels whose reduction is not known. What a recipe's numbers are
says `biprop.data`. Attention has families of its own (`biprop.generation.attention_data`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import attrs

from biprop.case import Judged
from biprop.data.recipe import SEQUENCES, TOKENS, Pairing, Recipe
from biprop.generation.attention_data import PLAIN_KINDS, attention_recipes
from biprop.generation.draw import Draw
from biprop.generation.legal import recipes_needed
from biprop.operators import OpClass
from biprop.signature import Argument, Signature
from biprop.signature.roles import roles_of

__all__ = ["Data", "draw_data", "simplest_data"]

Family = Literal["plain", "signed", "squares", "exponentials", "mix"]

# Weights in parts, simplest first (measured on a zoo of planted defects).
_UNKNOWN: tuple[Family, ...] = (
    *("plain",) * 2,
    *("signed",) * 3,
    *("squares",) * 3,
    *("exponentials",) * 3,
)
_CONTRACTED: tuple[Family, ...] = ("plain", "plain", *("signed",) * 9, "squares", "exponentials")
_ELEMENTWISE: tuple[Family, ...] = (*("plain",) * 4, "signed")
# Whatever an operator does, the gradients of its parameters are sums over tokens.
_SUMMED: tuple[Family, ...] = ("plain", *("signed",) * 9)
_UPSTREAM = ("normal", "pairs", "pairs", "swamp")
# Products of two narrow numbers are exact, and so are sums of few of them, but beside a swamp. Few
# tokens read one row of a table, and a swamp shows the order of three terms.
_UPSTREAM_SWAMP = ("pairs", "swamp", "swamp", "swamp")
_TOKEN_MASKS = (1, 1, 2, 3, 5, 8, 16, 32)


@attrs.frozen(kw_only=True)
class Data:
    """Recipes of one case.

    Attributes:
        data: By name of every float tensor with a token axis, upstream gradients included.
        policy_state: By name of every float parameter.
    """

    data: dict[str, Recipe]
    policy_state: dict[str, Recipe]


@attrs.frozen(kw_only=True)
class _Subject:
    """What the families look at."""

    signature: Signature
    sizes: Mapping[str, int]
    tensors: dict[str, Argument]

    @property
    def token_tensors(self) -> tuple[Argument, ...]:
        return tuple(item for item in self.tensors.values() if item.token_axis) or tuple(
            self.tensors.values()
        )

    def mask(self, draw: Draw, axis: str) -> int:
        """Draw a matching of the positions of a free dimension."""
        size = next(
            dim.size(self.sizes)
            for item in (*self.signature.arguments, *self.signature.outputs)
            for dim in item.free_dims
            if dim.text == axis
        )
        return draw.integer(1, max(1, (1 << (size - 1).bit_length()) - 1))


def simplest_data(
    signature: Signature, judged: Judged, backward_signature: Signature | None = None
) -> Data:
    """Return recipes of ones."""
    data, parameters = recipes_needed(signature, judged, backward_signature)
    ones = Recipe(kind="ones")
    return Data(data=dict.fromkeys(data, ones), policy_state=dict.fromkeys(parameters, ones))


def draw_data(
    draw: Draw,
    signature: Signature,
    sizes: Mapping[str, int],
    *,
    judged: Judged = "outputs",
    backward_signature: Signature | None = None,
    op_class: OpClass | None = None,
    length: int = 64,
    is_narrow: bool = False,
) -> Data:
    """Draw a recipe for every tensor.

    Args:
        draw: Source of choices.
        signature: Forward signature.
        sizes: Of the free dimensions.
        judged: What is compared; gradients get upstream recipes.
        backward_signature: Of the registered backward; None where autograd differentiates.
        op_class: None where the reduction is not known.
        length: Tokens of the longest watched sequence: partners in attention lie that far apart.
        is_narrow: Whether numbers have half the bits of float32 or fewer.
    """
    needed, parameters = recipes_needed(signature, judged, backward_signature)
    forward = {name: item for name, item in needed.items() if name == item.name}
    upstream = {name: item for name, item in needed.items() if name != item.name}
    roles = roles_of(signature)
    if roles.keys and judged != "parameter_gradients":
        recipes = attention_recipes(
            draw,
            roles,
            sizes,
            outputs=signature.judged_outputs,
            upstream=upstream,
            parameters=tuple(parameters),
            length=length,
        )
        return Data(
            data={name: recipes[name] for name in needed},
            policy_state={name: recipes[name] for name in parameters},
        )
    subject = _Subject(signature=signature, sizes=sizes, tensors={**forward, **parameters})
    family = draw.choice(_families(subject, op_class, judged))
    if family == "plain":
        # One question for all tensors: no family asks fewer, so that shrinking ends in zeros.
        recipes = dict.fromkeys((*needed, *parameters), Recipe(kind=draw.choice(PLAIN_KINDS)))
    else:
        recipes = _FAMILIES[family](draw, subject)
        recipes |= _upstream(draw, subject, upstream, judged=judged, is_narrow=is_narrow)
    for item in signature.arguments:
        if item.kind == "token" and item.name in recipes:
            forward[item.name] = item
    names = (*forward, *upstream)
    return Data(
        data={name: recipes[name] for name in names},
        policy_state={name: recipes[name] for name in parameters},
    )


def _families(subject: _Subject, op_class: OpClass | None, judged: Judged) -> Sequence[Family]:
    if op_class == "elementwise":
        return _SUMMED if judged == "parameter_gradients" else _ELEMENTWISE
    known = bool(_contracted(subject))
    if op_class is not None and known:
        # The reduction is the contraction: other designs would show nothing.
        return ("plain", "plain", *("signed",) * 9)
    # A mix tells every token apart, which says something only where tokens are independent.
    is_mixed = subject.signature.token_wise and not known
    # Squares and exponentials are rows of a mix, in which signed rows are two of five.
    mixed: tuple[Family, ...] = (*("mix",) * 8, *("signed",) * 3, "squares") if is_mixed else ()
    if _meet(subject.signature) and not known:
        # Where the tokens of a sequence meet, sums run over them: no other design cancels there.
        mixed = ("signed",) * 4
    picked: tuple[Family, ...] = ("exponentials",) * 9 if _picks_targets(subject) else ()
    families = (*(_CONTRACTED if known else _UNKNOWN), *mixed, *picked)
    if op_class == "logprob":
        return tuple(family for family in families if family != "squares")
    return families


def _meet(signature: Signature) -> bool:
    """Whether tokens of a sequence may be added to each other."""
    return signature.sequence_wise and not signature.token_local


def _picks_targets(subject: _Subject) -> bool:
    """Whether ids choose along the last dimension of a tensor, as in a log-probability."""
    ranges = {item.parameter for item in subject.signature.arguments if item.kind == "token"}
    return any(
        item.free_dims and item.free_dims[-1].name in ranges for item in subject.token_tensors
    )


def _contracted(subject: _Subject) -> tuple[str, ...]:
    """Free dimensions that several inputs carry and no output does."""
    return tuple(
        name
        for name in subject.signature.contracted_dims
        if sum(_carries(item, name) for item in subject.tensors.values()) > 1
    )


def _carries(item: Argument, axis: str) -> bool:
    return any(dim.text == axis for dim in item.free_dims)


def _normal(subject: _Subject) -> dict[str, Recipe]:
    return dict.fromkeys(subject.tensors, Recipe(kind="normal"))


def _signed(draw: Draw, subject: _Subject) -> dict[str, Recipe]:
    """Partners of a matching cancel: over a contracted dimension, over tokens, or within rows."""
    recipes = _normal(subject)
    kind = draw.choice(("pairs", "swamp"))
    contracted = _contracted(subject)
    over_tokens = _meet(subject.signature)
    if over_tokens and (not contracted or draw.choice((False, True, True))):
        return recipes | _signed_over_tokens(draw, subject, kind)
    if contracted:
        axis = draw.choice(contracted)
        return recipes | _signed_over_axis(draw, subject, kind, axis)
    return recipes | _signed_rows(subject, kind)


def _signed_over_tokens(draw: Draw, subject: _Subject, kind: str) -> dict[str, Recipe]:
    holders = subject.token_tensors
    mask = draw.choice(_TOKEN_MASKS)
    # Sums run over contexts where there are any, and over no queries.
    summed = tuple(item for item in holders if item.token_axis in {"C", "TC"})
    odd = draw.choice(summed or holders)
    return {item.name: _paired(item is odd, kind, TOKENS, mask) for item in holders}


def _signed_over_axis(draw: Draw, subject: _Subject, kind: str, axis: str) -> dict[str, Recipe]:
    holders = [item for item in subject.tensors.values() if _carries(item, axis)]
    odd = draw.choice(holders)
    if draw.choice((False, True)):
        # Every slice has a matching of its own, so the partners must be flat.
        own, flat = Pairing(role="own"), Pairing(role="flat")
        return {
            item.name: Recipe(kind=kind, pairing={axis: own})
            if item is odd
            else Recipe(kind="normal", pairing={axis: flat})
            for item in holders
        }
    mask = subject.mask(draw, axis)
    return {item.name: _paired(item is odd, kind, axis, mask) for item in holders}


def _paired(odd: bool, kind: str, axis: str, mask: int) -> Recipe:  # noqa: FBT001 - one caller's condition
    pairing = Pairing(role="antisymmetric" if odd else "symmetric", mask=mask)
    return Recipe(kind=kind if odd else "normal", pairing={axis: pairing})


def _signed_rows(subject: _Subject, kind: str) -> dict[str, Recipe]:
    return {
        item.name: Recipe(kind=kind, pairing={item.free_dims[-1].text: Pairing(role="own")})
        for item in subject.token_tensors
        if item.free_dims
    }


def _squares(draw: Draw, subject: _Subject) -> dict[str, Recipe]:
    recipes = _normal(subject)
    first = draw.choice(subject.token_tensors)
    if not first.free_dims:
        return recipes
    kind = draw.choice(("peak_squares", *("ties_squares",) * 4))
    if kind == "ties_squares":
        # A tie is told only where the other factors keep the bits that decide it.
        others = ("ones", "ones", "normal")
        recipes |= {name: Recipe(kind=draw.choice(others)) for name in subject.tensors}
    return recipes | {first.name: Recipe(kind=kind)}


def _exponentials(draw: Draw, subject: _Subject) -> dict[str, Recipe]:
    recipes = _normal(subject)
    first = draw.choice(subject.token_tensors)
    if not first.free_dims:
        return recipes
    kind = draw.choice(("peak_exponentials", "peak_exponentials", "ties_exponentials"))
    at_target = _picks_targets(subject) and draw.choice((False, True, True))
    return recipes | {first.name: Recipe(kind=kind, at_target=at_target)}


def _mix(draw: Draw, subject: _Subject) -> dict[str, Recipe]:
    recipes = {name: Recipe(kind=draw.choice(("ones", "normal"))) for name in subject.tensors}
    targets = _picks_targets(subject)
    for item in subject.token_tensors:
        if item.free_dims:
            own = {item.free_dims[-1].text: Pairing(role="own")}
            rows = (
                Recipe(kind="ties_squares"),
                Recipe(kind="ties_exponentials"),
                Recipe(kind="peak_exponentials", at_target=targets),
                Recipe(kind="pairs", pairing=own),
                Recipe(kind="swamp", pairing=own),
            )
            recipes[item.name] = Recipe(kind="mix", rows=rows)
    return recipes


def _upstream(
    draw: Draw,
    subject: _Subject,
    upstream: Mapping[str, Argument],
    *,
    judged: Judged,
    is_narrow: bool,
) -> dict[str, Recipe]:
    """Upstream gradients: the signed designs over the output, and what they meet made symmetric."""
    recipes: dict[str, Recipe] = {}
    is_table = judged == "parameter_gradients" and bool(subject.signature.table_dims)
    kinds = _UPSTREAM_SWAMP if is_table or is_narrow else _UPSTREAM
    for name, output in upstream.items():
        kind = draw.choice(kinds)
        if kind == "normal":
            recipes[name] = Recipe(kind=kind)
            continue
        parameters = judged == "parameter_gradients"
        ways = ("sequences",) * 3 if parameters else ("free",) * 3
        way = draw.choice((*ways, "free") if parameters else (*ways, "sequences", "tokens"))
        axis, mask = _upstream_axis(draw, subject, output, way)
        if axis is None:
            recipes[name] = Recipe(kind=kind)
            continue
        pairing = {axis: Pairing(role="antisymmetric", mask=mask)}
        recipes[name] = Recipe(kind=kind, pairing=pairing, holes=draw.choice((False, True)))
        recipes |= _symmetric_to(draw, subject, axis, mask)
    return recipes


def _upstream_axis(
    draw: Draw, subject: _Subject, output: Argument, way: str
) -> tuple[str | None, int]:
    if way == "sequences":
        # Neighbours cancel before anything is added to them, so that far partners tell more.
        return SEQUENCES, draw.choice((1, 2, 3, 5, 16, 33))
    if way == "tokens":
        return TOKENS, draw.choice((1, 2, 5, 16))
    if not output.free_dims:
        return None, 0
    axis = output.free_dims[-1].text
    return axis, subject.mask(draw, axis)


def _symmetric_to(draw: Draw, subject: _Subject, axis: str, mask: int) -> dict[str, Recipe]:
    """Recipes of the inputs that make each pair's terms cancel in a gradient."""
    pairing = {axis: Pairing(role="symmetric", mask=mask)}
    recipes: dict[str, Recipe] = {}
    if axis == TOKENS:
        return recipes
    for item in subject.tensors.values():
        if item.token_axis if axis == SEQUENCES else _carries(item, axis):
            recipes[item.name] = Recipe(kind=draw.choice(("normal", "ones")), pairing=pairing)
    if axis == SEQUENCES:
        # Ids pair too, or the terms of one id would not meet their partners.
        for item in subject.signature.arguments:
            if item.kind == "token":
                recipes[item.name] = Recipe(kind="integers", pairing=pairing)
    return recipes


_FAMILIES: dict[Family, Callable[[Draw, _Subject], dict[str, Recipe]]] = {
    "signed": _signed,
    "squares": _squares,
    "exponentials": _exponentials,
    "mix": _mix,
}
