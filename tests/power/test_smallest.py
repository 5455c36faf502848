"""Power: the exhaustive search, and the file that it wrote."""

import attrs
import pytest
from ci.lanes.figures import EVIDENCE
from ci.lanes.where import ROOT
from tests.power.smallest import entries, main, with_devices
from tests.power.trials import space_of
from tests.power.unreached import UNREACHED

from biprop.case import Case
from biprop.generation import illegal_in, simplest_case
from biprop.judgment import Cause, Outcome, Verdict
from biprop.kernels.planted import PLANTED, Planted
from biprop.minimize import cost
from biprop.minimize.exhaustive import Bounds, designs, in_words, search_smallest, structures
from biprop.power.smallest import cost_by_component, held_on, known_smallest
from biprop.power.subjects import planted_subjects
from biprop.reports.power import report_from_text

QUICKEST = [
    "quantise_by_batch",
    "sum_by_alignment",
    "masked_sum_by_product",
    "rotate_by_slot",
    "causal_dropped_at_one_query",
    "start_lost_at_one_query",
]


def planted_by(name: str) -> Planted:
    """Return a planted kernel."""
    return next(planted for planted in PLANTED if planted.name == name)


def cases_within(name: str, bounds: Bounds) -> list[Case]:
    """List the structures of a planted kernel within bounds."""
    space = space_of(planted_by(name), "float32")
    return list(
        structures(
            space.signature,
            simplest_case(space),
            bounds,
            judged=("outputs",),
            legal=lambda case: illegal_in(space, case),
        )
    )


def test_every_planted_kernel_was_searched() -> None:
    """The file has an entry for each kernel and dtype of a CPU, and few where nothing was found.

    What shows where it is compiled for a GPU alone is not searched, and has none.
    """
    found = entries()
    bound = [key for key, entry in found.items() if entry.get("bound")]

    assert list(found) == [
        (planted.name, dtype)
        for planted in PLANTED
        if "cpu" in planted.devices
        for dtype in planted.dtypes
    ]
    assert len(bound) <= 0.05 * len(found)


def test_nearly_all_of_them_are_reached() -> None:
    """Shrinking reaches the smallest structure in 0.95 of the zoo; what it does not is listed."""
    known = [key for key, entry in entries().items() if "cost" in entry]

    assert [key for key in UNREACHED if key not in known] == []
    assert len(UNREACHED) <= 0.05 * len(known)


def test_what_is_the_smallest_on_a_gpu_was_reached_and_never_undercut() -> None:
    """Of each structure that is said to be the smallest there, the committed run is a witness."""
    report = report_from_text((ROOT / EVIDENCE / "power-h200.json").read_text(encoding="utf-8"))
    reached = {
        (trial.cell.name, trial.cell.dtype, tuple(trial.shrunk.cost.values()))
        for trial in report.trials
        if trial.shrunk is not None
    }
    on_gpu = {key: entry for key, entry in entries().items() if "cuda" in held_on(entry)}
    wrong = []
    for key, entry in on_gpu.items():
        costs = [cost for name, dtype, cost in reached if (name, dtype) == key]
        if min(costs, default=()) != tuple(cost_by_component(entry).values()):
            wrong.append(key)

    assert len(on_gpu) > 10
    assert wrong == []


def test_smallest_is_known_of_a_planted_kernel_and_of_a_device() -> None:
    """Small tiles are the interpreter's; a target is not compared with what has its name."""
    subjects = {subject.name: subject for subject in planted_subjects("cuda")[0]}
    tiled, unswept = subjects["sum_in_tiles_by_rows"], subjects["sum_in_unswept_workspace"]

    assert known_smallest(tiled, "float32", device="cpu") is not None
    assert known_smallest(tiled, "float32", device="cuda:1") is None
    assert known_smallest(unswept, "float32", device="cuda:1") is not None
    assert known_smallest(attrs.evolve(tiled, source="target"), "float32", device="cpu") is None


def test_devices_are_kept_of_the_same_structure_alone() -> None:
    """What was reasoned of one structure says nothing of another that a search finds."""
    committed = {"cost": [1, 2], "devices": ["cpu", "cuda"], "tried": 3}

    assert with_devices({"cost": [1, 2], "tried": 4}, committed)["devices"] == ["cpu", "cuda"]
    assert "devices" not in with_devices({"cost": [1, 1]}, committed)
    assert "devices" not in with_devices({"cost": [1, 2]}, None)


@pytest.mark.parametrize("name", QUICKEST)
def test_search_finds_again_what_the_file_says(name: str) -> None:
    """The command, run again on the quickest, changes no entry."""

    assert main(["--check", name]) == 0


def test_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that no planted kernel has ends the command with 2 and one sentence."""

    assert main(["nothing"]) == 2
    assert capsys.readouterr().err == "smallest: 'nothing' is no planted kernel.\n"


def test_structures_come_in_the_order_of_their_cost() -> None:
    """Costs never fall from one structure to the next, and all of them lie within the bounds."""
    bounds = Bounds(slots=3, dims={"H": 2})
    found = [cost(planted_by("scale_by_row").kernel().signature, case) for case in
             cases_within("scale_by_row", bounds)]  # fmt: skip

    assert len(found) > 100
    assert found == sorted(found)
    assert max(item.slots for item in found) == 3
    assert max(item.transforms for item in found) == 1


def test_structures_have_every_class() -> None:
    """Transforms of all classes that apply to independent tokens are tried."""
    names = {
        data.name
        for case in cases_within("scale_by_row", Bounds(slots=3, dims={"H": 1}))
        for data in case.transforms
    }

    assert names == {
        "AddNeighbours",
        "GatherActive",
        "MoveStorage",
        "PadSlots",
        "PermuteRows",
        "PlaceWatched",
        "ReplaceNeighbours",
        "SplitBatch",
    }


def test_structures_of_attention_have_what_only_contexts_have() -> None:
    """Queries are cut at tokens, one alone too; contexts are padded alone; rows are packed."""
    found = [
        data
        for case in cases_within(
            "dead_keys_times_zero", Bounds(slots=9, dims={"D": 1, "H": 1}, sequences=1, length=3)
        )
        for data in case.transforms
    ]
    cuts = {data.values["cuts"] for data in found if data.name == "SplitBatch"}
    alone = {data.values["side"] for data in found if data.values.get("contexts_only")}

    assert {(1,), (2,), (1, 2)} <= cuts
    assert alone == {"left", "right"}
    assert any(data.name == "PackRows" for data in found)


def test_first_failing_structure_is_returned() -> None:
    """Of two structures that fail, the cheaper is found, and those before it were tried."""
    space = space_of(planted_by("scale_by_row"), "float32")

    def judge(case: Case) -> Outcome:
        fails = case.dims["H"] >= 2 and len(case.sequences) == 1 and len(case.transforms) == 1
        cause = Cause(verdict=Verdict.DRIFTS, direction="forward", output="y") if fails else None
        return Outcome(verdict=Verdict.DRIFTS if fails else Verdict.HOLDS, cause=cause)

    bounds = Bounds(slots=2, dims={"H": 3})
    base = simplest_case(space)
    found = search_smallest(
        space.signature,
        base,
        bounds,
        judged=("outputs",),
        judge=judge,
        legal=lambda case: illegal_in(space, case),
    )

    assert found.case is not None
    assert in_words(found.case) == "sequence of 1; MoveStorage(offset=1); H=2"
    assert found.structures > 1


def test_exhausted_bounds_are_said() -> None:
    """Where nothing fails, every structure was tried with every design, and no case is returned."""
    space = space_of(planted_by("scale_by_row"), "float32")
    bounds = Bounds(slots=2, dims={"H": 3})
    found = search_smallest(
        space.signature,
        simplest_case(space),
        bounds,
        judged=("outputs",),
        judge=lambda _: Outcome(verdict=Verdict.HOLDS),
        legal=lambda case: illegal_in(space, case),
    )
    tried = cases_within("scale_by_row", bounds)

    assert found.case is None
    assert found.structures == len(tried)
    assert found.runs == sum(len(list(designs(space.signature, case))) for case in tried)


@pytest.mark.parametrize(
    ("name", "dims", "length"),
    [("linear_gemv", {"K": 5, "N": 2}, 1), ("tile_by_longest_query", {"H": 1, "D": 1}, 5)],
)
def test_designs_change_nothing_but_data(name: str, dims: dict[str, int], length: int) -> None:
    """All designs of a structure have its cost without data, and are legal."""
    space = space_of(planted_by(name), "float32")
    simplest = simplest_case(space)
    sequences = (attrs.evolve(simplest.sequences[0], length=length),)
    plain = attrs.evolve(simplest, dims=dims, sequences=sequences)
    made = list(designs(space.signature, plain))
    wanted = cost(space.signature, plain).structure

    assert len(made) > 8
    assert {cost(space.signature, case).structure for case in made} == {wanted}
    assert [illegal_in(space, case) for case in made] == [""] * len(made)
