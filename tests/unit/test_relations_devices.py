"""Relation I where a device computes beside the process: read once, and judged when it fails.

No device is needed: what a device would answer late is answered late on the CPU too.
"""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from tests.unit.test_relations import (
    NEIGHBOURS,
    by_population,
    case_of,
    judged,
    kernel_of,
    plus_one,
)
from torch import Tensor

from biprop.bits import any_differ
from biprop.case import TransformData
from biprop.errors import OutputError
from biprop.execution import prepare, run_canonical, run_transformed
from biprop.execution.device import Mark
from biprop.judgment import Verdict
from biprop.relations import JudgeOptions
from biprop.relations.comparison import compare_runs
from biprop.relations.invariance import judge_invariance


class TestReadOnce:
    """One look at the device for all that both runs answer."""

    @pytest.fixture
    def late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Leave on the CPU too what a device would answer late."""
        monkeypatch.setattr("biprop.execution.untouched._is_read_late", lambda _: True)

    def test_details_are_asked_for_where_something_differs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Equal outputs are looked at once together, and never one by one."""
        looks: list[int] = []

        def once(pairs: list[tuple[Tensor, Tensor]], **others: object) -> tuple[bool, ...]:
            looks.append(len(pairs))
            return any_differ(pairs, **others)  # type: ignore[arg-type]  # the same arguments

        monkeypatch.setattr("biprop.relations.comparison.any_differ", once)
        monkeypatch.setattr("biprop.relations.comparison.compare", _refused)
        kernel = kernel_of(lambda x: (x + 1, x * 2), "x[T,H] -> y[T,H], z[T,H]")
        outcome = judge_invariance(kernel, case_of(NEIGHBOURS))

        assert outcome.verdict is Verdict.HOLDS
        assert looks == [2]

    @pytest.mark.usefixtures("late")
    def test_late_answer_of_the_canonical_run_is_an_error(self) -> None:
        """A kernel that writes where it may not is refused, as where the answer comes at once."""
        kernel = kernel_of(_writing(always=True))
        run = run_canonical(prepare(kernel, case_of(NEIGHBOURS), device="cpu"))

        with pytest.raises(OutputError, match="writes into argument 'x'"):
            run.settle()
        with pytest.raises(OutputError, match="writes into argument 'x'"):
            judge_invariance(kernel, case_of(NEIGHBOURS))

    @pytest.mark.usefixtures("late")
    def test_late_answer_of_the_transformed_run_is_a_crash(self) -> None:
        """What the canonical run does not do is judged."""
        outcome = judged(_writing(always=False), NEIGHBOURS)

        assert outcome.verdict is Verdict.CRASHES
        assert "writes into argument 'x'" in outcome.message

    @pytest.mark.usefixtures("late")
    def test_mismatches_come_beside_late_answers(self) -> None:
        """What is read together is told apart again."""
        kernel = kernel_of(by_population)
        prepared = prepare(kernel, case_of(NEIGHBOURS), device="cpu")
        canonical, transformed = run_canonical(prepared), run_transformed(prepared)
        found = compare_runs(canonical, transformed)

        assert canonical.unread
        assert transformed.unread
        assert [item.output for item in found.mismatches] == ["y"]
        assert (found.first_wrote, found.second_wrote) == ("", "")


class TestWaiting:
    """Errors that a device tells while both runs are waited for."""

    @pytest.mark.parametrize("role", ["canonical", "transformed"])
    def test_error_of_the_device_is_a_crash(
        self, monkeypatch: pytest.MonkeyPatch, role: str
    ) -> None:
        """It is judged like an exception, and the stage says what was waited for."""
        stages: list[str] = []

        def wait() -> None:
            if stages[-1] == role:
                raise RuntimeError("misaligned address")

        mark = SimpleNamespace(event=object(), wait=wait)
        monkeypatch.setattr("biprop.relations.runs.Mark.now", lambda _: mark)
        outcome = judge_invariance(
            kernel_of(plus_one),
            case_of(NEIGHBOURS),
            on_stage=lambda stage, _: stages.append(stage),
        )

        assert outcome.verdict is Verdict.CRASHES
        assert outcome.message == "RuntimeError: misaligned address"
        waited = ["canonical", "transformed"]
        assert stages[:3] == ["prepare", *waited]
        assert stages[3:] == waited[: waited.index(role) + 1]

    def test_a_lost_device_runs_nothing_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whether finite fills fail too is for another process to tell."""
        stages: list[str] = []
        monkeypatch.setattr("biprop.relations.invariance.is_lost", lambda _: True)

        def fails(x: Tensor) -> Tensor:
            if bool(x.isnan().any()):
                raise RuntimeError("illegal address")
            return x + 1

        nan = TransformData(name="PadSlots", values={"amount": 1, "side": "right", "fill": "nan"})
        outcome = judge_invariance(
            kernel_of(fails),
            case_of(nan),
            on_stage=lambda stage, _: stages.append(stage),
        )

        assert outcome.cause is not None
        assert outcome.cause.finite
        assert stages == ["prepare", "canonical", "transformed"]

    def test_launches_so_far_are_told(self) -> None:
        """Each stage comes with the launches made before it."""
        told: list[tuple[str, int]] = []
        judge_invariance(
            kernel_of(plus_one),
            case_of(NEIGHBOURS),
            on_stage=lambda stage, launches: told.append((stage, launches)),
        )

        assert told == [("prepare", 0), ("canonical", 0), ("transformed", 2), ("power", 3)]

    def test_a_processor_is_waited_for_by_nobody(self) -> None:
        """On the CPU a run is done when it returns."""

        assert Mark.now(torch.device("cpu")).event is None


class TestMemory:
    """A device with too little memory says nothing of a kernel."""

    def test_second_try_is_judged(self) -> None:
        """What was cached for other sizes is given back, and the case is judged again."""
        outcome = judged(_starving(times=1), NEIGHBOURS)

        assert outcome.verdict is Verdict.HOLDS

    def test_case_that_does_not_fit_is_rejected(self) -> None:
        """It is excluded, and counted as such."""
        outcome = judged(_starving(times=9), NEIGHBOURS, options=JudgeOptions(careful=True))

        assert outcome.verdict is Verdict.VACUOUS
        assert "OutOfMemoryError: no memory" in outcome.rejected


def _writing(*, always: bool) -> Callable[[Tensor], Tensor]:
    def writing(x: Tensor) -> Tensor:
        if always or len(x) > 2:
            # As a kernel of another library does: torch counts no write.
            x.numpy()[...] = 0.0
        return x + 1

    return writing


def _starving(*, times: int) -> Callable[[Tensor], Tensor]:
    left = [times]

    def starving(x: Tensor) -> Tensor:
        if len(x) > 2 and left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("no memory")
        return x + 1

    return starving


def _refused(*_: object) -> None:
    raise AssertionError("nothing differs")
