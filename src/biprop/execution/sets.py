"""Sets: cases that differ in their composition alone, made ready together.

What does not depend on the composition is made once: the values of all tokens, of which each layout
takes the first ones, and the canonical side. What a set amounts to is judged by
`biprop.relations.sets`.
"""

from collections.abc import Sequence

import attrs
import torch

from biprop.case import Case
from biprop.data.transfer import moved
from biprop.execution.records import Run, TokenIndex
from biprop.execution.run import Prepared
from biprop.execution.values import Values, values_of
from biprop.layout.pool import TokenPool, token_pool
from biprop.layout.records import Layout, Neighbours
from biprop.operators import Kernel
from biprop.signature import Argument
from biprop.transforms import apply_all, transforms_of
from biprop.transforms.effect import KnownMaps

__all__ = ["are_layouts", "canonical_member", "compared_alike", "narrowed", "prepare_set"]

_CONTEXTS = ("C", "TC")


def are_layouts(cases: Sequence[Case]) -> bool:
    """Return whether cases differ in their transforms alone."""
    first, *others = (attrs.evolve(case, transforms=()) for case in cases)
    return all(case == first for case in others)


def prepare_set(
    kernel: Kernel, cases: Sequence[Case], *, device: torch.device | str
) -> tuple[Prepared, ...]:
    """Do as `prepare` for each of some cases, with values that they share.

    Neighbours of one kind are numbered alike whatever their number, and lie behind the watched
    sequences: so the values of the most of them serve all layouts that have some.

    Args:
        kernel: The kernel.
        cases: Legal, and equal but for their transforms.
        device: Where they run.

    Raises:
        CaseError: A tensor has no recipe.
    """
    place = torch.device(device)
    layouts = [apply_all(transforms_of(case)) for case in cases]
    pools: dict[Neighbours, TokenPool] = {}
    for case, layout in zip(cases, layouts, strict=True):
        if layout.neighbours not in pools:
            pools[layout.neighbours] = token_pool(case, layout)
    widest = _widest(layouts, pools)
    made: dict[Neighbours, Values] = {}
    members, maps = [], KnownMaps(pools=pools)
    for case, layout in zip(cases, layouts, strict=True):
        own, pool = layout.neighbours, pools[layout.neighbours]
        source = widest[_kind(own, pool)]
        if source not in made:
            made[source] = values_of(kernel, case, pools[source], source, place)
        members.append(
            Prepared(
                kernel=kernel,
                case=case,
                layout=layout,
                device=place,
                pool=pool,
                values=made[source].first(len(pool.token)),
                maps=maps,
            )
        )
    return tuple(members)


def canonical_member(members: Sequence[Prepared]) -> Prepared:
    """Return the member whose canonical run holds all that any of a set is compared with."""
    # Without a cut, every context is compared.
    return attrs.evolve(members[0], case=attrs.evolve(members[0].case, transforms=()))


def compared_alike(members: Sequence[Prepared]) -> tuple[int, ...]:
    """Return of each member the first one of which the same tokens are compared.

    That is the first of all, but where gradients of contexts are judged: those that a layout feeds
    to several launches are compared on neither side.
    """
    if not _context_names(members[0]):
        return (0,) * len(members)
    found: list[int] = []
    for member in members:
        same = (place for place in dict.fromkeys(found) if _is_alike(members[place], member))
        found.append(next(same, len(found)))
    return tuple(found)


def narrowed(run: Run, whole: Prepared, member: Prepared) -> Run:
    """Return a canonical run of all tokens with those alone that a member is compared in.

    Args:
        run: Of `whole`.
        whole: As `canonical_member` returns it.
        member: Of the same set.
    """
    names, fed_once = _context_names(whole), member.compared.fed_once
    if fed_once is None or not names & set(run.outputs):
        return run
    kept = fed_once[whole.compared.places("C")].nonzero()[:, 0]
    there = moved(kept, whole.device)
    outputs, index, rows = dict(run.outputs), dict(run.index), dict(run.rows)
    for name in names & set(run.outputs):
        outputs[name] = outputs[name].index_select(0, there)
        rows[name] = rows[name][kept]
        tokens = index[name]
        assert tokens is not None, "contexts are tokens"
        index[name] = TokenIndex(sequence_id=tokens.sequence_id[kept], token=tokens.token[kept])
    return attrs.evolve(run, outputs=outputs, index=index, rows=rows)


def _is_alike(one: Prepared, other: Prepared) -> bool:
    first, second = one.compared.fed_once, other.compared.fed_once
    if first is None or second is None:
        return first is second
    count = one.pool.watched_token_count
    return bool((first[:count] == second[:count]).all())


def _context_names(member: Prepared) -> set[str]:
    """Return the names of what is judged along an axis of contexts."""
    signature, backward = member.kernel.signature, member.kernel.backward_signature
    items: Sequence[Argument] = signature.judged_outputs
    mark = ""
    if member.case.judged != "outputs":
        items = signature.arguments if backward is None else backward.judged_outputs
        mark = "d" if backward is None else ""
    return {f"{mark}{item.name}" for item in items if item.token_axis in _CONTEXTS}


def _kind(neighbours: Neighbours, pool: TokenPool) -> tuple[int, ...]:
    """Return what neighbours have in common that may share their values; nothing without any."""
    if len(pool.sequences) == pool.watched_count:
        return ()
    return (neighbours.length, neighbours.spread, neighbours.loudness)


def _widest(
    layouts: Sequence[Layout], pools: dict[Neighbours, TokenPool]
) -> dict[tuple[int, ...], Neighbours]:
    """Return of each kind of neighbours those whose pool holds all others of the kind."""
    found: dict[tuple[int, ...], Neighbours] = {}
    for layout in layouts:
        neighbours = layout.neighbours
        kind = _kind(neighbours, pools[neighbours])
        known = found.get(kind)
        if known is None or len(pools[known].token) < len(pools[neighbours].token):
            found[kind] = neighbours
    if () in found and len(found) > 1:
        # Watched sequences are the first ones of every pool.
        found[()] = next(neighbours for kind, neighbours in found.items() if kind)
    return found
