"""Every kind of data keeps its bits for ever: fixtures hold recipes, not numbers.

A generator that has to change gets a new kind name; then `python tests/unit/test_data_golden.py`
adds its digests to the table, and must change none that stands there.
"""

import json
from pathlib import Path

import pytest
import torch

from biprop.data.expand import Tokens, digest, expand, expand_tokens
from biprop.data.recipe import KINDS, Pairing, Point, Recipe

TABLE = Path(__file__).parent / "golden" / "data.json"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

OWN = {"D": Pairing(role="own")}
MATCHED = {
    "H": Pairing(role="symmetric", mask=1),
    "D": Pairing(role="antisymmetric", mask=5),
    "@": Pairing(role="antisymmetric", mask=1),
    "#": Pairing(role="symmetric", mask=1),
}
FLAT = {"D": Pairing(role="flat"), "@": Pairing(role="own"), "#": Pairing(role="own")}
POINTS = (
    Point(at={"D": 3, "@": 1}, value="0x1.0p+12"),
    Point(at={"D": 7, "#": 1024, "@": 0}, value="-0x1.8p-3"),
    Point(at={"H": 1, "D": 3}, value="0x1.0p-12"),
)


def recipe_of(kind: str) -> Recipe:
    """Return the plain recipe of a kind."""
    if kind == "mix":
        inner = ("ties_squares", "pairs", "normal", "ones", "peak_exponentials")
        return Recipe(kind=kind, rows=tuple(Recipe(kind=name) for name in inner))
    return Recipe(kind=kind, points=POINTS if kind == "explicit" else ())


RECIPES = {kind: recipe_of(kind) for kind in KINDS} | {
    "pairs, own": Recipe(kind="pairs", pairing=OWN),
    "pairs, matched, holes": Recipe(kind="pairs", pairing=MATCHED, holes=True),
    "swamp, matched, exponent": Recipe(kind="swamp", pairing=MATCHED, exponent=-4),
    "normal, flat": Recipe(kind="normal", pairing=FLAT),
    "integers, own": Recipe(kind="integers", pairing=OWN),
    "ties_exponentials, target": Recipe(kind="ties_exponentials", at_target=True),
    "peak_squares, target": Recipe(kind="peak_squares", at_target=True),
}


def tokens_of(lengths: dict[int, int], device: str) -> Tokens:
    """Return the tokens of sequences given as id -> length, in that order."""
    rows = [(key, token, size) for key, size in lengths.items() for token in range(size)]
    columns = torch.tensor(rows, dtype=torch.int32, device=device).T
    return Tokens(sequence_id=columns[0], token=columns[1], length=columns[2])


def digests(device: str) -> dict[str, str]:
    """Return the digest of every recipe in every dtype, as it is now."""
    tokens = tokens_of({0: 3, 1: 1, 1024: 4}, device)
    target = expand_tokens(seed=7, name="target", tokens=tokens, vocabulary=70)
    found = {"tokens": digest(target)}
    for title, recipe in RECIPES.items():
        for dtype in DTYPES:
            values = expand(
                recipe,
                seed=20_261_129,
                name="x",
                tokens=tokens,
                dims=("H", "D"),
                sizes=(2, 70),
                dtype=dtype,
                target=target,
            )
            found[f"{title}: {str(dtype).removeprefix('torch.')}"] = digest(values)
    return found


@pytest.fixture(scope="module")
def now() -> dict[str, str]:
    """Return the digests of this tree."""
    return digests("cpu")


class TestGolden:
    """The committed table of digests."""

    def test_no_digest_has_changed(self, now: dict[str, str]) -> None:
        """Every recipe of the table still gives the bits that it gave when it was written."""
        committed = json.loads(TABLE.read_text(encoding="utf-8"))

        assert now == committed

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_a_gpu_gives_the_same_bits(self) -> None:
        """The table of the CPU is the table of the GPU."""
        assert digests("cuda") == json.loads(TABLE.read_text(encoding="utf-8"))

    def test_every_kind_stands_in_the_table(self, now: dict[str, str]) -> None:
        """No kind is without a digest in each of the three dtypes."""
        names = {title.split(",")[0].split(":")[0] for title in now}

        assert set(KINDS) <= names
        assert len(now) == 1 + len(RECIPES) * len(DTYPES)

    def test_digests_differ_wherever_values_do(self, now: dict[str, str]) -> None:
        """No two recipes share a digest, so the table could not hide a swap."""
        assert len(set(now.values())) == len(now)


if __name__ == "__main__":
    TABLE.write_text(json.dumps(digests("cpu"), indent=1) + "\n", encoding="utf-8")
