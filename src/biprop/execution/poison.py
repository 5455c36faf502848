"""Poison: memory that a kernel asks for without giving it values holds something recognisable.

Factory calls are intercepted wherever they come from, Python or C++, by a dispatch mode, which
makes every operator of the kernel dear (small torch kernels ran 7 times longer under it). So a
kernel runs under the mode at its first launch of a configuration, and goes on under it only if it
was handed memory that the Python functions `torch.empty`, ... did not hand out: those are watched
at every launch, which costs nothing to other operators. Where somebody wants to see every operator
(`biprop.execution.stand_ins`), the mode stays and the functions are left alone. On CUDA, operators
also take blocks from the caching allocator unseen, for outputs and workspaces: what it would hand
out is dirtied before the launch (`biprop.execution.blocks`). Not torch's own
`fill_uninitialized_memory`: it needs deterministic algorithms, which change the kernels. What the
poisons are is said in `biprop.bits`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from biprop.bits import Poison, poison_
from biprop.execution.blocks import Span, dirty_all, dirty_sizes

__all__ = ["Observer", "Poisoner"]

# Told each operator before it runs.
Observer = Callable[[Any], None]

_FACTORIES = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_permuted.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)
# Not the methods `Tensor.new_empty`, ...: to change a class at every launch would undo Python's
# caches. A kernel that uses them stays under the mode.
_FUNCTIONS = ("empty", "empty_like", "empty_permuted", "empty_strided")


class Poisoner:
    """Fills what kernels are handed, for the launches of one configuration.

    Attributes:
        poison: What it fills with.
        reached: Whether a kernel was handed anything that it filled.
    """

    def __init__(self, poison: Poison) -> None:
        """Fill with `poison`."""
        self.poison: Poison = poison
        self.reached = False
        self._mode = _Mode(self)
        self._seen_by_mode = 0
        self._seen_by_functions = 0
        self._under_mode: dict[str, bool] = {}
        self._dirty: tuple[Span, ...] = ()

    @contextmanager
    def watching(self, role: str, *, observer: Observer | None = None) -> Iterator[None]:
        """Fill memory handed out until the block ends.

        Args:
            role: Which of the kernel's functions is called; each is looked at on its own.
            observer: Told each operator that the kernel calls.
        """
        under_mode = observer is not None or self._under_mode.get(role, True)
        self._seen_by_mode = self._seen_by_functions = 0
        self._mode.observer = observer
        # Filling from a watched function would look like operators of the kernel.
        with _functions_watched_by(self) if observer is None else nullcontext():
            if under_mode:
                with self._mode:
                    yield
            else:
                yield
        if under_mode:
            self._under_mode[role] = self._seen_by_mode > self._seen_by_functions

    def dirty(
        self,
        sizes: Sequence[tuple[int, torch.dtype]],
        device: torch.device,
        *,
        everywhere: bool = False,
    ) -> None:
        """Fill free memory of a device that the next launch may be handed.

        Args:
            sizes: Element count and dtype of each output.
            device: Where it launches. The CPU keeps no free blocks.
            everywhere: Whether all free memory is filled, which workspaces of any size then meet.
        """
        if device.type == "cuda":
            spans = dirty_all(device, self.poison) if everywhere else ()
            self._dirty = (*spans, *dirty_sizes(sizes, device, self.poison))

    def look_at(self, returned: object) -> None:
        """Note whether an output of the launch lies where `dirty` filled."""
        found = returned if isinstance(returned, (tuple, list)) else (returned,)
        for value in found:
            if self.reached or not self._dirty:
                break
            if isinstance(value, Tensor) and value.layout == torch.strided:
                start = value.untyped_storage().data_ptr()
                self.reached = any(span.start <= start < span.end for span in self._dirty)
        self._dirty = ()

    def fill(self, fresh: object, *, seen_by_mode: bool) -> None:
        """Fill one tensor that was handed out, the gaps between its elements included."""
        # Subclasses are the tracers' and other people's, whose memory is not as it looks.
        if type(fresh) is not Tensor or fresh.is_meta or fresh.is_quantized or not fresh.numel():
            return
        if seen_by_mode:
            self._seen_by_mode += 1
        else:
            self._seen_by_functions += 1
        count = fresh.untyped_storage().nbytes() // fresh.element_size()
        poison_(fresh.detach().as_strided((count,), (1,), 0), self.poison)
        self.reached = True


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Sees every operator that a kernel calls, and has fresh memory filled.

    Attributes:
        observer: Told each of them.
    """

    def __init__(self, poisoner: Poisoner) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self._poisoner = poisoner
        self.observer: Observer | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled targets run compiled: dynamo falls back to eager under any other mode."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave `__torch_dispatch__` unwrapped: the wrapper doubles the cost of every operator."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401  # torch's own type of the argument
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  # whatever the operator returns
        """Run one operator, and fill its result if it is fresh memory."""
        if self.observer is not None:
            self.observer(func)
        result = func(*args, **kwargs) if kwargs else func(*args)
        if func in _FACTORIES:
            self._poisoner.fill(result, seen_by_mode=True)
        return result


# Whose launch is going on, innermost last, as torch keeps its own modes. The replacements are made
# once: dynamo guards on the identity of functions, and would compile again for every new one.
_POISONERS: list[Poisoner] = []


def _watched(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(original)
    def factory(*args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401  # the original's own arguments
        result = original(*args, **kwargs)
        # Traced by dynamo, the filling would become a part of the kernel.
        if not torch.compiler.is_compiling() and _POISONERS:
            _POISONERS[-1].fill(result, seen_by_mode=False)
        return result

    return factory


_ORIGINALS = {name: getattr(torch, name) for name in _FUNCTIONS}
_REPLACEMENTS = {name: _watched(original) for name, original in _ORIGINALS.items()}


@contextmanager
def _functions_watched_by(poisoner: Poisoner) -> Iterator[None]:
    before = {name: getattr(torch, name) for name in _FUNCTIONS}
    _POISONERS.append(poisoner)
    try:
        for name, replacement in _REPLACEMENTS.items():
            setattr(torch, name, replacement)
        yield
    finally:
        for name, function in before.items():
            setattr(torch, name, function)
        _POISONERS.pop()
