"""A paged KV cache with a torch and a Triton backend; only the record is defined here.

The account of pages is kept by `biprop.kernels.paged.cache`, for both backends.
"""

from typing import cast

from biprop.kernels.deferred import deferred
from biprop.kernels.paged import paged_torch
from biprop.kvcache.protocol import CacheFactory, CacheImplementation, CacheOperator

__all__ = ["OPERATOR"]

OPERATOR = CacheOperator(
    name="paged",
    implementations=(
        CacheImplementation(backend="torch", make=paged_torch.make),
        CacheImplementation(
            backend="triton",
            make=cast("CacheFactory", deferred("biprop.kernels.paged.paged_triton", "make")),
            kernels=("paged_write", "paged_gather", "paged_attention_tile"),
        ),
    ),
)
