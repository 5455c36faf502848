"""Tensors packed into one on their way to a device, and taken apart behind it."""

import pytest
import torch
from torch import Tensor

from biprop.bits import same_bits
from biprop.data.transfer import _by_width, _bytes_of, _parted

SQUARE = torch.arange(36, dtype=torch.bfloat16).view(6, 6)
# A tensor of one element counts as contiguous whatever its stride is.
TENSORS = {
    "whole": SQUARE,
    "turned": SQUARE.t(),
    "one column": SQUARE[:, :1],
    "one of a column": SQUARE[:1, :1],
    "one far apart": SQUARE.view(-1)[::36],
    "some far apart": SQUARE.view(-1)[::6],
    "one of each row": SQUARE[:1, ::6],
    "no dimension": SQUARE[1, 2],
    "repeated": SQUARE[0, :1].expand(4),
    "none": SQUARE[:0],
    "none far apart": SQUARE[:0, ::6],
    "words": torch.arange(4)[::2],
    "bytes": torch.tensor([True, False, True])[::2],
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_of_any_strides_is_packed(name: str) -> None:
    """Its elements in order, as bytes."""

    values = TENSORS[name]
    packed = _bytes_of(values)
    assert packed.dtype == torch.uint8
    assert same_bits(packed.view(values.dtype), values.reshape(-1)).all()


def test_all_are_told_apart_again() -> None:
    """Each begins at a multiple of its width."""

    given: list[Tensor] = list(TENSORS.values())
    order = _by_width(given)
    packed = torch.cat([_bytes_of(given[place]) for place in order])
    for values, found in zip(given, _parted(packed, given, order), strict=True):
        assert found.shape == values.shape
        assert same_bits(found, values).all()
