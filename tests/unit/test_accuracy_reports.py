"""Findings of relations A and P for people and machines, and as texts of strangers."""

import json

import attrs
import jsonschema
import pytest
from tests.unit.sample_fixtures import PROVENANCE

from biprop.case import Against, Case, TransformData
from biprop.data.recipe import Recipe
from biprop.errors import FixtureError, UnsupportedError
from biprop.fixtures.programs import any_fixtures_in
from biprop.fixtures.records import Fixture, fixture_text, make_fixture
from biprop.fixtures.replay import Replayed
from biprop.judgment import (
    BitDifference,
    Cause,
    LaunchFact,
    Mismatch,
    Outcome,
    Power,
    Proof,
    Verdict,
)
from biprop.operators import KernelReference
from biprop.reports.drift import drift_lines, drift_records, drift_schema
from biprop.reports.issue import render_issue
from biprop.reports.script import render_script
from biprop.reports.text import render_fixture, render_replay
from biprop.sequence import LogicalSequence

ACCURACY = Against(relation="A", atol=0.05, rtol=0.02)
PARITY = Against(relation="P", backend="torch", atol=0.05, rtol=0.02)
NORM = KernelReference(
    operator="rms_norm",
    target="rms_norm/packed",
    signature="x[T,H], weight[H] -> y[T,H], rstd: float32[T]",
    backend="triton",
)


FIRST = BitDifference(
    sequence_id=0,
    token=0,
    coordinate=(0,),
    canonical_row=0,
    transformed_row=-1,
    transformed_launch=0,
    canonical_bits="0x3fa0",
    transformed_bits="0x3f800000",
    canonical_value="1.25",
    transformed_value="1.0",
)


def found(against: Against | None = ACCURACY, **changes: object) -> Fixture:
    """Return a finding of rms_norm in bfloat16.

    Args:
        against: What it was held against.
        changes: Of its cause.
    """
    case = Case(
        dtype="bfloat16",
        dims={"H": 1},
        sequences=(LogicalSequence(id=0, length=1),),
        data={"x": Recipe(kind="ones")},
        policy_state={"weight": Recipe(kind="ones")},
        against=against,
    )
    cause = Cause(
        verdict=Verdict.INACCURATE,
        direction="forward",
        output="y",
        relation=case.relation,
        backend=against.backend if against else "",
    )
    cause = attrs.evolve(cause, **changes)  # type: ignore[arg-type]  # fields of a cause
    mismatch = Mismatch(
        output=cause.output,
        dtype="bfloat16",
        other_dtype="float32",
        elements=1,
        elements_compared=1,
        tokens=1,
        tokens_compared=1,
        first=FIRST,
        max_abs_error=0.25,
        mean_abs_error=0.25,
        max_rel_error=0.25,
    )
    outcome = Outcome(
        verdict=cause.verdict,
        cause=cause,
        mismatches=(mismatch,),
        power=Power(kind="magnitude", share=1.0),
        repeats=5,
        facts=(LaunchFact(role="canonical", kernel="rms_norm"),),
    )
    return make_fixture(
        reference=NORM,
        case=case,
        outcome=outcome,
        proof=Proof(complete=True, runs=9),
        provenance=PROVENANCE,
    )


class TestWords:
    """What people read."""

    def test_sides_and_tolerance_are_named(self) -> None:
        """In place of transforms stands what the kernel was held against, and how far it is off."""
        lines = render_fixture(found()).splitlines()

        assert lines[0].startswith("INACCURATE rms_norm y bfloat16 forward triton")
        assert (
            "against    the float32 reference on the same values, atol 0.05, rtol 0.02" in lines[1]
        )
        assert "y[0] of token 0 of sequence 0, 0.25 apart, 0.07 allowed" in lines[4]
        assert lines[5].split() == ["triton", "0x3fa0", "1.25", "row", "0"]
        assert lines[6].split() == ["reference", "0x3f800000", "1.0"]
        assert "beyond     1 of 1 bfloat16 elements, 1 of 1 tokens, max abs 0.25" in lines[7]
        assert not any("transform" in line for line in lines)

    def test_other_backend_is_named(self) -> None:
        """Parity has two backends."""
        text = render_fixture(found(PARITY))

        assert "against    backend torch on the same values" in text
        assert "\n             torch       0x3f800000  1.0" in text

    def test_probe_is_named_and_is_not_called_unfinished(self) -> None:
        """A probe is not shrunk, which is no want of time."""
        against = attrs.evolve(ACCURACY, probe="bf16_accumulation")
        fixture = attrs.evolve(found(against), proof=Proof(runs=1))

        assert "what probe bf16_accumulation of the contract expects" in render_fixture(fixture)
        assert "budget" not in render_fixture(fixture)
        assert "budget" in render_fixture(attrs.evolve(found(), proof=Proof(runs=1)))

    @pytest.mark.parametrize(
        ("against", "side", "promise"),
        [
            (ACCURACY, "against `float32 reference`", "tolerance of the float32 reference."),
            (PARITY, "against `torch`", "Two backends that each keep their bits"),
        ],
    )
    def test_issue_says_what_was_promised(self, against: Against, side: str, promise: str) -> None:
        """An issue does not speak of bits where bits were not compared, and can be read back."""
        text = render_issue(found(against))

        assert side in text
        assert promise in text
        assert "must give the same bits" not in text
        assert "y: d beyond what is allowed on 1 of 1 tokens (100.0%)" in text
        assert any_fixtures_in(text) == (found(against),)

    def test_replay_names_the_sides(self) -> None:
        """What is seen again is told as it was found."""
        fixture = found()
        expect = fixture.expect
        outcome = Outcome(
            verdict=expect.verdict, cause=expect.cause, mismatches=expect.mismatches, repeats=5
        )
        replayed = Replayed(fixture=fixture, status="FAILED", exit_code=1, outcome=outcome)

        assert "reference   0x3f800000" in render_replay(replayed)

    def test_values_of_a_stranger_are_no_numbers(self) -> None:
        """A text that is no number makes the two incomparable, and raises nothing."""
        fixture = found()
        (mismatch,) = fixture.expect.mismatches
        first = attrs.evolve(mismatch.first, canonical_value="many")
        expect = attrs.evolve(fixture.expect, mismatches=(attrs.evolve(mismatch, first=first),))

        assert "not comparable" in render_fixture(attrs.evolve(fixture, expect=expect))

    def test_script_is_refused_in_a_sentence(self) -> None:
        """Both sides are part of biprop, so no script can do without it."""

        with pytest.raises(UnsupportedError, match="no script can do without biprop"):
            render_script(found())


class TestRecords:
    """What machines read."""

    @pytest.mark.parametrize(
        ("against", "roles", "backend"),
        [
            (ACCURACY, ("bf16_candidate", "fp32_reference"), ""),
            (PARITY, ("canonical_config", "canonical_config"), "torch"),
        ],
    )
    def test_drift_record_holds_roles_and_threshold(
        self, against: Against, roles: tuple[str, str], backend: str
    ) -> None:
        """Relation, roles, both parts of the threshold and the errors, as the schema has them."""
        (record,) = drift_records(found(against), op_class="reduction", chain_index=1)

        assert (record.relation, record.roles) == (against.relation, roles)
        assert (record.threshold, record.threshold_relative) == (0.05, 0.02)
        assert (record.other_backend, record.max_abs_error) == (backend, 0.25)
        jsonschema.validate(json.loads(drift_lines([record])), drift_schema())

    def test_fixture_comes_back_as_it_was(self) -> None:
        """The thresholds are a part of the case, so that it replays under what it failed."""

        assert any_fixtures_in(fixture_text(found(PARITY))) == (found(PARITY),)
        assert json.loads(fixture_text(found(PARITY)))["case"]["against"] == {
            "relation": "P",
            "backend": "torch",
            "atol": 0.05,
            "rtol": 0.02,
        }

    def test_case_of_invariance_has_no_new_field(self) -> None:
        """Stored fixtures keep their ids."""

        assert '"against"' not in fixture_text(found(None, verdict=Verdict.DRIFTS))

    @pytest.mark.parametrize(
        ("fixture", "reason"),
        [
            (found(relation="I"), "the cause is of relation I and the case of A"),
            (found(backend="torch"), "the cause is of relation A and the case of A"),
            (found(verdict=Verdict.DRIFTS), "DRIFTS, which relation A never gives"),
            (found(None), "INACCURATE, which relation I never gives"),
            (found(attrs.evolve(PARITY, backend="triton")), "holds against itself"),
            (found(attrs.evolve(PARITY, backend="a b")), "which is no name"),
            (found(attrs.evolve(ACCURACY, probe="a b")), "which is no name"),
            (found(attrs.evolve(ACCURACY, atol=-1.0)), "give numbers of 0 or more"),
            (
                attrs.evolve(
                    found(),
                    case=attrs.evolve(found().case, transforms=(TransformData(name="SplitBatch"),)),
                ),
                "id does not belong",
            ),
        ],
    )
    def test_contradictions_are_refused(self, fixture: Fixture, reason: str) -> None:
        """A text that no search writes is not run."""

        with pytest.raises(FixtureError, match=reason):
            any_fixtures_in(fixture_text(fixture))
