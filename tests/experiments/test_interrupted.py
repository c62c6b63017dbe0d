"""Commands that are stopped, killed, repeated, changed and run twice: nothing lost, nothing mixed up."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kcl
from command_line import Said, call
from kcl.cli.execution import parse_every
from kcl.core import files
from kcl.core.locking import locked
from kcl.errors import KclError
from kcl.experiments import resuming
from kcl.training import checkpoint, checkpointer
from kcl.training.checkpointer import Every
from kcl.training.stopping import Interrupted, Stop

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as Unix has them")

SMALL = ["--tasks", "2", "--train-per-task", "150", "--device", "cpu", "--threads", "1"]
SET = ["--set", "bases=16", "width=16", "coreset_size_per_class=3"]
COMMAND = ["run", "permuted-digits", *SMALL, *SET]
PASSING = ("seconds", "learning_seconds", "resumed", "command")


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    return functools.partial(call, capsys)


class _Signalling:
    """A display that sends this process a signal at the n-th report of progress."""

    def __init__(self, number: int, reports: int) -> None:
        self.number, self.left = number, reports

    def expect(self, done: int, total: int) -> None:
        pass

    def watch(self, label: str) -> Callable[[Any], None]:
        return self._report

    def _report(self, _: Any) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)

    def say(self, message: str) -> None:
        print(message, file=sys.stderr)

    def close(self) -> None:
        pass


@pytest.fixture
def stopped(run: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Call the command line and stop it by a signal."""

    def call(*arguments: str | Path, after: int = 20, number: int = signal.SIGTERM) -> Said:
        with monkeypatch.context() as patched:
            patched.setattr("kcl.cli.execution.make_display", lambda _: _Signalling(number, after))
            said = run(*arguments)
        assert said.code == 128 + number
        return said

    return call


def _records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def _lasting(out: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name not in PASSING} for record in _records(out)]


@pytest.mark.parametrize(
    ("number", "after"),
    [*itertools.product([signal.SIGINT, signal.SIGTERM], [1, 13, 14, 15, 27, 28]), (signal.SIGHUP, 14)],
)
def test_a_signal_saves_and_says_how_to_go_on(run: Any, stopped: Any, tmp_path: Path, number: int, after: int) -> None:
    """In a task, at its last step, at the end of the task, in the second run."""
    out, whole = tmp_path / "with space", tmp_path / "whole"
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    said = stopped(*COMMAND, "--seeds", "0,1", "--out", out, after=after, number=number)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    assert not (out / ".lock").exists()
    last = said.err.splitlines()[-1]
    assert last.startswith("kcl: stopped; ")
    assert "Traceback" not in said.err
    again = shlex.split(last.partition("to continue: ")[2])
    assert again[-1] == "--resume"
    assert len(list(out.glob("checkpoints/*/*.safetensors"))) == 1
    assert run(*again[1:]).code == 0
    assert run(*COMMAND, "--seeds", "0,1", "--out", whole).code == 0
    assert _lasting(out) == _lasting(whole)
    assert sum(record["resumed"] for record in _records(out)) == 1
    assert sorted(path.name for path in out.iterdir()) == [
        "metrics.csv",
        "report.html",
        "results.jsonl",
        "settings.json",
    ]


def test_a_closed_terminal_does_not_keep_runs_from_being_saved(tmp_path: Path) -> None:
    """Both the shell and the system send SIGHUP, and from then on every write to the terminal fails."""
    child, terminal = pty.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            stop = Stop()
            with stop.listening(), stop.deferred():
                os.write(1, b"ready")
                while stop.signal is None:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGHUP)
                os.write(1, b"this goes nowhere")
                (tmp_path / "saved").write_text(str(stop.signal))
        os._exit(0)
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    os.waitpid(child, 0)
    assert (tmp_path / "saved").read_text() == str(int(signal.SIGHUP))


def test_what_killed_processes_left_is_removed(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    group = out / "checkpoints" / "0123456789abcdef"
    group.mkdir(parents=True)
    (group / ".00000001.safetensors.4321.tmp").write_bytes(b"half")
    (out / ".report.html.4321.tmp").write_bytes(b"half")
    (out / "notes.txt").write_bytes(b"the user's")
    assert run(*COMMAND, "--out", out).code == 0
    assert not (out / "checkpoints").exists()
    assert not list(out.glob(".*"))
    assert (out / "notes.txt").exists()


def test_without_resume_unfinished_runs_are_not_thrown_away(run: Any, stopped: Any, tmp_path: Path) -> None:
    stopped(*COMMAND, "--out", tmp_path / "out")
    said = run(*COMMAND, "--out", tmp_path / "out")
    assert said.code == 2
    assert "unfinished runs" in said.err
    assert "--resume" in said.err


class TestChanges:
    def test_of_settings_are_named(self, run: Any, stopped: Any, tmp_path: Path) -> None:
        out = tmp_path / "out"
        stopped(*COMMAND, "--out", out)
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        said = run(*COMMAND, "lr=0.07", "--out", out, "--resume")
        assert said.code == 2
        assert said.err.count("\n") == 1
        assert "lr was 0.1 and is 0.07" in said.err
        assert "--force" in said.err
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
        assert run(*COMMAND, "lr=0.07", "--out", out, "--resume", "--force").code == 0
        assert [record["settings"]["lr"] for record in _records(out)] == [0.07]
        assert run(*COMMAND, "--out", out, "--resume").code == 0, "the other is still there to go on with"
        assert [record["resumed"] for record in _records(out)] == [0, 1]

    def test_of_which_runs_are_asked_for_are_told(self, run: Any, stopped: Any, tmp_path: Path) -> None:
        """Two runs are one training; to go on with one of them alone is not to go on."""
        out = tmp_path / "out"
        stopped(*COMMAND, "weight_average=0,0.5", "--out", out)
        said = run(*COMMAND, "weight_average=0.5", "--out", out, "--resume")
        assert said.code == 2
        assert "2 unfinished runs" in said.err
        assert "to resume: kcl" in said.err
        assert run(*COMMAND, "weight_average=0.5", "--out", out, "--resume", "--force").code == 0
        assert run(*COMMAND, "weight_average=0,0.5", "--out", out, "--resume").code == 0
        assert [(own["settings"]["weight_average"], own["resumed"]) for own in _records(out)] == [(0.5, 0), (0.0, 1)]

    def test_of_the_code_are_named(
        self, run: Any, stopped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "out"
        stopped(*COMMAND, "--out", out)
        monkeypatch.setattr(resuming, "code", lambda: "another")
        said = run(*COMMAND, "--out", out, "--resume")
        assert said.code == 2
        assert "kcl was" in said.err
        assert "another" in said.err
        said = run(*COMMAND, "--out", out, "--resume", "--force")
        assert said.code == 0
        assert "something has changed" in said.err
        assert _records(out)[0]["resumed"] == 1

    def test_to_settings_of_every_method_in_older_versions_are_none(
        self, run: Any, stopped: Any, tmp_path: Path
    ) -> None:
        """Checkpoints, results and settings.json held all of them: the finished run is kept, the other goes on."""
        out, whole = tmp_path / "out", tmp_path / "whole"
        stopped(*COMMAND, "--seeds", "0,1", "--out", out, after=40)
        others = {"memory_per_class": 1, "recalled_per_step": 10, "ewc_fisher": "running", "ewc_strength": 10.0}
        [path] = out.glob("checkpoints/*/*.safetensors")
        saved = checkpoint.read(path)
        for fields in saved.about["runs"]:
            fields["settings"] |= others
        checkpoint.write(path, saved)
        path.parent.rename(path.parent.with_name("0123456789abcdef"))
        [record], listed = _records(out), json.loads((out / "settings.json").read_text())
        record["settings"] |= others
        (out / "results.jsonl").write_text(json.dumps(record) + "\n")
        for fields in listed["runs"]:
            fields["settings"] |= others
        (out / "settings.json").write_text(json.dumps(listed))
        assert run(*COMMAND, "--seeds", "0,1", "--out", out, "--resume").code == 0
        assert run(*COMMAND, "--seeds", "0,1", "--out", whole).code == 0
        assert [own["resumed"] for own in _records(out)] == [0, 1]
        assert [own["fingerprint"] for own in _records(out)] == [own["fingerprint"] for own in _records(whole)]
        assert json.loads((out / "settings.json").read_text()) == listed
        assert not (out / "checkpoints").exists()

    def test_of_the_device_cannot_be_forced(
        self, run: Any, stopped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made_with = resuming.made_with
        monkeypatch.setattr(resuming, "made_with", lambda *given: made_with(*given) | {"device": "cuda"})
        stopped(*COMMAND, "--out", tmp_path / "out")
        monkeypatch.setattr(resuming, "made_with", made_with)
        said = run(*COMMAND, "--out", tmp_path / "out", "--resume", "--force")
        assert said.code == 2
        assert "--device cuda" in said.err

    def test_of_the_command_keep_the_settings_of_both(self, run: Any, tmp_path: Path) -> None:
        out = tmp_path / "out"
        assert run(*COMMAND, "--out", out).code == 0
        assert run(*COMMAND, "lr=0.07", "--out", out, "--resume").code == 0
        content = (out / "settings.json").read_bytes()
        assert run(*COMMAND, "lr=0.07", "--out", out, "--resume").code == 0
        assert (out / "settings.json").read_bytes() == content
        saved = json.loads(content)
        assert [own["settings"]["lr"] for own in saved["runs"]] == [0.1, 0.07]
        assert "lr=0.07" not in saved["command"]
        assert [("lr=0.07" in command) for command in saved["later_commands"]] == [True]

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 2}', b"[" * 10**5, b"\xff" * 9, b'{"a": NaN}'])
    def test_of_settings_json_by_others_are_refused(self, run: Any, tmp_path: Path, content: bytes) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / "settings.json").write_bytes(content)
        said = run(*COMMAND, "--out", out, "--resume")
        assert said.code == 2
        assert said.err.count("\n") == 1
        assert "settings.json" in said.err
        assert (out / "settings.json").read_bytes() == content

    def test_force_alone_has_no_meaning(self, run: Any, tmp_path: Path) -> None:
        assert run(*COMMAND, "--out", tmp_path / "out", "--force").code == 2


def test_a_corrupt_newest_checkpoint_is_told_and_the_one_before_used(run: Any, stopped: Any, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    stopped(*COMMAND, "--checkpoint-every", "5", "--out", out)
    newer = max(out.glob("checkpoints/*/*"))
    spoiled = bytearray(newer.read_bytes())
    spoiled[-10] ^= 1
    newer.write_bytes(spoiled)
    said = run(*COMMAND, "--out", out, "--resume")
    assert said.code == 0
    assert said.err.count(newer.name) == 1
    assert not (out / "checkpoints").exists()
    assert run(*COMMAND, "--out", whole).code == 0
    assert _lasting(out) == _lasting(whole)


def test_checkpoints_can_be_turned_off(stopped: Any, tmp_path: Path) -> None:
    stopped(*COMMAND, "--checkpoint-every", "off", "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "checkpoints").exists()


class TestLock:
    def test_two_processes_do_not_share_a_folder(self, run: Any, tmp_path: Path) -> None:
        code = (
            "import sys, time, pathlib; from kcl.core.locking import locked\n"
            "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
        )
        environment = os.environ | {"PYTHONPATH": str(Path(kcl.__file__).parents[1])}
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            said = run(*COMMAND, "--out", tmp_path / "out")
            assert said.code == 2
            assert f"process {other.pid}" in said.err
        finally:
            other.kill()
            other.communicate()
        assert (tmp_path / "out" / ".lock").exists()
        assert run(*COMMAND, "--out", tmp_path / "out").code == 0, "a dead process holds nothing"

    def test_is_taken_again_and_again(self, tmp_path: Path) -> None:
        for _ in range(3):
            with locked(tmp_path), pytest.raises(KclError, match=str(os.getpid())), locked(tmp_path):
                pass
        assert list(tmp_path.iterdir()) == []


class TestStop:
    def test_interrupts_at_once_where_nothing_needs_care(self) -> None:
        stop = Stop()
        with stop.listening(), pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        with stop.deferred(), pytest.raises(Interrupted), stop.deferred(False):
            pass

    def test_waits_to_be_asked_where_care_is_needed(self) -> None:
        stop = Stop()
        with stop.listening(), stop.deferred():
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(Interrupted):
                stop.check()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_second_signal_ends_the_process(self, number: int) -> None:
        code = (
            "import os, time; from kcl.training.stopping import Stop\n"
            "stop = Stop()\n"
            "with stop.listening(), stop.deferred():\n"
            f"    os.kill(os.getpid(), {number}); print('still here', flush=True)\n"
            f"    os.kill(os.getpid(), {number}); time.sleep(60)"
        )
        environment = os.environ | {"PYTHONPATH": str(Path(kcl.__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=False
        )
        assert done.returncode == 128 + number
        assert done.stdout == "still here\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200", Every(200, None, thrifty=False)),
        ("5min", Every(None, 300.0, thrifty=False)),
        ("1.5h", Every(None, 5400.0, thrifty=False)),
        ("90s", Every(None, 90.0, thrifty=False)),
        ("off", Every(None, None)),
        ("0", Every(None, None)),
        ("auto", Every(None, 300.0)),
    ],
)
def test_how_often_in_words(text: str, expected: Every) -> None:
    assert parse_every(text) == expected


@pytest.mark.parametrize("text", ["", "often", "-3", "5 years", "min", "1e400s", "nans", "0s", "²", "9" * 30])
def test_how_often_must_make_sense(text: str) -> None:
    with pytest.raises(KclError, match="--checkpoint-every"):
        parse_every(text)


class TestThrift:
    """Where the user says nothing, saving takes at most a hundredth of the time: a scripted clock."""

    def _share(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cost: float, step: float) -> tuple[float, int]:
        now = [0.0]
        monkeypatch.setattr(checkpointer.time, "perf_counter", lambda: now[0])

        def slow(*_: Any) -> None:
            now[0] += cost

        monkeypatch.setattr(checkpointer.checkpoint, "write", slow)
        kept = checkpointer.Checkpointer(tmp_path)
        for number in range(5000):
            now[0] += step
            (kept.after_task if number % 50 == 49 else kept.after_step)(lambda: ({}, {}))  # type: ignore[arg-type]
        return kept.seconds / now[0], kept.saves

    @pytest.mark.parametrize(("cost", "step"), [(0.01, 0.001), (0.01, 1.0), (1.0, 0.1), (60.0, 1.0), (60.0, 60.0)])
    def test_is_kept(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cost: float, step: float) -> None:
        share, saves = self._share(monkeypatch, tmp_path, cost, step)
        assert share <= 0.0125  # the first save may cost more than was guessed
        if 5000 * step > 300 + 200 * cost:
            assert saves >= 1


class _FullDisk:
    """Fails the n-th operation of those that write, as a full disk would, and half way through a write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail_at: int) -> None:
        self.left = fail_at
        real_fsync, real_replace, real_open = os.fsync, Path.replace, open

        def fsync(descriptor: int) -> None:
            self.tick()
            real_fsync(descriptor)

        def replace(path: Path, target: Any) -> Path:
            self.tick()
            return real_replace(path, target)

        @contextlib.contextmanager
        def opened(path: Path, mode: str = "r", *given: Any, **named: Any) -> Iterator[Any]:
            with real_open(path, mode, *given, **named) as file:
                yield _Writing(self, file) if mode == "xb" else file

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "replace", replace)
        monkeypatch.setattr(files, "open", opened, raising=False)

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(28, "No space left on device")


class _Writing:
    def __init__(self, disk: _FullDisk, file: Any) -> None:
        self.disk, self.file = disk, file

    def write(self, content: bytes) -> int:
        try:
            self.disk.tick()
        except OSError:
            self.file.write(content[: len(content) // 2])
            raise
        return int(self.file.write(content))

    def flush(self) -> None:
        self.disk.tick()
        self.file.flush()

    def fileno(self) -> int:
        return int(self.file.fileno())


def test_a_disk_that_is_full_at_any_write_costs_nothing_but_that_checkpoint(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operation of every checkpoint fails in turn; the run goes on and ends as it would have."""
    import torch

    from kcl.training import checkpoint
    from kcl.training.checkpoint import Saved

    before = Saved({"a": torch.arange(5.0)}, {"n": 0})
    after = Saved({"a": torch.arange(6.0)}, {"n": 1})
    failures = 0
    for fail_at in range(1, 20):
        folder, told = tmp_path / str(fail_at), list[str]()
        kept = checkpointer.Checkpointer(folder, {}, Every(steps=1, seconds=None, thrifty=False), say=told.append)
        kept.save(lambda: before)
        with monkeypatch.context() as patched:
            _FullDisk(patched, fail_at)
            kept.save(lambda: after)
        found = kept.newest()
        assert found is not None
        assert found.about == (before.about if told else after.about)
        assert not list(folder.glob(".*"))
        assert checkpoint.read(checkpointer.numbered(folder)[0]).about == before.about
        failures += bool(told)
    assert failures == 4  # write, flush, fsync, rename; the folder's own fsync may fail without harm
