"""The benchmark of two processes of a campaign against one."""

from typing import Any

import pytest
from ci.benchmarks import campaign_scaling
from ci.benchmarks.campaign_scaling import main, table

from biprop.errors import BipropError


def status(examples: float) -> dict[str, Any]:
    """Return what a campaign of ten seconds says at its end."""
    return {
        "examples": int(examples * 10),
        "seconds": 10.0,
        "examples_a_second": examples,
        "compared_a_second": 8 * examples,
    }


def test_rates_and_their_ratio_are_told() -> None:
    """In examples and in sequences; where one did not end there is none."""

    lines = list(table({"processes": [status(20.0), status(43.0)], "Ray nodes": [{}, status(9.0)]}))
    assert lines == [
        "1 processes: 200 examples in 10 s, 20.0 a second, 160 sequences a second",
        "2 processes: 430 examples in 10 s, 43.0 a second, 344 sequences a second",
        "processes, two to one: 2.15 in examples, 2.15 in sequences",
        "1 Ray nodes: did not end",
        "2 Ray nodes: 90 examples in 10 s, 9.0 a second, 72 sequences a second",
    ]


def test_nothing_is_run_with_a_budget_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence is that of `biprop fuzz`."""

    monkeypatch.setattr(campaign_scaling, "_status", lambda _: pytest.fail("it ran"))
    with pytest.raises(BipropError, match="soon"):
        main("soon")
