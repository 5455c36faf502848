"""Tensors drawn at random from everything that a recipe can say, for tests of their expansion."""

import os
import random
from collections.abc import Sequence

import attrs
import torch

from biprop.data.block import Block, Tokens
from biprop.data.expand import expand
from biprop.data.floats import format_of
from biprop.data.recipe import KINDS, SEQUENCES, TOKENS, Pairing, Point, Recipe, Role

# Where the kernel runs: compiled on a GPU, else in Triton's interpreter, which is asked for here.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS_PAIRED = ("integers", "normal", "uniform", "wide", "pairs", "swamp")
KINDS_AT_TARGET = ("peak_squares", "peak_exponentials", "ties_exponentials")
ROLES: tuple[Role, ...] = ("antisymmetric", "symmetric", "flat", "own")
# Few, since each is compiled as a kernel of its own; together they hold every kind.
MIXTURES = (
    ("ties_squares", "ties_exponentials", "peak_exponentials", "pairs", "normal"),
    ("zeros", "ones", "integers", "iota", "uniform", "wide", "explicit"),
    ("peak_keys", "swamp", "peak_squares", "linspace"),
)
# Sizes at which a kind changes, and their neighbours.
SIZES_LAST = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33, 64, 100, 129, 255, 256, 257, 300)


@attrs.frozen(kw_only=True, eq=False)
class DrawnTensor:
    """One tensor.

    Attributes:
        recipe: What it holds.
        seed: Of its case.
        lengths: Of its sequences by id; None for a parameter.
        dims: Texts of its other dimensions.
        sizes: Their sizes.
        dtype: Of the values.
    """

    recipe: Recipe
    seed: int
    lengths: dict[int, int] | None
    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype

    @property
    def text(self) -> str:
        """What to print where a test fails."""
        return f"{self.recipe} seed={self.seed} {self.lengths} {self.sizes} {self.dtype}"

    def values(self, device: str) -> torch.Tensor:
        """Return what `expand` makes of it on a device."""
        tokens = self.tokens(device)
        return expand(
            self.recipe,
            seed=self.seed,
            name="x",
            tokens=tokens,
            dims=self.dims,
            sizes=self.sizes,
            dtype=self.dtype,
            target=self.target(device),
            device=device,
        )

    def block(self, device: str) -> Block:
        """Return the whole tensor as a block without coordinates."""
        return Block(
            seed=self.seed,
            name="x",
            number_format=format_of(self.dtype),
            device=torch.device(device),
            tokens=self.tokens(device),
            target=self.target(device),
            dims=self.dims or ("",),
            sizes=self.sizes or (1,),
            coordinates=(),
        )

    def tokens(self, device: str) -> Tokens | None:
        """Return the tokens of its first axis."""
        if self.lengths is None:
            return None
        rows = [(key, at, size) for key, size in self.lengths.items() for at in range(size)]
        columns = torch.tensor(rows, dtype=torch.int32).T.contiguous().to(device)
        return Tokens(sequence_id=columns[0], token=columns[1], length=columns[2])

    def target(self, device: str) -> torch.Tensor | None:
        """Return a target for each row; parameters have none."""
        if self.lengths is None:
            return None
        count = sum(self.lengths.values())
        numbers = torch.arange(count) * 7919 + self.seed % 1000
        return (numbers % (self.sizes or (1,))[-1]).to(device)


def draw_tensor(
    seed: int,
    *,
    kinds: Sequence[str] = KINDS,
    sizes_last: Sequence[int] = SIZES_LAST,
    tokens_max: int = 12,
    outer_max: int = 5,
) -> DrawnTensor:
    """Draw a tensor; every seed gives another, the kinds come round in turn.

    Args:
        seed: Any number.
        kinds: Kinds to draw from.
        sizes_last: Sizes of the last dimension to draw from.
        tokens_max: Tokens of a sequence, at most.
        outer_max: Size of the other dimensions, at most.
    """
    chance = random.Random(seed)
    dims = ("E", "D", "H")[chance.choice((0, 1, 1, 1, 2)) :]
    sizes = (*(chance.randint(1, outer_max) for _ in dims[:-1]), chance.choice(list(sizes_last)))
    if chance.random() < 0.1:
        dims, sizes = (), ()
    lengths: dict[int, int] | None = None
    if chance.random() < 0.8:
        ids = chance.sample([0, 1, 2, 3, 7, 1024, 1025, 1 << 20], chance.randint(1, 4))
        lengths = {key: chance.randint(1, tokens_max) for key in ids}
    axes = [*dims, *((TOKENS, SEQUENCES) if lengths else ())]
    return DrawnTensor(
        recipe=_recipe(chance, kinds[seed % len(kinds)], axes),
        seed=chance.choice((0, 5, 20_261_129, (1 << 32) - 1)),
        lengths=lengths,
        dims=dims,
        sizes=sizes,
        dtype=chance.choice(DTYPES),
    )


def _recipe(chance: random.Random, kind: str, axes: Sequence[str]) -> Recipe:
    exponent = chance.choice((0, 0, -3, 2, 64, -64))
    if kind == "mix":
        rows = tuple(_recipe(chance, name, axes) for name in chance.choice(MIXTURES))
        return Recipe(kind=kind, rows=rows, exponent=exponent)
    if kind == "explicit":
        return Recipe(kind=kind, points=_points(chance, axes), exponent=exponent)
    pairing = {}
    if kind in KINDS_PAIRED:
        for axis in axes:
            role = chance.choice(ROLES)
            masked = role in {"antisymmetric", "symmetric"}
            if chance.random() < 0.6:
                pairing[axis] = Pairing(role=role, mask=chance.randint(1, 300) if masked else 0)
    return Recipe(
        kind=kind,
        pairing=pairing,
        exponent=exponent,
        holes=bool(pairing) and chance.random() < 0.5,
        at_target=kind in KINDS_AT_TARGET and chance.random() < 0.5,
    )


def _points(chance: random.Random, axes: Sequence[str]) -> tuple[Point, ...]:
    points = []
    for _ in range(chance.randint(1, 8)):
        named = [axis for axis in axes if chance.random() < 0.6]
        value = chance.choice((1.0, -4096.0, 2.0**-12, -1e30, 3.14159, 1e300, -0.0))
        at = {axis: chance.choice((0, 1, 2, 3, 40)) for axis in named}
        points.append(Point(at=at, value=value.hex()))
    return tuple(points)
