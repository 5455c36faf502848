"""The errors that biprop raises for what a user can do wrong.

Every message is one sentence that names what is wrong and what to do. Violations of invariance are
no errors of this kind: they are verdicts (`biprop.judgment`) until a test raises them
(`biprop.strategies`).
"""

__all__ = [
    "BackendError",
    "BipropError",
    "CaseError",
    "ContractError",
    "DeviceError",
    "FixtureError",
    "OutputError",
    "RestrictionError",
    "SignatureError",
    "TargetError",
    "UnsupportedError",
    "UsageError",
    "WorkerKilledError",
    "words_of",
]


class BipropError(Exception):
    """Base of all errors; a command that meets one prints its sentence and exits with 2."""


class UsageError(BipropError, ValueError):
    """An option or argument has a value that cannot be used."""


class SignatureError(BipropError, ValueError):
    """A signature cannot be read, or contradicts itself."""


class RestrictionError(BipropError, ValueError):
    """A restriction of dimensions cannot be read, or cannot be met."""


class TargetError(BipropError):
    """A target cannot be found, imported, called or allowed."""


class DeviceError(BipropError):
    """A device is unknown, absent, or was lost."""


class WorkerKilledError(DeviceError):
    """A worker was killed while it started: by whoever did that, and for no fault of a kernel."""


class OutputError(BipropError):
    """A target returned something else than its signature says."""


class CaseError(BipropError, ValueError):
    """A case is illegal for its signature."""


class ContractError(BipropError, ValueError):
    """A contract cannot be read, demands less than it may, or has no such cell."""


class UnsupportedError(BipropError):
    """The operator declared that it cannot run the case, or this version cannot."""


class BackendError(BipropError):
    """A registered backend let something else compute in its place."""


class FixtureError(BipropError, ValueError):
    """A fixture cannot be read, is too large, or is not allowed to run."""


def words_of(error: BaseException) -> str:
    """Return what an exception says, on one line; nothing where it cannot even say that."""
    try:
        return " ".join(str(error).split())
    # The text of a foreign exception is made by foreign code, which may raise anything.
    except Exception:  # noqa: BLE001  # its class is told all the same
        return ""
