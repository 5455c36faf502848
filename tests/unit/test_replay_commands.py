"""The commands that are printed to run a fixture again."""

import shlex

import attrs
import pytest
from tests.unit.sample_fixtures import sample

from biprop.cli.replay import replay
from biprop.reports.words import _SECONDS_A_REPLAY_WAITS, replay_command


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("The target hung for 2 s in the canonical run.", ["--timeout", "2"]),
        ("The target hung for 0.5 s.", ["--timeout", "0.5"]),
        ("The target hung for 60 s.", []),
        ("The target hung for 180 s.", []),
        ("RuntimeError: it hung for ; rm s", []),
        ("", []),
    ],
)
def test_a_hang_is_waited_for_as_long_as_it_was(message: str, words: list[str]) -> None:
    """Else the command that is printed would be silent for minutes."""

    fixture = sample()
    hung = attrs.evolve(fixture, expect=attrs.evolve(fixture.expect, message=message))
    told = shlex.split(replay_command(hung, "-"))
    assert told == ["biprop", "replay", "-", "--allow-target", fixture.target, *words]


def test_a_replay_waits_as_long_as_it_is_said_to() -> None:
    """Where it is told nothing."""

    (timeout,) = (option for option in replay.params if option.name == "timeout")
    assert timeout.default == _SECONDS_A_REPLAY_WAITS
