"""What is planted, as a run of power lists it: names, kinds and dtypes, and no function.

A subject crosses to another process, where `biprop.power.benches` finds its functions again.
"""

from collections.abc import Sequence
from typing import Literal

import attrs

from biprop.case import Dtype
from biprop.errors import UsageError
from biprop.kernels.planted import CHAIN, PLANTED
from biprop.power.manifest import Entry
from biprop.reports.power import Cell
from biprop.reports.suite import Note
from biprop.signature.words import advice_on, quoted

__all__ = ["Choice", "Subject", "chosen", "planted_subjects", "subjects_of"]

# Of the registered operators; the planted kernels say themselves. What a narrow product cuts off,
# bfloat16 has not.
_CHAIN_DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
_INACCURATE_DTYPES: tuple[Dtype, ...] = ("float32",)
_FOR_CPU = "a model in torch operations, which runs on a CPU alone"
_FOR_GPU = "a defect that shows where it is compiled for a GPU alone"


@attrs.frozen(kw_only=True)
class Subject:
    """One planted kernel.

    Attributes:
        name: Unique in a run.
        kind: Of its defect.
        source: `planted` (`PLANTED`), `chain` (a `ChainDefect`) or `target` (of a manifest).
        dtypes: In which the defect shows.
        backend: `torch` or `triton`; empty for a target.
        relation: What finds it: I, or A where it is the same in every batch.
        twin: Name of its healthy twin; empty where it has none. Defects of one operator share one.
        entry: Of the manifest.
    """

    name: str
    kind: str
    source: Literal["planted", "chain", "target"]
    dtypes: tuple[Dtype, ...]
    backend: Literal["torch", "triton", ""] = ""
    relation: Literal["I", "A"] = "I"
    twin: str = ""
    entry: Entry | None = None

    def cell(self, dtype: Dtype) -> Cell:
        """Return what reports call it in a dtype."""
        return Cell(name=self.name, kind=self.kind, dtype=dtype)


@attrs.frozen(kw_only=True)
class Choice:
    """What was asked for; nothing named means all.

    Attributes:
        names: Of planted kernels.
        kinds: Of defects.
        backends: That kernels are written in.
        dtypes: Of the cases.
    """

    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    dtypes: tuple[Dtype, ...] = ()


def planted_subjects(device: str) -> tuple[tuple[Subject, ...], tuple[Note, ...]]:
    """Return what is planted in biprop's own zoo, and what of it a device does not run.

    Args:
        device: A CPU runs all, Triton kernels in their interpreter; a GPU those that are compiled.
    """
    on_cpu = device == "cpu"
    kind_of_device = "cpu" if on_cpu else "cuda"
    planted = [
        Subject(
            name=item.name,
            kind=item.mechanism,
            source="planted",
            dtypes=item.dtypes,
            backend="triton" if item.interpreted else "torch",
            twin=f"{item.name} healthy",
        )
        for item in PLANTED
        if kind_of_device in item.devices
    ]
    chain = [
        Subject(
            name=defect.name,
            kind=defect.mechanism,
            source="chain",
            dtypes=_INACCURATE_DTYPES if defect.verdict == "INACCURATE" else _CHAIN_DTYPES,
            backend="torch",
            relation="A" if defect.verdict == "INACCURATE" else "I",
            twin=f"{defect.operator}/{defect.form} {defect.direction} {defect.verdict}",
        )
        for defect in CHAIN
        if on_cpu
    ]
    names = {subject.name for subject in (*planted, *chain)}
    every = [*(item.name for item in PLANTED), *(item.name for item in CHAIN)]
    reason = _FOR_GPU if on_cpu else _FOR_CPU
    left_out = tuple(Note(name=name, reason=reason) for name in every if name not in names)
    return (*planted, *chain), left_out


def subjects_of(entries: Sequence[Entry]) -> tuple[Subject, ...]:
    """Return the subjects of a manifest."""
    return tuple(
        Subject(
            name=entry.name,
            kind=entry.kind,
            source="target",
            dtypes=entry.dtypes,
            twin=f"{entry.name} healthy" if entry.healthy else "",
            entry=entry,
        )
        for entry in entries
    )


def chosen(subjects: Sequence[Subject], choice: Choice) -> tuple[Subject, ...]:
    """Return those of `subjects` that were asked for, in their order and with the dtypes wanted.

    Raises:
        UsageError: A name, a kind or a backend is unknown, or nothing is left.
    """
    _check("names", choice.names, [subject.name for subject in subjects])
    _check("kinds", choice.kinds, [subject.kind for subject in subjects])
    _check("backends", choice.backends, [subject.backend for subject in subjects])
    wanted = [
        attrs.evolve(
            subject,
            dtypes=tuple(
                dtype for dtype in subject.dtypes if not choice.dtypes or dtype in choice.dtypes
            ),
        )
        for subject in subjects
        if not choice.names or subject.name in choice.names
        if not choice.kinds or subject.kind in choice.kinds
        if not choice.backends or subject.backend in choice.backends
    ]
    left = tuple(subject for subject in wanted if subject.dtypes)
    if not left:
        raise UsageError(
            "No planted kernel is named, of the kinds, of the backends and of the dtypes given at "
            "once: leave one of these options out."
        )
    return left


def _check(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(
                f"{what} has {quoted(name)}, which nothing planted has: {advice_on(name, known)}."
            )
