"""Decide what each kind of argument asks of its dimensions, its parentheses and its mark.

One argument is looked at alone, beside the token axes that the signature has: how arguments fit
together is decided by `biprop.signature.rules`.
"""

from typing import Literal

import attrs

from biprop.errors import SignatureError
from biprop.signature.records import (
    DTYPE_KINDS,
    FLOAT_KINDS,
    TOKEN_AXES,
    VALUE_KINDS,
    Argument,
    Dim,
    Kind,
)

__all__ = ["Direction", "Side", "check_kind", "check_mark", "described", "with_axis"]

Direction = Literal["forward", "backward"]
Side = Literal["Argument", "Output"]

_SLOTS = ("[T]", "[B,S]", "[B,Q]", "[B,C]", "[TQ]", "[TC]")
_MEASURES: tuple[Kind, ...] = ("lengths", "offsets", "max_length")
_ROW = Dim(name="B")
_ROW_ENDS = Dim(name="B", operation="+", number=1)
_ONE = Dim(name=None, number=1)


def described(item: Argument, *, side: Side = "Argument") -> str:
    """Return the item as the subject of a sentence."""
    return f"{side} '{item.name}'"


def with_axis(argument: Argument, axes: set[str | None]) -> Argument:
    """Fill in the axis that lengths, offsets or a max_length measure."""
    if argument.kind == "causal_mask" and argument.parameter == "bool":
        return attrs.evolve(argument, parameter=None)
    if argument.kind not in _MEASURES:
        return argument
    # `lengths(TQ)` and `lengths(Q)` both count the queries of a sequence.
    present = [axis for axis in ("T", "S", "Q", "C") if axis in axes or f"T{axis}" in axes]
    if argument.parameter is None:
        if len(present) > 1:
            raise SignatureError(
                f"{described(argument)} does not say what it measures: "
                f"write {argument.kind}(Q) or {argument.kind}(C)."
            )
        return attrs.evolve(argument, parameter=present[0])
    measured = {"TQ": "Q", "TC": "C"}.get(argument.parameter, argument.parameter)
    if measured not in present:
        choices = " or ".join(f"{argument.kind}({axis})" for axis in present)
        raise SignatureError(
            f"{described(argument)} has kind {argument.kind}({argument.parameter}), "
            f"but {argument.parameter} is no token axis of this signature: write {choices}."
        )
    return attrs.evolve(argument, parameter=measured)


def check_kind(argument: Argument, axes: set[str | None]) -> None:
    """Refuse a parameter or dimensions that the argument's kind cannot have."""
    kind = argument.kind
    if argument.parameter is not None and kind not in {*_MEASURES, "token", "causal_mask"}:
        raise SignatureError(
            f"{described(argument)} has ({argument.parameter}) after its kind: "
            f"drop it, {kind} takes nothing in parentheses."
        )
    if kind in VALUE_KINDS:
        _check_value(argument, axes)
    elif kind == "token":
        _check_token(argument)
    elif kind in {"position", "mask", "order"}:
        _check_slots(argument)
    elif kind == "causal_mask":
        _check_causal_mask(argument)
    elif kind in _MEASURES:
        expected = _ROW if kind == "lengths" else _ROW_ENDS
        if argument.dims != (expected,):
            side = f"({argument.parameter})" if argument.parameter in {"Q", "C"} else ""
            raise SignatureError(
                f"{described(argument)} has kind {kind} and dimensions {_shape_of(argument)}: "
                f"write {argument.name}: {kind}{side}[{expected.text}]."
            )


def _check_value(argument: Argument, axes: set[str | None]) -> None:
    if argument.dims:
        raise SignatureError(
            f"{described(argument)} has kind {argument.kind} and dimensions {_shape_of(argument)}: "
            "drop them, it is handed over as a Python value."
        )
    if argument.kind == "is_causal" and not ({"Q", "TQ"} & axes and {"C", "TC"} & axes):
        raise SignatureError(
            f"{described(argument)} has kind is_causal, which compares Q with C: "
            "write the tensors over B,Q,C or TQ,TC, or fix the value with --call."
        )


def _check_token(argument: Argument) -> None:
    if argument.parameter is None:
        raise SignatureError(
            f"{described(argument)} has kind token without its range: write token(V) for [0, V)."
        )
    if argument.parameter in TOKEN_AXES:
        raise SignatureError(
            f"{described(argument)} has the range {argument.parameter}, which is a token axis: "
            "write the name of a free dimension, as in token(V)."
        )
    if argument.token_axis is None:
        raise SignatureError(
            f"{described(argument)} has kind token and no token axis: "
            f"give it one of the dimensions {', '.join(_SLOTS)}."
        )


def _check_slots(argument: Argument) -> None:
    """Position, mask and order have one value a slot; the first two may be broadcast by 1."""
    dims = argument.dims
    if argument.kind != "order":
        dims = tuple(dim for dim in dims if dim != _ONE)
    if f"[{','.join(dim.text for dim in dims)}]" not in _SLOTS:
        advice = "" if argument.kind == "order" else ", with further dimensions 1 where needed"
        raise SignatureError(
            f"{described(argument)} has kind {argument.kind} and dimensions {_shape_of(argument)}: "
            f"write one of {', '.join(_SLOTS)}{advice}."
        )


def _check_causal_mask(argument: Argument) -> None:
    if argument.parameter is not None and argument.parameter not in FLOAT_KINDS:
        raise SignatureError(
            f"{described(argument)} has kind causal_mask({argument.parameter}): "
            "write causal_mask for True = attend, or causal_mask(float) for an additive mask."
        )
    names = [dim.name for dim in argument.dims]
    axes = [dim if dim == _ONE else dim.name for dim in argument.dims[-2:]]
    sound = axes in (["Q", "C"], ["TQ", "TC"], [_ONE, "C"])
    leading = set(names[:-2]) & set(TOKEN_AXES)
    # One packed row has no B of its own; padded rows may.
    if not sound or leading - ({"B"} if "C" in names else set()):
        raise SignatureError(
            f"{described(argument)} has kind causal_mask and dimensions {_shape_of(argument)}: "
            "let the last two be Q,C or TQ,TC, as in [B,1,Q,C]."
        )


def check_mark(argument: Argument, direction: Direction) -> None:
    """Refuse a mark on what cannot be written, or cannot be compared token by token."""
    if not argument.marked:
        return
    if argument.kind not in DTYPE_KINDS:
        raise SignatureError(
            f"{described(argument)} has a mark and kind {argument.kind}: "
            "drop the '!', only a tensor of floats, integers or bools can be written."
        )
    if direction == "forward" and argument.token_axis is None:
        raise SignatureError(
            f"{described(argument)} has a mark and no token axis: drop the '!', "
            "only a backward signature accumulates into a tensor that the batch shares."
        )


def _shape_of(item: Argument) -> str:
    return f"[{','.join(dim.text for dim in item.dims)}]"
