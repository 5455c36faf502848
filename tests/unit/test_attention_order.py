"""Attention that finds its queries and contexts through `order`: what it is told, and what holds.

The arithmetic is that of the healthy model in `tests/unit/attention_models.py`.
"""

from collections.abc import Callable

import attrs
import pytest
import torch
from tests.unit.attention_models import model
from tests.unit.execution_cases import kernel_of, prepared_of, recorded, tensors
from tests.unit.test_attention_judging import drawn, judged
from torch import Tensor

from biprop.bits import same_bits
from biprop.case import Dtype
from biprop.execution import run_canonical, run_transformed
from biprop.generation.classes import padding_sides
from biprop.generation.space import Direction
from biprop.judgment import Verdict
from biprop.operators import Kernel
from biprop.signature import parse_backward, parse_restrictions, parse_signature
from biprop.signature.query_context import (
    is_even,
    pads_contexts_alone,
    pads_queries,
    sides_of,
    tells_queries,
    told_axes,
)
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    PadSlots,
    PermuteRows,
    SplitBatch,
    Transform,
    class_of,
    transforms_of,
)

EXAMPLES = 4
DEFECT_EXAMPLES = 60
OFFSETS = "oq: offsets(Q)[B+1], oc: offsets(C)[B+1]"
PACKED = ("[TQ,H,D]", "[TC,K,D]", "[TQ,H]", "a: order[TQ], b: order[TC]")
PADDED = ("[B,Q,H,D]", "[B,C,K,D]", "[B,Q,H]", "a: order[B,Q], b: order[B,C]")
# From offsets and order to the flat slots of the live tokens.
Live = Callable[[Tensor, Tensor], Tensor]


def through_order(offsets: Tensor, order: Tensor) -> Tensor:
    """Return the flat slots of the live tokens, in logical order."""
    return order.flatten()[: int(offsets[-1])].long()


def as_they_lie(offsets: Tensor, _: Tensor) -> Tensor:
    """Take the first slots for the live ones, which an order was given to deny."""
    return torch.arange(int(offsets[-1]))


def ordered(layout: tuple[str, str, str, str], live: Live, *, is_registered: bool) -> Kernel:
    """Return attention that gathers its live tokens, attends, and scatters."""
    query, key, lse, orders = layout
    inner = model("offsets", is_registered=True)
    slots = 1 if layout is PACKED else 2

    def gathered(values: Tensor, found: Tensor) -> Tensor:
        return values.flatten(0, slots - 1)[found]

    def scattered(values: Tensor, found: Tensor, like: Tensor) -> Tensor:
        whole = values.new_zeros((like.shape[:slots].numel(), *values.shape[1:]))
        return whole.index_copy(0, found, values).view(*like.shape[:slots], *values.shape[1:])

    def forward(*given: Tensor) -> tuple[Tensor, ...]:
        q, k, v, oq, oc, a, b = given
        at, other = live(oq, a), live(oc, b)
        found = inner.function(gathered(q, at), gathered(k, other), gathered(v, other), oq, oc)
        return tuple(scattered(values, at, q) for values in found)  # type: ignore[attr-defined]  # a tuple

    def backward(*given: Tensor) -> tuple[Tensor, ...]:
        of_out, of_lse, q, k, v, oq, oc, a, b = given
        at, other = live(oq, a), live(oc, b)
        assert inner.backward is not None
        found = inner.backward(
            *(gathered(values, at) for values in (of_out, of_lse, q)),
            *(gathered(values, other) for values in (k, v)),
            oq,
            oc,
        )
        pairs = zip(found, ((at, q), (other, k), (other, v)), strict=True)  # type: ignore[call-overload]  # a tuple
        return tuple(scattered(values, *where) for values, where in pairs)

    arguments = f"q{query}, k{key}, v{key}, {OFFSETS}, {orders}"
    kernel = kernel_of(
        forward,
        f"{arguments} -> o{query}, lse: float32{lse}",
        restrictions=parse_restrictions("H%K==0 H=2|4 K=1|2"),
    )
    if not is_registered:
        return kernel
    text = f"do{query}, dlse: float32{lse}, {arguments} -> dq{query}, dk{key}, dv{key}"
    return attrs.evolve(
        kernel, backward=backward, backward_signature=parse_backward(text, kernel.signature)
    )


class TestTold:
    """What an order says of a launch."""

    def test_it_finds_the_tokens_of_each_side(self) -> None:
        """In logical order, whatever the order of the segments; dead slots come last."""
        signature = f"q[TQ,H], k[TC,H], {OFFSETS}, a: order[TQ], b: order[TC] -> o[TQ,H]"
        transforms = (AddNeighbours(count=2), PermuteRows(seed=5), PadSlots(amount=1))
        q, k, oq, oc, a, b = tensors(recorded(signature, *transforms))
        values = prepared_of(kernel_of(lambda q, *_: q, signature), *transforms).values.tokens

        assert same_bits(q[a[:10].long()], values["q"]).all()
        assert same_bits(k[b[:10].long()], values["k"]).all()
        assert (int(a[10]), int(b[10])) == (10, 10)
        assert oq.tolist() == oc.tolist() == [0, 3, 5, 8, 10]

    def test_its_slots_are_flat_in_rows(self) -> None:
        """Counted over all rows; of a chunk, queries and contexts differ."""
        signature = f"q[B,Q,H], k[B,C,H], {OFFSETS}, a: order[B,Q], b: order[B,C] -> o[B,Q,H]"
        transforms = (
            AddNeighbours(),
            PadSlots(side="left", amount=1, contexts_only=True),
            AddDeadRows(),
        )
        _, _, oq, oc, a, b = tensors(recorded(signature, *transforms))

        assert a.tolist() == [[0, 1, 2], [4, 5, 3], [6, 7, 8]]
        assert b.tolist() == [[1, 2, 3, 6], [7, 0, 4, 5], [8, 9, 10, 11]]
        assert oq.tolist() == oc.tolist() == [0, 3, 5, 5]

    def test_values_of_sequences_come_as_their_segments_do(self) -> None:
        """A backward with an order has rows in logical order, whatever its forward has."""
        seen: list[tuple[Tensor, ...]] = []

        def forward(q: Tensor, k: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            return q * 2, k * 1

        def backward(*given: Tensor) -> Tensor:
            seen.append(given)
            return given[0] * 1

        kernel = kernel_of(forward, "q[B,H], k[TC,H], oc: offsets(C)[B+1] -> o[B,H], p[TC,H]")
        kernel = attrs.evolve(
            kernel,
            backward=backward,
            backward_signature=parse_backward(
                "do[B,H], q[B,H], o[B,H], k[TC,H], oc: offsets(C)[B+1], b: order[TC] -> dq[B,H]",
                kernel.signature,
            ),
        )
        prepared = prepared_of(
            kernel, AddNeighbours(count=2), PermuteRows(seed=5), judged="token_gradients"
        )
        run_transformed(prepared)
        of_out, q, o, _, oc, _ = seen[-1]
        pool = prepared.values.tokens

        last = oc[1:].long() - 1
        assert oc.tolist() == [0, 3, 5, 8, 10]
        assert same_bits(q, pool["q"][last]).all()
        assert same_bits(o, pool["q"][last] * 2).all()
        assert same_bits(of_out, pool["do"][last]).all()
        assert run_canonical(prepared).outputs


class TestLegal:
    """Where dead slots may lie."""

    @pytest.mark.parametrize(
        ("text", "sides"),
        [
            (f"q[TQ,D], k[TC,D], {OFFSETS}, a: order[TQ], b: order[TC]", ("right", "left")),
            (f"q[B,Q,D], k[B,C,D], {OFFSETS}, a: order[B,Q], b: order[B,C]", ("right", "left")),
            ("q[B,D], k[TC,D], oc: offsets[B+1], b: order[TC]", ("right", "left")),
            ("q[B,D], k[B,C,D], oc: lengths[B], b: order[B,C]", ("right",)),
            ("q[TQ,D], k[TC,D], oq: offsets(Q)[B+1], a: order[TQ], b: order[TC]", ("right",)),
            (f"q[B,Q,D], k[B,C,D], {OFFSETS}", ("right",)),
            ("q[B,Q,D], k[B,C,D], a: order[B,Q], b: order[B,C]", ()),
            ("q[B,Q,D], k[B,C,D], x: mask[B,C], a: order[B,Q]", ("right", "left")),
        ],
    )
    def test_offsets_and_order_of_each_side_permit_both(
        self, text: str, sides: tuple[str, ...]
    ) -> None:
        """Anything less says as much as it says without an order."""
        axes = "[TQ,D]" if "q[TQ" in text else "[B,Q,D]" if "q[B,Q" in text else "[B,D]"

        assert sides_of(parse_signature(f"{text} -> o{axes}")) == sides

    def test_alone_it_tells_nothing(self) -> None:
        """How many of its slots are live it does not say, so rows are equally long and full."""
        found = parse_signature("q[B,Q,D], k[B,C,D], a: order[B,Q], b: order[B,C] -> o[B,Q,D]")

        assert (told_axes(found), tells_queries(found), is_even(found)) == (
            frozenset(),
            False,
            True,
        )
        assert (pads_queries(found), pads_contexts_alone(found)) == (False, False)

    def test_a_backward_without_it_has_dead_slots_last(self) -> None:
        """It takes the first slots for the live ones."""
        kernel = ordered(PACKED, through_order, is_registered=True)
        assert kernel.backward_signature is not None
        text = kernel.backward_signature.text.replace(", a: order[TQ], b: order[TC]", "")
        bare = parse_backward(text, kernel.signature)

        assert padding_sides(kernel.signature, kernel.backward_signature) == ("right", "left")
        assert padding_sides(kernel.signature, bare) == ("right",)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("direction", "is_registered"),
    [("forward", False), ("backward", False), ("backward", True)],
    ids=["forward", "autograd", "backward"],
)
@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=["packed", "padded"])
def test_attention_through_its_order_holds(
    layout: tuple[str, str, str, str],
    direction: Direction,
    dtype: Dtype,
    *,
    is_registered: bool,
) -> None:
    """With dead slots on either side, and segments or rows in any order."""
    kernel = ordered(layout, through_order, is_registered=is_registered)
    cases = drawn(kernel, count=EXAMPLES, dtype=dtype, direction=direction)

    assert [judged(kernel, case).verdict for case in cases] == [Verdict.HOLDS] * EXAMPLES


@pytest.mark.parametrize("classes", [("T2",), ("T4",), ("T3", "T4", "T5")])
@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=["packed", "padded"])
def test_attention_that_ignores_its_order_is_found(
    layout: tuple[str, str, str, str], classes: tuple[str, ...]
) -> None:
    """Neither rows in another order nor dead slots in front are where it looks."""
    kernel = ordered(layout, as_they_lie, is_registered=False)
    cases = drawn(kernel, count=DEFECT_EXAMPLES, classes=classes)
    found = next((case for case in cases if judged(kernel, case).verdict is Verdict.DRIFTS), None)

    assert found is not None
    healthy = ordered(layout, through_order, is_registered=False)
    assert judged(healthy, found).verdict is Verdict.HOLDS


def test_every_way_to_lie_is_drawn() -> None:
    """So that holding means something."""
    kernel = ordered(PACKED, through_order, is_registered=True)
    transforms: list[Transform] = [
        transform
        for case in drawn(kernel, count=60, direction="backward")
        for transform in transforms_of(case)
    ]

    assert {"T1", "T2", "T3", "T4.finite", "T4.nonfinite", "T5", "T8"} == set(
        map(class_of, transforms)
    )
    assert {item.side for item in transforms if isinstance(item, PadSlots)} == {"left", "right"}
    assert any(isinstance(item, SplitBatch) for item in transforms)
