"""A judge of programs whose cache lives in this process: quick to start, but it can end the caller.

For caches that people have in hand in their own tests; use
`biprop.supervision.programs.SupervisedPrograms` where a signal or a hang matters.
"""

import torch

from biprop.errors import DeviceError
from biprop.execution.device import is_lost, on_device
from biprop.judgment import Verdict
from biprop.kvcache.converting import program_digest
from biprop.kvcache.interpreter import judge_program
from biprop.kvcache.protocol import CacheImplementation, CacheOperator
from biprop.kvcache.records import CacheReference, Program, ProgramOutcome
from biprop.operators import Operator, Registry
from biprop.provenance import collect
from biprop.supervision.programs import REPEATS_QUICK, ProgramLedger
from biprop.supervision.resolve import check_device, file_of

__all__ = ["InProcessPrograms"]


class InProcessPrograms:
    """Judges programs of one cache here (see `biprop.supervision.programs.ProgramJudge`).

    Attributes:
        reference: How the cache is found again, if it is registered.
        provenance: Of this process.
    """

    def __init__(
        self,
        operator: CacheOperator,
        implementation: CacheImplementation,
        attention: Operator | None,
        *,
        device: str = "cpu",
        repeats: int = 5,
        registry: Registry | None = None,
    ) -> None:
        """Judge by `biprop.kvcache.interpreter.judge_program`, whose arguments these are.

        Raises:
            DeviceError: The device is absent.
        """
        check_device(device)
        self._operator = operator
        self._implementation = implementation
        self._attention = attention
        self._device = device
        self._repeats = repeats
        self._registry = registry
        self._ledger = ProgramLedger()
        self._is_lost = False
        self.reference = CacheReference(
            cache=operator.name,
            target=operator.name,
            backend=implementation.backend,
            attention="" if attention is None else attention.name,
        )
        self.provenance = collect(
            device, threads=torch.get_num_threads(), target_file=file_of(implementation.make)
        )

    def judge(
        self, program: Program, *, fresh: bool = False, quick: bool = False
    ) -> ProgramOutcome:
        """Return the outcome of one program, as `ProgramJudge` says.

        Raises:
            DeviceError: An earlier program has cost this process its device.
            BipropError: The program or its yardstick cannot be used; the sentence says why.
        """
        key = program_digest(program)
        outcome = None if fresh else self._ledger.find(key, quick=quick)
        if outcome is None:
            if self._is_lost:
                raise DeviceError(
                    f"Device {self._device} computes no more for this process, since an earlier "
                    "program broke it: judge in a worker (`SupervisedPrograms`), which is replaced."
                )
            with on_device(self._device):
                outcome = judge_program(
                    self._operator,
                    self._implementation,
                    self._attention,
                    program,
                    device=self._device,
                    repeats=REPEATS_QUICK if quick else self._repeats,
                    registry=self._registry,
                    measure=not quick,
                )
            if outcome.verdict is Verdict.CRASHES:
                self._is_lost = is_lost(torch.device(self._device))
            self._ledger.keep(key, outcome, quick=quick)
        return outcome

    def close(self) -> None:
        """Nothing to let go of; here so that both kinds of judge are used alike."""
