"""The notation that describes any kernel in one line, and the texts that go with it.

Everything here is text and records, without torch: `biprop.layout` makes tensors of it,
`biprop.loading` imports what a target names.
"""

from biprop.signature.backward import parse_backward
from biprop.signature.parser import parse_signature
from biprop.signature.records import Argument, Dim, Kind, Layout, Operation, Signature, TokenAxis
from biprop.signature.restrictions import Domain, Remainder, Restrictions, parse_restrictions
from biprop.signature.texts import CallValue, Target, parse_call, parse_target

__all__ = [
    "Argument",
    "CallValue",
    "Dim",
    "Domain",
    "Kind",
    "Layout",
    "Operation",
    "Remainder",
    "Restrictions",
    "Signature",
    "Target",
    "TokenAxis",
    "parse_backward",
    "parse_call",
    "parse_restrictions",
    "parse_signature",
    "parse_target",
]
