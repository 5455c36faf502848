"""The ledger of a store: what people know of, written by hand into `ledger.json`.

What is wrong with it is told in one sentence, with an example. Which causes an entry names is told
from their records; whether these still fail says `biprop.campaign.replays`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from biprop.campaign.records import (
    FORMAT,
    CauseRecord,
    Known,
    LedgerFile,
    owners_of,
    record_from_text,
)
from biprop.errors import FixtureError
from biprop.fixtures.store import BEGINNING_MIN, is_beginning

__all__ = ["EXAMPLE", "ambiguous_of", "check_beginnings", "entries_of", "entry_of", "read_ledger"]

_LINK = re.compile(r"https?://\S+", re.IGNORECASE)
EXAMPLE = (
    f'{{"format": "{FORMAT}", "known": '
    '[{"cause": "a1cf2e06", "link": "https://...", "reason": "Why it still fails."}]}'
)


def read_ledger(path: Path) -> LedgerFile:
    """Return the ledger of a file; an empty one where there is none.

    Raises:
        FixtureError: It cannot be read, or an entry lacks its link or its reason.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return LedgerFile(format=FORMAT)
    except OSError as error:
        raise FixtureError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise FixtureError(f"{path} cannot be used: it is no UTF-8; {_asked()}") from error
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FixtureError(f"{path} cannot be used: it is no JSON; {_asked()}") from error
    try:
        ledger = record_from_text(text, LedgerFile)
    except FixtureError as error:
        reason = str(error).rstrip(".")
        raise FixtureError(
            f"{path} cannot be used: {reason[:1].lower()}{reason[1:]}; {_asked()}"
        ) from error
    for entry in ledger.known:
        _check(entry, path)
    return ledger


def entry_of(record: CauseRecord, known: Sequence[Known]) -> Known | None:
    """Return the entry that names a cause: by its name, or the beginning of an id that it has.

    Ids are those of its fixture, of those before it was shrunk, and its digest.
    """
    for entry in known:
        if entry.cause == record.name or _begins(record, entry.cause):
            return entry
    return None


def entries_of(
    records: Mapping[str, CauseRecord], known: Sequence[Known], owners: Mapping[str, str]
) -> dict[str, Known]:
    """Return the entries by the digests of the causes that they name.

    An id of a cause that turned out to be another one names that one.

    Args:
        records: All causes.
        known: The entries.
        owners: Of the causes, as `owners_of` returns them.
    """
    found: dict[str, Known] = {}
    if known:
        for digest, record in records.items():
            entry = entry_of(record, known)
            if entry is not None:
                found.setdefault(owners[digest], entry)
    return found


def ambiguous_of(
    records: Mapping[str, CauseRecord], known: Sequence[Known], owners: Mapping[str, str]
) -> dict[Known, str]:
    """Return the entries that are the beginning of the ids of several causes.

    Args:
        records: All causes.
        known: The entries.
        owners: Of the causes, as `owners_of` returns them.

    Returns:
        For each what is wrong with it, in one sentence.
    """
    wrong: dict[Known, str] = {}
    for entry in known:
        found = {
            owners[digest] for digest, record in records.items() if _begins(record, entry.cause)
        }
        if len(found) > 1:
            ids = ", ".join(sorted(records[digest].fixture for digest in found))
            wrong[entry] = (
                f"ledger.json: {entry.cause!r} is the beginning of the ids of several causes "
                f"({ids}): give more digits."
            )
    return wrong


def check_beginnings(records: Mapping[str, CauseRecord], known: Sequence[Known]) -> None:
    """Refuse an entry that is the beginning of the ids of several causes.

    Raises:
        FixtureError: One is.
    """
    wrong = ambiguous_of(records, known, owners_of(records))
    if wrong:
        raise FixtureError(next(iter(wrong.values())))


def _begins(record: CauseRecord, text: str) -> bool:
    lower = text.lower()
    if not is_beginning(lower):
        return False
    return any(name.startswith(lower) for name in (record.fixture, record.digest, *record.formerly))


def _check(entry: Known, path: Path) -> None:
    """Refuse an entry that would hide a finding without saying why.

    Raises:
        FixtureError: Its link is none, its id is too short, or its reason is empty.
    """
    who = f"{path}: the entry of {entry.cause[:60]!r}"
    if not _LINK.fullmatch(entry.link.strip()):
        raise FixtureError(
            f"{who} has the link {entry.link[:60]!r}: write an address that begins with https:// "
            "or http://."
        )
    if len(entry.cause) < BEGINNING_MIN:
        raise FixtureError(
            f"{who} names no cause: give at least {BEGINNING_MIN} digits of an id, or a name."
        )
    if not entry.reason.strip():
        raise FixtureError(f"{who} needs a reason: say in a sentence why it still fails.")


def _asked() -> str:
    return f"write {EXAMPLE}."
