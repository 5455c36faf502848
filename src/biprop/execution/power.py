"""Power: could the data of a case have shown a defect at all?

Order power is the share of compared elements whose bits change when sums are taken in other orders,
value power the share of watched rows that nothing else in the launch could stand in for. A
registered operator's own reference says where its sums are; for any other target, and for
gradients, `biprop.execution.proxies` guesses them from the signature, and for attention
`biprop.execution.attention_proxies`. What a lack of power means is decided by `biprop.relations`.

Everything is measured on a bounded, fixed sample, on the CPU.
"""

import math
from collections.abc import Callable, Mapping

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from biprop.bits import bit_pattern
from biprop.data.transfer import Arriving, brought, moved
from biprop.execution.arguments import FILL_VALUES, Materialiser
from biprop.execution.attention_proxies import (
    attention_gradient_shares,
    attention_shares,
    can_guess,
)
from biprop.execution.attention_samples import attention_frames, fewer_heads
from biprop.execution.frame import Frame
from biprop.execution.orders import ORDERS
from biprop.execution.proxies import (
    changed_share,
    forward_shares,
    parameter_gradient_shares,
    spread,
    token_gradient_shares,
)
from biprop.execution.run import Prepared, Run
from biprop.judgment import Power
from biprop.layout import CANONICAL
from biprop.layout.launches import Launch
from biprop.layout.pool import TokenPool
from biprop.signature import Signature
from biprop.signature.roles import has_contexts

__all__ = ["is_by_value", "measure_power", "start_power"]

# Products and terms that one evaluation of a reference may hold.
_ELEMENTS_MAX = 1 << 15
_TOKENS_MAX = 32
_SEQUENCES_MAX = 3
_COLUMNS_MAX = 8
# Elements of a row that are looked at to tell it from the others.
_HASHED_MAX = 256
_COPIED = object()


def measure_power(prepared: Prepared, run: Run) -> Power:
    """Return the power of a case's data.

    Args:
        prepared: The case.
        run: Its canonical run, which says what is compared.
    """
    return start_power(prepared, run)()


def start_power(prepared: Prepared, run: Run) -> Callable[[], Power]:
    """Begin to measure the power of a case's data; return what measures it, and waits for it.

    Of most cases, what is looked at is copied from the device after what was launched before. So
    whoever begins before the launches are waited for, waits once for both.

    Args:
        prepared: The case.
        run: Its canonical run, which may be under way.
    """
    if is_by_value(prepared):
        prepared.values.ask(_keys_of_rows)
        return lambda: Power(kind="value", share=_value_share(prepared))
    dtypes = {
        name: values.dtype for name, values in run.outputs.items() if values.is_floating_point()
    }
    samples = _started(prepared) if _has_forward_sums(prepared) else None

    def measured() -> Power:
        shares = _order_shares(prepared, dtypes, samples)
        return Power(kind="order", share=sum(shares) / len(shares) if shares else 0.0)

    return measured


def is_by_value(prepared: Prepared) -> bool:
    """Say whether value power applies: nothing is summed that a launch may cut elsewhere."""
    if prepared.case.judged == "parameter_gradients":
        # Whatever the operator, its parameters' gradients are sums over tokens.
        return False
    kernel, signature = prepared.kernel, prepared.kernel.signature
    return bool(
        kernel.op_class == "elementwise" or not signature.free_dims or not signature.token_arguments
    )


def _order_shares(
    prepared: Prepared, dtypes: Mapping[str, torch.dtype], samples: "list[_Sample] | None"
) -> list[float]:
    """Return the share of changed elements by sum."""
    judged, signature = prepared.case.judged, prepared.kernel.signature
    if judged == "parameter_gradients":
        return parameter_gradient_shares(prepared, dtypes)
    if judged == "outputs":
        return _forward_shares(prepared, dtypes, samples)
    if can_guess(signature):
        return attention_gradient_shares(prepared, dtypes)
    shares, is_forward_seen = token_gradient_shares(prepared, dtypes)
    return [*shares, *(_forward_shares(prepared, dtypes, samples) if is_forward_seen else ())]


def _forward_shares(
    prepared: Prepared, dtypes: Mapping[str, torch.dtype], samples: "list[_Sample] | None"
) -> list[float]:
    if samples is not None:
        return _of_reference(prepared, samples)
    if can_guess(prepared.kernel.signature):
        return attention_shares(prepared, dtypes)
    return forward_shares(prepared, tuple(dict.fromkeys(dtypes.values())))


def _has_forward_sums(prepared: Prepared) -> bool:
    """Say whether sums of the forward may be asked for."""
    judged = prepared.case.judged
    return judged == "outputs" or (
        judged != "parameter_gradients" and not can_guess(prepared.kernel.signature)
    )


@attrs.frozen(kw_only=True, eq=False)
class _Sample:
    """Arguments of a reference, of which tensors are on their way to the CPU.

    Attributes:
        arguments: In order; of a tensor, `_COPIED`.
        tensors: Of these, the tensors.
    """

    arguments: tuple[object, ...]
    tensors: Arriving

    def taken(self) -> list[object]:
        """Wait for them, and return all arguments."""
        tensors = iter(self.tensors.taken())
        return [next(tensors) if item is _COPIED else item for item in self.arguments]


def _started(prepared: Prepared) -> list[_Sample] | None:
    """Begin to copy a sample of a reference's arguments; None where there is no reference."""
    kernel = prepared.kernel
    frames = _sample_frames(prepared) if kernel.reference is not None else None
    if frames is None:
        return None
    has_heads = has_contexts(kernel.signature)
    materialiser = Materialiser(
        case=prepared.case,
        values=prepared.values,
        layout=CANONICAL,
        align=1,
        poison="nan",
    )
    samples = []
    for frame in frames:
        # A reference writes nowhere, so that parameters are looked at where they are.
        given = materialiser.arguments(kernel.signature, frame, prepared.values.parameters)
        arguments = (
            fewer_heads(prepared, given)
            if has_heads
            else _fewer_columns(kernel.signature, prepared, given)
        )
        tensors = [item for item in arguments if isinstance(item, Tensor)]
        others = (_COPIED if isinstance(item, Tensor) else item for item in arguments)
        samples.append(_Sample(arguments=tuple(others), tensors=brought(tensors)))
    return samples


def _of_reference(prepared: Prepared, samples: list[_Sample]) -> list[float]:
    """Return the share of changed elements among a sample of the reference's outputs."""
    kernel = prepared.kernel
    reference = kernel.reference
    assert reference is not None
    changed = total = 0.0
    for sample in samples:
        arguments = sample.taken()
        by_order = []
        for reduce in ORDERS:
            returned = reference(*arguments, reduce=reduce, **kernel.call)
            by_order.append(returned if isinstance(returned, tuple) else (returned,))
        for results in zip(*by_order, strict=True):
            count = results[0].numel()
            changed += count * changed_share(results)
            total += count
    return [changed / total] if total else []


def _sample_frames(prepared: Prepared) -> list[Frame] | None:
    """Return launches of a few compared tokens, or of sequences where they must stay whole.

    None where each of them is too large for a reference.
    """
    signature, pool = prepared.kernel.signature, prepared.pool
    if has_contexts(signature):
        return attention_frames(prepared)
    if not (signature.token_wise or signature.token_local):
        frames = prepared.canonical_frames()
        return [frames[index] for index in spread(len(frames), _SEQUENCES_MAX)]
    work = math.prod(
        min(size, _COLUMNS_MAX) if name in _column_dims(signature) else size
        for name, size in prepared.case.dims.items()
    )
    count = max(1, min(_TOKENS_MAX, _ELEMENTS_MAX // max(1, work)))
    tokens = pool.compared[spread(len(pool.compared), count)]
    launch = _launch_of(signature, tokens, pool)
    return [Frame(launch=launch, compared=prepared.compared, device=prepared.device)]


def _launch_of(signature: Signature, tokens: Tensor, pool: TokenPool) -> Launch:
    # One segment or row: the tokens do not know of each other.
    axis, slots = ("T", tokens) if signature.layout == "packed" else ("S", tokens[None])
    return Launch(
        maps={axis: slots, "B": tokens[-1:]},  # type: ignore[dict-item]  # the two axes above
        lengths=(len(tokens),),
        sequences=(int(pool.sequence_of[tokens[0]]),),
    )


def _column_dims(signature: Signature) -> set[str]:
    """Return dimensions whose indices give columns of the output that do not know of each other.

    Parameters bring them, outputs keep them, and no token has them: the outputs of a linear layer.
    """
    kept = {dim.name for item in signature.outputs for dim in item.free_dims}
    brought = {dim.name for item in signature.parameters for dim in item.free_dims}
    known = {
        dim.name
        for item in signature.arguments
        if item.token_axis is not None
        for dim in item.free_dims
    }
    known |= {item.parameter for item in signature.arguments}
    computed = {
        dim.name
        for item in (*signature.arguments, *signature.outputs)
        for dim in item.free_dims
        if dim.operation
    }
    return {name for name in (kept & brought) - known - computed if name is not None}


def _fewer_columns(
    signature: Signature, prepared: Prepared, arguments: list[object]
) -> list[object]:
    """Return the arguments with a few of those columns only."""
    columns = _column_dims(signature)
    kept = []
    for item, value in zip(signature.arguments, arguments, strict=True):
        taken = value
        if isinstance(taken, Tensor):
            for place, dim in enumerate(item.dims):
                if dim.name in columns and item.is_parameter:
                    size = prepared.case.dims[dim.name]
                    chosen = moved(spread(size, _COLUMNS_MAX), taken.device)
                    taken = taken.index_select(place, chosen)
        kept.append(taken)
    return kept


def _value_share(prepared: Prepared) -> float:
    """Return the share of compared rows that differ from every other row, and from the fill."""
    pool, tokens = prepared.pool, prepared.values.tokens
    if not tokens:
        return 0.0
    floats = {item.name for item in prepared.kernel.signature.token_arguments}
    fill = FILL_VALUES[prepared.layout.padding.fill]
    # On a GPU this is a good part of what the host does: arrays cost less than tensors do.
    keys = np.zeros(len(pool.token), dtype=np.int64)
    is_fill = np.ones(len(pool.token), dtype=bool)
    for name, rows in prepared.values.sampled(_keys_of_rows).items():
        hashed, first, is_even = rows.numpy().T
        keys = keys * 31 + hashed
        dtype = tokens[name].dtype
        filling = fill if name in floats or dtype.is_floating_point else 0
        is_fill &= (is_even == 1) & (
            first == bit_pattern(torch.tensor(filling, dtype=dtype)).item()
        )
    shown = (_are_alone(keys) & ~is_fill)[pool.compared.numpy()]
    return float(shown.mean()) if len(shown) else 0.0


def _are_alone(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Say of each key whether no other one is equal."""
    order = keys.argsort()
    differ = np.diff(keys[order]) != 0
    alone = np.empty(len(keys), dtype=bool)
    alone[order] = np.append(True, differ) & np.append(differ, True)
    return alone


def _keys_of_rows(values: Tensor) -> Tensor:
    """Return of a few elements of each row what tells it from the others, int64.

    Made where the values are, since the elements themselves take longer to copy than to hash.

    Args:
        values: `[n, *free]`, of any dtype.

    Returns:
        `[n, 3]`: a key, equal of equal rows and nearly never else; the bits of the first element;
        and 1 where all of these elements have the same bits.
    """
    rows = values.reshape(len(values), -1)
    chosen = spread(rows.shape[1], _HASHED_MAX)
    if len(chosen) < rows.shape[1]:
        rows = rows.index_select(1, moved(chosen, rows.device))
    bits = bit_pattern(rows).to(torch.int64)
    # Odd multipliers of a fixed sequence; wrapping is intended.
    place = torch.arange(1, bits.shape[1] + 1, dtype=torch.int64, device=bits.device)
    keys = ((bits + place) * (place * 0x5851F42D4C957F2D | 1)).sum(dim=1)
    is_even = (bits == bits[:, :1]).all(dim=1)
    return torch.stack((keys, bits[:, 0], is_even), dim=1)
