"""`biprop cache`: search the programs of a KV cache, shrink what is found, store it.

Options are read here and in `biprop.cli.options`; the search is `biprop.strategies.programs`, and
the cache runs in a worker (`biprop.supervision.programs`).
"""

import json
import re
import sys
from pathlib import Path
from typing import Literal

import click

from biprop.case import Dtype
from biprop.cli.options import (
    Seconds,
    json_option,
    parse_device,
    parse_dtype,
    profile_option,
    store_option,
)
from biprop.cli.output import emit
from biprop.cli.session import open_home
from biprop.errors import UsageError
from biprop.kvcache.records import CacheReference
from biprop.kvcache.shape import CacheLayout
from biprop.loading import check_file
from biprop.signature import parse_target

__all__ = ["cache"]

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# \b keeps the lines as they are.
_EXIT_CODES = """\b
Exit codes:
  0    held: each situation was reached often enough, and nothing drifted
  1    violated
  2    wrong use, or unsupported
  3    vacuous: too little evidence either way
  130  stopped by Ctrl-C or SIGTERM; what was found so far is stored
"""


@click.command(
    short_help="Search programs of a KV cache, and shrink what is found.", epilog=_EXIT_CODES
)
@click.argument("target", metavar="[NAME|TARGET]", default="paged")
@click.option(
    "--backend", metavar="NAME", help="Of a registered cache: torch or triton.  [default: torch]"
)
@click.option(
    "--layout",
    type=click.Choice(["NHD", "HND"]),
    default="NHD",
    show_default=True,
    help="Memory order of a page: slots before heads, or heads before slots.",
)
@click.option(
    "--dtype",
    default="float32",
    metavar="NAME",
    show_default=True,
    help="Of queries, keys and values: float32, bfloat16 or float16.",
)
@click.option(
    "--storage-dtype",
    metavar="NAME",
    help="Of what is stored, no wider.  [default: drawn for each program]",
)
@click.option(
    "--max-programs",
    type=click.IntRange(1, 10_000_000),
    metavar="N",
    help="Programs to write.  [default: as the profile says]",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Operations of the longest program.  [default: 24, and 12 in Triton's interpreter]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    metavar="N",
    show_default=True,
    help="The same seed writes the same programs.",
)
@profile_option
@click.option(
    "--device", default="cpu", metavar="NAME", show_default=True, help="cpu, cuda or cuda:N."
)
@store_option
@click.option(
    "--timeout",
    type=Seconds(),
    default=60.0,
    metavar="SECONDS",
    show_default=True,
    help="After which one operation counts as hung; those of the first program get three times it.",
)
@json_option
def cache(  # noqa: PLR0917  # one parameter an option
    target: str,
    backend: str | None,
    layout: CacheLayout,
    dtype: str,
    storage_dtype: str | None,
    max_programs: int | None,
    steps: int | None,
    seed: int,
    profile: Literal["dev", "pr", "nightly"],
    device: str,
    store: Path | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Search programs of a KV cache, and shrink what is found.

    TARGET is the name of a registered cache, paged where it is left out, or module:name or
    file.py:name of a function or class that takes a CacheShape and a torch.device and gives a cache
    with the methods of KVCache (biprop.kvcache.protocol).

    Programs allocate, append, fork, decode, evict, free, defragment and poison; after each of these
    bits are compared with those of a full prefill. For a registered cache the attention operator of
    the same backend makes it, for a target a fresh cache of the same kind. Of both, results must
    lie within the contract's tolerance of attention in float32.

    Every cause is shrunk and stored as a fixture, whose id `biprop show` and `biprop replay` take.
    """
    # Refused options do not wait for Hypothesis, which takes a while to import.
    reference = _reference(target, backend)
    home = open_home(store)
    asked = parse_dtype(dtype)
    storage = None if storage_dtype is None else _storage(storage_dtype, asked)
    where = parse_device(device)
    from biprop.cli.cache_searching import CacheRequest, run_cache_search

    searched = run_cache_search(
        CacheRequest(
            reference=reference,
            layout=layout,
            dtype=asked,
            storage=storage,
            device=where,
            max_programs=max_programs,
            steps=steps,
            seed=seed,
            profile=profile,
            timeout=timeout,
            home=home,
            quiet=as_json or not sys.stderr.isatty(),
        )
    )
    emit(
        json.dumps(searched.data(), indent=2) + "\n"
        if as_json
        else searched.text(by_path=store is not None)
    )
    return searched.exit_code


def _reference(target: str, backend: str | None) -> CacheReference:
    """Return the reference of the cache that the options name; nothing is imported.

    Raises:
        BipropError: The text names none, or options do not go together.
    """
    if _NAME.fullmatch(target):
        return CacheReference(cache=target, target=target, backend=backend or "torch")
    named = parse_target(target)
    if backend is not None:
        raise UsageError(
            "--backend chooses a backend of a registered cache: leave it out for a target."
        )
    check_file(named)
    return CacheReference(cache=named.text, target=named.text)


def _storage(text: str, dtype: Dtype) -> Dtype:
    """Return what is stored.

    Raises:
        UsageError: It is no dtype, or no narrower than what comes.
    """
    try:
        storage = parse_dtype(text)
    except UsageError as error:
        raise UsageError(f"--storage-{str(error).removeprefix('--')}") from error
    if dtype not in {storage, "float32"}:
        raise UsageError(
            f"--storage-dtype {storage} is no narrower than --dtype {dtype}: leave it out."
        )
    return storage
