"""Run the parts of a lane on a device, and leave evidence: `ci/gpu` calls this.

Options are read here; what the parts do stands in `cells`, `finding`, `timing` and
`campaigns`.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import click
from ci.lanes.campaigns import parse_plans, run_campaigns
from ci.lanes.cells import CellOptions, run_cells
from ci.lanes.finding import run_findings
from ci.lanes.known import KNOWN, Known
from ci.lanes.records import PARTS, Evidence, Part
from ci.lanes.runs import EvidenceError, Run
from ci.lanes.timing import run_speeds, run_times
from ci.lanes.where import ROOT, check_device, this_run

from biprop.cli.options import parse_device
from biprop.errors import BipropError

__all__ = ["gpu", "main"]

# Cells of the nightly part draw no longer than this, and those that lack evidence ten times as
# long: so all of them end within its budget.
_NIGHTLY_SECONDS = 20.0
_FINDING_WORKERS = 4
_OUT = Path(".hypothesis") / "evidence"


@click.command(add_help_option=False)
@click.argument("parts", nargs=-1, required=True, metavar="PART...")
@click.option("--device", default="cuda")
@click.option("--out", type=click.Path(path_type=Path), default=None)
@click.option("-n", "--workers", default="auto")
@click.option("--cells", default="")
@click.option("--findings", "names", default="")
@click.option("--campaigns", default="")
@click.option("--max-examples", type=click.IntRange(1), default=None)
@click.option("--max-seconds", type=click.FloatRange(0.1), default=None)
def gpu(
    *,
    parts: tuple[str, ...],
    device: str,
    out: Path | None,
    workers: str,
    cells: str,
    names: str,
    campaigns: str,
    max_examples: int | None,
    max_seconds: float | None,
) -> int:
    """Run parts, one after the other; `ci/gpu --help` describes them."""
    wanted = [_part(word) for word in parts]
    known, plans = _known(names), parse_plans(campaigns)
    if workers != "auto" and not workers.isdigit():
        raise EvidenceError(f"--workers {workers!r} is no number: give one, or auto.")
    check_device(parse_device(device))
    folder = ROOT / _OUT if out is None else out.resolve()
    run = this_run(device)

    def cells_of(part: Part) -> Evidence:
        assert part in {"pr", "nightly"}
        seconds = _NIGHTLY_SECONDS if part == "nightly" and max_seconds is None else max_seconds
        options = CellOptions(
            device=device,
            workers=workers,
            cells=cells,
            max_examples=max_examples,
            max_seconds=seconds,
        )
        return run_cells("pr" if part == "pr" else "nightly", run, folder / f"{part}.json", options)

    def findings() -> Evidence:
        count = _FINDING_WORKERS if workers == "auto" else max(1, int(workers))
        return run_findings(known, run, folder / "findings.json", device=device, workers=count)

    runners: dict[Part, Callable[[], Evidence]] = {
        "pr": lambda: cells_of("pr"),
        "nightly": lambda: cells_of("nightly"),
        "findings": findings,
        "times": lambda: run_times(run, folder / "times.json", device=device),
        "speeds": lambda: run_speeds(run, folder / "speeds.json", device=device),
        "campaigns": lambda: run_campaigns(plans, run, folder / "campaigns.json", device=device),
    }
    lines = []
    for part in wanted:
        sys.stdout.write(f"\n== {part}\n")
        sys.stdout.flush()
        ended = runners[part]().run
        lines.append((part, ended))
    sys.stdout.write("\n== ci/gpu\n" + "".join(_line(part, ended) for part, ended in lines))
    return 0 if all(ended.is_met for _, ended in lines) else 1


def main() -> None:
    """Run the command, and exit with its code."""
    try:
        code = gpu.main(prog_name="gpu", standalone_mode=False)
    except click.ClickException as error:
        code = _complain(error.format_message())
    except BipropError as error:
        code = _complain(str(error))
    except (click.Abort, KeyboardInterrupt):
        # What ended before lies in the files.
        code = 130
    sys.exit(code)


def _complain(sentence: str) -> int:
    sys.stderr.write(f"gpu: {sentence}\n")
    return 2


def _part(word: str) -> Part:
    for part in PARTS:
        if word == part:
            return part
    raise EvidenceError(f"unknown part {word}; the parts are: {', '.join(PARTS)}.")


def _known(names: str) -> tuple[Known, ...]:
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in {item.name for item in KNOWN}]
    if unknown:
        raise EvidenceError(
            f"--findings names {unknown[0]!r}, which is none of "
            f"{', '.join(item.name for item in KNOWN)}."
        )
    return tuple(item for item in KNOWN if not wanted or item.name in wanted)


def _line(part: Part, run: Run) -> str:
    word = "as it should be" if run.is_met else "NOT as it should be"
    rest = "" if run.is_complete else ", not all of it ran"
    trial = "" if run.certifies else ", and certifies no GPU"
    return f"{part:9} {run.seconds:6.0f} s  {word}{rest}{trial}\n"


if __name__ == "__main__":
    main()
