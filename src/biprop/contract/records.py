"""The contract as records: thresholds, roles, aggregates, and what is left for later.

Records answer questions about themselves; `biprop.contract.load` reads and refuses them,
`biprop.relations` judges with them. No tensor is compared here.
"""

from typing import Literal, get_args

import attrs

from biprop.errors import ContractError

__all__ = [
    "DTYPES",
    "JUDGMENTS",
    "MANDATORY_DTYPES",
    "METRICS",
    "OP_CLASSES",
    "ROLES",
    "STATUSES",
    "ChainAggregates",
    "Contract",
    "ContractCell",
    "Deferred",
    "Dtype",
    "Judgment",
    "Metric",
    "MetricThreshold",
    "Mode",
    "OpClass",
    "Override",
    "Role",
    "RolePair",
    "Roles",
    "Status",
    "Tolerance",
    "judgment_of",
]

Judgment = Literal[
    "forward_accuracy", "forward_invariance", "gradient_accuracy", "gradient_invariance"
]
# The classes of `biprop.operators`, which is a sibling of this package and out of its sight.
OpClass = Literal["elementwise", "reduction", "logprob", "attention"]
Dtype = Literal["float32", "bfloat16", "float16", "float8"]
Status = Literal["applicable", "optional", "not_applicable", "out_of_scope"]
Mode = Literal["tolerance", "bitwise"]
Metric = Literal["max_abs_dlogp", "approx_kl0", "clipfrac0"]
Role = Literal[
    "canonical_config",
    "transformed_config",
    "bf16_candidate",
    "fp32_reference",
    "training_style_teacher_forcing",
    "inference_style_rollout_decode",
]

JUDGMENTS: tuple[Judgment, ...] = get_args(Judgment)
OP_CLASSES: tuple[OpClass, ...] = get_args(OpClass)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
MANDATORY_DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
ROLES: tuple[Role, ...] = get_args(Role)
METRICS: tuple[Metric, ...] = get_args(Metric)
STATUSES: tuple[Status, ...] = get_args(Status)


@attrs.frozen(kw_only=True)
class Tolerance:
    """How far two values may lie apart: `|left - right| <= atol + rtol * |right|`.

    Attributes:
        atol: Absolute part, in the unit of the values.
        rtol: Part of the magnitude of the right side.
    """

    atol: float
    rtol: float


@attrs.frozen(kw_only=True)
class ContractCell:
    """What is demanded of one operator class in one dtype under one judgment.

    Attributes:
        judgment: One of `JUDGMENTS`.
        op_class: One of `OP_CLASSES`.
        dtype: One of `DTYPES`.
        status: `applicable` (must be run), `optional` (judged where it is run, and a run that is
            left out is said), `not_applicable` (with a reason) or `out_of_scope`.
        mode: `bitwise` for an invariance, `tolerance` for an accuracy.
        atol: None where nothing is demanded.
        rtol: None where nothing is demanded.
        reason: Why nothing is demanded; may be empty for `out_of_scope`.
    """

    judgment: Judgment
    op_class: OpClass
    dtype: Dtype
    status: Status
    mode: Mode
    atol: float | None = None
    rtol: float | None = None
    reason: str = ""

    @property
    def path(self) -> str:
        """Where the cell stands in the file."""
        return f"judgments.{self.judgment}.by_op_class.{self.op_class}.{self.dtype}"

    @property
    def tolerance(self) -> Tolerance | None:
        """Its thresholds, None where nothing is demanded."""
        if self.atol is None or self.rtol is None:
            return None
        return Tolerance(atol=self.atol, rtol=self.rtol)


@attrs.frozen(kw_only=True)
class Override:
    """Other thresholds for the parity of two backends, or for parity on one architecture.

    It replaces the thresholds of a cell for relation P alone: against the float32 reference and
    against itself no backend is given any room of its own.

    Attributes:
        judgment: An accuracy.
        op_class: One of `OP_CLASSES`.
        dtype: One of `DTYPES`.
        tolerance: What replaces the cell's.
        reason: Why; never empty.
        backends: The two backends in alphabetical order; None for any two.
        arch_key: Architecture, as `sm90`; empty for any.
    """

    judgment: Judgment
    op_class: OpClass
    dtype: Dtype
    tolerance: Tolerance
    reason: str
    backends: tuple[str, str] | None = None
    arch_key: str = ""


@attrs.frozen(kw_only=True)
class RolePair:
    """What is compared with what; differences are left minus right.

    Attributes:
        left: The side that is judged.
        right: The side that it is measured by.
    """

    left: Role
    right: Role


@attrs.frozen(kw_only=True)
class Roles:
    """The roles of every comparison; they are the same in every contract.

    Attributes:
        invariance: Of relation I.
        accuracy: Of relation A.
        train_inference_parity: Of the chain's logprobs.
        forbidden: Words that name no role.
    """

    invariance: RolePair = RolePair(left="transformed_config", right="canonical_config")
    accuracy: RolePair = RolePair(left="bf16_candidate", right="fp32_reference")
    train_inference_parity: RolePair = RolePair(
        left="training_style_teacher_forcing", right="inference_style_rollout_decode"
    )
    forbidden: tuple[str, ...] = ("baseline", "singleton_aggregate")


@attrs.frozen(kw_only=True)
class MetricThreshold:
    """The largest value that an aggregate may have.

    Attributes:
        metric: One of `METRICS`.
        dtype: In which the chain runs; the aggregate itself is computed in float32.
        threshold: The largest value that passes.
    """

    metric: Metric
    dtype: Dtype
    threshold: float


@attrs.frozen(kw_only=True)
class ChainAggregates:
    """Bounds on the logprobs of a whole chain, over active selected tokens.

    With d = left logprob minus right logprob: `max_abs_dlogp` is max |d|, `approx_kl0` the mean of
    exp(d) - 1 - d, `clipfrac0` the share of tokens whose exp(d) lies outside `clip_interval`. All
    three are required; NaN, Inf and an empty set of tokens fail.

    Attributes:
        clip_interval: Low and high end, both inside.
        thresholds: One a metric and dtype.
    """

    clip_interval: tuple[float, float]
    thresholds: tuple[MetricThreshold, ...]

    def threshold(self, *, metric: Metric, dtype: str) -> float | None:
        """Return the bound of an aggregate, None where the dtype has none (it is optional)."""
        found = (
            item.threshold
            for item in self.thresholds
            if (item.metric, item.dtype) == (metric, dtype)
        )
        return next(found, None)


@attrs.frozen(kw_only=True)
class Deferred:
    """What this version does not test.

    Attributes:
        name: What it is.
        priority: `P1` comes next, `P2` after it.
        reason: Why it waits.
    """

    name: str
    priority: Literal["P1", "P2"]
    reason: str


@attrs.frozen(kw_only=True)
class Contract:
    """Every threshold of a run, from one file.

    Attributes:
        version: As the file names itself.
        digest: SHA-256 of the file's canonical JSON, in hexadecimal.
        cells: One a judgment, operator class and dtype.
        roles: Of every comparison.
        aggregates: Bounds on the logprobs of a chain.
        overrides: Other thresholds for relation P.
        operators: Names of the P0 operators.
        deferred: What is left for later, with the reason.
        wider: Paths of thresholds that are wider than those of biprop's own contract.
        accumulation_dtype: Of every sum.
        reference_dtype: Of the reference.
        logp_dtype: Of logprobs, whatever the dtype of the operator.
    """

    version: str
    digest: str = ""
    cells: tuple[ContractCell, ...]
    aggregates: ChainAggregates
    roles: Roles = Roles()
    overrides: tuple[Override, ...] = ()
    operators: tuple[str, ...] = ()
    deferred: tuple[Deferred, ...] = ()
    wider: tuple[str, ...] = ()
    accumulation_dtype: Literal["float32"] = "float32"
    reference_dtype: Literal["float32"] = "float32"
    logp_dtype: Literal["float32"] = "float32"

    @property
    def name(self) -> str:
        """Version, start of the digest, and whether anything is wider, for reports."""
        name = f"{self.version} ({self.digest[:12]})"
        if not self.wider:
            return name
        count = len(self.wider)
        return f"{name}, {count} threshold{'s' if count > 1 else ''} wider than biprop's own"

    def cell(self, *, judgment: str, op_class: str, dtype: str) -> ContractCell:
        """Return what is demanded.

        Raises:
            ContractError: There is no such judgment, operator class or dtype.
        """
        for cell in self.cells:
            if (cell.judgment, cell.op_class, cell.dtype) == (judgment, op_class, dtype):
                return cell
        raise ContractError(
            f"The contract has no cell judgments.{judgment}.by_op_class.{op_class}.{dtype}: it has "
            f"{', '.join(JUDGMENTS)}, each for {', '.join(OP_CLASSES)} in {', '.join(DTYPES)}."
        )

    def tolerance(
        self,
        *,
        judgment: Judgment,
        op_class: str,
        dtype: str,
        backends: tuple[str, str] | None = None,
        arch_key: str = "",
    ) -> Tolerance | None:
        """Return the thresholds of one comparison; zeros for an invariance.

        Args:
            judgment: By `judgment_of`.
            op_class: Of the operator.
            dtype: Of the case.
            backends: The two backends of relation P, in any order; None for the other relations,
                which no override changes.
            arch_key: Architecture that the comparison runs on, as `sm90`; empty for none.

        Returns:
            None where nothing is demanded: the cell is not applicable or out of scope. An optional
            cell has thresholds, since what is run is judged; its status says that it need not run.

        Raises:
            ContractError: There is no such cell.
        """
        cell = self.cell(judgment=judgment, op_class=op_class, dtype=dtype)
        if cell.tolerance is None or backends is None:
            return cell.tolerance
        pair = tuple(sorted(backends))
        # A pair on an architecture before a pair before an architecture: the narrowest first.
        for wanted in ((pair, arch_key), (pair, ""), (None, arch_key)):
            for override in self.overrides:
                key = (override.judgment, override.op_class, override.dtype)
                if key != (judgment, op_class, dtype) or wanted == (None, ""):
                    continue
                if (override.backends, override.arch_key) == wanted:
                    return override.tolerance
        return cell.tolerance


def judgment_of(
    relation: Literal["I", "A", "P"], direction: Literal["forward", "backward"]
) -> Judgment:
    """Return which thresholds a relation is judged by; parity takes those of accuracy.

    Gradients have their own: none is inherited from forward.
    """
    if relation == "I":
        return "forward_invariance" if direction == "forward" else "gradient_invariance"
    return "forward_accuracy" if direction == "forward" else "gradient_accuracy"
