"""Witnesses of attention: a few listed numbers for queries, keys, values and upstream gradients.

Softmax needs its tensors set together: values cancel over keys only where scores are equal, queries
weigh alike only beside a peak. The witnesses of any other sum are `biprop.minimize.points`'s.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import attrs

from biprop.case import Case
from biprop.data.recipe import TOKENS, Point, Recipe
from biprop.minimize.edits import (
    recipes_of,
    with_cuts_moved,
    with_length,
    with_lengths,
    with_recipe,
)
from biprop.minimize.points import SIGNED, has_points, triples
from biprop.minimize.trial import Trial
from biprop.signature import Argument, Signature
from biprop.signature.roles import Roles, roles_of

__all__ = ["few_witnesses", "find_attention_witness"]

_PLACES_MAX = 12
# Tokens of shorter sequences, and how many witnesses are tried there.
_SHORT = (3, 4, 5, 6, 8)
_FEW = 5
# exp(-17) is lost beside exp(0), two of them are not; exp(-64) is always lost.
_CROWD, _NOTHING = -17.0, -64.0
# A score of 4096 times the signed numbers has terms of 2**24 and a sum of 1.
_STEEP = 4096.0

_Values = tuple[tuple[dict[str, int], float], ...]


@attrs.frozen(kw_only=True)
class _Subject:
    """A case of attention.

    Attributes:
        case: The case, with recipes of zeros.
        roles: Queries, keys and values.
        upstream: Names of upstream gradients of outputs that carry the values' dimension.
        beside: Names of the other upstream gradients.
        failing: Index of the sequence that differs.
        is_of_keys: Whether a gradient of keys differs.
    """

    case: Case
    roles: Roles
    upstream: tuple[str, ...]
    beside: tuple[str, ...]
    failing: int
    is_of_keys: bool

    @property
    def tokens(self) -> int:
        """Tokens of the sequence that differs."""
        return self.case.sequences[self.failing].length

    def size(self, axis: str) -> int:
        """Return the size of a dimension of queries, keys or values."""
        items = (*self.roles.queries, *self.roles.keys, *self.roles.values)
        return next(
            dim.size(self.case.dims) for item in items for dim in item.free_dims if dim.text == axis
        )


def find_attention_witness(trial: Trial, *, runs_max: int) -> bool:
    """Replace the recipes of an attention by a few listed values.

    Args:
        trial: Holds the best case.
        runs_max: Cases that may be judged for this.

    Returns:
        Whether the best case lists its values.
    """
    if has_points(trial.case):
        return True
    roles = roles_of(trial.signature)
    if not (roles.queries and roles.keys) or trial.case.judged == "parameter_gradients":
        return False
    stop = trial.runs + runs_max
    outcome = trial.outcome
    present = _subject(
        trial.signature,
        trial.case,
        sequence_id=outcome.mismatches[0].first.sequence_id if outcome.mismatches else -1,
        output=outcome.cause.output if outcome.cause is not None else "",
    )
    for candidate in chain(_shorter(present), _witnesses(_narrow(present)), _witnesses(present)):
        if trial.is_spent or trial.runs >= stop:
            return False
        if trial.accept(candidate):
            return True
    return False


def few_witnesses(signature: Signature, case: Case) -> Iterator[Case]:
    """Yield `case` with the most telling witnesses of its first sequence, and few of them."""
    roles = roles_of(signature)
    if roles.queries and roles.keys and case.judged != "parameter_gradients":
        yield from _few_witnesses(_subject(signature, case))


def _subject(
    signature: Signature, case: Case, *, sequence_id: int = -1, output: str = ""
) -> _Subject:
    plain = case
    for name in recipes_of(case):
        plain = with_recipe(plain, name, Recipe(kind="zeros"))
    roles = roles_of(signature)
    ids = [sequence.id for sequence in case.sequences]
    outputs = [item for item in signature.judged_outputs if f"d{item.name}" in case.data]
    carrying = [item for item in outputs if _carries(item, roles.value_dim)]
    return _Subject(
        case=plain,
        roles=roles,
        upstream=tuple(f"d{item.name}" for item in carrying),
        beside=tuple(f"d{item.name}" for item in outputs if item not in carrying),
        failing=ids.index(sequence_id) if sequence_id in ids else 0,
        is_of_keys=output in {f"d{item.name}" for item in roles.keys},
    )


def _shorter(subject: _Subject) -> Iterator[Case]:
    """Few tokens: where a long sequence shows drawn values, a short one may show listed ones."""
    case, tokens = subject.case, subject.tokens
    is_even = len({sequence.length for sequence in case.sequences}) == 1
    for length in _SHORT:
        if length >= tokens:
            return
        short = (
            with_lengths(case, length) if is_even else with_length(case, subject.failing, length)
        )
        for cut in (short, with_cuts_moved(short, tokens - length)):
            few = attrs.evolve(subject, case=cut)
            for one in (_narrow(few), few):
                yield from _few_witnesses(one)


def _few_witnesses(subject: _Subject) -> Iterator[Case]:
    yield from islice(_equal(subject), _FEW)
    if subject.case.judged == "outputs":
        yield from islice(_peaked(subject), 1)
    else:
        yield from islice(_over_queries(subject), _FEW)


def _narrow(subject: _Subject) -> _Subject:
    """Return the case with a single feature: values that are listed for many may need them all."""
    dims = {subject.roles.score_dim, subject.roles.value_dim} & set(subject.case.dims)
    narrow = {**subject.case.dims, **{name: 1 for name in dims if name is not None}}
    return attrs.evolve(subject, case=attrs.evolve(subject.case, dims=narrow))


def _carries(item: Argument, dim: str | None) -> bool:
    return dim in {free.text for free in item.free_dims}


def _witnesses(subject: _Subject) -> Iterator[Case]:
    yield from _equal(subject)
    yield from _peaked(subject)
    yield from _steep(subject)
    if subject.case.judged != "outputs":
        yield from _over_queries(subject)
        yield from _steep_upstream(subject)


def _equal(subject: _Subject) -> Iterator[Case]:
    """Equal scores, three values that cancel over keys; in gradients keys of ones."""
    case, roles = subject.case, subject.roles
    if subject.upstream:
        case = _with_ones(case, [item.name for item in roles.keys])
        case = _with_ones(case, subject.upstream)
    for name in (item.name for item in roles.values):
        for places in islice(triples(subject.tokens), _PLACES_MAX):
            yield _signed(case, name, TOKENS, places)
    if subject.beside:
        # The gradient of a log-sum-exp is a sum of keys.
        case = _with_ones(subject.case, subject.beside)
        for places in islice(triples(subject.tokens), _PLACES_MAX):
            yield _signed(case, roles.keys[0].name, TOKENS, places)


def _peaked(subject: _Subject) -> Iterator[Case]:
    """One key that outweighs the others, each of which is lost beside it."""
    for place in dict.fromkeys((0, subject.tokens - 1, subject.tokens // 2)):
        yield _with_peaks(subject, (place,), _CROWD)


def _steep(subject: _Subject) -> Iterator[Case]:
    """A score that cancels over its dimension, against scores of zero."""
    roles = subject.roles
    axis = roles.score_dim
    if axis is None:
        return
    for item in roles.queries:
        for places in islice(triples(subject.size(axis)), _PLACES_MAX):
            case = _signed(subject.case, item.name, axis, places)
            case = _listed(case, roles.keys[0].name, (({TOKENS: 0}, _STEEP),))
            if roles.values != roles.keys:
                case = _listed(case, roles.values[0].name, (({TOKENS: 0}, 1.0),))
            yield _with_ones(case, subject.upstream)


def _over_queries(subject: _Subject) -> Iterator[Case]:
    """Upstream gradients that cancel over queries, in gradients of keys or of values."""
    if subject.is_of_keys and subject.upstream:
        yield from _slopes_over_queries(subject)
    yield from _weights_over_queries(subject)


def _slopes_over_queries(subject: _Subject) -> Iterator[Case]:
    """Two keys share the weight of all queries but the first, and one of them has a value.

    The slope of its score is then a quarter of the upstream gradient, exactly.
    """
    roles = subject.roles
    if roles.values == roles.keys or subject.tokens < 2:
        return
    case = _with_peaks(subject, (0, 1), _NOTHING)
    case = _listed(case, roles.values[0].name, (({TOKENS: 1}, 1.0),))
    for name in subject.upstream:
        for places in islice(triples(subject.tokens - 1), _PLACES_MAX):
            yield _signed(case, name, TOKENS, tuple(place + 1 for place in places))


def _weights_over_queries(subject: _Subject) -> Iterator[Case]:
    """All queries give one key their whole weight."""
    case = _with_peaks(subject, (0,), _NOTHING)
    for name in (*subject.upstream, *subject.beside):
        for places in islice(triples(subject.tokens), _PLACES_MAX):
            yield _signed(case, name, TOKENS, places)


def _steep_upstream(subject: _Subject) -> Iterator[Case]:
    """Upstream gradients that cancel with the values of one key."""
    roles = subject.roles
    axis = roles.value_dim
    if axis is None or roles.values == roles.keys:
        return
    case = _listed(subject.case, roles.values[0].name, (({TOKENS: 0}, _STEEP),))
    case = _listed(case, roles.keys[0].name, (({TOKENS: 0}, 1.0),))
    for name in subject.upstream:
        for places in islice(triples(subject.size(axis)), _PLACES_MAX):
            yield _signed(case, name, axis, places)


def _with_peaks(subject: _Subject, places: tuple[int, ...], crowd: float) -> Case:
    """Return queries of ones beside keys whose scores are `crowd`, and 0 at `places`."""
    roles = subject.roles
    axis = roles.score_dim
    at = {} if axis is None else {axis: 0}
    # Kernels divide a score by the root of its dimension.
    root = 1.0 if axis is None else float(subject.size(axis)) ** 0.5
    case = _with_ones(subject.case, [item.name for item in roles.queries])
    peaks: _Values = tuple(({TOKENS: place, **at}, 0.0) for place in places)
    return _listed(case, roles.keys[0].name, ((at, crowd * root), *peaks))


def _signed(case: Case, name: str, axis: str, places: tuple[int, ...]) -> Case:
    pairs = zip(places, SIGNED, strict=True)
    return _listed(case, name, tuple(({axis: place}, value) for place, value in pairs))


def _with_ones(case: Case, names: Iterable[str]) -> Case:
    for name in names:
        case = with_recipe(case, name, Recipe(kind="ones"))
    return case


def _listed(case: Case, name: str, values: _Values) -> Case:
    points = tuple(Point(at=at, value=value.hex()) for at, value in values)
    return with_recipe(case, name, Recipe(kind="explicit", points=points))
