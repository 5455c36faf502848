"""Guesses at the sums inside an attention that does not tell them, made from its signature.

A few queries of the watched sequences attend the keys of their own sequence, up to their own token
where the signature is causal. Scores, the sum of the weights and the weighted values are summed in
the orders of `biprop.execution.orders` and rounded as the outputs are; gradients likewise, of
queries over keys, of keys and values over queries. Never across sequences, and at a bounded cost
whatever the case's size. The result is used by `biprop.execution.power`; signatures without
contexts are the part of `biprop.execution.proxies`.

Shapes: R rows (one query and one head each), C contexts, D features of scores, E features of
values, T queries of one sequence.
"""

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from biprop.execution.orders import ORDERS
from biprop.execution.proxies import changed_share, spread
from biprop.execution.run import Prepared
from biprop.operators import Reducer
from biprop.signature import Argument, Signature
from biprop.signature.query_context import cutting_of
from biprop.signature.roles import has_contexts, roles_of

__all__ = ["attention_gradient_shares", "attention_shares", "can_guess"]

_ROWS_MAX = 8
_SEQUENCES_MAX = 3
_COLUMNS_MAX = 8
# Features of all keys that are looked at; fewer rows for long contexts.
_ELEMENTS_MAX = 1 << 17
# Products of scores that are summed in several orders; the other scores have one order.
_ORDERED_MAX = 1 << 13
_KEYS_MAX = 3
_QUERIES_MAX = 64
_SHARED_MAX = 2


def can_guess(signature: Signature) -> bool:
    """Return whether a signature has one tensor of queries, of keys and of values to multiply."""
    if not has_contexts(signature):
        return False
    roles = roles_of(signature)
    single = all(len(group) == 1 for group in (roles.queries, roles.keys, roles.values))
    return single and roles.score_dim is not None and roles.value_dim is not None


def attention_shares(prepared: Prepared, dtypes: Mapping[str, torch.dtype]) -> list[float]:
    """Return the share of changed elements, by output of the forward.

    Args:
        prepared: A case of a signature that `can_guess` accepts.
        dtypes: Of the judged outputs, by name.
    """
    rows = _rows(prepared)
    by_order = [_forward(rows, reduce) for reduce in ORDERS]
    value_dim = roles_of(prepared.kernel.signature).value_dim
    shares = []
    for item in prepared.kernel.signature.judged_outputs:
        if item.name in dtypes:
            which = 0 if _carries(item, value_dim) else 1
            results = [results[which].to(dtypes[item.name]) for results in by_order]
            shares.append(changed_share(results))
    return shares


def attention_gradient_shares(prepared: Prepared, dtypes: Mapping[str, torch.dtype]) -> list[float]:
    """Return the share of changed elements, by gradient of queries, keys and values.

    Args:
        prepared: A case of a signature that `can_guess` accepts.
        dtypes: Of the judged gradients, by name `d<argument>`.
    """
    roles = roles_of(prepared.kernel.signature)
    query, key, value = (f"d{group[0].name}" for group in (roles.queries, roles.keys, roles.values))
    shares = []
    if query in dtypes:
        rows = _rows(prepared)
        results = [_query_gradient(rows, reduce).to(dtypes[query]) for reduce in ORDERS]
        shares.append(changed_share(results))
    if key in dtypes or value in dtypes:
        for name, terms in zip((key, value), _context_terms(prepared), strict=True):
            if name in dtypes and terms is not None:
                results = [reduce(terms, 0).to(dtypes[name]) for reduce in ORDERS]
                shares.append(changed_share(results))
    return shares


@attrs.frozen(kw_only=True, eq=False)
class _Rows:
    """Queries with the keys and values that they attend, in float32 on the CPU.

    Attributes:
        query: `[R, D]`.
        key: `[R, C, D]`.
        value: `[R, C, E]`, a few columns of it for the weighted sum.
        seen: bool `[R, C]`.
        ordered: Contexts whose scores are summed in several orders.
        scale: 1 / sqrt(D).
        upstream: `[R, E]` of the outputs with values; zeros where outputs are judged.
        upstream_lse: `[R]` of the other outputs.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    seen: Tensor
    ordered: Tensor
    scale: float
    upstream: Tensor
    upstream_lse: Tensor


def _forward(rows: _Rows, reduce: Reducer) -> tuple[Tensor, Tensor]:
    """Return `[R, E]` weighted values of a few columns, and `[R]` log-sum-exp."""
    weights, total, peak = _weights(rows, reduce)
    out = reduce(weights[..., None] * _few(rows.value), -2) / total[:, None]
    return out, peak + total.log()


def _query_gradient(rows: _Rows, reduce: Reducer) -> Tensor:
    """Return `[R, D]` of a few columns."""
    weights, total, _ = _weights(rows, reduce)
    weights = weights / total[:, None]
    products = torch.einsum("re,rce->rc", rows.upstream, rows.value)
    products[:, rows.ordered] = reduce(rows.upstream[:, None] * rows.value[:, rows.ordered], -1)
    delta = reduce(weights * products, -1)
    slopes = weights * (products - delta[:, None] + rows.upstream_lse[:, None])
    return reduce(slopes[..., None] * _few(rows.key), -2) * rows.scale


def _weights(rows: _Rows, reduce: Reducer) -> tuple[Tensor, Tensor, Tensor]:
    """Return `[R, C]` exponentials, their `[R]` sums and the `[R]` peaks of the scores."""
    scores = torch.einsum("rd,rcd->rc", rows.query, rows.key)
    scores[:, rows.ordered] = reduce(rows.query[:, None] * rows.key[:, rows.ordered], -1)
    scores = (scores * rows.scale).masked_fill_(~rows.seen, -torch.inf)
    peak = scores.amax(dim=-1)
    weights = (scores - peak[:, None]).exp()
    return weights, reduce(weights, -1), peak


def _rows(prepared: Prepared) -> _Rows:
    """Return a few queries, each with one head, over the watched sequences."""
    heads = _heads(prepared)
    queries = _queries(prepared)
    longest = max(stop - start for _, start, stop in queries)
    width = heads.query.shape[-1] + heads.value.shape[-1]
    count = max(1, min(_ROWS_MAX, _ELEMENTS_MAX // (longest * width)))
    picked = [queries[int(at)] for at in spread(len(queries), count)]
    # Fewer queries than rows: each is looked at with several heads.
    several = spread(heads.count, max(1, count // len(picked))).tolist()
    pairs = [(*query, head) for query in picked for head in several]
    token, start, stop, head = torch.tensor(pairs).unbind(1)
    longest = int((stop - start).max())
    context = start[:, None] + torch.arange(longest)
    seen = context < stop[:, None]
    # What is not seen may be anything, and a weight of zero must not meet it.
    context = context.where(seen, start[:, None])
    ordered = _ORDERED_MAX // (len(pairs) * max(heads.key.shape[-1], heads.value.shape[-1]))
    return _Rows(
        query=heads.of(heads.query, token, head),
        key=heads.of(heads.key, context, head[:, None]),
        value=heads.of(heads.value, context, head[:, None]),
        seen=seen,
        ordered=spread(longest, max(4, ordered)),
        scale=heads.scale,
        upstream=heads.of(heads.upstream, token, head),
        upstream_lse=heads.of(heads.upstream_lse, token, head),
    )


def _queries(prepared: Prepared) -> list[tuple[int, int, int]]:
    """Return of each query its token, its first context and past its last, all in the pool.

    The last query comes first: it attends the most, and may be the only one that is looked at.
    """
    pool, cutting = prepared.pool, cutting_of(prepared.kernel.signature)
    found = []
    for index in spread(pool.watched_count, _SEQUENCES_MAX).tolist():
        start, stop = pool.start[index], pool.start[index + 1]
        if cutting == "none":
            found.append((stop - 1, start, stop))
            continue
        first = start + pool.sequences[index].prompt_length
        tokens = (first + spread(stop - first, _ROWS_MAX)).tolist()
        found += [(token, start, token + 1 if cutting == "prefix" else stop) for token in tokens]
    return found[::-1]


def _context_terms(prepared: Prepared) -> tuple[Tensor | None, Tensor | None]:
    """Return the terms of some gradients of keys, then of values: `[terms, keys, columns]`.

    They are summed over the queries that attend the key, and over the heads that share it.
    """
    heads = _heads(prepared)
    found = _window(prepared)
    if found is None:
        return None, None
    queries, stops, context, keys = found
    at = keys - context[0]
    of_keys, of_values = [], []
    for head in spread(max(1, heads.count // heads.key.shape[1]), _SHARED_MAX):
        query = heads.of(heads.query, queries, head)
        upstream = heads.of(heads.upstream, queries, head)
        scores = query @ heads.of(heads.key, context, head).T * heads.scale
        weights = scores.masked_fill_(context >= stops[:, None], -torch.inf).softmax(dim=-1)
        products = upstream @ heads.of(heads.value, context, head).T
        delta = (weights * products).sum(dim=-1, keepdim=True)
        of_lse = heads.of(heads.upstream_lse, queries, head)[:, None]
        slopes = weights * (products - delta + of_lse) * heads.scale
        of_keys.append(slopes[:, at, None] * _few(query)[:, None])
        of_values.append(weights[:, at, None] * _few(upstream)[:, None])
    return torch.cat(of_keys), torch.cat(of_values)


def _window(prepared: Prepared) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Return queries of the longest sequence, past the last context of each, contexts, some keys.

    Under a causal cutting these are the last queries, and keys that no query before them attends.
    """
    pool, signature = prepared.pool, prepared.kernel.signature
    axis = roles_of(signature).keys[0].token_axis
    assert axis is not None, "keys have tokens"
    keys = prepared.compared.places(axis)
    if not len(keys):
        return None
    lengths = pool.starts[1:] - pool.starts[:-1]
    longest = int(lengths[pool.sequence_of[keys]].argmax())
    index = int(pool.sequence_of[keys[longest]])
    start, stop = pool.start[index], pool.start[index + 1]
    count = max(1, min(_QUERIES_MAX, _ELEMENTS_MAX // (2 * (stop - start))))
    cutting = cutting_of(signature)
    if cutting == "queries":
        queries = start + spread(stop - start, count)
    else:
        queries = torch.arange(max(start, stop - (1 if cutting == "none" else count)), stop)
    first = int(queries[0]) if cutting == "prefix" else start
    keys = keys[(keys >= first) & (keys < stop)]
    stops = queries + 1 if cutting == "prefix" else torch.full_like(queries, stop)
    return queries, stops, torch.arange(start, stop), keys[spread(len(keys), _KEYS_MAX)]


@attrs.frozen(kw_only=True, eq=False)
class _Heads:
    """The values of a case as attention sees them, in the case's dtype on its device.

    Attributes:
        query: `[n, heads, D]` of the pool's tokens.
        key: `[n, heads, D]`, of as many heads or fewer.
        value: `[n, heads, E]`, likewise.
        upstream: `[n, heads, E]` of the first output with values, zeros without one.
        upstream_lse: `[n, heads]` of the first other output, zeros without one.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    upstream: Tensor
    upstream_lse: Tensor

    @property
    def count(self) -> int:
        """Heads of queries."""
        return self.query.shape[1]

    @property
    def scale(self) -> float:
        """What scores are multiplied by: 1 / sqrt(D)."""
        return float(self.query.shape[-1] ** -0.5)

    def of(self, values: Tensor, token: Tensor, head: Tensor) -> Tensor:
        """Return float32 on the CPU: `values` at pool tokens and at what heads of queries read.

        Neighbouring heads of queries share a head of what has fewer.
        """
        own = head * values.shape[1] // self.count
        return values[token.to(values.device), own.to(values.device)].cpu().float()


def _heads(prepared: Prepared) -> _Heads:
    signature, tokens = prepared.kernel.signature, prepared.values.tokens
    roles = roles_of(signature)
    score_dim, value_dim = roles.score_dim, roles.value_dim
    assert score_dim is not None, "can_guess looked"
    assert value_dim is not None, "can_guess looked"
    query = _by_head(roles.queries[0], tokens[roles.queries[0].name], score_dim)
    value = _by_head(roles.values[0], tokens[roles.values[0].name], value_dim)
    upstream = query.new_zeros(()).expand(len(query), 1, value.shape[-1])
    upstream_lse = query.new_zeros(()).expand(len(query), 1)
    for item in reversed(signature.judged_outputs):
        found = tokens.get(f"d{item.name}")
        if found is None:
            continue
        if _carries(item, value_dim):
            upstream = _by_head(item, found, value_dim)
        else:
            upstream_lse = found.reshape(len(found), -1)
    return _Heads(
        query=query,
        key=_by_head(roles.keys[0], tokens[roles.keys[0].name], score_dim),
        value=value,
        upstream=upstream,
        upstream_lse=upstream_lse,
    )


def _by_head(item: Argument, values: Tensor, dim: str) -> Tensor:
    """Return `[n, heads, features]` of `[n, *free]`, a view where features lie last."""
    place = 1 + [free.text for free in item.free_dims].index(dim)
    last = values.movedim(place, -1)
    return last.reshape(len(values), -1, values.shape[place])


def _carries(item: Argument, dim: str | None) -> bool:
    return dim in {free.text for free in item.free_dims}


def _few(values: Tensor) -> Tensor:
    return values[..., spread(values.shape[-1], _COLUMNS_MAX)]
