"""The assertions for other people's test suites."""

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.suite_targets import HEALTHY, made
from torch import Tensor

import biprop
from biprop import (
    NotInvariantError,
    SuiteConfig,
    assert_forward_batch_invariant,
    assert_gradient_batch_invariant,
)
from biprop.errors import BipropError, ContractError, TargetError, UnsupportedError
from biprop.judgment import Verdict

# What a caller without types may give.
WRONG: Any = ("float8",)
ANY: Any = lambda value: value  # noqa: E731  # a value without a type
QUICK = SuiteConfig(dtypes=("float32",), transforms=("T1",), max_examples=8)


@biprop.operator("x[T,H] -> y[T,H]")
def doubled(x: Tensor) -> Tensor:
    """Return `2 * x`, which no batch can change."""
    return 2 * x


@biprop.operator("x[T,H] -> y[T,H]")
def halved_in_a_batch(x: Tensor) -> Tensor:
    """Return `x`, halved where a launch has several rows."""
    return x / 2 if len(x) > 1 else x.clone()


def refusing(x: Tensor) -> Tensor:
    """Refuse every case."""
    raise UnsupportedError(f"Set a switch first, {x.device} has none.")


@biprop.operator("x[T,H] -> y[T,H]")
def without_driver(x: Tensor) -> Tensor:
    """Raise what Triton raises where it finds no GPU."""
    raise RuntimeError(f"0 active drivers ([]), {x.ndim} wanted.")


class _Scale(torch.autograd.Function):
    """`x * weight`, whose gradient of `weight` changes with the number of rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # noqa: ANN401  # torch has no type
        """Multiply."""
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401  # likewise
        """Differentiate, with a fault in launches of several rows."""
        x, weight = ctx.saved_tensors
        (dy,) = upstream
        gradient = (dy * x).sum(0)
        return dy * weight, gradient / 2 if len(x) > 1 else gradient


@biprop.operator("x[T,H], weight[H] -> y[T,H]")
def scaled(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x * weight`, differentiated by `_Scale`."""
    found = _Scale.apply(x, weight)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert isinstance(found, Tensor)
    return found


class TestForward:
    """Outputs."""

    def test_invariant_callable_passes(self) -> None:
        """An operator that keeps its bits passes, and what was tested is returned."""
        report = assert_forward_batch_invariant(doubled, QUICK)

        assert report.outputs.verdict is Verdict.HOLDS
        assert report.outputs.examples == 8
        assert [name.rpartition("-")[2] for name in report.cells] == ["forward"]

    def test_drifting_callable_fails(self) -> None:
        """An operator that drifts fails the test with the text of the smallest case."""
        with pytest.raises(AssertionError, match="DRIFTS") as caught:
            assert_forward_batch_invariant(halved_in_a_batch, QUICK)

        assert isinstance(caught.value, NotInvariantError)
        text = str(caught.value)
        assert text.startswith("DRIFTS  tests.unit.test_assertions:halved_in_a_batch torch float32")
        assert text == caught.value.report.text()
        assert "AddNeighbours(count=1)" in text
        # Nothing was stored, so no command would find it.
        assert "biprop replay" not in text
        assert caught.value.report.outputs.verdict is Verdict.DRIFTS
        assert len(caught.value.report.outputs.findings) == 1

    def test_lack_of_evidence_fails(self) -> None:
        """Too few examples are no pass: the class without evidence is named."""
        config = SuiteConfig(dtypes=("float32",), transforms=("T1",), max_examples=1)
        with pytest.raises(NotInvariantError, match=r"^VACUOUS  Too few powered") as caught:
            # Eight and a half examples more are drawn where evidence lacks.
            assert_forward_batch_invariant(doubled, config, profile="nightly")

        assert caught.value.report.outputs.verdict is Verdict.VACUOUS
        assert list(caught.value.report.outputs.lacking.values()) == [("T1",)]
        assert "raise SuiteConfig.max_examples, or" in str(caught.value)
        assert "--" not in str(caught.value)

    def test_operator_record_is_judged(self) -> None:
        """An operator that nobody registered is judged as it is given."""

        assert_forward_batch_invariant(HEALTHY, QUICK)

    def test_registered_name_is_judged_in_a_worker(self) -> None:
        """A registered operator is found by its name, its sizes restricted as asked."""
        config = SuiteConfig(
            backends=("torch",),
            dtypes=("float32",),
            transforms=("T1",),
            dims="V=5..6",
            max_examples=20,
        )
        report = assert_forward_batch_invariant("logp", config)
        (cell,) = report.cells.values()

        assert cell.reference.operator == "logp"
        assert cell.largest["V"] in {5, 6}

    def test_refusal_of_every_case_is_the_error(self) -> None:
        """An operator that refuses all cases says why, and lack of evidence does not hide it."""

        with pytest.raises(UnsupportedError, match=r"^Set a switch first"):
            assert_forward_batch_invariant(made("refusing", refusing, chain_index=0), QUICK)

    def test_compiled_triton_kernel_names_the_interpreter(self) -> None:
        """What Triton says of a machine without a GPU begins with what helps."""

        with pytest.raises(TargetError, match=r"^A compiled .* TRITON_INTERPRET=1 .* 0 active dri"):
            assert_forward_batch_invariant(without_driver, QUICK)

    def test_contract_may_be_a_path(self, tmp_path: Path) -> None:
        """A contract is read from a path, and a wrong one refused with its file's name."""
        path = tmp_path / "own.json"
        path.write_text("{}")
        with pytest.raises(ContractError, match=r"own\.json: The contract is an object"):
            assert_forward_batch_invariant(doubled, QUICK, str(path))

        path.write_bytes(files("biprop.contract").joinpath("contract.json").read_bytes())
        assert assert_forward_batch_invariant(doubled, QUICK, str(path)).cells

    def test_several_configurations_are_searched(self) -> None:
        """Each configuration has reports of its own."""
        report = assert_forward_batch_invariant(doubled, (QUICK, QUICK))

        assert len(report.cells) == 2

    @pytest.mark.parametrize(
        ("call", "sentence"),
        [
            (partial(assert_forward_batch_invariant, torch.clone), "without a signature"),
            (partial(assert_forward_batch_invariant, "nothing"), "No operator 'nothing'"),
            (partial(assert_forward_batch_invariant, "native_sdpa"), "is exempt"),
            (
                partial(assert_forward_batch_invariant, HEALTHY, SuiteConfig(backends=("cudnn",))),
                "backend 'cudnn'",
            ),
            (
                partial(assert_forward_batch_invariant, HEALTHY, SuiteConfig(dims="H=99")),
                "leaves no size",
            ),
            (partial(assert_forward_batch_invariant, HEALTHY, WRONG), "configs holds a str"),
            (partial(SuiteConfig, dtypes=WRONG), "dtypes names 'float8'"),
            (partial(SuiteConfig, max_examples=0), "max_examples=0"),
            (partial(SuiteConfig, max_examples=ANY("3")), "max_examples='3': give 1 or more"),
            (partial(SuiteConfig, dtypes=ANY("float32")), "dtypes is 'float32': give a sequence"),
            (partial(SuiteConfig, backends=ANY("torch")), "backends is 'torch': give a sequence"),
            (partial(SuiteConfig, dims=ANY(3)), "dims is a int"),
            (
                partial(assert_forward_batch_invariant, HEALTHY, SuiteConfig(dims="H=")),
                "^SuiteConfig.dims 'H='",
            ),
            (partial(assert_forward_batch_invariant, doubled, ANY(3)), "configs is a int"),
            (partial(assert_forward_batch_invariant, doubled, QUICK, ANY(3)), "contract is 3"),
            (partial(assert_forward_batch_invariant, doubled, profile=ANY("fast")), "dev, pr, nig"),
            (partial(assert_forward_batch_invariant, doubled, device=ANY(0)), "Device 0 is unkno"),
            (partial(assert_forward_batch_invariant, doubled, seed=-1), "seed=-1: give a whole"),
            (partial(assert_forward_batch_invariant, doubled, seed=ANY("1")), "seed='1': give"),
        ],
    )
    def test_wrong_use_is_an_error(self, call: Callable[[], object], sentence: str) -> None:
        """What cannot be used is refused in one sentence, which is no failure of the operator."""

        with pytest.raises(BipropError, match=sentence):
            call()


class TestGradient:
    """Gradients."""

    def test_gradients_are_told_apart(self) -> None:
        """A fault in the gradient of a parameter leaves outputs and token gradients green."""
        config = SuiteConfig(dtypes=("float32",), transforms=("T4.finite",), max_examples=24)
        with pytest.raises(NotInvariantError, match=r"DRIFTS .* dweight") as caught:
            assert_gradient_batch_invariant(scaled, config)

        report = caught.value.report
        assert isinstance(report, biprop.GradientInvarianceReport)
        assert report.outputs.verdict is Verdict.HOLDS
        assert report.token_gradients is not None
        assert report.token_gradients.verdict is Verdict.HOLDS
        assert report.parameter_gradients is not None
        assert report.parameter_gradients.verdict is Verdict.DRIFTS

    def test_missing_kind_is_none(self) -> None:
        """An operator without parameters has no gradients of parameters to tell of."""
        report = assert_gradient_batch_invariant(doubled, QUICK)

        assert report.token_gradients is not None
        assert report.token_gradients.verdict is Verdict.HOLDS
        assert report.parameter_gradients is None

    def test_undeclared_gradients_are_refused(self) -> None:
        """An operator that declares no gradients cannot pass for having invariant ones."""

        with pytest.raises(UnsupportedError, match="declares no gradients"):
            assert_gradient_batch_invariant(made("plain", torch.clone, chain_index=0), QUICK)
