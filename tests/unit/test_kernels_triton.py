"""The Triton backend apart from its numbers: it compiles without a GPU, and says what it lacks."""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.preloaded import Preloaded

from biprop.errors import UnsupportedError
from biprop.kernels import OPERATORS, deferred

ROOT = Path(__file__).resolve().parents[2]
COMPILE_SCRIPT = """
import re
from importlib import import_module
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from biprop.kernels import OPERATORS

CONSTANTS = {"R": 16, "W": 16, "M": 32, "C": 16, "D": 16, "BLOCK_N": 16, "BLOCK_K": 16}
CONSTANTS |= {"WIDEN": False, "PADDED": True, "P": 8, "N": 16}
POINTERS = {"x", "dx", "y", "dy", "weight", "left", "right", "out", "logits", "dlogits"}
POINTERS |= {"q", "k", "v", "dout", "dq", "dk", "dv"}
FLOATS = {"rstd", "dweight", "logp", "lse", "dlogp", "dlse", "delta"}
OTHERS = {"offsets": "*i32", "order": "*i32", "position": "*i64", "target": "*i64", "eps": "fp32"}
OTHERS |= {"query_first": "*i32", "query_last": "*i32", "scale": "fp32", "ends": "*i32"}
OTHERS |= {"context_first": "*i32", "context_last": "*i32", "queries": "*u8", "contexts": "*u8"}
CONSTANTS |= {"G": 4}
POINTERS |= {"gate", "up", "dgate", "dup"}
CONSTANTS |= {"PIECES": 8, "L": 1, "RANKS": 8, "SPAN": 512}
POINTERS |= {"hidden", "dhidden"}
FLOATS |= {"largest", "total", "chosen", "sums"}
OTHERS |= {"live": "*u8"}
FLOATS |= {"partials"}
OTHERS |= {"ids": "*i64", "following": "*i32", "length": "*i32", "block_start": "*i32"}
OTHERS |= {"octaves_high": "fp32", "octaves_middle": "fp32", "octaves_low": "fp32"}
OTHERS |= {"direction": "fp32"}
CONSTANTS |= {"HAS_KL": True, "HEADS": 4}
POINTERS |= {"advantage"}
FLOATS |= {"old_logp", "ref_logp", "ratio", "log_ratio", "k2", "k3", "kl", "loss"}
FLOATS |= {"dratio", "dlog_ratio", "dk2", "dk3", "dloss"}
OTHERS |= {"low": "fp32", "high": "fp32", "beta": "fp32", "denominator": "fp32"}
entries = [
    entry
    for operator in OPERATORS
    for form in operator.forms
    for entry in form.implementations
    if entry.kernels
]
modules = {name: entry.forward.__module__ for entry in entries for name in entry.kernels}
for name, module_name in modules.items():
    module = import_module(module_name)
    kernel = getattr(module, name)
    for kind in ("*fp32", "*bf16"):
        signature = {
            name: "constexpr" if name in CONSTANTS
            else kind if name in POINTERS
            else "*fp32" if name in FLOATS
            else OTHERS.get(name, "i32")
            for name in kernel.arg_names
        }
        constants = {name: CONSTANTS[name] for name in kernel.arg_names if name in CONSTANTS}
        compiled = triton.compile(
            ASTSource(kernel, signature, constants),
            target=GPUTarget("cuda", 90, 32),
            options=module.OPTIONS,
        )
        code = compiled.asm["ptx"]
        if name == "det_gemm_dweight_tile":
            # A product that starts from a running sum adds its terms to it one by one.
            dots = r"(?:tt[.]dot|warp_group_dot) %[^,]+, %[^,]+, %(\\w+)"
            starts = re.findall(dots, compiled.asm["ttgir"])
            assert len(starts) == 1 and starts[0].startswith("cst"), starts
        # The atomics of PTX, and its products on tensor cores.
        print(name, kind, *(bool(re.search(what, code)) for what in (r"\\b(atom|red)[.]", "mma")))
"""

WITH_PRODUCTS = {
    "attention_dkv_block",
    "attention_dq_tile",
    "attention_tile",
    "det_gemm_dweight_tile",
    "det_gemm_tile",
    "linear_logp_dhidden_tile",
    "linear_logp_dlogits_tile",
    "linear_logp_stretch",
}


class TestTriton:
    """The Triton backend apart from its numbers."""

    def test_every_kernel_compiles_for_a_gpu_without_atomics(self, preloaded: Preloaded) -> None:
        """No GPU is needed for it; products of bfloat16, and no others, take tensor cores."""

        # What was compiled before, from the very same sources, lies in Triton's cache.
        environment = os.environ | {"TRITON_INTERPRET": "0"}
        run = preloaded.run("-c", COMPILE_SCRIPT, cwd=ROOT, env=environment)
        assert run.returncode == 0, run.stderr
        names = {
            name
            for operator in OPERATORS
            for form in operator.forms
            for entry in form.implementations
            for name in entry.kernels
        }
        expected = {f"{name} *fp32 False False" for name in names}
        expected |= {f"{name} *bf16 False {name in WITH_PRODUCTS}" for name in names}
        assert set(run.stdout.splitlines()) == expected

    def test_a_cpu_without_the_interpreter_is_unsupported(self, preloaded: Preloaded) -> None:
        """The sentence names the variable that helps."""

        script = (
            "import torch\n"
            "from biprop.errors import UnsupportedError\n"
            "from biprop.kernels.rms_norm import OPERATOR\n"
            "kernel = OPERATOR.forms[0].implementations[1]\n"
            "try: kernel.forward(torch.ones(2, 3), torch.ones(3))\n"
            "except UnsupportedError as error: print(error)"
        )
        environment = os.environ | {"TRITON_INTERPRET": "0"}
        run = preloaded.run("-c", script, cwd=ROOT, env=environment)
        assert run.returncode == 0, run.stderr
        assert "set TRITON_INTERPRET=1" in run.stdout

    @pytest.mark.parametrize(
        ("of_triton", "of_numpy", "works"),
        [("3.6.0", "2.4.6", False), ("3.6.0", "2.3.5", True), ("3.7.0", "2.4.6", True)],
    )
    def test_an_interpreter_that_numpy_breaks_is_unsupported(
        self, monkeypatch: pytest.MonkeyPatch, of_triton: str, of_numpy: str, *, works: bool
    ) -> None:
        """The sentence says which versions go together, where each case would raise otherwise."""
        interpreting = import_module("biprop.kernels.interpreting")
        monkeypatch.setattr(interpreting, "triton", SimpleNamespace(__version__=of_triton))
        monkeypatch.setattr(interpreting.np, "__version__", of_numpy)
        launched: list[object] = []

        class Interpreted:
            def __getitem__(self, grid: object) -> Callable[..., None]:
                return lambda *_: launched.append(grid)

        def launch() -> None:
            interpreting._check_interpreter.cache_clear()
            interpreting.launch(Interpreted(), (1,), (torch.ones(1),), constants={}, options={})

        if works:
            launch()
        else:
            with pytest.raises(UnsupportedError, match=r"install numpy below 2\.4, or Triton 3\.7"):
                launch()
        interpreting._check_interpreter.cache_clear()
        assert bool(launched) == works

    def test_the_language_is_prepared_once_a_launch(self, preloaded: Preloaded) -> None:
        """Whatever the kernel calls; afterwards it is the compiler's again, with the same bits."""

        script = (
            "import torch\n"
            "import triton.language as tl\n"
            "from contextlib import nullcontext\n"
            "from triton.runtime import interpreter\n"
            "from biprop.bits import same_bits\n"
            "from biprop.kernels import interpreting\n"
            "from biprop.kernels.rms_norm import OPERATOR\n"
            "kernel = OPERATOR.forms[0].implementations[1]\n"
            "arguments = torch.randn(70, 8), torch.randn(8)\n"
            "exchange, load, counts = interpreter._patch_lang, tl.load, []\n"
            "def counted(function):\n"
            "    counts[-1] += 1\n"
            "    return exchange(function)\n"
            "interpreter._patch_lang = counted\n"
            "def run():\n"
            "    counts.append(0)\n"
            "    return kernel.forward(*arguments)\n"
            "once = run()\n"
            "assert interpreter._patch_lang is counted and tl.load is load\n"
            "interpreting._language_prepared_once = nullcontext\n"
            "print(all(same_bits(*pair).all() for pair in zip(once, run(), strict=True)), *counts)"
        )
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        run = preloaded.run("-c", script, cwd=ROOT, env=environment)
        assert run.returncode == 0, run.stderr
        same, once, often = run.stdout.split()
        assert same == "True"
        assert 0 < 2 * int(once) < int(often)

    def test_numpy_s_dtypes_are_looked_up_once(self, preloaded: Preloaded) -> None:
        """Of every dtype it is what Triton says, whose function it is again after a launch."""

        script = (
            "import torch\n"
            "import triton.language as tl\n"
            "from triton.runtime import interpreter\n"
            "from biprop.kernels import interpreting\n"
            "from biprop.kernels.rms_norm import OPERATOR\n"
            "look_up, counts = interpreter._get_np_dtype, []\n"
            "def counted(dtype):\n"
            "    counts.append(dtype)\n"
            "    return look_up(dtype)\n"
            "interpreter._get_np_dtype = counted\n"
            "OPERATOR.forms[0].implementations[1].forward(torch.randn(70, 8), torch.randn(8))\n"
            "assert interpreter._get_np_dtype is counted\n"
            "assert 0 < len(counts) == len(interpreting._KNOWN), counts\n"
            "scalars = [tl.int1, *map(tl.dtype, tl.dtype.SINT_TYPES + tl.dtype.UINT_TYPES)]\n"
            "scalars += [tl.float16, tl.bfloat16, tl.float32, tl.float64]\n"
            "scalars += [tl.pointer_type(scalar) for scalar in scalars]\n"
            "blocks = [tl.block_type(scalar, [4]) for scalar in scalars]\n"
            "with interpreting._dtypes_known():\n"
            "    known = interpreter._get_np_dtype\n"
            "    for dtype in [*scalars, *blocks, *blocks, *scalars]:\n"
            "        assert known(dtype) == look_up(dtype), dtype\n"
        )
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        run = preloaded.run("-c", script, cwd=ROOT, env=environment)
        assert run.returncode == 0, run.stderr

    def test_a_missing_triton_is_unsupported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sentence says what to install, and nothing is imported."""

        monkeypatch.setattr(deferred, "find_spec", lambda _: None)
        with pytest.raises(UnsupportedError, match="install triton, or choose the torch backend"):
            deferred.deferred("biprop.kernels.absent", "forward")()

    def test_importing_the_kernels_does_not_import_triton(self, preloaded: Preloaded) -> None:
        """TRITON_INTERPRET may still be set after biprop.kernels was imported."""

        script = (
            "import sys, biprop.kernels; print('biprop.kernels.rms_norm_triton' in sys.modules)"
        )
        run = preloaded.run("-c", script, cwd=ROOT)
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip() == "False"
