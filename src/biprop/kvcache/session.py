"""One run of a program against one cache, with every check after each operation.

What the cache must hold says the account (`biprop.kvcache.model`), what tokens bring
`biprop.kvcache.values`, what they must give `biprop.kvcache.prefills`. Repeating a violation, and
what runs amount to, is the part of `biprop.kvcache.interpreter`.

Checks by operation, all bitwise: each call that gets tensors, `input`; `Append` gives `length`,
then `chunk`, called `prefix` for a fork and `reuse` where a page held something else before;
`Decode` gives `length` and `decode`; `Fork` gives `length` and `fork`; `Read` gives `stored`;
`Rescore` and `Generate` give `rescore`. Then sequences that are not named are read back,
`untouched`: all, but after `Allocate`, `Append`, `Read`, `Rescore` and `Generate` those that share
a page, and one more.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import attrs
import torch
from torch import Tensor

from biprop.errors import BackendError, OutputError, UnsupportedError, UsageError
from biprop.execution.device import wait_for
from biprop.execution.switches import switched
from biprop.judgment import Verdict
from biprop.kvcache.checks import (
    Comparison,
    Difference,
    checked,
    first_difference,
    taken_back,
)
from biprop.kvcache.finishing import first_inaccurate, measured_power
from biprop.kvcache.model import Model, names_of
from biprop.kvcache.prefills import (
    FreshPrefill,
    OperatorPrefill,
    kernel_of,
    offsets_of,
    yardstick_of,
)
from biprop.kvcache.protocol import CacheImplementation, CacheOperator, KVCache
from biprop.kvcache.records import (
    Allocate,
    Append,
    Check,
    Decode,
    Defragment,
    Evict,
    Fork,
    Free,
    Generate,
    Op,
    Part,
    Poison,
    Program,
    ProgramCause,
    ProgramDifference,
    ProgramOutcome,
    Read,
    Rescore,
)
from biprop.kvcache.results import Results, both
from biprop.kvcache.tokens import SmallModel
from biprop.kvcache.values import TORCH_DTYPES, Drawn, Rows, SequenceValues, joined
from biprop.kvcache.watching import Watch
from biprop.loading.targets import one_line
from biprop.operators import Kernel, Operator, Registry

__all__ = ["Session"]

# Full prefills by an operator, which is causal whatever the length, reach to the next multiple or
# further: a sequence that grows by tokens needs few.
_AHEAD = 32
# Calls that must compute in the backend's own kernels, if anywhere. Poison is the judge's own.
_WATCHED = frozenset({"append", "attend", "decode", "read", "fork", "evict", "free", "defragment"})


@attrs.define(kw_only=True, eq=False)
class _Live:
    """What is known of a live sequence beside the account.

    Attributes:
        values: Its tokens.
        results: What the cache gave for them, in order.
        prefill: What a full prefill gives, of as many tokens or more.
    """

    values: SequenceValues
    results: list[Results] = attrs.field(factory=list)
    prefill: Results | None = None

    def recorded(self) -> Results:
        """Return what the cache gave for all tokens."""
        if len(self.results) > 1:
            self.results = [
                Results(
                    out=torch.cat([item.out for item in self.results]),
                    lse=torch.cat([item.lse for item in self.results]),
                )
            ]
        return self.results[0]


class _Broken(Exception):  # noqa: N818  # no error of biprop: what is looked for
    """A promise of the cache was broken."""

    def __init__(
        self,
        verdict: Verdict,
        *,
        check: Check | None = None,
        output: str = "",
        difference: ProgramDifference | None = None,
        message: str = "",
    ) -> None:
        super().__init__(message)
        cause = ProgramCause(verdict=verdict, check=check or "", output=output)
        self.outcome = ProgramOutcome(
            verdict=verdict,
            cause=cause if verdict.is_violation else None,
            difference=difference,
            message=message,
        )


class Session:
    """A cache under test, with the account of what it must hold.

    Attributes:
        model: The account; what is legal next is drawn from it.
    """

    def __init__(
        self,
        *,
        operator: CacheOperator,
        implementation: CacheImplementation,
        attention: Operator | None,
        program: Program,
        device: str = "cpu",
        registry: Registry | None = None,
        measure: bool = True,
    ) -> None:
        """Begin with an empty cache; of `program` all but its operations count.

        Args and errors are those of `biprop.kvcache.interpreter.judge_program`.
        """
        self.model = Model(program.shape, vocabulary=program.vocabulary)
        self._program = program
        self._implementation = implementation
        self._device = torch.device(device)
        self._measure = measure
        self._kernel: Kernel | None = None
        if attention is not None:
            self._kernel = kernel_of(attention, form="packed", backend=implementation.backend)
        self._prefill = (
            FreshPrefill(implementation, program, self._device)
            if self._kernel is None
            else OperatorPrefill(self._kernel, program)
        )
        # Full prefills of an unregistered cache are its own, but what attention is, is known.
        self._yardstick = self._kernel or yardstick_of(registry)
        self._small: SmallModel | None = None
        if program.vocabulary is not None:
            if registry is None:
                raise UsageError(
                    "The program has a vocabulary, and no registry is given: give one, for the "
                    "operators of the small model."
                )
            backend = "triton" if implementation.backend == "triton" else "torch"
            with switched(program.execution), torch.no_grad():
                self._small = SmallModel(program, registry, backend=backend, device=self._device)
        self._values = self._small or Drawn(program, self._device)
        self._watch = Watch(operator, implementation, self._device)
        self._made: KVCache | None = None
        self._live: dict[str, _Live] = {}
        self._outcome: ProgramOutcome | None = None
        self._step = -1
        self._ops_run = 0
        self._comparisons = 0
        # The most tokens of a sequence that were attended to, for the measure of power.
        self._longest: tuple[int, SequenceValues] | None = None
        self._started = perf_counter()

    def apply(self, op: Op) -> ProgramOutcome | None:
        """Run one operation and check; None where nothing is wrong so far, or `op` is illegal.

        After a violation nothing more is run, and its outcome is returned again.
        """
        self._step += 1
        if self._outcome is None and self.model.is_legal(op):
            self._judged(lambda: self._run(op))
            self._ops_run += 1
        return self._filled()

    def finish(self) -> ProgramOutcome:
        """Check what is checked once, and return the outcome."""
        self._judged(self._check_accuracy)
        if self._outcome is None:
            held = Verdict.HOLDS if self._comparisons else Verdict.VACUOUS
            message = "" if self._comparisons else "Nothing was compared."
            self._outcome = ProgramOutcome(verdict=held, message=message, power=self._power())
        filled = self._filled()
        assert filled is not None, "there is an outcome"
        return filled if filled.verdict.is_violation else attrs.evolve(filled, step=None)

    def _power(self) -> float | None:
        if not self._measure or self._longest is None or self._yardstick is None:
            return None
        count, values = self._longest
        with torch.no_grad():
            return measured_power(self._yardstick, values.upto(count), self._program)

    def _judged(self, work: Callable[[], None]) -> None:
        if self._outcome is not None:
            return
        try:
            with switched(self._program.execution), torch.no_grad():
                work()
        except _Broken as broken:
            self._outcome = broken.outcome
        except torch.OutOfMemoryError as error:
            # It says nothing of the cache: other processes use the device too.
            self._outcome = ProgramOutcome(verdict=Verdict.VACUOUS, message=_message(error))
        if self._outcome is not None:
            self._outcome = attrs.evolve(self._outcome, step=self._step)

    def _filled(self) -> ProgramOutcome | None:
        if self._outcome is None:
            return None
        return attrs.evolve(
            self._outcome,
            coverage=self.model.coverage,
            ops_run=self._ops_run,
            comparisons=self._comparisons,
            requested_backend=self._implementation.backend,
            actual_backend=self._watch.actual_backend if self._made is not None else "",
            facts=tuple(self._watch.facts),
            seconds=perf_counter() - self._started,
        )

    # Operations.

    def _run(self, op: Op) -> None:
        again = self.model.missing(op)
        sharing = self.model.sharing(names_of(op))
        if again:
            self._restore(again)
        # The account goes first: checks ask it what is to be.
        self.model.apply(op)
        match op:
            case Allocate():
                self._allocate(op)
            case Append():
                self._append(op)
            case Decode():
                self._decode(op.sequences)
            case Fork():
                self._fork(op)
            case Read():
                self._compare(self._read(op.sequence, "stored"))
            case Evict():
                with self._call("evict"):
                    self._cache.evict(op.sequence, op.keep)
            case Free():
                with self._call("free"):
                    self._cache.free(op.sequence)
                del self._live[op.sequence]
            case Defragment():
                with self._call("defragment"):
                    self._cache.defragment()
            case Poison():
                with self._call("poison"):
                    self._cache.poison(op.fill)
            case Rescore():
                self._rescore(op.sequence)
            case Generate():
                self._generate(op)
        self._check_lengths()
        self._check_untouched(op, sharing)

    def _restore(self, parts: Sequence[Part]) -> None:
        """Store evicted tokens again, as a rollout does what was preempted."""
        names = tuple(part.sequence for part in parts)
        rows = []
        for part in parts:
            state = self.model.sequences[part.sequence]
            rows.append(self._rows(part.sequence, state.length)[state.stored :])
        packed = joined(*rows)
        self._stored(names, packed, offsets_of(*map(len, rows), device=self._device))

    def _allocate(self, op: Allocate) -> None:
        with self._call("allocate"):
            self._cache.allocate(op.sequence)
        source = self.model.sequences[op.sequence].source
        self._live[op.sequence] = _Live(values=SequenceValues(self._values, source))

    def _append(self, op: Append) -> None:
        names = tuple(part.sequence for part in op.parts)
        rows, starts = [], []
        for part in op.parts:
            stop = self.model.sequences[part.sequence].length
            starts.append(stop - part.count)
            rows.append(self._rows(part.sequence, stop)[stop - part.count :])
        packed = joined(*rows)
        offsets = offsets_of(*map(len, rows), device=self._device)
        self._stored(names, packed, offsets)
        self._check_lengths()
        results = self._attended(names, packed.q, offsets)
        comparisons, place = [], 0
        for part, start in zip(op.parts, starts, strict=True):
            mine = results[place : place + part.count]
            place += part.count
            self._record(part.sequence, mine)
            if part.count:
                check = self._check_of(part.sequence)
                comparisons += self._against_full(part.sequence, mine, start=start, check=check)
        self._compare(comparisons)

    def _decode(self, names: tuple[str, ...]) -> None:
        rows = [self._rows(name, self.model.sequences[name].length)[-1:] for name in names]
        results = self._decoded(names, joined(*rows))
        comparisons = []
        for place, name in enumerate(names):
            mine = results[place : place + 1]
            self._record(name, mine)
            start = self.model.sequences[name].length - 1
            comparisons += self._against_full(name, mine, start=start, check="decode")
        self._check_lengths()
        self._compare(comparisons)

    def _stored(self, names: tuple[str, ...], packed: Rows, offsets: Tensor) -> None:
        lent = self._lent("append", k=packed.k, v=packed.v)
        with lent as (k, v), self._call("append", tokens=len(packed)):
            self._cache.append(names, k, v, offsets)

    def _attended(self, names: tuple[str, ...], q: Tensor, offsets: Tensor) -> Results:
        with self._lent("attend", q=q) as (lent,):
            with self._call("attend", tokens=len(q)):
                returned = self._cache.attend(names, lent, offsets)
            return self._results(returned, q, what="attend")

    def _decoded(self, names: tuple[str, ...], packed: Rows) -> Results:
        with self._lent("decode", q=packed.q, k=packed.k, v=packed.v) as (q, k, v):
            with self._call("decode", tokens=len(packed)):
                returned = self._cache.decode(names, q, k, v)
            return self._results(returned, packed.q, what="decode")

    def _fork(self, op: Fork) -> None:
        with self._call("fork"):
            self._cache.fork(op.sequence, op.parent, op.at)
        parent = self._live[op.parent]
        source = self.model.sequences[op.sequence].source
        prefix = parent.values.upto(op.at) if op.at else None
        values = SequenceValues(self._values, source, prefix=prefix)
        results = [parent.recorded()[: op.at]] if op.at else []
        self._live[op.sequence] = _Live(values=values, results=results)
        self._check_lengths()
        self._compare(self._read(op.sequence, "fork"))

    def _rescore(self, name: str) -> None:
        length = self.model.sequences[name].length
        if not length:
            return
        rows = self._rows(name, length)
        full = self._full(rows)
        recorded = self._live[name].recorded()
        self._compare(both(recorded, full, sequence=name, check="rescore"))
        again = self._attended((name,), rows.q, offsets_of(length, device=self._device))
        self._compare(both(again, full, sequence=name, check="rescore"))

    def _generate(self, op: Generate) -> None:
        """Decode greedily, then compare with teacher forcing of the same ids."""
        small, live = self._small, self._live[op.sequence]
        assert small is not None, "legal in programs with a vocabulary"
        stop = self.model.sequences[op.sequence].length
        start = stop - op.count
        last, decoded = live.recorded()[start - 1 : start], []
        for position in range(start, stop):
            logits = small.logits(last.out)
            ids = small.greedy(logits)
            rows = small.rows_of(ids, start=position)
            live.values.put(rows, at=position)
            last = self._decoded((op.sequence,), rows)
            self._record(op.sequence, last)
            decoded.append((small.logp(logits, ids), ids))
        live.prefill = None
        full = self._full(self._rows(op.sequence, stop))
        forced = small.logits(full.out[start - 1 : stop - 1])
        logp, ids = (torch.cat(parts) for parts in zip(*decoded, strict=True))
        pairs = (("logp", small.logp(forced, ids), logp), ("token", small.greedy(forced), ids))
        made = [
            Comparison(
                check="rescore",
                output=output,
                sequence=op.sequence,
                start=start,
                expected=expected,
                got=got,
            )
            for output, expected, got in pairs
        ]
        mine, same = live.recorded()[start:stop], full[start:stop]
        self._compare([*made, *both(mine, same, sequence=op.sequence, check="rescore", at=start)])

    # Checks.

    def _check_lengths(self) -> None:
        for name, state in self.model.sequences.items():
            with self._call("length"):
                found = self._cache.length(name)
            self._comparisons += 1
            if found != state.stored:
                raise _Broken(
                    Verdict.DRIFTS,
                    check="length",
                    message=f"length({name!r}) is {found}, and {state.stored} tokens were stored.",
                )

    def _check_untouched(self, op: Op, sharing: Sequence[str]) -> None:
        written = () if isinstance(op, Evict) else names_of(op)
        others = [name for name in self.model.sequences if name not in written]
        if isinstance(op, (Allocate, Append, Read, Rescore, Generate)):
            # One more, another each time: what a write hits by mistake need not share anything.
            kept = {*sharing, *others[self._step % len(others) :][:1]} if others else set()
            others = [name for name in others if name in kept]
        self._compare([item for name in others for item in self._read(name, "untouched")])

    def _check_accuracy(self) -> None:
        if self._yardstick is None:
            return
        for name, live in self._live.items():
            length = self.model.sequences[name].length
            if not length:
                continue
            recorded = live.recorded()
            found = first_inaccurate(
                self._yardstick,
                self._rows(name, length),
                self._program,
                sequence=name,
                out=recorded.out,
                lse=recorded.lse,
            )
            if found is not None:
                self._break(Verdict.INACCURATE, found)

    def _check_of(self, name: str) -> Check:
        if self.model.sequences[name].fork_point:
            return "prefix"
        return "reuse" if self.model.has_reused_pages(name) else "chunk"

    def _against_full(
        self, name: str, got: Results, *, start: int, check: Check
    ) -> list[Comparison]:
        """Compare results of adjacent tokens with the same positions of a full prefill."""
        live, length = self._live[name], self.model.sequences[name].length
        reach = self._reach(length)
        if live.prefill is None or not length <= len(live.prefill.out) <= reach:
            live.prefill = self._full(live.values.upto(reach))
        if self._longest is None or length > self._longest[0]:
            self._longest = length, live.values
        expected = live.prefill[start : start + len(got.out)]
        return both(got, expected, sequence=name, check=check, at=start)

    def _reach(self, length: int) -> int:
        """Return how many tokens are prefilled for a sequence of so many."""
        if isinstance(self._prefill, FreshPrefill):
            # Nothing is declared of it: what comes later might change what was before.
            return length
        step = _AHEAD * max(1, length // (8 * _AHEAD))
        most = self._program.shape.block_size * self._program.shape.block_count
        return min(most, -(-length // step) * step)

    def _read(self, name: str, check: Check) -> list[Comparison]:
        """Read a sequence back, and compare it with what was written."""
        stored = self.model.sequences[name].stored
        rows = self._rows(name, stored)
        storage = TORCH_DTYPES[self._program.shape.storage]
        with self._call("read", tokens=stored):
            found: object = self._cache.read(name)
        with self._returned():
            if not isinstance(found, tuple) or len(found) != 2:
                raise OutputError(
                    f"The cache returned {type(found).__name__} of read: return keys and values."
                )
        comparisons = []
        for output, got, written in (("k", found[0], rows.k), ("v", found[1], rows.v)):
            expected = written.to(storage)
            with self._returned():
                fitting = checked(got, what=f"{output} of read", like=expected)
            comparisons.append(
                Comparison(
                    check=check,
                    output=output,
                    sequence=name,
                    start=0,
                    expected=expected,
                    got=fitting,
                )
            )
        return comparisons

    def _compare(self, comparisons: Sequence[Comparison]) -> None:
        self._comparisons += len(comparisons)
        found = first_difference(comparisons)
        if found is not None:
            self._break(Verdict.DRIFTS, found)

    def _break(self, verdict: Verdict, found: Difference) -> None:
        raise _Broken(verdict, check=found.check, output=found.output, difference=found.difference)

    # The cache.

    @property
    def _cache(self) -> KVCache:
        assert self._made is not None, "calls make it"
        return self._made

    @contextmanager
    def _call(self, name: str, *, tokens: int = 0) -> Iterator[None]:
        """Turn what a call of the cache raises into what is judged."""
        with self._returned():
            if self._made is None:
                self._made = self._implementation.make(self._program.shape, self._device)
            if name in _WATCHED:
                with self._watch.call(name, tokens=tokens):
                    yield
            else:
                yield
            wait_for(self._device)

    @contextmanager
    def _returned(self) -> Iterator[None]:
        try:
            yield
        except (_Broken, torch.OutOfMemoryError):
            raise
        except BackendError as error:
            raise _Broken(Verdict.FALLBACK, message=str(error)) from None
        except UnsupportedError as error:
            raise _Broken(Verdict.UNSUPPORTED, message=str(error)) from None
        # A cache may raise anything, and may call sys.exit(); what it says is kept, its frames are
        # not.
        except (Exception, SystemExit) as error:  # noqa: BLE001  # judged, not swallowed
            raise _Broken(Verdict.CRASHES, message=_message(error)) from None

    @contextmanager
    def _lent(self, call: str, **tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Lend copies to a call; see that it left them, then overwrite them as callers do."""
        lent = {name: values.clone() for name, values in tensors.items()}
        yield tuple(lent.values())
        name = taken_back(lent, tensors)
        if name:
            message = f"{call} wrote to its argument {name}, which is the caller's."
            raise _Broken(Verdict.DRIFTS, check="input", message=message)

    def _results(self, returned: object, q: Tensor, *, what: str) -> Results:
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        with self._returned():
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise OutputError(
                    f"The cache returned {type(returned).__name__} of {what}: return out and lse."
                )
            # Copied at once: what a call returns may lie in memory that the next one uses.
            return Results(
                out=checked(returned[0], what=f"out of {what}", like=q).clone(),
                lse=checked(returned[1], what=f"lse of {what}", like=lse).clone(),
            )

    def _full(self, rows: Rows) -> Results:
        if isinstance(self._prefill, OperatorPrefill):
            out, lse = self._prefill.full(rows)
            return Results(out=out, lse=lse)
        with self._returned():
            returned = self._prefill.full(rows)
        return self._results(returned, rows.q, what="attend")

    def _rows(self, name: str, count: int) -> Rows:
        return self._live[name].values.upto(count)

    def _record(self, name: str, results: Results) -> None:
        self._live[name].results.append(results)


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}"
