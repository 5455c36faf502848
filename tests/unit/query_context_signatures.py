"""Signatures over queries and contexts, one of every way to tell a kernel who attends whom."""

from biprop.signature import parse_signature

__all__ = ["CONTEXT_SIGNATURES"]

_PADDED = "q[B,Q,HQ,D], k[B,C,HK,D], v[B,C,HK,D]"
_PACKED = "q[TQ,HQ,D], k[TC,HK,D], v[TC,HK,D]"

CONTEXT_SIGNATURES = {
    name: parse_signature(text)
    for name, text in {
        "causal_mask": f"{_PADDED}, m: causal_mask[B,1,Q,C] -> o[B,Q,HQ,D]",
        "additive": f"{_PADDED}, m: causal_mask(float)[B,1,Q,C] -> o[B,Q,HQ,D]",
        "shared_mask": f"{_PADDED}, m: causal_mask[Q,C] -> o[B,Q,HQ,D]",
        "masks": f"{_PADDED}, x: mask[B,Q], y: mask[B,C] -> o[B,Q,HQ,D], lse: float32[B,Q,HQ]",
        "lengths": f"{_PADDED}, x: lengths(Q)[B], y: lengths(C)[B] -> o[B,Q,HQ,D]",
        "context_lengths": f"{_PADDED}, y: lengths(C)[B] -> o[B,Q,HQ,D]",
        "is_causal": f"{_PADDED}, c: is_causal -> o[B,Q,HQ,D]",
        "masked_is_causal": f"{_PADDED}, y: mask[B,C], c: is_causal -> o[B,Q,HQ,D]",
        "full": f"{_PADDED} -> o[B,Q,HQ,D]",
        "masked_full": f"{_PADDED}, y: mask[B,C] -> o[B,Q,HQ,D]",
        "queries": "x[B,Q,D], m: mask[B,Q] -> o[B,Q,D]",
        "pooled": f"{_PADDED}, y: mask[B,C], m: causal_mask[B,1,Q,C] -> o[B,HQ,D]",
        "one_query": "q[B,HQ,D], k[B,C,HK,D], v[B,C,HK,D], y: lengths(C)[B] -> o[B,HQ,D]",
        "one_masked": "q[B,HQ,1,D], k[B,HK,C,D], v[B,HK,C,D], m: causal_mask[B,1,1,C] -> o[B,HQ,D]",
        "one_blind": "q[B,HQ,D], k[B,C,HK,D], v[B,C,HK,D] -> o[B,HQ,D]",
        "one_packed": "q[B,HQ,D], k[TC,HK,D], v[TC,HK,D], y: offsets(C)[B+1] -> o[B,HQ,D]",
        "offsets": f"{_PACKED}, x: offsets(Q)[B+1], y: offsets(C)[B+1] -> o[TQ,HQ,D]",
        "query_offsets": f"{_PACKED}, x: offsets(Q)[B+1] -> o[TQ,HQ,D]",
        "packed_mask": f"{_PACKED}, m: causal_mask[TQ,TC] -> o[TQ,HQ,D]",
    }.items()
}
