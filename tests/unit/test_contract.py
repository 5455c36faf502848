"""The contract: what it demands, how it is asked, and what its page for readers says."""

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import attrs
import pytest
from tests.unit.contract_layouts import REMOVED, changed, loaded, own_layout, ws1_layout

import biprop.contract
from biprop.contract import (
    DTYPES,
    JUDGMENTS,
    MANDATORY_DTYPES,
    METRICS,
    OP_CLASSES,
    ROLES,
    Judgment,
    RolePair,
    Tolerance,
    contract_from_bytes,
    judgment_of,
    load_contract,
)
from biprop.errors import ContractError
from biprop.operators import OpClass

README = Path(biprop.contract.__file__).with_name("README.md")
BF16_REDUCTION = "judgments.gradient_accuracy.by_op_class.reduction.bfloat16"
OVERRIDE = {
    "op_class": "reduction",
    "dtype": "bfloat16",
    "atol": 0.2,
    "rtol": 0.02,
    "reason": "another order of sums",
}


def tolerance(
    data: dict[str, Any], *, backends: tuple[str, str] | None = None, arch_key: str = ""
) -> Tolerance | None:
    """Return what a contract demands of the gradient of a bfloat16 reduction."""
    return loaded(data).tolerance(
        judgment="gradient_accuracy",
        op_class="reduction",
        dtype="bfloat16",
        backends=backends,
        arch_key=arch_key,
    )


def with_overrides(*overrides: dict[str, Any]) -> dict[str, Any]:
    """Return biprop's own contract with overrides of a bfloat16 reduction's gradient."""
    return changed(
        own_layout(),
        "judgments.gradient_accuracy.overrides",
        [{**OVERRIDE, **override} for override in overrides],
    )


class TestOwn:
    """biprop's own contract."""

    def test_has_every_cell(self) -> None:
        """Each judgment has a cell of each operator class in each dtype, and no other."""
        found = [(cell.judgment, cell.op_class, cell.dtype) for cell in load_contract().cells]

        assert found == list(product(JUDGMENTS, OP_CLASSES, DTYPES))

    def test_statuses_follow_the_dtype(self) -> None:
        """float32 and bfloat16 are mandatory, float16 is optional, float8 is out of scope."""
        found = {(cell.dtype, cell.status) for cell in load_contract().cells}

        assert found == {
            ("float32", "applicable"),
            ("bfloat16", "applicable"),
            ("float16", "optional"),
            ("float8", "out_of_scope"),
        }

    def test_invariance_is_bitwise(self) -> None:
        """Every invariance that is demanded has the mode bitwise and thresholds of zero."""
        cells = [cell for cell in load_contract().cells if cell.judgment.endswith("invariance")]

        assert {cell.mode for cell in cells} == {"bitwise"}
        assert {(cell.atol, cell.rtol) for cell in cells} == {(0.0, 0.0), (None, None)}

    def test_says_why_things_wait(self) -> None:
        """Whatever is deferred has a priority and a reason."""
        deferred = load_contract().deferred

        assert {item.priority for item in deferred} == {"P1", "P2"}
        assert all(len(item.reason) > 20 for item in deferred)

    def test_is_not_wider_than_itself(self) -> None:
        """A copy of the packaged file is the same contract, with nothing that is wider."""

        assert loaded(own_layout()) == load_contract()
        assert load_contract().wider == ()

    def test_is_read_once(self) -> None:
        """The packaged contract is one object in a process."""

        assert load_contract() is load_contract()

    def test_knows_the_classes_of_operators(self) -> None:
        """The operator classes are those of `biprop.operators`, which it may not import."""

        assert set(get_args(OpClass)) == set(OP_CLASSES)

    def test_roles_are_those_of_the_records(self) -> None:
        """Each comparison has two roles, the judged side on the left."""
        roles = load_contract().roles

        assert roles.invariance == RolePair(left="transformed_config", right="canonical_config")
        assert roles.accuracy == RolePair(left="bf16_candidate", right="fp32_reference")
        assert roles.train_inference_parity == RolePair(
            left="training_style_teacher_forcing", right="inference_style_rollout_decode"
        )

    def test_aggregates_have_bounds(self) -> None:
        """Each aggregate has a bound in every dtype that is judged, and the share is zero."""
        aggregates = load_contract().aggregates
        found = {
            (metric, dtype): aggregates.threshold(metric=metric, dtype=dtype)
            for metric in METRICS
            for dtype in (*MANDATORY_DTYPES, "float16")
        }

        assert all(bound is not None for bound in found.values())
        assert {found["clipfrac0", dtype] for dtype in MANDATORY_DTYPES} == {0.0}
        assert aggregates.threshold(metric="clipfrac0", dtype="float8") is None


class TestAsked:
    """What is demanded of one comparison."""

    @pytest.mark.parametrize(
        ("relation", "direction", "judgment"),
        [
            ("I", "forward", "forward_invariance"),
            ("I", "backward", "gradient_invariance"),
            ("A", "forward", "forward_accuracy"),
            ("A", "backward", "gradient_accuracy"),
            ("P", "forward", "forward_accuracy"),
            ("P", "backward", "gradient_accuracy"),
        ],
    )
    def test_relation_has_a_judgment(
        self,
        relation: Literal["I", "A", "P"],
        direction: Literal["forward", "backward"],
        judgment: Judgment,
    ) -> None:
        """A relation and a direction give one judgment; parity has that of accuracy."""

        assert judgment_of(relation, direction) == judgment

    @pytest.mark.parametrize("op_class", OP_CLASSES)
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_gradients_inherit_nothing(self, op_class: str, dtype: str) -> None:
        """Other thresholds of forward leave those of gradients as they were, and the reverse."""
        for changing, kept in (("forward", "gradient"), ("gradient", "forward")):
            path = f"judgments.{changing}_accuracy.by_op_class.{op_class}.{dtype}.atol"
            contract = loaded(changed(own_layout(), path, 0.75))
            cells = {
                side: contract.cell(judgment=f"{side}_accuracy", op_class=op_class, dtype=dtype)
                for side in (changing, kept)
            }

            assert cells[changing].atol == 0.75
            assert cells[kept] == load_contract().cell(
                judgment=f"{kept}_accuracy", op_class=op_class, dtype=dtype
            )

    def test_missing_gradients_are_not_filled_in(self) -> None:
        """A row of gradients that is missing is refused, whatever forward says."""
        spoiled = changed(own_layout(), "judgments.gradient_accuracy.by_op_class.logprob", REMOVED)

        with pytest.raises(ContractError, match=r"judgments\.gradient_accuracy\.by_op_class\.logp"):
            loaded(spoiled)

    def test_invariance_is_zero(self) -> None:
        """The tolerance of an invariance is zero, also where nothing but bits is asked for."""
        found = load_contract().tolerance(
            judgment="forward_invariance", op_class="attention", dtype="bfloat16"
        )

        assert found == Tolerance(atol=0.0, rtol=0.0)

    def test_what_is_optional_is_judged_where_it_runs(self) -> None:
        """An optional cell has thresholds."""
        contract = load_contract()
        cell = contract.cell(judgment="forward_accuracy", op_class="logprob", dtype="float16")
        found = contract.tolerance(judgment="forward_accuracy", op_class="logprob", dtype="float16")

        assert cell.status == "optional"
        assert found == Tolerance(atol=0.005, rtol=0.0)

    def test_what_is_out_of_scope_demands_nothing(self) -> None:
        """A cell out of scope, or not applicable, has no thresholds."""
        path = "judgments.forward_accuracy.by_op_class.logprob.float16"
        absent = {"status": "not_applicable", "reason": "no device of ours has it"}
        contract = loaded(changed(own_layout(), path, absent))

        for dtype in ("float8", "float16"):
            assert (
                contract.tolerance(judgment="forward_accuracy", op_class="logprob", dtype=dtype)
                is None
            )
        cell = contract.cell(judgment="forward_accuracy", op_class="logprob", dtype="float16")
        assert (cell.status, cell.reason) == ("not_applicable", "no device of ours has it")

    def test_unknown_cell_is_refused(self) -> None:
        """A dtype without a cell is refused, and what there is is named."""

        with pytest.raises(ContractError, match=r"no cell judgments\.forward_accuracy.*float64"):
            load_contract().tolerance(
                judgment="forward_accuracy", op_class="logprob", dtype="float64"
            )

    def test_override_of_a_pair_is_for_parity_of_the_pair(self) -> None:
        """An override for two backends changes their parity in either order, and nothing else."""
        data = with_overrides({"backends": ["triton", "torch"]})
        other, own = Tolerance(atol=0.2, rtol=0.02), Tolerance(atol=0.1, rtol=0.02)

        assert tolerance(data, backends=("torch", "triton")) == other
        assert tolerance(data, backends=("triton", "torch"), arch_key="sm90") == other
        assert tolerance(data, backends=("torch", "cuda")) == own
        assert tolerance(data) == own

    def test_override_of_an_architecture_is_for_parity_there(self) -> None:
        """An override for an architecture changes parity on it; accuracy keeps its cell."""
        data = with_overrides({"arch_key": "sm90"})
        other, own = Tolerance(atol=0.2, rtol=0.02), Tolerance(atol=0.1, rtol=0.02)

        assert tolerance(data, backends=("torch", "triton"), arch_key="sm90") == other
        assert tolerance(data, backends=("torch", "triton"), arch_key="sm80") == own
        assert tolerance(data, backends=("torch", "triton")) == own
        assert tolerance(data, arch_key="sm90") == own

    def test_narrowest_override_wins(self) -> None:
        """A pair on an architecture comes before the pair, and the pair before an architecture."""
        data = with_overrides(
            {"arch_key": "sm90", "atol": 0.3},
            {"backends": ["torch", "triton"], "atol": 0.4},
            {"backends": ["torch", "triton"], "arch_key": "sm90", "atol": 0.5},
        )
        asked = {
            0.5: (("torch", "triton"), "sm90"),
            0.4: (("torch", "triton"), "sm80"),
            0.3: (("torch", "cuda"), "sm90"),
            0.1: (("torch", "cuda"), "sm80"),
        }

        for atol, (backends, arch_key) in asked.items():
            assert tolerance(data, backends=backends, arch_key=arch_key) == Tolerance(
                atol=atol, rtol=0.02
            )

    def test_override_leaves_other_cells(self) -> None:
        """An override of one cell is no override of another."""
        contract = loaded(with_overrides({"backends": ["torch", "triton"]}))

        assert contract.tolerance(
            judgment="forward_accuracy",
            op_class="reduction",
            dtype="bfloat16",
            backends=("torch", "triton"),
        ) == Tolerance(atol=0.05, rtol=0.02)


class TestOther:
    """A contract of a user."""

    def test_ws1_layout_says_the_same(self) -> None:
        """The layout ws1-c1-v2 of biprop's own contract has the same cells and aggregates."""
        own, other = load_contract(), loaded(ws1_layout())
        cells = tuple(attrs.evolve(cell, reason="") for cell in own.cells)

        assert other.version == "ws1-c1-v2"
        assert (other.cells, other.aggregates) == (cells, own.aggregates)
        assert (other.operators, other.deferred) == (own.operators, own.deferred)

    def test_notes_are_read_over(self) -> None:
        """The free text of the layout ws1-c1-v2 changes nothing."""
        data = ws1_layout()
        for path in (
            "policy.fp16.note",
            "policy.tf32.policy",
            "judgments.forward_accuracy.calibration_status",
            "judgments.gradient_accuracy.calibration_note",
            "chain_logprob_aggregates.metrics.approx_kl0.threshold_rationale",
        ):
            data = changed(data, path, "some words")

        assert loaded(data).cells == loaded(ws1_layout()).cells

    def test_override_in_ws1_layout_is_for_parity(self) -> None:
        """There an override of an architecture changes parity on it, and keeps what it leaves."""
        path = "judgments.gradient_accuracy.arch_overrides.sm90"
        override = {"reduction": {"bfloat16": {"atol": 0.2, "reason": "another order"}}}
        data = changed(ws1_layout(), path, override)

        found = tolerance(data, backends=("torch", "triton"), arch_key="sm90")
        assert found == Tolerance(atol=0.2, rtol=0.02)
        assert tolerance(data, arch_key="sm90") == Tolerance(atol=0.1, rtol=0.02)

    def test_narrower_thresholds_are_accepted(self) -> None:
        """A contract may demand more, and then nothing of it is wider."""
        contract = loaded(changed(own_layout(), f"{BF16_REDUCTION}.atol", 0.01))

        assert contract.wider == ()
        assert contract.name == f"{contract.version} ({contract.digest[:12]})"

    @pytest.mark.parametrize(
        ("path", "value", "wider"),
        [
            (f"{BF16_REDUCTION}.atol", 0.11, BF16_REDUCTION),
            (f"{BF16_REDUCTION}.rtol", 0.03, BF16_REDUCTION),
            (
                "judgments.forward_invariance.by_op_class.logprob.float16",
                {"status": "not_applicable", "reason": "no device has it"},
                "judgments.forward_invariance.by_op_class.logprob.float16",
            ),
            (
                "chain_aggregates.metrics.clipfrac0.bfloat16",
                0.01,
                "chain_aggregates.metrics.clipfrac0.bfloat16",
            ),
            (
                "chain_aggregates.metrics.clipfrac0.float16",
                REMOVED,
                "chain_aggregates.metrics.clipfrac0.float16",
            ),
            ("chain_aggregates.clip_interval", [0.7, 1.2], "chain_aggregates.clip_interval"),
            (
                "judgments.gradient_accuracy.overrides",
                [{**OVERRIDE, "backends": ["torch", "triton"]}],
                f"{BF16_REDUCTION} of torch and triton",
            ),
        ],
    )
    def test_wider_thresholds_are_said(self, path: str, value: object, wider: str) -> None:
        """A contract may demand less of what has a threshold, but never quietly."""
        contract = loaded(changed(own_layout(), path, value))

        assert contract.wider == (wider,)
        assert contract.name.endswith(", 1 threshold wider than biprop's own")

    def test_digest_is_of_the_content(self) -> None:
        """Spaces and the order of keys do not change the digest, a number does."""
        data = own_layout()
        spaced = json.dumps(dict(reversed(data.items())), indent=3)
        other = loaded(changed(data, f"{BF16_REDUCTION}.atol", 0.11))

        assert contract_from_bytes(spaced.encode()).digest == load_contract().digest
        assert other.digest != load_contract().digest

    def test_file_is_read(self, tmp_path: Path) -> None:
        """A contract is read from a path, with a byte order mark too."""
        path = tmp_path / "contract.json"
        path.write_text(json.dumps(ws1_layout()), encoding="utf-8-sig")

        assert load_contract(path) == loaded(ws1_layout())


class TestReadme:
    """The page for readers, beside the contract."""

    def test_table_of_thresholds_is_the_contract(self) -> None:
        """The rows of the page are the cells of the contract, in number and in value."""
        wanted = {
            f"{judgment.split('_')[0]} {op_class}": [
                _numbers(judgment, op_class, dtype) for dtype in DTYPES if dtype != "float8"
            ]
            for judgment in JUDGMENTS
            if judgment.endswith("accuracy")
            for op_class in OP_CLASSES
        }
        rows = {
            first: [tuple(float(number) for number in cell.split("/")) for cell in cells]
            for first, *cells in table_rows()
            if first.startswith(("forward ", "gradient "))
        }

        assert rows == wanted

    def test_table_of_aggregates_is_the_contract(self) -> None:
        """The bounds of the page are those of the contract."""
        aggregates = load_contract().aggregates
        rows = {
            first: [float(cell) for cell in cells]
            for first, _, *cells in table_rows()
            if first in METRICS
        }

        assert rows == {
            metric: [
                aggregates.threshold(metric=metric, dtype=dtype)
                for dtype in ("float32", "bfloat16", "float16")
            ]
            for metric in METRICS
        }
        assert "outside {} to {} |".format(*aggregates.clip_interval) in README.read_text()

    def test_table_of_roles_is_the_contract(self) -> None:
        """The roles of the page are those of the contract, on their sides."""
        roles = load_contract().roles
        rows = {first: tuple(cells) for first, *cells in table_rows() if cells[-1] in ROLES}

        assert rows == {
            "invariance": (roles.invariance.left, roles.invariance.right),
            "accuracy": (roles.accuracy.left, roles.accuracy.right),
            "train-inference parity": (
                roles.train_inference_parity.left,
                roles.train_inference_parity.right,
            ),
        }

    def test_priorities_are_the_contract(self) -> None:
        """P0, P1 and P2 of the page list what the contract lists, in its order."""
        contract = load_contract()
        wanted = {
            "P0": list(contract.operators),
            "P1": [item.name for item in contract.deferred if item.priority == "P1"],
            "P2": [item.name for item in contract.deferred if item.priority == "P2"],
        }
        text = " ".join(README.read_text().split())
        found = {
            name: re.split(r", ", listed)
            for name, listed in re.findall(r"- \*\*(P\d)\*\*[^:]*: ([^.]*)\.", text)
        }

        assert found == wanted

    @pytest.mark.parametrize(
        "words",
        [
            *JUDGMENTS,
            "| I, invariance |",
            "| A, accuracy |",
            "| P, parity |",
            "| every invariance | bitwise | bitwise | bitwise |",
            "## Decision rule",
            "1. I first.",
            "2. Then A",
            "3. Then P",
            "lowest chain index",
            "## Where they come from",
            "ws1-c1-v2",
            "never a bfloat16 pass",
            "never inherited from forward",
            "TF32 is off on both sides",
            '"baseline" and "singleton_aggregate" name no role',
            "pytest -n auto tests/props",
            "biprop check",
        ],
    )
    def test_page_says(self, words: str) -> None:
        """What a reader must know stands on the page."""

        assert words in README.read_text().replace("### ", "## ")


def table_rows() -> Iterator[list[str]]:
    """Yield the cells of every row of every table of the page."""
    for line in README.read_text().splitlines():
        if line.startswith("| ") and line.endswith(" |"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def _numbers(judgment: Judgment, op_class: str, dtype: str) -> tuple[float, float]:
    found = load_contract().tolerance(judgment=judgment, op_class=op_class, dtype=dtype)
    assert found is not None
    return found.atol, found.rtol
