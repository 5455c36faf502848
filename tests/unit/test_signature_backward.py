"""Backward signatures fit their forward ones, or are refused with a sentence."""

import pytest

from biprop.errors import SignatureError
from biprop.signature import parse_backward, parse_signature

RMS_NORM = "x[T,H], weight[H] -> y[T,H], rstd: float32[T]"
RMS_NORM_BACKWARD = (
    "dy[T,H], x[T,H], weight[H], rstd: float32[T], offsets: offsets[B+1], order: order[T], "
    "position: position[T], dweight!: float32[H] -> dx[T,H]"
)
DET_GEMM_BACKWARD = (
    "dy[T,N], x[T,K], weight[N,K], offsets: offsets[B+1], order: order[T], position: position[T], "
    "dweight!: float32[N,K] -> dx[T,K]"
)
LOGP_BACKWARD = (
    "dlogp: float32[T], logits[T,V], target: token(V)[T], lse: float32[T] -> dlogits[T,V]"
)


class TestParseBackward:
    """Backward signatures of registered operators."""

    @pytest.mark.parametrize(
        ("forward", "backward"),
        [
            (RMS_NORM, RMS_NORM_BACKWARD),
            (
                RMS_NORM.replace("T", "B,S") + "; token_local",
                RMS_NORM_BACKWARD.replace("[T", "[B,S") + "; token_local",
            ),
            (
                "x[T,K], weight[N,K] -> y[T,N]",
                DET_GEMM_BACKWARD,
            ),
            (
                "logits[T,V], target: token(V)[T] -> logp: float32[T], lse: float32[T]",
                LOGP_BACKWARD,
            ),
            ("x[T,H], w[H], out![T,H] ->", "dout[T,H], x[T,H], out[T,H] -> dx[T,H], dw[H]"),
        ],
    )
    def test_a_backward_that_fits_is_read(self, forward: str, backward: str) -> None:
        """The backwards of the first operators, and gradients of supplied outputs."""
        first = parse_signature(forward)

        found = parse_backward(backward, first)

        assert found.text == backward
        assert parse_backward(found.text, first) == found

    def test_an_accumulator_is_judged_and_no_parameter(self) -> None:
        """It starts at zero, so nothing is drawn for it."""
        found = parse_backward(RMS_NORM_BACKWARD, parse_signature(RMS_NORM))

        assert [item.name for item in found.judged_outputs] == ["dx", "dweight"]
        assert [item.name for item in found.parameters] == ["weight"]

    @pytest.mark.parametrize(
        ("backward", "fragment"),
        [
            ("dy[T,H], x[T,H] -> dx[T]", "'dx' does not match the forward's 'x\\[T,H\\]'"),
            ("dy[T,H], x[T] -> dx[T,H]", "'x' does not match the forward's 'x\\[T,H\\]'"),
            ("dy: float32[T,H], x[T,H] -> dx[T,H]", "'dy' does not match the forward's 'y"),
            ("dy[T,H], rstd[T] -> dx[T,H]", "'rstd' does not match the forward's 'rstd: fl"),
            ("dy[T,H], z[T,H] -> dx[T,H]", "'z' is unknown to the forward"),
            ("dy[T,H], eps: scalar -> dx[T,H]", "'eps' is unknown to the forward"),
            ("dy[T,H], t: token(H)[T] -> dx[T,H]", "'t' is unknown to the forward"),
            ("x[T,H], weight[H] -> dx[T,H]", "takes no upstream gradient: add an argument 'drstd'"),
            ("dy[T,H] -> dz[T,H]", "'dz' is the gradient of no float argument: name it one of 'dx"),
            ("dy[T,H] -> dx: int32[T,H], dweight[H]", "'dx' does not match"),
            ("dy[T,H], dweight![H,H] -> dx[T,H]", "'dweight' does not match"),
            ("dy[T,H], dbias![H] -> dx[T,H]", "'dbias' has a mark and is the gradient of no"),
            ("dy[T,H], dx![T,H] -> dweight[H]", "'dx' has a mark and a token axis"),
            ("dy[B,S,H] -> dx[B,S,H]", "layout padded and the forward packed"),
            ("dy[T,H] -> ", "nothing to compare"),
            ("dy[T,H] dx[T,H]", "has no '->'"),
        ],
    )
    def test_a_backward_that_does_not_fit_is_refused(self, backward: str, fragment: str) -> None:
        """Each mistake is one sentence about itself."""

        with pytest.raises(SignatureError, match=fragment) as caught:
            parse_backward(backward, parse_signature(RMS_NORM))

        assert str(caught.value).endswith(".")

    def test_an_ambiguous_gradient_is_refused(self) -> None:
        """`dy` cannot be a gradient and an argument of the forward."""
        forward = parse_signature("dy[T,H], y0[T,H] -> y[T,H]")

        with pytest.raises(SignatureError, match="'dy' could be the gradient of 'y'"):
            parse_backward("dy[T,H] -> dy0[T,H]", forward)

    def test_a_dimension_of_its_own_is_refused(self) -> None:
        """Nothing would give it a size."""
        forward = parse_signature("q[B,Q,D], k[B,C,D], n: lengths(C)[B] -> y[B,Q,D]")

        with pytest.raises(SignatureError, match="has the dimension G, which the forward has not"):
            parse_backward("dy[B,Q,D], k[B,C,D], m: causal_mask[G,Q,C] -> dq[B,Q,D]", forward)

    def test_what_a_backward_may_do_a_forward_may_not(self) -> None:
        """Accumulators and outputs of the whole batch belong to gradients."""
        for text in (RMS_NORM_BACKWARD, "x[T,H], w[H] -> y[T,H], dw[H]"):
            with pytest.raises(SignatureError, match="no token axis"):
                parse_signature(text)
