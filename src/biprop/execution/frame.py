"""A frame: one launch on its device, with what gathering and reading back need of its slots.

That is found once per launch and axis, then used by every argument and output. Most launches hold
a few runs of tokens as they lie in the pool: those are copied as they are, and only others need an
index on the device. Values come from `biprop.execution.values`.
"""

from collections.abc import Sequence
from functools import cached_property

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from biprop.data.transfer import moved, moved_together
from biprop.execution.compared import ComparedTokens
from biprop.layout.launch import DEAD, DEAD_ROW, Launch
from biprop.layout.pool import TokenPool
from biprop.layout.query_context import attends, attends_keys
from biprop.signature import Argument, Signature, TokenAxis

__all__ = ["Frame", "Kept", "Slots", "Stretch", "from_slots", "slot_axes", "to_slots"]

# Of an axis that is copied as it lies: with more, one index on the device is cheaper.
_RUNS_MAX = 16
_STRETCHES_MAX = 4

_Numbers = npt.NDArray[np.int64]


@attrs.frozen(kw_only=True)
class Stretch:
    """Slots that follow each other and are written at once.

    Attributes:
        count: How many.
        runs: Where each run of them comes from, first place and count; empty where they are dead.
        dead: `DEAD` or `DEAD_ROW`; 0 where they are live.
    """

    count: int
    runs: tuple[tuple[int, int], ...] = ()
    dead: int = 0


@attrs.frozen(kw_only=True, eq=False)
class Slots:
    """One axis of a launch.

    Attributes:
        shape: `(T,)`, `(TQ,)`, `(TC,)`, `(B, S)`, `(B, Q)`, `(B, C)` or `(B,)`.
        stretches: All slots, where they are few stretches of few runs; else empty.
        index: int64, pool index of each flat slot, 0 where it is dead; None with stretches.
        dead: Flat slots that are dead beside live ones, None if there are none, or with stretches.
        dead_rows: Flat slots of dead rows, likewise.
    """

    shape: tuple[int, ...]
    stretches: tuple[Stretch, ...] = ()
    index: Tensor | None = None
    dead: Tensor | None = None
    dead_rows: Tensor | None = None


@attrs.frozen(kw_only=True, eq=False)
class Kept:
    """Which flat slots of an axis are compared.

    Attributes:
        stretches: First rank of each stretch of ranks, and where its slots lie; empty with an
            index.
        slots: int64, flat slots; None with stretches, likewise all others.
        ranks: int64, their places among all compared tokens (or watched sequences).
        device_slots: `slots` on the device.
        device_ranks: `ranks` on the device.
    """

    stretches: tuple[tuple[int, Stretch], ...] = ()
    slots: _Numbers | None = None
    ranks: _Numbers | None = None
    device_slots: Tensor | None = None
    device_ranks: Tensor | None = None

    def place(self, rows: _Numbers, launch: int) -> int:
        """Write flat slot and launch of each of them into `[ranks, 2]`; return how many they are.

        Args:
            rows: Of all compared tokens.
            launch: Index of the launch.
        """
        if self.slots is not None and self.ranks is not None:
            rows[self.ranks, 0], rows[self.ranks, 1] = self.slots, launch
            return len(self.ranks)
        for rank, stretch in self.stretches:
            rows[rank : rank + stretch.count, 1] = launch
            low = rank
            for slot, count in stretch.runs:
                rows[low : low + count, 0] = np.arange(slot, slot + count)
                low += count
        return sum(stretch.count for _, stretch in self.stretches)


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
            low = high - 1 if axis == "B" else low
            whole = Stretch(count=high - low, runs=((low, high - low),))
            return Slots(shape=shape, stretches=(whole,))
        flat = found.numpy().reshape(-1)
        runs = self.launch.runs if axis == "T" else None
        if axis == "B":
            # A value of the sequence is the same in all its launches, whatever tokens they hold.
            last = self.pool.last.numpy()[self.pool.sequence_of.numpy()[flat.clip(min=0)]]
            flat = np.where(flat >= 0, last, flat)
        stretches = _stretches(_runs_of(flat) if runs is None else runs)
        if stretches:
            return Slots(shape=shape, stretches=stretches)
        index, dead, dead_rows = moved_together(
            self.device,
            torch.from_numpy(flat.clip(min=0)),
            _where(flat == DEAD),
            _where(flat == DEAD_ROW),
        )
        return Slots(shape=shape, index=index, dead=dead, dead_rows=dead_rows)

    def _make_kept(self, signature: Signature, axis: TokenAxis) -> Kept:
        runs = self.launch.runs if axis == "T" else None
        if runs is not None and len(runs) <= _RUNS_MAX:
            known = _kept_of(runs, self.compared.places(axis).numpy())
            stretches = () if known is None else _by_rank(known)
            if known is not None and len(stretches) <= _STRETCHES_MAX:
                return Kept(stretches=stretches)
        ranks = self.compared.ranks(axis, self.launch.map_of(signature, axis).numpy().reshape(-1))
        slots = (ranks >= 0).nonzero()[0]
        ranks = ranks[slots]
        starts = _starts(slots[1:] - slots[:-1] != 1, ranks[1:] - ranks[:-1] != 1)
        if len(starts) <= _RUNS_MAX:
            ends = [*starts[1:], len(slots)]
            stretches = _by_rank(
                [
                    (int(ranks[low]), int(slots[low]), high - low)
                    for low, high in zip(starts, ends, strict=True)
                    if high > low
                ]
            )
            if len(stretches) <= _STRETCHES_MAX:
                return Kept(stretches=stretches)
        device_slots, device_ranks = moved_together(
            self.device, torch.from_numpy(slots), torch.from_numpy(ranks)
        )
        return Kept(slots=slots, ranks=ranks, device_slots=device_slots, device_ranks=device_ranks)


def _starts(*changes: npt.NDArray[np.bool_]) -> list[int]:
    """Return where runs of numbers begin, given where any of their steps is another one."""
    first, *others = changes
    for other in others:
        first |= other
    return [0, *(first.nonzero()[0] + 1).tolist()]


def _runs_of(flat: _Numbers) -> tuple[tuple[int, int], ...] | None:
    """Return first pool index or mark, and count, of each run of flat slots; None: too many."""
    if not len(flat):
        return None
    # Tokens count up by one, and dead slots of one kind are all alike.
    step: int | _Numbers = 1
    if flat.min() < 0:
        step = (flat[:-1] >= 0).astype(np.int64)
    starts = _starts(flat[1:] - flat[:-1] != step)
    if len(starts) > _RUNS_MAX:
        return None
    ends = [*starts[1:], len(flat)]
    return tuple((int(flat[low]), high - low) for low, high in zip(starts, ends, strict=True))


def _stretches(runs: Sequence[tuple[int, int]] | None) -> tuple[Stretch, ...]:
    """Return the stretches of all slots; nothing where they are too many."""
    if runs is None or len(runs) > _RUNS_MAX:
        return ()
    found: list[Stretch] = []
    for first, count in runs:
        if first < 0:
            found.append(Stretch(count=count, dead=first))
        elif found and found[-1].runs:
            found.append(_longer(found.pop(), (first, count)))
        else:
            found.append(Stretch(count=count, runs=((first, count),)))
    return tuple(found) if len(found) <= _STRETCHES_MAX else ()


def _kept_of(
    runs: Sequence[tuple[int, int]], places: _Numbers
) -> list[tuple[int, int, int]] | None:
    """Return first rank, first slot and count of what is compared in runs of slots.

    None where the compared tokens of a run do not follow each other.

    Args:
        runs: First pool index, or mark, and count of each.
        places: Pool index of each compared token, ascending.
    """
    found, slot = [], 0
    for first, count in runs:
        if first >= 0:
            low, high = places.searchsorted((first, first + count)).tolist()
            if low < high:
                if places[high - 1] - places[low] != high - 1 - low:
                    return None
                found.append((low, slot + int(places[low]) - first, high - low))
        slot += count
    return found


def _by_rank(runs: list[tuple[int, int, int]]) -> tuple[tuple[int, Stretch], ...]:
    """Return the stretches of ranks of some runs, each given as first rank, first slot and count.

    No rank is in two of them.
    """
    found: list[tuple[int, Stretch]] = []
    for rank, slot, count in sorted(runs):
        run = (slot, count)
        if found and found[-1][0] + found[-1][1].count == rank:
            first, before = found.pop()
            found.append((first, _longer(before, run)))
        else:
            found.append((rank, Stretch(count=count, runs=(run,))))
    return tuple(found)


def _longer(stretch: Stretch, run: tuple[int, int]) -> Stretch:
    """Return a stretch with one more run; runs that follow each other are one."""
    (first, count), (more_first, more) = stretch.runs[-1], run
    runs = (*stretch.runs, run)
    if first + count == more_first:
        runs = (*stretch.runs[:-1], (first, count + more))
    return Stretch(count=stretch.count + more, runs=runs)


def _where(found: npt.NDArray[np.bool_]) -> Tensor | None:
    where = found.nonzero()[0]
    return torch.from_numpy(where) if len(where) else None


def slot_axes(argument: Argument) -> tuple[str, ...]:
    """Return the names of an argument's slot dimensions, in the order of the index maps."""
    axis = argument.token_axis
    assert axis is not None, "only tensors with tokens have slots"
    return ("B", axis) if axis in {"S", "Q", "C"} else (axis,)


def to_slots(argument: Argument) -> list[int]:
    """Return the permutation that brings the declared dimensions to `[*slots, *free]`."""
    axes = slot_axes(argument)
    names = [dim.name for dim in argument.dims]
    if names[0] == axes[0] and len(axes) == 1:
        # The most usual of all.
        return list(range(len(names)))
    return [names.index(axis) for axis in axes] + [
        place for place, name in enumerate(names) if name not in axes
    ]


def from_slots(argument: Argument) -> list[int]:
    """Return the permutation that brings `[*slots, *free]` to the declared dimensions."""
    forward = to_slots(argument)
    return [forward.index(place) for place in range(len(forward))]
