"""Targets and fixed arguments are read without importing or evaluating anything."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biprop.errors import TargetError, UsageError
from biprop.signature import parse_call, parse_target


def refusal(read: Callable[[str], object], text: str) -> str | None:
    """Return the sentence with which a text is refused, None if it is read."""
    try:
        read(text)
    except (TargetError, UsageError) as error:
        return str(error)
    return None


class TestParseTarget:
    """Names of callables, without importing them."""

    @pytest.mark.parametrize(
        ("text", "module", "file", "name"),
        [
            ("torch.nn.functional:linear", "torch.nn.functional", None, "linear"),
            ("my_kernels.py:rms_norm", None, "my_kernels.py", "rms_norm"),
            ("./a b/é.py:Norm.forward", None, "./a b/é.py", "Norm.forward"),
            ("C:\\kernels.py:norm", None, "C:\\kernels.py", "norm"),
            (" json : dumps ", "json", None, "dumps"),
        ],
    )
    def test_modules_and_files_are_told_apart(
        self, text: str, module: str | None, file: str | None, name: str
    ) -> None:
        """A file ends with .py, everything else is a dotted module."""
        found = parse_target(text)

        assert (found.module, found.file, found.name) == (module, file, name)
        assert parse_target(found.text) == found

    @given(st.text(max_size=30))
    def test_any_text_is_read_or_refused_with_a_sentence(self, text: str) -> None:
        """No other error gets out."""
        sentence = refusal(parse_target, text)

        assert sentence is None or (sentence.endswith(".") and sentence.isprintable())


class TestParseCall:
    """Fixed arguments, without evaluating them."""

    def test_literals_are_read(self) -> None:
        """Integers, floats, booleans and None have their own types."""
        found = parse_call("eps=1e-6, n = -3, a=+.5, b=2., flag=True, off=False, none=None")

        assert found == {
            "eps": 1e-6,
            "n": -3,
            "a": 0.5,
            "b": 2.0,
            "flag": True,
            "off": False,
            "none": None,
        }
        assert [type(value) for value in found.values()] == [
            float,
            int,
            float,
            float,
            bool,
            bool,
            type(None),
        ]

    def test_an_empty_text_fixes_nothing(self) -> None:
        """Leaving the option out and leaving it empty are the same."""

        assert parse_call(" ") == {}

    @given(st.dictionaries(st.sampled_from(["a", "eps", "n_1"]), st.integers() | st.floats()))
    def test_a_number_reads_back_as_itself_or_is_refused(
        self, call: dict[str, int | float]
    ) -> None:
        """What Python prints of a finite number is read as that number, bit for bit."""
        text = ", ".join(f"{name}={value!r}" for name, value in call.items())
        plain = all(
            abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)
            for value in call.values()
        )

        if plain:
            found = parse_call(text)
            assert {name: repr(value) for name, value in found.items()} == {
                name: repr(value) for name, value in call.items()
            }
        else:
            assert "write a finite number" in (refusal(parse_call, text) or "")

    @given(st.text(alphabet="ae=1.,+-_TrueNone ()'[]\\", max_size=24))
    def test_any_text_is_read_or_refused_with_a_sentence(self, text: str) -> None:
        """No other error gets out."""
        sentence = refusal(parse_call, text)

        assert sentence is None or (sentence.endswith(".") and sentence.isprintable())
