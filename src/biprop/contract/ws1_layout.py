"""Read the layout `ws1-c1-v2` of RL-Kernel's contract of work stream 1.

Source: https://github.com/RL-Align/RL-Kernel, `rl_engine/contracts/profiles/precision/ws1.json`.
Notes there are free text and are read over. What that layout does not say (operators, what is
deferred) is taken from biprop's own contract.
"""

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
    mode_of,
    read_cells,
)
from biprop.contract.fields import Field
from biprop.contract.records import (
    DTYPES,
    JUDGMENTS,
    MANDATORY_DTYPES,
    METRICS,
    OP_CLASSES,
    ROLES,
    ChainAggregates,
    Contract,
    ContractCell,
    Judgment,
    Metric,
    Override,
    RolePair,
    Roles,
    Tolerance,
)

__all__ = ["VERSION", "read_ws1"]

VERSION = "ws1-c1-v2"

_PARITY = "train_infer_logprob_parity"
_FORMULAS: dict[Metric, str] = {
    "max_abs_dlogp": "max(abs(dlogp))",
    "approx_kl0": "mean(exp(dlogp) - 1 - dlogp)",
    "clipfrac0": "mean(1[exp(dlogp) outside clip_interval])",
}
# Fields of the aggregates that have one meaning only, and what they must say.
_AGGREGATES = {
    "compute_dtype": "float32",
    "nan_inf_policy": "hard_fail",
    "empty_active_token_set": "hard_fail",
    "active_token_policy": "active selected tokens only",
    "dlogp_definition": "comparison_lhs_logp - comparison_rhs_logp",
    "clip_interval_field": "clip_interval",
}


def read_ws1(top: Field, *, own: Contract) -> Contract:
    """Return the contract of a file in the layout `ws1-c1-v2`, without its digest.

    Args:
        top: The whole file.
        own: biprop's own contract.

    Raises:
        ContractError: One sentence that names the path of what is wrong.
    """
    fields = top.fields(
        (
            "version",
            "policy",
            "comparison_roles",
            "judgments",
            "chain_logprob_aggregates",
            "accuracy",
            "batch_invariance",
        )
    )
    fields["version"].demand(VERSION, "a contract without a format has this one")
    _check_policy(fields["policy"])
    _check_roles(fields["comparison_roles"])
    judgments = {
        judgment: field.fields(
            ("by_op_class",),
            optional=(
                "arch_overrides",
                "default_mode",
                "scope",
                "calibration_status",
                "calibration_note",
            ),
        )
        for judgment, field in by_key(fields["judgments"], JUDGMENTS)
    }
    cells = read_cells({name: parts["by_op_class"] for name, parts in judgments.items()})
    for judgment, parts in judgments.items():
        _check_judgment(parts, judgment)
    _check_copies(fields["accuracy"], fields["batch_invariance"], cells)
    return Contract(
        version=VERSION,
        cells=cells,
        aggregates=_aggregates(fields["chain_logprob_aggregates"]),
        overrides=tuple(
            override
            for judgment, parts in judgments.items()
            if "arch_overrides" in parts
            for override in _overrides(parts["arch_overrides"], judgment, cells)
        ),
        operators=own.operators,
        deferred=own.deferred,
    )


def _check_policy(policy: Field) -> None:
    fields = policy.fields(
        (
            "execution_dtype",
            "accumulation_dtype",
            "reference_dtype",
            "output_dtype",
            "fp8",
            "fp16",
            "tf32",
            "backend_profiles",
            "backend_profile_contracts",
            "backend_private_tolerance_relaxation",
        )
    )
    fields["execution_dtype"].demand("bfloat16", "the layout has this one")
    check_float32(fields["accumulation_dtype"], "the dtype of sums")
    check_float32(fields["reference_dtype"], "the dtype of the reference")
    outputs = fields["output_dtype"].fields(("default", "logprob_aggregates"))
    outputs["default"].demand("execution", "outputs have the dtype of the case")
    check_float32(outputs["logprob_aggregates"], "the dtype of aggregates")
    fields["fp8"].demand("out_of_scope", "nothing judges float8")
    half = fields["fp16"].fields(("status",), optional=("note",))
    half["status"].demand("optional", "float16 is optional")
    sides = fields["tf32"].fields(("reference", "candidate_execution"), optional=("policy",))
    check_disabled(sides["reference"])
    check_disabled(sides["candidate_execution"])
    _check_notes(half, "note")
    _check_notes(sides, "policy")
    profiles = fields["backend_profiles"].texts()
    for _, profile in by_key(fields["backend_profile_contracts"], profiles):
        profile.fields(("backend_family",))["backend_family"].text()
    check_not_relaxed(fields["backend_private_tolerance_relaxation"])


def _check_roles(field: Field) -> None:
    fields = field.fields(("allowed", "forbidden", "by_report_kind"))
    for element in fields["allowed"].elements():
        element.one_of(ROLES)
    if set(fields["allowed"].texts()) != set(ROLES):
        fields["allowed"].refuse(f"list all of {', '.join(ROLES)}")
    check_forbidden(fields["forbidden"])
    roles = Roles()
    pairs: dict[str, RolePair] = {
        judgment: roles.invariance if is_invariance(judgment) else roles.accuracy
        for judgment in JUDGMENTS
    }
    pairs[_PARITY] = roles.train_inference_parity
    for kind, entry in by_key(fields["by_report_kind"], tuple(pairs)):
        sides = entry.fields(("comparison_lhs_role", "comparison_rhs_role"))
        check_pair(sides["comparison_lhs_role"], sides["comparison_rhs_role"], pairs[kind])


def _check_judgment(fields: dict[str, Field], judgment: Judgment) -> None:
    if "default_mode" in fields:
        fields["default_mode"].demand(mode_of(judgment), "the judgment has one mode")
    if "scope" in fields:
        # Fewer words would demand less of a kernel than its declaration does.
        fields["scope"].demand("batch_chunk_padding_layout", "all of these are compared")
    _check_notes(fields, "calibration_status", "calibration_note")


def _check_notes(fields: dict[str, Field], *names: str) -> None:
    for name in names:
        if name in fields:
            fields[name].text()


def _check_copies(
    accuracy: Field, batch_invariance: Field, cells: tuple[ContractCell, ...]
) -> None:
    """Refuse older copies of thresholds in the same file that say something else."""
    fields = accuracy.fields(("default",), optional=("arch_overrides",))
    dtypes = tuple(dtype for dtype in DTYPES if dtype != "float8")
    demanded = {
        (cell.op_class, cell.dtype): cell for cell in cells if cell.judgment == "forward_accuracy"
    }
    for op_class, classes in by_key(fields["default"], OP_CLASSES):
        for dtype, field in by_key(classes, dtypes):
            cell = demanded[op_class, dtype]
            for name, part in by_key(field, ("atol", "rtol")):
                value = part.number()
                wanted = cell.atol if name == "atol" else cell.rtol
                if wanted is not None and value != wanted:
                    part.refuse(f"{cell.path}.{name} is {wanted}, write the same")
    for arch in fields["arch_overrides"].items().values() if "arch_overrides" in fields else ():
        if arch.items():
            arch.refuse("write it below judgments.forward_accuracy.arch_overrides, with a reason")
    for _, part in by_key(batch_invariance, ("atol", "rtol")):
        if part.number() > 0:
            part.refuse("an invariance threshold must be 0")


def _overrides(
    field: Field, judgment: Judgment, cells: tuple[ContractCell, ...]
) -> tuple[Override, ...]:
    """Return the overrides by architecture, class and dtype.

    Here they stand below an accuracy, and biprop applies them to parity alone: one that is
    narrower would be lost on accuracy, and is refused.
    """
    found = []
    own = {(cell.op_class, cell.dtype): cell for cell in cells if cell.judgment == judgment}
    for arch_key, arch in field.items().items():
        if is_invariance(judgment) and arch.items():
            arch.refuse("an invariance holds for every architecture, take the overrides out")
        Field(arch_key, arch.path).text()
        for op_class_text, classes in arch.items().items():
            op_class = Field(op_class_text, classes.path).one_of(OP_CLASSES)
            for dtype_text, cell in classes.items().items():
                dtype = Field(dtype_text, cell.path).one_of(DTYPES)
                found.append(
                    Override(
                        judgment=judgment,
                        op_class=op_class,
                        dtype=dtype,
                        tolerance=_not_narrower(cell, own[op_class, dtype]),
                        reason=cell.items()["reason"].text(),
                        arch_key=arch_key,
                    )
                )
    return tuple(found)


def _not_narrower(field: Field, cell: ContractCell) -> Tolerance:
    fields = field.fields(("reason",), optional=("atol", "rtol"))
    if cell.atol is None or cell.rtol is None:
        field.refuse(f"{cell.path} demands nothing, take the override out")
    for name, least in (("atol", cell.atol), ("rtol", cell.rtol)):
        if name in fields and fields[name].number() < least:
            fields[name].refuse(
                f"an override concerns parity alone, so lower {cell.path}.{name} itself"
            )
    return Tolerance(
        atol=fields["atol"].number() if "atol" in fields else cell.atol,
        rtol=fields["rtol"].number() if "rtol" in fields else cell.rtol,
    )


def _aggregates(field: Field) -> ChainAggregates:
    fields = field.fields(
        (
            *_AGGREGATES,
            "require_all",
            "default_clip_interval",
            "sole_chain_level_logprob_metrics",
            "metrics",
        )
    )
    for name, wanted in _AGGREGATES.items():
        fields[name].demand(wanted, "the aggregates have one meaning")
    fields["require_all"].demand_flag(wanted=True, why="all aggregates are required")
    if set(fields["sole_chain_level_logprob_metrics"].texts()) != set(METRICS):
        fields["sole_chain_level_logprob_metrics"].refuse(f"list {', '.join(METRICS)}")
    bounds: dict[Metric, dict[str, Field]] = {}
    for metric, entry in by_key(fields["metrics"], METRICS):
        parts = entry.fields(
            ("formula", "pass_rule", "by_execution_dtype"), optional=("threshold_rationale",)
        )
        parts["formula"].demand(_FORMULAS[metric], "the metric has one meaning")
        parts["pass_rule"].demand("value <= threshold", "the metric has one rule")
        _check_notes(parts, "threshold_rationale")
        dtypes = parts["by_execution_dtype"].fields(MANDATORY_DTYPES, optional=METRIC_DTYPES)
        bounds[metric] = {
            dtype: bound.fields(("threshold",))["threshold"] for dtype, bound in dtypes.items()
        }
    return ChainAggregates(
        clip_interval=clip_interval_of(fields["default_clip_interval"]),
        thresholds=metric_thresholds(bounds),
    )
