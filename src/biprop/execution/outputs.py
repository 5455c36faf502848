"""Outputs: what a launch returned, checked against the signature and read back in logical order.

Rows are taken by indexing alone: nothing is cast, summed or computed between launch and comparison.
They are copied at once, since a target may return its argument or a buffer that it uses again.
"""

from collections.abc import Iterable

import attrs
import numpy as np
import torch
from torch import Tensor

from biprop.case import Case
from biprop.errors import OutputError
from biprop.execution.compared import ComparedTokens
from biprop.execution.frame import Frame, Kept, slot_axes, to_slots
from biprop.execution.records import TokenIndex
from biprop.execution.storage import copy_runs
from biprop.execution.values import dtype_of
from biprop.signature import Argument, Signature, TokenAxis

__all__ = ["Collector", "checked", "flat_slots"]


def checked(signature: Signature, returned: object, frame: Frame, case: Case) -> dict[str, Tensor]:
    """Return the returned tensors by output name, ignored ones left out.

    Raises:
        OutputError: A tensor is missing, or has another shape, dtype or device than it should.
    """
    if not signature.outputs:
        # In-place kernels return what they like, often their argument.
        return {}
    found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    if len(found) != len(signature.outputs):
        names = ", ".join(output.text for output in signature.outputs)
        raise OutputError(
            f"The target returned {_count(len(found))}, and the signature says "
            f"{len(signature.outputs)} ({names}): write '_' for a value to be ignored."
        )
    named = zip(signature.outputs, found, strict=True)
    return {
        output.name: _checked(output, value, frame, case)
        for output, value in named
        if not output.ignored
    }


def _checked(output: Argument, value: object, frame: Frame, case: Case) -> Tensor:
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        kind = "None" if value is None else f"a {type(value).__name__}"
        if isinstance(value, Tensor):
            kind = f"a tensor of layout {value.layout}"
        raise OutputError(
            f"Output '{output.name}' is {kind}, and the signature says {output.text}: "
            "return a dense tensor, or write '_' to ignore it."
        )
    shape = frame.shape_of(output, case.dims)
    if tuple(value.shape) != shape:
        raise OutputError(
            f"Output '{output.name}' has shape {list(value.shape)}, and the signature says "
            f"{output.text}, here {list(shape)}: correct the signature or the target."
        )
    dtype = dtype_of(output, case)
    if value.dtype != dtype:
        wanted = _name(dtype)
        own = "the case's dtype" if output.kind == "float" else "its own"
        raise OutputError(
            f"Output '{output.name}' has dtype {_name(value.dtype)}, and the signature says "
            f"{wanted} ({own}): write {output.name}: {_name(value.dtype)} if that is right."
        )
    if value.device.type != frame.device.type:
        raise OutputError(
            f"Output '{output.name}' lies on {value.device}, and the arguments on {frame.device}: "
            "return it on the device of the arguments."
        )
    return value.detach()


def _count(number: int) -> str:
    return "1 value" if number == 1 else f"{number} values"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def flat_slots(argument: Argument, values: Tensor) -> Tensor:
    """Return `[slots, *free]` of a tensor in its declared order; a view where there can be one."""
    order = to_slots(argument)
    by_slot = values if order == sorted(order) else values.permute(order)
    axes = len(slot_axes(argument))
    return by_slot if axes == 1 else by_slot.reshape(-1, *by_slot.shape[2:])


@attrs.frozen(kw_only=True, eq=False)
class Collector:
    """Gathers the compared rows of all launches of one configuration.

    Attributes:
        compared: Which tokens are, of the pool of the configuration.
        outputs: By name, filled launch by launch.
    """

    compared: ComparedTokens
    outputs: dict[str, Tensor] = attrs.field(factory=dict, init=False)
    _axes: dict[str, TokenAxis] = attrs.field(factory=dict, init=False)
    _kept: dict[str, list[tuple[Kept, int]]] = attrs.field(factory=dict, init=False)

    def add(
        self,
        signature: Signature,
        argument: Argument,
        values: Tensor,
        frame: Frame,
        *,
        launch: int,
        name: str = "",
    ) -> None:
        """Copy the compared rows of one output of one launch.

        Args:
            signature: Whose output it is.
            argument: Its declaration; one without a token axis is taken whole.
            values: In the declared order of dimensions.
            frame: The launch.
            launch: Its index.
            name: If it is not the argument's own.
        """
        name = name or argument.name
        axis = argument.token_axis
        if axis is None:
            self.whole(name, values)
            return
        kept = frame.kept(signature, axis)
        # Trainable weights of a target make what it writes part of a graph, which no copy may join.
        flat = flat_slots(argument, values.detach())
        if name not in self.outputs:
            shape = (len(self.compared.places(axis)), *flat.shape[1:])
            self.outputs[name] = torch.empty(shape, dtype=flat.dtype, device=flat.device)
            self._axes[name], self._kept[name] = axis, []
        self._kept[name].append((kept, launch))
        outputs = self.outputs[name]
        if kept.device_slots is None:
            for rank, stretch in kept.stretches:
                copy_runs(outputs[rank : rank + stretch.count], flat, stretch.runs)
        else:
            assert kept.device_ranks is not None, "slots and ranks come together"
            rows = flat.index_select(0, kept.device_slots)
            outputs.index_copy_(0, kept.device_ranks, rows)

    def whole(self, name: str, values: Tensor) -> None:
        """Copy a tensor that belongs to no token."""
        self.outputs[name] = values.detach().clone(memory_format=torch.contiguous_format)

    def finish(self, order: Iterable[str]) -> dict[str, Tensor]:
        """Return the outputs in the order of `order`'s names, others after them."""
        names = [name for name in order if name in self.outputs]
        names += [name for name in self.outputs if name not in names]
        return {name: self.outputs[name] for name in names}

    def index(self) -> dict[str, TokenIndex | None]:
        """Return by name which token each row belongs to."""
        return {
            name: self.compared.index(self._axes[name]) if name in self._axes else None
            for name in self.outputs
        }

    def rows(self) -> dict[str, Tensor]:
        """Return by name int64 `[n, 2]`: flat slot and launch of each row.

        Every compared token must have come by exactly once.
        """
        nothing = torch.empty((0, 2), dtype=torch.int64)
        made: dict[tuple[int, ...], Tensor] = {}
        found = {}
        for name in self.outputs:
            parts = self._kept.get(name, [])
            # Outputs of one axis are read through the very same slots.
            key = tuple(id(kept) for kept, _ in parts)
            if parts and key not in made:
                count = len(self.compared.places(self._axes[name]))
                made[key] = _placed(parts, count=count)
            found[name] = made[key] if parts else nothing
        return found


def _placed(parts: list[tuple[Kept, int]], *, count: int) -> Tensor:
    rows = np.full((count, 2), -1)
    found = sum(kept.place(rows, launch) for kept, launch in parts)
    assert found == count, f"{found} rows came by instead of {count}"
    assert bool((rows >= 0).all()), "a row came by twice, and another one never"
    return torch.from_numpy(rows)
