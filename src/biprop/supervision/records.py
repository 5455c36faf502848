"""What is asked of a judge, and what it says of its kernel.

Records and a protocol, without torch: `biprop.supervision.in_process` judges here,
`biprop.supervision.supervised` in a child process.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs

from biprop.case import Case
from biprop.data.recipe import Point
from biprop.judgment import Outcome
from biprop.operators import InvarianceDeclaration, KernelReference, OpClass
from biprop.provenance import Provenance
from biprop.relations import JUDGE_OPTIONS, JudgeOptions

__all__ = ["BrokenOffError", "Description", "Judge"]


class BrokenOffError(KeyboardInterrupt):
    """Ctrl-C, or whoever writes down what is launched, broke off a judgement.

    Attributes:
        outcomes: Of the first of its cases, as far as they are known: what was seen is not unseen.
    """

    def __init__(self, outcomes: tuple[Outcome, ...]) -> None:
        """Keep them."""
        super().__init__()
        self.outcomes = outcomes


@attrs.frozen(kw_only=True)
class Description:
    """What a kernel is, as far as cases must be drawn for it and findings be recorded.

    Attributes:
        op_class: None for an unregistered target.
        declaration: What it promises; None where nothing is declared.
        exempt_reason: Why a registered operator promises nothing.
        constants: Integers mined from its source, as sizes worth drawing.
        thresholds: Those that the kernel itself asks about, which are swept first.
        owner: URL of who looks after it; empty where nobody is named.
        has_reference: Whether accuracy can be judged.
        forms: Of a registered operator under the same backend, text of the forward signature by
            name of every other form.
        form_backwards: Likewise, of their registered backwards, where they have one.
        takes_shards: Whether the kernel computes as any number of ranks.
        yardsticks: Backends of the same form that parity is judged against here: those before this
            one in the registry, so that each pair is judged once.
        provenance: Device, versions and digests of the process that runs it.
    """

    provenance: Provenance
    op_class: OpClass | None = None
    declaration: InvarianceDeclaration | None = None
    exempt_reason: str | None = None
    constants: tuple[int, ...] = ()
    thresholds: tuple[int, ...] = ()
    owner: str = ""
    has_reference: bool = False
    forms: dict[str, str] = attrs.field(factory=dict)
    form_backwards: dict[str, str] = attrs.field(factory=dict)
    takes_shards: bool = False
    yardsticks: tuple[str, ...] = ()

    @property
    def is_registered(self) -> bool:
        """Whether it comes from a registry."""
        return self.op_class is not None


class Judge(Protocol):
    """Judges cases of one kernel on one device.

    A verdict is sticky: the same case gives the same outcome object, unless `options.fresh` asks
    for another judgement or `options` for more than was asked before.
    """

    @property
    def reference(self) -> KernelReference:
        """How the kernel is found again, its signature written out."""

    @property
    def description(self) -> Description:
        """What the kernel is."""

    def judge(self, case: Case, options: JudgeOptions = JUDGE_OPTIONS) -> Outcome:
        """Return the outcome of one case.

        Raises:
            BipropError: The case is illegal for the kernel, or the kernel returns something else
                than its signature says.
            BrokenOffError: Ctrl-C came when the case had failed.
        """

    def judge_set(
        self, cases: Sequence[Case], options: Sequence[JudgeOptions]
    ) -> tuple[Outcome, ...]:
        """Return the outcome of each of several layouts of one case.

        What they have in common is done once where all of them hold; the outcomes are those of
        `judge`, but for launches and seconds, which are shared out among them.

        Args:
            cases: They differ in their transforms alone.
            options: One for each.

        Raises:
            BipropError: As `judge` does, for the first case that it is about.
            BrokenOffError: Ctrl-C came when the first of them were judged.
        """

    def nonzeros(self, case: Case, name: str, limit: int) -> tuple[Point, ...] | None:
        """List the values of one tensor that are not zero; None if there are more than `limit`."""

    def relative(self, backend: str) -> "Judge":
        """Return a judge of the same operator and form under another backend.

        It may share what this one runs in, and is closed before it.

        Raises:
            BipropError: There is no such backend, or it cannot be run.
        """

    def close(self) -> None:
        """Let go of the kernel; twice does no harm."""
