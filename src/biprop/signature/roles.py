"""Which arguments of a signature are queries, keys and values, and along what they are multiplied.

A guess from axes and order alone: contexts come as keys, then values, as in every attention in use.
Data (`biprop.generation.attention_data`) and power (`biprop.execution.attention_proxies`) use it;
nothing is judged by it.
"""

import attrs

from biprop.signature.records import Argument, Signature

__all__ = ["Roles", "has_contexts", "roles_of"]

_CONTEXT_AXES = ("C", "TC")


@attrs.frozen(kw_only=True)
class Roles:
    """Float tensors with tokens of a query and context signature.

    Attributes:
        queries: On the query axis, or one value a sequence.
        keys: On the context axis, but for the last of several.
        values: The last on the context axis; a lone one is keys and values at once.
        others: Beside these, tensors without the features of their side, as a bias of scores.
    """

    queries: tuple[Argument, ...]
    keys: tuple[Argument, ...]
    values: tuple[Argument, ...]
    others: tuple[Argument, ...] = ()

    @property
    def score_dim(self) -> str | None:
        """Text of the dimension that scores are summed over; None where there is none."""
        for query in self.queries:
            carried = {dim.text for key in self.keys for dim in key.free_dims if dim.name}
            for dim in reversed(query.free_dims):
                if dim.text in carried:
                    return dim.text
        return None

    @property
    def value_dim(self) -> str | None:
        """Text of the last dimension of the values; None where they have none."""
        for value in self.values:
            if value.free_dims:
                return value.free_dims[-1].text
        return None


def has_contexts(signature: Signature) -> bool:
    """Return whether a signature has queries or contexts."""
    return signature.layout in {"query_context", "packed_query_context"}


def roles_of(signature: Signature) -> Roles:
    """Return the roles of the float arguments with tokens; without contexts none is a key."""
    arguments = signature.token_arguments
    contexts = tuple(item for item in arguments if item.token_axis in _CONTEXT_AXES)
    queries = tuple(item for item in arguments if item not in contexts)
    others = tuple(
        item
        for side in (queries, contexts)
        for item in side
        if any(_lacks_features(item, of=other) for other in side)
    )
    contexts = tuple(item for item in contexts if item not in others)
    return Roles(
        queries=tuple(item for item in queries if item not in others),
        keys=contexts[:-1] or contexts,
        values=contexts[-1:],
        others=others,
    )


def _lacks_features(item: Argument, *, of: Argument) -> bool:
    """Return whether a tensor has fewer dimensions than another one, and not its last."""
    own, wider = ([dim.text for dim in each.free_dims if dim.name] for each in (item, of))
    return set(own) < set(wider) and wider[-1] not in own
