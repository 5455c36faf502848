"""Run the search of `biprop cache`, and say what it found.

What is written and how failures are shrunk is the part of `biprop.strategies.programs`; words for
people are made by `biprop.reports.programs`.
"""

import os
from pathlib import Path

import attrs

from biprop.case import Dtype, Json
from biprop.cli.progress import progress
from biprop.cli.session import Home
from biprop.fixtures.programs import ProgramFixture
from biprop.kvcache.records import CacheReference
from biprop.kvcache.shape import CacheLayout
from biprop.reports.program_records import CacheReport, cache_report_to_data
from biprop.reports.programs import render_cache_check
from biprop.strategies.profiles import ProfileName
from biprop.strategies.programs import InterruptedProgramsError, search_programs
from biprop.supervision import Child
from biprop.supervision.programs import SupervisedPrograms

__all__ = ["CacheRequest", "CacheSearched", "run_cache_search"]

_INTERRUPTED = 130


@attrs.frozen(kw_only=True)
class CacheRequest:
    """Options of `biprop cache`, read and in range.

    Attributes:
        reference: The cache.
        layout: Of the pages.
        dtype: Of queries, keys and values.
        storage: Of what is stored; None: drawn.
        device: Where it runs.
        max_programs: None: as the profile says.
        steps: Operations of the longest program; None: as the lane says.
        seed: Of the search.
        profile: How thorough it is.
        timeout: Seconds after which an operation counts as hung.
        home: Where it writes.
        quiet: Whether no live line is shown.
    """

    reference: CacheReference
    layout: CacheLayout
    dtype: Dtype
    storage: Dtype | None
    device: str
    max_programs: int | None
    steps: int | None
    seed: int
    profile: ProfileName
    timeout: float
    home: Home
    quiet: bool


@attrs.frozen(kw_only=True)
class CacheSearched:
    """What a search found.

    Attributes:
        report: It.
        interrupted: Whether Ctrl-C or SIGTERM ended it.
    """

    report: CacheReport
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """The code of the report; 130 where it was stopped."""
        return _INTERRUPTED if self.interrupted else self.report.exit_code

    def data(self) -> dict[str, Json]:
        """Return it as one JSON object."""
        return {
            **cache_report_to_data(self.report),
            "exit_code": self.exit_code,
            "interrupted": self.interrupted,
        }

    def text(self, *, by_path: bool) -> str:
        """Return it for people."""
        return render_cache_check(self.report, by_path=by_path)


def run_cache_search(request: CacheRequest) -> CacheSearched:
    """Search a cache.

    Raises:
        BipropError: The cache cannot be found or run; the sentence says why.
    """
    # A second folder of that name would appear where the command was run from.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(request.home.folder))

    def keep(fixture: ProgramFixture) -> str:
        path, folder = request.home.store.save(fixture), Path.cwd().resolve()
        return str(path.relative_to(folder) if path.is_relative_to(folder) else path)

    child = Child(device=request.device)
    try:
        judge = SupervisedPrograms(
            request.reference, device=request.device, timeout=request.timeout, child=child
        )
        title = f"{request.reference.cache} {request.layout} {request.dtype}"
        with progress(title, quiet=request.quiet) as tell:
            report = search_programs(
                judge,
                layout=request.layout,
                dtype=request.dtype,
                storage=request.storage,
                device=request.device,
                profile=request.profile,
                max_programs=request.max_programs,
                steps=request.steps,
                seed=request.seed,
                keep=keep,
                on_event=tell,
            )
    except InterruptedProgramsError as error:
        return CacheSearched(report=error.report, interrupted=True)
    finally:
        child.close()
    return CacheSearched(report=report)
