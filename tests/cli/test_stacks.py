"""`biprop stacks`: what production caches drift by is told, and fails nothing."""

import json

import pytest
from tests.cli.commands import Run

ONE = ("--model", "llama", "--dtype", "float32", "--attention", "eager", "--cache", "dynamic")


def test_scenarios_are_told_and_nothing_fails(biprop: Run) -> None:
    """Each has a line with its verdict; what is not installed is absent, and claims nothing."""
    asked = ("--scenario", "repeat", "--scenario", "chunks")
    result = biprop("stacks", *ONE, *asked)

    assert result.code == 0
    assert "transformers 5" in result.out
    assert "repeat         HOLDS" in result.out
    assert "chunks" in result.out
    assert "vllm: absent" in result.out
    assert "sglang: absent" in result.out


def test_object_holds_every_finding(biprop: Run) -> None:
    """With --json, one object a stack."""
    result = biprop("stacks", "transformers", *ONE, "--scenario", "crop", "--json")

    (data,) = json.loads(result.out)["stacks"]
    assert (data["stack"], data["binding"]) == ("transformers", "bound")
    assert [finding["scenario"] for finding in data["findings"]] == ["crop"]


def test_drifts_are_told_as_blocks_for_issues(biprop: Run) -> None:
    """With --issue, each has its block, with the command that shows it again."""
    asked = ("--model", "llama", "--dtype", "bf16", "--attention", "sdpa", "--cache", "dynamic")
    result = biprop("stacks", "transformers", *asked, "--scenario", "generate", "--issue")

    assert result.code == 0
    assert result.out.startswith("### transformers 5")
    assert (
        "biprop stacks transformers --model llama --dtype bfloat16 --attention sdpa "
        "--cache dynamic --scenario generate --seed 0 --device cpu\n" in result.out
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nosuch",), "There is no stack 'nosuch'"),
        (("--model", "gpt"), "has no 'gpt': choose from llama, qwen3"),
        (("--scenario", "tea"), "has no 'tea'"),
        (("--scenario", "room", "--cache", "dynamic"), "choose the static cache"),
        (("--dtype", "int8"), "--dtype 'int8' is unknown"),
        (("--device", "tpu"), "--device 'tpu' is unknown"),
        (("--device", "cuda:99"), "Device 'cuda:99' cannot be used here"),
    ],
)
def test_wrong_use_is_one_sentence(biprop: Run, words: tuple[str, ...], sentence: str) -> None:
    """Exit code 2, and what can be chosen."""
    result = biprop("stacks", *words)

    assert result.code == 2
    assert sentence in result.err
    assert result.err.count("\n") == 1
