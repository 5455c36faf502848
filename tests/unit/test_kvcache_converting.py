"""Programs and outcomes as JSON, and what is refused."""

import json

import attrs
import pytest
from tests.unit.program_samples import append

from biprop.case import Execution, Json
from biprop.data.recipe import Pairing, Point, Recipe
from biprop.errors import CaseError
from biprop.judgment import LaunchFact, Verdict
from biprop.kvcache.converting import (
    program_digest,
    program_from_data,
    program_outcome_from_data,
    program_outcome_to_data,
    program_to_data,
)
from biprop.kvcache.records import (
    Allocate,
    Decode,
    Defragment,
    Evict,
    Fork,
    Free,
    Generate,
    Poison,
    Program,
    ProgramCause,
    ProgramDifference,
    ProgramOutcome,
    Read,
    Rescore,
)
from biprop.kvcache.shape import CacheShape

EVERYTHING = Program(
    shape=CacheShape(layout="HND", dtype="float32", storage="bfloat16", heads=2, query_heads=4),
    seed=2**32 - 1,
    ops=(
        Allocate(sequence="s0"),
        append(("s0", 3), ("s1", 0)),
        Decode(sequences=("s0", "s1")),
        Fork(sequence="s1", parent="s0", at=2),
        Read(sequence="s0"),
        Evict(sequence="s0", keep=1),
        Free(sequence="s0"),
        Defragment(),
        Poison(fill="nan"),
        Rescore(sequence="s1"),
        Generate(sequence="s1", count=2),
    ),
    data={
        "q": Recipe(kind="mix", rows=(Recipe(kind="zeros"), Recipe(kind="normal", exponent=-2))),
        "k": Recipe(kind="pairs", pairing={"@": Pairing(role="antisymmetric", mask=2)}),
        "v": Recipe(kind="explicit", points=(Point(at={"@": 1}, value="0x1p-3"),)),
    },
    execution=Execution(threads=2),
)
OUTCOME = ProgramOutcome(
    verdict=Verdict.DRIFTS,
    cause=ProgramCause(verdict=Verdict.DRIFTS, check="chunk", output="out", finite=False),
    step=3,
    difference=ProgramDifference(
        sequence="s0",
        token=1,
        coordinate=(0, 2),
        expected_bits="0x3f800000",
        got_bits="0xbf800000",
        expected_value="1.0",
        got_value="-1.0",
        elements=1,
        elements_compared=4,
        max_abs_error=2.0,
        dtype="float32",
    ),
    coverage=("dirty reuse",),
    ops_run=4,
    comparisons=9,
    power=0.5,
    rate=0.25,
    repeats=5,
    requested_backend="triton",
    actual_backend="triton-interpreter",
    facts=(LaunchFact(role="attend", kernel="tile", grid=(2, 1)),),
    seconds=0.5,
)


class TestPrograms:
    """Programs."""

    def test_every_operation_comes_back(self) -> None:
        """Writing a program and reading it gives the same program, through a text too."""

        data = json.loads(json.dumps(program_to_data(EVERYTHING)))

        assert program_from_data(data) == EVERYTHING

    def test_defaults_are_left_out(self) -> None:
        """The smallest program is an empty shape."""

        assert program_to_data(Program(shape=CacheShape())) == {"shape": {}}

    def test_operation_is_named_first(self) -> None:
        """An operation is an object that names its kind in lower case."""

        program = Program(shape=CacheShape(), ops=(Poison(fill="inf"),))

        assert program_to_data(program)["ops"] == [{"op": "poison", "fill": "inf"}]

    def test_digest_follows_the_content(self) -> None:
        """Equal programs have one digest, and others another."""

        same = program_from_data(program_to_data(EVERYTHING))

        assert program_digest(same) == program_digest(EVERYTHING)
        assert program_digest(attrs.evolve(EVERYTHING, seed=1)) != program_digest(EVERYTHING)

    REFUSED: tuple[tuple[Json, str], ...] = (
        ([], "needs a JSON object"),
        ({}, "missing key 'shape'"),
        ({"shape": {}, "more": 1}, "unknown key 'more' @ program"),
        ({"shape": {"heads": "2"}}, "needs a whole number, not str"),
        ({"shape": {"block_size": 0}}, "shape.block_size=0 is outside of 1..4096"),
        ({"shape": {"block_count": 1 << 20}}, "shape.block_count=1048576 is outside"),
        ({"shape": {"heads": 2, "query_heads": 3}}, "query_heads=3 is no multiple of heads=2"),
        ({"shape": {"dtype": "bfloat16"}}, "storage=float32 is no narrower than dtype=bfloat16"),
        ({"shape": {"dtype": "float64"}}, "float64"),
        (
            {"shape": {"block_size": 4096, "block_count": 65536, "width": 1024}},
            "elements, more than",
        ),
        ({"shape": {}, "seed": -1}, "seed=-1 is outside"),
        ({"shape": {}, "vocabulary": 1}, "vocabulary=1 is outside"),
        ({"shape": {}, "execution": {"threads": 0}}, "execution.threads=0 is outside"),
        ({"shape": {}, "ops": ["free"]}, "needs an object"),
        ({"shape": {}, "ops": [{}]}, "needs op, one of allocate"),
        ({"shape": {}, "ops": [{"op": "burn"}]}, "needs op, one of allocate, append"),
        ({"shape": {}, "ops": [{"op": "free"}]}, "missing key 'sequence' @ program.ops[0]"),
        ({"shape": {}, "ops": [{"op": "defragment", "x": 1}]}, "unknown key 'x'"),
        ({"shape": {}, "ops": [{"op": "free", "sequence": "x"}]}, "ops[0] names 'x'"),
        ({"shape": {}, "ops": [{"op": "poison", "fill": "mud"}]}, "mud"),
        (
            {"shape": {}, "ops": [{"op": "evict", "sequence": "s0", "keep": -1}]},
            "ops[0] has the number -1",
        ),
        (
            {"shape": {}, "ops": [{"op": "decode", "sequences": [f"s{n}" for n in range(300)]}]},
            "ops[0] names 300 sequences",
        ),
        ({"shape": {}, "ops": [{"op": "defragment"}] * 9000}, "9000 ops, more than"),
        ({"shape": {}, "data": {"x": {"kind": "ones"}}}, "data names 'x', and there are q, k, v"),
        (
            {"shape": {}, "vocabulary": 5, "data": {"q": {"kind": "ones"}}},
            "data names 'q', and there are embedding",
        ),
        ({"shape": {}, "data": {"q": {"kind": "noise"}}}, "data['q'] has the unknown kind"),
        ({"shape": {}, "data": {"q": {"kind": "mix"}}}, "data['q'] needs rows for kind mix"),
        (
            {"shape": {}, "data": {"q": {"kind": "ones", "exponent": 999}}},
            "data['q'] has exponent=999",
        ),
        (
            {
                "shape": {},
                "data": {"q": {"kind": "pairs", "pairing": {"@": {"role": "symmetric"}}}},
            },
            "data['q'] has mask=0 over '@'",
        ),
        (
            {
                "shape": {},
                "data": {"q": {"kind": "explicit", "points": [{"at": {}, "value": "nan"}]}},
            },
            "data['q'] has a point without a finite value",
        ),
    )

    @pytest.mark.parametrize(("data", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
    def test_what_cannot_be_meant_is_refused(self, data: Json, reason: str) -> None:
        """One sentence says what is wrong, and where."""

        with pytest.raises(CaseError) as refused:
            program_from_data(data)

        assert reason in str(refused.value)
        assert str(refused.value).endswith(".")
        assert "\n" not in str(refused.value)


class TestOutcomes:
    """Outcomes."""

    @pytest.mark.parametrize("outcome", [OUTCOME, ProgramOutcome(verdict=Verdict.HOLDS)])
    def test_outcome_comes_back(self, outcome: ProgramOutcome) -> None:
        """Writing an outcome and reading it gives the same outcome."""

        data = json.loads(json.dumps(program_outcome_to_data(outcome)))

        assert program_outcome_from_data(data) == outcome

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"verdict": "FINE"}, "needs one of HOLDS"),
            ({"cause": {"verdict": "DRIFTS", "check": "mood"}}, "needs one of stored"),
            ({"more": 1}, "unknown key 'more'"),
        ],
    )
    def test_unknown_words_are_refused(self, change: dict[str, Json], reason: str) -> None:
        """A verdict, a check or a key that there is not is refused."""

        with pytest.raises(CaseError, match=reason):
            program_outcome_from_data({**program_outcome_to_data(OUTCOME), **change})
