"""Kernel continual learning from Python: what the README shows, and what a user may bring or get wrong."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kcl
from kcl.methods.ridge_kernels import KERNELS
from kcl.nets.backbone import Backbone
from kcl.nets.mlp import MLP

SMALL: dict[str, Any] = {"bases": 32, "width": 16, "dropout": 0.1, "coreset_size_per_class": 4}


@pytest.fixture
def digits() -> kcl.PermutedDigits:
    pytest.importorskip("sklearn")
    return kcl.PermutedDigits(tasks=2, train_per_task=200)


def _clusters(seed: int, labels: list[int], samples: int = 24, features: int = 6) -> tuple[Tensor, Tensor]:
    """Samples around one centre per label: easy to tell apart."""
    random = torch.Generator().manual_seed(seed)
    centres = 3.0 * torch.randn(len(labels), features, generator=random)
    which = torch.arange(samples * len(labels)) % len(labels)
    inputs = centres[which] + 0.3 * torch.randn(len(which), features, generator=random)
    return inputs, torch.tensor(labels)[which]


def _stream(*labels: list[int], samples: int = 24) -> kcl.ArrayStream:
    pairs = [_clusters(seed, own, samples) for seed, own in enumerate(labels)]
    return kcl.ArrayStream(pairs, pairs)


def _state(learner: kcl.KernelContinualLearner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}


def _equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


class TestReadme:
    def test_the_example_learns_task_after_task(self) -> None:
        """Ten digits are guessed at 10 %; three times as much after each task, and still at the end."""
        pytest.importorskip("sklearn")
        stream = kcl.PermutedDigits(tasks=3)
        learner = kcl.KernelContinualLearner(stream, kernel="vrf", seed=0)
        for task in stream:
            learner.learn(task)
            assert learner.accuracy(task) > 60.0
        assert all(learner.accuracy(task) > 60.0 for task in stream)

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_every_kernel_learns(self, kernel: str) -> None:
        stream = _stream([0, 1, 2], [0, 1, 2])
        learner = kcl.KernelContinualLearner(stream, kernel=kernel, **SMALL)
        for task in stream:
            learner.learn(task)
        assert all(learner.accuracy(task) > 90.0 for task in stream)

    def test_the_settings_are_those_published_for_the_stream(self, digits: kcl.PermutedDigits) -> None:
        from kcl.methods.recipes import published_settings

        learner = kcl.KernelContinualLearner(digits, kernel="rbf", tau=0.5)
        expected = published_settings("permuted-digits", "kcl").replace(kernel="rbf", tau=0.5)
        assert learner.settings == expected

    def test_progress_can_be_watched(self) -> None:
        stream, steps = _stream([0, 1, 2]), []
        learner = kcl.KernelContinualLearner(stream, batch_size=10, epochs=2, **SMALL)
        learner.learn(stream[0], steps.append)
        per_epoch = -(-(72 - 12) // 10)
        assert [step.step for step in steps] == list(range(1, 2 * per_epoch + 1))
        assert all(step.steps == 2 * per_epoch for step in steps)
        assert all(np.isfinite(step.loss) for step in steps)


class TestOwnStream:
    """Tasks with different numbers of classes, and labels as the user has them."""

    LABELS: ClassVar = ([7, 42, -3], [5, -100], [42, 1, 2, 3, 4])

    @pytest.fixture
    def learned(self) -> tuple[kcl.ArrayStream, kcl.KernelContinualLearner]:
        stream = _stream(*self.LABELS)
        learner = kcl.KernelContinualLearner(stream, seed=1, **SMALL)
        for task in stream:
            learner.learn(task)
        return stream, learner

    def test_predictions_are_the_users_labels(self, learned: Any) -> None:
        stream, learner = learned
        for seed, (task, own) in enumerate(zip(stream, self.LABELS, strict=True)):
            inputs, labels = _clusters(seed, own)
            found = learner.predict(inputs, task)
            assert set(found.tolist()) <= set(own)
            right = 100.0 * (found == labels).float().mean().item()
            assert right == pytest.approx(learner.accuracy(task), abs=1e-4)
            assert right > 90.0

    def test_scores_are_of_the_tasks_classes_in_order(self, learned: Any) -> None:
        stream, learner = learned
        for seed, (task, own) in enumerate(zip(stream, self.LABELS, strict=True)):
            inputs, _ = _clusters(seed, own)
            scores = learner.logits(inputs, task)
            assert scores.shape == (len(inputs), len(own))
            places = [stream.class_labels[place] for place in task.classes]
            assert places == sorted(own)
            assert [places[best] for best in scores.argmax(-1)] == learner.predict(inputs, task).tolist()

    def test_a_task_may_be_named_by_its_number_and_inputs_may_be_anything_like_an_array(self, learned: Any) -> None:
        stream, learner = learned
        inputs, _ = _clusters(1, self.LABELS[1])
        expected = learner.predict(inputs, stream[1])
        assert torch.equal(learner.predict(inputs, 1), expected)
        assert torch.equal(learner.predict(inputs.numpy(), 1), expected)
        assert torch.equal(learner.predict(inputs.tolist(), 1), expected)

    def test_no_inputs_give_no_predictions(self, learned: Any) -> None:
        _, learner = learned
        assert learner.predict(torch.zeros(0, 6), 1).shape == (0,)
        assert learner.logits(torch.zeros(0, 6), 1).shape == (0, 2)

    def test_a_prediction_does_not_depend_on_its_batch_mates(self, learned: Any) -> None:
        _, learner = learned
        inputs, _ = _clusters(1, self.LABELS[1])
        together = learner.logits(torch.cat([inputs, 100.0 * inputs]), 1)[:5]
        torch.testing.assert_close(learner.logits(inputs[:5], 1), together, rtol=1e-4, atol=1e-5)

    def test_a_class_of_one_sample_is_kept_whole(self) -> None:
        """It gives what it has to the coreset, none to training, and can still be answered."""
        inputs, labels = _clusters(0, [3, 8])
        alone = torch.full((1, 6), -9.0)
        stream = kcl.ArrayStream([(torch.cat([inputs, alone]), torch.cat([labels, torch.tensor([5])]))])
        learner = kcl.KernelContinualLearner(stream, kernel="rbf", **SMALL)
        learner.learn(stream[0])
        assert learner.memory_use["samples"] == 9
        assert learner.predict(alone, 0).tolist() == [5]

    def test_memory_grows_by_a_coreset_a_task(self, learned: Any) -> None:
        _, learner = learned
        assert learner.memory_use["samples"] == 4 * (3 + 2 + 5)
        assert learner.memory_use["bytes"] >= 4 * 6 * 40  # the samples themselves, in single precision

    def test_the_users_arrays_are_not_changed(self) -> None:
        inputs, labels = _clusters(0, [0, 1])
        before = inputs.clone(), labels.clone()
        stream = kcl.ArrayStream([(inputs, labels)], [(inputs, labels)])
        learner = kcl.KernelContinualLearner(stream, **SMALL)
        learner.learn(stream[0])
        learner.predict(inputs, 0)
        assert torch.equal(inputs, before[0])
        assert torch.equal(labels, before[1])


def _own_module() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU()
    )


class TestOwnBackbone:
    @pytest.fixture
    def module(self, seeded: Any) -> nn.Module:
        with seeded(3):
            return _own_module()

    @pytest.mark.parametrize("kernel", ["vrf", "linear"])
    def test_with_batch_normalisation_and_dropout_learns(self, module: nn.Module, kernel: str) -> None:
        stream = _stream([7, 42, -3], [5, -100])
        learner = kcl.KernelContinualLearner(stream, kernel=kernel, backbone=module, **SMALL)
        for task in stream:
            learner.learn(task)
        assert all(learner.accuracy(task) > 90.0 for task in stream)

    def test_answers_in_evaluation_mode(self, module: nn.Module) -> None:
        """Running statistics and no dropout: the same answer twice, alone or in company."""
        stream = _stream([0, 1, 2])
        learner = kcl.KernelContinualLearner(stream, backbone=module, **SMALL)
        learner.learn(stream[0])
        inputs, _ = _clusters(0, [0, 1, 2])
        first = learner.logits(inputs, 0)
        assert torch.equal(learner.logits(inputs, 0), first)
        torch.testing.assert_close(learner.logits(inputs[:3], 0), first[:3], rtol=1e-4, atol=1e-5)

    def test_is_copied(self, module: nn.Module) -> None:
        self._is_copied(module)

    def test_is_copied_when_it_is_one_of_the_librarys_own(self, seeded: Any) -> None:
        with seeded(0):
            self._is_copied(MLP((6,), 16, 1, 0.1))

    @staticmethod
    def _is_copied(given: nn.Module) -> None:
        """Two learners with the same backbone do not learn into each other, nor into what the user holds."""
        before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
        stream = _stream([0, 1, 2])
        one, two = (kcl.KernelContinualLearner(stream, backbone=given, **SMALL) for _ in range(2))
        one.learn(stream[0])
        assert _equal(before, dict(given.state_dict()))
        two.learn(stream[0])
        assert _equal(_state(one), _state(two))

    @pytest.mark.parametrize("samples", [11, 21])
    def test_a_last_batch_of_one_sample_is_learned_or_refused_in_words(self, module: nn.Module, samples: int) -> None:
        """Batch normalisation has no statistics of one sample."""
        inputs, labels = _clusters(0, [0, 1], 50)
        count = samples + 2 * SMALL["coreset_size_per_class"]
        stream = kcl.ArrayStream([(inputs[:count], labels[:count])], [(inputs, labels)])
        learner = kcl.KernelContinualLearner(stream, backbone=module, batch_size=10, **SMALL)
        try:
            learner.learn(stream[0])
        except kcl.KclError:
            return
        assert learner.accuracy(stream[0]) > 50.0

    @pytest.mark.parametrize(
        ("make", "words"),
        [(lambda: nn.Linear(5, 3), r"does not accept inputs of shape \(6,\)"), (lambda: nn.Flatten(0), "one row")],
    )
    def test_one_that_does_not_fit_is_refused(self, seeded: Any, make: Callable[[], nn.Module], words: str) -> None:
        with seeded(0):
            module = make()
        with pytest.raises(kcl.KclError, match=words):
            kcl.KernelContinualLearner(_stream([0, 1]), backbone=module)

    def test_a_class_in_place_of_a_module_is_refused(self) -> None:
        with pytest.raises(kcl.KclError, match="backbone must be"):
            kcl.KernelContinualLearner(_stream([0, 1]), backbone=nn.ReLU)  # type: ignore[arg-type]


class _Noting(nn.Module):
    """Notes the first number of every sample it is shown while training."""

    seen: ClassVar[list[list[float]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(x[:, 0].tolist())
        return self.layer(x)


def test_the_coreset_is_never_trained_on_and_nothing_is_replayed(seeded: Any) -> None:
    """Every sample carries its own number. In a task of s steps a coreset sample is shown s times, as an anchor; every
    other sample is shown once; and a sample of an earlier task never.
    """
    pairs = []
    for number in range(2):
        inputs, labels = _clusters(number, [0, 1, 2])
        inputs[:, 0] = 1000.0 * number + torch.arange(len(inputs))
        pairs.append((inputs, labels))
    stream = kcl.ArrayStream(pairs)
    with seeded(0):
        learner = kcl.KernelContinualLearner(stream, kernel="linear", backbone=_Noting(), batch_size=10, **SMALL)
    for task, (inputs, labels) in zip(stream, pairs, strict=True):
        _Noting.seen.clear()
        learner.learn(task)
        counts = Counter(number for batch in _Noting.seen for number in batch)
        steps = -(-(len(inputs) - 12) // 10)
        anchors = {number for number, count in counts.items() if count == steps}
        assert set(counts) == set(inputs[:, 0].tolist())
        assert sorted(counts.values()) == [1] * (len(inputs) - 12) + [steps] * 12
        kept = [
            label for number, label in zip(inputs[:, 0].tolist(), labels.tolist(), strict=True) if number in anchors
        ]
        assert Counter(kept) == {0: 4, 1: 4, 2: 4}


class TestSeeds:
    def _learned(self, seed: int, kernel: str = "vrf", **options: Any) -> kcl.KernelContinualLearner:
        stream = _stream([0, 1, 2], [0, 1])
        learner = kcl.KernelContinualLearner(stream, kernel=kernel, seed=seed, **(SMALL | options))
        for task in stream:
            learner.learn(task)
        return learner

    @pytest.mark.parametrize("kernel", ["vrf", "rff", "linear"])
    def test_the_same_seed_gives_the_same_parameters_and_answers(self, kernel: str) -> None:
        one, two = self._learned(4, kernel), self._learned(4, kernel)
        assert _equal(_state(one), _state(two))
        inputs, _ = _clusters(0, [0, 1, 2])
        assert torch.equal(one.logits(inputs, 0), two.logits(inputs, 0))

    def test_the_same_seed_with_a_backbone_of_ones_own(self, seeded: Any) -> None:
        with seeded(0):
            module = _own_module()
        one, two, other = (self._learned(seed, backbone=copy.deepcopy(module)) for seed in (4, 4, 5))
        assert _equal(_state(one), _state(two))
        assert not _equal(_state(one), _state(other))

    @pytest.mark.parametrize("kernel", ["vrf", "rff", "linear"])
    def test_another_seed_gives_others(self, kernel: str) -> None:
        one, two = self._learned(4, kernel), self._learned(5, kernel)
        assert not _equal(_state(one), _state(two))
        inputs, _ = _clusters(0, [0, 1, 2])
        assert not torch.allclose(one.logits(inputs, 0), two.logits(inputs, 0))

    def test_begin_is_the_same_whatever_the_global_generators_hold(self, seeded: Any) -> None:
        with seeded(1):
            one = self._learned(4)
        with seeded(2):
            two = self._learned(4)
        assert _equal(_state(one), _state(two))

    def test_the_global_generators_are_left_alone(self, seeded: Any) -> None:
        with seeded(0):
            module = _own_module()
        torch_before, numpy_before = torch.random.get_rng_state(), np.random.get_state()  # noqa: NPY002
        for learner in (self._learned(4), self._learned(4, backbone=module)):
            learner.predict(_clusters(0, [0, 1, 2])[0], 0)
        assert torch.equal(torch.random.get_rng_state(), torch_before)
        assert np.array_equal(np.random.get_state()[1], numpy_before[1])  # noqa: NPY002

    def test_asking_in_between_changes_nothing(self) -> None:
        """Neither what is learned, nor the answer when asked again, at the weights of that moment."""
        stream, inputs = _stream([0, 1, 2], [0, 1]), _clusters(0, [0, 1, 2])[0]
        asked, silent = (kcl.KernelContinualLearner(stream, seed=4, **SMALL) for _ in range(2))
        late: dict[str, Tensor] = {}

        def ask_always(step: Any) -> None:
            late["asked"] = asked.logits(inputs, 0)

        def ask_at_the_last_step(step: Any) -> None:
            if step.step == step.steps:
                late["silent"] = silent.logits(inputs, 0)

        for learner, watch in ((asked, ask_always), (silent, ask_at_the_last_step)):
            learner.learn(stream[0])
            learner.learn(stream[1], watch)
        assert _equal(_state(asked), _state(silent))
        assert torch.equal(asked.logits(inputs, 0), silent.logits(inputs, 0))
        torch.testing.assert_close(late["asked"], late["silent"])

    def test_several_test_draws_are_fixed_by_the_seed(self) -> None:
        one, two = self._learned(4, test_draws=3), self._learned(4, test_draws=3)
        inputs, _ = _clusters(0, [0, 1, 2])
        assert torch.equal(one.logits(inputs, 0), two.logits(inputs, 0))
        assert torch.allclose(one.logits(inputs, 0).exp().sum(-1), torch.ones(len(inputs)), atol=1e-5)


class TestSeparateClassifiers:
    """A task's classifier is its own; only the backbone is shared."""

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_a_task_is_not_forgotten_while_the_backbone_stands_still(self, kernel: str) -> None:
        """With a learning rate of nothing the answers for task 0 stay the same, to the last bit."""
        stream, inputs = _stream([0, 1, 2], [0, 1, 2]), _clusters(0, [0, 1, 2])[0]
        learner = kcl.KernelContinualLearner(stream, kernel=kernel, lr=1e-30, lr_floor=0.0, **SMALL)
        learner.learn(stream[0])
        before, accuracy = learner.logits(inputs, 0), learner.accuracy(stream[0])
        learner.learn(stream[1])
        assert torch.equal(learner.logits(inputs, 0), before)
        assert learner.accuracy(stream[0]) == accuracy

    @pytest.mark.parametrize("kernel", ["linear", "polynomial", "rbf", "laplacian", "rff"])
    def test_each_task_is_answered_with_its_own_head(self, seeded: Any, kernel: str) -> None:
        """The backbone is frozen, λ, scale and shift are learned: those of task 1 do not reach task 0."""
        with seeded(0):
            module = nn.Linear(6, 8).requires_grad_(False)
        stream, inputs = _stream([0, 1, 2], [0, 1, 2]), _clusters(0, [0, 1, 2])[0]
        learner = kcl.KernelContinualLearner(stream, kernel=kernel, backbone=module, lr=0.5, lr_decay=1.0, **SMALL)
        learner.learn(stream[0])
        before = learner.logits(inputs, 0)
        learner.learn(stream[1])
        torch.testing.assert_close(learner.logits(inputs, 0), before)
        assert not torch.allclose(learner.logits(inputs, 1), before)
        with torch.no_grad():
            for parameter in learner.model.head.parameters():
                parameter.fill_(50.0)
        torch.testing.assert_close(learner.logits(inputs, 0), before)


def test_steps_follow_the_published_schedule() -> None:
    """SGD with momentum begun anew at each task, at the rate max(η · decay^(t + 1), floor), for three tasks.

    All samples of a class are one and the same, so the coreset is known; one batch holds all the rest, so its order
    does not matter. Then two epochs are two steps, and can be computed with plain autograd through a general solve.
    """
    rates = [0.05, 0.025, 0.02]
    settings = {"lr": 0.1, "lr_decay": 0.5, "lr_floor": 0.02, "momentum": 0.7, "epochs": 2, "batch_size": 100}
    points = torch.tensor([[1.0, 0.2, 0.0, 0.5, 0.1, 0.9], [0.1, 0.8, 0.7, 0.2, 0.4, 0.0]])
    which = torch.tensor([0] * 9 + [1] * 6)
    stream = kcl.ArrayStream([((number + 1.0) * points[which], which) for number in range(3)])
    learner = kcl.KernelContinualLearner(
        stream, kernel="linear", dropout=0.0, width=7, coreset_size_per_class=2, **settings
    )
    model: Any = copy.deepcopy(learner.model)
    labels = torch.tensor([0] * 7 + [1] * 4)
    targets = torch.eye(2)[torch.tensor([0, 0, 1, 1])]
    for number, rate in enumerate(rates):
        learner.learn(stream[number])
        with torch.no_grad():
            for parameter, value in zip(model.head.parameters(), (0.1, 1.0, 0.0), strict=True):
                parameter.fill_(value)
        velocity = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
        for _ in range(2):
            features = F.normalize(model.backbone((number + 1.0) * points), dim=-1)
            coreset, batch = features[[0, 0, 1, 1]], features[labels]
            shifted = coreset @ coreset.T + (model.head.raw_strength.abs() + 0.01) * torch.eye(4)
            scores = batch @ coreset.T @ torch.linalg.solve(shifted, targets)
            loss = F.cross_entropy(model.head.scale * scores + model.head.shift, labels)
            gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            with torch.no_grad():
                for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
                    velocity[name] = 0.7 * velocity[name] + (0.0 if gradient is None else gradient)
                    parameter -= rate * velocity[name]
        for (name, found), expected in zip(learner.model.named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, msg=f"{name} after task {number}")


class TestMistakes:
    """Each gives a KclError that says what is wrong."""

    @pytest.fixture
    def learner(self) -> kcl.KernelContinualLearner:
        return kcl.KernelContinualLearner(_stream([0, 1, 2], [0, 1]), **SMALL)

    def test_a_task_learned_twice(self, learner: kcl.KernelContinualLearner) -> None:
        learner.learn(learner.stream[0])
        before = _state(learner)
        with pytest.raises(kcl.KclError, match="task 0 was learned before"):
            learner.learn(learner.stream[0])
        assert _equal(_state(learner), before)

    @pytest.mark.parametrize("ask", ["predict", "logits"])
    def test_an_answer_for_a_task_not_learned(self, learner: kcl.KernelContinualLearner, ask: str) -> None:
        learner.learn(learner.stream[0])
        with pytest.raises(kcl.KclError, match="task 1 was not learned"):
            getattr(learner, ask)(torch.zeros(2, 6), 1)
        with pytest.raises(kcl.KclError, match="task 1 was not learned"):
            learner.accuracy(learner.stream[1])

    def test_a_task_of_one_class(self) -> None:
        stream = _stream([4])
        learner = kcl.KernelContinualLearner(stream, **SMALL)
        with pytest.raises(kcl.KclError, match="task 0 has 1 class"):
            learner.learn(stream[0])

    def test_more_coreset_than_data(self) -> None:
        stream = _stream([0, 1], samples=3)
        learner = kcl.KernelContinualLearner(stream, **SMALL)
        with pytest.raises(kcl.KclError, match="none to train on"):
            learner.learn(stream[0])

    def test_no_test_samples(self) -> None:
        inputs, labels = _clusters(0, [0, 1])
        stream = kcl.ArrayStream([(inputs, labels)])
        learner = kcl.KernelContinualLearner(stream, **SMALL)
        learner.learn(stream[0])
        with pytest.raises(kcl.KclError, match="test samples"):
            learner.accuracy(stream[0])

    def test_values_that_are_not_finite(self) -> None:
        inputs, labels = _clusters(0, [0, 1])
        inputs[3, 2] = float("nan")
        with pytest.raises(kcl.KclError, match="not finite"):
            kcl.ArrayStream([(inputs, labels)])

    @pytest.mark.parametrize("shape", [(5, 7), (6,), (2, 3, 3), ()])
    def test_queries_of_another_shape(self, learner: kcl.KernelContinualLearner, shape: tuple[int, ...]) -> None:
        learner.learn(learner.stream[0])
        with pytest.raises(kcl.KclError, match=r"\b6\b"):
            learner.predict(torch.zeros(shape), 0)

    def test_queries_of_another_shape_where_pixels_are_moved(self, digits: kcl.PermutedDigits) -> None:
        learner = kcl.KernelContinualLearner(digits, **SMALL)
        for task in digits:
            learner.learn(task)
        for number in range(2):
            with pytest.raises(kcl.KclError, match=r"\(1, 8, 8\)"):
                learner.predict(torch.zeros(3, 1, 9, 9, dtype=torch.uint8), number)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"kernel": "vfr"}, "vrf"),
            ({"kernel": "gaussian"}, "kernel"),
            ({"basses": 10}, "bases"),
            ({"dropout": 1.5}, "dropout"),
            ({"bases": 0}, "bases"),
            ({"lr": float("nan")}, "lr"),
            ({"seed": -1}, "seed"),
            ({"device": "cuda"}, "cuda"),
        ],
    )
    def test_settings_that_cannot_be(self, options: dict[str, Any], words: str) -> None:
        if options == {"device": "cuda"} and torch.cuda.is_available():
            pytest.skip("there is a GPU here")
        with pytest.raises(kcl.KclError, match=words):
            kcl.KernelContinualLearner(_stream([0, 1]), **options)


def test_a_backbone_is_what_the_library_says_it_is(seeded: Any) -> None:
    """A user may also write a `Backbone`, with dropout from the run's own noise."""

    class Own(Backbone):
        features = 8

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 8)

        def forward(self, x: Tensor, noise: Any = None) -> Tensor:
            features = torch.relu(self.layer(x))
            return features if noise is None else features * (noise.uniform(*features.shape) < 0.9)

    with seeded(0):
        backbone = Own()
    stream = _stream([0, 1, 2])
    learner = kcl.KernelContinualLearner(stream, backbone=backbone, **SMALL)
    learner.learn(stream[0])
    assert learner.accuracy(stream[0]) > 90.0
