"""Fixtures of programs: round trips, stores, replaying, and what a stranger's file may hold."""

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from tests.unit.cache_samples import (
    DRIFT,
    PAGED,
    PROGRAM,
    PROVENANCE,
    TARGET,
    FakePrograms,
    held,
    sample_program,
    violated,
)
from tests.unit.sample_fixtures import sample

from biprop.case import Json
from biprop.errors import FixtureError, TargetError
from biprop.fixtures.program_replay import ProgramReplayed, replay_program
from biprop.fixtures.programs import (
    ProgramFixture,
    any_fixtures_in,
    any_from_data,
    check_program_allowed,
    id_of_program,
    program_fixture_from_data,
    program_fixture_to_data,
    read_any,
    text_of,
)
from biprop.fixtures.store import Store, keep, locate
from biprop.judgment import Verdict
from biprop.kvcache.converting import CONVERTER
from biprop.kvcache.records import Program, ProgramCause, ProgramOutcome

TEXT = text_of(sample_program())
ALLOWED = (TARGET.target,)


def changed(*path: str | int, to: Json, own_id: bool = False) -> dict[str, Json]:
    """Return the sample as JSON with another value at one place, and its own id if asked for."""
    data: dict[str, Json] = json.loads(TEXT)
    inner: object = data
    for step in path[:-1]:
        inner = inner[step]  # type: ignore[index]  # as the path says
    inner[path[-1]] = to  # type: ignore[index]  # as the path says
    if own_id:
        fixture = CONVERTER.structure(data, ProgramFixture)
        data["id"] = id_of_program(fixture.reference, fixture.program, fixture.expect.cause)
    return data


def is_sentence(text: str) -> bool:
    """Return whether an error is one line that ends as a sentence does."""
    return "\n" not in text and text.endswith(".") and text.isprintable()


class TestRoundTrip:
    """Fixtures as text and back."""

    def test_text_reads_back_as_the_same_fixture(self) -> None:
        """Nothing is lost, and nothing is added."""
        assert any_fixtures_in(TEXT) == (sample_program(),)

    def test_format_comes_first(self) -> None:
        """A reader of tomorrow sees the format before anything else."""
        assert next(iter(json.loads(TEXT).items())) == ("format", "biprop-program-1")

    def test_both_formats_are_read_from_one_text(self) -> None:
        """An issue may hold a case and a program."""
        text = f"```json\n{TEXT}```\nand\n```json\n{text_of(sample())}```\n"

        assert any_fixtures_in(text) == (sample_program(), sample())

    def test_id_depends_on_the_experiment_and_not_on_the_evidence(self) -> None:
        """Found on two machines, it is one file; another program, cause or cache is another."""
        fixture = sample_program()
        others = (
            sample_program(program=attrs.evolve(PROGRAM, seed=8)),
            sample_program(cause=attrs.evolve(DRIFT, check="chunk")),
            sample_program(reference=PAGED),
        )

        assert sample_program(message="Seen elsewhere.").id == fixture.id
        assert len({fixture.id, *(other.id for other in others)}) == 4

    def test_file_is_named_by_what_was_found(self) -> None:
        """Cache, check and output, then the beginning of the id."""
        name = sample_program(reference=PAGED).file_name

        assert name.startswith("paged-decode-out-")
        assert name.endswith(".json")


class TestRefusals:
    """What is wrong with a file is said in one sentence."""

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (changed("format", to="biprop-program-2"), "has the format"),
            (changed("extra", to=1), "unknown key 'extra'"),
            (changed("program", "ops", 0, "op", to="drop"), "needs op, one of allocate"),
            (changed("program", "ops", 0, "sequence", to="s 0"), "names 's 0'"),
            (changed("program", "ops", 1, "parts", 0, "count", to=-1), "the number -1"),
            (changed("program", "shape", "width", to=1 << 30), "shape.width"),
            (changed("program", "seed", to=-1), "seed=-1"),
            (changed("program", "data", "k", "kind", to="lead"), "unknown kind 'lead'"),
            (changed("program", "vocabulary", to=7, own_id=True), "data names 'q'"),
            (changed("expect", "step", to=9), "expect.step=9"),
            (changed("expect", "verdict", to="HOLDS"), "expect.verdict is HOLDS"),
            (changed("expect", "cause", "check", to="luck"), "expect.cause.check"),
            (changed("expect", "rate", to=1.5), "expect.rate=1.5"),
            (changed("expect", "repeats", to=0), "expect.repeats=0"),
            (changed("expect", "difference", "got_bits", to="0xZZ"), "no hexadecimal pattern"),
            (changed("expect", "difference", "coordinate", to=[4, 0]), "outside of [2, 2]"),
            (changed("expect", "difference", "sequence", to="\u001b[31m"), "no name of one"),
            (changed("expect", "difference", "dtype", to="lead"), "dtype of the difference"),
            (changed("program", "seed", to=8), "id does not belong"),
            (changed("cache", to="other.py:made"), "cache is 'other.py:made'"),
            (changed("attention", to="a b", own_id=True), "no name"),
            ([], "has the format none"),
        ],
    )
    def test_wrong_file_is_refused(self, data: object, words: str) -> None:
        """The sentence names what is wrong."""
        with pytest.raises(FixtureError) as raised:
            program_fixture_from_data(data)

        assert words in str(raised.value)
        assert is_sentence(str(raised.value))

    def test_unknown_format_is_told_by_either_reader(self) -> None:
        """What is neither a case nor a program is refused as before."""
        with pytest.raises(FixtureError, match="has the format 'other'"):
            any_from_data({"format": "other"})

    def test_target_runs_only_where_it_was_chosen(self) -> None:
        """A stranger's target needs the exact text; what is registered needs nothing."""
        check_program_allowed(sample_program(reference=PAGED))
        check_program_allowed(sample_program(), ALLOWED)
        with pytest.raises(FixtureError, match=r"--allow-target 'mine\.py:made'"):
            check_program_allowed(sample_program(), ("mine.py:mad",))


class TestStore:
    """Programs lie where cases lie."""

    def test_saved_program_is_found_by_its_id(self, tmp_path: Path) -> None:
        """The same finding is the same file, and its id leads to it."""
        store, fixture = Store(tmp_path), sample_program()
        path = store.save(fixture)

        assert store.save(fixture) == path
        assert locate(fixture.id[:8], (store,)) == path
        assert read_any(path) == fixture

    def test_kept_program_is_among_the_committed_ones(self, tmp_path: Path) -> None:
        """`biprop keep` takes either format."""
        path = keep(Store(tmp_path / "found").save(sample_program()), tmp_path)

        assert path.parent == tmp_path / ".hypothesis" / "fixtures"
        assert read_any(path) == sample_program()


def replayed(
    judged: Callable[[Program], ProgramOutcome],
    *,
    verify: bool = False,
    bisect: bool = False,
    device: str = "cpu",
) -> ProgramReplayed:
    """Replay the sample with a judge that is not there."""
    judge = FakePrograms(
        judged=judged, reference=TARGET, provenance=attrs.evolve(PROVENANCE, device=device)
    )
    done = replay_program(
        sample_program(), lambda _: judge, allow_targets=ALLOWED, verify=verify, bisect=bisect
    )
    assert judge.is_closed
    return done


class TestReplay:
    """What became of a finding."""

    def test_same_cause_is_failed(self) -> None:
        """The finding is still there: exit 1."""
        done = replayed(lambda _: violated())

        assert (done.status, done.exit_code) == ("FAILED", 1)

    def test_other_cause_is_different(self) -> None:
        """Something else is wrong: exit 1."""
        done = replayed(lambda _: violated(ProgramCause(verdict=Verdict.CRASHES)))

        assert (done.status, done.exit_code) == ("DIFFERENT", 1)

    def test_what_holds_where_it_was_seen_is_fixed(self) -> None:
        """Exit 0; elsewhere it was only not reproduced."""
        here = replayed(held)
        elsewhere = replayed(held, device="cuda:0")

        assert (here.status, here.exit_code) == ("FIXED", 0)
        assert (elsewhere.status, elsewhere.exit_code) == ("NOT REPRODUCED HERE", 0)
        assert elsewhere.differences == ("device was cpu, is cuda",)

    @pytest.mark.parametrize(("code", "bisect"), [(2, False), (125, True)])
    def test_what_shows_nothing_is_an_error(self, code: int, *, bisect: bool) -> None:
        """Nothing compared is no proof that it was mended."""
        vacuous = ProgramOutcome(verdict=Verdict.VACUOUS, message="Nothing was compared.")
        done = replayed(lambda _: vacuous, bisect=bisect)

        assert (done.status, done.exit_code) == ("ERROR", code)
        assert done.message == "Nothing was compared."

    def test_target_that_is_not_allowed_is_not_opened(self) -> None:
        """Nobody is asked for a judge."""

        def opened(_: ProgramFixture) -> FakePrograms:
            raise AssertionError("It was opened.")

        done = replay_program(sample_program(), opened)

        assert done.status == "ERROR"
        assert "not allowed" in done.message

    def test_target_that_is_gone_is_an_error(self) -> None:
        """The sentence of the error is the message."""

        def opened(_: ProgramFixture) -> FakePrograms:
            raise TargetError("It is gone.")

        done = replay_program(sample_program(), opened, allow_targets=ALLOWED)

        assert (done.status, done.message) == ("ERROR", "It is gone.")

    def test_each_operation_is_verified(self) -> None:
        """Without any one of them the cause must be gone, and where it is not, that is said."""
        whole = len(PROGRAM.ops)
        needed = replayed(
            lambda one: violated() if len(one.ops) == whole else held(one), verify=True
        )
        spare = replayed(lambda _: violated(), verify=True)

        assert [claim.path for claim in needed.verified] == [("ops", at) for at in range(whole)]
        assert needed.refuted == 0
        assert spare.refuted == whole
        assert spare.exit_code == 1


def test_data_leave_defaults_out() -> None:
    """A file holds what differs, so that people can read it."""
    data = program_fixture_to_data(sample_program())

    assert isinstance(data["program"], dict)
    assert data["program"]["shape"] == {"block_count": 6, "query_heads": 2, "width": 2}
