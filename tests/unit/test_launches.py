"""Layouts become index maps: what each transform moves, and that it moves nothing else."""

import attrs
import pytest
import torch

from biprop.case import Case, Judged
from biprop.data import Recipe
from biprop.errors import CaseError
from biprop.generation.legal import illegal
from biprop.layout import CANONICAL, Layout
from biprop.layout.launches import Launch, canonical_launches, joint_launch, launches
from biprop.layout.physical import PhysicalCall, physical
from biprop.layout.pool import token_pool
from biprop.sequence import LogicalSequence
from biprop.signature import Signature, parse_backward, parse_signature
from biprop.transforms import (
    TRANSFORMS,
    AddDeadRows,
    AddNeighbours,
    GatherActive,
    MoveStorage,
    PackRows,
    PadSlots,
    PermuteRows,
    PlaceWatched,
    ReplaceNeighbours,
    Shards,
    SplitBatch,
    Transform,
    UseForm,
    apply_all,
    transform_to_data,
)
from biprop.transforms.effect import changed_classes

TOKEN_WISE = parse_signature("x[T,H], weight[H] -> y[T,H]")
WITH_OFFSETS = parse_signature("x[T,H], offsets: offsets[B+1] -> y[T,H]")
WITH_ORDER = parse_signature("x[T,H], offsets: offsets[B+1], order: order[T] -> y[T,H]")
WITH_MASK = parse_signature("x[B,S,H], mask: mask[B,S] -> y[B,S,H]")
WITH_LENGTHS = parse_signature("x[B,S,H], lengths: lengths[B] -> y[B,S,H]")
BLIND = parse_signature("x[B,S,H] -> y[B,S,H]")
CONTEXTS = parse_signature("q[B,Q,H], k[B,C,H], m: causal_mask[B,Q,C] -> y[B,Q,H]")

SEQUENCES = (
    LogicalSequence(id=3, length=3, prompt_length=1),
    LogicalSequence(id=7, length=2, position_start=5),
)


def case_of(
    *transforms: Transform,
    sequences: tuple[LogicalSequence, ...] = SEQUENCES,
    judged: Judged = "outputs",
    shared_prefix: int = 0,
) -> Case:
    """Return a case of two sequences, one of them with a prompt."""
    return Case(
        dtype="float32",
        dims={"H": 4},
        sequences=sequences,
        judged=judged,
        shared_prefix=shared_prefix,
        transforms=tuple(transform_to_data(transform) for transform in transforms),
    )


def launched(
    signature: Signature,
    *transforms: Transform,
    judged: Judged = "outputs",
    backward_signature: Signature | None = None,
) -> tuple[Launch, ...]:
    """Return the launches of a composition."""
    case = case_of(judged=judged)
    layout = apply_all(transforms)
    pool = token_pool(case, layout)
    return launches(signature, pool, case, layout, backward_signature=backward_signature)


def slots(found: tuple[Launch, ...]) -> list[object]:
    """Return the map of each launch."""
    return [launch.slots.tolist() for launch in found]


class TestTokenPool:
    """The tokens of a case."""

    def test_watched_tokens_come_first(self) -> None:
        """The pool without neighbours is a prefix of the pool with them."""
        case = case_of()
        alone = token_pool(case, CANONICAL)
        beside = token_pool(case, apply_all([AddNeighbours(count=4)]))

        count = alone.watched_token_count
        assert beside.watched_token_count == count == 5
        for name in ("sequence_id", "token", "position", "active", "compared"):
            assert getattr(beside, name)[:count].tolist() == getattr(alone, name).tolist()

    def test_positions_start_where_the_sequence_says(self) -> None:
        """A token's position is its index plus the start of its sequence."""
        assert token_pool(case_of(), CANONICAL).position.tolist() == [0, 1, 2, 5, 6]

    def test_prompt_tokens_are_not_compared(self) -> None:
        """Compared are the watched tokens past the prompt, in logical order."""
        pool = token_pool(case_of(), apply_all([AddNeighbours(count=1)]))

        assert pool.compared.tolist() == [1, 2, 3, 4]
        assert pool.rank[:5].tolist() == [-1, 0, 1, 2, 3]

    def test_neighbours_repeat_the_watched_lengths(self) -> None:
        """Without T3, neighbour j is as long as watched sequence j, in turn."""
        pool = token_pool(case_of(), apply_all([AddNeighbours(count=3)]))

        assert [sequence.length for sequence in pool.sequences[2:]] == [3, 2, 3]
        assert [sequence.id for sequence in pool.sequences[2:]] == [1024, 1025, 1026]

    def test_spread_changes_no_other_neighbour(self) -> None:
        """A neighbour's length depends on its own id and the seed, not on how many there are."""
        few = token_pool(
            case_of(), apply_all([AddNeighbours(count=3), ReplaceNeighbours(spread=9)])
        )
        many = token_pool(
            case_of(), apply_all([AddNeighbours(count=8), ReplaceNeighbours(spread=9)])
        )

        assert many.sequences[: len(few.sequences)] == few.sequences
        assert len({sequence.length for sequence in many.sequences[2:]}) > 2

    def test_a_shared_prefix_takes_the_first_sequences_values(self) -> None:
        """Tokens of the shared prefix are keyed by the first sequence, the others by their own."""
        pool = token_pool(case_of(shared_prefix=1), apply_all([AddNeighbours(count=1)]))

        assert pool.tokens.sequence_id.tolist() == [3, 3, 3, 3, 7, 3, 1024, 1024]
        assert pool.tokens.length.tolist() == [3, 3, 3, 3, 2, 3, 3, 3]
        assert pool.sequence_id.tolist() == [3, 3, 3, 7, 7, 1024, 1024, 1024]

    def test_gradients_of_parameters_have_no_neighbours(self) -> None:
        """Their set of sequences is complete."""
        pool = token_pool(
            case_of(judged="parameter_gradients"), apply_all([AddNeighbours(count=3)])
        )

        assert len(pool.sequences) == 2


class TestCanonical:
    """The canonical configuration."""

    def test_each_sequence_runs_alone(self) -> None:
        """One launch a watched sequence, prompt included, neighbours or not."""
        case = case_of(AddNeighbours(count=2))
        pool = token_pool(case, apply_all([AddNeighbours(count=2)]))

        assert slots(canonical_launches(TOKEN_WISE, pool, case)) == [[0, 1, 2], [3, 4]]
        assert slots(canonical_launches(WITH_MASK, pool, case)) == [[[0, 1, 2]], [[3, 4]]]

    def test_gradients_of_parameters_run_together(self) -> None:
        """All sequences in logical order in one launch, one row a sequence."""
        case = case_of(judged="parameter_gradients")
        pool = token_pool(case, CANONICAL)

        assert slots(canonical_launches(TOKEN_WISE, pool, case)) == [[0, 1, 2, 3, 4]]
        assert slots(canonical_launches(WITH_MASK, pool, case)) == [[[0, 1, 2], [3, 4, -1]]]

    def test_rows_that_cannot_be_padded_are_not_joined(self) -> None:
        """Ragged rows of a signature without mask or lengths have no joint launch."""
        pool = token_pool(case_of(), CANONICAL)

        assert joint_launch(BLIND, pool) is None
        assert joint_launch(WITH_MASK, pool) is not None


class TestTokenWise:
    """Signatures over T alone."""

    def test_alone_unless_together(self) -> None:
        """Without T1 every watched sequence has launches of its own, padded and cut each."""
        assert slots(launched(TOKEN_WISE)) == [[0, 1, 2], [3, 4]]
        assert slots(launched(TOKEN_WISE, PadSlots(amount=1))) == [[0, 1, 2, -1], [3, 4, -1]]
        assert slots(launched(TOKEN_WISE, SplitBatch(cuts=(2,)))) == [[0, 1], [2], [3, 4]]

    def test_order_follows_place_and_permutation(self) -> None:
        """`before` puts neighbours first; a permutation moves whole sequences."""
        population = AddNeighbours(count=2)

        assert slots(launched(TOKEN_WISE, population, PlaceWatched(before=1))) == [
            [5, 6, 7, 0, 1, 2, 3, 4, 8, 9]
        ]
        permuted = [
            slots(launched(TOKEN_WISE, population, PermuteRows(seed=s))) for s in (1, 2, 3, 4)
        ]
        assert len({str(found) for found in permuted}) > 1
        assert all(sorted(found[0]) == list(range(10)) for found in permuted)  # type: ignore[call-overload]  # nested lists

    @pytest.mark.parametrize(
        ("side", "expected"),
        [("left", [-1, -1, 0, 1, 2, 3, 4]), ("right", [0, 1, 2, 3, 4, -1, -1])],
    )
    def test_dead_slots_lie_at_one_end(self, side: str, expected: list[int]) -> None:
        """PadSlots adds dead slots before or after all tokens."""
        padding = PadSlots(side=side, amount=2)  # type: ignore[arg-type]  # parametrised text

        assert slots(launched(TOKEN_WISE, AddNeighbours(), padding)) == [expected]

    def test_cuts_count_slots(self) -> None:
        """A cut may lie inside of a sequence; past the end it is without effect."""
        found = launched(TOKEN_WISE, AddNeighbours(), SplitBatch(cuts=(1, 4, 99)))

        assert slots(found) == [[0], [1, 2, 3], [4]]

    def test_launches_without_live_slots_are_not_made(self) -> None:
        """A cut between the tokens and their padding leaves no launch of dead slots only."""
        found = launched(TOKEN_WISE, AddNeighbours(), PadSlots(amount=2), SplitBatch(cuts=(5,)))

        assert slots(found) == [[0, 1, 2, 3, 4]]

    def test_only_active_tokens_are_gathered(self) -> None:
        """GatherActive leaves prompt tokens out, and scatters if it is told to."""
        assert slots(launched(TOKEN_WISE, AddNeighbours(), GatherActive())) == [[1, 2, 3, 4]]
        scattered = [
            slots(launched(TOKEN_WISE, AddNeighbours(), GatherActive(scatter=s)))[0]
            for s in range(1, 5)
        ]
        assert all(sorted(found) == [1, 2, 3, 4] for found in scattered)  # type: ignore[call-overload]  # lists
        assert any(found != [1, 2, 3, 4] for found in scattered)

    def test_dead_rows_are_refused(self) -> None:
        """Independent tokens have no rows: their dead slots are PadSlots'."""
        with pytest.raises(CaseError, match="AddDeadRows needs rows or segments"):
            launched(TOKEN_WISE, AddDeadRows())


class TestSequenceWisePacked:
    """Packed signatures that are told where sequences end."""

    def test_cuts_count_sequences(self) -> None:
        """A sequence is never cut."""
        found = launched(WITH_OFFSETS, AddNeighbours(count=1), SplitBatch(cuts=(1,)))

        assert slots(found) == [[0, 1, 2], [3, 4, 5, 6, 7]]
        assert [launch.lengths for launch in found] == [(3,), (2, 3)]

    def test_dead_rows_are_empty_segments(self) -> None:
        """They come last and have no slot."""
        (found,) = launched(WITH_OFFSETS, AddNeighbours(), AddDeadRows(count=2), PadSlots(amount=1))

        assert found.slots.tolist() == [0, 1, 2, 3, 4, -1]
        assert found.lengths == (3, 2, 0, 0)
        assert found.maps["B"].tolist() == [2, 4, -2, -2]

    def test_the_first_segment_starts_at_slot_zero(self) -> None:
        """Dead slots before it need an order that tells where it starts."""
        left = PadSlots(side="left", amount=1)

        with pytest.raises(CaseError, match="PadSlots side=left moves the first segment"):
            launched(WITH_OFFSETS, left)
        assert slots(launched(WITH_ORDER, AddNeighbours(), left)) == [[-1, 0, 1, 2, 3, 4]]

    def test_tokens_stay_with_their_sequence(self) -> None:
        """A launch of whole sequences cannot gather some tokens of them."""
        with pytest.raises(CaseError, match="GatherActive needs a signature whose tokens"):
            launched(WITH_OFFSETS, GatherActive())

    def test_order_names_the_slots_in_logical_order(self) -> None:
        """Whatever the permutation, the i-th entry is the slot of the i-th logical token."""
        for seed in range(1, 6):
            (found,) = launched(WITH_ORDER, AddNeighbours(count=2), PermuteRows(seed=seed))

            assert found.slots[found.order].tolist() == list(range(10))
            assert [found.sequences[row] for row in found.logical_rows] == [0, 1, 2, 3]


class TestPadded:
    """Signatures over B,S."""

    @pytest.mark.parametrize(
        ("side", "rows"),
        [("right", [[0, 1, 2, -1], [3, 4, -1, -1]]), ("left", [[-1, 0, 1, 2], [-1, -1, 3, 4]])],
    )
    def test_rows_are_as_wide_as_the_longest_and_the_padding(
        self, side: str, rows: list[list[int]]
    ) -> None:
        """Ragged rows and added slots are dead on the same side."""
        padding = PadSlots(side=side, amount=1)  # type: ignore[arg-type]  # parametrised text

        assert slots(launched(WITH_MASK, AddNeighbours(), padding)) == [rows]

    def test_dead_rows_come_last(self) -> None:
        """Their slots are told apart from dead slots of live rows."""
        (found,) = launched(WITH_LENGTHS, AddNeighbours(), AddDeadRows(count=1))

        assert found.slots.tolist() == [[0, 1, 2], [3, 4, -1], [-2, -2, -2]]
        assert found.lengths == (3, 2, 0)

    def test_cuts_spread_rows_over_launches(self) -> None:
        """Each launch is as wide as its own longest row."""
        found = launched(WITH_MASK, AddNeighbours(), SplitBatch(cuts=(1,)))

        assert slots(found) == [[[0, 1, 2]], [[3, 4]]]


class TestParameterGradients:
    """The same complete set of sequences, differently launched."""

    BACKWARD = parse_backward(
        "dy[T,H], x[T,H], offsets: offsets[B+1], order: order[T], dweight!: float32[H] -> dx[T,H]",
        TOKEN_WISE,
    )

    def test_micro_batches_keep_the_logical_order(self) -> None:
        """Cuts come first; a permutation moves sequences inside of a launch only."""
        for seed in range(1, 6):
            found = launched(
                TOKEN_WISE,
                PermuteRows(seed=seed),
                SplitBatch(cuts=(1,)),
                judged="parameter_gradients",
                backward_signature=self.BACKWARD,
            )

            assert slots(found) == [[0, 1, 2], [3, 4]]

    def test_a_backward_with_offsets_is_cut_between_sequences(self) -> None:
        """Although the forward could be cut anywhere."""
        found = launched(
            TOKEN_WISE,
            SplitBatch(cuts=(1,)),
            PadSlots(amount=1),
            judged="parameter_gradients",
            backward_signature=self.BACKWARD,
        )

        assert slots(found) == [[0, 1, 2, -1], [3, 4, -1]]
        assert [launch.lengths for launch in found] == [(3,), (2,)]

    def test_inactive_tokens_may_stay_out(self) -> None:
        """GatherActive launches the same set without the tokens whose upstream gradient is zero."""
        (found,) = launched(
            TOKEN_WISE,
            GatherActive(),
            judged="parameter_gradients",
            backward_signature=self.BACKWARD,
        )

        assert found.slots.tolist() == [1, 2, 3, 4]
        assert found.lengths == (2, 2)


# Each transform on a base where it has an effect, with the parts of the call that it may change.
BASE: tuple[Transform, ...] = (AddNeighbours(count=2), PadSlots(amount=1, fill="one"))
ISOLATION = (
    (WITH_MASK, AddNeighbours(count=3), {"launches", "segments"}),
    (WITH_MASK, PlaceWatched(before=1), {"launches", "segments"}),
    (WITH_MASK, PermuteRows(seed=3), {"launches", "segments"}),
    (WITH_MASK, ReplaceNeighbours(length=2, loudness=0), {"launches", "segments"}),
    (WITH_MASK, ReplaceNeighbours(loudness=4), {"loudness"}),
    (WITH_MASK, PadSlots(amount=1, fill="nan"), {"fill"}),
    (WITH_MASK, PadSlots(amount=1, side="left", fill="one"), {"launches"}),
    (WITH_MASK, PadSlots(amount=2, fill="one"), {"launches"}),
    (
        WITH_MASK,
        AddDeadRows(count=1, fill="large"),
        {"launches", "segments", "dead_rows_fill"},
    ),
    (WITH_MASK, SplitBatch(cuts=(2,)), {"launches", "segments"}),
    (TOKEN_WISE, GatherActive(scatter=3), {"launches"}),
    (CONTEXTS, PackRows(per_row=2), {"launches", "segments"}),
    (CONTEXTS, PadSlots(amount=1, contexts_only=True, fill="one"), {"launches"}),
    (CONTEXTS, SplitBatch(cuts=(1, 2)), {"launches", "segments"}),
    (WITH_MASK, MoveStorage(offset=1), {"placements"}),
    (WITH_MASK, MoveStorage(dirty=True), {"dirty"}),
    (WITH_MASK, UseForm(form="padded"), {"form"}),
    (TOKEN_WISE, Shards(count=4), {"shards"}),
)


class TestIsolation:
    """A transform changes what is its own."""

    @pytest.mark.parametrize("kind", TRANSFORMS, ids=lambda kind: kind.__name__)
    def test_a_transform_sets_its_own_fields_only(self, kind: type[Transform]) -> None:
        """Every field of the layout that a transform does not name stays as it was."""
        before = _flat(apply_all([*BASE, MoveStorage(gap=2), SplitBatch(cuts=(3,))]))
        transform = _unlike_the_default(kind)
        after = _flat(
            transform.apply(apply_all([*BASE, MoveStorage(gap=2), SplitBatch(cuts=(3,))]))
        )

        changed = {path for path, value in after.items() if value != before[path]}
        allowed = {
            path
            for path in after
            for field in kind.fields
            if path == field or path.startswith(f"{field}.")
        }
        assert changed
        assert changed <= allowed

    @pytest.mark.parametrize(
        ("signature", "transform", "parts"),
        ISOLATION,
        ids=[f"{type(item).__name__}-{at}" for at, (_, item, _) in enumerate(ISOLATION)],
    )
    def test_a_transform_changes_its_own_part_of_the_call_only(
        self, signature: Signature, transform: Transform, parts: set[str]
    ) -> None:
        """Every other part of the physical call is the same value."""
        before = _call(signature, *BASE)
        after = _call(signature, *BASE, transform)

        changed = {
            field.name
            for field in attrs.fields(PhysicalCall)
            if getattr(before, field.name) != getattr(after, field.name)
        }
        assert changed
        assert changed <= parts

    def test_every_transform_has_an_isolation_case(self) -> None:
        """A transform that is added must be added here."""
        assert {type(transform) for _, transform, _ in ISOLATION} == set(TRANSFORMS)


class TestChangedClasses:
    """Evidence, class by class."""

    def test_a_full_composition_changes_in_every_class(self) -> None:
        """Each class of a composition that takes effect is said to."""
        case = case_of(
            AddNeighbours(count=2),
            PlaceWatched(before=1),
            ReplaceNeighbours(length=5),
            PadSlots(fill="nan"),
            AddDeadRows(fill="large"),
            SplitBatch(cuts=(2,)),
            MoveStorage(offset=1),
        )

        assert changed_classes(WITH_MASK, case) == dict.fromkeys(
            ("T1", "T2", "T3", "T4.nonfinite", "T4.finite", "T5", "T8"), True
        )

    @pytest.mark.parametrize(
        ("transforms", "name"),
        [
            ((AddNeighbours(count=0),), "T1"),
            ((PlaceWatched(before=2),), "T2"),
            ((PermuteRows(seed=1),), "T2"),
            ((ReplaceNeighbours(length=5, loudness=2),), "T3"),
            ((PadSlots(amount=0, fill="nan"),), "T4.nonfinite"),
            ((PadSlots(amount=0),), "T4.finite"),
            ((SplitBatch(cuts=(3,)),), "T5"),
            ((GatherActive(),), "T6"),
            ((MoveStorage(),), "T8"),
            ((MoveStorage(parameters=True),), "T8"),
            ((MoveStorage(offset=64),), "T8"),
        ],
    )
    def test_a_transform_without_effect_is_vacuous(
        self, transforms: tuple[Transform, ...], name: str
    ) -> None:
        """One sequence alone, nothing to pad, cut or gather: the call is the canonical one."""
        case = case_of(*transforms, sequences=(LogicalSequence(id=0, length=3),))

        assert changed_classes(TOKEN_WISE, case) == {name: False}

    def test_population_without_effect_beside_cuts(self) -> None:
        """Sequences that share a launch only to be cut apart again are alone."""
        case = case_of(AddNeighbours(), SplitBatch(cuts=(1,)))

        assert changed_classes(WITH_OFFSETS, case) == {"T1": False, "T5": True}

    def test_dirty_outputs_count_only_where_poison_reaches(self) -> None:
        """A target that is never handed memory without values is not changed by what that holds."""
        case = case_of(MoveStorage(dirty=True))

        assert changed_classes(TOKEN_WISE, case) == {"T8": True}
        assert changed_classes(TOKEN_WISE, case, poison_reached=False) == {"T8": False}

    def test_offsets_keep_the_alignment(self) -> None:
        """With align=16 one float is rounded up to four; nothing is left of it with align=256."""
        case = case_of(MoveStorage(offset=1))
        (name, placement), *_ = physical(
            TOKEN_WISE, case, apply_all([MoveStorage(offset=1)]), align=16
        ).placements

        assert (name, placement.offset) == ("x", 4)
        assert changed_classes(TOKEN_WISE, case, align=16) == {"T8": True}
        assert changed_classes(TOKEN_WISE, case, align=256) == {"T8": False}

    def test_fills_count_only_where_slots_are_dead(self) -> None:
        """A dead row's fill is no evidence without dead rows, nor a slot's without dead slots."""
        ragged = case_of(AddNeighbours(), PadSlots(amount=0, fill="nan"))
        equal = case_of(
            AddNeighbours(),
            PadSlots(amount=0, fill="nan"),
            sequences=(LogicalSequence(id=0, length=2), LogicalSequence(id=1, length=2)),
        )

        assert changed_classes(WITH_MASK, ragged)["T4.nonfinite"]
        assert not changed_classes(WITH_MASK, equal)["T4.nonfinite"]


SIGNATURES = (TOKEN_WISE, WITH_OFFSETS, WITH_ORDER, WITH_MASK, WITH_LENGTHS, BLIND)
COMPOSITIONS: tuple[tuple[Transform, ...], ...] = (
    (PadSlots(),),
    (PadSlots(side="left"),),
    (AddDeadRows(),),
    (SplitBatch(),),
    (GatherActive(),),
    (GatherActive(scatter=1),),
    (AddNeighbours(count=2), PlaceWatched(), PermuteRows(), ReplaceNeighbours(length=2)),
)


class TestLegality:
    """What may be laid out, and what may be run."""

    # DESIGN's table, as (signature, composition) that is refused.
    REFUSED = frozenset(
        {
            *((TOKEN_WISE.text, at) for at in (2,)),
            *((WITH_OFFSETS.text, at) for at in (1, 4, 5)),
            *((WITH_ORDER.text, at) for at in (1, 4, 5)),
            *((WITH_MASK.text, at) for at in (4, 5)),
            *((WITH_LENGTHS.text, at) for at in (1, 4, 5)),
            *((BLIND.text, at) for at in (0, 1, 4, 5)),
        }
    )

    @pytest.mark.parametrize("signature", SIGNATURES, ids=[item.text for item in SIGNATURES])
    @pytest.mark.parametrize("at", range(len(COMPOSITIONS)))
    def test_what_is_legal_can_be_laid_out(self, signature: Signature, at: int) -> None:
        """A composition that no layout can carry out is refused before it is run."""
        case = attrs.evolve(
            case_of(
                *COMPOSITIONS[at],
                sequences=(LogicalSequence(id=0, length=2), LogicalSequence(id=1, length=2)),
            ),
            data={"x": Recipe(kind="normal")},
            policy_state={item.name: Recipe(kind="normal") for item in signature.parameters},
        )
        refused = illegal(signature, case)

        assert bool(refused) == ((signature.text, at) in self.REFUSED), refused
        if not refused:
            assert changed_classes(signature, case)


def _call(signature: Signature, *transforms: Transform) -> PhysicalCall:
    return physical(signature, case_of(), apply_all(transforms))


def _flat(layout: Layout) -> dict[str, object]:
    found: dict[str, object] = {}
    for field in attrs.fields(Layout):
        value = getattr(layout, field.name)
        if attrs.has(type(value)):
            found |= {f"{field.name}.{name}": item for name, item in attrs.asdict(value).items()}
        else:
            found[field.name] = value
    return found


def _unlike_the_default(kind: type[Transform]) -> Transform:
    """Return a transform all of whose fields differ from what the base has."""
    values: dict[str, object] = {
        "side": "left",
        "fill": "-inf",
        "cuts": (2, 5),
        "transposed": True,
        "parameters": True,
        "dirty": True,
        "form": "other",
    }
    if kind is Shards:
        values["count"] = 8
    names = [field.name for field in attrs.fields(kind)]  # type: ignore[arg-type]  # all are attrs records
    return kind(**{name: values.get(name, 9) for name in names})


def test_maps_are_made_of_whole_numbers_on_the_cpu() -> None:
    """Every map is int64 and lies on the CPU, whatever the device of the launches."""
    for signature in (TOKEN_WISE, WITH_OFFSETS, WITH_MASK):
        for launch in launched(signature, AddNeighbours(count=2), PadSlots(amount=1)):
            assert {found.dtype for found in launch.maps.values()} == {torch.int64}
            assert {found.device.type for found in launch.maps.values()} == {"cpu"}
