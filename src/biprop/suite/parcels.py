"""Operators that no worker knows by name, sent to the processes that search them.

A worker builds the registry of the installation by itself. An operator that somebody changed, or
made for a test, must come with its functions: by pickle, which finds a function by its name.
"""

import io
import pickle
from types import FunctionType, MappingProxyType
from typing import Any

import attrs

from biprop.errors import TargetError
from biprop.kernels.deferred import deferred
from biprop.operators import CallValue, Operator, Registry

__all__ = ["Parcel", "packed", "unpacked"]

_STAND_IN = deferred("", "").__code__


@attrs.frozen(kw_only=True)
class Parcel:
    """A registry for another process.

    Attributes:
        data: Its operators, pickled.
        own: Names of those that the installation has not, or has otherwise.
    """

    data: bytes
    own: frozenset[str]


def packed(registry: Registry, installed: Registry) -> Parcel | None:
    """Return what another process must be sent; None where the installation has all of it.

    Raises:
        TargetError: A function of an operator cannot be found by its name.
    """
    known = {id(operator) for operator in installed.operators}
    own = [operator for operator in registry.operators if id(operator) not in known]
    if not own:
        return None
    for operator in own:
        _data((operator,), operator.name)
    return Parcel(
        data=_data(registry.operators, "of the registry"),
        own=frozenset(operator.name for operator in own),
    )


def unpacked(parcel: Parcel) -> Registry:
    """Return the registry of a parcel that this program has packed itself."""
    # S301: nothing but `packed` makes these bytes, and they go through a pipe to its own child.
    return Registry(operators=pickle.loads(parcel.data))  # noqa: S301


def _data(operators: tuple[Operator, ...], name: str) -> bytes:
    stream = io.BytesIO()
    try:
        _Pickler(stream).dump(operators)
    # A pickler says by errors of several classes what it cannot take.
    except (pickle.PicklingError, AttributeError, TypeError, ImportError) as error:
        raise TargetError(
            f"Operator {name} cannot be sent to a search process ({error}): define its functions "
            "at the top of a module that can be imported."
        ) from error
    return stream.getvalue()


def _read_only(values: dict[str, CallValue]) -> MappingProxyType[str, CallValue]:
    # The type itself is found by no name.
    return MappingProxyType(values)


class _Pickler(pickle.Pickler):
    """A pickler that knows the two things of an operator that pickle does not."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401  # as pickle declares it
        """Return how to make `value` again, where that is other than usual."""
        if isinstance(value, MappingProxyType):
            return (_read_only, (dict(value),))
        if isinstance(value, FunctionType) and value.__code__ is _STAND_IN:
            return (deferred, (value.__module__, value.__name__))
        return NotImplemented
