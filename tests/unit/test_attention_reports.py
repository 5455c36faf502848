"""Findings over queries and contexts in words, and as scripts that need no biprop."""

import json
from pathlib import Path

import jsonschema
import pytest
from tests.preloaded import Preloaded
from tests.unit.test_reports import Script, assert_shows, run_alone

from biprop.case import Case, Judged
from biprop.data.recipe import TOKENS, Point, Recipe
from biprop.fixtures.records import Fixture, make_fixture
from biprop.judgment import Proof
from biprop.operators import Kernel
from biprop.reports.drift import drift_lines, drift_records, drift_schema
from biprop.reports.issue import render_issue
from biprop.reports.text import render_fixture
from biprop.reports.words import case_in_words
from biprop.sequence import LogicalSequence
from biprop.signature import parse_signature
from biprop.supervision.in_process import InProcessJudge
from biprop.transforms import (
    AddNeighbours,
    PackRows,
    PadSlots,
    SplitBatch,
    Transform,
    transform_to_data,
)

HEADS = "q[B,H,Q,D], k[B,H,C,D], v[B,H,C,D]"
SIGNATURES = {
    "masked": f"{HEADS}, mask: causal_mask[B,1,Q,C] -> out[B,H,Q,D]",
    "additive": f"{HEADS}, mask: causal_mask(float)[B,1,Q,C] -> out[B,H,Q,D]",
    "flagged": f"{HEADS}, is_causal: is_causal -> out[B,H,Q,D]",
    "counted": f"{HEADS}, a: lengths(Q)[B], b: lengths(C)[B] -> out[B,H,Q,D]",
    "full": f"{HEADS}, live: mask[B,C] -> out[B,H,Q,D]",
    "scaled": f"{HEADS}, live: mask[B,C] -> out[B,H,Q,D]",
    "packed": "q[TQ,H,D], k[TC,H,D], v[TC,H,D], a: offsets(Q)[B+1], b: offsets(C)[B+1] "
    "-> out[TQ,H,D]",
    "one_query": "q[B,H,1,D], k[B,H,C,D], v[B,H,C,D] -> out[B,H,1,D]",
}
KERNEL = """
import torch


def summed(q, v, keep, forwards):
    total = torch.zeros(q.shape)
    order = range(v.shape[2])
    for key in order if forwards else reversed(order):
        term = total + v[:, :, None, key].float()
        total = torch.where(keep[:, None, :, key, None], term, total)
    return total.to(q.dtype)


def is_canonical(q, k):
    return q.shape[0] == 1 and q.shape[2] == k.shape[2] == 3


def masked(q, k, v, mask):
    return summed(q, v, mask[:, 0], is_canonical(q, k))


def additive(q, k, v, mask):
    return summed(q, v, mask[:, 0] == 0, is_canonical(q, k))


def flagged(q, k, v, is_causal):
    keep = torch.ones(q.shape[0], q.shape[2], k.shape[2], dtype=torch.bool)
    return summed(q, v, keep.tril() if is_causal else keep, is_canonical(q, k))


def counted(q, k, v, a, b):
    own = torch.arange(q.shape[2])[None, :, None] + (b - a)[:, None, None]
    key = torch.arange(k.shape[2])
    keep = (key <= own) & (key < b[:, None, None])
    return summed(q, v, keep, is_canonical(q, k))


def full(q, k, v, live):
    keep = live[:, None].expand(-1, q.shape[2], -1)
    return summed(q, v, keep, is_canonical(q, k))


def scaled(q, k, v, live):
    kept = torch.where(live[:, None, :, None], v, torch.zeros_like(v))
    return q * 0 + kept.sum(2, keepdim=True) * (1 + (q.shape[0] > 1) / 64)


def packed(q, k, v, a, b):
    out = torch.zeros(q.shape, dtype=q.dtype)
    for row in range(len(a) - 1):
        own, key = slice(a[row], a[row + 1]), slice(b[row], b[row + 1])
        one, other = q[own].transpose(0, 1)[None], v[key].transpose(0, 1)[None]
        size = one.shape[2], other.shape[2]
        keep = torch.ones(1, *size, dtype=torch.bool).tril(size[1] - size[0])
        out[own] = summed(one, other, keep, len(a) == 2 and size[0] == size[1])[0].transpose(0, 1)
    return out


def one_query(q, k, v):
    keep = torch.ones(q.shape[0], 1, k.shape[2], dtype=torch.bool)
    return summed(q, v, keep, q.shape[0] == 1)
"""

# 2**-12 is lost beside 4096, unless -4096 meets it first.
WITNESS = Recipe(
    kind="explicit",
    points=tuple(
        Point(at={TOKENS: token}, value=value.hex())
        for token, value in enumerate((-4096.0, 4096.0, 2.0**-12))
    ),
)
DECODE = SplitBatch(cuts=(2,))


def case_of(name: str, *transforms: Transform, length: int = 3, judged: Judged = "outputs") -> Case:
    """Return a case whose last query sees the witness."""
    signature = parse_signature(SIGNATURES[name])
    zeros = Recipe(kind="zeros")
    data = {"q": zeros, "k": zeros, "v": WITNESS}
    return Case(
        dtype="bfloat16",
        judged=judged,
        dims=dict.fromkeys(signature.free_dims, 2),
        sequences=(LogicalSequence(id=0, length=length),),
        data=data | ({"dout": Recipe(kind="ones")} if judged != "outputs" else {}),
        transforms=tuple(transform_to_data(transform) for transform in transforms),
    )


def found(tmp_path: Path, name: str, case: Case) -> Fixture:
    """Judge a case of the file's kernel here, and return its fixture."""
    path = tmp_path / "kernels_here.py"
    path.write_text(KERNEL, encoding="utf-8")
    space: dict[str, object] = {}
    exec(compile(KERNEL, str(path), "exec"), space)  # noqa: S102  # the text above
    kernel = Kernel(
        operator="kernels_here.py:" + name,
        target="kernels_here.py:" + name,
        signature=parse_signature(SIGNATURES[name]),
        function=space[name],  # type: ignore[arg-type]  # a function
    )
    judge = InProcessJudge(kernel, dtype=case.dtype, direction=case.direction)
    result = judge.judge(case)
    assert result.cause is not None, result
    return make_fixture(
        reference=judge.reference,
        case=case,
        outcome=result,
        proof=Proof(),
        provenance=judge.description.provenance,
    )


def test_scripts_show_both_patterns_without_biprop(tmp_path: Path, preloaded: Preloaded) -> None:
    """Masks, counts, ends and flags are written out, whatever tells the kernel who attends whom."""
    padded = PadSlots(amount=2, contexts_only=True, side="left", fill="nan")
    chosen: tuple[tuple[str, Transform], ...] = (
        ("masked", DECODE),
        ("masked", padded),
        ("masked", PackRows()),
        ("additive", DECODE),
        ("flagged", DECODE),
        ("counted", DECODE),
        ("counted", PadSlots(amount=1, contexts_only=True, fill="inf")),
        ("full", SplitBatch(cuts=(1,))),
        ("packed", DECODE),
        ("packed", AddNeighbours(count=1)),
        ("one_query", AddNeighbours(count=1)),
    )
    fixtures = []
    for name, transform in chosen:
        more = (AddNeighbours(count=1),) if isinstance(transform, PackRows) else ()
        fixtures.append(found(tmp_path, name, case_of(name, *more, transform)))

    gradient = case_of("scaled", AddNeighbours(count=1), judged="token_gradients")
    fixtures.append(found(tmp_path, "scaled", gradient))

    # A gradient of values lies on the axis of contexts.
    assert fixtures[-1].expect.cause.output == "dv"
    scripts = [Script(fixture=fixture, text=KERNEL) for fixture in fixtures]
    for script, printed in zip(scripts, run_alone(preloaded, tmp_path, *scripts), strict=True):
        assert_shows(script.fixture, printed)


@pytest.mark.parametrize(
    ("name", "transforms", "words"),
    [
        ("masked", (DECODE,), "causal queries and contexts, decode at token 2, "),
        ("masked", (SplitBatch(cuts=(1,)),), "contexts, queries cut at token 1, "),
        ("masked", (SplitBatch(cuts=(1, 2)),), "contexts, decode at token 1, decode at token 2, "),
        (
            "masked",
            (SplitBatch(cuts=(5,)),),
            "1 sequence of 3 tokens, causal queries and contexts, H",
        ),
        ("masked", (PackRows(per_row=3),), "3 sequences a row under a block-diagonal mask, "),
        ("full", (DECODE,), "queries of all contexts, one query alone at token 2, "),
        ("one_query", (), "1 sequence of 3 tokens, one query of all contexts, H=2"),
    ],
)
def test_case_says_who_attends_and_where_queries_are_cut(
    name: str, transforms: tuple[Transform, ...], words: str
) -> None:
    """The words name decoding, cuts and packed rows, and nothing without a signature."""
    case = case_of(name, *transforms)

    assert words in case_in_words(case, parse_signature(SIGNATURES[name]))
    assert "contexts" not in case_in_words(case)


def test_long_lists_of_cuts_are_short() -> None:
    """A few places are named, and how many there are."""
    cuts = SplitBatch(cuts=tuple(range(1, 40)))
    case = case_of("masked", cuts, length=40)
    words = case_in_words(case, parse_signature(SIGNATURES["masked"]))

    assert "decode at token 4, 39 cuts in all" in words
    assert "decode at token 5" not in words


def test_text_and_issue_name_the_decoding_token(tmp_path: Path) -> None:
    """Whoever reads a finding learns that one query was computed alone."""
    fixture = found(tmp_path, "masked", case_of("masked", DECODE))

    assert "decode at token 2" in render_fixture(fixture)
    assert "decode at token 2" in render_issue(fixture)
    assert "SplitBatch(cuts=(2,))" in render_issue(fixture)


def test_drift_record_tells_cuts_and_packed_rows(tmp_path: Path) -> None:
    """Machines read both values of what the transforms changed, and the schema knows them."""
    packed = found(tmp_path, "masked", case_of("masked", AddNeighbours(count=1), PackRows()))
    cut = found(tmp_path, "masked", case_of("masked", DECODE))
    lines = drift_lines([*drift_records(packed), *drift_records(cut)]).splitlines()
    changes = [change for line in lines for change in json.loads(line)["transforms"]]

    for line in lines:
        jsonschema.validate(json.loads(line), drift_schema())
    assert [change["transformed"] for change in changes if change["transform_class"] != "T1"] == [
        {"selection.per_row": 2},
        {"cuts": [2]},
    ]
    assert [change["canonical"] for change in changes if change["transform_class"] != "T1"] == [
        {"selection.per_row": 1},
        {"cuts": []},
    ]
