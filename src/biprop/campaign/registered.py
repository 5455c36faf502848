"""The cells of registered operators and caches, as a campaign goes through them.

The same cells, under the same ids, as `biprop matrix` and tests/props have. Imports kernels, so
that only the parent of a campaign needs it; cells of targets are listed by `biprop.campaign.cells`.
"""

from collections.abc import Sequence

from biprop.campaign.cells import CacheWork, Cell, KernelWork
from biprop.campaign.records import CellInfo
from biprop.case import Dtype
from biprop.contract import Contract
from biprop.errors import UsageError
from biprop.generation.space import Direction
from biprop.kernels import CACHES
from biprop.kvcache.records import CacheReference
from biprop.kvcache.shape import CacheLayout
from biprop.operators import Registry
from biprop.signature.words import advice_on, quoted
from biprop.suite.plan import Choice, plan_of

__all__ = ["registered_cells"]

_LAYOUTS: tuple[CacheLayout, ...] = ("NHD", "HND")


def registered_cells(
    registry: Registry,
    contract: Contract,
    *,
    names: Sequence[str] = (),
    backends: Sequence[str] = (),
    dtypes: Sequence[Dtype] = ("float32", "bfloat16"),
    directions: Sequence[Direction] = ("forward", "backward"),
) -> tuple[Cell, ...]:
    """Return the cells of registered operators and caches.

    Args:
        registry: The operators.
        contract: Says which cells are asked for.
        names: Of operators and caches; empty: all.
        backends: Names; empty: all.
        dtypes: Of the cells.
        directions: Of the cells; programs of a cache have one direction alone.

    Raises:
        BipropError: A name is unknown, or no cell is left.
    """
    _check(registry, names)
    caches = [cache.name for cache in CACHES if not names or cache.name in names]
    operators = tuple(name for name in names if name not in caches)
    found: list[Cell] = []
    if operators or not names:
        choice = Choice(
            operators=operators, backends=backends, dtypes=dtypes, directions=directions
        )
        for cell in plan_of(registry, contract, choice, is_complete=not names).cells:
            info = CellInfo(
                id=cell.id,
                operator=cell.operator,
                form=cell.form,
                backend=cell.reference.backend,
                dtype=cell.dtype,
                direction=cell.direction,
                op_class=cell.op_class,
                chain_index=cell.chain_index,
            )
            work = KernelWork(reference=cell.reference, dtype=cell.dtype, direction=cell.direction)
            found.append(Cell(info=info, work=work))
    if "forward" in directions:
        found += _cache_cells(caches, backends=backends, dtypes=dtypes)
    if not found:
        raise UsageError("No cell is left to fuzz: name other operators, backends or dtypes.")
    return tuple(found)


def _check(registry: Registry, names: Sequence[str]) -> None:
    """Refuse a name that is neither an operator's nor a cache's."""
    operators = [operator.name for operator in registry.operators]
    known = sorted([*operators, *(cache.name for cache in CACHES)])
    for name in names:
        if name not in known:
            raise UsageError(
                f"--operators names {quoted(name)}, which is neither an operator nor a cache: "
                f"{advice_on(name, known)}."
            )


def _cache_cells(
    names: Sequence[str], *, backends: Sequence[str], dtypes: Sequence[Dtype]
) -> list[Cell]:
    return [
        Cell(
            info=CellInfo(
                id=f"cache-{cache.name}-{layout}-{item.backend}-{dtype}",
                kind="cache",
                operator=cache.name,
                form=layout,
                backend=item.backend,
                dtype=dtype,
            ),
            work=CacheWork(
                reference=CacheReference(cache=cache.name, target=cache.name, backend=item.backend),
                layout=layout,
                dtype=dtype,
            ),
        )
        for cache in CACHES
        if cache.name in names
        for item in cache.implementations
        if not backends or item.backend in backends
        for layout in _LAYOUTS
        for dtype in dtypes
    ]
