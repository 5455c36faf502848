"""The bits of a paged cache: what is stored, and what is attended from it, by direct calls.

Held against torch's own rounding, and against the packed attention operator of the same backend.
"""

import itertools
import random
from collections.abc import Callable

import attrs
import pytest
import torch
from tests.unit.kernel_trials import (
    BACKENDS,
    DEVICE,
    STORAGES,
    all_same,
    each_backend,
)
from tests.unit.paged_trials import Beside, offsets_of, paged, tokens_of
from torch import Tensor

from biprop.case import Dtype
from biprop.errors import UsageError
from biprop.kernels import attention_torch
from biprop.kvcache.shape import CacheLayout, CacheShape

# Keys of a block of the Triton backend in the interpreter, where `small_tiles` makes them so; the
# torch backend has 32, whose edge the lengths below cross too.
IS_CPU = DEVICE.type == "cpu"
SMALL, LARGE = {16: (16, 16)}, {16: (32, 32)}
SHAPE = CacheShape(block_size=5, block_count=24, query_heads=4, heads=2, width=8)
LAYOUTS: tuple[CacheLayout, ...] = ("NHD", "HND")
# Of what comes, and of what is stored.
DTYPES: tuple[tuple[Dtype, Dtype], ...] = (
    ("float32", "float32"),
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("bfloat16", "bfloat16"),
    ("float16", "bfloat16"),
)
# Both dtypes of products, both layouts, and pages that are no part of a block of keys. In the
# interpreter a launch costs as much as a hundred of the torch backend: not all of them there.
KINDS = [
    (backend, layout, dtype, storage, size)
    for backend in BACKENDS
    for layout, (dtype, storage), size in (
        ("NHD", DTYPES[0], 5),
        ("HND", DTYPES[1], 3),
        ("HND", DTYPES[3], 16),
        ("NHD", DTYPES[3], 1),
    )
    if backend == "torch" or size > 1 or not IS_CPU
]
each_kind = pytest.mark.parametrize(("backend", "layout", "dtype", "storage", "size"), KINDS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_pair = pytest.mark.parametrize(("dtype", "storage"), DTYPES)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few tokens fill several blocks of the Triton backend where each costs milliseconds."""
    if IS_CPU:
        monkeypatch.setattr("biprop.kernels.attention_triton.SIZES_WIDE", SMALL)
        monkeypatch.setattr("biprop.kernels.attention_triton.SIZES_NARROW", SMALL)


def shape_of(layout: CacheLayout, dtype: Dtype, storage: Dtype, size: int) -> CacheShape:
    """Return the sizes of this file with some changed."""
    return attrs.evolve(
        SHAPE,
        layout=layout,
        dtype=dtype,
        storage=storage,
        block_size=size,
        block_count=120 // size + 8,
    )


class TestStored:
    """What is written is read, rounded to the storage dtype once."""

    @each_pair
    @each_layout
    @each_backend
    def test_bits_are_those_of_one_rounding(
        self, backend: str, layout: CacheLayout, dtype: Dtype, storage: Dtype
    ) -> None:
        """Of 20 binades, and of values that lie where a second rounding would show."""

        shape = shape_of(layout, dtype, storage, 3)
        beside = Beside.of(backend, shape)
        beside.allocate("s0", "s1")
        q, k, v = tokens_of(shape, 19, seed=1)
        special = torch.tensor(
            # A tie of bfloat16 that float16 would make; overflow; signs of zero; infinities.
            [1 + 2**-8 + 2**-12, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11 + 2**-20, 3e38, -7e4, -0.0,
             2**-130, 2**-25, 65519.0, torch.inf, -torch.inf],
        )  # fmt: skip
        k.view(-1)[: len(special)] = special.to(k)
        beside.tokens |= {"s0": (q[:7], k[:7], v[:7]), "s1": (q[7:], k[7:], v[7:])}
        beside.cache.append(("s0", "s1"), k, v, offsets_of((7, 12)))
        assert beside.misread() == []

    @each_backend
    def test_without_rounding_a_nan_keeps_its_payload(self, backend: str) -> None:
        """What has the storage dtype is copied."""

        cache = paged(backend, SHAPE)
        cache.allocate("s0")
        bits = torch.arange(16, dtype=torch.int32, device=DEVICE).view(1, 2, 8) + 0x7FC12340
        k = bits.view(torch.float32)
        cache.append(("s0",), k, -k, offsets_of((1,)))
        assert all(map(all_same, cache.read("s0"), (k, -k)))

    @pytest.mark.parametrize("move", [*STORAGES.values()], ids=[*STORAGES])
    @each_backend
    def test_memory_of_what_comes_does_not_matter(
        self, backend: str, move: Callable[[Tensor], Tensor]
    ) -> None:
        """Strides and addresses of q, k and v."""

        cache, other = paged(backend, SHAPE), paged(backend, SHAPE)
        q, k, v = tokens_of(SHAPE, 6, seed=1)
        for each, change in ((cache, Tensor.contiguous), (other, move)):
            each.allocate("s0")
            each.append(("s0",), change(k), change(v), offsets_of((6,)))
        plain = cache.attend(("s0",), q, offsets_of((6,)))
        moved = other.attend(("s0",), move(q), offsets_of((6,)))
        assert all(map(all_same, other.read("s0"), (k, v)))
        assert all(map(all_same, moved, plain))

    @each_layout
    @each_backend
    def test_layouts_differ_in_memory_alone(self, backend: str, layout: CacheLayout) -> None:
        """Slots before heads, or heads before slots; a token lies where its page and slot say."""

        cache = paged(backend, attrs.evolve(SHAPE, layout=layout))
        cache.allocate("s0")
        _, k, v = tokens_of(SHAPE, 7, seed=1)
        cache.append(("s0",), k, v, offsets_of((7,)))
        assert cache.tables["s0"] == [0, 1]
        for pages, values in ((cache.pages.k, k), (cache.pages.v, v)):
            memory = pages if layout == "NHD" else pages.transpose(1, 2)
            assert memory.is_contiguous()
            flat = memory.view(-1)
            for token, head, feature in itertools.product((0, 4, 5, 6), (0, 1), (0, 7)):
                page, slot = divmod(token, 5)
                place = (slot * 2 + head if layout == "NHD" else head * 5 + slot) + page * 10
                assert all_same(flat[place * 8 + feature], values[token, head, feature])

    @each_backend
    def test_columns_may_be_more_than_a_program_takes(self, backend: str) -> None:
        """Heads and features that fill two programs of the Triton backend and a part of a third."""

        shape = attrs.evolve(SHAPE, query_heads=7, heads=7, width=80, block_size=3)
        beside = Beside.of(backend, shape)
        beside.allocate("s0")
        q, k, v = tokens_of(shape, 19, seed=1)
        beside.tokens["s0"] = (q, k, v)
        beside.cache.append(("s0",), k, v, offsets_of((19,)))
        assert beside.misread() == []


class TestAttention:
    """Chunks and decoding steps give the bits of one full prefill without a cache."""

    @each_kind
    def test_chunks_and_steps_are_parts_of_a_prefill(
        self, backend: str, layout: CacheLayout, dtype: Dtype, storage: Dtype, size: int
    ) -> None:
        """Ragged chunks, of 0 and 1 tokens too, and steps of any of them in any order."""

        beside = Beside.of(backend, shape_of(layout, dtype, storage, size), fill="nan")
        beside.allocate("s0", "s1", "s2")
        assert beside.append(s2=17, s0=1) == []
        assert beside.append(s0=0, s1=9, s2=1) == []
        assert beside.decode("s2", "s0") == []
        assert beside.decode("s1") == []
        if backend == "torch" or not IS_CPU:
            assert beside.append(s1=0, s2=0) == []
            assert beside.append(s2=30, s0=33) == []
            assert beside.decode("s1", "s2", "s0") == []
        assert beside.misread() == []

    @each_kind
    def test_a_cached_prefix_gives_the_bits_of_none(
        self, backend: str, layout: CacheLayout, dtype: Dtype, storage: Dtype, size: int
    ) -> None:
        """Forks within and at the edge of a page, whose pages are then reused and moved."""

        beside = Beside.of(backend, shape_of(layout, dtype, storage, size), fill="inf")
        beside.allocate("s0")
        assert beside.append(s0=16) == []
        beside.fork("s1", "s0", 15)
        beside.fork("s2", "s0", 7)
        assert beside.append(s2=6, s1=3) == []
        beside.free("s0")
        beside.cache.defragment()
        assert beside.decode("s2", "s1") == []
        beside.evict("s1", 5)
        assert beside.append(s1=13) == []
        assert beside.misread() == beside.broken() == []

    @pytest.mark.parametrize(
        ("query_heads", "heads", "width"), [(1, 1, 1), (3, 1, 40), (6, 2, 16), (2, 2, 17)]
    )
    @each_backend
    def test_heads_and_features_of_any_number(
        self,
        backend: str,
        query_heads: int,
        heads: int,
        width: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Groups that do not fill a tile, and features that do not fill a power of two."""

        if IS_CPU:
            sizes = {16: (16, 16), 32: (16, 16), 64: (16, 16)}
            monkeypatch.setattr("biprop.kernels.attention_triton.SIZES_WIDE", sizes)
        shape = attrs.evolve(SHAPE, query_heads=query_heads, heads=heads, width=width)
        beside = Beside.of(backend, shape, fill="nan")
        beside.allocate("s0", "s1")
        assert beside.append(s0=18, s1=2) == []
        assert beside.decode("s1", "s0") == []

    @each_backend
    def test_tokens_of_no_sequence_have_no_result(self, backend: str) -> None:
        """Queries past the last offset get 0 and -Inf, keys there are not stored."""

        beside = Beside.of(backend, SHAPE, fill="nan")
        beside.allocate("s0", "s1")
        q, k, v = tokens_of(SHAPE, 8, seed=1)
        k[5:], v[5:], q[5:] = torch.nan, torch.nan, torch.nan
        beside.tokens |= {"s0": (q[:3], k[:3], v[:3]), "s1": (q[3:5], k[3:5], v[3:5])}
        beside.cache.append(("s0", "s1"), k, v, offsets_of((3, 2)))
        out, lse = beside.cache.attend(("s0", "s1"), q, offsets_of((3, 2)))
        assert beside.misread() == beside.differing({"s0": 3, "s1": 2}, out, lse) == []
        assert all_same(out[5:], torch.zeros_like(out[5:]))
        assert bool((lse[5:] == -torch.inf).all())

    @each_backend
    def test_no_sequence_and_no_tokens_are_legal(self, backend: str) -> None:
        """A step of nobody, and an empty sequence, give empty results and memory."""

        cache = paged(backend, SHAPE)
        cache.allocate("s0")
        q, k, v = tokens_of(SHAPE, 0, seed=0)
        cache.append(("s0",), k, v, offsets_of((0,)))
        results = [*cache.decode((), q, k, v), *cache.attend(("s0",), q, offsets_of((0,)))]
        assert [tuple(value.shape) for value in results] == [(0, 4, 8), (0, 4)] * 2
        assert [tuple(side.shape) for side in cache.read("s0")] == [(0, 2, 8)] * 2


class TestPrograms:
    """Operations in any order keep every promise."""

    @pytest.mark.parametrize("seed", range(10))
    def test_any_program_keeps_all_bits(self, seed: int) -> None:
        """Twenty operations drawn from a seed, with the torch backend."""

        self.run("torch", seed, steps=20)

    @pytest.mark.parametrize("seed", range(2))
    def test_a_short_program_of_the_triton_backend_too(self, seed: int) -> None:
        """As many operations as the interpreter does in a second or two."""

        self.run("triton", seed, steps=7 if IS_CPU else 40)

    @staticmethod
    def run(backend: str, seed: int, *, steps: int) -> None:
        """Draw and run a program, and compare after each operation."""
        draw = random.Random(seed)
        dtype, storage = draw.choice(DTYPES)
        shape = shape_of(draw.choice(LAYOUTS), dtype, storage, draw.choice((1, 2, 3, 4, 7, 16)))
        fill = draw.choice((None, "nan", "garbage"))
        beside = Beside.of(backend, attrs.evolve(shape, block_count=30), fill=fill)
        for step in range(steps):
            names = list(beside.tokens)
            what = draw.choice("AAADDDFFEXM") if len(names) > 1 else "N"
            chosen = draw.sample(names, draw.randint(1, len(names))) if names else []
            if what == "N":
                beside.allocate(f"s{step}")
                assert beside.append(**{f"s{step}": draw.randint(0, 12)}) == []
            elif what in "AD":
                counts = {name: draw.choice((0, 1, 2, 9)) if what == "A" else 1 for name in chosen}
                before = dict(beside.tokens)
                try:
                    differing = beside.append(**counts) if what == "A" else beside.decode(*chosen)
                except UsageError as error:
                    assert "more pages" in str(error)  # noqa: PT017  # a full pool is legal here
                    beside.tokens = before
                else:
                    assert differing == []
            elif what == "M":
                beside.cache.defragment()
            elif what == "X":
                beside.free(chosen[0])
            else:
                at = draw.randint(0, beside.cache.length(chosen[0]))
                if what == "E":
                    beside.evict(chosen[0], at)
                else:
                    beside.fork(f"s{step}", chosen[0], at)
            assert beside.misread() == beside.broken() == []


class TestPower:
    """Data of the kind of this file shows a changed order, and a page that is mistaken."""

    @each_backend
    def test_other_blocks_are_seen(self, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A prefill in blocks of another size has other bits."""

        beside = Beside.of(backend, SHAPE)
        beside.allocate("s0")
        assert beside.append(s0=40) == []
        q = beside.tokens["s0"][0]
        results = beside.cache.attend(("s0",), q, offsets_of((40,)))
        monkeypatch.setattr(attention_torch, "tile_of", lambda _: 16)
        for sizes in ("SIZES_WIDE", "SIZES_NARROW"):
            other = LARGE if IS_CPU else SMALL
            monkeypatch.setattr(f"biprop.kernels.attention_triton.{sizes}", other)
        assert beside.differing({"s0": 40}, *results) == ["s0"]

    @each_backend
    def test_a_wrong_page_is_seen(self, backend: str) -> None:
        """A table with two pages exchanged, in what is read and in what is attended."""

        beside = Beside.of(backend, SHAPE)
        beside.allocate("s0")
        beside.append(s0=12)
        table = beside.cache.tables["s0"]
        table[0], table[1] = table[1], table[0]
        assert beside.misread() == ["s0"]
        assert beside.decode("s0") == ["s0"]
