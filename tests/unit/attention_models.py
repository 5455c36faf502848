"""Attention whose every query is computed alike whatever lies beside it, and planted defects.

A query's keys are added one after the other in two lanes, blocks of four keys in turn, counted from
the first key of its sequence; a key's queries likewise. All arithmetic is elementwise, so that no
library decides about an order, and a defect is a kernel with one habit changed.

Shapes: R rows of slots (one of packed tokens), H heads of queries, K heads of keys, Q queries, C
contexts, D features.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from biprop.operators import Kernel
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["ARRANGEMENTS", "DEFECTS", "Arrangement", "Defect", "Habits", "model"]

BLOCK = 4


@attrs.frozen(kw_only=True, eq=False)
class Dense:
    """One launch in a form that all layouts have in common.

    Attributes:
        q: float32 `[R,H,Q,D]`.
        k: float32 `[R,K,C,D]`.
        v: float32 `[R,K,C,D]`.
        attends: bool `[R,Q,C]`.
        batch: Rows of the launch, or segments.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    attends: Tensor
    batch: int


def rank_of(attends: Tensor) -> Tensor:
    """Return `[R,Q,C]`: the place of each key among those that the query attends."""
    return attends.long().cumsum(-1) - 1


def own_of(attends: Tensor) -> Tensor:
    """Return `[R,Q,1]`: the place of each query among its keys, of which it is the last."""
    return attends.long().sum(-1, keepdim=True) - 1


def slot_of(attends: Tensor) -> Tensor:
    """Return `[C]`: the slots of the keys."""
    return torch.arange(attends.shape[-1])


def _shared_in_groups(dense: Dense) -> Tensor:
    return torch.arange(dense.q.shape[1]) // (dense.q.shape[1] // dense.k.shape[1])


@attrs.frozen(kw_only=True, eq=False)
class Habits:
    """What a kernel does, and may do otherwise.

    Attributes:
        attends: Returns who attends whom, `[R,Q,C]`.
        key_block: Returns the block of each key, broadcast to `[R,Q,C]`.
        query_block: Returns the block of each query in the gradient of a key, likewise.
        add: Adds a term to a total where it counts.
        shared: Returns the head of keys of each head of queries, `[H]`.
        of_lse: Returns the gradient of the LSE as it is used, `[R,H,Q]`.
    """

    attends: Callable[[Dense], Tensor] = lambda launch: launch.attends
    key_block: Callable[[Dense, Tensor], Tensor] = lambda _, seen: rank_of(seen) // BLOCK
    query_block: Callable[[Dense, Tensor], Tensor] = lambda _, seen: own_of(seen) // BLOCK
    add: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda total, term, counts: torch.where(
        counts, total + term, total
    )
    shared: Callable[[Dense], Tensor] = _shared_in_groups
    of_lse: Callable[[Dense, Tensor], Tensor] = lambda _, gradient: gradient


def exponential(values: Tensor) -> Tensor:
    """Return the exponential of values up to zero; below -80 it is zero."""
    steps = values.clamp(min=-80.0) * 1.4426950408889634
    whole = steps.floor()
    rest = (steps - whole) * 0.6931471805599453
    power = torch.ones_like(rest)
    for number in range(8, 0, -1):
        power = rest * power / number + 1.0
    # Two to a whole number is nothing but an exponent.
    scale = ((whole.to(torch.int32) + 127) << 23).view(torch.float32)
    return torch.where(values < -80.0, 0.0, power * scale)


def logarithm(values: Tensor) -> Tensor:
    """Return the natural logarithm."""
    mantissa, exponent = torch.frexp(values)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    series = torch.zeros_like(ratio)
    for number in range(15, 0, -2):
        series = series * ratio * ratio + 2.0 / number
    return series * ratio + exponent * 0.6931471805599453


def over_features(left: Tensor, right: Tensor) -> Tensor:
    """Return the sum of products over the last dimension."""
    total = left[..., 0] * right[..., 0]
    for feature in range(1, left.shape[-1]):
        total = total + left[..., feature] * right[..., feature]
    return total


@attrs.frozen(kw_only=True, eq=False)
class Attention:
    """Forward and backward of one launch."""

    launch: Dense
    habits: Habits
    seen: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor
    out: Tensor
    lse: Tensor

    @classmethod
    def of(cls, launch: Dense, habits: Habits) -> "Attention":
        """Attend: the peak first, then the sums."""
        seen = habits.attends(launch)
        shared = habits.shared(launch)
        k, v = launch.k[:, shared], launch.v[:, shared]
        scores = over_features(launch.q[:, :, :, None], k[:, :, None]) * launch.q.shape[-1] ** -0.5
        keep = seen[:, None]
        peak = torch.where(keep, scores, float("-inf")).amax(-1)
        weights = exponential(torch.where(keep, scores - peak[..., None], 0.0))
        over_keys = _Lanes.of(habits, keep, habits.key_block(launch, seen))
        total = over_keys.summed(weights)
        out = over_keys.summed(weights[..., None] * v[:, :, None])
        return cls(
            launch=launch,
            habits=habits,
            seen=seen,
            k=k,
            v=v,
            weights=weights / total[..., None],
            out=out / total[..., None],
            lse=peak + logarithm(total),
        )

    def gradients(self, of_out: Tensor, of_lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return float32 gradients `[R,H,Q,D]`, `[R,K,C,D]` and `[R,K,C,D]`."""
        launch, habits, seen = self.launch, self.habits, self.seen
        delta = over_features(of_out, self.out) - habits.of_lse(launch, of_lse)
        of_weights = over_features(of_out[:, :, :, None], self.v[:, :, None])
        of_scores = self.weights * (of_weights - delta[..., None]) * launch.q.shape[-1] ** -0.5
        over_keys = _Lanes.of(habits, seen[:, None], habits.key_block(launch, seen))
        of_q = over_keys.summed(of_scores[..., None] * self.k[:, :, None])
        block = habits.query_block(launch, seen).expand_as(seen)
        over_queries = _Lanes.of(habits, seen.mT[:, None], block.mT)
        of_k = over_queries.summed(of_scores.mT[..., None] * launch.q[:, :, None])
        of_v = over_queries.summed(self.weights.mT[..., None] * of_out[:, :, None])
        return of_q, self._over_heads(of_k), self._over_heads(of_v)

    def _over_heads(self, gradients: Tensor) -> Tensor:
        total = torch.zeros_like(self.launch.k)
        for head, shared in enumerate(self.habits.shared(self.launch).tolist()):
            total[:, shared] += gradients[:, head]
        return total


@attrs.frozen(kw_only=True, eq=False)
class _Lanes:
    """Adds terms one after the other, blocks in two lanes in turn.

    Attributes:
        habits: How a term is added.
        counts: By term, bool `[2,R,1,n]`: in which lane it counts.
    """

    habits: Habits
    counts: tuple[Tensor, ...]

    @classmethod
    def of(cls, habits: Habits, seen: Tensor, block: Tensor) -> "_Lanes":
        """Take which terms are seen, `[R,1,n,m]`, and their blocks, broadcast to `[R,n,m]`."""
        is_odd = (block.expand(seen[:, 0].shape) % 2 > 0)[:, None]
        return cls(habits=habits, counts=torch.stack([seen & ~is_odd, seen & is_odd]).unbind(-1))

    def summed(self, terms: Tensor) -> Tensor:
        """Return the sum of `[R,H,n,m]` or `[R,H,n,m,D]` over `m`."""
        total = torch.zeros((2, *terms.select(3, 0).shape))
        for term, counts in zip(terms.unbind(3), self.counts, strict=True):
            wide = counts if terms.dim() == 4 else counts[..., None]
            total = self.habits.add(total, term, wide)
        return total[0] + total[1]


# Slots of queries and of keys, and what the kernel is told; who attends whom, and the batch.
Attends = Callable[..., tuple[Tensor, int]]


def _of_mask(_: Tensor, __: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    return mask[:, 0], len(mask)


def _of_additive(_: Tensor, __: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    return mask[:, 0] == 0, len(mask)


def _of_packed_mask(_: Tensor, __: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    return mask[None], 1


def _of_live(queries: Tensor, contexts: Tensor) -> Tensor:
    """Return who attends whom where live slots are told, `[R,Q]` and `[R,C]`."""
    before = contexts.sum(-1) - queries.sum(-1)
    own = queries.long().cumsum(-1) - 1 + before[:, None]
    earlier = (contexts.long().cumsum(-1) - 1)[:, None, :] <= own[:, :, None]
    return earlier & queries[:, :, None] & contexts[:, None, :]


def _of_lengths(q: Tensor, k: Tensor, queries: Tensor, contexts: Tensor) -> tuple[Tensor, int]:
    live = (
        torch.arange(slots.shape[2])[None, :] < lengths[:, None]
        for slots, lengths in ((q, queries), (k, contexts))
    )
    return _of_live(*live), len(queries)


def _of_masks(_: Tensor, __: Tensor, queries: Tensor, contexts: Tensor) -> tuple[Tensor, int]:
    return _of_live(queries, contexts), len(queries)


def _of_offsets(q: Tensor, k: Tensor, queries: Tensor, contexts: Tensor) -> tuple[Tensor, int]:
    attends = torch.zeros((1, q.shape[2], k.shape[2]), dtype=torch.bool)
    for (first, last), (begin, end) in zip(
        zip(queries[:-1].tolist(), queries[1:].tolist(), strict=True),
        zip(contexts[:-1].tolist(), contexts[1:].tolist(), strict=True),
        strict=True,
    ):
        size = (last - first, end - begin)
        attends[0, first:last, begin:end] = torch.ones(size).tril(size[1] - size[0]) > 0
    return attends, len(queries) - 1


def _of_flag(q: Tensor, k: Tensor, is_causal: bool) -> tuple[Tensor, int]:  # noqa: FBT001  # as kernels take it
    whole = torch.ones((q.shape[0], q.shape[2], k.shape[2]))
    return (whole.tril() if is_causal else whole) > 0, len(q)


def _of_all(q: Tensor, k: Tensor) -> tuple[Tensor, int]:
    return torch.ones((q.shape[0], q.shape[2], k.shape[2])) > 0, len(q)


def _as_it_is(values: Tensor) -> Tensor:
    return values


def _turned(values: Tensor) -> Tensor:
    return values.transpose(1, 2)


def _one_row(values: Tensor) -> Tensor:
    return values.transpose(0, 1)[None]


def _no_row(values: Tensor) -> Tensor:
    return values[0].transpose(0, 1)


@attrs.frozen(kw_only=True, eq=False)
class Arrangement:
    """How one signature lays out attention.

    Attributes:
        query: Dimensions of q and of its output.
        key: Dimensions of k and v.
        lse: Dimensions of the LSE, empty if it is not returned.
        told: The other arguments.
        attends: Makes of them who attends whom.
        inward: Brings a tensor to heads first in rows; `outward` back.
        dims: Restrictions.
    """

    query: str
    key: str
    lse: str = ""
    told: str = ""
    attends: Attends
    inward: Callable[[Tensor], Tensor] = _as_it_is
    outward: Callable[[Tensor], Tensor] = _as_it_is
    dims: str = ""

    @property
    def forward(self) -> str:
        """Forward signature."""
        lse = f", lse: float32{self.lse}" if self.lse else ""
        return f"{self._arguments} -> o{self.query}{lse}"

    @property
    def backward(self) -> str:
        """Backward signature."""
        lse = f"dlse: float32{self.lse}, " if self.lse else ""
        gradients = f"dq{self.query}, dk{self.key}, dv{self.key}"
        return f"do{self.query}, {lse}{self._arguments} -> {gradients}"

    @property
    def _arguments(self) -> str:
        told = f", {self.told}" if self.told else ""
        return f"q{self.query}, k{self.key}, v{self.key}{told}"


ARRANGEMENTS: Mapping[str, Arrangement] = {
    "masked": Arrangement(
        query="[B,H,Q,D]",
        key="[B,H,C,D]",
        lse="[B,H,Q]",
        told="m: causal_mask[B,1,Q,C]",
        attends=_of_mask,
    ),
    "additive": Arrangement(
        query="[B,H,Q,D]",
        key="[B,K,C,D]",
        told="m: causal_mask(float32)[B,1,Q,C]",
        attends=_of_additive,
        dims="H%K==0 H=2|4 K=1|2",
    ),
    "masks": Arrangement(
        query="[B,Q,H,D]",
        key="[B,C,K,D]",
        lse="[B,Q,H]",
        told="lq: mask[B,Q], lc: mask[B,C]",
        attends=_of_masks,
        inward=_turned,
        outward=_turned,
        dims="H%K==0 H=2|4 K=1|2",
    ),
    "lengths": Arrangement(
        query="[B,Q,H,D]",
        key="[B,C,H,D]",
        lse="[B,Q,H]",
        told="lq: lengths(Q)[B], lc: lengths(C)[B]",
        attends=_of_lengths,
        inward=_turned,
        outward=_turned,
    ),
    "offsets": Arrangement(
        query="[TQ,H,D]",
        key="[TC,K,D]",
        lse="[TQ,H]",
        told="oq: offsets(Q)[B+1], oc: offsets(C)[B+1]",
        attends=_of_offsets,
        inward=_one_row,
        outward=_no_row,
        dims="H%K==0 H=2|4 K=1|2",
    ),
    "packed_mask": Arrangement(
        query="[TQ,H,D]",
        key="[TC,H,D]",
        told="m: causal_mask[TQ,TC]",
        attends=_of_packed_mask,
        inward=_one_row,
        outward=_no_row,
    ),
    "flag": Arrangement(
        query="[B,H,Q,D]",
        key="[B,H,C,D]",
        lse="[B,H,Q]",
        told="causal: is_causal",
        attends=_of_flag,
    ),
    "one_query": Arrangement(query="[B,H,1,D]", key="[B,H,C,D]", attends=_of_all),
}


def model(name: str, habits: Habits | None = None, *, is_registered: bool = False) -> Kernel:
    """Return attention in one arrangement.

    Args:
        name: Of the arrangement.
        habits: Changed ones.
        is_registered: Whether it brings a backward of its own; else autograd differentiates it.
    """
    arrangement = ARRANGEMENTS[name]
    signature = parse_signature(arrangement.forward)
    kernel = Kernel(
        target=f"models:{name}",
        operator=f"models:{name}",
        signature=signature,
        function=_Forward(arrangement, habits or Habits()),
        restrictions=parse_restrictions(arrangement.dims),
    )
    if not is_registered:
        return kernel
    return attrs.evolve(
        kernel,
        backward_signature=parse_backward(arrangement.backward, signature),
        backward=_Backward(arrangement, habits or Habits()),
    )


@attrs.frozen
class _Forward:
    arrangement: Arrangement
    habits: Habits

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *told: object) -> object:
        made = _Differentiable.apply(self, q, k, v, *told)  # type: ignore[no-untyped-call]  # torch's
        return made if self.arrangement.lse else made[0]

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *told: object) -> Attention:
        dense = [self.arrangement.inward(tensor).float() for tensor in (q, k, v)]
        attends, batch = self.arrangement.attends(*dense[:2], *told)
        launch = Dense(q=dense[0], k=dense[1], v=dense[2], attends=attends, batch=batch)
        return Attention.of(launch, self.habits)


@attrs.frozen
class _Backward:
    arrangement: Arrangement
    habits: Habits

    def __call__(self, of_out: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        of_lse, taken = (rest[0], rest[1:]) if self.arrangement.lse else (None, rest)
        made = _Forward(self.arrangement, self.habits).attention(*taken)
        inward, outward = self.arrangement.inward, self.arrangement.outward
        gradients = made.gradients(
            inward(of_out).float(), torch.zeros_like(made.lse) if of_lse is None else inward(of_lse)
        )
        return tuple(outward(gradient).to(of_out.dtype) for gradient in gradients)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: _Forward, *arguments: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401  # torch's own
        q, k, v, *told = arguments
        ctx.kernel, ctx.told = kernel, told
        ctx.save_for_backward(q, k, v)
        made, outward = kernel.attention(*arguments), kernel.arrangement.outward
        return outward(made.out).to(q.dtype).contiguous(), outward(made.lse).contiguous()

    @staticmethod
    def backward(ctx: Any, of_out: Tensor, of_lse: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  # torch's own
        kernel: _Forward = ctx.kernel
        lse = (of_lse,) if kernel.arrangement.lse else ()
        backward = _Backward(kernel.arrangement, kernel.habits)
        gradients = backward(of_out, *lse, *ctx.saved_tensors, *ctx.told)
        return None, *gradients, *(None,) * len(ctx.told)


@attrs.frozen(kw_only=True)
class Defect:
    """A model with one habit that no kernel should have.

    Attributes:
        arrangement: Its name.
        habits: The changed ones.
        classes: Transform classes that show it, as they are counted.
        direction: Where it shows.
    """

    arrangement: str
    habits: Habits
    classes: tuple[str, ...]
    direction: Literal["forward", "backward"] = "forward"


def _is_single(launch: Dense) -> bool:
    return launch.q.shape[2] == 1


DEFECTS: Mapping[str, Defect] = {
    "blocks by the batch": Defect(
        arrangement="masked",
        habits=Habits(key_block=lambda launch, seen: rank_of(seen) // (2 + 2 * (launch.batch < 2))),
        classes=("T1",),
    ),
    "blocks by the longest query": Defect(
        arrangement="additive",
        habits=Habits(key_block=lambda _, seen: rank_of(seen) // (2 + 2 * (seen.shape[1] > 3))),
        classes=("T5",),
    ),
    "blocks by the longest context": Defect(
        arrangement="lengths",
        habits=Habits(key_block=lambda _, seen: rank_of(seen) // -(-seen.shape[2] // 2)),
        classes=("T1", "T3", "T4.finite"),
    ),
    "blocks by the slot": Defect(
        arrangement="masks",
        habits=Habits(key_block=lambda _, seen: slot_of(seen) // BLOCK),
        classes=("T4.finite",),
    ),
    "blocks by the packed slot": Defect(
        arrangement="packed_mask",
        habits=Habits(key_block=lambda _, seen: slot_of(seen) // BLOCK),
        classes=("T1", "T4.finite"),
    ),
    "dead keys times zero": Defect(
        arrangement="masked",
        habits=Habits(add=lambda total, term, counts: total + term * counts),
        classes=("T4.nonfinite",),
    ),
    "single queries in one block": Defect(
        arrangement="flag",
        habits=Habits(
            key_block=lambda launch, seen: rank_of(seen) // BLOCK * (not _is_single(launch))
        ),
        classes=("T5",),
    ),
    "queries taken for the first contexts": Defect(
        arrangement="lengths",
        habits=Habits(
            attends=lambda launch: (
                launch.attends & (slot_of(launch.attends) <= slot_of(launch.attends.mT)[:, None])
            ),
        ),
        classes=("T5",),
    ),
    "segments run together": Defect(
        arrangement="offsets",
        habits=Habits(
            attends=lambda launch: torch.ones_like(launch.attends).tril(
                launch.attends.shape[2] - launch.attends.shape[1]
            )
        ),
        classes=("T1",),
    ),
    "the mask of the first row": Defect(
        arrangement="additive",
        habits=Habits(attends=lambda launch: launch.attends[:1].expand_as(launch.attends)),
        classes=("T1",),
    ),
    "rows of a few take one block": Defect(
        arrangement="one_query",
        habits=Habits(key_block=lambda launch, seen: rank_of(seen) // BLOCK * (launch.batch > 1)),
        classes=("T1",),
    ),
    "heads of several rows in turn": Defect(
        arrangement="masks",
        habits=Habits(
            shared=lambda launch: (
                _shared_in_groups(launch)
                if launch.batch == 1
                else torch.arange(launch.q.shape[1]) % launch.k.shape[1]
            )
        ),
        classes=("T1",),
    ),
    "gradients in blocks by the batch": Defect(
        arrangement="masked",
        habits=Habits(
            query_block=lambda launch, seen: own_of(seen) // (2 + 2 * (launch.batch < 2))
        ),
        classes=("T1",),
        direction="backward",
    ),
    "gradients in blocks from the first query": Defect(
        arrangement="offsets",
        habits=Habits(query_block=lambda _, seen: slot_of(seen.mT)[:, None] // BLOCK),
        classes=("T1", "T5"),
        direction="backward",
    ),
    "the gradient of the LSE dropped at one query": Defect(
        arrangement="lengths",
        habits=Habits(of_lse=lambda launch, gradient: gradient * (not _is_single(launch))),
        classes=("T5",),
        direction="backward",
    ),
}
