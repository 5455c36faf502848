"""Production stacks: transformers is bound, what it drifts by is told, and broken caches are seen.

No test here asks a stack to hold or to drift where its kernels decide: only storage must be true.
"""

import socket
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from biprop.errors import CaseError, UsageError
from biprop.judgment import Verdict
from biprop.kvcache.stacks import (
    STACKS,
    Choice,
    Finding,
    StackReport,
    report_from_data,
    report_to_data,
    run_stacks,
)
from biprop.kvcache.stacks import binding as binding_module
from biprop.kvcache.stacks.binding import binding_of
from biprop.kvcache.stacks.models import CACHE_MAKERS, CacheMaker, StackCache
from biprop.kvcache.stacks.records import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
# What copies and forgets tokens, and computes the same on both sides.
STORAGE = ("repeat", "fork", "reset", "crop")


def chosen(*scenarios: str, caches: tuple[str, ...] = ("dynamic",)) -> Choice:
    """Return a choice of one small float32 model."""
    return Choice(
        models=("llama",),
        dtypes=("float32",),
        attentions=("eager",),
        caches=caches,
        scenarios=scenarios,
    )


def verdicts(choice: Choice, cache: CacheMaker | None = None) -> dict[str, Verdict]:
    """Run scenarios of transformers, with another cache in the place of the dynamic one."""
    makers = dict(CACHE_MAKERS) if cache is None else {**CACHE_MAKERS, "dynamic": cache}
    (report,) = run_stacks(("transformers",), choice=choice, caches=makers)
    return {finding.scenario: finding.verdict for finding in report.findings}


def broken(**methods: Callable[..., object]) -> CacheMaker:
    """Return a maker of dynamic caches that have some methods of their own."""

    def make(package: ModuleType, configuration: object, _slots: int) -> StackCache:
        kind = type("Broken", (package.DynamicCache,), dict(methods))
        return cast("StackCache", kind(config=configuration))

    return make


def dynamic(cache: Any) -> Any:  # noqa: ANN401  # the stack's class, of which no types are read
    """Return the methods that a broken cache has above its own."""
    return super(type(cache), cache)


class TestTransformers:
    """The stack that must be bound wherever the tests run."""

    def test_is_bound(self) -> None:
        """It is installed, and it is run."""
        (report,) = run_stacks(("transformers",), choice=chosen("repeat"))

        assert (report.binding, report.reason) == ("bound", "")
        assert report.version
        assert [finding.verdict for finding in report.findings] == [Verdict.HOLDS]
        assert report.findings[0].tokens_compared > 0

    def test_asks_no_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A run in which no connection can be made gives the same, and its hub is off."""

        def refuse(*_: object) -> None:
            raise AssertionError("A connection was asked for.")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        (report,) = run_stacks(("transformers",), choice=chosen("repeat", "generate"))

        hub = sys.modules["huggingface_hub.constants"]
        assert hub.__dict__["HF_HUB_OFFLINE"] is True
        assert Verdict.CRASHES not in [finding.verdict for finding in report.findings]

    def test_stores_what_it_is_given(self) -> None:
        """Forks, resets and crops of both caches give the same bits as caches of their own."""
        choice = chosen(*STORAGE, caches=("dynamic", "static"))
        (report,) = run_stacks(("transformers",), choice=choice)

        assert {finding.verdict for finding in report.findings} == {Verdict.HOLDS}
        assert len(report.findings) == 2 * len(STORAGE)

    def test_every_scenario_runs(self) -> None:
        """Each scenario compares tokens, and none of them is an error."""
        choice = Choice(
            models=("qwen3",), dtypes=("bfloat16",), attentions=("sdpa",), caches=("static",)
        )
        (report,) = run_stacks(("transformers",), seed=3, choice=choice)

        assert [finding.scenario for finding in report.findings] == list(SCENARIOS)
        for finding in report.findings:
            assert finding.verdict in {Verdict.HOLDS, Verdict.DRIFTS}
            assert finding.tokens_compared > 0
            assert (finding.verdict is Verdict.DRIFTS) == (finding.difference is not None)

    def test_same_seed_gives_the_same_report(self) -> None:
        """Weights and tokens follow from the seed alone."""
        first, second = (run_stacks(("transformers",), choice=chosen("chunks")) for _ in range(2))

        assert first == second


class TestBrokenCaches:
    """What a defect of a cache looks like: each is one method away from the stack's own."""

    def test_reset_that_forgets_nothing_drifts(self) -> None:
        """The tokens of the sequence before are attended to."""
        cache = broken(reset=lambda _: None)

        assert verdicts(chosen(*STORAGE), cache) == {
            "repeat": Verdict.HOLDS,
            "fork": Verdict.HOLDS,
            "reset": Verdict.DRIFTS,
            "crop": Verdict.HOLDS,
        }

    def test_crop_that_takes_one_token_less_drifts(self) -> None:
        """One token that was taken back still counts."""
        cache = broken(crop=lambda self, count: dynamic(self).crop(count + 1))

        assert verdicts(chosen("reset", "crop"), cache) == {
            "reset": Verdict.HOLDS,
            "crop": Verdict.DRIFTS,
        }

    def test_copy_that_is_shared_drifts(self) -> None:
        """Forks that write to one cache attend to each other's tokens."""
        cache = broken(__deepcopy__=lambda self, _: self)

        assert verdicts(chosen("fork", "crop"), cache) == {
            "fork": Verdict.DRIFTS,
            "crop": Verdict.HOLDS,
        }

    def test_first_difference_is_where_the_defect_is(self) -> None:
        """Keys that are wrong from the second call on show at the first token of that call."""

        def update(self: Any, keys: Any, values: Any, *rest: Any, **more: Any) -> Any:  # noqa: ANN401
            is_first = dynamic(self).get_seq_length() == 0
            return dynamic(self).update(keys if is_first else -keys, values, *rest, **more)

        makers = {**CACHE_MAKERS, "dynamic": broken(update=update)}
        (report,) = run_stacks(("transformers",), choice=chosen("prefix"), caches=makers)

        (finding,) = report.findings
        assert finding.verdict is Verdict.DRIFTS
        assert finding.difference is not None
        assert (finding.difference.sequence, finding.difference.token) == (0, 12)
        assert finding.tokens == finding.tokens_compared
        assert finding.logp_tokens > 0
        assert finding.logp_max > 0.01

    def test_cache_that_differs_from_itself_is_called_that(self) -> None:
        """What changes from run to run is no drift."""
        calls = iter(range(1 << 20))

        def update(self: Any, keys: Any, values: Any, *rest: Any, **more: Any) -> Any:  # noqa: ANN401
            return dynamic(self).update(keys + next(calls) / 64, values, *rest, **more)

        assert verdicts(chosen("crop"), broken(update=update)) == {"crop": Verdict.NONDETERMINISTIC}

    def test_exception_is_told(self) -> None:
        """A cache that raises crashes its scenario, and no other."""

        def reset(_: object) -> None:
            raise RuntimeError("no  reset\nhere")

        makers = {**CACHE_MAKERS, "dynamic": broken(reset=reset)}
        (report,) = run_stacks(("transformers",), choice=chosen("reset", "crop"), caches=makers)

        assert [finding.verdict for finding in report.findings] == [Verdict.CRASHES, Verdict.HOLDS]
        assert report.findings[0].message == "RuntimeError: no reset here"


class TestAbsent:
    """Stacks of which nothing is known."""

    def test_missing_stack_is_absent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is run or claimed, and one line says why."""
        monkeypatch.setattr(binding_module, "find_spec", lambda _: None)
        reports = run_stacks()

        assert [report.stack for report in reports] == list(STACKS)
        assert {report.binding for report in reports} == {"absent"}
        assert all(report.reason.endswith(".") and not report.findings for report in reports)

    def test_stack_without_a_binding_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An importable stack that nothing here speaks to is not bound."""
        monkeypatch.setattr(binding_module, "find_spec", lambda _: object())

        assert binding_of("vllm")[0] == "not bound"
        assert binding_of("sglang")[0] == "not bound"
        assert binding_of("transformers") == ("bound", "")

    def test_unknown_names_are_refused(self) -> None:
        """One sentence names what there is."""
        with pytest.raises(UsageError, match=r"^There is no stack 'tgi': choose from transformers"):
            run_stacks(("tgi",))
        with pytest.raises(UsageError, match=r"^scenarios has no 'beam': choose from repeat, gen"):
            Choice(scenarios=("beam",))


def test_own_folder_is_no_package_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python finds the folder `kernels` of this repository, a stack that looks does not."""
    monkeypatch.delitem(sys.modules, "kernels", raising=False)
    monkeypatch.syspath_prepend(str(ROOT))

    assert find_spec("kernels") is not None
    with binding_module._hidden("kernels"):
        assert find_spec("kernels") is None
    assert find_spec("kernels") is not None


def test_reports_are_data() -> None:
    """A report comes back from JSON as it was, and what is none is refused in one sentence."""
    finding = Finding(
        scenario="crop",
        model="qwen3",
        dtype="bfloat16",
        attention="sdpa",
        cache="static",
        verdict=Verdict.HOLDS,
    )
    report = StackReport(stack="transformers", binding="bound", findings=(finding,))

    assert report_from_data(report_to_data(report)) == report
    with pytest.raises(CaseError, match=r"^The report of a stack cannot be read: .*\.$"):
        report_from_data({"stack": "transformers", "binding": "bounded"})
