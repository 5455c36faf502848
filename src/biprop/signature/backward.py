"""Read the backward signature of a registered operator, and match it with its forward one.

Names carry the meaning: `dy` is the upstream gradient of `y`, `x` the tensor that the forward took,
`rstd` the state that the same configuration's own forward saved, `dweight!` an accumulator. The
values are put together by `biprop.execution`.
"""

from biprop.errors import SignatureError
from biprop.signature.parser import read_draft
from biprop.signature.records import DTYPE_KINDS, FLOAT_KINDS, Argument, Kind, Signature
from biprop.signature.rules import settled

__all__ = ["parse_backward"]

# Derived from the sequences, so that a backward may ask for them on its own.
_DERIVED: tuple[Kind, ...] = (
    "position",
    "mask",
    "causal_mask",
    "lengths",
    "offsets",
    "max_length",
    "order",
    "is_causal",
)


def parse_backward(text: str, forward: Signature) -> Signature:
    """Read a backward signature.

    Args:
        text: Notation of `parse_signature`. Arguments are matched by name: `d` and the name of a
            forward output, the name of a forward argument or output, anything of a derived kind,
            and marked accumulators named `d` and a parameter. Outputs are named `d` and a float
            argument of the forward.
        forward: What it is the backward of.

    Raises:
        SignatureError: The text cannot be read, or does not fit the forward.
    """
    draft = read_draft(text)
    signature = settled(
        draft.arguments, draft.outputs, token_local=draft.token_local, direction="backward"
    )
    if signature.layout != forward.layout:
        raise SignatureError(
            f"The backward has layout {signature.layout} and the forward {forward.layout}: "
            "write both over the same token axes."
        )
    for argument in signature.arguments:
        _check_argument(argument, forward)
    for output in signature.outputs:
        _check_gradient(output, forward)
    upstream = {f"d{output.name}" for output in forward.judged_outputs}
    if not any(argument.name in upstream for argument in signature.arguments):
        raise SignatureError(
            "The backward takes no upstream gradient: "
            f"add an argument {' or '.join(sorted(map(repr, upstream)))}."
        )
    new = next((name for name in signature.free_dims if name not in forward.free_dims), None)
    if new is not None:
        raise SignatureError(
            f"The backward has the dimension {new}, which the forward has not: "
            "use the names of the forward."
        )
    return signature


def _check_argument(argument: Argument, forward: Signature) -> None:
    """Refuse an argument whose value nothing decides."""
    what = f"Backward argument '{argument.name}'"
    if argument.marked:
        _check_accumulator(argument, forward)
        return
    upstream = {f"d{output.name}": output for output in forward.judged_outputs}
    # A mutated argument is an output too; as state, it is the tensor that the forward left behind.
    own = {item.name: item for item in (*forward.judged_outputs, *forward.arguments)}
    if argument.name in upstream and argument.name in own:
        raise SignatureError(
            f"{what} could be the gradient of '{argument.name[1:]}' or the forward's own "
            f"'{argument.name}': rename the forward's '{argument.name}'."
        )
    source = upstream.get(argument.name) or own.get(argument.name)
    if source is not None:
        if (argument.kind, argument.parameter, argument.dims) != (
            source.kind,
            source.parameter,
            source.dims,
        ):
            raise SignatureError(
                f"{what} does not match the forward's '{source.text}': "
                "give it the same kind and dimensions."
            )
    elif argument.kind not in _DERIVED:
        raise SignatureError(
            f"{what} is unknown to the forward: name it 'd' and an output, or as an argument or "
            "output of the forward, or give it a derived kind such as offsets."
        )


def _check_accumulator(argument: Argument, forward: Signature) -> None:
    what = f"Backward argument '{argument.name}'"
    if argument.token_axis is not None:
        raise SignatureError(
            f"{what} has a mark and a token axis: return it as an output, "
            "only gradients of parameters are accumulated."
        )
    source = {f"d{item.name}": item for item in forward.parameters}.get(argument.name)
    if source is None:
        raise SignatureError(
            f"{what} has a mark and is the gradient of no parameter: "
            "name it 'd' and a parameter of the forward, or drop the '!'."
        )
    _check_shape(argument, source, what=what)


def _check_gradient(output: Argument, forward: Signature) -> None:
    """Refuse an output that is no gradient of a float argument."""
    if output.ignored:
        return
    what = f"Backward output '{output.name}'"
    sources = {
        f"d{item.name}": item
        for item in forward.arguments
        if item.is_float and not item.is_supplied_output
    }
    source = sources.get(output.name)
    if source is None:
        names = ", ".join(f"'{name}'" for name in sources) or "only '_'"
        raise SignatureError(
            f"{what} is the gradient of no float argument: name it one of {names}."
        )
    _check_shape(output, source, what=what)


def _check_shape(gradient: Argument, source: Argument, *, what: str) -> None:
    assert gradient.kind in DTYPE_KINDS
    if gradient.dims != source.dims or gradient.kind not in FLOAT_KINDS:
        raise SignatureError(
            f"{what} does not match the forward's '{source.text}': "
            "give it the same dimensions and a float kind."
        )
