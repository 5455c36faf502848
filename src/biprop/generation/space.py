"""What may be drawn: a signature, a lane's limits, and the classes that are wanted.

Records only: `biprop.generation.generator` draws from a space, `biprop.generation.legal` says what
is legal whoever drew it.
"""

from types import MappingProxyType
from typing import Literal

import attrs

from biprop.case import Against, Dtype, Execution, Judged
from biprop.generation.sweep import Sweep
from biprop.operators import InvarianceDeclaration, OpClass
from biprop.signature import Restrictions, Signature
from biprop.signature.forms import Forms, FormSignatures

__all__ = ["LIMITS", "Direction", "Exclusion", "Lane", "Limits", "Space"]

Direction = Literal["forward", "backward"]
Lane = Literal["cpu", "interpreter", "nightly", "gpu", "gpu-target", "gpu-nightly"]


@attrs.frozen(kw_only=True)
class Limits:
    """How large a case may be; sizes above a limit are folded below it, never clipped onto it.

    Attributes:
        tokens_max: Tokens of a launch whose tokens are independent.
        sequences_max: Sequences of a launch whose sequences must stay whole.
        length_max: Tokens of one such sequence.
        watched_max: Watched sequences.
        dim_max: Size of a free dimension, where tokens are independent.
        dim_sequence_max: Likewise, where sequences must stay whole.
        elements_max: Elements of all float tensors of a launch together.
        work_max: Tokens times the product of all free dimensions, where there are no contexts.
        context_work_max: Queries times contexts times heads and their size, where there are.
        context_max: Tokens of a sequence whose tokens are queries and contexts.
        heads_max: There: size of a free dimension that nothing is summed over.
        head_dim_max: There: size of one that scores are summed over, or the last one of values.
        padding_max: Dead slots beside the longest row.
        length_min: Tokens of the first watched sequence, at least.
        real_every: One case in so many has a size of a real model (`biprop.generation.real_sizes`);
            0: none.
    """

    tokens_max: int = 320
    sequences_max: int = 40
    length_max: int = 70
    watched_max: int = 32
    dim_max: int = 640
    dim_sequence_max: int = 64
    elements_max: int = 1 << 17
    work_max: int = 1 << 20
    context_work_max: int = 1 << 20
    context_max: int = 70
    heads_max: int = 8
    head_dim_max: int = 64
    padding_max: int = 24
    length_min: int = 1
    real_every: int = 0


# The interpreter runs one program of a launch after the other in Python, so its cases are small.
LIMITS: dict[Lane, Limits] = {
    "cpu": Limits(),
    "interpreter": Limits(
        tokens_max=20,
        sequences_max=6,
        length_max=12,
        watched_max=3,
        dim_max=160,
        dim_sequence_max=160,
        elements_max=1 << 13,
        work_max=1 << 15,
        context_work_max=1 << 15,
        context_max=8,
        heads_max=4,
        head_dim_max=16,
        padding_max=5,
    ),
    "nightly": Limits(
        tokens_max=4096,
        sequences_max=96,
        length_max=320,
        dim_max=4096,
        dim_sequence_max=640,
        elements_max=1 << 20,
        work_max=1 << 24,
        context_work_max=1 << 24,
        context_max=320,
        heads_max=16,
        head_dim_max=128,
        padding_max=70,
    ),
    # Launches cost the same whatever their size, so cases pass the tiles and heuristics of kernels.
    "gpu": Limits(
        tokens_max=640,
        length_max=640,
        dim_max=4608,
        dim_sequence_max=640,
        elements_max=1 << 20,
        work_max=1 << 24,
        context_work_max=1 << 24,
        context_max=640,
        heads_max=32,
        head_dim_max=256,
        padding_max=70,
    ),
    # PyTorch's attention changes with the batch from some hundred keys on, the gradient of its
    # embedding from run to run from 3,073 tokens on (ci/evidence/findings.json).
    "gpu-target": Limits(
        tokens_max=4608,
        length_max=640,
        dim_max=4608,
        dim_sequence_max=640,
        elements_max=1 << 22,
        work_max=1 << 24,
        context_work_max=1 << 31,
        context_max=1100,
        heads_max=32,
        head_dim_max=256,
        padding_max=70,
    ),
    "gpu-nightly": Limits(
        tokens_max=8192,
        sequences_max=160,
        length_max=4224,
        dim_max=16_384,
        dim_sequence_max=2048,
        elements_max=1 << 23,
        work_max=1 << 30,
        context_work_max=1 << 31,
        context_max=4224,
        heads_max=32,
        head_dim_max=256,
        padding_max=260,
        real_every=8,
    ),
}


@attrs.frozen(kw_only=True)
class Exclusion:
    """Classes that no case may show all together, since they were found to fail.

    Attributes:
        judged: What was compared when they failed.
        classes: As they are counted, at least one.
    """

    judged: Judged
    classes: frozenset[str]


@attrs.frozen(kw_only=True)
class Space:
    """What the cases of one search have in common.

    Attributes:
        signature: Forward signature.
        backward_signature: Of the registered backward; None where autograd differentiates.
        restrictions: Of the free dimensions.
        dtype: Of every float argument without a dtype of its own.
        direction: Whether outputs or gradients are judged.
        registered: Whether the kernel is a registered operator.
        declaration: What it promises; None where nothing is declared.
        op_class: None for an unregistered kernel.
        classes: Classes wanted; `T4` means both `T4.finite` and `T4.nonfinite`. Empty: all.
        align: Bytes that base pointers must be aligned to.
        constants: Sizes mined from the kernel's source; drawn with their neighbours.
        thresholds: Those of them that the kernel itself asks about: a sweep takes them first.
        sweep: Which boundary sizes a case takes in its turn; None: all are drawn by chance.
        limits: Of the lane.
        execution: Switches of the process, in every case.
        excluded: What no case may show.
        against: What canonical runs may be held against, in the order in which they are: accuracy,
            then parity with other backends. Empty: only invariance is judged.
        only: The one of these that every case is drawn for; None: cases of relation I are drawn.
        forms: Other forms of a registered operator under the same backend, by name.
        takes_shards: Whether the kernel computes as any number of ranks.
    """

    signature: Signature
    dtype: Dtype = "float32"
    direction: Direction = "forward"
    backward_signature: Signature | None = None
    restrictions: Restrictions = attrs.field(factory=Restrictions)
    registered: bool = False
    declaration: InvarianceDeclaration | None = None
    op_class: OpClass | None = None
    classes: tuple[str, ...] = ()
    align: int = 1
    constants: tuple[int, ...] = ()
    thresholds: tuple[int, ...] = ()
    sweep: Sweep | None = None
    limits: Limits = attrs.field(factory=Limits)
    execution: Execution = attrs.field(factory=Execution)
    excluded: tuple[Exclusion, ...] = ()
    against: tuple[Against, ...] = ()
    only: Against | None = None
    forms: Forms = MappingProxyType({})
    takes_shards: bool = False

    @property
    def is_swept(self) -> bool:
        """Whether a case takes its sizes from a sweep."""
        return self.sweep is not None and self.sweep.is_on

    def swept(self, axis: str, *, low: int = 1, high: int) -> int | None:
        """Return the size of `low..high` whose turn it is; None where sizes are drawn by chance."""
        if self.sweep is None:
            return None
        return self.sweep.size(
            axis, low=low, high=high, thresholds=self.thresholds, constants=self.constants
        )

    def swept_rows(self, *, high: int) -> int | None:
        """Return how many rows a launch has in its turn; few where it is a product's turn."""
        product = self.swept_product()
        return self.swept("rows", high=high if product is None else min(high, product // 8))

    def swept_product(self) -> int | None:
        """Return the product of sizes whose turn it is; None where there is none."""
        return None if self.sweep is None else self.sweep.product(self.thresholds)

    @property
    def own_form(self) -> FormSignatures:
        """The signatures of the kernel itself."""
        return FormSignatures(signature=self.signature, backward_signature=self.backward_signature)

    def launched_as(self, form: str) -> "Space":
        """Return the space of another form, for whatever its launches decide; it has no others."""
        found = self.forms[form]
        return attrs.evolve(
            self,
            signature=found.signature,
            backward_signature=found.backward_signature,
            forms=MappingProxyType({}),
        )
