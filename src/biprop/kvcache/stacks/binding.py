"""Which production stacks there are, and how they are imported: late, and with the network off."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from biprop.kvcache.stacks.records import Binding

__all__ = ["STACKS", "bind_transformers", "binding_of"]

STACKS = ("transformers", "vllm", "sglang")
_BOUND = ("transformers",)
_EXTRAS = {"transformers": "install biprop[transformers] to bind it"}
# Hubs are asked for nothing: models are made of configurations, weights of a seed.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
# Looked up while the package decides what else is installed, all at its first use.
_NAMES = (
    "DynamicCache",
    "LlamaConfig",
    "LlamaForCausalLM",
    "Qwen3Config",
    "Qwen3ForCausalLM",
    "StaticCache",
)


def binding_of(stack: str) -> tuple[Binding, str]:
    """Say whether a stack can be run, and why not in one line."""
    if find_spec(stack) is None:
        more = _EXTRAS.get(stack, "nothing is claimed of it")
        return "absent", f"{stack} is not installed: {more}."
    if stack not in _BOUND:
        return "not bound", f"{stack} can be imported, and nothing here speaks to its cache yet."
    return "bound", ""


def bind_transformers() -> ModuleType:
    """Import transformers, as late as it is needed: it takes seconds.

    Its types are not read: type checkers would need as long.
    """
    with _offline(), _hidden("kernels"):
        package = import_module("transformers")
        for name in _NAMES:
            getattr(package, name)
    return package


@contextmanager
def _offline() -> Iterator[None]:
    """Set what the hub's client reads when it is imported, and put back what was there."""
    before = {name: os.environ.get(name) for name in _OFFLINE}
    os.environ.update(_OFFLINE)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Hide a folder of this repository that bears the name of a distribution.

    Python that runs in the root of the repository finds the folder `kernels`, and transformers
    takes it for an optional package of that name.
    """
    own = (Path(__file__).parents[2] / name).resolve()
    spec = None if name in sys.modules else find_spec(name)
    is_own = spec is not None and spec.origin is not None and Path(spec.origin).parent == own
    if not is_own:
        yield
        return
    # What stands for None there is found by nobody.
    sys.modules[name] = None  # type: ignore[assignment]  # typeshed has modules alone
    try:
        yield
    finally:
        del sys.modules[name]
