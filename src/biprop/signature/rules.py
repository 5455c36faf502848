"""Decide whether the items of a signature fit together: names, layout, axes and outputs.

The text was read by `biprop.signature.parser`, and `biprop.signature.kinds` knows what each kind
asks of an item alone. Whether a *case* is legal for a signature is decided by `biprop.generation`,
and what a backward signature owes to its forward one by `biprop.signature.backward`.
"""

from biprop.errors import SignatureError
from biprop.signature.kinds import (
    Direction,
    Side,
    check_kind,
    check_mark,
    described,
    with_axis,
)
from biprop.signature.records import DTYPE_KINDS, TOKEN_AXES, Argument, Dim, Signature

__all__ = ["ITEM_COUNT_MAX", "settled"]

ITEM_COUNT_MAX = 64

_GROUPS = {"T": "T", "S": "B,S", "Q": "B,Q,C", "C": "B,Q,C", "TQ": "TQ,TC", "TC": "TQ,TC"}
_ROW = Dim(name="B")


def settled(
    arguments: tuple[Argument, ...],
    outputs: tuple[Argument, ...],
    *,
    token_local: bool,
    direction: Direction = "forward",
) -> Signature:
    """Return the signature that the items make, with the axis of every measure filled in.

    Args:
        arguments: Items before the arrow, at most `ITEM_COUNT_MAX`.
        outputs: Items after it, at most `ITEM_COUNT_MAX`.
        token_local: The option was given.
        direction: A `backward` signature may accumulate into, and return, what has no token axis.

    Raises:
        SignatureError: The items contradict each other.
    """
    if not arguments:
        raise SignatureError("The signature has no argument: write one before '->', as in x[T,H].")
    _check_names(arguments, outputs)
    for output in outputs:
        _check_output_kind(output)
    items = (*arguments, *outputs)
    _check_layout(items)
    axes = {dim.name for item in items for dim in item.dims}
    arguments = tuple(with_axis(argument, axes) for argument in arguments)
    for argument in arguments:
        check_kind(argument, axes)
        check_mark(argument, direction)
    for argument in arguments:
        _check_axes(argument)
    for output in outputs:
        _check_axes(output, side="Output")
    signature = Signature(arguments=arguments, outputs=outputs, token_local=token_local)
    _check_outputs(signature, direction)
    _check_rows(signature)
    _check_order(signature)
    if token_local and signature.layout not in {"packed", "padded"}:
        raise SignatureError(
            "The option 'token_local' needs tokens along T or B,S: drop it, "
            f"since argument '{_with_token_axis(signature).name}' has queries or contexts."
        )
    return signature


def _with_token_axis(signature: Signature) -> Argument:
    return next(
        item for item in (*signature.arguments, *signature.outputs) if item.token_axis is not None
    )


def _check_names(arguments: tuple[Argument, ...], outputs: tuple[Argument, ...]) -> None:
    seen: set[str] = set()
    for side, items in (("Argument", arguments), ("Output", outputs)):
        for item in items:
            if item.name in seen:
                raise SignatureError(
                    f"{side} '{item.name}' has a name that is already taken: rename one of the two."
                )
            if not item.ignored:
                seen.add(item.name)


def _check_output_kind(output: Argument) -> None:
    if output.marked:
        raise SignatureError(
            f"Output '{output.name}' has a mark: mark the argument that is written, not the output."
        )
    if output.kind not in DTYPE_KINDS:
        raise SignatureError(
            f"Output '{output.name}' has kind {output.kind}, which only an argument can have: "
            "write a dtype or no kind."
        )
    if output.parameter is not None:
        raise SignatureError(
            f"Output '{output.name}' has ({output.parameter}) after its kind: "
            f"drop it, {output.kind} takes nothing in parentheses."
        )


def _check_layout(items: tuple[Argument, ...]) -> None:
    """Refuse a signature with no layout, or with two."""
    found: dict[str, str] = {}
    for item in items:
        for dim in item.dims:
            if dim.name in _GROUPS:
                found.setdefault(_GROUPS[dim.name], f"'{item.name}' has {dim.name}")
    if len(found) > 1:
        first, second = list(found.values())[:2]
        raise SignatureError(
            f"The signature mixes two layouts, {first} and {second}: "
            "write all tensors over T, over B,S, over B,Q,C or over TQ,TC."
        )
    if not found:
        alone = next((item for item in items if item.token_axis == _ROW.name), None)
        if alone is not None:
            raise SignatureError(
                f"'{alone.name}' has B and no tensor has slots: "
                "write T for independent rows, or B,S for padded ones."
            )
        name = items[0].name
        raise SignatureError(
            f"No argument has a token axis: name the axis of the tokens T, as in {name}[T,H], "
            f"or B,S, as in {name}[B,S,H]."
        )


def _check_axes(item: Argument, *, side: Side = "Argument") -> None:
    """Refuse token axes that no index map can follow."""
    what = described(item, side=side)
    names = [dim.name for dim in item.dims if dim.name in TOKEN_AXES]
    for dim in item.dims:
        # The parser lets `B+...` pass, for the sake of offsets.
        if dim.name == "B" and dim.operation and item.kind != "offsets":
            raise SignatureError(
                f"{what} has the dimension {dim.text}, which only offsets have: "
                "write B, or give it kind offsets."
            )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SignatureError(
            f"{what} has the token axis {twice} twice: write it once, "
            "and name a further dimension otherwise."
        )
    if item.kind == "causal_mask":
        return
    slots = [name for name in names if name != "B"]
    if len(slots) > 1:
        raise SignatureError(
            f"{what} has the two token axes {slots[0]} and {slots[1]}: "
            "give it kind causal_mask, or ignore the output with '_'."
        )
    if slots and slots[0] in {"S", "Q", "C"} and "B" not in names:
        raise SignatureError(
            f"{what} has {slots[0]} without B: write its rows too, as in {item.name}[B,{slots[0]}]."
        )
    if slots and slots[0] in {"T", "TQ", "TC"} and "B" in names:
        raise SignatureError(
            f"{what} has both {slots[0]} and B: drop B, packed tokens have no rows."
        )


def _check_rows(signature: Signature) -> None:
    """Refuse a packed launch that needs its sequences and is not told where they end."""
    if signature.has_lengths or signature.has_offsets:
        return
    # An output cannot have B where no argument has it.
    for argument in signature.arguments:
        packed = signature.layout in {"packed", "packed_query_context"}
        if packed and argument.token_axis == _ROW.name:
            raise SignatureError(
                f"{described(argument)} has one value a sequence, but nothing says where sequences "
                "end: add an argument of kind offsets or lengths."
            )
    if signature.layout == "packed_query_context" and not any(
        argument.kind == "causal_mask" for argument in signature.arguments
    ):
        raise SignatureError(
            f"{described(_with_token_axis(signature))} has packed queries or contexts, but nothing "
            "says where sequences end: add an argument of kind offsets, lengths or causal_mask."
        )


def _check_order(signature: Signature) -> None:
    """Refuse segments of queries and contexts of which one side alone has an order.

    With an order segments come in logical order, without one as they lie, and a sequence must have
    the same place on both sides.
    """
    ordered = {item.token_axis: item for item in signature.arguments if item.kind == "order"}
    items = (*signature.arguments, *signature.outputs)
    names = {dim.name for item in items for dim in item.dims}
    missing = [axis for axis in ("Q", "C", "TQ", "TC") if axis in names and axis not in ordered]
    packed = signature.layout == "packed_query_context"
    if ordered and missing and (signature.has_offsets or (packed and signature.has_lengths)):
        item = next(iter(ordered.values()))
        other = missing[0] if packed else f"B,{missing[0]}"
        raise SignatureError(
            f"{described(item)} is the order of {item.token_axis} alone, and with it segments come "
            f"in logical order: add an argument of kind order[{other}], or drop '{item.name}'."
        )


def _check_outputs(signature: Signature, direction: Direction) -> None:
    known = {dim.name for argument in signature.arguments for dim in argument.dims}
    known |= {argument.parameter for argument in signature.arguments if argument.kind == "token"}
    for output in signature.outputs:
        new = next((dim.name for dim in output.dims if dim.name and dim.name not in known), None)
        if new is not None:
            raise SignatureError(
                f"Output '{output.name}' has the dimension {new}, which no argument has: "
                "name a dimension of an argument, or write its size as an integer."
            )
        if direction == "forward" and not output.ignored and output.token_axis is None:
            raise SignatureError(
                f"Output '{output.name}' has no token axis, so it belongs to no token: "
                "return one value a token, or ignore it with '_'."
            )
    if not any(item.is_float for item in signature.judged_outputs):
        names = ", ".join(f"'{item.name}'" for item in signature.judged_outputs)
        found = f"only {names}" if names else "nothing"
        raise SignatureError(
            f"The signature has {found} to compare and no float output: "
            "name a float output, or mark a float argument with '!'."
        )
