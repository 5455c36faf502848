"""Cases, recipes, claims and values in words, as every report uses them.

Plain ASCII, no control codes: texts may be a stranger's. How lines are put together stands in
`biprop.reports.text` and `biprop.reports.issue`.
"""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise

from biprop.case import Against, Case
from biprop.data.recipe import Point, Recipe
from biprop.fixtures.programs import AnyFixture
from biprop.fixtures.records import Fixture
from biprop.judgment import BitDifference, Claim, ClaimValue, LaunchFact, Mismatch
from biprop.signature import Signature
from biprop.signature.query_context import Cutting, cutting_of
from biprop.signature.roles import has_contexts

__all__ = [
    "against_in_words",
    "case_in_words",
    "claims_in_words",
    "data_in_words",
    "errors_in_words",
    "launch_in_words",
    "launches_in_words",
    "place_in_words",
    "plain",
    "recipes_in_words",
    "replay_command",
    "sides_in_words",
    "transforms_in_words",
    "ulps_between",
    "ulps_of_bits",
    "value_in_words",
]

_POINTS_SHOWN = 6
_OTHERS_SHOWN = 3
_CUTS_SHOWN = 4
# As a supervisor tells a hang, and what `biprop replay` waits where it is not told otherwise.
_HUNG = re.compile(r"\bhung for (\d{1,9}(?:\.\d{1,9})?) s\b", re.ASCII)
_SECONDS_A_REPLAY_WAITS = 60.0
_WIDTHS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}
_EXPONENTS = {"float64": 11, "float32": 8, "bfloat16": 8, "float16": 5}


def plain(text: str) -> str:
    """Return `text` in printable ASCII on one line."""
    shown = " ".join(text.split())
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in shown)


def value_in_words(value: float) -> str:
    """Return a number as people write it: `4096`, `-2^-12`, `0.1`."""
    if not math.isfinite(value) or value == 0:
        return repr(value)
    if value == int(value) and abs(value) < 1 << 20:
        return str(int(value))
    mantissa, exponent = math.frexp(abs(value))
    if mantissa == 0.5:
        return f"{'-' if value < 0 else ''}2^{exponent - 1}"
    return repr(value)


def case_in_words(case: Case, signature: Signature | None = None) -> str:
    """Return sequences, sizes and switches of a case.

    Args:
        case: The case.
        signature: Of the kernel: with queries and contexts the words say who attends, and where
            queries are cut.
    """
    lengths = [sequence.length for sequence in case.sequences]
    shown = ", ".join(map(str, lengths[:8])) + (", ..." if len(lengths) > 8 else "")
    ids = _ids_in_words(case)
    if len(lengths) == 1:
        words = [f"1 sequence{ids} of {lengths[0]} token{'s' * (lengths[0] > 1)}"]
    else:
        words = [f"{len(lengths)} sequences{ids} of {shown} tokens"]
    prompts = [sequence.prompt_length for sequence in case.sequences]
    starts = [sequence.position_start for sequence in case.sequences]
    if signature is not None and has_contexts(signature):
        words += _contexts_in_words(case, cutting_of(signature))
    if any(prompts):
        words.append(f"prompts of {', '.join(map(str, prompts[:8]))}")
    if any(starts):
        words.append(f"positions from {', '.join(map(str, starts[:8]))}")
    words += [f"{name}={size}" for name, size in case.dims.items()]
    words += [f"{name}={value!r}" for name, value in case.scalars.items()]
    if case.shared_prefix:
        words.append(f"shared prefix of {case.shared_prefix}")
    words.append(case.dtype)
    if case.judged != "outputs":
        words.append(case.judged.replace("_", " "))
    if case.execution.threads != 1:
        words.append(f"{case.execution.threads} threads")
    words += case.execution.words
    return plain(", ".join(words))


def _ids_in_words(case: Case) -> str:
    """Return the ids of the sequences where they are not the numbers that one would expect."""
    ids = [sequence.id for sequence in case.sequences]
    if ids == list(range(len(ids))):
        return ""
    shown = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
    return f" (id{'s' * (len(ids) > 1)} {shown})"


def _contexts_in_words(case: Case, cutting: Cutting) -> list[str]:
    """Return what the tokens are, and where queries are cut: `decode at token 4`."""
    kinds = {
        "prefix": "causal queries and contexts",
        "queries": "queries of all contexts",
        "none": "one query of all contexts",
    }
    words = [kinds[cutting]]
    longest = max(sequence.length for sequence in case.sequences)
    transforms = {data.name: data.values for data in case.transforms}
    cuts = transforms.get("SplitBatch", {}).get("cuts", ())
    if cutting != "none" and isinstance(cuts, tuple):
        places = [cut for cut in cuts if cut < longest]
        single = [
            first for first, end in pairwise([*places, longest]) if end == first + 1 and places
        ]
        ends = {first + 1 for first in single}
        others = [cut for cut in places if cut not in single and cut not in ends]
        alone = "decode" if cutting == "prefix" else "one query alone"
        words += [f"{alone} at token {first}" for first in single[:_CUTS_SHOWN]]
        if others:
            shown = ", ".join(map(str, others[:_CUTS_SHOWN]))
            words.append(f"queries cut at token{'s' * (len(others) > 1)} {shown}")
        if len(single) > _CUTS_SHOWN or len(others) > _CUTS_SHOWN:
            words.append(f"{len(places)} cuts in all")
    per_row = transforms.get("PackRows", {}).get("per_row")
    if per_row is not None:
        words.append(f"{per_row} sequences a row under a block-diagonal mask")
    return words


def transforms_in_words(case: Case) -> str:
    """Return the composition as it would be written in Python, or `none`."""
    written = []
    for data in case.transforms:
        values = {name: value for name, value in data.values.items() if value not in (False, 0, "")}
        fields = ", ".join(f"{name}={value!r}" for name, value in values.items())
        written.append(f"{data.name}({fields})")
    return plain(" + ".join(written)) or "none"


def against_in_words(against: Against) -> str:
    """Return what canonical runs are held against, and how far they may lie from it."""
    other = f"backend {against.backend}" if against.backend else "the float32 reference"
    if against.probe:
        return plain(f"what probe {against.probe} of the contract expects")
    return plain(f"{other} on the same values, atol {against.atol:g}, rtol {against.rtol:g}")


def sides_in_words(fixture: Fixture) -> tuple[str, str]:
    """Return the names of the two sides that differ."""
    against = fixture.case.against
    if against is None:
        return "canonical", "transformed"
    other = "expected" if against.probe else against.backend or "reference"
    return plain(fixture.backend), plain(other)


def data_in_words(case: Case) -> str:
    """Return what the tensors hold."""
    return recipes_in_words({**case.data, **case.policy_state}, seed=case.seed)


def recipes_in_words(recipes: Mapping[str, Recipe], *, seed: int) -> str:
    """Return what tensors hold, by their names."""
    words = "; ".join(f"{name} {_recipe_in_words(recipe)}" for name, recipe in recipes.items())
    drawn = any(recipe.kind not in {"zeros", "ones", "explicit"} for recipe in recipes.values())
    return plain(f"{words}; seed {seed}" if drawn else words) or "no float data"


def launch_in_words(fact: LaunchFact) -> str:
    """Return one launch: `logp_rows grid (3,) R=16 W=512 num_warps=8`."""
    grid = f"grid {fact.grid}" if fact.grid else ""
    return plain(f"{fact.kernel} {grid} {fact.configuration}")


def launches_in_words(facts: Sequence[LaunchFact]) -> list[str]:
    """Return a line for each side whose grids are known: its first launch, and how many differ."""
    lines = []
    for role in dict.fromkeys(fact.role for fact in facts):
        known = [fact for fact in dict.fromkeys(facts) if fact.role == role and fact.grid]
        if known:
            more = f", and {len(known) - 1} other" if len(known) > 1 else ""
            lines.append(plain(f"{role}: {launch_in_words(known[0])}{more}"))
    return lines


def place_in_words(case: Case, path: tuple[int | str, ...]) -> str:
    """Return the name of a place of a case: `H`, `length of sequence 0`, `AddNeighbours.count`."""
    match path:
        case ("dims", str(name)):
            return plain(name)
        case ("sequences", int(index)) if 0 <= index < len(case.sequences):
            return f"sequence {case.sequences[index].id}"
        case ("sequences", int(index), str(field)) if 0 <= index < len(case.sequences):
            return plain(f"{field.replace('_', ' ')} of sequence {case.sequences[index].id}")
        case ("transforms", int(index), *rest) if 0 <= index < len(case.transforms):
            name = case.transforms[index].name
            return plain(f"{name}.{rest[-1]}" if rest else name)
        case (("data" | "policy_state"), str(name), "points", int(index)):
            recipe = {**case.data, **case.policy_state}.get(name)
            points = () if recipe is None else recipe.points
            if not 0 <= index < len(points):
                return plain(f"value {index} of {name}")
            return plain(f"{name}[{_at_in_words(points[index])}]")
        case _:
            return plain(".".join(map(str, path)))


def claims_in_words(case: Case, claims: Sequence[Claim]) -> str:
    """Return what a proof needs: `K=272 (256 and 271 pass); without AddNeighbours it passes`."""
    numbers = [_number_in_words(case, claim) for claim in claims if claim.others != (None,)]
    parts = [place_in_words(case, claim.path) for claim in claims if claim.others == (None,)]
    if parts:
        each = "each of " if len(parts) > 1 else ""
        numbers.append(f"without {each}{', '.join(parts)} it passes")
    return "; ".join(numbers)


def _number_in_words(case: Case, claim: Claim) -> str:
    place = place_in_words(case, claim.path)
    others = [_claim_value(other) for other in claim.others[-_OTHERS_SHOWN:]]
    verb = "passes" if len(others) == 1 else "pass"
    return plain(f"{place}={_claim_value(claim.value)} ({' and '.join(others)} {verb})")


def replay_command(fixture: AnyFixture, source: str, *, options: Sequence[str] = ()) -> str:
    """Return the command that replays a fixture from `source`: a path, an id, or `-`.

    Args:
        fixture: The fixture.
        source: What the command reads.
        options: That find it, such as `--store`.
    """
    words = ["biprop", "replay", source, *options]
    if not fixture.reference.is_registered:
        words += ["--allow-target", fixture.target]
    hung = _HUNG.search(fixture.expect.message)
    if hung is not None and float(hung[1]) < _SECONDS_A_REPLAY_WAITS:
        # Whoever found it waited so long and no longer, for each of several runs.
        words += ["--timeout", hung[1]]
    return plain(shlex.join(words))


def ulps_between(first: BitDifference, dtype: str) -> int | None:
    """Return how many floats lie between two values; None if one is NaN or the dtype no float."""
    return ulps_of_bits((first.canonical_bits, first.transformed_bits), dtype)


def ulps_of_bits(patterns: tuple[str, str], dtype: str) -> int | None:
    """Return how many floats lie between two patterns, hexadecimal; None as of `ulps_between`."""
    if dtype not in _WIDTHS:
        return None
    width = _WIDTHS[dtype]
    infinity = _infinity(dtype)
    places = []
    for text in patterns:
        pattern = int(text, 16)
        magnitude = pattern & ((1 << (width - 1)) - 1)
        if magnitude > infinity:
            return None
        places.append(-magnitude if pattern >> (width - 1) else magnitude)
    return abs(places[0] - places[1])


def errors_in_words(mismatch: Mismatch) -> list[str]:
    """Return how far apart an output is: `max abs 0.5`, `max rel inf`.

    A record holds finite numbers only; which of `nan` and `inf` is missing there tells the first
    difference.
    """
    first = mismatch.first
    sides = {
        _finiteness(first.canonical_bits, mismatch.dtype),
        _finiteness(first.transformed_bits, mismatch.other_dtype or mismatch.dtype),
    }
    apart = next((word for word in ("nan", "inf") if word in sides), "")
    found = {
        "max abs": mismatch.max_abs_error,
        "mean abs": mismatch.mean_abs_error,
        "max rel": mismatch.max_rel_error,
    }
    words = []
    for name, value in found.items():
        missing = apart
        if name == "max rel" and mismatch.max_abs_error is not None:
            # Something finite beside a canonical zero.
            missing = "inf"
        shown = missing if value is None else f"{value:.3g}"
        if shown:
            words.append(f"{name} {shown}")
    return words


def _finiteness(bits: str, dtype: str) -> str:
    """Return `nan`, `inf`, or nothing for a number."""
    if dtype not in _WIDTHS:
        return ""
    width = _WIDTHS[dtype]
    magnitude = int(bits, 16) & ((1 << (width - 1)) - 1)
    infinity = _infinity(dtype)
    if magnitude < infinity:
        return ""
    return "inf" if magnitude == infinity else "nan"


def _infinity(dtype: str) -> int:
    return ((1 << _EXPONENTS[dtype]) - 1) << (_WIDTHS[dtype] - 1 - _EXPONENTS[dtype])


def _claim_value(value: ClaimValue) -> str:
    return "absent" if value is None else str(value)


def _recipe_in_words(recipe: Recipe) -> str:
    if recipe.kind == "explicit":
        shown = ", ".join(_point_in_words(point) for point in recipe.points[:_POINTS_SHOWN])
        more = len(recipe.points) - _POINTS_SHOWN
        return f"{shown}, and {more} more" if more > 0 else f"{shown}, else 0"
    words = recipe.kind.replace("_", " ")
    if recipe.rows:
        words += " of " + ", ".join(row.kind for row in recipe.rows)
    roles = [f"{pairing.role} over {axis}" for axis, pairing in recipe.pairing.items()]
    extras = [*roles, *([f"times 2^{recipe.exponent}"] if recipe.exponent else [])]
    return f"{words} ({', '.join(extras)})" if extras else words


def _point_in_words(point: Point) -> str:
    return f"[{_at_in_words(point)}]={value_in_words(float.fromhex(point.value))}"


def _at_in_words(point: Point) -> str:
    names = {"@": "token", "#": "sequence"}
    at = ",".join(f"{names.get(axis, axis)}={index}" for axis, index in point.at.items())
    return at or "all"
