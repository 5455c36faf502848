"""Drift records: failed relations for machines, one JSON object a line.

Their contract is `drift_record.schema.json` beside this file. People read `biprop.reports.text`.
"""

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

import attrs

from biprop.case import Json, Relation
from biprop.fixtures.records import CONVERTER, Fixture
from biprop.judgment import BitDifference, LaunchFact, Mismatch
from biprop.layout import CANONICAL, Layout
from biprop.operators import OpClass
from biprop.reports.records import CellReport, cell_report_to_data
from biprop.transforms import class_of, transforms_of

__all__ = [
    "SCHEMA",
    "DriftRecord",
    "TransformChange",
    "checked_object",
    "drift_lines",
    "drift_records",
    "drift_schema",
]

SCHEMA = "biprop-drift-1"
Role = Literal[
    "canonical_config",
    "transformed_config",
    "bf16_candidate",
    "fp32_reference",
    "training_style_teacher_forcing",
    "inference_style_rollout_decode",
]


_ROLES: Mapping[Relation, tuple[Role, Role]] = MappingProxyType(
    {
        "I": ("canonical_config", "transformed_config"),
        "A": ("bf16_candidate", "fp32_reference"),
        # Told apart by their backends.
        "P": ("canonical_config", "canonical_config"),
    }
)


@attrs.frozen(kw_only=True)
class TransformChange:
    """One transform of the composition, and what it changed.

    Attributes:
        transform_class: `T1`, ..., `T4.finite`, ...
        source_class: Its word, e.g. `batch_population`.
        name: Of the transform.
        canonical: What the canonical configuration holds in its fields, by path.
        transformed: What the transformed configuration holds there.
    """

    transform_class: str
    source_class: str
    name: str
    canonical: dict[str, Json]
    transformed: dict[str, Json]


@attrs.frozen(kw_only=True)
class DriftRecord:
    """One failed relation of one output.

    Attributes:
        schema: `biprop-drift-1`.
        relation: `I`, `A` or `P`.
        roles: What was compared with what. Of `P` both sides are canonical configurations.
        status: The verdict.
        fixture_id: Of the fixture that replays it.
        operator: Name, or the target text of an unregistered one.
        op_class: None for an unregistered one.
        chain_index: Static rank; None without a declaration.
        layer: Inside the chain gate; None elsewhere.
        tensor: Name of the output or gradient; empty for CRASHES.
        owner: URL of who looks after it; None where nobody is named.
        transforms: The composition.
        requested_backend: As it was asked for.
        actual_backend: What ran.
        arch_key: Of the device.
        device: As it was asked for.
        dtype: Of the case.
        direction: `forward` or `backward`.
        threshold: 0 for relation I: bits; else the absolute tolerance.
        threshold_relative: Likewise, times the magnitude of the other side.
        other_backend: Of relation `P`: the backend of the other side.
        max_abs_error: None without a pair of finite values, likewise the next two.
        mean_abs_error: Over all compared elements.
        max_rel_error: Over all compared elements.
        mismatches: Elements and tokens that differ.
        compared: Elements and tokens that were compared.
        first_mismatch: In logical order; None for CRASHES.
        launch_facts: What was launched.
        seed: Of the case.
        message: Of CRASHES.
    """

    schema: str
    relation: Literal["I", "A", "P"]
    roles: tuple[Role, Role]
    status: str
    fixture_id: str
    operator: str
    op_class: OpClass | None
    chain_index: int | None
    layer: str | None
    tensor: str
    owner: str | None
    transforms: tuple[TransformChange, ...]
    requested_backend: str
    actual_backend: str
    arch_key: str
    device: str
    dtype: str
    direction: Literal["forward", "backward"]
    threshold: float
    threshold_relative: float
    other_backend: str
    max_abs_error: float | None
    mean_abs_error: float | None
    max_rel_error: float | None
    mismatches: dict[str, int]
    compared: dict[str, int]
    first_mismatch: BitDifference | None
    launch_facts: tuple[LaunchFact, ...]
    seed: int
    message: str


def drift_records(
    fixture: Fixture,
    *,
    op_class: OpClass | None = None,
    chain_index: int | None = None,
    owner: str | None = None,
) -> tuple[DriftRecord, ...]:
    """Return one record for each output that differs, or one of a launch that crashed."""
    mismatches: tuple[Mismatch | None, ...] = fixture.expect.mismatches or (None,)
    return tuple(
        _record(fixture, mismatch, op_class=op_class, chain_index=chain_index, owner=owner)
        for mismatch in mismatches
    )


def drift_lines(records: Iterable[DriftRecord]) -> str:
    """Return JSON lines, all fields written out."""
    converter = CONVERTER.copy(omit_if_default=False)
    return "".join(
        json.dumps(converter.unstructure(record), allow_nan=False) + "\n" for record in records
    )


def drift_schema() -> dict[str, Json]:
    """Return the JSON Schema of a record."""
    file = resources.files("biprop.reports").joinpath("drift_record.schema.json")
    schema = json.loads(file.read_text(encoding="utf-8"))
    assert isinstance(schema, dict)
    return schema


def checked_object(report: CellReport) -> dict[str, Json]:
    """Return the one JSON object of a check: its counts, causes and drift records."""
    records = [
        record
        for finding in report.findings
        for record in drift_records(
            finding.fixture, chain_index=report.chain_index, owner=report.owner or None
        )
    ]
    lines = drift_lines(records).splitlines()
    return {**cell_report_to_data(report), "drift": [json.loads(line) for line in lines]}


def _record(
    fixture: Fixture,
    mismatch: Mismatch | None,
    *,
    op_class: OpClass | None,
    chain_index: int | None,
    owner: str | None,
) -> DriftRecord:
    where, expect, against = fixture.provenance, fixture.expect, fixture.case.against
    return DriftRecord(
        schema=SCHEMA,
        relation=expect.cause.relation,
        roles=_ROLES[expect.cause.relation],
        status=expect.verdict.value,
        fixture_id=fixture.id,
        operator=fixture.operator,
        op_class=op_class,
        chain_index=chain_index,
        layer=None,
        tensor=mismatch.output if mismatch else expect.cause.output,
        owner=owner,
        transforms=_changes(fixture),
        requested_backend=fixture.backend,
        actual_backend=where.actual_backend or fixture.backend,
        arch_key=where.arch_key,
        device=where.device,
        dtype=fixture.dtype,
        direction=fixture.direction,
        threshold=0.0 if against is None else against.atol,
        threshold_relative=0.0 if against is None else against.rtol,
        other_backend="" if against is None else against.backend,
        max_abs_error=mismatch.max_abs_error if mismatch else None,
        mean_abs_error=mismatch.mean_abs_error if mismatch else None,
        max_rel_error=mismatch.max_rel_error if mismatch else None,
        mismatches={
            "elements": mismatch.elements if mismatch else 0,
            "tokens": mismatch.tokens if mismatch else 0,
        },
        compared={
            "elements": mismatch.elements_compared if mismatch else 0,
            "tokens": mismatch.tokens_compared if mismatch else 0,
        },
        first_mismatch=mismatch.first if mismatch else None,
        launch_facts=expect.facts,
        seed=fixture.case.seed,
        message=expect.message,
    )


def _changes(fixture: Fixture) -> tuple[TransformChange, ...]:
    return tuple(
        TransformChange(
            transform_class=class_of(transform),
            source_class=transform.source_class,
            name=type(transform).__name__,
            canonical=_held(CANONICAL, transform.fields),
            transformed=_held(transform.apply(CANONICAL), transform.fields),
        )
        for transform in transforms_of(fixture.case)
    )


def _held(layout: Layout, paths: tuple[str, ...]) -> dict[str, Json]:
    """Return what a layout holds at some paths, e.g. `padding.amount`."""
    found: dict[str, Json] = {}
    for path in paths:
        value: object = layout
        for name in path.split("."):
            value = getattr(value, name)
        record: Any = value
        held = attrs.asdict(record) if attrs.has(type(record)) else record
        found[path] = list(held) if isinstance(held, tuple) else held
    return found
