"""Power: what the mixture of data shows and normal data does not."""

import attrs
from tests.power.trials import cases_of, judge_quickly, space_of

from biprop.case import Case
from biprop.data.recipe import Recipe
from biprop.generation import LIMITS
from biprop.kernels.planted import PLANTED

NAMES = ["linear_gemv", "linear_split_k", "pooled_by_segment_count"]
EXAMPLES = 60
NORMAL = Recipe(kind="normal")


def with_normal_data(case: Case) -> Case:
    """Return the case with normal values in every tensor."""
    return attrs.evolve(
        case,
        data=dict.fromkeys(case.data, NORMAL),
        policy_state=dict.fromkeys(case.policy_state, NORMAL),
    )


def test_normal_data_misses_what_the_mixture_finds_in_bfloat16() -> None:
    """Of the same examples, the mixture fails in many and standard-normal values in nearly none."""
    failing = dict.fromkeys(("mixture", "normal"), 0)
    for planted in PLANTED:
        if planted.name not in NAMES:
            continue
        kernel = planted.kernel()
        # Few columns: with thousands of outputs normal data has a chance too.
        limits = attrs.evolve(LIMITS["cpu"], tokens_max=16, watched_max=1, dim_max=64)
        space = attrs.evolve(space_of(planted, "bfloat16"), limits=limits)
        for case in cases_of(space, seed=1, count=EXAMPLES):
            for data, judged in (("mixture", case), ("normal", with_normal_data(case))):
                failing[data] += judge_quickly(kernel, judged).verdict.is_violation

    assert failing["mixture"] >= 30
    assert failing["normal"] * 10 <= failing["mixture"]
