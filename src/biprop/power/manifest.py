"""A manifest: planted kernels of one's own, and their healthy twins, named in a JSON file.

Read and refused here, without torch and before anything is imported: every sentence names the entry
and the field. What is run with an entry says `biprop.power.benches`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import attrs

from biprop.case import DTYPES, Dtype
from biprop.errors import BipropError, UsageError
from biprop.loading import check_file, operator_spec
from biprop.operators import TRANSFORM_CLASSES, KernelReference
from biprop.signature import parse_target
from biprop.signature.words import quoted

__all__ = ["KIND", "Entry", "parse_manifest", "read_manifest"]

# Of a defect where a manifest says no kind.
KIND = "-"
_REQUIRED = ("name", "target", "signature", "dtype")
_OPTIONAL = ("kind", "classes", "direction", "dims", "healthy")
_CLASSES = (*TRANSFORM_CLASSES, "T4.finite", "T4.nonfinite")
_DIRECTIONS: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
_BYTES_MAX = 1 << 20
_ENTRIES_MAX = 1000
_WORDS_MAX = 200


@attrs.frozen(kw_only=True)
class Entry:
    """One planted kernel of a manifest.

    Attributes:
        name: Unique in the manifest.
        target: `module:name` or `file.py:name`.
        signature: Of the target and of its twin.
        dtypes: In which the defect shows.
        kind: Of the defect, a word of one's own.
        classes: Of transforms that are drawn; empty: all that apply.
        direction: Whether outputs or gradients are judged.
        dims: Restrictions of the free dimensions, as `--dims` takes them.
        healthy: Target of the twin; empty where there is none.
    """

    name: str
    target: str
    signature: str
    dtypes: tuple[Dtype, ...]
    kind: str = KIND
    classes: tuple[str, ...] = ()
    direction: Literal["forward", "backward"] = "forward"
    dims: str = ""
    healthy: str = ""

    def reference(self, *, healthy: bool = False) -> KernelReference:
        """Return how the kernel, or its twin, is found."""
        target = self.healthy if healthy else self.target
        return KernelReference(
            operator=target, target=target, signature=self.signature, dims=self.dims
        )


def read_manifest(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a manifest.

    Raises:
        UsageError: It cannot be read; the sentence names the entry and the field.
    """
    try:
        data = path.read_bytes()
        if len(data) > _BYTES_MAX:
            raise UsageError(
                f"The manifest {quoted(str(path))} has {len(data)} bytes: "
                f"at most {_BYTES_MAX} are read."
            )
        text = data.decode()
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"The manifest {quoted(str(path))} cannot be read: {reason}; give another."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"The manifest {quoted(str(path))} is no UTF-8 text: {error.reason}; give a JSON list."
        ) from error
    return parse_manifest(text, name=str(path))


def parse_manifest(text: str, *, name: str) -> tuple[Entry, ...]:
    """Return the entries of the text of a manifest.

    Args:
        text: A JSON list of objects.
        name: What the user calls it.

    Raises:
        UsageError: It cannot be read; the sentence names the entry and the field.
    """
    shown = f"The manifest {quoted(name)}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown} is no JSON: {error}; write a list of objects.") from error
    if not isinstance(found, list) or not 0 < len(found) <= _ENTRIES_MAX:
        raise UsageError(f"{shown} is no list of 1 to {_ENTRIES_MAX} objects: write one.")
    entries: list[Entry] = []
    for number, item in enumerate(found, start=1):
        where = f"{shown}: entry {number}"
        if not isinstance(item, dict):
            raise UsageError(f"{where} is no object: write {{...}} with {', '.join(_REQUIRED)}.")
        entry = _Reader(item, where).entry()
        if any(other.name == entry.name for other in entries):
            raise UsageError(f"{where} has name {quoted(entry.name)} as one before: rename it.")
        entries.append(entry)
    return tuple(entries)


class _Reader:
    """Reads the fields of one entry."""

    def __init__(self, data: Mapping[str, object], where: str) -> None:
        name = data.get("name")
        self._data = data
        self._where = f"{where} ({quoted(name)})" if isinstance(name, str) and name else where

    def entry(self) -> Entry:
        known = (*_REQUIRED, *_OPTIONAL)
        for name in self._data:
            if name not in known:
                raise UsageError(
                    f"{self._where} has the unknown field {quoted(name)}: use {', '.join(known)}."
                )
        for name in _REQUIRED:
            if name not in self._data:
                raise UsageError(f"{self._where} has no field {name}: give one.")
        direction = self._text("direction", "forward")
        if direction not in _DIRECTIONS:
            raise self._fault("direction", f"is {quoted(direction)}: use forward or backward")
        entry = Entry(
            name=self._text("name"),
            target=self._target("target"),
            signature=self._text("signature"),
            dtypes=tuple(self._dtype(text) for text in self._texts("dtype")),
            kind=self._text("kind", KIND),
            classes=tuple(self._class(text) for text in self._texts("classes")),
            direction=next(known for known in _DIRECTIONS if known == direction),
            dims=self._text("dims", "", may_be_empty=True),
            healthy=self._target("healthy"),
        )
        if not entry.dtypes:
            raise self._fault("dtype", f"is empty: name one or more of {', '.join(DTYPES)}")
        for field, dims in (("signature", ""), ("dims", entry.dims)):
            try:
                operator_spec(entry.signature, dims=dims)
            except BipropError as error:
                raise self._quoting(field, error) from error
        return entry

    def _fault(self, field: str, fault: str) -> UsageError:
        return UsageError(f"{self._where}: {field} {fault}.")

    def _text(self, field: str, default: str | None = None, *, may_be_empty: bool = False) -> str:
        found = self._data.get(field, default)
        if not isinstance(found, str):
            raise self._fault(field, f"is a JSON {_json_name(found)}: write a string")
        if not found.strip() and not may_be_empty:
            raise self._fault(field, "is empty: write a word")
        if field in {"name", "kind"} and (len(found) > _WORDS_MAX or not found.isprintable()):
            raise self._fault(
                field, f"is no printable text of at most {_WORDS_MAX} characters: shorten it"
            )
        return found.strip()

    def _texts(self, field: str) -> tuple[str, ...]:
        """Return a list of strings; one alone stands for a list of itself."""
        found = self._data.get(field, [])
        listed = [found] if isinstance(found, str) else found
        if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
            raise self._fault(field, "is no string and no list of strings: write one of them")
        for item in listed:
            if listed.count(item) > 1:
                raise self._fault(field, f"names {quoted(item)} twice: name it once")
        return tuple(listed)

    def _dtype(self, text: str) -> Dtype:
        for dtype in DTYPES:
            if text == dtype:
                return dtype
        raise self._fault("dtype", f"has {quoted(text)}: use {', '.join(DTYPES)}")

    def _class(self, text: str) -> str:
        if text not in _CLASSES:
            raise self._fault("classes", f"has {quoted(text)}: use {', '.join(_CLASSES)}")
        return text

    def _target(self, field: str) -> str:
        if field == "healthy" and field not in self._data:
            return ""
        text = self._text(field)
        try:
            target = parse_target(text)
            check_file(target)
        except BipropError as error:
            raise self._quoting(field, error) from error
        return target.text

    def _quoting(self, field: str, error: BipropError) -> UsageError:
        return UsageError(f"{self._where}: {field}: {error}")


def _json_name(found: object) -> str:
    names = {dict: "object", list: "list", bool: "boolean", int: "number", float: "number"}
    return names.get(type(found), "null")
