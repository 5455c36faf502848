"""The scenarios: what a rollout engine does with a cache, beside what should be the same.

Each returns pairs of logits of the same tokens of the same sequences. Both sides see the same token
ids at the same positions under the same mask; only what a scenario is named for differs.

Shapes: B sequences, S tokens of one call, V vocabulary.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, cast

import attrs
import torch
from torch import Tensor

from biprop.kvcache.stacks.models import SLOTS, VOCABULARY, StackCache, Subject

__all__ = ["RUNS", "Pair"]

_SEQUENCES = 4
# Tokens of a prompt, and of what follows it one by one.
_PROMPT = 12
_STEPS = 6
_LENGTH = _PROMPT + _STEPS
# Prompts of unequal sequences, the first as long as the pad.
_PROMPTS = (12, 11, 7, 3)
_CHUNKS = (5, 1, 7, 3, 2)


@attrs.frozen(kw_only=True, eq=False)
class Pair:
    """Logits of the same tokens from both sides.

    Attributes:
        sequence: Number of the sequence.
        first: Its token that row 0 belongs to.
        expected: `[tokens, V]`, of the side that a trainer, or an undisturbed rollout, has.
        got: Likewise, of the other side.
        following: int64 `[tokens]`, the token that comes next, -1 where none does.
    """

    sequence: int
    first: int
    expected: Tensor
    got: Tensor
    following: Tensor


def _ids(subject: Subject) -> Tensor:
    """Return int64 `[B, S]` of `_SEQUENCES` sequences; 0 is the pad, and none of theirs."""
    generator = torch.Generator().manual_seed(subject.seed)
    shape = (_SEQUENCES, _LENGTH)
    return torch.randint(1, VOCABULARY, shape, generator=generator).to(subject.device)


def _pair(sequence: int, ids: Tensor, expected: Tensor, got: Tensor) -> Pair:
    """Pair logits of the last tokens of `ids`, `[S]`."""
    first = len(ids) - len(expected)
    following = torch.cat((ids[first + 1 :], ids.new_full((1,), -1)))
    return Pair(sequence=sequence, first=first, expected=expected, got=got, following=following)


def _rollout(
    subject: Subject,
    prompts: Sequence[Tensor],
    steps: Tensor,
    *,
    width: int | None = None,
    side: str = "left",
    cache: StackCache | None = None,
) -> list[Tensor]:
    """Prefill prompts and decode what follows, step by step, all in one batch.

    Args:
        subject: Who does it.
        prompts: int64 `[S]` each.
        steps: int64 `[B, T]`.
        width: Slots that each prompt is padded to; None: all are equally long, and nobody tells
            the model of a mask or of positions.
        side: Where the pad lies.
        cache: To begin with; None: an empty one.

    Returns:
        For each sequence the logits of its own tokens, `[S + T, V]`.
    """
    cache = subject.cache() if cache is None else cache
    if width is None:
        ids, mask = torch.stack(tuple(prompts)), None
    else:
        ids, mask = _padded(prompts, width, side)
    positions = None if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)
    parts = [subject.logits(ids, cache=cache, mask=mask, positions=positions)]
    for step in range(steps.shape[1]):
        if mask is not None:
            mask = torch.cat((mask, mask.new_ones(len(mask), 1)), dim=1)
            positions = mask.sum(-1, keepdim=True) - 1
        column = steps[:, step : step + 1]
        parts.append(subject.logits(column, cache=cache, mask=mask, positions=positions))
    logits = torch.cat(parts, dim=1)
    live = torch.ones(logits.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    return [rows[is_live] for rows, is_live in zip(logits, live, strict=True)]


def _padded(prompts: Sequence[Tensor], width: int, side: str) -> tuple[Tensor, Tensor]:
    """Return ids and mask, `[B, width]`; the pad has id 0."""
    rows, masks = [], []
    for prompt in prompts:
        pad = prompt.new_zeros(width - len(prompt))
        order = (pad, prompt) if side == "left" else (prompt, pad)
        rows.append(torch.cat(order))
        masks.append((rows[-1] != 0).long())
    return torch.stack(rows), torch.stack(masks)


def _unequal(ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return prompt and steps of sequences whose prompts are not equally long."""
    return [
        (row[:prompt], row[prompt : prompt + _STEPS])
        for row, prompt in zip(ids, _PROMPTS, strict=True)
    ]


def _repeat(subject: Subject) -> list[Pair]:
    ids = _ids(subject)
    return [
        _pair(number, row, subject.logits(row[None])[0], subject.logits(row[None])[0])
        for number, row in enumerate(ids)
    ]


def _generate(subject: Subject) -> list[Pair]:
    pairs = []
    for number, row in enumerate(_ids(subject)):
        prompt = row[None, :_PROMPT]
        result = cast("Any", subject.model).generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            cache=subject.cache(),
            max_new_tokens=_STEPS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        # The last token of all was chosen, and never read.
        ids = result.sequences[0, :-1]
        expected = subject.logits(ids[None])[0, _PROMPT - 1 :]
        # Generation widens the model's logits, so that narrowing them gives back their bits.
        got = torch.cat(tuple(result.logits)).to(expected.dtype)
        following = result.sequences[0, _PROMPT:]
        pairs.append(
            Pair(
                sequence=number,
                first=_PROMPT - 1,
                expected=expected,
                got=got,
                following=following,
            )
        )
    return pairs


def _chunks(subject: Subject) -> list[Pair]:
    pairs = []
    for number, row in enumerate(_ids(subject)):
        cache = subject.cache()
        parts = [
            subject.logits(row[None, start:end], cache=cache)[0]
            for start, end in pairwise(accumulate(_CHUNKS, initial=0))
        ]
        pairs.append(_pair(number, row, subject.logits(row[None])[0], torch.cat(parts)))
    return pairs


def _prefix(subject: Subject) -> list[Pair]:
    pairs = []
    for number, row in enumerate(_ids(subject)):
        cold = subject.logits(row[None], cache=subject.cache())[0, _PROMPT:]
        cached = subject.cache()
        subject.logits(row[None, :_PROMPT], cache=cached)
        hit = subject.logits(row[None, _PROMPT:], cache=copy.deepcopy(cached))[0]
        pairs.append(_pair(number, row, cold, hit))
    return pairs


def _padding(side: str) -> Callable[[Subject], list[Pair]]:
    def run(subject: Subject) -> list[Pair]:
        pairs = []
        for number, (prompt, steps) in enumerate(_unequal(_ids(subject))):
            if len(prompt) < _PROMPT:
                expected = _rollout(subject, [prompt], steps[None])[0]
                got = _rollout(subject, [prompt], steps[None], width=_PROMPT, side=side)[0]
                pairs.append(_pair(number, torch.cat((prompt, steps)), expected, got))
        return pairs

    return run


def _batch(subject: Subject) -> list[Pair]:
    ids = _ids(subject)
    together = _rollout(subject, list(ids[:, :_PROMPT]), ids[:, _PROMPT:])
    return [
        _pair(number, row, _rollout(subject, [row[:_PROMPT]], row[None, _PROMPT:])[0], got)
        for number, (row, got) in enumerate(zip(ids, together, strict=True))
    ]


def _padded_batch(subject: Subject) -> list[Pair]:
    parts = _unequal(_ids(subject))
    prompts, steps = [prompt for prompt, _ in parts], torch.stack([rest for _, rest in parts])
    together = _rollout(subject, prompts, steps, width=_PROMPT)
    return [
        _pair(
            number,
            torch.cat((prompt, rest)),
            _rollout(subject, [prompt], rest[None])[0],
            got,
        )
        for number, ((prompt, rest), got) in enumerate(zip(parts, together, strict=True))
    ]


def _fork(subject: Subject) -> list[Pair]:
    ids = _ids(subject)
    prompt, pairs = ids[0, :_PROMPT], []
    parent = subject.cache()
    subject.logits(prompt[None], cache=parent)
    copies = [copy.deepcopy(parent) for _ in ids]
    told: list[list[Tensor]] = [[] for _ in ids]
    # All go on in turns, so that what one writes could reach another.
    for step in range(_PROMPT, _LENGTH):
        for row, cache, parts in zip(ids, copies, told, strict=True):
            parts.append(subject.logits(row[None, step : step + 1], cache=cache)[0])
    for number, (row, parts) in enumerate(zip(ids, told, strict=True)):
        own = _rollout(subject, [prompt], row[None, _PROMPT:])[0][_PROMPT:]
        pairs.append(_pair(number, torch.cat((prompt, row[_PROMPT:])), own, torch.cat(parts)))
    return pairs


def _reset(subject: Subject) -> list[Pair]:
    ids = _ids(subject)
    cache, pairs = subject.cache(), []
    for number, row in enumerate(ids):
        prompt, steps = [row[:_PROMPT]], row[None, _PROMPT:]
        if number:
            cache.reset()
        used = _rollout(subject, prompt, steps, cache=cache)[0]
        pairs.append(_pair(number, row, _rollout(subject, prompt, steps)[0], used))
    # Before the first sequence nothing had been there to forget.
    return pairs[1:]


def _crop(subject: Subject) -> list[Pair]:
    ids, pairs = _ids(subject), []
    for number, row in enumerate(ids):
        other = ids[number - 1]
        own = _rollout(subject, [row[:_PROMPT]], row[None, _PROMPT:])[0][_PROMPT:]
        cache = subject.cache()
        _rollout(subject, [row[:_PROMPT]], other[None, _PROMPT : _PROMPT + 4], cache=cache)
        cache.crop(-4)
        parts = [
            subject.logits(row[None, step : step + 1], cache=cache)[0]
            for step in range(_PROMPT, _LENGTH)
        ]
        pairs.append(_pair(number, row, own, torch.cat(parts)))
    return pairs


def _room(subject: Subject) -> list[Pair]:
    if not subject.is_static:
        return []
    pairs = []
    for number, row in enumerate(_ids(subject)):
        sides = [
            _rollout(subject, [row[:_PROMPT]], row[None, _PROMPT:], cache=subject.cache(slots))[0]
            for slots in (SLOTS, 2 * SLOTS)
        ]
        pairs.append(_pair(number, row, *sides))
    return pairs


RUNS: Mapping[str, Callable[[Subject], list[Pair]]] = MappingProxyType(
    {
        "repeat": _repeat,
        "generate": _generate,
        "chunks": _chunks,
        "prefix": _prefix,
        "left padding": _padding("left"),
        "right padding": _padding("right"),
        "batch": _batch,
        "padded batch": _padded_batch,
        "fork": _fork,
        "reset": _reset,
        "crop": _crop,
        "room": _room,
    }
)
