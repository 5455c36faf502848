"""Assertions for other people's test suites: an operator keeps its bits, or the test fails.

`op` is the name of a registered operator, an `Operator`, or a callable described by
`@biprop.operator`. A registered one runs in a worker process of its own, so that a crash fails the
test and not the session; any other one runs in the process of the test.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from biprop.case import DTYPES, Case, Dtype
from biprop.contract import Contract
from biprop.errors import BipropError, RestrictionError, TargetError, UnsupportedError, UsageError
from biprop.generation.space import Direction, Space
from biprop.judgment import Outcome, Verdict
from biprop.loading import SPEC_ATTRIBUTE, OperatorSpec
from biprop.operators import Kernel, Operator, Registry
from biprop.registry import build_registry
from biprop.relations import JUDGE_OPTIONS, JudgeOptions
from biprop.reports.judged import ForwardInvarianceReport, GradientInvarianceReport, judged_report
from biprop.reports.records import CellReport
from biprop.reports.suite_text import render_failed
from biprop.signature import Restrictions, parse_restrictions
from biprop.signature.restrictions import Domain
from biprop.strategies.api import kernel_of
from biprop.strategies.cells import id_of
from biprop.strategies.profiles import PROFILES, ProfileName
from biprop.strategies.search import search
from biprop.strategies.spaces import lane_of, space_for
from biprop.suite.arguments import (
    check_count,
    check_device_name,
    check_names,
    check_seed,
    check_word,
    contract_of,
    names_of,
)
from biprop.supervision import Child, Judge, SupervisedJudge
from biprop.supervision.in_process import InProcessJudge
from biprop.supervision.resolve import reference_of

__all__ = [
    "NotInvariantError",
    "SuiteConfig",
    "assert_forward_batch_invariant",
    "assert_gradient_batch_invariant",
]

# Options of the command line in messages, and what stands for each in Python.
_OPTION = re.compile(r"--([a-z][a-z-]*)")
_FIELDS = {
    "max-examples": "SuiteConfig.max_examples",
    "transforms": "SuiteConfig.transforms",
    "dims": "SuiteConfig.dims",
    "call": "call of @biprop.operator",
    "signature": "a signature",
    "device": "device",
}
# What Triton says where it finds no GPU, and what helps.
_NO_DRIVER = "0 active drivers"
_INTERPRETER = (
    "A compiled Triton kernel needs a GPU: set TRITON_INTERPRET=1 before the module of the kernel "
    "is imported, to use Triton's interpreter"
)

Subject = str | Operator | Callable[..., object]


def _names(values: Iterable[str]) -> tuple[str, ...]:
    return names_of(values)  # type: ignore[no-any-return]


def _dtypes(values: Iterable[Dtype]) -> tuple[Dtype, ...]:
    return names_of(values)  # type: ignore[no-any-return]


@attrs.frozen(kw_only=True)
class SuiteConfig:
    """What an assertion is restricted to; what is left out means all.

    Attributes:
        backends: Names of backends of an operator.
        dtypes: Of the cases.
        transforms: Classes, `T1`, `T4.finite`, ...
        dims: Restrictions of the free dimensions, besides the operator's own: `H=64 K%8==0`.
        max_examples: Cases of each form, backend, dtype and direction; None: as the profile says.
    """

    backends: tuple[str, ...] = attrs.field(default=(), converter=_names)
    dtypes: tuple[Dtype, ...] = attrs.field(default=("float32", "bfloat16"), converter=_dtypes)
    transforms: tuple[str, ...] = attrs.field(default=(), converter=_names)
    dims: str = ""
    max_examples: int | None = None

    def __attrs_post_init__(self) -> None:
        """Refuse what no operator could meet."""
        check_names(self, "backends", "dtypes", "transforms")
        unknown = [name for name in self.dtypes if name not in DTYPES]
        if unknown or not self.dtypes:
            shown = repr(unknown[0]) if unknown else "nothing"
            raise UsageError(f"dtypes names {shown}: use one or more of {', '.join(DTYPES)}.")
        check_count("max_examples", self.max_examples)
        dims: object = self.dims
        if not isinstance(dims, str):
            raise UsageError(f"dims is a {type(dims).__name__}: give a text, as 'H=64 K%8==0'.")


class NotInvariantError(AssertionError):
    """An operator does not keep its bits, or there is too little evidence that it does.

    Attributes:
        report: What was found.
    """

    report: ForwardInvarianceReport | GradientInvarianceReport

    def __init__(
        self, text: str, report: ForwardInvarianceReport | GradientInvarianceReport
    ) -> None:
        """Keep the report beside its text."""
        super().__init__(text)
        self.report = report


def assert_forward_batch_invariant(
    op: Subject,
    configs: SuiteConfig | Sequence[SuiteConfig] | None = None,
    contract: Contract | str | Path | None = None,
    *,
    device: str = "cpu",
    profile: ProfileName = "pr",
    seed: int = 0,
) -> ForwardInvarianceReport:
    """Fail unless every output of `op` keeps its bits under every transform that applies.

    Args:
        op: Name of a registered operator, an `Operator`, or a callable with `@biprop.operator`.
        configs: What to restrict the search to; several are searched one after the other.
        contract: Where given, a declared operator is judged for accuracy and parity too; a contract
            or the path of one.
        device: `cpu`, `cuda:0`, ...
        profile: How thorough the search is.
        seed: The same seed draws the same cases.

    Raises:
        NotInvariantError: It does not, or a class of transforms lacks evidence.
        UnsupportedError: The operator says that it cannot run such cases.
        BipropError: An argument cannot be used, or the operator does not run at all.
    """
    cells = _searched(
        op,
        ("forward",),
        _options(configs, contract, device=device, profile=profile, seed=seed),
    )
    outputs = judged_report(cells, "outputs")
    assert outputs is not None, "every forward cell judges outputs"
    report = ForwardInvarianceReport(cells=cells, outputs=outputs)
    _raise_unless_green(cells, report)
    return report


def assert_gradient_batch_invariant(
    op: Subject,
    configs: SuiteConfig | Sequence[SuiteConfig] | None = None,
    contract: Contract | str | Path | None = None,
    *,
    device: str = "cpu",
    profile: ProfileName = "pr",
    seed: int = 0,
) -> GradientInvarianceReport:
    """Fail unless outputs and gradients of `op` keep their bits under every transform that applies.

    Outputs are judged too, since a gradient is taken at them. Arguments are those of
    `assert_forward_batch_invariant`.

    Raises:
        NotInvariantError: They do not, or a class of transforms lacks evidence.
        UnsupportedError: The operator says that it cannot run such cases, or has no gradient.
        BipropError: An argument cannot be used, or the operator does not run at all.
    """
    cells = _searched(
        op,
        ("forward", "backward"),
        _options(configs, contract, device=device, profile=profile, seed=seed),
    )
    outputs = judged_report(cells, "outputs")
    assert outputs is not None, "every forward cell judges outputs"
    report = GradientInvarianceReport(
        cells=cells,
        outputs=outputs,
        token_gradients=judged_report(cells, "token_gradients"),
        parameter_gradients=judged_report(cells, "parameter_gradients"),
    )
    _raise_unless_green(cells, report)
    return report


@attrs.frozen(kw_only=True)
class _Options:
    """The arguments of an assertion, read."""

    configs: tuple[SuiteConfig, ...]
    contract: Contract | None
    device: str
    profile: ProfileName
    seed: int


def _options(
    configs: SuiteConfig | Sequence[SuiteConfig] | None,
    contract: Contract | str | Path | None,
    *,
    device: str,
    profile: ProfileName,
    seed: int,
) -> _Options:
    """Return the arguments, each of them one that can be used.

    Raises:
        BipropError: One cannot be; the sentence names it.
    """
    check_word("profile", profile, tuple(PROFILES))
    check_device_name(device)
    check_seed(seed)
    return _Options(
        configs=_configs(configs),
        contract=None if contract is None else contract_of(contract),
        device=device,
        profile=profile,
        seed=seed,
    )


def _configs(configs: SuiteConfig | Sequence[SuiteConfig] | None) -> tuple[SuiteConfig, ...]:
    listed: object = configs
    if listed is not None and not isinstance(listed, (SuiteConfig, Sequence)):
        raise UsageError(
            f"configs is a {type(listed).__name__}: give a SuiteConfig, or several of them."
        )
    found = (configs,) if isinstance(configs, SuiteConfig) else tuple(configs or (SuiteConfig(),))
    for item in found:
        # A caller without types may give names instead.
        given: object = item
        if not isinstance(given, SuiteConfig):
            raise UsageError(
                f"configs holds a {type(given).__name__}: give a SuiteConfig, or several of them."
            )
    return found


def _searched(
    op: Subject, directions: Sequence[Direction], options: _Options
) -> dict[str, CellReport]:
    """Search every form, backend, dtype and direction that the configurations leave."""
    kernels, is_installed = _kernels_of(op)
    reports: dict[str, CellReport] = {}
    with ExitStack() as stack:
        stack.enter_context(_python_words())
        child = Child(device=options.device, threads=1) if is_installed else None
        if child is not None:
            stack.callback(child.close)
        for number, config in enumerate(options.configs):
            for kernel in _wanted(kernels, config, directions):
                for dtype in config.dtypes:
                    for direction in directions:
                        name = id_of(kernel, dtype=dtype, direction=direction)
                        name += f"-{number}" if len(options.configs) > 1 else ""
                        with _judge(kernel, child, options.device, dtype, direction) as judge:
                            reports[name] = _search(judge, config, dtype, direction, options)
    return reports


def _wanted(
    kernels: Sequence[Kernel], config: SuiteConfig, directions: Sequence[Direction]
) -> tuple[Kernel, ...]:
    declaration = kernels[0].declaration
    if "backward" in directions and declaration is not None and not declaration.backward:
        raise UnsupportedError(f"Operator {kernels[0].operator} declares no gradients to judge.")
    known = sorted({kernel.backend for kernel in kernels})
    for name in config.backends:
        if name not in known:
            raise UsageError(
                f"configs names the backend {name!r}, which {kernels[0].operator} has not: "
                f"use {', '.join(known)}."
            )
    return tuple(k for k in kernels if not config.backends or k.backend in config.backends)


@contextmanager
def _judge(
    kernel: Kernel, child: Child | None, device: str, dtype: Dtype, direction: Direction
) -> Iterator[Judge]:
    judge: Judge
    if child is None:
        judge = InProcessJudge(kernel, device=device, dtype=dtype, direction=direction)
    else:
        judge = SupervisedJudge(
            reference=reference_of(kernel),
            device=device,
            dtype=dtype,
            direction=direction,
            child=child,
        )
    try:
        yield judge
    finally:
        judge.close()


class _Watched:
    """A judge, and why the operator refused the cases so far."""

    def __init__(self, judge: Judge) -> None:
        """Pass on what is asked of `judge`."""
        self._judge = judge
        self.reference = judge.reference
        self.description = judge.description
        self.nonzeros = judge.nonzeros
        self.relative = judge.relative
        self.close = judge.close
        self.has_run = False
        self.refusal = ""

    def judge(self, case: Case, options: JudgeOptions = JUDGE_OPTIONS) -> Outcome:
        """Return the outcome of one case."""
        outcome = self._judge.judge(case, options)
        self._look_at(outcome)
        return outcome

    def judge_set(
        self, cases: Sequence[Case], options: Sequence[JudgeOptions]
    ) -> tuple[Outcome, ...]:
        """Return the outcome of each of several layouts of one case."""
        outcomes = self._judge.judge_set(cases, options)
        for outcome in outcomes:
            self._look_at(outcome)
        return outcomes

    def _look_at(self, outcome: Outcome) -> None:
        if outcome.verdict is Verdict.UNSUPPORTED:
            self.refusal = self.refusal or outcome.message
        else:
            self.has_run = True


def _search(
    judge: Judge, config: SuiteConfig, dtype: Dtype, direction: Direction, options: _Options
) -> CellReport:
    profile = PROFILES[options.profile]
    space = space_for(
        judge.reference,
        judge.description,
        dtype=dtype,
        direction=direction,
        transforms=config.transforms,
        profile=profile,
        contract=options.contract,
    )
    watched = _Watched(judge)
    report = search(
        watched,
        _restricted(space, config.dims),
        device=options.device,
        lane=lane_of(judge.description),
        profile=profile,
        max_examples=config.max_examples,
        seed=options.seed,
    )
    if watched.refusal and not watched.has_run and report.verdict is Verdict.VACUOUS:
        # Evidence lacks because the operator refused every case, and it said why.
        report = attrs.evolve(report, verdict=Verdict.UNSUPPORTED, message=watched.refusal)
    return attrs.evolve(report, message=_for_python(report.message))


def _restricted(space: Space, dims: str) -> Space:
    """Return a space whose sizes meet `dims` as well.

    Raises:
        RestrictionError: `dims` cannot be read, is about no dimension, or leaves no size.
    """
    more = parse_restrictions(dims).check_against(space.signature)
    own = space.restrictions
    narrowed = tuple(_narrowed(own.domain(domain.name), domain) for domain in more.domains)
    named = {domain.name for domain in narrowed}
    both = Restrictions(
        domains=(*(domain for domain in own.domains if domain.name not in named), *narrowed),
        remainders=tuple(dict.fromkeys((*own.remainders, *more.remainders))),
    )
    return attrs.evolve(space, restrictions=both)


def _narrowed(own: Domain, more: Domain) -> Domain:
    if own.choices or more.choices:
        one, other = (more, own) if more.choices else (own, more)
        choices = tuple(size for size in one.choices if other.admits(size))
        found = attrs.evolve(more, choices=choices)
        is_empty = not choices
    else:
        found = attrs.evolve(more, low=max(own.low, more.low), high=min(own.high, more.high))
        is_empty = found.low > found.high
    if is_empty:
        raise RestrictionError(
            f"dims {more.text!r} leaves no size of what the operator allows, {own.text!r}: "
            "give others."
        )
    return found


def _kernels_of(op: Subject) -> tuple[tuple[Kernel, ...], bool]:
    """Return the kernels to judge, and whether a worker finds them by name.

    Raises:
        TargetError: There is no such operator, or it promises nothing.
        UsageError: `op` is none of the three.
    """
    if isinstance(op, (str, Operator)):
        registry = build_registry()
        operator = _operator(op, registry) if isinstance(op, str) else op
        if operator.exempt_reason is not None:
            raise TargetError(
                f"Operator {operator.name} is exempt, it promises nothing: {operator.exempt_reason}"
            )
        return operator.kernels(), any(operator is known for known in registry.operators)
    spec = getattr(op, SPEC_ATTRIBUTE, None)
    if not isinstance(spec, OperatorSpec):
        raise UsageError(
            f"op is a {type(op).__name__} without a signature: give the name of a registered "
            "operator, an Operator, or a callable described by @biprop.operator."
        )
    return (kernel_of(op, spec),), False


def _operator(name: str, registry: Registry) -> Operator:
    for operator in registry.operators:
        if operator.name == name:
            return operator
    known = ", ".join(operator.name for operator in registry.operators)
    raise TargetError(f"No operator {name!r} is registered: there are {known}.")


def _raise_unless_green(
    cells: dict[str, CellReport], report: ForwardInvarianceReport | GradientInvarianceReport
) -> None:
    """Raise where a cell does not hold; a cell that cannot run is no pass either."""
    red = [item for item in cells.values() if item.verdict is not Verdict.HOLDS]
    failed = [item for item in red if item.verdict is not Verdict.UNSUPPORTED]
    if failed:
        raise NotInvariantError("\n".join(map(render_failed, failed)), report)
    if red:
        raise UnsupportedError(red[0].message)


@contextmanager
def _python_words() -> Iterator[None]:
    """Let errors name what a Python caller can change, instead of options of the command line."""
    try:
        yield
    except BipropError as error:
        error.args = (_for_python(str(error)),)
        raise


def _for_python(text: str) -> str:
    if _NO_DRIVER in text:
        text = f"{_INTERPRETER}; {text[0].lower()}{text[1:]}"
    return _OPTION.sub(lambda found: _FIELDS.get(found[1], found[0]), text)
