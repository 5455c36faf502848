"""Round float32 to the dtype of an output, for every Triton kernel, compiled or interpreted.

A compiled kernel rounds with the instruction of the device. Triton's interpreter (seen with 3.9)
cuts bfloat16 off instead of rounding, and a NaN may lose its payload and become Inf; `WIDEN` says
that it runs, and then it is done here.
"""

import triton
import triton.language as tl

__all__ = ["narrow"]


@triton.jit
def narrow(values, dtype: tl.constexpr, WIDEN: tl.constexpr):
    """Round to the nearest value of `dtype`, to an even one where two are equally near."""
    if WIDEN and dtype == tl.bfloat16:
        bits = values.to(tl.uint32, bitcast=True).to(tl.int64)
        # Half a unit, less one bit where the kept part is even; a carry may reach the exponent.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(values == values, rounded, 0x7FC0)
        return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return values.to(dtype)
