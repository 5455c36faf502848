"""Arguments that carry no mark must come back as they went in.

Every launch gets operands of its own, so a kernel that writes into one would be seen by nobody
here, while its user's next launch reads what it wrote. Marked arguments are compared by
`biprop.execution.outputs`.
"""

from collections.abc import Sequence

import attrs
from torch import Tensor

from biprop.bits import same_bits
from biprop.errors import OutputError
from biprop.signature import Argument, Signature

__all__ = ["Untouched", "watch"]


@attrs.frozen(kw_only=True, eq=False)
class _Watched:
    """One tensor before a launch; `copy` is None where its version alone is looked at."""

    argument: Argument
    values: Tensor
    version: int
    copy: Tensor | None


@attrs.frozen(kw_only=True, eq=False)
class Untouched:
    """The unmarked tensors of one launch."""

    watched: tuple[_Watched, ...]

    def check(self) -> None:
        """Refuse a target that wrote into one of them.

        Raises:
            OutputError: The sentence names the argument.
        """
        for item in self.watched:
            changed = _version(item.values) != item.version
            if not changed and item.copy is not None:
                changed = not bool(same_bits(item.values.detach(), item.copy).all())
            if changed:
                name = item.argument.name
                raise OutputError(
                    f"The target writes into argument '{name}', which carries no mark: "
                    f"{_way_out(item.argument)}."
                )


def watch(signature: Signature, arguments: Sequence[object], *, bits: bool) -> Untouched:
    """Return what to check after the launch.

    Args:
        signature: Of the arguments.
        arguments: As they are passed.
        bits: Whether bits are compared too: torch counts its own writes, and no others' kernels.
    """
    return Untouched(
        watched=tuple(
            _Watched(
                argument=argument,
                values=value,
                version=_version(value),
                copy=value.detach().clone() if bits else None,
            )
            for argument, value in zip(signature.arguments, arguments, strict=True)
            if isinstance(value, Tensor) and not argument.marked
        )
    )


def _version(values: Tensor) -> int:
    return values._version  # noqa: SLF001  # how torch counts its writes has no other name


def _way_out(argument: Argument) -> str:
    if argument.token_axis is None or not argument.is_float:
        return "copy it in the target, since later launches read it too"
    marked = argument.text.replace(argument.name, f"{argument.name}!", 1)
    return f"write '{marked}' if that is meant, or copy it in the target"
