"""Minimising over queries and contexts: known minima, counted slots, and witnesses of attention."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

from biprop.case import Case
from biprop.data.recipe import Recipe
from biprop.generation.draw import RandomDraw
from biprop.generation.generator import draw_case, illegal_in
from biprop.generation.space import LIMITS, Space
from biprop.judgment import BitDifference, Cause, Claim, Mismatch, Outcome, Verdict
from biprop.layout.launch import DEAD, Launch
from biprop.layout.launches import canonical_launches, launches
from biprop.layout.pool import token_pool
from biprop.minimize import Minimised, cost, minimise
from biprop.minimize.edits import find, with_cuts_moved
from biprop.operators import Kernel
from biprop.relations import JudgeOptions
from biprop.relations.invariance import judge_invariance
from biprop.sequence import LogicalSequence
from biprop.signature import Signature, parse_backward, parse_restrictions, parse_signature
from biprop.transforms import (
    AddNeighbours,
    PackRows,
    PadSlots,
    SplitBatch,
    Transform,
    apply_all,
    transform_to_data,
    transforms_of,
)

HEADS = "q[B,HQ,Q,D], k[B,HK,C,D], v[B,HK,C,D]"
MASKED = parse_signature(f"{HEADS}, mask: causal_mask[B,1,Q,C] -> out[B,HQ,Q,D]")
FULL = parse_signature(f"{HEADS}, live: mask[B,C] -> out[B,HQ,Q,D]")
ONE_QUERY = parse_signature("q[B,H,1,D], k[B,H,C,D], v[B,H,C,D], n: lengths(C)[B] -> out[B,H,1,D]")
PACKED = parse_signature(
    "q[TQ,HQ,D], k[TC,HK,D], v[TC,HK,D], a: offsets(Q)[B+1], b: offsets(C)[B+1] -> out[TQ,HQ,D]"
)
SEEDS = range(2)
HOLDS = Outcome(verdict=Verdict.HOLDS)

Defect = Callable[[Case, tuple[Launch, ...]], bool]


def made(signature: Signature, case: Case) -> tuple[Launch, ...]:
    """Return the transformed launches of a case."""
    layout = apply_all(transforms_of(case))
    return launches(signature, token_pool(case, layout), case, layout)


def drift(case: Case) -> Outcome:
    """Return a drift of the first watched sequence."""
    first = BitDifference(
        sequence_id=case.sequences[0].id,
        token=0,
        coordinate=(0,),
        canonical_row=0,
        transformed_row=0,
        transformed_launch=0,
        canonical_bits="0x00000000",
        transformed_bits="0x00000001",
        canonical_value="0.0",
        transformed_value="1e-45",
    )
    mismatch = Mismatch(
        output="out",
        dtype="float32",
        elements=1,
        elements_compared=1,
        tokens=1,
        tokens_compared=1,
        first=first,
    )
    cause = Cause(verdict=Verdict.DRIFTS, direction="forward", output="out")
    return Outcome(verdict=Verdict.DRIFTS, cause=cause, mismatches=(mismatch,))


def minimum(signature: Signature, defect: Defect, seed: int, *, dims: str = "") -> Minimised:
    """Draw cases until a simulated defect shows, and minimise the first."""
    restrictions = parse_restrictions(dims)
    space = Space(signature=signature, dtype="float32", restrictions=restrictions)

    def judge(case: Case) -> Outcome:
        return drift(case) if defect(case, made(signature, case)) else HOLDS

    for number in range(2000):
        case = draw_case(RandomDraw(1000 * seed + number), space)
        if defect(case, made(signature, case)):
            return minimise(
                case,
                judge(case),
                judge=judge,
                signature=signature,
                legal=lambda candidate: illegal_in(space, candidate),
                budget_runs=3000,
            )
    raise AssertionError("the defect never showed")


def transforms(found: Minimised) -> tuple[Transform, ...]:
    """Return the composition of a minimum."""
    return transforms_of(found.case)


def lengths(found: Minimised) -> list[int]:
    """Return the lengths of its watched sequences."""
    return [sequence.length for sequence in found.case.sequences]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("signature", [MASKED, PACKED], ids=["masked", "packed"])
def test_decoding_token_is_found_exactly(signature: Signature, seed: int) -> None:
    """One query alone with six live contexts: a sequence of six tokens, cut before the last."""

    def defect(_: Case, found: tuple[Launch, ...]) -> bool:
        return any(max(launch.lengths) == 1 and launch.context_lengths[0] >= 6 for launch in found)

    found = minimum(signature, defect, seed, dims="HQ%HK==0")

    assert transforms(found) == (SplitBatch(cuts=(5,)),)
    assert lengths(found) == [6]
    assert set(found.case.dims.values()) == {1}
    assert cost(signature, found.case).slots == 5 + 5 + 1 + 6
    # The proof says that decoding a token earlier is fine.
    path = ("transforms", 0, "values", "cuts")
    assert Claim(path=path, value=(5,), others=((4,),)) in found.proof.needed


@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_around_a_token_move_together(seed: int) -> None:
    """One query between two others, from token 4 on: both cuts come down to it."""

    def defect(case: Case, found: tuple[Launch, ...]) -> bool:
        longest = case.sequences[0].length
        single = [launch.context_lengths[0] for launch in found if launch.lengths == (1,)]
        return any(5 <= contexts < longest for contexts in single)

    found = minimum(MASKED, defect, seed)

    assert transforms(found) == (SplitBatch(cuts=(4, 5)),)
    assert lengths(found) == [6]


@pytest.mark.parametrize("seed", SEEDS)
def test_dead_contexts_need_no_dead_queries(seed: int) -> None:
    """Two dead slots beside live contexts: queries have none in the smallest case."""

    def defect(_: Case, found: tuple[Launch, ...]) -> bool:
        return any(int((launch.maps["C"][0] == DEAD).sum()) >= 2 for launch in found)

    found = minimum(MASKED, defect, seed)

    assert transforms(found) == (PadSlots(amount=2, contexts_only=True),)
    assert lengths(found) == [1]
    assert cost(MASKED, found.case).slots == 1 + 3


@pytest.mark.parametrize("seed", SEEDS)
def test_sequences_of_a_row_are_as_few_as_needed(seed: int) -> None:
    """Three sequences that share a row: no more of them, each of one token."""

    def defect(case: Case, found: tuple[Launch, ...]) -> bool:
        return find(case, PackRows) is not None and any(
            len(launch.lengths) * 3 <= sum(launch.lengths) == int((launch.slots >= 0).sum())
            and launch.sequences[0] >= 0
            and len(launch.lengths) == 1
            and sum(1 for item in case.sequences if item.length) + _neighbours(case) >= 3
            for launch in found
        )

    found = minimum(MASKED, defect, seed)
    packed = find(found.case, PackRows)

    assert packed == PackRows(per_row=3)
    assert set(lengths(found)) == {1}
    assert len(lengths(found)) + _neighbours(found.case) == 3


def _neighbours(case: Case) -> int:
    present = find(case, AddNeighbours)
    return present.count if present else 0


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_different_lengths_become_short_together(seed: int) -> None:
    """A first row shorter than the second: one token and two, without anything else."""

    def defect(_: Case, found: tuple[Launch, ...]) -> bool:
        return any(
            len(launch.lengths) > 1 and 0 < launch.lengths[0] < launch.lengths[1]
            for launch in found
        )

    found = minimum(MASKED, defect, seed)

    assert lengths(found) == [1, 2]
    assert transforms(found) == (AddNeighbours(count=0),)


@pytest.mark.parametrize("seed", SEEDS)
def test_heads_are_lowered_together(seed: int) -> None:
    """Two heads of keys, each read by two of queries, survive beside everything that goes."""

    def defect(case: Case, found: tuple[Launch, ...]) -> bool:
        heads = case.dims["HK"] >= 2 and case.dims["HQ"] >= 2 * case.dims["HK"]
        return heads and any(sum(row >= 0 for row in launch.sequences) > 1 for launch in found)

    found = minimum(PACKED, defect, seed, dims="HQ%HK==0 HQ=1..12 HK=1..4")

    assert (found.case.dims["HQ"], found.case.dims["HK"], found.case.dims["D"]) == (4, 2, 1)
    assert sum(lengths(found)) + _neighbours(found.case) == 2


def test_cuts_move_and_fall_off() -> None:
    """Cuts that reach token 0 go, and with the last one the transform."""
    case = Case(
        dtype="float32",
        dims={},
        sequences=(LogicalSequence(id=0, length=9),),
        transforms=(transform_to_data(SplitBatch(cuts=(2, 5))),),
    )

    assert find(with_cuts_moved(case, 1), SplitBatch) == SplitBatch(cuts=(1, 4))
    assert find(with_cuts_moved(case, 3), SplitBatch) == SplitBatch(cuts=(2,))
    assert with_cuts_moved(case, 5).transforms == ()


@pytest.mark.parametrize(
    "signature", [MASKED, FULL, ONE_QUERY, PACKED], ids=["masked", "full", "one query", "packed"]
)
def test_slots_are_those_of_the_launches(signature: Signature) -> None:
    """The cost counts queries and contexts of every launch, whichever configuration has more."""
    space = Space(signature=signature, dtype="float32", restrictions=parse_restrictions("HQ%HK==0"))
    if signature is ONE_QUERY:
        space = Space(signature=signature, dtype="float32")
    checked = 0
    for seed in range(150):
        case = draw_case(RandomDraw(seed), space)
        layout = apply_all(transforms_of(case))
        spread = layout.neighbours.spread
        if spread or (layout.permutation and layout.selection.per_row > 1):
            # The cost counts a spread in full, and packs rows in the order of the case.
            continue
        pool = token_pool(case, layout)
        sides = [
            sum(
                found.numel()
                for launch in configuration
                for axis, found in launch.maps.items()
                if axis != "B"
            )
            for configuration in (
                canonical_launches(signature, pool, case),
                launches(signature, pool, case, layout),
            )
        ]
        assert cost(signature, case).slots == max(sides), case
        checked += 1

    assert checked > 60


def weights_of(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """Return exponentials `[B,1,Q,C]` of the scores of one feature, shifted by their peak."""
    scores = (q.float() * k.float().mT).masked_fill(~mask, -torch.inf)
    return (scores - scores.amax(-1, keepdim=True)).exp()


def added(terms: Tensor, dim: int, *, backwards: bool) -> Tensor:
    """Return the sum over a dimension, from the first to the last or the other way round."""
    parts = list(terms.unbind(dim))
    total = torch.zeros_like(parts[0])
    for part in reversed(parts) if backwards else parts:
        total = total + part
    return total


def values_backwards(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attend, and add keys from the last to the first where there are two rows."""
    weights = weights_of(q, k, mask)
    total = weights.sum(-1, keepdim=True)
    terms = weights[..., None] * v.float()[:, :, None]
    out = added(terms, 3, backwards=len(q) > 1) / total
    return out.to(q.dtype), torch.zeros(q.shape[:-1])


def total_backwards(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return nothing but the log-sum-exp, with keys added backwards where there are two rows."""
    del v
    weights = weights_of(q, k, mask)
    return torch.zeros_like(q), added(weights, 3, backwards=len(q) > 1).log()


def gradient_backwards(dout: Tensor, dlse: Tensor, *arguments: Tensor) -> Tensor:
    """Return the gradient of values, with queries added backwards where there are two rows."""
    del dlse
    q, k, _, mask = arguments
    weights = weights_of(q, k, mask)
    weights = weights / added(weights, 3, backwards=False)[..., None]
    terms = weights[..., None] * dout.float()[:, :, :, None]
    return added(terms, 2, backwards=len(q) > 1).to(q.dtype)


class TestWitnesses:
    """Recipes give way to a few listed numbers."""

    ARGUMENTS = "q[B,1,Q,D], k[B,1,C,D], v[B,1,C,D], m: causal_mask[B,1,Q,C]"
    SIGNATURE = parse_signature(f"{ARGUMENTS} -> out[B,1,Q,D], lse: float32[B,1,Q]")
    BACKWARD = parse_backward(
        f"dout[B,1,Q,D], dlse: float32[B,1,Q], {ARGUMENTS} -> dv[B,1,C,D]", SIGNATURE
    )

    def _minimum(self, kernel: Kernel, direction: Literal["forward", "backward"]) -> Minimised:
        space = Space(
            signature=kernel.signature,
            backward_signature=kernel.backward_signature,
            dtype="bfloat16",
            direction=direction,
            classes=("T1",),
            restrictions=parse_restrictions("D=1"),
            limits=LIMITS["interpreter"],
        )
        options = JudgeOptions(measure=False)
        for seed in range(100):
            case = draw_case(RandomDraw(seed), space)
            outcome = judge_invariance(kernel, case, options=options)
            if outcome.cause is not None:
                return minimise(
                    case,
                    outcome,
                    judge=lambda candidate: judge_invariance(kernel, candidate, options=options),
                    signature=kernel.signature,
                    legal=lambda candidate: illegal_in(space, candidate),
                    budget_runs=400,
                )
        raise AssertionError("the defect never showed")

    def _kernel(self, function: Callable[..., object], **fields: object) -> Kernel:
        return Kernel(
            operator="test",
            target="test:test",
            signature=self.SIGNATURE,
            function=function,
            **fields,  # type: ignore[arg-type]  # fields of the record
        )

    def _values(self, found: Minimised, name: str) -> list[float]:
        return [float.fromhex(point.value) for point in found.case.data[name].points]

    def test_values_that_cancel_stand_for_a_changed_order(self) -> None:
        """Equal scores, and three numbers over the tokens."""
        found = self._minimum(self._kernel(values_backwards), "forward")
        data = found.case.data

        assert (data["q"], data["k"]) == (Recipe(kind="zeros"), Recipe(kind="zeros"))
        assert self._values(found, "v") == [4096, -4096, 2**-12]
        assert {axis for point in data["v"].points for axis in point.at} == {"@"}
        assert (lengths(found), transforms(found)) == ([3], (AddNeighbours(count=1),))

    def test_peak_stands_for_a_log_sum_exp(self) -> None:
        """One key outweighs the others, each of which is lost beside it."""
        found = self._minimum(self._kernel(total_backwards), "forward")

        assert found.case.data["q"] == Recipe(kind="ones")
        # Three keys do not need the smallest number that is lost.
        assert self._values(found, "k")[1:] == [0]
        assert found.case.data["v"] == Recipe(kind="zeros")
        assert (lengths(found), transforms(found)) == ([3], (AddNeighbours(count=1),))

    def test_upstream_gradients_cancel_beside_a_peak(self) -> None:
        """Gradients of values are sums over queries, which then weigh alike."""
        kernel = self._kernel(
            values_backwards, backward=gradient_backwards, backward_signature=self.BACKWARD
        )
        found = self._minimum(kernel, "backward")

        assert self._values(found, "dout") == [4096, -4096, 2**-12]
        assert self._values(found, "k") == [-64, 0]
        assert (lengths(found), transforms(found)) == ([3], (AddNeighbours(count=1),))
