"""Sets: layouts of one case are drawn and judged together, and judged as each would be alone."""

import gc
from collections.abc import Sequence

import attrs
import pytest
import torch
from tests.unit.execution_cases import case_of, kernel_of
from torch import Tensor

from biprop.case import Case, Dtype
from biprop.execution.sets import prepare_set
from biprop.generation import LIMITS, Space, Sweep, illegal_in
from biprop.generation.room import costs, work_max
from biprop.generation.space import Direction
from biprop.judgment import Outcome
from biprop.kernels.planted import PLANTED
from biprop.layout.neighbours import neighbours_of
from biprop.operators import Kernel
from biprop.power.benches import planted_space
from biprop.registry import build_registry
from biprop.relations import JudgeOptions
from biprop.relations.invariance import judge_invariance
from biprop.relations.sets import judge_set
from biprop.signature import parse_signature
from biprop.strategies.seeded import case_of_seed, layouts_of_seed
from biprop.strategies.spaces import space_for
from biprop.supervision.in_process import InProcessJudge
from biprop.transforms import (
    AddNeighbours,
    PadSlots,
    ReplaceNeighbours,
    apply_all,
    class_of,
    transforms_of,
)

SIGNATURES = (
    "x[T,H], weight[H] -> y[T,H]",
    "x[T,K], weight[N,K] -> y[T,N]",
    "x[T,H], cu: offsets[B+1] -> y[T,H]",
    "x[B,S,H], m: mask[B,S] -> y[B,S,H]",
    "q[B,H,Q,D], k[B,H,C,D], v[B,H,C,D], m: causal_mask[B,1,Q,C] -> o[B,H,Q,D]",
    "q[TQ,H,D], k[TC,H,D], a: offsets(Q)[B+1], b: offsets(C)[B+1] -> o[TQ,H,D]",
)
REPEATED = JudgeOptions(repeat_canonical=True)
LAYOUTS = 4
# Each operator and form in one direction and dtype, attention in both directions.
CELLS = [
    pytest.param(kernel, direction, dtype, id=f"{kernel.target}-{direction}-{dtype}")
    for place, kernel in enumerate(build_registry().kernels())
    if kernel.backend == "torch" and kernel.declaration is not None
    for number, direction in enumerate(("forward", "backward"))
    for dtype in (("float32", "bfloat16")[(place // 2 + number) % 2],)
    if place % 2 == number or kernel.target.startswith("attention/")
]


def set_of(space: Space, seed: int, *, count: int = LAYOUTS) -> tuple[Case, ...]:
    """Return the set of a seed, which takes its turn in a sweep."""
    turn = attrs.evolve(space, sweep=Sweep(seed=3, index=seed))
    return layouts_of_seed(seed, turn, case_of_seed(seed, turn), count)


def alone(case: Case) -> Case:
    """Return what all layouts of a set have in common."""
    return attrs.evolve(case, transforms=())


def classes(case: Case) -> set[str]:
    """Return the classes of a composition."""
    return {class_of(transform) for transform in transforms_of(case)}


def same(outcome: Outcome) -> Outcome:
    """Return an outcome without what is shared out in a set."""
    return attrs.evolve(outcome, launches=0, seconds={})


class TestDrawing:
    """Which layouts a set has."""

    @pytest.mark.parametrize("text", SIGNATURES)
    @pytest.mark.parametrize("direction", ["forward", "backward"])
    def test_layouts_are_legal_and_differ_in_transforms_alone(
        self, text: str, direction: Direction
    ) -> None:
        """As many as are asked for, nearly always; within the limits, each of them new."""
        space = Space(signature=parse_signature(text), direction=direction)
        sets = [set_of(space, seed) for seed in range(20)]

        assert sum(map(len, sets)) > 0.9 * LAYOUTS * len(sets)
        for cases in sets:
            assert all(alone(case) == alone(cases[0]) for case in cases)
            assert len({case.digest for case in cases}) == len(cases)
            assert all(case.transforms and not illegal_in(space, case) for case in cases)
            assert all(fits(space, case) or case is cases[0] for case in cases)

    def test_layouts_differ_in_classes(self) -> None:
        """Two of a set hardly ever show the same classes."""
        space = Space(signature=parse_signature(SIGNATURES[0]))
        sets = [set_of(space, seed) for seed in range(20)]
        distinct = sum(len({frozenset(classes(case)) for case in cases}) for cases in sets)

        assert distinct > 0.95 * sum(map(len, sets))

    def test_neighbours_are_replaced_in_one_way(self) -> None:
        """So that a set has the values of two kinds of neighbours at most."""
        space = Space(signature=parse_signature(SIGNATURES[3]))
        found = [replacements(set_of(space, seed)) for seed in range(20)]

        assert any(found)
        assert all(len(kinds) <= 1 for kinds in found)

    def test_seed_and_space_decide(self) -> None:
        """The same again; the first layout is the case that is drawn without a set."""
        space = Space(signature=parse_signature(SIGNATURES[0]))
        first, again, other = set_of(space, 3), set_of(space, 3), set_of(space, 4)

        assert first == again
        assert first != other
        assert set_of(space, 3, count=1) == first[:1]

    def test_other_layouts_take_other_turns_of_rows(self) -> None:
        """A sweep of a set meets more numbers of rows than it has sets."""
        space = Space(signature=parse_signature(SIGNATURES[0]), classes=("T1",))
        sets = [set_of(space, 4 * turn) for turn in range(12)]
        rows = {tokens_of(case) for cases in sets for case in cases}

        assert len(rows) > 2 * len(sets)

    def test_wanted_classes_come_first(self) -> None:
        """Those that a search lacks are in the set where they apply."""
        space = Space(signature=parse_signature(SIGNATURES[0]))
        sets = [
            layouts_of_seed(seed, space, case_of_seed(seed, space), 4, wanted=["T4.finite", "T5"])
            for seed in range(20)
        ]

        for name in ("T4.finite", "T5"):
            assert sum(any(name in classes(case) for case in cases[1:]) for cases in sets) > 15


def fits(space: Space, case: Case) -> bool:
    """Return whether a layout is within the limits of its space, where there are no contexts."""
    if "Q" in space.signature.text:
        return True
    elements, work = costs(space, case.dims, tokens=tokens_of(case), pairs=0)
    return elements <= space.limits.elements_max and work <= work_max(space)


def tokens_of(case: Case) -> int:
    """Return the tokens of a case, those of its neighbours included."""
    layout = apply_all(transforms_of(case))
    sequences = (*case.sequences, *neighbours_of(case, layout.neighbours))
    return sum(sequence.length for sequence in sequences)


def replacements(cases: Sequence[Case]) -> set[ReplaceNeighbours]:
    """Return how neighbours are replaced in some cases."""
    found = (transform for case in cases for transform in transforms_of(case))
    return {item for item in found if isinstance(item, ReplaceNeighbours)}


class TestJudging:
    """What a set amounts to."""

    @pytest.mark.parametrize(("kernel", "direction", "dtype"), CELLS)
    def test_outcomes_are_those_of_each_case_alone(
        self, kernel: Kernel, direction: Direction, dtype: Dtype
    ) -> None:
        """Verdict, power, evidence by class, facts and poisons; what is done once is counted so."""
        judge = InProcessJudge(kernel, dtype=dtype, direction=direction)
        space = space_for(judge.reference, judge.description, dtype=dtype, direction=direction)
        space = attrs.evolve(space, limits=LIMITS["interpreter"])
        cases = set_of(space, len(kernel.target), count=3)
        options = [REPEATED] * len(cases)
        together = judge_set(kernel, cases, options=options)
        one_by_one = [judge_invariance(kernel, case, options=REPEATED) for case in cases]

        assert together is not None
        assert [same(outcome) for outcome in together] == [same(each) for each in one_by_one]
        assert sum(each.launches for each in together) < sum(each.launches for each in one_by_one)

    def test_planted_defects_are_left_to_each_case(self) -> None:
        """Wherever a case alone shows a defect, its set says that all must be judged alone."""
        quick, shown = JudgeOptions(measure=False), set()
        planted = [item for item in PLANTED if not item.interpreted and item.rate_seen is None]
        # Every fourth, of which each kind of defect has some.
        for item in planted[::4]:
            kernel = item.kernel()
            cases = set_of(planted_space(item, "float32"), 1, count=3)
            together = judge_set(kernel, cases, options=[quick] * len(cases))
            if together is not None:
                one_by_one = [judge_invariance(kernel, case, options=quick) for case in cases]
                assert list(map(same, together)) == list(map(same, one_by_one)), item.name
            else:
                shown.add(item.mechanism)
        assert len(shown) > 4

    def test_values_of_a_layout_are_its_own(self) -> None:
        """Tokens that layouts share are those that each would have alone, loud neighbours too."""
        kernel = kernel_of(lambda x, weight: x * weight, SIGNATURES[0])
        cases = [
            case_of(kernel, AddNeighbours(count=count), *others)
            for count, others in ((1, ()), (3, ()), (2, (ReplaceNeighbours(loudness=4),)), (5, ()))
        ]
        cases.append(case_of(kernel, PadSlots(amount=2)))
        members = prepare_set(kernel, cases, device="cpu")

        for case, member in zip(cases, members, strict=True):
            (own,) = prepare_set(kernel, [case], device="cpu")
            assert member.values.tokens["x"].tolist() == own.values.tokens["x"].tolist()
            assert member.values.position.tolist() == own.values.position.tolist()
        whole = members[3].values.tokens["x"]
        assert members[0].values.tokens["x"].data_ptr() == whole.data_ptr()
        assert members[4].values.tokens["x"].data_ptr() == whole.data_ptr()
        assert members[2].values.tokens["x"].data_ptr() != whole.data_ptr()

    def test_canonical_side_is_run_once(self) -> None:
        """And once more where a case asks for a repeat."""
        calls = 0

        def counting(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return x + 1

        kernel = kernel_of(counting, "x[T,H] -> y[T,H]")
        cases = [case_of(kernel, AddNeighbours(count=count)) for count in (1, 2, 3)]
        for options, expected in ((JudgeOptions(), 2 + 3), (REPEATED, 2 + 2 + 3)):
            calls = 0
            outcomes = judge_set(kernel, cases, options=[options] * 3)
            assert outcomes is not None
            assert calls == expected == sum(outcome.launches for outcome in outcomes)

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x * (1 + (len(x) > 5)),
            lambda x: x.add_(1) if len(x) > 5 else x + 1,
            lambda x: x.double() if len(x) > 5 else x + 1,
            lambda x: x / 0 if x.numel() < 0 else (_ for _ in ()).throw(ValueError("no")),
        ],
        ids=["drifts", "writes", "another dtype", "raises alone"],
    )
    def test_whatever_is_wrong_is_left_to_each_case(self, function: object) -> None:
        """Other bits, an argument written into, a wrong output, a canonical run that raises."""
        kernel = kernel_of(function, "x[T,H] -> y[T,H]")  # type: ignore[arg-type]  # one of the four
        cases = [case_of(kernel, AddNeighbours(count=count)) for count in (1, 3)]

        assert judge_set(kernel, cases, options=[JudgeOptions()] * 2) is None

    def test_what_is_no_set_is_not_judged(self) -> None:
        """Other sequences, a known rate, a wait after each run."""
        kernel = kernel_of(lambda x: x + 1, "x[T,H] -> y[T,H]")
        one, other = (case_of(kernel, AddNeighbours(count=count)) for count in (1, 3))
        asked = [JudgeOptions()] * 2

        assert judge_set(kernel, [one, other], options=asked) is not None
        assert judge_set(kernel, [one, attrs.evolve(other, seed=1)], options=asked) == ()
        for options in (JudgeOptions(rate=0.5), JudgeOptions(careful=True)):
            assert judge_set(kernel, [one, other], options=[options] * 2) == ()

    def test_nothing_of_a_set_stays_in_memory(self) -> None:
        """But weights, which are kept within bounds."""
        kernel = kernel_of(lambda x, weight: x * weight, SIGNATURES[0])
        cases = [case_of(kernel, AddNeighbours(count=count)) for count in (1, 3)]
        seen: list[int] = []
        for _ in range(2):
            judge_set(kernel, cases, options=[JudgeOptions()] * 2)
            seen.append(_tensor_count())
        assert seen[0] == seen[1]


def _tensor_count() -> int:
    gc.collect()
    # By type: isinstance would wake lazy objects of other libraries.
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
