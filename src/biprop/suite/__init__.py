"""The suite: all cells of a registry at once, and assertions for other people's test suites.

What one cell is and how it is searched is the part of `biprop.strategies`; what was found is told
by `biprop.reports`. Here processes are started, and what became of each cell is put together.
"""

from biprop.suite.run import SuiteEvent, run_invariance_suite

__all__ = ["SuiteEvent", "run_invariance_suite"]
