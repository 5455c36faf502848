"""What is missed, and what shrinking does not bring down to its smallest structure: the ledgers.

Of each planted kernel and dtype, the components of the declared cost (`biprop.minimize.cost`) that
stay above those of the smallest failing structure, with the seed of the tests. `biprop power` finds
them; an entry that is reached after all fails its test, and has to go.
"""

from biprop.case import Dtype

__all__ = ["BELOW", "MISSED", "UNREACHED"]

# Not found within 200 examples of the tests' seed, and why; `biprop power` says the same of others.
MISSED: dict[tuple[str, Dtype], str] = {}
UNREACHED: dict[tuple[str, Dtype], tuple[str, ...]] = {
    ("dx_partials_rounded", "bfloat16"): ("dim_sum", "dims"),
    ("product_of_contiguous", "bfloat16"): ("slots", "watched_tokens", "sequences"),
    ("sum_in_aligned_tiles", "bfloat16"): ("slots", "watched_tokens", "sequences"),
    ("sum_of_late_blocks", "float32"): ("watched_tokens",),
}
# Where shrinking gets below the structure that the exhaustive search found: by data that its list
# of designs lacks.
BELOW: frozenset[tuple[str, Dtype]] = frozenset(
    {("rotated_by_first_row", "float32"), ("rotated_by_first_row", "bfloat16")}
)
