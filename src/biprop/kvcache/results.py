"""What a cache gave for adjacent tokens, and how it is put beside what was to be."""

import attrs
from torch import Tensor

from biprop.kvcache.checks import Comparison
from biprop.kvcache.records import Check

__all__ = ["Results", "both"]


@attrs.frozen(kw_only=True, eq=False)
class Results:
    """What adjacent tokens gave, `out` `[L, HQ, D]` and `lse` `[L, HQ]`."""

    out: Tensor
    lse: Tensor

    def __getitem__(self, part: slice) -> "Results":
        return Results(out=self.out[part], lse=self.lse[part])


def both(
    got: Results, expected: Results, *, sequence: str, check: Check, at: int = 0
) -> list[Comparison]:
    """Compare `out` and `lse` of adjacent tokens from number `at` on."""
    return [
        Comparison(
            check=check, output=output, sequence=sequence, start=at, expected=side, got=other
        )
        for output, side, other in (
            ("out", expected.out, got.out),
            ("lse", expected.lse, got.lse),
        )
    ]
