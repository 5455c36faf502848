"""What is wrong on a command line is one sentence and exit code 2, and most of it comes at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import Run, one_sentence
from tests.unit.wrong_inputs import (
    WRONG_CALLS,
    WRONG_DIMS,
    WRONG_INPUTS,
    WRONG_OPTIONS,
    WRONG_SIGNATURES,
    WRONG_TARGETS,
    WrongInput,
)

SOUND = "x[T,H], weight[H] -> y[T,H]"
KERNEL = "def norm(x, weight):\n    return x * weight\n"
# What only an import, or the device, can tell.
FOR_WORKER = {
    "more-arguments-than-parameters",
    "fewer-arguments-than-parameters",
    "call-unknown",
    "device-absent",
    "target-module-missing",
    "target-submodule-missing",
    "target-module-is-file",
    "target-name-missing",
    "target-member-missing",
    "target-not-callable",
    "target-module",
    "target-class",
    "target-raises",
    "target-exits",
    "target-syntax",
    "target-imports-missing",
    "target-decorated-wrongly",
    "target-in-package",
}
# What an earlier target has left in the worker would answer instead.
FOR_WORKER_OF_ITS_OWN = {"target-module-is-file", "device-absent"}
AT_ONCE = tuple(wrong for wrong in WRONG_INPUTS if wrong.name not in FOR_WORKER)

# Run by an interpreter of its own: each argument list of standard input, one after the other.
PROBE = """
import contextlib, io, json, subprocess, sys
from biprop.cli import main
subprocess.Popen = None
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.suppress(SystemExit):
        main(arguments)
    assert err.getvalue().count(chr(10)) == 1, (arguments, err.getvalue())
    assert "torch" not in sys.modules, arguments
print("none")
"""


class TestWrongInputs:
    """The table of everything wrong that a user may hand to `biprop check`."""

    def test_table_is_long_enough(self) -> None:
        """At least 40 entries, some of every kind."""

        assert len(WRONG_INPUTS) >= 40
        assert all((WRONG_SIGNATURES, WRONG_DIMS, WRONG_CALLS, WRONG_TARGETS, WRONG_OPTIONS))
        assert {wrong.name for wrong in WRONG_INPUTS} >= FOR_WORKER

    @pytest.mark.parametrize(
        "wrong",
        [wrong for wrong in WRONG_INPUTS if wrong.name not in FOR_WORKER_OF_ITS_OWN],
        ids=lambda wrong: wrong.name,
    )
    def test_each_is_one_sentence(self, wrong: WrongInput, biprop: Run, folder: Path) -> None:
        """Exit code 2, one line on standard error that says what is wrong, nothing else."""
        wrong.write_files(folder)

        result = biprop("check", *wrong.argv)

        assert wrong.fragment in one_sentence(result)

    @pytest.mark.parametrize(
        "wrong",
        [wrong for wrong in WRONG_INPUTS if wrong.name in FOR_WORKER_OF_ITS_OWN],
        ids=lambda wrong: wrong.name,
    )
    def test_each_is_one_sentence_of_a_worker(
        self, wrong: WrongInput, alone: Run, folder: Path
    ) -> None:
        """The same where only a fresh worker can tell."""
        wrong.write_files(folder)

        result = alone("check", *wrong.argv)

        assert wrong.fragment in one_sentence(result)

    def test_texts_are_refused_before_torch_is_imported(self, folder: Path) -> None:
        """No worker is started and no torch imported for what a look at the texts can tell."""
        (folder / "kernels.py").write_text(KERNEL)
        (folder / "folder.py").mkdir()

        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            input=json.dumps([["check", *wrong.argv] for wrong in AT_ONCE]),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr


class TestRefusals:
    """Options that do not go together, and places that do not exist."""

    @pytest.mark.parametrize(
        ("arguments", "fragment"),
        [
            (["check"], "Missing argument 'TARGET'"),
            (["check", "rms_norm", "--signature", SOUND], "leave out --signature"),
            (["check", "rms_norm", "--dims", "H=8"], "leave out --signature"),
            (["check", "math:sqrt", "--backend", "torch"], "leave it out for a target"),
            (["check", "math:sqrt", "--sginature", SOUND], "--signature"),
            (["check", "rms_norm", "--store", "note.txt/found"], "cannot be written"),
            (["check", "rms_norm", "--transforms", "T1,T1"], "twice"),
            (["check", "rms_norm", "--timeout", "0"], "--timeout"),
            (["cache", "--timeout", "nan"], "--timeout"),
            (["show", "note.txt", "--issue", "--script"], "give one of them"),
            (["show", "missing.json"], "no file 'missing.json'"),
            (["show", "0123abcd"], "begins with '0123abcd'"),
            (["show", "xyz"], "neither a file nor an id"),
            (["keep", "0123abcd"], "begins with '0123abcd'"),
            (["keep", "note.txt"], "no valid JSON"),
            (["replay", "note.txt", "--device", "abacus"], "abacus"),
            (["mend"], "No such command 'mend'"),
        ],
    )
    def test_each_is_one_sentence(
        self, arguments: list[str], fragment: str, biprop: Run, folder: Path
    ) -> None:
        """Exit code 2 and one line that says what to change."""
        (folder / "note.txt").write_text("nothing\n")

        assert fragment in one_sentence(biprop(*arguments))

    @pytest.mark.parametrize(
        ("arguments", "fragment"),
        [
            (["rms_nrom"], "rms_norm"),
            (["rms_norm/sorted"], "rms_norm/padded"),
            (["rms_norm", "--backend", "cuda"], "triton"),
        ],
    )
    def test_unknown_operator_is_refused_with_what_there_is(
        self, arguments: list[str], fragment: str, biprop: Run
    ) -> None:
        """A registry that lacks an operator, form or backend lists what it has."""

        assert fragment in one_sentence(biprop("check", *arguments))

    def test_target_without_a_description_is_refused(self, biprop: Run, folder: Path) -> None:
        """Neither --signature nor a decorator: the sentence names both."""
        (folder / "kernels.py").write_text(KERNEL)

        sentence = one_sentence(biprop("check", "kernels.py:norm"))

        assert "--signature" in sentence
        assert "@biprop.operator" in sentence

    def test_no_command_prints_the_help(self, alone: Run) -> None:
        """Alone, the program lists its commands, and says with exit code 2 that one is missing."""
        result = alone()

        assert result.code == 2
        assert "Commands:" in result.out
