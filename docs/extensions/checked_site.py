"""After the build, every page is read as a browser reads it, from the first one on.

A link to a file or an anchor that is not there is an error, and so is anything that a page loads from another host: the
site works from a disk, without a network. Links that a reader follows to other hosts are not asked for.
"""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:  # a test uses this file without Sphinx
    from sphinx.application import Sphinx

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "embed": "src"}
FOLLOWED = {"a": "href", "link": "href", "form": "action"}


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", _check, priority=900)  # after the extensions that copy files
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html" and (mistakes := broken(Path(app.outdir) / "index.html")):
        from sphinx.errors import ExtensionError

        raise ExtensionError("\n".join(mistakes))


def broken(first: Path) -> list[str]:
    """Mistakes in the pages that can be reached from the first one, a line each."""
    mistakes: list[str] = []
    waiting, seen = [first.resolve()], {first.resolve()}
    while waiting:
        page = waiting.pop()
        for element, link in _read(page).links:
            place = f"{page.relative_to(first.resolve().parent)}: {link}"
            address = urlsplit(link)
            if address.scheme or address.netloc:
                if element in LOADED or element == "link" or address.scheme not in ("http", "https", "data"):
                    mistakes += [] if address.scheme == "data" else [f"{place} is loaded from another host"]
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            anchor = unquote(address.fragment)
            if not target.is_file():
                mistakes.append(f"{place} is not there")
            elif target.suffix == ".html":
                if anchor and anchor not in _read(target).anchors:
                    mistakes.append(f"{place} has no such anchor")
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
    return mistakes


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.anchors = {"top"}  # which every browser knows

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if link := values.get(LOADED.get(tag) or FOLLOWED.get(tag, "")):
            self.links.append((tag, link))
        self.anchors.update(filter(None, (values.get("id"), values.get("name"))))


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page
