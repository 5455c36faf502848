"""What a cache is made for: its sizes, and what may fill its unused memory.

Alone in a file, as caches import it, which see nothing of programs or of judging.
"""

from typing import Literal

import attrs

from biprop.case import Dtype

__all__ = ["FILLS", "CacheLayout", "CacheShape", "Fill"]

# Memory order of a page: slots before heads, or heads before slots.
CacheLayout = Literal["NHD", "HND"]
Fill = Literal["zero", "garbage", "inf", "nan"]
FILLS: tuple[Fill, ...] = ("zero", "garbage", "inf", "nan")


@attrs.frozen(kw_only=True)
class CacheShape:
    """Sizes of a cache.

    Attributes:
        layout: Memory order of a page.
        dtype: Of queries, keys and values that come, and of results.
        storage: Of what is stored; no wider than `dtype`.
        block_size: Tokens of a page.
        block_count: Pages of the pool.
        query_heads: HQ, a multiple of `heads`.
        heads: HK.
        width: D.
    """

    layout: CacheLayout = "NHD"
    dtype: Dtype = "float32"
    storage: Dtype = "float32"
    block_size: int = 4
    block_count: int = 64
    query_heads: int = 1
    heads: int = 1
    width: int = 1
