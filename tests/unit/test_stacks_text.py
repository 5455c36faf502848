"""Reports of stacks in text: what drifts, by how much, and what that means."""

import json

import torch

from biprop.judgment import Verdict
from biprop.kvcache.stacks import (
    Finding,
    StackReport,
    issue_of,
    issues_of,
    meaning_of,
    report_from_data,
    text_of,
)
from biprop.kvcache.stacks.comparing import found
from biprop.kvcache.stacks.records import SCENARIOS
from biprop.kvcache.stacks.scenarios import RUNS, Pair

FINDING = Finding(
    scenario="generate",
    model="llama",
    dtype="float32",
    attention="eager",
    cache="dynamic",
    verdict=Verdict.VACUOUS,
)
EXPECTED = torch.tensor([[0.0, 1.0, 2.0], [3.0, -4.0, 5.0]])


def pair(got: torch.Tensor, expected: torch.Tensor = EXPECTED) -> Pair:
    """Return logits of tokens 7 and 8 of sequence 2."""
    following = torch.tensor([1, -1])
    return Pair(sequence=2, first=7, expected=expected, got=got, following=following)


def judged(got: torch.Tensor) -> Finding:
    """Return the finding of one pair that repeats itself."""
    return found(FINDING, [pair(got)], [pair(got)])


def changed(row: int, column: int, value: float) -> torch.Tensor:
    """Return the expected logits with one of them changed."""
    got = EXPECTED.clone()
    got[row, column] = value
    return got


def report(*findings: Finding) -> StackReport:
    """Return a report of findings."""
    return StackReport(
        stack="transformers",
        binding="bound",
        version="5.1",
        torch="2.13.0",
        device="cpu",
        arch_key="cpu-x86_64-avx2",
        seed=4,
        findings=findings,
    )


def test_every_scenario_is_run_and_has_a_meaning() -> None:
    """What is listed is what is run, and a reader is told what it means."""
    assert list(RUNS) == list(SCENARIOS)
    for name in SCENARIOS:
        finding = Finding(
            scenario=name,
            model="llama",
            dtype="float32",
            attention="eager",
            cache="dynamic",
            verdict=Verdict.DRIFTS,
        )
        assert meaning_of(finding).endswith(".")


def test_same_bits_hold() -> None:
    """Nothing differs, and the tokens are counted."""
    finding = judged(EXPECTED.clone())

    assert finding.verdict is Verdict.HOLDS
    assert (finding.tokens, finding.tokens_compared, finding.logits_compared) == (0, 2, 6)


def test_zeros_of_another_sign_drift() -> None:
    """Bits are compared, and no ULP lies between the two zeros."""
    finding = judged(changed(0, 0, -0.0))

    assert finding.verdict is Verdict.DRIFTS
    assert finding.difference is not None
    assert (finding.difference.token, finding.difference.ulps) == (7, 0)
    assert (finding.difference.expected_bits, finding.difference.got_bits) == (
        "0x00000000",
        "0x80000000",
    )


def test_distance_is_counted_in_floats() -> None:
    """The next float is one ULP away, across a power of two as well."""
    value = float(torch.nextafter(torch.tensor(-4.0), torch.tensor(0.0)))
    finding = judged(changed(1, 1, value))

    assert finding.difference is not None
    assert (finding.difference.token, finding.difference.logit) == (8, 1)
    assert (finding.difference.ulps, finding.difference.ulps_max) == (1, 1)
    # Token 8 is the last one, and no log probability of a next token hangs on it.
    assert (finding.tokens, finding.logp_tokens) == (1, 0)


def test_what_is_not_finite_has_no_distance() -> None:
    """A NaN that came is a difference like any other."""
    finding = judged(changed(0, 1, float("nan")))

    assert finding.verdict is Verdict.DRIFTS
    assert finding.difference is not None
    assert (finding.difference.ulps, finding.difference.max_abs_error) == (None, None)


def test_logits_that_tell_nothing_are_vacuous() -> None:
    """Where all tokens have the same logits, or none is finite, nothing could have shown."""
    same = torch.ones(2, 3)
    lost = torch.full((2, 3), float("nan"))

    for logits in (same, lost):
        pairs = [pair(logits.clone(), logits)]
        assert found(FINDING, pairs, pairs).verdict is Verdict.VACUOUS
    assert found(FINDING, [], []).verdict is Verdict.VACUOUS


def test_text_names_verdict_place_and_meaning() -> None:
    """One line a scenario, and below what the drifts mean."""
    text = text_of([report(judged(EXPECTED.clone()), judged(changed(0, 1, 1.5)))])

    assert text.splitlines()[0] == (
        "transformers 5.1: bound, torch 2.13.0, cpu (cpu-x86_64-avx2), seed 4: 1 HOLDS, 1 DRIFTS"
    )
    assert "    generate       HOLDS   2 tokens\n" in text
    assert (
        "    generate       DRIFTS  1 of 2 tokens, 1 of 6 logits; first at token 7 of sequence 2, "
        "logit 1: 1.0 (0x3f800000) against 1.5 (0x3fc00000), 4194304 ULP, max abs 0.5; "
        "1 log probabilities of next tokens differ, by at most 0.353 (a ratio of 1.42"
    ) in text
    assert "promises nothing, so none of them is a failure" in text


def test_absent_stack_is_one_line() -> None:
    """It says so, and nothing else."""
    absent = StackReport(stack="vllm", binding="absent", reason="vllm is not installed: so.")

    assert text_of([absent]) == "vllm: absent. vllm is not installed: so.\n"


def test_every_drift_has_its_block() -> None:
    """What holds has none; where nothing drifts, that is said."""
    held, drifted = judged(EXPECTED.clone()), judged(changed(0, 1, 1.5))

    assert issues_of([report(held, drifted, drifted)]).count("### transformers 5.1: DRIFTS") == 2
    assert issues_of([report(held)]) == "Nothing drifts.\n"


def test_issue_block_holds_the_finding_alone() -> None:
    """Difference, meaning, a way to see it, and the record of that one finding."""
    finding = judged(changed(0, 1, 1.5))
    whole = report(judged(EXPECTED.clone()), finding)
    block = issue_of(whole, finding)

    assert block.startswith("### transformers 5.1: DRIFTS, generate\n")
    assert "policy ratio is not 1 before the first update" in block
    assert "--scenario generate --seed 4 --device cpu\n" in block
    record = block.split("```json\n")[1].split("```")[0]
    assert report_from_data(json.loads(record)).findings == (finding,)
