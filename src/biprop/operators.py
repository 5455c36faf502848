"""Operators, their forms and backends, and the registry that holds them.

Records only: nothing registers itself by being imported. `biprop.registry` builds a `Registry` from
`biprop.kernels.OPERATORS` and entry points; `biprop.loading` finds what a user names by hand.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

from biprop.errors import TargetError
from biprop.signature import Restrictions, Signature
from biprop.signature.forms import Forms, FormSignatures

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "TRANSFORM_CLASSES",
    "CallValue",
    "Form",
    "Implementation",
    "InvarianceDeclaration",
    "Kernel",
    "KernelFunction",
    "KernelReference",
    "OpClass",
    "Operator",
    "Reducer",
    "Registry",
]

CallValue = int | float | bool | None
OpClass = Literal["elementwise", "reduction", "attention", "logprob"]
TRANSFORM_CLASSES = ("T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "shards")


class KernelFunction(Protocol):
    """A kernel: tensors in the order of its signature, fixed values by keyword."""

    # Any: each kernel names its own arguments, and `object` would admit only those that take all.
    def __call__(self, *arguments: Any, **call: Any) -> object:  # noqa: ANN401
        """Run once; returns one tensor, a tuple of tensors, or None where outputs are supplied."""


class Reducer(Protocol):
    """Sums over one dimension in some order, in the dtype of its input."""

    def __call__(self, values: "Tensor", dim: int) -> "Tensor":
        """Return `values` summed over `dim`, which vanishes."""


def _classes(value: object) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, (tuple, list, set, frozenset)) else (str(value),)
    unknown = [name for name in names if name not in TRANSFORM_CLASSES]
    if unknown:
        raise TargetError(
            f"Transform class {unknown[0]!r} is unknown: use {', '.join(TRANSFORM_CLASSES)}."
        )
    return tuple(name for name in TRANSFORM_CLASSES if name in names)


@attrs.frozen(kw_only=True)
class InvarianceDeclaration:
    """What an operator promises.

    Attributes:
        transforms: Classes under which every active token keeps its bits, in the order T1 to T8,
            then `shards`: its outputs keep them for any number of ranks.
        parameter_gradients: Classes under which the gradients of parameters keep theirs, given the
            same complete set of sequences.
        backward: Whether gradients are promised at all.
        chain_index: Rank of the operator's first place in the chain (DESIGN: embedding is 0).
    """

    transforms: tuple[str, ...] = attrs.field(converter=_classes)
    parameter_gradients: tuple[str, ...] = attrs.field(default=(), converter=_classes)
    backward: bool = True
    chain_index: int = 0


@attrs.frozen(kw_only=True, eq=False)
class Implementation:
    """One backend of one form.

    Attributes:
        backend: `torch` or `triton`, or another name for planted kernels.
        forward: The kernel.
        backward: The kernel of the form's backward signature, None where autograd differentiates.
        kernels: Names of the device kernels that it launches, matched with launch facts.
    """

    backend: str
    forward: KernelFunction
    backward: KernelFunction | None = None
    kernels: tuple[str, ...] = ()


@attrs.frozen(kw_only=True, eq=False)
class Form:
    """One signature of an operator, with everything that implements it.

    Attributes:
        name: `packed`, `padded`, ...
        signature: Forward signature.
        backward_signature: Signature of the implementations' `backward`, None for autograd.
        implementations: One a backend.
        reference: Float32 reference, called as `reference(*arguments, reduce=..., **call)`; all its
            sums go through `reduce`, so that power can be measured. None for exempt operators.
        takes_shards: Whether the forward of every implementation takes the keyword `shards`: 1, 2,
            4 or 8 tensor-parallel ranks that each compute a part of the contracted sum. Left out,
            it means 1.
    """

    name: str
    signature: Signature
    implementations: tuple[Implementation, ...]
    backward_signature: Signature | None = None
    reference: Callable[..., object] | None = None
    takes_shards: bool = False


@attrs.frozen(kw_only=True, eq=False)
class Operator:
    """A registered operator: declared, or exempt with a reason.

    Attributes:
        name: Unique in a registry.
        op_class: Selects thresholds and the kind of power.
        forms: Its signatures; the first is the one that reports name.
        declaration: What it promises; None where it is exempt.
        exempt_reason: Why it promises nothing; None where it is declared.
        restrictions: Of its free dimensions.
        align: Bytes that base pointers must be aligned to.
        call: Fixed keyword arguments.
        owner: URL of who looks after it, for drift records; empty where nobody is named.
        built_from: Names of registered operators whose functions its own call. Forward and backward
            of every implementation then take the keyword `parts`: by some of these names, the
            `Implementation` of the part's first form to call instead of their own, so that a
            failing composite can be tried with reference parts.
    """

    name: str
    op_class: OpClass
    forms: tuple[Form, ...]
    declaration: InvarianceDeclaration | None = None
    exempt_reason: str | None = None
    restrictions: Restrictions = attrs.field(factory=Restrictions)
    align: int = 1
    call: Mapping[str, CallValue] = MappingProxyType({})
    owner: str = ""
    built_from: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Refuse an operator that is neither declared nor exempt, or both."""
        if (self.declaration is None) == (self.exempt_reason is None):
            raise TargetError(
                f"Operator {self.name!r} needs either a declaration or an exempt_reason, "
                "and not both."
            )

    def kernels(self) -> "tuple[Kernel, ...]":
        """Every form under every backend, each with all the others as its relatives."""
        alone = self._alone()
        return tuple(
            attrs.evolve(kernel, relatives=tuple(other for other in alone if other is not kernel))
            for kernel in alone
        )

    def _alone(self) -> "tuple[Kernel, ...]":
        return tuple(
            Kernel(
                operator=self.name,
                form=form.name,
                backend=implementation.backend,
                op_class=self.op_class,
                target=f"{self.name}/{form.name}",
                signature=form.signature,
                function=implementation.forward,
                backward_signature=form.backward_signature if implementation.backward else None,
                backward=implementation.backward,
                restrictions=self.restrictions,
                align=self.align,
                call=self.call,
                declaration=self.declaration,
                exempt_reason=self.exempt_reason,
                reference=form.reference,
                takes_shards=form.takes_shards,
                device_kernels=implementation.kernels,
                owner=self.owner,
                place=place,
            )
            for form in self.forms
            for place, implementation in enumerate(form.implementations)
        )


@attrs.frozen(kw_only=True, eq=False)
class Kernel:
    """One callable under test, registered or not.

    Attributes:
        operator: Operator name, or the target text of an unregistered one.
        form: Form name; `given` for an unregistered one.
        backend: `target` for an unregistered one.
        op_class: None for an unregistered one.
        target: How to find it again: `operator/form`, `module:name` or `file.py:name`.
        signature: Forward signature.
        function: The kernel.
        backward_signature: Signature of `backward`; None where autograd differentiates.
        backward: The backward kernel, or None.
        restrictions: Of the free dimensions.
        align: Bytes that base pointers must be aligned to.
        call: Fixed keyword arguments.
        declaration: What it promises; None where nothing is declared.
        exempt_reason: Why a registered operator promises nothing.
        reference: Float32 reference, None for an unregistered one.
        takes_shards: Whether `function` takes the keyword `shards`.
        device_kernels: Names of the device kernels that it launches.
        owner: URL of who looks after it; empty where nobody is named.
        relatives: Of a registered operator, its other forms and backends, without theirs.
        place: Of a registered operator, its place among the backends of its form.
    """

    target: str
    signature: Signature
    function: KernelFunction
    operator: str
    form: str = "given"
    backend: str = "target"
    op_class: OpClass | None = None
    backward_signature: Signature | None = None
    backward: KernelFunction | None = None
    restrictions: Restrictions = attrs.field(factory=Restrictions)
    align: int = 1
    call: Mapping[str, CallValue] = MappingProxyType({})
    declaration: InvarianceDeclaration | None = None
    exempt_reason: str | None = None
    reference: Callable[..., object] | None = None
    takes_shards: bool = False
    device_kernels: tuple[str, ...] = ()
    owner: str = ""
    relatives: "tuple[Kernel, ...]" = ()
    place: int = 0

    @property
    def is_registered(self) -> bool:
        """Whether it comes from a registry."""
        return self.op_class is not None

    @property
    def counterparts(self) -> tuple[str, ...]:
        """Return the backends of the same form whose gradients are made in the same way."""
        return tuple(
            other.backend
            for other in self.relatives
            if other.form == self.form and (other.backward is None) == (self.backward is None)
        )

    @property
    def name(self) -> str:
        """Operator and form, for people."""
        return self.operator if self.form in {"given", "packed"} else f"{self.operator}/{self.form}"

    @property
    def forms(self) -> Forms:
        """The other forms under the same backend, by name."""
        return {
            kernel.form: FormSignatures(
                signature=kernel.signature, backward_signature=kernel.backward_signature
            )
            for kernel in self.relatives
            if kernel.backend == self.backend
        }

    def relative(self, *, form: str = "", backend: str = "") -> "Kernel":
        """Return the same operator under another form or backend; what is left out is its own.

        Raises:
            TargetError: There is none; the sentence lists what there is.
        """
        wanted = (form or self.form, backend or self.backend)
        for kernel in self.relatives:
            if (kernel.form, kernel.backend) == wanted:
                return kernel
        known = ", ".join(f"{kernel.form} ({kernel.backend})" for kernel in self.relatives)
        raise TargetError(
            f"Operator {self.operator!r} has no form {wanted[0]!r} with backend {wanted[1]!r}: "
            f"beside {self.form} ({self.backend}) there are {known or 'no others'}."
        )


@attrs.frozen(kw_only=True)
class KernelReference:
    """How a kernel is found again, as JSON: in another process, on another machine, by a stranger.

    Attributes:
        operator: Operator name, or the target text of an unregistered one.
        target: `operator/form` of a registered one, else `module:name` or `file.py:name`.
        backend: `target` for an unregistered one.
        signature: Text of the forward signature.
        backward_signature: Text of the backward signature, empty for autograd.
        dims: Text of the restrictions.
        align: Bytes that base pointers must be aligned to.
        call: Fixed keyword arguments.
    """

    operator: str
    target: str
    signature: str
    backend: str = "target"
    backward_signature: str = ""
    dims: str = ""
    align: int = 1
    call: dict[str, CallValue] = attrs.field(factory=dict)

    @property
    def is_registered(self) -> bool:
        """Whether it names an operator of a registry."""
        return self.backend != "target"


@attrs.frozen(kw_only=True, eq=False)
class Registry:
    """The operators of one run; immutable, passed down from whoever started it."""

    operators: tuple[Operator, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Refuse two operators of one name, and parts that are not there."""
        names = [operator.name for operator in self.operators]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise TargetError(
                f"Operator {twice[0]!r} is registered twice: give one of them another name."
            )
        for operator in self.operators:
            absent = [name for name in operator.built_from if name not in names]
            if absent:
                raise TargetError(
                    f"Operator {operator.name!r} is built from {absent[0]!r}, which is not "
                    "registered: register it too, or take it out of built_from."
                )

    def kernels(self) -> tuple[Kernel, ...]:
        """Every form of every operator under every backend, exempt ones included."""
        return tuple(kernel for operator in self.operators for kernel in operator.kernels())

    def find(self, *, target: str, backend: str) -> Kernel:
        """Return the kernel `operator/form` of a backend; of a bare `operator`, its first form.

        Raises:
            TargetError: There is none; the sentence lists what there is.
        """
        for kernel in self.kernels():
            if kernel.backend == backend and target in {kernel.target, kernel.operator}:
                return kernel
        known = ", ".join(
            sorted({f"{kernel.target} ({kernel.backend})" for kernel in self.kernels()})
        )
        raise TargetError(
            f"No operator {target!r} with backend {backend!r} is registered: there are {known}."
        )
