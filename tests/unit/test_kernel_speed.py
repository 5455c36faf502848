"""The benchmark of kernels compares like with like: torch computes what the kernels compute."""

import os

import pytest
import torch
from ci.benchmarks.kernel_speed import COMPARED, _calls, _prepared, main
from torch import Tensor

from biprop.bits import compare_within
from biprop.contract import judgment_of, load_contract
from biprop.generation.space import Direction
from biprop.kernels import OPERATORS
from biprop.operators import Kernel, Registry

os.environ.setdefault("TRITON_INTERPRET", "1")

TINY = {"D": 8, "HQ": 4, "HK": 2, "N": 4}


def kernel_of(target: str) -> Kernel:
    """Return the Triton kernel of a target."""
    return Registry(operators=OPERATORS).find(target=target, backend="triton")


def held(ours: Tensor, native: Tensor, kernel: Kernel, direction: Direction) -> bool:
    """Tell whether two results agree as the contract asks of accuracy."""
    assert kernel.op_class is not None
    tolerance = load_contract().tolerance(
        judgment=judgment_of("A", direction), op_class=kernel.op_class, dtype="float32"
    )
    assert tolerance is not None
    # A last bit of a large number, in sums that no data conditions here.
    (agreement,), _ = compare_within(
        [(ours, native)], atol=10 * tolerance.atol, rtol=10 * max(tolerance.atol, tolerance.rtol)
    )
    return not agreement.elements_beyond and bool(agreement.elements_telling)


@pytest.mark.parametrize("target", sorted(COMPARED))
def test_torch_computes_the_same(target: str) -> None:
    """Forward, and the gradients of tokens that both give."""
    kernel, compared = kernel_of(target), COMPARED[target]
    dims = {name: TINY.get(name, 8) for name in compared.dims}
    calls = _calls(_prepared(kernel, dims, 3, "float32", torch.device("cpu")), compared)

    ours, native = (_listed(call()) for call in (calls["forward"].ours, calls["forward"].native))
    for own, other in zip(ours, native, strict=False):
        assert held(own, other, kernel, "forward")
    assert kernel.backward_signature is not None
    names = [item.name for item in kernel.backward_signature.outputs]
    leaves = [f"d{item.name}" for item in kernel.signature.arguments if item.is_float]
    leaves = leaves or [f"d{item.name}" for item in kernel.signature.arguments]
    gradients = dict(zip(leaves, _listed(calls["backward"].native()), strict=False))
    for name, own in zip(names, _listed(calls["backward"].ours()), strict=True):
        assert held(own, gradients[name], kernel, "backward"), name


def test_every_declared_operator_is_compared() -> None:
    """Each of them has something of torch beside it."""
    declared = {item.name for item in OPERATORS if item.declaration is not None}

    assert {target.partition("/")[0] for target in COMPARED} == declared


def test_figures_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    """A line a direction, with both times and their ratio."""
    assert main(["--targets", "silu/packed", "--rounds", "1", "--dtypes", "float32"]) == 0
    shown = capsys.readouterr().out
    assert "silu/packed float32 forward: " in shown
    assert "functional.silu" in shown


def _listed(returned: object) -> list[Tensor]:
    if returned is None:
        return []
    found = returned if isinstance(returned, tuple | list) else (returned,)
    return [item for item in found if isinstance(item, Tensor)]
