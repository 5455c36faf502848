"""A crew of actors on a Ray cluster: one a place, each with one process on some node of it.

Ray decides on which node a place is, waits until there is room, and says when an actor, or its
node, is gone. That is all it is asked for: what an actor is to do waits in no queue of Ray, and
what it has done lies in the store, a folder that all nodes share. What an actor does says
`biprop.campaign.post`.

An actor that is gone is not restarted by Ray but replaced by another one, once its lease is over
and what it left behind is taken up: until then a process that Ray has lost sight of may still
write.
"""

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

from biprop.campaign.crew import Answered, Died
from biprop.campaign.messages import (
    Done,
    Ready,
    Settings,
    Task,
    Waiting,
)
from biprop.campaign.post import SECONDS_OF_LEASE, Began, Orders, Post
from biprop.errors import DeviceError, UsageError
from biprop.machine import WORKERS_PER_DEVICE
from biprop.provenance import source_digest, variables

__all__ = ["RayCluster", "RayCrew", "Share"]

# Calls of one post at a time: one listens, one tells.
_CALLS_MAX = 4
# Ray counts in ten-thousandths of a device.
_PARTS = 10_000
_SECONDS_TO_END = 2.0
_SECONDS_TO_REACH = 10.0
_SECONDS_FOR_ROOM = 10.0
_STARTS_MAX = 3
_SECONDS_A_PAUSE = 10.0
_SECONDS_A_PAUSE_MAX = 600.0


@attrs.frozen(kw_only=True)
class Share:
    """How a campaign is spread over a cluster.

    Attributes:
        device: Of each process, as it is called on its node.
        workers: Processes.
        cpus: Of each process, as Ray counts them.
        gpus: Likewise.
    """

    device: str
    workers: int
    cpus: float = 0.0
    gpus: float = 0.0


class RayCluster:
    """A connection to a cluster.

    Attributes:
        ray: The package; its types are not read, as type checkers would need seconds for them.
    """

    def __init__(self, ray: Any) -> None:  # noqa: ANN401  # see above
        """Stand for the cluster that `ray` is connected to."""
        self.ray = ray

    @classmethod
    @contextmanager
    def connected(cls, address: str) -> "Iterator[RayCluster]":
        """Connect to a cluster, and let go of it in the end.

        Args:
            address: `auto`, `local` for one that is started here, or HOST:PORT.

        Raises:
            UsageError: There is no such cluster.
        """
        _check_listening(address)
        # Both are read when it is imported. A cluster that others started keeps to their choice.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Words of nodes, which it would print on standard output: they stand in its logs.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        ray = import_module("ray")
        options = {"include_dashboard": False} if address == "local" else {}
        with _own_signals():
            try:
                ray.init(address=address, logging_level="ERROR", log_to_driver=False, **options)
            except (ConnectionError, OSError, RuntimeError, ValueError) as error:
                raise _unreachable(address, str(error)) from error
        try:
            yield cls(ray)
        finally:
            ray.shutdown()

    def share(self, device: str, *, workers: int | None, workers_per_gpu: int | None) -> Share:
        """Return how a campaign is spread.

        Args:
            device: `cpu` or `cuda`.
            workers: Processes; None: as many as suit.
            workers_per_gpu: Processes for each GPU; None: as many as suit.

        Raises:
            DeviceError: The cluster has no such device.
        """
        found = self.ray.cluster_resources()
        cpus, gpus = int(found.get("CPU", 0)), int(found.get("GPU", 0))
        if device == "cpu":
            if not cpus:
                raise DeviceError("The cluster has no CPU for Ray: start a node with --num-cpus.")
            return Share(device="cpu", workers=workers or cpus, cpus=1.0)
        if not gpus:
            raise DeviceError("The cluster has no GPU: start a node with --num-gpus, or use cpu.")
        each = min(WORKERS_PER_DEVICE, max(1, cpus // gpus)) if workers is None else 0
        each = workers_per_gpu or each or math.ceil((workers or gpus) / gpus)
        return Share(
            # Ray shows each actor its own device, which is the first one there.
            device="cuda:0",
            workers=workers or each * gpus,
            gpus=math.floor(_PARTS / each) / _PARTS,
        )


class RayCrew:
    """A crew of actors; see `biprop.campaign.crew.Crew`."""

    def __init__(
        self,
        settings: Settings,
        *,
        cluster: RayCluster,
        share: Share,
        seconds_until_hung: float | None = None,
        seconds_of_lease: float = SECONDS_OF_LEASE,
    ) -> None:
        """Ask Ray for the actors.

        Args:
            settings: Of the campaign.
            cluster: Where they run.
            share: How many there are, and what each gets.
            seconds_until_hung: Without a word of a process that has a task; None: by the timeout.
            seconds_of_lease: After which nothing writes any more under the name of an actor that
                is not listened to.
        """
        self._ray = cluster.ray
        self._seconds_of_lease = seconds_of_lease
        digest, folder = source_digest(), Path.cwd()
        self._places = [
            _Place(
                cluster.ray,
                share,
                Orders(
                    settings=settings,
                    worker=worker,
                    device=share.device,
                    folder=folder,
                    variables=variables(),
                    source_digest=digest,
                    seconds_until_hung=seconds_until_hung,
                    seconds_of_lease=seconds_of_lease,
                ),
            )
            for worker in range(share.workers)
        ]

    def free(self) -> tuple[int, ...]:
        """Return the numbers of processes that wait for a task."""
        return tuple(
            place.worker for place in self._places if place.is_ready and place.task is None
        )

    def give(self, worker: int, task: Task) -> None:
        """Give a process a task."""
        self._places[worker].give(task)

    def wait(self, seconds: float) -> Iterator[Answered | Died]:
        """Yield what processes say, once one does or time is over.

        Raises:
            UsageError: A node cannot work for this campaign.
            DeviceError: No process starts.
        """
        now = time.monotonic()
        for place in self._places:
            if place.lost_words and now >= place.lost_at + self._seconds_of_lease:
                yield self._died(place, place.lost_words)
            elif place.starts_at <= now:
                place.start()
            elif place.waits_for_room(now):
                yield Answered(worker=place.worker, answer=Waiting(reason="Ray has no room yet"))
        calls = {call: place for place in self._places for call in place.calls()}
        if not calls:
            time.sleep(seconds)
            return
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=seconds)
        if ready:
            # Whatever else is there by now.
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        for call in ready:
            yield from self._heard(calls[call], call)

    def renew(self, worker: int) -> None:
        """Ask Ray for another actor in the place of one that is gone."""
        self._places[worker].renew()

    def ask_to_stop(self) -> None:
        """Have every process end its task early."""
        for place in self._places:
            place.ask_to_stop()

    def is_idle(self) -> bool:
        """Say whether no process has a task."""
        return all(place.task is None for place in self._places)

    def kill(self) -> None:
        """End all processes at once."""
        with suppress(self._ray.exceptions.RayError):
            ends = [place.actor.end.remote() for place in self._places if place.host]
            if ends:
                self._ray.wait(ends, num_returns=len(ends), timeout=_SECONDS_TO_END)
        for place in self._places:
            place.end()

    def _heard(self, place: "_Place", call: object) -> Iterator[Answered | Died]:
        if call not in place.calls():
            # Another call has shown in the meantime that the actor is gone.
            return
        try:
            found = self._ray.get(call)
        except self._ray.exceptions.RayError:
            place.lose()
            return
        if call == place.giving:
            place.giving = None
            return
        if isinstance(found, Began):
            place.host = found.host
            if found.trouble:
                if place.starts == 1:
                    raise UsageError(found.trouble)
                yield self._died(place, f"cannot begin: {found.trouble.rstrip('.')}")
                return
            found = ()
        for event in found:
            if isinstance(event, Died):
                yield self._died(place, event.words)
                return
            place.note(event)
            yield event
        place.listen()

    def _died(self, place: "_Place", words: str) -> Died:
        task, was_ready = place.task, place.is_ready
        place.end()
        if not was_ready:
            place.failed_starts += 1
            if place.failed_starts >= _STARTS_MAX and not any(
                other.is_ready for other in self._places
            ):
                raise DeviceError(
                    f"No process of the campaign starts: the last one {words}. Ray's logs say why."
                )
        return Died(worker=place.worker, words=words, task=task)


class _Place:
    """One actor after the other, and what the present one has to do."""

    def __init__(self, ray: Any, share: Share, orders: Orders) -> None:  # noqa: ANN401  # as above
        self.worker = orders.worker
        self._ray = ray
        self._orders = orders
        self._actors = ray.remote(Post).options(
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            max_concurrency=_CALLS_MAX,
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        self.starts = self.failed_starts = 0
        self._forget()
        self.start()

    def _forget(self) -> None:
        self.call: Any = None
        self.giving: Any = None
        self.task: Task | None = None
        self.is_ready = False
        self.host = ""
        self.lost_at, self.lost_words = 0.0, ""
        self.starts_at = self._room_at = math.inf

    def start(self) -> None:
        self.starts += 1
        self.starts_at = math.inf
        self._room_at = time.monotonic() + _SECONDS_FOR_ROOM
        self.actor = self._actors.remote(self._orders)
        self.call = self.actor.begin.remote()

    def calls(self) -> list[Any]:
        """Return what the actor is yet to answer."""
        return [call for call in (self.call, self.giving) if call is not None]

    def listen(self) -> None:
        self.call = self.actor.hear.remote()

    def note(self, event: Answered) -> None:
        """Keep what an answer says of the process."""
        if isinstance(event.answer, Ready):
            self.is_ready, self.failed_starts = True, 0
        elif isinstance(event.answer, Done):
            self.task = None

    def give(self, task: Task) -> None:
        self.task = task
        self.giving = self.actor.give.remote(task)

    def ask_to_stop(self) -> None:
        if self.host:
            self.actor.ask_to_stop.remote()

    def waits_for_room(self, now: float) -> bool:
        """Say, once, that Ray has not found a node yet."""
        if self.call is None or self.host or now < self._room_at:
            return False
        self._room_at = math.inf
        return True

    def lose(self) -> None:
        """Have no actor any more; its process may live for as long as its lease."""
        self.call = self.giving = None
        self.lost_at = time.monotonic()
        self.lost_words = f"was lost with its actor on {self.host or 'a node of the cluster'}"
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self.actor)

    def renew(self) -> None:
        pause = 0.0
        if self.failed_starts:
            pause = min(_SECONDS_A_PAUSE * 2 ** (self.failed_starts - 1), _SECONDS_A_PAUSE_MAX)
        self.starts_at = time.monotonic() + pause

    def end(self) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self.actor)
        self._forget()


def _check_listening(address: str) -> None:
    """Refuse a HOST:PORT at which nobody listens, which Ray would try for minutes.

    Raises:
        UsageError: Nobody does.
    """
    host, colon, port = address.rpartition(":")
    if colon:
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), timeout=_SECONDS_TO_REACH
            ).close()
        except (OSError, OverflowError) as error:
            raise _unreachable(address, str(error)) from error


def _unreachable(address: str, words: str) -> UsageError:
    reason = " ".join(words.split()).rstrip(".")[:200]
    return UsageError(
        f"--ray {address!r} cannot be reached ({reason}): start a cluster with `ray start --head`, "
        "or use local."
    )


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep Ray from saying what SIGTERM does in this process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
