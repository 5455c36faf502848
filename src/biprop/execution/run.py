"""Runs: a case in one configuration, from its recipes to outputs in logical order.

The canonical and the transformed run take the same values and differ only in their launches and in
where tensors lie. What the runs amount to is judged by `biprop.relations`.
"""

from collections.abc import Callable, Iterable
from functools import cached_property

import attrs
import torch
from torch import Tensor

from biprop.bits import Poison
from biprop.case import Case
from biprop.errors import TargetError
from biprop.execution.arguments import Materialiser
from biprop.execution.backend import actual_backend, qualified_name
from biprop.execution.backward import Accumulators, collect_accumulators, launch_backward
from biprop.execution.compared import ComparedTokens, compared_tokens
from biprop.execution.facts import Launched, launches_seen
from biprop.execution.frame import Frame
from biprop.execution.launching import Session, launch_forward
from biprop.execution.outputs import Collector, checked
from biprop.execution.poison import Poisoner
from biprop.execution.records import Run, TokenIndex
from biprop.execution.switches import switched
from biprop.execution.values import Values, values_of
from biprop.generation.forms import shared_outputs
from biprop.judgment import LaunchFact
from biprop.layout import CANONICAL, Layout
from biprop.layout.launch import Launch
from biprop.layout.launches import canonical_launches, joint_launch, launches
from biprop.layout.pool import TokenPool, token_pool
from biprop.operators import Kernel, Reducer
from biprop.signature.forms import FormSignatures
from biprop.transforms import apply_all, transforms_of
from biprop.transforms.effect import KnownMaps, without_content

__all__ = [
    "Prepared",
    "Run",
    "TokenIndex",
    "prepare",
    "reference_outputs",
    "run_canonical",
    "run_transformed",
]


@attrs.frozen(kw_only=True, eq=False)
class Prepared:
    """A case ready to be run in any configuration.

    Attributes:
        kernel: The kernel.
        case: The case.
        layout: What its composition makes of the canonical layout.
        device: Where it runs.
        pool: Tokens of the case and of the layout's neighbours, watched ones first.
        values: Of those tokens, and of the parameters.
        maps: Pools and launches that were made for the case; a set of cases shares them.
    """

    kernel: Kernel
    case: Case
    layout: Layout
    device: torch.device
    pool: TokenPool
    values: Values
    maps: KnownMaps = attrs.field(factory=KnownMaps)
    _canonical: list[Frame] = attrs.field(factory=list, init=False)

    @cached_property
    def compared(self) -> ComparedTokens:
        """Which tokens are compared: the same under every layout that the case is run in."""
        layout = apply_all(transforms_of(self.case))
        launched = kernel_launched(self.kernel, layout)
        return compared_tokens(launched.signature, self.pool, layout.cuts)

    @cached_property
    def launched(self) -> Kernel:
        """What the transformed configuration calls."""
        return kernel_launched(self.kernel, self.layout)

    def under(self, layout: Layout) -> "Prepared":
        """Return the same case for another layout; the same neighbours share their values."""
        if layout.neighbours == self.layout.neighbours:
            return attrs.evolve(self, layout=layout)
        pool = token_pool(self.case, layout)
        values = values_of(self.kernel, self.case, pool, layout.neighbours, self.device)
        return attrs.evolve(self, layout=layout, pool=pool, values=values)

    def canonical_frames(self) -> list[Frame]:
        """Return the launches of the canonical configuration, made once."""
        if not self._canonical:
            made = canonical_launches(self.kernel.signature, self.pool, self.case)
            self._canonical.extend(self._frame(launch) for launch in made)
        return self._canonical

    def transformed_frames(self) -> list[Frame]:
        """Return the launches of `layout`."""
        where = without_content(self.layout)
        if where not in self.maps.launches:
            self.maps.launches[where] = launches(
                self.launched.signature,
                self.pool,
                self.case,
                self.layout,
                backward_signature=self.launched.backward_signature,
            )
        return [self._frame(launch) for launch in self.maps.launches[where]]

    def joint_frames(self) -> list[Frame]:
        """Return the watched sequences in one canonical launch where legal, else each alone."""
        joint = joint_launch(self.kernel.signature, self.pool)
        return [self._frame(joint)] if joint is not None else self.canonical_frames()

    def _frame(self, launch: Launch) -> Frame:
        return Frame(launch=launch, compared=self.compared, device=self.device)


def kernel_launched(kernel: Kernel, layout: Layout) -> Kernel:
    """Return what a layout calls: a kernel, or another form of it, perhaps in shards.

    Raises:
        TargetError: The kernel has no such form.
    """
    form = layout.selection.form
    launched = kernel.relative(form=form) if form else kernel
    if layout.shards == 1:
        return launched
    return attrs.evolve(launched, call={**launched.call, "shards": layout.shards})


def prepare(kernel: Kernel, case: Case, *, device: torch.device | str) -> Prepared:
    """Expand the values of a case, once for all configurations with the case's own neighbours.

    Args:
        kernel: The kernel.
        case: A legal case.
        device: Where it runs.

    Raises:
        CaseError: A transform cannot be read, or a tensor has no recipe.
    """
    place = torch.device(device)
    layout = apply_all(transforms_of(case))
    pool = token_pool(case, layout)
    return Prepared(
        kernel=kernel,
        case=case,
        layout=layout,
        device=place,
        pool=pool,
        values=values_of(kernel, case, pool, layout.neighbours, place),
        maps=KnownMaps(pools={layout.neighbours: pool}),
    )


def run_canonical(prepared: Prepared, *, poison: Poison = "nan", everywhere: bool = False) -> Run:
    """Run a case's watched sequences alone, in fresh contiguous memory.

    Errors of the target come through as they are.

    Args:
        prepared: The case.
        poison: What outputs and workspaces hold before each launch.
        everywhere: Whether all free memory of a device holds it before the first.

    Raises:
        OutputError: The target returned something else than its signature says.
    """
    frames = prepared.canonical_frames()
    session = _session(prepared, CANONICAL, poison, everywhere=everywhere)
    return _run(prepared, frames, session, role="canonical")


def run_transformed(
    prepared: Prepared,
    layout: Layout | None = None,
    *,
    poison: Poison = "nan",
    everywhere: bool = False,
) -> Run:
    """Run a case as a layout says.

    Errors of the target come through as they are.

    Args:
        prepared: The case.
        layout: Another than the case's own.
        poison: What outputs and workspaces hold before each launch, unless the layout has them
            dirty: then they hold the large poison.
        everywhere: Whether all free memory of a device holds it before the first.

    Raises:
        CaseError: The layout cannot be laid out for the signature.
        OutputError: The target returned something else than its signature says.
        TargetError: The kernel has no such form.
    """
    ready = prepared if layout is None else prepared.under(layout)
    held: Poison = "large" if ready.layout.storage.dirty else poison
    session = _session(ready, ready.layout, held, everywhere=everywhere)
    run = _run(ready, ready.transformed_frames(), session, role="transformed")
    return _shared(ready, run) if ready.layout.selection.form else run


def _shared(prepared: Prepared, run: Run) -> Run:
    """Return a run of another form, with what the case's own form gives out too."""
    own, other = (
        FormSignatures(signature=kernel.signature, backward_signature=kernel.backward_signature)
        for kernel in (prepared.kernel, prepared.launched)
    )
    names = {*shared_outputs(own, other, prepared.case.judged), *run.expected}
    kept = {name: values for name, values in run.outputs.items() if name in names}
    return attrs.evolve(run, outputs=kept)


def reference_outputs(prepared: Prepared, reduce: Reducer) -> dict[str, Tensor]:
    """Return what the kernel's reference makes of the watched tokens, summing through `reduce`.

    Args:
        prepared: The case; the direction does not matter, it is the forward's reference.
        reduce: Sums over one dimension.

    Returns:
        By output name `[n, *free]`, as in `Run.outputs`.

    Raises:
        TargetError: The kernel has no reference.
    """
    kernel = prepared.kernel
    if kernel.reference is None:
        raise TargetError(f"Operator {kernel.name!r} has no reference.")
    signature, case = kernel.signature, prepared.case
    materialiser = _materialiser(prepared, CANONICAL, "nan")
    collector = Collector(compared=prepared.compared)
    for number, frame in enumerate(prepared.joint_frames()):
        arguments = materialiser.arguments(signature, frame)
        returned = kernel.reference(*arguments, reduce=reduce, **kernel.call)
        outputs = checked(signature, returned, frame, case)
        for output in signature.outputs:
            if not output.ignored:
                collector.add(signature, output, outputs[output.name], frame, launch=number)
    return collector.finish(())


def _session(prepared: Prepared, layout: Layout, poison: Poison, *, everywhere: bool) -> Session:
    return Session(
        kernel=kernel_launched(prepared.kernel, layout),
        case=prepared.case,
        materialiser=_materialiser(prepared, layout, poison),
        poisoner=Poisoner(poison),
        collector=Collector(compared=prepared.compared),
        everywhere=everywhere,
    )


def _run(prepared: Prepared, frames: list[Frame], session: Session, *, role: str) -> Run:
    is_compiled = prepared.device.type != "cpu"
    with switched(prepared.case.execution), launches_seen(is_compiled=is_compiled) as launched:
        _launch_all(session, frames)
    outputs, expected = session.finish(_names(prepared))
    return Run(
        outputs=outputs,
        expected=expected,
        index=session.collector.index(),
        rows=session.collector.rows(),
        launches=len(frames),
        facts=_facts(session, role, launched),
        poisons=(session.poisoner.poison,) if session.poisoner.reached else (),
        actual_backend=actual_backend(session.kernel),
        unread=tuple(session.unread),
    )


def _launch_all(session: Session, frames: list[Frame]) -> None:
    if session.case.judged == "outputs":
        for number, frame in enumerate(frames):
            launch_forward(session, frame, launch=number)
        return
    accumulators: Accumulators = {}
    for number, frame in enumerate(frames):
        launch_backward(session, frame, accumulators, launch=number)
    collect_accumulators(session, accumulators)


def _materialiser(prepared: Prepared, layout: Layout, poison: Poison) -> Materialiser:
    return Materialiser(
        case=prepared.case,
        values=prepared.values,
        layout=layout,
        align=prepared.kernel.align,
        poison=poison,
    )


def _names(prepared: Prepared) -> list[str]:
    """Return the names of what is judged, in the order of the signature."""
    kernel = prepared.kernel
    if prepared.case.judged == "outputs":
        return [item.name for item in kernel.signature.judged_outputs]
    if kernel.backward_signature is None:
        return [f"d{item.name}" for item in kernel.signature.arguments]
    return [item.name for item in kernel.backward_signature.judged_outputs]


def _facts(session: Session, role: str, launched: Iterable[Launched]) -> tuple[LaunchFact, ...]:
    functions: list[Callable[..., object]] = [session.kernel.function]
    if session.case.judged != "outputs" and session.kernel.backward is not None:
        functions.append(session.kernel.backward)
    called = [LaunchFact(role=role, kernel=qualified_name(function)) for function in functions]
    return (*called, *(LaunchFact(role=role, **attrs.asdict(item)) for item in launched))
