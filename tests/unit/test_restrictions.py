"""Restrictions of dimensions admit what they say, print back, and fail with a sentence only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biprop.errors import RestrictionError
from biprop.signature import (
    Domain,
    Remainder,
    Restrictions,
    parse_restrictions,
    parse_signature,
)
from biprop.signature.words import NUMBER_MAX


@st.composite
def restriction_texts(draw: st.DrawFn) -> str:
    """Texts of satisfiable restrictions, in odd spacing; shrink towards none."""
    gap = st.sampled_from(["", " "])
    terms = []
    for name in draw(st.lists(st.sampled_from("ABCDE"), unique=True, max_size=4)):
        low = draw(st.integers(1, 999))
        equals = f"{draw(gap)}={draw(gap)}"
        form = draw(st.sampled_from(["range", "choices", "remainder"]))
        if form == "range":
            terms.append(f"{name}{equals}{low}{draw(gap)}..{draw(gap)}{low + 64}")
        elif form == "choices":
            sizes = draw(st.lists(st.integers(1, 999), min_size=1, max_size=4))
            terms.append(name + equals + f"{draw(gap)}|{draw(gap)}".join(map(str, sizes)))
        else:
            terms.append(f"{name}{draw(gap)}%{draw(gap)}{low}{draw(gap)}=={draw(gap)}{low - 1}")
    return draw(st.sampled_from([" ", ", ", "  "])).join(terms)


def refusal(text: str) -> str | None:
    """Return the sentence with which a text is refused, None if it is read."""
    try:
        parse_restrictions(text)
    except RestrictionError as error:
        return str(error)
    return None


class TestParse:
    """Reading the text of `--dims`."""

    def test_every_form_is_read(self) -> None:
        """Ranges, choices, single sizes, and divisions by a number or another dimension."""
        found = parse_restrictions("H=1..8192 H%8==0 D=64|16|32 HQ%HK==0 V=17 E%4==3")

        assert found.domains == (
            Domain(name="H", low=1, high=8192),
            Domain(name="D", low=16, high=64, choices=(16, 32, 64)),
            Domain(name="V", low=17, high=17, choices=(17,)),
        )
        assert found.remainders == (
            Remainder(name="H", divisor=8),
            Remainder(name="HQ", divisor="HK"),
            Remainder(name="E", divisor=4, remainder=3),
        )

    @pytest.mark.parametrize("text", ["", "  ", " , "])
    def test_an_empty_text_restricts_nothing(self, text: str) -> None:
        """Leaving the option out and leaving it empty are the same."""

        assert parse_restrictions(text) == Restrictions()

    @given(restriction_texts())
    def test_what_is_read_prints_back(self, text: str) -> None:
        """The normalised text means the same, and is normal itself."""
        found = parse_restrictions(text)

        assert parse_restrictions(found.text) == found
        assert parse_restrictions(found.text).text == found.text

    @given(st.text(alphabet="HD12 =.|%<>,;-x", max_size=24))
    def test_any_text_is_read_or_refused_with_a_sentence(self, text: str) -> None:
        """No other error gets out."""
        sentence = refusal(text)

        assert sentence is None or (sentence.endswith(".") and sentence.isprintable())

    @pytest.mark.parametrize(
        "text",
        [
            "H=1..7 H%8==0",
            "H=6 H%4==0",
            "H%6==1 H%4==0",
            "H=65537..131071 H%65536==0",
            "A=5..7 D=8..9 A%D==0",
        ],
    )
    def test_restrictions_that_no_size_meets_are_refused(self, text: str) -> None:
        """Drawing would never end."""

        with pytest.raises(RestrictionError, match="leaves no size"):
            parse_restrictions(text)

    @pytest.mark.parametrize(
        "text", ["H=7..8 H%8==0", "H%6==1 H%4==3", "A=5..16 D=8..9 A%D==0", "H=16777216 H%2==0"]
    )
    def test_restrictions_that_one_size_meets_are_kept(self, text: str) -> None:
        """The search for a size misses none."""

        assert parse_restrictions(text).text == text

    def test_coprime_divisors_are_settled_quickly(self) -> None:
        """Sixty conditions are searched in steps of the largest, not one size at a time."""
        text = " ".join(f"H%{divisor}==1" for divisor in range(2, 62))

        with pytest.raises(RestrictionError, match="leaves no size for H"):
            parse_restrictions(f"H=2..{NUMBER_MAX} {text}")


class TestAdmits:
    """Asking the record."""

    def test_sizes_that_break_a_term_are_named(self) -> None:
        """The answer names the sizes and the term."""
        found = parse_restrictions("H=1..64 H%8==0 D=16|32 HQ%HK==0")

        assert found.violation({"H": 72}) == "H=72 is outside of H=1..64"
        assert found.violation({"H": 63}) == "H=63 does not meet H%8==0"
        assert found.violation({"D": 24}) == "D=24 is outside of D=16|32"
        assert found.violation({"HQ": 6, "HK": 4}) == "HQ=6, HK=4 does not meet HQ%HK==0"

    def test_sizes_that_break_none_are_admitted(self) -> None:
        """Dimensions without a restriction, or not drawn yet, break nothing."""
        found = parse_restrictions("H=1..64 H%8==0 HQ%HK==0")

        assert found.admits({"H": 64, "N": 1, "HQ": 3})
        assert found.admits({"HQ": 8, "HK": 4})
        assert found.admits({})

    def test_a_dimension_without_restriction_has_every_size(self) -> None:
        """The domain is as wide as numbers go."""

        assert parse_restrictions("H=8").domain("N") == Domain(name="N", low=1, high=NUMBER_MAX)
        assert parse_restrictions("H=8..9").domain("H").admits(9)
        assert not parse_restrictions("H=8..9").domain("H").admits(10)


class TestCheckAgainst:
    """Restrictions and signature together."""

    def test_divisions_of_the_signature_are_added(self) -> None:
        """A dimension H/4 is whole only where H is a multiple of 4."""
        signature = parse_signature("x[T,H] -> y[T,H/4], z[T,H/4]")

        found = parse_restrictions("H=1..64").check_against(signature)

        assert found.text == "H=1..64 H%4==0"
        assert not found.admits({"H": 6})

    def test_restrictions_that_fit_are_returned_as_they_are(self) -> None:
        """Nothing is added where nothing is divided, ranges of tokens included."""
        signature = parse_signature("t: token(V)[T], w[V,H] -> y[T,H]")
        found = parse_restrictions("H=8 V=1..9")

        assert found.check_against(signature) is found

    @pytest.mark.parametrize("text", ["K=8", "HQ%H==0", "H%HQ==0", "S=4", "T%8==0"])
    def test_a_name_that_is_no_free_dimension_is_refused(self, text: str) -> None:
        """Misspelt names and token axes would restrict nothing."""

        with pytest.raises(RestrictionError, match=r"no free dimension|is a token axis"):
            parse_restrictions(text).check_against(parse_signature("x[T,H] -> y[T,H]"))
