"""Links from a page to files and folders of the repository that are not pages.

A file that can be read gets a page with its text, a folder one that lists what is in it; a large file is copied.
Examples are in the gallery. A link to something that is not there stays unresolved, which `make docs` treats as an
error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge
from sphinx.util.osutil import relative_uri

LANGUAGES = {".py": "python", ".cu": "cuda", ".cpp": "cpp", ".toml": "toml", ".cff": "yaml", ".json": "json"}
LARGEST = 200_000
"""Bytes of a file that is shown as a page."""


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", _replace_links, priority=100)  # before Sphinx collects what is to be downloaded
    app.connect("html-collect-pages", _pages)
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _replace_links(app: Sphinx, tree: nodes.document) -> None:
    """MyST takes a link to a file for a download, and one to a folder for a page that is missing."""
    page = Path(app.env.doc2path(app.env.docname))
    if page.suffix != ".md":  # the gallery, which offers its files itself
        return
    folder = page.parent
    links = [*tree.findall(addnodes.download_reference), *tree.findall(addnodes.pending_xref)]
    for node in links:
        path = node["reftarget"].partition("#")[0]
        target = Path(os.path.normpath(folder / path))
        if not path or not target.exists() or node.get("refdomain") == "doc":
            continue
        place = target.relative_to(app.srcdir).as_posix()
        if Path(place).parts[0] == "examples":
            shown = f"docs/gallery/{target.stem if target.is_file() else 'index'}.html"
        else:
            app.env.metadata[app.env.docname].setdefault("repository_files", set()).add(place)
            shown = f"files/{place}" + ("" if _copied(target) else ".html")
        uri = relative_uri(f"{app.env.docname}.html", shown)
        children = [child.deepcopy() for child in node.children]
        node.replace_self(nodes.reference("", "", *children, refuri=uri, internal=True))


def _copied(target: Path) -> bool:
    return target.is_file() and (target.stat().st_size > LARGEST or target.suffix == ".png")


def _files(app: Sphinx) -> list[str]:
    return sorted({place for about in app.env.metadata.values() for place in about.get("repository_files", ())})


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    highlighter = PygmentsBridge("html", app.config.pygments_style or "default")
    for place in _files(app):
        target = Path(app.srcdir) / place
        if target.is_dir():
            rows = "".join(map(_row, sorted(target.iterdir())))
            body = f'<div class="table-wrapper"><table class="docutils">{rows}</table></div>'
        elif _copied(target):
            continue
        else:
            text = target.read_text(encoding="utf-8")
            body = highlighter.highlight_block(text, LANGUAGES.get(target.suffix, "text"), force=True)
        yield f"files/{place}", {"title": place, "body": f"<h1>{escape(place)}</h1>{body}"}, "page.html"


def _row(path: Path) -> str:
    size = "folder" if path.is_dir() else f"{path.stat().st_size:,} bytes"
    return "" if path.name == "__pycache__" else f"<tr><td>{escape(path.name)}</td><td>{size}</td></tr>"


def _copy(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        for place in _files(app):
            if _copied(Path(app.srcdir) / place):
                copied = Path(app.outdir) / "files" / place
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(app.srcdir) / place, copied)
