"""The case of a finding as a picture: rows, padding, chunks, neighbours, and the first difference.

What lies where is told by `biprop.reports.html.rows`; programs of a cache are drawn by
`biprop.reports.html.pages`.
"""

from collections.abc import Iterator

import attrs
from markupsafe import Markup

from biprop.errors import BipropError, CaseError
from biprop.fixtures.records import Fixture
from biprop.judgment import Mismatch, Verdict
from biprop.layout import Layout
from biprop.reports.html.rows import (
    LaunchRows,
    canonical_rows,
    sequences_of,
    transformed_rows,
)
from biprop.reports.html.slots import (
    AXES,
    LEFT,
    SLOT_MAX,
    WIDTH,
    Mark,
    Scene,
    draw_heading,
    draw_launch,
    holds_mark,
    in_words,
)
from biprop.reports.html.svg import picture
from biprop.reports.text import counted
from biprop.reports.words import place_in_words, sides_in_words, transforms_in_words
from biprop.signature import Signature, parse_backward, parse_signature
from biprop.transforms import apply_all, transforms_of

__all__ = ["Drawing", "Panel", "case_drawing"]

_LAUNCHES_SHOWN = 5
# Launches that are looked at; a program of decode steps may have thousands.
_LAUNCHES_MAX = 4_096
_ROWS_MAX = 200_000


@attrs.frozen(kw_only=True)
class Panel:
    """One picture.

    Attributes:
        title: What it shows.
        svg: Of fixed size, at most as wide as a phone.
    """

    title: str
    svg: Markup


@attrs.frozen(kw_only=True)
class Drawing:
    """The pictures of a finding.

    Attributes:
        panels: Side by side, where there is room.
        notes: What no picture shows, as sentences or words.
    """

    panels: tuple[Panel, ...] = ()
    notes: tuple[str, ...] = ()


def case_drawing(fixture: Fixture) -> Drawing:
    """Return the pictures of a fixture's case; what cannot be drawn is said instead."""
    case = fixture.case
    try:
        signature = parse_signature(fixture.signature)
        backward = (
            parse_backward(fixture.backward_signature, signature)
            if fixture.backward_signature
            else None
        )
        layout = apply_all(transforms_of(case))
        scene = Scene(
            sequences=sequences_of(case, layout),
            watched_count=len(case.sequences),
            mark=_mark(fixture, signature),
        )
        own, other = _titles(fixture)
        # Of sequences that run alone one is enough: that of the first difference.
        wanted = 0 if scene.mark is None or _is_complete(fixture) else scene.mark.sequence
        panels = [_panel(own, scene, canonical_rows(signature, case), wanted, limit=1)]
        if case.against is None:
            made = transformed_rows(signature, case, layout, backward_signature=backward)
            wanted = 0 if scene.mark is None else scene.mark.launch
            panels.append(_panel(other, scene, made, wanted))
    except BipropError as error:
        return Drawing(notes=(f"Not drawn: {error}",))
    return Drawing(panels=tuple(panels), notes=tuple(_notes(fixture, layout, scene.mark)))


def _titles(fixture: Fixture) -> tuple[str, str]:
    own, other = sides_in_words(fixture)
    if fixture.case.against is not None:
        return f"Canonical launch of {own}, held against {other}", ""
    return (
        "Canonical: all sequences, in logical order"
        if _is_complete(fixture)
        else "Canonical: each sequence alone",
        _other_title(fixture),
    )


def _other_title(fixture: Fixture) -> str:
    if fixture.case.transforms:
        return f"Transformed: {transforms_in_words(fixture.case)}"
    again = fixture.expect.verdict is Verdict.NONDETERMINISTIC
    return "The same, run again" if again else "Without a transform"


def _is_complete(fixture: Fixture) -> bool:
    """Whether all sequences share the canonical launch."""
    return fixture.case.judged == "parameter_gradients"


def _mark(fixture: Fixture, signature: Signature) -> Mark | None:
    first = _first(fixture)
    if first is None or first.first.token < 0:
        return None
    ids = [sequence.id for sequence in fixture.case.sequences]
    if first.first.sequence_id not in ids:
        return None
    name = first.output.partition(" ")[0]
    items = (*signature.arguments, *signature.outputs)
    axes = [item.token_axis for item in items if name in {item.name, f"d{item.name}"}]
    return Mark(
        sequence=ids.index(first.first.sequence_id),
        token=first.first.token,
        launch=first.first.transformed_launch,
        axis=next((axis for axis in axes if axis in AXES), _queries_of(signature)),
    )


def _queries_of(signature: Signature) -> str:
    return "TQ" if signature.layout == "packed_query_context" else "Q"


def _first(fixture: Fixture) -> Mismatch | None:
    return next(iter(fixture.expect.mismatches), None)


@attrs.frozen(kw_only=True)
class _Chosen:
    """Launches to be shown.

    Attributes:
        launches: By number.
        marked: Number of the one that holds the first difference.
        count: How many there are, as far as they were counted.
        is_all: Whether they were counted to the end.
    """

    launches: dict[int, LaunchRows]
    marked: int
    count: int
    is_all: bool = True


def _chosen(made: Iterator[LaunchRows], scene: Scene, wanted: int, limit: int) -> _Chosen:
    """Return the first launches, the one of the first difference, and the last.

    In another form of the operator launches are counted otherwise: then the first one that holds
    the token is taken for the one that is wanted.
    """
    found: dict[int, LaunchRows] = {}
    holder: tuple[int, LaunchRows] | None = None
    number = rows = 0
    is_all = True
    for number, launch in enumerate(made):
        rows += sum(len(strip.rows) for strip in launch.strips)
        if number < limit - 1 or number == wanted:
            found[number] = launch
        if holder is None and holds_mark(scene, launch):
            holder = number, launch
        last = launch
        if number + 1 >= _LAUNCHES_MAX or rows >= _ROWS_MAX:
            is_all = False
            break
    if not rows:
        raise CaseError("there is no launch.")
    if holder is not None and not (wanted in found and holds_mark(scene, found[wanted])):
        wanted = holder[0]
        found[wanted] = holder[1]
    if len(found) < limit:
        found[number] = last
    ordered = dict(sorted(found.items()))
    return _Chosen(launches=ordered, marked=wanted, count=number + 1, is_all=is_all)


def _panel(
    title: str, scene: Scene, made: Iterator[LaunchRows], wanted: int, limit: int = _LAUNCHES_SHOWN
) -> Panel:
    """Return the picture of some launches; `wanted` is the one with the first difference."""
    chosen = _chosen(made, scene, wanted, limit)
    rows = [
        row for launch in chosen.launches.values() for strip in launch.strips for row in strip.rows
    ]
    widest = max(sum(run.count for run in row) for row in rows)
    scene = attrs.evolve(scene, unit=min(SLOT_MAX, WIDTH / max(1, widest)))
    parts: list[Markup] = []
    y, before = 2.0, -1
    for number, launch in chosen.launches.items():
        if limit > 1:
            y = _left_out(parts, y, number - before - 1)
        before = number
        if chosen.count > 1:
            more = "" if chosen.is_all else " and more"
            y = draw_heading(parts, y, f"launch {number + 1} of {chosen.count}{more}")
        # A token may be a context of later launches too.
        is_marked = number == chosen.marked
        y = draw_launch(parts, y, launch, attrs.evolve(scene, is_marked=is_marked))
    if limit > 1:
        y = _left_out(parts, y, chosen.count - before - 1)
    first = next(iter(chosen.launches.values()))
    says = f"{title}. {counted(chosen.count, 'launch')}. {in_words(scene, first)}"
    return Panel(title=title, svg=picture(parts, width=LEFT + WIDTH + 2, height=y + 2, says=says))


def _left_out(parts: list[Markup], y: float, count: int) -> float:
    if count <= 0:
        return y
    return draw_heading(parts, y, f"... {counted(count, 'launch')} more")


def _notes(fixture: Fixture, layout: Layout, mark: Mark | None) -> Iterator[str]:
    """Make the sentences on what the pictures leave out."""
    padding, storage = layout.padding, layout.storage
    first = _first(fixture)
    if first is not None and mark is None:
        yield f"The first difference, in {first.output}, belongs to no token, so no slot is marked."
    if padding.amount:
        yield f"Dead slots hold {padding.fill}."
    if padding.dead_rows:
        yield f"Dead rows hold {padding.dead_rows_fill}."
    if layout.neighbours.loudness:
        yield f"Values of neighbours are multiplied by 2^{layout.neighbours.loudness}."
    if fixture.case.shared_prefix:
        yield f"All sequences share their first {counted(fixture.case.shared_prefix, 'token')}."
    moved = [
        (storage.offset, f"{counted(storage.offset, 'element')} past a boundary of 256 bytes"),
        (storage.gap, f"with {counted(storage.gap, 'element')} of NaN between rows"),
        (storage.transposed, "with its last two axes swapped in memory"),
        (storage.dirty, "with a large number in outputs before the launch"),
    ]
    words = [text for is_so, text in moved if is_so]
    if words:
        what = "and parameters lie" if storage.parameters else "lie"
        yield f"In the transformed launch tensors {what} {', '.join(words)}."
    if layout.selection.form:
        yield (
            f"The transformed launch hands the same tokens over in the form "
            f"{layout.selection.form}; they are drawn in the form of the case."
        )
    if layout.shards > 1:
        yield f"The sum is shared by {layout.shards} ranks."
    for claim in fixture.proof.needed:
        if claim.path[:1] == ("transforms",) and claim.others == (None,):
            yield f"Without {place_in_words(fixture.case, claim.path)} it passes."
