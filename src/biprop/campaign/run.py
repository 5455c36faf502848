"""Run a campaign on one store until its budget is spent, or somebody stops it.

The parent process: it says who has which task, keeps sums, takes up what lost processes leave
behind, and writes nothing of an epoch itself. What is searched next says
`biprop.campaign.scheduler`, processes are kept by a `Crew`, what they do is
`biprop.campaign.working`. Memory holds sums by cell and by cause, never epochs.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from biprop.campaign.cells import Cell
from biprop.campaign.crew import Crew, LocalCrew
from biprop.campaign.events import Event
from biprop.campaign.ledger import check_beginnings
from biprop.campaign.messages import OpenHands, Settings
from biprop.campaign.parent import Parent
from biprop.campaign.places import this_process
from biprop.campaign.records import FORMAT, CampaignRecord, Heartbeat
from biprop.campaign.recovery import recover
from biprop.campaign.scheduler import epoch_seconds
from biprop.campaign.store import Store
from biprop.contract import Contract
from biprop.errors import UsageError
from biprop.provenance import source_digest

__all__ = ["Plan", "run_campaign"]

# What a stop may take in all, and when whatever still runs is killed.
SECONDS_TO_STOP = 7.0
_SECONDS_A_LOOK = 0.25


@attrs.frozen(kw_only=True)
class Plan:
    """What a campaign is to do.

    Attributes:
        cells: All that it goes through.
        store: Folder of the store.
        budget: Seconds.
        devices: `cpu`, or CUDA devices.
        workers: Processes.
        contract: What judges.
        open_hands: Opens what searches in each process.
        seed: Of all searches; None: another one each time.
        shard: As `1/4`.
        options: As they were given, in words.
        timeout: Seconds after which a launch counts as hung.
        max_examples: Of each epoch; None: as many as its time allows.
        seconds_an_epoch: None: by the budget.
        seconds_until_hung: After which a process of this machine counts as hung that says nothing;
            None: by the timeout.
    """

    cells: tuple[Cell, ...]
    store: Path
    budget: float
    devices: tuple[str, ...]
    workers: int
    contract: Contract
    open_hands: OpenHands
    seed: int | None = None
    shard: str = "1/1"
    options: dict[str, str] = attrs.field(factory=dict)
    timeout: float = 60.0
    max_examples: int | None = None
    seconds_an_epoch: float | None = None
    seconds_until_hung: float | None = None


def run_campaign(
    plan: Plan,
    *,
    tell: Callable[[Event], None],
    is_stopped: Callable[[], bool] = lambda: False,
    open_crew: Callable[[Settings], Crew] | None = None,
) -> CampaignRecord:
    """Run a campaign, and return its record.

    Args:
        plan: What it is to do.
        tell: Gets events.
        is_stopped: Asked now and then whether to stop before the budget is spent.
        open_crew: Starts its processes; None: on this machine.

    Raises:
        BipropError: No process starts, or the store cannot be used.
    """
    if not plan.cells:
        raise UsageError("A campaign needs a cell: name an operator or a target.")
    store = Store.open(plan.store, create=True)
    record = _record(plan)
    settings = _settings(plan, store, record)
    with _told(store):
        parent = _parent(plan, store, record, tell)
        parent.begin(recover(store, campaign=record.id))
        crew = _local(settings, plan) if open_crew is None else open_crew(settings)
        reason = "failed"
        try:
            reason = _go(parent, crew, is_stopped)
            _stop(parent, crew)
        except KeyboardInterrupt:
            # A second Ctrl-C: what still runs is recorded as stopped.
            reason = "interrupted"
        finally:
            crew.kill()
            record = parent.end(reason)
    return record


def _parent(
    plan: Plan, store: Store, record: CampaignRecord, tell: Callable[[Event], None]
) -> Parent:
    """Say on disk that the campaign runs, and return its parent."""
    ledger = store.ledger()
    check_beginnings(store.causes(), ledger.known)
    store.write_campaign(record)
    # Before anything is taken up: whoever sees the claim must see that this campaign runs.
    store.write_heartbeat(
        Heartbeat(format=FORMAT, campaign=record.id, place=record.place, at=time.time())
    )
    store.sweep()
    return Parent(
        store=store,
        record=record,
        ledger=ledger.known,
        cells=plan.cells,
        deadline=time.monotonic() + plan.budget,
        seconds_an_epoch=plan.seconds_an_epoch
        or epoch_seconds(budget=plan.budget, workers=plan.workers, cells=len(plan.cells)),
        tell=tell,
    )


@contextmanager
def _told(store: Store) -> Iterator[None]:
    """Say in a sentence that the store cannot be used; a full disk alone is waited for."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"The store {str(store.path)!r} cannot be used: {error.strerror or error}; what is in "
            "it is kept, and the next start goes on."
        ) from error


def _record(plan: Plan) -> CampaignRecord:
    place = this_process()
    return CampaignRecord(
        format=FORMAT,
        id=_id(place.pid),
        place=place,
        began=time.time(),
        options=dict(plan.options),
        seed=secrets.randbits(32) if plan.seed is None else plan.seed,
        shard=plan.shard,
        workers=plan.workers,
        devices=plan.devices,
        source_digest=source_digest(),
        cells=tuple(cell.info for cell in plan.cells),
    )


def _settings(plan: Plan, store: Store, record: CampaignRecord) -> Settings:
    return Settings(
        campaign=record.id,
        parent=record.place,
        store=store.path,
        contract=plan.contract,
        open_hands=plan.open_hands,
        timeout=plan.timeout,
        max_examples=plan.max_examples,
    )


def _go(parent: Parent, crew: Crew, is_stopped: Callable[[], bool]) -> str:
    """Hand out tasks until the budget is spent; return why it ended."""
    try:
        while parent.seconds_left() > 0:
            if is_stopped():
                return "interrupted"
            parent.take_up(crew)
            for worker in crew.free():
                task = parent.next_task(worker)
                if task is not None:
                    crew.give(worker, task)
            if parent.has_nothing_left() and crew.is_idle():
                return "nothing left"
            for event in crew.wait(min(_SECONDS_A_LOOK, max(0.0, parent.seconds_left()))):
                parent.hear(event)
            parent.look()
    except KeyboardInterrupt:
        return "interrupted"
    return "budget"


def _stop(parent: Parent, crew: Crew) -> None:
    """Have all processes end what they do and record it."""
    parent.stopping()
    crew.ask_to_stop()
    deadline = time.monotonic() + SECONDS_TO_STOP
    while not crew.is_idle() and time.monotonic() < deadline:
        for event in crew.wait(_SECONDS_A_LOOK):
            parent.hear(event)


def _local(settings: Settings, plan: Plan) -> Crew:
    return LocalCrew(
        settings,
        devices=plan.devices,
        workers=plan.workers,
        seconds_until_hung=plan.seconds_until_hung,
    )


def _id(pid: int) -> str:
    """Return an id that no other campaign has, sorted by time."""
    when = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return f"{when}-{pid}-{secrets.token_hex(3)}"
