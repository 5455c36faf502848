"""The machine that writes programs for a KV cache: rules append operations to a log.

Rules draw from the model of what the cache holds and never look at what it gave, so that drawing
the same again gives the same program. Nothing is checked here: a session
(`biprop.kvcache.session`, or one of `biprop.strategies.programs` that has whole programs judged in
a worker) says what is wrong, and replaying and shrinking run the log without Hypothesis.
"""

from collections.abc import Callable
from functools import cache
from typing import NoReturn, Protocol

import attrs
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from biprop.case import Dtype
from biprop.data.words import hash_words
from biprop.generation import RandomDraw
from biprop.kvcache.model import Model
from biprop.kvcache.records import Op, Program, ProgramCause, ProgramOutcome
from biprop.kvcache.shape import CacheLayout
from biprop.strategies.program_heads import PROGRAM_LIMITS, ProgramLimits, draw_head
from biprop.strategies.program_ops import KINDS_OF_OPS, SEEKING, OpKind, draw_ops
from biprop.strategies.seeded import seeds

__all__ = [
    "CacheMachine",
    "OpenSession",
    "ProgramSession",
    "ProgramViolationError",
    "machine_class",
    "program_violation_class",
]


class ProgramSession(Protocol):
    """What runs the operations of one program, or keeps them to be run."""

    def apply(self, op: Op) -> ProgramOutcome | None:
        """Take the next operation; return what is wrong, None where nothing is so far."""

    def finish(self) -> ProgramOutcome | None:
        """Take the end of the program; return what is wrong, None where nothing is."""


# Takes a program without operations.
OpenSession = Callable[[Program], ProgramSession]


class ProgramViolationError(AssertionError):
    """A cache broke what it promises.

    Attributes:
        cause: What broke; every cause has a subclass of its own.
    """

    cause: ProgramCause


@cache
def program_violation_class(cause: ProgramCause) -> type[ProgramViolationError]:
    """Return the class of a cause, the same object for equal causes."""
    words = [cause.verdict.value.capitalize(), cause.check or "launch", cause.output]
    words += [] if cause.finite else ["nonfinite"]
    name = "".join(word.title() for word in "_".join(words).split("_"))
    return type(f"{name}Error", (ProgramViolationError,), {"cause": cause, "__doc__": cause.key})


class CacheMachine(RuleBasedStateMachine):
    """Writes one program; `machine_class` makes the classes that run.

    Attributes:
        log: The program so far.
        model: What the cache holds.
    """

    layout: CacheLayout = "NHD"
    dtype: Dtype = "float32"
    storage: Dtype | None = None
    limits: ProgramLimits = PROGRAM_LIMITS["cpu"]
    salt: int = 0
    wanted: tuple[str, ...] = ()
    open_session: OpenSession

    log: Program
    model: Model
    _session: ProgramSession
    _left: int
    _state: int

    @initialize(number=seeds())
    def begin(self, number: int) -> None:
        """Draw sizes and data, and how long the program is."""
        self._state = hash_words("program", self.salt)
        draw = self._drawing(number)
        self.log = draw_head(
            draw, layout=self.layout, dtype=self.dtype, storage=self.storage, limits=self.limits
        )
        self.model = Model(self.log.shape, vocabulary=self.log.vocabulary)
        # Mostly as long as they get, since pages must be held, given up and taken again.
        steps = self.limits.steps
        self._left = draw.choice((steps, steps, max(1, 2 * steps // 3)))
        self._session = type(self).open_session(self.log)

    @rule(number=seeds())
    def act(self, number: int) -> None:
        """Do anything: the rule that Hypothesis takes for the simplest, by its name."""
        draw = self._drawing(number)
        self._draw(draw.choice(KINDS_OF_OPS), number)

    @rule(number=seeds())
    def allocate(self, number: int) -> None:
        """Begin a sequence."""
        self._draw("allocate", number)

    @rule(number=seeds())
    def append(self, number: int) -> None:
        """Give some sequences tokens, each another number, none or one too."""
        self._draw("append", number)

    @rule(number=seeds())
    def decode(self, number: int) -> None:
        """Give some sequences one token each, in any order."""
        self._draw("decode", number)

    @rule(number=seeds())
    def fork(self, number: int) -> None:
        """Begin a sequence with the first tokens of another."""
        self._draw("fork", number)

    @rule(number=seeds())
    def read(self, number: int) -> None:
        """Read a sequence back."""
        self._draw("read", number)

    @rule(number=seeds())
    def evict(self, number: int) -> None:
        """Give up stored tokens of a sequence."""
        self._draw("evict", number)

    @rule(number=seeds())
    def free(self, number: int) -> None:
        """End a sequence."""
        self._draw("free", number)

    @rule(number=seeds())
    def defragment(self, number: int) -> None:
        """Move what is stored together."""
        self._draw("defragment", number)

    @rule(number=seeds())
    def poison(self, number: int) -> None:
        """Overwrite what no token occupies."""
        self._draw("poison", number)

    @rule(number=seeds())
    def rescore(self, number: int) -> None:
        """Hold all results of a sequence against one full prefill."""
        self._draw("rescore", number)

    @rule(number=seeds())
    def generate(self, number: int) -> None:
        """Decode greedily, then rescore."""
        self._draw("generate", number)

    @rule(number=seeds())
    def seek_partial_fork(self, number: int) -> None:
        """Take a step to a fork within a block."""
        self._draw("seek_partial_fork", number)

    @rule(number=seeds())
    def seek_shared_eviction(self, number: int) -> None:
        """Take a step to an eviction of what another sequence holds."""
        self._draw("seek_shared_eviction", number)

    @rule(number=seeds())
    def seek_dirty_reuse(self, number: int) -> None:
        """Take a step to a page that is used again."""
        self._draw("seek_dirty_reuse", number)

    @rule(number=seeds())
    def seek_moved_decode(self, number: int) -> None:
        """Take a step to a decode of what was moved."""
        self._draw("seek_moved_decode", number)

    def _draw(self, kind: OpKind, number: int) -> None:
        """Append what is drawn to the log, and let the session have it.

        Hypothesis makes as many steps as it was told; those after the end of a program are idle.
        """
        if self._left < 1:
            return
        draw = self._drawing(number)
        lacking = [word for word in self.wanted if word not in self.model.coverage]
        is_steered = draw.choice((False, True))
        if lacking and is_steered:
            kind = SEEKING[draw.choice(lacking)]
        for op in draw_ops(kind, draw, self.model, self.limits):
            if self._left > 0 and self.model.apply(op):
                self._append(op)

    def _drawing(self, number: int) -> RandomDraw:
        """Return choices that follow from all numbers so far.

        So an example that differs from another in one number is another program from there on.
        """
        self._state = hash_words(self._state, number >> 32, number & 0xFFFFFFFF)
        return RandomDraw(self._state)

    def _append(self, op: Op) -> None:
        self.log = attrs.evolve(self.log, ops=(*self.log.ops, op))
        self._left -= 1
        found = self._session.apply(op)
        if found is None and self._left < 1:
            found = self._session.finish()
        if found is not None and found.cause is not None:
            # Hypothesis keeps failing frames alive, and a session may hold a whole cache.
            del self._session
            _raise_violation(found.cause)


def machine_class(
    *,
    layout: CacheLayout,
    backend: str,
    dtype: Dtype,
    open_session: OpenSession,
    storage: Dtype | None = None,
    limits: ProgramLimits = PROGRAM_LIMITS["cpu"],
    salt: int = 0,
    wanted: tuple[str, ...] = (),
    cache_name: str = "cache",
) -> type[CacheMachine]:
    """Return the machine of a layout, a backend and a dtype; run it with `limits.steps` steps.

    Args:
        layout: Of the pages.
        backend: Of the cache, for the name of the class.
        dtype: Of queries, keys and values.
        open_session: Begins what runs a program.
        storage: Of what is stored; None: drawn for each program.
        limits: How large programs are.
        salt: Equal choices of Hypothesis give other programs under another one.
        wanted: Situations of `COVERAGE` that programs are steered to.
        cache_name: Of the cache, likewise.
    """
    words = (cache_name, layout, backend, dtype, "machine")
    name = "".join(f"{word[:1].upper()}{word[1:]}" for word in words)
    fields = {
        "layout": layout,
        "dtype": dtype,
        "storage": storage,
        "limits": limits,
        "salt": salt,
        "wanted": wanted,
        # A function in a class would be a method.
        "open_session": staticmethod(open_session),
        "__doc__": f"Writes programs of layout {layout} in {dtype}.",
        "__module__": __name__,
    }
    return type(name, (CacheMachine,), fields)


def _raise_violation(cause: ProgramCause) -> NoReturn:
    """Raise the class of `cause`; the only place that does."""
    raise program_violation_class(cause)(cause.key)
