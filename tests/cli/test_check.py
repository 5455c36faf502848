"""`biprop check` as people use it: on files of their own, on operators, and on kernels that die."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from tests.cli.commands import Run, run_alone
from tests.cli.targets import BAD, MINE
from tests.preloaded import Preloaded
from tests.unit.sample_fixtures import sample

from biprop.case import Case, TransformData, canonical_json, case_to_data
from biprop.data.recipe import Recipe
from biprop.fixtures.records import fixture_text
from biprop.judgment import Cause, Verdict
from biprop.operators import KernelReference
from biprop.sequence import LogicalSequence
from biprop.supervision import Journal

ROW = "x[T,H], weight[H] -> y[T,H]"
PLAIN = "x[T,H] -> y[T,H]"
# Few sizes to shrink.
FLAT = "x[T] -> y[T]"
# One class and few cases: a kernel that dies costs a worker a case.
SHORT = ("--transforms", "T1", "--max-examples", "1")


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """Write the kernels of a user."""
    (folder / "mine.py").write_text(MINE)
    (folder / "bad.py").write_text(BAD)


class TestOwnFile:
    """A file of the user, nothing registered."""

    def test_correct_function_holds(self, biprop: Run) -> None:
        """Exit code 0, the verdict in the last line, and what is not claimed."""
        result = biprop("check", "mine.py:centre", "--signature", ROW, "--max-examples", "90")

        assert result.code == 0, result.out
        assert result.verdict == "HOLDS"
        assert "Not claimed" in result.out
        assert not result.err

    def test_broken_function_drifts_and_replays(self, biprop: Run, folder: Path) -> None:
        """Exit code 1, a stored fixture, and a command that shows the same again."""
        result = biprop(
            "check", "mine.py:centre_wrongly", "--signature", ROW, "--max-examples", "20"
        )

        assert result.code == 1, result.out
        assert result.verdict == "DRIFTS"
        command = next(line for line in result.out.splitlines() if line.startswith("biprop replay"))
        again = biprop(*command.split()[1:])
        assert again.code == 1
        assert again.out.startswith("FAILED")
        assert list((folder / ".hypothesis" / "found").glob("mine_py_centre_wrongly-*.json"))
        assert not list((folder / ".hypothesis").glob("inflight/*"))

    def test_decorated_function_needs_no_signature(self, biprop: Run) -> None:
        """`@biprop.operator` says what the options would, its restrictions too."""
        result = biprop(
            "check", "mine.py:norm", "--dtype", "bf16", "--max-examples", "60", "--json"
        )

        assert result.code == 0, result.out
        assert result.data["signature"] == ROW
        assert result.data["dtype"] == "bfloat16"

    def test_file_of_a_folder_is_found_by_its_relative_path(
        self, biprop: Run, folder: Path
    ) -> None:
        """A path counts from the working directory."""
        (folder / "kernels").mkdir()
        (folder / "kernels" / "one.py").write_text(MINE)

        result = biprop(
            "check", "kernels/one.py:sometimes", "--signature", PLAIN, "--max-examples", "9"
        )

        assert result.code == 1, result.err
        assert result.verdict == "NONDETERMINISTIC"

    def test_store_is_where_commands_look_by_path(self, biprop: Run, folder: Path) -> None:
        """With --store, the printed command names the file, which no other store would find."""
        words = ("mine.py:centre_wrongly", "--signature", ROW, "--store", "elsewhere", *SHORT)
        result = biprop("check", *words)

        command = next(line for line in result.out.splitlines() if line.startswith("biprop replay"))
        assert biprop(*command.split()[1:]).out.startswith("FAILED")
        assert not (folder / ".hypothesis" / "found").exists()
        identity = command.split()[2].removesuffix(".json").rpartition("-")[2]
        assert biprop("show", identity, "--store", "elsewhere").code == 0


class TestSwitches:
    """Switches of the process that a check pins."""

    def test_switches_reach_the_fixture(self, biprop: Run, folder: Path) -> None:
        """The attention backend stays as it was asked for; what does not matter is shrunk away."""
        words = ("--tf32", "--bf16-reduced-precision", "--deterministic", "--sdpa-backend", "math")
        result = biprop(
            "check", "mine.py:centre_wrongly", "--signature", ROW, *words, "--json", *SHORT
        )

        (cause,) = result.causes
        stored = json.loads((folder / str(cause["path"])).read_text())
        assert stored["case"]["execution"] == {"sdpa_backend": "math"}
        assert stored["provenance"]["switches"] == "sdpa math"
        again = biprop("replay", str(cause["fixture_id"]), "--allow-target", stored["target"])
        assert again.out.startswith("FAILED")

    def test_every_case_has_them(self, biprop: Run, folder: Path) -> None:
        """A target sees the switches as they were asked for."""
        (folder / "asking.py").write_text(
            "import torch\n\n"
            "def ask(x):\n"
            "    matmul = torch.backends.cuda.matmul\n"
            "    assert matmul.allow_tf32 and not torch.backends.cuda.flash_sdp_enabled()\n"
            "    assert not matmul.allow_bf16_reduced_precision_reduction\n"
            "    return x * 2\n"
        )
        words = ("asking.py:ask", "--signature", PLAIN, "--max-examples", "3")
        asked = biprop("check", *words, "--tf32", "--sdpa-backend", "math")
        refused = biprop("check", *words, "--tf32")

        assert asked.code == 3, asked.out
        assert "rejected" not in asked.out
        assert refused.code == 2
        assert "AssertionError" in refused.err


class TestJson:
    """`--json`: one object."""

    def test_object_holds_verdict_causes_and_counts(self, biprop: Run, folder: Path) -> None:
        """Causes have the id and the path of their fixtures; classes have their counts."""
        result = biprop("check", "mine.py:centre_wrongly", "--signature", ROW, "--json", *SHORT)

        data = result.data
        assert (result.code, data["verdict"], data["exit_code"]) == (1, "DRIFTS", 1)
        assert {"examples", "launches", "power", "classes", "seconds", "seed"} <= set(data)
        (cause,) = result.causes
        stored = json.loads((folder / str(cause["path"])).read_text())
        assert stored["id"] == cause["fixture_id"]
        assert not result.err

    def test_both_directions_are_one_object(self, biprop: Run) -> None:
        """Causes of both lie side by side, each cell under `directions`."""
        words = ("--direction", "both", "--max-examples", "3", "--transforms", "T1", "--json")
        result = biprop("check", "mine.py:centre_wrongly", "--signature", ROW, *words)

        directions = result.data["directions"]
        assert isinstance(directions, list)
        assert [cell["direction"] for cell in directions] == ["forward", "backward"]
        assert {str(cause["key"]).split("-")[2] for cause in result.causes} == {
            "forward",
            "backward",
        }
        assert result.data["examples"] == sum(cell["examples"] for cell in directions)

    def test_target_that_prints_does_not_spoil_it(self, folder: Path, preloaded: Preloaded) -> None:
        """What a target prints goes to standard error."""
        words = ("mine.py:loud", "--signature", PLAIN, "--max-examples", "5", "--json")
        result = run_alone("check", *words, folder=folder, preloaded=preloaded)

        assert result.data["operator"] == "mine.py:loud"
        assert "talk talk" in result.err


class TestVerdicts:
    """What is no violation, and no proof either."""

    def test_too_little_evidence_is_vacuous(self, biprop: Run) -> None:
        """Exit code 3, and the class that lacks examples."""
        words = ("--transforms", "T8", "--max-examples", "3", "--profile", "nightly")
        result = biprop("check", "mine.py:centre", "--signature", ROW, *words)

        assert result.code == 3
        assert result.verdict == "VACUOUS"
        assert "T8 has" in result.out
        assert "not applicable: it was not asked for" in result.out

    def test_target_that_raises_alone_suggests_dims(self, biprop: Run) -> None:
        """Exit code 2 where most canonical runs raise, without the control codes of the message."""
        result = biprop("check", "mine.py:picky", "--signature", PLAIN, "--max-examples", "20")

        assert result.code == 2, result.out
        assert "--dims" in result.out
        assert "at most 3 columns" in result.out
        assert "\x1b" not in result.out

    def test_restricted_target_holds(self, biprop: Run) -> None:
        """The same target holds for the sizes that it accepts."""
        words = ("--dims", "H=1..3", "--max-examples", "90")
        result = biprop("check", "mine.py:picky", "--signature", PLAIN, *words)

        assert result.code == 0, result.out


class TestOperators:
    """Operators of the registry, by name."""

    def test_triton_backend_of_an_operator_is_checked(self, biprop: Run) -> None:
        """In the interpreter, which the output says."""
        result = biprop("check", "rms_norm", "--backend", "triton", "--max-examples", "2", "--json")

        assert result.data["target"] == "rms_norm/packed"
        assert result.data["actual_backend"] == "triton-interpreter"
        assert result.code in {0, 3}

    def test_other_form_of_an_operator_is_checked(self, biprop: Run) -> None:
        """A form is named after a slash."""
        result = biprop("check", "rms_norm/padded", "--max-examples", "10", "--json")

        assert result.data["target"] == "rms_norm/padded"
        assert result.code in {0, 3}

    def test_exempt_operator_is_checked_and_says_so(self, biprop: Run) -> None:
        """What promises nothing is judged all the same."""
        words = ("check", "native_linear", "--transforms", "T1", "--max-examples", "30")

        result = biprop(*words)

        assert result.out.startswith("Exempt: ")
        assert result.code == 1, result.out


class TestCrashes:
    """Kernels that end or stop their worker."""

    def test_signal_is_a_finding_that_replays(self, biprop: Run) -> None:
        """A segmentation fault is CRASHES, exit code 1, in JSON, and its fixture fails again."""
        result = biprop("check", "bad.py:segfault", "--signature", FLAT, "--json", *SHORT)

        assert (result.code, result.data["verdict"]) == (1, "CRASHES")
        cause = result.causes[0]
        fixture = cause["fixture"]
        assert isinstance(fixture, dict)
        assert "SIGSEGV" in fixture["expect"]["message"]
        again = biprop("replay", str(cause["fixture_id"]), "--allow-target", "bad.py:segfault")
        assert again.code == 1
        assert again.out.startswith("FAILED")

    def test_exit_is_the_same_cause(self, biprop: Run) -> None:
        """A target that ends its process crashes like one that is killed, and says how."""
        reference = KernelReference(operator="bad.py:leave", target="bad.py:leave", signature=FLAT)
        case = Case(
            dtype="float32",
            dims={},
            sequences=(LogicalSequence(id=0, length=1),),
            data={"x": Recipe(kind="zeros")},
            transforms=(TransformData(name="AddNeighbours", values={"count": 1}),),
        )
        cause = Cause(verdict=Verdict.CRASHES, direction="forward", transforms=("T1",))
        fixture = sample(reference=reference, case=case, cause=cause)

        result = biprop("replay", "-", "--allow-target", "bad.py:leave", text=fixture_text(fixture))

        assert result.code == 1, result.err
        assert result.out.startswith("FAILED")
        assert "exit status 7" in result.out

    def test_hang_is_a_finding(self, biprop: Run) -> None:
        """So is one that does not come back within --timeout."""
        words = ("--timeout", "0.5", *SHORT)
        result = biprop("check", "bad.py:hang", "--signature", FLAT, *words)

        assert result.code == 1
        assert result.verdict == "CRASHES"
        assert "hung for" in result.out


class TestStopped:
    """Checks that are stopped or killed before their end."""

    @staticmethod
    def started(folder: Path) -> "subprocess.Popen[str]":
        """Start a check that takes long, and wait until it judges."""
        process = subprocess.Popen(
            [sys.executable, "-m", "biprop", "check", "bad.py:slow", "--signature", PLAIN],
            # What a shell starts in the background ignores Ctrl-C, and so do its children.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not list(folder.glob(".hypothesis/inflight/*.json")):
            time.sleep(0.05)
        return process

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupt_keeps_what_was_found(self, folder: Path, number: signal.Signals) -> None:
        """Exit code 130, no traceback; what was found so far is stored and printed."""
        process = self.started(folder)
        calls = folder / "calls.txt"
        deadline = time.monotonic() + 60
        # Counted in calls of more than one row, not in seconds: so many mean, on a machine of any
        # speed, that a case has failed and is being minimised.
        while time.monotonic() < deadline and not (calls.exists() and calls.stat().st_size >= 60):
            time.sleep(0.05)
        process.send_signal(number)
        if number is signal.SIGTERM:
            # `timeout` sends it to the process, and then to its group.
            time.sleep(0.01)
            process.send_signal(number)
        out, err = process.communicate(timeout=30)

        assert process.returncode == 130, (out, err)
        assert "Traceback" not in err
        assert "Stopped by Ctrl-C or SIGTERM after" in out
        assert "DRIFTS bad.py:slow" in out
        assert len(list((folder / ".hypothesis" / "found").glob("*.json"))) == 1
        # It ended in good order, so there is nothing to tell.
        assert not list((folder / ".hypothesis" / "inflight").iterdir())

    def test_direction_is_told_when_it_ends(self, folder: Path) -> None:
        """What forward gave is printed, though the check is killed while it judges backward."""
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "biprop", "check", "mine.py:centre", "--signature", ROW),
                *("--direction", "both", "--transforms", "T1", "--max-examples", "40"),
            ],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        told = next(line for line in lines if line.split()[0:1] in (["HOLDS"], ["VACUOUS"]))
        process.kill()
        process.communicate(timeout=30)

        assert "forward" in told
        assert process.returncode == -signal.SIGKILL

    def test_killed_check_is_told_and_is_no_finding(self, folder: Path, biprop: Run) -> None:
        """A check that was killed from outside says nothing against its kernel."""
        process = self.started(folder)
        process.kill()
        process.communicate(timeout=30)

        other = ("check", "mine.py:norm", "--max-examples", "1")
        first, second = biprop(*other), biprop(*other)
        same = ("check", "bad.py:slow", "--signature", PLAIN, "--json", *SHORT)
        again, last = biprop(*same), biprop(*same)

        assert "An earlier check ended while it judged bad.py:slow" in first.err
        assert "the next check of bad.py:slow judges it again" in first.err
        assert first.err.count("\n") == 1
        assert not second.err
        assert "judged again, it gives" in again.err
        assert again.err.count("\n") == 1
        assert not last.err
        found = folder.glob(".hypothesis/found/*.json")
        verdicts = {json.loads(path.read_text())["expect"]["verdict"] for path in found}
        assert "CRASHES" not in verdicts
        assert "earlier_crashes" not in again.data

    def test_killed_check_whose_case_crashes_is_a_finding(self, folder: Path, biprop: Run) -> None:
        """Judged again it kills its worker: stored, with where that was, and exit code 1."""
        self.left(folder, "bad.py:segfault")

        words = ("--transforms", "T8", "--max-examples", "1", "--json")
        result = biprop("check", "bad.py:segfault", "--signature", FLAT, *words)

        assert "judged again, it crashes" in result.err
        assert result.code == 1
        (path,) = folder.glob(".hypothesis/found/*.json")
        stored = json.loads(path.read_text())
        assert result.data["earlier_crashes"] == [stored["id"]]
        assert stored["provenance"]["torch"]
        assert "SIGSEGV" in stored["expect"]["message"]
        command = result.err.split("`")[1]
        assert biprop(*command.split()[1:]).out.startswith("FAILED")

    def test_kernel_that_ends_its_check_twice_is_a_finding(
        self, folder: Path, preloaded: Preloaded
    ) -> None:
        """What kills the supervisor itself is judged once more, and not a third time."""
        (folder / "worse.py").write_text(
            "import os, signal\n\n"
            "def kill(x):\n"
            "    if x.shape[0] > 1:\n"
            "        os.kill(os.getppid(), signal.SIGKILL)\n"
            "    return x * 2\n"
        )
        words = ("check", "worse.py:kill", "--signature", FLAT, *SHORT)
        codes = [run_alone(*words, folder=folder, preloaded=preloaded).code for _ in range(2)]
        third = run_alone(*words, folder=folder, preloaded=preloaded)

        assert codes == [-signal.SIGKILL] * 2
        assert "a second check ended with it" in third.err
        (path,) = folder.glob(".hypothesis/found/*.json")
        stored = json.loads(path.read_text())
        assert (stored["expect"]["verdict"], stored["target"]) == ("CRASHES", "worse.py:kill")
        assert stored["expect"]["cause"]["transforms"] == ["T1"]
        assert stored["provenance"]["torch"]

    @staticmethod
    def left(folder: Path, target: str) -> None:
        """Leave what a check of a process that is gone was judging: a token beside another."""
        case = Case(
            dtype="float32",
            dims={},
            sequences=(LogicalSequence(id=0, length=1),),
            data={"x": Recipe(kind="zeros")},
            transforms=(TransformData(name="AddNeighbours", values={"count": 1}),),
        )
        journal = Journal(folder / ".hypothesis" / "inflight")
        with journal.entry(
            reference=KernelReference(operator=target, target=target, signature=FLAT),
            device="cpu",
            case_text=canonical_json(case_to_data(case)),
        ) as path:
            data = json.loads(path.read_text())
            ended = subprocess.Popen([sys.executable, "-c", ""])
            ended.wait()
            data["process"] = ended.pid
            path.with_name("inflight-0-1.json").write_text(json.dumps(data))


class TestPipes:
    """Readers that leave early."""

    def test_reader_that_leaves_is_no_error(self, biprop: Run, folder: Path) -> None:
        """`biprop show ID | head -1` ends without a traceback, and with the command's own code."""
        biprop("check", "mine.py:centre_wrongly", "--signature", ROW, *SHORT)
        (path,) = (folder / ".hypothesis" / "found").glob("*.json")
        read, write = os.pipe()
        os.close(read)

        done = subprocess.run(
            [sys.executable, "-m", "biprop", "show", str(path), "--issue"],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            timeout=60,
            check=False,
        )
        os.close(write)

        assert (done.returncode, done.stderr) == (0, "")
