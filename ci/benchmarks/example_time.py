"""Where the time of one example goes: drawing, materialising, launching, comparing, power.

    PYTHONPATH=src python3 ci/benchmarks/example_time.py --device cuda --out times.json

Each operator is judged at the sizes of real models (on a CPU at small ones), with data drawn anew
for every example. The device is waited for between stages here, and only here; beside the stages
stands the time of the whole example as it is judged, where nothing waits. Compilation is over
before the first measurement. Nothing is decided by these figures: they are for people.

Stages: `drawing` (a case of the nightly space, and whether it is legal), `values` (every recipe
expanded), `maps` (which token lies where), `arguments` (gathered for each launch), `launching` (the
kernel itself), `around` (the rest of both runs: poison, checks, reading back), `comparing` and
`power`. Each is what a host waits for, from its first word to the last result: `launching` too
holds the host's own time for every call, and a wait after it. How long a device computes in a stage
stands under `device_work`.

The same of a set: cases of the same sequences that differ in their layout and are judged together,
as a search on a GPU does it. Its figures, under `set`, are those of one example: what is done once
for all layouts counts for each of them as its share.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import attrs
import torch
import triton
from torch.profiler import ProfilerActivity, profile

from biprop.case import Case, Dtype
from biprop.execution import Prepared, Run, prepare, run_canonical, run_transformed
from biprop.execution.arguments import Materialiser
from biprop.execution.device import wait_for
from biprop.execution.frame import Frame
from biprop.execution.power import measure_power
from biprop.execution.sets import prepare_set
from biprop.generation.data_mixture import draw_data
from biprop.generation.draw import RandomDraw
from biprop.generation.generator import draw_case
from biprop.generation.layouts import draw_layouts
from biprop.generation.legal import legal_for
from biprop.generation.real_sizes import held_at, real_sizes
from biprop.generation.space import LIMITS, Space
from biprop.layout import CANONICAL
from biprop.operators import Kernel
from biprop.registry import build_registry
from biprop.relations import JudgeOptions
from biprop.relations.comparison import compare_runs
from biprop.relations.invariance import judge_invariance
from biprop.relations.sets import all_equal, judge_set
from biprop.sequence import LogicalSequence
from biprop.transforms import (
    AddNeighbours,
    PermuteRows,
    PlaceWatched,
    Transform,
    transform_to_data,
)

__all__ = ["main"]

STAGES = ("drawing", "values", "maps", "arguments", "launching", "around", "comparing", "power")
FORMAT = "biprop-example-time-1"
# Examples whose work on the device is counted: a profiler starts slowly.
COUNTED_MAX = 3

# Does what it is given, for a stage that is named.
Measure = Callable[[str, Callable[[], Any]], Any]


@attrs.frozen(kw_only=True)
class Size:
    """How large the examples of one operator are.

    Attributes:
        dims: Sizes of its free dimensions.
        watched: Watched sequences.
        length: Tokens of each sequence.
        neighbours: Other sequences of the transformed launch, as long as the watched ones.
    """

    dims: dict[str, int]
    watched: int
    length: int
    neighbours: int


LARGE = {
    "rms_norm/packed": Size(dims={"H": 8192}, watched=2, length=1024, neighbours=2),
    "det_gemm/packed": Size(dims={"K": 8192, "N": 8192}, watched=2, length=256, neighbours=2),
    "logp/packed": Size(dims={"V": 151_936}, watched=2, length=64, neighbours=2),
    "attention/packed": Size(
        dims={"HQ": 4, "HK": 2, "D": 128}, watched=1, length=4096, neighbours=1
    ),
}
SMALL = {
    "rms_norm/packed": Size(dims={"H": 320}, watched=2, length=6, neighbours=2),
    "det_gemm/packed": Size(dims={"K": 96, "N": 40}, watched=2, length=6, neighbours=2),
    "logp/packed": Size(dims={"V": 300}, watched=2, length=6, neighbours=2),
    "attention/packed": Size(dims={"HQ": 2, "HK": 1, "D": 16}, watched=1, length=8, neighbours=1),
}


@attrs.frozen(kw_only=True, eq=False)
class Example:
    """One example, stage by stage.

    Attributes:
        kernel: The kernel.
        case: Its case.
        space: What `drawing` draws from.
        seed: Of that.
        device: Where it runs.
    """

    kernel: Kernel
    case: Case
    space: Space
    seed: int
    device: torch.device

    def through(self, measure: Measure) -> None:
        """Take every stage in turn through `measure`; a stage may come several times."""
        measure("drawing", self._draw)
        prepared: Prepared = measure("values", self._prepare)
        frames: list[tuple[Frame, Materialiser]] = measure("maps", partial(_frames, prepared))
        for frame, materialiser in frames:
            taken = partial(materialiser.arguments, self.kernel.signature, frame)
            arguments = measure("arguments", taken)
            measure("launching", partial(self.kernel.function, *arguments, **self.kernel.call))
            del arguments
        # Again from the start: what was made for a frame is kept with it.
        fresh = attrs.evolve(prepared)
        canonical: Run = measure("runs", partial(run_canonical, fresh))
        transformed: Run = measure("runs", partial(run_transformed, fresh))
        measure("comparing", partial(compare_runs, canonical, transformed))
        measure("power", partial(measure_power, prepared, canonical))

    def through_set(self, measure: Measure, layouts: Sequence[Case]) -> None:
        """Take every stage of a set through `measure`, as `through` does for one example."""
        measure("drawing", partial(self._draw_set, len(layouts)))
        prepared = partial(prepare_set, self.kernel, layouts, device=self.device)
        members: tuple[Prepared, ...] = measure("values", prepared)
        for number, member in enumerate(members):
            frames: list[tuple[Frame, Materialiser]] = measure(
                "maps", partial(_frames, member, with_canonical=not number)
            )
            for frame, materialiser in frames:
                taken = partial(materialiser.arguments, self.kernel.signature, frame)
                arguments = measure("arguments", taken)
                measure("launching", partial(self.kernel.function, *arguments, **self.kernel.call))
                del arguments
        # Again from the start: what was made for a frame, or a layout, is kept with it.
        fresh = prepare_set(self.kernel, layouts, device=self.device)
        canonical: Run = measure("runs", partial(run_canonical, fresh[0]))
        pairs = [(canonical, measure("runs", partial(run_transformed, member))) for member in fresh]
        measure("comparing", partial(all_equal, pairs, [canonical]))
        measure("power", partial(measure_power, members[0], canonical))

    def layouts(self, count: int) -> tuple[Case, ...]:
        """Return a set of the example: other places and orders of its rows."""
        neighbours = AddNeighbours(**self.case.transforms[0].values)  # type: ignore[arg-type]  # its own fields
        others: list[Transform] = [PlaceWatched(before=neighbours.count)]
        others += [PermuteRows(seed=seed) for seed in range(1, count)]
        composed: list[list[Transform]] = [[neighbours]]
        composed += [[neighbours, other] for other in others]
        return tuple(
            attrs.evolve(self.case, transforms=tuple(map(transform_to_data, transforms)))
            for transforms in composed[:count]
        )

    def _draw_set(self, count: int) -> None:
        drawn = draw_case(RandomDraw(self.seed), self.space)
        for case in (drawn, *draw_layouts(RandomDraw(self.seed), self.space, drawn, count - 1)):
            legal_for(self.kernel)(case)

    def _draw(self) -> None:
        drawn = draw_case(RandomDraw(self.seed), self.space)
        legal_for(self.kernel)(drawn)

    def _prepare(self) -> Prepared:
        return prepare(self.kernel, self.case, device=self.device)


def _frames(prepared: Prepared, *, with_canonical: bool = True) -> list[tuple[Frame, Materialiser]]:
    """Return the launches of both configurations, each with what makes its arguments."""
    canonical, transformed = (
        Materialiser(
            case=prepared.case,
            values=prepared.values,
            layout=layout,
            align=prepared.kernel.align,
            poison="nan",
        )
        for layout in (CANONICAL, prepared.layout)
    )
    return [
        *((frame, canonical) for frame in prepared.canonical_frames() if with_canonical),
        *((frame, transformed) for frame in prepared.transformed_frames()),
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Measure as the command line says, and write the figures; return the exit code."""
    options = _options(words)
    device = torch.device(options.device)
    # As workers have it: what threads would share here are small maps.
    torch.set_num_threads(1)
    sizes = SMALL if device.type == "cpu" else LARGE
    backend = options.backend or ("torch" if device.type == "cpu" else "triton")
    registry = build_registry()
    cells = []
    for target in options.targets or sizes:
        kernel = registry.find(target=target, backend=backend)
        for dtype in options.dtypes:
            examples = [
                _example(kernel, sizes[target], dtype, device, seed=seed)
                for seed in range(options.examples)
            ]
            cells.append(
                _cell(examples, sizes[target], repeats=options.repeats, layouts=options.layouts)
            )
            sys.stdout.write(_line(cells[-1]))
            sys.stdout.flush()
    found = {
        "format": FORMAT,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cells": cells,
    }
    text = json.dumps(found, indent=1) + "\n"
    if options.out is None:
        sys.stdout.write(text)
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", default="cpu", help="cpu (default, small sizes) or cuda")
    parser.add_argument("--out", type=Path, help="where the JSON goes; standard output by default")
    parser.add_argument("--examples", type=int, default=6, help="examples of each cell")
    parser.add_argument("--layouts", type=int, default=4, help="layouts of a set; 1: no set")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each example")
    parser.add_argument("--backend", help="triton by default, on a CPU torch")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"], metavar="DTYPE")
    parser.add_argument("--targets", nargs="+", metavar="OPERATOR/FORM", choices=sorted(LARGE))
    return parser.parse_args(words)


def _cell(examples: Sequence[Example], size: Size, *, repeats: int, layouts: int) -> dict[str, Any]:
    """Return the figures of one operator in one dtype."""
    first = examples[0]
    for example in examples:
        # Once for what is compiled, cached or imported on the way.
        example.through(lambda _stage, work: work())
    stages = [_split(example, repeats) for example in examples]
    judged = [_judged(example, repeats) for example in examples]
    seconds = {stage: statistics.median(found[stage] for found in stages) for stage in STAGES}
    return {
        "target": first.kernel.target,
        "backend": first.kernel.backend,
        "dtype": first.case.dtype,
        "dims": size.dims,
        "tokens": size.length * (size.watched + size.neighbours),
        "watched_tokens": size.length * size.watched,
        "examples": len(examples),
        "seconds": seconds,
        "seconds_max": {stage: max(found[stage] for found in stages) for stage in STAGES},
        "materialising_to_launching": (seconds["values"] + seconds["arguments"])
        / seconds["launching"],
        "judged_seconds": statistics.median(found["whole"] for found in judged),
        "judged_parts": {
            part: statistics.median(found[part] for found in judged)
            for part in judged[0]
            if part != "whole"
        },
        "kernel_calls": _calls(first),
        "device_work": _device_work(examples) if first.device.type == "cuda" else None,
        "set": _set(examples, repeats=repeats, layouts=layouts) if layouts > 1 else None,
        "kinds": sorted({recipe.kind for item in examples for recipe in item.case.data.values()}),
    }


def _set(examples: Sequence[Example], *, repeats: int, layouts: int) -> dict[str, Any]:
    """Return the figures of one example of a set."""
    stages, judged = [], []
    for example in examples:
        cases = example.layouts(layouts)
        through = partial(example.through_set, layouts=cases)
        through(lambda _stage, work: work())
        stages.append(_split(example, repeats, through))
        judged.append(_judged_set(example, cases, repeats))
    seconds = {
        stage: statistics.median(found[stage] for found in stages) / layouts for stage in STAGES
    }
    return {
        "layouts": layouts,
        "seconds": seconds,
        "materialising_to_launching": (seconds["values"] + seconds["arguments"])
        / seconds["launching"],
        "judged_seconds": statistics.median(judged) / layouts,
    }


def _judged_set(example: Example, cases: Sequence[Case], repeats: int) -> float:
    """Return the seconds of a whole set as it is judged."""
    rounds = []
    for _ in range(1 + repeats):
        wait_for(example.device)
        started = perf_counter()
        outcomes = judge_set(
            example.kernel,
            cases,
            device=str(example.device),
            options=[JudgeOptions()] * len(cases),
        )
        wait_for(example.device)
        rounds.append(perf_counter() - started)
        assert outcomes is not None, "its layouts agree"
    # The first one is for what is compiled or cached on the way.
    return statistics.median(rounds[1:])


def _example(
    kernel: Kernel, size: Size, dtype: Dtype, device: torch.device, *, seed: int
) -> Example:
    space = Space(
        signature=kernel.signature,
        dtype=dtype,
        backward_signature=kernel.backward_signature,
        restrictions=kernel.restrictions,
        registered=kernel.is_registered,
        declaration=kernel.declaration,
        op_class=kernel.op_class,
        align=kernel.align,
        limits=LIMITS["cpu" if device.type == "cpu" else "gpu-nightly"],
    )
    real = real_sizes(space)
    data = draw_data(
        RandomDraw(seed),
        kernel.signature,
        size.dims,
        backward_signature=kernel.backward_signature,
        op_class=kernel.op_class,
        length=size.length,
    )
    case = Case(
        dtype=dtype,
        dims=size.dims,
        sequences=tuple(
            LogicalSequence(id=index, length=size.length) for index in range(size.watched)
        ),
        data=data.data,
        policy_state=data.policy_state,
        transforms=(transform_to_data(AddNeighbours(count=size.neighbours)),),
        seed=seed,
    )
    reason = legal_for(kernel)(case)
    assert not reason, reason
    return Example(
        kernel=kernel,
        case=case,
        space=held_at(space, real[seed % len(real)]) if real else space,
        seed=seed,
        device=device,
    )


def _split(
    example: Example, repeats: int, through: Callable[[Measure], None] | None = None
) -> dict[str, float]:
    """Return seconds by stage, medians over repeats; `around` is what the runs take beside them."""
    rounds = []
    for _ in range(repeats):
        spent: dict[str, float] = dict.fromkeys((*STAGES, "runs"), 0.0)

        def measure(stage: str, work: Callable[[], Any], spent: dict[str, float] = spent) -> object:
            wait_for(example.device)
            started = perf_counter()
            done = work()
            wait_for(example.device)
            spent[stage] += perf_counter() - started
            return done

        (through or example.through)(measure)
        inside = spent["maps"] + spent["arguments"] + spent["launching"]
        spent["around"] = max(0.0, spent["runs"] - inside)
        rounds.append(spent)
    return {stage: statistics.median(spent[stage] for spent in rounds) for stage in STAGES}


def _judged(example: Example, repeats: int) -> dict[str, float]:
    """Return the seconds of the whole example as it is judged, and its own parts of them."""
    rounds = []
    for _ in range(repeats):
        wait_for(example.device)
        started = perf_counter()
        outcome = judge_invariance(example.kernel, example.case, device=str(example.device))
        wait_for(example.device)
        rounds.append({**outcome.seconds, "whole": perf_counter() - started})
    return {part: statistics.median(found[part] for found in rounds) for part in rounds[0]}


def _calls(example: Example) -> int:
    """Return how often the kernel is called, in both configurations together."""
    prepared = prepare(example.kernel, example.case, device=example.device)
    return len(prepared.canonical_frames()) + len(prepared.transformed_frames())


def _device_work(examples: Sequence[Example]) -> dict[str, dict[str, int]]:
    """Return by stage what one example gives to the device, medians.

    Kernels, copies, and the microseconds that both take there. `runs` are both runs, with
    their arguments and launches.
    """
    counted: dict[str, dict[str, list[int]]] = {}
    for example in examples[:COUNTED_MAX]:
        here: dict[str, dict[str, int]] = {}

        def measure(
            stage: str,
            work: Callable[[], Any],
            here: dict[str, dict[str, int]] = here,
            device: torch.device = example.device,
        ) -> object:
            with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
                done = work()
                wait_for(device)
            events = [event for event in seen.events() if event.device_type.name == "CUDA"]
            copies = sum(event.name.startswith("Memcpy") for event in events)
            found = here.setdefault(stage, {"kernels": 0, "copies": 0, "microseconds": 0})
            found["kernels"] += len(events) - copies
            found["copies"] += copies
            found["microseconds"] += round(sum(event.time_range.elapsed_us() for event in events))
            return done

        example.through(measure)
        for stage, found in here.items():
            for what, number in found.items():
                counted.setdefault(stage, {}).setdefault(what, []).append(number)
    return {
        stage: {what: round(statistics.median(numbers)) for what, numbers in found.items()}
        for stage, found in counted.items()
    }


def _line(cell: dict[str, Any]) -> str:
    lines = f"{cell['target']} {cell['backend']} {cell['dtype']}, ms: {_parts(cell)}\n"
    if cell["set"] is not None:
        lines += f"  in a set of {cell['set']['layouts']}, ms: {_parts(cell['set'])}\n"
    return lines


def _parts(found: dict[str, Any]) -> str:
    parts = " ".join(f"{stage} {1e3 * found['seconds'][stage]:.2f}" for stage in STAGES)
    return (
        f"{parts}; judged {1e3 * found['judged_seconds']:.2f}; "
        f"materialising / launching {found['materialising_to_launching']:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
