"""The arguments that a Python caller gives: read, or refused in one sentence.

Callers without types may give anything, so every value is looked at before a process is started.
"""

import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, TypeGuard

from biprop.contract import Contract, load_contract
from biprop.errors import DeviceError, UsageError
from biprop.machine import is_device

__all__ = [
    "SEED_MAX",
    "check_count",
    "check_device_name",
    "check_names",
    "check_seconds",
    "check_seed",
    "check_word",
    "contract_of",
    "names_of",
    "store_of",
]

SEED_MAX = 2**32 - 1
_SHOWN_MAX = 60


def names_of(values: Any) -> Any:  # noqa: ANN401  # its callers say what they take
    """Return a sequence as a tuple; what is none stays, for `check_names` to refuse by its name."""
    is_sequence = isinstance(values, Iterable) and not isinstance(values, (str, bytes))
    return tuple(values) if is_sequence else values


def check_names(record: object, *fields: str) -> None:
    """Refuse fields that are one text, which is a sequence of letters, or no sequence at all."""
    for name in fields:
        value = getattr(record, name)
        if not isinstance(value, tuple):
            example = f", ({_shown(value)},)" if isinstance(value, str) else ""
            raise UsageError(f"{name} is {_shown(value)}: give a sequence of names{example}.")


def contract_of(contract: object) -> Contract:
    """Return a contract, that of a path, or biprop's own for None.

    Raises:
        ContractError: The file holds no contract.
        UsageError: It is none of the three.
    """
    if isinstance(contract, Contract):
        return contract
    if contract is None or isinstance(contract, (str, Path)):
        return load_contract(contract)
    raise UsageError(f"contract is {_shown(contract)}: give a Contract, the path of one, or None.")


def check_word(name: str, value: object, known: Collection[str]) -> None:
    """Refuse any value but one of a few words."""
    if not isinstance(value, str) or value not in known:
        raise UsageError(f"{name} is {_shown(value)}: use one of {', '.join(known)}.")


def check_count(name: str, value: object) -> None:
    """Refuse any value but None and a whole number of 1 or more."""
    if value is not None and not (_is_whole(value) and value >= 1):
        raise UsageError(f"{name}={_shown(value)}: give 1 or more.")


def check_seed(value: object) -> None:
    """Refuse any value but a whole number that a seed can be."""
    if not (_is_whole(value) and 0 <= value <= SEED_MAX):
        raise UsageError(f"seed={_shown(value)}: give a whole number from 0 to {SEED_MAX}.")


def check_seconds(name: str, value: object) -> None:
    """Refuse any value but None and a number above 0."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise UsageError(f"{name}={_shown(value)}: give more than 0.")


def check_device_name(value: object) -> None:
    """Refuse what has not the form of a device."""
    if not isinstance(value, str) or not is_device(value):
        raise DeviceError(f"Device {_shown(value)} is unknown: use cpu, cuda or cuda:N.")


def store_of(store: object) -> Path | None:
    """Return the folder for what is found, or None; it is made by the first finding.

    Raises:
        UsageError: It is no path, or nothing can be written there.
    """
    if store is None:
        return None
    if not isinstance(store, (str, Path)) or not str(store):
        raise UsageError(f"store is {_shown(store)}: give the path of a folder, or None.")
    folder = Path(store).absolute()
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        # Only a trial tells: rights, quotas and read-only mounts have no common question.
        with tempfile.TemporaryFile(dir=place):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"store {_shown(str(store))} cannot be written: {reason}; give a folder that can."
        ) from error
    return folder


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    """Return a value for a message: one line, short."""
    text = ascii(value) if isinstance(value, (str, bytes, int, float)) else ""
    if not text:
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."
