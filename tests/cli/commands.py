"""Commands as tests run them: what they answer, and a process of their own where it must be one.

Commands that run in the test's own process are a fixture of `tests/cli/conftest.py`.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
from tests.preloaded import Preloaded

__all__ = ["Result", "Run", "one_sentence", "run_alone"]


@attrs.frozen(kw_only=True)
class Result:
    """What a command did.

    Attributes:
        code: Its exit code.
        out: What it wrote to standard output.
        err: Likewise to standard error.
    """

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, object]:
        """The one JSON object that it printed."""
        data = json.loads(self.out)
        assert isinstance(data, dict)
        return data

    @property
    def causes(self) -> list[dict[str, object]]:
        """What its JSON object lists as causes."""
        causes = self.data["causes"]
        assert isinstance(causes, list)
        return causes

    @property
    def verdict(self) -> str:
        """First word of the last line, which is where a check says it."""
        return self.out.splitlines()[-1].split()[0]


# Takes the words of a command; `text` is its standard input.
Run = Callable[..., Result]


def run_alone(
    *arguments: str,
    folder: Path,
    preloaded: Preloaded,
    text: str = "",
    variables: Mapping[str, str] | None = None,
    timeout: float = 170,
) -> Result:
    """Run `python -m biprop` in a process of its own, which has torch already."""
    words = ("-m", "biprop", *arguments)
    done = preloaded.run(*words, cwd=folder, env=variables, text=text, timeout=timeout)
    return Result(code=done.returncode, out=done.stdout, err=done.stderr)


def one_sentence(result: Result) -> str:
    """Return the only line of a refusal."""
    assert result.code == 2, result
    assert not result.out
    assert result.err.startswith("biprop: ")
    assert result.err.endswith((".\n", "?\n", ")\n"))
    assert result.err.count("\n") == 1
    return result.err
