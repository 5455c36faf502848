"""`biprop power`: seek what is planted, and say what is found, how soon, and by which methods.

Options are read here; trials are made by `biprop.power`, and told by `biprop.reports.power_text`.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from biprop.case import Dtype
from biprop.cli.options import names_in, parse_device, parse_dtype
from biprop.cli.output import check_report_path, emit, write_report
from biprop.errors import UsageError

if TYPE_CHECKING:
    from biprop.power.run import PowerEvent
    from biprop.reports.power import MethodName, PowerReport
    from biprop.reports.power_text import Table

__all__ = ["power"]

# \b keeps the lines as they are.
_EXIT_CODES = """\b
Exit codes:
  0    the first method found everything that is planted, and no healthy twin was reported
  1    something was missed, or a twin reported; both are listed by name
  2    wrong use, or a manifest that cannot be read
  130  stopped by Ctrl-C or SIGTERM; what ended before is printed and written
"""
_METHODS = "biprop, plain-data, fixed-sawtooth, fixed-normal, needle, one-of-many"


@click.command(
    short_help="Seek planted defects, and say what is found, how soon, and by which methods.",
    epilog=_EXIT_CODES,
)
@click.option(
    "--targets",
    "manifest",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Planted kernels of your own: a JSON list of {name, target, signature, dtype} and, as "
    "you like, kind, classes, direction, dims, healthy.  [default: biprop's own zoo]",
)
@click.option(
    "--examples",
    type=click.IntRange(1, 100_000),
    default=200,
    metavar="N",
    show_default=True,
    help="Cases of each trial, at most.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=5,
    metavar="N",
    show_default=True,
    help="Trials of each kernel, dtype and method: seeds 1 to N.",
)
@click.option(
    "--methods",
    default="biprop",
    metavar="LIST",
    show_default=True,
    help=f"Of {_METHODS}; or all.  The exit code is about the first one.",
)
@click.option(
    "--without-revealing",
    is_flag=True,
    help="Leave order-revealing data out of biprop's own cases: plain-data in the place of biprop.",
)
@click.option("--names", metavar="LIST", help="Planted kernels.  [default: all]")
@click.option("--kinds", metavar="LIST", help="SHAPE,SPLIT.  [default: all]")
@click.option("--backends", metavar="LIST", help="torch,triton.  [default: both]")
@click.option("--dtype", "dtypes", metavar="LIST", help="[default: as planted]")
@click.option(
    "--device",
    default="cpu",
    metavar="NAME",
    show_default=True,
    help="cpu, cuda (all that there are) or cuda:N; a GPU runs the Triton kernels.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Trials at a time.  [default: one a core; on a GPU up to eight]",
)
@click.option(
    "--report-json",
    "report_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write every trial, as one JSON object.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Take the trials that --report-json holds from an earlier run, and make the others.",
)
def power(  # noqa: PLR0917  # one parameter an option
    manifest: Path | None,
    examples: int,
    seeds: int,
    methods: str,
    without_revealing: bool,
    names: str | None,
    kinds: str | None,
    backends: str | None,
    dtypes: str | None,
    device: str,
    workers: int | None,
    report_path: Path | None,
    resume: bool,
) -> int:
    """Seek what is planted, and say what is found, how soon, and by which methods.

    Kernels with one known defect each are searched with every seed, and their healthy twins, one
    line apart, must stay quiet. What fails is shrunk, and compared with the smallest failing
    structure where that is known. Methods in use elsewhere run as configurations of biprop, on the
    same kernels. Tables go to standard output; what happens meanwhile, to standard error.
    """
    request = _Request(
        manifest=manifest,
        examples=examples,
        seeds=seeds,
        methods=_methods(methods, without_revealing=without_revealing),
        names=names_in("--names", names),
        kinds=names_in("--kinds", kinds),
        backends=names_in("--backends", backends),
        dtypes=tuple(dict.fromkeys(parse_dtype(name) for name in names_in("--dtype", dtypes))),
        device=parse_device(device),
        workers=workers,
    )
    if backends is not None and manifest is not None:
        raise UsageError(
            "--backends is for biprop's own planted kernels: leave it out, or --targets."
        )
    if resume and report_path is None:
        raise UsageError("--resume needs --report-json FILE: it says what was run before.")
    if resume and manifest is not None:
        raise UsageError(
            "--resume is for biprop's own planted kernels: those of --targets may have changed."
        )
    if report_path is not None:
        check_report_path(report_path)
    earlier = _earlier(report_path) if resume and report_path is not None else None
    report = _run(request, earlier)
    if report_path is not None:
        from biprop.reports.power import report_text

        write_report(report_path, report_text(report))
    emit(_rendered(report, is_live=sys.stdout.isatty()))
    return report.exit_code


@attrs.frozen(kw_only=True)
class _Request:
    """The options, read; what they mean stands at each of them."""

    manifest: Path | None
    examples: int
    seeds: int
    methods: "tuple[MethodName, ...]"
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    backends: tuple[str, ...]
    dtypes: tuple[Dtype, ...]
    device: str
    workers: int | None


def _run(request: _Request, earlier: "PowerReport | None") -> "PowerReport":
    """Make the trials that were asked for."""
    from biprop.power.manifest import read_manifest

    # No torch yet: a manifest that is refused does not wait for it.
    entries = None if request.manifest is None else read_manifest(request.manifest)
    if request.device == "cpu":
        # Triton compiles for no CPU; kernels read it when they are imported.
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from biprop.power.run import Settings, run_power
    from biprop.power.subjects import Choice, chosen, planted_subjects, subjects_of
    from biprop.suite.devices import devices_of, worker_count

    devices = devices_of(request.device)
    subjects, left_out = planted_subjects(request.device)
    if entries is not None:
        subjects, left_out = subjects_of(entries), ()
    choice = Choice(
        names=request.names,
        kinds=request.kinds,
        backends=request.backends,
        dtypes=request.dtypes,
    )
    settings = Settings(
        command=_command(),
        methods=request.methods,
        examples=request.examples,
        seeds=tuple(range(1, request.seeds + 1)),
        device=request.device,
    )
    workers = worker_count(devices) if request.workers is None else request.workers
    with _progress(settings.methods[0], is_live=sys.stderr.isatty()) as tell:
        return run_power(
            chosen(subjects, choice),
            settings,
            devices=devices,
            workers=workers,
            # Who named some knows that there are others.
            left_out=() if request.names or request.kinds or request.backends else left_out,
            earlier=earlier,
            tell=tell,
        )


def _methods(text: str, *, without_revealing: bool) -> "tuple[MethodName, ...]":
    """Return the methods of a list; the switch puts `plain-data` in the place of `biprop`.

    Raises:
        UsageError: One is unknown.
    """
    from biprop.reports.power import METHODS

    names = METHODS if text.strip() == "all" else names_in("--methods", text)
    found: list[MethodName] = []
    for name in names:
        method = next((known for known in METHODS if known == name), None)
        if method is None:
            raise UsageError(f"--methods has {name!r}: use {', '.join(METHODS)}, or all.")
        if without_revealing and method == "biprop":
            method = "plain-data"
        if method not in found:
            found.append(method)
    if without_revealing and "plain-data" not in found:
        raise UsageError("--without-revealing changes biprop's own method: name it in --methods.")
    return tuple(found)


def _earlier(path: Path) -> "PowerReport | None":
    """Return the report of an earlier run; None where there is none yet."""
    from biprop.reports.power import report_from_text

    if not path.exists() or not path.stat().st_size:
        return None
    try:
        return report_from_text(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--report-json {str(path)!r} cannot be read: {error}.") from error


def _command() -> str:
    """Return the command as it was typed, without the way to the program."""
    words = sys.argv[1:]
    start = words.index("power") if "power" in words else len(words)
    return shlex.join(["biprop", *(words[start:] or ["power"])])


def _rendered(report: "PowerReport", *, is_live: bool) -> str:
    """Return tables and sentences; on a terminal, tables have lines around them."""
    from biprop.power.methods import DESCRIPTIONS
    from biprop.reports.power_text import conclusion, plain_table, power_tables, said

    tables = power_tables(report, DESCRIPTIONS)
    parts = [_framed(table) if is_live else plain_table(table) for table in tables]
    sentences = "".join(f"{line}\n" for line in said(report))
    return "\n".join([*parts, *([sentences] if sentences else []), f"{conclusion(report)}\n"])


def _framed(table: "Table") -> str:
    """Return a table with lines around it, as wide as the terminal."""
    shown = RichTable(title=table.title, title_justify="left")
    for name in table.head:
        shown.add_column(name, overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    text = StringIO()
    Console(file=text, width=Console().width, highlight=False, markup=False).print(shown)
    return text.getvalue()


@contextmanager
def _progress(first: "MethodName", *, is_live: bool) -> "Iterator[Callable[[PowerEvent], None]]":
    """Tell on standard error what the first method missed, and how far the run is."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not is_live) as bar:
        task = bar.add_task("starting", total=None)

        def tell(event: "PowerEvent") -> None:
            from biprop.reports.power import Trial

            trial = event.trial
            what = f"{trial.method} {trial.cell.name} {trial.cell.dtype} seed {trial.seed}"
            bar.update(task, completed=event.done, total=event.count, description=what)
            width = len(str(event.count))
            word = ""
            if trial.error:
                word = "NOT RUN"
            elif not isinstance(trial, Trial):
                word = "FALSE ALARM" if trial.false_alarms else ""
            elif not trial.found and trial.method == first:
                word = "missed"
            if word or event.done == event.count or not event.done % 100:
                console.print(f"{event.done:>{width}}/{event.count}  {word:<12}{what}")

        yield tell
