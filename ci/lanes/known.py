"""Known findings of PyTorch on a GPU: what to type, and what must come of it.

Data only; `ci.lanes.finding` runs them. Everything that is said of PyTorch here was seen on an
H200; whether it is still so is what the part `findings` asks.
"""

from typing import Literal

import attrs

__all__ = ["KNOWN", "Expected", "Known"]

_SDPA = "torch.nn.functional:scaled_dot_product_attention"
_TARGETS = "ci/lanes/torch_targets.py"
_ATTENTION = "query[B,H,Q,D], key[B,H,C,D], value[B,H,C,D]"
_WHOLE = f"{_ATTENTION} -> out[B,H,Q,D]"
_CAUSAL = f"{_ATTENTION}, is_causal: is_causal -> out[B,H,Q,D]"
_NORM = "input[T,H], weight[H] -> out[T,H]"


@attrs.frozen(kw_only=True)
class Expected:
    """A cause that a check must find, and whose fixture must fail again in a fresh process.

    Attributes:
        verdict: Of the finding.
        transforms: Classes that must be left after minimising, others beside them or not.
    """

    verdict: Literal["DRIFTS", "NONDETERMINISTIC", "CRASHES"]
    transforms: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Known:
    """One finding, or one thing that holds.

    Attributes:
        name: Unique.
        claim: What is expected, in words.
        words: Of `biprop check`, without the device.
        causes: What must be found; empty: the check must hold.
    """

    name: str
    claim: str
    words: tuple[str, ...]
    causes: tuple[Expected, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code that the check must have."""
        return 1 if self.causes else 0


def _attention(
    target: str, signature: str, backend: str, *more: str, transforms: str = "T1"
) -> tuple[str, ...]:
    return (
        *(target, "--signature", signature, "--dims", "H=1..2 D=64", "--dtype", "bfloat16"),
        *("--sdpa-backend", backend, "--transforms", transforms, "--max-examples", "100", *more),
    )


_DRIFTS_WITH_ROWS = (Expected(verdict="DRIFTS", transforms=("T1",)),)
_DRIFTS_WITH_ADDRESS = (Expected(verdict="DRIFTS", transforms=("T8",)),)

KNOWN: tuple[Known, ...] = (
    Known(
        name="flash-whole",
        claim="flash SDPA without a mask drifts with the number of rows",
        words=_attention(_SDPA, _WHOLE, "flash", "--align", "16"),
        causes=_DRIFTS_WITH_ROWS,
    ),
    Known(
        name="flash-causal",
        claim="flash SDPA with is_causal drifts with the number of rows",
        words=_attention(f"{_TARGETS}:causal_attention", _CAUSAL, "flash", "--align", "16"),
        causes=_DRIFTS_WITH_ROWS,
    ),
    Known(
        name="efficient-whole",
        claim="efficient SDPA without a mask holds on the same",
        words=_attention(_SDPA, _WHOLE, "efficient", "--align", "16"),
    ),
    Known(
        name="efficient-causal",
        claim="efficient SDPA with is_causal holds on the same",
        words=_attention(f"{_TARGETS}:causal_attention", _CAUSAL, "efficient", "--align", "16"),
    ),
    Known(
        name="flash-misaligned",
        claim="flash SDPA at an odd address ends its process; the check goes on to the drift",
        words=_attention(f"{_TARGETS}:even_attention", _WHOLE, "flash", transforms="T1,T8"),
        causes=(Expected(verdict="CRASHES", transforms=("T8",)), *_DRIFTS_WITH_ROWS),
    ),
    Known(
        name="linear-rows",
        claim="bfloat16 linear with K=4096 drifts with the number of rows",
        words=(
            *("torch.nn.functional:linear", "--signature", "input[T,K], weight[N,K] -> out[T,N]"),
            *("--dims", "K=4096", "--dtype", "bfloat16", "--transforms", "T1"),
            *("--max-examples", "60"),
        ),
        causes=_DRIFTS_WITH_ROWS,
    ),
    Known(
        name="rms-norm-address",
        claim="rms_norm drifts with the address",
        words=(f"{_TARGETS}:rms_norm", "--signature", _NORM, "--transforms", "T8"),
        causes=_DRIFTS_WITH_ADDRESS,
    ),
    Known(
        name="layer-norm-address",
        claim="layer_norm drifts with the address",
        words=(
            *(f"{_TARGETS}:layer_norm", "--signature"),
            *("input[T,H], weight[H], bias[H] -> out[T,H]", "--transforms", "T8"),
        ),
        causes=_DRIFTS_WITH_ADDRESS,
    ),
    Known(
        name="sum-address",
        claim="sum drifts with the address",
        words=(
            *("torch:sum", "--signature", "input[T,K] -> out[T]", "--call", "dim=-1"),
            *("--transforms", "T8"),
        ),
        causes=_DRIFTS_WITH_ADDRESS,
    ),
    Known(
        name="embedding-backward",
        claim="the gradient of embedding's weight differs from run to run",
        words=(
            *("torch.nn.functional:embedding", "--signature"),
            *("input: token(V)[T], weight[V,D] -> out[T,D]", "--direction", "backward"),
            # Up to 3,072 tokens another kernel is taken, and many meet where there are few ids.
            *("--dims", "V=1..8 D=1..64", "--max-examples", "200"),
        ),
        causes=(Expected(verdict="NONDETERMINISTIC"),),
    ),
    Known(
        name="log-softmax-place",
        claim="log_softmax of odd rows wider than 9,000 drifts with the rows before it",
        words=(
            *("torch.nn.functional:log_softmax", "--signature", "input[T,V] -> out[T,V]"),
            *("--call", "dim=-1", "--dims", "V=9001..16383 V%2==1", "--transforms", "T1"),
        ),
        causes=_DRIFTS_WITH_ROWS,
    ),
)
