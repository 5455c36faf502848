"""Manifests of planted kernels: what they say, and the sentence that refuses each mistake."""

import json
import re
from pathlib import Path

import attrs
import pytest

from biprop.errors import UsageError
from biprop.operators import TRANSFORM_CLASSES
from biprop.power.manifest import Entry, parse_manifest, read_manifest

README = Path(__file__).resolve().parents[2] / "README.md"
ROWS = "x[T,H] -> y[T,H]"
CLASSES = (*TRANSFORM_CLASSES, "T4.finite", "T4.nonfinite")
FORMS = "write module:name or file.py:name"
PATH = "give its path from the working directory"
GOOD: dict[str, object] = {
    "name": "first",
    "target": "some.module:broken",
    "signature": ROWS,
    "dtype": "float32",
}


def refused(*entries: object) -> str:
    """Return the sentence that refuses a manifest of these entries, without its beginning."""
    with pytest.raises(UsageError) as caught:
        parse_manifest(json.dumps(list(entries)), name="m.json")
    return str(caught.value).removeprefix("The manifest 'm.json': ")


def test_an_entry_is_read_with_what_it_leaves_out() -> None:
    """Kind, classes, direction, dims and twin have defaults; a dtype alone is a list of one."""
    assert parse_manifest(json.dumps([GOOD]), name="m.json") == (
        Entry(name="first", target="some.module:broken", signature=ROWS, dtypes=("float32",)),
    )


def test_an_entry_is_read_with_all_it_may_say() -> None:
    """Every field reaches the record."""
    whole = {
        **GOOD,
        "dtype": ["bfloat16", "float32"],
        "kind": "SPLIT",
        "classes": ["T1", "T4.nonfinite"],
        "direction": "backward",
        "dims": "H%8==0",
        "healthy": "some.module:healthy",
    }
    (entry,) = parse_manifest(json.dumps([whole]), name="m.json")

    assert entry == Entry(
        name="first",
        target="some.module:broken",
        signature=ROWS,
        dtypes=("bfloat16", "float32"),
        kind="SPLIT",
        classes=("T1", "T4.nonfinite"),
        direction="backward",
        dims="H%8==0",
        healthy="some.module:healthy",
    )
    assert entry.reference(healthy=True).target == "some.module:healthy"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dtype": "float8"}, "dtype has 'float8': use float32, bfloat16, float16."),
        ({"dtype": []}, "dtype is empty: name one or more of float32, bfloat16, float16."),
        ({"dtype": 3}, "dtype is no string and no list of strings: write one of them."),
        ({"dtype": ["float32"] * 2}, "dtype names 'float32' twice: name it once."),
        ({"direction": "both"}, "direction is 'both': use forward or backward."),
        ({"classes": ["T9"]}, f"classes has 'T9': use {', '.join(CLASSES)}."),
        ({"kind": ""}, "kind is empty: write a word."),
        ({"kind": 1}, "kind is a JSON number: write a string."),
        ({"signature": None}, "signature is a JSON null: write a string."),
        ({"target": "module"}, f"target: Target 'module' has no ':': {FORMS}."),
        ({"healthy": "gone.py:name"}, f"healthy: Target 'gone.py:name' names no file: {PATH}."),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_entry_and_field(change: dict[str, object], sentence: str) -> None:
    """The sentence says which entry, which field, what is wrong and what to write."""
    assert refused(GOOD, {**GOOD, "name": "other", **change}) == f"entry 2 ('other'): {sentence}"


@pytest.mark.parametrize(
    ("change", "begin"),
    [
        ({"signature": "x[T,H]"}, "signature: "),
        ({"dims": "Q=1"}, "dims: "),
    ],
)
def test_texts_of_kernels_are_read_at_once(change: dict[str, object], begin: str) -> None:
    """A signature or a restriction that cannot be read is refused before anything runs."""
    assert refused({**GOOD, **change}).startswith(f"entry 1 ('first'): {begin}")


def test_fields_are_those_that_are_known() -> None:
    """A field too many and a field too few are both named."""
    without = {key: value for key, value in GOOD.items() if key != "dtype"}

    assert refused(without) == "entry 1 ('first') has no field dtype: give one."
    assert refused({**GOOD, "dtypes": "float32"}) == (
        "entry 1 ('first') has the unknown field 'dtypes': use name, target, signature, dtype, "
        "kind, classes, direction, dims, healthy."
    )
    assert refused(GOOD, GOOD) == "entry 2 has name 'first' as one before: rename it."
    assert refused(5) == ("entry 1 is no object: write {...} with name, target, signature, dtype.")


@pytest.mark.parametrize("text", ["{}", "[]", "", "[1,", "3", "null", "[" * 10_000])
def test_what_is_no_list_of_objects_is_refused(text: str) -> None:
    """Anything else than a list with entries is one sentence, never a traceback."""
    with pytest.raises(UsageError, match=r"^The manifest 'm\.json' is no "):
        parse_manifest(text, name="m.json")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """A folder, nothing, and bytes that are no text."""
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    for name in (".", "gone.json", "bytes.json"):
        with pytest.raises(UsageError, match=r"^The manifest "):
            read_manifest(tmp_path / name)


def test_the_example_of_the_readme_is_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What README.md shows is read, with all that it may say."""
    (block,) = re.findall(r"^```json\n(\[.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_planted.py").touch()
    (entry,) = parse_manifest(block, name="planted.json")

    assert set(json.loads(block)[0]) == {
        "dtype",
        *(field.name for field in attrs.fields(Entry) if field.name != "dtypes"),
    }
    assert entry.healthy == "my_planted.py:never_split"
