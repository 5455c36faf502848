"""Probes of the contract: cases of relation A whose results are known beforehand.

A probe shows the precision of sums and products that a tolerance on drawn data leaves room for
(`biprop.contract.probes`). It says something only where the operator's float32 reference gives the
expected values, since those are guessed from a signature.
"""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from biprop.bits import Agreement, compare_within
from biprop.case import Against, Case, Execution
from biprop.contract.probes import Expected, Probe, probes_for
from biprop.errors import BipropError, CaseError
from biprop.execution import Run
from biprop.execution.reference import run_reference
from biprop.generation.legal import legal_for
from biprop.judgment import Mismatch, Outcome
from biprop.operators import Kernel
from biprop.relations.options import JUDGE_OPTIONS, JudgeOptions
from biprop.relations.runs import Runs, Stage, judged_by
from biprop.relations.within import Within, WithinDifference, mismatch_of

__all__ = ["judge_probe"]


def judge_probe(
    kernel: Kernel,
    case: Case,
    *,
    device: str = "cpu",
    options: JudgeOptions = JUDGE_OPTIONS,
    on_stage: Stage | None = None,
) -> Outcome:
    """Judge a probe.

    Args:
        kernel: What is run; its operator has a reference.
        case: That of a probe, which it names.
        device: Where both run.
        options: How thoroughly it is judged.
        on_stage: Told `prepare`, `canonical` and `reference` before each begins.

    Returns:
        As for relation A; the output of an INACCURATE cause says which probe: `y (<probe>)`.
        VACUOUS where the reference does not give what the probe expects.

    Raises:
        CaseError: The kernel has no such probe, or the case is another one.
        OutputError: A side returned something else than the signature says.
        TargetError: The reference raised.
    """
    reason = legal_for(kernel)(case)
    if reason:
        raise CaseError(reason)
    _probe_of(kernel, case)
    return judged_by(_Judgement, kernel, case, device=device, options=options, on_stage=on_stage)


class _Judgement:
    """What a kernel makes of a probe."""

    def __init__(self, runs: Runs) -> None:
        """Judge by `runs`."""
        self._probe = _probe_of(runs.kernel, runs.case)
        self._signature = runs.kernel.signature
        self._within = Within(
            runs,
            role="reference",
            other=lambda: run_reference(runs.prepared),
            is_repeated=False,
            compare=self._compare,
        )

    def outcome(self) -> Outcome | BipropError:
        """Judge the case; an error to be raised is returned."""
        return self._within.outcome()

    def _compare(self, own: Run, reference: Run, against: Against) -> WithinDifference:
        """Hold a run against what is expected, if the reference stands the same test."""
        own_flags = [item.flag for item in own.unread]
        agreements, written = self._agreements(own, against, flags=own_flags)
        # Rounded as the operator's results are: some expectations are about that.
        rounded = {
            name: reference.outputs[name].to(values.dtype) for name, values in own.outputs.items()
        }
        told, _ = self._agreements(attrs.evolve(reference, outputs=rounded), against)
        sentences = zip(own.unread, written, strict=True)
        found = WithinDifference(
            mismatches=(),
            elements=sum(item.elements_compared for item in agreements),
            telling=sum(item.elements_telling for item in agreements),
            share=max(item.share for item in agreements),
            own_wrote=next((item.sentence for item, is_so in sentences if is_so), ""),
        )
        if any(item.elements_beyond for item in told):
            name = self._probe.name
            reason = f"The reference does not give what probe {name} expects, so it says nothing."
            return attrs.evolve(found, telling=0, reason=reason)
        mismatches: dict[str, Mismatch] = {}
        for expected, item in zip(self._probe.expected, agreements, strict=True):
            if item.elements_beyond:
                mismatch = self._mismatch(expected, item, (own, reference))
                mismatches.setdefault(mismatch.output, mismatch)
        return attrs.evolve(found, mismatches=tuple(mismatches.values()))

    def _agreements(
        self, run: Run, against: Against, *, flags: Sequence[Tensor] = ()
    ) -> tuple[tuple[Agreement, ...], tuple[bool, ...]]:
        """Return how well a run agrees with each expectation, and the flags as they are read."""
        agreements: list[Agreement] = []
        written: tuple[bool, ...] = ()
        for expected in self._probe.expected:
            values = run.outputs[expected.output]
            bound = (0.0, 0.0) if expected.is_exact else (against.atol, against.rtol)
            (agreement,), read = compare_within(
                [(values, self._expected(expected, values))],
                atol=bound[0],
                rtol=bound[1],
                flags=flags,
            )
            agreements.append(agreement)
            # They are the same each time.
            written = read
        return tuple(agreements), written

    def _expected(self, expected: Expected, values: Tensor) -> Tensor:
        """Return the values of an output with what is expected in its place."""
        dims = next(
            item.free_dims
            for item in self._signature.judged_outputs
            if item.name == expected.output
        )
        place = tuple(expected.at.get(dim.text, slice(None)) for dim in dims)
        wanted = (
            values.float() if values.dtype.itemsize < torch.float32.itemsize else values.clone()
        )
        wanted[(slice(None), *place)] = expected.value
        return wanted

    def _mismatch(self, expected: Expected, found: Agreement, runs: tuple[Run, Run]) -> Mismatch:
        name = expected.output
        values = runs[0].outputs[name]
        mismatch = mismatch_of(name, values, self._expected(expected, values), found, runs=runs)
        return attrs.evolve(mismatch, output=f"{name} ({self._probe.name})")


def _probe_of(kernel: Kernel, case: Case) -> Probe:
    """Return the probe that a case is.

    Raises:
        CaseError: The kernel has no such probe, or the case is another one.
    """
    assert case.against is not None, "the caller looked"
    assert kernel.op_class is not None, "a legal case of relation A is of a registered operator"
    plan = probes_for(kernel.signature, op_class=kernel.op_class, restrictions=kernel.restrictions)
    name = case.against.probe
    plain = attrs.evolve(case, against=None, execution=Execution())
    for probe in plan.probes:
        if probe.name == name and probe.case == plain:
            return probe
    known = ", ".join(probe.name for probe in plan.probes) or "none"
    raise CaseError(
        f"The case is no probe {name!r} of operator {kernel.name!r}, which has {known}: "
        "take the case as the contract has it."
    )
