"""Learned targets of the coreset, and λ at test: against the equations, in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.data.dataset import Dataset
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.method import Batch
from kcl.methods.recipes import published_backbone
from kcl.methods.ridge_kernels import KERNELS
from kcl.nets.backbone import ModuleBackbone
from one_run import OneRun

STRENGTH, SCALE, SHIFT, RATE = 0.37, 3.1, -0.4, 0.625


class Made:
    """A linear kernel on features of unit length, six anchors of three classes, five queries."""

    def __init__(self, seeded: Any, **settings: Any) -> None:
        with seeded(0):
            net = nn.Sequential(nn.Linear(4, 7), nn.Tanh())
            self.method = KernelContinualLearning(KclSettings(kernel="linear", **settings), 3, 3)
            self.model = self.method.make(ModuleBackbone(net, (4,))).double()
            self.coreset, self.batch = torch.rand(6, 4).double(), torch.rand(5, 4).double()
            self.correction = torch.randn(6, 3).double()
        self.labels = torch.tensor([2, 0, 1, 1, 2])
        with torch.no_grad():
            for name, value in (("raw_strength", STRENGTH - 0.01), ("scale", SCALE), ("shift", SHIFT)):
                getattr(self.model.head, name).fill_(value)
        self.memory = {"inputs": self.coreset, "targets": torch.eye(3, dtype=torch.uint8).repeat(2, 1)}

    def features(self, x: Tensor) -> np.ndarray:
        weight, bias = (own.detach().numpy() for own in self.model.backbone.module[0].parameters())
        found = np.tanh(x.numpy() @ weight.T + bias)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def scores(self, targets: np.ndarray, strength: float) -> np.ndarray:
        """Of the batch: s · φ(x) (FᵀF + λI)⁻¹ FᵀT + b."""
        anchors = self.features(self.coreset)
        weights = np.linalg.solve(anchors.T @ anchors + strength * np.eye(7), anchors.T @ targets)
        return SCALE * self.features(self.batch) @ weights + SHIFT

    def loss(self, correction: np.ndarray) -> float:
        scores = self.scores(np.tile(np.eye(3), (2, 1)) + RATE * correction, STRENGTH)
        chosen = scores[np.arange(5), self.labels.numpy()]
        return float(np.mean(np.log(np.exp(scores).sum(1)) - chosen))


def test_targets_follow_the_gradient_of_what_they_would_give(seeded: Any, draw: Any) -> None:
    made = Made(seeded, soft_targets=RATE)
    learned = made.correction.clone().requires_grad_()
    [found] = made.method.observe(
        made.model, made.memory | {"correction": learned}, Batch(made.batch, made.labels), draw
    )
    assert found.item() == pytest.approx(made.loss(np.zeros((6, 3))), rel=1e-9), "what is told is of one-hot targets"
    [slope] = torch.autograd.grad(found, [learned])
    for sample, label in ((0, 0), (3, 2), (5, 1)):
        moved = [made.correction.clone().numpy() for _ in range(2)]
        moved[0][sample, label] += 1e-5
        moved[1][sample, label] -= 1e-5
        difference = (made.loss(moved[0]) - made.loss(moved[1])) / 2e-5
        assert float(slope[sample, label]) == pytest.approx(difference, rel=1e-6)


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_everything_else_is_learned_as_without(kernel: str) -> None:
    """To the bit: weights, λ, scale, shift, samples kept."""
    plain, learned = (_run(kernel=kernel, batch_size=4, soft_targets=rate) for rate in (0.0, 0.7))
    for task in _stream():
        for run in (plain, learned):
            run.learn(task)
        correction = learned.stack.kept[task.index][0].pop("correction")
        assert float(correction.abs().max()) > 1e-4
    assert plain.stack.fingerprints() == learned.stack.fingerprints()


@pytest.mark.parametrize("multiple", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("rate", [0.0, RATE])
def test_answers_are_fitted_to_the_same_with_a_multiple_of_the_strength(
    seeded: Any, draw: Any, multiple: float, rate: float
) -> None:
    made = Made(seeded, soft_targets=rate, test_strength=multiple)
    memory = made.memory | ({"correction": made.correction} if rate else {})
    memory = made.method.end_task(made.model, memory)
    assert memory["strength"].item() == pytest.approx(STRENGTH), "what is kept is what was learned"
    targets = np.tile(np.eye(3), (2, 1)) + rate * made.correction.numpy()
    expected = made.scores(targets, multiple * STRENGTH)
    with torch.no_grad():
        found = made.method.answer(
            made.model, made.method.classifier(made.model, made.method.show(memory), draw), made.batch
        )
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def _stream(samples: int = 40) -> PermutedPixels:
    random = torch.Generator().manual_seed(5)
    labels = torch.arange(samples) % 4
    inputs = (200 * torch.rand(4, 1, 5, 5, generator=random)[labels]).to(torch.uint8)
    inputs += (55 * torch.rand(inputs.shape, generator=random)).to(torch.uint8)
    dataset = Dataset("made up", inputs, labels, inputs, labels, ("a", "b", "c", "d"))
    return PermutedPixels(dataset, tasks=2, seed=0)


def _run(**settings: Any) -> OneRun:
    given = KclSettings(**({"coreset_size_per_class": 2, "bases": 16, "width": 64, "dropout": 0.0} | settings))
    return OneRun(KernelContinualLearning(given, 4, 8), lambda: published_backbone((1, 5, 5), given), seed=0)


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_the_first_update_follows_the_gradient_at_one_hot_targets(optimizer: str) -> None:
    """Of a task that is one batch: rate η · 0.8, whatever moves the backbone's matrices."""
    run, [task, _] = _run(kernel="linear", soft_targets=0.5, batch_size=32, optimizer=optimizer), _stream()
    twin = _run(kernel="linear", soft_targets=0.5, batch_size=32, optimizer=optimizer)
    seen: dict[str, Any] = {}
    observe = twin.method.observe

    def watched(model: Any, memory: Any, *others: Any) -> Any:
        seen["slope"] = torch.autograd.grad(observe(model, memory, *others)[0], [memory["correction"]])[0]
        return observe(model, memory, *others)

    twin.method.observe = watched  # type: ignore[method-assign]
    for own in (run, twin):
        own.learn(task)
    assert float(seen["slope"].abs().max()) > 1e-4
    expected = -0.1 * 0.8 * seen["slope"]
    torch.testing.assert_close(run.kept[0].memory["correction"], expected, rtol=1e-5, atol=1e-9)


def test_every_task_begins_at_one_hot_and_keeps_its_own() -> None:
    run, stream = _run(soft_targets=0.5, batch_size=4), _stream()
    begun = [run.method.begin_task(run.model, task, np.random.default_rng(0)).memory for task in stream]
    assert all(not memory["correction"].any() for memory in begun)
    for task in stream:
        run.learn(task)
    kept = [run.kept[index].memory["correction"] for index in range(2)]
    assert all(own.shape == (8, 4) and own.abs().max() > 1e-4 for own in kept)
    assert not torch.equal(*kept)
    scores = run.scores(stream[0])
    run.kept[0].memory["correction"].zero_()
    assert not torch.allclose(scores, run.scores(stream[0]))


def test_one_hot_targets_keep_nothing_more() -> None:
    run, [task, _] = _run(), _stream()
    run.learn(task)
    assert set(run.kept[0].memory) == {"inputs", "targets", "strength", "scale", "shift"}
