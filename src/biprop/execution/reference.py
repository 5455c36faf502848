"""The float32 reference of an operator, run on the values of a case widened to float32.

Forward outputs as the reference returns them, gradients by autograd through it: no number of it is
narrower than float32, and no sum but its own is taken, beyond that of a parameter's gradient over
launches. What a kernel's results are held against it for decides `biprop.relations.accuracy`.
Summation orders, for which power asks the reference, are `biprop.execution.run`'s.
"""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from biprop.errors import OutputError, TargetError, words_of
from biprop.execution.arguments import Materialiser
from biprop.execution.frame import Frame
from biprop.execution.outputs import Collector
from biprop.execution.records import Run
from biprop.execution.run import Prepared
from biprop.execution.switches import switched
from biprop.execution.values import Values, upstream_outputs
from biprop.layout import CANONICAL
from biprop.operators import Kernel
from biprop.signature import Argument, Signature

__all__ = ["run_reference"]


def run_reference(prepared: Prepared) -> Run:
    """Run the reference in the canonical configuration.

    Args:
        prepared: The case, on the device that the reference runs on too.

    Returns:
        What `run_canonical` returns for the kernel, floats in float32: outputs, or the gradients
        of all float arguments that are judged (`d<argument>`).

    Raises:
        TargetError: The kernel has no reference, or the reference raised.
        OutputError: The reference returned something else than the signature says.
    """
    kernel, case = prepared.kernel, prepared.case
    if kernel.reference is None:
        raise TargetError(f"Operator {kernel.name!r} has no reference: give its form one.")
    side = _Side(
        kernel=kernel,
        prepared=prepared,
        materialiser=Materialiser(
            case=attrs.evolve(case, dtype="float32"),
            values=_widened(prepared.values),
            layout=CANONICAL,
            align=1,
            poison="nan",
        ),
        collector=Collector(compared=prepared.compared),
    )
    frames = prepared.canonical_frames()
    with switched(case.execution):
        if case.judged == "outputs":
            for number, frame in enumerate(frames):
                side.forward(frame, launch=number)
        else:
            side.gradients(frames)
    return Run(
        outputs=side.collector.finish(()),
        expected={},
        index=side.collector.index(),
        rows={},
        launches=0,
        facts=(),
        poisons=(),
        actual_backend="reference",
    )


@attrs.frozen(kw_only=True, eq=False)
class _Side:
    """The reference's side of a case."""

    kernel: Kernel
    prepared: Prepared
    materialiser: Materialiser
    collector: Collector

    @property
    def signature(self) -> Signature:
        return self.kernel.signature

    def forward(self, frame: Frame, *, launch: int) -> None:
        """Collect the outputs of one launch."""
        arguments = self.materialiser.arguments(self.signature, frame)
        returned = self._returned(frame, arguments)
        for output, values in returned:
            self.collector.add(self.signature, output, values, frame, launch=launch)

    def gradients(self, frames: Sequence[Frame]) -> None:
        """Collect the gradients of all launches; those of parameters are added up."""
        of_parameters = self.prepared.case.judged == "parameter_gradients"
        totals: dict[str, Tensor] = {}
        for number, frame in enumerate(frames):
            for argument, values in self._differentiated(frame, of_parameters=of_parameters):
                name = f"d{argument.name}"
                if of_parameters:
                    totals[name] = totals[name] + values if name in totals else values
                else:
                    self.collector.add(
                        self.signature, argument, values, frame, launch=number, name=name
                    )
        for name, values in totals.items():
            self.collector.whole(name, values)

    def _differentiated(
        self, frame: Frame, *, of_parameters: bool
    ) -> list[tuple[Argument, Tensor]]:
        """Return the gradients of one launch that are judged."""
        signature = self.signature
        arguments = self.materialiser.arguments(signature, frame)
        leaves = [
            (argument, value.requires_grad_())
            for argument, value in zip(signature.arguments, arguments, strict=True)
            if isinstance(value, Tensor)
            and argument.is_float
            and (argument.token_axis is None) == of_parameters
        ]
        with torch.enable_grad():
            returned = self._returned(frame, arguments)
        wanted = {
            output.name for output in upstream_outputs(self.kernel, self.prepared.case.judged)
        }
        outputs = [
            (values, self.materialiser.upstream(signature, output, frame))
            for output, values in returned
            if output.name in wanted and values.requires_grad
        ]
        found: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if outputs and leaves:
            found = torch.autograd.grad(
                [values for values, _ in outputs],
                [leaf for _, leaf in leaves],
                [upstream for _, upstream in outputs],
                allow_unused=True,
            )
        # What no output depends on has a gradient of zero.
        return [
            (argument, torch.zeros_like(leaf) if gradient is None else gradient)
            for (argument, leaf), gradient in zip(leaves, found, strict=True)
        ]

    def _returned(self, frame: Frame, arguments: list[object]) -> list[tuple[Argument, Tensor]]:
        """Call the reference; return its judged outputs, floats in float32."""
        reference = self.kernel.reference
        assert reference is not None, "the caller looked"
        try:
            returned = reference(*arguments, reduce=_plain_sum, **self.kernel.call)
        except torch.OutOfMemoryError:
            raise
        # It is the operator's own yardstick: whatever it raises is a fault of that.
        except Exception as error:
            raise TargetError(
                f"The reference of operator {self.kernel.name!r} raised {type(error).__name__} "
                f"({words_of(error)}): correct the reference."
            ) from error
        found = returned if isinstance(returned, tuple) else (returned,)
        if len(found) != len(self.signature.outputs):
            raise OutputError(
                f"The reference of operator {self.kernel.name!r} returned {len(found)} values, and "
                f"the signature says {len(self.signature.outputs)}: correct the reference."
            )
        named = zip(self.signature.outputs, found, strict=True)
        return [
            (output, self._checked(output, values, frame))
            for output, values in named
            if not output.ignored
        ]

    def _checked(self, output: Argument, values: object, frame: Frame) -> Tensor:
        shape = frame.shape_of(output, self.prepared.case.dims)
        if not isinstance(values, Tensor) or tuple(values.shape) != shape:
            found = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise OutputError(
                f"The reference of operator {self.kernel.name!r} returned {found} for output "
                f"'{output.name}', and the signature says {list(shape)}: correct the reference."
            )
        return values.float() if values.is_floating_point() else values


def _widened(values: Values) -> Values:
    return attrs.evolve(
        values,
        tokens={name: _wide(found) for name, found in values.tokens.items()},
        parameters={name: _wide(found) for name, found in values.parameters.items()},
    )


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.is_floating_point() else values


def _plain_sum(values: Tensor, dim: int) -> Tensor:
    return values.sum(dim)
