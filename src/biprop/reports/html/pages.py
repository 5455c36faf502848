"""A program for a KV cache as a picture: its operations, and what lies in which page after each.

Told from the account of `biprop.kvcache.model`, which shares all that a cache may share: pages of
the cache at fault may lie elsewhere.
"""

from collections.abc import Iterator

import attrs
from markupsafe import Markup

from biprop.fixtures.programs import ProgramFixture
from biprop.kvcache.model import Model
from biprop.kvcache.records import Program
from biprop.kvcache.shape import CacheShape
from biprop.reports.html.drawing import Drawing, Panel
from biprop.reports.html.svg import LETTER_WIDTH, element, gaps, label, picked, picture, rect
from biprop.reports.programs import op_in_words
from biprop.reports.text import counted

__all__ = ["program_drawing"]

_WIDTH = 340
_PAGES_SHOWN = 10
_PAGE_GAP = 4
_SLOT_MAX = 16.0
_ROW = 15
_HEADING = 18
_OPS_SHOWN = 24
# Programs are read with as many bounds; what one step holds is drawn for each of them.
_OPS_MAX = 2_000
_COLOURS = 6


@attrs.frozen(kw_only=True)
class _Step:
    """What lies where after an operation.

    Attributes:
        text: The operation.
        pages: By sequence, its pages in order.
        owners: By page, the sequences in it, and how many of its slots hold tokens.
        reused: Pages that held other tokens before those they hold.
        given_up: Pages that held tokens and hold none.
        is_legal: Whether the operation was run.
    """

    text: str
    pages: dict[str, tuple[int, ...]]
    owners: dict[int, tuple[tuple[str, ...], int]]
    reused: frozenset[int]
    given_up: frozenset[int]
    is_legal: bool


@attrs.frozen(kw_only=True)
class _Scene:
    """What the parts of the picture share.

    Attributes:
        shape: Of the cache.
        pages: How many are ever used.
        colours: By sequence, a number.
        mark: Operation, sequence and token of the first difference; None where there is none.
    """

    shape: CacheShape
    pages: int
    colours: dict[str, int]
    mark: tuple[int, str, int] | None

    @property
    def page_width(self) -> float:
        """Width of a page."""
        shown = max(1, min(self.pages, _PAGES_SHOWN))
        room = (_WIDTH - 2 - shown * _PAGE_GAP) / shown
        return min(room, self.shape.block_size * _SLOT_MAX)

    @property
    def unit(self) -> float:
        """Width of a slot."""
        return self.page_width / self.shape.block_size


def program_drawing(fixture: ProgramFixture) -> Drawing:
    """Return the picture of a fixture's program."""
    program, expect = fixture.program, fixture.expect
    if len(program.ops) > _OPS_MAX:
        return Drawing(notes=(f"Not drawn: {len(program.ops)} operations are too many.",))
    steps = list(_steps(program))
    used = {page for step in steps for page in step.owners}
    names = dict.fromkeys(
        name for step in steps for owners, _ in step.owners.values() for name in owners
    )
    difference = expect.difference
    mark = None
    if difference is not None and expect.step is not None and difference.sequence:
        mark = (expect.step, difference.sequence, difference.token)
    scene = _Scene(
        shape=program.shape,
        pages=max(used, default=-1) + 1,
        colours={name: number % _COLOURS for number, name in enumerate(names)},
        mark=mark,
    )
    svg = _drawn(steps, scene, -1 if expect.step is None else expect.step)
    notes = [
        (
            f"Pages of {counted(program.shape.block_size, 'token')}, as an account tells them; "
            "the cache itself may lay them elsewhere."
        )
    ]
    if scene.pages > _PAGES_SHOWN:
        notes.append(f"{scene.pages} pages are used, the first {_PAGES_SHOWN} are drawn.")
    if fixture.proof.complete:
        notes.append("Without any one of these operations it passes.")
    return Drawing(
        panels=(Panel(title="Operations, and pages after each", svg=svg),), notes=tuple(notes)
    )


def _steps(program: Program) -> Iterator[_Step]:
    model = Model(program.shape, vocabulary=program.vocabulary)
    ever: set[int] = set()
    reused: set[int] = set()
    before: dict[int, tuple[tuple[str, ...], int]] = {}
    for op in program.ops:
        pages = _pages_of(model)
        is_legal = model.apply(op)
        owners = _owners(model)
        if type(op).__name__ == "Defragment":
            # What moves takes along that its page was used before.
            moved = {
                old: new
                for name, state in model.sequences.items()
                for old, new in zip(pages[name], state.pages, strict=True)
            }
            reused = {moved[page] for page in reused if page in moved}
        else:
            taken = owners.keys() - before.keys()
            reused = (reused & owners.keys()) | (taken & ever)
        ever |= owners.keys()
        yield _Step(
            text=op_in_words(op),
            pages=_pages_of(model),
            owners=owners,
            reused=frozenset(reused),
            given_up=frozenset(ever - owners.keys()),
            is_legal=is_legal,
        )
        before = owners


def _pages_of(model: Model) -> dict[str, tuple[int, ...]]:
    return {name: state.pages for name, state in model.sequences.items()}


def _owners(model: Model) -> dict[int, tuple[tuple[str, ...], int]]:
    found: dict[int, tuple[tuple[str, ...], int]] = {}
    size = model.shape.block_size
    for name, state in model.sequences.items():
        for place, page in enumerate(state.pages):
            names, filled = found.get(page, ((), 0))
            held = min(size, state.stored - place * size)
            found[page] = ((*names, name), max(filled, held))
    return found


def _drawn(steps: list[_Step], scene: _Scene, shown_by: int) -> Markup:
    parts: list[Markup] = []
    y = 2.0
    chosen = picked(len(steps), [shown_by, shown_by - 1], _OPS_SHOWN)
    for number, missing in gaps(chosen, len(steps)):
        if missing:
            parts.append(label(0, y + 13, f"... {counted(missing, 'operation')} more", "heading"))
            y += _HEADING
        step, is_shown = steps[number], number == shown_by
        passed = "" if step.is_legal else " (passed over)"
        text = f"{number + 1}. {step.text}{passed}"
        room = int((_WIDTH - 12) / LETTER_WIDTH)
        if len(text) > room:
            text = text[: room - 3] + "..."
        if is_shown:
            parts.append(element("path", d=f"M0 {y + 4:.2f}v10l8 -5z", class_="pin"))
        parts.append(label(11, y + 13, text, "op shown" if is_shown else "op"))
        y += _HEADING
        if step.owners or step.given_up:
            _pages(parts, y, step, number, scene)
            y += _ROW + 7
    says = "Operations in their order: " + "; ".join(step.text for step in steps[:_OPS_SHOWN])
    if 0 <= shown_by < len(steps):
        says += f". The difference is shown by operation {shown_by + 1}."
    return picture(parts, width=_WIDTH, height=y + 2, says=says)


def _pages(parts: list[Markup], y: float, step: _Step, number: int, scene: _Scene) -> None:
    for page in range(min(scene.pages, _PAGES_SHOWN)):
        x = 1 + page * (scene.page_width + _PAGE_GAP)
        owners = step.owners.get(page)
        kind = "page given" if page in step.given_up else "page"
        title = element("title", _page_in_words(page, step))
        parts.append(rect(x, y, scene.page_width, _ROW, kind, title))
        if owners is not None:
            names, filled = owners
            colour = scene.colours[names[0]]
            parts.append(rect(x, y, filled * scene.unit, _ROW, f"seq seq{colour}", title))
            if page in step.reused:
                parts.append(rect(x, y + _ROW - 3, filled * scene.unit, 3, "reused"))
            text = "+".join(names)
            fits = [
                word
                for word in (text, names[0])
                if len(word) * LETTER_WIDTH + 3 <= scene.page_width
            ]
            if fits:
                parts.append(label(x + 3, y + 11, fits[0], "name plain"))
        if scene.unit >= 5 and scene.shape.block_size > 1:
            path = "".join(
                f"M{x + at * scene.unit:.2f} {y:.2f}v{_ROW}"
                for at in range(1, scene.shape.block_size)
            )
            parts.append(element("path", d=path, class_="line"))
    parts += _marked(y, step, number, scene)


def _marked(y: float, step: _Step, number: int, scene: _Scene) -> Iterator[Markup]:
    """Make the frame around the slot of the first difference, where it is drawn."""
    if scene.mark is None or scene.mark[0] != number:
        return
    _, name, token = scene.mark
    place, slot = divmod(token, scene.shape.block_size)
    own = step.pages.get(name, ())
    if 0 <= place < len(own) and own[place] < _PAGES_SHOWN:
        x = 1 + own[place] * (scene.page_width + _PAGE_GAP) + slot * scene.unit
        title = element("title", "first difference")
        yield rect(x, y, max(2.0, scene.unit), _ROW, "marked", title)


def _page_in_words(page: int, step: _Step) -> str:
    owners = step.owners.get(page)
    if owners is None:
        return f"page {page}: {'given up, not cleared' if page in step.given_up else 'never used'}"
    names, filled = owners
    words = f"page {page}: {counted(filled, 'token')} of {' and '.join(names)}"
    return words + (", used before" if page in step.reused else "")
