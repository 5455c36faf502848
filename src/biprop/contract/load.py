"""Read a contract: biprop's own, or a user's in either layout.

What may not be demanded less than it is refused here, before anything runs. Wider thresholds are a
user's right, as long as every report says so: `Contract.wider` lists them.
"""

import hashlib
from functools import cache
from importlib import resources
from pathlib import Path

import attrs

from biprop.case import canonical_json
from biprop.contract.fields import TEXT_BYTES_MAX, parse_object
from biprop.contract.own_layout import FORMAT, read_own
from biprop.contract.records import Contract, ContractCell, Override, Tolerance
from biprop.contract.ws1_layout import VERSION, read_ws1
from biprop.errors import ContractError

__all__ = ["contract_from_bytes", "load_contract"]


def load_contract(path: str | Path | None = None) -> Contract:
    """Return the contract of a file, biprop's own without one.

    Raises:
        ContractError: The file cannot be read, or one of its fields is wrong; the sentence names
            the file and the path of the field.
    """
    if path is None:
        return _packaged()
    given: object = path
    if not isinstance(given, (str, Path)):
        raise ContractError(f"A {type(given).__name__} is no path: give the path of a contract.")
    path = Path(given)
    try:
        # A pipe or a device would be waited for, or have no end.
        if not path.is_file():
            raise ContractError(f"{path} is no file: give the path of a contract.")
        with path.open("rb") as file:
            raw = file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        raise ContractError(
            f"{path} cannot be read: {error.strerror or error}: give the path of a contract."
        ) from error
    try:
        return contract_from_bytes(raw)
    except ContractError as error:
        raise ContractError(f"{path}: {error}") from error


def contract_from_bytes(raw: bytes) -> Contract:
    """Return the contract of a JSON text, with its thresholds that are wider than biprop's own.

    Raises:
        ContractError: As for `load_contract`.
    """
    own = _packaged()
    contract = _read(raw, own=own)
    return attrs.evolve(contract, wider=_wider(contract, own))


@cache
def _packaged() -> Contract:
    raw = resources.files("biprop.contract").joinpath("contract.json").read_bytes()
    return _read(raw, own=None)


def _read(raw: bytes, *, own: Contract | None) -> Contract:
    top = parse_object(raw)
    fields = top.items()
    if "format" in fields:
        contract = read_own(top)
    elif "version" in fields:
        assert own is not None
        contract = read_ws1(top, own=own)
    else:
        top.refuse(f"it needs a format, '{FORMAT}', or the version '{VERSION}'")
    _check_overrides(contract)
    # Only now: what was read holds no number that JSON has no text for.
    digest = hashlib.sha256(canonical_json(top.value).encode()).hexdigest()
    return attrs.evolve(contract, digest=digest)


def _check_overrides(contract: Contract) -> None:
    seen: set[object] = set()
    for item in contract.overrides:
        cell = contract.cell(judgment=item.judgment, op_class=item.op_class, dtype=item.dtype)
        if cell.tolerance is None:
            raise ContractError(f"{cell.path} demands nothing: take its override out.")
        key = (cell.path, item.backends, item.arch_key)
        if key in seen:
            raise ContractError(
                f"{cell.path} has two overrides for the same backends and architecture: leave one."
            )
        seen.add(key)


def _wider(contract: Contract, own: Contract) -> tuple[str, ...]:
    """Return the paths of thresholds that admit what biprop's own contract does not."""
    cells = (
        cell.path
        for cell in contract.cells
        if _is_wider(cell.tolerance, _cell_of(own, cell).tolerance)
    )
    overrides = (
        f"{_cell_of(own, item).path} of {_scope_of(item)}"
        for item in contract.overrides
        if _is_wider(item.tolerance, _demanded_of(own, item))
    )
    metrics = (
        f"chain_aggregates.metrics.{bound.metric}.{bound.dtype}"
        for bound in own.aggregates.thresholds
        if _exceeds(
            contract.aggregates.threshold(metric=bound.metric, dtype=bound.dtype), bound.threshold
        )
    )
    low, high = contract.aggregates.clip_interval
    own_low, own_high = own.aggregates.clip_interval
    interval = ("chain_aggregates.clip_interval",) if low < own_low or high > own_high else ()
    return (*cells, *overrides, *metrics, *interval)


def _is_wider(tolerance: Tolerance | None, bound: Tolerance | None) -> bool:
    if tolerance is None or bound is None:
        return bound is not None
    return tolerance.atol > bound.atol or tolerance.rtol > bound.rtol


def _exceeds(threshold: float | None, bound: float) -> bool:
    return threshold is None or threshold > bound


def _cell_of(contract: Contract, item: ContractCell | Override) -> ContractCell:
    return contract.cell(judgment=item.judgment, op_class=item.op_class, dtype=item.dtype)


def _demanded_of(contract: Contract, item: Override) -> Tolerance | None:
    """Return what a contract demands of a comparison that an override of another is about."""
    return contract.tolerance(
        judgment=item.judgment,
        op_class=item.op_class,
        dtype=item.dtype,
        backends=item.backends or ("", ""),
        arch_key=item.arch_key,
    )


def _scope_of(item: Override) -> str:
    return " on ".join(filter(None, (" and ".join(item.backends or ()), item.arch_key)))
