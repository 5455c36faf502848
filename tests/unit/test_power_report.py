"""Reports of power: what they amount to, what they tell, and that their JSON says the same."""

import json

import attrs
import pytest

from biprop.errors import UsageError
from biprop.provenance import Provenance
from biprop.reports.power import (
    Cell,
    PowerReport,
    Shrunk,
    Trial,
    TwinTrial,
    report_from_data,
    report_from_text,
    report_text,
    report_to_data,
)
from biprop.reports.power_text import conclusion, plain_table, power_tables, said, uncompared
from biprop.reports.suite import Note

FIRST = Cell(name="first", kind="SHAPE", dtype="float32")
SECOND = Cell(name="second", kind="SPLIT", dtype="bfloat16")
SMALLEST = Shrunk(
    structure="sequence of 1; H=4",
    cost={"slots": (2,), "dims": (4,)},
    least={"slots": (2,), "dims": (4,)},
    runs=10,
    seconds=0.5,
)
ABOVE = attrs.evolve(SMALLEST, cost={"slots": (2,), "dims": (6,)}, structure="H=6")


def trial(cell: Cell, seed: int, examples: int, *, found: bool = True) -> Trial:
    """Return a trial of biprop's own method."""
    return Trial(
        method="biprop",
        cell=cell,
        seed=seed,
        found=found,
        examples=examples,
        launches=10 * examples,
        seconds=0.5,
        verdict="DRIFTS" if found else "",
        classes=("T1",) if found else (),
    )


def report(*trials: Trial, twins: tuple[TwinTrial, ...] = ()) -> PowerReport:
    """Return a report of two seeds."""
    return PowerReport(
        command="biprop power",
        methods=("biprop", "needle"),
        examples=200,
        seeds=(1, 2),
        device="cpu",
        trials=trials,
        twins=twins,
        left_out=(Note(name="third", reason="no GPU"),),
        provenance=Provenance(device="cpu", source_digest="0123"),
        seconds=12.0,
    )


FOUND = report(
    attrs.evolve(trial(FIRST, 1, 3), shrunk=SMALLEST),
    attrs.evolve(trial(FIRST, 2, 5), shrunk=ABOVE),
    trial(SECOND, 1, 9),
    twins=(TwinTrial(method="biprop", cell=FIRST, seed=1, examples=100),),
)
MISSED = report(*FOUND.trials, trial(SECOND, 2, 200, found=False), twins=FOUND.twins)


def test_totals_count_trials_cells_and_examples() -> None:
    """A trial that found nothing counts as longer than any other, and its cell as missed."""
    totals = MISSED.totals("biprop")

    assert (totals.trials, totals.found, totals.cells, totals.cells_found) == (4, 3, 2, 1)
    assert (totals.median, totals.worst, totals.launches) == (9, 9, 90)
    assert totals.missed == ((SECOND, 1),)
    assert (totals.known, totals.reached, totals.twin_examples) == (2, 1, 100)
    assert MISSED.totals("biprop", kind="SHAPE").median == 5
    assert MISSED.totals("biprop", cell=SECOND).found == 1
    assert MISSED.totals("needle").trials == 0


def test_a_structure_below_the_known_one_is_as_good() -> None:
    """The exhaustive search knows its own kinds of data alone."""
    below = attrs.evolve(SMALLEST, cost={"slots": (1,), "dims": (9,)})
    totals = report(attrs.evolve(trial(FIRST, 1, 3), shrunk=below)).totals("biprop")

    assert (totals.known, totals.reached) == (1, 1)


def test_a_structure_without_a_known_one_is_shown_and_counted() -> None:
    """It is neither reached nor unshrunk, and the sentence names the device."""
    unknown = attrs.evolve(ABOVE, least={})
    made = attrs.evolve(
        report(
            attrs.evolve(trial(FIRST, 1, 3), shrunk=unknown),
            attrs.evolve(trial(SECOND, 1, 3), shrunk=SMALLEST),
        ),
        device="cuda",
    )
    kernels, kinds, _ = power_tables(made, {})

    assert list(said(made))[:2] == [
        "Shrunk to the smallest failing structure: 1 of 1 (100 %) of those where it is known.",
        "Shrunk, and compared with none: 1 of 2, since no smallest one is known on cuda.",
    ]
    assert [row[-1] for row in kernels.rows] == ["H=6", "1 of 1"]
    assert [row[-1] for row in kinds.rows] == ["-", "1 of 1"]
    assert list(uncompared(FOUND)) == []


def test_half_of_the_trials_without_a_find_have_no_median() -> None:
    """What was mostly missed took no number of examples."""
    found = report(trial(FIRST, 1, 3), trial(FIRST, 2, 200, found=False))

    assert found.totals("biprop").median is None
    assert found.totals("biprop").worst == 3


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (FOUND, 0),
        (MISSED, 1),
        (report(), 1),
        (attrs.evolve(FOUND, is_interrupted=True), 130),
        (attrs.evolve(FOUND, twins=(attrs.evolve(FOUND.twins[0], false_alarms=1),)), 1),
        (attrs.evolve(FOUND, twins=(attrs.evolve(FOUND.twins[0], error="lost"),)), 1),
    ],
)
def test_exit_code_says_whether_all_was_found(made: PowerReport, code: int) -> None:
    """A miss, a false alarm, a trial that did not end, or no trial at all is 1."""
    assert made.exit_code == code


def test_what_a_method_beside_the_first_missed_is_no_failure() -> None:
    """The exit code is about the first method alone."""
    other = attrs.evolve(trial(FIRST, 1, 200, found=False), method="needle")

    assert attrs.evolve(FOUND, trials=(*FOUND.trials, other)).exit_code == 0


def test_json_says_the_same() -> None:
    """A report survives its JSON, whose totals are for readers alone."""
    data = report_to_data(MISSED)

    assert report_from_text(json.dumps(data)) == MISSED
    assert report_from_text(report_text(MISSED)) == MISSED
    assert json.loads(report_text(MISSED)) == data
    assert data["exit_code"] == 1
    totals = data["totals"]
    assert isinstance(totals, dict)
    assert isinstance(totals["biprop"], dict)
    assert totals["biprop"]["missed"] == [{"name": "second", "dtype": "bfloat16", "seeds": 1}]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": "biprop-power-2"}',
        '{"schema": "biprop-power-1"}',
        json.dumps(report_to_data(FOUND)).replace('"seed": 1', '"seed": "1"'),
        json.dumps({**report_to_data(FOUND), "unknown": 1}),
        json.dumps({**report_to_data(FOUND), "methods": ["best"]}),
    ],
)
def test_what_is_no_report_is_refused(text: str) -> None:
    """One sentence, whatever is wrong with it."""
    with pytest.raises(UsageError, match=r"^The report .*\.$"):
        report_from_text(text)
    with pytest.raises(UsageError, match=r"^The report is no JSON object"):
        report_from_data([])


def test_reach_compares_with_the_smallest_structure() -> None:
    """Reached, above with the components that lack, below, or unknown where none is known."""
    below = attrs.evolve(SMALLEST, cost={"slots": (1,), "dims": (9,)})

    assert (SMALLEST.reach, SMALLEST.lacking) == ("reached", ())
    assert (ABOVE.reach, ABOVE.lacking) == ("above", ("dims",))
    assert below.reach == "below"
    assert attrs.evolve(SMALLEST, least={}).reach == "unknown"


def test_tables_and_sentences_name_what_was_missed_and_not_shrunk() -> None:
    """Each kernel has a row, each kind and method too; misses are listed by name."""
    kernels, kinds, methods = power_tables(MISSED, {"biprop": "what it is"})
    sentences = "\n".join(said(MISSED))

    assert [row[:4] for row in kernels.rows] == [
        ("first", "SHAPE", "fp32", "2 of 2"),
        ("second", "SPLIT", "bf16", "1 of 2"),
    ]
    assert kernels.rows[0][-1] == "1 of 2: dims"
    assert kinds.rows == (
        ("SHAPE", "1", "100 %", "-", "1 of 2"),
        ("SPLIT", "1", "50 %", "-", "-"),
    )
    assert methods.rows[0][:4] == ("biprop", "what it is", "3 of 4 (75 %)", "1 of 2")
    assert "Missed by biprop, and by how many seeds: second bf16 (1)." in sentences
    assert "Not shrunk: first fp32 seed 2: dims 6 instead of 4 (H=6)." in sentences
    assert "Left out (1): no GPU." in sentences
    assert plain_table(kinds).splitlines()[2].split() == [
        "SHAPE",
        "1",
        "100",
        "%",
        "-",
        "1",
        "of",
        "2",
    ]
    assert conclusion(MISSED).startswith("NOT ALL  biprop found 3 of 4 within 200 examples")
    assert conclusion(FOUND).startswith("FOUND  biprop found 3 of 3")
