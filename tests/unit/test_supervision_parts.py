"""The parts of supervision that need no worker: references, ledger, journal, messages and pipes."""

import json
import os
from pathlib import Path

import pytest

from biprop.case import Case, TransformData, canonical_json, case_to_data
from biprop.data.recipe import Recipe
from biprop.errors import BipropError, CaseError, OutputError, TargetError, UsageError
from biprop.judgment import Outcome, Verdict
from biprop.kernels import OPERATORS
from biprop.operators import Kernel, KernelReference, Registry
from biprop.relations import JudgeOptions
from biprop.sequence import LogicalSequence
from biprop.supervision import Journal, Ledger
from biprop.supervision.messages import error_from_data, error_to_data
from biprop.supervision.pipes import Lines, LinesEndError
from biprop.supervision.resolve import reference_of, resolve

TARGETS = """
from biprop.loading import operator

def healthy(x):
    return x + 1

@operator("x[T,H] -> y[T,H]", dims="H=1..64", align=16, call={"scale": 2.0})
def described(x, *, scale):
    return x * scale
"""
CASE = Case(
    dtype="float32",
    dims={"H": 8},
    sequences=(LogicalSequence(id=0, length=1),),
    data={"x": Recipe(kind="normal")},
    transforms=(TransformData(name="AddNeighbours", values={"count": 3}),),
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of targets."""
    path = tmp_path_factory.mktemp("targets") / "targets.py"
    path.write_text(TARGETS, encoding="utf-8")
    return path


def reference_to(targets: Path, name: str, signature: str = "x[T,H] -> y[T,H]") -> KernelReference:
    """Return a reference to a function of the file."""
    target = f"{targets}:{name}"
    return KernelReference(operator=target, target=target, signature=signature)


class TestResolve:
    """From references to kernels and back."""

    def test_decorated_target_brings_its_description(self, targets: Path) -> None:
        """A function that is described where it is written needs no texts, and theirs win."""
        plain = resolve(reference_to(targets, "described", ""), Registry())
        narrowed = resolve(
            KernelReference(
                operator="d",
                target=f"{targets}:described",
                signature="x[T,H] -> y[T,H]",
                dims="H=2..4",
                call={"scale": 3.0},
            ),
            Registry(),
        )

        assert (plain.restrictions.text, plain.align, dict(plain.call)) == (
            "H=1..64",
            16,
            {"scale": 2.0},
        )
        assert (narrowed.restrictions.text, narrowed.align, dict(narrowed.call)) == (
            "H=2..4",
            16,
            {"scale": 3.0},
        )

    @pytest.mark.parametrize(
        "kernel",
        Registry(operators=OPERATORS).kernels(),
        ids=lambda kernel: f"{kernel.target}-{kernel.backend}",
    )
    def test_reference_leads_back(self, kernel: Kernel) -> None:
        """The reference of a registered kernel finds that kernel again."""
        registry = Registry(operators=OPERATORS)
        reference = reference_of(kernel)
        found = resolve(reference, registry)

        assert reference_of(found) == reference

    def test_operator_that_has_changed_is_refused(self) -> None:
        """A reference to another signature of an operator is not run as the present one."""
        reference = KernelReference(
            operator="det_gemm",
            target="det_gemm/packed",
            signature="x[T,K] -> y[T,K]",
            backend="torch",
        )

        with pytest.raises(TargetError, match="has the signature"):
            resolve(reference, Registry(operators=OPERATORS))

    def test_backward_text_without_a_function_is_refused(self, targets: Path) -> None:
        """A backward signature alone cannot be called."""
        reference = KernelReference(
            operator="h",
            target=f"{targets}:healthy",
            signature="x[T,H] -> y[T,H]",
            backward_signature="dy[T,H], x[T,H] -> dx[T,H]",
        )

        with pytest.raises(UsageError, match="no function to go with it"):
            resolve(reference, Registry())


class TestLedger:
    """Verdicts that stick."""

    HOLDS = Outcome(verdict=Verdict.HOLDS)
    DRIFTS = Outcome(verdict=Verdict.DRIFTS)

    def test_violation_answers_every_question(self) -> None:
        """A violation is not unseen by asking more closely, only by asking afresh."""
        ledger = Ledger()
        ledger.keep("a", JudgeOptions(measure=False), self.DRIFTS)
        ledger.keep("a", JudgeOptions(fresh=True), self.HOLDS)

        assert ledger.find("a", JudgeOptions(repeat_canonical=True, rate=0.1)) is self.DRIFTS
        assert ledger.find("a", JudgeOptions(fresh=True)) is None

    def test_holding_answers_what_asks_for_no_more(self) -> None:
        """HOLDS answers no question that it does not rest on."""
        ledger = Ledger()
        ledger.keep("a", JudgeOptions(), self.HOLDS)

        assert ledger.find("a", JudgeOptions()) is self.HOLDS
        assert ledger.find("a", JudgeOptions(repeat_canonical=True)) is None
        assert ledger.find("b", JudgeOptions()) is None

    def test_oldest_is_forgotten(self) -> None:
        """A ledger does not grow without end."""
        ledger = Ledger(entries_max=2)
        for key in "abc":
            ledger.keep(key, JudgeOptions(), self.HOLDS)

        assert [ledger.find(key, JudgeOptions()) is not None for key in "abc"] == [
            False,
            True,
            True,
        ]


class TestJournal:
    """What is on disk while a case is judged."""

    REFERENCE = KernelReference(operator="o", target="m:o", signature="x[T] -> y[T]")

    def test_case_is_on_disk_while_it_is_judged(self, tmp_path: Path) -> None:
        """The file is complete while the block runs, and gone after it."""
        journal = Journal(tmp_path / "deep" / "journal")
        text = canonical_json(case_to_data(CASE))
        with journal.entry(reference=self.REFERENCE, device="cpu", case_text=text) as path:
            data = json.loads(path.read_text())
            # Its writer lives, so it is nobody's leftover.
            leftovers = journal.leftovers()

        assert data["case"] == json.loads(text)
        assert data["process"] == os.getpid()
        assert leftovers == ()
        assert list(path.parent.iterdir()) == []

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "other"}', '{"format": 1}'])
    def test_foreign_file_is_left_alone(self, tmp_path: Path, text: str) -> None:
        """Files that are no entries of this format are neither read nor removed."""
        path = tmp_path / "inflight-1-1.json"
        path.write_text(text)

        assert Journal(tmp_path).leftovers() == ()
        assert path.exists()


class TestMessages:
    """What crosses between the two processes."""

    @pytest.mark.parametrize("kind", [TargetError, OutputError, CaseError, BipropError])
    def test_error_crosses_by_class_and_sentence(self, kind: type[BipropError]) -> None:
        """An error arrives as what it was."""
        error = error_from_data(error_to_data(kind("A sentence.")))

        assert type(error) is kind
        assert str(error) == "A sentence."

    def test_lines_come_whole_and_end_with_the_other_side(self) -> None:
        """A long line comes through in pieces; a closed pipe is an end, not a wait."""
        read, write = os.pipe()
        one, other = (
            Lines(read_fd=read, write_fd=os.dup(write)),
            Lines(read_fd=os.dup(read), write_fd=write),
        )
        line = b"x" * 50_000 + b"\n"

        assert other.send(line + b"y\n")
        assert one.receive(seconds=1) == line[:-1]
        assert one.receive(seconds=1) == b"y"
        assert one.receive(seconds=0.01) is None
        # Nobody reads: a pipe that is full is given up on.
        assert not other.send(b"z" * 200_000, seconds=0.01)
        one.close()
        other.close()
        with pytest.raises(LinesEndError):
            other.send(b"late\n")
