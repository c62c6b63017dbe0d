"""Naive SGD: one linear output over shared features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kcl.benchmarks.arrays import ArrayStream
from kcl.methods.sgd import NaiveSGD
from kcl.nets.mlp import MLP
from kcl.settings import Settings


@pytest.fixture
def stream(draw: Any) -> ArrayStream:
    """Two tasks with classes of their own."""
    labels = torch.arange(12)
    return ArrayStream([(draw.uniform(12, 4), labels % 2), (draw.uniform(12, 4), 2 + labels % 3)])


@pytest.fixture
def method() -> NaiveSGD:
    return NaiveSGD(Settings(width=6, dropout=0.0), class_count=5)


def test_answers_with_the_tasks_own_slice_of_the_output(
    method: NaiveSGD, stream: ArrayStream, seeded: Any, make_noise: Any
) -> None:
    with seeded(0):
        model = method.build(MLP((4,), 6, 2, 0.0))
    for task, classes in zip(stream, [[0, 1], [2, 3, 4]], strict=True):
        positions, memory = method.begin_task(model, task, np.random.default_rng(0))
        assert positions.tolist() == list(range(12))  # it keeps nothing back, and keeps no sample
        assert "inputs" not in memory
        features, labels = model.backbone(task.train.inputs), task.train.labels
        scores = (features @ model.output.weight.T + model.output.bias)[:, classes]
        expected = -torch.log_softmax(scores, -1)[torch.arange(12), labels].mean()
        torch.testing.assert_close(method.loss(model, memory, task.train.inputs, labels, make_noise(1)), expected)
        classifier = method.classifier(model, method.end_task(model, memory), make_noise(1))
        torch.testing.assert_close(method.logits(model, classifier, task.train.inputs), scores)


def test_can_answer_for_a_task_it_has_not_learned() -> None:
    assert NaiveSGD.answers_unseen
