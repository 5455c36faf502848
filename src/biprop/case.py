"""Cases: JSON values that fix one experiment completely, without a tensor.

Which cases are legal for a signature says `biprop.generation.legal`; what a kernel makes of one
says `biprop.relations`. Transforms are records of `biprop.transforms`: a case holds them as plain
data (`TransformData`), so that this module stays below them.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Literal

import attrs
import cattrs

from biprop.data.recipe import Recipe
from biprop.errors import CaseError
from biprop.sequence import LogicalSequence

__all__ = [
    "DTYPES",
    "SDPA_BACKENDS",
    "Against",
    "Case",
    "Dtype",
    "Execution",
    "Json",
    "Judged",
    "Relation",
    "SdpaBackend",
    "TransformData",
    "TransformValue",
    "canonical_json",
    "case_from_data",
    "case_to_data",
    "reason_of",
    "strict_converter",
    "value_at",
    "with_value",
]

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16")
Judged = Literal["outputs", "token_gradients", "parameter_gradients"]
Relation = Literal["I", "A", "P"]
SdpaBackend = Literal["any", "math", "flash", "efficient", "cudnn"]
SDPA_BACKENDS: tuple[SdpaBackend, ...] = ("any", "math", "flash", "efficient", "cudnn")
TransformValue = int | str | bool | tuple[int, ...]
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@attrs.frozen(kw_only=True)
class TransformData:
    """One transform as data: its name and the values of its fields.

    Attributes:
        name: Class name of a transform (`biprop.transforms`).
        values: Its fields.
    """

    name: str
    values: dict[str, TransformValue] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Execution:
    """Switches of the process that runs the case.

    Off unless a case says otherwise, whatever torch starts with: sums are then accumulated in
    float32, as the contract asks.

    Attributes:
        threads: Intra-op threads of torch on the CPU.
        deterministic_algorithms: `torch.use_deterministic_algorithms`.
        tf32: Whether TF32 may stand in for float32.
        bf16_reduced_precision: Whether products of bfloat16 on CUDA may add partial sums in
            bfloat16 (`torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction`).
        fp16_reduced_precision: Likewise for float16.
        sdpa_backend: Which kernels `scaled_dot_product_attention` may choose from; `any` leaves the
            choice to torch.
    """

    threads: int = 1
    deterministic_algorithms: bool = False
    tf32: bool = False
    bf16_reduced_precision: bool = False
    fp16_reduced_precision: bool = False
    sdpa_backend: SdpaBackend = "any"

    @property
    def has_reduced_precision(self) -> bool:
        """Whether sums or products of float32 may be taken in less."""
        return self.tf32 or self.bf16_reduced_precision or self.fp16_reduced_precision

    @property
    def words(self) -> tuple[str, ...]:
        """Return what is switched other than by default, threads aside."""
        found = {
            "deterministic algorithms": self.deterministic_algorithms,
            "tf32": self.tf32,
            "bf16 reduced precision": self.bf16_reduced_precision,
            "fp16 reduced precision": self.fp16_reduced_precision,
            f"sdpa {self.sdpa_backend}": self.sdpa_backend != "any",
        }
        return tuple(word for word, is_on in found.items() if is_on)


@attrs.frozen(kw_only=True)
class Against:
    """What a canonical run is held against, and how far it may lie from it.

    An element agrees where `|own - other| <= atol + rtol * |other|`. Both numbers are a copy of
    what the contract says when the case is drawn, so that a fixture replays under the tolerance
    that it was found with.

    Attributes:
        relation: `A`, against the operator's float32 reference, or `P`, against another backend.
        backend: Of `P`: the other one.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        probe: Of `A`: name of the probe of the contract that the case is, whose results are known;
            empty for drawn cases.
    """

    relation: Literal["A", "P"]
    backend: str = ""
    probe: str = ""
    atol: float
    rtol: float

    @property
    def name(self) -> str:
        """Return what it is counted under: `A`, `P torch`, or `probes`."""
        return "probes" if self.probe else f"{self.relation} {self.backend}".strip()


@attrs.frozen(kw_only=True)
class Case:
    """One experiment.

    Attributes:
        dtype: Of every float argument without a dtype of its own.
        judged: What is compared: outputs, gradients of token arguments, or gradients of parameters.
        dims: Sizes of the signature's free dimensions.
        sequences: The watched sequences, in logical order. For parameter gradients: all sequences.
        shared_prefix: Tokens before this index take the values of the first sequence, in all of
            them.
        seed: Of all values, 0 to 2**32 - 1.
        data: Recipe by name of every float argument with a token axis, and of the upstream gradient
            of every output as `d<output>`. Ids of kind `token(V)` may have one for their pairing.
        policy_state: Recipe by name of every float parameter.
        scalars: Value by name of every argument of kind `scalar`.
        transforms: The composition, as data; classes in any order, each transform at most once.
        execution: Process switches.
        against: What the canonical run is held against in relations A and P, without transforms;
            None for relation I.
    """

    dtype: Dtype
    dims: dict[str, int]
    sequences: tuple[LogicalSequence, ...]
    seed: int = 0
    judged: Judged = "outputs"
    shared_prefix: int = 0
    data: dict[str, Recipe] = attrs.field(factory=dict)
    policy_state: dict[str, Recipe] = attrs.field(factory=dict)
    scalars: dict[str, float] = attrs.field(factory=dict)
    transforms: tuple[TransformData, ...] = ()
    execution: Execution = attrs.field(factory=Execution)
    against: Against | None = None

    @property
    def relation(self) -> Relation:
        """`I` where a composition is judged, else what the case says."""
        return "I" if self.against is None else self.against.relation

    @property
    def direction(self) -> Literal["forward", "backward"]:
        """`forward` where outputs are judged, else `backward`."""
        return "forward" if self.judged == "outputs" else "backward"

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(canonical_json(case_to_data(self)).encode()).hexdigest()


def canonical_json(data: object) -> str:
    """Return the one JSON text of `data`: sorted keys, no spaces, no NaN."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
    )


def case_to_data(case: Case) -> dict[str, Json]:
    """Return `case` as a JSON object that leaves defaults out."""
    data = _CONVERTER.unstructure(case)
    assert isinstance(data, dict)
    return data


def case_from_data(data: object) -> Case:
    """Return the case of a JSON object.

    Unknown keys, missing keys and values of a wrong type are refused; legality for a signature is
    checked elsewhere.

    Raises:
        CaseError: One sentence that names the first path that is wrong.
    """
    try:
        return _CONVERTER.structure(data, Case)
    except (cattrs.BaseValidationError, AttributeError, ValueError, TypeError, KeyError) as error:
        raise CaseError(f"The case cannot be read: {reason_of(error)}.") from error


def value_at(case: Case, path: tuple[int | str, ...]) -> object:
    """Return what lies at a place: names, keys and indices of tuples, from the case down.

    Raises:
        CaseError: There is no such place.
    """
    found: object = case
    for depth, step in enumerate(path):
        try:
            found = _child(found, step)
        except (LookupError, AttributeError, TypeError) as error:
            where = ".".join(map(str, path[: depth + 1]))
            raise CaseError(
                f"The case has nothing at {where}: give a place that it has."
            ) from error
    return found


def with_value(case: Case, path: tuple[int | str, ...], value: object) -> Case:
    """Return `case` with another value at one place; None takes it out of its tuple or mapping.

    Raises:
        CaseError: There is no such place, it cannot be taken out, or it cannot hold the value.
    """
    old = value_at(case, path)
    where = ".".join(map(str, path))
    if not path or (value is not None and type(value) is not type(old)):
        kind = type(old).__name__
        raise CaseError(
            f"The case cannot hold {value!r} at {where!r}: give a value of type {kind}."
        )
    changed = value
    for depth in range(len(path) - 1, -1, -1):
        changed = _with_child(value_at(case, path[:depth]), path[depth], changed, where)
    assert isinstance(changed, Case)
    return changed


def _child(parent: object, step: int | str) -> object:
    if isinstance(parent, (tuple, dict)):
        # A negative index would name a place twice.
        if isinstance(step, int) and step < 0:
            raise LookupError(step)
        return parent[step]  # type: ignore[index]  # a wrong kind of step raises TypeError or KeyError
    names = {field.name for field in getattr(type(parent), "__attrs_attrs__", ())}
    if step in names:
        return getattr(parent, str(step))
    raise LookupError(step)


def _with_child(parent: object, step: int | str, child: object, where: str) -> object:
    if isinstance(parent, dict):
        kept = {key: child if key == step else old for key, old in parent.items()}
        return {key: old for key, old in kept.items() if old is not None}
    if isinstance(parent, tuple):
        assert isinstance(step, int)
        return parent[:step] + (() if child is None else (child,)) + parent[step + 1 :]
    if child is None:
        raise CaseError(f"The case cannot do without {where}: take out a part of it.")
    return attrs.evolve(parent, **{str(step): child})  # type: ignore[misc]  # an attrs record, seen in _child


def reason_of(error: Exception) -> str:
    """Return the first reason of a structuring error, with the path that it is about."""
    if isinstance(error, cattrs.BaseValidationError):
        return cattrs.transform_error(error, path="case", format_exception=_format)[0]
    return str(error)


def strict_converter() -> cattrs.Converter:
    """Return a converter that coerces nothing, refuses unknown keys and leaves defaults out."""
    converter = cattrs.Converter(forbid_extra_keys=True, omit_if_default=True)
    for kind in (int, float, str, bool):
        converter.register_structure_hook(kind, _exactly(kind))
    converter.register_structure_hook(TransformValue, lambda value, _: _transform_value(value))
    return converter


def _exactly(kind: type) -> Callable[[object, object], object]:
    def structure(value: object, _: object) -> object:
        # bool is an int to Python, and 1 is a fine float to JSON; nothing else is converted.
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise ValueError(f"needs {_JSON_NAMES[kind]}, not {type(value).__name__}")
        return value

    return structure


def _transform_value(value: object) -> TransformValue:
    if isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    if type(value) in {int, str, bool}:
        return value  # type: ignore[return-value]  # narrowed by the line above
    raise ValueError("needs a whole number, a string, true, false, or a list of whole numbers")


def _format(error: BaseException, _: type | None) -> str:
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return f"unknown key {min(error.extra_fields)!r}"
    if isinstance(error, KeyError):
        return f"missing key {error.args[0]!r}"
    if isinstance(error, (AttributeError, TypeError)):
        return "needs another kind of JSON value"
    return str(error) or type(error).__name__


_JSON_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
_CONVERTER = strict_converter()
