"""Arguments that follow from a launch alone: masks, lengths, offsets, orders and their like.

All are made from the same index maps that tokens are gathered through, so that they are always
consistent. Tensors with values of their own are made by `biprop.execution.arguments`.
"""

from collections.abc import Sequence
from itertools import accumulate

import attrs
import torch
from torch import Tensor

from biprop.case import Case
from biprop.data.transfer import moved
from biprop.errors import UnsupportedError
from biprop.execution.frame import Frame, from_slots
from biprop.execution.storage import allocate, copied
from biprop.execution.values import dtype_of
from biprop.layout.launch import Launch
from biprop.signature import Argument, Signature, TokenAxis
from biprop.signature.records import FLOAT_KINDS

__all__ = ["derived"]


def derived(signature: Signature, argument: Argument, frame: Frame, case: Case) -> object:
    """Return the value of an argument that the launch decides.

    Args:
        signature: Whose argument it is.
        argument: Its declaration, of a derived kind.
        frame: The launch.
        case: The case, for its dtype and dimensions.

    Raises:
        UnsupportedError: `is_causal` has no value for the launch.
    """
    launch = frame.launch
    match argument.kind:
        case "max_length":
            return max(_lengths(argument, launch), default=0)
        case "is_causal":
            return _is_causal(argument, launch)
        case "mask":
            return _mask(argument, frame)
        case "causal_mask":
            return _causal_mask(argument, frame, case)
        case "lengths":
            lengths = _lengths(argument, launch)
            return _int32([lengths[row] for row in launch.rows(signature)], frame)
        case "offsets":
            lengths = _lengths(argument, launch)
            # With an order the sequences are found through it, in logical order; else as they lie.
            rows = launch.logical_rows if signature.has_order else range(len(lengths))
            return _int32([0, *accumulate(lengths[row] for row in rows)], frame)
        case "order":
            return moved(_order(_map(argument, launch)).to(torch.int32), frame.device)
        case kind:
            raise AssertionError(f"kind {kind} has values of its own")


def _lengths(argument: Argument, launch: Launch) -> tuple[int, ...]:
    """Return the live tokens of each row along the axis that the argument measures."""
    assert argument.parameter is not None, "parsing a signature fills the axis in"
    return launch.lengths_of(argument.parameter)


def _int32(numbers: Sequence[int], frame: Frame) -> Tensor:
    return moved(torch.tensor(numbers, dtype=torch.int32), frame.device)


def _map(argument: Argument, launch: Launch) -> Tensor:
    axis: TokenAxis | None = argument.token_axis
    assert axis is not None, "masks and orders have slots"
    return launch.maps[axis]


def _mask(argument: Argument, frame: Frame) -> Tensor:
    live = _map(argument, frame.launch) >= 0
    ones = (1,) * (len(argument.dims) - live.dim())
    whole = copied(live.reshape(*live.shape, *ones).permute(from_slots(argument)))
    return moved(whole, frame.device)


def _order(found: Tensor) -> Tensor:
    """Return the flat slots of the live tokens in logical order, then the dead ones."""
    flat = found.flatten()
    live = (flat >= 0).nonzero()[:, 0]
    dead = (flat < 0).nonzero()[:, 0]
    return torch.cat([live[flat[live].argsort()], dead]).reshape(found.shape)


def _causal_mask(argument: Argument, frame: Frame, case: Case) -> Tensor:
    """Return who attends whom, repeated along every dimension that it does not depend on."""
    names = [dim.name for dim in argument.dims]
    # Without queries it hides padding alone.
    attends = frame.attends if names[-2] else frame.attends_keys[:, None]
    if attends.dim() == 3 and "B" not in names:
        # One mask for all rows: where it is legal all live rows are alike, and dead ones come last.
        attends = attends[0]
    # Repeated on the device, so that little is moved there.
    attends = moved(attends, frame.device)
    shape = frame.shape_of(argument, case.dims)
    leading = [size if name == "B" else 1 for name, size in zip(names, shape, strict=True)][:-2]
    whole = attends.reshape(*leading, *attends.shape[-2:]).expand(shape)
    if argument.parameter not in FLOAT_KINDS:
        return copied(whole)
    # An additive mask has a dtype where a boolean one has none.
    dtype = dtype_of(attrs.evolve(argument, kind=argument.parameter), case)
    return allocate(shape, dtype, frame.device).zero_().masked_fill_(~whole, float("-inf"))


def _is_causal(argument: Argument, launch: Launch) -> bool:
    sizes = launch.sizes
    if "Q" in sizes:
        pairs = {(sizes["Q"], sizes["C"])}
    else:
        # Empty segments have neither.
        pairs = set(zip(launch.lengths, launch.context_lengths, strict=True)) - {(0, 0)}
    if all(queries == contexts for queries, contexts in pairs):
        return True
    if all(queries == 1 for queries, _ in pairs):
        return False
    found = " and ".join(f"{queries} of {contexts}" for queries, contexts in sorted(pairs))
    raise UnsupportedError(
        f"Argument '{argument.name}' has kind is_causal, which has no value for the last {found} "
        "tokens: cut nowhere, or into single queries."
    )
