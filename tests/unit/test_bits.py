"""Bits are compared as they are, counted in elements and tokens, poisoned and digested."""

import math

import pytest
import torch

from biprop.bits import (
    Poison,
    any_differ,
    bit_pattern,
    compare,
    digest_bits,
    hex_of,
    poison_,
    poisoned,
    same_bits,
)
from biprop.errors import OutputError

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FLOATS_SMALL = [torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def nan_of(payload: int, dtype: torch.dtype) -> torch.Tensor:
    """Return one quiet NaN of `dtype` whose low bits are `payload`."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    quiet = {
        torch.float16: 0x7E00,
        torch.bfloat16: 0x7FC0,
        torch.float32: 0x7FC00000,
        torch.float64: 0x7FF8000000000000,
    }
    bits = torch.tensor([quiet[dtype] + payload], dtype=integers[dtype.itemsize])
    return bits.view(dtype)


class TestBitPattern:
    """`bit_pattern`: the integers behind the values."""

    def test_one_is_the_known_pattern(self) -> None:
        """1.0 is 0x3f800000 in float32, 0x3f80 in bfloat16 and 0x3c00 in float16."""
        assert bit_pattern(torch.tensor([1.0])).tolist() == [0x3F800000]
        assert bit_pattern(torch.tensor([1.0], dtype=torch.bfloat16)).tolist() == [0x3F80]
        assert bit_pattern(torch.tensor([1.0], dtype=torch.float16)).tolist() == [0x3C00]

    def test_strided_views_give_the_bits_of_their_own_elements(self) -> None:
        """A transposed and sliced view gives its elements, not the storage under it."""
        values = torch.arange(12.0).reshape(3, 4)

        strided = bit_pattern(values.T[1:3])

        assert strided.tolist() == bit_pattern(values.T[1:3].clone()).tolist()
        assert strided.shape == (2, 3)

    def test_bools_and_integers_have_bits_too(self) -> None:
        """Bools are bytes, integers are themselves, and complex64 is eight bytes wide."""
        assert bit_pattern(torch.tensor([True, False])).tolist() == [1, 0]
        assert bit_pattern(torch.tensor([-1], dtype=torch.int64)).tolist() == [-1]
        assert bit_pattern(torch.tensor([1j])).dtype == torch.int64

    def test_a_value_that_requires_grad_is_only_looked_at(self) -> None:
        """Taking bits records nothing for autograd."""
        assert not bit_pattern(torch.ones(2, requires_grad=True)).requires_grad

    def test_sixteen_bytes_an_element_are_refused(self) -> None:
        """Complex128 is refused with its name."""
        with pytest.raises(OutputError, match="complex128"):
            bit_pattern(torch.zeros(1, dtype=torch.complex128))


class TestSameBits:
    """`same_bits`: equality of patterns, with one exception for NaN."""

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_zeros_of_two_signs_differ(self, dtype: torch.dtype) -> None:
        """+0 is not -0."""
        plus, minus = torch.zeros(1, dtype=dtype), -torch.zeros(1, dtype=dtype)

        assert same_bits(plus, minus).tolist() == [False]
        assert same_bits(minus, minus.clone()).tolist() == [True]

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_nans_are_the_same_unless_payloads_are_asked_for(self, dtype: torch.dtype) -> None:
        """Two payloads are one NaN by default and two under `exact`; a NaN is itself under both."""
        one, two = nan_of(1, dtype), nan_of(2, dtype)

        assert same_bits(one, two).all()
        assert not same_bits(one, two, nan_payload="exact").any()
        assert same_bits(one, one.clone(), nan_payload="exact").all()

    @pytest.mark.parametrize("dtype", [*FLOATS, *FLOATS_SMALL], ids=str)
    def test_a_nan_against_a_number_differs(self, dtype: torch.dtype) -> None:
        """NaN differs from a number under both rules, on either side."""
        number, nan = torch.ones(1).to(dtype), torch.full((1,), float("nan")).to(dtype)

        assert not same_bits(number, nan).any()
        assert not same_bits(nan, number, nan_payload="exact").any()

    def test_complex_and_small_floats_follow_the_same_rules(self) -> None:
        """Both parts of a complex number count, and e5m2 has several NaNs."""
        small = torch.tensor([0x7D, 0x7D], dtype=torch.uint8).view(torch.float8_e5m2)
        other = torch.tensor([0x7E, 0x7D], dtype=torch.uint8).view(torch.float8_e5m2)

        plus, minus = torch.tensor([1 + 0j]), torch.tensor([complex(1, -0.0)])
        assert same_bits(plus, minus).tolist() == [False]
        assert same_bits(small, other).tolist() == [True, True]
        assert same_bits(small, other, nan_payload="exact").tolist() == [False, True]

    def test_one_unit_in_the_last_place_differs(self) -> None:
        """Neighbouring floats are two values, however close."""
        one = torch.ones(1)

        assert not same_bits(one, torch.nextafter(one, 2 * one)).any()

    @pytest.mark.parametrize(
        "other",
        [torch.zeros(2, 3), torch.zeros(3, 2, dtype=torch.bfloat16), torch.zeros(6)],
        ids=["shape", "dtype", "axes"],
    )
    def test_other_shapes_and_dtypes_are_refused(self, other: torch.Tensor) -> None:
        """Nothing is broadcast or converted before a comparison."""
        with pytest.raises(OutputError, match="Cannot compare canonical"):
            same_bits(torch.zeros(3, 2), other)


class TestCompare:
    """`compare`: counts, the first difference and the sizes of the errors."""

    def test_counts_elements_and_tokens(self) -> None:
        """Three elements in two of four tokens differ, the first in row-major order is named."""
        canonical = torch.ones(4, 2, 3)
        transformed = canonical.clone()
        transformed[1, 1, 0] = 1.5
        transformed[1, 1, 2] = 2.0
        transformed[3, 0, 1] = 0.0

        found = compare(canonical, transformed)

        assert (found.elements_compared, found.elements_differing) == (24, 3)
        assert (found.tokens_compared, found.tokens_differing) == (4, 2)
        assert found.first == (1, 1, 0)
        assert not found.same
        assert (found.max_abs_error, found.max_rel_error) == (1.0, 1.0)
        assert found.mean_abs_error == 2.5 / 24

    def test_equal_tensors_show_nothing(self) -> None:
        """Equal tensors, NaN included, give counts, no index and no error."""
        values = torch.tensor([[1.0, float("nan")], [float("inf"), -0.0]])

        found = compare(values, values.clone())

        assert found.same
        assert found.first is None
        assert (found.elements_compared, found.tokens_compared) == (4, 2)
        assert found.max_abs_error == found.mean_abs_error == found.max_rel_error == 0.0

    def test_errors_leave_out_what_is_not_finite(self) -> None:
        """NaN and infinities are counted as differences and stay out of the errors."""
        canonical = torch.tensor([float("nan"), 2.0, float("inf"), 0.0])
        transformed = torch.tensor([1.0, 3.0, 1.0, 0.25])

        found = compare(canonical, transformed)

        assert found.elements_differing == 4
        assert (found.max_abs_error, found.mean_abs_error) == (1.0, 0.625)
        # Whatever is not zero is infinitely far from a canonical zero, by its measure.
        assert found.max_rel_error == math.inf

    def test_zeros_of_different_sign_are_no_distance_apart(self) -> None:
        """They differ in bits, and 0 / 0 is no relative error."""
        found = compare(torch.tensor([0.0, 2.0]), torch.tensor([-0.0, 3.0]))

        assert found.elements_differing == 2
        assert (found.max_abs_error, found.max_rel_error) == (1.0, 0.5)

    def test_nothing_finite_gives_no_error_but_a_difference(self) -> None:
        """NaN against a number is NaN apart, infinity against one infinitely far; never 0."""
        # An equal number beside it is no difference that could be measured.
        found = compare(torch.tensor([float("nan"), 5.0]), torch.tensor([1.0, 5.0]))
        far = compare(torch.tensor([float("inf"), 5.0]), torch.tensor([1.0, 5.0]))

        assert not found.same
        assert math.isnan(found.max_abs_error)
        assert math.isnan(found.mean_abs_error)
        assert math.isnan(found.max_rel_error)
        assert (far.max_abs_error, far.max_rel_error) == (math.inf, math.inf)

    def test_a_tensor_without_axes_is_one_token(self) -> None:
        """A scalar counts as one element of one token, and its index is empty."""
        found = compare(torch.tensor(1.0), torch.tensor(2.0))

        assert (found.tokens_compared, found.tokens_differing, found.first) == (1, 1, ())

    def test_a_tensor_without_elements_compares_nothing(self) -> None:
        """No element means nothing compared, which is no evidence."""
        assert compare(torch.zeros(0, 3), torch.zeros(0, 3)).elements_compared == 0

    def test_integers_and_bools_are_compared(self) -> None:
        """Masks and indices count like floats."""
        assert compare(torch.tensor([True]), torch.tensor([False])).max_abs_error == 1.0
        assert compare(torch.tensor([3]), torch.tensor([5])).elements_differing == 1

    def test_subnormal_differences_are_seen(self) -> None:
        """The smallest subnormal differs from zero."""
        assert not compare(torch.zeros(1), torch.tensor([2.0**-149])).same


class TestHexOf:
    """`hex_of`: bits as a report prints them."""

    def test_patterns_are_padded_to_their_width(self) -> None:
        """Each dtype has its own number of digits, and negative patterns carry no sign."""
        assert hex_of(torch.tensor(1.0)) == "0x3f800000"
        assert hex_of(torch.tensor(-0.0, dtype=torch.bfloat16)) == "0x8000"
        assert hex_of(torch.tensor(0.0)) == "0x00000000"
        assert hex_of(torch.tensor([-1], dtype=torch.int64)) == "0xffffffffffffffff"

    def test_more_than_one_element_is_refused(self) -> None:
        """Two elements have no single pattern."""
        with pytest.raises(OutputError, match="2 elements"):
            hex_of(torch.zeros(2))


class TestPoison:
    """`poison_`: values that no kernel should return."""

    @pytest.mark.parametrize("dtype", [*FLOATS, *FLOATS_SMALL], ids=str)
    def test_floats_become_nan_or_large(self, dtype: torch.dtype) -> None:
        """The two poisons are a NaN and a finite number above 300."""
        nan = poison_(torch.zeros(3).to(dtype), "nan").float()
        large = poison_(torch.zeros(3).to(dtype), "large").double()

        assert nan.isnan().all()
        assert large.isfinite().all()
        assert (large > 300).all()

    def test_the_payload_is_not_the_one_that_arithmetic_makes(self) -> None:
        """A poisoned float32 can be told from 0/0."""
        made = torch.zeros(1) / torch.zeros(1)

        assert not same_bits(poison_(torch.zeros(1), "nan"), made, nan_payload="exact").any()

    @pytest.mark.parametrize("dtype", INTEGERS, ids=str)
    def test_integers_become_large_under_both(self, dtype: torch.dtype) -> None:
        """Integers have no NaN, so both poisons are one large positive number."""
        assert (poison_(torch.zeros(2, dtype=dtype), "nan") > 100).all()
        assert (poison_(torch.zeros(2, dtype=dtype), "large") > 100).all()

    def test_bools_become_true(self) -> None:
        """A bool can hold no other legal pattern."""
        assert poison_(torch.zeros(2, dtype=torch.bool), "nan").all()

    def test_complex_numbers_are_poisoned_in_both_parts(self) -> None:
        """Real and imaginary part are NaN, at both widths."""
        for dtype in (torch.complex64, torch.complex128):
            parts = torch.view_as_real(poison_(torch.zeros(2, dtype=dtype), "nan"))
            assert parts.isnan().all()

    def test_a_view_leaves_its_surroundings_alone(self) -> None:
        """Only the elements of a strided view are overwritten, and the view itself is returned."""
        storage = torch.zeros(4, 4)
        view = storage[1:3, ::2]

        assert poison_(view, "nan") is view
        assert int(storage.isnan().count_nonzero()) == 4

    def test_a_leaf_that_requires_grad_can_be_poisoned(self) -> None:
        """Poisoning is no operation of autograd."""
        leaf = torch.zeros(2, requires_grad=True)

        assert poison_(leaf, "nan").isnan().all()
        assert leaf.is_leaf


class TestDigestBits:
    """`digest_bits`: an identity of contents."""

    def test_known_digest(self) -> None:
        """The digest of one tensor is written down, so that another machine can disagree."""
        assert digest_bits(torch.arange(4.0)) == "689223f422ecb6dfb944a0c8456ac823"

    def test_shape_dtype_and_sign_of_zero_count(self) -> None:
        """Equal bytes of another shape or dtype, and -0 for +0, give other digests."""
        zeros = torch.zeros(4)
        others = [zeros.reshape(2, 2), zeros.to(torch.int32), -zeros, torch.zeros(5)]

        assert len({digest_bits(values) for values in [zeros, *others]}) == 5

    def test_strides_do_not_count(self) -> None:
        """A transposed view and its copy have one digest."""
        values = torch.arange(6.0).reshape(2, 3).T

        assert digest_bits(values) == digest_bits(values.clone())


class TestAnyDiffer:
    """`any_differ`: many pairs, one look."""

    def test_each_pair_has_its_own_answer(self) -> None:
        """Pairs of different shapes and dtypes are answered in their order, then the flags."""
        ones = torch.ones(3, 2)
        pairs = [
            (ones, ones.clone()),
            (torch.tensor([0.0]), torch.tensor([-0.0])),
            (torch.tensor([1], dtype=torch.int8), torch.tensor([2], dtype=torch.int8)),
            (torch.empty(0), torch.empty(0)),
        ]
        flags = [torch.tensor(True), torch.tensor(False)]

        assert any_differ(pairs, flags=flags) == (False, True, True, False, True, False)
        assert any_differ([]) == ()

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_nans_are_the_same_whatever_their_payload(self, dtype: torch.dtype) -> None:
        """A NaN differs from a number and from nothing else, as for `same_bits`."""
        first, second = nan_of(1, dtype), nan_of(2, dtype)

        assert any_differ([(first, second)]) == (False,)
        assert any_differ([(first, torch.ones_like(first))]) == (True,)

    def test_pairs_of_another_kind_are_refused(self) -> None:
        """What cannot be compared is no difference."""
        with pytest.raises(OutputError, match="Cannot compare"):
            any_differ([(torch.ones(2), torch.ones(3))])


@pytest.mark.parametrize("dtype", FLOATS)
def test_fresh_poison_is_one_in_every_format(dtype: torch.dtype) -> None:
    """Memory of no dtype yet is NaN, or large and finite, whatever it is read as, at any place."""
    cpu = torch.device("cpu")
    nan, large = (poisoned(31, poison, cpu)[:-4].view(torch.uint8) for poison in POISONS)

    for start in range(0, 16, dtype.itemsize):
        assert nan[start : start + 8].view(dtype).isnan().all()
        assert (large[start : start + 8].view(dtype) > 1e4).all()
        assert large[start : start + 8].view(dtype).isfinite().all()
    assert poisoned(31, "nan", cpu).nbytes == 32


POISONS: tuple[Poison, ...] = ("nan", "large")
