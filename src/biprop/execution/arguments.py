"""Arguments: what one launch hands to a kernel, made from values and index maps.

Tensors with tokens are gathered through the maps, their dead slots filled; what follows from the
maps alone, as masks do, is made by `biprop.execution.derived`. Every tensor is fresh: a kernel may
write where it likes. Reading outputs back is done by `biprop.execution.outputs`.
"""

import math
from collections.abc import Callable, Mapping

import attrs
import torch
from torch import Tensor

from biprop.bits import Poison, poison_
from biprop.case import Case
from biprop.execution.derived import derived
from biprop.execution.frame import Frame, Slots, to_slots
from biprop.execution.storage import allocate, copied, copy_runs
from biprop.execution.values import Values, dtype_of
from biprop.layout.launch import DEAD
from biprop.layout.physical import Placement, placement_of
from biprop.layout.records import Fill, Layout
from biprop.signature import Argument, Signature, TokenAxis

__all__ = ["Materialiser"]

FILL_VALUES: Mapping[Fill, float] = {
    "zero": 0.0,
    "one": 1.0,
    "large": 30000.0,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
}


@attrs.frozen(kw_only=True, eq=False)
class _Plan:
    """What gathering one argument needs that is the same for every launch.

    Attributes:
        argument: Its declaration.
        axis: Its token axis.
        to_slots: Permutation from the declared dimensions to `[*slots, *free]`.
        straight: That permutation changes nothing, and the tensor lies contiguous at a boundary.
        placement: Where it lies in memory.
        free: Sizes of its free dimensions.
    """

    argument: Argument
    axis: TokenAxis
    to_slots: list[int]
    straight: bool
    placement: Placement
    free: tuple[int, ...]


@attrs.frozen(kw_only=True, eq=False)
class Materialiser:
    """Makes the arguments of the launches of one configuration.

    Attributes:
        case: The case.
        values: Of its pool.
        layout: Fills and storage.
        align: Bytes that the target demands of base pointers.
        poison: What supplied outputs hold before the launch.
    """

    case: Case
    values: Values
    layout: Layout
    align: int
    poison: Poison
    # By identity: declarations live as long as their kernel, and hashing one takes longer.
    _plans: dict[int, _Plan] = attrs.field(factory=dict, init=False)
    _placements: dict[int, Placement] = attrs.field(factory=dict, init=False)

    def arguments(
        self, signature: Signature, frame: Frame, given: Mapping[str, object] | None = None
    ) -> list[object]:
        """Return the positional arguments of one launch.

        Args:
            signature: What the callable takes.
            frame: The launch.
            given: Arguments that are at hand already, by name.

        Raises:
            UnsupportedError: An argument has no value for this launch.
        """
        known = given or {}
        return [
            known[argument.name]
            if argument.name in known
            else self._argument(signature, argument, frame)
            for argument in signature.arguments
        ]

    def upstream(self, signature: Signature, output: Argument, frame: Frame) -> Tensor:
        """Return the upstream gradient of a forward output; its dead slots hold zero."""
        source = self.values.tokens[f"d{output.name}"]
        return self._gathered(signature, output, source, frame, fills=(0.0, 0.0))

    def zeros(self, argument: Argument, frame: Frame) -> Tensor:
        """Return an accumulator before the first launch."""
        shape = frame.shape_of(argument, self.case.dims)
        dtype = dtype_of(argument, self.case)
        return allocate(shape, dtype, frame.device, self._placement(argument, dtype)).zero_()

    def _argument(self, signature: Signature, argument: Argument, frame: Frame) -> object:
        kind = argument.kind
        if argument.is_supplied_output:
            dtype = dtype_of(argument, self.case)
            shape = frame.shape_of(argument, self.case.dims)
            fresh = allocate(shape, dtype, frame.device, self._placement(argument, dtype))
            return poison_(fresh, self.poison)
        if argument.name in self.values.tokens:
            source = self.values.tokens[argument.name]
            return self._gathered(signature, argument, source, frame, fills=self._fills(argument))
        if argument.name in self.values.parameters:
            values = self.values.parameters[argument.name]
            return copied(values, self._placement(argument, values.dtype))
        if kind == "scalar":
            return self.case.scalars[argument.name]
        if kind == "position":
            source = self.values.position
            fills = self._whole_fills(lambda: int(frame.pool.position.max()))
            return self._gathered(signature, argument, source, frame, fills=fills)
        return derived(signature, argument, frame, self.case)

    def _fills(self, argument: Argument) -> tuple[float, float]:
        padding = self.layout.padding
        if argument.is_float:
            return FILL_VALUES[padding.fill], FILL_VALUES[padding.dead_rows_fill]
        return self._whole_fills(lambda: self.values.largest(argument.name))

    def _whole_fills(self, largest: Callable[[], int]) -> tuple[float, float]:
        """Return what dead slots of whole numbers hold: 0, or the largest legal value."""
        padding = self.layout.padding
        if padding.fill == padding.dead_rows_fill == "zero":
            return 0.0, 0.0
        most = float(largest())
        return (
            0.0 if padding.fill == "zero" else most,
            0.0 if padding.dead_rows_fill == "zero" else most,
        )

    def _placement(self, argument: Argument, dtype: torch.dtype) -> Placement:
        found = self._placements.get(id(argument))
        if found is None:
            found = self._placements[id(argument)] = placement_of(
                argument,
                self.layout.storage,
                item_size=dtype.itemsize,
                align=self.align,
                has_tokens=argument.token_axis is not None,
            )
        return found

    def _plan(self, argument: Argument, dtype: torch.dtype) -> _Plan:
        found = self._plans.get(id(argument))
        if found is None:
            axis = argument.token_axis
            assert axis is not None, "parameters are copied, not gathered"
            order = to_slots(argument)
            placement = self._placement(argument, dtype)
            found = self._plans[id(argument)] = _Plan(
                argument=argument,
                axis=axis,
                to_slots=order,
                straight=placement.is_plain and order == sorted(order),
                placement=placement,
                free=tuple(dim.size(self.case.dims) for dim in argument.free_dims),
            )
        return found

    def _gathered(
        self,
        signature: Signature,
        argument: Argument,
        source: Tensor,
        frame: Frame,
        *,
        fills: tuple[float, float],
    ) -> Tensor:
        """Return the tensor of one launch, in the declared order of its dimensions.

        Args:
            signature: Whose argument or output it is.
            argument: Its declaration.
            source: `[n, *free]` for the tokens of the pool.
            frame: The launch.
            fills: For dead slots, and for slots of dead rows.
        """
        plan = self._plan(argument, source.dtype)
        slots = frame.slots(signature, plan.axis)
        shape = frame.shape_of(argument, self.case.dims)
        result = allocate(shape, source.dtype, frame.device, plan.placement)
        if plan.straight:
            _gather(result if len(slots.shape) == 1 else result.flatten(0, 1), source, slots, fills)
            return result
        rows = _rows_of(slots, source)
        if rows is None:
            count = math.prod(slots.shape)
            rows = torch.empty((count, *plan.free), dtype=source.dtype, device=source.device)
            _gather(rows, source, slots, fills)
        result.permute(plan.to_slots).copy_(rows.view(slots.shape + plan.free))
        return result


def _rows_of(slots: Slots, source: Tensor) -> Tensor | None:
    """Return the rows of an axis where they lie in `source` as they are wanted; else None."""
    if len(slots.stretches) == 1 and len(slots.stretches[0].runs) == 1:
        first, count = slots.stretches[0].runs[0]
        return source[first : first + count]
    return None


def _gather(rows: Tensor, source: Tensor, slots: Slots, fills: tuple[float, float]) -> None:
    """Write the row of each slot's token into `[slots, *free]`, and what dead slots hold."""
    if slots.index is not None:
        torch.index_select(source, 0, slots.index, out=rows)
        for where, value in zip((slots.dead, slots.dead_rows), fills, strict=True):
            if where is not None:
                rows.index_fill_(0, where, _fill(rows, value))
        return
    first = 0
    for stretch in slots.stretches:
        part = rows
        if len(slots.stretches) > 1:
            part = rows[first : first + stretch.count]
            first += stretch.count
        if stretch.runs:
            copy_runs(part, source, stretch.runs)
        else:
            part.fill_(_fill(rows, fills[0] if stretch.dead == DEAD else fills[1]))


def _fill(rows: Tensor, value: float) -> float:
    return value if rows.is_floating_point() else int(value)
