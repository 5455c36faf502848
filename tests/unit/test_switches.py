"""The switches of a case: set around launches, written where they matter, compared in a replay."""

from collections.abc import Callable

import attrs
import pytest
import torch
from tests.unit.execution_cases import case_of, kernel_of
from tests.unit.sample_fixtures import CASE, sample
from torch import Tensor
from torch.backends import cuda, cudnn

from biprop.case import SDPA_BACKENDS, Execution, SdpaBackend, case_from_data, case_to_data
from biprop.errors import CaseError
from biprop.execution import prepare, run_canonical
from biprop.execution.switches import switched
from biprop.fixtures.records import Fixture, fixture_to_data
from biprop.fixtures.replay import _here, differences_between
from biprop.judgment import Outcome, Verdict
from biprop.provenance import environment
from biprop.reports.words import case_in_words

ROW_WISE = "x[T,H] -> y[T,H]"
ALL_ON = Execution(
    threads=3,
    deterministic_algorithms=True,
    tf32=True,
    bf16_reduced_precision=True,
    fp16_reduced_precision=True,
    sdpa_backend="math",
)


def state() -> tuple[object, ...]:
    """Return what torch says of every switch."""
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]  # a property of its module
        cuda.matmul.allow_tf32,
        cudnn.allow_tf32,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        sdpa_enabled(),
    )


def sdpa_enabled() -> frozenset[str]:
    """Name the attention backends that torch may choose from."""
    enabled: dict[str, Callable[[], bool]] = {
        "math": cuda.math_sdp_enabled,
        "flash": cuda.flash_sdp_enabled,
        "efficient": cuda.mem_efficient_sdp_enabled,
        "cudnn": cuda.cudnn_sdp_enabled,
    }
    return frozenset(name for name, is_on in enabled.items() if is_on())


class TestSwitched:
    """The process is as the case says during launches, and as it was after them."""

    def test_all_are_set_and_put_back(self) -> None:
        """Also when the kernel raises."""
        seen: list[tuple[object, ...]] = []
        before = state()

        def failing(x: Tensor) -> Tensor:
            seen.append(state())
            raise ValueError(x.shape)

        kernel = kernel_of(failing, ROW_WISE)
        case = attrs.evolve(case_of(kernel), execution=ALL_ON)

        with pytest.raises(ValueError, match=r"torch\.Size"):
            run_canonical(prepare(kernel, case, device="cpu"))
        assert seen == [(3, True, False, True, True, True, True, frozenset({"math"}))]
        assert state() == before

    def test_defaults_are_set_too(self) -> None:
        """A case that says nothing accumulates in float32, whatever torch starts with."""
        with switched(Execution()):
            assert state()[1:7] == (False, False, False, False, False, False)

    @pytest.mark.parametrize("backend", SDPA_BACKENDS)
    def test_attention_backend_is_chosen(self, backend: SdpaBackend) -> None:
        """One backend alone, or as many as before."""
        before = sdpa_enabled()
        with switched(Execution(sdpa_backend=backend)):
            assert sdpa_enabled() == (before if backend == "any" else {backend})

        assert sdpa_enabled() == before

    def test_setting_of_the_process_survives(self) -> None:
        """What somebody set beside the two values is put back as it was."""
        cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
        try:
            with switched(ALL_ON):
                assert cuda.matmul.allow_bf16_reduced_precision_reduction_split_k
            assert not cuda.matmul.allow_bf16_reduced_precision_reduction_split_k
        finally:
            cuda.matmul.allow_bf16_reduced_precision_reduction = (True, True)


class TestWritten:
    """Switches as JSON and in words."""

    def test_defaults_are_left_out(self) -> None:
        """A case without switches is written as ever, and reads as it was."""
        case = case_of(kernel_of(lambda x: x, ROW_WISE))
        switched_case = attrs.evolve(case, execution=attrs.evolve(ALL_ON, threads=1))

        assert "execution" not in case_to_data(case)
        assert case_to_data(switched_case)["execution"] == {
            "deterministic_algorithms": True,
            "tf32": True,
            "bf16_reduced_precision": True,
            "fp16_reduced_precision": True,
            "sdpa_backend": "math",
        }
        assert case_from_data(case_to_data(switched_case)) == switched_case

    def test_unknown_backend_is_refused(self) -> None:
        """A backend that torch has not is an error of the case."""
        data = case_to_data(case_of(kernel_of(lambda x: x, ROW_WISE)))

        with pytest.raises(CaseError, match="sdpa_backend"):
            case_from_data({**data, "execution": {"sdpa_backend": "quantum"}})

    def test_case_names_what_is_switched(self) -> None:
        """Words for people, and none for what is as by default."""
        case = attrs.evolve(case_of(kernel_of(lambda x: x, ROW_WISE)), execution=ALL_ON)

        assert case_in_words(case).endswith(
            "3 threads, deterministic algorithms, tf32, bf16 reduced precision, "
            "fp16 reduced precision, sdpa math"
        )
        assert Execution().words == ()


class TestCompared:
    """A replay tells where switches differ."""

    def test_fixture_records_them(self) -> None:
        """Provenance names the switches of the case that failed."""
        fixture = switched_fixture(Execution(tf32=True, sdpa_backend="flash"))
        data = fixture_to_data(fixture)["provenance"]

        assert isinstance(data, dict)
        assert data["switches"] == "tf32, sdpa flash"

    def test_difference_is_told(self) -> None:
        """A variable that was set and is not, or a switch of another biprop, is a difference."""
        fixture = switched_fixture(Execution(tf32=True))
        then = attrs.evolve(fixture.provenance, environment="NVIDIA_TF32_OVERRIDE=0")
        here = _here(fixture.provenance, fixture, Outcome(verdict=Verdict.HOLDS))

        assert here.switches == "tf32"
        assert differences_between(then, here, ("switches", "environment")) == (
            "environment was NVIDIA_TF32_OVERRIDE=0, is as by default",
        )

    def test_environment_names_what_is_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only variables that change what kernels compute, and only where they are set."""
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        monkeypatch.setenv("MKL_CBWR", "")

        assert environment() == "CUBLAS_WORKSPACE_CONFIG=:4096:8 NVIDIA_TF32_OVERRIDE=0"


def switched_fixture(execution: Execution) -> Fixture:
    """Return a sample fixture whose case has other switches."""
    return sample(case=attrs.evolve(CASE, execution=execution))
