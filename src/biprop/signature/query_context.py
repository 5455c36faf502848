"""What a signature over queries and contexts says of its sequences: causal or not, told or not.

A launch of queries [c, d) of a sequence holds its contexts [0, d) for a causal kernel, and all of
them for another one. Where a kernel is not told how many slots of a row are live, rows must be
equally long, as `biprop.generation.legal` sees to.
"""

from typing import Literal

from biprop.signature.records import Signature

__all__ = [
    "Chunks",
    "Cutting",
    "chunks_of",
    "cutting_of",
    "is_even",
    "names_contexts",
    "names_queries",
    "one_value_a_sequence",
    "pads_contexts_alone",
    "pads_queries",
    "sides_of",
    "takes_packed_rows",
    "tells_queries",
    "told_axes",
]

Cutting = Literal["prefix", "queries", "none"]
Chunks = Literal["any", "decode", "none"]
Told = Literal["Q", "C"]

_QUERIES = frozenset({"Q", "TQ"})
_CONTEXTS = frozenset({"C", "TC"})
_SIDES: dict[str, Told] = {"Q": "Q", "TQ": "Q", "C": "C", "TC": "C"}


def names_queries(signature: Signature) -> bool:
    """Return whether a sequence may have several queries; without their axis it has one."""
    return _names(signature, _QUERIES)


def names_contexts(signature: Signature) -> bool:
    """Return whether anything has contexts; queries alone are as the slots of a row."""
    return _names(signature, _CONTEXTS)


def cutting_of(signature: Signature) -> Cutting:
    """Return what a launch of some queries of a sequence holds.

    Returns:
        `prefix`: the contexts up to the last of these queries; the kernel is causal, and its
        queries are the last live contexts. `queries`: all contexts, and each query reads all of
        them. `none`: a sequence has one query, its last token, which reads all contexts.
    """
    if not names_queries(signature):
        return "none"
    masks = {_SIDES[item.token_axis or ""] for item in signature.arguments if item.kind == "mask"}
    causal = (
        _has_causal_mask(signature)
        or _has_is_causal(signature)
        or signature.has_lengths
        or signature.has_offsets
        or masks == {"Q", "C"}
    )
    return "prefix" if causal else "queries"


def told_axes(signature: Signature) -> frozenset[Told]:
    """Return of which sides, queries or contexts, the kernel is told what is live in each row.

    Nothing has to be told of a side that the signature does not have.
    """
    found: set[Told] = set()
    for item in signature.arguments:
        names = {dim.name for dim in item.dims}
        if item.kind == "mask":
            found.add(_SIDES[item.token_axis or ""])
        elif item.kind in {"lengths", "offsets"}:
            found.add(_SIDES[item.parameter or ""])
        elif item.kind == "causal_mask" and names & {"B", "TQ"}:
            found |= {"Q", "C"} if names & _QUERIES else {"C"}
    if found and not (names_queries(signature) and names_contexts(signature)):
        found = {"Q", "C"}
    return frozenset(found)


def tells_queries(signature: Signature) -> bool:
    """Return whether the kernel knows its dead queries, more than that they attend some key."""
    return any(
        (item.kind == "mask" and _SIDES[item.token_axis or ""] == "Q")
        or (item.kind in {"lengths", "offsets"} and item.parameter == "Q")
        for item in signature.arguments
    )


def is_even(signature: Signature) -> bool:
    """Return whether all sequences of a launch must be equally long.

    A kernel that is told its contexts alone may take its queries for the last of them, so that a
    row must not have dead queries.
    """
    if signature.layout == "packed_query_context":
        return False
    told = told_axes(signature)
    if _shares_causal_mask(signature) or _pools_untold_queries(signature):
        return True
    if cutting_of(signature) != "prefix" or _aligned_by_slot(signature):
        return "C" not in told
    return told != {"Q", "C"}


def sides_of(signature: Signature) -> tuple[str, ...]:
    """Return on which sides of live contexts dead ones may lie; none, if there may be none.

    Lengths and offsets count from the first slot. An order says where the counted slots are, but
    alone not how many of its slots are live, so that it tells nothing without offsets.
    """
    told = told_axes(signature)
    if _finds_by_order(signature):
        return ("right", "left")
    if signature.has_lengths or signature.has_offsets:
        packed = signature.layout == "packed_query_context"
        return ("right",) if packed or "C" in told else ()
    return ("right", "left") if "C" in told else ()


def pads_queries(signature: Signature) -> bool:
    """Return whether dead slots may lie beside live queries as beside live contexts."""
    return bool(sides_of(signature)) and not (names_queries(signature) and is_even(signature))


def pads_contexts_alone(signature: Signature) -> bool:
    """Return whether there may be dead contexts and no dead queries."""
    # A kernel that is told `is_causal` compares the number of queries with that of contexts.
    return (
        bool(sides_of(signature)) and "C" in told_axes(signature) and not _has_is_causal(signature)
    )


def chunks_of(signature: Signature) -> Chunks:
    """Return where the queries of a sequence may be cut: anywhere, before single ones, nowhere.

    A causal kernel must be able to tell how many contexts come before its queries.
    """
    cutting = cutting_of(signature)
    if cutting == "none" or not names_contexts(signature):
        return "none"
    if _has_is_causal(signature):
        return "decode"
    if cutting == "queries" or _has_causal_mask(signature):
        return "any"
    # Segments that are told of one side only are taken to be the same on the other one.
    needed: set[Told] = {"Q", "C"} if signature.layout == "packed_query_context" else {"C"}
    return "any" if needed <= told_axes(signature) else "none"


def one_value_a_sequence(signature: Signature) -> bool:
    """Return whether an argument or output has one value a sequence, its last token's."""
    return any(
        item.token_axis == "B" and item.kind not in {"lengths", "offsets"}
        for item in (*signature.arguments, *signature.outputs)
    )


def takes_packed_rows(signature: Signature) -> bool:
    """Return whether a mask alone says who attends whom, so that sequences may share a row."""
    kinds = {item.kind for item in signature.arguments}
    return (
        signature.layout == "query_context"
        and _has_causal_mask(signature)
        and not _shares_causal_mask(signature)
        and not kinds & {"lengths", "offsets", "is_causal", "mask"}
        and not one_value_a_sequence(signature)
    )


def _names(signature: Signature, axes: frozenset[str]) -> bool:
    return any(
        dim.name in axes for item in (*signature.arguments, *signature.outputs) for dim in item.dims
    )


def _finds_by_order(signature: Signature) -> bool:
    """Return whether both sides have an order and offsets into it, and nothing counts slots."""
    ends = {item.parameter for item in signature.arguments if item.kind == "offsets"}
    order = {_SIDES[item.token_axis or ""] for item in signature.arguments if item.kind == "order"}
    sides = {"Q"} if names_queries(signature) else set()
    sides |= {"C"} if names_contexts(signature) else set()
    return sides <= ends & order and not signature.has_lengths


def _has_causal_mask(signature: Signature) -> bool:
    """Return whether a mask has queries; one over contexts alone hides padding, and no future."""
    return any(
        item.kind == "causal_mask" and _QUERIES & {dim.name for dim in item.dims}
        for item in signature.arguments
    )


def _shares_causal_mask(signature: Signature) -> bool:
    """Return whether one mask serves all rows."""
    return any(
        item.kind == "causal_mask" and not {"B", "TQ"} & {dim.name for dim in item.dims}
        for item in signature.arguments
    )


def _pools_untold_queries(signature: Signature) -> bool:
    """Return whether a value of all queries of a row would have to do without dead ones."""
    pools = any(output.token_axis == "B" for output in signature.judged_outputs)
    return pools and names_queries(signature) and not tells_queries(signature)


def _has_is_causal(signature: Signature) -> bool:
    return any(item.kind == "is_causal" for item in signature.arguments)


def _aligned_by_slot(signature: Signature) -> bool:
    """Return whether causality compares slots, since nothing counts the live ones."""
    return _has_is_causal(signature) and not (signature.has_lengths or signature.has_offsets)
