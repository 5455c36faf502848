"""The hash is one function in Python and on tensors, and scatters whatever it is given."""

import decimal

import pytest
import torch

from biprop.data.counter import mix_, word
from biprop.data.exponentials import FRACTION_BITS, INDEX_LAST, STEPS_PER_UNIT, exponentials
from biprop.data.words import hash_words, mix_word, salt_of_axis, signed

NUMBERS = [0, 1, 2, 3, 255, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF]


class TestMix:
    """`mix_` and `mix_word`."""

    def test_python_and_tensors_agree(self) -> None:
        """Both give the same word for small, large and random numbers."""
        numbers = NUMBERS + [hash_words(index) for index in range(2000)]
        words = torch.tensor([signed(number) for number in numbers], dtype=torch.int32)

        mixed = mix_(words).tolist()

        assert mixed == [signed(mix_word(number)) for number in numbers]

    def test_known_words(self) -> None:
        """Some words are written down, so that another machine can disagree."""
        assert [mix_word(number) for number in (0, 1, 2)] == [0, 114555507, 229111015]
        assert hash_words("x", 1) == 20057383

    def test_it_is_a_permutation(self) -> None:
        """No two of 2**16 consecutive numbers share a word."""
        words = mix_(torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32))

        assert len(set(words.tolist())) == 1 << 16

    def test_every_input_bit_reaches_every_output_bit(self) -> None:
        """Flipping one bit of 4,096 numbers flips each output bit in 35 to 65 % of them."""
        numbers = mix_(torch.arange(4096, dtype=torch.int32))
        plain = mix_(numbers.clone())

        for bit in range(32):
            changed = plain ^ mix_(numbers ^ word(1 << bit))
            shares = [float(((changed >> place) & 1).abs().float().mean()) for place in range(32)]
            assert min(shares) > 0.35
            assert max(shares) < 0.65


class TestHashWords:
    """`hash_words`: parts of a key folded into a word."""

    def test_order_and_every_part_count(self) -> None:
        """Exchanged, added and changed parts give other words."""
        keys = [("a", "b"), ("b", "a"), ("a",), ("a", "b", 0), ("ab",), ("a", 1), (1, "a")]

        assert len({hash_words(*key) for key in keys}) == len(keys)

    def test_a_word_has_32_bits(self) -> None:
        """Words are 0 or more and below 2**32, also for negative and long parts."""
        for part in (-1, 1 << 40, "é", ""):
            assert 0 <= hash_words(part) < 1 << 32


class TestWord:
    """`word`, `signed` and `salt_of_axis`: constants of 32 bits."""

    @pytest.mark.parametrize("number", NUMBERS)
    def test_constants_keep_their_low_bits(self, number: int) -> None:
        """The tensor and the integer are the int32 of the same bits."""
        assert int(word(number)) & 0xFFFFFFFF == number
        assert signed(number) & 0xFFFFFFFF == number
        assert word(number).dtype == torch.int32

    def test_axes_have_odd_salts_of_their_own(self) -> None:
        """Eight axes have eight odd salts, so that no coordinate is lost."""
        salts = [salt_of_axis(axis) & 0xFFFFFFFF for axis in range(8)]

        assert len(set(salts)) == 8
        assert all(salt % 2 for salt in salts)


class TestExponentials:
    """`exponentials`: the integer table of exp."""

    def test_every_entry_is_the_nearest_integer(self) -> None:
        """Each entry equals the correctly rounded exp of its own argument, computed afresh."""
        context = decimal.Context(prec=60)
        scale = decimal.Decimal(1 << FRACTION_BITS)
        exact = [
            context.multiply(
                context.exp(context.divide(decimal.Decimal(-k), STEPS_PER_UNIT)), scale
            )
            for k in range(INDEX_LAST + 1)
        ]

        assert exponentials() == tuple(int(value.to_integral_value()) for value in exact)

    def test_known_entries(self) -> None:
        """exp(0), exp(-1) and exp(-16), in units of 2**-40, are written down."""
        table = exponentials()

        assert (table[0], table[16], table[256]) == (1 << 40, 404487723188, 123734)
        assert table[INDEX_LAST] == 0
