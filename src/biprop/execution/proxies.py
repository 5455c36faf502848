"""Guesses at the sums inside a target that does not tell them, made from its signature.

A dimension that several inputs carry is summed over their product, one that an input keeps over the
input, its squares and its exponentials; gradients are sums weighted by the upstream gradient. Each
is taken in the orders of `biprop.execution.orders` and rounded as the output is. Sums stay inside a
sequence, but for gradients of parameters, which are sums over all of them. The result is used by
`biprop.execution.power`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import attrs
import torch
from torch import Tensor

from biprop.bits import same_bits
from biprop.data.transfer import moved
from biprop.execution.orders import ORDERS
from biprop.execution.run import Prepared
from biprop.operators import Reducer
from biprop.signature import Argument

__all__ = [
    "changed_share",
    "forward_shares",
    "parameter_gradient_shares",
    "spread",
    "token_gradient_shares",
]

_ELEMENTS_MAX = 1 << 14
_TOKENS_MAX = 12
_COLUMNS_MAX = 6
# Label of the token axis.
_TOKEN = "@"


@attrs.frozen(kw_only=True, eq=False)
class _Term:
    """A float tensor with a label for each dimension.

    Attributes:
        name: Of the argument or upstream gradient.
        values: In the dtype that the kernel sees, where the case's values lie: what is looked at of
            them is taken there, and then comes to the CPU.
        labels: One a dimension, `@` for the token axis.
        share: Of ids, what each of them would be, were all equally likely; else 0.
    """

    name: str
    values: Tensor
    labels: tuple[str, ...]
    share: float = 0.0

    @property
    def free(self) -> tuple[str, ...]:
        return tuple(label for label in self.labels if label != _TOKEN)


def spread(count: int, wanted: int) -> Tensor:
    """Return at most `wanted` indices below `count`, evenly spread, ascending, int64."""
    if count <= wanted:
        return torch.arange(count)
    return torch.arange(wanted) * (count - 1) // max(1, wanted - 1)


def changed_share(results: Sequence[Tensor]) -> float:
    """Return the share of elements in which not all of several results have the same bits."""
    changed = ~same_bits(results[0], results[1])
    for other in results[2:]:
        changed |= ~same_bits(results[0], other)
    return float(changed.float().mean()) if changed.numel() else 0.0


def forward_shares(prepared: Prepared, dtypes: Sequence[torch.dtype]) -> list[float]:
    """Return the share of changed elements, by guessed sum of the forward.

    Args:
        prepared: The case.
        dtypes: That sums are rounded to.
    """
    terms = _terms(prepared, prepared.kernel.signature.token_arguments, _sample(prepared))
    kept = _labels_of(prepared.kernel.signature.judged_outputs)
    shares = []
    contracted = _contracted(terms, kept)
    if contracted:
        shares.append(_product_share(_carrying(terms, contracted), contracted, dtypes))
    for term in terms:
        if _TOKEN not in term.labels:
            continue
        for label in term.free:
            if label in contracted:
                continue
            along = _along(term, label)
            shares.extend(_share(partial(single, along), dtypes) for single in _SINGLE)
    for label in dict.fromkeys(label for term in terms for label in term.free):
        carrying = _carrying(terms, (label,))
        if label in kept and len(carrying) > 1 and label not in contracted:
            shares.append(_product_share(carrying, (label,), dtypes))
    return shares


def token_gradient_shares(
    prepared: Prepared, dtypes: Mapping[str, torch.dtype]
) -> tuple[list[float], bool]:
    """Return the share of changed elements, by guessed sum of the gradients of token arguments.

    Args:
        prepared: The case.
        dtypes: Of the judged gradients, by name `d<argument>`.

    Returns:
        The shares, and whether sums of the forward show in the gradients too: in those that
        contract nothing, as those of a norm or a softmax.
    """
    signature = prepared.kernel.signature
    sample = _sample(prepared)
    terms = _terms(prepared, signature.token_arguments, sample)
    own_terms = [term for term in terms if f"d{term.name}" in dtypes and _TOKEN in term.labels]
    shares, is_forward_seen = [], False
    for upstream in _upstream(prepared, sample):
        for own in own_terms:
            to = (dtypes[f"d{own.name}"],)
            others = [term for term in terms if term is not own]
            summed = tuple(label for label in upstream.free if label not in own.free)
            if summed:
                shares.append(_product_share([upstream, *_carrying(others, summed)], summed, to))
                continue
            is_forward_seen = True
            for label in own.free:
                if label in upstream.free:
                    # The inner product of a norm's or softmax's gradient.
                    factors = [upstream, own, *_parameters(others, (label,))]
                    shares.append(_product_share(factors, (label,), to))
    return shares, is_forward_seen


def parameter_gradient_shares(prepared: Prepared, dtypes: Mapping[str, torch.dtype]) -> list[float]:
    """Return the share of changed elements, by sum over tokens of each parameter's gradient.

    Args:
        prepared: The case.
        dtypes: Of the judged gradients, by name `d<parameter>`.
    """
    signature = prepared.kernel.signature
    # Every token: the designs of the data cancel over all of them.
    everything = torch.arange(len(prepared.pool.token))
    tokens = [
        term
        for term in _terms(prepared, signature.token_arguments, everything)
        if _TOKEN in term.labels
    ]
    tokens += _indicators(prepared, everything)
    shares = []
    for parameter in signature.parameters:
        name = f"d{parameter.name}"
        if name not in dtypes:
            continue
        wanted = _labels(parameter)
        for upstream in _upstream(prepared, everything):
            factors = _factors(upstream, tokens, wanted)
            labels = dict.fromkeys(label for term in factors for label in term.labels)
            if set(wanted) <= set(labels):
                summed = tuple(label for label in labels if label not in wanted)
                shares.append(_product_share(factors, summed, (dtypes[name],)))
    return shares


def _factors(upstream: _Term, tokens: list[_Term], wanted: tuple[str, ...]) -> list[_Term]:
    """Return the factors of a parameter's gradient: the upstream one, and inputs if needed."""
    if set(wanted) == set(upstream.free):
        # A bias needs no more, a weight of a norm has the same labels: the product covers both.
        same = [term for term in tokens if set(term.free) <= set(upstream.free)]
        return [upstream, *same[:1]]
    missing = [term for term in tokens if set(wanted) <= {*upstream.free, *term.free}]
    if missing:
        return [upstream, missing[0]]
    # One input a dimension: as ids and hidden states, which give the weight of an output layer.
    holders = [next((term for term in tokens if label in term.free), None) for label in wanted]
    found = dict.fromkeys(term for term in holders if term is not None)
    # A softmax lies between: every row takes its share of every token, and not of its own alone.
    return [upstream, *(attrs.evolve(term, values=term.values - term.share) for term in found)]


def _indicators(prepared: Prepared, tokens: Tensor) -> list[_Term]:
    """Return, for each id argument, which tokens read which row: the gradient of a table's rows.

    Those that most tokens read: nothing is added where none does.
    """
    found = []
    at = moved(tokens, prepared.device)
    for item in prepared.kernel.signature.arguments:
        if item.kind == "token" and item.parameter is not None and item.token_axis is not None:
            ids = prepared.values.tokens[item.name].index_select(0, at).cpu()
            rows, counts = torch.unique(ids, return_counts=True)
            rows = rows[counts.argsort(descending=True, stable=True)[:_COLUMNS_MAX]]
            read = (ids[:, None] == rows[None, :]).float()
            found.append(
                _Term(
                    name=item.name,
                    values=read,
                    labels=(_TOKEN, item.parameter),
                    share=1.0 / prepared.case.dims[item.parameter],
                )
            )
    return found


def _plain(values: Tensor, reduce: Reducer) -> Tensor:
    return reduce(values, -1)


def _normed(values: Tensor, reduce: Reducer) -> Tensor:
    # Divided out as a norm does: that is where the last bit of a sum of squares shows.
    return values / (reduce(values.square(), -1) / values.shape[-1]).sqrt().unsqueeze(-1)


def _softmaxed(values: Tensor, reduce: Reducer) -> Tensor:
    shifted = values - values.amax(dim=-1, keepdim=True)
    exponentials = shifted.exp()
    total = reduce(exponentials, -1).unsqueeze(-1)
    return torch.cat([exponentials / total, shifted - total.log()], dim=-1)


_SINGLE: tuple[Callable[[Tensor, Reducer], Tensor], ...] = (_plain, _normed, _softmaxed)


def _share(evaluate: Callable[[Reducer], Tensor], dtypes: Sequence[torch.dtype]) -> float:
    """Return the share of elements that change between orders, mean over dtypes."""
    results = [evaluate(reduce) for reduce in ORDERS]
    shares = [changed_share([result.to(dtype) for result in results]) for dtype in dtypes]
    return sum(shares) / len(shares) if shares else 0.0


def _product_share(
    terms: Sequence[_Term], summed: Sequence[str], dtypes: Sequence[torch.dtype]
) -> float:
    """Return the share for the sum over labels of a product of terms."""
    terms = list(terms)
    sizes = {
        label: size
        for term in terms
        for label, size in zip(term.labels, term.values.shape, strict=True)
    }
    kept = [label for label in sizes if label not in summed]
    rows = max(1, _ELEMENTS_MAX // max(1, math.prod(sizes[label] for label in summed)))
    # Columns first: few of them tell as much as many, and tokens draw designs of their own.
    for label in sorted(kept, key=lambda label: label == _TOKEN):
        room = rows if label == _TOKEN else max(1, min(_COLUMNS_MAX, rows))
        chosen = spread(sizes[label], room)
        terms = [_select(term, label, chosen) for term in terms]
        rows = max(1, rows // len(chosen))
    order = (*kept, *summed)
    product = _aligned(terms[0], order)
    for term in terms[1:]:
        product = product * _aligned(term, order)
    flat = product.reshape(*product.shape[: len(kept)], -1)
    return _share(lambda reduce: reduce(flat, -1), dtypes)


def _aligned(term: _Term, order: Sequence[str]) -> Tensor:
    """Return the values in float32 on the CPU, with one dimension for each label of `order`."""
    present = [label for label in order if label in term.labels]
    values = term.values.cpu().float().permute([term.labels.index(label) for label in present])
    for place, label in enumerate(order):
        if label not in term.labels:
            values = values.unsqueeze(place)
    return values


def _along(term: _Term, label: str) -> Tensor:
    """Return float32 `[tokens, columns, label]` on the CPU, few tokens and columns of a tensor."""
    values = term.values.movedim(term.labels.index(label), -1)
    flat = values.reshape(len(values), -1, values.shape[-1])
    rows = max(1, _ELEMENTS_MAX // max(1, flat.shape[-1]))
    columns = spread(flat.shape[1], max(1, min(_COLUMNS_MAX, rows)))
    tokens = spread(len(flat), max(1, rows // len(columns)))
    return flat[_there(tokens, flat)][:, _there(columns, flat)].cpu().float()


def _there(index: Tensor, values: Tensor) -> Tensor:
    """Return an index on the device of the values, without waiting for it."""
    return moved(index, values.device)


def _select(term: _Term, label: str, chosen: Tensor) -> _Term:
    if label not in term.labels:
        return term
    index = _there(chosen, term.values)
    return attrs.evolve(term, values=term.values.index_select(term.labels.index(label), index))


def _sample(prepared: Prepared) -> Tensor:
    compared = prepared.pool.compared
    return compared[spread(len(compared), _TOKENS_MAX)]


def _terms(prepared: Prepared, arguments: Iterable[Argument], tokens: Tensor) -> list[_Term]:
    """Return the token arguments at some tokens, then the parameters."""
    values, at = prepared.values, moved(tokens, prepared.device)
    found = [
        _Term(
            name=item.name,
            values=values.tokens[item.name].index_select(0, at),
            labels=(_TOKEN, *_labels(item)),
        )
        for item in arguments
    ]
    found += [
        _Term(name=item.name, values=values.parameters[item.name], labels=_labels(item))
        for item in prepared.kernel.signature.parameters
    ]
    return [term for term in found if len(set(term.labels)) == len(term.labels)]


def _upstream(prepared: Prepared, tokens: Tensor) -> list[_Term]:
    at = moved(tokens, prepared.device)
    return [
        _Term(
            name=f"d{item.name}",
            values=prepared.values.tokens[f"d{item.name}"].index_select(0, at),
            labels=(_TOKEN, *_labels(item)),
        )
        for item in prepared.kernel.signature.judged_outputs
        if f"d{item.name}" in prepared.values.tokens
    ]


def _labels(item: Argument) -> tuple[str, ...]:
    return tuple(dim.text for dim in item.free_dims)


def _labels_of(items: Iterable[Argument]) -> set[str]:
    return {label for item in items for label in _labels(item)}


def _carrying(terms: Iterable[_Term], labels: Sequence[str]) -> list[_Term]:
    return [term for term in terms if set(term.labels) & set(labels)]


def _parameters(terms: Iterable[_Term], labels: Sequence[str]) -> list[_Term]:
    return [term for term in _carrying(terms, labels) if _TOKEN not in term.labels]


def _contracted(terms: Sequence[_Term], kept: set[str]) -> tuple[str, ...]:
    """Return the labels that several inputs carry and no output keeps."""
    labels = dict.fromkeys(label for term in terms for label in term.free)
    return tuple(
        label for label in labels if label not in kept and len(_carrying(terms, (label,))) > 1
    )
