"""One run against the loop anyone would write, and the parts of that loop: batches, their order, the learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kcl.benchmarks.task import Task
from kcl.core.randomness import numpy_generator
from kcl.core.settings import Settings
from kcl.errors import KclError
from kcl.functional.noise import RunNoise
from kcl.methods.method import Batch
from kcl.nets.backbone import ModuleBackbone
from kcl.nets.mlp import MLP
from kcl.training.optimizers import learning_rate
from kcl.training.stacked_task import batch_order, batch_sizes
from kcl.training.state import build_model


class _Model(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone


@pytest.fixture
def plain(seeded: Any) -> nn.Module:
    with seeded(0):
        return _Model(MLP((4,), width=2))


@pytest.fixture
def mixing(seeded: Any) -> nn.Module:
    with seeded(0):
        return _Model(ModuleBackbone(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), (4,)))


class TestBatchSizes:
    @pytest.mark.parametrize(
        ("length", "batch", "sizes"),
        [(30, 10, [10, 10, 10]), (38, 10, [10, 10, 10, 8]), (31, 10, [10, 10, 10, 1]), (7, 10, [7]), (1, 10, [1]),
         (10, 10, [10]), (3, 1, [1, 1, 1])],
    )  # fmt: skip
    def test_the_last_may_be_smaller(self, plain: nn.Module, length: int, batch: int, sizes: list[int]) -> None:
        assert batch_sizes(plain, length, batch) == sizes

    @pytest.mark.parametrize(
        ("length", "batch", "sizes"),
        [(30, 10, [10, 10, 10]), (38, 10, [10, 10, 10, 8]), (31, 10, [10, 10, 11]), (11, 10, [11]),
         (32, 10, [10, 10, 10, 2]), (2, 10, [2]), (3, 2, [3])],
    )  # fmt: skip
    def test_where_samples_mix_none_is_left_alone(
        self, mixing: nn.Module, length: int, batch: int, sizes: list[int]
    ) -> None:
        assert batch_sizes(mixing, length, batch) == sizes

    @pytest.mark.parametrize(("length", "batch"), [(1, 10), (1, 1), (2, 1), (7, 1)])
    def test_where_samples_mix_one_cannot_be_learned_from(self, mixing: nn.Module, length: int, batch: int) -> None:
        with pytest.raises(KclError, match="at least two samples"):
            batch_sizes(mixing, length, batch)

    def test_all_samples_are_in_a_batch(self, plain: nn.Module, mixing: nn.Module) -> None:
        for length in range(2, 40):
            for batch in range(2, 12):
                assert sum(batch_sizes(plain, length, batch)) == sum(batch_sizes(mixing, length, batch)) == length
                assert max(batch_sizes(plain, length, batch)) <= batch
                assert min(batch_sizes(mixing, length, batch)) >= 2


class TestLearningRate:
    @pytest.mark.parametrize("task", [0, 1, 2, 19])
    def test_decays_from_the_first_task_on(self, task: int) -> None:
        settings = Settings(lr=0.3, lr_decay=0.9, lr_floor=0.0)
        expected = 0.3
        for _ in range(task + 1):
            expected *= 0.9
        assert learning_rate(settings, task) == pytest.approx(expected, rel=1e-12)

    def test_never_falls_below_the_floor(self) -> None:
        settings = Settings(lr=0.1, lr_decay=0.5, lr_floor=0.02)
        assert [learning_rate(settings, task) for task in range(5)] == pytest.approx([0.05, 0.025, 0.02, 0.02, 0.02])

    def test_the_published_floor(self) -> None:
        assert learning_rate(Settings(), 0) == pytest.approx(0.08)
        assert learning_rate(Settings(), 10_000) == 5e-5

    def test_without_decay_stays(self) -> None:
        assert {learning_rate(Settings(lr=0.01, lr_decay=1.0), task) for task in range(20)} == {0.01}


class TestBatchOrder:
    POSITIONS = np.array([3, 4, 8, 15, 16, 23, 42, 99, 100, 1000])

    def test_visits_every_position_once(self) -> None:
        for epoch in range(3):
            order = batch_order(5, 2, epoch, self.POSITIONS)
            assert sorted(order.tolist()) == self.POSITIONS.tolist()

    def test_is_the_same_every_time_and_leaves_the_positions_alone(self) -> None:
        positions = self.POSITIONS.copy()
        assert batch_order(5, 2, 1, positions).tolist() == batch_order(5, 2, 1, positions).tolist()
        assert positions.tolist() == self.POSITIONS.tolist()

    def test_differs_between_seeds_tasks_and_epochs(self) -> None:
        positions = np.arange(100)
        orders = [
            batch_order(seed, task, epoch, positions) for seed in range(3) for task in range(3) for epoch in (0, 1)
        ]
        assert len({tuple(order.tolist()) for order in orders}) == len(orders)
        # Not merely shifted: of 100 places, two permutations share one on average, and 12 once in 10⁹.
        shared = [np.count_nonzero(one == two) for place, one in enumerate(orders) for two in orders[:place]]
        assert max(shared) < 12


def _batches(seed: int, task: Task, positions: np.ndarray, settings: Settings) -> list[Tensor]:
    batches = []
    for epoch in range(settings.epochs):
        order = numpy_generator(seed, "batch order", task.index, epoch).permutation(positions)
        for start in range(0, len(order), settings.batch_size):
            batches.append(torch.from_numpy(order[start : start + settings.batch_size]))
    return batches


def _seen(task: Task, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The pixels of some training samples, moved one by one and scaled."""
    stored = task.train.inputs[task.train.rows[positions]].flatten(1)
    shown = [place if task.view.pixel_map is None else int(task.view.pixel_map[place]) for place in range(16)]
    scaled = stored[:, shown].float() / 255.0  # inputs are scaled in single precision, whatever follows
    return scaled.double().view(-1, 1, 4, 4), task.train.labels[positions]


@pytest.mark.usefixtures("double")
class TestRun:
    """Against the loop anyone would write: autograd, momentum and schedule spelled out."""

    def _descend(
        self, parameters: Sequence[Tensor], velocity: list[Tensor], loss: Tensor, rate: float, momentum: float
    ) -> None:
        for place, gradient in enumerate(torch.autograd.grad(loss, parameters)):
            velocity[place] = momentum * velocity[place] + gradient
            with torch.no_grad():
                parameters[place].sub_(rate * velocity[place])

    def test_of_naive_sgd_equals_the_obvious_loop(self, make_runs: Any) -> None:
        runs = make_runs("naive-sgd", samples=48, epochs=2)
        for which in range(3):
            one_run, settings, seed = runs[[which]], runs.settings[which], runs.seeds[which]
            learner, losses = one_run.plain(), []
            model = build_model(one_run.methods()[0], one_run.backbones()[0], seed)
            layers = [*model.backbone.layers, model.output]
            for task in one_run.streams[0]:
                expected, noise = [], RunNoise(torch.device("cpu"), seed, "training noise", task.index)
                parameters = list(model.parameters())
                velocity = [torch.zeros_like(parameter) for parameter in parameters]
                rate = max(settings.lr * settings.lr_decay ** (task.index + 1), settings.lr_floor)
                for batch in _batches(seed, task, np.arange(48), settings):
                    inputs, labels = _seen(task, batch)
                    x = inputs.flatten(1)
                    for layer in layers[:-1]:
                        x = torch.relu(x @ layer.weight.T + layer.bias)
                        x = torch.where(noise.uniform(*x.shape) < settings.dropout, 0.0, x / (1.0 - settings.dropout))
                    scores = x @ layers[-1].weight.T + layers[-1].bias
                    loss = (scores.logsumexp(1) - scores[torch.arange(len(labels)), labels]).mean()
                    expected.append(loss.item())
                    self._descend(parameters, velocity, loss, rate, settings.momentum)
                learner.learn([task], losses.append)
                assert [step.loss for step in losses] == pytest.approx(expected, rel=1e-10)
                losses.clear()
            torch.testing.assert_close(learner.models[0].state_dict(), model.state_dict(), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("kernel", ["vrf", "rbf"])
    def test_of_kcl_equals_the_obvious_loop(self, make_runs: Any, kernel: str) -> None:
        """With the method's own loss (which has its own tests); the head begins anew, the coreset is set aside."""
        runs = make_runs(kernel=kernel, samples=45, epochs=2)
        for which in range(3):
            one_run, settings, seed = runs[[which]], runs.settings[which], runs.seeds[which]
            learner, method = one_run.plain(), one_run.methods()[0]
            model = build_model(method, one_run.backbones()[0], seed)
            for task in one_run.streams[0]:
                rng = numpy_generator(seed, "coreset", task.index)
                coreset = np.concatenate(
                    [rng.permutation(np.flatnonzero(task.train.labels.numpy() == value))[:4] for value in range(3)]
                )
                inputs, labels = _seen(task, torch.from_numpy(coreset))
                memory = {"inputs": inputs, "targets": F.one_hot(labels, 3)}
                with torch.no_grad():
                    model.head.raw_strength.fill_(settings.ridge_strength)
                    model.head.scale.fill_(1.0)
                    model.head.shift.fill_(0.0)
                noise = RunNoise(torch.device("cpu"), seed, "training noise", task.index)
                parameters = list(model.parameters())
                velocity = [torch.zeros_like(parameter) for parameter in parameters]
                rate = max(settings.lr * settings.lr_decay ** (task.index + 1), settings.lr_floor)
                rest = np.array([place for place in range(45) if place not in set(coreset.tolist())])
                for batch in _batches(seed, task, rest, settings):
                    loss = method.loss(model, memory, Batch(*_seen(task, batch)), noise)
                    self._descend(parameters, velocity, loss, rate, settings.momentum)
                learner.learn([task], lambda _: None)
            torch.testing.assert_close(learner.models[0].state_dict(), model.state_dict(), rtol=1e-9, atol=1e-9)
