"""How fast the Triton kernels are beside what torch has for the same: forward and backward.

    PYTHONPATH=src python3 ci/benchmarks/kernel_speed.py --device cuda --out speeds.json

Both are given the same tensors, at sizes of real models (on a CPU at tiny ones, where Triton is
interpreted and the figures mean nothing). They take turns, so that whatever else the machine does
meets both alike, and what is kept is the median of each and their ratio. Compilation is over
before the first measurement. The backward of torch is autograd's, without its forward. Nothing is
decided by these figures: a kernel that keeps a token's bits may cost more than one that does not.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from biprop.case import Case, Dtype
from biprop.data.recipe import Recipe
from biprop.execution import Prepared, prepare
from biprop.execution.arguments import Materialiser
from biprop.execution.frame import Frame
from biprop.generation.classes import judged_kinds
from biprop.generation.legal import recipes_needed
from biprop.layout import CANONICAL
from biprop.operators import Kernel
from biprop.registry import build_registry
from biprop.sequence import LogicalSequence

__all__ = ["COMPARED", "main"]

FORMAT = "biprop-kernel-speed-1"
_NORMAL = Recipe(kind="normal")
_EPS = 1e-6


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, _EPS)


def _qk_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor) -> tuple[Tensor, ...]:
    return _rms_norm(q, q_weight), _rms_norm(k, k_weight)


def _embedding(ids: Tensor, weight: Tensor) -> Tensor:
    return functional.embedding(ids, weight)


def _rope(x: Tensor, position: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    step = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angle = position[:, None].float() * 10000.0**-step
    cosine, sine = (angle.cos()[:, None], angle.sin()[:, None])
    low, high = x[..., :half].float(), x[..., half:].float()
    turned = torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)
    return turned.to(x.dtype)


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    # One sequence, packed: tokens, heads, features.
    q, k, v = (values.transpose(0, 1)[None] for values in (q, k, v))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1)


def _silu(x: Tensor) -> Tensor:
    return functional.silu(x)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def _logp(logits: Tensor, target: Tensor) -> Tensor:
    return functional.log_softmax(logits.float(), -1).gather(-1, target[..., None])[..., 0]


def _linear_logp(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return _logp(functional.linear(hidden, weight), target)


def _grpo_loss(logp: Tensor, old_logp: Tensor, ref_logp: Tensor, advantage: Tensor) -> Tensor:
    ratio = (logp - old_logp).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    distance = ref_logp - logp
    return 0.04 * (distance.exp() - 1 - distance) - gain


def _ratio_kl(logp: Tensor, old_logp: Tensor) -> tuple[Tensor, ...]:
    log_ratio = logp.float() - old_logp.float()
    ratio = log_ratio.exp()
    return log_ratio, ratio, 0.5 * log_ratio.square(), ratio - 1 - log_ratio


@attrs.frozen(kw_only=True)
class Compared:
    """One operator beside what torch has for it.

    Attributes:
        native: Takes the tensors of the forward signature, and returns the outputs that have an
            upstream gradient, in order.
        words: What that is, for people.
        dims: Sizes of the free dimensions, as real models have them.
        tokens: Of the one sequence.
    """

    native: Callable[..., Tensor | tuple[Tensor, ...]]
    words: str
    dims: Mapping[str, int]
    tokens: int = 4096


COMPARED = {
    "embedding/packed": Compared(
        native=_embedding, words="functional.embedding", dims={"V": 151_936, "H": 4096}
    ),
    "rms_norm/packed": Compared(native=_rms_norm, words="functional.rms_norm", dims={"H": 8192}),
    "qk_norm/packed": Compared(
        native=_qk_norm, words="functional.rms_norm, twice", dims={"HQ": 32, "HK": 8, "D": 128}
    ),
    "det_gemm/packed": Compared(
        native=functional.linear, words="functional.linear", dims={"K": 4096, "N": 4096}
    ),
    "rope/packed": Compared(
        native=_rope, words="the formula in torch operations", dims={"N": 32, "D": 128}
    ),
    "attention/packed": Compared(
        native=_attention,
        words="functional.scaled_dot_product_attention",
        dims={"HQ": 32, "HK": 8, "D": 128},
    ),
    "silu/packed": Compared(native=_silu, words="functional.silu", dims={"I": 12_288}),
    "swiglu/packed": Compared(
        native=_swiglu, words="functional.silu and a product", dims={"I": 12_288}
    ),
    "lm_head/packed": Compared(
        native=functional.linear,
        words="functional.linear",
        dims={"H": 4096, "V": 151_936},
        tokens=256,
    ),
    "linear_logp/packed": Compared(
        native=_linear_logp,
        words="functional.linear, log_softmax and gather",
        dims={"H": 4096, "V": 151_936},
        tokens=256,
    ),
    "logp/packed": Compared(
        native=_logp, words="functional.log_softmax and gather", dims={"V": 151_936}, tokens=256
    ),
    "batch_invariant_logp/packed": Compared(
        native=_logp, words="functional.log_softmax and gather", dims={"V": 151_936}, tokens=256
    ),
    "grpo_loss/packed": Compared(
        native=_grpo_loss, words="the formula in torch operations", dims={}, tokens=65_536
    ),
    "ratio_kl/packed": Compared(
        native=_ratio_kl, words="the formula in torch operations", dims={}, tokens=65_536
    ),
}
# On a CPU only the script is tried.
_TOKENS_TINY = 3
_SIZE_TINY = 8


@attrs.frozen(kw_only=True, eq=False)
class Calls:
    """What takes turns: the two forwards, or the two backwards."""

    ours: Callable[[], object]
    native: Callable[[], object]


def main(words: Sequence[str] | None = None) -> int:
    """Measure as the command line says, and write the figures; return the exit code."""
    options = _options(words)
    device = torch.device(options.device)
    registry = build_registry()
    cells = []
    for target in options.targets or COMPARED:
        kernel = registry.find(target=target, backend="triton")
        for dtype in options.dtypes:
            for cell in _cells(kernel, COMPARED[target], dtype, device, rounds=options.rounds):
                cells.append(cell)
                sys.stdout.write(_line(cell))
                sys.stdout.flush()
    found = {
        "format": FORMAT,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        # Not imported: it reads TRITON_INTERPRET then, which whoever imports this may still set.
        "triton": version("triton"),
        "cells": cells,
    }
    text = json.dumps(found, indent=1) + "\n"
    if options.out is None:
        sys.stdout.write(text)
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", default="cpu", help="cpu (default, tiny sizes) or cuda")
    parser.add_argument("--out", type=Path, help="where the JSON goes; standard output by default")
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"], metavar="DTYPE")
    parser.add_argument("--targets", nargs="+", metavar="OPERATOR/FORM", choices=sorted(COMPARED))
    return parser.parse_args(words)


def _cells(
    kernel: Kernel, compared: Compared, dtype: Dtype, device: torch.device, *, rounds: int
) -> list[dict[str, Any]]:
    """Return the figures of one operator in one dtype, one a direction."""
    is_tiny = device.type == "cpu"
    dims = {
        name: min(size, _SIZE_TINY) if is_tiny else size for name, size in compared.dims.items()
    }
    tokens = _TOKENS_TINY if is_tiny else compared.tokens
    directions = _calls(_prepared(kernel, dims, tokens, dtype, device), compared)
    cells = []
    for direction, calls in directions.items():
        ours, native = _seconds(calls, device, rounds)
        cells.append(
            {
                "target": kernel.target,
                "dtype": dtype,
                "direction": direction,
                "dims": dims,
                "tokens": tokens,
                "native": compared.words,
                "seconds": ours,
                "native_seconds": native,
            }
        )
    return cells


def _prepared(
    kernel: Kernel, dims: dict[str, int], tokens: int, dtype: Dtype, device: torch.device
) -> Prepared:
    """Return one sequence of normal data."""
    # A gradient needs those of outputs, so that one case serves both directions.
    judged = judged_kinds(
        kernel.signature, "backward", backward_signature=kernel.backward_signature
    )[0]
    data, parameters = recipes_needed(kernel.signature, judged, kernel.backward_signature)
    case = Case(
        dtype=dtype,
        dims=dims,
        judged=judged,
        sequences=(LogicalSequence(id=0, length=tokens),),
        data=dict.fromkeys(data, _NORMAL),
        policy_state=dict.fromkeys(parameters, _NORMAL),
    )
    # Whether a search may draw it is not asked: real vocabularies hold more than its cases may.
    return prepare(kernel, case, device=device)


def _calls(prepared: Prepared, compared: Compared) -> dict[str, Calls]:
    """Return what takes turns, by direction."""
    kernel = prepared.kernel
    materialiser = Materialiser(
        case=prepared.case, values=prepared.values, layout=CANONICAL, align=1, poison="nan"
    )
    (frame,) = prepared.joint_frames()
    arguments = materialiser.arguments(kernel.signature, frame)
    forward = Calls(
        ours=lambda: kernel.function(*arguments, **kernel.call),
        native=lambda: compared.native(*arguments),
    )
    if kernel.backward is None or kernel.backward_signature is None:
        return {"forward": forward}
    handed = _handed(prepared, materialiser, frame, arguments)
    leaves = [
        value.requires_grad_()
        for value in arguments
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    returned = compared.native(*arguments)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    # Differentiable outputs alone, in their order, have an upstream gradient.
    upstream = [
        handed[f"d{item.name}"]
        for item in kernel.signature.judged_outputs
        if f"d{item.name}" in handed
    ]
    for values in upstream[len(outputs) :]:
        # What torch does not give out, as the LSE of attention, takes no part in either.
        values.zero_()
    backward = kernel.backward
    return {
        "forward": forward,
        "backward": Calls(
            ours=lambda: backward(*handed.values(), **kernel.call),
            native=lambda: torch.autograd.grad(
                outputs, leaves, upstream[: len(outputs)], retain_graph=True, allow_unused=True
            ),
        ),
    }


def _handed(
    prepared: Prepared, materialiser: Materialiser, frame: Frame, arguments: Sequence[object]
) -> dict[str, Any]:
    """Return what the backward takes, by name: upstream gradients, state, and accumulators."""
    kernel = prepared.kernel
    target = kernel.backward_signature
    assert target is not None, "the caller looked"
    returned = kernel.function(*arguments, **kernel.call)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    given: dict[str, object] = {
        item.name: value for item, value in zip(kernel.signature.arguments, arguments, strict=True)
    }
    given |= {
        item.name: value for item, value in zip(kernel.signature.outputs, outputs, strict=True)
    }
    taken = {item.name for item in target.arguments}
    for item in kernel.signature.judged_outputs:
        if f"d{item.name}" in taken:
            given[f"d{item.name}"] = materialiser.upstream(target, item, frame)
    for item in target.arguments:
        if item.marked:
            given[item.name] = materialiser.zeros(item, frame)
    handed = materialiser.arguments(target, frame, given)
    return dict(zip([item.name for item in target.arguments], handed, strict=True))


def _seconds(calls: Calls, device: torch.device, rounds: int) -> tuple[float, float]:
    """Return the medians of both."""
    spent: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for call, seconds in zip((calls.ours, calls.native), spent, strict=True):
            taken = _timed(call, device)
            # The first one compiles.
            if number:
                seconds.append(taken)
    return statistics.median(spent[0]), statistics.median(spent[1])


def _timed(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cpu":
        started = perf_counter()
        call()
        return perf_counter() - started
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
    torch.cuda.synchronize(device)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return float(begin.elapsed_time(end)) / 1e3


def _line(cell: dict[str, Any]) -> str:
    ratio = cell["seconds"] / cell["native_seconds"]
    return (
        f"{cell['target']} {cell['dtype']} {cell['direction']}: {1e3 * cell['seconds']:.3f} ms, "
        f"{cell['native']} {1e3 * cell['native_seconds']:.3f} ms, ratio {ratio:.2f}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
