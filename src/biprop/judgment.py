"""Verdicts, causes and outcomes: what the runs of a case amount to.

Records only, without tensors, so that they cross processes as JSON. `biprop.execution` makes the
runs, `biprop.relations` compares, repeats and fills these records, `biprop.reports` tells people.
"""

from enum import StrEnum
from typing import Literal

import attrs
import cattrs

from biprop.case import Json, Relation, reason_of, strict_converter
from biprop.errors import CaseError

__all__ = [
    "BitDifference",
    "Cause",
    "Claim",
    "ClaimValue",
    "ClassEvidence",
    "LaunchFact",
    "Mismatch",
    "Outcome",
    "Power",
    "Proof",
    "Verdict",
    "outcome_from_data",
    "outcome_to_data",
    "record_converter",
]


class Verdict(StrEnum):
    """What is concluded of a case, a cell or a check."""

    HOLDS = "HOLDS"
    DRIFTS = "DRIFTS"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    INACCURATE = "INACCURATE"
    CRASHES = "CRASHES"
    # Of a cell alone: something else than its backend computed, so no case of it shows anything.
    FALLBACK = "FALLBACK"
    VACUOUS = "VACUOUS"
    UNSUPPORTED = "UNSUPPORTED"

    @property
    def is_violation(self) -> bool:
        """Whether it makes a check fail (exit code 1)."""
        return self in {
            Verdict.DRIFTS,
            Verdict.NONDETERMINISTIC,
            Verdict.INACCURATE,
            Verdict.CRASHES,
            Verdict.FALLBACK,
        }


ClassEvidence = Literal["powered", "unpowered", "vacuous"]


@attrs.frozen(kw_only=True)
class Cause:
    """What shrinking must keep, and what tells findings apart.

    Attributes:
        verdict: A violation.
        relation: `I` invariance, `A` accuracy or `P` parity: the one of the case.
        backend: Of `P`: the other backend.
        direction: `forward` or `backward`.
        output: Name of the output, gradient (`dx`) or accumulator that differs first in signature
            order; `x (dead slots)` where a launch changed dead slots of a mutated argument; empty
            for CRASHES and for a NONDETERMINISTIC canonical run without a name.
        finite: False where the case fails only with a non-finite fill.
        transforms: Classes left after minimising; empty before.
    """

    verdict: Verdict
    direction: Literal["forward", "backward"]
    output: str = ""
    finite: bool = True
    relation: Relation = "I"
    backend: str = ""
    transforms: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return one word that names the cause without its transforms."""
        fill = "finite" if self.finite else "nonfinite"
        relation = f"{self.relation}-{self.backend}" if self.backend else self.relation
        return f"{relation}-{self.verdict}-{self.direction}-{self.output or 'launch'}-{fill}"


@attrs.frozen(kw_only=True)
class BitDifference:
    """The first difference in logical order.

    Of relations A and P, `canonical` is the kernel's own canonical run, and `transformed` what it
    is held against: the reference, or the other backend's canonical run.

    Attributes:
        sequence_id: Id of the sequence; -1 for a parameter's gradient.
        token: Token of the sequence; -1 likewise.
        coordinate: Index in the free dimensions of the output.
        canonical_row: Slot or row of the canonical launch, -1 for parameters.
        transformed_row: Likewise in the transformed launch.
        transformed_launch: Index of the transformed launch.
        canonical_bits: Bit pattern, hexadecimal with `0x`.
        transformed_bits: Likewise.
        canonical_value: The value as text (`float.hex` is not used: `repr` of the exact float).
        transformed_value: Likewise.
    """

    sequence_id: int
    token: int
    coordinate: tuple[int, ...]
    canonical_row: int
    transformed_row: int
    transformed_launch: int
    canonical_bits: str
    transformed_bits: str
    canonical_value: str
    transformed_value: str


@attrs.frozen(kw_only=True)
class Mismatch:
    """How one output differs.

    Of relations A and P, elements count as differing that lie beyond the tolerance.

    Attributes:
        output: Its name.
        dtype: Its dtype.
        elements: Elements that differ, of `elements_compared`.
        tokens: Tokens that differ, of `tokens_compared`; 0 of 0 for parameters.
        max_abs_error: Over pairs of finite values; None without such a pair that differs.
        mean_abs_error: Likewise.
        max_rel_error: None also where a canonical zero has another counterpart. Of relations A and
            P it is divided by the magnitude of the other side.
        other_dtype: Of the other side in relations A and P; empty where it is the same.
    """

    output: str
    dtype: str
    elements: int
    elements_compared: int
    tokens: int
    tokens_compared: int
    first: BitDifference
    max_abs_error: float | None = None
    mean_abs_error: float | None = None
    max_rel_error: float | None = None
    other_dtype: str = ""


@attrs.frozen(kw_only=True)
class Power:
    """Whether the data could have shown a defect.

    Attributes:
        kind: `order`: share of compared elements whose bits change under other summation orders;
            `value`: share of watched rows that differ from every other row and from the fill;
            `magnitude`, of relations A and P: share of compared elements that are finite and not
            zero in what the kernel is held against.
        share: 0 to 1.
    """

    kind: Literal["order", "value", "magnitude"]
    share: float


@attrs.frozen(kw_only=True)
class LaunchFact:
    """What was launched, as far as it can be seen from the host.

    Attributes:
        role: `canonical` or `transformed`.
        kernel: Name.
        grid: Launch grid; empty where unknown.
        configuration: Compile-time values and warps, as text.
    """

    role: str
    kernel: str
    grid: tuple[int, ...] = ()
    configuration: str = ""


@attrs.frozen(kw_only=True)
class Outcome:
    """What judging one case gave.

    Attributes:
        verdict: HOLDS, DRIFTS, NONDETERMINISTIC, INACCURATE, CRASHES, VACUOUS or UNSUPPORTED.
        cause: Of a violation.
        mismatches: One an output that differs, in signature order.
        power: None where nothing was compared.
        classes: Evidence by class of the composition (`T1`, `T4.finite`, ...); of relations A and
            P by the name of what the kernel is held against (`A`, `P torch`).
        tolerance_share: Of relations A and P: the largest error as a share of what is allowed;
            None where it is not finite, or no error was measured.
        rejected: Message of a canonical run that raised; the case is then excluded (VACUOUS).
        message: Exception, signal or hang of CRASHES; reason of UNSUPPORTED.
        is_hung: Of CRASHES: whether a run did not end in its time.
        rate: Share of runs that differ from the most frequent result, for NONDETERMINISTIC.
        repeats: Runs of each side that the verdict rests on.
        launches: Launches made, repeats included.
        seconds: Wall time by part: `prepare`, `launch`, `compare`, `power`.
        facts: Launch facts.
        poisons: Which poisons reached outputs or workspaces.
        actual_backend: What ran, e.g. `triton-interpreter`.
    """

    verdict: Verdict
    cause: Cause | None = None
    mismatches: tuple[Mismatch, ...] = ()
    power: Power | None = None
    classes: dict[str, ClassEvidence] = attrs.field(factory=dict)
    tolerance_share: float | None = None
    rejected: str = ""
    message: str = ""
    is_hung: bool = False
    rate: float | None = None
    repeats: int = 1
    launches: int = 0
    seconds: dict[str, float] = attrs.field(factory=dict)
    facts: tuple[LaunchFact, ...] = ()
    poisons: tuple[str, ...] = ()
    actual_backend: str = ""


ClaimValue = None | bool | int | float | str | tuple[int, ...]


@attrs.frozen(kw_only=True)
class Claim:
    """One place of a minimal case, and other values that were judged there.

    Attributes:
        path: Where: names of fields and keys, and indices of tuples, from the case down
            (`biprop.case.with_value`).
        value: What the minimal case holds there; None where it is a whole record.
        others: What was put there instead; None means that the place was taken out.
    """

    path: tuple[int | str, ...]
    value: ClaimValue = None
    others: tuple[ClaimValue, ...] = ()


@attrs.frozen(kw_only=True)
class Proof:
    """Why a case is minimal; `biprop replay --verify` judges each claim again.

    Attributes:
        needed: Places where each of the other values makes the cause vanish.
        free: Places that do not matter: with each of the other values the cause stays.
        complete: Whether every structural number was tried; False where the budget was spent
            before.
        runs: Cases judged from the first failure on.
    """

    needed: tuple[Claim, ...] = ()
    free: tuple[Claim, ...] = ()
    complete: bool = False
    runs: int = 0


def outcome_to_data(outcome: Outcome) -> dict[str, Json]:
    """Return `outcome` as a JSON object that leaves defaults out."""
    data = _CONVERTER.unstructure(outcome)
    assert isinstance(data, dict)
    return data


def outcome_from_data(data: object) -> Outcome:
    """Return the outcome of a JSON object.

    Raises:
        CaseError: One sentence that names the first path that is wrong.
    """
    try:
        return _CONVERTER.structure(data, Outcome)
    except Exception as error:
        raise CaseError(f"The outcome cannot be read: {reason_of(error)}.") from error


def record_converter() -> cattrs.Converter:
    """Return the strict converter of cases, with what these records need beyond it."""
    converter = strict_converter()
    # A StrEnum is a str to cattrs, whose hook would refuse it on the way back.
    converter.register_unstructure_hook(Verdict, lambda verdict: verdict.value)
    converter.register_structure_hook(Verdict, lambda value, _: _verdict(value))
    converter.register_structure_hook(ClaimValue, lambda value, _: _claim_value(value))
    converter.register_structure_hook(int | str, lambda value, _: _step(value))
    return converter


def _verdict(value: object) -> Verdict:
    if type(value) is str and value in list(Verdict):
        return Verdict(value)
    raise ValueError(f"needs one of {', '.join(Verdict)}")


def _claim_value(value: object) -> ClaimValue:
    if isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    if value is None or type(value) in {bool, int, float, str}:
        return value  # type: ignore[return-value]  # narrowed by the line above
    raise ValueError("needs null, true, false, a number, a string, or a list of whole numbers")


def _step(value: object) -> int | str:
    if type(value) is int or type(value) is str:
        return value
    raise ValueError("needs a whole number or a string")


_CONVERTER = record_converter()
