"""What is measured where nobody names the task, and for stacked runs as for separate ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import kcl
from kcl import task_free
from kcl.benchmarks.mnist import PermutedPixels
from kcl.cli import main
from kcl.data import digits
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.recipes import published_backbone, published_settings
from kcl.run_spec import RunSpec
from kcl.training.learner import SeparateRuns
from kcl.training.run import Run
from kcl.training.stacked import StackedRuns

pytest.importorskip("sklearn")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "free.json"
    asked = ["task-free", "permuted-digits", "--tasks", "3", "--seeds", "0,1", "--device", "cpu", "--held-out", "100"]
    assert main([*asked, "--json", str(out)]) == 0
    told = capsys.readouterr().out
    assert "by variance" in told
    assert "calibration error" in told
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["seed"] for row in rows] == [0, 1]
    for row in rows:
        assert row["scores"]["typicality"]["task_accuracy"] > 80.0
        assert row["scores"]["typicality"]["task_free_accuracy"] > 60.0
        assert row["known_task_accuracy"] > 65.0
        assert 0.0 <= row["ece_calibrated"] < 0.3
        surest = row["accuracy_of_the_surest"]
        assert surest["0.5"] >= surest["1"] == pytest.approx(row["known_task_accuracy"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["permuted-digits", "--method", "naive-sgd"], "use --method kcl"),
        (["permuted-digits", "--held-out", "2"], "at least 10"),
        (["permuted-digits", "--held-out", "1000"], "more than half"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["task-free", *arguments, "--tasks", "2", "--device", "cpu"]) == 2
    assert words in capsys.readouterr().err


def test_held_out_samples_are_not_trained_on() -> None:
    task = kcl.PermutedDigits(tasks=2, train_per_task=300)[1]
    split = task_free.hold_out(task, 5, 100)
    assert len(split.examples) == 100
    assert sorted([*split.task.train.rows.tolist(), *split.examples.rows.tolist()]) == sorted(task.train.rows.tolist())


def test_stacked_runs_are_measured_as_separate_ones_are() -> None:
    dataset = digits.load()  # stacked runs share their stored array
    streams = [PermutedPixels(dataset, tasks=2, seed=seed, train_per_task=400) for seed in (0, 1)]
    # So small a rate that the last digits, in which the two differ, are not amplified.
    settings = published_settings("permuted-digits", "kcl").replace(bases=64, width=32, lr=1e-5)
    methods = [KernelContinualLearning(settings, 10) for _ in streams]
    backbone: Any = lambda: published_backbone(streams[0].input_shape, settings)  # noqa: E731
    stacked = StackedRuns(methods, [backbone] * 2, (0, 1), "cpu")
    separate = SeparateRuns([Run(method, backbone, seed) for seed, method in enumerate(methods)])
    for index in range(2):
        for learner in (stacked, separate):
            learner.learn([stream[index] for stream in streams], lambda _: None)
    for run, stream in enumerate(streams):
        found = [
            task_free.evaluate(task_free._answerer(learner, run, {}), stream, "cpu") for learner in (stacked, separate)
        ]
        assert found[0]["known_task_accuracy"] == pytest.approx(found[1]["known_task_accuracy"], abs=0.5)
        named = sum(separate.runs[run].accuracy(task) for task in stream) / 2
        assert found[1]["known_task_accuracy"] == pytest.approx(named, abs=0.2)
        for score in ("typicality", "entropy"):
            one, two = (measured["scores"][score]["task_accuracy"] for measured in found)
            assert one == pytest.approx(two, abs=1.0)
    assert torch.isfinite(stacked.state.flat).all()


def test_stacked_runs_are_measured_as_on_a_gpu() -> None:
    """The way of a GPU, one group of stacked runs, where none is."""
    dataset = digits.load()
    streams = [PermutedPixels(dataset, tasks=2, seed=seed, train_per_task=400) for seed in (0, 1)]
    settings = published_settings("permuted-digits", "kcl").replace(bases=64, width=32)
    specs = [RunSpec("permuted-digits", "kcl", seed, settings, 2, 400) for seed in (0, 1)]
    engine = task_free.Engine(precision="float32")
    rows = list(task_free._group(specs, streams, "cpu", 50, 200, lambda _: None, engine))
    assert [row["seed"] for row in rows] == [0, 1]
    for row in rows:
        assert row["test_samples"] == 400
        assert row["known_task_accuracy"] > 40.0
        assert 0.0 <= row["scores"]["typicality"]["task_accuracy"] <= 100.0
