from __future__ import annotations

from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pytest

from kcl.data import mirrors
from kcl.errors import KclError

if TYPE_CHECKING:
    from conftest import Stand


def fetch(stand: Stand, folder: Path, *urls: str) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    files = [file.archive for file in stand.files]
    return {path.stem: path.read_bytes() for path in mirrors.fetch(files, urls, folder, say=stand.said.append)}


def test_delivers(
    stand: Stand, tmp_path: Path, serve: Callable[[Path], str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert fetch(stand, tmp_path / "here", serve(stand.lay(tmp_path / "mirror"))) == stand.zipped
    assert len(stand.said) == 4
    assert capfd.readouterr() == ("", "")


def test_next_mirror_steps_in_and_the_first_is_left_in_peace(
    stand: Stand, tmp_path: Path, serve: Callable[[Path], str]
) -> None:
    (tmp_path / "empty").mkdir()
    empty, good = serve(tmp_path / "empty"), serve(stand.lay(tmp_path / "mirror"))
    assert fetch(stand, tmp_path / "here", empty, good) == stand.zipped
    assert sum(empty in line for line in stand.said) == 2
    assert "status 404" in stand.said[1]


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda content: content[:-1], "official md5"),
        (lambda content: content[:-1] + b"?", "official md5"),
        (lambda content: content + b"?", "more than the"),
    ],
    ids=["truncated", "other content", "too long"],
)
def test_wrong_content_is_refused(
    stand: Stand, tmp_path: Path, serve: Callable[[Path], str], harm: Callable[[bytes], bytes], reason: str
) -> None:
    folder = stand.lay(tmp_path / "mirror")
    last = stand.files[-1]
    (folder / last.archive.name).write_bytes(harm(stand.zipped[last.name]))
    with pytest.raises(KclError, match=f"no web mirror delivers {last.archive.name}"):
        fetch(stand, tmp_path / "here", serve(folder))
    assert reason in stand.said[-1]
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted(
        f.archive.name for f in stand.files[:-1]
    )


def test_body_declared_as_gzip_is_kept_packed(
    stand: Stand, tmp_path: Path, serve: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SimpleHTTPRequestHandler.end_headers

    def end_headers(self: SimpleHTTPRequestHandler) -> None:
        self.send_header("Content-Encoding", "gzip")
        original(self)

    monkeypatch.setattr(SimpleHTTPRequestHandler, "end_headers", end_headers)
    assert fetch(stand, tmp_path / "here", serve(stand.lay(tmp_path / "mirror"))) == stand.zipped


def test_broken_connection_is_tried_again(
    stand: Stand, tmp_path: Path, serve: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SimpleHTTPRequestHandler.copyfile
    breaks = iter([True])

    def copyfile(self: SimpleHTTPRequestHandler, source: BinaryIO, outputfile: BinaryIO) -> None:
        if next(breaks, False):
            outputfile.write(source.read(10))
        else:
            original(self, source, outputfile)

    monkeypatch.setattr(SimpleHTTPRequestHandler, "copyfile", copyfile)
    assert fetch(stand, tmp_path / "here", serve(stand.lay(tmp_path / "mirror"))) == stand.zipped
