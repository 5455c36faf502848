"""A frame: one launch on its device, with the slot indices that gathering and reading back need.

Indices are made once per launch and axis, then used by every argument and output. Values come from
`biprop.execution.values`.
"""

from functools import cached_property

import attrs
import torch
from torch import Tensor

from biprop.data.transfer import moved, moved_together
from biprop.execution.compared import ComparedTokens
from biprop.layout.launch import DEAD, DEAD_ROW, Launch
from biprop.layout.pool import TokenPool
from biprop.layout.query_context import attends, attends_keys
from biprop.signature import Argument, Signature, TokenAxis

__all__ = ["Frame", "Kept", "Slots", "from_slots", "slot_axes", "to_slots"]


@attrs.frozen(kw_only=True, eq=False)
class Slots:
    """One axis of a launch.

    Attributes:
        shape: `(T,)`, `(TQ,)`, `(TC,)`, `(B, S)`, `(B, Q)`, `(B, C)` or `(B,)`.
        span: First and past the last pool index, where all slots are live and their tokens follow
            each other as they do in the pool.
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
        compared: Which tokens are compared, of the pool that its maps point into.
        device: Where its tensors lie.
    """

    launch: Launch
    compared: ComparedTokens
    device: torch.device
    _slots: dict[tuple[TokenAxis, bool], Slots] = attrs.field(factory=dict, init=False)
    _kept: dict[tuple[TokenAxis, bool], Kept] = attrs.field(factory=dict, init=False)
    # By identity: declarations live as long as their kernel, and hashing one takes longer.
    _shapes: dict[int, tuple[int, ...]] = attrs.field(factory=dict, init=False)

    @property
    def pool(self) -> TokenPool:
        """What the maps of the launch point into."""
        return self.compared.pool

    @cached_property
    def attends(self) -> Tensor:
        """Bool on the CPU, `[B,Q,C]` or `[TQ,TC]`: which query attends which context."""
        return attends(self.launch, self.pool)

    @cached_property
    def attends_keys(self) -> Tensor:
        """Which contexts of its row any query may attend: bool on the device, `[B,C]`."""
        return moved(attends_keys(self.launch), self.device)

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
        if axis == "B":
            # A value of the sequence is the same in all its launches, whatever tokens they hold.
            flat = self.pool.last[self.pool.sequence_of[flat.clamp(min=0)]].where(flat >= 0, flat)
        span = _run_of(flat)
        if span is not None:
            # Copied as it lies, without an index on the device.
            return Slots(shape=shape, span=span)
        index, dead, dead_rows = moved_together(
            self.device, flat.clamp(min=0), _where(flat == DEAD), _where(flat == DEAD_ROW)
        )
        return Slots(shape=shape, index=index, dead=dead, dead_rows=dead_rows)

    def _make_kept(self, signature: Signature, axis: TokenAxis) -> Kept:
        ranks = self.compared.ranks(axis, self.launch.map_of(signature, axis).flatten())
        slots = (ranks >= 0).nonzero()[:, 0]
        ranks = ranks[slots]
        slots_run, ranks_run = _run_of(slots), _run_of(ranks)
        if slots_run is not None and ranks_run is not None:
            return Kept(slots=slots, ranks=ranks, run=(slots_run[0], ranks_run[0], len(slots)))
        device_slots, device_ranks = moved_together(self.device, slots, ranks)
        return Kept(slots=slots, ranks=ranks, device_slots=device_slots, device_ranks=device_ranks)


def _run_of(numbers: Tensor) -> tuple[int, int] | None:
    """Return the first and past the last of numbers that count up by one from 0 or more."""
    count = len(numbers)
    first, last = (int(numbers[0]), int(numbers[-1])) if count else (-1, -1)
    if first < 0 or last != first + count - 1:
        return None
    is_run = bool((numbers == torch.arange(first, last + 1)).all())
    return (first, last + 1) if is_run else None


def _where(found: Tensor) -> Tensor | None:
    where = found.nonzero()[:, 0]
    return where if len(where) else None


def slot_axes(argument: Argument) -> tuple[str, ...]:
    """Return the names of an argument's slot dimensions, in the order of the index maps."""
    axis = argument.token_axis
    assert axis is not None, "only tensors with tokens have slots"
    return ("B", axis) if axis in {"S", "Q", "C"} else (axis,)


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
