"""Workers on devices: counted, spread, and compiling the same kernel at the same time."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.unit.execution_cases import case_of

from biprop.case import Case, Execution, TransformData
from biprop.execution.switches import switched
from biprop.judgment import Outcome, Verdict
from biprop.kernels import OPERATORS
from biprop.machine import count_devices
from biprop.operators import KernelReference, Registry
from biprop.relations import JudgeOptions
from biprop.supervision import SupervisedJudge
from biprop.supervision.resolve import reference_of

NEIGHBOURS = TransformData(name="AddNeighbours", values={"count": 9})
QUICK = JudgeOptions(measure=False)


def rms_norm() -> tuple[KernelReference, Case]:
    """Return the Triton backend of an operator, and a case of it."""
    kernel = Registry(operators=OPERATORS).find(target="rms_norm/packed", backend="triton")
    case = case_of(kernel)
    return reference_of(kernel), Case(
        dtype=case.dtype,
        dims=case.dims,
        sequences=case.sequences,
        data=case.data,
        policy_state=case.policy_state,
        transforms=(NEIGHBOURS,),
    )


def test_child_counts_as_many_devices_as_torch() -> None:
    """The controller of a parallel run, which has no torch, knows how many there are."""

    assert count_devices() == torch.cuda.device_count() >= 1


def test_every_device_runs_triton() -> None:
    """A worker of the last device launches there, whichever is the first one's."""
    reference, case = rms_norm()
    last = f"cuda:{torch.cuda.device_count() - 1}"
    with SupervisedJudge(reference=reference, device=last) as judge:
        outcome = judge.judge(case, QUICK)

    assert outcome.verdict is Verdict.HOLDS
    assert outcome.actual_backend == "triton"
    assert judge.description.provenance.device == last


def test_workers_may_compile_the_same_kernel_at_once(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share one folder of compiled kernels, which none of them finds half written."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    reference, case = rms_norm()

    def outcome(_: int) -> Outcome:
        with SupervisedJudge(reference=reference, device=str(device)) as judge:
            return judge.judge(case, QUICK)

    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(outcome, range(3)))

    assert [item.verdict for item in outcomes] == [Verdict.HOLDS] * 3
    assert any(tmp_path.rglob("*.cubin"))


class TestSwitches:
    """What a case pins is what the kernel meets."""

    LINEAR = KernelReference(
        operator="torch.nn.functional:linear",
        target="torch.nn.functional:linear",
        signature="input[T,K], weight[N,K] -> out[T,N]",
    )

    def test_deterministic_algorithms_can_be_asked_for(self, device: torch.device) -> None:
        """The libraries of CUDA were told before they started, so products run."""
        execution = Execution(deterministic_algorithms=True)
        with SupervisedJudge(
            reference=self.LINEAR, device=str(device), execution=execution
        ) as judge:
            provenance = judge.description.provenance

        assert provenance.actual_backend == "torch"
        assert "CUBLAS_WORKSPACE_CONFIG=" in provenance.environment

    @pytest.mark.filterwarnings("ignore")
    def test_attention_backend_is_the_one_asked_for(self, device: torch.device) -> None:
        """Flash attention has no float32, and nothing else stands in for it."""
        attend = torch.nn.functional.scaled_dot_product_attention
        values = torch.ones(1, 1, 4, 64, device=device)

        with switched(Execution(sdpa_backend="math")):
            assert bool((attend(values, values, values) == 1).all())
        with (
            switched(Execution(sdpa_backend="flash")),
            pytest.raises(RuntimeError, match="No available kernel"),
        ):
            attend(values, values, values)
