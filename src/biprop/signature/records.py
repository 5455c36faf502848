"""Signatures as records: what a kernel takes and returns, per axis and kind.

Records only answer questions about themselves and print themselves: `biprop.signature.parser` reads
the notation, `biprop.signature.rules` decides whether it makes sense, `biprop.layout` gives the
arguments values, and `biprop.operators` joins a signature with a callable.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal, get_args

import attrs

from biprop.errors import SignatureError

__all__ = [
    "DTYPE_KINDS",
    "FLOAT_KINDS",
    "KINDS",
    "TOKEN_AXES",
    "VALUE_KINDS",
    "Argument",
    "Dim",
    "Kind",
    "Layout",
    "Operation",
    "Signature",
    "TokenAxis",
]

Kind = Literal[
    "float",
    "float64",
    "float32",
    "bfloat16",
    "float16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "token",
    "position",
    "mask",
    "causal_mask",
    "lengths",
    "offsets",
    "max_length",
    "order",
    "is_causal",
    "scalar",
]
Layout = Literal["packed", "padded", "query_context", "packed_query_context"]
TokenAxis = Literal["T", "S", "Q", "TQ", "C", "TC", "B"]
Operation = Literal["", "*", "/", "+"]

KINDS: tuple[Kind, ...] = get_args(Kind)
FLOAT_KINDS: tuple[Kind, ...] = ("float", "float64", "float32", "bfloat16", "float16")
# Tensors whose values are drawn, of the case's dtype or of the dtype that the kind names.
DTYPE_KINDS: tuple[Kind, ...] = (*FLOAT_KINDS, "int64", "int32", "int16", "int8", "uint8", "bool")
# Handed over as Python values, not as tensors.
VALUE_KINDS: tuple[Kind, ...] = ("max_length", "is_causal", "scalar")
# The first of these that an argument has is its token axis: a query before the context it reads,
# slots before the rows they lie in.
TOKEN_AXES: tuple[TokenAxis, ...] = get_args(TokenAxis)


@attrs.frozen(kw_only=True)
class Dim:
    """One dimension: `H`, `8`, `H*2`, `H/2` or `B+1`.

    Attributes:
        name: Axis or free dimension, None if the size is fixed.
        operation: What is done with the size of the name, empty if nothing.
        number: The fixed size, or the operand; 1 if there is neither.
    """

    name: str | None
    operation: Operation = ""
    number: int = 1

    @property
    def text(self) -> str:
        """The dimension as the notation writes it."""
        if self.name is None:
            return str(self.number)
        return f"{self.name}{self.operation}{self.number}" if self.operation else self.name

    def size(self, sizes: Mapping[str, int]) -> int:
        """Return the size of the dimension, given the sizes of the names.

        Raises:
            SignatureError: The name has no size, or a division is not whole.
        """
        if self.name is None:
            return self.number
        if self.name not in sizes:
            raise SignatureError(
                f"Dimension {self.text} has no size: give {self.name} a size of 1 or more."
            )
        size = sizes[self.name]
        if self.operation == "*":
            return size * self.number
        if self.operation == "+":
            return size + self.number
        if self.operation == "/":
            if size % self.number:
                raise SignatureError(
                    f"Dimension {self.text} is not whole for {self.name}={size}: "
                    f"restrict it with {self.name}%{self.number}==0."
                )
            return size // self.number
        return size


@attrs.frozen(kw_only=True)
class Argument:
    """One argument or one output of a signature.

    Attributes:
        name: Name of the tensor or value, `_` for an output that is ignored.
        kind: What it holds; `float` is a tensor of the case's dtype.
        parameter: What stands in parentheses after the kind: the range of `token(V)`, the axis that
            `lengths`, `offsets` and `max_length` measure (`T`, `S`, `Q` or `C`, filled in where the
            text leaves it out), the dtype of an additive `causal_mask(float)`.
        dims: Dimensions in storage order, empty for Python values and ignored outputs.
        marked: Written with `!`: the callable writes into it.
        ignored: An output that is returned and not compared.
    """

    name: str
    kind: Kind = "float"
    parameter: str | None = None
    dims: tuple[Dim, ...] = ()
    marked: bool = False
    ignored: bool = False

    @property
    def text(self) -> str:
        """The argument as the notation writes it, without what can be left out."""
        if self.ignored:
            return self.name
        # Only one axis can be meant by lengths of a packed or padded signature.
        shown = self.parameter not in {None, "T", "S"}
        kind = f"{self.kind}({self.parameter})" if shown else self.kind
        # A float tensor that is named as a kind says that it is meant to be one.
        bare = self.kind == "float" and self.name not in KINDS
        return "".join(
            (
                self.name,
                "!" if self.marked else "",
                "" if bare else f": {kind}",
                f"[{','.join(dim.text for dim in self.dims)}]" if self.dims else "",
            )
        )

    @cached_property
    def token_axis(self) -> TokenAxis | None:
        """The axis along which its tokens lie, `B` for one value a sequence, None without any."""
        names = {dim.name for dim in self.dims}
        return next((axis for axis in TOKEN_AXES if axis in names), None)

    @cached_property
    def free_dims(self) -> tuple[Dim, ...]:
        """The dimensions that are no token axis, fixed sizes included."""
        return tuple(dim for dim in self.dims if dim.name not in TOKEN_AXES)

    @property
    def is_float(self) -> bool:
        """True for a float tensor, of the case's dtype or of its own."""
        return self.kind in FLOAT_KINDS and not self.ignored

    @property
    def is_parameter(self) -> bool:
        """True for a float tensor that the whole batch shares; an accumulator is none."""
        return self.is_float and self.token_axis is None and not self.marked

    @property
    def is_supplied_output(self) -> bool:
        """True for an output that the caller allocates; it is poisoned before the launch."""
        return self.marked and self.name.startswith("out")

    @property
    def is_mutated(self) -> bool:
        """True for an input that the callable changes in place."""
        return self.marked and not self.is_supplied_output


@attrs.frozen(kw_only=True)
class Signature:
    """What a callable takes and returns; `parse_signature(signature.text)` is equal to it.

    Attributes:
        arguments: Positional arguments, in order.
        outputs: Returned values, in order, ignored ones included.
        token_local: Every token is independent of the others of its row.
    """

    arguments: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    token_local: bool = False

    @property
    def text(self) -> str:
        """The signature in the notation, normalised."""
        arguments = ", ".join(argument.text for argument in self.arguments)
        outputs = ", ".join(output.text for output in self.outputs)
        option = "; token_local" if self.token_local else ""
        return f"{arguments} -> {outputs}".rstrip() + option

    @cached_property
    def layout(self) -> Layout:
        """How tokens lie in the tensors."""
        names = {dim.name for item in (*self.arguments, *self.outputs) for dim in item.dims}
        if "T" in names:
            return "packed"
        if "S" in names:
            return "padded"
        return "query_context" if names & {"Q", "C"} else "packed_query_context"

    @cached_property
    def token_wise(self) -> bool:
        """True where a launch knows no sequences, so that it may be cut after any token."""
        return self.layout == "packed" and not (self.has_lengths or self.has_offsets)

    @property
    def sequence_wise(self) -> bool:
        """True where the sequences of a launch must stay whole."""
        return not self.token_wise

    @cached_property
    def has_mask(self) -> bool:
        """True if a mask tells live slots from dead ones, row by row."""
        # A causal mask without rows, as causal_mask[Q,C], is the same for all and hides no padding.
        return self._has("mask") or any(
            argument.kind == "causal_mask"
            and {dim.name for dim in argument.dims} & {"B", "TQ", "TC"}
            for argument in self.arguments
        )

    @cached_property
    def has_lengths(self) -> bool:
        """True if the live tokens of each sequence are counted in an argument."""
        return self._has("lengths")

    @cached_property
    def has_offsets(self) -> bool:
        """True if the cumulative live lengths are an argument."""
        return self._has("offsets")

    @cached_property
    def has_order(self) -> bool:
        """True if the slots of the live tokens in logical order are an argument."""
        return self._has("order")

    @property
    def has_position(self) -> bool:
        """True if the positions of the tokens are an argument."""
        return self._has("position")

    @cached_property
    def free_dims(self) -> tuple[str, ...]:
        """Names of the dimensions to draw, ranges of tokens included, in order of appearance."""
        found: dict[str, None] = {}
        for item in (*self.arguments, *self.outputs):
            found.update(dict.fromkeys(dim.name for dim in item.free_dims if dim.name is not None))
            if item.kind == "token" and item.parameter is not None:
                found[item.parameter] = None
        return tuple(found)

    @property
    def contracted_dims(self) -> tuple[str, ...]:
        """Names that float inputs carry and no judged output does.

        Token axes count (attention contracts `C`, a pooling kernel `T`), `B` does not: nothing is
        summed over sequences.
        """
        inputs = (item for item in self.arguments if item.is_float and not item.is_supplied_output)
        kept = {"B", *_names(self.judged_outputs)}
        return tuple(name for name in _names(inputs) if name not in kept)

    @property
    def table_dims(self) -> tuple[str, ...]:
        """Names that ids range over and tables carry: what else a table has, an output keeps.

        The weight of an output layer is none: its rows are summed over.
        """
        read = {item.parameter for item in self.arguments if item.kind == "token"}
        kept = {*read, *_names(self.judged_outputs)}
        other = {
            name
            for item in self.parameters
            for name in _names([item])
            if not kept.issuperset(_names([item]))
        }
        return tuple(name for name in _names(self.parameters) if name in read - other)

    @cached_property
    def parameters(self) -> tuple[Argument, ...]:
        """Float tensors that the whole batch shares, without accumulators."""
        return tuple(argument for argument in self.arguments if argument.is_parameter)

    @cached_property
    def token_arguments(self) -> tuple[Argument, ...]:
        """Float tensors with values for each token or sequence, without supplied outputs."""
        return tuple(
            argument
            for argument in self.arguments
            if argument.is_float and argument.token_axis and not argument.is_supplied_output
        )

    @property
    def scalars(self) -> tuple[Argument, ...]:
        """Python numbers that are drawn."""
        return tuple(argument for argument in self.arguments if argument.kind == "scalar")

    @cached_property
    def judged_outputs(self) -> tuple[Argument, ...]:
        """What is compared: returned values that are not ignored, then marked arguments."""
        returned = tuple(output for output in self.outputs if not output.ignored)
        return returned + tuple(argument for argument in self.arguments if argument.marked)

    def _has(self, kind: Kind) -> bool:
        return any(argument.kind == kind for argument in self.arguments)


def _names(items: Iterable[Argument]) -> tuple[str, ...]:
    """Return the names of all dimensions, each once, in order of appearance."""
    return tuple(dict.fromkeys(dim.name for item in items for dim in item.dims if dim.name))
