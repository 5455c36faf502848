"""Signatures are read, answer for themselves, print back, and fail with a sentence only."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biprop.errors import SignatureError
from biprop.signature import Argument, Dim, Signature, parse_signature

RMS_NORM = "x[T,H], weight[H] -> y[T,H], rstd: float32[T]"
# Every kind of argument, once at least, in normal form.
EVERY_KIND = (
    RMS_NORM,
    RMS_NORM.replace("T", "B,S") + "; token_local",
    "x[T,K], weight[N,K], out![T,N] ->",
    "x![T,H], scale: scalar -> _",
    "tokens: token(V)[T], weight[V,H] -> y[T,H]",
    "x[T,H], m: mask[T], p: position[T], o: order[T] -> y[T,H*2], z[T,H+1], v[T,8]",
    "x[T,H], offsets: offsets[B+1], n: lengths[B], longest: max_length, bias[B,H] -> y[B,H]",
    "x[B,S,H], mask: float[B,S], order!: float[B,S] -> y[B,S,H]",
    "x[S,B,H], m: mask[B,1,S], n: lengths[B] -> y[S,B,H/2]",
    "q[B,HQ,Q,D], k[B,HK,C,D], v[B,HK,C,D], m: causal_mask[B,1,Q,C], c: is_causal -> o[B,HQ,Q,D]",
    "q[B,H,1,D], k[B,H,C,D], m: causal_mask(float)[1,C], n: lengths(C)[B] -> o[B,H,1,D]",
    "q[B,H,Q,D], k[B,H,C,D], mq: mask[B,Q], mc: mask[B,1,1,C] -> o[B,H,Q,D], lse: float32[B,H,Q]",
    "q[TQ,H,D], k[TC,H,D], oq: offsets(Q)[B+1], oc: offsets(C)[B+1], n: max_length(Q) -> o[TQ,H,D]",
    "q[TQ,H,D], k[TC,H,D], m: causal_mask[TQ,TC], p: position[TC] -> o[TQ,H,D]",
    "x[T,H], i: int64[T,H], b: bool[N], u: uint8[T], d: float64[T] -> y: float16[T,H], k: int32[T]",
)


@st.composite
def signature_texts(draw: st.DrawFn) -> tuple[str, str]:
    """Pairs of one signature, in normal form and oddly written; shrink towards `x0[T] -> y0[T]`."""
    axes = draw(st.sampled_from(["T", "B,S", "B,Q", "TQ"]))
    free = st.sampled_from(["H", "H*2", "H/2", "K+1", "8"])
    ends = {"T": "", "B,S": "", "B,Q": "(Q)", "TQ": "(Q)"}[axes]
    arguments = [f"x0[{axes},H,K]"]
    if axes == "TQ":
        arguments.append("ends: offsets(Q)[B+1]")
    for index in range(draw(st.integers(0, 5))):
        name = f"a{index}"
        dims = ",".join([axes, *draw(st.lists(free, max_size=3))])
        kind = draw(st.sampled_from(["", ": float32", ": int64", ": bool"]))
        arguments.append(
            draw(
                st.sampled_from(
                    [
                        f"{name}{kind}[{dims}]",
                        f"{name}!{kind}[{dims}]",
                        f"out_{name}![{dims}]",
                        f"{name}{kind}[K,H]",
                        f"{name}: token(V)[{axes}]",
                        f"{name}: position[{axes}]",
                        f"{name}: mask[{axes}]",
                        f"{name}: order[{axes}]",
                        f"{name}: lengths{ends}[B]",
                        f"{name}: offsets{ends}[B+1]",
                        f"{name}: max_length{ends}",
                        f"{name}: scalar",
                    ]
                )
            )
        )
    outputs = [f"y0[{axes}]"]
    for index in range(1, draw(st.integers(1, 3))):
        dims = ",".join([axes, *draw(st.lists(free, max_size=2))])
        outputs.append(draw(st.sampled_from(["_", f"y{index}: bfloat16[{dims}]"])))
    option = "; token_local" if axes in {"T", "B,S"} and draw(st.booleans()) else ""
    text = f"{', '.join(arguments)} -> {', '.join(outputs)}{option}"
    gap = draw(st.sampled_from(["", " ", "  ", "\n\t"]))
    odd = text
    for mark in (",", "[", "]", "(", ")", ":", ";", "->", "*", "/", "+"):
        odd = odd.replace(mark, f"{gap}{mark}{gap}")
    return text, odd


def refusal(text: str) -> str | None:
    """Return the sentence with which a text is refused, None if it is read."""
    try:
        parse_signature(text)
    except SignatureError as error:
        return str(error)
    return None


class TestParseSignature:
    """The notation of forward signatures."""

    @pytest.mark.parametrize("text", EVERY_KIND)
    def test_every_kind_is_read_and_prints_back(self, text: str) -> None:
        """A text in normal form is a fixed point."""
        found = parse_signature(text)

        assert found.text == text
        assert parse_signature(found.text) == found

    @given(signature_texts())
    def test_odd_spacing_changes_nothing(self, texts: tuple[str, str]) -> None:
        """Whatever is written where space may stand, the same signature is read."""
        normal, odd = texts

        found = parse_signature(odd)

        assert found.text == normal
        assert found == parse_signature(normal)

    @given(signature_texts(), st.data())
    def test_a_damaged_signature_is_read_or_refused_with_a_sentence(
        self, texts: tuple[str, str], data: st.DataObject
    ) -> None:
        """One character put in, taken out or exchanged never raises anything else."""
        text = texts[0]
        at = data.draw(st.integers(0, len(text) - 1))
        width = data.draw(st.integers(0, 2))
        other = data.draw(st.text(alphabet="[](),:;!->_ TBSQCH*/+0129xé\x00", max_size=2))
        damaged = text[:at] + other + text[at + width :]

        sentence = refusal(damaged)

        assert sentence is None or (sentence.endswith(".") and sentence.isprintable())
        if sentence is None:
            found = parse_signature(damaged)
            assert parse_signature(found.text) == found

    @given(st.text(max_size=40))
    def test_any_text_is_read_or_refused_with_a_sentence(self, text: str) -> None:
        """No text raises anything else."""
        sentence = refusal(text)

        assert sentence is None or (sentence.endswith(".") and sentence.isprintable())

    def test_items_have_the_parts_that_are_written(self) -> None:
        """Name, mark, kind, parameter and dimensions are taken apart."""
        found = parse_signature("x![T,H*2], t: token(V)[T], n: lengths[B], eps: scalar -> _, y[T]")

        assert found.arguments == (
            Argument(
                name="x",
                dims=(Dim(name="T"), Dim(name="H", operation="*", number=2)),
                marked=True,
            ),
            Argument(name="t", kind="token", parameter="V", dims=(Dim(name="T"),)),
            Argument(name="n", kind="lengths", parameter="T", dims=(Dim(name="B"),)),
            Argument(name="eps", kind="scalar"),
        )
        assert found.outputs == (
            Argument(name="_", ignored=True),
            Argument(name="y", dims=(Dim(name="T"),)),
        )

    def test_what_can_be_left_out_is_left_out(self) -> None:
        """Brackets of values, the dtype of the case, the axis that is the only one, zeros."""
        text = "x: float[T,008], n: lengths(T)[B], m: max_length[], e: scalar[] -> _: bool[T], y[T]"

        found = parse_signature(text)

        assert found.text == "x[T,8], n: lengths[B], m: max_length, e: scalar -> _, y[T]"

    def test_measures_of_packed_queries_are_measures_of_queries(self) -> None:
        """`offsets(TQ)` and `offsets(Q)` are the same."""
        found = parse_signature("q[TQ,D], k[TC,D], o: offsets(TQ)[B+1] -> y[TQ,D]")

        assert found.arguments[2].parameter == "Q"

    def test_reading_is_quick_at_the_limit(self) -> None:
        """Four thousand characters of brackets, spaces and colons do not stall the reader."""
        for filler in ("x ", "[", ": ", "x:", "!", "[T],", "x[T],", "->", "((", "T,"):
            with pytest.raises(SignatureError):
                parse_signature("x[" + filler * (3990 // len(filler)))

    def test_no_torch_is_imported(self) -> None:
        """Signatures are text."""
        code = "import biprop.signature, sys; sys.exit('torch' in sys.modules)"

        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestSignature:
    """What a signature answers."""

    @pytest.mark.parametrize(
        ("text", "layout", "token_wise"),
        [
            ("x[T,H] -> y[T,H]", "packed", True),
            ("x[T], p: position[T], o: order[T] -> y[T]", "packed", True),
            ("x[T], o: offsets[B+1] -> y[T]", "packed", False),
            ("x[T], n: lengths[B] -> y[T]", "packed", False),
            ("x[B,S,H] -> y[B,S,H]; token_local", "padded", False),
            ("x[B,S,H], n: lengths[B] -> y[B,H]", "padded", False),
            ("q[B,1,D], k[B,C,D] -> y[B,1,D]", "query_context", False),
            ("q[TQ], o: offsets[B+1] -> y[TQ]", "packed_query_context", False),
        ],
    )
    def test_the_layout_follows_from_the_token_axes(
        self, text: str, layout: str, *, token_wise: bool
    ) -> None:
        """Only packed tokens without lengths or offsets are independent of each other."""
        found = parse_signature(text)

        assert found.layout == layout
        assert found.token_wise is token_wise
        assert found.sequence_wise is not token_wise

    def test_what_the_arguments_tell_of_the_sequences_is_known(self) -> None:
        """One answer a kind."""
        bare = parse_signature("x[T] -> y[T]")
        full = parse_signature(
            "x[T], m: mask[T], n: lengths[B], e: offsets[B+1], o: order[T], p: position[T] -> y[T]"
        )

        for signature, expected in ((bare, False), (full, True)):
            assert signature.has_mask is expected
            assert signature.has_lengths is expected
            assert signature.has_offsets is expected
            assert signature.has_order is expected
            assert signature.has_position is expected

    @pytest.mark.parametrize(
        ("mask", "expected"), [("Q,C", False), ("1,C", False), ("B,Q,C", True), ("B,1,1,C", True)]
    )
    def test_a_causal_mask_hides_padding_only_if_it_has_rows(
        self, mask: str, *, expected: bool
    ) -> None:
        """One mask for all rows cannot know which slots of a row are dead."""
        found = parse_signature(f"q[B,Q,D], k[B,C,D], m: causal_mask[{mask}] -> y[B,Q,D]")

        assert found.has_mask is expected

    @pytest.mark.parametrize(
        ("text", "free", "contracted"),
        [
            ("x[T,K], weight[N,K] -> y[T,N]", ("K", "N"), ("K",)),
            ("x[T,K], weight[N,K], out![T,N] ->", ("K", "N"), ("K",)),
            ("x![T,H] ->", ("H",), ()),
            ("x[T,H*2] -> y[T,H]", ("H",), ()),
            ("logits[T,V], t: token(V)[T] -> logp: float32[T]", ("V",), ("V",)),
            ("t: token(V)[T], x[T,H] -> y[T,H]", ("V", "H"), ()),
            ("x[T,H], o: offsets[B+1] -> y[B,H]", ("H",), ("T",)),
            ("q[B,Q,D], v[B,C,D], n: lengths(C)[B] -> o[B,Q,D]", ("D",), ("C",)),
            ("x[T,8], i: int32[T,K] -> y[T]", ("K",), ()),
        ],
    )
    def test_dimensions_to_draw_and_to_contract_are_known(
        self, text: str, free: tuple[str, ...], contracted: tuple[str, ...]
    ) -> None:
        """Contracted is what float inputs have and no judged output keeps."""
        found = parse_signature(text)

        assert found.free_dims == free
        assert found.contracted_dims == contracted

    def test_arguments_are_told_apart_by_what_they_hold(self) -> None:
        """Parameters, tensors of tokens, scalars and what is judged."""
        found = parse_signature(
            "x[T,H], w[H], b: int32[H], t: token(V)[T], s![T], out![T,H], eps: scalar -> y[T], _"
        )

        def names(items: tuple[Argument, ...]) -> list[str]:
            return [item.name for item in items]

        assert names(found.parameters) == ["w"]
        assert names(found.token_arguments) == ["x", "s"]
        assert names(found.scalars) == ["eps"]
        assert names(found.judged_outputs) == ["y", "s", "out"]
        assert found.arguments[4].is_mutated
        assert not found.arguments[4].is_supplied_output
        assert found.arguments[5].is_supplied_output
        assert not found.arguments[5].is_mutated

    @pytest.mark.parametrize(
        ("dims", "axis", "free"),
        [
            ((Dim(name="T"), Dim(name="H")), "T", ["H"]),
            ((Dim(name="B"), Dim(name="S"), Dim(name=None, number=8)), "S", ["8"]),
            ((Dim(name="B"), Dim(name="H", operation="/", number=2)), "B", ["H/2"]),
            ((Dim(name="B", operation="+"),), "B", []),
            ((Dim(name="TC"),), "TC", []),
            ((Dim(name="Q"), Dim(name="C")), "Q", []),
            ((Dim(name="H"), Dim(name="K", operation="+")), None, ["H", "K+1"]),
        ],
    )
    def test_token_axes_and_free_dimensions_are_told_apart(
        self, dims: tuple[Dim, ...], axis: str | None, free: list[str]
    ) -> None:
        """The axis of the slots comes before that of the rows."""
        argument = Argument(name="a", dims=dims)

        assert argument.token_axis == axis
        assert [dim.text for dim in argument.free_dims] == free


class TestDim:
    """Sizes of dimensions."""

    @pytest.mark.parametrize(
        ("dim", "size"),
        [
            (Dim(name="H"), 6),
            (Dim(name=None, number=8), 8),
            (Dim(name="H", operation="*", number=2), 12),
            (Dim(name="H", operation="/", number=3), 2),
            (Dim(name="H", operation="+", number=1), 7),
        ],
    )
    def test_the_size_follows_from_the_size_of_the_name(self, dim: Dim, size: int) -> None:
        """Each operation is done."""

        assert dim.size({"H": 6}) == size

    def test_a_division_that_is_not_whole_is_refused(self) -> None:
        """The sentence says how to restrict the name."""

        with pytest.raises(SignatureError, match=r"H/4 is not whole for H=6: .*H%4==0"):
            Dim(name="H", operation="/", number=4).size({"H": 6})

    def test_a_name_without_a_size_is_refused(self) -> None:
        """The sentence names it."""

        with pytest.raises(SignatureError, match="H\\*2 has no size"):
            Dim(name="H", operation="*", number=2).size({})


def test_a_signature_is_a_key() -> None:
    """Signatures are hashable, so that what depends on one can be cached."""
    first, again = parse_signature(RMS_NORM), parse_signature(RMS_NORM.replace(" ", ""))

    assert {first: 1}[again] == 1
    assert isinstance(first, Signature)
