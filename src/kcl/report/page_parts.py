"""Building blocks of the HTML page. Arguments named `html` hold markup; all others are plain text and are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

_MANY_ROWS = 25


def section(name: str, heading: str, html: str) -> str:
    return f'<section id="{name}" data-fresh>\n<h2>{heading}</h2>\n{html}\n</section>\n'


def muted(text: str) -> str:
    return f'<p class="muted">{escape(text)}</p>'


def facts(values: Mapping[str, str]) -> str:
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{escape(text)}</dd>' for name, text in values.items())}</dl>"


def scroll(label: str, html: str, rows: int = 0) -> str:
    """Wide or long content scrolls by itself, by keyboard too: the page stays as wide as the screen."""
    look = "scroll tall" if rows > _MANY_ROWS else "scroll"
    return f'<div class="{look}" tabindex="0" role="region" aria-label="{escape(label)}">{html}</div>'


def head(text: str, number: bool = False) -> str:
    return f'<th scope="col"{_aligned(number)}>{escape(text)}</th>'


def row_head(text: str) -> str:
    return f'<th scope="row">{escape(text)}</th>'


def data(text: str, number: bool = False) -> str:
    return f"<td{_aligned(number)}>{escape(text)}</td>"


def _aligned(number: bool) -> str:
    return ' class="number"' if number else ""


def grid(caption: str, head_html: Iterable[str], rows_html: Iterable[str], look: str = "grid") -> str:
    """A table from the cells of its head and the rows of its body."""
    return (
        f'<table class="{look}"><caption>{escape(caption)}</caption><thead><tr>{"".join(head_html)}</tr></thead>'
        f"<tbody>{''.join(rows_html)}</tbody></table>"
    )


def row(*cells_html: str, look: str = "") -> str:
    return f"<tr{f' class={look}' if look else ''}>{''.join(cells_html)}</tr>"
