"""Causal attention with its log-sum-exp, grouped heads: references and record.

`out = sum over keys of exp(q . k / sqrt(D) - lse) * v`, where `lse` is the log of the sum of the
exponentials. The queries of a sequence are its last live contexts, so that a whole prefill, a chunk
of one and a decoding step are the same function; heads `g * HQ / HK` and on read context head `g`.

The torch backend is `biprop.kernels.attention_torch`, the Triton backend
`biprop.kernels.attention_triton`; the three share no arithmetic. PyTorch's own attention, which
promises nothing, is `biprop.kernels.native_sdpa`.

Shapes: TQ, TC packed tokens, B rows, Q, C slots, HQ heads of queries, HK of contexts, D features.
"""

import torch
from torch import Tensor

from biprop.kernels import attention_torch
from biprop.kernels.deferred import triton_backend
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["OPERATOR", "reference_packed", "reference_padded"]

# Products of one query with one key that the reference holds at a time.
REFERENCE_ELEMENTS_MAX = 1 << 22


def reference_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_offsets: Tensor,
    context_offsets: Tensor,
    *,
    reduce: Reducer,
) -> tuple[Tensor, Tensor]:
    """Attend in float32, every sum over keys and over D by `reduce`.

    Args:
        q: `[TQ, HQ, D]` of a float dtype.
        k: `[TC, HK, D]` of the same dtype.
        v: `[TC, HK, D]` of the same dtype.
        query_offsets: int32 `[B+1]`, cumulative numbers of queries.
        context_offsets: int32 `[B+1]`, cumulative numbers of contexts.
        reduce: Sums the products over D, and over keys the exponentials and the weighted values.

    Returns:
        `out`, of the shape and dtype of `q`, and `lse`, float32 `[TQ, HQ]`. A query without a key,
        and a slot of no sequence, has out 0 and lse -Inf.
    """
    queries, contexts = query_offsets.tolist(), context_offsets.tolist()
    parts = [
        _attended(
            q[queries[index] : queries[index + 1]],
            *(side[contexts[index] : contexts[index + 1]] for side in (k, v)),
            reduce=reduce,
        )
        for index in range(len(queries) - 1)
    ]
    parts.append(_nothing(q[queries[-1] :]))
    out, lse = (torch.cat(items) for items in zip(*parts, strict=True))
    return out.to(q.dtype), lse


def reference_padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_mask: Tensor,
    context_mask: Tensor,
    *,
    reduce: Reducer,
) -> tuple[Tensor, Tensor]:
    """Attend in float32, every sum over keys and over D by `reduce`.

    Args:
        q: `[B, Q, HQ, D]` of a float dtype.
        k: `[B, C, HK, D]` of the same dtype.
        v: `[B, C, HK, D]` of the same dtype.
        query_mask: bool `[B, Q]`, True where a query lives; these lie side by side.
        context_mask: bool `[B, C]`, True where a context lives; these lie side by side.
        reduce: As for `reference_packed`.

    Returns:
        `out`, of the shape and dtype of `q`, and `lse`, float32 `[B, Q, HQ]`. A query without a
        key, and a dead slot, has out 0 and lse -Inf.
    """
    rows = []
    for row, (is_query, is_context) in enumerate(zip(query_mask, context_mask, strict=True)):
        slots = is_query.nonzero()[:, 0].tolist()
        head, tail = (slots[0], slots[-1] + 1) if slots else (0, 0)
        parts = (
            _nothing(q[row, :head]),
            _attended(q[row, head:tail], k[row, is_context], v[row, is_context], reduce=reduce),
            _nothing(q[row, tail:]),
        )
        rows.append(tuple(torch.cat(items) for items in zip(*parts, strict=True)))
    if not rows:
        out, lse = _nothing(q.flatten(0, 1))
        return out.to(q.dtype).view(q.shape), lse.view(q.shape[:-1])
    out, lse = (torch.stack(items) for items in zip(*rows, strict=True))
    return out.to(q.dtype), lse


def _attended(q: Tensor, k: Tensor, v: Tensor, *, reduce: Reducer) -> tuple[Tensor, Tensor]:
    """Attend within one sequence: its last contexts are the queries."""
    query_count, head_count, width = q.shape
    context_count, shared_count, _ = k.shape
    group = head_count // shared_count
    keyless = min(query_count, max(0, query_count - context_count))
    parts = [_nothing(q[:keyless])]
    k_CHD, v_CHD = k.float(), v.float()
    key_C = torch.arange(context_count, device=q.device)
    step = max(1, REFERENCE_ELEMENTS_MAX // max(1, context_count * head_count * width))
    for start in range(keyless, query_count, step):
        rows = q[start : start + step].float()
        rows = rows.reshape(len(rows), shared_count, group, width)
        position = torch.arange(start, start + len(rows), device=q.device)
        is_seen = key_C <= (position + context_count - query_count)[:, None]
        scores = reduce(rows[:, None] * k_CHD[:, :, None], -1) * width**-0.5
        scores = torch.where(is_seen[:, :, None, None], scores, -torch.inf)
        largest = scores.amax(dim=1, keepdim=True).detach()
        # Shifted by -Inf, scores of nothing else would have lse NaN; torch.logsumexp says -Inf.
        shift = torch.where(largest.isinf(), 0.0, largest)
        weights = (scores - shift).exp()
        total = reduce(weights, 1)
        out = reduce(weights[..., None] * v_CHD[:, :, None], 1) / total[..., None]
        lse = total.log() + shift[:, 0]
        parts.append((out.flatten(1, 2), lse.flatten(1, 2)))
    out, lse = (torch.cat(items) for items in zip(*parts, strict=True))
    return out, lse


def _nothing(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return what queries without a key give, in float32."""
    lse = torch.full(q.shape[:-1], -torch.inf, dtype=torch.float32, device=q.device)
    return torch.zeros(q.shape, dtype=torch.float32, device=q.device), lse


_TRITON = "biprop.kernels.attention_triton"
_DEVICE_KERNELS = ("attention_tile", "attention_dq_tile", "attention_dkv_block")
_PACKED = parse_signature(
    "q[TQ,HQ,D], k[TC,HK,D], v[TC,HK,D], query_offsets: offsets(Q)[B+1], "
    "context_offsets: offsets(C)[B+1] -> out[TQ,HQ,D], lse: float32[TQ,HQ]"
)
_PADDED = parse_signature(
    "q[B,Q,HQ,D], k[B,C,HK,D], v[B,C,HK,D], query_mask: mask[B,Q], context_mask: mask[B,C] "
    "-> out[B,Q,HQ,D], lse: float32[B,Q,HQ]"
)

OPERATOR = Operator(
    name="attention",
    op_class="attention",
    forms=(
        Form(
            name="packed",
            signature=_PACKED,
            backward_signature=parse_backward(
                "dout[TQ,HQ,D], dlse: float32[TQ,HQ], q[TQ,HQ,D], k[TC,HK,D], v[TC,HK,D], "
                "out[TQ,HQ,D], lse: float32[TQ,HQ], query_offsets: offsets(Q)[B+1], "
                "context_offsets: offsets(C)[B+1] -> dq[TQ,HQ,D], dk[TC,HK,D], dv[TC,HK,D]",
                _PACKED,
            ),
            implementations=(
                Implementation(
                    backend="torch",
                    forward=attention_torch.forward_packed,
                    backward=attention_torch.backward_packed,
                ),
                triton_backend(
                    _TRITON,
                    kernels=_DEVICE_KERNELS,
                    forward="forward_packed",
                    backward="backward_packed",
                ),
            ),
            reference=reference_packed,
        ),
        Form(
            name="padded",
            signature=_PADDED,
            backward_signature=parse_backward(
                "dout[B,Q,HQ,D], dlse: float32[B,Q,HQ], q[B,Q,HQ,D], k[B,C,HK,D], v[B,C,HK,D], "
                "out[B,Q,HQ,D], lse: float32[B,Q,HQ], query_mask: mask[B,Q], "
                "context_mask: mask[B,C] -> dq[B,Q,HQ,D], dk[B,C,HK,D], dv[B,C,HK,D]",
                _PADDED,
            ),
            implementations=(
                Implementation(
                    backend="torch",
                    forward=attention_torch.forward_padded,
                    backward=attention_torch.backward_padded,
                ),
                triton_backend(
                    _TRITON,
                    kernels=("attention_bounds", *_DEVICE_KERNELS),
                    forward="forward_padded",
                    backward="backward_padded",
                ),
            ),
            reference=reference_padded,
        ),
    ),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"), chain_index=4
    ),
    # A tile holds the 64 heads that may share one context head, one query of each at least.
    restrictions=parse_restrictions("HQ=1..64 HK=1..64 HQ%HK==0 D=1..256"),
)
