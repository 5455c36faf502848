"""What a layout amounts to physically, as a record that can be compared.

A transform that leaves this record unchanged left the call unchanged, and is no evidence
(`biprop.transforms.effect`). `biprop.execution.storage` places tensors as `placement_of` says.
"""

import math
from collections.abc import Sequence

import attrs
import numpy as np

from biprop.case import Case
from biprop.layout.launch import DEAD, DEAD_ROW, Launch
from biprop.layout.launches import launches
from biprop.layout.pool import TokenPool, token_pool
from biprop.layout.records import Fill, Layout, Storage
from biprop.signature import Argument, Signature, TokenAxis
from biprop.signature.records import DTYPE_KINDS

__all__ = [
    "BOUNDARY",
    "ITEM_SIZES",
    "PhysicalCall",
    "Placement",
    "called_signatures",
    "described",
    "physical",
    "placement_of",
]

# Bytes to which the base pointers of the canonical configuration are aligned.
BOUNDARY = 256
ITEM_SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
# Kinds whose dead slots hold what the layout says; those of the others follow from the map.
_FILLED = (*DTYPE_KINDS, "token", "position")

# Axis, shape, and bytes of the (sequence id, token) in each slot.
DescribedMap = tuple[str, tuple[int, ...], bytes]


@attrs.frozen(kw_only=True)
class Placement:
    """How one tensor lies in memory.

    Attributes:
        offset: Elements from a boundary of `BOUNDARY` bytes to the first element.
        gap: Elements between rows of the last axis in memory.
        transposed: The last two axes are swapped in memory.
    """

    offset: int = 0
    gap: int = 0
    transposed: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is contiguous at a boundary."""
        return not (self.offset or self.gap or self.transposed)

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the strides of a tensor of `shape`, in elements."""
        if not shape:
            return ()
        memory = list(range(len(shape)))
        if self.transposed and len(shape) > 1:
            memory[-1], memory[-2] = memory[-2], memory[-1]
        strides = [1] * len(shape)
        step = max(1, shape[memory[-1]]) + (self.gap if len(shape) > 1 else 0)
        for axis in reversed(memory[:-1]):
            strides[axis] = step
            step *= max(1, shape[axis])
        return tuple(strides)


@attrs.frozen(kw_only=True)
class PhysicalCall:
    """All that a layout decides about the launches of a case.

    Attributes:
        launches: Per launch the maps that the signature sees.
        segments: Per launch the live lengths, where the signature is told about sequences; those of
            contexts after those of queries.
        fill: What dead slots hold; None if there are none.
        dead_rows_fill: Likewise for dead rows.
        loudness: Of neighbours that lie in a launch.
        placements: Of tensors that lie elsewhere than at a boundary and contiguous, by name.
        dirty: Outputs and workspaces hold another poison.
        form: Another form of the operator that is launched; empty: that of the case.
        shards: Ranks that share the contracted sum.
    """

    launches: tuple[tuple[DescribedMap, ...], ...]
    segments: tuple[tuple[int, ...], ...]
    fill: Fill | None
    dead_rows_fill: Fill | None
    loudness: int
    placements: tuple[tuple[str, Placement], ...]
    dirty: bool
    form: str
    shards: int


def physical(
    signature: Signature,
    case: Case,
    layout: Layout,
    *,
    backward_signature: Signature | None = None,
    align: int = 1,
    pool: TokenPool | None = None,
    made: tuple[Launch, ...] | None = None,
    maps: tuple[tuple[DescribedMap, ...], ...] | None = None,
) -> PhysicalCall:
    """Return what `layout` makes of `case` physically.

    Args:
        signature: Forward signature of what is launched, which is that of the layout's form.
        case: The case.
        layout: What surrounds its sequences.
        backward_signature: Of a registered backward, likewise.
        align: Bytes that the target demands of base pointers.
        pool: `token_pool(case, layout)`, where it is at hand.
        made: The layout's launches, where they are at hand.
        maps: What `described` says of each of them, likewise.

    Raises:
        CaseError: The layout cannot be laid out for the signature.
    """
    if pool is None:
        pool = token_pool(case, layout)
    if made is None:
        made = launches(signature, pool, case, layout, backward_signature=backward_signature)
    called = called_signatures(signature, case, backward_signature)
    filled = _filled_axes(called)
    dead = {mark for launch in made for axis in filled for mark in launch.dead.get(axis, ())}
    loudness = layout.neighbours.loudness
    told = any(item.sequence_wise for item in called)
    return PhysicalCall(
        launches=tuple(described(launch, pool, called) for launch in made)
        if maps is None
        else maps,
        segments=tuple(launch.lengths + launch.context_lengths for launch in made) if told else (),
        fill=layout.padding.fill if DEAD in dead else None,
        dead_rows_fill=layout.padding.dead_rows_fill if DEAD_ROW in dead else None,
        loudness=loudness if loudness and bool(pool.loud.any()) else 0,
        placements=_placements(called, case, layout.storage, made, align),
        dirty=layout.storage.dirty,
        form=layout.selection.form,
        shards=layout.shards,
    )


def called_signatures(
    signature: Signature, case: Case, backward_signature: Signature | None
) -> list[Signature]:
    """Return the signatures of what a launch of the case calls."""
    if backward_signature is None or case.judged == "outputs":
        return [signature]
    return [signature, backward_signature]


def described(
    launch: Launch, pool: TokenPool, signatures: Sequence[Signature]
) -> tuple[DescribedMap, ...]:
    """Return which token lies in which slot of a launch, without mention of the pool.

    Args:
        launch: The launch.
        pool: What its maps point into.
        signatures: Of what is called; maps that none of them has an axis for are left out.
    """
    names = {
        dim.name
        for signature in signatures
        for item in (*signature.arguments, *signature.outputs)
        for dim in item.dims
    }
    found: list[DescribedMap] = []
    for axis, slots in launch.maps.items():
        if axis != "B" and axis in names:
            places = slots.numpy()
            named = pool.words.numpy()[np.maximum(places, 0)]
            if launch.dead[axis]:
                named = np.where(places >= 0, named, places)
            found.append((axis, places.shape, named.tobytes()))
    return tuple(found)


def placement_of(
    argument: Argument, storage: Storage, *, item_size: int, align: int, has_tokens: bool = True
) -> Placement:
    """Return where T8 puts a tensor.

    Only float tensors move, and parameters only if the layout says so. The offset is rounded up to
    what the target demands of base pointers.

    Args:
        argument: Whose tensor it is.
        storage: What the layout says.
        item_size: Bytes of an element.
        align: Bytes that the target demands of base pointers.
        has_tokens: False for a tensor that the whole batch shares.
    """
    if not argument.is_float or not (has_tokens or storage.parameters) or storage == _AT_HOME:
        return _PLAIN
    step = math.lcm(align, item_size)
    offset = -(-storage.offset * item_size // step) * step % BOUNDARY
    return Placement(offset=offset // item_size, gap=storage.gap, transposed=storage.transposed)


_PLAIN = Placement()
_AT_HOME = Storage()


def _filled_axes(signatures: list[Signature]) -> list[TokenAxis]:
    """Return the axes of tensors whose dead slots hold a fill."""
    return list(
        dict.fromkeys(
            argument.token_axis
            for signature in signatures
            for argument in signature.arguments
            if argument.token_axis and argument.kind in _FILLED and not argument.is_supplied_output
        )
    )


def _placements(
    signatures: list[Signature], case: Case, storage: Storage, made: tuple[Launch, ...], align: int
) -> tuple[tuple[str, Placement], ...]:
    found: dict[str, Placement] = {}
    for signature in signatures:
        for argument in signature.arguments:
            if argument.is_float:
                placement = _effective(argument, case, storage, made, align)
                if not placement.is_plain:
                    found.setdefault(argument.name, placement)
    return tuple(found.items())


def _effective(
    argument: Argument, case: Case, storage: Storage, made: tuple[Launch, ...], align: int
) -> Placement:
    """Return the placement, without a gap or a swap that changes no stride in any launch."""
    dtype = case.dtype if argument.kind == "float" else argument.kind
    placement = placement_of(
        argument,
        storage,
        item_size=ITEM_SIZES[dtype],
        align=align,
        has_tokens=argument.token_axis is not None,
    )
    if not (placement.gap or placement.transposed):
        return placement
    shapes = {
        tuple(dim.size({**case.dims, **launch.sizes}) for dim in argument.dims) for launch in made
    }
    for reduced in (attrs.evolve(placement, gap=0), attrs.evolve(placement, transposed=False)):
        if all(reduced.strides(shape) == placement.strides(shape) for shape in shapes):
            placement = reduced
    return placement
