"""The compiled kernel gives the bits of the torch operations on the CPU, in one launch a tensor."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pytest
import torch
from tests.unit.drawn_tensors import DrawnTensor, draw_tensor
from tests.unit.execution_cases import PACKED, case_of, kernel_of, scaled
from tests.unit.test_data_golden import TABLE, digests
from torch.profiler import ProfilerActivity, profile

from biprop.bits import same_bits
from biprop.data.block import Tokens
from biprop.data.device import takes_kernel
from biprop.data.expand import expand
from biprop.data.recipe import Pairing, Recipe
from biprop.data.transfer import brought, moved_together
from biprop.execution import prepare, run_canonical
from biprop.execution.arguments import Materialiser
from biprop.execution.power import measure_power, start_power
from biprop.layout import CANONICAL
from biprop.operators import OpClass

OWN = {"H": Pairing(role="own")}
LARGE_RECIPES = {
    "normal": Recipe(kind="normal"),
    "own pairs": Recipe(kind="pairs", pairing=OWN, holes=True),
    "swamp": Recipe(kind="swamp", pairing={"H": Pairing(role="antisymmetric", mask=4097)}),
    "squares": Recipe(kind="ties_squares"),
    "exponentials": Recipe(kind="ties_exponentials", at_target=True),
    "peak": Recipe(kind="peak_exponentials"),
}
LARGE_RECIPES["mix"] = Recipe(kind="mix", rows=tuple(LARGE_RECIPES.values()))


def tokens_of(lengths: dict[int, int], device: torch.device | str) -> Tokens:
    """Return the tokens of sequences given as id -> length, in that order."""
    ids = torch.tensor(list(lengths), dtype=torch.int32)
    sizes = torch.tensor(list(lengths.values()))
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return Tokens(
        sequence_id=ids.repeat_interleave(sizes).to(device),
        token=(torch.arange(int(sizes.sum())) - starts).to(torch.int32).to(device),
        length=sizes.repeat_interleave(sizes).to(torch.int32).to(device),
    )


def build(
    recipe: Recipe, tokens: Tokens, size: int, target: torch.Tensor | None = None
) -> torch.Tensor:
    """Expand `[n, size]` in bfloat16 where the tokens lie."""
    return expand(
        recipe,
        seed=3,
        name="x",
        tokens=tokens,
        dims=("H",),
        sizes=(size,),
        dtype=torch.bfloat16,
        target=target,
    )


def agree(drawn: DrawnTensor, device: torch.device) -> bool:
    """Tell whether the device gives the bits of the CPU, and takes the kernel for it."""
    assert takes_kernel(drawn.recipe, drawn.block(str(device)))
    values = drawn.values(str(device)).cpu()
    return bool(same_bits(values, drawn.values("cpu")).all())


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Raise where an operation of torch waits for the device, which torch tells of most."""
    with warnings.catch_warnings():
        # torch warns that the mode is a prototype.
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


class TestBits:
    """The kernel against torch on the CPU."""

    def test_the_golden_digests_hold(self, device: torch.device) -> None:
        """The table of the CPU is the table of the device."""
        assert digests(str(device)) == json.loads(TABLE.read_text(encoding="utf-8"))

    @pytest.mark.parametrize("first", range(0, 480, 48))
    def test_drawn_tensors_agree(self, first: int, device: torch.device) -> None:
        """Kinds, dtypes, pairings, sizes and parameters; short slices lie side by side."""
        for seed in range(first, first + 48):
            drawn = draw_tensor(seed)
            if drawn.recipe.kind == "mix":
                # One dtype is enough: each mixture is compiled as a kernel of its own.
                drawn = attrs.evolve(drawn, dtype=torch.bfloat16)
            assert agree(drawn, device), drawn.text

    def test_long_slices_agree(self, device: torch.device) -> None:
        """Slices that one program takes alone, or that programs share."""
        for seed in range(96):
            drawn = draw_tensor(
                seed,
                sizes_last=(513, 1023, 1024, 1025, 4097, 9000),
                tokens_max=3,
                outer_max=2,
            )
            drawn = attrs.evolve(drawn, dtype=torch.bfloat16)
            assert agree(drawn, device), drawn.text

    @pytest.mark.parametrize("title", LARGE_RECIPES)
    @pytest.mark.parametrize(("count", "size"), [(4096, 8192), (512, 151_936)], ids=str)
    def test_real_sizes_agree(
        self, title: str, count: int, size: int, device: torch.device
    ) -> None:
        """A hidden size and a vocabulary, many tokens at once; the CPU expands some of them."""
        lengths = {0: count // 2, 7: count // 4, 1024: count // 4}
        target = torch.arange(count) * 7919 % size
        chosen = torch.arange(3, count, 101 if size < 10_000 else 171)
        values = build(LARGE_RECIPES[title], tokens_of(lengths, device), size, target.to(device))
        some = tokens_of(lengths, "cpu").at(chosen)
        expected = build(LARGE_RECIPES[title], some, size, target[chosen])

        assert same_bits(values[chosen.to(device)].cpu(), expected).all()

    def test_a_large_parameter_agrees(self, device: torch.device) -> None:
        """The first rows of a weight are those of a smaller one."""

        def weight(rows: int, where: torch.device | str) -> torch.Tensor:
            return expand(
                LARGE_RECIPES["own pairs"],
                seed=3,
                name="weight",
                tokens=None,
                dims=("N", "H"),
                sizes=(rows, 8192),
                dtype=torch.bfloat16,
                device=where,
            )

        assert same_bits(weight(8192, device)[:40].cpu(), weight(40, "cpu")).all()

    def test_more_elements_than_32_bits_count_agree(self, device: torch.device) -> None:
        """The last tokens of a tensor of 2.4 thousand million elements lie where they should."""
        lengths = {0: 150_000, 1: 150_000}
        chosen = torch.tensor([0, 149_999, 262_143, 262_144, 299_999])
        values = build(LARGE_RECIPES["own pairs"], tokens_of(lengths, device), 8192)
        some = tokens_of(lengths, "cpu").at(chosen)

        assert same_bits(
            values[chosen.to(device)].cpu(), build(LARGE_RECIPES["own pairs"], some, 8192)
        ).all()


class TestCost:
    """What materialising gives to the device."""

    @pytest.mark.parametrize("title", LARGE_RECIPES)
    def test_a_tensor_is_one_launch(self, title: str, device: torch.device) -> None:
        """One kernel, and one copy for what it is told."""
        tokens = tokens_of({0: 40}, device)
        target = torch.zeros(40, dtype=torch.int64, device=device)
        build(LARGE_RECIPES[title], tokens, 8192, target)
        torch.cuda.synchronize(device)
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
            build(LARGE_RECIPES[title], tokens, 8192, target)
            torch.cuda.synchronize(device)
        names = [event.name for event in seen.events() if event.device_type.name == "CUDA"]

        assert sum("expand_slices" in name for name in names) == 1
        assert sum(name.startswith("Memcpy") for name in names) == 1
        assert len(names) == 2

    def test_tensors_moved_together_take_one_copy(self, device: torch.device) -> None:
        """Each comes back with its numbers, and the host waits for none of them."""
        first, second = torch.arange(5, dtype=torch.int32), torch.arange(3) - 7
        moved_together(device, first, second)
        with nothing_waits():
            one, nothing, two = moved_together(device, first, None, second)
        assert one is not None
        assert two is not None

        assert nothing is None
        assert (one.tolist(), two.tolist()) == (first.tolist(), second.tolist())

    def test_tensors_brought_together_are_waited_for_once(self, device: torch.device) -> None:
        """The host goes on, and waits where it takes them."""
        tensors = [torch.arange(5, dtype=torch.int16), torch.arange(6.0).reshape(2, 3).T]
        tensors += [torch.tensor(True), torch.arange(0)]
        there = [tensor.to(device) for tensor in tensors]
        # One element far from where the next one would be.
        there.append(torch.arange(12, dtype=torch.bfloat16, device=device)[::12])
        tensors.append(torch.zeros(1, dtype=torch.bfloat16))
        brought(there)
        torch.cuda.synchronize(device)
        with nothing_waits():
            torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]  # torch leaves it
            arriving = brought(there)
        assert arriving._event is not None
        assert not arriving._event.query()  # type: ignore[no-untyped-call]  # likewise

        for before, after in zip(tensors, arriving.taken(), strict=True):
            assert (after.dtype, after.device.type) == (before.dtype, "cpu")
            assert after.tolist() == before.tolist()

    @pytest.mark.parametrize("op_class", ["elementwise", "reduction"])
    def test_power_is_begun_without_a_wait(self, device: torch.device, op_class: OpClass) -> None:
        """And is what it is on the CPU."""
        kernel = attrs.evolve(
            kernel_of(scaled, PACKED),
            op_class=op_class,
            reference=lambda x, weight, reduce: weight * reduce(x, -1)[..., None],
        )
        case = case_of(kernel)
        here = prepare(kernel, case, device="cpu")
        there = prepare(kernel, case, device=device)
        run = run_canonical(there)
        measure_power(there, run)
        torch.cuda.synchronize(device)
        with nothing_waits():
            measured = start_power(prepare(kernel, case, device=device), run)

        assert measured() == measure_power(here, run_canonical(here))

    def test_nothing_waits_for_the_device(self, device: torch.device) -> None:
        """Values and arguments are made without a single wait, once all is compiled."""
        kernel = kernel_of(scaled, PACKED)
        case = attrs.evolve(
            case_of(kernel), data={"x": Recipe(kind="mix", rows=(Recipe(kind="normal"),) * 2)}
        )

        def materialise() -> None:
            prepared = prepare(kernel, case, device=device)
            materialiser = Materialiser(
                case=case, values=prepared.values, layout=CANONICAL, align=1, poison="nan"
            )
            for frame in prepared.canonical_frames():
                materialiser.arguments(kernel.signature, frame)

        materialise()
        with nothing_waits():
            materialise()
