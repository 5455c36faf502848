"""A frame: one launch on its device, with the slot indices that gathering and reading back need.

Indices are made once per launch and axis, then used by every argument and output. Values come from
`biprop.execution.values`.
"""

import attrs
import torch
from torch import Tensor

from biprop.layout.launch import DEAD, DEAD_ROW, Launch
from biprop.layout.pool import TokenPool
from biprop.signature import Argument, Signature, TokenAxis

__all__ = ["Frame", "Kept", "Slots", "from_slots", "slot_axes", "to_slots"]


@attrs.frozen(kw_only=True, eq=False)
class Slots:
    """One axis of a launch.

    Attributes:
        shape: `(T,)`, `(B, S)` or `(B,)`.
        span: First and past the last pool index, where the slots are one sequence and nothing else.
        index: int64, pool index of each flat slot, 0 where it is dead; None with a span.
        dead: Flat slots that are dead beside live ones, None if there are none.
        dead_rows: Flat slots of dead rows, None if there are none.
    """

    shape: tuple[int, ...]
    span: tuple[int, int] | None = None
    index: Tensor | None = None
    dead: Tensor | None = None
    dead_rows: Tensor | None = None


@attrs.frozen(kw_only=True, eq=False)
class Kept:
    """Which flat slots of an axis are compared.

    Attributes:
        slots: int64, flat slots, on the CPU.
        ranks: int64, their places among all compared tokens (or watched sequences), on the CPU.
        run: First slot, first rank and count, where both are contiguous; else None.
        device_slots: `slots` on the device; None with a run.
        device_ranks: `ranks` on the device; None with a run.
    """

    slots: Tensor
    ranks: Tensor
    run: tuple[int, int, int] | None = None
    device_slots: Tensor | None = None
    device_ranks: Tensor | None = None


@attrs.frozen(kw_only=True, eq=False)
class Frame:
    """One launch on its device.

    Attributes:
        launch: The launch.
        pool: What its maps point into.
        device: Where its tensors lie.
    """

    launch: Launch
    pool: TokenPool
    device: torch.device
    _slots: dict[tuple[TokenAxis, bool], Slots] = attrs.field(factory=dict, init=False)
    _kept: dict[tuple[TokenAxis, bool], Kept] = attrs.field(factory=dict, init=False)
    # By identity: declarations live as long as their kernel, and hashing one takes longer.
    _shapes: dict[int, tuple[int, ...]] = attrs.field(factory=dict, init=False)

    def slots(self, signature: Signature, axis: TokenAxis) -> Slots:
        """Return an axis, as the arguments of a signature see it."""
        key = (axis, signature.has_order)
        if key not in self._slots:
            self._slots[key] = self._make_slots(signature, axis)
        return self._slots[key]

    def kept(self, signature: Signature, axis: TokenAxis) -> Kept:
        """Return what is compared of an axis, as the outputs of a signature see it."""
        key = (axis, signature.has_order)
        if key not in self._kept:
            self._kept[key] = self._make_kept(signature, axis)
        return self._kept[key]

    def shape_of(self, argument: Argument, dims: dict[str, int]) -> tuple[int, ...]:
        """Return the shape of a tensor in this launch, given the sizes of the free dimensions."""
        found = self._shapes.get(id(argument))
        if found is None:
            sizes = {**dims, **self.launch.sizes}
            found = self._shapes[id(argument)] = tuple(dim.size(sizes) for dim in argument.dims)
        return found

    def _make_slots(self, signature: Signature, axis: TokenAxis) -> Slots:
        found = self.launch.map_of(signature, axis)
        shape = tuple(found.shape)
        if self.launch.span is not None:
            low, high = self.launch.span
            return Slots(shape=shape, span=(high - 1, high) if axis == "B" else (low, high))
        flat = found.flatten()
        return Slots(
            shape=shape,
            index=flat.clamp(min=0).to(self.device),
            dead=self._where(flat == DEAD),
            dead_rows=self._where(flat == DEAD_ROW),
        )

    def _where(self, found: Tensor) -> Tensor | None:
        where = found.nonzero()[:, 0]
        return where.to(self.device) if len(where) else None

    def _make_kept(self, signature: Signature, axis: TokenAxis) -> Kept:
        flat = self.launch.map_of(signature, axis).flatten()
        ranks = (
            self.pool.sequence_of[flat.clamp(min=0)]
            if axis == "B"
            else self.pool.rank[flat.clamp(min=0)]
        )
        count = self.pool.watched_count if axis == "B" else len(self.pool.compared)
        slots = ((flat >= 0) & (ranks >= 0) & (ranks < count)).nonzero()[:, 0]
        ranks = ranks[slots]
        if self.launch.span is not None:
            # One sequence and nothing else: its active tokens are the last slots.
            return Kept(slots=slots, ranks=ranks, run=(int(slots[0]), int(ranks[0]), len(slots)))
        return Kept(
            slots=slots,
            ranks=ranks,
            device_slots=slots.to(self.device),
            device_ranks=ranks.to(self.device),
        )


def slot_axes(argument: Argument) -> tuple[str, ...]:
    """Return the names of an argument's slot dimensions, in the order of the index maps."""
    axis = argument.token_axis
    assert axis is not None, "only tensors with tokens have slots"
    return ("B", axis) if axis == "S" else (axis,)


def to_slots(argument: Argument) -> list[int]:
    """Return the permutation that brings the declared dimensions to `[*slots, *free]`."""
    axes = slot_axes(argument)
    names = [dim.name for dim in argument.dims]
    return [names.index(axis) for axis in axes] + [
        place for place, name in enumerate(names) if name not in axes
    ]


def from_slots(argument: Argument) -> list[int]:
    """Return the permutation that brings `[*slots, *free]` to the declared dimensions."""
    forward = to_slots(argument)
    return [forward.index(place) for place in range(len(forward))]
