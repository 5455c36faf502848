"""The ledger of known failures: which committed fixtures may fail, why, and where that is followed.

A JSON file beside the fixtures. An entry without a link and a reason is refused, and one whose
fixture passes is reported, so that the ledger does not outlive its causes.
"""

import json
from pathlib import Path

import attrs
import cattrs

from biprop.case import reason_of, strict_converter
from biprop.errors import FixtureError

__all__ = ["FORMAT", "KNOWN_FILE", "Known", "read_known"]

KNOWN_FILE = "known.json"
FORMAT = "biprop-known-1"
_BYTES_MAX = 1 << 20


@attrs.frozen(kw_only=True)
class Known:
    """One known failure.

    Attributes:
        id: Of the fixture.
        link: Where it is followed, an address.
        reason: Why it still fails, one sentence.
    """

    id: str
    link: str
    reason: str


@attrs.frozen(kw_only=True)
class _Ledger:
    format: str
    known: tuple[Known, ...] = ()


def read_known(path: Path) -> dict[str, Known]:
    """Return the known failures by id of the fixture; none where there is no file.

    Raises:
        FixtureError: The file is no ledger, or an entry lacks its link or its reason.
    """
    if not path.is_file():
        return {}
    if path.stat().st_size > _BYTES_MAX:
        raise FixtureError(f"{path.name} is larger than {_BYTES_MAX} bytes: take entries out.")
    try:
        ledger = _CONVERTER.structure(json.loads(path.read_text(encoding="utf-8")), _Ledger)
    except (
        cattrs.BaseValidationError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise FixtureError(f"{path.name} cannot be read: {reason_of(error)}.") from error
    if ledger.format != FORMAT:
        raise FixtureError(f"{path.name} has another format than {FORMAT!r}: correct it.")
    for entry in ledger.known:
        if "://" not in entry.link or not entry.reason.strip():
            raise FixtureError(
                f"{path.name}: the entry of {entry.id[:8]!r} needs a link and a reason: give both."
            )
    return {entry.id: entry for entry in ledger.known}


_CONVERTER = strict_converter()
