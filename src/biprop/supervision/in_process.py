"""A judge whose kernel runs in this process: quick to start, but what it does happens here.

For kernels that people have in hand in their own tests. A signal or a hang ends or stops the
caller; use `SupervisedJudge` where that matters. The judging itself is
`biprop.relations.judging`.
"""

from collections.abc import Sequence

import attrs
import torch

from biprop.case import Case, Dtype
from biprop.data.recipe import Point
from biprop.errors import DeviceError
from biprop.execution.device import is_lost, on_device
from biprop.execution.nonzeros import nonzeros_of
from biprop.generation.space import Direction
from biprop.judgment import Outcome, Verdict
from biprop.operators import Kernel
from biprop.relations import JUDGE_OPTIONS, JudgeOptions
from biprop.relations.judging import judge_case
from biprop.relations.sets import judge_set
from biprop.supervision.ledger import Ledger
from biprop.supervision.resolve import check_device, describe, reference_of, run_simplest

__all__ = ["InProcessJudge"]


class InProcessJudge:
    """Judges cases of one kernel here (see `Judge`).

    Attributes:
        reference: How the kernel is found again.
        description: What the kernel is.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        device: str = "cpu",
        dtype: Dtype = "float32",
        direction: Direction = "forward",
    ) -> None:
        """Run the kernel once on the simplest case of `dtype` and `direction`.

        Raises:
            BipropError: The device is absent, or the kernel cannot be run; the sentence says why.
        """
        check_device(device)
        with on_device(device):
            ran = run_simplest(kernel, device=device, dtype=dtype, direction=direction)
        self._kernel = kernel
        self._dtype = dtype
        self._direction = direction
        self._device = device
        self._ledger = Ledger()
        self._is_lost = False
        self.reference = reference_of(kernel)
        self.description = describe(kernel, device=device, actual_backend=ran)

    def judge(self, case: Case, options: JudgeOptions = JUDGE_OPTIONS) -> Outcome:
        """Return the outcome of one case.

        Raises:
            DeviceError: An earlier case has cost this process its device.
        """
        key = case.digest
        outcome = self._ledger.find(key, options)
        if outcome is None:
            if self._is_lost:
                raise DeviceError(
                    f"Device {self._device} computes no more for this process, since an earlier "
                    "case broke it: judge in a worker (`SupervisedJudge`), which is replaced."
                )
            with on_device(self._device):
                outcome = judge_case(self._kernel, case, device=self._device, options=options)
            if outcome.rejected or outcome.verdict is Verdict.CRASHES:
                self._is_lost = is_lost(torch.device(self._device))
            self._ledger.keep(key, options, outcome)
        return outcome

    def judge_set(
        self, cases: Sequence[Case], options: Sequence[JudgeOptions]
    ) -> tuple[Outcome, ...]:
        """Return the outcome of each of several layouts of one case (see `Judge`).

        On a device other than the CPU they are judged one by one: after a kernel that costs this
        process its device nobody could judge them again.

        Raises:
            DeviceError: An earlier case has cost this process its device.
        """
        asked = list(zip(cases, options, strict=True))
        outcomes: tuple[Outcome, ...] | None = ()
        is_known = any(self._ledger.find(case.digest, option) for case, option in asked)
        if torch.device(self._device).type == "cpu" and not is_known:
            outcomes = judge_set(self._kernel, cases, device=self._device, options=options)
        if not outcomes:
            return tuple(self.judge(case, option) for case, option in asked)
        for (case, option), outcome in zip(asked, outcomes, strict=True):
            self._ledger.keep(case.digest, option, outcome)
        return outcomes

    def nonzeros(self, case: Case, name: str, limit: int) -> tuple[Point, ...] | None:
        """List the values of one tensor that are not zero; None if there are more than `limit`."""
        kernel = self._kernel
        return nonzeros_of(kernel.signature, kernel.backward_signature)(case, name, limit)

    def relative(self, backend: str) -> "InProcessJudge":
        """Return a judge of the same operator and form under another backend.

        Raises:
            BipropError: There is no such backend, or it cannot be run.
        """
        own = self._kernel
        found = own.relative(backend=backend)
        # Relatives are kept without theirs.
        others = (attrs.evolve(own, relatives=()), *own.relatives)
        other = attrs.evolve(found, relatives=tuple(item for item in others if item is not found))
        return InProcessJudge(
            other, device=self._device, dtype=self._dtype, direction=self._direction
        )

    def close(self) -> None:
        """Nothing to let go of; here so that both kinds of judge are used alike."""
