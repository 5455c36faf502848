"""Benches: a planted kernel or its twin, in one dtype, ready for cases to be drawn and judged.

Biprop's own run in this process. Targets of a manifest run in a worker, as for `biprop check`, so
that a crash or a hang of one is a verdict. What is drawn on a bench says `biprop.power.methods`.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import attrs

from biprop.case import Against, Case, Dtype
from biprop.contract import judgment_of, load_contract
from biprop.execution.device import on_device
from biprop.execution.nonzeros import nonzeros_of
from biprop.generation import (
    LIMITS,
    Limits,
    Space,
    illegal_in,
    judged_kinds,
    legal_for,
    wanted_classes,
)
from biprop.generation.space import Direction
from biprop.judgment import Outcome
from biprop.kernels import OPERATORS
from biprop.kernels.planted import CHAIN, PLANTED, ChainDefect, Planted
from biprop.loading import source_constants, source_thresholds
from biprop.minimize import classes_of
from biprop.minimize.trial import Legal, NonZeros
from biprop.operators import Form, Kernel, Operator, Registry
from biprop.power.subjects import Subject
from biprop.relations import JudgeOptions
from biprop.relations.judging import judge_case
from biprop.signature import Signature
from biprop.strategies.spaces import space_for
from biprop.supervision import Child, SupervisedJudge

__all__ = [
    "Bench",
    "Judging",
    "broken",
    "chain_kernel",
    "chain_space",
    "open_bench",
    "planted_bench",
    "planted_space",
]

# The interpreter runs a row in a millisecond, and needs as many for a program.
_TINY = attrs.evolve(
    LIMITS["interpreter"],
    tokens_max=6,
    dim_max=12,
    dim_sequence_max=16,
    length_max=4,
    watched_max=1,
    padding_max=2,
)
# A gradient of weights is a sum over tokens: of as many as other sums have terms.
_TINY_SUMMED = attrs.evolve(_TINY, tokens_max=_TINY.dim_max)


class Judging(Protocol):
    """Judges a case without measuring its evidence."""

    def __call__(self, case: Case, *, rate: float | None = None) -> Outcome:
        """Return the outcome; `rate` is the share of differing runs seen before."""


@attrs.frozen(kw_only=True, eq=False)
class Bench:
    """A kernel in one dtype.

    Attributes:
        signature: Of the kernel.
        space: What may be drawn.
        judge: Judges a case.
        nonzeros: Lists the values of a tensor, for the minimiser.
        legal: Says why a case is illegal.
        close: Lets go of the kernel.
        clock: Of seconds that shrinking may take.
    """

    signature: Signature
    space: Space
    judge: Judging
    nonzeros: NonZeros
    legal: Legal
    close: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic


def open_bench(
    subject: Subject, dtype: Dtype, *, device: str, child: Child, healthy: bool = False
) -> Bench:
    """Return the bench of a subject, or of its twin.

    Args:
        subject: What is planted.
        dtype: Of the cases.
        device: Where it runs.
        child: Worker that runs targets of a manifest.
        healthy: Whether the twin takes the place of the planted kernel.

    Raises:
        BipropError: A target cannot be found, described or run; the sentence says why.
    """
    if subject.source == "target":
        return _target_bench(subject, dtype, child=child, healthy=healthy)
    if subject.source == "planted":
        planted = next(item for item in PLANTED if item.name == subject.name)
        return planted_bench(planted, dtype, device=device, healthy=healthy)
    defect = next(item for item in CHAIN if item.name == subject.name)
    kernel = chain_kernel(defect, healthy=healthy)
    space = chain_space(kernel, dtype, defect.direction)
    if subject.relation == "A":
        accuracy = _accuracy(kernel, space)
        space = attrs.evolve(space, against=(accuracy,), only=accuracy)
    return _bench_here(kernel, space, device=device)


def planted_bench(
    planted: Planted, dtype: Dtype, *, device: str = "cpu", healthy: bool = False
) -> Bench:
    """Return the bench of a planted kernel, or of its twin, in this process."""
    limits = None if device == "cpu" else LIMITS["gpu"]
    space = planted_space(planted, dtype, limits=limits)
    return _bench_here(planted.kernel(healthy=healthy), space, device=device)


def planted_space(
    planted: Planted,
    dtype: Dtype,
    *,
    classes: tuple[str, ...] = (),
    limits: Limits | None = None,
) -> Space:
    """Return what is drawn for a planted kernel, and for its twin.

    Args:
        planted: The kernel.
        dtype: Of the cases.
        classes: Wanted; empty: all.
        limits: How large cases may be; None: as on a CPU.
    """
    kernel = planted.kernel()
    if limits is None:
        limits = _limits_on_cpu(planted, kernel.signature)
    return Space(
        signature=kernel.signature,
        restrictions=kernel.restrictions,
        dtype=dtype,
        direction=planted.direction,
        classes=wanted_classes(classes),
        constants=source_constants(kernel.function),
        thresholds=source_thresholds(kernel.function),
        limits=limits,
    )


def _limits_on_cpu(planted: Planted, signature: Signature) -> Limits:
    if not planted.interpreted:
        return LIMITS["cpu"]
    judged = judged_kinds(signature, planted.direction)
    return _TINY_SUMMED if "parameter_gradients" in judged else _TINY


def chain_space(kernel: Kernel, dtype: Dtype, direction: Direction) -> Space:
    """Return what is drawn for one direction of a registered operator."""
    functions = [kernel.function, *([kernel.backward] if kernel.backward else [])]
    mined = {size for function in functions for size in source_constants(function)}
    asked = {size for function in functions for size in source_thresholds(function)}
    return Space(
        signature=kernel.signature,
        backward_signature=kernel.backward_signature,
        restrictions=kernel.restrictions,
        dtype=dtype,
        direction=direction,
        registered=True,
        declaration=kernel.declaration,
        op_class=kernel.op_class,
        constants=tuple(sorted(mined)),
        thresholds=tuple(sorted(asked)),
        limits=LIMITS["cpu"],
    )


def chain_kernel(defect: ChainDefect, *, healthy: bool = False) -> Kernel:
    """Return the torch kernel of the operator that a defect breaks: broken, or as it is."""
    operator = next(item for item in OPERATORS if item.name == defect.operator)
    registry = Registry(operators=(operator if healthy else broken(operator, defect),))
    return registry.find(target=f"{defect.operator}/{defect.form}", backend="torch")


def broken(operator: Operator, defect: ChainDefect) -> Operator:
    """Return an operator with the defect in the place of its torch backend's own function."""

    def with_defect(form: Form) -> Form:
        if form.name != defect.form:
            return form
        implementations = tuple(
            attrs.evolve(item, **{defect.direction: defect.function})  # type: ignore[arg-type]  # one of two functions
            if item.backend == "torch"
            else item
            for item in form.implementations
        )
        return attrs.evolve(form, implementations=implementations)

    return attrs.evolve(operator, forms=tuple(map(with_defect, operator.forms)))


def _accuracy(kernel: Kernel, space: Space) -> Against:
    """Return what the canonical runs of an operator are held against: its reference."""
    assert kernel.op_class is not None, "only registered operators are judged for accuracy"
    tolerance = load_contract().tolerance(
        judgment=judgment_of("A", space.direction),
        op_class=kernel.op_class,
        dtype=space.dtype,
    )
    assert tolerance is not None, "the contract judges the accuracy of every operator"
    return Against(relation="A", backend="", atol=tolerance.atol, rtol=tolerance.rtol)


def _bench_here(kernel: Kernel, space: Space, *, device: str) -> Bench:
    def judge(case: Case, *, rate: float | None = None) -> Outcome:
        options = JudgeOptions(measure=False, rate=rate)
        with on_device(device):
            return judge_case(kernel, case, device=device, options=options)

    return Bench(
        signature=kernel.signature,
        space=space,
        judge=judge,
        nonzeros=nonzeros_of(kernel.signature, kernel.backward_signature),
        legal=legal_for(kernel),
        # Other work on the machine must not cut it short.
        clock=time.process_time,
    )


def _target_bench(subject: Subject, dtype: Dtype, *, child: Child, healthy: bool) -> Bench:
    entry = subject.entry
    assert entry is not None, "targets come from a manifest"
    judge = SupervisedJudge(
        reference=entry.reference(healthy=healthy),
        device=child.device,
        dtype=dtype,
        direction=entry.direction,
        child=child,
    )
    space = space_for(
        judge.reference,
        judge.description,
        dtype=dtype,
        direction=entry.direction,
        transforms=entry.classes,
    )
    return Bench(
        signature=space.signature,
        space=space,
        judge=partial(_judge_supervised, judge),
        nonzeros=judge.nonzeros,
        legal=partial(_legal_target, space),
        close=judge.close,
    )


def _judge_supervised(judge: SupervisedJudge, case: Case, *, rate: float | None = None) -> Outcome:
    # A verdict of an earlier seed says nothing of a kernel that differs from run to run.
    return judge.judge(case, JudgeOptions(measure=False, rate=rate))


def _legal_target(space: Space, case: Case) -> str:
    """Return why a smaller case is none: illegal, or of classes that were not asked for."""
    others = [name for name in classes_of(case) if space.classes and name not in space.classes]
    return f"Class {others[0]} is not wanted." if others else illegal_in(space, case)
