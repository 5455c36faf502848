"""The kernel that expands tensors on a GPU gives the bits of the torch operations that define them.

Without a GPU Triton's interpreter runs it, on small tensors; tests/gpu has larger ones.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import torch
from tests.preloaded import Preloaded
from tests.unit.drawn_tensors import DEVICE, DTYPES, DrawnTensor, draw_tensor
from tests.unit.test_data_golden import RECIPES, TABLE, tokens_of

from biprop.bits import same_bits
from biprop.data import device
from biprop.data.block import Block
from biprop.data.device import expand_by_kernel, expand_plan, takes_kernel
from biprop.data.expand import digest, expand_tokens, expansion_of
from biprop.data.floats import format_of
from biprop.data.plan import CODES, Code, plan_of
from biprop.data.recipe import KINDS, Point, Recipe
from biprop.data.transfer import brought, moved, moved_all, moved_together
from biprop.errors import CaseError

# One program covers a small tensor, which the interpreter likes best.
TILE = (128, 64)
TILE_GOLDEN = (16, 128)
SCRIPT = """
import re
import sys
import torch
from biprop.data.expand import expand
from biprop.data.recipe import Recipe

expand(
    Recipe(kind="normal"), seed=1, name="x", tokens=None, dims=("H",), sizes=(3,),
    dtype=torch.float32,
)
print("triton" in sys.modules)

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from biprop.data.device_triton import OPTIONS, expand_slices
from biprop.data.plan import Code

# The designs of rows are the largest; together with pairs they use all there is.
CODES = (Code.FALLING, Code.TIES_SQUARES, Code.TIES_EXPONENTIALS)
CONSTANTS = {"CODES": sum(1 << code for code in CODES), "MIXED": True, "R": 1, "W": 128}
TYPES = dict.fromkeys(("sequence_id", "token", "length", "allowed", "crowd"), "*i32")
TYPES |= dict.fromkeys(("table", "target", "costs"), "*i64")
TYPES |= dict.fromkeys(CONSTANTS, "constexpr") | {"out": "*bf16"}
signature = {name: TYPES.get(name, "i32") for name in expand_slices.arg_names}
made = compile(
    ASTSource(expand_slices, signature, CONSTANTS),
    target=GPUTarget("cuda", 90, 32),
    options=OPTIONS,
)
code = made.asm["ptx"]
print(len(re.findall(r"\\b(?:atom|red)[.]", code)), "fma.rn.f" in code, "sqrt.rn.f64" in code)
print("sqrt.approx" in code, "ftz" in code)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, preloaded: Preloaded) -> list[str]:
    """Return the words that a process of its own prints: Triton compiles only there."""
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
    }
    run = preloaded.run("-c", SCRIPT, cwd=Path.cwd(), env=environment)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def by_kernel(drawn: DrawnTensor, tile: tuple[int, int] | None = TILE) -> torch.Tensor:
    """Expand a tensor by the interpreted kernel."""
    values = expand_by_kernel(drawn.recipe, drawn.block(DEVICE), tile=tile)
    return values.reshape(drawn.values("cpu").shape).cpu()


class TestBits:
    """The kernel against torch."""

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_the_golden_digests_hold(self, dtype: torch.dtype) -> None:
        """Every kind of the golden table has its digest there, and in one dtype every recipe."""
        committed = json.loads(TABLE.read_text(encoding="utf-8"))
        tokens = tokens_of({0: 3, 1: 1, 1024: 4}, DEVICE)
        target = expand_tokens(seed=7, name="target", tokens=tokens, vocabulary=70)
        found = {}
        for title, recipe in RECIPES.items():
            if title not in KINDS and dtype != torch.bfloat16:
                # What pairings add to a kind knows no dtype.
                continue
            whole = Block(
                seed=20_261_129,
                name="x",
                number_format=format_of(dtype),
                device=torch.device(DEVICE),
                tokens=tokens,
                target=target,
                dims=("H", "D"),
                sizes=(2, 70),
                coordinates=(),
            )
            values = expand_by_kernel(recipe, whole, tile=TILE_GOLDEN)
            found[f"{title}: {str(dtype).removeprefix('torch.')}"] = digest(values)

        assert found == {title: committed[title] for title in found}

    @pytest.mark.parametrize("seed", range(2 * len(KINDS)))
    def test_drawn_tensors_have_the_bits_of_torch(self, seed: int) -> None:
        """Kinds, dtypes, pairings of every axis, sizes and parameters, all drawn."""
        drawn = draw_tensor(seed)

        assert same_bits(by_kernel(drawn), drawn.values("cpu")).all(), drawn.text

    @pytest.mark.parametrize(
        ("kind", "tile"),
        [
            *((kind, (2, 32)) for kind in ("pairs", "ties_squares", "ties_exponentials", "mix")),
            *(("mix", tile) for tile in ((8, 128), (1, 1024))),
        ],
        ids=str,
    )
    def test_tiles_do_not_matter(self, kind: str, tile: tuple[int, int]) -> None:
        """Slices side by side or alone, in one step or in several: the same bits."""
        drawn = draw_tensor(KINDS.index(kind), sizes_last=(70,), tokens_max=1, outer_max=1)

        assert same_bits(by_kernel(drawn, tile), drawn.values("cpu")).all(), drawn.text

    def test_a_long_slice_is_shared_by_programs(self) -> None:
        """Where elements do not depend on each other, each program expands a span of a slice."""
        drawn = attrs.evolve(
            draw_tensor(4),
            recipe=Recipe(kind="normal"),
            lengths={0: 1},
            dims=("H",),
            sizes=(9000,),
        )

        assert same_bits(by_kernel(drawn, None), drawn.values("cpu")).all()

    def test_thousands_of_points_are_written(self) -> None:
        """The support of a whole tensor can be listed; the last of two points wins."""
        points = tuple(
            Point(at={"H": h, "@": t}, value=float(h - 9 * t).hex())
            for t in range(3) for h in (*range(20), 4)
        )  # fmt: skip
        drawn = attrs.evolve(
            draw_tensor(4),
            recipe=Recipe(kind="explicit", points=points),
            lengths={0: 2, 5: 3},
            dims=("H",),
            sizes=(24,),
        )

        assert same_bits(by_kernel(drawn), drawn.values("cpu")).all()


class TestPlan:
    """What is worked out before a launch."""

    def test_every_kind_has_a_code(self) -> None:
        """A new kind must be taught to the kernel, or its tensors take dozens of launches."""
        assert {*CODES, "mix"} == set(KINDS)

    def test_a_mixture_has_a_record_for_each_recipe(self) -> None:
        """Records follow the header, and every code is announced."""
        drawn = draw_tensor(0)
        rows = tuple(Recipe(kind=kind) for kind in ("ones", "normal", "iota"))

        plan = plan_of(Recipe(kind="mix", rows=rows), drawn.block("cpu"))

        codes = plan.table[plan.first :: plan.record_size].tolist()
        assert codes == [Code.CONSTANT, Code.NORMAL, Code.IOTA]
        assert plan.codes == sum(1 << code for code in codes)
        assert plan.mixed
        assert not plan.by_element

    def test_a_point_at_an_unknown_axis_is_refused(self) -> None:
        """The sentence is the one of the torch operations."""
        recipe = Recipe(kind="explicit", points=(Point(at={"Z": 0}, value="0x1p+0"),))

        with pytest.raises(CaseError, match="names axis='Z'"):
            plan_of(recipe, draw_tensor(0).block("cpu"))


class TestChoice:
    """Where the kernel is used."""

    def test_a_cpu_is_left_to_torch(self) -> None:
        """No tensor of the CPU is expanded by the kernel."""
        assert not takes_kernel(Recipe(kind="normal"), draw_tensor(0).block("cpu"))

    def test_what_the_kernel_cannot_hold_is_left_to_torch(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a GPU a mixture of mixtures and sizes beyond 32 bits are not for the kernel."""
        monkeypatch.setattr(device, "has_kernel", lambda: True)
        block = attrs.evolve(draw_tensor(0).block("cpu"), device=torch.device("cuda"), tokens=None)
        normal = Recipe(kind="normal")
        mixture = Recipe(kind="mix", rows=(normal,))
        nested = Recipe(kind="mix", rows=(mixture,))

        def takes(recipe: Recipe, *sizes: int) -> bool:
            return takes_kernel(recipe, attrs.evolve(block, sizes=sizes))

        assert takes(normal, 5, 7)
        assert takes(mixture, 5, 7)
        assert takes(normal, 1 << 16, 1 << 16)
        assert not takes(nested, 5, 7)
        assert not takes(normal, 1 << 30)
        assert not takes(normal, 1 << 15, 1 << 15, 2)

    def test_triton_is_not_imported_where_nothing_asks_for_it(self, told: list[str]) -> None:
        """Expanding on the CPU imports no Triton."""
        assert told[0] == "False"

    def test_the_kernel_compiles_for_a_gpu(self, told: list[str]) -> None:
        """No GPU is needed to compile it: no atomics, and nothing that rounds twice.

        The one root is the correctly rounded one.
        """
        assert told[1:] == ["0", "False", "True", "False", "False"]


class TestExpansion:
    """Tensors that are worked out first, and expanded when what they read is on the device."""

    def test_what_was_moved_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tokens, targets and tables that come later give the bits of those that were there."""
        drawn = attrs.evolve(
            draw_tensor(4),
            recipe=Recipe(kind="peak_exponentials", at_target=True),
            lengths={0: 2, 5: 3},
            dims=("H",),
            sizes=(24,),
        )
        expected = drawn.values("cpu")
        monkeypatch.setattr("biprop.data.expand.takes_kernel", lambda _recipe, _block: True)
        elsewhere = attrs.evolve(drawn, lengths={7: 5})
        planned = expansion_of(
            drawn.recipe,
            seed=drawn.seed,
            name="x",
            tokens=elsewhere.tokens("cpu"),
            dims=drawn.dims,
            sizes=drawn.sizes,
            dtype=drawn.dtype,
            target=elsewhere.target("cpu"),
            device=torch.device(DEVICE),
        )
        assert planned.plan is not None
        values = planned.values(
            tokens=drawn.tokens(DEVICE),
            target=drawn.target(DEVICE),
            table=planned.plan.table.to(DEVICE),
        )

        assert same_bits(values.cpu(), expected).all()


class TestCompiled:
    """What Triton compiled is launched again without asking it for it."""

    def test_only_what_is_new_is_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same kind in the same dtype is compiled once; both launches are told the same."""
        compiled: list[dict[str, object]] = []
        launched: list[tuple[object, ...]] = []

        class Ready:
            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
                return lambda *arguments: launched.append((grid, *arguments[1:]))

        class Function:
            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Ready]:
                def launch(*arguments: object, **fixed: object) -> Ready:
                    compiled.append(fixed)
                    constants = [fixed[name] for name in ("CODES", "MIXED", "R", "W")]
                    launched.append((grid, *arguments[1:], *constants))
                    return Ready()

                return launch

        module = SimpleNamespace(expand_slices=Function(), OPTIONS={"num_warps": 4})
        monkeypatch.setattr(device, "_kernel_module", lambda: module)
        monkeypatch.setattr(device, "_is_interpreted", lambda: False)
        monkeypatch.setattr(device, "_COMPILED", {})
        drawn = attrs.evolve(draw_tensor(1), dtype=torch.bfloat16)
        whole = drawn.block("cpu")
        plan = plan_of(drawn.recipe, whole)
        for _ in range(2):
            expand_plan(plan, whole, table=plan.table)
        first, second = launched
        other = attrs.evolve(drawn, dtype=torch.float32).block("cpu")
        expand_plan(plan_of(drawn.recipe, other), other, table=plan.table)

        assert len(first) == len(second)
        assert all(one is two or one == two for one, two in zip(first, second, strict=True))
        assert len(compiled) == 2
        assert all(fixed["num_warps"] == 4 for fixed in compiled)


class TestTransfer:
    """`moved`, `moved_all` and `moved_together`."""

    def test_on_the_cpu_nothing_is_copied(self) -> None:
        """A tensor that lies where it is wanted comes back itself."""
        values = torch.arange(3)

        assert moved(values, torch.device("cpu")) is values
        assert moved_together(torch.device("cpu"), values, None) == (values, None)

    def test_tensors_of_any_dtype_share_a_copy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each comes back with its dtype, shape and numbers; an empty one too."""
        copies = []

        def joined(plain: list[torch.Tensor], _device: torch.device) -> torch.Tensor:
            copies.append(len(plain))
            return torch.cat(plain)

        monkeypatch.setattr("biprop.data.transfer._joined", joined)
        tensors = [
            torch.tensor([True, False, True]),
            torch.arange(6, dtype=torch.int32).reshape(2, 3).T,
            torch.arange(0),
            torch.arange(5) << 40,
            torch.tensor(-3, dtype=torch.int16),
        ]
        found = moved_all(torch.device("cuda"), tensors)

        assert copies == [5]
        for before, after in zip(tensors, found, strict=True):
            assert (after.dtype, after.shape) == (before.dtype, before.shape)
            assert after.tolist() == before.tolist()

    def test_what_lies_on_the_cpu_is_there(self) -> None:
        """Nothing is copied, nor waited for."""
        tensors = [torch.arange(3), torch.tensor(True)]

        found = brought(tensors).taken()

        assert [id(tensor) for tensor in found] == [id(tensor) for tensor in tensors]
