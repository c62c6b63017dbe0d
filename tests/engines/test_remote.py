"""Checkpoints on an fsspec URL: copied, fetched, cleared; gone on with by a machine that has no other copy."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_commands import LONG, lasting, records

from kcl.cli import commands, requested_runs
from kcl.core.devices import Compute
from kcl.engines import worker
from kcl.engines.job import Job, make_jobs
from kcl.errors import KclError
from kcl.experiments import remote_checkpoints
from kcl.experiments.admission import admit
from kcl.experiments.group_training import Experiment
from kcl.experiments.resuming import RunOptions
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunGroup
from kcl.training import checkpoint
from kcl.training.checkpoint import Saved
from kcl.training.checkpointer import Every, newest
from kcl.training.stopping import Stop

fsspec = pytest.importorskip("fsspec")


def _saved(number: float) -> Saved:
    return Saved({"weights": torch.full((3,), number)}, {"runs": []})


@pytest.fixture
def url() -> str:
    """In memory: no two tests, and no two processes, share it."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    return "memory://bucket/runs"


def test_the_last_two_are_copied_and_can_be_fetched(url: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here" / "group", tmp_path / "there" / "group"
    checkpointer = remote_checkpoints.MirroringCheckpointer(url, here, every=Every(steps=1, seconds=None))
    for number in range(4):
        checkpointer.save(lambda number=number: _saved(number))
    assert [path.rpartition("/")[2] for path in fsspec.filesystem("memory").find("/bucket")] == [
        "00000003.safetensors",
        "00000004.safetensors",
    ]
    remote_checkpoints.pull_all(url, there.parent)
    found, trouble = newest(there)
    assert found is not None
    assert trouble == []
    assert found.tensors["weights"].tolist() == [3.0] * 3
    remote_checkpoints.forget(there, url)
    assert fsspec.filesystem("memory").find("/bucket") == []
    remote_checkpoints.pull(url, there)  # nothing newer is there


def test_a_copy_that_was_cut_is_found_out_and_the_one_before_used(url: str, tmp_path: Path) -> None:
    checkpointer = remote_checkpoints.MirroringCheckpointer(
        url, tmp_path / "here" / "group", every=Every(steps=1, seconds=None)
    )
    for number in (1, 2):
        checkpointer.save(lambda number=number: _saved(number))
    files = fsspec.filesystem("memory")
    last = files.find("/bucket")[-1]
    files.pipe_file(last, files.cat_file(last)[:-7])
    remote_checkpoints.pull_all(url, tmp_path / "there")
    found, trouble = newest(tmp_path / "there" / "group")
    assert found is not None
    assert found.tensors["weights"].tolist() == [1.0] * 3
    assert len(trouble) == 1


def test_a_store_that_fails_costs_no_run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def broken(*_: object) -> None:
        raise OSError("the store is closed")

    monkeypatch.setattr(remote_checkpoints, "push", broken)
    every = Every(steps=1, seconds=None)
    checkpointer = remote_checkpoints.MirroringCheckpointer(url, tmp_path / "group", every=every, say=said.append)
    checkpointer.save(lambda: _saved(1))
    assert [url in message and "the store is closed" in message for message in said] == [True]
    assert checkpoint.read(tmp_path / "group" / "00000001.safetensors").tensors["weights"].tolist() == [1.0] * 3


def test_an_unknown_kind_of_url_is_one_sentence() -> None:
    with pytest.raises(KclError, match="nowhere://x cannot be opened"):
        remote_checkpoints.open_url("nowhere://x")


class _Stopping:
    """A display that sends this process a signal at the hundredth report of progress."""

    reports = 0

    def expect(self, done: int, total: int) -> None: ...

    def watch(self, label: str) -> Callable[[Any], None]:
        return self._report

    def _report(self, _: Any) -> None:
        self.reports += 1
        if self.reports == 100:
            os.kill(os.getpid(), signal.SIGTERM)

    def say(self, message: str) -> None: ...

    def close(self) -> None: ...


def test_runs_go_on_from_the_copies_alone(
    long_reference: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    command = [*LONG, "--seeds", "0,1", "--checkpoints", url, "--out", str(out), "--quiet"]
    with monkeypatch.context() as patched:
        patched.setattr("kcl.cli.execution.make_display", lambda _: _Stopping())
        assert commands.main(command) == 143
    shutil.rmtree(out / "checkpoints")
    assert commands.main([*command, "--resume"]) == 0
    assert lasting(out) == [run for run in lasting(long_reference) if run["seed"] < 2]
    assert max(record["resumed"] for record in records(out)) == 1
    assert fsspec.filesystem("memory").find("/bucket") == []


def test_worker_processes_copy_and_go_on_too(long_reference: Path, url: str, tmp_path: Path) -> None:
    """The part of a worker, in this process, on a machine that sees no other folder."""
    said = list[dict[str, Any]]()
    stop = Stop()

    def tell(message: dict[str, Any]) -> None:
        said.append(message)
        if message["kind"] == "progress" and message["task"] == 1:
            stop.signal = signal.SIGTERM

    worker.run_job(_job(tmp_path / "one", url), tell, stop)
    assert said[-1]["kind"] == "stopped"
    assert fsspec.filesystem("memory").find("/bucket")
    again = list[dict[str, Any]]()
    worker.run_job(_job(tmp_path / "two", url), again.append, Stop())
    assert again[-1]["kind"] == "done"
    [record] = (message["record"] for message in again if message["kind"] == "record")
    assert record["resumed"] == 1
    assert record["fingerprint"] == next(own["fingerprint"] for own in records(long_reference) if own["seed"] == 0)
    assert fsspec.filesystem("memory").find("/bucket"), "until the result has arrived, the copies stay"
    assert not list((tmp_path / "two").rglob("*.safetensors"))


def _job(out: Path, url: str) -> Job:
    """The job for the first of the long runs."""
    options = commands._parser().parse_args([*LONG, "--out", str(out)])
    [spec] = requested_runs.specs(options)
    options = RunOptions(Every(steps=20, seconds=None, thrifty=False), checkpoints=url)
    experiment = Experiment(admit([spec], Compute()), Folder(out, resume=False), options._replace(command="kcl run"))
    [job] = make_jobs(experiment, [RunGroup([experiment.plan.specs], plain=True)])
    return job
