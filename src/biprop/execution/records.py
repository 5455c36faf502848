"""What a run hands back: tensors in logical order, with the token that each row belongs to.

Records only: `biprop.execution.run` makes them, `biprop.relations` compares them.
"""

import attrs
from torch import Tensor

from biprop.errors import OutputError
from biprop.execution.untouched import Unread
from biprop.judgment import LaunchFact

__all__ = ["DEAD_SLOTS", "Run", "TokenIndex"]

# What the dead slots of a mutated argument are called among the outputs: "x (dead slots)".
DEAD_SLOTS = "{} (dead slots)"


@attrs.frozen(kw_only=True, eq=False)
class TokenIndex:
    """Which token each row of an output belongs to.

    Attributes:
        sequence_id: int32 `[n]`, on the CPU.
        token: int32 `[n]`, index in its sequence; the last one for one value a sequence.
    """

    sequence_id: Tensor
    token: Tensor


@attrs.frozen(kw_only=True, eq=False)
class Run:
    """What one configuration of a case gave.

    Attributes:
        outputs: By name: `[n, *free]` for the `n` watched active tokens (or watched sequences) in
            logical order; gradients of parameters as they are. A transformed run with a mutated
            argument `x` also has `x (dead slots)`, whose counterpart is in `expected`.
        expected: By name: what the dead slots of a mutated argument held before the launches.
        index: By name: the token of each row, None for gradients of parameters and dead slots.
        rows: By name: int64 `[n, 2]` on the CPU, flat slot in its launch and index of that launch;
            empty for gradients of parameters.
        launches: Launches made; a backward with its forward counts as one.
        facts: Launch facts.
        poisons: Poisons that reached an output or a workspace: `nan`, `large`, or none.
        actual_backend: `torch`, `triton` or `triton-interpreter`.
        unread: What the device alone knows so far of arguments that carry no mark.
    """

    outputs: dict[str, Tensor]
    expected: dict[str, Tensor]
    index: dict[str, TokenIndex | None]
    rows: dict[str, Tensor]
    launches: int
    facts: tuple[LaunchFact, ...]
    poisons: tuple[str, ...]
    actual_backend: str
    unread: tuple[Unread, ...] = ()

    def settle(self) -> None:
        """Wait for the device, and read what it knows of arguments that carry no mark.

        Raises:
            OutputError: The kernel wrote into one of them.
        """
        for item in self.unread:
            if bool(item.flag):
                raise OutputError(item.sentence)
