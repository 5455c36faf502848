"""biprop: property-based fuzzing of the batch invariance of reinforcement-learning kernels.

The public names, each taken from the module that defines it when it is first asked for, so that
`import biprop` imports no torch. Nothing is defined here.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biprop.case import Case
    from biprop.data.recipe import Pairing, Point, Recipe
    from biprop.errors import (
        BackendError,
        BipropError,
        CaseError,
        ContractError,
        DeviceError,
        FixtureError,
        OutputError,
        RestrictionError,
        SignatureError,
        TargetError,
        UnsupportedError,
        UsageError,
    )
    from biprop.fixtures.records import Expect, Fixture
    from biprop.fixtures.replay import Replayed, replay
    from biprop.judgment import Cause, Outcome, Verdict
    from biprop.loading import operator
    from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Registry
    from biprop.reports.judged import (
        ForwardInvarianceReport,
        GradientInvarianceReport,
        JudgedReport,
    )
    from biprop.reports.records import CellReport, ClassCount, Finding
    from biprop.reports.suite import InvarianceReport
    from biprop.sequence import LogicalSequence
    from biprop.strategies.api import check_invariance
    from biprop.strategies.structured import cases, layouts, sequences
    from biprop.suite.assertions import (
        NotInvariantError,
        SuiteConfig,
        assert_forward_batch_invariant,
        assert_gradient_batch_invariant,
    )
    from biprop.suite.run import run_invariance_suite

__all__ = [
    "BackendError",
    "BipropError",
    "Case",
    "CaseError",
    "Cause",
    "CellReport",
    "ClassCount",
    "ContractError",
    "DeviceError",
    "Expect",
    "Finding",
    "Fixture",
    "FixtureError",
    "Form",
    "ForwardInvarianceReport",
    "GradientInvarianceReport",
    "Implementation",
    "InvarianceDeclaration",
    "InvarianceReport",
    "JudgedReport",
    "LogicalSequence",
    "NotInvariantError",
    "Operator",
    "Outcome",
    "OutputError",
    "Pairing",
    "Point",
    "Recipe",
    "Registry",
    "Replayed",
    "RestrictionError",
    "SignatureError",
    "SuiteConfig",
    "TargetError",
    "UnsupportedError",
    "UsageError",
    "Verdict",
    "assert_forward_batch_invariant",
    "assert_gradient_batch_invariant",
    "cases",
    "check_invariance",
    "layouts",
    "operator",
    "replay",
    "run_invariance_suite",
    "sequences",
]

# tests/unit/test_import.py keeps this map, the imports above and `__all__` the same.
_NAMES_BY_MODULE = {
    "biprop.case": ("Case",),
    "biprop.data.recipe": ("Pairing", "Point", "Recipe"),
    "biprop.errors": (
        "BackendError",
        "BipropError",
        "CaseError",
        "ContractError",
        "DeviceError",
        "FixtureError",
        "OutputError",
        "RestrictionError",
        "SignatureError",
        "TargetError",
        "UnsupportedError",
        "UsageError",
    ),
    "biprop.judgment": ("Cause", "Outcome", "Verdict"),
    "biprop.operators": ("Form", "Implementation", "InvarianceDeclaration", "Operator", "Registry"),
    "biprop.sequence": ("LogicalSequence",),
    "biprop.fixtures.records": ("Expect", "Fixture"),
    "biprop.fixtures.replay": ("Replayed", "replay"),
    "biprop.loading": ("operator",),
    "biprop.reports.judged": (
        "ForwardInvarianceReport",
        "GradientInvarianceReport",
        "JudgedReport",
    ),
    "biprop.reports.records": ("CellReport", "ClassCount", "Finding"),
    "biprop.reports.suite": ("InvarianceReport",),
    "biprop.strategies.api": ("check_invariance",),
    "biprop.strategies.structured": ("cases", "layouts", "sequences"),
    "biprop.suite.assertions": (
        "NotInvariantError",
        "SuiteConfig",
        "assert_forward_batch_invariant",
        "assert_gradient_batch_invariant",
    ),
    "biprop.suite.run": ("run_invariance_suite",),
}
_MODULE_BY_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> object:
    """Return the public `name` from its module, and keep it here."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'biprop' has no attribute {name!r}")
    value: object = getattr(import_module(_MODULE_BY_NAME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
