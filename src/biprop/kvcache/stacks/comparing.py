"""Compare the two sides of a scenario, bit against bit, and say it as a finding."""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from biprop.bits import bit_pattern, compare, hex_of
from biprop.judgment import Verdict
from biprop.kvcache.stacks.records import Finding, LogitDifference
from biprop.kvcache.stacks.scenarios import Pair

__all__ = ["found"]


def found(finding: Finding, pairs: Sequence[Pair], again: Sequence[Pair]) -> Finding:
    """Return `finding` with verdict and numbers.

    Args:
        finding: Names what was run.
        pairs: Of the first run.
        again: Of the second: a side that differs from itself is no drift of a cache.
    """
    if not _tells(pairs):
        return attrs.evolve(finding, verdict=Verdict.VACUOUS)
    finding = _measured(finding, pairs)
    itself = [
        attrs.evolve(pair, expected=first, got=second)
        for pair, other in zip(pairs, again, strict=True)
        for first, second in ((pair.expected, other.expected), (pair.got, other.got))
    ]
    repeated = _measured(finding, itself)
    if repeated.logits:
        return attrs.evolve(repeated, verdict=Verdict.NONDETERMINISTIC)
    verdict = Verdict.DRIFTS if finding.logits else Verdict.HOLDS
    return attrs.evolve(finding, verdict=verdict)


def _tells(pairs: Sequence[Pair]) -> bool:
    """Return whether logits are finite and not the same for all tokens, so that a drift shows."""
    if not pairs:
        return False
    rows = torch.cat([pair.expected for pair in pairs])
    differ = bit_pattern(rows) != bit_pattern(rows)[0]
    return bool(rows.isfinite().all() and differ.any())


def _measured(finding: Finding, pairs: Sequence[Pair]) -> Finding:
    """Return `finding` with the counts and the first difference of pairs; the verdict stays."""
    compared = [compare(pair.expected, pair.got) for pair in pairs]
    differing = [place for place, told in enumerate(compared) if not told.same]
    errors = [compared[place].max_abs_error for place in differing]
    logp = torch.cat([_logp_errors(pair) for pair in pairs])
    difference = None
    if differing:
        pair, first = pairs[differing[0]], compared[differing[0]].first
        assert first is not None, "tensors that differ differ somewhere"
        ulps_max = max(int(_ulps(each.expected, each.got).max()) for each in pairs)
        difference = _difference(pair, first, ulps_max=ulps_max, errors=errors)
    return attrs.evolve(
        finding,
        difference=difference,
        tokens=sum(told.tokens_differing for told in compared),
        tokens_compared=sum(told.tokens_compared for told in compared),
        logits=sum(told.elements_differing for told in compared),
        logits_compared=sum(told.elements_compared for told in compared),
        logp_tokens=int((logp > 0).count_nonzero()),
        logp_max=float(logp.max()) if len(logp) else 0.0,
    )


def _difference(
    pair: Pair, first: tuple[int, ...], *, ulps_max: int, errors: Sequence[float]
) -> LogitDifference:
    token, logit = first
    one, other = pair.expected[token, logit], pair.got[token, logit]
    is_finite = bool(one.isfinite() & other.isfinite())
    finite = [error for error in errors if error < float("inf")]
    return LogitDifference(
        sequence=pair.sequence,
        token=pair.first + token,
        logit=logit,
        expected_bits=hex_of(one),
        got_bits=hex_of(other),
        expected_value=repr(float(one)),
        got_value=repr(float(other)),
        ulps=int(_ulps(one, other)) if is_finite else None,
        ulps_max=ulps_max,
        max_abs_error=max(finite, default=None),
    )


def _ulps(one: Tensor, other: Tensor) -> Tensor:
    """Return int64, how many floats lie between two tensors, 0 where either is not finite."""
    apart = (_place(one) - _place(other)).abs()
    return torch.where(one.isfinite() & other.isfinite(), apart, 0)


def _place(values: Tensor) -> Tensor:
    """Number floats in their order, both zeros being 0."""
    pattern = bit_pattern(values)
    magnitude = (pattern & torch.iinfo(pattern.dtype).max).long()
    return torch.where(pattern < 0, -magnitude, magnitude)


def _logp_errors(pair: Pair) -> Tensor:
    """Return float64 `[tokens]`, how far log probabilities of the next tokens lie apart."""
    has_next = pair.following >= 0
    chosen = pair.following[has_next, None]
    sides = [
        torch.log_softmax(side[has_next].float(), dim=-1).gather(1, chosen)[:, 0].double()
        for side in (pair.expected, pair.got)
    ]
    return (sides[0] - sides[1]).abs()
