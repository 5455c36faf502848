"""The Triton backend of the paged cache apart from its numbers: what it launches and compiles."""

import os
import subprocess
import sys
from collections.abc import Callable

import attrs
import torch
from tests.unit.paged_trials import offsets_of, paged, tokens_of

from biprop.execution.facts import launches_seen
from biprop.kernels.paged import OPERATOR
from biprop.kvcache.shape import CacheShape
from biprop.launch_log import listening

SHAPE = CacheShape(block_size=3, block_count=16, query_heads=2, heads=1, width=8)

COMPILE_SCRIPT = """
import re, sys
import biprop.kernels
# TRITON_INTERPRET may still be set: no kernel is defined yet.
print([name for name in sys.modules if name.endswith("_triton")])
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from biprop.kernels.paged import OPERATOR, paged_triton

CONSTANTS = {"R": 16, "W": 16, "M": 32, "N": 16, "D": 16, "WIDEN": False}
OTHERS = {"at": "*i32", "tables": "*i32", "scale": "fp32", "lse": "*fp32"}
STORED = {"k_pages", "v_pages"}
COMING = {"q", "k", "v", "out"}
(entry,) = (entry for entry in OPERATOR.implementations if entry.backend == "triton")
for name in entry.kernels:
    kernel = getattr(paged_triton, name)
    for dtype, storage in (("fp32", "bf16"), ("bf16", "bf16")):
        # What is gathered keeps its dtype.
        coming = storage if name == "paged_gather" else dtype
        signature = {
            argument: "constexpr" if argument in CONSTANTS
            else f"*{storage}" if argument in STORED
            else f"*{coming}" if argument in COMING
            else OTHERS.get(argument, "i32")
            for argument in kernel.arg_names
        }
        constants = {
            argument: CONSTANTS[argument]
            for argument in kernel.arg_names if argument in CONSTANTS
        }
        compiled = triton.compile(
            ASTSource(kernel, signature, constants),
            target=GPUTarget("cuda", 90, 32),
            options=paged_triton.OPTIONS,
        )
        code = compiled.asm["ptx"]
        # The atomics of PTX, its products on tensor cores, and a rounding to bfloat16.
        sought = (r"\\b(atom|red)[.]", "mma", "cvt.rn.bf16")
        print(name, dtype, storage, *(bool(re.search(what, code)) for what in sought))
"""
COMPILED = """
[]
paged_write fp32 bf16 False False True
paged_write bf16 bf16 False False False
paged_gather fp32 bf16 False False False
paged_gather bf16 bf16 False False False
paged_attention_tile fp32 bf16 False False False
paged_attention_tile bf16 bf16 False True True
"""


class TestTriton:
    """The Triton backend of the paged cache apart from its numbers."""

    def test_every_kernel_compiles_for_a_gpu_without_atomics(self) -> None:
        """No GPU is needed, and nothing is defined before; what has the dtype is not rounded."""

        # What was compiled before, from the very same sources, lies in Triton's cache.
        environment = os.environ | {"TRITON_INTERPRET": "0"}
        run = subprocess.run(
            [sys.executable, "-c", COMPILE_SCRIPT],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        assert run.stdout.splitlines() == COMPILED.strip().splitlines()

    def test_every_call_launches_its_own_kernels_alone(self) -> None:
        """Pages are read inside the kernel: attention is not that of packed contexts."""

        (entry,) = (entry for entry in OPERATOR.implementations if entry.backend == "triton")
        cache = paged("triton", attrs.evolve(SHAPE, storage="bfloat16"))
        q, k, v = tokens_of(SHAPE, 4, seed=1)
        last, write = slice(3, 4), ["paged_write"]
        ends = offsets_of((4,))
        calls: tuple[tuple[Callable[[], object], list[str]], ...] = (
            (lambda: cache.allocate("s0"), []),
            (lambda: cache.append(("s0",), k, v, ends), write),
            (lambda: cache.attend(("s0",), q, ends), ["paged_attention_tile"]),
            (lambda: cache.fork("s1", "s0", 4), []),
            (
                lambda: cache.decode(("s1",), q[last], k[last], v[last]),
                # The copy of the partial page comes first.
                ["paged_gather", "paged_write", "paged_attention_tile"],
            ),
            (lambda: cache.read("s1"), ["paged_gather"]),
            (lambda: cache.free("s0"), []),
            (cache.defragment, ["paged_gather", "paged_write"]),
        )
        launched = []
        for call, _ in calls:
            # Where kernels are compiled, Triton's own hooks tell of them.
            with listening() as log, launches_seen(is_compiled=torch.cuda.is_available()):
                call()
            launched.append(list(log.names))
        assert launched == [names for _, names in calls]
        assert {name for names in launched for name in names} == set(entry.kernels)
