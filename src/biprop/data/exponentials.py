"""A table of exp(-k/16) as integers, the same on every machine.

`biprop.data.kinds.ties_exponentials` needs sums of exponentials to half an ulp; the exp of a
machine's own mathematics library may differ in its last bit, so the table is made by `decimal`,
whose exp is correctly rounded, and every sum over it is a sum of integers.
"""

import functools
from decimal import ROUND_HALF_EVEN, Context

__all__ = ["FRACTION_BITS", "INDEX_LAST", "STEPS_PER_UNIT", "exponentials"]

# One step is a sixteenth: the spacing of bfloat16 between 8 and 16, so that every argument is
# exact.
STEPS_PER_UNIT = 16
# exp(-40) is nothing beside an ulp of 1, in every dtype in use.
INDEX_LAST = 40 * STEPS_PER_UNIT
FRACTION_BITS = 40


@functools.cache
def exponentials() -> tuple[int, ...]:
    """Return the nearest integers to exp(-k / 16) * 2**40, for k from 0 to 640."""
    context = Context(prec=50, rounding=ROUND_HALF_EVEN)
    ratio = context.exp(context.divide(context.create_decimal(-1), STEPS_PER_UNIT))
    value = context.create_decimal(1 << FRACTION_BITS)
    table = []
    for _ in range(INDEX_LAST + 1):
        table.append(int(value.to_integral_value(rounding=ROUND_HALF_EVEN)))
        value = context.multiply(value, ratio)
    return tuple(table)
