"""How much more two processes of a campaign do than one, on this machine and on Ray.

    PYTHONPATH=src python3 ci/benchmarks/campaign_scaling.py 2m --backends torch

Runs `biprop fuzz` with the options that are given four times, one after the other: with one process
and with two, then on a Ray cluster of one node and of two, a core each. Printed are examples and
compared sequences a second of each, and the ratios, which only an idle machine of two cores or
more shows. A longer time weighs less what starts. The exit status is 0 if all of them ran.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from biprop.cli.fuzz import parse_budget

__all__ = ["main", "table"]

_COUNTS = (1, 2)
# The same draws in all of them, whatever the options say.
_SEED = ("--seed", "5")


def main(budget: str, *options: str) -> int:
    """Run the campaigns, print a table, and return the exit status."""
    parse_budget(budget)
    words = ["--budget", budget, *options]
    rows: dict[str, list[dict[str, Any]]] = {
        "processes": [_status([*words, "--workers", str(count)]) for count in _COUNTS]
    }
    rows["Ray nodes"] = []
    for count in _COUNTS:
        with _cluster(count) as address:
            rows["Ray nodes"].append(_status([*words, "--ray", address]))
    print("\n".join(table(rows)))  # noqa: T201  # this is its output
    return 0 if all(status for found in rows.values() for status in found) else 1


def table(rows: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield a line for each campaign, and one for each pair.

    Args:
        rows: By what was counted, the last status of one and of two; empty where one has none.
    """
    for what, found in rows.items():
        for count, status in zip(_COUNTS, found, strict=True):
            told = (
                f"{status['examples']} examples in {status['seconds']:.0f} s, "
                f"{status['examples_a_second']:.1f} a second, "
                f"{status['compared_a_second']:.0f} sequences a second"
                if status
                else "did not end"
            )
            yield f"{count} {what}: {told}"
        one, two = found
        if one and two and one["examples_a_second"] and one["compared_a_second"]:
            examples = two["examples_a_second"] / one["examples_a_second"]
            compared = two["compared_a_second"] / one["compared_a_second"]
            yield f"{what}, two to one: {examples:.2f} in examples, {compared:.2f} in sequences"


@contextmanager
def _cluster(nodes: int) -> Iterator[str]:
    """Yield the address of a Ray cluster of so many nodes of one core, which are processes here."""
    cluster = import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()


def _status(words: list[str]) -> dict[str, Any]:
    """Run a campaign in a store of its own; return what its last event says, empty without one."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder, "events.jsonl")
        places = ["--store", str(Path(folder, "store")), "--events", str(events)]
        subprocess.run(
            [sys.executable, "-m", "biprop", "fuzz", *words, *_SEED, *places],
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        lines = events.read_text(encoding="utf-8").splitlines() if events.is_file() else []
    ended = [event for event in map(json.loads, lines) if event["event"] == "ended"]
    return dict(ended[-1]["status"]) if ended else {}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
