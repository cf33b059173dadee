"""Small pieces of HTML, and how figures are written in text. Everything that enters is escaped."""

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from loong_jax.report import theme

MINUS, NO_BREAK = "\u2212", "\u202f"  # a real minus; a narrow space that does not break
ABSENT, TIMES = "\u2013", "\u00d7"


class Markup(str):
    """Text that is HTML already."""


def escape(value: Any) -> str:
    return value if isinstance(value, Markup) else html.escape(str(value), quote=True)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def number(value: Any, digits: int = 1) -> str:
    return f"{value:,.{digits}f}".replace("-", MINUS) if is_number(value) else ABSENT


def percent(value: Any, digits: int = 1) -> str:
    """A share as per cent: 0.312 is 31.2 %."""
    return f"{number(100 * value, digits)}{NO_BREAK}%" if is_number(value) else ABSENT


def points(value: Any) -> str:
    """A difference of shares in percentage points, with its sign: +4.0."""
    if not is_number(value):
        return ABSENT
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", MINUS)


def interval(ends: Any, form=None) -> str:
    """[low, high] in per cent, or as `form` writes them; empty where unknown."""
    if not ends or not all(is_number(end) for end in ends):
        return ""
    low, high = ((form or (lambda v: number(100 * v)))(end) for end in ends)
    return f"[{low}, {high}]"


def duration(seconds: Any) -> str:
    if not is_number(seconds):
        return ABSENT
    if seconds < 90:
        return f"{seconds:.0f}{NO_BREAK}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}{NO_BREAK}min {rest:02d}{NO_BREAK}s"


def with_interval(value: str, ends: str) -> Markup:
    return Markup(f"{escape(value)} <small>{escape(ends)}</small>" if ends else escape(value))


def gain(found: Mapping[str, Any]) -> Markup:
    """A paired gain as `loong_jax.eval.compare` writes it, with its interval."""
    return with_interval(points(found.get("gain")), interval(found.get("ci95"), points))


def yes_no(claim: bool | None) -> Markup:
    if claim is None:
        return Markup(ABSENT)
    return Markup('<span class="yes">yes</span>' if claim else '<span class="no">no</span>')


def dot(domain: str) -> Markup:
    """The name of a domain after a dot of its colour."""
    return Markup(
        f'<span class="dot" style="background:{theme.domain_color(domain)}"></span>{escape(domain)}'
    )


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Colours with what they stand for, once for a row of charts: (color, label)."""
    parts = [
        f'<span><i style="background:{theme.css_color(color)}"></i>{escape(label)}</span>'
        for color, label in entries
    ]
    return Markup(f'<div class="legend">{"".join(parts)}</div>')


def side_by_side(parts: Sequence[str]) -> Markup:
    return Markup(f'<div class="beside">{"".join(parts)}</div>')


def table(
    head: Sequence[Any],
    rows: Sequence[Sequence[Any]],
    *,
    text_columns: Sequence[int] = (),
    strong_rows: Sequence[int] = (),
) -> Markup:
    """A table that scrolls sideways by itself; the first column is text, the others figures.

    Nothing where there are no rows.
    """
    if not rows:
        return Markup("")

    def row(cells: Sequence[Any], tag: str, kind: str = "") -> str:
        parts = [
            f'<{tag} class="text">{escape(c)}</{tag}>' if i in text_columns
            else f"<{tag}>{escape(c)}</{tag}>"
            for i, c in enumerate(cells)
        ]  # fmt: skip
        return f"<tr{kind}>{''.join(parts)}</tr>"

    body = "".join(
        row(cells, "td", ' class="total"' if i in strong_rows else "")
        for i, cells in enumerate(rows)
    )
    return Markup(
        f'<div class="scroll"><table><thead>{row(head, "th")}</thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def table_of(
    rows: Iterable[Any], columns: Mapping[str, Callable[[Any], Any]], **kwargs: Any
) -> Markup:
    """`table` with a row for each of `rows`; by its head, each column makes a cell of a row."""
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    return table(list(columns), cells, **kwargs)


def chart(figure: Figure, label: str, caption: str = "", *, wide: bool = False) -> Markup:
    kind = ' class="wide"' if wide else ""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return Markup(f"<figure{kind}>{theme.to_svg(figure, label)}{below}</figure>")


def grid(parts: Sequence[str], kind: str = "") -> Markup:
    return Markup(f'<div class="grid {kind}">{"".join(parts)}</div>' if parts else "")


def section(title: str, anchor: str, *parts: str) -> Markup:
    """A heading with its content, or nothing where there is no content."""
    content = "".join(part for part in parts if part)
    if not content:
        return Markup("")
    return Markup(f'<section><h2 id="{anchor}">{escape(title)}</h2>{content}</section>')


def paragraph(text: Any, kind: str = "") -> Markup:
    return Markup(f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>")


def details(summary: str, content: str) -> Markup:
    return Markup(f"<details><summary>{escape(summary)}</summary>{content}</details>")


def document(title: str, body: str) -> str:
    """A whole page without any outside reference."""
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{css}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def without_paths(value: Any) -> Any:
    """The same JSON value with absolute paths left out, since a page is passed around."""
    if isinstance(value, str):
        return "(path)" if value.startswith(("/", "~")) else value
    if isinstance(value, Mapping):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(item) for item in value]
    return value
