"""Checkpoints on an fsspec URL: copied, fetched, cleared; gone on with by a machine that has no other copy."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import torch
from engine_commands import LONG, finish, lasting, records, start, until

from kcl import remote
from kcl.errors import KclError
from kcl.training import checkpoint
from kcl.training.checkpoint import Saved
from kcl.training.keeper import Every, Keeper, newest

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
    keeper = remote.keeper(url, Keeper(here, every=Every(steps=1, seconds=None)))
    for number in range(4):
        keeper.save(lambda number=number: _saved(number))
    assert [path.rpartition("/")[2] for path in fsspec.filesystem("memory").find("/bucket")] == [
        "00000003.safetensors",
        "00000004.safetensors",
    ]
    remote.pull_all(url, there.parent)
    found, trouble = newest(there)
    assert found is not None
    assert trouble == []
    assert found.tensors["weights"].tolist() == [3.0] * 3
    remote.clear(url, there)
    assert fsspec.filesystem("memory").find("/bucket") == []
    remote.pull(url, there)  # nothing newer is there


def test_a_copy_that_was_cut_is_found_out_and_the_one_before_used(url: str, tmp_path: Path) -> None:
    keeper = remote.keeper(url, Keeper(tmp_path / "here" / "group", every=Every(steps=1, seconds=None)))
    for number in (1, 2):
        keeper.save(lambda number=number: _saved(number))
    files = fsspec.filesystem("memory")
    last = files.find("/bucket")[-1]
    files.pipe_file(last, files.cat_file(last)[:-7])
    remote.pull_all(url, tmp_path / "there")
    found, trouble = newest(tmp_path / "there" / "group")
    assert found is not None
    assert found.tensors["weights"].tolist() == [1.0] * 3
    assert len(trouble) == 1


def test_a_store_that_fails_costs_no_run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def broken(*_: object) -> None:
        raise OSError("the store is closed")

    monkeypatch.setattr(remote, "push", broken)
    local = Keeper(tmp_path / "group", every=Every(steps=1, seconds=None), say=said.append)
    remote.keeper(url, local).save(lambda: _saved(1))
    assert said == [f"no checkpoint could be copied to {url} (the store is closed); the run goes on"]
    assert checkpoint.read(tmp_path / "group" / "00000001.safetensors").tensors["weights"].tolist() == [1.0] * 3


def test_an_unknown_kind_of_url_is_one_sentence() -> None:
    with pytest.raises(KclError, match="nowhere://x cannot be opened"):
        remote.open_url("nowhere://x")


def test_workers_go_on_from_the_copies_alone(long_reference: Path, tmp_path: Path) -> None:
    out, url = tmp_path / "out", f"file://{tmp_path}/store"
    command = [*LONG, "--seeds", "0..2", "--workers", "2", "--checkpoints", url, "--out", out]
    process = start(command)
    until(lambda: list((tmp_path / "store").glob("*/*.safetensors")), process)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143
    shutil.rmtree(out / "checkpoints")
    code, said = finish(start([*command, "--resume"]))
    assert code == 0, said
    assert lasting(out) == lasting(long_reference)
    assert max(record["resumed"] for record in records(out)) == 1
    assert list((tmp_path / "store").rglob("*.safetensors")) == []
