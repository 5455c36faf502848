"""Run an item: search a cell, or replay a committed fixture, in one worker process for all.

What a failing item prints is the report's text and nothing else. What was seen is kept as
properties of the item, which also reach the controller of parallel runs.
"""

import json
import secrets
from typing import NoReturn

import attrs
import pytest

from biprop.contract import load_contract
from biprop.data.words import hash_words
from biprop.errors import BipropError
from biprop.fixtures.records import CONVERTER, Fixture
from biprop.fixtures.replay import Replayed, replay
from biprop.fixtures.store import FOUND, Store
from biprop.judgment import Verdict
from biprop.pytest_plugin.caches import CacheItem
from biprop.pytest_plugin.caches_running import check_cache_item
from biprop.pytest_plugin.cells import FixtureItem, Item, notes_of
from biprop.pytest_plugin.devices import device_of
from biprop.pytest_plugin.environment import profile_name
from biprop.pytest_plugin.summary import PROPERTY
from biprop.reports.records import CellReport
from biprop.reports.text import render_check, render_finding, render_replay
from biprop.strategies.cells import Cell
from biprop.strategies.profiles import PROFILES, Profile
from biprop.strategies.search import search
from biprop.strategies.spaces import lane_of, space_for
from biprop.supervision import Child, SupervisedJudge

__all__ = ["PropsRun"]


@attrs.frozen(kw_only=True, eq=False)
class PropsRun:
    """What the items of one process share.

    Attributes:
        child: Worker process for all kernels.
        profile: How thorough searches are.
        max_examples: Instead of what the profile says.
        seconds_max: After which a cell draws no further example, or after ten times as long where
            evidence is lacking; None: no limit.
        found: Where findings are stored.
        notes: What is listed and not run, as it is told at the end.
    """

    child: Child
    profile: Profile
    max_examples: int | None
    seconds_max: float | None
    found: Store
    notes: dict[str, object]

    @classmethod
    def of(cls, config: pytest.Config) -> "PropsRun":
        """Return the run of a process; no worker is started yet.

        Raises:
            pytest.UsageError: An option cannot be used.
        """
        count = config.getoption("--biprop-max-examples")
        if count is not None and count < 1:
            raise pytest.UsageError(f"--biprop-max-examples {count} is too small: give 1 or more.")
        seconds = config.getoption("--biprop-max-seconds")
        if seconds is not None and not seconds > 0:
            raise pytest.UsageError(
                f"--biprop-max-seconds {seconds} is too small: give more than 0."
            )
        names = {
            name: profile for name, profile in PROFILES.items() if name == profile_name(config)
        }
        (profile,) = names.values()
        return cls(
            child=Child(device=device_of(config), threads=1),
            profile=profile,
            max_examples=count,
            seconds_max=seconds,
            found=Store(config.rootpath / FOUND),
            notes=attrs.asdict(notes_of(config)),
        )

    def close(self) -> None:
        """End the worker."""
        self.child.close()

    def check(self, item: Item, record: list[tuple[str, object]]) -> None:
        """Run an item; fail, skip or xfail the test that called.

        Args:
            item: What to run.
            record: Properties of the test (`request.node.user_properties`).
        """
        if isinstance(item, Cell):
            self._check_cell(item, record)
        else:
            self._check_fixture(item, record)

    def check_cache(self, item: CacheItem, record: list[tuple[str, object]]) -> None:
        """Run an item of a cache, likewise."""
        check_cache_item(self, item, record)

    def _check_cell(self, cell: Cell, record: list[tuple[str, object]]) -> None:
        try:
            report = self._search(cell)
        except BipropError as error:
            self.fail(f"{cell.id}: {error}")
        self.keep(record, kind="cell", id=cell.id, report=CONVERTER.unstructure(report))
        if report.verdict is Verdict.UNSUPPORTED:
            pytest.skip(f"{cell.id} needs something else: {report.message}")
        if report.findings:
            texts = [
                render_finding(finding, chain_index=report.chain_index)
                for finding in report.findings
            ]
            self.fail("\n".join(texts))
        if report.verdict is not Verdict.HOLDS:
            self.fail(render_check(report))

    def _search(self, cell: Cell) -> CellReport:
        judge = SupervisedJudge(
            reference=cell.reference,
            device=self.child.device,
            dtype=cell.dtype,
            direction=cell.direction,
            child=self.child,
        )
        with judge:
            space = space_for(
                judge.reference,
                judge.description,
                dtype=cell.dtype,
                direction=cell.direction,
                profile=self.profile,
                contract=load_contract(),
            )
            return search(
                judge,
                space,
                device=self.child.device,
                lane=lane_of(judge.description),
                profile=self.profile,
                max_examples=self.max_examples,
                seconds_max=self.seconds_max,
                seed=hash_words(cell.id) if self.profile.derandomized else secrets.randbits(32),
                keep=lambda fixture: str(self.found.save(fixture)),
            )

    def _check_fixture(self, item: FixtureItem, record: list[tuple[str, object]]) -> None:
        if item.fixture is None:
            self.fail(item.fault)
        replayed = replay(item.fixture, self._open)
        failed = replayed.status in {"FAILED", "DIFFERENT"}
        known = item.known
        self.keep(
            record,
            kind="fixture",
            id=item.id,
            status=replayed.status,
            known="" if known is None else f"{known.reason} ({known.link})",
            unexpected=known is not None and replayed.status == "FIXED",
        )
        if replayed.status == "ERROR":
            self.fail(render_replay(replayed))
        if failed and known is not None:
            pytest.xfail(f"{known.reason} ({known.link})")
        if failed:
            self.fail(_words(replayed))

    def _open(self, fixture: Fixture) -> SupervisedJudge:
        return SupervisedJudge(
            reference=fixture.reference,
            device=self.child.device,
            dtype=fixture.dtype,
            direction=fixture.direction,
            execution=fixture.case.execution,
            # What deterministic algorithms need is told to a process when it starts.
            child=None if fixture.case.execution.deterministic_algorithms else self.child,
        )

    def keep(self, record: list[tuple[str, object]], **values: object) -> None:
        """Leave what an item showed as a property of its test."""
        record.append((PROPERTY, json.dumps({**values, "notes": self.notes})))

    def fail(self, text: str) -> NoReturn:
        """Fail the test that called, with `text` and no traceback.

        Where in biprop it was raised says nothing about the kernel.
        """
        pytest.fail(text, pytrace=False)


def _words(replayed: Replayed) -> str:
    return f"A committed fixture of a declared operator fails.\n{render_replay(replayed)}"
