"""Only regular files are opened and replaced; what killed processes left is removed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kcl.cli import commands
from kcl.core import files, locking, results
from kcl.core.opening import check_replaceable, regular
from kcl.errors import KclError
from kcl.report import page_samples

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links, pipes and locks as Unix has them")

KEPT = b"do not touch"


def _link(path: Path) -> None:
    victim = path.parent / "victim"
    victim.write_bytes(KEPT)
    path.symlink_to(victim)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "link": _link,
    "device": _device,
    "folder": Path.mkdir,
}


@pytest.fixture(params=sorted(KINDS))
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path at which there is no regular file."""
    path = tmp_path / "odd"
    KINDS[request.param](path)
    return path


def _kept(odd: Path) -> bool:
    victim = odd.parent / "victim"
    return os.path.lexists(odd) and not (victim.exists() and victim.read_bytes() != KEPT)


WRITERS: dict[str, Callable[[Path], object]] = {
    "a whole file": lambda path: files.write_whole(path, b"new"),
    "a file that is added to": lambda path: open(path, "ab", opener=regular),  # noqa: SIM115
    "results": lambda path: results.append(path),
    "a lock": lambda path: locking.locked(path.parent, path.name).__enter__(),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_only_regular_files_are_written(odd: Path, write: Callable[[Path], object]) -> None:
    with pytest.raises((KclError, OSError), match="it is a"):
        write(odd)
    assert _kept(odd)


READERS: dict[str, Callable[[Path], object]] = {
    "JSON": files.read_json,
    "results": results.read,
    "anything": lambda path: open(path, "rb", opener=regular),  # noqa: SIM115
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_only_regular_files_are_read(odd: Path, read: Callable[[Path], object]) -> None:
    """Links to files are followed."""
    if odd.is_file():
        with open(odd, "rb", opener=regular) as file:
            assert file.read() == KEPT
        return
    with pytest.raises((KclError, OSError), match="it is a"):
        read(odd)


def test_samples_that_cannot_be_read_are_left_out(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert page_samples.read_samples(odd) == []
    line = b'{"format": 1, "samples": []}\n'
    (odd.parent / "samples.jsonl").write_bytes(line * 3)
    monkeypatch.setattr(page_samples, "MOST_BYTES", 2 * len(line) + 5)
    assert len(page_samples.read_samples(odd.parent / "samples.jsonl")) == 2


def test_a_missing_file_may_be_made_and_a_file_replaced(tmp_path: Path) -> None:
    check_replaceable(tmp_path / "missing")
    files.write_whole(tmp_path / "new", b"1")
    files.write_whole(tmp_path / "new", b"2")
    assert (tmp_path / "new").read_bytes() == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_link_in_place_of_a_draft_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(KEPT)
    (tmp_path / f".new.{os.getpid()}.tmp").symlink_to("victim")
    files.write_whole(tmp_path / "new", b"1")
    assert (tmp_path / "victim").read_bytes() == KEPT
    assert not (tmp_path / "new").is_symlink()


def test_a_predictions_file_over_a_pipe_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text(
        "a,b,label\n" + "".join(f"{row % 2 + row / 99},{row},{row % 2}\n" for row in range(9))
    )
    assert commands.main(["update", "--model", f"{tmp_path}/m", "--task", "t", "--data", f"{tmp_path}/a.csv"]) == 0
    os.mkfifo(tmp_path / "out")
    asked = ["predict", "--model", f"{tmp_path}/m", "--input", f"{tmp_path}/a.csv", "--out", f"{tmp_path}/out"]
    assert commands.main(asked) == 2
    assert (tmp_path / "out").is_fifo()
    assert "pipe" in capsys.readouterr().err


class TestLeftOver:
    def test_drafts_and_private_folders_of_dead_processes_are_removed(self, tmp_path: Path) -> None:
        (tmp_path / ".report.html.4321.tmp").write_bytes(b"half")
        (tmp_path / ".users.tmp").write_bytes(b"not ours")
        (tmp_path / ".fetch-abc").mkdir()
        (tmp_path / ".fetch-abc" / "half").write_bytes(b"half")
        files.clear_drafts(tmp_path)
        with locking.private_folder(tmp_path, ".fetch-") as folder:
            assert [path.name for path in sorted(tmp_path.iterdir())] == [folder.name, ".users.tmp"]
        assert [path.name for path in tmp_path.iterdir()] == [".users.tmp"]

    def test_those_of_living_processes_stay(self, tmp_path: Path) -> None:
        """A second process holds a private folder and a draft while this one tidies."""
        program = (
            "import sys; from pathlib import Path; from kcl.core import locking\n"
            "with locking.private_folder(Path(sys.argv[1]), '.fetch-'), open(sys.argv[1] + '/.a.1.tmp', 'w') as d:\n"
            "    locking.lock(d.fileno(), wait=False); print('ready', flush=True); sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            files.clear_drafts(tmp_path)
            with locking.private_folder(tmp_path, ".fetch-"):
                assert len(list(tmp_path.glob(".fetch-*"))) == 2
            assert len(list(tmp_path.iterdir())) == 2
            other.communicate()

    def test_a_draft_that_vanished_is_written_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        written = files._write_draft
        vanishing = [True]

        def write(draft: Path, content: bytes | bytearray) -> None:
            written(draft, content)
            if vanishing.pop() if vanishing else False:
                draft.unlink()

        monkeypatch.setattr(files, "_write_draft", write)
        files.write_whole(tmp_path / "new", b"1")
        assert (tmp_path / "new").read_bytes() == b"1"


class TestWithoutLocks:
    """File systems without locks, such as some that are mounted over a network."""

    @pytest.fixture(autouse=True)
    def _no_locks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(locking, "lock", lambda descriptor, wait: None)

    def test_a_second_process_is_told_that_nobody_knows(self, tmp_path: Path) -> None:
        with locking.locked(tmp_path), pytest.raises(KclError, match=rf"process {os.getpid()}.*delete"):
            locking.locked(tmp_path).__enter__()
        with locking.locked(tmp_path):
            pass

    def test_nothing_is_taken_for_left_over(self, tmp_path: Path) -> None:
        (tmp_path / ".a.1.tmp").write_bytes(b"half")
        files.clear_drafts(tmp_path)
        assert (tmp_path / ".a.1.tmp").exists()
