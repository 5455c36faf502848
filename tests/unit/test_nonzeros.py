"""Listing values: an explicit recipe of what was listed holds the same bits."""

import attrs
import pytest
import torch

from biprop.case import Case, Dtype, TransformData
from biprop.data.recipe import SEQUENCES, TOKENS, Pairing, Recipe
from biprop.execution.nonzeros import nonzeros_of
from biprop.operators import Kernel, KernelReference
from biprop.sequence import LogicalSequence
from biprop.signature import parse_signature
from biprop.supervision import SupervisedJudge
from biprop.supervision.in_process import InProcessJudge

SIGNATURE = "input[T,K], weight[N,K] -> out[T,N]"
KERNEL = Kernel(
    operator="torch.nn.functional:linear",
    target="torch.nn.functional:linear",
    signature=parse_signature(SIGNATURE),
    function=torch.nn.functional.linear,
)
LISTED = nonzeros_of(KERNEL.signature)


def case_of(kind: str, *, dtype: Dtype = "float32") -> Case:
    """Return a case with two sequences, a shared prefix and a loud neighbour."""
    pairing = {"K": Pairing(role="own")} if kind == "pairs" else {}
    return Case(
        dtype=dtype,
        dims={"K": 5, "N": 3},
        judged="token_gradients",
        sequences=(LogicalSequence(id=4, length=2), LogicalSequence(id=7, length=3)),
        shared_prefix=1,
        seed=11,
        data={"input": Recipe(kind=kind, pairing=pairing), "dout": Recipe(kind=kind)},
        policy_state={"weight": Recipe(kind=kind)},
        transforms=(
            TransformData(name="AddNeighbours", values={"count": 1}),
            TransformData(name="ReplaceNeighbours", values={"loudness": 3}),
        ),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["normal", "pairs", "zeros", "ones"])
@pytest.mark.parametrize("name", ["input", "dout", "weight"])
def test_listed_values_are_the_values(name: str, kind: str, dtype: Dtype) -> None:
    """Listed, put into an explicit recipe and listed again, they are the same."""
    case = case_of(kind, dtype=dtype)
    points = LISTED(case, name, 1000)
    assert points is not None
    explicit = Recipe(kind="explicit", points=points)
    group = "policy_state" if name == "weight" else "data"
    listed = attrs.evolve(case, **{group: {**getattr(case, group), name: explicit}})  # type: ignore[arg-type]

    assert LISTED(listed, name, 1000) == points
    assert bool(points) == (kind != "zeros")


def test_more_than_the_limit_is_not_listed() -> None:
    """A list of millions is no help, and None says so."""
    assert LISTED(case_of("ones"), "weight", 14) is None
    assert LISTED(case_of("ones"), "weight", 15) is not None


def test_one_value_a_sequence_is_listed_once() -> None:
    """Of a tensor without slots the last token's values are all that a launch takes."""
    signature = parse_signature("q[B,H,1,D], k[B,H,C,D] -> o[B,H,1,D]")
    case = Case(
        dtype="float32",
        dims={"H": 2, "D": 3},
        sequences=(LogicalSequence(id=4, length=2), LogicalSequence(id=7, length=2)),
        data={"q": Recipe(kind="normal"), "k": Recipe(kind="normal")},
    )
    listed = nonzeros_of(signature)(case, "q", 1000)

    assert listed is not None
    places = [(point.at[SEQUENCES], point.at[TOKENS]) for point in listed]
    assert places == [(4, 1)] * 6 + [(7, 1)] * 6


def test_both_judges_list_alike() -> None:
    """The values cross processes unchanged."""
    case = case_of("normal")
    here = InProcessJudge(KERNEL).nonzeros(case, "input", 1000)
    reference = KernelReference(operator=KERNEL.operator, target=KERNEL.target, signature=SIGNATURE)
    with SupervisedJudge(reference=reference) as judge:
        assert judge.nonzeros(case, "input", 1000) == here
        assert judge.nonzeros(case, "input", 1) is None
