"""`biprop matrix`: search all cells of the registered operators, and print what each showed.

Options are read here; cells are searched by `biprop.suite`, and told by `biprop.reports.suite` and
`suite_text`.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click

from biprop.cli.options import Direction, names_in, parse_device, parse_dtype, store_option
from biprop.cli.output import check_report_path, emit, write_report
from biprop.cli.progress import matrix_progress
from biprop.cli.session import open_home
from biprop.contract import load_contract
from biprop.errors import UsageError

__all__ = ["matrix"]

# By the suite's name of an argument.
_OPTIONS = {"operators": "--operators", "backends": "--backends", "dtypes": "--dtype"}
# \b keeps the lines as they are.
_EXIT_CODES = """\b
Exit codes:
  0    green: every mandatory cell that was asked for holds, and no operator is missing
  1    red: a cell is violated, falls back to another backend, or has too little evidence
  2    wrong use
  130  stopped by Ctrl-C or SIGTERM; what ended before is printed and stored
"""


@click.command(
    short_help="Search all cells of the registered operators, and judge them by the contract.",
    epilog=_EXIT_CODES,
)
@click.option(
    "--slice",
    "slice_name",
    type=click.Choice(["pr", "nightly"]),
    default="pr",
    show_default=True,
    help="How thorough the searches are; pr draws the same cases in every run.",
)
@click.option(
    "--device",
    default="cpu",
    metavar="NAME",
    show_default=True,
    help="cpu, cuda (all that there are) or cuda:N.",
)
@click.option("--operators", metavar="LIST", help="rms_norm,logp.  [default: all registered]")
@click.option("--backends", metavar="LIST", help="torch,triton.  [default: all]")
@click.option(
    "--dtype",
    "dtypes",
    default="float32,bfloat16",
    metavar="LIST",
    show_default=True,
    help="Of the cells; float16 is optional.",
)
@click.option(
    "--direction",
    type=click.Choice([direction.value for direction in Direction]),
    default="both",
    show_default=True,
    help="Judge outputs, gradients, or both.",
)
@click.option(
    "--contract",
    "contract_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What judges.  [default: biprop's own contract]",
)
@click.option(
    "--report-json",
    "report_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all that is known of every cell, as one JSON object.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Cells searched at a time.  [default: one a core; on a GPU up to eight]",
)
@click.option(
    "--max-examples",
    type=click.IntRange(1, 10_000_000),
    metavar="N",
    help="Cases of each cell, and up to half as many more where a class lacks evidence.  "
    "[default: as the slice says]",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="After which a cell draws no further case, or after ten times as long where it lacks "
    "evidence.  [default: no limit]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    metavar="N",
    help="Of every search.  [default: each cell has its own; nightly draws another one each time]",
)
@store_option
def matrix(  # noqa: PLR0917  # one parameter an option
    slice_name: Literal["pr", "nightly"],
    device: str,
    operators: str | None,
    backends: str | None,
    dtypes: str,
    direction: str,
    contract_path: Path | None,
    report_path: Path | None,
    workers: int | None,
    max_examples: int | None,
    max_seconds: float | None,
    seed: int | None,
    store: Path | None,
) -> int:
    """Search all cells of the registered operators, and judge them by the contract.

    A cell is one form of an operator under one backend, dtype and direction. Each is searched for
    batch variance, compared with its float32 reference and with the backends before it, and its
    backend must be the one that was asked for. The matrix, its evidence, what failed, and what was
    not run and why go to standard output; what happens meanwhile, to standard error.

    Without a GPU, Triton kernels run in Triton's interpreter, which certifies no GPU.
    """
    parsed_device = parse_device(device)
    wanted = names_in("--operators", operators), names_in("--backends", backends)
    read = tuple(dict.fromkeys(parse_dtype(name) for name in names_in("--dtype", dtypes)))
    contract = load_contract(contract_path)
    home = open_home(store)
    if report_path is not None:
        check_report_path(report_path)
    # A second folder of that name would appear where the command was run from.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(home.folder))
    # The suite imports torch and Hypothesis: a refused option does not wait for them.
    from biprop.reports.suite import report_to_data
    from biprop.reports.suite_text import render_suite
    from biprop.suite import run_invariance_suite

    with _option_names(), matrix_progress(is_live=sys.stderr.isatty()) as tell:
        report = run_invariance_suite(
            operators=wanted[0],
            backends=wanted[1],
            dtypes=read,
            directions=Direction(direction).parts,
            slice_name=slice_name,
            device=parsed_device,
            contract=contract,
            workers=workers,
            seed=seed,
            max_examples=max_examples,
            max_seconds=max_seconds,
            store=home.store.folder,
            tell=tell,
        )
    emit(render_suite(report, by_path=store is not None))
    if report_path is not None:
        write_report(report_path, json.dumps(report_to_data(report), indent=2) + "\n")
    return report.exit_code


@contextmanager
def _option_names() -> Iterator[None]:
    """Let errors of the suite that begin with an argument's name begin with the option's."""
    try:
        yield
    except UsageError as error:
        name, _, rest = str(error).partition(" ")
        if name in _OPTIONS:
            raise UsageError(f"{_OPTIONS[name]} {rest}") from error
        raise
