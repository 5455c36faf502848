"""Products of tiles, for every Triton kernel, compiled or interpreted.

A compiled kernel multiplies with `tl.dot`, on tensor cores for bfloat16. Triton's interpreter gives
`tl.dot` to the matrix product of a library for CPUs, which on some processors (seen with OpenBLAS
on AVX2) gives equal rows of one tile unequal bits; `WIDEN` says that it runs, and then the terms
are added one after the other here.
"""

import triton
import triton.language as tl

__all__ = ["add_product", "product"]


@triton.jit
def product(left_MK, right_KN, WIDEN: tl.constexpr):
    """Multiply two tiles, sums in float32."""
    if WIDEN:
        return tl.sum(left_MK[:, :, None] * right_KN[None, :, :], axis=1)
    return tl.dot(left_MK, right_KN, input_precision="ieee")


@triton.jit
def add_product(left_MK, right_KN, sums_MN, WIDEN: tl.constexpr):
    """Multiply two tiles, and add to sums in float32."""
    if WIDEN:
        return sums_MN + tl.sum(left_MK[:, :, None] * right_KN[None, :, :], axis=1)
    return tl.dot(left_MK, right_KN, sums_MN, input_precision="ieee")
