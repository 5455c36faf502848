"""Bit patterns: the only place of biprop that compares floats, and the one that poisons memory.

Two values are the same when their bits are: +0 is not -0, and a NaN is itself. What a comparison
means is said elsewhere: `biprop.execution` chooses the watched tokens, `biprop.judgment`
classifies, `biprop.reports` tells people. Errors are reported beside the bits and never decide;
only `compare_within` asks how far values lie apart, and is told what is allowed.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor

from biprop.errors import OutputError

__all__ = [
    "Agreement",
    "Comparison",
    "NanPayload",
    "Poison",
    "any_differ",
    "bit_pattern",
    "compare",
    "compare_within",
    "digest_bits",
    "hex_of",
    "poison_",
    "poisoned",
    "raw_differ",
    "same_bits",
]

NanPayload = Literal["any", "exact"]
Poison = Literal["nan", "large"]

_WIDEST = 8
_INTEGER_BY_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# The byte 0x7b repeated is large and finite in every float format in use (1.3e36 in float32 and
# bfloat16, 61280 in float16, 352 in float8_e4m3fn), and large and positive in every integer format.
_LARGE_BY_WIDTH = {1: 0x7B, 2: 0x7B7B, 4: 0x7B7B7B7B, 8: 0x7B7B7B7B7B7B7B7B}
# Quiet NaNs of a payload that no arithmetic produces, so that a report shows where one came from.
_NAN_BY_DTYPE = {
    torch.float64: 0x7FFDEADDEADDEADD,
    torch.float32: 0x7FEDDEAD,
    torch.bfloat16: 0x7FED,
    torch.float16: 0x7EAD,
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e5m2: 0x7F,
}
# Two bytes that, repeated, are a quiet NaN in every float format of two bytes and more.
_NAN_OF_ALL = 0x7FFD


@attrs.frozen(kw_only=True)
class Comparison:
    """What a comparison of two tensors showed; the first axis counts tokens.

    Attributes:
        elements_compared: Elements of either tensor.
        elements_differing: Elements whose bits differ.
        tokens_compared: Size of the first axis; 1 for a tensor without axes.
        tokens_differing: Tokens with at least one differing element.
        first: Index of the first differing element in row-major order, None if there is none.
        max_abs_error: Largest absolute difference over pairs of finite values, in float64. Where
            values differ and no such pair does, NaN if one of them is NaN, else infinite; likewise
            the next two.
        mean_abs_error: Mean absolute difference over pairs of finite values, in float64.
        max_rel_error: Largest absolute difference divided by the canonical magnitude, over pairs of
            finite values, in float64; infinite where a canonical zero has another counterpart.
    """

    elements_compared: int = attrs.field(validator=attrs.validators.ge(0))
    elements_differing: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    tokens_compared: int = attrs.field(validator=attrs.validators.ge(0))
    tokens_differing: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    first: tuple[int, ...] | None = None
    max_abs_error: float = 0.0
    mean_abs_error: float = 0.0
    max_rel_error: float = 0.0

    @property
    def same(self) -> bool:
        """Whether no element differs."""
        return self.elements_differing == 0


@attrs.frozen(kw_only=True)
class Agreement:
    """How well a tensor agrees with another one within a tolerance; the first axis counts tokens.

    Attributes:
        elements_compared: Elements of either tensor.
        elements_beyond: Elements that do not agree.
        elements_telling: Elements of which the other side is finite and not zero.
        tokens_compared: Size of the first axis; 1 for a tensor without axes.
        tokens_beyond: Tokens with at least one element that does not agree.
        first: Index of the first of them in row-major order, None if there is none.
        share: Largest error over pairs of finite values, divided by what is allowed there; infinite
            where nothing is.
        max_abs_error: As for `Comparison`, likewise the next two; 0 where all agree.
        mean_abs_error: Over pairs of finite values.
        max_rel_error: Divided by the magnitude of the other side.
    """

    elements_compared: int = attrs.field(validator=attrs.validators.ge(0))
    elements_beyond: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    elements_telling: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    tokens_compared: int = attrs.field(validator=attrs.validators.ge(0))
    tokens_beyond: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    first: tuple[int, ...] | None = None
    share: float = 0.0
    max_abs_error: float = 0.0
    mean_abs_error: float = 0.0
    max_rel_error: float = 0.0


def bit_pattern(values: Tensor) -> Tensor:
    """Reinterpret `values` as uint8, int16, int32 or int64, by their width, in the same shape.

    The result shares memory with `values` where that is contiguous, else it views a copy.

    Raises:
        OutputError: The dtype has no integer of its width (complex128).
    """
    integer = _INTEGER_BY_WIDTH.get(values.element_size())
    if integer is None:
        raise OutputError(
            f"Cannot take the bits of dtype={_name(values.dtype)}: "
            "return a dtype of 1, 2, 4 or 8 bytes an element."
        )
    plain = values.detach().contiguous()
    return plain if plain.dtype == integer else plain.view(integer)


def same_bits(canonical: Tensor, transformed: Tensor, *, nan_payload: NanPayload = "any") -> Tensor:
    """Say elementwise where two tensors of one shape and dtype hold the same bits.

    Args:
        canonical: Any shape, any dtype of 1, 2, 4 or 8 bytes.
        transformed: The same shape, dtype and device.
        nan_payload: `any` counts two NaNs as the same whatever their payload and sign, `exact`
            compares their bits too. A NaN against a number differs under both.

    Returns:
        A bool tensor of the same shape.

    Raises:
        OutputError: The two differ in shape, dtype or device.
    """
    _check_comparable(canonical, transformed)
    same = bit_pattern(canonical) == bit_pattern(transformed)
    if nan_payload == "any" and _can_be_nan(canonical.dtype):
        same |= _is_nan(canonical) & _is_nan(transformed)
    return same


def any_differ(
    pairs: Sequence[tuple[Tensor, Tensor]], *, flags: Sequence[Tensor] = ()
) -> tuple[bool, ...]:
    """Say of each pair of tensors whether any bits differ, two NaNs being the same.

    A device is waited for once, however many pairs there are, unless NaNs of different payloads
    must be looked at.

    Args:
        pairs: Tensors of one shape, dtype and device.
        flags: Bool tensors of one element each, to be read back at the same time.

    Returns:
        One for each pair, then one for each flag.

    Raises:
        OutputError: The two of a pair differ in shape, dtype or device.
    """
    for canonical, transformed in pairs:
        _check_comparable(canonical, transformed)
    raw = [raw_differ(one, other) for one, other in pairs]
    read = _read((*raw, *flags))
    unclear = [
        place
        for place, (canonical, _) in enumerate(pairs)
        if read[place] and _can_be_nan(canonical.dtype)
    ]
    again = _read([~same_bits(*pairs[place]).all() for place in unclear])
    for place, differs in zip(unclear, again, strict=True):
        read[place] = differs
    return tuple(read)


def raw_differ(one: Tensor, other: Tensor) -> Tensor:
    """Say whether any bits of two tensors of one shape and dtype differ, without reading it back.

    Returns:
        Bool, one element, where the tensors lie.
    """
    both = one.detach().contiguous(), other.detach().contiguous()
    if all(map(_holds_words, both)):
        # Narrow elements would be compared, and their answers joined, several times as slowly.
        return (both[0].view(-1).view(torch.int64) != both[1].view(-1).view(torch.int64)).any()
    return (bit_pattern(both[0]) != bit_pattern(both[1])).any()


def _holds_words(values: Tensor) -> bool:
    """Return whether contiguous memory can be read in words of the widest integer."""
    width = values.element_size()
    return (
        width <= _WIDEST
        and values.numel() * width % _WIDEST == 0
        and values.storage_offset() * width % _WIDEST == 0
    )


def compare(
    canonical: Tensor, transformed: Tensor, *, nan_payload: NanPayload = "any"
) -> Comparison:
    """Compare two tensors of one shape and dtype bit for bit, and count in elements and in tokens.

    Args:
        canonical: `[tokens, ...]` in logical order, or without axes.
        transformed: The same shape, dtype and device.
        nan_payload: As for `same_bits`.

    Raises:
        OutputError: The two differ in shape, dtype or device.
    """
    differs = ~same_bits(canonical, transformed, nan_payload=nan_payload)
    element_count = differs.numel()
    token_count = differs.shape[0] if differs.dim() else 1
    differing_count = int(differs.count_nonzero())
    if not differing_count:
        return Comparison(elements_compared=element_count, tokens_compared=token_count)
    by_token = differs.reshape(token_count, -1)
    max_abs, mean_abs, max_rel = _errors(canonical, transformed, differs)
    return Comparison(
        elements_compared=element_count,
        elements_differing=differing_count,
        tokens_compared=token_count,
        tokens_differing=int(by_token.any(dim=1).count_nonzero()),
        first=tuple(int(i) for i in differs.nonzero()[0].tolist()),
        max_abs_error=max_abs,
        mean_abs_error=mean_abs,
        max_rel_error=max_rel,
    )


def compare_within(
    pairs: Sequence[tuple[Tensor, Tensor]],
    *,
    atol: float,
    rtol: float,
    flags: Sequence[Tensor] = (),
) -> tuple[tuple[Agreement, ...], tuple[bool, ...]]:
    """Say of each pair of tensors whether the first lies within a tolerance of the second.

    Elements agree where `|own - other| <= atol + rtol * |other|`, in float64. Equal infinities
    agree, and so do two NaNs; anything else that is not finite agrees with nothing. A device is
    waited for once, unless something does not agree.

    Args:
        pairs: Tensors of one shape and device, real, of any two dtypes.
        atol: Absolute tolerance, 0 or more.
        rtol: Relative tolerance, 0 or more.
        flags: Bool tensors of one element each, to be read back at the same time.

    Returns:
        One agreement for each pair, and one bool for each flag.

    Raises:
        OutputError: The two of a pair differ in shape or device.
    """
    looked = [_looked_at(own, other, atol=atol, rtol=rtol) for own, other in pairs]
    columns = [column for _, told in looked for column in told]
    read = _numbers([*columns, *(flag.double() for flag in flags)])
    width = len(columns) // len(looked) if looked else 0
    agreements = []
    for place, ((own, other), (agree, _)) in enumerate(zip(pairs, looked, strict=True)):
        beyond, telling, share = read[place * width : (place + 1) * width]
        tokens = own.shape[0] if own.dim() else 1
        found = Agreement(
            elements_compared=own.numel(),
            elements_telling=int(telling),
            tokens_compared=tokens,
            share=share,
        )
        agreements.append(_beyond(found, own, other, ~agree) if beyond else found)
    return tuple(agreements), tuple(bool(number) for number in read[len(columns) :])


def _looked_at(
    own: Tensor, other: Tensor, *, atol: float, rtol: float
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return where two tensors agree, and counts and share of one element each, not read back."""
    if own.shape != other.shape or own.device != other.device:
        raise OutputError(
            f"Cannot compare {_kind(own)} with {_kind(other)}: "
            "both sides must return the same shape and device for the same tokens."
        )
    left, right = own.detach().double(), other.detach().double()
    finite = left.isfinite() & right.isfinite()
    error, allowed = (left - right).abs(), atol + rtol * right.abs()
    same = (left == right) | (left.isnan() & right.isnan())
    agree = same | (finite & (error <= allowed))
    # 0 of 0 is no error; a tolerance of 0 leaves no room for any other.
    share = torch.where(finite & ~same, error / allowed, 0.0)
    largest = share.max() if share.numel() else share.sum()
    telling = (right.isfinite() & (right != 0)).count_nonzero()
    return agree, ((~agree).count_nonzero().double(), telling.double(), largest)


def _beyond(found: Agreement, own: Tensor, other: Tensor, beyond: Tensor) -> Agreement:
    """Return an agreement with where and how far its tensors leave their tolerance."""
    by_token = beyond.reshape(found.tokens_compared, -1)
    max_abs, mean_abs, max_rel = _errors(other, own, beyond)
    return attrs.evolve(
        found,
        elements_beyond=int(beyond.count_nonzero()),
        tokens_beyond=int(by_token.any(dim=1).count_nonzero()),
        first=tuple(int(i) for i in beyond.nonzero()[0].tolist()),
        max_abs_error=max_abs,
        mean_abs_error=mean_abs,
        max_rel_error=max_rel,
    )


def hex_of(value: Tensor) -> str:
    """Write the bits of one element as hexadecimal digits, as `0x3f800000` for 1.0 in float32.

    Raises:
        OutputError: `value` holds more or less than one element.
    """
    if value.numel() != 1:
        raise OutputError(
            f"Cannot write {value.numel()} elements as one bit pattern: "
            "index a single element first."
        )
    width = value.element_size()
    bits = int(bit_pattern(value).item()) & ((1 << 8 * width) - 1)
    return f"0x{bits:0{2 * width}x}"


def poison_(values: Tensor, poison: Poison) -> Tensor:
    """Overwrite every element in place with a value that no kernel should ever return.

    Args:
        values: Any shape and strides. Floats become a NaN of a fixed payload (`nan`) or a large
            finite number (`large`); integers a large positive number and bools True under both.
        poison: `nan` or `large`.

    Returns:
        `values` itself.

    Raises:
        OutputError: The dtype has no integer of its width.
    """
    plain = values.detach()
    if plain.dtype == torch.bool:
        plain.fill_(True)  # noqa: FBT003  # fill_ has no name for it
        return values
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    integer = _INTEGER_BY_WIDTH.get(plain.element_size())
    assert integer is not None, "no real dtype of torch is wider than 8 bytes"
    pattern = _LARGE_BY_WIDTH[plain.element_size()]
    if poison == "nan":
        pattern = _NAN_BY_DTYPE.get(plain.dtype, pattern)
    # A view keeps the strides, so that a row of a larger allocation leaves its surroundings alone.
    (plain if plain.dtype == integer else plain.view(integer)).fill_(pattern)
    return values


def poisoned(size: int, poison: Poison, device: torch.device) -> Tensor:
    """Return fresh memory that holds poison whatever dtype it is read as, filled in one launch.

    Read as float64, float32, bfloat16 or float16 it is NaN everywhere (`nan`), or large and finite
    (`large`); as an integer it is large.

    Args:
        size: Bytes, at least; an odd number is rounded up.
        poison: `nan` or `large`.
        device: Where it lies.
    """
    pattern = _NAN_OF_ALL if poison == "nan" else _LARGE_BY_WIDTH[2]
    return torch.full(((size + 1) // 2,), pattern, dtype=torch.int16, device=device)


def digest_bits(values: Tensor) -> str:
    """Return 32 hexadecimal digits that identify dtype, shape and bits on every machine."""
    digest = hashlib.sha256(f"{_name(values.dtype)}{list(values.shape)}".encode())
    digest.update(bit_pattern(values).cpu().numpy().tobytes())
    return digest.hexdigest()[:32]


def _read(flags: Sequence[Tensor]) -> list[bool]:
    """Read bool tensors of one element back, all at once."""
    if not flags:
        return []
    device = flags[0].device
    return [bool(flag) for flag in torch.stack([flag.to(device) for flag in flags]).tolist()]


def _numbers(columns: Sequence[Tensor]) -> list[float]:
    """Read float64 tensors of one element back, all at once."""
    if not columns:
        return []
    device = columns[0].device
    return [float(number) for number in torch.stack([c.to(device) for c in columns]).tolist()]


def _check_comparable(canonical: Tensor, transformed: Tensor) -> None:
    if _kind(canonical) != _kind(transformed):
        raise OutputError(
            f"Cannot compare canonical {_kind(canonical)} with transformed {_kind(transformed)}: "
            "the target must return the same dtype, shape and device for the same tokens."
        )


def _kind(values: Tensor) -> str:
    return f"{_name(values.dtype)}{list(values.shape)} on {values.device}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _can_be_nan(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _is_nan(values: Tensor) -> Tensor:
    # Formats of one byte have no isnan on every device; widening keeps a NaN a NaN.
    return torch.isnan(values.float() if values.element_size() == 1 else values)


def _errors(canonical: Tensor, transformed: Tensor, differs: Tensor) -> tuple[float, float, float]:
    """Return (max_abs, mean_abs, max_rel) of tensors that differ somewhere."""
    if canonical.is_complex():
        canonical, transformed = torch.view_as_real(canonical), torch.view_as_real(transformed)
        differs = differs.unsqueeze(-1)
    left, right = canonical.detach().double(), transformed.detach().double()
    finite = left.isfinite() & right.isfinite()
    if not bool((finite & differs).any()):
        is_nan = bool(((left.isnan() | right.isnan()) & differs).any())
        nothing = math.nan if is_nan else math.inf
        return nothing, nothing, nothing
    left, right = left[finite], right[finite]
    error = (left - right).abs()
    # Zeros of different sign are no distance apart, so 0 / 0 counts as 0.
    relative = torch.where(error > 0, error / left.abs(), 0.0)
    return float(error.max()), float(error.mean()), float(relative.max())
