"""A post: one process of a campaign on a node of a cluster, and whoever looks after it there.

What `biprop.campaign.ray_crew` makes an actor of; nothing of Ray is needed here. The process is
that of a `LocalCrew`, so that signals, ends and replacements are as on one machine, and the post
stays free to be asked. It is held by a lease: where nobody has listened for so long, its process is
ended. So whoever has not been answered for longer knows that nothing writes under its name any
more, whatever became of the node and of the network.
"""

import os
import platform
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

import attrs

from biprop.campaign.crew import Answered, Died, LocalCrew
from biprop.campaign.messages import Settings, Task
from biprop.campaign.store import Store
from biprop.provenance import source_digest

__all__ = ["SECONDS_OF_LEASE", "Began", "Orders", "Post"]

SECONDS_OF_LEASE = 20.0
# A call that waits for answers comes back after so long, which also says that somebody listens.
_SECONDS_A_CALL = 1.0
_SECONDS_A_LOOK = 0.2
# A shared folder may show a new file late.
_SECONDS_TO_SEE = 5.0


@attrs.frozen(kw_only=True)
class Orders:
    """What a post is told when it is set up.

    Attributes:
        settings: Of the campaign.
        worker: Number of its process.
        device: Where that runs kernels, as it is called on its node.
        folder: Where the campaign was started, which paths of targets start from.
        variables: Of the environment there that kernels read.
        source_digest: Of biprop there.
        seconds_until_hung: After which a process without a word counts as hung; None: by the
            timeout.
        seconds_of_lease: After which the process ends where nobody listens.
    """

    settings: Settings
    worker: int
    device: str
    folder: Path
    variables: Mapping[str, str] = attrs.field(factory=dict)
    source_digest: str
    seconds_until_hung: float | None = None
    seconds_of_lease: float = SECONDS_OF_LEASE


@attrs.frozen(kw_only=True)
class Began:
    """A post was set up.

    Attributes:
        host: Its machine.
        trouble: Why it cannot work there, one sentence; empty where it can.
    """

    host: str
    trouble: str = ""


class Post:
    """One process, and the lease that it is held by; calls may come at the same time."""

    def __init__(self, orders: Orders) -> None:
        """Do nothing yet."""
        self._orders = orders
        self._crew: LocalCrew | None = None
        # Held while the process is looked at or told something, never while answers are waited for.
        self._lock = threading.Lock()
        self._listened_at = time.monotonic()

    def begin(self) -> Began:
        """Start the process, unless this node is not fit for the campaign."""
        orders = self._orders
        trouble = self._trouble()
        if trouble:
            return Began(host=platform.node(), trouble=trouble)
        os.environ.update(orders.variables)
        # Registered operators need none of its files; a target that does says which one is missing.
        with suppress(OSError):
            os.chdir(orders.folder)
        # A process that is spawned would run the main script of this one first, which is Ray's.
        vars(sys.modules["__main__"]).pop("__file__", None)
        with self._lock:
            self._crew = LocalCrew(
                orders.settings,
                devices=(orders.device,),
                workers=1,
                first=orders.worker,
                seconds_until_hung=orders.seconds_until_hung,
            )
        self._listened_at = time.monotonic()
        threading.Thread(target=self._hold, daemon=True).start()
        return Began(host=platform.node())

    def hear(self) -> tuple[Answered | Died, ...]:
        """Return what the process says, once it does; nothing where it says nothing for a while."""
        self._listened_at = time.monotonic()
        with self._lock:
            crew = self._running()
            sources = crew.sources()
        wait(sources, timeout=_SECONDS_A_CALL)
        with self._lock:
            return tuple(crew.wait(0.0))

    def give(self, task: Task) -> None:
        """Give the process a task."""
        with self._lock:
            self._running().give(self._orders.worker, task)

    def ask_to_stop(self) -> None:
        """Have the process end its task early; answers are still to be listened to."""
        with self._lock:
            self._running().ask_to_stop()

    def end(self) -> None:
        """End the process at once, and wait until it is gone."""
        with self._lock:
            self._running().kill()

    def _running(self) -> LocalCrew:
        assert self._crew is not None, "a post begins before it is told anything"
        return self._crew

    def _trouble(self) -> str:
        """Return why this node is not fit, one sentence; empty where it is."""
        settings, host = self._orders.settings, platform.node()
        store = Store(settings.store)
        deadline = time.monotonic() + _SECONDS_TO_SEE
        # Its record is written before any process is started.
        while store.campaign(settings.campaign) is None:
            if time.monotonic() >= deadline:
                return (
                    f"The node {host!r} does not see the store {str(store.path)!r}: give --store a "
                    "folder that all nodes share."
                )
            time.sleep(_SECONDS_A_LOOK)
        if source_digest() != self._orders.source_digest:
            return (
                f"The node {host!r} has other sources of biprop than this one: install the same on "
                "all nodes."
            )
        return ""

    def _hold(self) -> None:
        """End the process, and the post with it, once nobody has listened for too long."""
        while time.monotonic() - self._listened_at < self._orders.seconds_of_lease:
            time.sleep(_SECONDS_A_LOOK)
        with self._lock:
            self._running().kill()
        os._exit(1)
