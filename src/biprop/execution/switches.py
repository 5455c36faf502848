"""The switches of the process that a case fixes, set around its launches and put back after.

They are chosen in `biprop.case.Execution`; what the process had is told by `biprop.provenance`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from biprop.case import Execution

__all__ = ["switched"]


@contextmanager
def switched(execution: Execution) -> Iterator[None]:
    """Set threads, deterministic algorithms and TF32, where they differ, until the block ends."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        _set(
            execution.threads, execution.deterministic_algorithms, (execution.tf32, execution.tf32)
        )
        yield
    finally:
        _set(threads, deterministic, tf32)


def _set(threads: int, deterministic: bool, tf32: tuple[bool, bool]) -> None:  # noqa: FBT001  # torch's own order
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if torch.are_deterministic_algorithms_enabled() != deterministic:
        torch.use_deterministic_algorithms(deterministic)
    if torch.backends.cuda.matmul.allow_tf32 != tf32[0]:
        torch.backends.cuda.matmul.allow_tf32 = tf32[0]
    if torch.backends.cudnn.allow_tf32 != tf32[1]:
        torch.backends.cudnn.allow_tf32 = tf32[1]
