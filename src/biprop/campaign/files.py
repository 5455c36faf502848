"""Files of a store: written at once or not at all, and made once by whoever comes first.

Other processes, of other machines too, read and write in the same folders at any moment. So a text
is written under a name that nobody looks for, in the same folder, and renamed; a process that is
killed in between leaves a file that nobody reads, which `swept` takes away later.
"""

import contextlib
import errno
import os
import tempfile
import time
from pathlib import Path

__all__ = [
    "RunningFile",
    "claim",
    "full_in_words",
    "is_full",
    "make_once",
    "over_paths",
    "swept",
    "write",
]

_PREFIX = ".tmp-"
# What is being written is renamed at once; what is older was left behind.
_SECONDS_TO_KEEP = 3600.0
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
# A file system without hard links says so by one of these.
_NO_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))


class RunningFile:
    """A file that is there while something runs, written anew each time, thousands of times.

    As safe as `write` for whoever is killed, and cheaper by far: no file is made or taken away. The
    text goes into one of two files that nobody takes for running. That one is then renamed, and
    renamed back when it is over; the other one keeps the text before. A text that is torn was not
    running yet, and the other one is whole.
    """

    def __init__(self, path: Path) -> None:
        """Stand for the file `path`, of which no text is there yet."""
        self._path = path
        self._over = over_paths(path)
        self._place = 0

    def begin(self, text: str) -> None:
        """Write a text, then have it be there.

        Raises:
            OSError: It cannot be written; the file is not there then.
        """
        data = text.encode("ascii")
        spare = self._over[self._place]
        handle = os.open(spare, os.O_CREAT | os.O_WRONLY, 0o644)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(handle, data[written:], written)
            os.ftruncate(handle, len(data))
        finally:
            # A shared folder gets it now.
            os.close(handle)
        spare.rename(self._path)

    def end(self) -> None:
        """Have it not be there any more."""
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(self._over[self._place])
        self._place = 1 - self._place


def over_paths(path: Path) -> tuple[Path, Path]:
    """Return the two files that keep the texts of a `RunningFile` when nothing runs."""
    return path.with_suffix(".over0"), path.with_suffix(".over1")


def write(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a file; whoever reads it sees the old text or the new one.

    Args:
        path: Of the file; its folder exists.
        text: ASCII.
        durable: Whether it must outlast a loss of power, which costs a wait for the disk. The end
            of this process loses nothing either way.

    Raises:
        OSError: It cannot be written; nothing has changed then.
    """
    unfinished = _unfinished(path, text, durable=durable)
    try:
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if durable:
        _settle(path.parent)


def make_once(path: Path, text: str) -> bool:
    """Write a file unless it exists; return whether it was this call that made it.

    Raises:
        OSError: It cannot be written.
    """
    if path.exists():
        return False
    unfinished = _unfinished(path, text, durable=True)
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _made_without_links(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    _settle(path.parent)
    return True


def claim(path: Path, taken: Path) -> bool:
    """Rename a file that several may want; return whether this call got it."""
    try:
        path.rename(taken)
    except FileNotFoundError:
        return False
    return True


def swept(folder: Path) -> int:
    """Take away what killed processes left unfinished; return how many files that were."""
    count = 0
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _SECONDS_TO_KEEP:
                path.unlink()
                count += 1
    return count


def is_full(error: OSError) -> bool:
    """Say whether a disk, or a share of it, is full: later there may be room again."""
    return error.errno in _FULL


def full_in_words(error: OSError, folder: Path) -> str:
    """Say why nothing is written into a store, and what to do.

    Args:
        error: What writing raised.
        folder: Of the store.
    """
    return f"{error.strerror or error}: make room for {folder}, and it goes on"


def _unfinished(path: Path, text: str, *, durable: bool) -> Path:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_PREFIX)
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.write(text)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        # mkstemp makes it private; a store may be shared.
        unfinished.chmod(0o644)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    return unfinished


def _made_without_links(unfinished: Path, path: Path) -> bool:
    """Rename where there are no links: two at once may both think that they made it."""
    if path.exists():
        return False
    unfinished.replace(path)
    return True


def _settle(folder: Path) -> None:
    """Have the disk keep the name too; a file system that cannot is no reason to fail."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
