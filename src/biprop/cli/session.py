"""What commands share: the stores, and the kernel that the options name.

Texts are read and refused here, before a worker starts; what only an import can tell is found out
by the worker (`biprop.supervision.resolve`).
"""

import re
import tempfile
from pathlib import Path

import attrs

from biprop.campaign.records import CauseRecord, owners_of
from biprop.campaign.replays import held_last
from biprop.campaign.store import FIXTURE_FOLDERS, FOLDER
from biprop.campaign.store import Store as CampaignStore
from biprop.errors import UsageError
from biprop.fixtures.store import FIXTURES, FOUND, Store, locate, project_root
from biprop.loading import check_file, operator_spec
from biprop.operators import KernelReference
from biprop.signature import parse_call, parse_restrictions, parse_target

__all__ = ["Home", "Named", "kernel_reference", "named", "open_home"]

_OPERATOR = re.compile(r"[A-Za-z_]\w*(?:/[A-Za-z_]\w*)?", re.ASCII)


@attrs.frozen(kw_only=True)
class Home:
    """Where a check writes.

    Attributes:
        store: Its findings.
        folder: What else it keeps: the journal, and what Hypothesis writes.
    """

    store: Store
    folder: Path


def open_home(path: Path | None) -> Home:
    """Return where to write: the store `path`, or `.hypothesis` of the project.

    Raises:
        UsageError: The store cannot be written.
    """
    folder = project_root() / FOUND.parent if path is None else path
    store = Store(project_root() / FOUND if path is None else path)
    _check_writable(store.folder)
    return Home(store=store, folder=folder)


def _stores(path: Path | None) -> tuple[Store, ...]:
    """Return where ids are looked up: `path`, or found and committed fixtures of the project.

    A store of campaigns keeps its fixtures in folders of its own.
    """
    if path is not None:
        return _campaign_stores(path) or (Store(path),)
    root = project_root()
    return (Store(root / FOUND), Store(root / FIXTURES), *_campaign_stores(root / FOLDER))


def _campaign_stores(path: Path) -> tuple[Store, ...]:
    """Return where a store of campaigns keeps fixtures; nothing for another folder."""
    if not (path / "campaigns").is_dir():
        return ()
    return tuple(Store(path / name) for name in FIXTURE_FOLDERS)


@attrs.frozen(kw_only=True)
class Named:
    """A fixture that the command line names.

    Attributes:
        path: Its file.
        source: What a command that is printed calls it; empty: its id is enough.
        options: That such a command needs besides.
        note: What became of it since, in the store of a campaign; empty where nothing did.
    """

    path: Path
    source: str = ""
    options: tuple[str, ...] = ()
    note: str = ""


def named(text: str, store: Path | None) -> Named:
    """Return the fixture of a path, or of the beginning of an id in a store.

    Raises:
        FixtureError: There is none, or there are several.
    """
    path = locate(text, _stores(store))
    folder = path.parent.parent
    note = ""
    if _campaign_stores(folder):
        note = _what_became_of(path.stem, CampaignStore(folder))
    if path == Path(text):
        return Named(path=path, source=text, note=note)
    options = () if store is None else ("--store", str(store))
    return Named(path=path, options=options, note=note)


def _what_became_of(name: str, store: CampaignStore) -> str:
    records = store.causes()
    record = next((item for item in records.values() if name in item.formerly), None)
    if record is None:
        record = next((item for item in records.values() if item.fixture == name), None)
    if record is None:
        return ""
    own = records[owners_of(records)[record.digest]]
    if own.fixture == name:
        return _standing(own, store)
    # It was shrunk, or it was fixed and another case has shown it again.
    return f"told as {own.fixture[:8]} now: {own.name}"


def _standing(cause: CauseRecord, store: CampaignStore) -> str:
    """Say what is known of a cause besides its fixture; empty where that says it all."""
    if cause.is_unreproduced:
        return f"not reproduced: it {cause.seen_once_as}, and held when it was judged again"
    if held_last(store.replays().get(cause.fixture)):
        return "fixed: it held when it was run again"
    if cause.is_waiting:
        return f"to be judged again: it {cause.seen_once_as}" if cause.is_lost else "not shrunk yet"
    return ""


def kernel_reference(
    *,
    target: str,
    backend: str | None,
    signature: str | None,
    dims: str,
    align: int,
    call: str,
) -> KernelReference:
    """Return the reference of the kernel that the options name; nothing is imported.

    Raises:
        BipropError: A text is wrong, or options do not go together.
    """
    if _OPERATOR.fullmatch(target):
        return _registered(
            target,
            backend=backend,
            has_description=bool(signature is not None or dims or call or align != 1),
        )
    named = parse_target(target)
    if backend is not None:
        raise UsageError(
            "--backend chooses a backend of a registered operator: leave it out for a target."
        )
    fixed = parse_call(call)
    if signature is None:
        # The target's own description is known only once it is imported.
        parse_restrictions(dims)
        text = ""
    else:
        text = operator_spec(signature, dims=dims, align=align, call=fixed).signature.text
    check_file(named)
    return KernelReference(
        operator=named.text,
        target=named.text,
        signature=text,
        dims=dims,
        align=align,
        call=fixed,
    )


def _registered(target: str, *, backend: str | None, has_description: bool) -> KernelReference:
    if has_description:
        raise UsageError(
            f"{target!r} is taken for a registered operator, which brings its own signature: leave "
            "out --signature, --dims, --call and --align, or write module:name or file.py:name."
        )
    return KernelReference(
        operator=target.partition("/")[0],
        target=target,
        signature="",
        backend="torch" if backend is None else backend,
    )


def _check_writable(folder: Path) -> None:
    """Refuse a store that cannot be written, before a search is spent on it."""
    place = folder.resolve()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        # Only a trial tells: rights, quotas and read-only mounts have no common question.
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UsageError(
            f"--store {str(folder)!r} cannot be written: {error.strerror or error}; "
            "give a folder that can."
        ) from error
