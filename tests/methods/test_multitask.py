"""Multi-task: plain training on everything, shuffled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kcl.benchmarks.array_stream import ArrayStream
from kcl.benchmarks.joint_task import join
from kcl.core.randomness import numpy_generator
from kcl.errors import KclError
from kcl.methods.sgd import LinearSettings, MultiTask
from kcl.nets.mlp import MLP
from kcl.training.state import build_model
from kcl.training.stream_run import run_streams
from one_run import OneRun

SETTINGS = LinearSettings(width=8, lr=0.1, lr_decay=1.0, momentum=0.5, dropout=0.0, batch_size=7)


@pytest.fixture
def stream(draw: Any) -> ArrayStream:
    """Two tasks of different sizes with two and three classes of their own."""
    tasks = []
    for size, values in ((20, [0, 3]), (33, [1, 2, 4])):
        labels = torch.tensor(values)[torch.arange(size) % len(values)]
        tasks.append((draw.normal(size, 6) + F.one_hot(labels, 6), labels))
    return ArrayStream(tasks, tasks)


def _run(settings: Settings = SETTINGS) -> OneRun:
    return OneRun(MultiTask(settings, 5), lambda: MLP((6,), 8, 2, 0.0), 3)


@pytest.mark.parametrize("epochs", [1, 2])
def test_equals_plain_shuffled_training(stream: ArrayStream, epochs: int) -> None:
    settings = SETTINGS.replace(epochs=epochs)
    run = _run(settings)
    told: list[float] = []
    run.learn(join(list(stream), 5), lambda step: told.append(step.loss))
    model = build_model(MultiTask(settings, 5), lambda: MLP((6,), 8, 2, 0.0), 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    samples = [(task, place) for task in stream for place in range(len(task.train))]
    expected = []
    for epoch in range(epochs):
        order = numpy_generator(3, "batch order", 0, epoch).permutation(len(samples))
        for start in range(0, len(order), 7):
            losses = []
            for number in order[start : start + 7]:
                task, place = samples[number]
                scores = model.output(model.backbone(task.train.inputs[[place]]))[:, list(task.classes)]
                losses.append(F.cross_entropy(scores, task.train.labels[[place]]))
            loss = torch.stack(losses).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
    assert told == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(run.model.state_dict(), model.state_dict(), rtol=1e-4, atol=1e-5)


def test_every_task_is_answered_for_afterwards_and_only_the_last_row_is_recorded(stream: ArrayStream) -> None:
    run = _run(SETTINGS.replace(epochs=20))
    progress: list[tuple[int, int]] = []
    (outcome,) = run_streams(
        run.stack,
        [stream],
        lambda told: progress.append((told.task, told.tasks)) if told.step is None else None,
    )
    rows = outcome.matrix.to_lists()
    assert rows[0] == [None, None]
    assert rows[1] == [run.accuracy(task) for task in stream]
    assert outcome.matrix.average_accuracy == pytest.approx(sum(rows[1]) / 2)
    assert outcome.matrix.average_accuracy > 80.0
    assert outcome.matrix.forgetting is None
    assert outcome.memory == {"samples": 53, "bytes": 53 * 6 * 4}
    assert len(outcome.learning_seconds) == 1
    assert progress == [(0, 1)]
    for task in stream:
        assert run.kept[task.index].memory["classes"].tolist() == list(task.classes)
        assert run.scores(task).shape == (len(task.test), task.ways)


def test_tasks_are_learned_once(stream: ArrayStream) -> None:
    run = _run()
    run.learn(join(list(stream), 5))
    with pytest.raises(KclError, match="learned before"):
        run.learn(join(list(stream), 5))
