"""Power: could the data of a case have shown a defect at all?

Order power is the share of compared elements whose bits change when sums are taken in other orders,
value power the share of watched rows that nothing else in the launch could stand in for. A
registered operator's own reference says where its sums are; for any other target, and for
gradients, `biprop.execution.proxies` guesses them from the signature, and for attention
`biprop.execution.attention_proxies`. What a lack of power means is decided by `biprop.relations`.

Everything is measured on a bounded, fixed sample, on the CPU.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from biprop.bits import bit_pattern
from biprop.data.transfer import moved
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

__all__ = ["measure_power"]

# Products and terms that one evaluation of a reference may hold.
_ELEMENTS_MAX = 1 << 15
_TOKENS_MAX = 32
_SEQUENCES_MAX = 3
_COLUMNS_MAX = 8
# Elements of a row that are looked at to tell it from the others.
_HASHED_MAX = 256


def measure_power(prepared: Prepared, run: Run) -> Power:
    """Return the power of a case's data.

    Args:
        prepared: The case.
        run: Its canonical run, which says what is compared.
    """
    shares = _order_shares(prepared, run)
    if shares is None:
        return Power(kind="value", share=_value_share(prepared))
    return Power(kind="order", share=sum(shares) / len(shares) if shares else 0.0)


def _order_shares(prepared: Prepared, run: Run) -> list[float] | None:
    """Return the share of changed elements by sum, None where value power applies."""
    kernel, judged = prepared.kernel, prepared.case.judged
    dtypes = {
        name: values.dtype for name, values in run.outputs.items() if values.is_floating_point()
    }
    if judged == "parameter_gradients":
        # Whatever the operator, its parameters' gradients are sums over tokens.
        return parameter_gradient_shares(prepared, dtypes)
    signature = kernel.signature
    if kernel.op_class == "elementwise" or not signature.free_dims or not signature.token_arguments:
        return None
    if judged == "outputs":
        return _forward_shares(prepared, dtypes)
    if can_guess(signature):
        return attention_gradient_shares(prepared, dtypes)
    shares, is_forward_seen = token_gradient_shares(prepared, dtypes)
    return [*shares, *(_forward_shares(prepared, dtypes) if is_forward_seen else ())]


def _forward_shares(prepared: Prepared, dtypes: Mapping[str, torch.dtype]) -> list[float]:
    frames = _sample_frames(prepared) if prepared.kernel.reference is not None else None
    if frames is not None:
        return _of_reference(prepared, frames)
    if can_guess(prepared.kernel.signature):
        return attention_shares(prepared, dtypes)
    return forward_shares(prepared, tuple(dict.fromkeys(dtypes.values())))


def _of_reference(prepared: Prepared, frames: list[Frame]) -> list[float]:
    """Return the share of changed elements among a sample of the reference's outputs."""
    kernel = prepared.kernel
    reference = kernel.reference
    assert reference is not None
    has_heads = has_contexts(kernel.signature)
    materialiser = Materialiser(
        case=prepared.case,
        values=prepared.values,
        layout=CANONICAL,
        align=1,
        poison="nan",
    )
    changed = total = 0.0
    for frame in frames:
        # A reference writes nowhere, so that parameters are looked at where they are.
        given = materialiser.arguments(kernel.signature, frame, prepared.values.parameters)
        arguments = (
            fewer_heads(prepared, given)
            if has_heads
            else _fewer_columns(kernel.signature, prepared, given)
        )
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
    """Return the arguments on the CPU, with a few of those columns only."""
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
            taken = taken.cpu()
        kept.append(taken)
    return kept


def _value_share(prepared: Prepared) -> float:
    """Return the share of compared rows that differ from every other row, and from the fill."""
    pool, tokens = prepared.pool, prepared.values.tokens
    if not tokens:
        return 0.0
    floats = {item.name for item in prepared.kernel.signature.token_arguments}
    fill = FILL_VALUES[prepared.layout.padding.fill]
    keys = torch.zeros(len(pool.token), dtype=torch.int64)
    is_fill = torch.ones(len(pool.token), dtype=torch.bool)
    for name, values in tokens.items():
        hashed, first, is_even = prepared.values.sampled(name, _keys_of_rows).unbind(1)
        keys = keys * 31 + hashed
        filling = fill if name in floats or values.dtype.is_floating_point else 0
        filled = bit_pattern(torch.full((1,), filling, dtype=values.dtype)).to(torch.int64)
        is_fill &= (is_even == 1) & (first == filled)
    _, place, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    alone = (counts[place] == 1) & ~is_fill
    return float(alone[pool.compared].float().mean()) if len(pool.compared) else 0.0


def _keys_of_rows(values: Tensor) -> Tensor:
    """Return of a few elements of each row what tells it from the others, int64 on the CPU.

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
    return torch.stack((keys, bits[:, 0], is_even), dim=1).cpu()
