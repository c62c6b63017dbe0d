"""ER-Reservoir: a true reservoir, and steps that learn from it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kcl.benchmarks.array_stream import ArrayStream
from kcl.core.randomness import numpy_generator
from kcl.methods import replay
from kcl.methods.episodic import ReplaySettings, random_subsets
from kcl.methods.method import Batch
from kcl.methods.replay import ReservoirReplay
from kcl.nets.mlp import MLP
from kcl.training.stacked_task import batch_order
from one_run import OneRun
from reference_run import replayed_in

# One in a million for each test that counts: |z| of a standard normal.
RARE = 4.892


def _assert_uniform(counts: np.ndarray, trials: int, probability: float) -> None:
    """Every count is Binomial(trials, probability), by the normal approximation; with all of them (Bonferroni) and in
    the sum of squares the false alarm rate is below one in a million each.
    """
    spread = math.sqrt(trials * probability * (1.0 - probability))
    z = (counts - trials * probability) / spread
    assert np.abs(z).max() < math.sqrt(RARE**2 + 2.0 * math.log(len(counts)))
    # Σz² has mean n and, the counts being nearly independent, variance about 2n; Wilson and Hilferty's cube root.
    share = (z**2).sum() / len(z)
    assert (share ** (1 / 3) - (1 - 2 / (9 * len(z)))) / math.sqrt(2 / (9 * len(z))) < RARE


class TestReservoir:
    """Which of 90 samples in three tasks of 30 are held in 12 slots: each with probability 12 / (samples seen)."""

    SLOTS, TASKS, SIZE, TRIALS = 12, 3, 30, 1500

    def _held(self, seed: int, upto: int, epochs: int = 1) -> set[int]:
        """The samples held after `upto` tasks, by their number in the stream."""
        method = ReservoirReplay(ReplaySettings(memory_per_class=2), class_count=2, places=6)
        stream = ArrayStream([(torch.zeros(self.SIZE, 1), torch.arange(self.SIZE) % 2)] * self.TASKS)
        method_state = method.initial_state(None, stream[0])  # type: ignore[arg-type]
        slots = np.full(self.SLOTS, -1)
        for task in range(upto):
            rng = np.random.default_rng([seed, task])
            orders = [rng.permutation(self.SIZE) for _ in range(epochs)]
            plan = method.plan(method_state, stream[task], orders, [10, 10, 10], rng)
            own = self.SIZE * task + np.maximum(plan.kept - self.SLOTS, 0)
            old = slots[np.clip(plan.kept, 0, self.SLOTS - 1)]
            slots = np.where(plan.kept >= self.SLOTS, own, np.where(plan.kept >= 0, old, -1))
            method_state = method_state | {"seen": method_state["seen"] + self.SIZE}
        held = set(slots.tolist())
        assert len(held) == self.SLOTS  # no sample twice, no slot empty
        return held

    @pytest.mark.parametrize(("upto", "epochs"), [(1, 1), (3, 1), (3, 2)])
    def test_every_sample_seen_is_held_with_the_same_probability(self, upto: int, epochs: int) -> None:
        seen = upto * self.SIZE
        counts = np.zeros(seen)
        for seed in range(self.TRIALS):
            counts[list(self._held(seed, upto, epochs))] += 1
        _assert_uniform(counts, self.TRIALS, self.SLOTS / seen)

    def test_the_test_would_notice_a_count_begun_anew_at_each_task(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slots = replay.reservoir_slots
        monkeypatch.setattr(replay, "reservoir_slots", lambda size, _, count, rng: slots(size, 0, count, rng))
        counts = np.zeros(90)
        for seed in range(400):
            counts[list(self._held(seed, 3))] += 1
        with pytest.raises(AssertionError):
            _assert_uniform(counts, 400, self.SLOTS / 90)


class TestSubsets:
    @pytest.mark.parametrize("available", [3, 4, 9])
    def test_are_uniform(self, available: int) -> None:
        rng, trials = np.random.default_rng(1), 40_000
        chosen, weights = random_subsets(np.full(trials, available), 3, rng)
        assert all(len(set(row)) == 3 for row in chosen.tolist())
        assert (weights == 1.0).all()
        kinds, counts = np.unique(np.sort(chosen, axis=1), axis=0, return_counts=True)
        assert len(kinds) == math.comb(available, 3)
        if len(kinds) > 1:
            _assert_uniform(counts, trials, 1 / len(kinds))

    def test_of_too_few_take_all_and_fill_up_with_weight_zero(self) -> None:
        chosen, weights = random_subsets(np.array([0, 1, 2, 5]), 4, np.random.default_rng(0))
        assert chosen[:3].tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1]]
        assert weights.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]

    def test_of_none_are_empty(self) -> None:
        chosen, weights = random_subsets(np.array([3, 4]), 0, np.random.default_rng(0))
        assert chosen.shape == weights.shape == (2, 0)


@pytest.fixture
def stream(draw: Any) -> ArrayStream:
    """Three tasks with two classes of their own; every sample can be told from every other."""
    tasks = []
    for task in range(3):
        labels = torch.arange(40) % 2
        tasks.append((draw.normal(40, 6) + labels[:, None], 2 * task + labels))
    return ArrayStream(tasks, tasks)


def _run(**settings: Any) -> OneRun:
    made = ReplaySettings(width=8, lr=0.1, lr_decay=1.0, momentum=0.0, dropout=0.0, memory_per_class=2, **settings)
    return OneRun(ReservoirReplay(made, 6, 6), lambda: MLP((6,), 8, 2, 0.0), 3)


@pytest.mark.parametrize("epochs", [1, 2])
def test_equals_the_reservoir_anyone_would_write(stream: ArrayStream, epochs: int) -> None:
    """Sample by sample and step by step: what is replayed is in the reservoir at that moment, and what stays is too."""
    run = _run(recalled_per_step=4, epochs=epochs)
    held: list[tuple[int, int]] = []
    seen = 0
    for task in stream:
        method_state = run.method_state or run.method.initial_state(run.model, task)
        orders = [batch_order(3, task.index, epoch, np.arange(40)) for epoch in range(epochs)]
        plan = run.method.plan(method_state, task, orders, [10] * 4, numpy_generator(3, "recalled", task.index))
        number = seen + np.arange(40)
        rng = numpy_generator(3, "recalled", task.index)
        places = np.where(number < 12, number, rng.integers(0, number + 1))
        old, step = list(held), 0
        for epoch in range(epochs):
            for start in range(0, 40, 10):
                replayed = [
                    old[place] if place < 12 else (task.index, place - 12) for place in plan.places[step].tolist()
                ]
                if held:
                    assert set(replayed) <= set(held)
                    assert len(set(replayed)) == 4
                    assert plan.weights[step].tolist() == [1.0] * 4
                else:
                    assert plan.weights[step].tolist() == [0.0] * 4
                for position, place in zip(orders[epoch][start : start + 10], places[start : start + 10], strict=True):
                    if epoch == 0 and place < 12:
                        held[place : place + 1] = [(task.index, int(position))]
                step += 1
        run.learn(task)
        seen += 40
        kept = run.method_state["inputs"][run.method_state["filled"]]
        expected = torch.stack([stream[owner].train.inputs[position] for owner, position in held])
        assert torch.equal(kept, expected)
        assert run.method_state["classes"].tolist() == [
            stream[owner].classes[int(stream[owner].train.labels[position])] for owner, position in held
        ]
        assert run.memory_use()["samples"] == len(held) == 12


def test_a_step_learns_from_batch_and_memory_alike(stream: ArrayStream, make_noise: Any) -> None:
    """The mean over all samples, each among the classes of its own task."""
    run = _run(recalled_per_step=5)
    run.learn(stream[0])
    run.learn(stream[1])
    task = stream[2]
    plan = run.method.plan(run.method_state, task, [np.arange(40)], [10] * 4, np.random.default_rng(5))
    memory = {"classes": torch.tensor(task.classes)}
    replayed = replayed_in(run.method, run.method_state, task, memory, plan, 3)
    (loss,) = run.method.losses(
        run.model, memory, Batch(task.train.inputs[:10], task.train.labels[:10], replayed), make_noise(0)
    )
    values = [
        F.cross_entropy(run.model(task.train.inputs[[place]], memory["classes"]), task.train.labels[[place]])
        for place in range(10)
    ]
    for place in plan.places[3].tolist():
        if place >= 12:
            sample, value = task.train.inputs[place - 12], task.classes[int(task.train.labels[place - 12])]
        else:
            sample, value = run.method_state["inputs"][place], int(run.method_state["classes"][place])
        classes = stream[value // 2].classes
        scores = run.model(sample[None], torch.tensor(classes))
        values.append(F.cross_entropy(scores, torch.tensor([classes.index(value)])))
    torch.testing.assert_close(loss, torch.stack(values).mean())


def test_the_first_step_of_a_stream_has_nothing_to_replay(stream: ArrayStream, make_noise: Any) -> None:
    run = _run(recalled_per_step=4)  # what fills the shape is not the whole batch once more
    task, method_state = stream[0], run.method.initial_state(run.model, stream[0])
    plan = run.method.plan(method_state, task, [np.arange(40)], [10] * 4, np.random.default_rng(5))
    memory, batch = {"classes": torch.tensor(task.classes)}, (task.train.inputs[:10], task.train.labels[:10])
    replayed = replayed_in(run.method, method_state, task, memory, plan, 0)
    assert replayed is not None
    (loss,) = run.method.losses(run.model, memory, Batch(*batch, replayed), make_noise(0))
    torch.testing.assert_close(loss, run.method.loss(run.model, memory, Batch(*batch), make_noise(0)))
