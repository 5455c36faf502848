"""Cases of relations A and P: what may be drawn, what is legal, and how large values are."""

import math
from collections import Counter

import attrs
import pytest

from biprop.case import Against, Case, Execution, TransformData
from biprop.contract import judgment_of, load_contract
from biprop.data.recipe import KINDS_CONDITIONED, Pairing, Recipe
from biprop.execution import prepare, run_canonical
from biprop.generation import (
    RandomDraw,
    Space,
    draw_case,
    illegal,
    illegal_in,
    legal_for,
    rescaled,
)
from biprop.generation.space import Direction
from biprop.kernels import OPERATORS
from biprop.kernels.det_gemm import OPERATOR as DET_GEMM
from biprop.operators import Kernel
from biprop.sequence import LogicalSequence
from biprop.signature import parse_signature

GEMM = DET_GEMM.kernels()[0]
ACCURACY = Against(relation="A", atol=1e-4, rtol=1e-4)
PARITY = Against(relation="P", backend="triton", atol=1e-4, rtol=1e-4)
DECLARED = [
    kernel
    for operator in OPERATORS
    for kernel in operator.kernels()
    if kernel.declaration is not None and kernel.backend == "torch"
]


def space_of(kernel: Kernel, *, direction: Direction = "forward") -> Space:
    """Return a space whose cases are all of relation A."""
    assert kernel.op_class is not None
    tolerance = load_contract().tolerance(
        judgment=judgment_of("A", direction), op_class=kernel.op_class, dtype="float32"
    )
    assert tolerance is not None
    against = Against(relation="A", atol=tolerance.atol, rtol=tolerance.rtol)
    return Space(
        signature=kernel.signature,
        backward_signature=kernel.backward_signature,
        restrictions=kernel.restrictions,
        direction=direction,
        registered=True,
        declaration=kernel.declaration,
        op_class=kernel.op_class,
        against=(against,),
        only=against,
    )


def gemm_case(against: Against | None = ACCURACY, **changes: object) -> Case:
    """Return a legal case of det_gemm, with changes."""
    case = Case(
        dtype="float32",
        dims={"K": 64, "N": 3},
        sequences=(LogicalSequence(id=0, length=2),),
        data={"x": Recipe(kind="normal")},
        policy_state={"weight": Recipe(kind="normal", exponent=-3)},
        against=against,
    )
    return attrs.evolve(case, **changes)  # type: ignore[arg-type]  # fields of a case


class TestDraws:
    """What a space with `only` draws."""

    @pytest.mark.parametrize("direction", ["forward", "backward"])
    @pytest.mark.parametrize("kernel", DECLARED, ids=lambda kernel: kernel.target)
    def test_cases_are_legal_and_plain(self, kernel: Kernel, direction: Direction) -> None:
        """Every operator gets legal cases of conditioned kinds, without transforms or designs."""
        space = space_of(kernel, direction=direction)
        cases = [draw_case(RandomDraw(seed), space) for seed in range(20)]
        recipes = [
            recipe
            for case in cases
            for recipe in (*case.data.values(), *case.policy_state.values())
        ]

        assert {illegal_in(space, case) for case in cases} == {""}
        assert {legal_for(kernel)(case) for case in cases} == {""}
        assert all(case.against == space.only and not case.transforms for case in cases)
        assert {recipe.kind for recipe in recipes} <= set(KINDS_CONDITIONED)
        assert not any(recipe.pairing or recipe.rows or recipe.points for recipe in recipes)

    def test_every_kind_and_judgement_is_drawn(self) -> None:
        """Normal values come most often, and both kinds of gradients do."""
        space = space_of(GEMM, direction="backward")
        cases = [draw_case(RandomDraw(seed), space) for seed in range(200)]
        kinds = Counter(case.data["x"].kind for case in cases)

        assert set(kinds) == set(KINDS_CONDITIONED)
        assert kinds.most_common(1)[0][0] == "normal"
        assert {case.judged for case in cases} == {"token_gradients", "parameter_gradients"}

    def test_same_choices_give_the_same_case(self) -> None:
        """A case is a function of its seed."""
        space = space_of(GEMM)

        assert draw_case(RandomDraw(5), space) == draw_case(RandomDraw(5), space)


class TestMagnitudes:
    """How large values are."""

    @pytest.mark.parametrize("width", [1, 16, 600])
    @pytest.mark.parametrize("kind", KINDS_CONDITIONED)
    def test_products_have_about_unit_size(self, kind: str, width: int) -> None:
        """Weights are scaled by the root of what is summed, and by all of it where all are one."""
        case = gemm_case(
            dims={"K": width, "N": 40},
            data={"x": Recipe(kind=kind)},
            policy_state={"weight": Recipe(kind=kind)},
        )
        prepared = prepare(GEMM, rescaled(GEMM.signature, case), device="cpu")
        y = run_canonical(prepared).outputs["y"]
        size = math.sqrt(float(y.square().mean()))

        assert 0.2 < size < 3.5

    def test_a_gradient_that_adds_up_equal_terms_has_unit_size(self) -> None:
        """Over ones nothing cancels, whatever the weight is: it has no part in its own gradient."""
        case = gemm_case(
            judged="parameter_gradients",
            sequences=tuple(LogicalSequence(id=index, length=200) for index in range(5)),
            data={"x": Recipe(kind="ones"), "dy": Recipe(kind="ones")},
        )
        fitted = rescaled(GEMM.signature, case, backward_signature=GEMM.backward_signature)
        prepared = prepare(GEMM, fitted, device="cpu")
        largest = float(run_canonical(prepared).outputs["dweight"].abs().max())

        assert 0.5 < largest < 2

    @pytest.mark.parametrize("judged", ["token_gradients", "parameter_gradients"])
    def test_gradients_have_about_unit_size(self, judged: str) -> None:
        """Upstream gradients are scaled by what theirs are sums over."""
        case = gemm_case(
            dims={"K": 16, "N": 600},
            judged=judged,
            sequences=tuple(LogicalSequence(id=index, length=40) for index in range(5)),
            data={"x": Recipe(kind="normal"), "dy": Recipe(kind="normal")},
        )
        backward = GEMM.backward_signature
        fitted = rescaled(GEMM.signature, case, backward_signature=backward)
        run = run_canonical(prepare(GEMM, fitted, device="cpu"))
        (gradient,) = run.outputs.values()

        assert legal_for(GEMM)(fitted) == ""
        assert 0.4 < math.sqrt(float(gradient.square().mean())) < 2.5

    def test_without_a_relative_part_upstream_gradients_are_halved(self) -> None:
        """The largest values must leave room for their rounding."""
        exponents = []
        for rtol in (1e-4, 0.0):
            against = attrs.evolve(ACCURACY, rtol=rtol)
            data = {"x": Recipe(kind="normal"), "dy": Recipe(kind="normal")}
            case = gemm_case(against, judged="token_gradients", data=data)
            exponents.append(rescaled(GEMM.signature, case).data["dy"].exponent)

        assert exponents[1] == exponents[0] - 1

    def test_rescaling_twice_changes_nothing(self) -> None:
        """The exponents follow from kinds and sizes alone."""
        case = rescaled(GEMM.signature, gemm_case())

        assert case == gemm_case()
        assert rescaled(GEMM.signature, case) == case


class TestLegality:
    """What would condemn a healthy kernel, or has no yardstick, is illegal."""

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"data": {"x": Recipe(kind="pairs")}}, "is of kind 'pairs'"),
            ({"data": {"x": Recipe(kind="explicit")}}, "is of kind 'explicit'"),
            (
                {"data": {"x": Recipe(kind="normal", pairing={"K": Pairing(role="own")})}},
                "follows a design",
            ),
            ({"data": {"x": Recipe(kind="normal", exponent=2)}}, "has exponent=2"),
            ({"policy_state": {"weight": Recipe(kind="normal")}}, "has exponent=0"),
            (
                {"transforms": (TransformData(name="AddNeighbours", values={"count": 1}),)},
                "take the transforms out",
            ),
            ({"execution": Execution(tf32=True)}, "switch tf32 off"),
            ({"against": attrs.evolve(ACCURACY, atol=-1.0)}, "give numbers of 0 or more"),
            ({"against": attrs.evolve(ACCURACY, rtol=math.nan)}, "give numbers of 0 or more"),
            ({"against": attrs.evolve(ACCURACY, backend="triton")}, "no backend beside it"),
            ({"against": attrs.evolve(PARITY, backend="cuda")}, "another backend"),
            ({"against": attrs.evolve(PARITY, backend="")}, "another backend"),
            ({"against": attrs.evolve(PARITY, probe="float32_products")}, "has no probes"),
        ],
    )
    def test_unfair_cases_are_illegal(self, changes: dict[str, object], reason: str) -> None:
        """The sentence says what is wrong."""

        assert legal_for(GEMM)(gemm_case()) == ""
        assert reason in legal_for(GEMM)(gemm_case(**changes))  # type: ignore[arg-type]  # as above

    def test_neighbouring_sizes_stay_legal(self) -> None:
        """A size less rounds to another power of two at most one away, and zeros have no size."""
        smaller = gemm_case(dims={"K": 32, "N": 3})
        zeros = gemm_case(policy_state={"weight": Recipe(kind="zeros")})

        assert legal_for(GEMM)(smaller) == legal_for(GEMM)(zeros) == ""

    def test_unregistered_and_in_place_targets_are_refused(self) -> None:
        """Only an operator that returns its outputs has a yardstick."""
        in_place = parse_signature("x![T,K], weight[N,K] ->")

        assert "registered operators only" in illegal(GEMM.signature, gemm_case())
        assert "writes into arguments" in illegal(in_place, gemm_case(), registered=True)

    def test_operator_without_reference_is_refused(self) -> None:
        """Accuracy needs something to be held against."""
        kernel = attrs.evolve(GEMM, reference=None)

        assert "needs an operator with a reference" in legal_for(kernel)(gemm_case())
