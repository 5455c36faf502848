"""The suite: which cells a run has, what becomes of each, and what it amounts to."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.unit.suite_targets import HEALTHY, REGISTRY, made, negated

from biprop.contract import load_contract
from biprop.errors import BipropError, TargetError, UsageError
from biprop.judgment import Verdict
from biprop.kernels.logp import OPERATOR as LOGP
from biprop.operators import Operator, Registry
from biprop.provenance import Provenance
from biprop.registry import build_registry
from biprop.reports.records import CellReport
from biprop.reports.suite import (
    CellError,
    ContractUsed,
    InvarianceReport,
    SuiteCell,
    report_to_data,
)
from biprop.reports.suite_text import render_failed, render_suite
from biprop.strategies.cells import cells_of
from biprop.suite import SuiteEvent, run_invariance_suite
from biprop.suite.parcels import packed, unpacked
from biprop.suite.plan import Choice, plan_of
from biprop.suite.pool import Ended
from biprop.suite.searching import CellTask, Searched

# What a caller without types may give.
ANY: Any = lambda value: value  # noqa: E731
CONTRACT = load_contract()
USED = ContractUsed.of(CONTRACT)


@attrs.frozen(kw_only=True)
class Ran:
    """One run over the operators of `suite_targets`, which the tests below look at."""

    report: InvarianceReport
    events: list[SuiteEvent]
    folder: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run all operators of `suite_targets` in one search process, which one of them kills."""
    folder = tmp_path_factory.mktemp("found")
    events: list[SuiteEvent] = []
    report = run_invariance_suite(
        registry=REGISTRY,
        dtypes=("float32",),
        directions=("forward",),
        max_examples=12,
        workers=1,
        store=folder,
        tell=events.append,
    )
    return Ran(report=report, events=events, folder=folder)


def cell(
    verdict: Verdict | None = None,
    *,
    name: str = "healthy",
    chain_index: int = 0,
    is_mandatory: bool = True,
    error: CellError | None = None,
) -> SuiteCell:
    """Return a cell that ended with a verdict, with an error, or not at all."""
    (found,) = cells_of(
        Registry(operators=(HEALTHY,)), dtypes=("float32",), directions=("forward",)
    )
    reference = attrs.evolve(found.reference, operator=name)
    report = None
    if verdict is not None:
        report = CellReport(
            reference=reference, dtype="float32", direction="forward", device="cpu", verdict=verdict
        )
    return SuiteCell(
        id=f"{name}-torch-float32-forward",
        reference=reference,
        op_class="elementwise",
        dtype="float32",
        direction="forward",
        chain_index=chain_index,
        is_mandatory=is_mandatory,
        report=report,
        error=error,
    )


def report_of(*cells: SuiteCell, missing: tuple[str, ...] = ()) -> InvarianceReport:
    """Return the report of a run that had these cells."""
    return InvarianceReport(
        cells={item.id: item for item in cells},
        slice_name="pr",
        device="cpu",
        contract=USED,
        missing=missing,
    )


class TestRun:
    """One run in a search process that is lost on the way."""

    def test_lost_process_costs_its_cell_alone(self, ran: Ran) -> None:
        """The cell whose process was killed is CRASHES, and the cells after it have reports."""
        lost = ran.report.cells["killing-torch-float32-forward"]

        assert lost.word == "CRASHES"
        assert lost.error is not None
        assert "SIGKILL" in lost.error.message
        others = [item for item in ran.report.cells.values() if item is not lost]
        assert len(others) == 4
        assert all(item.report is not None for item in others)

    def test_healthy_cell_holds(self, ran: Ran) -> None:
        """An operator that keeps its bits is green after others failed."""

        assert ran.report.cells["healthy-torch-float32-forward"].word == "HOLDS"

    def test_first_in_the_chain_is_primary(self, ran: Ran) -> None:
        """All failing operators are named, the one of the lowest chain index first."""

        assert ran.report.failing == ("own_fault", "drifting", "killing", "borrowing")
        assert ran.report.primary == "own_fault"

    def test_composite_of_a_failing_part_is_downstream(self, ran: Ran) -> None:
        """A composite that holds with the part's reference fails because of the part."""

        assert ran.report.downstream == {"borrowing-torch-float32-forward": "drifting"}

    def test_composite_with_a_fault_of_its_own_is_independent(self, ran: Ran) -> None:
        """A composite that fails with the part's reference too is no consequence of the part."""
        found = {item.cell: item.status for item in ran.report.dependences}

        assert found["own_fault-torch-float32-forward"] == "independent"

    def test_findings_are_stored(self, ran: Ran) -> None:
        """Every finding of the run has a file in the store that was given."""
        reports = [item.report for item in ran.report.cells.values() if item.report is not None]
        paths = [Path(found.path) for report in reports for found in report.findings]

        assert len(paths) == 3
        assert sorted(path.name for path in ran.folder.glob("*.json")) == sorted(
            path.name for path in paths
        )

    def test_each_cell_begins_and_ends(self, ran: Ran) -> None:
        """A run tells of each cell when it begins and when it ended, with what became of it."""
        ids = list(ran.report.cells)

        assert [event.cell.id for event in ran.events if event.kind == "begun"] == ids
        assert [event.cell for event in ran.events if event.kind == "ended"] == list(
            ran.report.cells.values()
        )
        assert [event.done for event in ran.events if event.kind == "ended"] == [1, 2, 3, 4, 5]

    def test_json_keeps_every_record(self, ran: Ran) -> None:
        """The JSON of the run has every cell, and a drift record of each one that drifts."""
        data = json.loads(json.dumps(report_to_data(ran.report), allow_nan=False))
        drifts = {item["id"]: item["report"]["drift"] for item in data["cells"] if item["report"]}

        assert [item["id"] for item in data["cells"]] == list(ran.report.cells)
        assert data["exit_code"] == 1
        assert data["contract"]["digest"] == CONTRACT.digest
        assert len(data["source_digest"]) == 16
        assert drifts["drifting-torch-float32-forward"][0]["status"] == "DRIFTS"
        assert drifts["healthy-torch-float32-forward"] == []

    def test_text_ends_with_what_is_red(self, ran: Ran) -> None:
        """The text marks the primary and the downstream row, and ends with the conclusion."""
        lines = render_suite(ran.report).splitlines()

        assert any("own_fault" in line and line.endswith("primary") for line in lines)
        assert any("borrowing" in line and "downstream of drifting" in line for line in lines)
        assert lines[-1].startswith("RED")

    def test_interruption_keeps_what_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C ends a run with a report of what ended before, and exit code 130."""
        searched = cell(Verdict.HOLDS).report

        def stopped(tasks: tuple[CellTask, ...], **_: object) -> Iterator[Ended]:
            yield Ended(task=tasks[0], result=Searched(report=searched))
            raise KeyboardInterrupt

        monkeypatch.setattr("biprop.suite.run.run_tasks", stopped)
        report = run_invariance_suite(registry=REGISTRY, operators=("healthy", "killing"))

        assert report.exit_code == 130
        assert [item.word for item in report.cells.values()] == ["HOLDS"] + 3 * ["NOT RUN"]


class TestReport:
    """What the cells of a run amount to."""

    @pytest.mark.parametrize("verdict", [Verdict.VACUOUS, Verdict.UNSUPPORTED])
    def test_mandatory_cell_needs_evidence(self, verdict: Verdict) -> None:
        """A mandatory cell without enough evidence makes a run red, though nothing fails in it."""
        report = report_of(cell(verdict), cell(Verdict.HOLDS, name="other"))

        assert report.exit_code == 1
        assert report.primary is None

    @pytest.mark.parametrize("verdict", [Verdict.VACUOUS, Verdict.UNSUPPORTED])
    def test_optional_cell_needs_none(self, verdict: Verdict) -> None:
        """An optional cell may be unsupported, or lack evidence."""

        assert report_of(cell(verdict, is_mandatory=False)).exit_code == 0

    def test_optional_cell_may_not_fail(self) -> None:
        """An optional cell that was run and drifts makes a run red."""

        assert report_of(cell(Verdict.DRIFTS, is_mandatory=False)).exit_code == 1

    def test_missing_operator_is_red(self) -> None:
        """An operator that the contract asks for and nobody registered makes a run red."""

        assert report_of(cell(Verdict.HOLDS)).exit_code == 0
        assert report_of(cell(Verdict.HOLDS), missing=("swiglu",)).exit_code == 1

    def test_empty_run_is_red(self) -> None:
        """A run without cells shows nothing."""

        assert report_of().exit_code == 1

    def test_violation_comes_before_lack_of_evidence(self) -> None:
        """The primary operator is one that fails, though another one before it lacks evidence."""
        report = report_of(
            cell(Verdict.VACUOUS, name="early", chain_index=0),
            cell(Verdict.DRIFTS, name="late", chain_index=9),
        )

        assert report.primary == "late"
        assert [item.operator for item in report.red] == ["late", "early"]

    @pytest.mark.parametrize(
        ("error", "word"),
        [
            (CellError(kind="lost", message="It ended."), "CRASHES"),
            (CellError(kind="error", name="BackendError", message="It fell back."), "FALLBACK"),
            (CellError(kind="error", name="OutputError", message="It is wrong."), "ERROR"),
            (None, "NOT RUN"),
        ],
    )
    def test_cell_without_report_has_a_word(self, error: CellError | None, word: str) -> None:
        """A cell that has no verdict says what became of it instead."""

        assert cell(error=error).word == word

    def test_text_of_green_claims_no_more(self) -> None:
        """A green run says what it does not prove, and last that it is green."""
        text = render_suite(report_of(cell(Verdict.HOLDS)))

        assert "Not claimed: multi-GPU collectives" in text
        assert text.splitlines()[-1] == "GREEN  1 cell"

    def test_text_of_an_assertion_begins_with_why(self) -> None:
        """A fallback is told in the first line, which is all that a summary of tests shows."""
        found = cell(Verdict.FALLBACK).report
        assert found is not None
        lines = render_failed(attrs.evolve(found, message="torch.sum ran.")).splitlines()

        assert lines[0] == "FALLBACK  torch.sum ran."
        assert lines[-1] == "FALLBACK  healthy torch float32 forward on cpu"
        assert "torch.sum ran." not in lines[1:]

    def test_text_names_wider_thresholds(self) -> None:
        """A contract that allows more than biprop's own is never quiet about it."""
        used = ContractUsed.of(attrs.evolve(CONTRACT, wider=("judgments.a.b", "judgments.c.d")))
        report = attrs.evolve(report_of(cell(Verdict.HOLDS)), contract=used)

        assert "  wider: judgments.a.b, judgments.c.d\n" in report.text()

    def test_command_is_printed_of_what_was_stored(self, ran: Ran) -> None:
        """A finding is replayed by its path; one that was not stored has no command."""
        found = ran.report.cells["drifting-torch-float32-forward"]
        assert found.report is not None
        (finding,) = found.report.findings
        report = attrs.evolve(found.report, findings=(attrs.evolve(finding, path=""),))

        assert f"biprop replay {finding.path}" in report_of(found).text()
        assert "biprop replay" not in report_of(attrs.evolve(found, report=report)).text()

    def test_text_of_red_says_why(self) -> None:
        """A red run prints the message of a cell that lacks evidence."""
        lacking = cell(Verdict.VACUOUS)
        assert lacking.report is not None
        report = attrs.evolve(lacking.report, message="T1 has 2 of 5.")

        assert "T1 has 2 of 5." in render_suite(report_of(attrs.evolve(lacking, report=report)))


class TestPlan:
    """Which cells a run has."""

    def test_default_is_every_cell_of_the_registry(self) -> None:
        """Without a choice, a run has the cells of tests/props, all of them mandatory."""
        registry = build_registry()
        plan = plan_of(registry, CONTRACT, Choice())

        assert [item.id for item in plan.cells] == [item.id for item in cells_of(registry)]
        assert all(item.is_mandatory for item in plan.cells)
        assert plan.unasked == 0

    def test_exempt_operators_are_listed(self) -> None:
        """An exempt operator has no cells, and is listed with its reason."""
        plan = plan_of(build_registry(), CONTRACT, Choice())
        exempt = {note.name: note.reason for note in plan.exempt}

        assert set(exempt) == {"native_linear", "native_sdpa"}
        assert all(exempt.values())
        assert not {item.operator for item in plan.cells} & set(exempt)

    def test_what_is_not_asked_for_is_counted(self) -> None:
        """Mandatory cells that a choice leaves out are counted, and float16 is said to be out."""
        plan = plan_of(REGISTRY, CONTRACT, Choice(operators=("healthy",), dtypes=("bfloat16",)))

        assert [item.id for item in plan.cells] == ["healthy-torch-bfloat16-forward"]
        assert plan.unasked == 2 * len(REGISTRY.operators) - 1
        skipped = {note.name: note.reason for note in plan.skipped}
        assert skipped["float32"].startswith("mandatory")
        assert skipped["float16"].startswith("optional")
        assert "no gradients" in skipped["healthy backward"]

    def test_float16_is_optional(self) -> None:
        """A float16 cell runs where it is asked for, and is not mandatory."""
        (found,) = plan_of(
            REGISTRY, CONTRACT, Choice(operators=("healthy",), dtypes=("float16",))
        ).cells

        assert not found.is_mandatory

    def test_missing_operators_are_named(self) -> None:
        """A registry that should be complete lacks what the contract names; others lack nothing."""

        assert "rms_norm" in plan_of(REGISTRY, CONTRACT, Choice()).missing
        assert plan_of(REGISTRY, CONTRACT, Choice(), is_complete=False).missing == ()

    @pytest.mark.parametrize(
        ("choice", "sentence"),
        [
            (Choice(operators=("nothing",)), "'nothing', which is not registered"),
            (Choice(operators=("native_sdpa",)), "which is exempt"),
            (Choice(backends=("cudnn",)), "'cudnn', which none has"),
            (Choice(dtypes=("float8",)), "dtypes names 'float8'"),  # type: ignore[arg-type]  # wrong on purpose
            (Choice(directions=()), "directions names nothing"),
        ],
    )
    def test_wrong_choice_is_refused(self, choice: Choice, sentence: str) -> None:
        """A name that does not exist is refused in one sentence that names what there is."""

        with pytest.raises(UsageError, match=sentence):
            plan_of(build_registry(), CONTRACT, choice)

    @pytest.mark.parametrize(
        ("call", "sentence"),
        [
            (partial(run_invariance_suite, workers=0), "workers=0"),
            (partial(run_invariance_suite, max_examples=0), "max_examples=0"),
            (partial(run_invariance_suite, max_seconds=0.0), "max_seconds=0.0"),
            (partial(run_invariance_suite, device="gpu"), "'gpu' is unknown"),
            (partial(run_invariance_suite, device=ANY(3)), "3 is unknown"),
            (partial(run_invariance_suite, registry=ANY([HEALTHY])), "registry is a list"),
            (partial(run_invariance_suite, contract=ANY(3)), "contract is 3"),
            (partial(run_invariance_suite, max_examples=ANY("3")), "max_examples='3'"),
            (partial(run_invariance_suite, max_seconds=ANY("3")), "max_seconds='3'"),
            (partial(run_invariance_suite, slice_name=ANY("weekly")), "slice_name is 'weekly'"),
            (partial(run_invariance_suite, seed=2**32), "seed=4294967296: give a whole"),
            (partial(run_invariance_suite, seed=ANY(1.5)), "seed=1.5"),
            (partial(run_invariance_suite, store="/dev/null/found"), "store '/dev/null/found'"),
            (partial(run_invariance_suite, store=ANY(3)), "store is 3"),
            (partial(run_invariance_suite, operators="silu"), "operators is 'silu': give a seq"),
            (partial(run_invariance_suite, dtypes=ANY("float32")), "dtypes is 'float32'"),
        ],
    )
    def test_wrong_argument_is_refused(
        self,
        call: Callable[[], InvarianceReport],
        sentence: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """What cannot be used is refused in one sentence, before any process starts."""
        monkeypatch.setattr("biprop.suite.run.run_tasks", None)

        with pytest.raises(BipropError, match=sentence):
            call()


class TestOperators:
    """Operators that workers do not know."""

    def test_installed_ones_travel_by_name(self) -> None:
        """A registry of installed operators alone is not sent: workers have it."""
        installed = build_registry()

        assert packed(Registry(operators=installed.operators[:2]), installed) is None

    def test_changed_one_travels_whole(self) -> None:
        """A changed operator arrives with its functions, a Triton module still not imported."""
        changed = attrs.evolve(LOGP, call={**LOGP.call})
        parcel = packed(Registry(operators=(changed,)), build_registry())

        assert parcel is not None
        assert parcel.own == {"logp"}
        (arrived,) = unpacked(parcel).operators
        theirs, ours = (
            [item for form in operator.forms for item in form.implementations]
            for operator in (arrived, LOGP)
        )
        assert theirs[0].forward is ours[0].forward
        assert [item.forward.__module__ for item in theirs] == [
            item.forward.__module__ for item in ours
        ]

    def test_function_without_a_name_is_refused(self) -> None:
        """A function that no other process could find is refused, and the operator named."""
        hidden = made("hidden", lambda x: negated(x), chain_index=0)  # noqa: PLW0108  # on purpose

        with pytest.raises(TargetError, match="hidden cannot be sent"):
            packed(Registry(operators=(hidden,)), Registry())

    def test_parts_must_be_registered(self) -> None:
        """A registry refuses an operator that is built from one that it has not."""
        lonely: Operator = made("lonely", negated, chain_index=0, built_from=("absent",))

        with pytest.raises(TargetError, match="built from 'absent'"):
            Registry(operators=(lonely,))


def test_provenance_is_of_no_kernel(ran: Ran) -> None:
    """The provenance of a run names device and sources, and nothing that one kernel alone has."""
    where = ran.report.provenance

    assert isinstance(where, Provenance)
    assert where.device == "cpu"
    assert where.actual_backend == where.target_digest == ""
