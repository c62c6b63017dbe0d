"""Worker processes of one machine: the same numbers, whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from engine_commands import LONG, RUNS, environment, finish, lasting, records, start, until

from kcl.cli import commands
from kcl.core.devices import Compute
from kcl.engines import worker
from kcl.engines.job import Job, Message
from kcl.experiments import resuming
from kcl.training.stopping import Stop

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as Unix has them")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_they_give_the_numbers_of_one_process_though_one_is_killed(reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start([*RUNS, "lr=0.1,0.05", "--seeds", "0..11", "--workers", "2", "--out", out])
    until(lambda: len(records(out)) >= 6, process)
    os.kill(_children(process.pid)[0], signal.SIGKILL)
    code, said = finish(process)
    assert code == 0, said
    assert "queued, " in said
    assert "killed by signal 9; trying again" in said
    assert lasting(out) == lasting(reference)
    assert sorted(path.name for path in out.iterdir()) == [
        "metrics.csv",
        "report.html",
        "results.jsonl",
        "settings.json",
    ]
    assert len((out / "metrics.csv").read_text().splitlines()) >= 1 + 24 * 2


def test_stopped_it_leaves_what_the_same_command_goes_on_with(long_reference: Path, tmp_path: Path) -> None:
    """By Ctrl-C, then by the death of the one who gives the orders, whose workers save and end."""
    out = tmp_path / "out"
    command = [*LONG, "--seeds", "0..2", "--workers", "2", "--out", str(out)]
    for number in (signal.SIGINT, signal.SIGKILL):
        process = start([*command, "--resume"])
        before = _newest(out)
        until(lambda before=before: _newest(out) >= before + 2, process)
        seen = json.loads((out / "standing.json").read_text())
        assert (seen["total"], seen["queued"] + seen["running"] + seen["done"]) == (3, 3)
        workers = _children(process.pid)
        process.send_signal(number)
        code, said = finish(process, 90)
        if number == signal.SIGINT:
            assert code == 130, said
            assert "to continue: " in said
        for pid in workers:
            _wait_for(pid)
        assert list(out.glob("checkpoints/*/*.safetensors"))
    assert commands.main([*command[:-4], "--out", str(out), "--resume", "--quiet"]) == 0, "this process goes on as well"
    assert lasting(out) == lasting(long_reference)
    assert max(record["resumed"] for record in records(out)) >= 1
    assert not (out / "checkpoints").exists()
    assert not (out / "standing.json").exists()


def _newest(out: Path) -> int:
    """The highest number of a checkpoint."""
    return max((int(path.stem) for path in out.glob("checkpoints/*/*.safetensors")), default=0)


def _wait_for(pid: int, seconds: float = 90.0) -> None:
    """A process whose parent died is nobody's child here."""
    end = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < end, "a worker outlives the one who gave it orders"
        time.sleep(0.05)


def test_what_fails_again_and_again_is_given_up_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here because the workers' code is not that of the one who asks."""
    monkeypatch.setattr(resuming, "code", lambda: "another")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "queue.py").write_text("raise SystemExit('not a module of ours')")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    command = [*RUNS, "--seeds", "7", "--retries", "1", "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        commands.main([*command, "--workers", "2"])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.count("trying again") == 1
    assert "1 run failed:" in said
    assert "kcl vrf seed 7: kcl's code here" in said
    assert "to try them again: kcl run" in said
    [log] = (path.read_text() for path in (out / "logs").glob("*.log"))
    assert "attempt 1 on worker-1" in log
    assert "attempt 2 on worker-2" in log
    monkeypatch.undo()
    assert commands.main([*command, "--resume", "--quiet"]) == 0
    assert len(records(out)) == 1


def test_a_worker_without_the_gpu_it_was_asked_for_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said: list[Message] = []
    job = Job([], "out", compute=Compute("cuda"), code=resuming.code())
    worker.run_job(job, said.append, Stop())
    assert [message["kind"] for message in said] == ["failed"]
    assert "finds no CUDA GPU" in said[0]["error"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--workers", "0"], "--workers must be"),
        (["--retries", "-1"], "--retries must be"),
        (["--address", "auto"], "--address needs --engine ray"),
        (["--slurm", "time=3"], "--slurm needs --engine slurm"),
        (["--workers", "2", "--gpu-memory", "80"], "--gpu-memory needs --engine ray"),
        (["--engine", "ray", "--gpu-memory", "0"], "--gpu-memory must be"),
        (["--engine", "slurm", "--slurm", "time"], "expected NAME=VALUE"),
        (["--engine", "slurm"], "there is no sbatch here"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "no Ray cluster answers"),
        (["--workers", "2", "--checkpoints", "nowhere://x"], "nowhere://x cannot be opened"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main([*RUNS, "--out", str(tmp_path / "out"), *options]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert told in said
    assert not list(tmp_path.glob("out/results*"))
