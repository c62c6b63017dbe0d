"""What is measured where nobody names the task, and for stacked runs as for plain ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kcl
from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.cli.commands import main
from kcl.data import digits
from kcl.experiments import admission, task_free
from kcl.experiments.run_spec import RunSpec
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.recipes import published_backbone, published_settings
from kcl.models.inference import Answerer
from kcl.models.joint_head import JointAnswers
from kcl.models.lessons import LearnedTask
from kcl.training.stack import RunStack
from like_gpu import LikeGpu
from one_run import OneRun

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
        assert row["scores"]["joint"]["task_free_accuracy"] > 60.0
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
    left, examples = task_free.set_aside(task, 5, 100)
    assert len(examples) == 100
    assert sorted([*left.train.rows.tolist(), *examples.rows.tolist()]) == sorted(task.train.rows.tolist())


def test_what_is_told_is_what_the_answers_say() -> None:
    """Counted from `Answerer.answer`, sample by sample, with the task named and without."""
    stream = PermutedPixels(digits.DIGITS.load(), tasks=3, seed=0, train_per_task=300)
    settings = published_settings("permuted-digits", "kcl").replace(bases=32, width=16, coreset_size_per_class=3)
    run = OneRun(KernelContinualLearning(settings, 10), lambda: published_backbone(stream.input_shape, settings), 0)
    for task in stream:
        run.learn(task)
    temperatures = {0: 3.0, 1: 0.4, 2: 1.0}
    calibrated, plain = (Answerer(run.stack, 0, own) for own in (temperatures, {}))
    found = task_free.evaluate(calibrated, stream, "cpu", 60)
    rows: dict[str, list[Any]] = {"right": [], "sure": [], "raw": [], "task": [], "free": []}
    for task in stream:
        inputs, labels = task.view(task.test.inputs[task.test.rows[:60]]), task.test.labels[:60]
        named, free = calibrated.answer(inputs, task.index), calibrated.answer(inputs, score="entropy")
        rows["right"] += (named.label == labels).tolist()
        rows["sure"] += named.confidence.tolist()
        rows["raw"] += plain.answer(inputs, task.index).confidence.tolist()
        rows["task"] += (free.task == task.index).tolist()
        rows["free"] += (free.label == labels).tolist()
    right, sure, raw = (np.array(rows[name]) for name in ("right", "sure", "raw"))
    assert found["test_samples"] == 180
    assert found["known_task_accuracy"] == pytest.approx(100 * right.mean())
    assert found["scores"]["entropy"]["task_accuracy"] == pytest.approx(100 * np.mean(rows["task"]))
    assert found["scores"]["entropy"]["task_free_accuracy"] == pytest.approx(100 * np.mean(rows["free"]))
    assert np.mean(rows["free"]) < right.mean() - 0.02
    right_of_all = [
        calibrated.method.answer(calibrated.model, JointAnswers(calibrated, _tasks(stream)).tensors, inputs, True)
        for inputs in (task.view(task.test.inputs[task.test.rows[:60]]) for task in stream)
    ]
    expected = [scores.argmax(1) == task.test.labels[:60] for scores, task in zip(right_of_all, stream, strict=True)]
    share = 100 * float(torch.cat(expected).double().mean())
    assert found["scores"]["joint"]["task_free_accuracy"] == pytest.approx(share, abs=1.0)
    for name, confidence in (("ece_calibrated", sure), ("ece_uncalibrated", raw)):
        places = np.ceil(15 * confidence)
        gaps = [abs((right - confidence)[places == place].sum()) for place in range(1, 16)]
        assert found[name] == pytest.approx(sum(gaps) / 180, abs=1e-4)
    assert abs(found["ece_calibrated"] - found["ece_uncalibrated"]) > 0.01


def _tasks(stream: PermutedPixels) -> dict[str, LearnedTask]:
    return {str(task.index): LearnedTask(task.index, task.classes, ()) for task in stream}


def test_stacked_runs_are_measured_as_plain_ones_are() -> None:
    dataset = digits.DIGITS.load()  # stacked runs share their stored array
    streams = [PermutedPixels(dataset, tasks=2, seed=seed, train_per_task=400) for seed in (0, 1)]
    # So small a rate that the last digits, in which the two differ, are not amplified.
    settings = published_settings("permuted-digits", "kcl").replace(bases=64, width=32, lr=1e-5)
    methods = [KernelContinualLearning(settings, 10) for _ in streams]
    backbone: Any = lambda: published_backbone(streams[0].input_shape, settings)  # noqa: E731
    stacked = RunStack(methods, [backbone] * 2, (0, 1), "cpu")
    plain = [OneRun(method, backbone, seed) for seed, method in enumerate(methods)]
    for index in range(2):
        stacked.learn([stream[index] for stream in streams])
        for run, stream in zip(plain, streams, strict=True):
            run.learn(stream[index])
    for place, (run, stream) in enumerate(zip(plain, streams, strict=True)):
        answerers = Answerer(stacked, place, {}), Answerer(run.stack, 0, {})
        found = [task_free.evaluate(answerer, stream, "cpu") for answerer in answerers]
        assert found[0]["known_task_accuracy"] == pytest.approx(found[1]["known_task_accuracy"], abs=0.5)
        named = sum(run.accuracy(task) for task in stream) / 2
        assert found[1]["known_task_accuracy"] == pytest.approx(named, abs=0.2)
        for score in ("typicality", "entropy"):
            one, two = (measured["scores"][score]["task_accuracy"] for measured in found)
            assert one == pytest.approx(two, abs=1.0)
    assert torch.isfinite(stacked.state.flat).all()


def _specs(**changes: Any) -> list[RunSpec]:
    settings = published_settings("permuted-digits", "kcl").replace(bases=64, width=32, **changes)
    return [RunSpec("permuted-digits", "kcl", seed, settings, 2, 400) for seed in (0, 1)]


def test_stacked_runs_are_measured_as_on_a_gpu() -> None:
    """The way of a GPU, one group of stacked runs, where none is."""
    compute, samples = LikeGpu(precision="float32", runs_at_once=2), task_free.SampleCounts(50, 200)
    rows = task_free.measure(_specs(), compute, samples)
    assert [row["seed"] for row in rows] == [0, 1]
    for row in rows:
        assert row["test_samples"] == 400
        assert row["known_task_accuracy"] > 40.0
        assert 0.0 <= row["scores"]["typicality"]["task_accuracy"] <= 100.0


@pytest.mark.parametrize(("updates", "compiled"), [(1, False), (2, True)])
def test_several_updates_per_batch_count_as_steps(
    monkeypatch: pytest.MonkeyPatch, updates: int, compiled: bool
) -> None:
    """Two tasks of 400 samples in batches of ten are 80 steps, so that 160 make a run a long one."""

    class Built(Exception):
        pass

    def stacked(*arguments: Any) -> None:
        raise Built(arguments[4])

    monkeypatch.setattr(admission, "LONG", 160)
    monkeypatch.setattr(admission, "RunStack", stacked)
    specs, samples = _specs(updates_per_batch=updates, epochs=1, batch_size=10), task_free.SampleCounts(50)
    with pytest.raises(Built) as built:
        task_free.measure(specs, LikeGpu(runs_at_once=2), samples)
    assert built.value.args == (compiled,)
