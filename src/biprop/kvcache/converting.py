"""Programs and their outcomes as JSON objects, and back: strict, bounded, one sentence if refused.

Whether an operation is legal where it stands is no matter of reading: what is not is passed over
(`biprop.kvcache.model`). What cannot be meant, or would take too much memory, is refused here,
before anything is built.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Literal, get_args

import cattrs

from biprop.case import Json, canonical_json, reason_of
from biprop.data.recipe import KINDS, Recipe
from biprop.errors import CaseError
from biprop.judgment import record_converter
from biprop.kvcache.model import names_of, source_of
from biprop.kvcache.records import (
    CHECKS,
    Append,
    Check,
    Evict,
    Fork,
    Generate,
    Op,
    Program,
    ProgramOutcome,
)
from biprop.kvcache.shape import CacheShape

__all__ = [
    "CONVERTER",
    "TENSORS",
    "WEIGHTS",
    "program_digest",
    "program_from_data",
    "program_outcome_from_data",
    "program_outcome_to_data",
    "program_to_data",
]

# What `Program.data` may name: by token, and where a small model makes these, its weights.
TENSORS = ("q", "k", "v")
WEIGHTS = ("embedding", "wq", "wk", "wv", "lm_head")

_OPS = {kind.__name__.lower(): kind for kind in get_args(Op)}
_OPS_MAX = 1 << 13
_NAMES_MAX = 256
_COUNT_MAX = 1 << 16
_BLOCK_SIZE_MAX = 1 << 12
_BLOCK_COUNT_MAX = 1 << 16
_HEADS_MAX = 256
_WIDTH_MAX = 1 << 10
_VOCABULARY_MAX = 1 << 17
# Elements of the pool, and of the queries, keys and values that a program brings.
_ELEMENTS_MAX = 1 << 27
_SEEDS = 1 << 32
_THREADS_MAX = 256
_INDEX_MAX = 1 << 30
_ROWS_MAX = 64
_POINTS_MAX = 1 << 16


def program_to_data(program: Program) -> dict[str, Json]:
    """Return `program` as a JSON object that leaves defaults out."""
    data = CONVERTER.unstructure(program)
    assert isinstance(data, dict)
    return data


def program_from_data(data: object) -> Program:
    """Return the program of a JSON object.

    Raises:
        CaseError: A field is missing, unknown, wrong or too large; one sentence names the first.
    """
    if not isinstance(data, dict):
        raise CaseError("The program cannot be read: needs a JSON object.")
    try:
        program = CONVERTER.structure(data, Program)
    except (
        cattrs.BaseValidationError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        reason = reason_of(error).replace("@ case", "@ program", 1)
        raise CaseError(f"The program cannot be read: {reason}.") from error
    reason = _wrong(program)
    if reason:
        raise CaseError(f"The program cannot be used: {reason}.")
    return program


def program_digest(program: Program) -> str:
    """Return SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(program_to_data(program)).encode()).hexdigest()


def program_outcome_to_data(outcome: ProgramOutcome) -> dict[str, Json]:
    """Return `outcome` as a JSON object that leaves defaults out."""
    data = CONVERTER.unstructure(outcome)
    assert isinstance(data, dict)
    return data


def program_outcome_from_data(data: object) -> ProgramOutcome:
    """Return the outcome of a JSON object.

    Raises:
        CaseError: One sentence that names the first path that is wrong.
    """
    try:
        return CONVERTER.structure(data, ProgramOutcome)
    except Exception as error:
        reason = reason_of(error).replace("@ case", "@ outcome", 1)
        raise CaseError(f"The outcome cannot be read: {reason}.") from error


def _wrong(program: Program) -> str:
    """Return what is wrong with a program as part of a sentence; empty where nothing is."""
    reasons = (
        _wrong_shape(program.shape),
        _wrong_switches(program),
        *(f"ops[{place}] {reason}" for place, reason in _wrong_ops(program)),
        *(f"data[{name!r}] {_wrong_recipe(recipe)}" for name, recipe in program.data.items()),
    )
    return next((reason for reason in reasons if reason and not reason.endswith(" ")), "")


def _wrong_shape(shape: CacheShape) -> str:
    bounds = {
        "block_size": _BLOCK_SIZE_MAX,
        "block_count": _BLOCK_COUNT_MAX,
        "query_heads": _HEADS_MAX,
        "heads": _HEADS_MAX,
        "width": _WIDTH_MAX,
    }
    for name, most in bounds.items():
        value = getattr(shape, name)
        if not 1 <= value <= most:
            return f"shape.{name}={value} is outside of 1..{most}"
    if shape.query_heads % shape.heads:
        return f"shape.query_heads={shape.query_heads} is no multiple of heads={shape.heads}"
    if shape.dtype not in {shape.storage, "float32"}:
        return f"shape.storage={shape.storage} is no narrower than dtype={shape.dtype}"
    slots = shape.block_size * shape.block_count
    elements = slots * shape.width * (shape.heads + shape.query_heads)
    if elements > _ELEMENTS_MAX:
        return f"shape has {elements} elements, more than {_ELEMENTS_MAX}"
    return ""


def _wrong_switches(program: Program) -> str:
    if not 0 <= program.seed < _SEEDS:
        return f"seed={program.seed} is outside of 0..{_SEEDS - 1}"
    if program.vocabulary is not None and not 2 <= program.vocabulary <= _VOCABULARY_MAX:
        return f"vocabulary={program.vocabulary} is outside of 2..{_VOCABULARY_MAX}"
    if not 1 <= program.execution.threads <= _THREADS_MAX:
        return f"execution.threads={program.execution.threads} is outside of 1..{_THREADS_MAX}"
    if len(program.ops) > _OPS_MAX:
        return f"it has {len(program.ops)} ops, more than {_OPS_MAX}"
    known = TENSORS if program.vocabulary is None else WEIGHTS
    for name in program.data:
        if name not in known:
            return f"data names {name!r}, and there are {', '.join(known)}"
    return ""


def _wrong_ops(program: Program) -> Iterator[tuple[int, str]]:
    for place, op in enumerate(program.ops):
        names = names_of(op)
        if len(names) > _NAMES_MAX:
            yield place, f"names {len(names)} sequences, more than {_NAMES_MAX}"
        for name in names:
            if source_of(name) is None:
                yield place, f"names {name[:40]!r}: write letters and a number, as s0"
        counts = {
            Append: lambda op: [part.count for part in op.parts],
            Fork: lambda op: [op.at],
            Evict: lambda op: [op.keep],
            Generate: lambda op: [op.count],
        }.get(type(op), lambda _: [])(op)
        for count in counts:
            if not 0 <= count <= _COUNT_MAX:
                yield place, f"has the number {count}, outside of 0..{_COUNT_MAX}"


def _wrong_recipe(recipe: Recipe, *, nested: bool = False) -> str:
    if recipe.kind not in KINDS:
        return f"has the unknown kind {recipe.kind[:40]!r}"
    if (recipe.kind == "mix") != bool(recipe.rows) or (nested and recipe.rows):
        return "needs rows for kind mix, and only there"
    if len(recipe.rows) > _ROWS_MAX:
        return f"mixes more than {_ROWS_MAX} recipes"
    if recipe.points and recipe.kind != "explicit":
        return "has points, which only kind explicit has"
    if recipe.at_target:
        return "has at_target, and there is no target token"
    if len(recipe.points) > _POINTS_MAX:
        return f"has more than {_POINTS_MAX} points"
    if not -200 <= recipe.exponent <= 200:
        return f"has exponent={recipe.exponent}, outside of -200..200"
    for axis, pairing in recipe.pairing.items():
        is_matched = pairing.role in {"antisymmetric", "symmetric"}
        low = 1 if is_matched else 0
        if not low <= pairing.mask <= (_INDEX_MAX if is_matched else 0):
            return f"has mask={pairing.mask} over {axis!r}, which role {pairing.role} cannot have"
    for point in recipe.points:
        try:
            value = float.fromhex(point.value)
        except (ValueError, OverflowError):
            return f"has the value {point.value[:40]!r}, which is no hexadecimal float"
        if not math.isfinite(value) or any(not 0 <= at < _INDEX_MAX for at in point.at.values()):
            return "has a point without a finite value or with an index out of range"
    for inner in recipe.rows:
        reason = _wrong_recipe(inner, nested=True)
        if reason:
            return reason
    return ""


def _converter() -> cattrs.Converter:
    converter = record_converter()
    structure = {kind: converter.gen_structure_attrs_fromdict(kind) for kind in _OPS.values()}
    unstructure = {
        kind: (name, converter.gen_unstructure_attrs_fromdict(kind)) for name, kind in _OPS.items()
    }

    def op_of(data: object, _: object) -> object:
        if not isinstance(data, dict):
            raise ValueError("needs an object")  # noqa: TRY004  # as any other wrong value
        kind = _OPS.get(data["op"]) if isinstance(data.get("op"), str) else None
        if kind is None:
            raise ValueError(f"needs op, one of {', '.join(_OPS)}")
        inner = {key: value for key, value in data.items() if key != "op"}
        return structure[kind](inner, kind)

    def data_of(op: object) -> dict[str, Json]:
        name, plain = unstructure[type(op)]
        return {"op": name, **plain(op)}

    def check_of(value: object, _: object) -> str:
        if type(value) is str and value in {"", *CHECKS}:
            return value
        raise ValueError(f"needs one of {', '.join(CHECKS)}, or nothing")

    converter.register_structure_hook(Check | Literal[""], check_of)
    converter.register_structure_hook(Op, op_of)
    for kind in _OPS.values():
        converter.register_unstructure_hook(kind, data_of)
    converter.register_unstructure_hook(Op, data_of)
    return converter


CONVERTER = _converter()
