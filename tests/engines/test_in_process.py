"""Runs done in the process that was asked: what one of them raises costs that one only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_commands import RUNS, records

from kcl.cli import commands
from kcl.errors import KclError
from kcl.experiments import group_training
from kcl.experiments.group_training import Experiment
from kcl.experiments.run_spec import RunGroup

pytest.importorskip("sklearn")
THREE = [*RUNS, "--seeds", "0..2", "--quiet"]


def _raising(monkeypatch: pytest.MonkeyPatch, error: Exception, seed: int = 1) -> None:
    """The runs of one seed raise when they are trained."""
    train = group_training._train

    def broken(experiment: Experiment, group: RunGroup, *given: Any) -> None:
        if any(spec.seed == seed for spec in group.specs):
            raise error
        train(experiment, group, *given)

    monkeypatch.setattr(group_training, "_train", broken)


def _seeds(out: Path) -> list[int]:
    return [record["seed"] for record in records(out)]


def test_the_others_go_on_and_what_failed_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        _raising(patched, ZeroDivisionError("something\nwent wrong"))
        assert commands.main([*THREE, "--out", str(out)]) == 1
    said = capsys.readouterr().err
    [log] = (out / "logs").iterdir()
    assert f"1 run failed:\n  kcl vrf seed 1: ZeroDivisionError: something; log: {log}\n" in said
    assert said.endswith(f"--out {out} --resume\n")
    assert "went wrong" in log.read_text()
    assert "Traceback" in log.read_text()
    assert _seeds(out) == [0, 2]
    assert commands.main([*THREE, "--out", str(out), "--resume"]) == 0
    assert _seeds(out) == [0, 2, 1]


def test_what_is_refused_ends_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _raising(monkeypatch, KclError("not like this"))
    assert commands.main([*THREE, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "kcl: not like this\n"
    assert _seeds(tmp_path / "out") == [0]


def test_after_an_error_that_stays_with_the_gpu_the_others_are_not_begun_and_listed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _raising(monkeypatch, RuntimeError("CUDA error: device-side assert triggered"))
    monkeypatch.setattr(group_training, "usable", lambda _: False)
    assert commands.main([*THREE, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "2 runs failed:" in said
    assert "  kcl vrf seed 1: RuntimeError: CUDA error: device-side assert triggered; log: " in said
    assert f"  the others: {group_training.UNUSABLE}; log: " in said
    assert _seeds(tmp_path / "out") == [0]


def test_a_device_that_no_longer_answers_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    assert group_training.usable(torch.device("cuda"))
    assert group_training.usable(torch.device("cpu"))

    def broken(_: torch.device) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    assert not group_training.usable(torch.device("cuda"))


def test_of_memory_that_is_missing_it_is_told_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _raising(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    assert commands.main([*THREE, "--out", str(tmp_path / "out")]) == 1
    assert "CUDA out of memory; try smaller settings or --runs-at-once; log: " in capsys.readouterr().err
