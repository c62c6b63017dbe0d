"""Building blocks of the HTML page. `Html` is markup; all other text is escaped."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape

_MANY_ROWS = 25


class Html(str):
    """Text that is markup already."""


def section(name: str, heading: str, html: str) -> str:
    return f'<section id="{name}" data-fresh>\n<h2>{heading}</h2>\n{html}\n</section>\n'


def muted(text: str) -> str:
    return f'<p class="muted">{escape(text)}</p>'


def facts(values: Mapping[str, str]) -> str:
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{escape(text)}</dd>' for name, text in values.items())}</dl>"


def scroll(label: str, html: str, tall: bool = False) -> str:
    """Wide or long content scrolls by itself, by keyboard too: the page stays as wide as the screen."""
    look = "scroll tall" if tall else "scroll"
    return f'<div class="{look}" tabindex="0" role="region" aria-label="{escape(label)}">{html}</div>'


def table(
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    first_number: int | None = None,
    row_heads: bool = False,
    marked: Collection[str] = (),
    tall: bool = False,
) -> str:
    """Columns from `first_number` on are aligned to the right. Rows whose first cell is in `marked` stand out."""

    def cell(place: int, content: str, kind: str) -> str:
        number = ' class="number"' if first_number is not None and place >= first_number else ""
        return f"<{kind}{number}>{content if isinstance(content, Html) else escape(content)}</{kind[:2]}>"

    head = "".join(cell(place, text, 'th scope="col"') for place, text in enumerate(header))
    body = ""
    for row in rows:
        first = 'th scope="row"' if row_heads else "td"
        cells = (cell(place, text, "td" if place else first) for place, text in enumerate(row))
        body += f"<tr{' class=differs' if row[0] in marked else ''}>{''.join(cells)}</tr>"
    grid = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return scroll(caption, f'<table class="grid">{grid}</table>', tall or len(rows) > _MANY_ROWS)
