"""A post of a campaign: what it refuses, and that its process does not outlive its lease."""

import time
from multiprocessing import get_context
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import campaign, cells
from tests.unit.ray_nodes import open_held

from biprop.campaign.crew import Answered
from biprop.campaign.messages import EpochTask, Settings
from biprop.campaign.places import is_running, this_process
from biprop.campaign.post import Orders, Post
from biprop.campaign.store import Store
from biprop.contract import load_contract
from biprop.provenance import source_digest

TASK = EpochTask(number=1, cell=cells()[0], seed=1, seconds=1.0)


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """Return the orders of a post whose campaign is in the store."""
    store = Store.open(tmp_path / "store", create=True)
    store.write_campaign(campaign())
    settings = Settings(
        campaign="one",
        parent=this_process(),
        store=store.path,
        contract=load_contract(),
        open_hands=open_held,
    )
    return Orders(
        settings=settings,
        worker=3,
        device="cpu",
        folder=Path.cwd(),
        source_digest=source_digest(),
    )


def forsaken(orders: Orders) -> None:
    """Be a post that nobody listens to any more, while its process hangs in a launch."""
    folder = orders.settings.store.parent
    post = Post(orders)
    assert not post.begin().trouble
    while not any(isinstance(event, Answered) for event in post.hear()):
        pass
    post.give(TASK)
    while not (folder / "hangs-3.txt").exists():
        post.hear()
    time.sleep(3600)


def test_a_node_that_does_not_see_the_store_says_so(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the same name that is not the shared one is told by what it lacks."""

    monkeypatch.setattr("biprop.campaign.post._SECONDS_TO_SEE", 0.1)
    other = Store.open(tmp_path / "other", create=True)
    settings = attrs.evolve(orders.settings, store=other.path)
    trouble = Post(attrs.evolve(orders, settings=settings)).begin().trouble
    assert trouble.startswith("The node ")
    assert f"does not see the store {str(other.path)!r}: give --store a folder" in trouble


def test_a_node_with_another_biprop_says_so(orders: Orders) -> None:
    """What it finds could not be compared with what the others find."""

    trouble = Post(attrs.evolve(orders, source_digest="0" * 16)).begin().trouble
    assert "has other sources of biprop" in trouble


def test_a_process_ends_with_its_lease(orders: Orders, tmp_path: Path) -> None:
    """A post that nobody listens to ends its process, then itself."""

    (tmp_path / "held.txt").touch()
    short = attrs.evolve(orders, seconds_of_lease=2.0)
    process = get_context("spawn").Process(target=forsaken, args=(short,))
    process.start()
    try:
        process.join(30)
        assert process.exitcode == 1
    finally:
        process.kill()
        process.join()
    ((_, begun),) = Store(orders.settings.store).begun()
    assert begun.worker == 3
    assert not is_running(begun.place)
