"""README.md shows only what works: its commands are run, its Python too, and answers are compared.

What may differ between machines and versions (ids, counts, seconds, values) is left out of the
comparison; verdicts, exit codes and the form of a difference are not.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import attrs
import click
import pytest
from tests.preloaded import Preloaded

from biprop.cli.main import app

README = Path(__file__).resolve().parents[2] / "README.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IDENTITY = re.compile(r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{8}\b")
# Lines that say the same on every machine, once numbers and ids are masked.
STABLE = re.compile(
    r"(?:[A-Z]{4,}|biprop\b|Kept\b|recorded|canonical  |transformed  |\d$"
    r"|  (?:first|transform) | {13}(?:canonical|transformed) |  proof +confirmed)"
)


@attrs.frozen(kw_only=True)
class Step:
    """A command of a console block.

    Attributes:
        command: As a shell reads it.
        shown: The lines of its answer, `...` where some are left out.
    """

    command: str
    shown: tuple[str, ...]


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return [text for found, text in FENCE.findall(README.read_text()) if found == language]


def steps() -> list[Step]:
    """Return the commands of all console blocks, in order."""
    found: list[Step] = []
    for block in blocks("console"):
        lines = iter(block.splitlines())
        for line in lines:
            if line.startswith("$ "):
                command = line[2:]
                while command.endswith("\\"):
                    command = f"{command[:-1]}{next(lines).strip()}"
                found.append(Step(command=command, shown=()))
            else:
                found[-1] = attrs.evolve(found[-1], shown=(*found[-1].shown, line))
    return found


def form(line: str) -> str:
    """Return a line without what may differ from machine to machine."""
    # Said to be an id, it may have digits alone.
    line = re.sub(r"\bid [0-9a-f]{8}\b", "id ID", line)
    line = re.sub(r"0x[0-9a-f]+", "0x", IDENTITY.sub("ID", line))
    # Which of several equal minima is reached, and what its values are, may differ.
    line = re.sub(r"\[K=\d+\]|-?\d[\d.e-]*(?: ULP apart)?|\b(?:inf|nan)\b", "#", line)
    return " ".join(line.split())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preloaded: Preloaded) -> Path:
    """Work in an empty project, where `biprop` and `python` are those of this test."""
    tools = tmp_path / "bin"
    tools.mkdir()
    preloaded.write_tool(tools / "python")
    preloaded.write_tool(tools / "biprop", "-m", "biprop")
    folder = tmp_path / "project"
    (folder / ".hypothesis").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    for text in blocks("python"):
        if text.startswith("# my_kernels.py\n"):
            (folder / "my_kernels.py").write_text(text)
    return folder


def test_session_answers_as_shown(project: Path) -> None:
    """Every command of the console blocks, in one shell, answers in the form that is shown."""
    session = steps()
    assert len(session) > 8
    ids: dict[str, str] = {}
    code = 0
    for step in session:
        command = IDENTITY.sub(lambda match: ids.get(match[0], match[0]), step.command)
        done = subprocess.run(
            ["/bin/sh", "-c", f"(exit {code}); {command}"],
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=170,
            check=False,
        )
        code = done.returncode
        answered = done.stdout.splitlines()
        _compare(step, answered)
        # A finding may have another id on another processor.
        shown_ids = [match for line in step.shown for match in IDENTITY.findall(line)]
        real_ids = [match for line in answered for match in IDENTITY.findall(line)]
        for shown, real in zip(dict.fromkeys(shown_ids), dict.fromkeys(real_ids), strict=False):
            ids.setdefault(shown, real)


def _compare(step: Step, answered: list[str]) -> None:
    expected = [form(line) for line in step.shown if STABLE.match(line)]
    found = {form(line) for line in answered}
    missing = [line for line in expected if line not in found]
    assert not missing, (step.command, missing, answered)
    if step.shown and step.shown[-1] != "...":
        # The last line is where a check gives its verdict.
        assert form(step.shown[-1]) == form(answered[-1]), (step.command, answered)
    if not step.shown:
        assert not answered, (step.command, answered)


@pytest.mark.parametrize("index", range(len(blocks("python"))))
def test_python_runs(index: int, project: Path, preloaded: Preloaded) -> None:
    """Each Python block is a whole script."""
    done = preloaded.run("-c", blocks("python")[index], cwd=project)

    assert done.returncode == 0, done.stderr


def test_every_command_and_option_exists() -> None:
    """What is shown, in blocks and in the text, is known to the program."""
    inline = re.findall(r"`(biprop [^`]+)`", README.read_text())
    shown = [step.command for step in steps()] + inline
    commands = [words for text in shown if (words := shlex.split(text))[0] == "biprop"]

    assert {words[1] for words in commands} == set(app.commands)
    for words in commands:
        options = {
            option
            for parameter in app.commands[words[1]].params
            if isinstance(parameter, click.Option)
            for option in parameter.opts
        }
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= options | {"--help"}, words


def test_help_names_every_option_with_a_sentence() -> None:
    """No option of a command is without a help text."""
    without = [
        (name, parameter.name)
        for name, command in app.commands.items()
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]

    assert not without
