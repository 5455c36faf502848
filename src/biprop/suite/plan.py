"""Which cells a run has, and what it leaves out, each with its reason.

Decided from the registry and the contract before anything runs; nothing is searched here.
"""

from collections.abc import Iterable, Sequence

import attrs

from biprop.case import DTYPES, Dtype
from biprop.contract import MANDATORY_DTYPES, Contract, judgment_of
from biprop.errors import UsageError
from biprop.generation.space import Direction
from biprop.operators import Operator, Registry
from biprop.reports.suite import Note, SuiteCell
from biprop.strategies.cells import DIRECTIONS, cells_of, declared_in
from biprop.suite.arguments import check_names, names_of

__all__ = ["Choice", "Plan", "plan_of"]


def _names(values: Iterable[str]) -> tuple[str, ...]:
    return names_of(values)  # type: ignore[no-any-return]


def _dtypes(values: Iterable[Dtype]) -> tuple[Dtype, ...]:
    return names_of(values)  # type: ignore[no-any-return]


def _directions(values: Iterable[Direction]) -> tuple[Direction, ...]:
    return names_of(values)  # type: ignore[no-any-return]


@attrs.frozen(kw_only=True)
class Choice:
    """What was asked for; nothing named means all.

    Attributes:
        operators: Names.
        backends: Names.
        dtypes: Of the cells, at least one.
        directions: Of the cells, at least one.
    """

    operators: tuple[str, ...] = attrs.field(default=(), converter=_names)
    backends: tuple[str, ...] = attrs.field(default=(), converter=_names)
    dtypes: tuple[Dtype, ...] = attrs.field(default=("float32", "bfloat16"), converter=_dtypes)
    directions: tuple[Direction, ...] = attrs.field(default=DIRECTIONS, converter=_directions)

    def __attrs_post_init__(self) -> None:
        """Refuse a text in the place of a sequence."""
        check_names(self, "operators", "backends", "dtypes", "directions")


@attrs.frozen(kw_only=True)
class Plan:
    """The cells of a run, none of them judged yet, and what is not run.

    Attributes:
        cells: In the order of the registry.
        exempt: Operators that promise nothing.
        skipped: What could be run and is not.
        missing: Operators that the contract asks for and the registry has not.
        unasked: Mandatory cells that were not asked for.
    """

    cells: tuple[SuiteCell, ...]
    exempt: tuple[Note, ...]
    skipped: tuple[Note, ...]
    missing: tuple[str, ...]
    unasked: int


def plan_of(
    registry: Registry, contract: Contract, choice: Choice, *, is_complete: bool = True
) -> Plan:
    """Return the cells of `choice`, and what stays out of the run.

    Args:
        registry: The operators.
        contract: Says which cells are mandatory.
        choice: What was asked for.
        is_complete: Whether the registry should hold every operator that the contract names.

    Raises:
        UsageError: A name is unknown, or no cell is left.
        ContractError: The contract has no such operator class or dtype.
    """
    _check(registry, choice)
    wanted = frozenset(choice.operators) or declared_in(registry)
    every = _cells(registry, contract, wanted=None, dtypes=DTYPES, directions=DIRECTIONS)
    chosen = [
        cell
        for cell in _cells(
            registry, contract, wanted=wanted, dtypes=choice.dtypes, directions=choice.directions
        )
        if not choice.backends or cell.backend in choice.backends
    ]
    outside = {cell.id: _outside(cell, contract) for cell in chosen}
    cells = tuple(cell for cell in chosen if not outside[cell.id])
    if not cells:
        reason = next(iter(outside.values()), "the operators have no such backend")
        raise UsageError(f"No cell is left to run: {reason}.")
    ids = {cell.id for cell in cells}
    is_whole = is_complete and not choice.operators
    return Plan(
        cells=cells,
        exempt=tuple(
            Note(name=operator.name, reason=operator.exempt_reason)
            for operator in registry.operators
            if operator.exempt_reason is not None
        ),
        skipped=(
            *_skipped_dtypes(registry, contract, choice),
            *_without_gradients(registry, wanted, choice),
            *(Note(name=name, reason=reason) for name, reason in outside.items() if reason),
        ),
        missing=tuple(
            name for name in contract.operators if is_whole and name not in declared_in(registry)
        ),
        unasked=sum(cell.is_mandatory and cell.id not in ids for cell in every),
    )


def _cells(
    registry: Registry,
    contract: Contract,
    *,
    wanted: frozenset[str] | None,
    dtypes: Sequence[Dtype],
    directions: Sequence[Direction],
) -> tuple[SuiteCell, ...]:
    kernels = {(kernel.target, kernel.backend): kernel for kernel in registry.kernels()}
    found: list[SuiteCell] = []
    for cell in cells_of(registry, wanted, dtypes=dtypes, directions=directions):
        kernel = kernels[cell.reference.target, cell.reference.backend]
        assert kernel.op_class is not None, "a registered operator has a class"
        assert kernel.declaration is not None, "only declared operators have cells"
        asked = contract.cell(
            judgment=judgment_of("I", cell.direction), op_class=kernel.op_class, dtype=cell.dtype
        )
        found.append(
            SuiteCell(
                id=cell.id,
                reference=cell.reference,
                form=kernel.form,
                op_class=kernel.op_class,
                dtype=cell.dtype,
                direction=cell.direction,
                chain_index=kernel.declaration.chain_index,
                is_mandatory=asked.status == "applicable",
            )
        )
    return tuple(found)


def _outside(cell: SuiteCell, contract: Contract) -> str:
    """Return why the contract asks nothing of a cell; empty where it does."""
    asked = contract.cell(
        judgment=judgment_of("I", cell.direction), op_class=cell.op_class, dtype=cell.dtype
    )
    if asked.status in {"applicable", "optional"}:
        return ""
    return f"{asked.path} is {asked.status.replace('_', ' ')}: {asked.reason or 'no reason given'}"


def _skipped_dtypes(registry: Registry, contract: Contract, choice: Choice) -> tuple[Note, ...]:
    """Say of every dtype of the contract that was not run why it was not."""
    classes = {operator.op_class for operator in registry.operators if operator.declaration}
    notes: list[Note] = []
    for dtype in dict.fromkeys(cell.dtype for cell in contract.cells):
        if dtype in choice.dtypes:
            continue
        found = [
            contract.cell(judgment="forward_invariance", op_class=op_class, dtype=dtype)
            for op_class in sorted(classes)
        ]
        statuses = {cell.status for cell in found}
        reasons = [cell.reason for cell in found if cell.reason]
        if dtype in MANDATORY_DTYPES:
            reason = "mandatory, and not asked for"
        elif "optional" in statuses:
            reason = "optional: it runs where it is asked for"
        else:
            what = ", ".join(sorted(status.replace("_", " ") for status in statuses))
            reason = f"{what}: {reasons[0]}" if reasons else what
        notes.append(Note(name=dtype, reason=reason))
    return tuple(notes)


def _without_gradients(
    registry: Registry, wanted: frozenset[str], choice: Choice
) -> tuple[Note, ...]:
    if "backward" not in choice.directions:
        return ()
    return tuple(
        Note(name=f"{operator.name} backward", reason="the operator declares no gradients")
        for operator in registry.operators
        if operator.name in wanted
        and operator.declaration is not None
        and not operator.declaration.backward
    )


def _check(registry: Registry, choice: Choice) -> None:
    """Refuse names that the registry has not, and an empty choice."""
    declared = sorted(declared_in(registry))
    exempt = [operator.name for operator in registry.operators if operator.exempt_reason]
    for name in choice.operators:
        if name in exempt:
            raise UsageError(
                f"operators names {name!r}, which is exempt and has no cells: "
                f"use {', '.join(declared)}."
            )
        if name not in declared:
            raise UsageError(
                f"operators names {name!r}, which is not registered: use {', '.join(declared)}."
            )
    known = sorted({name for operator in registry.operators for name in _backends(operator)})
    for name in choice.backends:
        if name not in known:
            raise UsageError(f"backends names {name!r}, which none has: use {', '.join(known)}.")
    for what, given, all_ in (
        ("dtypes", choice.dtypes, DTYPES),
        ("directions", choice.directions, DIRECTIONS),
    ):
        unknown = [name for name in given if name not in all_]
        if unknown or not given:
            shown = repr(unknown[0]) if unknown else "nothing"
            raise UsageError(f"{what} names {shown}: use one or more of {', '.join(all_)}.")


def _backends(operator: Operator) -> tuple[str, ...]:
    return tuple(item.backend for form in operator.forms for item in form.implementations)
