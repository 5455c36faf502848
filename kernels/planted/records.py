"""What is known of a planted kernel, and of the healthy twin beside it."""

from collections.abc import Callable
from typing import Literal

import attrs

from biprop.case import Dtype
from biprop.operators import Kernel, KernelFunction
from biprop.signature import parse_restrictions, parse_signature

__all__ = ["ChainDefect", "Extent", "Mechanism", "Planted"]

# Kinds of defect, as public reports show them: another path by the shape of the batch, another
# split of a sum, an order of adding that follows the owner of a shard, a statistic of the batch,
# state kept across a boundary of the schedule, dead or stale memory read, a wrong index, slots
# taken for positions, lost segment starts, a budget that neighbours use up, a share of the micro-
# batch, unordered sums, one rounding more in one of two paths, plain inaccuracy, another path in
# the rest of a tile.
Mechanism = Literal[
    "SHAPE", "SPLIT", "COLL", "BSTAT", "STATE", "MEMB", "INDEX", "POS", "SEGM", "CAP", "NORM",
    "ATOM", "ROUND", "ACC", "TAIL",
]  # fmt: skip


@attrs.frozen(kw_only=True, eq=False)
class ChainDefect:
    """A defect of one direction of a registered operator, put in the place of its torch backend's.

    Attributes:
        name: Unique among these defects.
        mechanism: Kind of defect.
        operator: Name of the operator that it breaks.
        direction: What is broken; the operator's own other direction stays as it is, and holds.
        function: Takes the place of the forward or of the backward.
        form: Of the operator's signatures, the one that it implements.
        verdict: What a case that shows it is judged; INACCURATE where it is the same in every
            batch.
        rare: Where it shows at few sizes alone, whether a size is one of them; the kernel asks the
            same function.
        conditions: How many conditions must be met at once.
    """

    name: str
    mechanism: Mechanism
    operator: str
    direction: Literal["forward", "backward"]
    function: KernelFunction
    form: str = "packed"
    verdict: Literal["DRIFTS", "INACCURATE"] = "DRIFTS"
    rare: Callable[[int], bool] | None = None
    conditions: int = 1


@attrs.frozen(kw_only=True)
class Extent:
    """How far the exhaustive search goes: the bounds of `biprop.minimize.exhaustive`.

    Attributes:
        slots: Physical slots.
        dims: Sizes by free dimension.
        wide: Free dimensions above 1.
        transforms: Active transforms.
        sequences: Watched sequences.
        length: Tokens of a sequence.
    """

    slots: int
    dims: dict[str, int]
    wide: int = 8
    transforms: int = 1
    sequences: int = 2
    length: int = 2


@attrs.frozen(kw_only=True, eq=False)
class Planted:
    """A kernel with one known defect, and its twin without.

    Attributes:
        name: Unique among the planted kernels.
        mechanism: Kind of defect.
        signature: Text of the signature of both.
        function: The kernel with the defect.
        healthy: The same without; one line apart.
        exposed_by: The classes, as they are counted, that show the defect without any other: of
            4,000 small examples with that class, and T1 where it needs neighbours, one fails that
            holds once the class is taken out. The others show it in none; of a kernel that is
            `rare`, where examples seldom meet such a size, nothing is claimed of the others.
        extent: How far its smallest failing structure is looked for (`smallest.json`).
        direction: `forward` or `backward`.
        dtypes: In which it shows.
        dims: Restrictions of the free dimensions.
        deterministic: False where the same call gives different bits from run to run.
        rate: Where it is not deterministic, the share of calls that differ; it says how often a
            call is repeated.
        interpreted: Whether Triton's interpreter runs it on a CPU, so that cases must be small.
        devices: Where the defect shows: on a `cpu`, which is Triton's interpreter for a Triton
            kernel, and on `cuda`, where such a kernel is compiled.
        rare: Where it shows at few sizes alone, whether a size is one of them; the kernel asks the
            same function.
        conditions: How many conditions must be met at once.
    """

    name: str
    mechanism: Mechanism
    signature: str
    function: KernelFunction
    healthy: KernelFunction
    exposed_by: tuple[str, ...]
    extent: Extent
    direction: Literal["forward", "backward"] = "forward"
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    dims: str = ""
    deterministic: bool = True
    rate: float = 0.5
    interpreted: bool = False
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cpu",)
    rare: Callable[[int], bool] | None = None
    conditions: int = 1

    @property
    def rate_seen(self) -> float | None:
        """The rate as a judge takes it: None where the same call gives the same bits."""
        return None if self.deterministic else self.rate

    def kernel(self, *, healthy: bool = False) -> Kernel:
        """Return the planted kernel, or its twin, as an unregistered kernel."""
        function = self.healthy if healthy else self.function
        target = f"{function.__module__}:{function.__name__}"  # type: ignore[attr-defined]  # a plain function
        return Kernel(
            operator=target,
            target=target,
            signature=parse_signature(self.signature),
            function=function,
            restrictions=parse_restrictions(self.dims),
        )
