"""Run the campaign of `biprop fuzz`, and say what its store holds in the end.

Cells are listed by `biprop.campaign.cells`; what happens meanwhile is shown by
`biprop.cli.fuzz_view`.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import attrs

from biprop.campaign.cells import Cell, entry_cells, sharded, target_cells
from biprop.campaign.crew import Crew
from biprop.campaign.hands import open_search_hands
from biprop.campaign.messages import Settings
from biprop.campaign.records import CampaignRecord
from biprop.campaign.run import Plan, run_campaign
from biprop.campaign.store import FOLDER, Store
from biprop.campaign.text import render_summary
from biprop.cli.fuzz import FuzzRequest, stops
from biprop.cli.fuzz_targets import check_targets
from biprop.cli.fuzz_view import shown
from biprop.cli.output import emit
from biprop.contract import Contract, load_contract
from biprop.fixtures.store import project_root
from biprop.machine import core_count

__all__ = ["run_fuzz"]

_INTERRUPTED = 130
_NOT_SEARCHED = 2
# As `check` has it for too little evidence.
_NOTHING_JUDGED = 3
_ERROR = "ERROR"


def run_fuzz(request: FuzzRequest, *, is_live: bool) -> int:
    """Run a campaign, print a summary, and return the exit code.

    Args:
        request: What is asked for.
        is_live: Whether standard error is a terminal.

    Raises:
        BipropError: What is asked for cannot be run.
        KeyboardInterrupt: Ctrl-C or SIGTERM, before the campaign began.
    """
    contract = load_contract()
    part, count = request.shard
    cells = sharded(_cells(request, contract), part=part, count=count)
    path = project_root() / FOLDER if request.store is None else request.store.absolute()
    with _spread(request) as spread:
        if request.ray is None:
            # Of a cluster, what connects to it may have no such device.
            check_targets(request, device=spread.devices[0])
        plan = Plan(
            cells=cells,
            store=path,
            budget=request.budget,
            devices=spread.devices,
            workers=spread.workers,
            contract=contract,
            open_hands=open_search_hands,
            seed=request.seed,
            shard=f"{part}/{count}",
            options=request.options,
            timeout=request.timeout,
        )
        # Not before: what opens a target has nothing to store, and is broken off at once.
        with stops() as is_stopped:
            with shown(is_live=is_live, events=request.events, budget=request.budget) as tell:
                record = run_campaign(
                    plan, tell=tell, is_stopped=is_stopped, open_crew=spread.open_crew
                )
            return _told(record, Store.open(path), own={cell.id for cell in cells})


def _told(record: CampaignRecord, store: Store, *, own: Collection[str]) -> int:
    """Print a summary, and return the exit code.

    Args:
        record: Of the campaign.
        store: Where it lies.
        own: Ids of its cells.
    """
    snapshot = store.snapshot(with_epochs=False)
    emit(render_summary(snapshot, record))
    if record.reason == "interrupted":
        return _INTERRUPTED
    # What cannot be read may be a finding.
    if snapshot.findings or snapshot.problems:
        return 1
    cells = [cell for cell in snapshot.cells if cell.info.id in own]
    if {cell.verdict for cell in cells} == {_ERROR}:
        return _NOT_SEARCHED
    return 0 if any(cell.sum.examples for cell in cells) else _NOTHING_JUDGED


def _cells(request: FuzzRequest, contract: Contract) -> tuple[Cell, ...]:
    """Return all cells that are asked for, those of other shards too."""
    cells = list(entry_cells(request.entries))
    for reference in request.references:
        cells += target_cells(
            reference, dtypes=request.dtypes, directions=request.target_directions
        )
    if request.operators or not cells:
        # Kernels import torch, which the parent of a campaign over targets need not.
        from biprop.campaign.registered import registered_cells
        from biprop.registry import build_registry

        cells += registered_cells(
            build_registry(),
            contract,
            names=request.operators,
            backends=request.backends,
            dtypes=request.dtypes,
            directions=request.directions,
        )
    return tuple(cells)


@attrs.frozen(kw_only=True)
class _Spread:
    """Where the processes of a campaign are.

    Attributes:
        devices: That they use.
        workers: How many there are.
        open_crew: Starts them; None: on this machine.
    """

    devices: tuple[str, ...]
    workers: int
    open_crew: Callable[[Settings], Crew] | None = None


@contextmanager
def _spread(request: FuzzRequest) -> Iterator[_Spread]:
    """Find out where processes can be, and hold what connects to them.

    Raises:
        BipropError: There is no such device, or no such cluster.
    """
    if request.ray is None:
        devices = _devices(request.device)
        yield _Spread(devices=devices, workers=_workers(request, devices))
        return
    from biprop.campaign.ray_crew import RayCluster, RayCrew

    with RayCluster.connected(request.ray) as cluster:
        share = cluster.share(
            request.device, workers=request.workers, workers_per_gpu=request.workers_per_gpu
        )
        yield _Spread(
            devices=(request.device,),
            workers=share.workers,
            open_crew=lambda settings: RayCrew(settings, cluster=cluster, share=share),
        )


def _workers(request: FuzzRequest, devices: tuple[str, ...]) -> int:
    if request.workers is not None:
        return request.workers
    if request.workers_per_gpu is not None:
        return request.workers_per_gpu * len(devices)
    if devices == ("cpu",):
        return core_count()
    from biprop.suite.devices import worker_count

    return worker_count(devices)


def _devices(device: str) -> tuple[str, ...]:
    """Return the devices that processes are spread over.

    Raises:
        DeviceError: There is none.
    """
    if device == "cpu":
        return ("cpu",)
    from biprop.suite.devices import devices_of

    return devices_of(device)
