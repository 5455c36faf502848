"""A Ray cluster of two nodes on this machine, and campaigns on it, each in a process of its own.

No test stands here: Ray stays out of the process of the tests. Run as a script it is one of
`nodes`, which prints the address of a cluster and kills its second node when it is told to, and
`campaign ADDRESS STORE`, whose searches are pretended (`campaign_fakes`), which hangs in its next
launch while `held.txt` lies beside the store, by `hangs-WORKER.txt`, and which ends by SIGTERM.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import attrs
from tests.unit.campaign_fakes import Fake, plan
from tests.unit.sample_fixtures import LINEAR, PROVENANCE, sample

from biprop.campaign.log import Log
from biprop.campaign.messages import EpochTask, Hands, Settings, Shown
from biprop.campaign.ray_crew import RayCluster, RayCrew
from biprop.campaign.run import run_campaign
from biprop.case import canonical_json, case_to_data
from biprop.cli.fuzz import stops

__all__ = ["SECONDS_OF_LEASE", "Nodes", "open_held", "started_campaign", "started_nodes"]

ROOT = Path(__file__).resolve().parents[2]
# Shorter than in campaigns, and longer than Ray needs to end the actors of a node that is killed.
SECONDS_OF_LEASE = 2.0
_KILL = "kill\n"


@attrs.frozen
class Nodes:
    """Two nodes of one CPU each, and of one GPU for Ray, which only counts them.

    Attributes:
        address: Of the cluster.
    """

    address: str
    _process: "subprocess.Popen[str]"

    def kill_second(self) -> None:
        """Kill the second node with all that runs on it, as a loss of power does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_KILL)
        self._process.stdin.flush()
        assert self._process.stdout.readline() == _KILL


@contextmanager
def started_nodes(folder: Path) -> Iterator[Nodes]:
    """Start two nodes; what Ray writes goes below `folder`."""
    with (folder / "nodes.txt").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.ray_nodes", "nodes"],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, (folder / "nodes.txt").read_text()
        yield Nodes(address, process)
    finally:
        # The end of its standard input is what it ends by.
        process.communicate(timeout=60)


def started_campaign(address: str, store: Path) -> "subprocess.Popen[str]":
    """Start a campaign on a cluster, one process a GPU."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.unit.ray_nodes", "campaign", address, str(store)],
        cwd=ROOT,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _environment() -> dict[str, str]:
    """Return an environment in which nodes find what the tests find, and report to nobody."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}


class _Held(Fake):
    """Hands that hang in a launch while a file lies beside the store."""

    def search(self, task: EpochTask, log: Log) -> Shown:
        """Pretend to search, once nothing holds it."""
        folder = log.store.path.parent
        held = folder / "held.txt"
        if held.exists():
            text = canonical_json(case_to_data(sample().case))
            with log.launching(text, kind="kernel", reference=LINEAR, provenance=PROVENANCE):
                seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
                (folder / f"hangs-{log.begun.worker}.txt").write_text(seen)
                while held.exists():
                    time.sleep(0.01)
        return super().search(task, log)


def open_held(settings: Settings, device: str) -> Hands:
    """Return hands that can be held."""
    del device
    return _Held(settings)


def _nodes() -> None:
    cluster = import_module("ray.cluster_utils").Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "num_gpus": 1, "include_dashboard": False},
    )
    second = cluster.add_node(num_cpus=1, num_gpus=1)
    print(cluster.address, flush=True)  # noqa: T201  # for whoever started this script
    for line in sys.stdin:
        cluster.remove_node(second, allow_graceful=False)
        print(line, end="", flush=True)  # noqa: T201  # likewise
    cluster.shutdown()


def _campaign(address: str, store: Path) -> None:
    with stops() as is_stopped, RayCluster.connected(address) as cluster:
        share = cluster.share("cuda", workers=None, workers_per_gpu=None)
        # Imported by name: what a node unpickles is no part of a script.
        held = import_module("tests.unit.ray_nodes").open_held
        run_campaign(
            attrs.evolve(plan(store, workers=share.workers, open_hands=held), seed=None),
            tell=lambda _: None,
            is_stopped=is_stopped,
            open_crew=lambda settings: RayCrew(
                settings, cluster=cluster, share=share, seconds_of_lease=SECONDS_OF_LEASE
            ),
        )


if __name__ == "__main__":
    if sys.argv[1] == "nodes":
        _nodes()
    else:
        _campaign(sys.argv[2], Path(sys.argv[3]))
