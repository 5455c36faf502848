"""Arguments that carry no mark must come back as they went in.

Every launch gets operands of its own, so a kernel that writes into one would be seen by nobody
here, while its user's next launch reads what it wrote. Marked arguments are compared by
`biprop.execution.outputs`. On a device the answer is left where it is: reading it would wait for
the launch, and `biprop.relations.comparison` waits for both runs at once.
"""

from collections.abc import Sequence

import attrs
from torch import Tensor

from biprop.bits import raw_differ
from biprop.errors import OutputError
from biprop.signature import Argument, Signature

__all__ = ["Unread", "Untouched", "watch"]


@attrs.frozen(kw_only=True, eq=False)
class Unread:
    """An answer that still lies on its device.

    Attributes:
        flag: Bool, one element: whether an argument was written into.
        argument: Its declaration.
    """

    flag: Tensor
    argument: Argument

    @property
    def sentence(self) -> str:
        """What is wrong then."""
        return _sentence(self.argument)


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

    def check(self) -> tuple[Unread, ...]:
        """Refuse a target that wrote into one of them; return what only a device knows yet.

        Raises:
            OutputError: The sentence names the argument.
        """
        unread = []
        for item in self.watched:
            changed = _version(item.values) != item.version
            if not changed and item.copy is not None:
                flag = raw_differ(item.values, item.copy)
                if _is_read_late(flag):
                    unread.append(Unread(flag=flag, argument=item.argument))
                    continue
                changed = bool(flag)
            if changed:
                raise OutputError(_sentence(item.argument))
        return tuple(unread)


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


def _is_read_late(flag: Tensor) -> bool:
    return flag.device.type != "cpu"


def _version(values: Tensor) -> int:
    return values._version  # noqa: SLF001  # how torch counts its writes has no other name


def _sentence(argument: Argument) -> str:
    return (
        f"The target writes into argument '{argument.name}', which carries no mark: "
        f"{_way_out(argument)}."
    )


def _way_out(argument: Argument) -> str:
    if argument.token_axis is None or not argument.is_float:
        return "copy it in the target, since later launches read it too"
    marked = argument.text.replace(argument.name, f"{argument.name}!", 1)
    return f"write '{marked}' if that is meant, or copy it in the target"
