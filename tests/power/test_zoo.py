"""Power: the census of the zoo, of what kinds it is and how hard its kernels are to meet.

Everything is counted from the records and the kernels themselves. That each is found, and that its
twin holds, is tested in the other modules of this folder.
"""

import importlib
import inspect
from collections import Counter
from difflib import SequenceMatcher
from itertools import pairwise
from types import CodeType
from typing import get_args

import pytest

from biprop.case import Dtype
from biprop.generation import LIMITS
from biprop.generation.classes import CLASSES
from biprop.kernels.planted import CACHES, CHAIN, PLANTED, ChainDefect, Mechanism, Planted
from biprop.signature.roles import has_contexts

Member = Planted | ChainDefect
# A plain function; those of Triton stand in for one until they are called.
Function = object

ZOO: tuple[Member, ...] = (*PLANTED, *CHAIN)
KINDS: tuple[Mechanism, ...] = get_args(Mechanism)
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
SIZES = range(1, 4097)
SHARE_RARE = 0.02
# Lines that tell a kernel from its twin, where one of them is a name for the other one's use.
LINES_MAX = 3

RARE = [member for member in ZOO if member.rare is not None]

each_kind = pytest.mark.parametrize("kind", KINDS)


def of_kind(kind: Mechanism) -> list[Member]:
    """Return the members of one kind."""
    return [member for member in ZOO if member.mechanism == kind]


def rare_sizes(member: Member) -> list[int]:
    """Return the sizes at which a member shows, as its own predicate says."""
    assert member.rare is not None
    return [size for size in SIZES if member.rare(size)]


def resolved(function: Function) -> Function:
    """Return a function itself where another one stands in for it."""
    module, name = function.__module__, function.__name__  # type: ignore[attr-defined]  # a plain function
    found: Function = getattr(importlib.import_module(module), name)
    return found


def body_of(function: Function) -> list[str]:
    """Return the lines of a function without its name, its docstring and blank ones."""
    source = inspect.getsource(resolved(function))  # type: ignore[arg-type]  # a plain function
    doc = inspect.getdoc(resolved(function)) or ""
    first = source.index('"""') + 3
    after = source[source.index('"""', first) + 3 :]
    assert doc.split("\n")[0] in source
    return [line.strip() for line in after.splitlines() if line.strip()]


def lines_changed(planted: Planted) -> int:
    """Return how many lines tell a kernel from its twin."""
    lines = [body_of(function) for function in (planted.function, planted.healthy)]
    return sum(
        max(high - low, end - start)
        for tag, low, high, start, end in SequenceMatcher(a=lines[0], b=lines[1]).get_opcodes()
        if tag != "equal"
    )


def names_reached(function: Function) -> set[str]:
    """Return the names that a function and those it calls in its own module look up."""
    reached: Function = resolved(function)
    module = vars(importlib.import_module(reached.__module__))
    waiting = [reached.__code__]  # type: ignore[attr-defined]  # a plain function
    found: set[str] = set()
    while waiting:
        code = waiting.pop()
        waiting += [item for item in code.co_consts if isinstance(item, CodeType)]
        for name in set(code.co_names) - found:
            found.add(name)
            called = getattr(module.get(name), "__code__", None)
            waiting += [called] * isinstance(called, CodeType)
    return found


def test_there_are_at_least_sixty() -> None:
    """Sixty planted kernels, beside the defects of registered operators."""

    assert len(PLANTED) >= 60


def test_names_are_unique() -> None:
    """No two of the zoo have one name, caches included."""
    counted = Counter(item.name for item in (*ZOO, *CACHES))

    assert [name for name, count in counted.items() if count > 1] == []


@each_kind
def test_each_kind_has_three(kind: Mechanism) -> None:
    """At least three of every kind that public reports show."""

    assert len(of_kind(kind)) >= 3


@each_kind
def test_each_kind_has_a_rare_one(kind: Mechanism) -> None:
    """One of every kind shows at less than 2 % of the sizes up to 4,096, and at some."""
    counts = [len(rare_sizes(member)) for member in of_kind(kind) if member.rare is not None]

    assert any(0 < count < SHARE_RARE * len(SIZES) for count in counts)


@each_kind
def test_each_kind_has_one_of_two_conditions(kind: Mechanism) -> None:
    """One of every kind needs two conditions at once."""

    assert any(member.conditions == 2 for member in of_kind(kind))


@each_kind
def test_each_kind_shows_in_both_dtypes(kind: Mechanism) -> None:
    """Float32 and bfloat16, where the record says in which dtypes it shows."""
    planted = [member for member in of_kind(kind) if isinstance(member, Planted)]
    shown = {dtype for member in planted for dtype in member.dtypes}

    assert not planted or shown == set(DTYPES)


def test_nearly_every_kind_has_a_backward() -> None:
    """Gradients are broken by every kind but at most two, and forwards by all."""
    directions = {kind: {member.direction for member in of_kind(kind)} for kind in KINDS}

    assert [kind for kind in KINDS if "forward" not in directions[kind]] == []
    assert len([kind for kind in KINDS if "backward" not in directions[kind]]) <= 2


def test_rare_ones_are_less_than_two_percent() -> None:
    """What is called rare shows at some size from 1 to 4,096, and at fewer than 2 % of them."""
    counts = {member.name: len(rare_sizes(member)) for member in RARE}

    assert {name: n for name, n in counts.items() if not 0 < n < SHARE_RARE * len(SIZES)} == {}


def test_rare_sizes_can_be_drawn_and_are_not_the_smallest() -> None:
    """The first one lies within the limits of a CPU, and above what any case has."""
    first = {member.name: rare_sizes(member)[0] for member in RARE}

    assert {name: n for name, n in first.items() if not 4 < n <= LIMITS["cpu"].dim_max} == {}


def test_rare_ones_ask_the_predicate_that_is_counted() -> None:
    """A kernel branches on the very function that its record counts by, and its twin does not."""
    asking = {
        member.name: member.rare.__name__ in names_reached(member.function)
        for member in RARE
        if member.rare is not None
    }
    twins = {
        member.name: member.rare.__name__ in names_reached(member.healthy)
        for member in RARE
        if member.rare is not None and isinstance(member, Planted)
    }

    assert [name for name, asks in asking.items() if not asks] == []
    assert [name for name, asks in twins.items() if asks] == []


def test_rare_sizes_are_of_several_shapes() -> None:
    """Single sizes, ranges, and residues, whose sizes follow at one distance."""
    shapes: Counter[str] = Counter()
    for member in RARE:
        gaps = {high - low for low, high in pairwise(rare_sizes(member))}
        shapes["range" if gaps == {1} else "residue" if len(gaps) == 1 else "list"] += 1

    assert min(shapes[shape] for shape in ("range", "residue", "list")) >= 3


def test_every_class_exposes_some() -> None:
    """Each transform class that a kernel can show alone is the way to some of them."""
    exposing = {name for planted in PLANTED for name in planted.exposed_by}

    assert exposing == set(CLASSES) - {"T7", "shards"}


def test_several_need_a_neighbour_of_another_length() -> None:
    """Kernels of whole sequences, to which a neighbour's length is enough."""
    found = [
        planted.name
        for planted in PLANTED
        if "T3" in planted.exposed_by and planted.kernel().signature.sequence_wise
    ]

    assert len(found) >= 5


def test_several_layouts_are_there() -> None:
    """Tokens alone, packed segments, padded rows, and queries with contexts."""
    signatures = [planted.kernel().signature for planted in PLANTED]
    counted = Counter(signature.layout for signature in signatures)

    assert min(counted.values()) >= 5
    assert sum(map(has_contexts, signatures)) >= 20


def test_several_differ_from_run_to_run() -> None:
    """Kernels that give other bits for the same call are those of one kind, and no others."""
    flipping = [planted for planted in PLANTED if not planted.deterministic]

    assert len(flipping) >= 3
    assert {planted.mechanism for planted in flipping} == {"ATOM"}


def test_inaccurate_ones_are_those_of_their_kind() -> None:
    """ACC is what relation A finds and relation I does not, and nothing else is."""
    inaccurate = {defect.name for defect in CHAIN if defect.verdict == "INACCURATE"}

    assert inaccurate == {member.name for member in of_kind("ACC")}


def test_every_function_says_what_it_does() -> None:
    """Each kernel and each twin is where it is said to be, and has a docstring of a sentence."""
    functions: list[Function] = [member.function for member in ZOO]
    functions += [planted.healthy for planted in PLANTED]
    docs = {str(function): inspect.getdoc(resolved(function)) or "" for function in functions}

    assert [name for name, doc in docs.items() if not doc.split("\n")[0].endswith(".")] == []


def test_twins_are_a_line_apart() -> None:
    """A twin takes the same arguments, and differs in a line or few, and in words."""
    changed = {planted.name: lines_changed(planted) for planted in PLANTED}
    same_words = [
        planted.name
        for planted in PLANTED
        if inspect.getdoc(resolved(planted.function)) == inspect.getdoc(resolved(planted.healthy))
    ]
    same_calls = [
        planted.name
        for planted in PLANTED
        if _parameters(planted.function) != _parameters(planted.healthy)
    ]

    assert {name: count for name, count in changed.items() if not 1 <= count <= LINES_MAX} == {}
    assert same_words == []
    assert same_calls == []


def _parameters(function: Function) -> list[str]:
    return list(inspect.signature(resolved(function)).parameters)  # type: ignore[arg-type]  # a plain function
