"""Run the searches of one check, and print what they found.

One direction after the other, in one worker. What is drawn and how failures are shrunk is the part
of `biprop.strategies`; words for people are made by `biprop.reports`.
"""

import os
from collections.abc import Callable
from pathlib import Path

import attrs

from biprop.case import Json
from biprop.cli.leftovers import judge_leftovers
from biprop.cli.options import Side
from biprop.cli.output import complain
from biprop.cli.progress import progress
from biprop.cli.request import Request
from biprop.contract import load_contract
from biprop.fixtures.records import Fixture
from biprop.reports.records import CellReport, cell_report_to_data
from biprop.reports.text import render_check
from biprop.strategies.profiles import PROFILES
from biprop.strategies.search import InterruptedSearchError, search
from biprop.strategies.spaces import lane_of, space_for
from biprop.supervision import Child, Journal, SupervisedJudge

__all__ = ["Searched", "run_searches"]

_INTERRUPTED = 130
# A violation says most; what could not be judged says more than what held.
_RANK = {0: 0, 3: 1, 2: 2, 1: 3}


@attrs.frozen(kw_only=True)
class Searched:
    """What the searches of one check found.

    Attributes:
        reports: One a direction.
        exempt_reason: Why a registered operator promises nothing; empty for others.
        interrupted: Whether Ctrl-C or SIGTERM ended them.
        earlier: Ids of cases that an earlier check was judging when it was ended, and that crash.
    """

    reports: tuple[CellReport, ...]
    exempt_reason: str = ""
    interrupted: bool = False
    earlier: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The code of the worst direction; 130 where it was stopped."""
        if self.interrupted:
            return _INTERRUPTED
        return 1 if self.earlier else self._worst().exit_code

    def data(self) -> dict[str, Json]:
        """Return it as one object: a cell, or both of them under `directions` and their sum."""
        cells = [cell_report_to_data(report) for report in self.reports]
        together: dict[str, Json] = {"exit_code": self.exit_code, "interrupted": self.interrupted}
        if self.exempt_reason:
            together["exempt_reason"] = self.exempt_reason
        if self.earlier:
            together["earlier_crashes"] = list(self.earlier)
        if len(cells) == 1:
            return {**cells[0], **together}
        causes: list[Json] = []
        for cell in cells:
            found = cell["causes"]
            assert isinstance(found, list)
            causes += found
        return {
            "verdict": self._worst().verdict.value,
            **together,
            "causes": causes,
            "examples": sum(report.examples for report in self.reports),
            "launches": sum(report.launches for report in self.reports),
            "seconds": sum(report.seconds for report in self.reports),
            "directions": list(cells),
        }

    def _worst(self) -> CellReport:
        return max(self.reports, key=lambda report: _RANK[report.exit_code])


def run_searches(
    request: Request, *, tell: Callable[[str], None] | None = None, by_path: bool = False
) -> Searched:
    """Search each direction.

    Args:
        request: What is searched.
        tell: Gets the text of each direction when it ends; None: nobody does.
        by_path: Whether texts name fixtures by their paths, as where ids would not be found.

    Raises:
        BipropError: The kernel cannot be found or run; the sentence says why.
        KeyboardInterrupt: It was stopped before there was anything to report.
    """
    # A second folder of that name would appear where the command was run from.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(request.home.folder))
    journal = Journal(request.home.folder / "inflight")
    earlier = judge_leftovers(journal, request, tell=complain)
    reports: list[CellReport] = []
    exempt_reason, interrupted = "", False

    def add(report: CellReport) -> None:
        if tell is not None:
            before = "\n" if reports else f"Exempt: {exempt_reason}\n\n" if exempt_reason else ""
            tell(before + render_check(report, by_path=by_path))
        reports.append(report)

    child = Child(
        device=request.device,
        threads=request.execution.threads,
        is_deterministic=request.execution.deterministic_algorithms,
    )
    try:
        for direction in request.directions:
            judge = _judge(request, direction, child, journal)
            exempt_reason = judge.description.exempt_reason or ""
            add(_search(request, judge, direction))
    except InterruptedSearchError as error:
        add(error.report)
        interrupted = True
    except KeyboardInterrupt:
        # Between two directions: the first one is told all the same.
        if not reports:
            raise
        complain("Stopped by Ctrl-C or SIGTERM.")
        interrupted = True
    finally:
        child.close()
    return Searched(
        reports=tuple(reports),
        exempt_reason=exempt_reason,
        interrupted=interrupted,
        earlier=earlier,
    )


def _judge(request: Request, direction: Side, child: Child, journal: Journal) -> SupervisedJudge:
    return SupervisedJudge(
        reference=request.reference,
        device=request.device,
        timeout=request.timeout,
        dtype=request.dtype,
        direction=direction,
        execution=request.execution,
        child=child,
        journal=journal,
    )


def _search(request: Request, judge: SupervisedJudge, direction: Side) -> CellReport:
    profile = PROFILES[request.profile]
    space = space_for(
        judge.reference,
        judge.description,
        dtype=request.dtype,
        direction=direction,
        transforms=request.classes,
        profile=profile,
        execution=request.execution,
        contract=load_contract(),
    )

    def keep(fixture: Fixture) -> str:
        return _shown(request.home.store.save(fixture))

    title = f"{judge.reference.operator} {request.dtype} {direction}"
    with progress(title, quiet=request.quiet) as tell:
        return search(
            judge,
            space,
            device=request.device,
            lane=lane_of(judge.description),
            profile=profile,
            max_examples=request.max_examples,
            seed=request.seed,
            keep=keep,
            on_event=tell,
        )


def _shown(path: Path) -> str:
    """Return a path as one would type it here."""
    folder = Path.cwd().resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
