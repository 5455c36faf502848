"""Generation: cases are legal, varied as measured, deterministic, and meet every restriction."""

from collections import Counter
from typing import Any

import attrs
import pytest

from biprop.case import Case, TransformData
from biprop.data.recipe import KINDS, Recipe
from biprop.errors import RestrictionError, UsageError
from biprop.generation import (
    CLASSES,
    LIMITS,
    Exclusion,
    RandomDraw,
    Space,
    applicability,
    draw_case,
    illegal,
    illegal_in,
    judged_kinds,
    simplest_case,
    wanted_classes,
)
from biprop.generation.legal import recipes_needed
from biprop.generation.sizes import draw_size, settled_sizes
from biprop.operators import InvarianceDeclaration
from biprop.sequence import LogicalSequence
from biprop.signature import parse_backward, parse_restrictions, parse_signature
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
    class_of,
    transform_to_data,
    transforms_of,
)
from biprop.transforms.effect import changed_classes

# Signature, restrictions, alignment: one of every layout and kind that this version runs.
SUBJECTS = {
    "rms": ("x[T,H], weight[H] -> y[T,H], rstd: float32[T]", "", 1),
    "padded": ("x[B,S,H], weight[H] -> y[B,S,H]; token_local", "", 1),
    "linear": ("x[T,K], weight[N,K] -> y[T,N]", "K=1..8192 K%8==0", 16),
    "wide": ("x[T,H] -> y[T,H]", "H=4096..8192 H%256==0", 1),
    "logp": ("logits[T,V], target: token(V)[T] -> logp: float32[T], lse: float32[T]", "", 1),
    "offsets": ("x[T,H], cuts: offsets[B+1] -> y[T,H]", "", 1),
    "lengths": ("x[B,S,H], n: lengths[B], eps: scalar -> y[B,S,H]", "H=16|32", 1),
    "mask": (
        "q[B,S,HQ,D], k[B,S,HK,D], m: mask[B,S] -> y[B,S,HQ,D]",
        "HQ%HK==0 D=16|32|64",
        16,
    ),
    "blind": ("x[B,S,H/2] -> y[B,S,H]", "", 1),
    "mutated": ("x![T,H], out![T,N], w[N,H], p: position[T] ->", "", 1),
    "quotient": ("x[T,H/2], y[T,H*2] -> z[T,H+1]", "H%3==0", 1),
    "parameterless": ("x[T] -> y[T]", "", 1),
}
RMS = "x[T,H], weight[H] -> y[T,H], rstd: float32[T]"
RMS_BACKWARD = (
    "dy[T,H], x[T,H], weight[H], rstd: float32[T], offsets: offsets[B+1], order: order[T], "
    "position: position[T], dweight!: float32[H] -> dx[T,H]"
)
DECLARED = InvarianceDeclaration(
    transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"),
    parameter_gradients=("T2", "T4", "T5", "T6", "T8"),
)


def space_of(name: str, **fields: Any) -> Space:  # noqa: ANN401  # as evolve takes them
    """Return the space of one of the subjects."""
    text, dims, align = SUBJECTS[name]
    signature = parse_signature(text)
    restrictions = parse_restrictions(dims).check_against(signature)
    space = Space(signature=signature, restrictions=restrictions, align=align, constants=(100,))
    return attrs.evolve(space, **fields)


def registered_space(**fields: Any) -> Space:  # noqa: ANN401  # as evolve takes them
    """Return the space of a registered operator with a backward of its own."""
    signature = parse_signature(RMS)
    space = Space(
        signature=signature,
        backward_signature=parse_backward(RMS_BACKWARD, signature),
        registered=True,
        declaration=DECLARED,
        op_class="reduction",
        direction="backward",
    )
    return attrs.evolve(space, **fields)


def shares(space: Space, count: int = 600) -> dict[str, float]:
    """Return the share of cases that show each class."""
    found: Counter[str] = Counter()
    for seed in range(count):
        case = draw_case(RandomDraw(seed), space)
        found.update({class_of(transform) for transform in transforms_of(case)})
    return {name: found[name] / count for name in CLASSES}


def case_with(*transforms: Transform, **fields: Any) -> Case:  # noqa: ANN401  # as evolve takes them
    """Return the simplest case of rms with a composition."""
    data = tuple(transform_to_data(transform) for transform in transforms)
    return attrs.evolve(simplest_case(space_of("rms")), **{"transforms": data, **fields})


@pytest.mark.parametrize("lane", ["cpu", "interpreter", "nightly"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_cases_are_legal(name: str, direction: str, lane: str) -> None:
    """Every drawn case is legal, whatever the signature, the direction and the lane."""
    space = space_of(name, direction=direction, limits=LIMITS[lane])  # type: ignore[index]
    reasons = {illegal_in(space, draw_case(RandomDraw(seed), space)) for seed in range(150)}

    assert reasons == {""}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_registered_cases_are_legal(dtype: str) -> None:
    """Every case of a registered operator is legal, gradients of parameters included."""
    space = registered_space(dtype=dtype)
    cases = [draw_case(RandomDraw(seed), space) for seed in range(500)]

    assert {illegal_in(space, case) for case in cases} == {""}
    assert {case.judged for case in cases} == {"token_gradients", "parameter_gradients"}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_simplest_case_is_legal_and_small(name: str, direction: str) -> None:
    """The simplest case has one sequence of one token, ones and no transform."""
    space = space_of(name, direction=direction)
    case = simplest_case(space)

    assert illegal_in(space, case) == ""
    assert [sequence.length for sequence in case.sequences] == [1]
    assert case.transforms == ()
    assert {recipe.kind for recipe in case.data.values()} == {"ones"}


def test_shares_are_those_measured() -> None:
    """Classes take part about as often as in the mixture that found every planted defect."""
    found = shares(space_of("rms"))

    assert found["T1"] > 0.9
    assert found["T2"] == pytest.approx(0.64, abs=0.12)
    assert found["T3"] == pytest.approx(0.57, abs=0.12)
    assert found["T4.finite"] + found["T4.nonfinite"] == pytest.approx(0.5, abs=0.12)
    assert found["T5"] == pytest.approx(0.48, abs=0.12)
    assert found["T6"] == pytest.approx(0.25, abs=0.12)
    assert found["T7"] == 0
    assert found["T8"] == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize("name", ["rms", "padded", "offsets", "mask", "blind"])
def test_transforms_change_the_call(name: str) -> None:
    """Nearly every transform that is drawn changes the physical call."""
    space = space_of(name)
    effective: Counter[str] = Counter()
    drawn: Counter[str] = Counter()
    for seed in range(200):
        case = draw_case(RandomDraw(seed), space)
        for kind, changed in changed_classes(space.signature, case, align=space.align).items():
            drawn[kind] += 1
            effective[kind] += changed

    assert all(effective[kind] >= 0.6 * drawn[kind] for kind in drawn)
    assert sum(effective.values()) > 0.85 * drawn.total()


def test_same_draw_gives_same_case() -> None:
    """A case is a function of what was drawn."""
    space = space_of("mask")

    assert draw_case(RandomDraw(7), space) == draw_case(RandomDraw(7), space)
    assert len({draw_case(RandomDraw(seed), space).digest for seed in range(50)}) == 50


@pytest.mark.parametrize("name", ["linear", "lengths", "mask", "wide", "quotient"])
def test_restrictions_are_met(name: str) -> None:
    """Drawn sizes meet every restriction, and differ."""
    space = space_of(name)
    drawn = [draw_case(RandomDraw(seed), space).dims for seed in range(200)]

    assert all(space.restrictions.admits(dims) for dims in drawn)
    assert len({tuple(dims.items()) for dims in drawn}) > 1


def test_contradicting_restrictions_are_refused() -> None:
    """Where no sizes meet the restrictions, one sentence says so."""
    restrictions = parse_restrictions("A=200000..400000 B=100000..199999 A%B==1 B%A==2")

    with pytest.raises(RestrictionError, match="No sizes of A, B meet"):
        settled_sizes({"A": 5, "B": 200}, restrictions)


def test_sizes_fold_below_their_cap() -> None:
    """Sizes above a cap do not pile up on it, and constants are drawn with their neighbours."""
    drawn = Counter(draw_size(RandomDraw(seed), 320, constants=(100,)) for seed in range(4000))

    assert all(1 <= size <= 320 for size in drawn)
    assert drawn[320] < 200
    assert min(drawn[99], drawn[100], drawn[101]) > 20
    assert min(drawn[size] for size in (1, 2, 16, 17, 63, 64, 65, 128, 256, 257)) > 5


def test_narrow_dtypes_meet_long_sums() -> None:
    """In bfloat16 most reduced dimensions have 64 terms or more."""
    space = space_of("rms", dtype="bfloat16")
    sizes = [draw_case(RandomDraw(seed), space).dims["H"] for seed in range(300)]

    assert sum(size >= 64 for size in sizes) > 150


def test_limits_hold() -> None:
    """Cases of a lane keep to its limits, and still reach the larger sizes."""
    limits = LIMITS["interpreter"]
    space = space_of("rms", limits=limits)
    cases = [draw_case(RandomDraw(seed), space) for seed in range(300)]

    assert max(case.dims["H"] for case in cases) <= limits.dim_max
    assert max(case.dims["H"] for case in cases) > limits.dim_max / 2
    assert max(len(case.sequences) for case in cases) <= limits.watched_max


def test_every_kind_is_drawn() -> None:
    """An unregistered target meets every kind of data but those of others, or of nobody."""
    space, found = space_of("rms"), set[str]()
    for seed in range(400):
        case = draw_case(RandomDraw(seed), space)
        for recipe in (*case.data.values(), *case.policy_state.values()):
            found |= {recipe.kind, *(row.kind for row in recipe.rows)}

    assert found == set(KINDS) - {"explicit", "linspace", "uniform", "peak_keys"}


def test_log_probabilities_peak_at_their_target() -> None:
    """Where ids choose along a dimension, most peaks lie at the id that is chosen."""
    space = space_of("logp")
    recipes = [draw_case(RandomDraw(seed), space).data["logits"] for seed in range(300)]

    assert sum(recipe.at_target for recipe in recipes) > 75


def test_contraction_pairs_its_dimension() -> None:
    """Over a contracted dimension one tensor changes sign between partners, others do not."""
    space = space_of("linear")
    roles: Counter[tuple[str, ...]] = Counter()
    for seed in range(300):
        case = draw_case(RandomDraw(seed), space)
        pairs = [case.data["x"].pairing.get("K"), case.policy_state["weight"].pairing.get("K")]
        roles[tuple(sorted(pair.role for pair in pairs if pair))] += 1

    assert roles["antisymmetric", "symmetric"] > 60
    assert roles["flat", "own"] > 60
    assert set(roles) == {(), ("antisymmetric", "symmetric"), ("flat", "own")}


def test_excluded_classes_do_not_meet() -> None:
    """Classes that were found to fail together are not drawn together again."""
    excluded = (
        Exclusion(judged="outputs", classes=frozenset({"T8"})),
        Exclusion(judged="outputs", classes=frozenset({"T1", "T5"})),
    )
    found = shares(space_of("rms", excluded=excluded), 200)
    space = space_of("rms", excluded=excluded)
    both = sum(
        {"T1", "T5"}
        <= {class_of(item) for item in transforms_of(draw_case(RandomDraw(seed), space))}
        for seed in range(200)
    )

    assert (found["T8"], both) == (0, 0)
    assert min(found["T1"], found["T5"]) > 0.1


def test_exclusion_is_for_what_was_judged() -> None:
    """A class that fails for gradients of tokens is still drawn for gradients of parameters."""
    excluded = (Exclusion(judged="token_gradients", classes=frozenset({"T8"})),)
    space = registered_space(excluded=excluded)
    judged = {
        case.judged
        for case in (draw_case(RandomDraw(seed), space) for seed in range(100))
        if any(isinstance(item, MoveStorage) for item in transforms_of(case))
    }

    assert judged == {"parameter_gradients"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), CLASSES),
        (("T4",), ("T4.finite", "T4.nonfinite")),
        (("T4.finite", "T8"), ("T4.finite", "T8")),
        (("T3",), ("T1", "T3")),
        (("T2",), ("T1", "T2")),
    ],
)
def test_wanted_classes(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """T4 means both fills, and classes that need neighbours bring them."""

    assert wanted_classes(words) == expected


def test_unknown_class_is_refused() -> None:
    """A class that does not exist is refused in one sentence."""

    with pytest.raises(UsageError, match="'T9' is unknown"):
        wanted_classes(["T9"])


def test_wanted_classes_alone_are_drawn() -> None:
    """Of the classes that apply only those asked for are drawn."""
    found = shares(space_of("padded", classes=wanted_classes(["T4.nonfinite"])), 100)

    assert {name for name, share in found.items() if share} == {"T4.nonfinite"}


@pytest.mark.parametrize(
    ("name", "judged", "expected"),
    [
        ("rms", "outputs", {"T7", "shards"}),
        ("padded", "outputs", {"T6", "T7", "shards"}),
        ("offsets", "outputs", {"T6", "T7", "shards"}),
        ("blind", "outputs", {"T6", "T7", "shards"}),
        ("rms", "parameter_gradients", set(CLASSES) - {"T4.finite", "T8"}),
        ("padded", "parameter_gradients", set(CLASSES) - {"T4.finite", "T8"}),
    ],
)
def test_classes_that_do_not_apply_have_a_reason(
    name: str, judged: str, expected: set[str]
) -> None:
    """What does not apply to a layout, or to gradients of parameters, is said."""
    signature = parse_signature(SUBJECTS[name][0])
    reasons = applicability(signature, judged=judged)  # type: ignore[arg-type]

    assert {kind for kind, reason in reasons.items() if reason} == expected


def test_declaration_bounds_what_applies() -> None:
    """A class that an operator does not declare does not apply to it."""
    declared = InvarianceDeclaration(transforms=("T2", "T8"))
    reasons = applicability(parse_signature(RMS), registered=True, declaration=declared)

    assert {kind for kind, reason in reasons.items() if not reason} == {"T8"}
    assert "T1" in reasons["T2"]


def test_registered_backward_takes_part_in_more() -> None:
    """A registered backward with order and accumulator is judged on what it declares."""
    space = registered_space()
    reasons = applicability(
        space.signature,
        judged="parameter_gradients",
        backward_signature=space.backward_signature,
        registered=True,
        declaration=DECLARED,
    )

    assert {kind for kind, reason in reasons.items() if reason} == {"T1", "T3", "T7", "shards"}


def test_kinds_of_gradients_follow_the_signature() -> None:
    """Gradients are judged of tokens and of parameters, as far as the signature has them."""
    logp = parse_signature("logits[T,V], target: token(V)[T] -> logp: float32[T]")
    table = parse_signature("ids: token(V)[T], table[V,H] -> y[T,H]")

    assert judged_kinds(logp, "backward") == ("token_gradients",)
    assert judged_kinds(table, "backward") == ("parameter_gradients",)
    assert judged_kinds(table, "forward") == ("outputs",)


def test_upstream_gradients_need_recipes() -> None:
    """Backward cases carry a recipe for the upstream gradients that the backward takes."""
    space = registered_space()
    own, _ = recipes_needed(space.signature, "token_gradients", space.backward_signature)
    autograd, _ = recipes_needed(space.signature, "token_gradients")

    assert set(own) == {"x", "dy"}
    assert set(autograd) == {"x", "dy", "drstd"}


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (case_with(AddDeadRows()), "no rows"),
        (case_with(dims={}), "H has no size"),
        (case_with(dims={"H": 0}), "H=0 is too small"),
        (case_with(dims={"H": 1, "K": 2}), "K=2 is not in the signature"),
        (case_with(sequences=()), "no sequence"),
        (case_with(sequences=(LogicalSequence(id=0, length=1),) * 2), "same id"),
        (case_with(sequences=(LogicalSequence(id=1024, length=1),)), "only neighbours have"),
        (case_with(seed=1 << 32), "Seed 4294967296"),
        (case_with(data={}), "'x' has no recipe"),
        (case_with(policy_state={}), "'weight' has no recipe"),
        (case_with(data={"x": Recipe(kind="random")}), "unknown kind 'random'"),
        (case_with(data={"x": Recipe(kind="mix")}), "needs rows"),
        (case_with(judged="token_gradients"), "'dy' has no recipe"),
        (case_with(AddNeighbours(count=65536), dims={"H": 4096 * 4}), "elements, more than"),
        (case_with(scalars={"eps": 1.0}), "Scalar 'eps'"),
        (case_with(transforms=(TransformData(name="Nothing"),)), "'Nothing' is unknown"),
        (case_with(transforms=(TransformData(name="SplitBatch"),) * 2), "appears twice"),
    ],
)
def test_illegal_cases_have_a_reason(case: Case, reason: str) -> None:
    """What makes a case illegal is said in one sentence."""
    space = space_of("rms")

    assert reason in illegal_in(space, case)
    assert illegal_in(space, case).endswith(".")


@pytest.mark.parametrize(
    ("name", "transform", "reason"),
    [
        ("offsets", PadSlots(side="left"), "on the right only"),
        ("lengths", PadSlots(side="left"), "on the right only"),
        ("blind", PadSlots(), "nothing tells dead slots"),
        ("padded", GatherActive(), "every token of its sequences"),
        ("blind", ReplaceNeighbours(length=3), "neighbours differ in length"),
        ("linear", MoveStorage(gap=1), "multiple of 4"),
        ("mask", PadSlots(side="left"), ""),
        ("padded", PadSlots(side="left"), ""),
        ("offsets", AddDeadRows(), ""),
        ("blind", AddDeadRows(), ""),
        ("offsets", SplitBatch(), ""),
        ("linear", MoveStorage(offset=1), ""),
    ],
)
def test_transforms_are_legal_by_layout(name: str, transform: Transform, reason: str) -> None:
    """Each layout admits the transforms that cannot condemn a healthy kernel, and no others."""
    space = space_of(name)
    case = attrs.evolve(simplest_case(space), transforms=(transform_to_data(transform),))
    found = illegal_in(space, case)

    assert reason in found if reason else found == ""


@pytest.mark.parametrize(
    ("transform", "is_legal"),
    [
        (PadSlots(fill="one"), True),
        (PadSlots(fill="large"), False),
        (PadSlots(fill="nan"), False),
        (PadSlots(side="left"), False),
        (PermuteRows(), False),
        (PlaceWatched(), False),
        (AddNeighbours(count=1), False),
        (SplitBatch(), False),
        (GatherActive(scatter=1), False),
        (MoveStorage(offset=1), True),
    ],
)
def test_gradients_of_parameters_meet_little(transform: Transform, is_legal: bool) -> None:  # noqa: FBT001
    """Without order, gradients of parameters meet trailing dead rows and storage only."""
    space = space_of("linear", direction="backward")
    data, parameters = recipes_needed(space.signature, "parameter_gradients")
    ones = Recipe(kind="ones")
    case = Case(
        dtype="float32",
        judged="parameter_gradients",
        dims={"K": 8, "N": 1},
        sequences=(LogicalSequence(id=0, length=2), LogicalSequence(id=1, length=1)),
        data=dict.fromkeys(data, ones),
        policy_state=dict.fromkeys(parameters, ones),
        transforms=(transform_to_data(transform),),
    )

    assert (illegal_in(space, case) == "") == is_legal


def test_undeclared_class_is_illegal() -> None:
    """A case that shows a class beyond the declaration is illegal for the operator."""
    declared = InvarianceDeclaration(transforms=("T1",))
    case = case_with(MoveStorage(offset=1))

    assert illegal(parse_signature(RMS), case) == ""
    assert "does not declare it" in illegal(
        parse_signature(RMS), case, registered=True, declaration=declared
    )
