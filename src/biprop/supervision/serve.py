"""The worker's loop: load kernels, judge cases, answer, until the supervisor ends or is gone.

What starts it is `biprop.worker`; the other side is `biprop.supervision.child`. Only this side
imports torch.
"""

import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps

import attrs
import torch

from biprop.case import Execution, Json, TransformData, case_from_data
from biprop.errors import BipropError
from biprop.execution.device import is_lost
from biprop.execution.nonzeros import nonzeros_of
from biprop.judgment import Verdict, outcome_to_data
from biprop.operators import CallValue, Kernel, KernelFunction, KernelReference, Registry
from biprop.relations import JudgeOptions, cause_of
from biprop.relations.judging import judge_case
from biprop.relations.messages import TargetExitError, message_of
from biprop.relations.sets import judge_set
from biprop.supervision.caches import Caches, FindCache
from biprop.supervision.child import EXIT_DEVICE_LOST, EXIT_PIPES_LOST
from biprop.supervision.messages import CONVERTER, decode, encode, error_to_data
from biprop.supervision.pipes import Lines, LinesEndError
from biprop.supervision.resolve import describe, reference_of, resolve, run_simplest
from biprop.supervision.vitals import VitalsWriter

__all__ = ["serve"]


def serve(
    registry: Registry,
    *,
    find_cache: FindCache,
    lines: Lines,
    vitals: VitalsWriter,
    device: str,
) -> None:
    """Answer messages until one says to end; does not return.

    Args:
        registry: Operators that a reference may name.
        find_cache: Returns the registered cache of a name.
        lines: Conversation with the supervisor.
        vitals: Where stages are marked.
        device: Where kernels run.
    """
    session = _Session(registry, vitals=vitals, device=device)
    caches = Caches(registry, find_cache, vitals=vitals, device=device)
    answers: dict[str, Callable[[dict[str, Json]], dict[str, Json]]] = {
        "open": session.open,
        "judge": session.judge,
        "judge set": session.judge_set,
        "nonzeros": session.nonzeros,
        "open cache": caches.open,
        "program": caches.judge,
    }
    try:
        lines.send(encode({"ready": os.getpid()}))
        while True:
            line = lines.receive()
            assert line is not None, "no deadline was given"
            message = decode(line)
            if message["do"] == "end":
                _leave(0)
            answer = encode(_answer(answers[str(message["do"])], message, device=device))
            # Idle: if the process ends now, the next case has no part in it.
            vitals.mark("")
            lines.send(answer)
            if session.device_is_lost or caches.device_is_lost:
                _leave(EXIT_DEVICE_LOST)
    except LinesEndError:
        # The supervisor is gone, or the target has closed descriptors that are not its own.
        _leave(EXIT_PIPES_LOST)


def _answer(
    answer: Callable[[dict[str, Json]], dict[str, Json]],
    message: dict[str, Json],
    *,
    device: str,
) -> dict[str, Json]:
    """Return an answer, or the error that came instead; a lost device ends the process."""
    wrong: BipropError
    try:
        return answer(message)
    except BipropError as error:
        wrong = error
    # A mistake of biprop itself: the whole story to people, a sentence to the supervisor.
    except Exception as error:  # noqa: BLE001  # reported, not swallowed
        traceback.print_exc()
        wrong = BipropError(
            f"The worker itself failed with {message_of(error)}; report it as a bug of biprop."
        )
    if is_lost(torch.device(device)):
        # Whatever the error says, the device is the reason: the stage tells whose fault it was.
        _leave(EXIT_DEVICE_LOST)
    return {"error": error_to_data(wrong)}


class _Session:
    """Kernels that were opened, by number."""

    def __init__(self, registry: Registry, *, vitals: VitalsWriter, device: str) -> None:
        self._registry = registry
        self._vitals = vitals
        self._device = device
        self._kernels: list[Kernel] = []
        self.device_is_lost = False

    def open(self, message: dict[str, Json]) -> dict[str, Json]:
        """Load a kernel, and try it on the simplest case if asked to."""
        self._vitals.mark("open")
        os.chdir(str(message["folder"]))
        reference = CONVERTER.structure(message["reference"], KernelReference)
        kernel = resolve(reference, self._registry)
        contained = _contained(kernel)
        ran = ""
        trial = message["trial"]
        if isinstance(trial, dict):
            ran = run_simplest(
                contained,
                device=self._device,
                dtype=trial["dtype"],  # type: ignore[arg-type]  # the supervisor's own words
                direction=trial["direction"],  # type: ignore[arg-type]  # likewise
                execution=CONVERTER.structure(trial["execution"], Execution),
            )
        self._kernels.append(contained)
        description = describe(kernel, device=self._device, actual_backend=ran)
        return {
            "kernel": len(self._kernels) - 1,
            "reference": CONVERTER.unstructure(reference_of(kernel)),
            "description": CONVERTER.unstructure(description),
        }

    def judge(self, message: dict[str, Json]) -> dict[str, Json]:
        """Judge a case with a kernel that was opened."""
        kernel = self._kernels[int(str(message["kernel"]))]
        case = case_from_data(message["case"])
        options = CONVERTER.structure(message["options"], JudgeOptions)
        outcome = judge_case(
            kernel, case, device=self._device, options=options, on_stage=self._vitals.mark
        )
        if outcome.rejected or outcome.verdict is Verdict.CRASHES:
            self.device_is_lost = is_lost(torch.device(self._device))
        if self.device_is_lost:
            # What costs the device is a crash, whichever side it happened on.
            run = f"the {self._vitals.stage} run" if options.careful else "one of the two runs"
            outcome = attrs.evolve(
                outcome,
                verdict=Verdict.CRASHES,
                cause=outcome.cause or cause_of(case, Verdict.CRASHES),
                message=f"The device was lost in {run}: {outcome.rejected or outcome.message}",
                rejected="",
            )
        return {"outcome": outcome_to_data(outcome), "device_is_lost": self.device_is_lost}

    def judge_set(self, message: dict[str, Json]) -> dict[str, Json]:
        """Judge several layouts of a case at once, as `biprop.relations.sets.judge_set` does."""
        kernel = self._kernels[int(str(message["kernel"]))]
        case = case_from_data(message["case"])
        layouts = CONVERTER.structure(message["layouts"], tuple[tuple[TransformData, ...], ...])
        cases = [attrs.evolve(case, transforms=transforms) for transforms in layouts]
        outcomes = judge_set(
            kernel,
            cases,
            device=self._device,
            options=CONVERTER.structure(message["options"], tuple[JudgeOptions, ...]),
            on_stage=self._vitals.mark,
        )
        if not outcomes:
            self.device_is_lost = is_lost(torch.device(self._device))
        return {
            "outcomes": None if outcomes is None else list(map(outcome_to_data, outcomes)),
            "device_is_lost": self.device_is_lost,
        }

    def nonzeros(self, message: dict[str, Json]) -> dict[str, Json]:
        """List the values of one tensor of a case."""
        self._vitals.mark("prepare")
        kernel = self._kernels[int(str(message["kernel"]))]
        nonzeros = nonzeros_of(kernel.signature, kernel.backward_signature)
        case = case_from_data(message["case"])
        points = nonzeros(case, str(message["name"]), int(str(message["limit"])))
        return {"points": None if points is None else CONVERTER.unstructure(points)}


def _contained(kernel: Kernel) -> Kernel:
    """Return `kernel` with what would end the process turned into exceptions that are judged."""
    return attrs.evolve(
        kernel,
        function=_caught(kernel.function),
        backward=None if kernel.backward is None else _caught(kernel.backward),
        relatives=tuple(_contained(relative) for relative in kernel.relatives),
    )


def _caught(function: KernelFunction) -> KernelFunction:
    # Wrapped in the open: launch facts and the actual backend are read from the function itself.
    @wraps(function)
    def contained(*arguments: object, **call: CallValue) -> object:
        try:
            return function(*arguments, **call)
        except Exception:
            raise
        # KeyboardInterrupt here is the target's own: the terminal's never reaches a worker.
        except BaseException as error:  # noqa: BLE001  # raised again as what is judged
            raise TargetExitError(message_of(error)) from None

    return contained


def _leave(status: int) -> None:
    """End at once: threads and exit handlers of a target are not waited for."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(status)
