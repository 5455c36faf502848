"""Launches drawn slot by slot: runs as rectangles, the first difference marked.

Which launches are shown, and what is said beside them, is the part of
`biprop.reports.html.drawing`.
"""

from collections.abc import Iterator, Sequence

import attrs
from markupsafe import Markup

from biprop.reports.html.rows import DEAD_ROW, LaunchRows, Run, Strip
from biprop.reports.html.svg import LETTER_WIDTH, element, gaps, label, picked, rect
from biprop.reports.text import counted
from biprop.sequence import LogicalSequence

__all__ = [
    "AXES",
    "LEFT",
    "SLOT_MAX",
    "WIDTH",
    "Mark",
    "Scene",
    "draw_heading",
    "draw_launch",
    "holds_mark",
    "in_words",
]

# Axes that have a heading, as a launch has two of them.
AXES = {"Q": "queries", "TQ": "queries", "C": "contexts", "TC": "contexts"}
# Where slots begin, and how much room they have: together as wide as a phone.
LEFT = 58
WIDTH = 280
SLOT_MAX = 22.0
_ROW = 17
# Above a row: room for the mark.
_ABOVE = 9
_HEADING = 19
_ROWS_SHOWN = 10
# Slots as narrow as this have no line between them.
_LINE_MIN = 5.0
_BLOCK_MIN = 2.0


@attrs.frozen(kw_only=True)
class Mark:
    """Where the first difference lies.

    Attributes:
        sequence: Index among the sequences.
        token: Of it.
        launch: Of the transformed configuration.
        axis: Which strip has it, where there are several.
    """

    sequence: int
    token: int
    launch: int
    axis: str

    def is_in(self, run: Run) -> bool:
        """Whether a run holds it."""
        return run.sequence == self.sequence and run.first <= self.token < run.first + run.count


@attrs.frozen(kw_only=True)
class Scene:
    """What the parts of one picture share.

    Attributes:
        sequences: Watched ones, then neighbours.
        watched_count: How many are watched.
        mark: None where nothing can be marked.
        unit: Width of a slot.
        is_marked: Whether the mark lies in the part that is drawn.
    """

    sequences: tuple[LogicalSequence, ...]
    watched_count: int
    mark: Mark | None
    unit: float = 1.0
    is_marked: bool = True

    def marks(self, run: Run) -> bool:
        """Whether a run holds the first difference."""
        return self.is_marked and self.mark is not None and self.mark.is_in(run)


def holds_mark(scene: Scene, launch: LaunchRows) -> bool:
    """Whether the first difference may lie in a launch, and not merely be a context of it."""
    return any(
        scene.marks(run)
        for strip in launch.strips
        if _has_mark(scene, launch, strip)
        for row in strip.rows
        for run in row
    )


def _has_mark(scene: Scene, launch: LaunchRows, strip: Strip) -> bool:
    return len(launch.strips) == 1 or (scene.mark is not None and strip.axis == scene.mark.axis)


def draw_heading(parts: list[Markup], y: float, text: str) -> float:
    """Add a line of words at `y`, and return where the next part begins."""
    parts.append(label(0, y + 13, text, "heading"))
    return y + _HEADING


def draw_launch(parts: list[Markup], y: float, launch: LaunchRows, scene: Scene) -> float:
    """Add a launch at `y`, and return where the next part begins."""
    for strip in launch.strips:
        is_marked = scene.is_marked and _has_mark(scene, launch, strip)
        y = _strip(parts, y, strip, attrs.evolve(scene, is_marked=is_marked))
    if launch.empty_segments:
        y = draw_heading(parts, y, f"and {counted(launch.empty_segments, 'empty segment')}")
    return y


def _strip(parts: list[Markup], y: float, strip: Strip, scene: Scene) -> float:
    if strip.axis in AXES:
        y = draw_heading(parts, y, AXES[strip.axis])
    wanted = [number for number, row in enumerate(strip.rows) if any(map(scene.marks, row))]
    chosen = picked(len(strip.rows), wanted, _ROWS_SHOWN)
    for number, missing in gaps(chosen, len(strip.rows)):
        if missing:
            y = draw_heading(parts, y, f"... {counted(missing, 'row')} more")
        name = "tokens" if strip.axis in {"T", "TQ", "TC"} else f"row {number}"
        y += _ABOVE
        parts.append(label(0, y + 12, name, "axis"))
        _row(parts, y, strip.rows[number], scene)
        y += _ROW
    return y


def _row(parts: list[Markup], y: float, row: Sequence[Run], scene: Scene) -> None:
    x, unit = float(LEFT), scene.unit
    marks: list[Markup] = []
    # Runs too narrow to be seen are drawn as one.
    narrow = 0
    for run in row:
        if scene.mark is not None and scene.marks(run):
            at = x + (narrow + scene.mark.token - run.first) * unit
            marks += _pin(at, y, max(unit, _BLOCK_MIN))
        if (narrow + run.count) * unit < _BLOCK_MIN:
            narrow += run.count
            continue
        if narrow:
            parts.append(rect(x, y, narrow * unit, _ROW - 1, "many"))
            x, narrow = x + narrow * unit, 0
        parts += _run(x, y, run, scene)
        x += run.count * unit
    if narrow:
        parts.append(rect(x, y, max(1.0, narrow * unit), _ROW - 1, "many"))
    parts += marks


def _run(x: float, y: float, run: Run, scene: Scene) -> Iterator[Markup]:
    """Make the rectangles of a run: prompt and active tokens apart, slots by lines, its name."""
    unit, width = scene.unit, run.count * scene.unit
    if run.sequence < 0:
        kind = "deadrow" if run.sequence == DEAD_ROW else "dead"
        yield rect(x, y, width, _ROW - 1, kind, _title(f"{counted(run.count, 'dead slot')}"))
        yield from _lines(x, y, run.count, unit)
        return
    sequence = scene.sequences[run.sequence]
    is_watched = run.sequence < scene.watched_count
    prompt = min(max(0, sequence.prompt_length - run.first), run.count) if is_watched else 0
    title = _title(f"{_name(run, scene)}, tokens {run.first} to {run.first + run.count - 1}")
    if prompt:
        yield rect(x, y, prompt * unit, _ROW - 1, "prompt", title)
    if prompt < run.count:
        is_needle = scene.mark is not None and scene.mark.sequence == run.sequence
        kind = ("needle" if is_needle else "watched") if is_watched else "other"
        yield rect(x + prompt * unit, y, (run.count - prompt) * unit, _ROW - 1, kind, title)
    yield from _lines(x, y, run.count, unit)
    name = _name(run, scene)
    partial = f"{name}[{run.first}:{run.first + run.count}]"
    is_whole = run.count == sequence.length
    for text in (name,) if is_whole else (partial, name):
        if len(text) * LETTER_WIDTH + 3 <= width:
            is_needle = scene.mark is not None and scene.mark.sequence == run.sequence
            yield label(x + 3, y + 12, text, "name" if is_needle and not prompt else "name plain")
            break


def _title(text: str) -> Markup:
    return element("title", text)


def _name(run: Run, scene: Scene) -> str:
    """Return the short name of a sequence: `s` and its id, or `n` and its number."""
    if run.sequence < scene.watched_count:
        return f"s{scene.sequences[run.sequence].id}"
    return f"n{run.sequence - scene.watched_count}"


def _lines(x: float, y: float, count: int, unit: float) -> Iterator[Markup]:
    """Make the lines between slots, where they are wide enough."""
    if unit >= _LINE_MIN and count > 1:
        path = "".join(f"M{x + at * unit:.2f} {y:.2f}v{_ROW - 1}" for at in range(1, count))
        yield element("path", d=path, class_="line")


def _pin(x: float, y: float, width: float) -> list[Markup]:
    """Return the mark of the first difference: a pointed pin above a framed slot."""
    middle = x + width / 2
    return [
        element("path", d=f"M{middle:.2f} {y - 1:.2f}l-4 -7h8z", class_="pin"),
        rect(x, y, width, _ROW - 1, "marked", _title("first difference")),
    ]


def in_words(scene: Scene, launch: LaunchRows) -> str:
    """Return the rows of a launch for who does not see them: `row 0: s0 3, dead 2`."""
    strip = launch.strips[0]
    rows = []
    for number, row in enumerate(strip.rows[:4]):
        runs = ", ".join(
            f"{'dead' if run.sequence < 0 else _name(run, scene)} {run.count}" for run in row[:6]
        )
        rows.append(f"row {number}: {runs}{', ...' if len(row) > 6 else ''}")
    more = len(strip.rows) - len(rows)
    return "Slots of the first launch: " + "; ".join(rows) + (f"; {more} more" if more else "")
