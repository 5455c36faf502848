"""A stand-alone script that shows a finding about a cache with torch and the target alone.

The calls of the program, the tokens that it brings, and the checks are written out; a full prefill
is what a fresh cache of the target gives. Needs torch, but neither runs nor imports the target. The
text around the values stands in `program_script.py.j2`.
"""

import pprint
from collections import Counter

import attrs
import jinja2
import torch
from torch import Tensor

from biprop.errors import UnsupportedError
from biprop.fixtures.programs import ProgramFixture
from biprop.judgment import Verdict
from biprop.kvcache.model import Model
from biprop.kvcache.records import (
    Allocate,
    Append,
    Decode,
    Defragment,
    Evict,
    Fork,
    Free,
    Op,
    Poison,
    Program,
    Rescore,
)
from biprop.kvcache.values import Drawn
from biprop.reports.programs import op_in_words, program_in_words
from biprop.reports.words import plain, recipes_in_words
from biprop.signature import parse_target

__all__ = ["VALUES_MAX", "render_program_script"]

VALUES_MAX = 20_000
_RUNS_MAX = 200

_Pieces = list[tuple[int, int, int]]
_Call = tuple[object, ...]


def render_program_script(fixture: ProgramFixture) -> str:
    """Return the script. Run, it prints both bit patterns and exits 1 while they differ, else 0.

    Raises:
        UnsupportedError: The cache is one of biprop itself, what differs takes biprop to tell, or
            the tokens hold too many values to be written out.
    """
    _refuse(fixture)
    program, difference = fixture.program, fixture.expect.difference
    steps = _steps(program)
    target = parse_target(fixture.target)
    return _template().render(
        # A stranger's words: one line of printable ASCII each, and only in comments.
        words=[
            plain(f"{fixture.expect.verdict} of {fixture.cache}, fixture {fixture.id}."),
            f"Program: {program_in_words(program)}.",
            f"Data: {recipes_in_words(program.data, seed=program.seed)}.",
        ],
        place=repr(target.file or target.module),
        is_file=target.file is not None,
        name=repr(target.name),
        device=repr(fixture.provenance.device.partition(":")[0]),
        shape=_literal(attrs.asdict(program.shape)),
        values=_literal(_values(program)),
        steps=_literal(steps),
        recorded=_literal(
            None if difference is None else (difference.expected_bits, difference.got_bits)
        ),
        execution=program.execution,
        runs=_RUNS_MAX if fixture.expect.verdict is Verdict.NONDETERMINISTIC else 1,
    )


def _refuse(fixture: ProgramFixture) -> None:
    """Raise where no script can show without biprop what biprop saw."""
    if fixture.reference.is_registered:
        raise UnsupportedError(
            f"Cache {fixture.cache} is part of biprop, so no script can do without biprop: "
            f"use `biprop show {fixture.id[:8]} --issue`."
        )
    if fixture.attention:
        raise UnsupportedError(
            f"Full prefills are made by operator {fixture.attention} of biprop: use --issue."
        )
    if fixture.program.vocabulary is not None:
        raise UnsupportedError("Tokens are made by a small model of biprop: use --issue.")
    expect = fixture.expect
    # What returns something unfit, or leaves, ends a script as if all were well.
    is_judged_by_biprop = expect.verdict is Verdict.CRASHES and (
        expect.message.startswith(("OutputError", "SystemExit"))
        or "ended the process with exit status" in expect.message
    )
    if is_judged_by_biprop or expect.cause.check == "input":
        raise UnsupportedError(
            f"biprop saw {expect.message!r}, which a script without it does not show: use --issue."
        )
    if fixture.expect.verdict is Verdict.INACCURATE:
        raise UnsupportedError("The reference and its tolerance are those of biprop: use --issue.")


def _steps(program: Program) -> list[dict[str, object]]:
    """Return each legal operation as calls, and what is stored after it."""
    model = Model(program.shape)
    found: list[dict[str, object]] = []
    for op in program.ops:
        if not model.is_legal(op):
            continue
        again = [
            (
                part.sequence,
                _pieces(model, part.sequence, model.sequences[part.sequence].stored),
            )
            for part in model.missing(op)
        ]
        before = {name: state.length for name, state in model.sequences.items()}
        model.apply(op)
        calls: list[_Call] = []
        if again:
            names, pieces = zip(*again, strict=True)
            calls.append(("append", names, list(pieces), False))
        calls += _calls(op, model, before)
        live = {
            name: _pieces(model, name, 0, state.stored) for name, state in model.sequences.items()
        }
        found.append({"words": op_in_words(op), "calls": calls, "live": live})
    return found


def _calls(op: Op, model: Model, before: dict[str, int]) -> list[_Call]:
    match op:
        case Allocate():
            return [("allocate", op.sequence)]
        case Append():
            names = tuple(part.sequence for part in op.parts)
            return [("append", names, [_pieces(model, name, before[name]) for name in names], True)]
        case Decode():
            pieces = [_pieces(model, name, before[name]) for name in op.sequences]
            return [("decode", op.sequences, pieces, True)]
        case Fork():
            pieces_of_fork = _pieces(model, op.sequence, 0)
            return [("fork", op.sequence, op.parent, op.at, pieces_of_fork)]
        case Evict():
            return [("evict", op.sequence, op.keep)]
        case Free():
            return [("free", op.sequence)]
        case Defragment():
            return [("defragment",)]
        case Poison():
            return [("poison", op.fill)]
        case Rescore():
            return [("rescore", op.sequence)]
        case _:
            # Every sequence is read after each operation.
            return []


def _pieces(model: Model, name: str, start: int, stop: int | None = None) -> _Pieces:
    """Return tokens of a sequence by their sources: number, first, past the last."""
    state = model.sequences[name]
    end = state.length if stop is None else stop
    parts = [
        (piece.source, max(piece.start, start), min(piece.stop, end)) for piece in state.pieces
    ]
    return [part for part in parts if part[1] < part[2]]


def _values(program: Program) -> dict[int, dict[str, object]]:
    """Return the queries, keys and values of every token that is ever used."""
    model = Model(program.shape)
    most: dict[int, int] = {}
    for op in program.ops:
        model.apply(op)
        for state in model.sequences.values():
            for piece in state.pieces:
                most[piece.source] = max(piece.stop, most.get(piece.source, 0))
    drawn = Drawn(program, torch.device("cpu"))
    found: dict[int, dict[str, object]] = {}
    count = 0
    for source, stop in sorted(most.items()):
        rows = drawn.rows(source, 0, stop)
        sides = {"q": rows.q, "k": rows.k, "v": rows.v}
        found[source] = {name: _written(side) for name, side in sides.items()}
        count += sum(len(_others(side)[1]) for side in sides.values())
        if count > VALUES_MAX:
            raise UnsupportedError(
                f"The tokens hold more than {VALUES_MAX} values that differ from one another: "
                "use --issue."
            )
    return found


def _written(values: Tensor) -> dict[str, object]:
    base, others = _others(values)
    return {"shape": tuple(values.shape), "base": base, "others": others}


def _others(values: Tensor) -> tuple[str, dict[int, str]]:
    flat = [number.hex() for number in values.double().flatten().tolist()]
    base = Counter(flat).most_common(1)[0][0] if flat else (0.0).hex()
    return base, {index: item for index, item in enumerate(flat) if item != base}


def _literal(value: object) -> str:
    return pprint.pformat(value, width=100, compact=True, sort_dicts=False)


def _template() -> jinja2.Template:
    environment = jinja2.Environment(  # noqa: S701  # Python, not HTML; every value is a literal
        loader=jinja2.PackageLoader("biprop.reports", ""),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("program_script.py.j2")
