"""Read the layout of biprop's own contract, `contract.json` beside this file."""

from typing import Literal

from biprop.contract.cells import (
    METRIC_DTYPES,
    by_key,
    check_disabled,
    check_float32,
    check_forbidden,
    check_not_relaxed,
    check_pair,
    clip_interval_of,
    is_invariance,
    metric_thresholds,
    read_cells,
    tolerance_of,
)
from biprop.contract.fields import Field
from biprop.contract.records import (
    DTYPES,
    JUDGMENTS,
    MANDATORY_DTYPES,
    METRICS,
    OP_CLASSES,
    ChainAggregates,
    Contract,
    Deferred,
    Judgment,
    Override,
    Roles,
)

__all__ = ["FORMAT", "read_own"]

FORMAT = "biprop-contract-1"


def read_own(top: Field) -> Contract:
    """Return the contract of a file in biprop's layout, without its digest.

    Raises:
        ContractError: One sentence that names the path of what is wrong.
    """
    fields = top.fields(
        ("format", "version", "policy", "roles", "judgments", "chain_aggregates", "priorities")
    )
    fields["format"].demand(FORMAT, "this version reads another format")
    _check_policy(fields["policy"])
    _check_roles(fields["roles"])
    judgments = {
        judgment: field.fields(("by_op_class",), optional=("overrides",))
        for judgment, field in by_key(fields["judgments"], JUDGMENTS)
    }
    priorities = fields["priorities"].fields(("P0", "P1", "P2"))
    return Contract(
        version=fields["version"].text(),
        cells=read_cells({name: field["by_op_class"] for name, field in judgments.items()}),
        aggregates=_aggregates(fields["chain_aggregates"]),
        overrides=tuple(
            override
            for judgment, field in judgments.items()
            if "overrides" in field
            for override in _overrides(field["overrides"], judgment)
        ),
        operators=priorities["P0"].texts(),
        deferred=(
            *(_deferred(element, "P1") for element in priorities["P1"].elements()),
            *(_deferred(element, "P2") for element in priorities["P2"].elements()),
        ),
    )


def _check_policy(policy: Field) -> None:
    fields = policy.fields(
        (
            "accumulation_dtype",
            "reference_dtype",
            "logp_dtype",
            "tf32",
            "backend_private_tolerance_relaxation",
        )
    )
    check_float32(fields["accumulation_dtype"], "the dtype of sums")
    check_float32(fields["reference_dtype"], "the dtype of the reference")
    check_float32(fields["logp_dtype"], "the dtype of logprobs")
    for side in fields["tf32"].fields(("reference", "candidate")).values():
        check_disabled(side)
    check_not_relaxed(fields["backend_private_tolerance_relaxation"])


def _check_roles(field: Field) -> None:
    roles = Roles()
    pairs = {
        "invariance": roles.invariance,
        "accuracy": roles.accuracy,
        "train_inference_parity": roles.train_inference_parity,
    }
    fields = field.fields((*pairs, "forbidden"))
    for name, pair in pairs.items():
        sides = fields[name].fields(("left", "right"))
        check_pair(sides["left"], sides["right"], pair)
    check_forbidden(fields["forbidden"])


def _overrides(field: Field, judgment: Judgment) -> tuple[Override, ...]:
    elements = field.elements()
    if is_invariance(judgment) and elements:
        field.refuse("an invariance holds for every backend and architecture, take them out")
    return tuple(_override(element, judgment) for element in elements)


def _override(element: Field, judgment: Judgment) -> Override:
    fields = element.fields(
        ("op_class", "dtype", "atol", "rtol", "reason"), optional=("backends", "arch_key")
    )
    if "backends" not in fields and "arch_key" not in fields:
        element.refuse("say for which backends or which arch_key it is")
    return Override(
        judgment=judgment,
        op_class=fields["op_class"].one_of(OP_CLASSES),
        dtype=fields["dtype"].one_of(DTYPES),
        tolerance=tolerance_of(fields),
        reason=fields["reason"].text(),
        backends=_backends(fields["backends"]) if "backends" in fields else None,
        arch_key=fields["arch_key"].text() if "arch_key" in fields else "",
    )


def _backends(field: Field) -> tuple[str, str]:
    names = sorted(field.texts())
    if len(names) != 2:  # parity is between two
        field.refuse("parity is between two backends, and none has a tolerance of its own")
    return names[0], names[1]


def _aggregates(field: Field) -> ChainAggregates:
    fields = field.fields(("compute_dtype", "require_all", "clip_interval", "metrics"))
    check_float32(fields["compute_dtype"], "the dtype of aggregates")
    fields["require_all"].demand_flag(wanted=True, why="all aggregates are required")
    return ChainAggregates(
        clip_interval=clip_interval_of(fields["clip_interval"]),
        thresholds=metric_thresholds(
            {
                metric: bounds.fields(MANDATORY_DTYPES, optional=METRIC_DTYPES)
                for metric, bounds in by_key(fields["metrics"], METRICS)
            }
        ),
    )


def _deferred(element: Field, priority: Literal["P1", "P2"]) -> Deferred:
    fields = element.fields(("name", "reason"))
    return Deferred(name=fields["name"].text(), priority=priority, reason=fields["reason"].text())
