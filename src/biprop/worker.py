"""The process that runs kernels for a supervisor: `python -m biprop.worker`.

Started by `biprop.supervision.child`, never by hand. Sets the environment before torch and kernels
are imported, since both read it at import; the loop itself is `biprop.supervision.serve`.
"""

import argparse
import contextlib
import ctypes
import fcntl
import gc
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

from biprop.errors import BipropError
from biprop.supervision.keeper import keep
from biprop.supervision.messages import encode, error_to_data
from biprop.supervision.pipes import Lines
from biprop.supervision.vitals import VitalsWriter

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the supervisor whose pipes are given; does not return."""
    parser = argparse.ArgumentParser(prog="biprop.worker", description="Runs kernels for biprop.")
    parser.add_argument("--device", required=True, help="where kernels run: cpu, cuda:0, ...")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of torch")
    parser.add_argument("--parent", type=int, default=0, help="process not to be outlived")
    ends = parser.add_mutually_exclusive_group(required=True)
    ends.add_argument("--pipes", help="descriptors, handed down by the supervisor")
    ends.add_argument("--keep", type=int, help="descriptor of a socket: fork workers, work not")
    options = parser.parse_args(arguments)
    # Ctrl-C is the supervisor's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_environment(options.device, options.threads)
    if options.keep is None:
        descriptors = tuple(map(int, options.pipes.split(",")))
        _work(descriptors, parent=options.parent, device=options.device, threads=options.threads)
        return
    _end_with_parent(options.parent)
    _import_for_workers(options.device)
    keeper = os.getpid()
    keep(
        options.keep,
        partial(_work, parent=keeper, device=options.device, threads=options.threads),
    )


def _work(descriptors: tuple[int, ...], *, parent: int, device: str, threads: int) -> None:
    """Serve the supervisor whose pipes are given; does not return."""
    request, answer, lifeline, block, report = descriptors
    _end_with_parent(parent, lifeline)
    for descriptor in descriptors:
        # What a target starts must not hold the pipes open.
        os.set_inheritable(descriptor, False)  # noqa: FBT003  # it has no name
    vitals = VitalsWriter(block_fd=block, report_fd=report)
    lines = Lines(read_fd=request, write_fd=answer)
    try:
        _serve(lines, vitals, device=device, threads=threads)
    except BipropError as error:
        lines.send(encode({"error": error_to_data(error)}))
        sys.exit(1)


def _import_for_workers(device: str) -> None:
    """Import what takes a worker long; neither a device nor a target is touched."""
    import torch  # noqa: PLC0415

    import biprop.kernels  # noqa: PLC0415
    import biprop.supervision.serve  # noqa: F401, PLC0415

    if device.partition(":")[0] == "cuda" and find_spec("triton") is not None:
        # It looks for a device when a kernel is launched, and not before.
        import triton  # noqa: F401, PLC0415
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        # A fork could not use the device: workers are started one by one then.
        sys.exit(1)


def _serve(lines: Lines, vitals: VitalsWriter, *, device: str, threads: int) -> None:
    # Only now, as the environment is set.
    import torch  # noqa: PLC0415

    from biprop.execution.device import on_device  # noqa: PLC0415
    from biprop.registry import build_registry, find_cache  # noqa: PLC0415
    from biprop.supervision.resolve import check_device  # noqa: PLC0415
    from biprop.supervision.serve import serve  # noqa: PLC0415

    torch.set_num_threads(threads)
    check_device(device)
    # What was imported stays to the end: no collection of what kernels leave need look at it.
    gc.freeze()
    with on_device(device):
        serve(build_registry(), find_cache=find_cache, lines=lines, vitals=vitals, device=device)


def _set_environment(device: str, threads: int) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if device.partition(":")[0] == "cpu":
        # Triton compiles for no CPU; whoever wants it otherwise has said so already.
        os.environ.setdefault("TRITON_INTERPRET", "1")


def _end_with_parent(parent: int, lifeline: int | None = None) -> None:
    """Have the kernel end this process when its parent ends, even while a target keeps Python busy.

    Args:
        parent: Its process number, 0 where its death is told by the lifeline alone.
        lifeline: Reading end of a pipe whose other end only the supervisor holds.
    """
    if not sys.platform.startswith("linux"):
        return
    # A signal when the pipe's other end closes: unlike the request below it does not depend on
    # which thread of the parent started this process.
    if lifeline is not None:
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if parent:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)


if __name__ == "__main__":
    main()
