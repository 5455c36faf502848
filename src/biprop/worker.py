"""The process that runs kernels for a supervisor: `python -m biprop.worker`.

Started by `biprop.supervision.child`, never by hand. Sets the environment before torch and kernels
are imported, since both read it at import; the loop itself is `biprop.supervision.serve`.
"""

import argparse
import contextlib
import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Sequence

from biprop.errors import BipropError
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
    parser.add_argument("--pipes", required=True, help="descriptors, handed down by the supervisor")
    options = parser.parse_args(arguments)
    request, answer, lifeline, block, report = map(int, options.pipes.split(","))
    _end_with_parent(options.parent, lifeline)
    # Ctrl-C is the supervisor's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for descriptor in (request, answer, lifeline, block, report):
        # What a target starts must not hold the pipes open.
        os.set_inheritable(descriptor, False)  # noqa: FBT003  # it has no name
    vitals = VitalsWriter(block_fd=block, report_fd=report)
    lines = Lines(read_fd=request, write_fd=answer)
    _set_environment(options.device, options.threads)
    try:
        _serve(lines, vitals, device=options.device, threads=options.threads)
    except BipropError as error:
        lines.send(encode({"error": error_to_data(error)}))
        sys.exit(1)


def _serve(lines: Lines, vitals: VitalsWriter, *, device: str, threads: int) -> None:
    # Only now, as the environment is set.
    import torch  # noqa: PLC0415

    from biprop.registry import build_registry  # noqa: PLC0415
    from biprop.supervision.resolve import check_device  # noqa: PLC0415
    from biprop.supervision.serve import serve  # noqa: PLC0415

    torch.set_num_threads(threads)
    check_device(device)
    serve(build_registry(), lines=lines, vitals=vitals, device=device)


def _set_environment(device: str, threads: int) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if device.partition(":")[0] == "cpu":
        # Triton compiles for no CPU; whoever wants it otherwise has said so already.
        os.environ.setdefault("TRITON_INTERPRET", "1")


def _end_with_parent(parent: int, lifeline: int) -> None:
    """Have the kernel end this process when its parent ends, even while a target keeps Python busy.

    Args:
        parent: Its process number, 0 where its death is told by the lifeline alone.
        lifeline: Reading end of a pipe whose other end only the parent holds.
    """
    if not sys.platform.startswith("linux"):
        return
    # A signal when the pipe's other end closes: unlike the request below it does not depend on
    # which thread of the parent started this process.
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
