"""What a contract may not say, in either layout, each with the path of what is wrong."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.contract_layouts import REMOVED, changed, loaded, own_layout, ws1_layout

from biprop.contract import JUDGMENTS, OP_CLASSES, contract_from_bytes, load_contract
from biprop.errors import ContractError

F_ACC = "judgments.forward_accuracy.by_op_class"
F_INV = "judgments.forward_invariance.by_op_class"
G_INV = "judgments.gradient_invariance.by_op_class"
OVERRIDE = {
    "op_class": "reduction",
    "dtype": "bfloat16",
    "backends": ["torch", "triton"],
    "atol": 0.2,
    "rtol": 0.02,
    "reason": "measured on one machine",
}

# Refused alike in both layouts: path of what is changed, its new value, and the sentence.
COMMON = [
    (f"{F_ACC}.reduction.bfloat16", REMOVED, f"{F_ACC}.reduction.bfloat16 is missing"),
    (f"{F_ACC}.logprob", REMOVED, f"{F_ACC}.logprob is missing"),
    ("judgments.gradient_accuracy", REMOVED, "judgments.gradient_accuracy is missing"),
    (
        f"{F_INV}.reduction.bfloat16.atol",
        0.001,
        f"{F_INV}.reduction.bfloat16.atol is 0.001: an invariance threshold must be 0.",
    ),
    (
        f"{G_INV}.attention.float32.rtol",
        1e-7,
        f"{G_INV}.attention.float32.rtol is 1e-07: an invariance threshold must be 0.",
    ),
    (
        f"{F_INV}.logprob.float16.atol",
        0.5,
        f"{F_INV}.logprob.float16.atol is 0.5: an invariance threshold must be 0.",
    ),
    (
        f"{F_INV}.elementwise.float32.mode",
        "tolerance",
        f"{F_INV}.elementwise.float32.mode is 'tolerance': an invariance is judged bit by bit",
    ),
    (
        f"{F_ACC}.elementwise.float32.mode",
        "bitwise",
        f"{F_ACC}.elementwise.float32.mode is 'bitwise': an accuracy is judged within",
    ),
    (
        f"{F_ACC}.attention.bfloat16",
        {"status": "not_applicable", "reason": "not wanted"},
        f"{F_ACC}.attention.bfloat16.status is 'not_applicable': bfloat16 is mandatory",
    ),
    (
        f"{F_ACC}.attention.float32",
        {"status": "out_of_scope"},
        f"{F_ACC}.attention.float32.status is 'out_of_scope': float32 is mandatory",
    ),
    (
        f"{F_INV}.attention.bfloat16.status",
        "optional",
        f"{F_INV}.attention.bfloat16.status is 'optional': bfloat16 is mandatory",
    ),
    (
        f"{F_ACC}.attention.float8",
        {"status": "applicable", "mode": "tolerance", "atol": 0.1, "rtol": 0.1},
        f"{F_ACC}.attention.float8.status is 'applicable': nothing judges float8",
    ),
    (
        f"{F_ACC}.attention.float16",
        {"status": "out_of_scope"},
        f"{F_ACC}.attention.float16.status is 'out_of_scope': write 'optional'",
    ),
    (
        f"{F_ACC}.attention.float16",
        {"status": "not_applicable"},
        f"{F_ACC}.attention.float16.reason is missing",
    ),
    (
        f"{F_ACC}.attention.float16",
        {"status": "not_applicable", "reason": "  "},
        f"{F_ACC}.attention.float16.reason is '  '",
    ),
    (f"{F_ACC}.attention.float16.status", "maybe", f"{F_ACC}.attention.float16.status is 'maybe'"),
    (f"{F_ACC}.logprob.float32.atol", -1e-5, f"{F_ACC}.logprob.float32.atol is -1e-05: a finite"),
    (f"{F_ACC}.logprob.float32.atol", float("nan"), f"{F_ACC}.logprob.float32.atol is nan: a fin"),
    (f"{F_ACC}.logprob.float32.rtol", float("inf"), f"{F_ACC}.logprob.float32.rtol is inf: a fin"),
    (f"{F_ACC}.logprob.float32.rtol", 10**400, f"{F_ACC}.logprob.float32.rtol is a number of man"),
    (f"{F_ACC}.logprob.float32.atol", "0.1", f"{F_ACC}.logprob.float32.atol is '0.1': a number"),
    (f"{F_ACC}.logprob.float32.atol", True, f"{F_ACC}.logprob.float32.atol is true: a number"),
    (f"{F_ACC}.logprob.float32.atol", None, f"{F_ACC}.logprob.float32.atol is null: a number"),
    (f"{F_ACC}.logprob.float32", [], f"{F_ACC}.logprob.float32 is a list: an object"),
    (f"{F_ACC}.logprob.float32.ulp", 1, f"{F_ACC}.logprob.float32.ulp is an unknown key"),
    (f"{F_ACC}.logprob.float64", {}, f"{F_ACC}.logprob.float64 is an unknown key"),
    (f"{F_ACC}.convolution", {}, f"{F_ACC}.convolution is an unknown key"),
    ("judgments.speed", {}, "judgments.speed is an unknown key"),
    ("extra", 1, "extra is an unknown key"),
    ("policy.tf32.reference", "enabled", "policy.tf32.reference is 'enabled': TF32 must be off"),
    ("policy.tf32.reference", True, "policy.tf32.reference is true: TF32 must be off"),
    ("policy.accumulation_dtype", "bfloat16", "policy.accumulation_dtype is 'bfloat16'"),
    ("policy.reference_dtype", "float64", "policy.reference_dtype is 'float64'"),
    (
        "policy.backend_private_tolerance_relaxation",
        True,
        "policy.backend_private_tolerance_relaxation is true: no backend has a tolerance",
    ),
    (
        "policy.backend_private_tolerance_relaxation",
        0,
        "policy.backend_private_tolerance_relaxation is 0: no backend has a tolerance",
    ),
]

OWN = [
    ("format", "biprop-contract-2", "format is 'biprop-contract-2': this version reads another"),
    ("version", "", "version is '': write what is meant"),
    ("version", "a\nb", "version is 'a\\nb': write one line"),
    ("policy.tf32.candidate", "enabled", "policy.tf32.candidate is 'enabled': TF32 must be off"),
    ("policy.logp_dtype", "bfloat16", "policy.logp_dtype is 'bfloat16'"),
    (
        "roles.invariance",
        {"left": "canonical_config", "right": "transformed_config"},
        "roles.invariance.left is 'canonical_config': the roles are swapped",
    ),
    ("roles.accuracy.right", "baseline", "roles.accuracy.right is 'baseline': the word names no"),
    (
        "roles.accuracy.left",
        "singleton_aggregate",
        "roles.accuracy.left is 'singleton_aggregate': the word names no role",
    ),
    ("roles.accuracy.left", "student", "roles.accuracy.left is 'student': the role is unknown"),
    (
        "roles.accuracy.left",
        "canonical_config",
        "roles.accuracy.left is 'canonical_config': the role belongs elsewhere",
    ),
    ("roles.forbidden", ["baseline"], "roles.forbidden is a list: 'singleton_aggregate' names no"),
    (
        "roles.forbidden",
        ["baseline", "singleton_aggregate", "fp32_reference"],
        "roles.forbidden[2] is 'fp32_reference': it is a role",
    ),
    (
        "judgments.forward_invariance.overrides",
        [OVERRIDE],
        "judgments.forward_invariance.overrides is a list: an invariance holds for every backend",
    ),
    (
        "judgments.gradient_accuracy.overrides",
        [{key: value for key, value in OVERRIDE.items() if key != "reason"}],
        "judgments.gradient_accuracy.overrides[0].reason is missing",
    ),
    (
        "judgments.gradient_accuracy.overrides",
        [{**OVERRIDE, "reason": ""}],
        "judgments.gradient_accuracy.overrides[0].reason is ''",
    ),
    (
        "judgments.gradient_accuracy.overrides",
        [{**OVERRIDE, "atol": -1}],
        "judgments.gradient_accuracy.overrides[0].atol is -1",
    ),
    (
        "judgments.gradient_accuracy.overrides",
        [{**OVERRIDE, "backends": ["triton"]}],
        "judgments.gradient_accuracy.overrides[0].backends is a list: parity is between two",
    ),
    (
        "judgments.gradient_accuracy.overrides",
        [{**OVERRIDE, "backends": ["triton", "triton"]}],
        "judgments.gradient_accuracy.overrides[0].backends[1] is 'triton': it stands there twice",
    ),
    (
        "judgments.gradient_accuracy.overrides",
        [{key: value for key, value in OVERRIDE.items() if key != "backends"}],
        "judgments.gradient_accuracy.overrides[0] is an object: say for which backends",
    ),
    (
        "judgments.gradient_accuracy.overrides",
        [{**OVERRIDE, "dtype": "float8"}],
        "judgments.gradient_accuracy.by_op_class.reduction.float8 demands nothing",
    ),
    (
        "judgments.gradient_accuracy.overrides",
        [OVERRIDE, {**OVERRIDE, "backends": ["triton", "torch"]}],
        "judgments.gradient_accuracy.by_op_class.reduction.bfloat16 has two overrides",
    ),
    (
        "chain_aggregates.metrics.clipfrac0.bfloat16",
        REMOVED,
        "chain_aggregates.metrics.clipfrac0.bfloat16 is missing",
    ),
    (
        "chain_aggregates.metrics.clipfrac0.bfloat16",
        -1,
        "chain_aggregates.metrics.clipfrac0.bfloat16 is -1",
    ),
    ("chain_aggregates.metrics.approx_kl0", REMOVED, "chain_aggregates.metrics.approx_kl0 is miss"),
    ("chain_aggregates.require_all", False, "chain_aggregates.require_all is false"),
    ("chain_aggregates.compute_dtype", "bfloat16", "chain_aggregates.compute_dtype is 'bfloat16'"),
    ("chain_aggregates.clip_interval", [0.8], "chain_aggregates.clip_interval is a list"),
    ("chain_aggregates.clip_interval", [1.1, 1.2], "chain_aggregates.clip_interval[0] is 1.1"),
    ("chain_aggregates.clip_interval", [0.8, 0.9], "chain_aggregates.clip_interval[1] is 0.9"),
    ("priorities.P0", ["logp", "logp"], "priorities.P0[1] is 'logp': it stands there twice"),
    ("priorities.P1", [{"name": "sampling"}], "priorities.P1[0].reason is missing"),
    ("priorities.P2", REMOVED, "priorities.P2 is missing"),
]

KIND = "comparison_roles.by_report_kind"
ARCH = "judgments.gradient_accuracy.arch_overrides.sm90"
AGGREGATES = "chain_logprob_aggregates"
WS1 = [
    ("version", "ws1-c1-v3", "version is 'ws1-c1-v3': a contract without a format has this one"),
    ("policy.fp8", "optional", "policy.fp8 is 'optional': nothing judges float8"),
    ("policy.fp16.status", "out_of_scope", "policy.fp16.status is 'out_of_scope'"),
    ("policy.execution_dtype", "float32", "policy.execution_dtype is 'float32'"),
    ("policy.output_dtype.default", "float32", "policy.output_dtype.default is 'float32'"),
    (
        "policy.output_dtype.logprob_aggregates",
        "bfloat16",
        "policy.output_dtype.logprob_aggregates is 'bfloat16'",
    ),
    (
        "policy.tf32.candidate_execution",
        "enabled",
        "policy.tf32.candidate_execution is 'enabled': TF32 must be off",
    ),
    ("policy.fp16.note", 5, "policy.fp16.note is 5: a string is needed"),
    (
        "policy.backend_profile_contracts.two",
        REMOVED,
        "policy.backend_profile_contracts.two is missing",
    ),
    (
        f"{KIND}.gradient_invariance",
        {"comparison_lhs_role": "canonical_config", "comparison_rhs_role": "transformed_config"},
        f"{KIND}.gradient_invariance.comparison_lhs_role is 'canonical_config': the roles are sw",
    ),
    (
        f"{KIND}.forward_accuracy.comparison_rhs_role",
        "baseline",
        f"{KIND}.forward_accuracy.comparison_rhs_role is 'baseline': the word names no role",
    ),
    (f"{KIND}.train_infer_logprob_parity", REMOVED, f"{KIND}.train_infer_logprob_parity is mis"),
    ("comparison_roles.allowed", ["bf16_candidate"], "comparison_roles.allowed is a list: list"),
    ("comparison_roles.allowed.0", "student", "comparison_roles.allowed[0] is 'student'"),
    ("comparison_roles.forbidden", [], "comparison_roles.forbidden is a list: 'baseline' names no"),
    (
        "judgments.forward_invariance.default_mode",
        "tolerance",
        "judgments.forward_invariance.default_mode is 'tolerance'",
    ),
    ("judgments.forward_invariance.scope", "batch", "judgments.forward_invariance.scope is 'batc"),
    (
        "judgments.forward_invariance.arch_overrides.sm90",
        {"reduction": {"bfloat16": {"reason": "x"}}},
        "judgments.forward_invariance.arch_overrides.sm90 is an object: an invariance holds",
    ),
    (
        f"{ARCH}.reduction",
        {"bfloat16": {"atol": 0.2}},
        f"{ARCH}.reduction.bfloat16.reason is missing",
    ),
    (
        f"{ARCH}.reduction",
        {"bfloat16": {"atol": 0.05, "reason": "x"}},
        f"{ARCH}.reduction.bfloat16.atol is 0.05: an override concerns parity alone",
    ),
    (f"{ARCH}.reduction", {"float8": {"reason": "x"}}, f"{ARCH}.reduction.float8 is an object"),
    (f"{ARCH}.pooling", {"float32": {"reason": "x"}}, f"{ARCH}.pooling is 'pooling': use one of"),
    ("accuracy.default.logprob.float32.atol", 0.1, "accuracy.default.logprob.float32.atol is 0.1"),
    ("accuracy.arch_overrides.sm90", {"logprob": {}}, "accuracy.arch_overrides.sm90 is an object"),
    ("batch_invariance.atol", 0.001, "batch_invariance.atol is 0.001: an invariance threshold mu"),
    (f"{AGGREGATES}.nan_inf_policy", "ignore", f"{AGGREGATES}.nan_inf_policy is 'ignore'"),
    (f"{AGGREGATES}.require_all", False, f"{AGGREGATES}.require_all is false"),
    (
        f"{AGGREGATES}.dlogp_definition",
        "comparison_rhs_logp - comparison_lhs_logp",
        f"{AGGREGATES}.dlogp_definition is 'comparison_rhs_logp",
    ),
    (
        f"{AGGREGATES}.sole_chain_level_logprob_metrics",
        ["approx_kl0"],
        f"{AGGREGATES}.sole_chain_level_logprob_metrics is a list",
    ),
    (
        f"{AGGREGATES}.metrics.approx_kl0.formula",
        "mean(dlogp)",
        f"{AGGREGATES}.metrics.approx_kl0.formula is 'mean(dlogp)'",
    ),
    (
        f"{AGGREGATES}.metrics.approx_kl0.by_execution_dtype.float32",
        {},
        f"{AGGREGATES}.metrics.approx_kl0.by_execution_dtype.float32.threshold is missing",
    ),
]


def refusal(data: object) -> str:
    """Return the sentence that a contract is refused with."""
    with pytest.raises(ContractError) as caught:
        loaded(data)
    return str(caught.value)


def refusal_of_text(text: str | bytes) -> str:
    """Return the sentence that the text of a contract is refused with."""
    with pytest.raises(ContractError) as caught:
        contract_from_bytes(text.encode() if isinstance(text, str) else text)
    return str(caught.value)


@pytest.mark.parametrize(("path", "value", "sentence"), [*COMMON, *OWN])
def test_own_layout_is_refused_by_path(path: str, value: object, sentence: str) -> None:
    """A wrong field of biprop's layout is refused in a sentence that begins with its path."""
    said = refusal(changed(own_layout(), path, value))

    assert said.startswith(sentence)
    assert re.fullmatch(r"[ -~]+: [ -~]+\.", said)


@pytest.mark.parametrize(("path", "value", "sentence"), [*COMMON, *WS1])
def test_ws1_layout_is_refused_by_path(path: str, value: object, sentence: str) -> None:
    """A wrong field of the layout ws1-c1-v2 is refused in a sentence that begins with its path."""
    said = refusal(changed(ws1_layout(), path, value))

    assert said.startswith(sentence)
    assert re.fullmatch(r"[ -~]+: [ -~]+\.", said)


@pytest.mark.parametrize("data", [own_layout(), ws1_layout()], ids=["own", "ws1"])
@pytest.mark.parametrize("judgment", JUDGMENTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8"])
def test_no_cell_may_be_missing(data: dict[str, Any], judgment: str, dtype: str) -> None:
    """Each of the cells is needed, and its path is named."""
    for op_class in OP_CLASSES:
        path = f"judgments.{judgment}.by_op_class.{op_class}.{dtype}"

        assert refusal(changed(data, path, REMOVED)) == f"{path} is missing: add it."


def test_contract_needs_a_layout() -> None:
    """An object with neither format nor version is refused, and both are named."""

    assert refusal({}) == (
        "The contract is an object: it needs a format, 'biprop-contract-1', or the version "
        "'ws1-c1-v2'."
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "The contract is no valid JSON (Expecting value in line 1)"),
        ("{", "The contract is no valid JSON"),
        ("[]", "The contract is a list: an object is needed here."),
        ("3", "The contract is 3: an object is needed here."),
        (b"\xff\xfe", "The contract is no UTF-8"),
        ('{"format": 1, "format": 2}', "The contract has the key 'format' twice"),
        ('{"a": ' + "9" * 5000 + "}", "The contract has a number of thousands of digits"),
        ("[" * 100_000, "The contract has a number of thousands of digits, or is nested too"),
        (" " * (1 << 18) + "{}", "The contract is longer than 262144 bytes"),
    ],
    ids=["empty", "cut", "list", "number", "binary", "twice", "digits", "deep", "long"],
)
def test_text_is_refused(text: str | bytes, sentence: str) -> None:
    """What is no JSON object, or too much, is refused before its fields are read."""

    assert refusal_of_text(text).startswith(sentence)


def test_file_that_is_absent_is_refused(tmp_path: Path) -> None:
    """A path without a file is named."""
    path = tmp_path / "none.json"

    with pytest.raises(ContractError, match=re.escape(f"{path} is no file")):
        load_contract(path)


def test_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    """A path may be a text, and what is wrong in its file is said with its name."""
    path = tmp_path / "wrong.json"
    path.write_text("[]")

    with pytest.raises(ContractError, match=re.escape(f"{path}: The contract is a list")):
        load_contract(str(path))


def test_what_is_no_path_is_refused() -> None:
    """Another value is refused in a sentence."""
    given: Any = 3

    with pytest.raises(ContractError, match="A int is no path"):
        load_contract(given)


def test_folder_is_refused(tmp_path: Path) -> None:
    """A folder is no contract."""

    with pytest.raises(ContractError, match="is no file: give the path of a contract"):
        load_contract(tmp_path)
