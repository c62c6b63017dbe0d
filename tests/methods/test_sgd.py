"""Naive SGD: one linear output over shared features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kcl.benchmarks.array_stream import ArrayStream
from kcl.methods.method import Batch
from kcl.methods.sgd import LinearMethod, LinearSettings, NaiveSGD, StableSGD
from kcl.nets.mlp import MLP
from one_run import OneRun


@pytest.fixture
def stream(draw: Any) -> ArrayStream:
    """Two tasks with classes of their own."""
    labels = torch.arange(12)
    return ArrayStream([(draw.uniform(12, 4), labels % 2), (draw.uniform(12, 4), 2 + labels % 3)])


@pytest.fixture
def method() -> NaiveSGD:
    return NaiveSGD(LinearSettings(width=6, dropout=0.0), class_count=5)


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
        torch.testing.assert_close(
            method.loss(model, memory, Batch(task.train.inputs, labels), make_noise(1)), expected
        )
        classifier = method.classifier(model, method.end_task(model, memory), make_noise(1))
        torch.testing.assert_close(method.logits(model, classifier, task.train.inputs), scores)


def test_can_answer_for_a_task_it_has_not_learned() -> None:
    assert NaiveSGD.answers_unseen


def test_stable_sgd_without_decay_and_dropout_is_naive_sgd(stream: ArrayStream) -> None:
    """To the bit; and with either of them it is not."""

    def learned(kind: type[LinearMethod], **changes: Any) -> dict[str, torch.Tensor]:
        settings = LinearSettings(width=6, lr=0.05, **{"lr_decay": 1.0, "dropout": 0.0, **changes})
        run = OneRun(kind(settings, 5), lambda: MLP((4,), 6, 2, settings.dropout), 1)
        for task in stream:
            run.learn(task)
        return run.model.state_dict()

    naive = learned(NaiveSGD)
    torch.testing.assert_close(learned(StableSGD), naive, rtol=0.0, atol=0.0)
    for changes in ({"lr_decay": 0.5}, {"dropout": 0.25}):
        assert not torch.equal(learned(StableSGD, **changes)["output.weight"], naive["output.weight"])
