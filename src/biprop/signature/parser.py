"""Read the signature notation: `x[T,H], weight[H] -> y[T,H]; token_local`.

Only the shape of the text is decided here: `biprop.signature.rules` decides whether the items fit
together, and `biprop.signature.backward` whether a backward signature fits its forward one.
"""

import re
from typing import Literal, cast, get_args

import attrs

from biprop.errors import SignatureError
from biprop.signature.records import (
    DTYPE_KINDS,
    FLOAT_KINDS,
    KINDS,
    TOKEN_AXES,
    VALUE_KINDS,
    Argument,
    Dim,
    Kind,
    Operation,
    Signature,
)
from biprop.signature.rules import ITEM_COUNT_MAX, settled
from biprop.signature.words import (
    NUMBER_MAX,
    checked_text,
    fault_of_name,
    nearest,
    number_of,
    quoted,
)

__all__ = ["Draft", "parse_signature", "read_draft"]

Side = Literal["Argument", "Output"]

DIM_COUNT_MAX = 8

_ITEM = re.compile(
    r"(?P<name>[^\[\]():!]*)(?P<mark>!*) ?"
    r"(?P<typed>: ?(?P<kind>[^\[\]()]*)(?P<ranged>\((?P<parameter>[^()\[\]]*)\) ?)?)?"
    r"(?P<boxed>\[(?P<dims>[^\[\]]*)\])?"
)
_DIM = re.compile(r"(?P<name>[^*/+\-% ]+) ?(?:(?P<operation>[*/+]) ?(?P<number>[0-9]+))?")
_NOTATION = "write it as name[dims] or name: kind[dims]"
# Words of other libraries, and what they are called here.
_ALIASES: dict[str, Kind] = {
    "f64": "float64",
    "fp64": "float64",
    "double": "float64",
    "f32": "float32",
    "fp32": "float32",
    "single": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
    "long": "int64",
    "int": "int64",
    "short": "int16",
    "tokens": "token",
    "positions": "position",
    "length": "lengths",
    "seqlens": "lengths",
    "cu_seqlens": "offsets",
    "indptr": "offsets",
    "offset": "offsets",
    "max_seqlen": "max_length",
    "causal": "is_causal",
    "number": "scalar",
}


@attrs.frozen(kw_only=True)
class Draft:
    """A signature whose text is sound, and whose sense is not yet checked.

    Attributes:
        arguments: Items before the arrow.
        outputs: Items after it.
        token_local: The option was given.
    """

    arguments: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    token_local: bool


def parse_signature(text: str) -> Signature:
    """Read a forward signature.

    Args:
        text: `arguments -> outputs`, each item `name[dims]` or `name: kind[dims]`, then perhaps
            `; token_local`.

    Raises:
        SignatureError: The text cannot be read, or contradicts itself.

    Example:
        >>> parse_signature("x[ T,H ],weight [H]->y[T, H]").text
        'x[T,H], weight[H] -> y[T,H]'
    """
    draft = read_draft(text)
    return settled(draft.arguments, draft.outputs, token_local=draft.token_local)


def read_draft(text: str) -> Draft:
    """Read the items of a signature without asking whether they fit together.

    Raises:
        SignatureError: The text cannot be read.
    """
    text = checked_text(text, what="The signature", error=SignatureError)
    if not text:
        raise SignatureError('The signature is empty: write one such as "x[T,H] -> y[T,H]".')
    body, *options = text.split(";")
    arrows = body.count("->")
    if arrows != 1:
        found = "no '->'" if not arrows else f"'->' {arrows} times"
        raise SignatureError(
            f"The signature {quoted(body.strip())} has {found}: "
            "write arguments, one '->', then outputs."
        )
    before, after = body.split("->")
    return Draft(
        arguments=_items(before, side="Argument"),
        outputs=_items(after, side="Output"),
        token_local=_token_local(options),
    )


def _token_local(options: list[str]) -> bool:
    """Return whether the one option that exists was given."""
    for option in options:
        word = option.strip()
        if not word:
            raise SignatureError(
                "The signature has a ';' without an option: drop the ';' or write '; token_local'."
            )
        if word != "token_local":
            raise SignatureError(
                f"The signature has the unknown option {quoted(word)}: "
                "the only option is 'token_local'."
            )
    if len(options) > 1:
        raise SignatureError("The signature has the option 'token_local' twice: write it once.")
    return bool(options)


def _items(text: str, *, side: Side) -> tuple[Argument, ...]:
    """Read one side of the arrow; an empty side has no items."""
    text = text.strip()
    if not text:
        return ()
    pieces = _pieces(text, side=side)
    if len(pieces) > ITEM_COUNT_MAX:
        raise SignatureError(
            f"The signature has {len(pieces)} {side.lower()}s: write at most {ITEM_COUNT_MAX}."
        )
    for index, piece in enumerate(pieces):
        if not piece:
            last = index == len(pieces) - 1
            where = f"after {quoted(pieces[index - 1])}" if index else f"before {quoted(text)}"
            raise SignatureError(
                f"{side} {index + 1} is empty: drop the {'trailing' if last else 'extra'} "
                f"comma {where}."
            )
    return tuple(_item(piece, side=side) for piece in pieces)


def _pieces(text: str, *, side: Side) -> list[str]:
    """Split at the commas outside of brackets.

    Raises:
        SignatureError: A bracket is not closed, not opened, or nested.
    """
    pieces, start, opened = [], 0, ""
    for index, character in enumerate(text):
        if character in "[(":
            if opened:
                raise _unbalanced(text[start:], side, f"has {character!r} inside {opened!r}")
            opened = character
        elif character in "])":
            if opened + character not in {"[]", "()"}:
                raise _unbalanced(text[start:], side, f"has {character!r} that nothing opens")
            opened = ""
        elif character == "," and not opened:
            pieces.append(text[start:index].strip())
            start = index + 1
    if opened:
        raise _unbalanced(text[start:], side, f"has {opened!r} that nothing closes")
    return [*pieces, text[start:].strip()]


def _unbalanced(text: str, side: Side, fault: str) -> SignatureError:
    return SignatureError(f"{side} {quoted(text.strip())} {fault}: balance its brackets.")


def _item(text: str, *, side: Side) -> Argument:
    """Read one item."""
    match = _ITEM.fullmatch(text)
    if match is None:
        advice = _NOTATION
        if "!" in text:
            advice = "put the mark '!' directly after the name, as in x![T,H]"
        elif text.partition("(")[0].strip() in KINDS:
            advice = f"put a name before the kind, as in x: {text}"
        raise SignatureError(f"{side} {quoted(text)} cannot be read: {advice}.")
    name = match["name"].strip()
    _check_name(name, text=text, side=side)
    if len(match["mark"]) > 1:
        raise SignatureError(f"{side} '{name}' has more than one mark '!': write one.")
    what = f"{side} '{name}'"
    kind = _kind(match["kind"], typed=match["typed"] is not None, what=what)
    dims = _dims(match["dims"], what=what) if match["boxed"] and match["dims"].strip() else ()
    ignored = name == "_"
    if name in KINDS and name not in FLOAT_KINDS and side == "Argument" and not match["typed"]:
        raise _without_kind(name, dims, what=what)
    if not (dims or ignored or kind in VALUE_KINDS):
        raise SignatureError(
            f"{what} has no dimensions: write them in brackets, as in {name}[T,H]."
        )
    if ignored:
        if match["mark"]:
            raise SignatureError("Output '_' has a mark: drop the '!', an ignored output has none.")
        # Nothing is asked of an ignored value, so nothing of it is kept.
        return Argument(name=name, ignored=True)
    return Argument(
        name=name,
        kind=kind,
        parameter=_parameter(match["parameter"], given=bool(match["ranged"]), what=what),
        dims=dims,
        marked=bool(match["mark"]),
    )


def _without_kind(name: Kind, dims: tuple[Dim, ...], *, what: str) -> SignatureError:
    """Return the refusal of an argument that is named as a kind: it would be a float tensor."""
    written = f"[{','.join(dim.text for dim in dims)}]" if dims else ""
    meant = f"{name}(V)" if name == "token" else name
    # A float tensor cannot have the dimensions of these two.
    may_be_float = dims and name not in {"offsets", "causal_mask"}
    instead = f", or {name}: float{written} for a tensor of drawn floats" if may_be_float else ""
    return SignatureError(
        f"{what} is named as a kind and has none: "
        f"write {name}: {meant}{'' if name in VALUE_KINDS else written}{instead}."
    )


def _check_name(name: str, *, text: str, side: Side) -> None:
    if name == "_" and side == "Argument":
        raise SignatureError(
            "Argument '_' has no name: give it one, only an output can be ignored with '_'."
        )
    fault = fault_of_name(name)
    if fault == "is empty":
        raise SignatureError(f"{side} {quoted(text)} has no name: {_NOTATION}.")
    if fault:
        raise SignatureError(
            f"{side} {quoted(name)} {fault}: name it with ASCII letters, digits and underscores."
        )


def _kind(text: str | None, *, typed: bool, what: str) -> Kind:
    word = (text or "").strip()
    if not typed:
        return "float"
    if not word:
        raise SignatureError(f"{what} has a ':' without a kind: write a kind or drop the ':'.")
    if word in KINDS:
        return word
    if word.endswith("!") or word.startswith("!"):
        advice = "put '!' after the name"
        if word.strip("! ") in set(KINDS) - set(DTYPE_KINDS):
            advice = "drop the '!', only a tensor of floats, integers or bools can be written"
        raise SignatureError(f"{what} has its mark after the kind: {advice}.")
    meant = _ALIASES.get(word.lower()) or nearest(word, (*KINDS, *_ALIASES))
    meant = _ALIASES.get(meant, meant) if meant else None
    advice = f"write '{meant}'" if meant else "write one of " + ", ".join(KINDS)
    raise SignatureError(f"{what} has the unknown kind {quoted(word)}: {advice}.")


def _parameter(text: str | None, *, given: bool, what: str) -> str | None:
    if not given:
        return None
    word = (text or "").strip()
    fault = fault_of_name(word)
    if fault:
        raise SignatureError(
            f"{what} has {quoted(word)} in parentheses, which {fault}: "
            "write the name of a dimension, as in token(V) or lengths(Q)."
        )
    return word


def _dims(text: str, *, what: str) -> tuple[Dim, ...]:
    words = [word.strip() for word in text.split(",")]
    if len(words) > DIM_COUNT_MAX:
        raise SignatureError(f"{what} has {len(words)} dimensions: write at most {DIM_COUNT_MAX}.")
    if "" in words:
        raise SignatureError(
            f"{what} has an empty dimension: drop the extra comma in its brackets."
        )
    return tuple(_dim(word, what=what) for word in words)


def _dim(word: str, *, what: str) -> Dim:
    if word.isdigit():
        return Dim(name=None, number=_number(word, word=word, what=what))
    match = _DIM.fullmatch(word)
    if match is None or (match["number"] and match["name"].isdigit()):
        raise SignatureError(
            f"{what} has the dimension {quoted(word)}: "
            "write a name, an integer, name*integer, name/integer or name+integer."
        )
    fault = fault_of_name(match["name"])
    if fault or match["name"] == "_":
        raise SignatureError(
            f"{what} has the dimension {quoted(word)}, which {fault or 'has no name'}: "
            "name it with ASCII letters, digits and underscores."
        )
    operation = cast("Operation", match["operation"] or "")
    assert operation in get_args(Operation)
    number = _number(match["number"], word=word, what=what) if match["number"] else 1
    if operation and match["name"] in TOKEN_AXES and (match["name"], operation) != ("B", "+"):
        raise SignatureError(
            f"{what} has the dimension '{match['name']}{operation}{number}': "
            f"{match['name']} is a token axis, which is counted and never scaled, "
            "so name the dimension otherwise."
        )
    return Dim(name=match["name"], operation=operation, number=number)


def _number(digits: str, *, word: str, what: str) -> int:
    number = number_of(digits)
    if number is None:
        raise SignatureError(
            f"{what} has the dimension {quoted(word)}: write an integer from 1 to {NUMBER_MAX}."
        )
    return number
