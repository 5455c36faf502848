"""The planted Triton kernels apart from what they show: they compile for a GPU, without one."""

import os
import subprocess
import sys

from biprop.kernels.planted.tiles import TILES

# Sizes do not matter to what is asked; all tiles are the least that a product may have.
COMPILE_SCRIPT = """
import re
from importlib import import_module
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

MODULES = ("tiles_triton", "triton_shared", "triton_products", "triton_sequences",
           "triton_gradients")
FLAGS = {"WIDEN", "ALIGNED", "ADDS", "RING", "BOUNDED", "WEIGHS", "ROUNDS", "TOLD", "BACKWARDS"}
SIZES = {"R", "W", "M", "N", "C", "D", "L", "GROUP", "TRAINED"}
VALUES = {"x", "left", "right", "weight", "table", "values", "dy", "q", "k", "v"}
SUMS = {"partials", "dtable"}
WHOLE = {"lengths", "contexts", "offsets"}
OUTPUTS = {"y", "out"}
for module_name in MODULES:
    module = import_module("biprop.kernels.planted." + module_name)
    for name in sorted(vars(module)):
        kernel = getattr(module, name)
        if not isinstance(kernel, triton.JITFunction) or kernel.fn.__module__ != module.__name__:
            continue
        adds = name in {"row_sums", "sweep", "row_means", "segment_sums", "atomic_products"}
        signature = {
            word: "constexpr" if word in FLAGS | SIZES
            else "*bf16" if word in VALUES or (word in OUTPUTS and not adds)
            else "*fp32" if word in SUMS | OUTPUTS
            else "*i32" if word in WHOLE
            else "*i64" if word in {"ids", "position"}
            else "fp32" if word == "scale"
            else "i32"
            for word in kernel.arg_names
        }
        constants = {word: word not in {"WIDEN", "BACKWARDS"} if word in FLAGS else 16
                     for word in kernel.arg_names if word in FLAGS | SIZES}
        compiled = triton.compile(
            ASTSource(kernel, signature, constants),
            target=GPUTarget("cuda", 90, 32),
            options=module.OPTIONS,
        )
        code = compiled.asm["ptx"]
        # The atomics of PTX, and its products on tensor cores.
        print(name, *(bool(re.search(what, code)) for what in (r"\\b(atom|red)[.]", "mma")))
"""
WITH_ATOMICS = {"atomic_products", "table_rows_added"}
WITH_PRODUCTS = {"atomic_products", "grouped_products", "paired_products", "partial_products"}


def test_every_planted_kernel_compiles_for_a_gpu() -> None:
    """Atomics are in those kernels that are about them and in no twin, products on tensor cores."""

    # What was compiled before, from the very same sources, lies in Triton's cache.
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run(
        [sys.executable, "-c", COMPILE_SCRIPT],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = [line.split() for line in run.stdout.splitlines()]
    assert len(found) == 16
    assert {name for name, atomics, _ in found if atomics == "True"} == WITH_ATOMICS
    assert {name for name, _, products in found if products == "True"} == WITH_PRODUCTS


def test_every_planted_kernel_shows_on_a_gpu() -> None:
    """What only a GPU shows is said; the interpreter runs all the same."""
    assert [planted.name for planted in TILES if planted.devices != ("cpu", "cuda")] == [
        "table_gradient_as_it_comes"
    ]
    assert all(planted.interpreted for planted in TILES)
