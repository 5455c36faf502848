"""A set: several layouts of the same sequences, judged together while all of them agree.

The canonical side, its values and the power of the data are the same for every layout of a set, so
they are made, launched and measured once; every layout is launched and compared in all of its rows,
and a device is waited for once for all of them. A set says nothing but that bits are equal. Where
anything differs, raises or is refused, its cases are judged one by one
(`biprop.relations.judging`), so that verdicts, repeats and causes are what they always are.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TypeVar

import torch

from biprop.bits import any_differ
from biprop.case import Case
from biprop.errors import BipropError
from biprop.execution import Prepared, Run
from biprop.execution.power import is_by_value, start_power
from biprop.execution.sets import (
    are_layouts,
    canonical_member,
    compared_alike,
    narrowed,
    prepare_set,
)
from biprop.execution.weights import free_memory
from biprop.generation.legal import legal_for
from biprop.judgment import Outcome, Power
from biprop.operators import Kernel
from biprop.relations.comparison import paired
from biprop.relations.invariance import Evidence, InvarianceJudgement
from biprop.relations.options import JudgeOptions
from biprop.relations.runs import Raised, Runs, Stage

__all__ = ["all_equal", "judge_set"]

Made = TypeVar("Made")


def judge_set(
    kernel: Kernel,
    cases: Sequence[Case],
    *,
    device: str = "cpu",
    options: Sequence[JudgeOptions],
    on_stage: Stage | None = None,
) -> tuple[Outcome, ...] | None:
    """Judge relation I for several layouts at once.

    Args:
        kernel: What is run.
        cases: They differ in their transforms alone.
        device: Where they run.
        options: One for each case. Where one asks for it, the canonical side is run twice.
        on_stage: As in `biprop.relations.invariance.judge_invariance`.

    Returns:
        The outcome of each case, as judging it alone would give it but for launches and seconds,
        which are shared out: what was done once is counted once. None where not all is equal or
        something was raised; empty where nothing is known yet, since they are no such set, or need
        too much memory together. Each is to be judged alone then, and the device may be lost.
    """
    is_legal = legal_for(kernel)
    is_set = all(
        case.against is None and option.rate is None and not option.careful
        for case, option in zip(cases, options, strict=True)
    )
    if not is_set or not are_layouts(cases) or any(is_legal(case) for case in cases):
        return ()
    try:
        return _Set(kernel, cases, device=device, options=options, on_stage=on_stage).outcomes()
    except torch.OutOfMemoryError:
        # Alone, each of them needs less.
        pass
    except BipropError:
        # It is raised again by the case that it belongs to.
        return None
    free_memory()
    return ()


class _Set:
    """The runs of one set."""

    def __init__(
        self,
        kernel: Kernel,
        cases: Sequence[Case],
        *,
        device: str,
        options: Sequence[JudgeOptions],
        on_stage: Stage | None,
    ) -> None:
        """Run nothing yet."""
        self._kernel = kernel
        self._cases = cases
        self._device = device
        self._is_repeated = any(option.repeat_canonical for option in options)
        self._runs = [
            Runs(kernel, case, device=device, options=option, on_stage=on_stage)
            for case, option in zip(cases, options, strict=True)
        ]
        self._judgements = [InvarianceJudgement(runs) for runs in self._runs]

    def outcomes(self) -> tuple[Outcome, ...] | None:
        """Judge all cases; None where not all is equal."""
        self._runs[0].begin("prepare")
        members = self._shared("prepare", self._prepared)
        whole = canonical_member(members)
        canonical: list[Run] = []
        for _ in range(1 + self._is_repeated):
            run = self._runs[0].canonical(whole, everywhere=self._is_repeated)
            if isinstance(run, Raised):
                return None
            canonical.append(run)
        compared = [narrowed(canonical[0], whole, member) for member in members]
        transformed: list[Run] = []
        for judgement in self._judgements:
            run = judgement.transformed()
            if isinstance(run, Raised):
                return None
            transformed.append(run)
        pairs = tuple(zip(compared, transformed, strict=True))
        # What they are measured by comes from the device with the comparison.
        measures = self._shared("power", partial(self._started, members, compared))
        is_equal = partial(all_equal, pairs, canonical)
        if measures is None or not self._shared("compare", is_equal):
            return None
        powers = self._powers(measures)
        return tuple(
            judgement.agreeing(Evidence(canonical=one, transformed=other), power)
            for judgement, (one, other), power in zip(self._judgements, pairs, powers, strict=True)
        )

    def _prepared(self) -> tuple[Prepared, ...]:
        members = prepare_set(self._kernel, self._cases, device=self._device)
        for runs, member in zip(self._runs, members, strict=True):
            runs.take(member)
        return members

    def _started(
        self, members: Sequence[Prepared], compared: Sequence[Run]
    ) -> list[Callable[[], Power] | None] | None:
        """Begin to measure the data of what is compared alike, once where it is the same.

        None where the device has failed meanwhile.
        """
        known: dict[int, Callable[[], Power]] = {}
        found: list[Callable[[], Power] | None] = []
        for place, alike in enumerate(compared_alike(members)):
            is_wanted = self._runs[place].options.measure
            # Rows stand out of those that lie around them, in each layout.
            if is_wanted and (alike not in known or is_by_value(members[place])):
                try:
                    known[alike] = start_power(members[place], compared[place])
                except (BipropError, torch.OutOfMemoryError):
                    raise
                # As in `all_equal`: what a device says of its kernels comes whenever it is asked.
                except Exception:  # noqa: BLE001  # told by the case alone that brings it about
                    return None
            found.append(known.get(alike))
        return found

    def _powers(self, measures: Sequence[Callable[[], Power] | None]) -> list[Power | None]:
        self._runs[0].begin("power")
        known = {
            measure: self._shared("power", measure)
            for measure in dict.fromkeys(measures)
            if measure is not None
        }
        return [None if measure is None else known[measure] for measure in measures]

    def _shared(self, part: str, make: Callable[[], Made]) -> Made:
        """Return what `make` returns, and count its time to all cases alike."""
        started = perf_counter()
        made = make()
        seconds = (perf_counter() - started) / len(self._runs)
        for runs in self._runs:
            runs.spend(part, seconds)
        return made


def all_equal(pairs: Sequence[tuple[Run, Run]], canonical: Sequence[Run]) -> bool:
    """Wait for all runs, and return whether they hold the same bits and wrote nowhere.

    Args:
        pairs: Of each layout the canonical and the transformed run.
        canonical: All canonical runs, equal among each other too.
    """
    tensors = [pair for one, other in pairs for pair in paired(one, other)]
    tensors += [pair for other in canonical[1:] for pair in paired(canonical[0], other)]
    runs = (*canonical, *(other for _, other in pairs))
    flags = [item.flag for run in runs for item in run.unread]
    try:
        return not any(any_differ(tensors, flags=flags))
    except (BipropError, torch.OutOfMemoryError):
        raise
    # What a device says of its kernels, and of any run.
    except Exception:  # noqa: BLE001  # told by the case alone that brings it about
        return False
