"""What a callable's author says of it: the decorator, and the record behind it.

The same record comes of the options of a command line, so that both are checked alike. Nothing is
registered here: `biprop.registry` holds the operators that biprop knows.
"""

import inspect
import math
from collections.abc import Callable, Mapping

import attrs

from biprop.errors import SignatureError, TargetError, UsageError
from biprop.loading.targets import Function, checked_callable, one_line
from biprop.signature import (
    CallValue,
    Restrictions,
    Signature,
    parse_backward,
    parse_restrictions,
    parse_signature,
)
from biprop.signature.texts import INTEGER_MAX
from biprop.signature.words import fault_of_name, quoted

__all__ = ["SPEC_ATTRIBUTE", "OperatorSpec", "check_call", "operator", "operator_spec"]

# Where the decorator leaves its record.
SPEC_ATTRIBUTE = "__biprop__"
ALIGN_MAX = 4096
ALIGNS = tuple(2**power for power in range(ALIGN_MAX.bit_length()))

Decorator = Callable[[Function], Function]


@attrs.frozen(kw_only=True)
class OperatorSpec:
    """What `biprop check` must know of a callable, whoever says it.

    Attributes:
        signature: What it takes and returns.
        restrictions: Allowed dimensions, divisions of the signature included.
        align: Bytes to which it demands that its base pointers are aligned, a power of two.
        call: Fixed keyword arguments.
        backward: Callable that computes the gradients, None to differentiate the forward.
        backward_signature: Signature of `backward`, None without one.
    """

    signature: Signature
    restrictions: Restrictions = attrs.field(factory=Restrictions)
    align: int = 1
    call: dict[str, CallValue] = attrs.field(factory=dict, hash=False)
    backward: Function | None = None
    backward_signature: Signature | None = None

    def __attrs_post_init__(self) -> None:
        """Refuse an alignment that no address can have, and calls that no argument can take."""
        if self.align not in ALIGNS:
            raise UsageError(f"align={self.align!r}: write a power of two from 1 to {ALIGN_MAX}.")
        taken = {argument.name for argument in self.signature.arguments}
        for name, value in self.call.items():
            fault = fault_of_name(name)
            if fault:
                raise UsageError(f"call has the argument {name!r}, which {fault}: rename it.")
            if name in taken:
                raise UsageError(
                    f"call fixes {name}={value!r}, which the signature draws: "
                    f"take '{name}' out of one of the two."
                )
            if not _is_plain(value):
                raise UsageError(
                    f"call has {name}={quoted(str(value))} of type {type(value).__name__}: "
                    "write a finite number, True, False or None."
                )


def operator_spec(
    signature: str,
    *,
    dims: str = "",
    align: int = 1,
    call: Mapping[str, CallValue] | None = None,
    token_local: bool = False,
    backward: tuple[Function, str] | None = None,
) -> OperatorSpec:
    """Read everything that describes a callable, and refuse what does not fit together.

    Args:
        signature: Notation of `biprop.signature.parse_signature`.
        dims: Restrictions of the free dimensions, as `--dims` takes them.
        align: Bytes to which base pointers must be aligned.
        call: Fixed keyword arguments: numbers, True, False or None.
        token_local: The same as the option `; token_local` of the signature.
        backward: A callable and its backward signature.

    Raises:
        SignatureError: A signature cannot be read, or the two do not fit together.
        RestrictionError: The restrictions cannot be read, or do not fit the signature.
        UsageError: Another argument has a value that cannot be used.
    """
    read = parse_signature(signature)
    if token_local and not read.token_local:
        read = parse_signature(f"{read.text}; token_local")
    function, backward_signature = None, None
    if backward is not None:
        try:
            function, text = backward
        except (TypeError, ValueError) as error:
            raise UsageError("backward is no pair: write (function, signature).") from error
        checked_callable(function, what="The backward of @operator")
        backward_signature = parse_backward(text, read)
    return OperatorSpec(
        signature=read,
        restrictions=parse_restrictions(dims).check_against(read),
        align=align,
        call=dict(call or {}),
        backward=function,
        backward_signature=backward_signature,
    )


def operator(
    signature: str,
    *,
    dims: str = "",
    align: int = 1,
    call: Mapping[str, CallValue] | None = None,
    token_local: bool = False,
    backward: tuple[Function, str] | None = None,
) -> Decorator:
    """Describe a function where it is written, so that a check needs no options.

    The function itself is returned, with an `OperatorSpec` as attribute `__biprop__`; it is not
    registered anywhere.

    Args:
        signature: Notation of `biprop.signature.parse_signature`.
        dims: Restrictions of the free dimensions, as `--dims` takes them.
        align: Bytes to which base pointers must be aligned.
        call: Fixed keyword arguments: numbers, True, False or None.
        token_local: The same as the option `; token_local` of the signature.
        backward: A callable and its backward signature.

    Raises:
        SignatureError: A signature cannot be read, or does not fit its function.
        RestrictionError: The restrictions cannot be read, or do not fit the signature.
        TargetError: What is decorated is no function.
        UsageError: Another argument has a value that cannot be used.

    Example:
        >>> @operator("x[T,H], weight[H] -> y[T,H]", call={"eps": 1e-6})
        ... def scale(x, weight, *, eps):
        ...     return x * weight + eps
        >>> scale.__biprop__.signature.text
        'x[T,H], weight[H] -> y[T,H]'
    """
    spec = operator_spec(
        signature, dims=dims, align=align, call=call, token_local=token_local, backward=backward
    )

    def describe(function: Function) -> Function:
        name = getattr(function, "__name__", type(function).__name__)
        checked_callable(function, what=f"@operator on {quoted(name)}")
        check_call(function, spec, name=name)
        try:
            setattr(function, SPEC_ATTRIBUTE, spec)
        except (AttributeError, TypeError) as error:
            raise TargetError(
                f"@operator cannot mark {quoted(name)}, a {type(function).__name__} without "
                "attributes: wrap it in a function of your own."
            ) from error
        return function

    return describe


def check_call(function: Function, spec: OperatorSpec, *, name: str) -> None:
    """Refuse a function that cannot be called as its description says.

    Functions that do not tell their parameters, as many built-in ones, pass.

    Args:
        function: What will be called.
        spec: Its description.
        name: What the user calls it.

    Raises:
        SignatureError: The arguments and the fixed values do not fit the function's parameters.
    """
    calls = [(function, spec.signature, spec.call)]
    if spec.backward is not None and spec.backward_signature is not None:
        calls.append((spec.backward, spec.backward_signature, spec.call))
    for called, signature, call in calls:
        try:
            parameters = inspect.signature(called)
        except (TypeError, ValueError):
            continue
        names = [argument.name for argument in signature.arguments]
        try:
            parameters.bind(*names, **call)
        except TypeError as error:
            given = ", ".join([*names, *(f"{key}={value!r}" for key, value in call.items())])
            raise SignatureError(
                f"Function {quoted(name)} cannot be called as ({given}): {one_line(error)}, "
                "so correct the signature or the fixed arguments."
            ) from error


def _is_plain(value: object) -> bool:
    """Tell whether JSON and a command line can both carry the value of a fixed argument."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) <= INTEGER_MAX
    return value is None
