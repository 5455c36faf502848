"""What scenarios of a production stack gave, as data.

Nothing here imports torch.
"""

from typing import Literal

import attrs

from biprop.case import Json, reason_of
from biprop.errors import CaseError, UsageError
from biprop.judgment import Verdict, record_converter

__all__ = [
    "ATTENTIONS",
    "CACHES",
    "DTYPES",
    "MODELS",
    "SCENARIOS",
    "Binding",
    "Choice",
    "Finding",
    "LogitDifference",
    "StackReport",
    "report_from_data",
    "report_to_data",
]

Binding = Literal["bound", "not bound", "absent"]
MODELS = ("llama", "qwen3")
DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("eager", "sdpa")
CACHES = ("dynamic", "static")
# What is held against what: the first is the side that a trainer, or an undisturbed rollout, has.
SCENARIOS = {
    "repeat": ("a full forward", "the same full forward again"),
    "generate": ("one full forward without a cache", "greedy generation with the cache"),
    "chunks": ("one full forward without a cache", "a prefill of chunks of 5, 1, 7, 3 ... tokens"),
    "prefix": ("a prefill of the whole prompt", "the tail of it after a copied cached prefix"),
    "left padding": ("the sequence alone", "the sequence alone, padded on the left"),
    "right padding": ("the sequence alone", "the sequence alone, padded on the right"),
    "batch": ("each sequence alone", "the same sequences in one batch"),
    "padded batch": ("each sequence alone", "unequal sequences in one batch padded on the left"),
    "fork": ("a cache of its own", "a copy of another sequence's cached prefix"),
    "reset": ("a fresh cache", "a cache that held another sequence, after reset()"),
    "crop": ("a fresh cache", "a cache whose last tokens crop() took back"),
    "room": ("a cache of 40 slots", "a cache of 80 slots"),
}


@attrs.frozen(kw_only=True)
class Choice:
    """Which of a stack's scenarios are run; empty means all of them.

    Attributes:
        models: Of `MODELS`.
        dtypes: Of `DTYPES`.
        attentions: Of `ATTENTIONS`, as the stack calls its implementations.
        caches: Of `CACHES`.
        scenarios: Keys of `SCENARIOS`.
    """

    models: tuple[str, ...] = MODELS
    dtypes: tuple[str, ...] = DTYPES
    attentions: tuple[str, ...] = ATTENTIONS
    caches: tuple[str, ...] = CACHES
    scenarios: tuple[str, ...] = tuple(SCENARIOS)

    def __attrs_post_init__(self) -> None:
        """Refuse what no stack knows.

        Raises:
            UsageError: A name is none of those listed.
        """
        known = {
            "models": MODELS,
            "dtypes": DTYPES,
            "attentions": ATTENTIONS,
            "caches": CACHES,
            "scenarios": tuple(SCENARIOS),
        }
        for field, names in known.items():
            unknown = [name for name in getattr(self, field) if name not in names]
            if unknown:
                raise UsageError(f"{field} has no {unknown[0]!r}: choose from {', '.join(names)}.")
        if set(self.scenarios) == {"room"} and "static" not in self.caches:
            raise UsageError(
                "Scenario 'room' is about caches of a fixed size, and none is asked for: choose "
                "the static cache."
            )


@attrs.frozen(kw_only=True)
class LogitDifference:
    """Where logits of a token first differ, and by how much anywhere.

    Attributes:
        sequence: Number of the sequence.
        token: Its token, counted from its first one, whose logits differ.
        logit: Number of the vocabulary entry.
        expected_bits: Hexadecimal with `0x`, of the first side.
        got_bits: Of the second side.
        expected_value: As text.
        got_value: Likewise.
        ulps: Floats between the two; None where one is not finite.
        ulps_max: Largest such distance of all logits compared.
        max_abs_error: Over pairs of finite logits; None without such a pair that differs.
    """

    sequence: int
    token: int
    logit: int
    expected_bits: str
    got_bits: str
    expected_value: str
    got_value: str
    ulps: int | None
    ulps_max: int
    max_abs_error: float | None = None


@attrs.frozen(kw_only=True)
class Finding:
    """What one scenario of one model and cache gave.

    Attributes:
        scenario: Key of `SCENARIOS`.
        model: Of `MODELS`.
        dtype: Of weights, cache and logits.
        attention: Of `ATTENTIONS`.
        cache: Of `CACHES`.
        verdict: HOLDS, DRIFTS, NONDETERMINISTIC (one side differs from itself), CRASHES (an
            exception) or VACUOUS (no finite logits).
        difference: Of DRIFTS and NONDETERMINISTIC.
        tokens: Tokens of which a logit differs, of `tokens_compared`.
        tokens_compared: All sequences together.
        logits: Logits that differ, of `logits_compared`.
        logits_compared: All sequences together.
        logp_tokens: Tokens whose next token has another log probability, taken in float32.
        logp_max: Largest difference of those log probabilities: a policy ratio of `exp` of it.
        message: The exception of CRASHES.
    """

    scenario: str
    model: str
    dtype: str
    attention: str
    cache: str
    verdict: Verdict
    difference: LogitDifference | None = None
    tokens: int = 0
    tokens_compared: int = 0
    logits: int = 0
    logits_compared: int = 0
    logp_tokens: int = 0
    logp_max: float = 0.0
    message: str = ""


@attrs.frozen(kw_only=True)
class StackReport:
    """What is known of one stack.

    Attributes:
        stack: Of `STACKS`.
        binding: `bound`; `not bound`: importable, and nothing here speaks to it; or `absent`.
        reason: One line, of a stack that is not bound or absent.
        version: Of the stack.
        torch: Version of torch.
        device: As asked for.
        device_name: As its maker calls it.
        arch_key: What decides which code runs there.
        seed: Of weights and token ids.
        findings: One a scenario, in order.
    """

    stack: str
    binding: Binding
    reason: str = ""
    version: str = ""
    torch: str = ""
    device: str = ""
    device_name: str = ""
    arch_key: str = ""
    seed: int = 0
    findings: tuple[Finding, ...] = ()

    def count(self, verdict: Verdict) -> int:
        """Return how many scenarios gave `verdict`."""
        return sum(finding.verdict == verdict for finding in self.findings)


def report_to_data(report: StackReport) -> Json:
    """Return `report` as a JSON object that leaves defaults out."""
    data: Json = _CONVERTER.unstructure(report)
    return data


def report_from_data(data: object) -> StackReport:
    """Return the report of a JSON object.

    Raises:
        CaseError: One sentence that names the first path that is wrong.
    """
    try:
        return _CONVERTER.structure(data, StackReport)
    except Exception as error:
        raise CaseError(f"The report of a stack cannot be read: {reason_of(error)}.") from error


_CONVERTER = record_converter()
