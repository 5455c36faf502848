"""Throughput and discoveries over time, as small charts and as the table of the same figures.

Time is that in which something ran: breaks between campaigns are left out, and marked.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate

import attrs
from markupsafe import Markup

from biprop.reports.html.records import Page, Span
from biprop.reports.html.svg import element, label, picture, rect

__all__ = ["Chart", "Timeline", "duration", "moment", "timeline_of"]

_BINS = 40
# Nothing ran for so many seconds: a break.
_BREAK = 120.0
# What lies beyond is no time and no count: a file may hold any number.
_TIME_MAX, _SECONDS_MAX, _COUNT_MAX = 1e11, 1e7, 1e15
_WIDTH, _HEIGHT = 340, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 10, 22


@attrs.frozen(kw_only=True)
class Chart:
    """One chart.

    Attributes:
        title: What it shows, with its unit.
        svg: Of fixed size.
    """

    title: str
    svg: Markup


@attrs.frozen(kw_only=True)
class Timeline:
    """What happened when.

    Attributes:
        charts: Side by side, where there is room.
        heads: Of the table.
        rows: One a stretch of time.
        breaks: How many breaks were left out.
    """

    charts: tuple[Chart, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    breaks: int = 0


@attrs.frozen(kw_only=True)
class _Series:
    """The figures of one chart.

    Attributes:
        title: What they are, with their unit.
        values: One a stretch of time.
        is_step: Whether they add up, and are drawn as a line.
    """

    title: str
    values: Sequence[float]
    is_step: bool = False


@attrs.frozen(kw_only=True)
class _Clock:
    """Time without breaks.

    Attributes:
        stretches: Beginning and end of each stretch in which something ran.
    """

    stretches: tuple[tuple[float, float], ...]

    @property
    def total(self) -> float:
        """Seconds in which something ran."""
        return sum(end - begin for begin, end in self.stretches)

    @property
    def joints(self) -> list[float]:
        """Where breaks were left out, in seconds of this clock."""
        found, at = [], 0.0
        for begin, end in self.stretches[:-1]:
            at += end - begin
            found.append(at)
        return found

    def read(self, when: float) -> float:
        """Return the seconds before a moment in which something ran."""
        return sum(
            min(end, max(begin, when)) - begin for begin, end in self.stretches if begin < when
        )

    def at(self, seconds: float) -> float:
        """Return the moment when so many seconds had passed."""
        for begin, end in self.stretches:
            if seconds <= end - begin:
                return begin + seconds
            seconds -= end - begin
        return self.stretches[-1][1]


def timeline_of(page: Page) -> Timeline:
    """Return the charts of a page; none where nothing ran."""
    spans = [span for span in page.spans if _is_usable(span)]
    clock = _Clock(stretches=_stretches(spans))
    if clock.total <= 0:
        return Timeline()
    series = [
        *_rates(spans, clock),
        *_counts(page, spans, clock),
    ]
    ends = [clock.at((place + 1) * clock.total / _BINS) for place in range(_BINS)]
    is_short = clock.total < 60 * _BINS
    figures = zip(*([_figure(value) for value in one.values] for one in series), strict=True)
    return Timeline(
        charts=tuple(Chart(title=one.title, svg=_chart(one, clock)) for one in series),
        heads=("until", *(one.title for one in series)),
        rows=tuple(
            (moment(end, with_seconds=is_short), *row)
            for end, row in zip(ends, figures, strict=True)
        ),
        breaks=len(clock.joints),
    )


def _rates(spans: Sequence[Span], clock: _Clock) -> Iterator[_Series]:
    """Make what happened in each stretch of time."""
    width = clock.total / _BINS
    for title, amounts in (
        ("Examples a second", [span.examples for span in spans]),
        ("Sequences and tensors compared a second", [span.compared for span in spans]),
    ):
        spread = _spread(spans, clock, amounts)
        yield _Series(title=title, values=[value / width for value in spread])
    known = [span for span in spans if span.seconds_in_kernels is not None]
    if known:
        kernels = _spread(known, clock, [span.seconds_in_kernels or 0.0 for span in known])
        busy = _spread(known, clock, [span.seconds for span in known])
        yield _Series(
            title="Share of time in kernels and comparison",
            values=[
                min(1.0, part / whole) if whole else 0.0
                for part, whole in zip(kernels, busy, strict=True)
            ],
        )


def _counts(page: Page, spans: Sequence[Span], clock: _Clock) -> Iterator[_Series]:
    """Make what had been found by the end of each stretch of time."""
    seen = [cause.first_seen for cause in page.causes if cause.first_seen is not None]
    yield _Series(
        title="Distinct causes found so far",
        values=_cumulative({at: seen.count(at) for at in seen}, clock),
        is_step=True,
    )
    behaviours: dict[float, float] = {}
    for span in spans:
        end = span.began + span.seconds
        behaviours[end] = behaviours.get(end, 0.0) + span.behaviours
    yield _Series(
        title="Kinds of behaviour seen so far",
        values=_cumulative(behaviours, clock),
        is_step=True,
    )


def moment(seconds: float | None, *, with_seconds: bool = False) -> str:
    """Return a time as people write it, in UTC; a dash for None, and for what is no time."""
    if seconds is None:
        return "-"
    try:
        form = "%Y-%m-%d %H:%M:%S" if with_seconds else "%Y-%m-%d %H:%M"
        return datetime.fromtimestamp(seconds, tz=UTC).strftime(form)
    except (OverflowError, OSError, ValueError):
        return "-"


def _is_usable(span: Span) -> bool:
    """Whether the times of an epoch can be times: a store may be a stranger's."""
    counts = (span.examples, span.compared, span.behaviours, span.seconds_in_kernels or 0.0)
    return (
        0 <= span.began < _TIME_MAX
        and 0 < span.seconds < _SECONDS_MAX
        and all(0 <= count < _COUNT_MAX for count in counts)
    )


def _stretches(spans: Sequence[Span]) -> tuple[tuple[float, float], ...]:
    found: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda span: span.began):
        begin, end = span.began, span.began + span.seconds
        if found and begin <= found[-1][1] + _BREAK:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return tuple(found)


def _spread(spans: Sequence[Span], clock: _Clock, amounts: Sequence[float]) -> list[float]:
    """Return how much of each amount lies in each bin, spread evenly over its epoch."""
    bins, width = [0.0] * _BINS, clock.total / _BINS
    for span, amount in zip(spans, amounts, strict=True):
        begin = clock.read(span.began)
        end = max(clock.read(span.began + span.seconds), begin + 1e-9)
        first, last = (min(_BINS - 1, int(at / width)) for at in (begin, end))
        for place in range(first, last + 1):
            low, high = max(begin, place * width), min(end, (place + 1) * width)
            bins[place] += amount * max(0.0, high - low) / (end - begin)
    return bins


def _cumulative(amounts: Mapping[float, float], clock: _Clock) -> list[float]:
    """Return the sum of all amounts up to the end of each bin, by the moment of each."""
    bins = [0.0] * _BINS
    for when, amount in amounts.items():
        if math.isfinite(when):
            bins[min(_BINS - 1, int(_BINS * clock.read(when) / clock.total))] += amount
    return list(accumulate(bins))


def _chart(series: _Series, clock: _Clock) -> Markup:
    values = series.values
    top = _nice(max(values))
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    step, base = across / _BINS, _TOP + down
    parts: list[Markup] = []
    for share in (0.0, 0.5, 1.0):
        y = base - share * down
        parts += [
            element("path", d=f"M{_LEFT} {y:.2f}h{across}", class_="grid"),
            label(_LEFT - 5, y + 4, _figure(share * top), "tick end"),
        ]
    for joint in clock.joints:
        x = _LEFT + across * joint / clock.total
        parts.append(element("path", d=f"M{x:.2f} {_TOP}v{down}", class_="break"))
    heights = [down * value / top for value in values]
    if series.is_step:
        path = "".join(f"V{base - height:.2f}h{step:.2f}" for height in heights)
        parts.append(element("path", d=f"M{_LEFT} {base}{path}", class_="curve"))
    else:
        parts += [
            rect(_LEFT + place * step, base - height, max(1.0, step - 1), height, "bar")
            for place, height in enumerate(heights)
            if height > 0
        ]
    parts += [
        label(_LEFT, _HEIGHT - 6, "0", "tick"),
        label(_WIDTH - _RIGHT, _HEIGHT - 6, duration(clock.total), "tick end"),
    ]
    says = (
        f"{series.title}, over {duration(clock.total)}: last {_figure(values[-1])}, "
        f"largest {_figure(max(values))}"
    )
    return picture(parts, width=_WIDTH, height=_HEIGHT, says=says)


def duration(seconds: float) -> str:
    """Return a length of time: `8 h 05 min`, `12 min 05 s`, `3.5 s`."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60:,} h {minutes % 60:02} min"


def _nice(value: float) -> float:
    """Return a round number that is no smaller."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 4, 5, 10, 20) if power * factor >= value)


def _figure(value: float) -> str:
    if value >= 10_000:
        return f"{value:,.0f}" if value < 1_000_000 else f"{value / 1e6:.3g} M"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
