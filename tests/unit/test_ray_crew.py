"""Campaigns on two nodes of Ray, one of which is killed, and a crew whose Ray is pretended."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from tests.cli.targets import MINE
from tests.unit.campaign_fakes import cells, open_fake, plan, reconciled, run
from tests.unit.ray_nodes import Nodes, started_campaign, started_nodes

from biprop.campaign.crew import Answered, Died
from biprop.campaign.messages import EpochTask, Ready, Settings, Waiting
from biprop.campaign.places import is_running, this_process
from biprop.campaign.post import Began
from biprop.campaign.ray_crew import RayCluster, RayCrew, Share
from biprop.campaign.records import EpochRecord
from biprop.campaign.store import Store
from biprop.contract import load_contract
from biprop.errors import DeviceError, UsageError

TASK = EpochTask(number=1, cell=cells()[0], seed=1, seconds=1.0)
NORM = "x[T,H], weight[H] -> y[T,H]"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Yield two nodes."""
    with started_nodes(tmp_path_factory.mktemp("nodes")) as found:
        yield found


def wait_for(done: Callable[[], object], *, campaign: "subprocess.Popen[str]") -> None:
    """Wait until something is so, for as long as a campaign runs."""
    deadline = time.monotonic() + 60
    while not done():
        if time.monotonic() > deadline or campaign.poll() is not None:
            campaign.kill()
            raise AssertionError(campaign.communicate()[0])
        time.sleep(0.02)


def epochs_of(store: Path) -> list[EpochRecord]:
    """Return all epochs so far."""
    return list(Store.open(store).each_epoch()) if (store / "epochs").is_dir() else []


def busy_in(store: Path) -> list[int]:
    """Return the processes that do something right now."""
    return [begun.place.pid for _, begun in Store.open(store).begun() if is_running(begun.place)]


def test_a_node_and_then_the_campaign_are_killed_and_nothing_is_lost(
    nodes: Nodes, tmp_path: Path
) -> None:
    """The other node goes on, each epoch is recorded once, and the case that ran is judged again.

    No process outlives its campaign, and the next one takes up what is left.
    """

    store, held = tmp_path / "store", tmp_path / "held.txt"
    campaign = started_campaign(nodes.address, store)
    wait_for(lambda: {epoch.worker for epoch in epochs_of(store)} == {0, 1}, campaign=campaign)
    held.touch()
    wait_for(lambda: len(list(tmp_path.glob("hangs-*"))) == 2, campaign=campaign)
    # Each has its node's own device.
    assert {begun.device for _, begun in Store.open(store).begun()} == {"cuda:0"}
    assert [path.read_text() for path in tmp_path.glob("hangs-*")] == ["0", "0"]
    nodes.kill_second()
    wait_for(lambda: any(epoch.is_lost for epoch in epochs_of(store)), campaign=campaign)
    assert len(busy_in(store)) == 1
    held.unlink()
    causes = Store.open(store).causes
    wait_for(
        lambda: any(cause.is_lost and cause.settled for cause in causes().values()),
        campaign=campaign,
    )
    count = len(epochs_of(store))
    wait_for(lambda: len(epochs_of(store)) > count + 5, campaign=campaign)
    # Between two tasks it would be seen nowhere that a process still runs.
    for path in tmp_path.glob("hangs-*"):
        path.unlink()
    held.touch()
    wait_for(lambda: list(tmp_path.glob("hangs-*")), campaign=campaign)
    campaign.kill()
    assert campaign.communicate()[0] == ""
    # Ray ends its actors, and they their processes.
    deadline = time.monotonic() + 20
    while busy_in(store):
        assert time.monotonic() < deadline, "a process outlives its campaign"
        time.sleep(0.05)
    held.unlink()
    run(plan(store), epochs=2)
    snapshot = reconciled(store)
    assert [state.status for state in snapshot.campaigns] == ["lost", "ended"]
    # One of the node, one of the campaign.
    assert sum(cell.sum.lost for cell in snapshot.cells) == 2
    lost = [cause.record for cause in snapshot.causes if cause.record.is_lost]
    assert "unreproduced" in {cause.status for cause in lost}


def test_real_kernels_are_searched_by_actors(nodes: Nodes, tmp_path: Path) -> None:
    """The command finds what is wrong there, ends by SIGTERM, and prints its own words alone."""

    (tmp_path / "mine.py").write_text(MINE)
    entry = {"name": "wrong", "target": "mine.py:centre_wrongly", "signature": NORM}
    (tmp_path / "all.json").write_text(json.dumps([{**entry, "dtype": "float32"}]))
    words = ("--ray", nodes.address, "--workers", "1", "--target", "all.json", "--seed", "1")
    command = subprocess.Popen(
        [sys.executable, "-m", "biprop", "fuzz", *words, "--budget", "90s", "--store", "store"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: list(tmp_path.glob("store/causes/*.json")), campaign=command)
    asked = time.monotonic()
    command.send_signal(signal.SIGTERM)
    out, err = command.communicate(timeout=30)
    assert time.monotonic() - asked < 10
    assert command.returncode == 130, err
    assert "DRIFTS" in out
    assert "raylet" not in out + err
    snapshot = Store.open(tmp_path / "store").snapshot()
    assert {cause.record.verdict for cause in snapshot.causes} == {"DRIFTS"}
    assert snapshot.campaigns[0].record.options["ray"] == nodes.address


class PretendedError(Exception):
    """An actor is gone."""


@attrs.define(eq=False)
class Call:
    """A call of an actor, and what comes of it: nothing yet, where it is None."""

    name: str
    words: tuple[object, ...]
    result: object = None


class Actor:
    """An actor that answers what a test says."""

    def __init__(self) -> None:
        """Have no call yet."""
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> object:
        """Return what takes down a call of a method."""

        def remote(*words: object) -> Call:
            self.calls.append(Call(name, words))
            return self.calls[-1]

        return SimpleNamespace(remote=remote)

    def answer(self, result: object, *, name: str = "hear") -> None:
        """Answer the last call of a method."""
        next(call for call in reversed(self.calls) if call.name == name).result = result


class PretendedRay:
    """What a crew asks of Ray, with actors that a test moves."""

    exceptions = SimpleNamespace(RayError=PretendedError)

    def __init__(self, **resources: float) -> None:
        """Have a cluster of these resources."""
        self.actors: list[Actor] = []
        self.killed: list[Actor] = []
        self.cluster_resources = lambda: resources

    def remote(self, kind: type) -> object:
        """Return what makes actors."""
        assert kind.__name__ == "Post"
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._made))

    def _made(self, orders: object) -> Actor:
        del orders
        self.actors.append(Actor())
        return self.actors[-1]

    def wait(
        self, calls: list[Call], *, num_returns: int, timeout: float
    ) -> tuple[list[Call], list[Call]]:
        """Return the calls that have come back."""
        ready = [call for call in calls if call.result is not None][:num_returns]
        if not ready:
            time.sleep(timeout)
        return ready, [call for call in calls if call not in ready]

    def get(self, call: Call) -> object:
        """Return what came of a call."""
        if isinstance(call.result, PretendedError):
            raise call.result
        return call.result

    def kill(self, actor: Actor) -> None:
        """End an actor."""
        self.killed.append(actor)


def crew_on(ray: PretendedRay, folder: Path, *, workers: int = 1, lease: float = 0.1) -> RayCrew:
    """Return a crew of actors that a test moves."""
    settings = Settings(
        campaign="one",
        parent=this_process(),
        store=folder,
        contract=load_contract(),
        open_hands=open_fake,
    )
    share = Share(device="cpu", workers=workers, cpus=1.0)
    return RayCrew(settings, cluster=RayCluster(ray), share=share, seconds_of_lease=lease)


def heard(crew: RayCrew, seconds: float = 0.0) -> list[Any]:
    """Return what a crew hears in a time."""
    found, deadline = list(crew.wait(0.0)), time.monotonic() + seconds
    while time.monotonic() < deadline:
        found += crew.wait(0.01)
    return found


def ready(crew: RayCrew, ray: PretendedRay, *, number: int = 0) -> Actor:
    """Have the process of an actor be ready for tasks."""
    actor = ray.actors[number]
    actor.answer(Began(host="node"), name="begin")
    heard(crew)
    actor.answer((Answered(worker=number, answer=Ready()),))
    heard(crew)
    return actor


@pytest.mark.parametrize(
    ("device", "asked", "share"),
    [
        ("cpu", (None, None), Share(device="cpu", workers=32, cpus=1.0)),
        ("cpu", (3, None), Share(device="cpu", workers=3, cpus=1.0)),
        ("cuda", (None, None), Share(device="cuda:0", workers=32, gpus=0.125)),
        ("cuda", (None, 3), Share(device="cuda:0", workers=12, gpus=0.3333)),
        ("cuda", (None, 7), Share(device="cuda:0", workers=28, gpus=0.1428)),
        ("cuda", (2, None), Share(device="cuda:0", workers=2, gpus=1.0)),
        ("cuda", (9, None), Share(device="cuda:0", workers=9, gpus=0.3333)),
    ],
)
def test_processes_are_shared_out_by_device(
    device: str, asked: tuple[int | None, int | None], share: Share
) -> None:
    """No more of them on a GPU than are asked for, and their parts never exceed it."""

    cluster = RayCluster(PretendedRay(CPU=32.0, GPU=4.0))
    workers, workers_per_gpu = asked
    assert cluster.share(device, workers=workers, workers_per_gpu=workers_per_gpu) == share


def test_a_cluster_without_the_device_is_refused() -> None:
    """In a sentence that says how nodes get one."""

    with pytest.raises(DeviceError, match="no GPU"):
        RayCluster(PretendedRay(CPU=2.0)).share("cuda", workers=None, workers_per_gpu=None)
    with pytest.raises(DeviceError, match="no CPU"):
        RayCluster(PretendedRay()).share("cpu", workers=None, workers_per_gpu=None)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "127.0.0.1:99999"])
def test_an_address_at_which_nobody_listens_is_refused(address: str) -> None:
    """At once, where Ray would try for minutes."""

    with (
        pytest.raises(UsageError, match="cannot be reached"),
        RayCluster.connected(address),
    ):
        pass
    assert "ray" not in sys.modules


def test_a_node_that_is_not_fit_is_said_at_the_start(tmp_path: Path) -> None:
    """A campaign does not begin with half of its nodes."""

    ray = PretendedRay()
    crew = crew_on(ray, tmp_path)
    ray.actors[0].answer(Began(host="node", trouble="The node sees nothing."), name="begin")
    with pytest.raises(UsageError, match="sees nothing"):
        heard(crew)


def test_a_node_that_comes_later_and_is_not_fit_is_tried_again(tmp_path: Path) -> None:
    """The others go on meanwhile, and it is not asked at once."""

    ray = PretendedRay()
    crew = crew_on(ray, tmp_path, workers=2)
    ready(crew, ray, number=1)
    actor = ready(crew, ray)
    actor.answer((Died(worker=0, words="ended", task=None),))
    assert [type(event) for event in heard(crew)] == [Died]
    crew.renew(0)
    heard(crew)
    ray.actors[2].answer(Began(host="node", trouble="The node sees nothing."), name="begin")
    (died,) = heard(crew)
    assert died.words == "cannot begin: The node sees nothing"
    crew.renew(0)
    heard(crew)
    assert len(ray.actors) == 3
    assert crew.free() == (1,)


def test_processes_that_never_start_end_the_campaign(tmp_path: Path) -> None:
    """After three of them, where no other works."""

    ray = PretendedRay()
    crew = crew_on(ray, tmp_path, lease=0.0)

    def lost() -> list[Any]:
        ray.actors[-1].answer(PretendedError(), name="begin")
        heard(crew)
        return heard(crew)

    for _ in range(2):
        assert [type(event) for event in lost()] == [Died]
        crew.renew(0)
        crew._places[0].starts_at = 0.0
        heard(crew)
    with pytest.raises(DeviceError, match="was lost with its actor"):
        lost()


@pytest.mark.parametrize("name", ["hear", "give"])
def test_an_actor_that_is_gone_is_told_once_its_lease_is_over(tmp_path: Path, name: str) -> None:
    """Not before, as its process may still write; then with its task, and another is asked for."""

    ray = PretendedRay()
    crew = crew_on(ray, tmp_path, lease=0.3)
    actor = ready(crew, ray)
    crew.give(0, TASK)
    actor.answer(PretendedError(), name=name)
    heard(crew)
    assert ray.killed == [actor]
    assert not heard(crew, 0.15)
    assert not crew.is_idle()
    (died,) = heard(crew, 0.25)
    assert died == Died(worker=0, words="was lost with its actor on node", task=TASK)
    assert not heard(crew, 0.1)
    assert len(ray.actors) == 1
    crew.renew(0)
    heard(crew)
    assert len(ray.actors) == 2


def test_a_place_that_ray_has_no_room_for_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that whoever looks knows what it waits for."""

    monkeypatch.setattr("biprop.campaign.ray_crew._SECONDS_FOR_ROOM", 0.0)
    crew = crew_on(PretendedRay(), tmp_path)
    assert heard(crew, 0.1) == [Answered(worker=0, answer=Waiting(reason="Ray has no room yet"))]
