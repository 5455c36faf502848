"""Minimising: known minima of simulated defects, the declared cost, the budget and the proof."""

import random
from collections.abc import Callable
from itertools import pairwise

import attrs
import numpy as np
import pytest

from biprop.case import Case, TransformData, with_value
from biprop.data.recipe import Pairing, Point, Recipe
from biprop.generation.legal import illegal
from biprop.judgment import BitDifference, Cause, Mismatch, Outcome, Verdict
from biprop.layout import Layout
from biprop.minimize import Minimised, cost, minimise
from biprop.minimize.edits import find
from biprop.minimize.integers import descend, landmarks_with
from biprop.sequence import LogicalSequence
from biprop.signature import Signature, parse_signature
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    GatherActive,
    MoveStorage,
    PadSlots,
    PermuteRows,
    PlaceWatched,
    ReplaceNeighbours,
    SplitBatch,
    Transform,
    apply_all,
    transform_to_data,
    transforms_of,
)

ROWS = parse_signature("x[T,H] -> y[T,H]")
LINEAR = parse_signature("x[T,K], weight[N,K] -> y[T,N]")
PADDED = parse_signature("x[B,S,H], live: mask[B,S] -> y[B,S,H]")
SEEDS = range(5)
HOLDS = Outcome(verdict=Verdict.HOLDS)


@attrs.frozen(kw_only=True)
class Facts:
    """What a simulated kernel sees of the first watched sequence.

    Attributes:
        alone: Rows of its canonical launch (packed), or its width (padded).
        launches: Rows and width of each transformed launch that holds it.
        place: Its first row there.
        total: Rows of all launches together.
        layout: What the transforms ask for.
    """

    alone: int
    launches: tuple[tuple[int, int], ...]
    place: int
    total: int
    layout: Layout

    @property
    def rows(self) -> int:
        """Rows of the largest transformed launch."""
        return max(rows for rows, _ in self.launches)

    @property
    def width(self) -> int:
        """Slots of a row of the widest transformed launch."""
        return max(width for _, width in self.launches)


def facts(signature: Signature, case: Case) -> Facts:
    """Count rows and slots as DESIGN defines them, without tensors."""
    layout = apply_all(transforms_of(case))
    neighbours, padding = layout.neighbours, layout.padding
    watched = [sequence.length for sequence in case.sequences]
    lengths = [neighbours.length or watched[j % len(watched)] for j in range(neighbours.count)]
    before = min(layout.before, neighbours.count)
    group = lengths[:before] + watched + lengths[before:] if neighbours.together else watched[:1]
    if not neighbours.together:
        before = 0
    if signature.layout == "padded":
        whole = (len(group) + padding.dead_rows, max(group) + padding.amount)
        return Facts(
            alone=watched[0], launches=(whole,), place=before, total=whole[0], layout=layout
        )
    total = sum(group) + padding.amount
    place = sum(lengths[:before]) + (padding.amount if padding.side == "left" else 0)
    edges = [0, *(cut for cut in layout.cuts if cut < total), total]
    launches = tuple(
        (high - low, 1)
        for low, high in pairwise(edges)
        if low < place + watched[0] and high > place
    )
    return Facts(alone=watched[0], launches=launches, place=place, total=total, layout=layout)


Defect = Callable[[Case, Facts], bool]


def outcome_of(case: Case, *, finite: bool = True) -> Outcome:
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
        output="y",
        dtype="float32",
        elements=1,
        elements_compared=1,
        tokens=1,
        tokens_compared=1,
        first=first,
    )
    cause = Cause(verdict=Verdict.DRIFTS, direction="forward", output="y", finite=finite)
    return Outcome(verdict=Verdict.DRIFTS, cause=cause, mismatches=(mismatch,))


@attrs.define(eq=False)
class Kernel:
    """A simulated kernel: judges cases, and counts them."""

    signature: Signature
    defect: Defect
    finite: bool = True
    judged: int = 0

    def judge(self, case: Case) -> Outcome:
        """Return a drift where the defect shows."""
        self.judged += 1
        shows = self.defect(case, facts(self.signature, case))
        return outcome_of(case, finite=self.finite) if shows else HOLDS

    def legal(self, case: Case) -> str:
        """Return why a case is illegal."""
        return illegal(self.signature, case)

    def failing_case(self, seed: int) -> Case:
        """Draw cases until the defect shows."""
        draw = random.Random(seed)
        for _ in range(20_000):
            case = _drawn(draw, self.signature)
            if not self.legal(case) and self.defect(case, facts(self.signature, case)):
                return case
        raise AssertionError("the defect never showed")

    def minimise(self, seed: int, **options: int) -> Minimised:
        """Minimise a failing case."""
        case = self.failing_case(seed)
        return minimise(
            case,
            self.judge(case),
            judge=self.judge,
            signature=self.signature,
            legal=self.legal,
            budget_runs=options.get("budget_runs", 4000),
        )


def _drawn(draw: random.Random, signature: Signature) -> Case:
    def size(high: int) -> int:
        value = draw.choice(
            (draw.randint(1, 8), int(2 ** draw.uniform(0, 10)), 2 ** draw.randint(0, 10))
        )
        return min(high, max(1, value + draw.choice((-1, 0, 0, 1))))

    transforms: list[Transform] = [AddNeighbours(count=draw.choice((0, size(400))))]
    others: list[Transform] = [
        PlaceWatched(before=size(40)),
        PermuteRows(seed=draw.randint(1, 2**31 - 1)),
        ReplaceNeighbours(length=size(40), loudness=draw.randint(0, 16)),
        PadSlots(
            side=draw.choice(("left", "right")),
            amount=size(300),
            fill=draw.choice(("zero", "large", "nan", "inf")),
        ),
        MoveStorage(offset=draw.randint(0, 5), gap=draw.randint(0, 8), dirty=True),
    ]
    if signature.layout == "packed":
        cuts = sorted({size(200) for _ in range(draw.randint(1, 3))})
        others += [SplitBatch(cuts=tuple(cuts)), GatherActive(scatter=draw.randint(0, 99))]
    else:
        others += [AddDeadRows(count=size(9)), SplitBatch(cuts=(size(9),))]
    transforms += [item for item in others if draw.random() < 0.4]
    if draw.random() < 0.2:
        transforms = transforms[1:]
    count = draw.choice((1, 2, 3, 8))
    ids = draw.sample(range(1000), count)
    recipe = Recipe(
        kind="mix",
        rows=(
            Recipe(kind="pairs", pairing={"@": Pairing(role="own")}),
            Recipe(kind="normal", exponent=2),
        ),
    )
    return Case(
        dtype="float32",
        dims={name: size(1024) for name in signature.free_dims},
        sequences=tuple(
            LogicalSequence(id=key, length=size(40), position_start=draw.randint(0, 9))
            for key in ids
        ),
        seed=draw.getrandbits(32),
        data={item.name: recipe for item in signature.token_arguments},
        policy_state={item.name: Recipe(kind="normal") for item in signature.parameters},
        transforms=tuple(
            transform_to_data(item) for item in draw.sample(transforms, len(transforms))
        ),
    )


def _rows_differ(test: Callable[[int], bool]) -> Defect:
    return lambda _, seen: any(test(rows) != test(seen.alone) for rows, _ in seen.launches)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows", [17, 257])
def test_threshold_of_rows_is_found_exactly(rows: int, seed: int) -> None:
    """From `rows` rows on: one watched token and neighbours up to the threshold, nothing else."""
    found = Kernel(ROWS, _rows_differ(lambda count: count >= rows)).minimise(seed)

    assert transforms_of(found.case) == (AddNeighbours(count=rows - 1),)
    assert [item.length for item in found.case.sequences] == [1]
    assert found.case.dims == {"H": 1}
    assert found.case.seed == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_place_of_a_row_is_found_exactly(seed: int) -> None:
    """Row 5 and later: five rows before the watched one."""

    def defect(_: Case, seen: Facts) -> bool:
        return seen.place >= 5 and not seen.layout.cuts

    found = Kernel(ROWS, defect).minimise(seed)

    assert cost(ROWS, found.case).slots == 6
    assert len(found.case.transforms) == 2
    assert find(found.case, PlaceWatched) == PlaceWatched(before=5)


@pytest.mark.parametrize("seed", SEEDS)
def test_base_pointer_is_found_exactly(seed: int) -> None:
    """A moved base pointer: one token, one transform, the smallest offset."""
    found = Kernel(ROWS, lambda _, seen: seen.layout.storage.offset % 4 != 0).minimise(seed)

    assert transforms_of(found.case) == (MoveStorage(offset=1),)
    assert cost(ROWS, found.case).slots == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_residue_is_no_trap(seed: int) -> None:
    """H of at least 257 and a multiple of 16: 272, where halving alone stops at other multiples."""

    def defect(case: Case, seen: Facts) -> bool:
        wide = case.dims["H"] >= 257 and case.dims["H"] % 16 == 0
        return wide and seen.rows >= 2 > seen.alone

    found = Kernel(ROWS, defect).minimise(seed)

    assert found.case.dims == {"H": 272}
    assert transforms_of(found.case) == (AddNeighbours(count=1),)
    claim = next(claim for claim in found.proof.needed if claim.path == ("dims", "H"))
    assert claim.value == 272
    assert claim.others == (256, 271)


@pytest.mark.parametrize("seed", SEEDS)
def test_product_of_sizes_has_one_minimum(seed: int) -> None:
    """T * K * N of at least 512: two rows, the contracted K at 256 and N at 1."""

    def defect(case: Case, seen: Facts) -> bool:
        size = case.dims["K"] * case.dims["N"]
        return seen.rows * size >= 512 > seen.alone * size

    found = Kernel(LINEAR, defect).minimise(seed)

    assert transforms_of(found.case) == (AddNeighbours(count=1),)
    assert found.case.dims == {"K": 256, "N": 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_longest_row_becomes_padding(seed: int) -> None:
    """A width of 9 and more: eight tokens and one dead slot, cheaper than a long neighbour."""

    def defect(_: Case, seen: Facts) -> bool:
        return seen.width >= 9 > seen.alone

    found = Kernel(PADDED, defect).minimise(seed)

    assert transforms_of(found.case) == (PadSlots(amount=1, fill="zero", side="right"),)
    assert cost(PADDED, found.case).slots == 9
    assert cost(PADDED, found.case).dead_slots == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_nonfinite_fill_is_kept(seed: int) -> None:
    """NaN in a dead slot: one token, one dead slot, and the fill that the cause needs."""

    def defect(_: Case, seen: Facts) -> bool:
        padding = seen.layout.padding
        return padding.amount > 0 and padding.fill == "nan"

    found = Kernel(PADDED, defect, finite=False).minimise(seed)

    assert transforms_of(found.case) == (PadSlots(amount=1, fill="nan"),)
    assert cost(PADDED, found.case).slots == 2
    assert found.outcome.cause is not None
    assert found.outcome.cause.transforms == ("T4.nonfinite",)


@pytest.mark.parametrize("seed", SEEDS)
def test_residue_of_rows_is_found_exactly(seed: int) -> None:
    """Three rows modulo eight: three rows."""
    found = Kernel(ROWS, _rows_differ(lambda count: count % 8 == 3)).minimise(seed)

    assert transforms_of(found.case) == (AddNeighbours(count=2),)
    assert [item.length for item in found.case.sequences] == [1]


@pytest.mark.parametrize("seed", SEEDS)
def test_cut_is_kept_where_it_is_the_cause(seed: int) -> None:
    """A second launch after at least 17 rows: 18 rows cut at 17."""

    def defect(_: Case, seen: Facts) -> bool:
        return (
            bool(seen.layout.cuts)
            and seen.place == 0
            and seen.layout.cuts[0] >= 17
            and seen.total > seen.layout.cuts[0]
        )

    found = Kernel(ROWS, defect).minimise(seed)

    assert find(found.case, SplitBatch) == SplitBatch(cuts=(17,))
    assert cost(ROWS, found.case).slots == 18


def _sum(values: np.ndarray, pieces: int) -> np.float32:
    """Sum in float32, in `pieces` contiguous pieces that are added last."""
    total = np.float32(0)
    for piece in np.array_split(values, pieces):
        part = np.float32(0)
        for value in piece:
            part = np.float32(part + value)
        total = np.float32(total + part)
    return total


@pytest.mark.parametrize("seed", SEEDS)
def test_order_of_a_sum_shrinks_to_three_numbers(seed: int) -> None:
    """Split in two from 3 rows on: three rows, K of 4 at most, N of 1, three non-zeros."""

    def defect(case: Case, seen: Facts) -> bool:
        x, width = case.data["x"], case.dims["K"]
        if seen.rows < 3 or seen.alone >= 3:
            return False
        if x.kind != "explicit":
            return x.kind in {"pairs", "mix"} and width >= 4
        values = np.zeros(width, dtype=np.float32)
        for point in x.points:
            if point.at.get("K", 0) < width:
                values[point.at.get("K", slice(None))] = float.fromhex(point.value)
        whole = case.policy_state["weight"].kind == "ones"
        return whole and _sum(values, 1) != _sum(values, 2)

    found = Kernel(LINEAR, defect).minimise(seed)

    assert transforms_of(found.case) == (AddNeighbours(count=2),)
    assert found.case.dims["N"] == 1
    assert found.case.dims["K"] <= 4
    assert len(found.case.data["x"].points) <= 3
    assert found.case.policy_state["weight"] == Recipe(kind="ones")


def test_drawn_values_shrink_to_those_that_matter() -> None:
    """Where no witness shows it, the drawn values are listed and all but two are dropped."""
    drawn = tuple(
        Point(at={"#": 7, "@": 0, "H": index}, value=(index * 0.375 + 3.0).hex())
        for index in range(64)
    )

    def defect(case: Case, _: Facts) -> bool:
        places = {point.at.get("H") for point in case.data["x"].points}
        listed = case.data["x"].kind != "explicit" or {9, 33} <= places
        return listed and case.dims["H"] > 33 and len(case.data["x"].points) != 1

    kernel = Kernel(ROWS, defect)
    case = Case(
        dtype="float32",
        dims={"H": 64},
        sequences=(LogicalSequence(id=7, length=1),),
        data={"x": Recipe(kind="swamp")},
        transforms=(TransformData(name="AddNeighbours", values={"count": 1}),),
    )

    def stays_swamp(candidate: Case) -> str:
        simple = candidate.data["x"].kind not in {"swamp", "explicit"}
        crowd = any(not point.at for point in candidate.data["x"].points)
        return "too simple" if simple or crowd else kernel.legal(candidate)

    found = minimise(
        case,
        kernel.judge(case),
        judge=kernel.judge,
        signature=ROWS,
        legal=stays_swamp,
        nonzeros=lambda _, __, ___: drawn,
    )

    points = found.case.data["x"].points
    assert [point.at["H"] for point in points] == [9, 33]
    assert all(point.value == (1.0).hex() for point in points)
    assert found.case.dims == {"H": 34}


@pytest.mark.parametrize("seed", SEEDS)
def test_result_is_one_minimal_and_its_proof_true(seed: int) -> None:
    """Every claim of the proof, judged again, gives what it says."""
    kernel = Kernel(ROWS, _rows_differ(lambda count: count >= 17))
    found = kernel.minimise(seed)

    assert found.proof.complete
    assert found.proof.needed
    for claims, fails in ((found.proof.needed, False), (found.proof.free, True)):
        for claim in claims:
            for other in claim.others:
                outcome = kernel.judge(with_value(found.case, claim.path, other))
                assert (outcome.cause is not None) == fails


@pytest.mark.parametrize("runs", [0, 1, 7, 40])
def test_budget_is_kept_and_the_best_case_returned(runs: int) -> None:
    """A spent budget ends the search with a case that fails; its proof says it is not complete."""
    kernel = Kernel(ROWS, _rows_differ(lambda count: count >= 17))
    case = kernel.failing_case(3)
    start = kernel.judged

    found = minimise(
        case,
        kernel.judge(case),
        judge=kernel.judge,
        signature=ROWS,
        legal=kernel.legal,
        budget_runs=runs,
    )

    assert found.runs <= runs
    assert kernel.judged <= start + runs + 1
    assert not found.proof.complete
    assert kernel.judge(found.case).cause is not None
    assert cost(ROWS, found.case) <= cost(ROWS, case)


def test_budget_of_seconds_is_kept() -> None:
    """The clock is read before each judgment."""
    kernel = Kernel(ROWS, _rows_differ(lambda count: count >= 17))
    case = kernel.failing_case(3)
    ticks = iter(range(10**9))

    found = minimise(
        case,
        kernel.judge(case),
        judge=kernel.judge,
        signature=ROWS,
        legal=kernel.legal,
        budget_seconds=20,
        clock=lambda: float(next(ticks)),
    )

    assert found.runs <= 20


def test_every_accepted_case_is_legal_and_cheaper() -> None:
    """No illegal case is judged at all."""
    kernel = Kernel(PADDED, lambda _, seen: seen.width >= 9)
    judged: list[Case] = []
    case = kernel.failing_case(1)

    def judge(candidate: Case) -> Outcome:
        judged.append(candidate)
        return kernel.judge(candidate)

    found = minimise(case, kernel.judge(case), judge=judge, signature=PADDED, legal=kernel.legal)

    assert not any(kernel.legal(candidate) for candidate in judged)
    assert cost(PADDED, found.case) < cost(PADDED, case)


def test_another_cause_is_not_taken_for_it() -> None:
    """A smaller case that crashes does not stand for one that drifts."""
    crash = Cause(verdict=Verdict.CRASHES, direction="forward")

    def judge(case: Case) -> Outcome:
        if facts(ROWS, case).rows >= 17:
            return outcome_of(case)
        return Outcome(verdict=Verdict.CRASHES, cause=crash)

    case = Kernel(ROWS, _rows_differ(lambda count: count >= 17)).failing_case(2)
    found = minimise(
        case, judge(case), judge=judge, signature=ROWS, legal=lambda case: illegal(ROWS, case)
    )

    assert found.outcome.verdict is Verdict.DRIFTS
    assert cost(ROWS, found.case).slots == 17


def test_confirmation_that_sees_nothing_does_not_lose_the_finding() -> None:
    """A rare difference that the last judgment misses is reported as it was seen."""
    kernel = Kernel(ROWS, _rows_differ(lambda count: count >= 2))
    case = kernel.failing_case(2)

    found = minimise(
        case,
        kernel.judge(case),
        judge=kernel.judge,
        signature=ROWS,
        legal=kernel.legal,
        confirm=lambda _: HOLDS,
    )

    assert found.outcome.verdict is Verdict.DRIFTS


@pytest.mark.parametrize(
    ("fails", "smallest"),
    [
        (lambda value: value >= 257, 257),
        (lambda value: value >= 257 and value % 16 == 0, 272),
        (lambda value: value >= 600 and value % 128 == 0, 640),
        (lambda value: value >= 1025 and value % 48 == 0, 1056),
        (lambda value: value == 4096, 4096),
    ],
)
def test_whole_numbers_descend_to_the_smallest(fails: Callable[[int], bool], smallest: int) -> None:
    """Thresholds and residues are met exactly."""
    start = next(value for value in (4096, 4080) if fails(value))

    assert descend(fails, value=start, low=1, landmarks=landmarks_with(())) == smallest


def test_mined_constants_are_tried() -> None:
    """A constant of the target's source, and its neighbours, are landmarks."""
    assert {776, 777, 778} <= set(landmarks_with((777,)))


@pytest.mark.parametrize("starts", [1.0, 0.0])
def test_values_that_differ_never_become_signs_of_zeros(starts: float) -> None:
    """Smaller cases differ in the sign of zeros alone: taken where all that differed was a sign."""
    case = next(
        case for case in (_drawn(random.Random(seed), ROWS) for seed in range(99))
        if case.dims["H"] > 3
    )  # fmt: skip

    def judge(candidate: Case) -> Outcome:
        found = outcome_of(candidate)
        error = starts if candidate.dims == case.dims else 0.0
        mismatches = tuple(attrs.evolve(item, max_abs_error=error) for item in found.mismatches)
        return attrs.evolve(found, mismatches=mismatches)

    found = minimise(
        case, judge(case), judge=judge, signature=ROWS, legal=lambda item: illegal(ROWS, item)
    )

    assert (found.case.dims["H"] < case.dims["H"]) == (starts == 0)
