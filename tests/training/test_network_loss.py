"""`network_loss=linear`: a linear output trains the network, and the ridge classifiers come from coresets alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import kcl
from kcl.benchmarks.array_stream import ArrayStream
from kcl.benchmarks.task import Task
from kcl.core.randomness import numpy_generator
from kcl.errors import KclError
from kcl.methods.coreset import Split, split_coreset
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.kcl_settings import KclSettings
from kcl.nets.backbone import Identity
from kcl.nets.mlp import MLP
from kcl.training.stacked_task import batch_order
from one_run import OneRun

LR, MOMENTUM, BATCH = 0.1, 0.5, 6


def _settings(**changes: Any) -> KclSettings:
    plain = {"lr": LR, "lr_decay": 1.0, "momentum": MOMENTUM, "batch_size": BATCH, "dropout": 0.0, "width": 8}
    kernel = {"kernel": "linear", "coreset_size_per_class": 4, "network_loss": "linear"}
    return KclSettings(**kernel | plain | changes)


def _run(settings: KclSettings) -> OneRun:
    return OneRun(KernelContinualLearning(settings, 6), lambda: MLP((5,), 8, 2, settings.dropout), 3)


def _split(run: OneRun, task: Task) -> Split:
    """The coreset that the run draws of a task, and the samples that it learns from."""
    rng = numpy_generator(run.seed, "coreset", task.index)
    return split_coreset(task.train.labels.numpy(), run.method.settings.coreset_size_per_class, rng)


@pytest.fixture
def stream(draw: Any) -> ArrayStream:
    """Three tasks with two classes of their own."""
    labels = torch.arange(40) % 2
    tasks = [(draw.normal(40, 5) + 2.0 * labels[:, None], 2 * task + labels) for task in range(3)]
    return ArrayStream(tasks, tasks)


def test_the_network_learns_what_anyone_would_write(stream: ArrayStream) -> None:
    """SGD on the network and on a linear layer that begins at zero with every task; the coreset takes no part."""
    run = _run(_settings())
    with torch.random.fork_rng(devices=[]):
        network = MLP((5,), 8, 2, 0.0)
    network.load_state_dict(run.model.backbone.state_dict())
    for task in stream:
        run.learn(task)
        coreset, rest = _split(run, task)
        assert torch.equal(run.kept[task.index].memory["inputs"], task.train.inputs[coreset])
        order = torch.from_numpy(batch_order(run.seed, task.index, 0, rest))
        weights, bias = torch.zeros(2, 8, requires_grad=True), torch.zeros(2, requires_grad=True)
        optimizer = torch.optim.SGD([*network.parameters(), weights, bias], LR, MOMENTUM)
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            scores = network(task.train.inputs[batch]) @ weights.mT + bias
            F.cross_entropy(scores, task.train.labels[batch]).backward()
            optimizer.step()
        for mine, other in zip(run.model.backbone.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_the_coreset_is_not_seen_in_training(stream: ArrayStream) -> None:
    """With other samples in the coreset, but the same ones to learn from, the network is the same to the bit."""
    networks = []
    for change in (0.0, 5.0):
        run = _run(_settings())
        task = stream[0]
        rows, _ = _split(run, task)
        inputs = task.train.inputs.clone()
        inputs[rows] += change
        run.learn(ArrayStream([(inputs, task.train.labels)], [(inputs, task.train.labels)])[0])
        networks.append(run.model.backbone.state_dict())
        assert change == 0.0 or not torch.equal(run.kept[0].memory["inputs"], task.train.inputs[rows])
    for name, tensor in networks[0].items():
        assert torch.equal(tensor, networks[1][name])


def test_nothing_more_is_kept_than_with_the_ridge_loss(stream: ArrayStream) -> None:
    linear, ridge = (_run(_settings(network_loss=loss)) for loss in ("linear", "ridge"))
    for run in (linear, ridge):
        run.learn(stream[0])
    assert linear.kept[0].memory.keys() == ridge.kept[0].memory.keys()
    assert linear.stack.memory_use() == ridge.stack.memory_use()
    assert linear.model.state_dict().keys() == ridge.model.state_dict().keys()


def test_test_strength_sets_the_ridge_strength(stream: ArrayStream) -> None:
    """λ, scale and shift keep the values that they begin with."""
    run = _run(_settings())
    run.learn(stream[0])
    memory = run.kept[0].memory
    assert [memory[name].item() for name in ("strength", "scale", "shift")] == pytest.approx([0.11, 1.0, 0.0])
    weak, strong = (_run(_settings(test_strength=each)) for each in (0.1, 100.0))
    for other in (weak, strong):
        other.learn(stream[0])
    assert weak.scores(stream[0]).abs().mean() > 2.0 * strong.scores(stream[0]).abs().mean()


@pytest.mark.parametrize("change", [{"soft_targets": 0.5}, {"kernel": "vrf"}, {"kernel": "vrf-uninformative"}], ids=str)
def test_what_only_the_ridge_loss_trains_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(KclError, match=next(iter(change))):
        _run(_settings(**change))


def test_a_network_without_parameters_is_refused() -> None:
    with pytest.raises(KclError, match="nothing to train"):
        OneRun(KernelContinualLearning(_settings(), 6), lambda: Identity((5,)), 3)


def test_a_continual_model_learns_with_it() -> None:
    """Tasks of different numbers of classes, told apart with and without their names, and taught more."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(7, 12)) * 4.0

    def samples(classes: list[int], count: int) -> tuple[Any, Any]:
        y = np.repeat(classes, count)
        return (centres[y] + random.normal(size=(len(y), 12))).astype(np.float32), y

    model = kcl.ContinualModel(backbone="mlp", kernel="linear", network_loss="linear", matched_targets=True)
    for classes in ([0, 1], [2, 3, 4], [5, 6]):
        model.learn(*samples(classes, 60), task=str(classes))
    model.learn(*samples([2, 3, 4], 30), task="[2, 3, 4]")
    x, y = samples(list(range(7)), 20)
    assert model.accuracy(x, y) > 90.0
    named = y[(y >= 2) & (y <= 4)]
    assert model.accuracy(x[(y >= 2) & (y <= 4)], named, task="[2, 3, 4]") > 90.0
