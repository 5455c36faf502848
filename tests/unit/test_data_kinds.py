"""Each kind has the range, the statistics and the exact sums that it promises."""

from fractions import Fraction

import pytest
import torch

from biprop.bits import bit_pattern, same_bits
from biprop.data.expand import Tokens, expand
from biprop.data.floats import float_of_bits, format_of, round_to, scaled
from biprop.data.recipe import KINDS, KINDS_CONDITIONED, Recipe
from biprop.errors import CaseError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def build(
    kind: str,
    size: int,
    *,
    rows: int = 64,
    dtype: torch.dtype = torch.float32,
    target: torch.Tensor | None = None,
) -> torch.Tensor:
    """Expand `[rows, size]` of a plain kind, peaks at the target where one is given."""
    token = torch.arange(rows, dtype=torch.int32)
    tokens = Tokens(
        sequence_id=torch.zeros_like(token), token=token, length=torch.full_like(token, rows)
    )
    return expand(
        Recipe(kind=kind, at_target=target is not None),
        seed=2,
        name="x",
        tokens=tokens,
        dims=("H",),
        sizes=(size,),
        dtype=dtype,
        target=target,
    )


class TestFloats:
    """Floats from bits, rounding and scaling."""

    def test_fraction_exponent_and_sign_come_from_the_bits(self) -> None:
        """Bit 30 is the sign, the low 23 bits the fraction; bits between are ignored."""
        words = torch.tensor([0, 0x400000, 0x40000000, 0x3F800000], dtype=torch.int32)
        exponents = torch.tensor([0, 3, -2, -126], dtype=torch.int32)

        assert float_of_bits(exponents, words).tolist() == [1.0, 12.0, -0.25, 2.0**-126]

    def test_scaling_is_exact_inside_the_range(self) -> None:
        """A power of two moves the exponent and nothing else."""
        values = build("normal", 64)

        assert same_bits(scaled(scaled(values.clone(), -60), 60), values).all()

    def test_rounding_treats_both_signs_alike(self) -> None:
        """Rounding to a narrow dtype commutes with the sign, and clips only what is unbounded."""
        values = build("pairs", 256)

        for dtype in (torch.bfloat16, torch.float16):
            plus = round_to(values.clone(), dtype, bounded=True)
            minus = round_to(-values, dtype, bounded=True)
            assert same_bits(plus, -minus).all()
        huge = torch.tensor([3e38, -1e30])
        assert round_to(huge, torch.float16, bounded=False).tolist() == [65504.0, -65504.0]

    def test_other_dtypes_have_no_format(self) -> None:
        """float64 has no data."""
        with pytest.raises(CaseError, match="float64"):
            format_of(torch.float64)


class TestConditioned:
    """Kinds on which a healthy kernel is accurate."""

    def test_they_are_kinds(self) -> None:
        """Every conditioned kind is a kind."""
        assert set(KINDS_CONDITIONED) < set(KINDS)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_normal_has_unit_deviation(self, dtype: torch.dtype) -> None:
        """Mean 0, deviation 1, three quarters of an octave of tails, no value beyond 3.5."""
        values = build("normal", 1024, dtype=dtype).double()

        assert abs(float(values.mean())) < 0.01
        assert abs(float(values.std()) - 1.0) < 0.01
        assert abs(float((values.abs() < 1).double().mean()) - 0.67) < 0.02
        assert 3.0 < float(values.abs().max()) < 3.5

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_uniform_fills_the_interval(self, dtype: torch.dtype) -> None:
        """Uniform values have deviation 3**-0.5 and do not leave [-1, 1]."""
        values = build("uniform", 1024, dtype=dtype).double()

        assert abs(float(values.mean())) < 0.01
        assert abs(float(values.std()) - 3**-0.5) < 0.01
        assert float(values.abs().max()) <= 1.0

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_integers_are_equally_likely(self, dtype: torch.dtype) -> None:
        """The nine integers from -4 to 4 occur, each in 10 to 12 % of the elements, never -0."""
        values = build("integers", 1024, dtype=dtype)
        counts = torch.bincount((values.long() + 4).flatten(), minlength=9)

        assert set(values.flatten().tolist()) == {float(v) for v in range(-4, 5)}
        assert int(counts.min()) / values.numel() > 0.10
        assert int(counts.max()) / values.numel() < 0.12
        assert same_bits(values, values + 0.0).all()

    @pytest.mark.parametrize("kind", ["normal", "uniform"])
    def test_elements_are_uncorrelated(self, kind: str) -> None:
        """Neighbours along the row, and neighbouring rows, correlate below 2 %."""
        values = build(kind, 1024)
        for one, other in ((values[:, 1:], values[:, :-1]), (values[1:], values[:-1])):
            pair = torch.stack((one.flatten(), other.flatten()))
            assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.02


class TestSpread:
    """Kinds that spread over many binades."""

    @pytest.mark.parametrize(
        ("kind", "dtype", "lowest", "highest"),
        [
            ("wide", torch.float32, -20, 0),
            ("wide", torch.float16, -7, 13),
            ("pairs", torch.float32, -24, 0),
            ("pairs", torch.bfloat16, -24, 0),
            ("pairs", torch.float16, -11, 13),
            ("swamp", torch.float32, -26, 0),
            ("swamp", torch.float16, -13, 13),
        ],
    )
    def test_exponents_reach_from_end_to_end(
        self, kind: str, dtype: torch.dtype, lowest: int, highest: int
    ) -> None:
        """Each kind has its binades, in float16 moved into the normal range."""
        values = build(kind, 1024, dtype=dtype).double()
        # frexp counts from 1/2; a fraction that rounds up reaches the next binade.
        exponents = torch.frexp(values)[1] - 1

        assert int(exponents.min()) == lowest
        assert int(exponents.max()) in {highest, highest + 1}
        assert 0.45 < float((values > 0).double().mean()) < 0.55

    def test_pairs_spread_evenly(self) -> None:
        """No binade of `pairs` has twice or half its share."""
        exponents = torch.frexp(build("pairs", 1024))[1]
        counts = torch.bincount((exponents + 23).flatten())

        assert len(counts) == 25
        assert int(counts.min()) * 2 > 65536 // 25
        assert int(counts.max()) < 2 * 65536 // 25

    def test_swamp_is_big_and_crowd(self) -> None:
        """Three tenths are big, nothing lies between, and both parts fill their binades."""
        exponents = torch.frexp(build("swamp", 1024))[1] - 1
        big = exponents >= -2

        assert 0.28 < float(big.float().mean()) < 0.34
        assert set(exponents.flatten().tolist()) == {0, -1, -2, -22, -23, -24, -25, -26}

    def test_iota_counts_and_tells_rows_apart(self) -> None:
        """The first row counts in sixty-fourths, and 64 rows are all different."""
        values = build("iota", 8)

        assert (values[0] * 64).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
        assert len({tuple(row) for row in values.tolist()}) == 64

    @pytest.mark.parametrize("kind", ["zeros", "ones", "integers", "iota", "ties_exponentials"])
    def test_simple_kinds_need_no_rounding(self, kind: str) -> None:
        """Their values are the same numbers in every dtype."""
        exact = build(kind, 300)

        for dtype in (torch.bfloat16, torch.float16):
            if kind == "ties_exponentials" and dtype == torch.float16:
                continue  # float16 has ties of its own
            assert same_bits(build(kind, 300, dtype=dtype).float(), exact).all()


class TestPeaks:
    """Kinds with a peak."""

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("kind", ["peak_exponentials", "ties_exponentials"])
    def test_the_peak_is_zero_and_lies_at_the_target(self, kind: str, dtype: torch.dtype) -> None:
        """Exactly one element is 0, at the target if there is one, and none is above."""
        target = torch.arange(64) * 7 % 300
        values = build(kind, 300, dtype=dtype, target=target)
        drawn = build(kind, 300, dtype=dtype)

        assert values.argmax(dim=1).tolist() == target.tolist()
        for found in (values, drawn):
            assert ((found == 0).sum(dim=1) == 1).all()
            assert (found <= 0).all()
        assert len(set(drawn.argmax(dim=1).tolist())) > 30

    def test_targets_beyond_the_row_wrap_around(self) -> None:
        """A row shorter than the vocabulary still has its peak."""
        values = build("peak_exponentials", 10, target=torch.full((64,), 23))

        assert (values[:, 3] == 0).all()

    def test_peak_squares_has_few_peaks_over_a_crowd(self) -> None:
        """At least one element in [1, 1.25), under a twentieth of them, the rest near 2**-12."""
        values = build("peak_squares", 512).abs()
        high = values >= 1

        assert high.any(dim=1).all()
        assert float(high.float().mean()) < 0.05
        assert float(values.max()) < 1.25
        assert float(values[~high].max()) < 2.0**-11
        assert float(values[~high].min()) >= 2.0**-13

    def test_crowds_of_exponentials_lie_around_half_an_ulp(self) -> None:
        """Live elements lie between -17.5 and -14.5; half of the long rows are thinned."""
        values = build("peak_exponentials", 2048)
        live = (values < 0) & (values > -40)
        counts = live.sum(dim=1)

        assert float(values[live].max()) <= -14.5
        assert float(values[live].min()) > -17.5
        assert 20 < int((counts < 300).sum()) < 44
        assert (counts[counts >= 300] > 2000).all()


class TestPeakKeys:
    """Keys with one peak in each sequence."""

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("size", [1, 16, 50, 128, 4096])
    def test_scores_are_one_peak_and_a_crowd(self, dtype: torch.dtype, size: int) -> None:
        """Divided by the root of the size, one score is 0 and the others lie around half an ulp."""
        values = build("peak_keys", size, dtype=dtype).double()
        scores = values.sum(dim=1) / size**0.5
        crowd = scores[scores < 0]

        assert not values[:, 1:].any()
        assert len(crowd) == 63
        # The root is floored to 1 / 1024 and the product rounded to 8 bits.
        assert float(crowd.max()) <= -14.4
        assert float(crowd.min()) >= -17.6
        assert len(set(crowd.tolist())) > 10

    def test_the_peak_is_the_first_token_or_an_early_one(self) -> None:
        """Half of the sequences have it at token 0, the others among the first 16 that they own."""
        places = []
        for key, length in [*((key, 40) for key in range(400)), *((key, 3) for key in range(400))]:
            token = torch.arange(length, dtype=torch.int32)
            tokens = Tokens(
                sequence_id=torch.full_like(token, key),
                token=token,
                length=torch.full_like(token, length),
            )
            recipe = Recipe(kind="peak_keys")
            values = expand(
                recipe,
                seed=3,
                name="k",
                tokens=tokens,
                dims=("H", "D"),
                sizes=(2, 4),
                dtype=torch.float32,
            )
            is_peak = values[:, :, 0] == 0
            assert is_peak.sum(dim=0).tolist() == [1, 1]
            assert same_bits(is_peak[:, 0].float(), is_peak[:, 1].float()).all()
            places.append(int(is_peak[:, 0].nonzero()))
        long, short = places[:400], places[400:]

        assert 180 < long.count(0) < 250
        assert set(long) == set(range(16))
        assert set(short) == {0, 1, 2}

    def test_a_parameter_has_no_peak(self) -> None:
        """Without tokens there is no key to be the peak."""
        values = expand(
            Recipe(kind="peak_keys"),
            seed=3,
            name="k",
            tokens=None,
            dims=("D",),
            sizes=(8,),
            dtype=torch.float32,
        )

        assert not values.any()


class TestTies:
    """Kinds whose sum lies at a tie of the output."""

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("size", [16, 17, 64, 250, 256, 1024, 4096])
    def test_squares_reach_one_of_two_totals(self, dtype: torch.dtype, size: int) -> None:
        """The exact mean square is 4**e or 4/9 of it, to half an ulp of float32, and the mean 0."""
        values = build("ties_squares", size, dtype=dtype).double()
        # Exact in float64: integers of 11 bits at most, on one grid.
        ratios = (values * values).sum(dim=1) / size / 4.0 ** format_of(dtype).ties_exponent
        near_one, near_tie = (ratios - 1).abs() < 2.0**-24, (ratios * 2.25 - 1).abs() < 2.0**-24

        assert (near_one | near_tie).all()
        assert 0.5 < float(near_tie.double().mean()) < 0.82
        assert not values.sum(dim=1).any()

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_squares_have_elements_on_ties_of_the_output(self, dtype: torch.dtype) -> None:
        """Each row holds odd integers of the precision whose product with 1.5 is a tie."""
        number_format = format_of(dtype)
        values = build("ties_squares", 256, dtype=dtype).double().abs()
        unit = 2.0 ** (number_format.ties_exponent - 1 - number_format.precision)
        integers = values / unit
        top = 2**number_format.precision
        odd = (integers % 2 == 1) & (integers > top / 2) & (integers < top * 2 / 3)

        assert (odd.sum(dim=1) >= 2).float().mean() > 0.9

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("size", [16, 64, 256, 1000, 4096, 30000])
    def test_exponentials_reach_the_tie(self, dtype: torch.dtype, size: int) -> None:
        """The exact sum of exponentials is 1 / (1 - 2**-(p + 1)), to half an ulp of float32."""
        values = build("ties_exponentials", size, rows=16, dtype=dtype).double()
        tie = 1 / (1 - Fraction(1, 2 << format_of(dtype).precision))

        errors = (values.exp().sum(dim=1) - float(tie)).abs()

        assert float(errors.max()) < 2.0**-24
        assert float(errors.median()) < 2.0**-26

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("kind", ["ties_squares", "ties_exponentials"])
    def test_values_are_exact_in_their_dtype(self, kind: str, dtype: torch.dtype) -> None:
        """No value is rounded: bfloat16 keeps the low bits of float32 zero."""
        values = build(kind, 512, dtype=dtype).float()
        spare = {torch.float32: 16, torch.bfloat16: 16, torch.float16: 13}[dtype]

        assert not (bit_pattern(values) & ((1 << spare) - 1)).any()

    @pytest.mark.parametrize("size", [1, 3, 7, 15])
    def test_short_rows_hold_something(self, size: int) -> None:
        """Rows too short for a design hold varied numbers of the same magnitude."""
        squares = build("ties_squares", size)
        exponentials = build("ties_exponentials", size)

        assert (squares.abs() >= 2.0**12).all()
        assert (squares.abs() < 2.0**13).all()
        assert len(set(squares.flatten().tolist())) > 20
        assert (exponentials <= 0).all()
