"""A value depends on its own coordinates only, whatever is expanded beside it, and always fits."""

import math

import attrs
import pytest
import torch

from biprop.bits import same_bits
from biprop.data import expand as expand_module
from biprop.data.expand import Tokens, expand, expand_tokens
from biprop.data.recipe import KINDS, Pairing, Point, Recipe
from biprop.errors import CaseError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Kinds in which a row is one design: their values change with the size of the last dimension.
KINDS_OF_ROWS = (
    "peak_squares",
    "ties_squares",
    "peak_exponentials",
    "ties_exponentials",
    "peak_keys",
    "mix",
    "linspace",
)
# Kinds in which all dimensions together are one design.
KINDS_OF_TENSORS = ("linspace",)
LENGTHS = {0: 5, 1: 1, 2: 8, 1024: 3}


def recipe_of(kind: str, *, exponent: int = 0) -> Recipe:
    """Return a plain recipe of a kind."""
    rows: tuple[Recipe, ...] = ()
    if kind == "mix":
        names = ("ties_squares", "ties_exponentials", "pairs", "normal", "zeros")
        rows = tuple(Recipe(kind=name) for name in names)
    points = (Point(at={"H": 2, "@": 0}, value="0x1p+12"), Point(at={"#": 2}, value="-0x1p-3"))
    return Recipe(
        kind=kind, rows=rows, points=points if kind == "explicit" else (), exponent=exponent
    )


def tokens_of(lengths: dict[int, int]) -> Tokens:
    """Return the tokens of sequences given as id -> length, in that order."""
    rows = [(key, token, size) for key, size in lengths.items() for token in range(size)]
    columns = torch.tensor(rows, dtype=torch.int32).T
    return Tokens(sequence_id=columns[0], token=columns[1], length=columns[2])


def build(
    recipe: Recipe,
    tokens: Tokens | None,
    sizes: tuple[int, ...] = (3, 48),
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 5,
) -> torch.Tensor:
    """Expand a tensor named x with the dimensions H (last), D, E."""
    dims = ("E", "D", "H")[3 - len(sizes) :]
    return expand(recipe, seed=seed, name="x", tokens=tokens, dims=dims, sizes=sizes, dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    """What holds for each kind."""

    def test_removing_neighbours_changes_no_value(self, kind: str) -> None:
        """Any subset of the tokens, in any order, has the values it has among all of them."""
        tokens = tokens_of(LENGTHS)
        whole = build(recipe_of(kind), tokens)
        chosen = torch.tensor([14, 3, 0, 16, 5, 9])

        assert same_bits(build(recipe_of(kind), tokens.at(chosen)), whole[chosen]).all()

    def test_resizing_an_outer_dimension_changes_no_value(self, kind: str) -> None:
        """A smaller first dimension keeps the values that it still has, but for a ramp over all."""
        tokens = tokens_of(LENGTHS)
        smaller = build(recipe_of(kind), tokens, (2, 48))
        same = same_bits(smaller, build(recipe_of(kind), tokens, (7, 48))[:, :2])

        assert bool(same.all()) == (kind not in KINDS_OF_TENSORS)

    def test_resizing_the_last_dimension_changes_no_value_of_free_kinds(self, kind: str) -> None:
        """Kinds without a design of the row keep every value, and the others keep their name."""
        tokens = tokens_of(LENGTHS)
        smaller = build(recipe_of(kind), tokens, (3, 31))
        same = same_bits(smaller, build(recipe_of(kind), tokens, (3, 48))[..., :31])

        assert bool(same.all()) == (kind not in KINDS_OF_ROWS)

    @pytest.mark.parametrize("limit", [1, 48, 100, 1000])
    def test_blocks_give_the_bits_of_one_expansion(
        self, kind: str, limit: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Cut into rows, into parts of rows' tensors or not at all: the same bits."""
        tokens = tokens_of(LENGTHS)
        whole = build(recipe_of(kind), tokens)
        parameter = build(recipe_of(kind), None) if kind != "explicit" else None
        monkeypatch.setattr(expand_module, "_BLOCK_ELEMENTS", limit)

        assert same_bits(build(recipe_of(kind), tokens), whole).all()
        if parameter is not None:
            assert same_bits(build(recipe_of(kind), None), parameter).all()

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 15, 16, 17, 255, 4096])
    def test_every_value_is_finite(self, kind: str, size: int, dtype: torch.dtype) -> None:
        """No exponent makes a NaN or an infinity, at any size, in any dtype."""
        tokens = tokens_of({0: 3})

        for exponent in (-64, -10, 0, 10, 64):
            values = build(recipe_of(kind, exponent=exponent), tokens, (size,), dtype)
            assert values.dtype == dtype
            assert values.shape == (3, size)
            assert values.is_contiguous()
            assert values.isfinite().all()

    def test_threads_change_no_bit(self, kind: str) -> None:
        """One thread and two give the same bits of a tensor that torch would split."""
        tokens = tokens_of({0: 64})
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            one = build(recipe_of(kind), tokens, (2048,))
            torch.set_num_threads(2)
            two = build(recipe_of(kind), tokens, (2048,))
        finally:
            torch.set_num_threads(before)

        assert same_bits(one, two).all()

    def test_no_elements_are_an_empty_tensor(self, kind: str) -> None:
        """No tokens, or a dimension of size 0, give an empty tensor of the right shape."""
        assert build(recipe_of(kind), tokens_of(LENGTHS).at(slice(0, 0))).shape == (0, 3, 48)
        assert build(recipe_of(kind), tokens_of(LENGTHS), (3, 0)).shape == (17, 3, 0)


class TestStreams:
    """What values depend on."""

    @pytest.mark.parametrize("kind", ["normal", "pairs", "ties_squares", "ties_exponentials"])
    def test_seed_name_and_kind_give_other_values(self, kind: str) -> None:
        """Another seed or name gives values of which hardly any stays."""
        tokens = tokens_of(LENGTHS)
        one = build(recipe_of(kind), tokens, (256,), torch.float32)
        other_seed = build(recipe_of(kind), tokens, (256,), torch.float32, seed=6)
        other_name = expand(
            recipe_of(kind),
            seed=5,
            name="y",
            tokens=tokens,
            dims=("H",),
            sizes=(256,),
            dtype=torch.float32,
        )

        for other in (other_seed, other_name):
            assert float(same_bits(one, other).float().mean()) < 0.2

    def test_rows_differ_from_each_other(self) -> None:
        """No two tokens share a row, in a parameter no two rows are the same."""
        values = build(recipe_of("normal"), tokens_of({0: 300, 1: 300}), (8,))
        weight = build(recipe_of("normal"), None, (200, 8))

        assert len({tuple(row) for row in values.tolist()}) == 600
        assert len({tuple(row) for row in weight.tolist()}) == 200

    def test_a_tensor_without_other_dimensions_has_one_value_a_token(self) -> None:
        """`x[T]` and a parameter without dimensions are expanded too."""
        values = build(recipe_of("normal"), tokens_of(LENGTHS), ())

        assert values.shape == (17,)
        assert len(set(values.tolist())) > 12
        assert build(recipe_of("normal"), None, ()).shape == ()

    def test_a_mixture_gives_each_token_one_of_its_recipes(self) -> None:
        """Every row of a mixture is the row that its recipe alone would give, and each occurs."""
        tokens = tokens_of({0: 200})
        mixture = recipe_of("mix")
        values = build(mixture, tokens, (64,))
        alone = torch.stack([build(inner, tokens, (64,)) for inner in mixture.rows])

        matches = same_bits(alone, values.expand_as(alone)).all(dim=2)

        assert (matches.sum(dim=0) == 1).all()
        assert (matches.sum(dim=1) > 20).all()

    def test_a_mixture_over_a_parameter_draws_by_its_first_dimension(self) -> None:
        """Each index of the first dimension of a parameter is one of the recipes throughout."""
        mixture = recipe_of("mix")
        values = build(mixture, None, (60, 2, 64))
        alone = torch.stack([build(inner, None, (60, 2, 64)) for inner in mixture.rows])

        matches = same_bits(alone, values.expand_as(alone)).flatten(2).all(dim=2)

        assert (matches.sum(dim=0) == 1).all()
        assert (matches.sum(dim=1) > 2).all()

    def test_an_exponent_multiplies_by_a_power_of_two(self) -> None:
        """Every kind but `explicit` scales exactly, and a mixture hands its exponent down."""
        tokens = tokens_of(LENGTHS)

        for kind in ("ones", "normal", "pairs", "ties_squares", "mix"):
            plain = build(recipe_of(kind), tokens, (64,), torch.float32)
            scaled = build(recipe_of(kind, exponent=-7), tokens, (64,), torch.float32)
            assert same_bits(scaled, plain * 2.0**-7).all()

    def test_float16_reduces_an_exponent_that_is_too_large_for_all_values_alike(self) -> None:
        """A large exponent in float16 keeps the ratios of the values instead of clipping them."""
        tokens = tokens_of(LENGTHS)
        plain = build(recipe_of("pairs"), tokens, (64,), torch.float16).double()
        loud = build(recipe_of("pairs", exponent=10), tokens, (64,), torch.float16).double()

        ratio = float(loud.abs().max() / plain.abs().max())

        assert ratio in {1.0, 2.0}
        assert same_bits(loud, plain * ratio).all()


class TestExplicit:
    """Kind `explicit`: zero but for its points."""

    @staticmethod
    def points(*points: tuple[dict[str, int], float]) -> Recipe:
        """Return an explicit recipe."""
        listed = tuple(Point(at=at, value=value.hex()) for at, value in points)
        return Recipe(kind="explicit", points=listed)

    def test_points_lie_where_they_say_and_spread_over_other_axes(self) -> None:
        """Named axes place a point, and it is repeated over the others."""
        recipe = self.points(({"H": 2, "@": 0}, 4096.0), ({"H": 1, "#": 2, "@": 7}, -1.5))

        values = build(recipe, tokens_of(LENGTHS), (4,), torch.float32)

        expected = torch.zeros(17, 4)
        expected[[0, 5, 6, 14], 2] = 4096.0
        expected[13, 1] = -1.5
        assert same_bits(values, expected).all()

    def test_a_later_point_overrides_an_earlier_one(self) -> None:
        """Order counts within one set of axes and between sets."""
        recipe = self.points(({"H": 1}, 1.0), ({"H": 1}, 2.0), ({}, 3.0), ({"H": 0}, 4.0))

        values = build(recipe, tokens_of({0: 2}), (3,), torch.float32)

        assert values.tolist() == [[4.0, 3.0, 3.0]] * 2

    def test_points_out_of_range_are_ignored(self) -> None:
        """A shrunk size leaves points behind, which do no harm."""
        recipe = self.points(({"H": 9}, 1.0), ({"H": 0, "@": 99}, 1.0), ({"#": 77}, 1.0))

        assert not build(recipe, tokens_of({0: 2}), (3,)).any()

    def test_the_order_of_the_axes_of_a_point_does_not_count(self) -> None:
        """Naming D before H or after it is one place."""
        one = build(self.points(({"D": 1, "H": 2}, 1.0)), None, (3, 4))
        two = build(self.points(({"H": 2, "D": 1}, 1.0)), None, (3, 4))

        assert float(one[1, 2]) == 1.0
        assert same_bits(one, two).all()

    def test_values_too_large_become_the_largest_of_the_dtype(self) -> None:
        """1e300 is finite in every dtype."""
        for dtype in DTYPES:
            values = build(self.points(({}, -1e300)), None, (2,), dtype)
            assert values.tolist() == [-torch.finfo(dtype).max] * 2

    def test_thousands_of_points_are_written(self) -> None:
        """The support of a whole tensor can be listed, as shrinking does."""
        listed = [({"H": h, "@": t}, float(h + 100 * t)) for h in range(64) for t in range(40)]

        values = build(self.points(*listed), tokens_of({0: 40}), (64,), torch.float32)

        assert values.tolist() == [[float(h + 100 * t) for h in range(64)] for t in range(40)]

    def test_an_axis_that_the_tensor_lacks_is_refused(self) -> None:
        """The sentence names the tensor, the axis and the axes it has."""
        with pytest.raises(CaseError, match=r"x names axis='Z'.* @, #, H"):
            build(self.points(({"Z": 0}, 1.0)), tokens_of({0: 1}), (3,))
        with pytest.raises(CaseError, match="axis='@'"):
            build(self.points(({"@": 0}, 1.0)), None, (3,))


class TestTokens:
    """`expand_tokens`: indices into a vocabulary."""

    def test_indices_lie_in_the_vocabulary_and_reach_all_of_it(self) -> None:
        """500 tokens of a vocabulary of 7 use all seven."""
        tokens = tokens_of({0: 500})
        found = expand_tokens(seed=3, name="target", tokens=tokens, vocabulary=7)

        assert found.dtype == torch.int64
        assert set(found.tolist()) == set(range(7))
        assert not expand_tokens(seed=3, name="target", tokens=tokens, vocabulary=1).any()

    def test_removing_neighbours_changes_no_index(self) -> None:
        """A subset of tokens keeps its indices."""
        tokens = tokens_of(LENGTHS)
        chosen = torch.tensor([3, 11])
        whole = expand_tokens(seed=3, name="t", tokens=tokens, vocabulary=1000)
        part = expand_tokens(seed=3, name="t", tokens=tokens.at(chosen), vocabulary=1000)

        assert part.tolist() == whole[chosen].tolist()

    def test_partners_share_an_index(self) -> None:
        """Symmetric pairing over tokens gives partners one index."""
        found = expand_tokens(
            seed=3,
            name="t",
            tokens=tokens_of({0: 16}),
            vocabulary=100_000,
            pairing={"@": Pairing(role="symmetric", mask=3)},
        ).tolist()

        assert all(found[k] == found[k ^ 3] for k in range(16))
        assert len(set(found)) == 8

    def test_an_empty_vocabulary_is_refused(self) -> None:
        """A vocabulary of 0 is refused in one sentence."""
        with pytest.raises(CaseError, match="vocabulary=0"):
            expand_tokens(seed=3, name="t", tokens=tokens_of({0: 1}), vocabulary=0)


class TestArguments:
    """What callers can do wrong, and where the result lies."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.float8_e4m3fn], ids=str)
    def test_other_dtypes_are_refused(self, dtype: torch.dtype) -> None:
        """Dtypes without data are refused by name, also where nothing would be hashed."""
        for kind in ("zeros", "normal"):
            with pytest.raises(CaseError, match=str(dtype).removeprefix("torch.")):
                build(recipe_of(kind), None, (3,), dtype)

    def test_a_device_is_obeyed(self) -> None:
        """The meta device shows where a tensor is asked for."""
        values = expand(
            Recipe(kind="ones"),
            seed=1,
            name="x",
            tokens=None,
            dims=("H",),
            sizes=(3,),
            dtype=torch.float32,
            device="meta",
        )

        assert values.device.type == "meta"

    def test_one_block_bounds_the_temporaries(self) -> None:
        """Parts of a large shape cover it once, and hold no more than a block each."""
        shape = (37, 300, 5, 128)
        covered = torch.zeros(shape, dtype=torch.int32)

        for part in expand_module._parts(shape):
            covered[part] += 1
            assert math.prod(covered[part].shape) <= expand_module._BLOCK_ELEMENTS

        assert (covered == 1).all()

    def test_recipes_are_left_as_they_are(self) -> None:
        """Expanding changes no recipe."""
        recipe = recipe_of("mix", exponent=3)
        before = attrs.evolve(recipe)

        build(recipe, tokens_of(LENGTHS))

        assert recipe == before
