"""Whether a Triton cache computes in its kernels, or torch in their place; what it launches.

As `biprop.execution.stand_ins` watches operators (ci/decisions/0016), with two differences that
caches call for: the account of pages is kept by the host, so operators on whole numbers are its
own matter; and what only moves floats, bit by bit, computes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from biprop.errors import BackendError
from biprop.execution.backend import actual_backend
from biprop.execution.facts import launches_seen
from biprop.execution.stand_ins import ALLOCATIONS, VIEWS
from biprop.judgment import LaunchFact
from biprop.kvcache.protocol import CacheImplementation, CacheOperator
from biprop.launch_log import LaunchLog, listening
from biprop.operators import Kernel
from biprop.signature import parse_signature

__all__ = ["Watch"]

_MOVES = frozenset(
    {
        "_index_put_impl_",
        "cat",
        "clone",
        "copy_",
        "fill_",
        "gather",
        "index",
        "index_copy_",
        "index_put_",
        "index_select",
        "lift_fresh",
        "scatter_",
        "zero_",
        "zeros",
    }
)
_HARMLESS = frozenset(ALLOCATIONS | VIEWS)
_NAMES_SHOWN = 4
_NO_SIGNATURE = parse_signature("x[T,D] -> y[T,D]")


class Watch:
    """Watches the calls of one cache.

    Attributes:
        facts: What was launched, each kind once.
    """

    def __init__(
        self, operator: CacheOperator, implementation: CacheImplementation, device: torch.device
    ) -> None:
        """Watch nothing yet."""
        self._name = operator.name
        self._implementation = implementation
        self._is_compiled = device.type == "cuda"
        self.facts: dict[LaunchFact, None] = {}

    @property
    def actual_backend(self) -> str:
        """What ran: `torch`, `triton` or `triton-interpreter`; ask after a call."""
        backend = self._implementation.backend
        kernel = Kernel(
            operator=self._name,
            target=self._name,
            backend=backend,
            signature=_NO_SIGNATURE,
            function=self._implementation.make,
        )
        return actual_backend(kernel)

    @contextmanager
    def call(self, name: str, *, tokens: int) -> Iterator[None]:
        """Watch one call of the cache until the block ends.

        Args:
            name: What is called.
            tokens: That it works on: with none, nothing need be launched.

        Raises:
            BackendError: When the block ends: something else than its kernels computed. A call that
                raises is left to its own error.
        """
        if self._implementation.backend != "triton":
            yield
            return
        with listening() as log, launches_seen(is_compiled=self._is_compiled) as seen:
            mode = _Mode(log)
            with mode:
                yield
        for item in seen:
            self.facts[LaunchFact(role=name, **attrs.asdict(item))] = None
        if not self._is_compiled:
            self.facts |= {LaunchFact(role=name, kernel=kernel): None for kernel in log.names}
        fault = self._fault(tuple(mode.operators), tuple(log.names), has_work=tokens > 0)
        if fault:
            raise BackendError(
                f"{name} of cache {self._name} with backend='triton' {fault}, called for "
                f"{tokens} tokens."
            )

    def _fault(
        self, operators: tuple[str, ...], launched: tuple[str, ...], *, has_work: bool
    ) -> str:
        declared = self._implementation.kernels
        others = [name for name in launched if name not in declared]
        if operators:
            return f"lets torch compute ({_listed(operators)}), which a kernel must do"
        if others:
            return f"launches {_listed(others)}, which it does not declare"
        if has_work and not launched:
            return f"launches none of its kernels ({_listed(declared)})"
        return ""


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes the operators that compute floats.

    Attributes:
        operators: Their names, each once.
    """

    def __init__(self, log: LaunchLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self._log = log
        self.operators: dict[str, None] = {}

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401  # torch's own type of the argument
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  # whatever the operator returns
        """Run one operator, and note it if it computes floats."""
        result = func(*args, **kwargs) if kwargs else func(*args)
        if not self._log.is_interpreting:
            packet = str(getattr(func, "overloadpacket", func)).rpartition(".")[2]
            dtypes = _float_dtypes((*args, result))
            is_move = packet in _MOVES and len(dtypes) == 1
            if dtypes and packet not in _HARMLESS and not is_move:
                self.operators[str(func)] = None
        return result


def _float_dtypes(values: Iterable[object]) -> set[torch.dtype]:
    """Return the dtypes of the floats among tensors, and among tensors in lists."""
    found: set[torch.dtype] = set()
    for value in values:
        if isinstance(value, Tensor):
            if value.is_floating_point():
                found.add(value.dtype)
        elif isinstance(value, (list, tuple)):
            found |= _float_dtypes(value)
    return found


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = len(shown) - _NAMES_SHOWN
    return ", ".join(shown[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
