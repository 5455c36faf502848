"""Callables of other people: found by name, and described by their authors.

What a target's text means is read by `biprop.signature`; operators that biprop ships are records of
`biprop.operators` and need none of this.
"""

from biprop.loading.constants import source_constants
from biprop.loading.description import (
    SPEC_ATTRIBUTE,
    OperatorSpec,
    check_call,
    operator,
    operator_spec,
)
from biprop.loading.targets import check_file, load_target
from biprop.loading.thresholds import source_thresholds

__all__ = [
    "SPEC_ATTRIBUTE",
    "OperatorSpec",
    "check_call",
    "check_file",
    "load_target",
    "operator",
    "operator_spec",
    "source_constants",
    "source_thresholds",
]
