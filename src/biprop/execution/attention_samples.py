"""What a reference of attention is asked, to see if it would show: few queries, whole contexts.

The last queries of a few sequences attend all that they attend in the case, with a head or two. A
query that is too long for that is the part of `biprop.execution.attention_proxies`, which looks at
fewer features. The result is used by `biprop.execution.power`.
"""

import torch
from torch import Tensor

from biprop.execution.frame import Frame
from biprop.execution.proxies import spread
from biprop.execution.run import Prepared
from biprop.layout.launch import Launch
from biprop.layout.pool import TokenPool
from biprop.signature import Argument, Signature, TokenAxis
from biprop.signature.query_context import chunks_of, cutting_of
from biprop.signature.roles import Roles, roles_of

__all__ = ["attention_frames", "fewer_heads"]

_SEQUENCES_MAX = 2
_HEADS_MAX = 2
# Products of queries with keys of a launch, and of one query that is looked at at all.
_ELEMENTS_MAX = 1 << 15
_QUERY_ELEMENTS_MAX = 1 << 17


def attention_frames(prepared: Prepared) -> list[Frame] | None:
    """Return launches of the last queries of some watched sequences; None where they are too long.

    Args:
        prepared: A case of a signature with contexts.
    """
    pool, signature = prepared.pool, prepared.kernel.signature
    sequences = spread(pool.watched_count, _SEQUENCES_MAX).tolist()
    features = _features(prepared)
    frames = []
    for index in sequences:
        length = pool.start[index + 1] - pool.start[index]
        count = _query_count(signature, length, _ELEMENTS_MAX // max(1, length * features))
        if count * length * features > _QUERY_ELEMENTS_MAX:
            continue
        launch = _launch(signature, pool, index, count)
        frames.append(Frame(launch=launch, compared=prepared.compared, device=prepared.device))
    return frames or None


def fewer_heads(prepared: Prepared, arguments: list[object]) -> list[object]:
    """Return the arguments with one head of contexts and some that read it.

    Heads do not know of each other, so that those which are left give what they gave.
    """
    kept = _kept_heads(prepared)
    found = []
    for item, value in zip(prepared.kernel.signature.arguments, arguments, strict=True):
        taken = value
        if isinstance(taken, Tensor):
            for place, dim in enumerate(item.dims):
                if dim.text in kept:
                    taken = taken.narrow(place, 0, kept[dim.text])
        found.append(taken)
    return found


def _query_count(signature: Signature, length: int, wanted: int) -> int:
    """Return how many of the last queries of a sequence may stand in a launch of their own."""
    chunks = chunks_of(signature)
    if cutting_of(signature) == "none" or chunks == "decode":
        return 1
    return min(length, max(1, wanted)) if chunks == "any" else length


def _launch(signature: Signature, pool: TokenPool, index: int, count: int) -> Launch:
    start, stop = pool.start[index], pool.start[index + 1]
    queries, contexts = torch.arange(stop - count, stop), torch.arange(start, stop)
    maps: dict[TokenAxis, Tensor] = (
        {"Q": queries[None], "C": contexts[None]}
        if signature.layout == "query_context"
        else {"TQ": queries, "TC": contexts}
    )
    return Launch(
        maps={**maps, "B": queries[-1:]},
        lengths=(count,),
        context_lengths=(stop - start,),
        sequences=(index,),
    )


def _features(prepared: Prepared) -> int:
    """Return the products of one query with one key, over the heads that are kept."""
    roles, dims = roles_of(prepared.kernel.signature), prepared.case.dims
    kept = _kept_heads(prepared)
    count = 1
    for dim in roles.queries[0].free_dims if roles.queries else ():
        count *= kept.get(dim.text, dim.size(dims))
    return count


def _kept_heads(prepared: Prepared) -> dict[str, int]:
    """Return how many are kept of each dimension of heads; none where heads cannot be told."""
    roles, dims = roles_of(prepared.kernel.signature), prepared.case.dims
    of_queries = _head_dims(roles, roles.queries)
    of_contexts = _head_dims(roles, (*roles.keys, *roles.values))
    if len(of_queries) != 1 or len(of_contexts) != 1:
        return {}
    (query,), (context,) = of_queries, of_contexts
    if query == context:
        return {query: 1}
    shared = max(1, dims[query] // dims[context])
    return {query: min(_HEADS_MAX, shared), context: 1}


def _head_dims(roles: Roles, arguments: tuple[Argument, ...]) -> set[str]:
    features = {roles.score_dim, roles.value_dim}
    return {
        dim.name
        for item in arguments
        for dim in item.free_dims
        if dim.name is not None and not dim.operation and dim.text not in features
    }
