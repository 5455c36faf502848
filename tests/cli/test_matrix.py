"""`biprop matrix`: what it asks of the suite, what it prints and writes, and its exit codes."""

import json
import os
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Literal

import attrs
import pytest
from tests.cli.commands import Result, Run, one_sentence

from biprop.cli import main
from biprop.judgment import Verdict
from biprop.operators import KernelReference
from biprop.reports.records import CellReport, ClassCount
from biprop.reports.suite import CellError, ContractUsed, InvarianceReport, SuiteCell

# What a cell of a report that is made by hand showed.
Word = Literal["HOLDS", "VACUOUS", "lost", "not run"]
# What an installed package brings: operators that are wrong in two ways that no bits show, and one
# that is right.
OPERATORS = '''
"""A backend that falls back to another above two rows, and one that is invariant and inaccurate."""

from biprop.kernels.deferred import deferred
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator
from biprop.signature import parse_restrictions, parse_signature

in_tiles = deferred("biprop.kernels.planted.tiles_triton", "sum_in_tiles")


def falls_back(x):
    return in_tiles(x) if len(x) <= 2 else x.float().sum(1)


def inaccurate(x, weight):
    return x * weight * 1.25


def scaled(x, weight):
    return x * weight


def operator(name, signature, function, reference, **fields):
    form = Form(
        name="packed",
        signature=parse_signature(signature),
        implementations=(Implementation(forward=function, **fields),),
        reference=reference,
    )
    return Operator(
        name=name,
        op_class="elementwise" if "weight" in signature else "reduction",
        forms=(form,),
        declaration=InvarianceDeclaration(transforms=("T1", "T2"), backward=False, chain_index=5),
        restrictions=parse_restrictions("H=1..8"),
    )


SCALE = "x[T,H], weight[H] -> y[T,H]"


def scale_reference(x, weight, *, reduce):
    return (x.float() * weight.float()).to(x.dtype)


OPERATORS = (
    operator(
        "sums",
        "x[T,H] -> y: float32[T]",
        falls_back,
        lambda x, *, reduce: reduce(x.float(), -1),
        backend="triton",
        kernels=("row_sums",),
    ),
    operator("inaccurate_scale", SCALE, inaccurate, scale_reference, backend="torch"),
    operator("healthy_scale", SCALE, scaled, scale_reference, backend="torch"),
)
'''
WORDS = (
    *("matrix", "--operators", "sums,inaccurate_scale,healthy_scale", "--dtype", "fp32"),
    *("--max-examples", "40", "--workers", "1", "--report-json", "r.json"),
)
METADATA = "Metadata-Version: 2.1\nName: sums\nVersion: 1.0\n"
ENTRY_POINTS = "[biprop.operators]\nsums = sums:OPERATORS\n"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, dict[str, object]]:
    """Search the cells of the package; what the command answered, and its report."""
    project = tmp_path_factory.mktemp("project")
    package = project / "package"
    information = package / "sums-1.0.dist-info"
    information.mkdir(parents=True)
    (package / "sums.py").write_text(OPERATORS)
    (information / "METADATA").write_text(METADATA)
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    (project / ".hypothesis").mkdir()
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(project)
        patch.syspath_prepend(package)
        # Processes that run kernels are given no path of Python but this.
        patch.setenv("PYTHONPATH", str(package), prepend=os.pathsep)
        patch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(project / ".hypothesis"))
        with pytest.raises(SystemExit) as ended:
            main(WORDS)
    data = json.loads((project / "r.json").read_text())
    assert isinstance(data, dict)
    assert isinstance(ended.value.code, int)
    return Result(code=ended.value.code, out=out.getvalue(), err=err.getvalue()), data


def test_a_matrix_tells_what_each_cell_showed(searched: tuple[Result, dict[str, object]]) -> None:
    """Wrong in three ways or right: each has its word, and any red one makes the exit code 1."""
    result, data = searched
    rows = [line.split() for line in result.out.splitlines()[1:4]]

    assert result.code == 1, result
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("sums", "triton", "FALLBACK"),
        ("inaccurate_scale", "torch", "INACCURATE"),
        ("healthy_scale", "torch", "HOLDS"),
    ]
    assert data["exit_code"] == 1


def test_a_fallback_is_named_where_failures_stand(
    searched: tuple[Result, dict[str, object]],
) -> None:
    """The operator of torch that ran, in the output and in the report of a supervised cell."""
    result, data = searched
    cells = data["cells"]
    assert isinstance(cells, list)
    message = next(cell["report"]["message"] for cell in cells if cell["operator"] == "sums")

    assert message.startswith("The forward of sums with backend='triton' lets torch compute: aten.")
    assert "FALLBACK  sums-triton-float32-forward" in result.out
    assert "backend='triton' lets torch compute: aten." in " ".join(result.out.split())


def test_every_cell_that_ends_is_told_meanwhile(
    searched: tuple[Result, dict[str, object]],
) -> None:
    """On standard error, one line a cell, so that a log shows how far a run is."""
    lines = [line.split() for line in searched[0].err.splitlines() if "/3 " in line]

    assert [line[0] for line in lines] == ["1/3", "2/3", "3/3"]
    assert [line[1] for line in lines] == ["FALLBACK", "INACCURATE", "HOLDS"]


def reported(*words: Word) -> InvarianceReport:
    """Return a report of one cell a word."""
    cells = {}
    for index, word in enumerate(words):
        cell = SuiteCell(
            id=f"norm{index}-torch-float32-forward",
            reference=KernelReference(
                operator=f"norm{index}",
                target=f"norm{index}/packed",
                signature="x[T,H] -> y[T,H]",
                backend="torch",
            ),
            op_class="reduction",
            dtype="float32",
            direction="forward",
            chain_index=index,
        )
        if word == "lost":
            lost = CellError(kind="lost", message="The process that searched it ended.")
            cell = attrs.evolve(cell, error=lost)
        elif word != "not run":
            report = CellReport(
                reference=cell.reference,
                dtype="float32",
                direction="forward",
                device="cpu",
                verdict=Verdict(word),
                classes={"T1": ClassCount(examples=9, powered=7)},
                message="" if word == "HOLDS" else "Too few powered examples: T1 has 0 of 5.",
            )
            cell = attrs.evolve(cell, report=report)
        cells[cell.id] = cell
    return InvarianceReport(
        cells=cells,
        slice_name="pr",
        device="cpu",
        contract=ContractUsed(version="1", digest="d", name="a contract"),
        is_interrupted="not run" in words,
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["HOLDS", "HOLDS"], 0),
        (["HOLDS", "VACUOUS"], 1),
        (["lost", "HOLDS"], 1),
        (["HOLDS", "not run"], 130),
    ],
    ids=["green", "vacuous", "lost", "stopped"],
)
def test_exit_code_says_whether_all_is_green(
    words: list[Word], code: int, alone: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little evidence is not green, nor is a run that was stopped."""
    report = reported(*words)
    monkeypatch.setattr("biprop.suite.run_invariance_suite", lambda **_: report)

    result = alone("matrix")
    assert result.code == code
    assert ("GREEN" in result.out) == (code == 0)


def test_options_reach_the_suite(alone: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are read as lists, short names of dtypes are written out."""
    asked: dict[str, object] = {}

    def run(**arguments: object) -> InvarianceReport:
        asked.update(arguments)
        return reported("HOLDS")

    monkeypatch.setattr("biprop.suite.run_invariance_suite", run)
    alone(
        *("matrix", "--slice", "nightly", "--device", "cuda:1", "--operators", "logp, rms_norm"),
        *("--backends", "triton", "--dtype", "bf16,fp16", "--direction", "backward"),
        *("--workers", "3", "--max-examples", "7", "--seed", "11", "--store", "found"),
        *("--max-seconds", "1.5"),
    )
    del asked["contract"], asked["tell"]
    assert asked == {
        "operators": ("logp", "rms_norm"),
        "backends": ("triton",),
        "dtypes": ("bfloat16", "float16"),
        "directions": ("backward",),
        "slice_name": "nightly",
        "device": "cuda:1",
        "workers": 3,
        "seed": 11,
        "max_examples": 7,
        "max_seconds": 1.5,
        "store": Path("found"),
    }
    assert not (folder / "found").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--operators", "logp,,rms_norm"), "--operators"),
        (("--backends", "torch,torch"), "--backends names torch twice"),
        (("--dtype", "int8"), "--dtype 'int8' is unknown"),
        (("--device", "gpu"), "--device 'gpu' is unknown"),
        (("--contract", "absent.json"), "absent.json"),
        (("--report-json", "absent/report.json"), "--report-json 'absent/report.json'"),
        (("--operators", "no_such_operator"), "--operators names 'no_such_operator'"),
        (("--operators", ""), "--operators '' names nothing"),
        (("--backends", " "), "--backends ' ' names nothing"),
        (("--dtype", ""), "--dtype '' names nothing"),
    ],
    ids=[
        "empty-name",
        "twice",
        "dtype",
        "device",
        "contract",
        "report",
        "operator",
        "none",
        "blank",
        "no-dtype",
    ],
)
def test_wrong_use_is_one_sentence(arguments: tuple[str, ...], named: str, alone: Run) -> None:
    """It names the option or its value, before any process is started."""
    assert named in one_sentence(alone("matrix", *arguments))


def test_a_report_is_written_as_one_object(
    alone: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the verdict; what stood in the file before is gone."""
    report = reported("HOLDS", "lost")
    monkeypatch.setattr("biprop.suite.run_invariance_suite", lambda **_: report)
    (folder / "report.json").write_text("x" * 100_000)

    assert alone("matrix", "--report-json", "report.json").code == 1
    data = json.loads((folder / "report.json").read_text())
    assert [cell["word"] for cell in data["cells"]] == ["HOLDS", "CRASHES"]
    assert data["red"] == ["norm1-torch-float32-forward"]
