"""The check that `make docs` makes of the finished site finds what is broken in it."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("body", "mistakes"),
    [
        ('<a href="other.html#here">x</a> <a href="https://example.org">x</a> <a href="#top">x</a>', 0),
        ('<a href="missing.html">x</a>', 1),
        ('<a href="other.html#there">x</a>', 1),
        ('<img src="missing.png">', 1),
        ('<script src="https://example.org/x.js"></script>', 1),
        ('<img src="//example.org/x.png">', 1),
        ('<link rel="stylesheet" href="https://example.org/x.css">', 1),
    ],
)
def test_what_is_broken_is_found(body: str, mistakes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "extensions")
    sys.modules.pop("checked_site", None)
    import checked_site

    (tmp_path / "index.html").write_text(f'<h1 id="back">Site</h1><a href="other.html">x</a>{body}', encoding="utf-8")
    (tmp_path / "other.html").write_text('<h1 id="here">Page</h1><a href="index.html#back">x</a>', encoding="utf-8")
    found = checked_site.broken(tmp_path / "index.html")
    assert len(found) == mistakes, found
