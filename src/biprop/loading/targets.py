"""Import the callable that a target names.

Whether it may run at all is decided by whoever calls `load_target`, before anything is imported;
what its author says of it is kept by `biprop.loading.description`.
"""

import hashlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from biprop.errors import TargetError, words_of
from biprop.signature import Target, parse_target
from biprop.signature.words import nearest, quoted

__all__ = ["Function", "check_file", "checked_callable", "is_triton", "load_target", "one_line"]

Function = Callable[..., object]
SHOWN_LENGTH_MAX = 120
MESSAGE_LENGTH_MAX = 200


def load_target(text: str, *, may_be_class: bool = False) -> Function:
    """Import the callable that a target names.

    A file is loaded under a name of its own that depends on its path only, and is registered in
    `sys.modules`, so that pickles, tracebacks, `inspect.getsource` and `triton.jit` find it. Its
    folder comes first on the path while it is imported, as for a script, and last afterwards, for
    what its functions import when they run.

    Args:
        text: `module:qual.name`, or `file.py:name` with a path relative to the working directory.
        may_be_class: Whether it may name a class, which is called to make an instance.

    Raises:
        TargetError: There is no such module, file or name, the import fails, or the name is no
            function.
    """
    target = parse_target(text)
    check_file(target)
    if target.file is not None:
        module = _module_of_file(target.file, text=target.text)
    else:
        assert target.module is not None
        module = _module_of_name(target.module, text=target.text)
    found: object = module
    for part in target.name.split("."):
        found = _member(found, part, text=target.text)
    if may_be_class and isinstance(found, type):
        return found
    return checked_callable(
        found, what=f"Target {quoted(target.text, length_max=SHOWN_LENGTH_MAX)}"
    )


def check_file(target: Target) -> None:
    """Refuse a target whose file does not exist; nothing is imported.

    Raises:
        TargetError: There is no such file.
    """
    if target.file is None:
        return
    shown = quoted(target.text, length_max=SHOWN_LENGTH_MAX)
    if _is(Path.is_dir, target.file):
        raise TargetError(f"Target {shown} names a directory: name a .py file in it.")
    if not _is(Path.is_file, target.file):
        raise TargetError(
            f"Target {shown} names no file: give its path from the working directory."
        )


def checked_callable(found: object, *, what: str) -> Function:
    """Return what can be called with tensors, and refuse everything else."""
    kind = type(found).__name__
    if is_triton(found) and hasattr(found, "__getitem__"):
        raise TargetError(
            f"{what} is a Triton kernel of type {kind}: "
            "name the Python function that allocates its outputs and launches it."
        )
    if isinstance(found, type):
        raise TargetError(f"{what} is the class {found.__name__}: name a function of tensors.")
    if not callable(found):
        raise TargetError(f"{what} is of type {kind}, which cannot be called: name a function.")
    return found


def one_line(error: BaseException) -> str:
    """Return a foreign message as part of a sentence: one line, printable, bounded."""
    words = words_of(error)
    shown = "".join(character for character in words if character.isprintable()).rstrip(".")
    return (
        shown if len(shown) <= MESSAGE_LENGTH_MAX else shown[: MESSAGE_LENGTH_MAX - 3] + "..."
    ) or "no message"


def is_triton(value: object) -> bool:
    """Tell whether Triton defines the type of a value."""
    # By name, as Triton may be absent, and importing it costs seconds.
    return type(value).__module__.partition(".")[0] == "triton"


def _module_of_name(name: str, *, text: str) -> ModuleType:
    shown = quoted(text, length_max=SHOWN_LENGTH_MAX)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # A module that the target's own module misses is another matter.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            file = f"{name.replace('.', '/')}.py"
            advice = (
                f"write {file}:{text.rpartition(':')[2]}"
                if _is(Path.is_file, file)
                else "install it, or name its file as file.py:name"
            )
            raise TargetError(
                f"Target {shown} has no module {quoted(error.name)}: {advice}."
            ) from error
        raise _import_error(error, shown) from error
    # Importing runs code that may raise anything, and may call sys.exit().
    except (Exception, SystemExit) as error:
        raise _import_error(error, shown) from error


def _module_of_file(file: str, *, text: str) -> ModuleType:
    shown = quoted(text, length_max=SHOWN_LENGTH_MAX)
    path = Path(file).resolve()
    key = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    name = f"biprop_target_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}_{key}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    folder = str(path.parent)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    # Importing runs code that may raise anything, and may call sys.exit().
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_error(error, shown, path=path) from error
    finally:
        # First for good, a sibling called random.py would stand in for the library's own.
        with suppress(ValueError):
            sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)
    return module


def _import_error(error: BaseException, shown: str, *, path: Path | None = None) -> TargetError:
    advice = "correct it, then try again"
    if path is not None and (path.parent / "__init__.py").is_file():
        advice = "correct it, or name it as package.module:name, since it lies in a package"
    return TargetError(
        f"Target {shown} cannot be imported, it raises {type(error).__name__}: "
        f"{one_line(error)}, so {advice}."
    )


def _member(owner: object, name: str, *, text: str) -> object:
    shown = quoted(text, length_max=SHOWN_LENGTH_MAX)
    try:
        return getattr(owner, name)
    except AttributeError as error:
        meant = nearest(name, dir(owner))
        advice = f"write {quoted(meant)}" if meant else "name a function that exists there"
        raise TargetError(f"Target {shown} has no name {quoted(name)}: {advice}.") from error
    except Exception as error:
        raise TargetError(
            f"Target {shown} cannot give {quoted(name)}, it raises {type(error).__name__}: "
            f"{one_line(error)}, so name another function."
        ) from error


def _is(question: Callable[[Path], bool], file: str) -> bool:
    """Ask a question of a path; a path too long to exist has the answer no."""
    try:
        return question(Path(file))
    except OSError:
        return False
