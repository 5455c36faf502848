"""Contracts as plain data in either layout, for tests to spoil."""

import copy
import json
from importlib import resources
from typing import Any

from biprop.contract import DTYPES, JUDGMENTS, METRICS, OP_CLASSES, ROLES, Contract
from biprop.contract.load import contract_from_bytes

__all__ = ["REMOVED", "changed", "loaded", "own_layout", "ws1_layout"]

# Stands for a key that is taken out.
REMOVED = object()
_FORMULAS = {
    "max_abs_dlogp": "max(abs(dlogp))",
    "approx_kl0": "mean(exp(dlogp) - 1 - dlogp)",
    "clipfrac0": "mean(1[exp(dlogp) outside clip_interval])",
}


def own_layout() -> dict[str, Any]:
    """Return biprop's own contract as data."""
    text = resources.files("biprop.contract").joinpath("contract.json").read_text()
    data: dict[str, Any] = json.loads(text)
    return data


def ws1_layout() -> dict[str, Any]:
    """Return biprop's own contract in the layout `ws1-c1-v2`."""
    own = own_layout()
    judgments = own["judgments"]
    accurate = judgments["forward_accuracy"]["by_op_class"]
    return {
        "version": "ws1-c1-v2",
        "policy": {
            "execution_dtype": "bfloat16",
            "accumulation_dtype": "float32",
            "reference_dtype": "float32",
            "output_dtype": {"default": "execution", "logprob_aggregates": "float32"},
            "fp8": "out_of_scope",
            "fp16": {"status": "optional"},
            "tf32": {"reference": "disabled", "candidate_execution": "disabled"},
            "backend_profiles": ["one", "two"],
            "backend_profile_contracts": {
                name: {"backend_family": "cuda"} for name in ("one", "two")
            },
            "backend_private_tolerance_relaxation": False,
        },
        "comparison_roles": {
            "allowed": list(ROLES),
            "forbidden": own["roles"]["forbidden"],
            "by_report_kind": {
                **{name: _sides(own["roles"][_relation(name)]) for name in JUDGMENTS},
                "train_infer_logprob_parity": _sides(own["roles"]["train_inference_parity"]),
            },
        },
        "judgments": {
            name: {"by_op_class": _classes(judgment), "arch_overrides": {"sm90": {}}}
            for name, judgment in judgments.items()
        },
        "chain_logprob_aggregates": _aggregates(own["chain_aggregates"]),
        "accuracy": {
            "default": {
                op_class: {
                    dtype: {key: accurate[op_class][dtype][key] for key in ("atol", "rtol")}
                    for dtype in DTYPES
                    if dtype != "float8"
                }
                for op_class in OP_CLASSES
            },
            "arch_overrides": {"sm90": {}},
        },
        "batch_invariance": {"atol": 0.0, "rtol": 0.0},
    }


def changed(data: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return `data` with another value at a path of keys and indices, joined by dots."""
    result = copy.deepcopy(data)
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
    place: Any = result
    for key in parents:
        place = place[key]
    if value is REMOVED:
        del place[last]
    else:
        place[last] = value
    return result


def loaded(data: object) -> Contract:
    """Return the contract of data."""
    return contract_from_bytes(json.dumps(data).encode())


def _classes(judgment: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a judgment, those out of scope without a reason."""
    return {
        op_class: {
            dtype: {key: value for key, value in cell.items() if key != "reason"}
            for dtype, cell in cells.items()
        }
        for op_class, cells in judgment["by_op_class"].items()
    }


def _relation(judgment: str) -> str:
    return "invariance" if judgment.endswith("invariance") else "accuracy"


def _sides(pair: dict[str, str]) -> dict[str, str]:
    return {"comparison_lhs_role": pair["left"], "comparison_rhs_role": pair["right"]}


def _aggregates(own: dict[str, Any]) -> dict[str, Any]:
    return {
        "compute_dtype": "float32",
        "require_all": True,
        "nan_inf_policy": "hard_fail",
        "empty_active_token_set": "hard_fail",
        "active_token_policy": "active selected tokens only",
        "dlogp_definition": "comparison_lhs_logp - comparison_rhs_logp",
        "clip_interval_field": "clip_interval",
        "default_clip_interval": own["clip_interval"],
        "sole_chain_level_logprob_metrics": list(METRICS),
        "metrics": {
            metric: {
                "formula": _FORMULAS[metric],
                "pass_rule": "value <= threshold",
                "by_execution_dtype": {
                    dtype: {"threshold": value} for dtype, value in own["metrics"][metric].items()
                },
            }
            for metric in METRICS
        },
    }
