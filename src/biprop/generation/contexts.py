"""What classes and transforms mean for queries and contexts, and which would be unfair there.

A kernel knows of its launch what its signature tells it (`biprop.signature.query_context`): what it
cannot know must not decide a comparison.
"""

from biprop.case import Case, Dtype, Judged
from biprop.signature import Signature
from biprop.signature.query_context import (
    chunks_of,
    cutting_of,
    is_even,
    names_contexts,
    names_queries,
    one_value_a_sequence,
    pads_contexts_alone,
    pads_queries,
    sides_of,
    takes_packed_rows,
    tells_queries,
    told_axes,
)
from biprop.signature.roles import has_contexts
from biprop.transforms import AddNeighbours, PadSlots, ReplaceNeighbours, SplitBatch, transforms_of

__all__ = [
    "FILLS_HARMLESS",
    "cut_fault",
    "has_rows",
    "knows_dead",
    "longest_of",
    "padding_fault",
    "reasons_of_contexts",
    "spares_live_keys",
]

# Fills that cannot hurt a sum over tokens in which a dead token's upstream gradient is zero.
FILLS_HARMLESS = ("zero", "one")
_NO_SHARED_ROW = "it needs a causal_mask over B,Q,C, and no mask, lengths or is_causal beside it"


def has_rows(signature: Signature) -> bool:
    """Return whether there may be dead rows, or empty segments."""
    if signature.layout == "packed_query_context":
        return signature.has_offsets or signature.has_lengths
    return signature.sequence_wise


def reasons_of_contexts(signature: Signature, judged: Judged) -> dict[str, str]:
    """Return why T4 to T6 do not apply, an empty text where they do."""
    reasons = {"T5": _no_cut(signature, judged), "T6": ""}
    if signature.layout == "packed_query_context":
        reasons["T6"] = "its sequences are packed already"
    elif one_value_a_sequence(signature):
        reasons["T6"] = "a row has a value of its whole sequence, so that no two can share it"
    elif not takes_packed_rows(signature):
        reasons["T6"] = _NO_SHARED_ROW
    elif judged == "parameter_gradients":
        reasons["T6"] = "gradients of parameters compare one row a sequence"
    if judged == "token_gradients" and not spares_live_keys(signature) and not has_rows(signature):
        reasons["T4.nonfinite"] = (
            "a dead query attends a live key, so that 0 * NaN in its gradient is not the target's "
            "fault"
        )
    return reasons


def knows_dead(target: Signature) -> bool:
    """Return whether a target can leave dead tokens out of the gradients of parameters."""
    if has_contexts(target):
        # A causal mask lets a dead query attend a key, as a live one does.
        return tells_queries(target) and "C" in told_axes(target)
    return target.has_mask or target.has_offsets


def spares_live_keys(signature: Signature) -> bool:
    """Return whether no dead query can reach the gradient of a live key of a healthy kernel."""
    return tells_queries(signature) or not names_queries(signature) or is_even(signature)


def cut_fault(transform: SplitBatch, case: Case, signature: Signature) -> str:
    """Return why queries cannot be cut there; empty if they can."""
    longest = longest_of(case)
    cuts = [cut for cut in transform.cuts if cut < longest]
    if chunks_of(signature) == "decode" and cuts != list(range(longest - len(cuts), longest)):
        # Contexts that are neither as many as the queries nor those of one query have no is_causal.
        return (
            "is_causal has a value for all queries of a sequence or for one, so cut before each of "
            "the last ones"
        )
    return ""


def padding_fault(
    transform: PadSlots, signature: Signature, *, judged: Judged, dtype: Dtype, is_cut: bool
) -> str:
    """Return why dead slots cannot lie there, or hold that; empty if they can.

    Args:
        transform: The slots.
        signature: Forward signature.
        judged: What is compared.
        dtype: Of the case.
        is_cut: Whether the case has a SplitBatch.
    """
    sides, decode = sides_of(signature), chunks_of(signature) == "decode"
    gradients = judged == "token_gradients"
    if not sides:
        return "nothing tells dead slots from live ones"
    if transform.side not in sides:
        return f"dead slots may lie on the {sides[0]} only"
    if transform.contexts_only and not pads_contexts_alone(signature):
        return "nothing tells queries and contexts apart, so that both need as many slots"
    if not (transform.contexts_only or pads_queries(signature)):
        return "queries are the last contexts, so that only contexts may have dead slots"
    if decode and gradients and transform.side == "left":
        return "a dead query before the first live context attends nothing, and its weights are NaN"
    if decode and transform.amount and is_cut:
        return "is_causal has no value for single queries with dead ones beside them"
    if dtype == "float16" and transform.fill == "large" and _adds_mask(signature):
        # Infinite scores are masked by adding minus infinity.
        return "a score of fill=large overflows float16, and a mask that is added makes NaN of it"
    if gradients and not spares_live_keys(signature) and transform.fill not in FILLS_HARMLESS:
        return f"a dead query attends a live key, whose gradient fill={transform.fill} could reach"
    return ""


def longest_of(case: Case) -> int:
    """Return how long a sequence of a case may be, neighbours included."""
    longest, count = max(sequence.length for sequence in case.sequences), 0
    other = longest
    for transform in transforms_of(case):
        if isinstance(transform, AddNeighbours):
            count = transform.count
        elif isinstance(transform, ReplaceNeighbours):
            other = (transform.length or longest) + transform.spread
    return max(longest, other) if count and case.judged != "parameter_gradients" else longest


def _adds_mask(signature: Signature) -> bool:
    return any(item.kind == "causal_mask" and item.parameter for item in signature.arguments)


def _no_cut(signature: Signature, judged: Judged) -> str:
    cutting = cutting_of(signature)
    if cutting == "none":
        return "a sequence has one query"
    if not names_contexts(signature):
        return "a launch needs every token of its sequences"
    if chunks_of(signature) == "none":
        return "nothing tells how many contexts come before the queries of a launch"
    if judged == "parameter_gradients":
        return "gradients of parameters are sums over the queries of a launch"
    axes = {item.token_axis for item in signature.judged_outputs}
    if judged == "token_gradients":
        axes |= {item.token_axis for item in signature.token_arguments} & {"B"}
    if axes & {"B", "C", "TC"}:
        return "a value of a whole sequence or of a context would come in parts"
    return ""
