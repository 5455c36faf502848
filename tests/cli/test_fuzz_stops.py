"""Ctrl-C once, twice and more: a campaign ends soon, at once, and still with all that it has."""

import signal

import pytest

from biprop.cli.fuzz import stops


def test_the_first_asks_the_second_breaks_off_and_others_change_nothing() -> None:
    """Whoever is impatient must not break off the end itself, which writes what is left."""

    with stops() as is_stopped:
        assert not is_stopped()
        signal.raise_signal(signal.SIGINT)
        assert is_stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_request_of_the_system_never_breaks_off() -> None:
    """Slurm may send SIGTERM more than once."""

    with stops() as is_stopped:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert is_stopped()
