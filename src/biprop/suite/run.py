"""Run all cells of a registry, and report what each showed.

One search process a core, kernels behind each in a supervised child as always; operators that the
installation does not know must be found by their names, and run in the search process itself. A
search process that is lost costs its cell alone, which is then reported as CRASHES. Ctrl-C keeps
what ended: the report says that it was interrupted, and which cells were not run. Processes are
started by `multiprocessing`, which imports the main module again: a script calls the suite below
`if __name__ == "__main__":`.

Which cells there are says `biprop.suite.plan`, what a search process does `biprop.suite.searching`,
how processes are kept `biprop.suite.pool`; people are told by `biprop.reports.suite_text`.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import attrs

from biprop.case import Dtype
from biprop.contract import Contract
from biprop.errors import UsageError
from biprop.generation.space import Direction
from biprop.operators import Registry
from biprop.provenance import Provenance
from biprop.registry import build_registry
from biprop.reports.suite import ContractUsed, Dependence, InvarianceReport, SuiteCell
from biprop.strategies.cells import DIRECTIONS, rank_of_cost
from biprop.suite.arguments import (
    check_count,
    check_seconds,
    check_seed,
    check_word,
    contract_of,
    store_of,
)
from biprop.suite.dependence import to_try
from biprop.suite.devices import devices_of, worker_count
from biprop.suite.parcels import packed
from biprop.suite.plan import Choice, Plan, plan_of
from biprop.suite.pool import Ended, Lost, run_tasks
from biprop.suite.searching import CellTask, PartsTask, Searched, Settings, Task, Tried

__all__ = ["SuiteEvent", "run_invariance_suite"]

_SLICES = ("pr", "nightly")


@attrs.frozen(kw_only=True)
class SuiteEvent:
    """Something that a run wants to be seen.

    Attributes:
        kind: `begun` or `ended`.
        cell: Of which; without a report where it has just begun.
        done: Cells that ended so far.
        count: Cells of the run.
    """

    kind: Literal["begun", "ended"]
    cell: SuiteCell
    done: int
    count: int


def run_invariance_suite(
    *,
    registry: Registry | None = None,
    operators: Sequence[str] = (),
    backends: Sequence[str] = (),
    dtypes: Sequence[Dtype] = ("float32", "bfloat16"),
    directions: Sequence[Direction] = DIRECTIONS,
    slice_name: Literal["pr", "nightly"] = "pr",
    device: str = "cpu",
    contract: Contract | str | Path | None = None,
    workers: int | None = None,
    seed: int | None = None,
    max_examples: int | None = None,
    max_seconds: float | None = None,
    store: str | Path | None = None,
    tell: Callable[[SuiteEvent], None] | None = None,
) -> InvarianceReport:
    """Search every cell of the declared operators, and return what was found.

    Args:
        registry: The operators; None: those of biprop and of installed packages, of which none that
            the contract asks for may be missing.
        operators: Names; empty: all.
        backends: Names; empty: all.
        dtypes: Of the cells; float16 is optional.
        directions: Of the cells.
        slice_name: How thorough the searches are; `pr` has the same cases in every run.
        device: `cpu`, `cuda` (all that there are) or `cuda:N`.
        contract: What judges: a contract, the path of one, or None for biprop's own.
        workers: Cells searched at a time; None: one a core on a CPU, eight a GPU.
        seed: Of the searches; None: as `slice_name` says, as for `max_examples` of each cell.
        max_examples: Of relation I, exceeded where evidence lacks.
        max_seconds: After which a cell draws no further example, or after ten times as long where
            evidence is lacking; None: no limit.
        store: Folder for what is found; None: fixtures are kept in the report alone.
        tell: Gets an event whenever a cell begins or ends.

    Raises:
        BipropError: An argument cannot be used, the device is absent, or no search process starts.
    """
    choice = Choice(operators=operators, backends=backends, dtypes=dtypes, directions=directions)
    settings = Settings(
        slice_name=slice_name,
        contract=contract_of(contract),
        seed=seed,
        max_examples=max_examples,
        max_seconds=max_seconds,
        store=store_of(store),
    )
    return _reported(registry, choice, settings, device=device, workers=workers, tell=tell)


def _reported(
    registry: Registry | None,
    choice: Choice,
    settings: Settings,
    *,
    device: str,
    workers: int | None,
    tell: Callable[[SuiteEvent], None] | None,
) -> InvarianceReport:
    """Run a suite whose arguments were read, and put its report together."""
    start = time.monotonic()
    _check(registry=registry, workers=workers, settings=settings)
    installed = build_registry()
    found = installed if registry is None else registry
    contract = settings.contract
    plan = plan_of(found, contract, choice, is_complete=registry is None)
    devices = devices_of(device)
    run = _Suite(
        plan=plan,
        settings=attrs.evolve(settings, registry=packed(found, installed)),
        devices=devices,
        workers=min(worker_count(devices) if workers is None else workers, len(plan.cells)),
        tell=tell,
    )
    run.run(found)
    return InvarianceReport(
        cells=run.cells,
        slice_name=settings.slice_name,
        device=device,
        contract=ContractUsed.of(contract),
        exempt=plan.exempt,
        skipped=plan.skipped,
        deferred=contract.deferred,
        missing=plan.missing,
        unasked=plan.unasked,
        dependences=tuple(run.dependences),
        provenance=run.provenance,
        seconds=time.monotonic() - start,
        seed=settings.seed,
        workers=run.workers,
        is_interrupted=run.is_interrupted,
    )


@attrs.define(kw_only=True, eq=False)
class _Suite:
    """One run under way, and what it found so far."""

    plan: Plan
    settings: Settings
    devices: tuple[str, ...]
    workers: int
    tell: Callable[[SuiteEvent], None] | None
    cells: dict[str, SuiteCell] = attrs.field(init=False)
    dependences: list[Dependence] = attrs.field(init=False, factory=list)
    provenance: Provenance | None = attrs.field(init=False, default=None)
    is_interrupted: bool = attrs.field(init=False, default=False)
    _done: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.cells = {cell.id: cell for cell in self.plan.cells}

    def run(self, registry: Registry) -> None:
        """Search every cell, then find out which failing composites fail because of a part."""
        cells = sorted(self.plan.cells, key=lambda it: rank_of_cost(it.op_class, it.direction))
        tasks = [
            CellTask(
                cell=cell.id,
                reference=cell.reference,
                dtype=cell.dtype,
                direction=cell.direction,
            )
            for cell in cells
        ]
        try:
            for ended in run_tasks(
                tasks,
                settings=self.settings,
                devices=self.devices,
                workers=self.workers,
                on_begin=self._begun,
                then=lambda: to_try(registry, self.cells),
            ):
                if isinstance(ended.task, CellTask):
                    self._searched(ended)
                else:
                    self._tried(ended)
        except KeyboardInterrupt:
            self.is_interrupted = True

    def _begun(self, task: Task) -> None:
        if isinstance(task, CellTask):
            self._tell("begun", self.cells[task.cell])

    def _searched(self, ended: Ended) -> None:
        result = ended.result
        cell = self.cells[ended.task.cell]
        if isinstance(result, Lost):
            cell = attrs.evolve(cell, error=result.error)
        else:
            assert isinstance(result, Searched)
            self.provenance = self.provenance or result.provenance
            cell = attrs.evolve(cell, report=result.report, error=result.error)
        self.cells[cell.id] = cell
        self._done += 1
        self._tell("ended", cell)

    def _tried(self, ended: Ended) -> None:
        task, result = ended.task, ended.result
        assert isinstance(task, PartsTask)
        if isinstance(result, Tried):
            status, reason = result.status, result.reason
        else:
            assert isinstance(result, Lost)
            status, reason = "independent", result.error.message
        self.dependences.append(
            Dependence(cell=task.cell, part=task.parts[0], status=status, reason=reason)
        )

    def _tell(self, kind: Literal["begun", "ended"], cell: SuiteCell) -> None:
        if self.tell is not None:
            self.tell(SuiteEvent(kind=kind, cell=cell, done=self._done, count=len(self.cells)))


def _check(*, registry: object, workers: int | None, settings: Settings) -> None:
    if registry is not None and not isinstance(registry, Registry):
        raise UsageError(
            f"registry is a {type(registry).__name__}: give a Registry, as "
            "biprop.Registry(operators=(operator,)), or None for the installed operators."
        )
    check_word("slice_name", settings.slice_name, _SLICES)
    check_count("workers", workers)
    check_count("max_examples", settings.max_examples)
    check_seconds("max_seconds", settings.max_seconds)
    if settings.seed is not None:
        check_seed(settings.seed)
