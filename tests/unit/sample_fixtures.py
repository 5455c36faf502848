"""Fixtures made by hand, for tests of reading, replaying and reporting them."""

import attrs

from biprop.case import Case, TransformData
from biprop.data.recipe import Point, Recipe
from biprop.fixtures.records import Fixture, make_fixture
from biprop.judgment import (
    BitDifference,
    Cause,
    Claim,
    LaunchFact,
    Mismatch,
    Outcome,
    Power,
    Proof,
    Verdict,
)
from biprop.operators import KernelReference
from biprop.provenance import Provenance
from biprop.sequence import LogicalSequence

__all__ = ["DRIFT", "LINEAR", "PROVENANCE", "outcome", "sample"]

LINEAR = KernelReference(
    operator="torch.nn.functional:linear",
    target="torch.nn.functional:linear",
    signature="input[T,K], weight[N,K] -> out[T,N]",
)
PROVENANCE = Provenance(
    device="cpu",
    device_name="A processor",
    arch_key="cpu-x86_64-avx512",
    biprop="0.1.0",
    python="3.11.7",
    torch="2.13.0",
    platform="Linux x86_64",
)
CASE = Case(
    dtype="float32",
    dims={"K": 3, "N": 2},
    sequences=(LogicalSequence(id=0, length=1),),
    data={
        "input": Recipe(
            kind="explicit",
            points=(
                Point(at={"K": 0}, value=(4096.0).hex()),
                Point(at={"K": 1}, value=(-4096.0).hex()),
                Point(at={"K": 2}, value=(2.0**-12).hex()),
            ),
        )
    },
    policy_state={"weight": Recipe(kind="ones")},
    transforms=(TransformData(name="AddNeighbours", values={"count": 1}),),
)
DRIFT = Cause(verdict=Verdict.DRIFTS, direction="forward", output="out", transforms=("T1",))


def outcome(cause: Cause = DRIFT, *, message: str = "") -> Outcome:
    """Return the outcome of a violation."""
    first = BitDifference(
        sequence_id=0,
        token=0,
        coordinate=(0,),
        canonical_row=0,
        transformed_row=0,
        transformed_launch=0,
        canonical_bits="0x39800000",
        transformed_bits="0x00000000",
        canonical_value="0.000244140625",
        transformed_value="0.0",
    )
    mismatch = Mismatch(
        output=cause.output,
        dtype="float32",
        elements=2,
        elements_compared=2,
        tokens=1,
        tokens_compared=1,
        first=first,
        max_abs_error=2.0**-12,
        mean_abs_error=2.0**-12,
        max_rel_error=1.0,
    )
    crashes = cause.verdict is Verdict.CRASHES
    return Outcome(
        verdict=cause.verdict,
        cause=cause,
        mismatches=() if crashes else (mismatch,),
        power=Power(kind="order", share=0.5),
        message=message,
        repeats=5,
        facts=(LaunchFact(role="canonical", kernel="linear", grid=(1, 2)),),
        actual_backend="torch",
    )


def sample(
    *,
    case: Case = CASE,
    reference: KernelReference = LINEAR,
    cause: Cause = DRIFT,
    message: str = "",
    rate: float | None = None,
) -> Fixture:
    """Return a fixture of F.linear, with changes."""
    needed = []
    if "K" in case.dims:
        needed.append(Claim(path=("dims", "K"), value=case.dims["K"], others=(1, 2)))
    if case.transforms:
        needed.append(Claim(path=("transforms", 0), others=(None,)))
    if len(case.data["input"].points if "input" in case.data else ()) > 2:
        needed.append(Claim(path=("data", "input", "points", 2), others=(None,)))
    proof = Proof(
        needed=tuple(needed),
        free=(Claim(path=("seed",), value=case.seed, others=(1, 2, 3)),),
        complete=True,
        runs=200,
    )
    return make_fixture(
        reference=reference,
        case=case,
        outcome=attrs.evolve(outcome(cause, message=message), rate=rate),
        proof=proof,
        provenance=PROVENANCE,
    )
