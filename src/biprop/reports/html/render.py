"""The page: one file that asks for nothing else, whatever the store held.

The text stands in `page.html.j2`, its looks in `style.css.j2`, the buttons in `script.js.j2`. Each
value is escaped where it is written; the page's policy allows the one style sheet and the one
script by their digests, and no request at all.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs
import jinja2
from markupsafe import Markup

from biprop.fixtures.programs import AnyFixture, ProgramFixture
from biprop.provenance import Provenance
from biprop.reports.html.charts import duration, moment, timeline_of
from biprop.reports.html.drawing import Drawing, case_drawing
from biprop.reports.html.pages import program_drawing
from biprop.reports.html.records import UNTRIED, Cell, FoundCause, Page
from biprop.reports.html.svg import shown
from biprop.reports.issue import render_issue
from biprop.reports.programs import render_program_fixture, render_program_issue
from biprop.reports.records import CauseKind
from biprop.reports.suite import NOT_CLAIMED
from biprop.reports.text import counted, render_fixture

__all__ = ["render_page"]

_VIOLATIONS = ("DRIFTS", "NONDETERMINISTIC", "INACCURATE", "CRASHES", "FALLBACK")
# Of a cell that could not be searched, which is no violation.
_ERROR = "ERROR"
_DTYPES = ("fp32", "bf16", "fp16")
_HOLDS, _VACUOUS = "HOLDS", "VACUOUS"
# In the order of the page.
_KINDS: dict[CauseKind, str] = {
    "finding": "new",
    "known": "known",
    "fixed": "fixed",
    "held": "not reproduced",
}
_TABLES = ("first", "launch")
_LINES_MAX = 8
# What asks for something to be done comes first.
_STATES = ("stale", "known", "unseen")
_INTERPRETER = "triton-interpreter"
# So many findings lie open when the page is opened.
_OPEN_MAX = 5
# From so many on there is a field to find one by a word.
_FILTER_MIN = 8
_CAVEATS = (
    NOT_CLAIMED,
    (
        "HOLDS speaks of the cases that were drawn: none of them differed, and enough of them "
        "had power. It is evidence, not a proof for all inputs."
    ),
    (
        "Power is the share of compared elements whose bits another order of summation, or a "
        "misread row, would have changed. An example without power could have shown nothing."
    ),
    (
        "Bits are compared with bits of the same kernel on the same device; accuracy is judged "
        "of declared operators alone, within the tolerance of the contract."
    ),
)


@attrs.frozen(kw_only=True)
class _Card:
    """One finding, as it is shown.

    Attributes:
        cause: The finding.
        title: Its headline.
        facts: Names, and their lines.
        drawing: Its pictures.
        command: What replays it.
        issue: The block to paste.
    """

    cause: FoundCause
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    drawing: Drawing = attrs.field(factory=Drawing)
    command: str = ""
    issue: str = ""


@attrs.frozen(kw_only=True)
class _Matrix:
    """Cells as a table.

    Attributes:
        title: What they are.
        columns: Dtypes and directions.
        rows: Operator and form, backend, what ran, and a cell a column or None.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, str, tuple[Cell | None, ...]], ...]


def render_page(page: Page) -> str:
    """Return the HTML of a report."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("biprop.reports.html", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        shown=shown,
        moment=moment,
        duration=duration,
        tone=_tone,
        number=_number,
    )
    # The package's own files, with nothing of a store in them.
    style, script = (
        Markup(environment.get_template(name).render())  # noqa: S704
        for name in ("style.css.j2", "script.js.j2")
    )
    order = {cell.id: cell.chain_index for cell in page.cells}
    cards = [_card(cause) for cause in sorted(page.causes, key=lambda cause: _rank(cause, order))]
    names = {card.cause.digest: f"finding-{number}" for number, card in enumerate(cards, 1)}
    return environment.get_template("page.html.j2").render(
        page=page,
        policy=_policy(style, script),
        style=style,
        script=script,
        matrices=_matrices(page.cells),
        cards=cards,
        names=names,
        places={cell.id: f"cell-{number}" for number, cell in enumerate(page.cells, 1)},
        untried=UNTRIED,
        totals=_totals(page),
        headline=_headline(page),
        timeline=timeline_of(page),
        unproven=_unproven(page),
        ledger=sorted(page.ledger, key=lambda entry: _STATES.index(entry.state)),
        is_ledger_unread=any("ledger.json" in warning for warning in page.warnings),
        is_open=len(cards) <= _OPEN_MAX,
        has_filter=len(cards) >= _FILTER_MIN,
        fields=list(attrs.fields_dict(Provenance)),
    )


def _policy(style: str, script: str) -> str:
    """Return the policy: this style sheet and this script, and no request."""
    digests = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    return (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _rank(cause: FoundCause, order: Mapping[str, int | None]) -> tuple[int, int, int, str]:
    """Sort what is new first, then by place in the chain, then what was seen most."""
    place = order.get(cause.cell)
    return (
        list(_KINDS).index(cause.kind),
        1 << 30 if place is None else place,
        -cause.count,
        cause.digest,
    )


def _card(cause: FoundCause) -> _Card:
    fixture = cause.fixture
    if fixture is None:
        return _Card(cause=cause, title=f"{cause.cell} {cause.key}")
    lines, issue, drawing = _told(fixture, cause.path)
    return _Card(
        cause=cause,
        title=lines[0].removeprefix(f"{cause.verdict} "),
        facts=tuple(_facts(_summary_of(issue))),
        drawing=drawing,
        command=lines[-1],
        issue=issue,
    )


def _told(fixture: AnyFixture, path: str) -> tuple[list[str], str, Drawing]:
    """Return a fixture in words, as an issue, and drawn."""
    source = path or fixture.id[:8]
    if isinstance(fixture, ProgramFixture):
        text = render_program_fixture(fixture, source=source)
        return text.splitlines(), render_program_issue(fixture), program_drawing(fixture)
    text = render_fixture(fixture, source=source)
    return text.splitlines(), render_issue(fixture), case_drawing(fixture)


def _summary_of(issue: str) -> list[str]:
    """Return the lines of the first fenced block of an issue, which says all and cuts little."""
    lines = issue.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("```"))
    fence = lines[begin].rstrip("abcdefghijklmnopqrstuvwxyz")
    return lines[begin + 1 : lines.index(fence, begin + 1)]


def _facts(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return names and texts of the lines of a report.

    A line without a name goes on with the one before, and lines of one name are told together.
    """
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        # As `biprop.reports.text.line_of` writes them.
        name, text = line[2:13].strip(), line[13:]
        if found and name in {"", found[-1][0]}:
            found[-1][1].append(text)
        else:
            found.append((name, [text]))
    # Bits stand below each other, as launches do; other texts were wrapped for a terminal.
    return [
        (name, "\n".join(_first_of(texts)) if name in _TABLES else " ".join(texts))
        for name, texts in found
    ]


def _first_of(texts: Sequence[str]) -> list[str]:
    more = len(texts) - _LINES_MAX
    return [*texts[:_LINES_MAX], *([f"and {more} more"] if more > 0 else [])]


def _matrices(cells: Sequence[Cell]) -> list[_Matrix]:
    """Return the table of operators, and that of caches, which have no direction."""
    kinds = {
        "Operators": [cell for cell in cells if not cell.is_cache],
        "Caches": [cell for cell in cells if cell.is_cache],
    }
    return [_matrix(title, found) for title, found in kinds.items() if found]


def _matrix(title: str, cells: Sequence[Cell]) -> _Matrix:
    columns = tuple(sorted({cell.column for cell in cells}, key=_column_rank))
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.row, cell.backend), {})[cell.column] = cell
    return _Matrix(
        title=title,
        columns=columns,
        rows=tuple(
            (
                row,
                backend,
                ", ".join(dict.fromkeys(cell.ran for cell in found.values() if cell.ran)),
                tuple(found.get(column) for column in columns),
            )
            for (row, backend), found in rows.items()
        ),
    )


def _column_rank(column: str) -> tuple[int, str, bool]:
    """Sort by dtype, as the contract does, and forward before backward."""
    dtype, _, direction = column.partition(" ")
    place = _DTYPES.index(dtype) if dtype in _DTYPES else len(_DTYPES)
    return place, dtype, direction != "forward"


def _totals(page: Page) -> list[tuple[str, str, str]]:
    """Return names, figures and remarks; counts are sums over the cells."""
    cells = page.cells
    words = [cell.verdict for cell in cells]
    kinds = Counter(cause.kind for cause in page.causes)
    seconds = sum(cell.seconds for cell in cells)
    known = [cell for cell in cells if cell.seconds_in_kernels is not None]
    share = sum(cell.seconds_in_kernels or 0.0 for cell in known) / (
        sum(cell.seconds_known for cell in known) or 1.0
    )
    stale = sum(entry.state == "stale" for entry in page.ledger)
    examples = sum(cell.examples for cell in cells)
    return [
        ("Cells that hold", f"{words.count(_HOLDS)} of {len(cells)}", ""),
        ("Cells violated", str(sum(word in _VIOLATIONS for word in words)), ""),
        (
            "Cells without enough evidence",
            str(sum(word not in {*_VIOLATIONS, _HOLDS, _ERROR} for word in words)),
            f"{words.count(UNTRIED)} of them had no turn" if UNTRIED in words else "",
        ),
        *([("Cells with an error", str(words.count(_ERROR)), "")] if _ERROR in words else []),
        (
            "Distinct causes",
            str(len(page.causes)),
            ", ".join(
                f"{kinds[kind]} {word}"
                for kind, word in _KINDS.items()
                if kinds[kind] or kind in {"finding", "known"}
            ),
        ),
        (
            "Examples",
            _number(examples),
            f"{_number(sum(cell.launches for cell in cells))} launches",
        ),
        ("Compared", _number(sum(cell.compared for cell in cells)), "sequences and tensors"),
        (
            "Time of workers",
            duration(seconds),
            f"{share:.0%} in kernels and comparison" if known else "",
        ),
        ("Stale ledger entries", str(stale), "take them out" if stale else ""),
    ]


def _headline(page: Page) -> str:
    """Return the one sentence that the page amounts to."""
    new = sum(cause.kind == "finding" for cause in page.causes)
    violated = sum(cell.verdict in _VIOLATIONS for cell in page.cells)
    if new:
        return (
            f"{counted(new, 'distinct cause')} that nobody knew of, "
            f"and {counted(violated, 'cell')} of {len(page.cells)} violated."
        )
    if page.causes:
        return "Every cause that was found is known, or fixed, or was not seen again."
    lacking = sum(cell.verdict != _HOLDS for cell in page.cells)
    if not page.cells:
        return "The store holds no cell yet."
    if lacking:
        return f"No violation was found; {counted(lacking, 'cell')} did not show enough to hold."
    return "Every cell holds."


def _unproven(page: Page) -> list[str]:
    """Return what all green on this page does not prove."""
    interpreted = sum(cell.ran == _INTERPRETER for cell in page.cells)
    words = [cell.verdict for cell in page.cells]
    known = [cause for cause in page.causes if cause.kind == "known"]
    found = list(_CAVEATS)
    if interpreted:
        found.append(
            f"{counted(interpreted, 'cell')} ran in Triton's interpreter, which certifies the "
            "interpreter, and no GPU."
        )
    if page.environments:
        names = sorted({item.provenance.arch_key or "unknown" for item in page.environments})
        found.append(f"Other devices than {shown(', '.join(names))} may behave otherwise.")
    if _VACUOUS in words or UNTRIED in words:
        found.append(
            f"{counted(words.count(_VACUOUS), 'cell')} lack evidence, and "
            f"{counted(words.count(UNTRIED), 'cell')} had no turn: they prove nothing."
        )
    if known:
        found.append(f"{counted(len(known), 'known cause')} of the ledger still stand.")
    return found


def _tone(word: str) -> str:
    """Return the class of a verdict's looks; its word is always written beside it."""
    if word in {*_VIOLATIONS, _ERROR}:
        return "bad"
    if word == _HOLDS:
        return "good"
    return "warn" if word == _VACUOUS else "none"


def _number(value: int) -> str:
    return f"{value:,}"
