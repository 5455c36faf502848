"""`biprop check`: search one kernel for batch variance, shrink what is found, store it.

Options are read here and in `biprop.cli.options`; the search is `biprop.strategies.search`, and
the kernel runs in a worker (`biprop.supervision`).
"""

import json
import sys
from pathlib import Path
from typing import Literal

import click

from biprop.case import Execution
from biprop.cli.options import (
    Direction,
    check_backend,
    execution_options,
    json_option,
    parse_classes,
    parse_device,
    parse_dtype,
    profile_option,
    store_option,
    timeout_option,
)
from biprop.cli.output import emit
from biprop.cli.request import Request
from biprop.cli.session import kernel_reference, open_home

__all__ = ["check"]


# \b keeps the lines as they are.
_EXIT_CODES = """\b
Exit codes:
  0    held: each class of transforms that applies has enough powered examples
  1    violated
  2    wrong use, unsupported, or most cases raised alone: restrict --dims
  3    vacuous: too little evidence either way
  130  stopped by Ctrl-C or SIGTERM; what was found so far is stored
"""


@click.command(
    short_help="Search one kernel for batch variance, and shrink what is found.",
    epilog=_EXIT_CODES,
)
@click.argument("target")
@click.option(
    "--signature",
    metavar="TEXT",
    help='What it takes and returns: "x[T,H], weight[H] -> y[T,H]".  [default: as decorated]',
)
@click.option(
    "--dims",
    default="",
    metavar="TEXT",
    help='Sizes that it accepts: "H=1..8192 H%8==0 D=64|128 HQ%HK==0".',
)
@click.option(
    "--align",
    type=click.IntRange(1, 4096),
    default=1,
    metavar="BYTES",
    show_default=True,
    help="Alignment that it demands of base pointers.",
)
@click.option(
    "--call", default="", metavar="TEXT", help='Fixed keyword arguments: "eps=1e-6, flag=True".'
)
@click.option(
    "--backend", metavar="NAME", help="Of a registered operator: torch or triton.  [default: torch]"
)
@click.option(
    "--dtype",
    default="float32",
    metavar="NAME",
    show_default=True,
    help="Of every float argument without one: float32, bfloat16 or float16.",
)
@click.option(
    "--device", default="cpu", metavar="NAME", show_default=True, help="cpu, cuda or cuda:N."
)
@execution_options
@click.option(
    "--direction",
    type=click.Choice([direction.value for direction in Direction]),
    default="forward",
    show_default=True,
    help="Judge outputs, gradients, or both.",
)
@click.option(
    "--transforms",
    default="",
    metavar="LIST",
    help="Classes to draw: T1,T4,T4.nonfinite.  [default: all that apply]",
)
@click.option(
    "--max-examples",
    type=click.IntRange(1, 10_000_000),
    metavar="N",
    help="Cases of each direction, and up to half as many more where a class lacks evidence.  "
    "[default: as the profile says]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    metavar="N",
    show_default=True,
    help="The same seed draws the same cases.",
)
@profile_option
@store_option
@timeout_option
@json_option
def check(  # noqa: PLR0917  # one parameter an option
    target: str,
    signature: str | None,
    dims: str,
    align: int,
    call: str,
    backend: str | None,
    dtype: str,
    device: str,
    execution: Execution,
    direction: str,
    transforms: str,
    max_examples: int | None,
    seed: int,
    profile: Literal["dev", "pr", "nightly"],
    store: Path | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Search one kernel for batch variance, and shrink what is found.

    TARGET is module:name, file.py:name, or a registered operator such as rms_norm or
    rms_norm/padded. It is called with the arguments of the signature in their order.

    \b
    Signature, by layout of the tokens (every other capital letter is a size to be drawn):
      T               "x[T,H], weight[H] -> y[T,H]"
      T, in segments  "x[T,H], cu: offsets[B+1] -> y[T,H]"
      B rows of S     "x[B,S,H], live: mask[B,S] -> y[B,S,H]"
      Q over C        "q[B,Q,H,D], k[B,C,H,D], m: causal_mask[B,1,Q,C] -> y[B,Q,H,D]"

    Every cause is shrunk and stored as a fixture, whose id `biprop show` and `biprop replay` take.
    """  # noqa: D301  # \b keeps the lines as they are
    request = Request(
        reference=kernel_reference(
            target=target, backend=backend, signature=signature, dims=dims, align=align, call=call
        ),
        dtype=parse_dtype(dtype),
        device=parse_device(device),
        directions=Direction(direction).parts,
        classes=parse_classes(transforms),
        execution=execution,
        max_examples=max_examples,
        seed=seed,
        profile=profile,
        timeout=timeout,
        home=open_home(store),
        quiet=as_json or not sys.stderr.isatty(),
    )
    check_backend(execution, request.device)
    # Hypothesis takes a while to import: a refused option does not wait for it.
    from biprop.cli.searching import run_searches

    if as_json:
        searched = run_searches(request)
        emit(json.dumps(searched.data(), indent=2) + "\n")
    else:
        # A direction is told when it ends: the next one may take long, or be killed.
        searched = run_searches(request, tell=emit, by_path=store is not None)
    return searched.exit_code
