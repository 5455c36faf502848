"""Tests of the sweep: boundary sizes come in turn, and a launch has exactly the rows asked for."""

from collections import Counter

import attrs
import pytest

from biprop.case import Case
from biprop.generation import RandomDraw, Space, Sweep, draw_case, illegal_in
from biprop.generation.sweep import boundaries, boundaries_beside
from biprop.layout.launches import launches
from biprop.layout.pool import token_pool
from biprop.signature import parse_restrictions, parse_signature
from biprop.transforms import apply_all, transforms_of

THRESHOLDS = (33, 48, 97, 161)
# Of 4 turns 3 are swept, of these a third belongs to what every kernel may have, and the rest, but
# for a third of it, to the thresholds themselves.
TURNS_OF_THRESHOLDS = 4 * len(THRESHOLDS)
SPACES = {
    "rows": Space(signature=parse_signature("x[T,H] -> y[T,H]"), thresholds=THRESHOLDS),
    "product": Space(
        signature=parse_signature("x[T,K], weight[N,K] -> y[T,N]"), thresholds=THRESHOLDS
    ),
    "gradients": Space(
        signature=parse_signature("x[T,H], weight[H] -> y[T,H]"),
        direction="backward",
        thresholds=THRESHOLDS,
    ),
    "padded": Space(
        signature=parse_signature("x[B,S,H], lengths: lengths[B] -> y[B,H]"), thresholds=(12,)
    ),
    "contexts": Space(
        signature=parse_signature(
            "q[B,Q,H,D], k[B,C,H,D], v[B,C,H,D], queries: lengths(Q)[B], "
            "contexts: lengths(C)[B] -> out[B,Q,H,D]"
        ),
        thresholds=(12, 16),
    ),
    "restricted": Space(
        signature=parse_signature("x[T,H] -> y[T,H]"),
        restrictions=parse_restrictions("H=16..256 H%8==0"),
        thresholds=THRESHOLDS,
    ),
}


def swept(space: Space, index: int, *, seed: int = 1) -> Space:
    """Return the space of one example of a search."""
    return attrs.evolve(space, sweep=Sweep(seed=seed, index=index))


def sizes(axis: str, count: int, *, seed: int = 1, high: int = 320) -> list[int]:
    """Return the swept sizes of the first examples along an axis."""
    found = (
        Sweep(seed=seed, index=index).size(axis, low=1, high=high, thresholds=THRESHOLDS)
        for index in range(count)
    )
    return [size for size in found if size is not None]


class TestSweep:
    """Sizes without replacement."""

    @pytest.mark.parametrize("axis", ["rows", "H", "N"])
    @pytest.mark.parametrize("seed", [0, 1, 2**40])
    def test_every_boundary_is_met(self, axis: str, seed: int) -> None:
        """What a kernel asks about within few examples, every other boundary within 200."""
        everything = {*boundaries(320), *boundaries_beside(THRESHOLDS, high=320), *THRESHOLDS}

        assert set(THRESHOLDS) <= set(sizes(axis, TURNS_OF_THRESHOLDS, seed=seed))
        assert everything <= set(sizes(axis, 200, seed=seed))

    def test_none_comes_again_before_all_have_come(self) -> None:
        """Counts of the thresholds differ by one at most, at any time."""
        for count in (40, 100, 173):
            found = Counter(sizes("rows", count))
            counts = [found[size] for size in THRESHOLDS]
            assert max(counts) - min(counts) <= 1

    def test_one_of_four_is_left_to_chance(self) -> None:
        """The others take their turn."""
        found = [Sweep(seed=1, index=index).is_on for index in range(8)]

        assert found == [True, True, True, False] * 2

    def test_orders_differ_by_axis_and_by_seed(self) -> None:
        """So that rows meet other widths in another search, and at another turn."""
        assert sizes("rows", 80) == sizes("rows", 80)
        assert len({tuple(sizes(axis, 80)) for axis in ("rows", "H", "K")}) == 3
        assert sizes("rows", 80) != sizes("rows", 80, seed=2)

    def test_rows_and_widths_are_crossed(self) -> None:
        """No width belongs to one number of rows."""
        pairs = set(zip(sizes("rows", 400), sizes("H", 400), strict=True))

        assert len({(row, width) for row, width in pairs if row == width == 48}) <= 1
        assert all(len({width for row, width in pairs if row == size}) > 8 for size in THRESHOLDS)

    def test_without_thresholds_all_turns_are_of_boundaries(self) -> None:
        """Every boundary of 320 rows comes within as many swept turns."""
        values = boundaries(320)
        turns = range(4 * len(values) // 3 + 1)
        found = {Sweep(seed=3, index=index).size("rows", low=1, high=320) for index in turns}

        assert set(values) == found - {None}

    def test_nothing_within_bounds_is_left_to_chance(self) -> None:
        """A range without a boundary has no turn."""
        assert Sweep(seed=1, index=0).size("rows", low=19, high=22) is None

    def test_products_are_of_what_is_asked_about(self) -> None:
        """All of them in turn; small ones are met by chance."""
        found = {Sweep(seed=1, index=index).product((4, 512, 544)) for index in range(32)}

        assert found == {None, 512, 544}


class TestDrawnCases:
    """Cases of a swept space."""

    @pytest.mark.parametrize("name", SPACES)
    def test_every_case_is_legal(self, name: str) -> None:
        """Whatever is made up for."""
        space = SPACES[name]
        cases = [draw_case(RandomDraw(100 + i), swept(space, i)) for i in range(300)]

        assert {illegal_in(space, case) for case in cases} == {""}
        if space.signature.token_wise:
            assert all(case.transforms for case in cases)

    @pytest.mark.parametrize("name", SPACES)
    def test_the_same_seed_and_turn_give_the_same_case(self, name: str) -> None:
        """A case is a function of the seed, the space and the index."""
        space = swept(SPACES[name], 5)

        assert draw_case(RandomDraw(7), space) == draw_case(RandomDraw(7), space)
        assert swept(space, 6) != space

    def test_a_launch_has_exactly_the_rows_asked_for(self) -> None:
        """Dead slots and cuts included, in most cases with neighbours."""
        space, exact, count = SPACES["rows"], 0, 0
        for index in range(400):
            turn = swept(space, index)
            rows = turn.swept_rows(high=space.limits.tokens_max)
            case = draw_case(RandomDraw(index), turn)
            if rows is None or not apply_all(transforms_of(case)).neighbours.together:
                continue
            count += 1
            exact += rows in _launch_rows(space, case)

        assert count > 200
        assert exact / count > 0.85

    def test_every_width_asked_about_is_drawn(self) -> None:
        """Within few examples, though some make way for a product, or for the number of rows."""
        space = SPACES["rows"]
        cases = (draw_case(RandomDraw(i), swept(space, i)) for i in range(3 * TURNS_OF_THRESHOLDS))

        assert set(THRESHOLDS) <= {case.dims["H"] for case in cases}

    def test_products_of_rows_and_widths_reach_a_threshold(self) -> None:
        """From the threshold on, and by less than one more term of each sum."""
        space = attrs.evolve(SPACES["product"], thresholds=(512,))
        found = 0
        for index in range(400):
            turn = swept(space, index)
            case = draw_case(RandomDraw(index), turn)
            if turn.swept_product() is not None:
                works = {
                    rows * case.dims["K"] * case.dims["N"] for rows in _launch_rows(space, case)
                }
                found += any(512 <= work < 544 for work in works)

        assert found >= 10


def _launch_rows(space: Space, case: Case) -> set[int]:
    """Return how many rows the transformed launches of a case have."""
    layout = apply_all(transforms_of(case))
    made = launches(space.signature, token_pool(case, layout), case, layout)
    return {len(launch.slots) for launch in made}
