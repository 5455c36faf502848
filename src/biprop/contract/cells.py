"""What every contract demands, in either layout: cells, roles, metrics and overrides.

How a layout names these things say `biprop.contract.own_layout` and `biprop.contract.ws1_layout`.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from biprop.contract.fields import Field
from biprop.contract.records import (
    DTYPES,
    JUDGMENTS,
    MANDATORY_DTYPES,
    METRICS,
    OP_CLASSES,
    ROLES,
    STATUSES,
    ContractCell,
    Dtype,
    Judgment,
    Metric,
    MetricThreshold,
    Mode,
    OpClass,
    RolePair,
    Roles,
    Status,
    Tolerance,
)

__all__ = [
    "METRIC_DTYPES",
    "by_key",
    "check_disabled",
    "check_float32",
    "check_forbidden",
    "check_not_relaxed",
    "check_pair",
    "clip_interval_of",
    "is_invariance",
    "metric_thresholds",
    "mode_of",
    "read_cells",
    "tolerance_of",
]

# In which the aggregates of a chain may have bounds; the mandatory ones must.
METRIC_DTYPES: tuple[Dtype, ...] = (*MANDATORY_DTYPES, "float16")

_Key = TypeVar("_Key", bound=str)


def is_invariance(judgment: Judgment) -> bool:
    """Return whether a judgment compares bits."""
    return judgment in {"forward_invariance", "gradient_invariance"}


def mode_of(judgment: Judgment) -> Mode:
    """Return how a judgment compares."""
    return "bitwise" if is_invariance(judgment) else "tolerance"


def by_key(field: Field, keys: tuple[_Key, ...]) -> Iterable[tuple[_Key, Field]]:
    """Return the fields of an object that has exactly these keys, in their order.

    Raises:
        ContractError: One is missing, or there is another.
    """
    found = field.fields(keys)
    return ((key, found[key]) for key in keys)


def read_cells(classes_by_judgment: Mapping[Judgment, Field]) -> tuple[ContractCell, ...]:
    """Return the cells of every judgment, from its field `by_op_class`.

    Raises:
        ContractError: A cell is missing, unknown, or demands less than it may.
    """
    return tuple(
        _cell(field, judgment=judgment, op_class=op_class, dtype=dtype)
        for judgment in JUDGMENTS
        for op_class, dtypes in by_key(classes_by_judgment[judgment], OP_CLASSES)
        for dtype, field in by_key(dtypes, DTYPES)
    )


def tolerance_of(fields: Mapping[str, Field]) -> Tolerance:
    """Return the thresholds of the fields `atol` and `rtol`."""
    return Tolerance(atol=fields["atol"].number(), rtol=fields["rtol"].number())


def check_float32(field: Field, what: str) -> None:
    """Refuse any other dtype than float32."""
    field.demand("float32", f"{what} is float32 in every contract")


def check_disabled(field: Field) -> None:
    """Refuse TF32, on whichever side."""
    field.demand("disabled", "TF32 must be off on both sides")


def check_not_relaxed(field: Field) -> None:
    """Refuse tolerances that a backend keeps for itself."""
    field.demand_flag(wanted=False, why="no backend has a tolerance of its own")


def check_forbidden(field: Field) -> None:
    """Refuse a list of forbidden roles that leaves one out.

    Raises:
        ContractError: A word that names no role is not forbidden, or a role is.
    """
    words = field.texts()
    for wanted in Roles().forbidden:
        if wanted not in words:
            field.refuse(f"'{wanted}' names no role, list it")
    for word, element in zip(words, field.elements(), strict=True):
        if word in ROLES:
            element.refuse("it is a role, take it out")


def check_pair(left: Field, right: Field, pair: RolePair) -> None:
    """Refuse the two sides of a comparison unless they are those of `pair`."""
    _check_role(left, pair.left, other=pair.right)
    _check_role(right, pair.right, other=pair.left)


def metric_thresholds(
    bounds: Mapping[Metric, Mapping[str, Field]],
) -> tuple[MetricThreshold, ...]:
    """Return the bounds of every aggregate, by metric and dtype.

    Raises:
        ContractError: One is no threshold.
    """
    return tuple(
        MetricThreshold(metric=metric, dtype=dtype, threshold=bounds[metric][dtype].number())
        for metric in METRICS
        for dtype in METRIC_DTYPES
        if dtype in bounds[metric]
    )


def clip_interval_of(field: Field) -> tuple[float, float]:
    """Return the ends of the interval that a ratio of probabilities may lie in.

    Raises:
        ContractError: They are no two numbers on either side of 1.
    """
    ends = field.elements()
    if len(ends) != 2:  # a low and a high end
        field.refuse("a low and a high end are needed here")
    low, high = (end.number() for end in ends)
    if low >= 1:
        ends[0].refuse("the low end must lie below 1, the ratio of equal probabilities")
    if high <= 1:
        ends[1].refuse("the high end must lie above 1, the ratio of equal probabilities")
    return low, high


def _check_role(field: Field, wanted: str, *, other: str) -> None:
    role = field.text()
    if role in Roles().forbidden:
        field.refuse(f"the word names no role, write '{wanted}'")
    if role == other:
        field.refuse(f"the roles are swapped, write '{wanted}'")
    if role != wanted:
        problem = "the role belongs elsewhere" if role in ROLES else "the role is unknown"
        field.refuse(f"{problem}, write '{wanted}'")


def _cell(field: Field, *, judgment: Judgment, op_class: OpClass, dtype: Dtype) -> ContractCell:
    status = _status(field, dtype)
    mode = mode_of(judgment)
    if status in {"not_applicable", "out_of_scope"}:
        required = ("status", "reason") if status == "not_applicable" else ("status",)
        fields = field.fields(required, optional=("reason",))
        return ContractCell(
            judgment=judgment,
            op_class=op_class,
            dtype=dtype,
            status=status,
            mode=mode,
            reason=fields["reason"].text() if "reason" in fields else "",
        )
    fields = field.fields(("status", "mode", "atol", "rtol"))
    if is_invariance(judgment):
        fields["mode"].demand(mode, "an invariance is judged bit by bit")
    else:
        fields["mode"].demand(mode, "an accuracy is judged within its thresholds")
    tolerance = tolerance_of(fields)
    if is_invariance(judgment):
        for name, value in (("atol", tolerance.atol), ("rtol", tolerance.rtol)):
            if value > 0:
                fields[name].refuse("an invariance threshold must be 0")
    return ContractCell(
        judgment=judgment,
        op_class=op_class,
        dtype=dtype,
        status=status,
        mode=mode,
        atol=tolerance.atol,
        rtol=tolerance.rtol,
    )


def _status(field: Field, dtype: Dtype) -> Status:
    """Return the status of a cell, unless the dtype may not have it."""
    given = field.fields(("status",), optional=("mode", "atol", "rtol", "reason"))["status"]
    status = given.one_of(STATUSES)
    if dtype in MANDATORY_DTYPES and status != "applicable":
        given.refuse(f"{dtype} is mandatory, write 'applicable'")
    if dtype == "float8" and status != "out_of_scope":
        given.refuse("nothing judges float8, write 'out_of_scope'")
    if dtype == "float16" and status == "out_of_scope":
        given.refuse("write 'optional', or 'not_applicable' with a reason")
    return status
