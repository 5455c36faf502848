"""Fixtures: round trips, stores, and everything wrong that a stranger's file may hold."""

import io
import json
import random
import string
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.unit.sample_fixtures import LINEAR, sample

from biprop.case import Case, Json, TransformData
from biprop.data.recipe import Recipe
from biprop.errors import BipropError, FixtureError
from biprop.fixtures.load import check_allowed, fixture_from_data, read_text
from biprop.fixtures.parse import TEXT_BYTES_MAX, parse_json
from biprop.fixtures.programs import any_fixtures_in, read_any, text_of
from biprop.fixtures.records import CONVERTER, Fixture, fixture_text, fixture_to_data, id_of
from biprop.fixtures.store import Store, keep, locate, project_root
from biprop.judgment import Cause, Verdict
from biprop.operators import KernelReference
from biprop.sequence import LogicalSequence

TEXT = fixture_text(sample())
Object = dict[str, Json]


def changed(*path: str | int, to: Json) -> str:
    """Return the sample's text with another value at one place."""
    data = json.loads(TEXT)
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return json.dumps(data)


def with_own_id(text: str) -> str:
    """Return a fixture's text with the id that belongs to its content."""
    fixture = CONVERTER.structure(json.loads(text), Fixture)
    own = id_of(fixture.reference, fixture.case, fixture.expect.cause)
    return json.dumps({**json.loads(text), "id": own})


def is_sentence(text: str) -> bool:
    """Return whether an error is one line that ends as a sentence does."""
    return "\n" not in text and text.endswith(".") and text.isprintable()


class TestRoundTrip:
    """Fixtures as text and back."""

    def test_text_reads_back_as_the_same_fixture(self) -> None:
        """Nothing is lost, and nothing is added."""
        assert any_fixtures_in(TEXT) == (sample(),)

    def test_format_comes_first(self) -> None:
        """A reader of tomorrow sees the format before anything else."""
        assert next(iter(json.loads(TEXT))) == "format"
        assert fixture_to_data(sample())["format"] == "biprop-fixture-1"

    def test_id_depends_on_the_experiment_and_not_on_the_evidence(self) -> None:
        """Found on two machines, it is one file; another case or cause is another."""
        fixture = sample()
        elsewhere = attrs.evolve(
            fixture, provenance=attrs.evolve(fixture.provenance, torch="2.12.0")
        )
        other = attrs.evolve(fixture.case, dims={"K": 4, "N": 2})
        cause = Cause(verdict=Verdict.DRIFTS, direction="forward", output="out")

        assert id_of(elsewhere.reference, elsewhere.case, elsewhere.expect.cause) == fixture.id
        assert sample(case=other).id != fixture.id
        assert sample(cause=cause).id != fixture.id

    def test_call_belongs_to_the_experiment(self) -> None:
        """Another fixed argument is another finding."""
        reference = attrs.evolve(sample().reference, call={"eps": 1e-6})

        assert sample(reference=reference).id != sample().id
        assert fixture_from_data(parse_json(fixture_text(sample(reference=reference)))).call == {
            "eps": 1e-6
        }

    def test_text_is_ascii_without_control_codes(self) -> None:
        """It survives every terminal and every issue tracker."""
        text = fixture_text(sample(message="\x1b[31m\N{SNOWMAN}"))

        assert text.isascii()
        assert "\x1b" not in text
        assert any_fixtures_in(text)[0].expect.message == "\x1b[31m\N{SNOWMAN}"


class TestIssueText:
    """Fixtures inside the text of an issue."""

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda text: f"It drifts.\n\n```json\n{text}```\n\nSee above.",
            lambda text: f"It drifts.\n\n```json\n{text}```\n".replace("\n", "\r\n"),
            lambda text: (
                "1. It drifts:\n\n"
                + "".join(f"   {line}\n" for line in f"```json\n{text}```".splitlines())
            ),
            lambda text: f"~~~~\n{text}~~~~\n",
            lambda text: f"```sh\nbiprop replay -\n```\n\n`````json\n{text}`````\n",
            lambda text: f"```json\n{text}",
            lambda text: "\ufeff" + text,
            lambda text: "".join(f"> {line}\n" for line in f"```json\n{text}```".splitlines()),
        ],
        ids=["fenced", "crlf", "list", "tildes", "second", "open", "mark", "quoted"],
    )
    def test_fixture_is_found(self, wrap: Callable[[str], str]) -> None:
        """Fences, line ends and the indentation of a list do not matter."""
        assert any_fixtures_in(wrap(TEXT)) == (sample(),)

    def test_several_blocks_are_several_fixtures(self) -> None:
        """Each is read once."""
        other = sample(cause=Cause(verdict=Verdict.DRIFTS, direction="forward", output="out"))
        text = "".join(f"```json\n{t}```\n" for t in (TEXT, fixture_text(other), TEXT))

        assert any_fixtures_in(text) == (sample(), other)


WRONG: dict[str, str] = {
    "empty": "",
    "blank": " \n\t",
    "prose": "It drifts, believe me.",
    "no object": "[1, 2]",
    "truncated": TEXT[: len(TEXT) // 2],
    "trailing": TEXT + "}",
    "other JSON": '{"name": "x"}',
    "newer format": changed("format", to="biprop-fixture-2"),
    "format of a number": changed("format", to=1),
    "huge file": "{" + " " * TEXT_BYTES_MAX + "}",
    "deep": '{"format": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "deep and open": '{"a":' * 50_000,
    "digits": changed("align", to=1).replace('"align": 1', '"align": ' + "9" * 10_000),
    "digits of a float": TEXT.replace('"max_rel_error": 1.0', '"max_rel_error": 1.' + "0" * 999),
    "infinite number": TEXT.replace('"max_rel_error": 1.0', '"max_rel_error": 1e999'),
    "NaN": TEXT.replace('"max_rel_error": 1.0', '"max_rel_error": NaN'),
    "Infinity": TEXT.replace('"max_rel_error": 1.0', '"max_rel_error": -Infinity'),
    "twice": TEXT.replace('"dtype": "float32"', '"dtype": "float32", "dtype": "float32"', 1),
    "long string": changed("expect", "message", to="x" * 5000),
    "half a surrogate": TEXT.replace('"repeats": 5', '"repeats": 5, "message": "\\ud800"'),
    "missing": json.dumps({k: v for k, v in json.loads(TEXT).items() if k != "case"}),
    "unknown key": changed("pickle", to="gASV"),
    "unknown key inside": changed("case", "code", to="import os"),
    "no case": changed("case", to=None),
    "case of a list": changed("case", to=[]),
    "text for a number": changed("case", "dims", "K", to="3"),
    "float for a number": changed("case", "dims", "K", to=3.0),
    "true for a number": changed("case", "dims", "K", to=True),
    "unknown dtype": changed("case", "dtype", to="float8"),
    "unknown verdict": changed("expect", "verdict", to="BROKEN"),
    "unknown kind": changed("case", "data", "input", "kind", to="random"),
    "unknown transform": changed("case", "transforms", 0, "name", to="System"),
    "unknown transform field": changed("case", "transforms", 0, "values", "cmd", to="rm"),
    "negative count": changed("case", "transforms", 0, "values", "count", to=-1),
    "wrong id": changed("id", to="0" * 16),
    "other dtype": changed("dtype", to="float16"),
    "other direction": changed("direction", to="backward"),
    "other verdict": changed("expect", "verdict", to="CRASHES"),
    "verdict that holds": with_own_id(TEXT.replace('"verdict": "DRIFTS"', '"verdict": "HOLDS"')),
    "other operator": with_own_id(changed("operator", to="rms_norm")),
    "bad signature": with_own_id(changed("signature", to="input[T,K] ->")),
    "bad restrictions": changed("dims", to="K=9..1"),
    "restrictions broken": changed("dims", to="K=8..9"),
    "bad bits": changed("expect", "mismatches", 0, "first", "canonical_bits", to="rm -rf"),
    "bad output": with_own_id(TEXT.replace('"output": "out"', '"output": "out; import os"')),
    "bad call": with_own_id(changed("call", to={"eps=1, __import__": 1})),
    "call of code": changed("call", to={"eps": "__import__('os')"}),
    "call of a list": changed("call", to={"eps": [1]}),
    "bad align": changed("align", to=0),
    "huge align": changed("align", to=1 << 30),
    "rate of 0": changed("expect", "rate", to=0.0),
    "huge K": with_own_id(changed("case", "dims", "K", to=1 << 62)),
    "huge product": with_own_id(TEXT.replace('"K": 3, "N": 2', '"K": 16777216, "N": 16777216')),
    "huge count": with_own_id(
        changed("case", "transforms", 0, "values", "count", to=65536).replace(
            '"length": 1', '"length": 1000000'
        )
    ),
    "huge gap": with_own_id(
        changed(
            "case",
            "transforms",
            to=[
                {"name": "AddNeighbours", "values": {"count": 60000}},
                {"name": "MoveStorage", "values": {"gap": 4096}},
            ],
        )
    ),
    "huge position": with_own_id(changed("case", "sequences", 0, "position_start", to=1 << 62)),
    "huge threads": with_own_id(changed("case", "execution", to={"threads": 1 << 40})),
    "huge point": with_own_id(changed("case", "data", "input", "points", 0, "at", "K", to=1 << 70)),
    "many launches": with_own_id(
        changed(
            "case",
            "transforms",
            to=[{"name": "SplitBatch", "values": {"cuts": list(range(1, 70000))}}],
        )
    ),
    "coordinate outside of the output": changed(
        "expect", "mismatches", 0, "first", "coordinate", to=[2]
    ),
    "negative coordinate": changed("expect", "mismatches", 0, "first", "coordinate", to=[-1]),
    "coordinate of two dimensions": changed(
        "expect", "mismatches", 0, "first", "coordinate", to=[0, 0]
    ),
    "first token past the end": changed("expect", "mismatches", 0, "first", "token", to=1),
    "first of no sequence": changed("expect", "mismatches", 0, "first", "sequence_id", to=7),
    "output of no signature": with_own_id(TEXT.replace('"output": "out"', '"output": "other"')),
    "claim about no place": changed("proof", "needed", 0, "path", to=["dims", "Z"]),
    "claim about no field": changed("proof", "free", 0, "path", to=["seeds"]),
    "claim about another value": changed("proof", "needed", 0, "value", to=4),
    "value at no token": with_own_id(
        changed("case", "data", "input", "points", 0, "at", "@", to=1)
    ),
    "value at no sequence": with_own_id(
        changed("case", "data", "input", "points", 0, "at", "#", to=1)
    ),
    "value at no neighbour": with_own_id(
        changed("case", "data", "input", "points", 0, "at", "#", to=1025)
    ),
    "no sequence": with_own_id(changed("case", "sequences", to=[])),
    "value of NaN": with_own_id(changed("case", "data", "input", "points", 0, "value", to="nan")),
    "value of text": with_own_id(changed("case", "data", "input", "points", 0, "value", to="x")),
    "target without colon": with_own_id(
        changed("target", to="os.system").replace(
            '"operator": "torch.nn.functional:linear"', '"operator": "os.system"'
        )
    ),
    "operator with a path": with_own_id(
        json.dumps(
            {
                **json.loads(TEXT),
                "operator": "../../etc",
                "target": "../../etc/passwd",
                "backend": "torch",
            }
        )
    ),
}


class TestStrangers:
    """What a stranger's file may hold."""

    @pytest.mark.parametrize("name", WRONG)
    def test_wrong_text_is_refused_in_one_sentence(self, name: str) -> None:
        """Every wrong text raises FixtureError, whose message is one printable sentence."""
        with pytest.raises(FixtureError) as caught:
            any_fixtures_in(WRONG[name])

        assert is_sentence(str(caught.value)), str(caught.value)

    def test_evidence_of_places_that_exist_is_read(self) -> None:
        """The last element, the neighbour's value, and dead slots with a count before them."""
        last = changed("expect", "mismatches", 0, "first", "coordinate", to=[1])
        neighbour = changed("case", "data", "input", "points", 0, "at", "#", to=1024)
        dead = TEXT.replace('"output": "out"', '"output": "out (dead slots)"')
        counted = dead.replace('"coordinate": [0]', '"coordinate": [9, 1]')

        assert dead != counted
        for text in (last, neighbour, counted):
            assert len(any_fixtures_in(with_own_id(text))) == 1

    def test_values_that_spent_shrinking_left_behind_are_read(self) -> None:
        """A finding whose proof is not complete may hold values of a token that was cut off."""
        data = json.loads(changed("case", "data", "input", "points", 0, "at", "@", to=5))
        data["proof"].pop("complete")

        assert len(any_fixtures_in(with_own_id(json.dumps(data)))) == 1

    def test_nothing_is_expanded_before_sizes_are_known(self) -> None:
        """Refusing the hugest files takes next to no memory."""
        names = ("huge K", "huge product", "huge count", "huge gap", "deep", "many launches")
        tracemalloc.start()
        for name in names:
            with pytest.raises(FixtureError):
                any_fixtures_in(WRONG[name])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

        assert peak < 64 << 20

    @pytest.mark.parametrize(
        ("mask", "tensors", "length", "is_fine"),
        [
            ("m: causal_mask[B,1,Q,C]", ("[B,Q,K]", "[B,C,K]"), 4000, True),
            ("m: causal_mask[B,1,Q,C]", ("[B,Q,K]", "[B,C,K]"), 6000, False),
            ("m: causal_mask[B,8,Q,C]", ("[B,Q,K]", "[B,C,K]"), 4000, False),
            ("m: causal_mask[TQ,TC]", ("[TQ,K]", "[TC,K]"), 6000, False),
            ("o: offsets(Q)[B+1], p: offsets(C)[B+1]", ("[TQ,K]", "[TC,K]"), 6000, True),
        ],
    )
    def test_a_mask_of_all_pairs_counts(
        self, mask: str, tensors: tuple[str, str], length: int, *, is_fine: bool
    ) -> None:
        """Two rows of some thousand tokens are a few values, and their mask is millions."""
        queries, contexts = tensors
        case = attrs.evolve(
            sample().case,
            sequences=(LogicalSequence(id=0, length=length),),
            data={"input": Recipe(kind="ones"), "context": Recipe(kind="ones")},
        )
        signature = f"input{queries}, context{contexts}, {mask}, weight[N,K] -> out{queries}"
        reference = attrs.evolve(LINEAR, signature=signature)
        text = fixture_text(sample(case=case, reference=reference))

        if is_fine:
            assert fixture_from_data(parse_json(text)).case == case
        else:
            with pytest.raises(FixtureError, match="elements, more than"):
                any_fixtures_in(text)

    def test_contexts_that_every_launch_is_fed_again_count(self) -> None:
        """A long sequence is fine, and so are many cuts, but not one before each of its tokens."""
        signature = "q[TQ,K], k[TC,K], o: offsets(Q)[B+1], p: offsets(C)[B+1] -> out[TQ,K]"
        for length, cut_count, is_fine in ((9_000, 2, True), (9_000, 8_000, False)):
            case = Case(
                dtype="float32",
                dims={"K": 40},
                sequences=(LogicalSequence(id=0, length=length),),
                data=dict.fromkeys("qk", Recipe(kind="ones")),
                transforms=(
                    TransformData(
                        name="SplitBatch", values={"cuts": tuple(range(1, cut_count + 1))}
                    ),
                ),
            )
            text = fixture_text(
                sample(case=case, reference=attrs.evolve(LINEAR, signature=signature))
            )

            if is_fine:
                assert fixture_from_data(parse_json(text)).case == case
            else:
                with pytest.raises(FixtureError, match="to each of 8001 launches, more than"):
                    any_fixtures_in(text)

    def test_unregistered_target_needs_leave(self) -> None:
        """Only the exact text of the target is leave."""
        with pytest.raises(FixtureError, match="--allow-target"):
            check_allowed(sample())
        with pytest.raises(FixtureError, match="--allow-target"):
            check_allowed(sample(), ["torch.nn.functional:lin", "torch.nn.functional"])
        check_allowed(sample(), ["torch.nn.functional:linear"])

    def test_registered_operator_needs_none(self) -> None:
        """It is found in the registry alone, so nothing can be imported by its name."""
        reference = KernelReference(
            operator="rms_norm",
            target="rms_norm/packed",
            signature="input[T,K], weight[N,K] -> out[T,N]",
            backend="torch",
        )

        check_allowed(fixture_from_data(parse_json(fixture_text(sample(reference=reference)))))

    def test_stream_is_read_no_further_than_needed(self) -> None:
        """An endless standard input ends the reading, not the memory."""

        class Endless(io.StringIO):
            asked = 0

            def read(self, size: int | None = -1) -> str:
                assert size is not None
                assert size >= 0
                self.asked = size
                return "x" * size

        stream = Endless()
        with pytest.raises(FixtureError, match="longer"):
            read_text(stream)

        assert stream.asked <= TEXT_BYTES_MAX + 1

    @pytest.mark.parametrize("raw", [b"\xff\xfe\x00", b"\x80abc"])
    def test_text_of_another_encoding_is_refused(self, tmp_path: Path, raw: bytes) -> None:
        """It is no UTF-8, which one sentence says."""
        path = tmp_path / "x.json"
        path.write_bytes(raw)

        with pytest.raises(FixtureError, match="UTF-8"):
            read_any(path)


def _mutant(draw: random.Random, text: str) -> str:
    """Return a text that differs in a few bytes, pieces, or values."""
    kind = draw.randrange(6)
    place = draw.randrange(len(text))
    if kind == 0:
        return text[:place] + draw.choice(string.printable) + text[place + 1 :]
    if kind == 1:
        return text[:place] + text[place + draw.randrange(1, 80) :]
    if kind == 2:
        other = draw.randrange(len(text))
        return text[:place] + text[other : other + 60] + text[place:]
    values: tuple[Json, ...] = (
        None, True, 0, -1, 1 << 40, 1 << 64, 0.5, -1e300, "", "x" * 300, "../x", [], {}, [[]]
    )  # fmt: skip
    data = json.loads(text)
    for _ in range(draw.randrange(1, 4)):
        place_in = _any_place(draw, data)
        if place_in is None:
            break
        inner, key = place_in
        if kind == 3 and isinstance(inner, dict):
            del inner[key]
        else:
            inner[key] = draw.choice(values) if kind < 5 else _nearby(draw, inner[key])
    mutated = json.dumps(data)
    try:
        # Half of them get past the id, so that what lies behind is met too.
        return with_own_id(mutated) if draw.random() < 0.5 else mutated
    except Exception:  # noqa: BLE001  # no fixture any more, which is fine for a mutant
        return mutated


def _any_place(draw: random.Random, data: Json) -> Any:  # noqa: ANN401  # any JSON value
    found: list[Any] = []
    todo: list[Json] = [data]
    while todo:
        inner = todo.pop()
        items = inner.items() if isinstance(inner, dict) else enumerate(inner)  # type: ignore[arg-type]
        for key, value in items:
            found.append((inner, key))
            if isinstance(value, (dict, list)):
                todo.append(value)
    return draw.choice(found) if found else None


def _nearby(draw: random.Random, value: Json) -> Json:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return value * draw.choice((-1, 2, 1000, 1 << 20)) + draw.choice((-1, 0, 1))
    if isinstance(value, str):
        place = draw.randrange(len(value) + 1)
        return value[:place] + draw.choice(string.printable) + value[place:]
    return value


@pytest.mark.parametrize("count", [3000])
def test_mutants_are_read_or_refused_in_one_sentence(count: int) -> None:
    """No mutant of a fixture raises anything but FixtureError, or is read as something illegal."""
    draw = random.Random(20)
    read = 0
    sentences = []
    for _ in range(count):
        text = _mutant(draw, TEXT)
        try:
            found = any_fixtures_in(text)
        except FixtureError as error:
            sentences.append(str(error))
        else:
            read += 1
            for fixture in found:
                assert fixture_from_data(parse_json(text_of(fixture))) == fixture

    assert all(map(is_sentence, sentences))
    # Mutants that only change evidence are still fixtures.
    assert 0 < read < count


class TestStore:
    """Files of fixtures."""

    def test_saved_fixture_is_found_by_the_beginning_of_its_id(self, tmp_path: Path) -> None:
        """Its name tells operator, output and id."""
        fixture = sample()
        path = Store(tmp_path / "found").save(fixture)

        assert path.name == f"torch_nn_functional_linear-out-{fixture.id[:8]}.json"
        assert read_any(path) == fixture
        for digits in (4, 8, 12, 16):
            assert locate(fixture.id[:digits], (Store(tmp_path / "found"),)) == path

    def test_same_finding_is_the_same_file(self, tmp_path: Path) -> None:
        """Saved twice, it lies there once, and nothing else is left behind."""
        store = Store(tmp_path)

        assert store.save(sample()) == store.save(sample())
        assert len(list(tmp_path.iterdir())) == 1

    def test_file_of_another_format_is_left_alone(self, tmp_path: Path) -> None:
        """A fixture of tomorrow with the same name keeps its content."""
        newer = tmp_path / sample().file_name
        newer.write_text('{"format": "biprop-fixture-2"}', encoding="utf-8")
        path = Store(tmp_path).save(sample())

        assert path != newer
        assert newer.read_text(encoding="utf-8") == '{"format": "biprop-fixture-2"}'
        assert read_any(path) == sample()

    def test_ambiguous_beginning_is_refused(self, tmp_path: Path) -> None:
        """The sentence lists what it could mean."""
        for name in ("a-y-abcd0000.json", "b-y-abcd1111.json"):
            (tmp_path / name).write_text("{}", encoding="utf-8")

        with pytest.raises(FixtureError, match="abcd0000, abcd1111"):
            locate("abcd", (Store(tmp_path),))

    @pytest.mark.parametrize("text", ["abc", "xyzw", "0123abcd", "none.json", "a/b"])
    def test_nothing_found_is_one_sentence(self, tmp_path: Path, text: str) -> None:
        """Neither a file nor an id: the sentence says what to give."""
        with pytest.raises(FixtureError) as caught:
            locate(text, (Store(tmp_path),))

        assert is_sentence(str(caught.value))

    def test_kept_fixture_lies_with_the_committed_ones(self, tmp_path: Path) -> None:
        """What is promoted is read first: a file that is no fixture is not."""
        found = Store(tmp_path / ".hypothesis" / "found").save(sample())
        kept = keep(found, tmp_path)
        wrong = tmp_path / "wrong.json"
        wrong.write_text("{}", encoding="utf-8")

        assert kept == tmp_path / ".hypothesis" / "fixtures" / found.name
        assert read_any(kept) == sample()
        with pytest.raises(FixtureError):
            keep(wrong, tmp_path)

    def test_root_is_the_nearest_marked_folder(self, tmp_path: Path) -> None:
        """From a folder deep inside a project, the project's store is used."""
        (tmp_path / "pyproject.toml").touch()
        deep = tmp_path / "a" / "b"
        deep.mkdir(parents=True)

        assert project_root(deep) == tmp_path.resolve()

    def test_folder_that_cannot_be_made_is_one_sentence(self, tmp_path: Path) -> None:
        """The sentence names the option."""
        (tmp_path / "file").touch()

        with pytest.raises(BipropError, match="--store"):
            Store(tmp_path / "file" / "store").save(sample())
