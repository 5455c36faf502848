"""Launch facts: what Triton's own hooks tell of a launch, without a device."""

from typing import Any

import pytest
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, LazyDict
from triton.runtime.jit import JITFunction

from biprop.execution.facts import Launched, launches_seen
from biprop.launch_log import listening

TARGET = GPUTarget("cuda", 90, 32)
# Triton's language as it was before any test of this process ran. The interpreter replaces members
# of it for a launch, and leaves those that a device function replaced once more: nothing compiles
# after that, but for what the cache of an earlier run holds.
LANGUAGE = {
    part: dict(vars(part))
    for part in (tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base)
}


@pytest.fixture(autouse=True)
def _language(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile with the language as Triton brings it, whatever ran in this process before."""
    for part, members in LANGUAGE.items():
        for name in vars(part).keys() - members.keys():
            monkeypatch.delattr(part, name)
        for name, member in members.items():
            if vars(part).get(name) is not member:
                monkeypatch.setattr(part, name, member)


# Triton reads annotations, and knows none of ours.
def add_one(x, count, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Add one to each number."""
    place = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    live = place < count
    tl.store(x + place, tl.load(x + place, mask=live) + 1, mask=live)


def compiled(function: "JITFunction[Any]") -> Any:  # noqa: ANN401  # Triton has no types
    """Compile for a device that need not be there."""
    source = ASTSource(
        fn=function,
        signature={"x": "*fp32", "count": "i32", "WIDTH": "constexpr"},
        constexprs={(2,): 64},
    )
    options = {"num_warps": 2, "num_stages": 1, "enable_fp_fusion": False}
    return triton.compile(source, target=TARGET, options=options)


def launched(kernel: Any, grid: tuple[int, ...]) -> None:  # noqa: ANN401  # likewise
    """Do what Triton does before a launch, but for the launch."""
    metadata = LazyDict({"name": kernel.metadata.name, "function": None, "stream": 0})
    arguments = {"x": None, "count": 100, "WIDTH": 64}
    metadata.add(kernel.src.fn.launch_metadata, (grid, kernel.metadata, arguments))
    knobs.runtime.launch_enter_hook(metadata)


class TestLaunchesSeen:
    """`launches_seen`: kernel, grid and configuration of what was launched."""

    def test_a_launch_is_told_with_grid_and_configuration(self) -> None:
        """Each kind once, in the order of the first launch of each."""
        function = JITFunction(add_one)
        with launches_seen(is_compiled=True) as seen:
            kernel = compiled(function)
            for grid in ((2,), (2,), (3, 1, 1)):
                launched(kernel, grid)

        words = "WIDTH=64 num_warps=2 num_stages=1"
        assert list(seen) == [
            Launched(kernel="add_one", grid=(2,), configuration=words),
            Launched(kernel="add_one", grid=(3, 1, 1), configuration=words),
        ]

    def test_each_launch_is_told_to_who_looks_at_a_single_call(self) -> None:
        """Names alone, and those of the block alone: the same kind may have been seen before."""
        with launches_seen(is_compiled=True) as seen:
            kernel = compiled(JITFunction(add_one))
            launched(kernel, (2,))
            with listening() as log:
                launched(kernel, (2,))

        assert len(seen) == 1
        assert list(log.names) == ["add_one"]

    def test_words_of_the_author_stay(self) -> None:
        """A kernel's own launch metadata is told to others as ever, and may fail."""
        others: list[dict[str, object]] = []

        def keep(metadata: LazyDict) -> None:
            others.append(metadata.get())

        own = JITFunction(add_one, launch_metadata=lambda *_: {"flops": 7})
        broken = JITFunction(add_one, launch_metadata=lambda *_: 1 / 0)
        knobs.runtime.launch_enter_hook.add(keep)
        try:
            with launches_seen(is_compiled=True) as seen:
                launched(compiled(own), (1,))
                launched(compiled(broken), (4,))
        finally:
            knobs.runtime.launch_enter_hook.remove(keep)

        assert [told.get("flops") for told in others] == [7, None]
        assert [item.grid for item in seen] == [(1,), (4,)]

    def test_hooks_of_the_process_are_put_back(self) -> None:
        """Also when a kernel raises; a listener of others is asked in between."""
        heard: list[object] = []
        calls = list(knobs.runtime.launch_enter_hook.calls)

        def listener(*, src: object, **_: object) -> None:
            heard.append(src)

        knobs.compilation.listener = listener
        try:
            with pytest.raises(ZeroDivisionError):
                _compile_and_raise()
            assert knobs.compilation.listener is listener
        finally:
            knobs.compilation.listener = None

        assert len(heard) == 1
        assert knobs.runtime.launch_enter_hook.calls == calls

    def test_nothing_is_seen_where_nothing_is_compiled(self) -> None:
        """In the interpreter Triton has no hooks, and none are set."""
        with launches_seen(is_compiled=False) as seen:
            assert knobs.compilation.listener is None

        assert seen == {}


def _compile_and_raise() -> None:
    with launches_seen(is_compiled=True):
        compiled(JITFunction(add_one))
        raise ZeroDivisionError
