"""Elements of SVG as markup: every attribute and text is escaped here, and nowhere else.

Looks are classes of the page's style sheet, which knows light, dark and paper; an attribute `style`
would be refused by the page's own policy.
"""

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

__all__ = ["element", "label", "picked", "picture", "rect", "shown"]

# Of the small type in pictures.
LETTER_WIDTH = 6.3


def element(name: str, *children: str, **attributes: float | str) -> Markup:
    """Return an element; `class_` is the attribute class, and `stroke_width` stroke-width."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for key, value in attributes.items()
        if value != ""
    )
    inner = "".join(str(escape(child)) for child in children)
    # Every part was escaped above.
    return Markup(f"<{name}{words}>{inner}</{name}>")  # noqa: S704


def rect(x: float, y: float, width: float, height: float, kind: str, *children: str) -> Markup:
    """Return a rectangle."""
    return element("rect", *children, x=x, y=y, width=width, height=height, class_=kind)


def label(x: float, y: float, text: str, kind: str = "") -> Markup:
    """Return a text; `y` is its base line."""
    return element("text", shown(text), x=x, y=y, class_=kind)


def picture(parts: Iterable[str], *, width: float, height: float, says: str) -> Markup:
    """Return a picture of its natural size, with what it says in words for who does not see it."""
    return element(
        "svg",
        *parts,
        width=width,
        height=height,
        viewBox=f"0 0 {_value(width)} {_value(height)}",
        role="img",
        aria_label=shown(says),
    )


def shown(text: str) -> str:
    """Return a text on one line, without what could not be seen, or would turn its order round."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for letter in " ".join(text.split())
    )


def picked(count: int, wanted: Iterable[int], limit: int) -> list[int]:
    """Return which of many things to show: the first ones, the last one, and those wanted."""
    if count <= limit:
        return list(range(count))
    asked = [index for index in wanted if 0 <= index < count][: limit // 2]
    chosen = {count - 1, *asked}
    for index in range(count):
        if len(chosen) >= limit:
            break
        chosen.add(index)
    return sorted(chosen)


def gaps(chosen: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Return each chosen index, and how many are left out right before it."""
    assert not chosen or chosen[-1] == count - 1, "the last one is always shown"
    return [
        (index, index - before - 1)
        for before, index in zip((-1, *chosen[:-1]), chosen, strict=True)
    ]


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{round(value, 2):g}"
