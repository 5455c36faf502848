"""Launching: one configuration's forward launches, and what every launch shares.

Gradients are launched by `biprop.execution.backward`; runs are put together by
`biprop.execution.run`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor

from biprop.case import Case
from biprop.data.transfer import moved
from biprop.execution.arguments import Materialiser
from biprop.execution.frame import Frame
from biprop.execution.outputs import Collector, checked, flat_slots
from biprop.execution.poison import Poisoner
from biprop.execution.records import DEAD_SLOTS
from biprop.execution.stand_ins import no_stand_ins
from biprop.execution.untouched import Unread, watch
from biprop.execution.values import dtype_of
from biprop.operators import Kernel
from biprop.signature import Argument, Signature, TokenAxis

__all__ = ["DeadSlots", "Session", "launch_forward"]


@attrs.frozen(kw_only=True, eq=False)
class DeadSlots:
    """What the dead slots of a mutated argument held before and after each launch."""

    before: list[Tensor] = attrs.field(factory=list)
    after: list[Tensor] = attrs.field(factory=list)


@attrs.frozen(kw_only=True, eq=False)
class Session:
    """What the launches of one configuration share.

    Attributes:
        kernel: The kernel.
        case: The case.
        materialiser: Makes the arguments.
        poisoner: Poisons fresh memory.
        collector: Takes what is compared.
        dead: By name of a mutated argument.
        everywhere: Whether all free memory of a device is poisoned before the first call of each
            function, and not only what outputs would be made of.
        called: Functions that were called already: the first call of each is looked at closer.
        dirtied: Functions for which memory was poisoned already.
        unread: What the device alone knows so far of arguments that carry no mark.
    """

    kernel: Kernel
    case: Case
    materialiser: Materialiser
    poisoner: Poisoner
    collector: Collector
    dead: dict[str, DeadSlots] = attrs.field(factory=dict)
    everywhere: bool = False
    called: set[str] = attrs.field(factory=set)
    dirtied: set[str] = attrs.field(factory=set)
    unread: list[Unread] = attrs.field(factory=list)

    def call(
        self,
        function: Callable[..., object],
        arguments: list[object],
        signature: Signature,
        frame: Frame,
        *,
        role: Literal["forward", "backward"] = "forward",
    ) -> object:
        """Call a kernel once, over poisoned memory; what it raises is not caught.

        Raises:
            BackendError: It is a registered Triton backend, and torch computed in its place.
            OutputError: It wrote into an argument that carries no mark.
        """
        if any(argument.is_supplied_output for argument in signature.arguments):
            self.poisoner.reached = True
        untouched = watch(signature, arguments, bits=role not in self.called)
        self.called.add(role)
        # Last of all: what is allocated after it would take the poisoned blocks.
        if frame.device.type == "cuda":
            sizes = [_size(output, frame, self.case) for output in signature.outputs if output.dims]
            self.dirty(sizes, frame, role=role)
        with (
            no_stand_ins(self.kernel, arguments, role=role) as observer,
            self.poisoner.watching(role, observer=observer),
        ):
            returned = function(*arguments, **self.kernel.call)
        self.poisoner.look_at(returned)
        self.unread.extend(untouched.check())
        return returned

    def dirty(self, sizes: Sequence[tuple[int, torch.dtype]], frame: Frame, *, role: str) -> None:
        """Poison what the next launch may be handed of its device's memory, for its outputs.

        Args:
            sizes: Element count and dtype of each output.
            frame: The launch.
            role: Which function is called; before its first call more is poisoned, if asked for.
        """
        is_first = role not in self.dirtied
        self.dirtied.add(role)
        self.poisoner.dirty(sizes, frame.device, everywhere=self.everywhere and is_first)

    def finish(self, names: Iterable[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the outputs, and what dead slots were expected to hold."""
        expected = {}
        for name, slots in self.dead.items():
            told = DEAD_SLOTS.format(name)
            self.collector.whole(told, torch.cat(slots.after))
            expected[told] = torch.cat(slots.before)
        return self.collector.finish(names), expected


def launch_forward(session: Session, frame: Frame, *, launch: int) -> None:
    """Launch once and collect the judged outputs."""
    signature = session.kernel.signature
    arguments = session.materialiser.arguments(signature, frame)
    watched_dead = _dead_of(signature, arguments, frame)
    for argument, values, where in watched_dead:
        slots = session.dead.setdefault(argument.name, DeadSlots())
        slots.before.append(flat_slots(argument, values).index_select(0, where))
    returned = session.call(session.kernel.function, arguments, signature, frame)
    outputs = checked(signature, returned, frame, session.case)
    for output in signature.outputs:
        if not output.ignored:
            session.collector.add(signature, output, outputs[output.name], frame, launch=launch)
    for argument, value in zip(signature.arguments, arguments, strict=True):
        if argument.marked:
            assert isinstance(value, Tensor), "marked arguments are tensors"
            session.collector.add(signature, argument, value, frame, launch=launch)
    for argument, values, where in watched_dead:
        session.dead[argument.name].after.append(
            flat_slots(argument, values).index_select(0, where)
        )


def _dead_of(
    signature: Signature, arguments: list[object], frame: Frame
) -> list[tuple[Argument, Tensor, Tensor]]:
    """Return the mutated arguments that have dead slots, with those slots.

    A kernel that nothing tells which slots are dead cannot leave them alone.
    """
    found = []
    for argument, value in zip(signature.arguments, arguments, strict=True):
        if not argument.is_mutated or argument.token_axis is None:
            continue
        if not _tells_dead(signature, argument.token_axis):
            continue
        assert isinstance(value, Tensor), "marked arguments are tensors"
        slots = frame.launch.map_of(signature, argument.token_axis).flatten()
        where = (slots < 0).nonzero()[:, 0]
        if len(where):
            found.append((argument, value, moved(where, frame.device)))
    return found


def _tells_dead(signature: Signature, axis: TokenAxis) -> bool:
    side = axis.removeprefix("T")
    if side not in {"Q", "C"}:
        return signature.has_mask or signature.has_lengths or signature.has_offsets
    # A causal mask lets dead queries attend a key, so that they look like live ones.
    return any(
        (item.kind == "mask" and item.token_axis == axis)
        or (item.kind in {"lengths", "offsets"} and item.parameter == side)
        for item in signature.arguments
    )


def _size(output: Argument, frame: Frame, case: Case) -> tuple[int, torch.dtype]:
    return math.prod(frame.shape_of(output, case.dims)), dtype_of(output, case)
