"""`biprop stacks`: what the KV caches of production stacks drift by, which claim nothing.

The scenarios are those of `biprop.kvcache.stacks`; what they show is reported, and never fails.
"""

import json

import click

from biprop.case import Json
from biprop.cli.options import json_option, parse_device, parse_dtype
from biprop.cli.output import emit

__all__ = ["stacks"]

# \b keeps the lines as they are.
_EXIT_CODES = """\b
Exit codes:
  0  the scenarios ran, whatever drifts; a stack that is absent is said to be
  2  wrong use
"""


@click.command(
    short_help="Report what the KV caches of production stacks drift by.", epilog=_EXIT_CODES
)
@click.argument("names", metavar="[STACK]...", nargs=-1)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="llama or qwen3, small and of random weights; repeatable.  [default: both]",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    metavar="NAME",
    help="float32 or bfloat16, or fp32 and bf16; repeatable.  [default: both]",
)
@click.option(
    "--attention",
    "attentions",
    multiple=True,
    metavar="NAME",
    help="eager or sdpa, as the stack calls them; repeatable.  [default: both]",
)
@click.option(
    "--cache",
    "caches",
    multiple=True,
    metavar="NAME",
    help="dynamic or static; repeatable.  [default: both]",
)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="NAME",
    help="One of the scenarios by its name in the table; repeatable.  [default: all]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    metavar="N",
    show_default=True,
    help="Of weights and token ids.",
)
@click.option(
    "--device", default="cpu", metavar="NAME", show_default=True, help="cpu, cuda or cuda:N."
)
@click.option(
    "--issue", "as_issue", is_flag=True, help="Print each drift as a block to paste into an issue."
)
@json_option
def stacks(  # noqa: PLR0917  # one parameter an option
    names: tuple[str, ...],
    models: tuple[str, ...],
    dtypes: tuple[str, ...],
    attentions: tuple[str, ...],
    caches: tuple[str, ...],
    scenarios: tuple[str, ...],
    seed: int,
    device: str,
    as_issue: bool,
    as_json: bool,
) -> int:
    """Report what the KV caches of production stacks drift by.

    STACK is transformers, vllm or sglang; left out, each has its say. Small models of random
    weights decode with the stack's cache, and their logits are compared bit by bit with those of a
    full forward, of the sequence alone, of a fresh cache. A stack claims none of it, so a drift is
    told and fails nothing.
    """
    where = parse_device(device)
    if as_issue and as_json:
        raise click.UsageError("--issue and --json exclude each other: give one of them.")
    # Torch and the stack take seconds to import, and wrong options do not wait for them.
    from biprop.kvcache.stacks import STACKS, Choice, issues_of, report_to_data, run_stacks, text_of
    from biprop.supervision.resolve import check_device

    check_device(where)
    given = {
        "models": models,
        "dtypes": tuple(parse_dtype(name) for name in dtypes),
        "attentions": attentions,
        "caches": caches,
        "scenarios": scenarios,
    }
    choice = Choice(**{field: asked for field, asked in given.items() if asked})
    reports = run_stacks(names or STACKS, seed=seed, device=where, choice=choice)
    if as_json:
        data: list[Json] = [report_to_data(report) for report in reports]
        emit(json.dumps({"stacks": data}, indent=2) + "\n")
    elif as_issue:
        emit(issues_of(reports))
    else:
        emit(text_of(reports))
    return 0
