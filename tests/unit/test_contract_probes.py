"""Probes: healthy kernels meet them, and a narrow sum or product does not."""

from collections.abc import Callable
from itertools import product

import attrs
import pytest
import torch
from torch import Tensor

from biprop.contract import OP_CLASSES, load_contract
from biprop.contract.probes import ACCUMULATION, PRODUCTS, SCORES, Expected, Probe, probes_for
from biprop.contract.probes.designs import SUM, cancelling
from biprop.contract.records import OpClass
from biprop.execution import prepare, reference_outputs, run_canonical
from biprop.generation.legal import legal_for
from biprop.kernels import OPERATORS
from biprop.kernels.attention import OPERATOR as ATTENTION
from biprop.kernels.det_gemm import OPERATOR as DET_GEMM
from biprop.kernels.logp import OPERATOR as LOGP
from biprop.kernels.rms_norm import OPERATOR as RMS_NORM
from biprop.operators import Kernel, KernelFunction, Operator
from biprop.signature import parse_restrictions, parse_signature

# Triton in the interpreter takes a second for what torch does in a tenth of it, and is probed where
# its cells are judged.
TORCH_KERNELS = [
    kernel for operator in OPERATORS for kernel in operator.kernels() if kernel.backend == "torch"
]
LINEAR = "x[T,K], weight[N,K] -> y[T,N]"
LINEAR_LOGP = "x[T,K], weight[V,K], target: token(V)[T] -> logp: float32[T], lse: float32[T]"


def probes_of(kernel: Kernel) -> dict[str, Probe]:
    """Return the probes of a registered kernel by name."""
    assert kernel.op_class is not None
    plan = probes_for(kernel.signature, op_class=kernel.op_class, restrictions=kernel.restrictions)
    return {probe.name: probe for probe in plan.probes}


def with_function(operator: Operator, function: KernelFunction) -> Kernel:
    """Return the first kernel of an operator with another function."""
    return attrs.evolve(operator.kernels()[0], function=function)


def values_of(kernel: Kernel, expected: Expected, outputs: dict[str, Tensor]) -> list[float]:
    """Return the elements that an expectation is about."""
    (item,) = (out for out in kernel.signature.judged_outputs if out.name == expected.output)
    free = (expected.at.get(dim.text, slice(None)) for dim in item.free_dims)
    values: list[float] = outputs[expected.output][:, *free].double().flatten().tolist()
    assert values
    return values


def met(kernel: Kernel, probe: Probe, outputs: dict[str, Tensor]) -> bool:
    """Return whether every expectation is met."""
    bound = load_contract().tolerance(
        judgment="forward_accuracy",
        op_class=str(kernel.op_class),
        dtype=probe.case.dtype,
    )
    assert bound is not None
    return all(
        abs(value - wanted.value)
        <= (0.0 if wanted.is_exact else bound.atol + bound.rtol * abs(wanted.value))
        for wanted in probe.expected
        for value in values_of(kernel, wanted, outputs)
    )


def is_met(kernel: Kernel, name: str) -> bool:
    """Return whether a kernel meets one of its probes."""
    probe = probes_of(kernel)[name]
    return met(kernel, probe, run_canonical(prepare(kernel, probe.case, device="cpu")).outputs)


def summed(values: Tensor, dim: int) -> Tensor:
    """Return a sum as torch makes it."""
    return values.sum(dim)


def to_tf32(values: Tensor) -> Tensor:
    """Return float32 values rounded to the 10 bits of fraction that TF32 keeps."""
    bits = values.float().contiguous().view(torch.int32)
    # To the nearest, ties to even.
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    return bits.view(torch.float32)


def one_by_one(terms: Tensor) -> Tensor:
    """Return bfloat16 sums over the last dimension, in its order."""
    total = torch.zeros(terms.shape[:-1], dtype=torch.bfloat16)
    # Terms lie together, which halves the time.
    for term in terms.bfloat16().movedim(-1, 0).contiguous():
        total = total + term
    return total


def from_the_end(terms: Tensor) -> Tensor:
    """Return bfloat16 sums over the last dimension, against its order."""
    return one_by_one(terms.flip(-1))


def in_blocks(terms: Tensor) -> Tensor:
    """Return bfloat16 sums of float32 sums of 64 terms."""
    starts = range(0, terms.shape[-1], 64)
    blocks = [terms[..., start : start + 64].float().sum(-1) for start in starts]
    return one_by_one(torch.stack(blocks, -1))


def in_halves(terms: Tensor) -> Tensor:
    """Return bfloat16 sums of halves of halves."""
    terms = terms.bfloat16()
    while terms.shape[-1] > 1:
        terms = torch.nn.functional.pad(terms, (0, terms.shape[-1] % 2))
        first, second = terms.chunk(2, -1)
        terms = first + second
    return terms.squeeze(-1)


NARROW_SUMS = [one_by_one, from_the_end, in_blocks, in_halves]


@pytest.mark.parametrize("kernel", TORCH_KERNELS, ids=lambda kernel: kernel.name)
def test_cases_are_legal(kernel: Kernel) -> None:
    """The case of every probe is legal for its kernel."""
    cases = [probe.case for probe in probes_of(kernel).values()]

    assert [legal_for(kernel)(case) for case in cases] == [""] * len(cases)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [(kernel, name) for kernel in TORCH_KERNELS for name in probes_of(kernel)],
    ids=lambda item: item.name if isinstance(item, Kernel) else item,
)
def test_healthy_kernel_meets_its_probes(kernel: Kernel, name: str) -> None:
    """The torch backend of every operator, and its float32 reference, give what is expected."""
    probe = probes_of(kernel)[name]
    prepared = prepare(kernel, probe.case, device="cpu")

    assert met(kernel, probe, run_canonical(prepared).outputs)
    if kernel.reference is not None:
        assert met(kernel, probe, reference_outputs(prepared, summed))


@pytest.mark.parametrize("narrow", NARROW_SUMS)
def test_narrow_sum_of_products_is_seen(narrow: Callable[[Tensor], Tensor]) -> None:
    """A product that is summed in bfloat16 does not meet its probe, in whatever order."""

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return narrow(x[:, None, :].float() * weight.float())

    assert not is_met(with_function(DET_GEMM, forward), ACCUMULATION)


@pytest.mark.parametrize("narrow", NARROW_SUMS)
def test_narrow_sum_of_squares_is_seen(narrow: Callable[[Tensor], Tensor]) -> None:
    """A norm whose squares are summed in bfloat16 does not meet its probe."""

    assert not is_met(with_function(RMS_NORM, norm_by(narrow)), ACCUMULATION)


def norm_by(narrow: Callable[[Tensor], Tensor]) -> KernelFunction:
    """Return a norm that sums squares by `narrow`."""

    def forward(x: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
        mean = narrow(x.float() ** 2).float() / x.shape[-1]
        rstd = (mean + eps).rsqrt()
        return (x.float() * rstd[:, None] * weight.float()).to(x.dtype), rstd

    return forward


@pytest.mark.parametrize("narrow", [one_by_one, from_the_end])
def test_narrow_sum_of_exponentials_is_seen(narrow: Callable[[Tensor], Tensor]) -> None:
    """A log-sum-exp whose exponentials are added in bfloat16 does not meet its probe."""

    def forward(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        wide = logits.float()
        lse = narrow(wide.exp()).float().log()
        return wide.gather(1, target[:, None])[:, 0] - lse, lse

    assert not is_met(with_function(LOGP, forward), ACCUMULATION)


@pytest.mark.parametrize("narrow", NARROW_SUMS)
def test_narrow_sum_of_values_is_seen(narrow: Callable[[Tensor], Tensor]) -> None:
    """An attention whose weighted values are summed in bfloat16 does not meet its probe."""

    def attend(weights: Tensor, values: Tensor) -> Tensor:
        return narrow(weights[:, None, :] * values.t()[None])

    assert not is_met(with_function(ATTENTION, one_sequence(attend=attend)), ACCUMULATION)


@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True)])
def test_tf32_product_is_seen(sides: tuple[bool, bool]) -> None:
    """A product that rounds either side to TF32 does not meet its probe."""

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        x, weight = (
            to_tf32(side) if rounds else side
            for side, rounds in zip((x, weight), sides, strict=True)
        )
        return x @ weight.t()

    assert not is_met(with_function(DET_GEMM, forward), PRODUCTS)


def test_tf32_values_are_seen() -> None:
    """An attention that rounds weights and values to TF32 does not meet its probe."""
    function = one_sequence(attend=lambda weights, values: to_tf32(weights) @ to_tf32(values))

    assert not is_met(with_function(ATTENTION, function), PRODUCTS)


def test_tf32_scores_are_seen() -> None:
    """An attention that rounds queries and keys to TF32 does not meet its probe."""
    function = one_sequence(score=lambda q, k: to_tf32(q) @ to_tf32(k).t())

    assert not is_met(with_function(ATTENTION, function), SCORES)


def one_sequence(
    *,
    score: Callable[[Tensor, Tensor], Tensor] = lambda q, k: q @ k.t(),
    attend: Callable[[Tensor, Tensor], Tensor] = lambda weights, values: weights @ values,
) -> KernelFunction:
    """Return causal attention of one packed sequence and one head, made of two products."""

    def forward(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        q_TD, k_CD, v_CD = (tensor[:, 0].float() for tensor in (q, k, v))
        scores = score(q_TD, k_CD) * q_TD.shape[1] ** -0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        lse = scores.logsumexp(1)
        out = attend((scores - lse[:, None]).exp(), v_CD)
        return out.to(q.dtype)[:, None], lse[:, None]

    return forward


@pytest.mark.parametrize("name", [ACCUMULATION, PRODUCTS, SCORES])
def test_plain_attention_meets_its_probes(name: str) -> None:
    """The attention that the tests above spoil meets its probes where it is not spoilt."""

    assert is_met(with_function(ATTENTION, one_sequence()), name)


def log_softmax(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Compute logprobs of targets from hidden states in float32."""
    logits = x.float() @ weight.float().t()
    lse = logits.logsumexp(1)
    return logits.gather(1, target[:, None])[:, 0] - lse, lse


def tf32_log_softmax(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Round hidden states and weights to TF32 first."""
    return log_softmax(to_tf32(x), to_tf32(weight), target)


def narrow_log_softmax(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Sum logits in bfloat16."""
    logits = in_blocks(x[:, None, :].float() * weight.float()).float()
    lse = logits.logsumexp(1)
    return logits.gather(1, target[:, None])[:, 0] - lse, lse


@pytest.mark.parametrize(
    ("function", "name", "meets"),
    [
        (log_softmax, ACCUMULATION, True),
        (log_softmax, PRODUCTS, True),
        (narrow_log_softmax, ACCUMULATION, False),
        (tf32_log_softmax, PRODUCTS, False),
    ],
)
def test_logprobs_of_hidden_states(function: KernelFunction, name: str, *, meets: bool) -> None:
    """Logprobs of products are probed by the log of the sum, whatever the targets are."""
    kernel = Kernel(
        target="linear_logp/packed",
        operator="linear_logp",
        op_class="logprob",
        signature=parse_signature(LINEAR_LOGP),
        function=function,
    )

    assert is_met(kernel, name) is meets


@pytest.mark.parametrize(
    ("restrictions", "depth"),
    [
        ("", 1088),
        ("K=1..2000 K%48==0", 1056),
        ("K=1..700", 700),
        ("K=519", 519),
        ("K=64|1152", 1152),
        ("K=2048", None),
        ("K=1..512", None),
    ],
)
def test_depth_follows_the_restrictions(restrictions: str, depth: int | None) -> None:
    """A sum has more than 512 ones where the restrictions allow it; else that is said."""
    allowed = parse_restrictions(restrictions)
    plan = probes_for(parse_signature(LINEAR), op_class="reduction", restrictions=allowed)
    found = {probe.name: probe.case.dims["K"] for probe in plan.probes}

    assert found.get(ACCUMULATION) == depth
    reasons = {absent.name: absent.reason for absent in plan.absent}
    assert (reasons.get(ACCUMULATION) == "K cannot be from 516 to 1536") is (depth is None)


def test_ones_are_a_number_of_bfloat16() -> None:
    """Of a depth of 703, 700 ones are added, which bfloat16 holds and more than 2**9 are."""
    plan = probes_for(
        parse_signature(LINEAR), op_class="reduction", restrictions=parse_restrictions("K=703")
    )
    found = {expected.value for expected in plan.probes[0].expected}

    assert found == {SUM, 700.0}
    assert torch.tensor([SUM, 700.0]).bfloat16().tolist() == [SUM, 700.0]


@pytest.mark.parametrize("count", [64, 128, 519, 1088, 1089])
def test_numbers_cancel(count: int) -> None:
    """The numbers of a sum are as many as asked for, of 8 bits, and cancel to 129."""
    numbers = cancelling(count)

    assert len(numbers) == count
    assert sum(numbers) == SUM
    assert torch.tensor(numbers).bfloat16().tolist() == numbers


@pytest.mark.parametrize(
    ("op_class", "text"),
    [
        ("elementwise", "x[T,H] -> y[T,H]"),
        ("reduction", "x[T,K,M], weight[N,K,M] -> y[T,N]"),
        ("reduction", "x[T,8] -> y[T,8]"),
        ("reduction", "x[T,H], scale[T] -> y[T,H]"),
        ("reduction", "x[T,K*2], weight[N,K*2] -> y[T,N]"),
        ("logprob", "logits[T,V] -> logp: float32[T]"),
        ("logprob", "x[T,K], weight[V,K], target: token(V)[T] -> logp: float32[T]"),
        ("attention", "kv[B,C,D], q[B,Q,D], mask: mask[B,C] -> y[B,Q,D]"),
    ],
)
def test_what_cannot_be_probed_is_said(op_class: OpClass, text: str) -> None:
    """A signature that nothing can be guessed of has no probes, and a reason for each."""
    plan = probes_for(parse_signature(text), op_class=op_class)

    assert plan.probes == ()
    assert {ACCUMULATION, PRODUCTS} <= {absent.name for absent in plan.absent}
    assert all(absent.reason for absent in plan.absent)


@pytest.mark.parametrize("width", [1000, 128, 12])
@pytest.mark.parametrize("narrow", [one_by_one, in_halves])
def test_norm_of_any_width_is_probed(width: int, narrow: Callable[[Tensor], Tensor]) -> None:
    """A norm has a probe that a narrow sum does not meet, over heads of a few features too."""
    operator = attrs.evolve(RMS_NORM, restrictions=parse_restrictions(f"H={width}"))

    assert is_met(operator.kernels()[0], ACCUMULATION)
    assert not is_met(with_function(operator, norm_by(narrow)), ACCUMULATION)


def test_norm_of_few_features_is_not_probed() -> None:
    """Of three numbers no design is found, and that is said."""
    plan = probes_for(
        RMS_NORM.forms[0].signature, op_class="reduction", restrictions=parse_restrictions("H=3")
    )

    assert [absent.reason for absent in plan.absent][:1] == ["H cannot be from 4 to 2048"]


def test_every_class_has_an_answer() -> None:
    """A class that does not fit the signature is answered, not raised."""
    plans = [
        probes_for(kernel.signature, op_class=op_class)
        for kernel, op_class in product(TORCH_KERNELS, OP_CLASSES)
    ]

    assert all(plan.probes or plan.absent for plan in plans)
