"""The page of HTML: its pictures, its figures, and what strangers may have put into a store."""

import re
import typing
from collections import Counter
from html.parser import HTMLParser
from types import NoneType, UnionType
from typing import Any

import attrs
import pytest
from tests.unit.cache_samples import sample_program
from tests.unit.sample_fixtures import CASE, DRIFT, LINEAR, sample

from biprop.case import Case, TransformData
from biprop.fixtures.programs import AnyFixture, any_fixtures_in
from biprop.generation.draw import RandomDraw
from biprop.generation.generator import draw_case
from biprop.generation.space import Space
from biprop.layout.launches import Launch, canonical_launches, launches
from biprop.layout.pool import TokenPool, token_pool
from biprop.layout.records import CANONICAL
from biprop.operators import InvarianceDeclaration, KernelReference
from biprop.provenance import Provenance
from biprop.reports.html.charts import Timeline, duration, moment, timeline_of
from biprop.reports.html.drawing import case_drawing
from biprop.reports.html.pages import program_drawing
from biprop.reports.html.records import (
    CampaignRow,
    Cell,
    Environment,
    FoundCause,
    KnownEntry,
    Page,
    Span,
)
from biprop.reports.html.render import render_page
from biprop.reports.html.rows import LaunchRows, Run, canonical_rows, transformed_rows
from biprop.reports.html.slots import LEFT, SLOT_MAX, WIDTH
from biprop.reports.html.svg import element, label
from biprop.reports.records import ClassCount
from biprop.sequence import LogicalSequence
from biprop.signature import parse_backward, parse_signature
from biprop.transforms import (
    AddNeighbours,
    PadSlots,
    SplitBatch,
    Transform,
    apply_all,
    transform_to_data,
    transforms_of,
)

HOSTILE = "</script><img src=x onerror=alert(1)>\"' onload='x' &amp; <b>\u202e"
SIGNATURES = {
    "tokens": "x[T,H], weight[H] -> y[T,H]",
    "offsets": "x[T,H], o: offsets[B+1], at: order[T] -> y[T,H]",
    "rows": "x[B,S,H], m: mask[B,S], weight[H] -> y[B,S,H]",
    "masked": "q[B,Q,H], k[B,C,H], m: causal_mask[B,Q,C] -> y[B,Q,H]",
    "packed": "q[TQ,H], k[TC,H], o: offsets(Q)[B+1], p: offsets(C)[B+1] -> y[TQ,H]",
    "decoded": "q[B,H,1,D], k[B,H,C,D] -> y[B,H,1,D]",
    "registered": "x[T,H], weight[H] -> y[T,H]",
}
# Of `registered`: it is told where sequences end, so that launches are cut between them.
BACKWARD = (
    "dy[T,H], x[T,H], weight[H], o: offsets[B+1], at: order[T], dweight!: float32[H] -> dx[T,H]"
)
DECLARED = InvarianceDeclaration(
    transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"),
    parameter_gradients=("T2", "T4", "T5", "T6", "T8"),
)


class Reader(HTMLParser):
    """Elements of a page, as a browser sees them.

    Attributes:
        elements: Names and attributes, in order.
        texts: By name of the element, what stands right in it.
    """

    def __init__(self, page: str) -> None:
        """Read a page."""
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in {"meta", "br", "input"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Check that elements are closed as they were opened."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep a text."""
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of all elements of a name."""
        return [found for name, found in self.elements if name == tag]


def cause_of(fixture: AnyFixture, number: int = 0, **fields: object) -> FoundCause:
    """Return a cause of a fixture."""
    found = FoundCause(
        digest=f"{number:016x}",
        cell="linear-target-float32-forward",
        verdict=fixture.expect.verdict,
        fixture=fixture,
        path=f"store/findings/{fixture.id}.json",
        first_seen=1000.0 + number,
        last_seen=2000.0,
    )
    return attrs.evolve(found, **fields)  # type: ignore[arg-type]  # as the tests say


def page_of(count: int) -> Page:
    """Return a page with so many findings."""
    fixtures = [sample(case=attrs.evolve(CASE, seed=seed)) for seed in range(count)]
    causes = tuple(cause_of(fixture, number) for number, fixture in enumerate(fixtures))
    known = KnownEntry(
        cause="0" * 16,
        link="https://example.org/1",
        reason="It is.",
        state="stale",
        digests=tuple(cause.digest for cause in causes[:1]),
    )
    return Page(
        store="store",
        made=3000.0,
        cells=(
            Cell(
                id="linear-target-float32-forward",
                row="linear",
                backend="target",
                column="fp32 forward",
                verdict="DRIFTS" if count else "HOLDS",
                epochs=2,
                examples=1234,
                power_kind="order",
                power_share=0.25,
                classes={"T1": ClassCount(examples=9, powered=7), "T7": ClassCount(reason="No.")},
                findings=tuple(cause.digest for cause in causes),
            ),
            Cell(id="paged-NHD", row="paged/NHD", backend="torch", column="bf16", is_cache=True),
        ),
        causes=causes,
        ledger=(known,) if count else (),
        campaigns=(CampaignRow(id="c1", host="h", began=1000.0, ended=1100.0),),
        environments=(Environment(campaigns=("c1",), provenance=Provenance(device="cpu")),),
        spans=(Span(began=1000.0, seconds=100.0, examples=1234, compared=99, behaviours=3),),
    )


def hostile(record: Any) -> Any:  # noqa: ANN401  # a record of any kind, and the same kind
    """Return a record with markup in all of its texts, those that are one of few words aside."""
    if isinstance(record, str):
        return HOSTILE
    if isinstance(record, tuple):
        return tuple(map(hostile, record))
    if isinstance(record, dict):
        return {hostile(key): hostile(value) for key, value in record.items()}
    if not attrs.has(type(record)):
        return record
    hints = typing.get_type_hints(type(record))
    fields = {
        field.name: hostile(getattr(record, field.name))
        for field in attrs.fields(type(record))
        if field.name != "fixture" and _is_free(hints[field.name])
    }
    return attrs.evolve(record, **fields)


def _is_free(hint: object) -> bool:
    """Return whether a field may hold any text."""
    if isinstance(hint, UnionType):
        return all(_is_free(part) for part in typing.get_args(hint) if part is not NoneType)
    return typing.get_origin(hint) is not typing.Literal


def with_transforms(*transforms: Transform, **fields: object) -> Case:
    """Return the case of the sample under other transforms."""
    data: tuple[TransformData, ...] = tuple(map(transform_to_data, transforms))
    return attrs.evolve(CASE, transforms=data, **fields)  # type: ignore[arg-type]  # as the tests say


def runs_of(launch: Launch, pool: TokenPool) -> list[list[tuple[int, int]]]:
    """Return the sequence and token in each slot of each row; dead slots have token 0."""
    found = []
    for axis, slots in launch.maps.items():
        if axis != "B":
            found += [
                [
                    (int(pool.sequence_of[slot]), int(pool.token[slot])) if slot >= 0 else (slot, 0)
                    for slot in row
                ]
                for row in slots.reshape(-1, slots.shape[-1]).tolist()
            ]
    return found


def slots_of(launch: LaunchRows) -> list[list[tuple[int, int]]]:
    """Return the same of what is drawn."""

    def tokens(run: Run) -> list[tuple[int, int]]:
        step = run.sequence >= 0
        return [(run.sequence, run.first + at * step) for at in range(run.count)]

    rows = [row for strip in launch.strips for row in strip.rows]
    return [[token for run in row for token in tokens(run)] for row in rows]


class TestPictures:
    """What is drawn is what was launched."""

    @pytest.mark.parametrize("direction", ["forward", "backward"])
    @pytest.mark.parametrize("name", SIGNATURES)
    def test_rows_are_those_of_the_launches(self, name: str, direction: str) -> None:
        """Drawn slots hold the tokens that the index maps of the launches name."""
        signature = parse_signature(SIGNATURES[name])
        space = Space(signature=signature, direction=direction)  # type: ignore[arg-type]  # as listed
        if name == "registered":
            backward = parse_backward(BACKWARD, signature)
            space = attrs.evolve(
                space, backward_signature=backward, registered=True, declaration=DECLARED
            )
        own = space.backward_signature
        seen: set[str] = set()
        for seed in range(25):
            case = draw_case(RandomDraw(seed), space)
            layout = apply_all(transforms_of(case))
            pool = token_pool(case, layout)
            if len(pool.token) > 500:
                continue
            made = launches(signature, pool, case, layout, backward_signature=own)
            alone = canonical_launches(signature, token_pool(case, CANONICAL), case)
            drawn = list(transformed_rows(signature, case, layout, backward_signature=own))
            seen |= {data.name for data in case.transforms}

            assert list(map(slots_of, drawn)) == [runs_of(launch, pool) for launch in made]
            assert list(map(slots_of, canonical_rows(signature, case))) == [
                runs_of(launch, pool) for launch in alone
            ]
            if "T" in made[0].maps or "TQ" in made[0].maps:
                assert [launch.empty_segments for launch in drawn] == [
                    sum(index < 0 for index in launch.sequences) for launch in made
                ]
        # What a signature cannot take aside, every kind of transform was drawn.
        assert len(seen) >= 6

    def test_first_difference_is_marked_on_both_sides(self) -> None:
        """Each side frames one slot: that of the token, behind the dead ones to its left."""
        case = with_transforms(AddNeighbours(count=1), PadSlots(side="left", amount=3))
        own, other = case_drawing(sample(case=case)).panels
        marked = re.compile(r'<rect x="([\d.]+)"[^>]*class="marked"')
        places = [marked.findall(panel.svg) for panel in (own, other)]

        assert places == [[str(LEFT)], [f"{LEFT + 3 * SLOT_MAX:g}"]]
        assert other.svg.count('class="other"') == other.svg.count('class="dead"') == 1
        assert "first difference" in other.svg

    def test_large_launches_stay_small(self) -> None:
        """A launch of millions of tokens in thousands of sequences is a picture of a few parts."""
        case = with_transforms(
            AddNeighbours(count=5000), sequences=(LogicalSequence(id=0, length=1 << 20),)
        )
        own, other = case_drawing(sample(case=case)).panels

        assert len(own.svg) + len(other.svg) < 50_000
        widths = re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)', own.svg)
        assert max(map(float, widths)) <= WIDTH

    def test_launch_of_the_difference_is_shown(self) -> None:
        """Of many launches a few are drawn, among them the one that differs."""
        sequences = tuple(LogicalSequence(id=index, length=1) for index in range(30))
        case = with_transforms(
            AddNeighbours(count=1), SplitBatch(cuts=tuple(range(1, 30))), sequences=sequences
        )
        fixture = sample(case=case)
        mismatch = fixture.expect.mismatches[0]
        first = attrs.evolve(mismatch.first, sequence_id=20, transformed_launch=20)
        expect = attrs.evolve(fixture.expect, mismatches=(attrs.evolve(mismatch, first=first),))
        own, other = case_drawing(attrs.evolve(fixture, expect=expect)).panels

        assert "launch 21 of 30" in other.svg
        assert "launch 21 of 30" in own.svg
        assert re.findall(r"\.\.\. (\d+) launches more", other.svg) == ["16", "9"]
        assert other.svg.count('class="marked"') == own.svg.count('class="marked"') == 1

    def test_what_cannot_be_drawn_is_said(self) -> None:
        """A case of too many rows has words in the place of a picture."""
        drawing = case_drawing(sample(case=with_transforms(AddNeighbours(count=1 << 16))))

        assert drawing.panels == ()
        assert drawing.notes == ("Not drawn: 65537 rows are too many to be drawn.",)

    def test_contexts_are_not_marked(self) -> None:
        """With queries and contexts the query is marked, and no context of it."""
        reference = KernelReference(
            operator="a:b", target="a:b", signature=SIGNATURES["masked"], backend="target"
        )
        case = with_transforms(
            SplitBatch(cuts=(1,)),
            dims={"H": 1},
            sequences=(LogicalSequence(id=0, length=2),),
            data={},
            policy_state={},
        )
        fixture = sample(case=case, reference=reference, cause=attrs.evolve(DRIFT, output="y"))
        _, other = case_drawing(fixture).panels

        assert other.svg.count("queries") == other.svg.count("contexts") == 2
        assert other.svg.count('class="marked"') == 1

    def test_program_is_drawn_by_its_operations(self) -> None:
        """Pages stand below each operation, and the slot of the first difference is framed."""
        fixture = sample_program()
        (panel,) = program_drawing(fixture).panels

        assert "1. allocate s0" in panel.svg
        assert "3. fork s1 = s0[:4]" in panel.svg
        assert panel.svg.count('class="marked"') == panel.svg.count("op shown") == 1
        # Both hold the first page, until one of them writes into it: the fork is at its end.
        assert "page 0: 4 tokens of s0 and s1" in panel.svg

    def test_elements_escape_what_they_hold(self) -> None:
        """Texts and attributes of a picture close nothing that they stand in."""
        made = element("text", label(0, 1, HOSTILE), HOSTILE, class_=HOSTILE)
        read = Reader(made)

        assert [name for name, _ in read.elements] == ["text", "text"]
        assert read.elements[0][1] == {"class": HOSTILE}


class TestPage:
    """The page as browsers, keyboards and strangers meet it."""

    @pytest.mark.parametrize("count", [0, 5, 200])
    def test_page_is_whole(self, count: int) -> None:
        """Elements nest, ids are unique, links lead somewhere, tables and findings have names."""
        read = Reader(render_page(page_of(count)))
        ids = [found["id"] for _, found in read.elements if "id" in found]
        links = [found["href"] for found in read.all("a")]
        findings = [found for found in read.all("details") if found.get("class") == "finding"]

        assert max(Counter(ids).values()) == 1
        assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
        assert {link for link in links if not link.startswith("#")} <= {"https://example.org/1"}
        assert len(read.all("caption")) == len(read.all("table"))
        assert all("scope" in found for found in read.all("th"))
        assert len(read.all("summary")) == len(read.all("details"))
        assert len(findings) == count
        assert [name for name, _ in read.elements if name == "h1"] == ["h1"]
        assert all(found.get("aria-label") for found in read.all("svg") if "role" in found)

    def test_page_asks_for_nothing(self) -> None:
        """The policy names the digests of the one style sheet and the one script, and no host."""
        page = render_page(page_of(5))
        read = Reader(page)
        policy = next(m["content"] for m in read.all("meta") if m.get("http-equiv"))

        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "http" not in policy
        assert "unsafe" not in policy
        assert len(read.all("style")) == len(read.all("script")) == 1
        names = {name for _, found in read.elements for name in found}
        assert not names & {"src", "style", "srcset", "action", "xlink:href"}
        assert not {name for name in names if name.startswith("on")}
        assert "link" not in {name for name, _ in read.elements}
        assert re.findall(r"url\((?!#)|@import|fetch\(|XMLHttp", page) == []

    @pytest.mark.parametrize("count", [1, 3])
    def test_markup_of_strangers_is_text(self, count: int) -> None:
        """Markup in any text of a store changes no element of the page."""
        page = attrs.evolve(page_of(count), warnings=("w",))
        plain, read = Reader(render_page(page)), Reader(render_page(hostile(page)))

        assert {name for name, _ in read.elements} <= {name for name, _ in plain.elements}
        assert not {name for _, found in read.elements for name in found if name.startswith("on")}
        assert len(read.all("script")) == 1
        assert any("<img src=x" in text for texts in read.texts.values() for text in texts)
        assert "\u202e" not in "".join(text for texts in read.texts.values() for text in texts)

    def test_messages_of_fixtures_are_text(self) -> None:
        """What a fixture quotes is escaped wherever it is told, in its pictures too."""
        fixture = sample(message=HOSTILE, reference=attrs.evolve(LINEAR, call={"<b>": 1}))
        program = sample_program(message=HOSTILE)
        page = Page(store="s", made=0.0, causes=(cause_of(fixture), cause_of(program, 1)))
        read = Reader(render_page(page))

        assert not {"img", "script"} & {name for name, _ in read.elements} - {"script"}
        assert len(read.all("script")) == 1

    def test_links_are_addresses(self) -> None:
        """A link of the ledger is one only if it leads to the web."""
        entry = KnownEntry(cause="x", link="javascript:alert(1)", reason="r")
        read = Reader(render_page(attrs.evolve(page_of(1), ledger=(entry,))))

        assert [found for found in read.all("a") if "javascript" in found["href"]] == []
        assert any("javascript:alert(1)" in text for text in read.texts["td"])

    def test_issue_block_replays(self) -> None:
        """The block that the button copies reads back as the fixture."""
        for fixture in (sample(), sample_program()):
            read = Reader(render_page(Page(store="s", made=0.0, causes=(cause_of(fixture),))))
            (found,) = any_fixtures_in("".join(read.texts["pre"]))

            assert found == fixture

    def test_known_findings_come_last(self) -> None:
        """What nobody knew of comes first, however often the others were seen."""
        entry = KnownEntry(cause="x", link="https://example.org/2", reason="r")
        known = cause_of(sample(), 1, known=entry, kind="known", count=999)
        new = cause_of(sample(case=attrs.evolve(CASE, seed=3)), 2)
        page = render_page(Page(store="s", made=0.0, causes=(known, new), ledger=(entry,)))
        ids = [cause.fixture.id[:8] for cause in (new, known) if cause.fixture is not None]

        assert page.index(f"id {ids[0]}") < page.index(f"id {ids[1]}")
        assert "1 distinct cause that nobody knew of" in page

    def test_unreadable_fixture_is_said(self) -> None:
        """A cause whose file cannot be read is listed without it."""
        said = "Its fixture cannot be read."
        cause = attrs.evolve(cause_of(sample()), fixture=None, unreadable=said)

        assert said in render_page(Page(store="s", made=0.0, causes=(cause,)))

    def test_green_says_what_it_does_not_prove(self) -> None:
        """A page without findings says what is not claimed, and what the interpreter is worth."""
        cell = Cell(
            id="c",
            row="c",
            backend="triton",
            column="fp32 forward",
            verdict="HOLDS",
            ran="triton-interpreter",
        )
        page = render_page(Page(store="s", made=0.0, cells=(cell,)))

        assert "Every cell holds." in page
        assert "Not claimed: multi-GPU collectives" in page
        assert "1 cell ran in Triton&#39;s interpreter" in page


class TestTime:
    """Throughput and discoveries over time."""

    @staticmethod
    def column(timeline: Timeline, word: str) -> list[float]:
        """Return the figures of a column."""
        place = next(at for at, head in enumerate(timeline.heads) if word in head)
        return [float(row[place].replace(",", "")) for row in timeline.rows]

    def test_rates_add_up_without_breaks(self) -> None:
        """A night in which nothing ran is left out, and examples a second times seconds is all."""
        spans = (
            Span(began=0.0, seconds=40.0, seconds_in_kernels=20.0, examples=400),
            Span(began=90_000.0, seconds=40.0, seconds_in_kernels=40.0, examples=1200),
        )
        timeline = timeline_of(Page(store="s", made=0.0, spans=spans))
        rates = self.column(timeline, "Examples")

        assert timeline.breaks == 1
        assert sum(rate * 80 / len(rates) for rate in rates) == pytest.approx(1600)
        assert rates[0] == 10
        assert rates[-1] == 30
        assert self.column(timeline, "Share")[0] == 0.5

    @pytest.mark.parametrize(("seconds", "form"), [(90.0, 19), (30_000.0, 16)])
    def test_times_of_a_table_are_told_apart(self, seconds: float, form: int) -> None:
        """With their seconds, where a row is less than a minute."""
        spans = (Span(began=1e9, seconds=seconds, examples=400),)
        times = [row[0] for row in timeline_of(Page(store="s", made=0.0, spans=spans)).rows]

        assert len(set(times)) == len(times)
        assert {len(time) for time in times} == {form}

    def test_discoveries_add_up(self) -> None:
        """The last figure is the number of causes, and it never falls."""
        found = self.column(timeline_of(page_of(5)), "causes")

        assert found[-1] == 5
        assert found == sorted(found)

    def test_wrong_times_are_left_out(self) -> None:
        """Numbers that are no times or counts cost their epoch alone."""
        wrong = [float("nan"), float("inf"), -1.0, 1e300]
        spans = [Span(began=value, seconds=1.0) for value in wrong]
        spans += [Span(began=1.0, seconds=value) for value in wrong]
        spans += [Span(began=1.0, seconds=1.0, examples=10**400)]
        spans += [Span(began=1.0, seconds=1.0, seconds_in_kernels=float("nan"))]
        page = attrs.evolve(page_of(2), spans=tuple(spans))

        assert timeline_of(page) == Timeline()
        assert "No epoch has ended yet." in render_page(page)
        assert [moment(value) for value in (*wrong, None)][:2] == ["-", "-"]
        told = [duration(value) for value in (0.5, 90, 30_000)]
        assert told == ["0.5 s", "1 min 30 s", "8 h 20 min"]
