"""Programs for a KV cache, as data: its shape, operations on named sequences, and recipes.

What is legal says `biprop.kvcache.model`; what a cache makes of a program says
`biprop.kvcache.interpreter`. Nothing here imports torch.
"""

from typing import Literal

import attrs

from biprop.case import Execution
from biprop.data.recipe import Recipe
from biprop.judgment import LaunchFact, Verdict
from biprop.kvcache.shape import CacheShape, Fill

__all__ = [
    "CHECKS",
    "COVERAGE",
    "Allocate",
    "Append",
    "CacheReference",
    "Check",
    "Decode",
    "Defragment",
    "Evict",
    "Fork",
    "Free",
    "Generate",
    "Op",
    "Part",
    "Poison",
    "Program",
    "ProgramCause",
    "ProgramDifference",
    "ProgramOutcome",
    "Read",
    "Rescore",
]


@attrs.frozen(kw_only=True)
class CacheReference:
    """How a cache is found again, as JSON: in another process, on another machine, by a stranger.

    Attributes:
        cache: Name of a registered cache, else the target text.
        target: Name of a registered cache, else `module:name` or `file.py:name` of a function
            `(CacheShape, torch.device) -> KVCache`.
        backend: `target` for an unregistered one.
        attention: Of an unregistered one: the registered operator whose results a full prefill
            gives. Empty: a full prefill is what a fresh cache of the same kind gives for all tokens
            at once.
    """

    cache: str
    target: str
    backend: str = "target"
    attention: str = ""

    @property
    def is_registered(self) -> bool:
        """Whether it names a cache of a registry."""
        return self.backend != "target"


@attrs.frozen(kw_only=True)
class Part:
    """What a ragged append gives one sequence.

    Attributes:
        sequence: Its name.
        count: Tokens, 0 or more.
    """

    sequence: str
    count: int


@attrs.frozen(kw_only=True)
class Allocate:
    """Begin a sequence; its name ends in the number that is the key of its data (`s3`: 3)."""

    sequence: str


@attrs.frozen(kw_only=True)
class Append:
    """Store the next tokens of some sequences in one launch, and attend from them (a chunk)."""

    parts: tuple[Part, ...]


@attrs.frozen(kw_only=True)
class Decode:
    """Store one token of each sequence, in this order, and attend from it, in one launch."""

    sequences: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Fork:
    """Begin `sequence` with the first `at` tokens of `parent`."""

    sequence: str
    parent: str
    at: int


@attrs.frozen(kw_only=True)
class Read:
    """Compare what is stored of a sequence with what was written."""

    sequence: str


@attrs.frozen(kw_only=True)
class Evict:
    """Give up what is stored from token `keep` on; it is stored again before its next use."""

    sequence: str
    keep: int


@attrs.frozen(kw_only=True)
class Free:
    """End a sequence."""

    sequence: str


@attrs.frozen(kw_only=True)
class Defragment:
    """Move what is stored together."""


@attrs.frozen(kw_only=True)
class Poison:
    """Overwrite what no live token occupies."""

    fill: Fill


@attrs.frozen(kw_only=True)
class Rescore:
    """Compare all results that a sequence gave so far with those of one full prefill of it."""

    sequence: str


@attrs.frozen(kw_only=True)
class Generate:
    """Decode `count` tokens of a sequence greedily, then rescore it by teacher forcing.

    Legal in programs with a `vocabulary`.
    """

    sequence: str
    count: int


Op = (
    Allocate
    | Append
    | Decode
    | Fork
    | Read
    | Evict
    | Free
    | Defragment
    | Poison
    | Rescore
    | Generate
)


@attrs.frozen(kw_only=True)
class Program:
    """One experiment with a cache.

    An operation whose references have gone, or that is not legal where it stands, is passed over:
    so any subset of the operations is a program too.

    Attributes:
        shape: Of the cache.
        seed: Of all values, 0 to 2**32 - 1.
        ops: In order.
        data: Recipes of `q`, `k` and `v`, by token and its features; in programs with a vocabulary,
            of the weights of the small model that makes them (`biprop.kvcache.tokens`).
        vocabulary: None: queries, keys and values are drawn for each token. Else tokens are ids
            below it, and a small model makes queries, keys, values and log probabilities of them.
        execution: Switches of the process.
    """

    shape: CacheShape
    seed: int = 0
    ops: tuple[Op, ...] = ()
    data: dict[str, Recipe] = attrs.field(factory=dict)
    vocabulary: int | None = None
    execution: Execution = attrs.field(factory=Execution)


Check = Literal[
    "stored",
    "input",
    "length",
    "untouched",
    "fork",
    "prefix",
    "chunk",
    "decode",
    "reuse",
    "rescore",
    "repeat",
    "accuracy",
]
CHECKS: tuple[Check, ...] = (
    "stored",
    "input",
    "length",
    "untouched",
    "fork",
    "prefix",
    "chunk",
    "decode",
    "reuse",
    "rescore",
    "repeat",
    "accuracy",
)
# Situations that programs must reach, told from the model alone.
COVERAGE = (
    "partial-block fork",
    "evicted shared page",
    "dirty reuse",
    "decode after defragment",
)


@attrs.frozen(kw_only=True)
class ProgramCause:
    """What shrinking must keep, and what tells findings apart.

    Attributes:
        verdict: A violation.
        check: Which promise was broken; empty for CRASHES and FALLBACK.
        output: `k`, `v`, `out`, `lse`, `logp` or `token`; empty where there is none.
        finite: False where it takes a non-finite poison.
    """

    verdict: Verdict
    check: Check | Literal[""] = ""
    output: str = ""
    finite: bool = True

    @property
    def key(self) -> str:
        """Return one word that names the cause."""
        fill = "finite" if self.finite else "nonfinite"
        return f"cache-{self.verdict}-{self.check or 'launch'}-{self.output or 'launch'}-{fill}"


@attrs.frozen(kw_only=True)
class ProgramDifference:
    """The first element that differs, and how many do.

    Attributes:
        sequence: Name of the sequence.
        token: Its token, counted from its first one.
        coordinate: Index in the other dimensions of the output.
        expected_bits: Hexadecimal with `0x`: of the full prefill, or of what was written.
        got_bits: Of the cache.
        expected_value: As text.
        got_value: Likewise.
        elements: Elements that differ, of `elements_compared`.
        elements_compared: In this comparison.
        max_abs_error: Over pairs of finite values; None without such a pair.
        dtype: Of the output.
    """

    sequence: str
    token: int
    coordinate: tuple[int, ...]
    expected_bits: str
    got_bits: str
    expected_value: str
    got_value: str
    elements: int
    elements_compared: int
    max_abs_error: float | None = None
    dtype: str = ""


@attrs.frozen(kw_only=True)
class ProgramOutcome:
    """What judging one program gave.

    Attributes:
        verdict: HOLDS, DRIFTS, NONDETERMINISTIC, INACCURATE, CRASHES, FALLBACK or VACUOUS (nothing
            was compared).
        cause: Of a violation.
        step: Number of the operation that showed it, from 0; None where there is none.
        difference: Where bits differ.
        message: Exception, signal or hang of CRASHES; what ran instead, of FALLBACK.
        coverage: Which of `COVERAGE` the program reached.
        ops_run: Operations that were legal, of those given.
        comparisons: Tensors compared.
        power: Share of compared results whose bits change under another order of keys; None where
            nothing was attended.
        rate: Of NONDETERMINISTIC: share of repeats that differed.
        repeats: Runs of the program that the verdict rests on.
        requested_backend: Of the cache.
        actual_backend: What ran.
        facts: Launch facts.
        seconds: Wall time.
        is_hung: Of CRASHES: whether an operation did not end in its time.
    """

    verdict: Verdict
    cause: ProgramCause | None = None
    step: int | None = None
    difference: ProgramDifference | None = None
    message: str = ""
    coverage: tuple[str, ...] = ()
    ops_run: int = 0
    comparisons: int = 0
    power: float | None = None
    rate: float | None = None
    repeats: int = 1
    requested_backend: str = ""
    actual_backend: str = ""
    facts: tuple[LaunchFact, ...] = ()
    seconds: float = 0.0
    is_hung: bool = False
