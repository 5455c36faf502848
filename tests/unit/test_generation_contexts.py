"""Generation over queries and contexts: legal, varied, and fair to a kernel that knows no more."""

from functools import lru_cache
from itertools import pairwise

import attrs
import pytest
from tests.unit.query_context_signatures import CONTEXT_SIGNATURES

from biprop.case import Case, Dtype, Judged
from biprop.data.recipe import Recipe
from biprop.generation import (
    LIMITS,
    RandomDraw,
    Space,
    applicability,
    draw_case,
    illegal,
    illegal_in,
    simplest_case,
)
from biprop.generation.legal import recipes_needed
from biprop.layout.launch import Launch
from biprop.layout.launches import launches
from biprop.layout.pool import TokenPool, token_pool
from biprop.sequence import LogicalSequence
from biprop.signature import Signature, parse_restrictions, parse_signature
from biprop.signature.query_context import cutting_of, is_even, sides_of, told_axes
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    GatherActive,
    PackRows,
    PadSlots,
    ReplaceNeighbours,
    SplitBatch,
    Transform,
    apply_all,
    transform_to_data,
    transforms_of,
)
from biprop.transforms.effect import changed_classes

_ROWS = "q[B,Q,H,D], k[B,C,H,D], v[B,C,H,E]"
_SEGMENTS = "q[TQ,H,D], k[TC,H,D], v[TC,H,E], x: offsets(Q)[B+1], y: offsets(C)[B+1]"
# Tensors beside queries, keys and values, of whose role the notation says nothing.
ODD = (
    "q[B,Q,D], k[B,C,D], bias[B,Q] -> o[B,Q,D]",
    "bias[B,C], q[B,Q,D], k[B,C,D], m: mask[B,C] -> o[B,Q,D]",
    "q[B,Q,D], bias[B,C] -> o[B,Q,D]",
    "bias[B,Q], k[B,C,D] -> o[B,C,D]",
    f"bias[B,H,Q], {_ROWS}, weight[D] -> o[B,Q,H,E], lse: float32[B,H,Q]",
    f"{_ROWS}, late[B,C], m: causal_mask[B,1,Q,C] -> o[B,Q,H,E]",
    f"{_ROWS}, scale[B], extra[B,C,F] -> o[B,Q,H,E]",
    f"{_ROWS}, wide[B,Q,H,8], rope[B,C,F], ids: token(V)[B,Q], table[V,E] -> o[B,Q,H,E]",
    f"{_SEGMENTS}, bias[TQ], extra[TC], scale[B] -> o[TQ,H,E]",
    f"bias[TC,H], {_SEGMENTS}, ids: token(V)[TQ] -> o[TQ,H,E], lse: float32[TQ,H]",
)
EQUAL = (LogicalSequence(id=0, length=4), LogicalSequence(id=1, length=4))
RAGGED = (LogicalSequence(id=0, length=4), LogicalSequence(id=1, length=3))


@lru_cache
def space_of(name: str, direction: str = "forward", lane: str = "interpreter") -> Space:
    """Return the space of one of the signatures."""
    signature = CONTEXT_SIGNATURES[name]
    restrictions = parse_restrictions("" if name == "queries" else "HQ%HK==0")
    return Space(
        signature=signature,
        restrictions=restrictions.check_against(signature),
        direction=direction,  # type: ignore[arg-type]  # parametrised text
        limits=LIMITS[lane],  # type: ignore[index]  # parametrised text
    )


@lru_cache
def drawn(
    name: str, direction: str = "forward", lane: str = "interpreter", count: int = 40
) -> tuple[Case, ...]:
    """Return cases of a signature, each drawn once for all tests."""
    space = space_of(name, direction, lane)
    return tuple(draw_case(RandomDraw(seed), space) for seed in range(count))


def launched(signature: Signature, case: Case) -> tuple[TokenPool, tuple[Launch, ...]]:
    """Return what a case launches."""
    layout = apply_all(transforms_of(case))
    pool = token_pool(case, layout)
    return pool, launches(signature, pool, case, layout)


def case_of(
    name: str,
    *transforms: Transform,
    sequences: tuple[LogicalSequence, ...] = EQUAL,
    judged: Judged = "outputs",
    dtype: Dtype = "float32",
) -> Case:
    """Return a small case with a composition, legal or not."""
    signature = CONTEXT_SIGNATURES[name]
    data, _ = recipes_needed(signature, judged)
    return Case(
        dtype=dtype,
        judged=judged,
        dims=dict.fromkeys(signature.free_dims, 2),
        sequences=sequences,
        data=dict.fromkeys(data, Recipe(kind="ones")),
        transforms=tuple(transform_to_data(transform) for transform in transforms),
    )


class TestDrawn:
    """Cases as they are drawn."""

    @pytest.mark.parametrize("name", ["causal_mask", "offsets", "is_causal", "one_query"])
    def test_300_cases_of_a_layout_are_legal_and_change_the_call(self, name: str) -> None:
        """All are legal, and nearly every class that is drawn changes the call."""
        space, cases = space_of(name), drawn(name, count=300)
        shown = [changed_classes(space.signature, case) for case in cases[::6]]
        effective = sum(sum(found.values()) for found in shown)

        assert {illegal_in(space, case) for case in cases} == {""}
        assert effective > 0.9 * sum(map(len, shown))
        assert all(any(found.values()) for found in shown)

    @pytest.mark.parametrize("direction", ["forward", "backward"])
    @pytest.mark.parametrize("name", CONTEXT_SIGNATURES)
    def test_cases_are_legal(self, name: str, direction: str) -> None:
        """Whatever the signature and the direction."""
        space = space_of(name, direction)

        assert {illegal_in(space, case) for case in drawn(name, direction)} == {""}
        assert illegal_in(space, simplest_case(space)) == ""

    @pytest.mark.parametrize("direction", ["forward", "backward"])
    @pytest.mark.parametrize("text", ODD)
    def test_cases_with_odd_tensors_are_legal(self, text: str, direction: str) -> None:
        """A tensor whose role is guessed wrongly gets no recipe that it cannot have."""
        signature = parse_signature(text)
        space = Space(
            signature=signature,
            direction=direction,  # type: ignore[arg-type]  # parametrised text
            limits=LIMITS["interpreter"],
        )

        cases = [draw_case(RandomDraw(seed), space) for seed in range(60)]

        assert {illegal_in(space, case) for case in cases} == {""}

    @pytest.mark.parametrize("name", CONTEXT_SIGNATURES)
    def test_every_class_that_applies_is_drawn(self, name: str) -> None:
        """No class that applies is left out, and no other one is drawn."""
        signature = CONTEXT_SIGNATURES[name]
        applies = {kind for kind, reason in applicability(signature).items() if not reason}
        found = {kind for case in drawn(name) for kind in changed_classes(signature, case)}

        assert found == applies

    @pytest.mark.parametrize("name", CONTEXT_SIGNATURES)
    def test_lengths_differ_where_they_may(self, name: str) -> None:
        """Sequences of a launch are ragged, unless the kernel could not know."""
        ragged = sum(
            len({sequence.length for sequence in case.sequences}) > 1 for case in drawn(name)
        )

        assert ragged == 0 if is_even(CONTEXT_SIGNATURES[name]) else ragged > 10

    @pytest.mark.parametrize("name", ["causal_mask", "offsets"])
    def test_every_position_is_decoded(self, name: str) -> None:
        """A launch of one query alone occurs at each position that a short sequence has."""
        found: set[int] = set()
        for case in drawn(name, count=300):
            cuts = next((t.cuts for t in transforms_of(case) if isinstance(t, SplitBatch)), ())
            found |= {low for low, high in pairwise(cuts) if high == low + 1}

        assert found >= {1, 2, 3, 4}

    def test_is_causal_is_cut_before_single_queries_only(self) -> None:
        """Every launch has as many queries as contexts, or one query and no dead slot beside it."""
        cut = 0
        for name in ("is_causal", "masked_is_causal"):
            for case in drawn(name):
                _, found = launched(CONTEXT_SIGNATURES[name], case)
                cut += len(found) > len(case.sequences)
                for launch in found:
                    assert launch.sizes["Q"] in {1, launch.sizes["C"]}

        assert cut > 15

    def test_groups_of_heads_are_met(self) -> None:
        """HQ is a multiple of HK, and often not the same."""
        cases = [case for name in ("masks", "offsets") for case in drawn(name, lane="cpu")]

        assert all(case.dims["HQ"] % case.dims["HK"] == 0 for case in cases)
        assert sum(case.dims["HQ"] > case.dims["HK"] for case in cases) > 0.4 * len(cases)

    @pytest.mark.parametrize("lane", ["cpu", "interpreter", "gpu"])
    @pytest.mark.parametrize("name", ["causal_mask", "offsets", "packed_mask"])
    def test_limits_hold(self, name: str, lane: str) -> None:
        """Queries times contexts times heads stay within the work of a lane."""
        limits = LIMITS[lane]  # type: ignore[index]  # parametrised text
        for case in drawn(name, lane=lane):
            pool, _ = launched(CONTEXT_SIGNATURES[name], case)
            lengths = [sequence.length for sequence in pool.sequences]
            pairs = len(lengths) * max(lengths) ** 2
            if name == "packed_mask":
                pairs = sum(lengths) ** 2

            assert pairs * case.dims["HQ"] * case.dims["D"] <= limits.context_work_max
            assert max(sequence.length for sequence in case.sequences) <= limits.context_max
            assert case.dims["HQ"] <= limits.heads_max
            assert case.dims["D"] <= limits.head_dim_max

    @pytest.mark.parametrize("kind", ["T5", "T6", "T8", "T4.finite"])
    def test_one_class_alone_changes_the_call(self, kind: str) -> None:
        """Where only one class is wanted, it finds what it needs."""
        space = attrs.evolve(space_of("causal_mask"), classes=(kind,))
        for seed in range(30):
            case = draw_case(RandomDraw(seed), space)

            assert changed_classes(space.signature, case) == {kind: True}

    def test_choices_above_the_limit_are_left_out(self) -> None:
        """A head dimension of few sizes takes those that a lane has time for, or the smallest."""
        space = space_of("masks")
        for text, expected in (("D=16|32|64", {16}), ("D=64|128", {64})):
            restrictions = parse_restrictions(text).check_against(space.signature)
            held = attrs.evolve(space, restrictions=restrictions)
            found = {draw_case(RandomDraw(seed), held).dims["D"] for seed in range(40)}

            assert found == expected


class TestFairness:
    """What a healthy kernel may rely on holds in every launch that is drawn."""

    @pytest.mark.parametrize("direction", ["forward", "backward"])
    @pytest.mark.parametrize(
        "name", [n for n, item in CONTEXT_SIGNATURES.items() if item.layout == "query_context"]
    )
    def test_queries_are_the_last_live_contexts(self, name: str, direction: str) -> None:
        """Live slots are contiguous, on a legal side; causal queries end where contexts end."""
        signature = CONTEXT_SIGNATURES[name]
        for case in drawn(name, direction):
            _, found = launched(signature, case)
            packs = any(isinstance(item, PackRows) for item in transforms_of(case))
            for launch in found:
                for queries, contexts in zip(
                    launch.maps["Q"].tolist(), launch.maps["C"].tolist(), strict=True
                ):
                    live, seen = (
                        [at for at, token in enumerate(row) if token >= 0]
                        for row in (queries, contexts)
                    )
                    assert bool(live) == bool(seen)
                    if not live:
                        continue
                    for slots, row in ((live, queries), (seen, contexts)):
                        assert slots == list(range(slots[0], slots[-1] + 1))
                        side = "right" if slots[0] == 0 else "left"
                        assert len(slots) == len(row) or side in sides_of(signature)
                    if is_even(signature):
                        assert len(live) == len(queries)
                    if cutting_of(signature) == "prefix" and not packs:
                        tokens = [contexts[at] for at in seen]
                        assert [queries[at] for at in live] == tokens[-len(live) :]

    @pytest.mark.parametrize("name", ["offsets", "query_offsets", "one_packed"])
    def test_segments_lie_end_to_end(self, name: str) -> None:
        """From slot 0 on, as offsets count them; all dead slots come after the last segment."""
        signature = CONTEXT_SIGNATURES[name]
        for case in drawn(name):
            _, found = launched(signature, case)
            for launch in found:
                for axis in ("TQ", "TC"):
                    lengths = launch.lengths_of("C" if axis == "TC" else "Q")
                    slots = launch.maps[axis].tolist()
                    assert [token >= 0 for token in slots[: sum(lengths)]] == [True] * sum(lengths)
                    assert set(slots[sum(lengths) :]) <= {-1}
                if told_axes(signature) != {"Q", "C"}:
                    assert launch.lengths == launch.context_lengths


class TestLegality:
    """What may be run, both ways."""

    @pytest.mark.parametrize(
        ("name", "transforms", "reason"),
        [
            ("causal_mask", (PadSlots(side="left", fill="nan"),), ""),
            ("causal_mask", (PadSlots(contexts_only=True),), ""),
            ("causal_mask", (AddDeadRows(),), ""),
            ("causal_mask", (SplitBatch(cuts=(1, 3)),), ""),
            ("causal_mask", (AddNeighbours(), PackRows(per_row=2)), ""),
            ("causal_mask", (AddNeighbours(count=1), ReplaceNeighbours(length=9)), ""),
            ("causal_mask", (GatherActive(),), "every token of its sequences"),
            ("lengths", (PadSlots(side="right"),), ""),
            ("lengths", (PadSlots(side="left"),), "on the right only"),
            ("lengths", (PackRows(),), "it needs a causal_mask over B,Q,C"),
            ("masks", (PadSlots(side="left", contexts_only=True),), ""),
            ("masks", (PackRows(),), "it needs a causal_mask over B,Q,C"),
            ("shared_mask", (PadSlots(),), "nothing tells dead slots"),
            ("shared_mask", (AddDeadRows(fill="nan"),), ""),
            ("shared_mask", (SplitBatch(cuts=(2,)),), ""),
            ("context_lengths", (PadSlots(),), "only contexts may have dead slots"),
            ("context_lengths", (PadSlots(contexts_only=True),), ""),
            ("context_lengths", (PadSlots(contexts_only=True, side="left"),), "on the right only"),
            ("context_lengths", (SplitBatch(cuts=(2,)),), ""),
            ("is_causal", (SplitBatch(cuts=(3,)),), ""),
            ("is_causal", (SplitBatch(cuts=(2, 3)),), ""),
            ("is_causal", (SplitBatch(cuts=(4,)),), ""),
            ("is_causal", (SplitBatch(cuts=(2,)),), "is_causal has a value for"),
            ("is_causal", (SplitBatch(cuts=(1, 3)),), "is_causal has a value for"),
            ("is_causal", (PadSlots(),), "nothing tells dead slots"),
            (
                "is_causal",
                (AddNeighbours(count=1), ReplaceNeighbours(length=5)),
                "differ in length",
            ),
            ("masked_is_causal", (PadSlots(side="left"),), ""),
            ("masked_is_causal", (PadSlots(contexts_only=True),), "both need as many slots"),
            ("masked_is_causal", (PadSlots(), SplitBatch(cuts=(3,))), "single queries"),
            ("masked_is_causal", (PadSlots(amount=0), SplitBatch(cuts=(3,))), ""),
            (
                "masked_is_causal",
                (AddNeighbours(count=1), ReplaceNeighbours(length=6), SplitBatch(cuts=(3,))),
                "is_causal has a value for",
            ),
            ("full", (SplitBatch(cuts=(2,)),), ""),
            ("full", (PadSlots(),), "nothing tells dead slots"),
            ("masked_full", (PadSlots(side="left"), SplitBatch(cuts=(2,))), ""),
            ("queries", (SplitBatch(cuts=(2,)),), "every token of its sequences"),
            ("pooled", (SplitBatch(cuts=(2,)),), "would come in parts"),
            ("pooled", (PadSlots(),), "only contexts may have dead slots"),
            ("pooled", (PadSlots(contexts_only=True),), ""),
            ("one_query", (SplitBatch(cuts=(2,)),), "a sequence has one query"),
            ("one_query", (PadSlots(fill="inf"),), ""),
            ("one_masked", (PadSlots(side="left"),), ""),
            ("one_blind", (PadSlots(),), "nothing tells dead slots"),
            ("one_packed", (PadSlots(), AddDeadRows()), ""),
            ("offsets", (PadSlots(), AddDeadRows(), SplitBatch(cuts=(1, 2))), ""),
            ("offsets", (PadSlots(side="left"),), "on the right only"),
            ("offsets", (PackRows(),), "packed already"),
            ("query_offsets", (SplitBatch(cuts=(1,)),), "how many contexts come before"),
            ("query_offsets", (PadSlots(contexts_only=True),), "both need as many slots"),
            ("query_offsets", (PadSlots(),), ""),
            ("packed_mask", (PadSlots(side="left", fill="nan"),), ""),
            ("packed_mask", (AddDeadRows(),), "there are no rows"),
        ],
    )
    def test_layouts_admit_what_is_fair(
        self, name: str, transforms: tuple[Transform, ...], reason: str
    ) -> None:
        """Each signature admits what its kernel can know of, and nothing else."""
        found = illegal(CONTEXT_SIGNATURES[name], case_of(name, *transforms))

        assert reason in found if reason else found == ""

    @pytest.mark.parametrize("name", CONTEXT_SIGNATURES)
    def test_unequal_lengths_need_to_be_told(self, name: str) -> None:
        """Sequences of unequal length are refused where a dead slot could not be told."""
        signature = CONTEXT_SIGNATURES[name]
        refused = illegal(signature, case_of(name, AddNeighbours(), sequences=RAGGED))

        assert bool(refused) is is_even(signature)

    @pytest.mark.parametrize(
        ("name", "transform", "is_legal"),
        [
            ("causal_mask", PadSlots(fill="one"), True),
            ("causal_mask", PadSlots(fill="large"), False),
            ("causal_mask", PadSlots(fill="nan"), False),
            ("causal_mask", AddDeadRows(fill="nan"), True),
            ("masks", PadSlots(fill="nan"), True),
            ("offsets", PadSlots(fill="nan"), True),
            ("context_lengths", PadSlots(fill="nan", contexts_only=True), True),
            ("one_masked", PadSlots(fill="nan"), True),
            ("packed_mask", PadSlots(fill="zero"), True),
            ("packed_mask", PadSlots(fill="nan"), False),
            ("masked_is_causal", PadSlots(side="left"), False),
            ("masked_is_causal", PadSlots(side="right"), True),
        ],
    )
    def test_dead_queries_spare_the_gradients_of_live_keys(
        self,
        name: str,
        transform: Transform,
        is_legal: bool,  # noqa: FBT001
    ) -> None:
        """A dead query that the kernel cannot know of holds nothing that 0 times it would keep."""
        case = case_of(name, transform, judged="token_gradients")

        assert (illegal(CONTEXT_SIGNATURES[name], case) == "") is is_legal

    def test_a_mask_that_is_added_meets_no_overflow(self) -> None:
        """Infinite scores of dead keys, less infinity, are NaN in a healthy kernel of float16."""
        large = PadSlots(fill="large", contexts_only=True)
        found = {
            (name, dtype): illegal(CONTEXT_SIGNATURES[name], case_of(name, large, dtype=dtype))
            for name in ("additive", "causal_mask")
            for dtype in ("float32", "float16")
        }

        assert [key for key, reason in found.items() if reason] == [("additive", "float16")]

    def test_rows_of_contexts_belong_to_contexts(self) -> None:
        """A signature without contexts has no rows to pack, and no contexts to pad alone."""
        signature = parse_signature("x[T,H] -> y[T,H]")
        ones = {"x": Recipe(kind="ones")}
        case = Case(dtype="float32", dims={"H": 2}, sequences=EQUAL, data=ones)
        for transform, reason in (
            (PackRows(), "no rows of queries and contexts"),
            (PadSlots(contexts_only=True), "no contexts"),
        ):
            data = (transform_to_data(transform),)
            assert reason in illegal(signature, attrs.evolve(case, transforms=data))

    @pytest.mark.parametrize("name", ["causal_mask", "full", "offsets"])
    def test_scores_are_bounded_before_anything_is_made(self, name: str) -> None:
        """A case whose pairs of queries and contexts would exhaust memory is refused."""
        long = (LogicalSequence(id=0, length=1 << 18),)

        assert "elements, more than" in illegal(
            CONTEXT_SIGNATURES[name], case_of(name, sequences=long)
        )

    def test_parameters_of_attention_are_judged_whole(self) -> None:
        """Gradients of parameters are not cut, packed or joined, nor spoilt by dead queries."""
        signature = parse_signature(
            "q[B,Q,D], k[B,C,D], sink[D], m: causal_mask[B,Q,C] -> o[B,Q,D]"
        )
        reasons = applicability(signature, judged="parameter_gradients")

        assert {kind for kind, reason in reasons.items() if not reason} == {
            "T4.finite",
            "T8",
        }


def test_a_real_length_keeps_its_room() -> None:
    """A sequence of a real length is drawn where the lane has room for it."""
    space = space_of("offsets", lane="gpu-nightly")
    limits = attrs.evolve(space.limits, length_min=4096, watched_max=2, sequences_max=4)
    held = attrs.evolve(space, limits=limits)
    lengths = [draw_case(RandomDraw(seed), held).sequences[0].length for seed in range(20)]

    assert min(lengths) >= 2896
    assert max(lengths) >= 4096
