"""`biprop fuzz`: search all cells for hours, on one store that nothing is lost from.

Options are read and refused here, without torch; campaigns are run by `biprop.campaign`, shown by
`biprop.cli.fuzz_view`.
"""

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import attrs
import click

from biprop.campaign.ledger import EXAMPLE
from biprop.case import Dtype
from biprop.cli.options import Direction, Seconds, Side, names_in, parse_device, parse_dtype
from biprop.cli.session import kernel_reference
from biprop.errors import UsageError
from biprop.operators import KernelReference
from biprop.power.manifest import Entry, read_manifest

__all__ = ["FuzzRequest", "fuzz", "stops"]

_BUDGET = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
_BUDGET_MAX = 30 * 86_400.0
_SHARDS_MAX = 10_000
_RAY_ADDRESS = re.compile(r"auto|local|[\w.:\[\]-]+:\d{1,5}", re.ASCII)
_LEDGER = EXAMPLE.replace("[", "[\n    ", 1)
# \b keeps the lines as they are.
_EPILOG = f"""\b
ledger.json of the store; a cause is an id as it is printed, or a name:
  {_LEDGER}

\b
Exit codes:
  0    no finding but known and fixed ones
  1    the store holds findings, or files that cannot be read
  2    wrong use, no process starts, or no cell can be searched
  3    no case was judged in this time
  130  stopped by Ctrl-C or SIGTERM; what was found is stored, and the next start goes on
"""


@attrs.frozen(kw_only=True)
class FuzzRequest:
    """Options of `biprop fuzz`, read and in range.

    Attributes:
        budget: Seconds.
        operators: Names; empty: all, unless targets are named.
        backends: Names; empty: all.
        dtypes: Of registered cells, and of targets that are no entry of a manifest.
        directions: Of registered cells.
        target_directions: Of targets that are no entry of a manifest.
        entries: Of manifests.
        references: Of other targets.
        device: `cpu`, `cuda` or `cuda:N`.
        workers: Processes; None: as many as suit the device.
        workers_per_gpu: Processes for each GPU; None: as many as suit.
        ray: Address of a Ray cluster that they run on; None: on this machine.
        store: Folder; None: of the project.
        shard: Which part of the cells, of how many.
        seed: None: another one each time.
        timeout: Seconds after which a launch counts as hung.
        events: File for JSON lines; None: none.
        options: As they were given, in words.
    """

    budget: float
    operators: tuple[str, ...]
    backends: tuple[str, ...]
    dtypes: tuple[Dtype, ...]
    directions: tuple[Side, ...]
    target_directions: tuple[Side, ...]
    entries: tuple[Entry, ...]
    references: tuple[KernelReference, ...]
    device: str
    workers: int | None
    workers_per_gpu: int | None
    ray: str | None
    store: Path | None
    shard: tuple[int, int]
    seed: int | None
    timeout: float
    events: Path | None
    options: dict[str, str]


@click.command(
    short_help="Search all cells for hours; nothing is lost, and the next start goes on.",
    epilog=_EPILOG,
)
@click.option(
    "--budget",
    default="1h",
    metavar="TIME",
    show_default=True,
    help="How long: 8h, 90m, 30s or 1h30m.",
)
@click.option(
    "--operators",
    metavar="LIST",
    help="rms_norm,logp,paged: operators and caches.  [default: all registered]",
)
@click.option("--backends", metavar="LIST", help="torch,triton.  [default: all]")
@click.option(
    "--dtype",
    "dtypes",
    default="float32,bfloat16",
    metavar="LIST",
    show_default=True,
    help="Of the cells; entries of a manifest have their own.",
)
@click.option(
    "--direction",
    type=click.Choice([direction.value for direction in Direction]),
    help="Judge outputs, gradients, or both.  [default: both; of a target, outputs]",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="FILE|TARGET",
    help="A manifest (FILE.json), or a target as check takes it; may be given several times.  "
    "Registered operators are then left out, unless --operators names some.",
)
@click.option(
    "--signature", metavar="TEXT", help="Of the one --target that is no manifest and brings none."
)
@click.option("--dims", default="", metavar="TEXT", help="Sizes that this target accepts.")
@click.option(
    "--device",
    default="cpu",
    metavar="NAME",
    show_default=True,
    help="cpu, cuda (all that there are) or cuda:N.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Processes.  [default: one a core; on a GPU up to eight]",
)
@click.option(
    "--workers-per-gpu", type=click.IntRange(1, 64), metavar="N", help="Processes for each GPU."
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Spread the processes over a Ray cluster, all CPUs or GPUs of it unless --workers says "
    "otherwise: auto, local or HOST:PORT.  Its nodes share the folder of --store.",
)
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where everything is kept; campaigns of several machines may share it.  "
    "[default: .hypothesis/campaign of the project]",
)
@click.option(
    "--shard",
    default="1/1",
    metavar="I/N",
    show_default=True,
    help="Search part I of N of the cells, as one of N machines does.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    metavar="N",
    help="Of all searches.  [default: another one each time]",
)
@click.option(
    "--timeout",
    type=Seconds(),
    default=60.0,
    metavar="SECONDS",
    show_default=True,
    help="After which one run of a kernel counts as hung; the first one gets three times that.",
)
@click.option(
    "--events",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Add what happens to a file, one JSON object a line; an epoch_verdict is that of an epoch "
    "alone, not of its cell.",
)
def fuzz(  # noqa: PLR0917  # one parameter an option
    budget: str,
    operators: str | None,
    backends: str | None,
    dtypes: str,
    direction: str | None,
    targets: tuple[str, ...],
    signature: str | None,
    dims: str,
    device: str,
    workers: int | None,
    workers_per_gpu: int | None,
    ray: str | None,
    store: Path | None,
    shard: str,
    seed: int | None,
    timeout: float,
    events: Path | None,
) -> int:
    """Search all cells for hours; nothing is lost, and the next start goes on.

    Each cell of `biprop matrix`, each cache and each target is searched in epochs of at most a
    minute, every one with another seed. Half of the time goes round, the other half to cells that
    show new behaviour: kernels, grids, sizes, verdicts.

    What fails is stored at once, shrunk behind the epochs, and told once a cause. The case that is
    launched is on disk before it is: where a process, or a machine, is lost, it becomes a finding.
    What people know of stands in ledger.json of the store, and is not reported again. Findings of
    earlier campaigns are run again: what fails no more is told as fixed, unless it is seen again.

    Standard error shows how it goes, and standard output gets a summary in the end.
    """
    asked = parse_device(device)
    _check_workers(workers, workers_per_gpu, device=asked)
    entries, references = _targets(targets, signature=signature, dims=dims)
    request = FuzzRequest(
        budget=parse_budget(budget),
        operators=names_in("--operators", operators),
        backends=names_in("--backends", backends),
        dtypes=tuple(dict.fromkeys(parse_dtype(name) for name in names_in("--dtype", dtypes))),
        directions=Direction(direction or Direction.BOTH.value).parts,
        target_directions=Direction(direction or Direction.FORWARD.value).parts,
        entries=entries,
        references=references,
        device=asked,
        workers=workers,
        workers_per_gpu=workers_per_gpu,
        ray=parse_ray(ray, device=asked),
        store=store,
        shard=parse_shard(shard),
        seed=seed,
        timeout=timeout,
        events=events,
        options=_given(),
    )
    # What follows imports torch and Hypothesis: a refused option does not wait for them.
    from biprop.cli.fuzzing import run_fuzz

    return run_fuzz(request, is_live=sys.stderr.isatty())


def parse_budget(text: str) -> float:
    """Return the seconds of `8h`, `90m`, `30s` or `1h30m`.

    Raises:
        UsageError: It is none of these, or too long.
    """
    found = _BUDGET.fullmatch(text.strip())
    parts = [float(part) for part in found.groups(default="0")] if found else []
    seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    if seconds > _BUDGET_MAX:
        raise UsageError(f"--budget {text!r} is longer than 30 days: the next start goes on.")
    if seconds < 1:
        raise UsageError(f"--budget {text!r} is no time: write 8h, 90m, 30s or 1h30m.")
    return seconds


def parse_shard(text: str) -> tuple[int, int]:
    """Return part and count of `i/n`.

    Raises:
        UsageError: It is none.
    """
    part, slash, count = text.partition("/")
    if slash and part.isascii() and part.isdigit() and count.isascii() and count.isdigit():
        read = int(part[:6]), int(count[:6])
        if 1 <= read[0] <= read[1] <= _SHARDS_MAX:
            return read
    raise UsageError(f"--shard {text!r} is no part: write 1/4 for the first of four.")


def _check_workers(workers: int | None, workers_per_gpu: int | None, *, device: str) -> None:
    """Refuse numbers of processes that contradict each other, or the device.

    Raises:
        UsageError: They do.
    """
    if workers is not None and workers_per_gpu is not None:
        raise UsageError("--workers and --workers-per-gpu exclude each other: give one of them.")
    if workers_per_gpu is not None and device == "cpu":
        raise UsageError("--workers-per-gpu needs --device cuda: use --workers on the CPU.")


def parse_ray(address: str | None, *, device: str) -> str | None:
    """Return the address of a Ray cluster; None where none is asked for.

    Raises:
        UsageError: It is none, one device of one machine is asked for, or Ray is not installed.
    """
    if address is None:
        return None
    if not _RAY_ADDRESS.fullmatch(address):
        raise UsageError(f"--ray {address!r} is no address: write auto, local or HOST:PORT.")
    if ":" in device:
        raise UsageError(
            f"--ray spreads over all devices of a cluster: write --device cuda, not {device}."
        )
    if find_spec("ray") is None:
        raise UsageError("--ray needs Ray, which is not installed: pip install 'biprop[ray]'.")
    return address


def _targets(
    targets: tuple[str, ...], *, signature: str | None, dims: str
) -> tuple[tuple[Entry, ...], tuple[KernelReference, ...]]:
    """Return the entries of manifests, and the references of other targets; none is imported.

    Raises:
        BipropError: A text cannot be used.
    """
    manifests = [text for text in targets if text.endswith(".json")]
    others = [text for text in targets if not text.endswith(".json")]
    if (signature is not None or dims) and len(others) != 1:
        raise UsageError(
            "--signature and --dims describe one --target that is no manifest: name one, or write "
            "a manifest of them all."
        )
    for text in others:
        if ":" not in text:
            raise UsageError(
                f"--target {text!r} is no target: write FILE.json, file.py:name or module:name, "
                "and name registered operators with --operators."
            )
    entries = tuple(entry for text in manifests for entry in read_manifest(Path(text)))
    references = tuple(
        kernel_reference(
            target=text, backend=None, signature=signature, dims=dims, align=1, call=""
        )
        for text in others
    )
    return entries, references


def _given() -> dict[str, str]:
    """Return the options of this command that have a value, in words."""
    values = click.get_current_context().params
    return {name: str(value) for name, value in values.items() if value not in {None, "", ()}}


@contextmanager
def stops() -> Iterator[Callable[[], bool]]:
    """Have Ctrl-C and SIGTERM end a campaign between two looks; a second Ctrl-C ends it at once.

    An exception in between could break off what is being written or read.
    """
    asked, broken = threading.Event(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may say what a signal does.
        yield asked.is_set
        return

    def ask(number: int, _: object) -> None:
        if asked.is_set() and number == signal.SIGINT and not broken.is_set():
            # A third one must not break off how the second one ends it.
            broken.set()
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
