"""ER-ACE and DER++ against the formulas of their papers, written sample by sample; training among all classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.benchmarks.array_stream import ArrayStream
from kcl.benchmarks.task import Task
from kcl.methods.ace import AsymmetricReplay
from kcl.methods.dark import DarkReplay, DarkSettings
from kcl.methods.episodic import EpisodicSettings, ReplaySettings
from kcl.methods.method import Batch, Memory, Replayed, ReplayPlan
from kcl.methods.recipes import METHODS
from kcl.methods.replay import ReservoirReplay
from kcl.methods.sgd import LinearSettings, NaiveSGD
from kcl.methods.training_compute import Shape, training_compute
from kcl.nets.mlp import MLP
from one_run import OneRun
from reference_run import replayed_in

SMALL: dict[str, Any] = {"width": 8, "lr": 0.1, "lr_decay": 1.0, "momentum": 0.0, "dropout": 0.0}


@pytest.fixture
def stream() -> ArrayStream:
    """Three tasks with two classes each."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 40, 6, generator=random)
    labels = [torch.arange(40) % 2 + 2 * task for task in range(3)]
    return ArrayStream(list(zip(inputs, labels, strict=True)))


def _run(method: Any, settings: Any) -> OneRun:
    return OneRun(method(settings, 6, 6), lambda: MLP((6,), 8, 2, 0.0), 3)


def _third_task(run: OneRun, stream: ArrayStream) -> tuple[Task, ReplayPlan, Memory, Replayed]:
    """A step in the third task, after two were learned: what it replays."""
    run.learn(stream[0])
    run.learn(stream[1])
    task = stream[2]
    plan = run.method.plan(run.method_state, task, [np.arange(40)], [10] * 4, np.random.default_rng(5))
    memory = {"classes": torch.tensor(task.classes)}
    replayed = replayed_in(run.method, run.method_state, task, memory, plan, 3)
    assert plan is not None
    assert replayed is not None
    return task, plan, memory, replayed


def _sample(run: OneRun, task: Task, place: int, slots: int) -> tuple[Tensor, int]:
    """The input and the class that a place stands for."""
    if place >= slots:
        return task.train.inputs[place - slots], task.classes[int(task.train.labels[place - slots])]
    assert run.method_state is not None
    return run.method_state["inputs"][place], int(run.method_state["classes"][place])


def _scores(run: OneRun, x: Tensor) -> Tensor:
    return run.model.output(run.model.backbone(x))


class TestAsymmetricCrossEntropy:
    def test_formula(self, stream: ArrayStream, make_noise: Any) -> None:
        """A batch of one class only: other classes of its own task take no part either."""
        run = _run(AsymmetricReplay, EpisodicSettings(**SMALL, memory_per_class=2, recalled_per_step=5))
        task, plan, memory, replayed = _third_task(run, stream)
        one_class = (task.train.labels == 0).nonzero().flatten()[:6]
        for rows, present in ((torch.arange(10), [4, 5]), (one_class, [4])):
            batch = Batch(task.train.inputs[rows], task.train.labels[rows], replayed)
            (loss,) = run.method.losses(run.model, memory, batch, make_noise(0))
            new = [
                -_scores(run, x[None])[0, present].log_softmax(0)[present.index(task.classes[int(label)])]
                for x, label in zip(batch.inputs, batch.labels, strict=True)
            ]
            old = []
            for place in plan.places[3].tolist():
                x, number = _sample(run, task, place, 12)
                old.append(-_scores(run, x[None])[0].log_softmax(0)[number])  # all six classes have been seen
            torch.testing.assert_close(loss, torch.stack(new).mean() + torch.stack(old).mean())

    def test_classes_not_seen_take_no_part(self, stream: ArrayStream, make_noise: Any) -> None:
        run = _run(AsymmetricReplay, EpisodicSettings(**SMALL, memory_per_class=2))
        run.learn(stream[0])
        task, memory = stream[1], {"classes": torch.tensor(stream[1].classes)}
        plan = run.method.plan(run.method_state, task, [np.arange(40)], [10] * 4, np.random.default_rng(5))
        replayed = replayed_in(run.method, run.method_state, task, memory, plan, 0)
        assert replayed is not None
        assert replayed.beside["seen"].tolist() == [True] * 4 + [False] * 2

    def test_nothing_to_replay_in_the_first_step(self, stream: ArrayStream, make_noise: Any) -> None:
        run = _run(AsymmetricReplay, EpisodicSettings(**SMALL))
        task, state = stream[0], run.method.initial_state(run.model, stream[0])
        plan = run.method.plan(state, task, [np.arange(40)], [10] * 4, np.random.default_rng(5))
        memory, batch = {"classes": torch.tensor(task.classes)}, (task.train.inputs[:10], task.train.labels[:10])
        replayed = replayed_in(run.method, state, task, memory, plan, 0)
        (loss,) = run.method.losses(run.model, memory, Batch(*batch, replayed), make_noise(0))
        torch.testing.assert_close(loss, run.method.loss(run.model, memory, Batch(*batch), make_noise(0)))


class TestDark:
    def test_formula(self, stream: ArrayStream, make_noise: Any) -> None:
        settings = DarkSettings(
            **SMALL, memory_per_class=2, recalled_per_step=5, logits_weight=0.3, labels_weight=0.7
        )  # fmt: skip
        run = _run(DarkReplay, settings)
        task, plan, memory, replayed = _third_task(run, stream)
        assert plan.places.shape[1] == 10  # two draws
        batch = Batch(task.train.inputs[:10], task.train.labels[:10], replayed)
        (loss,) = run.method.losses(run.model, memory, batch, make_noise(0))
        expected = F.cross_entropy(_scores(run, batch.inputs), batch.labels + 4)
        assert run.method_state is not None
        squares, entropies = [], []
        for place in plan.places[3][:5].tolist():
            if place < 12:
                x, _ = _sample(run, task, place, 12)
                squares.append((_scores(run, x[None])[0] - run.method_state["logits"][place]).square().mean())
        for place in plan.places[3][5:].tolist():
            x, number = _sample(run, task, place, 12)
            entropies.append(-_scores(run, x[None])[0].log_softmax(0)[number])
        assert squares
        expected = expected + 0.3 * torch.stack(squares).mean() + 0.7 * torch.stack(entropies).mean()
        torch.testing.assert_close(loss, expected)

    def test_logits_are_those_at_the_end_of_a_sample_s_task(self, stream: ArrayStream) -> None:
        run = _run(DarkReplay, DarkSettings(**SMALL, memory_per_class=2))
        kept: list[tuple[int, Tensor]] = []
        for index in range(3):
            run.learn(stream[index])
            state = run.method_state
            assert state is not None
            now = _scores(run, state["inputs"]).detach()
            before, kept = kept, []
            for place, number in enumerate(state["classes"].tolist()):
                if number // 2 == index:
                    torch.testing.assert_close(state["logits"][place], now[place])
                else:
                    assert any(torch.equal(state["logits"][place], logits) for owner, logits in before)
                kept.append((number, state["logits"][place]))

    def test_logits_are_part_of_the_memory(self, stream: ArrayStream) -> None:
        run, plain = _run(DarkReplay, DarkSettings(**SMALL)), _run(ReservoirReplay, ReplaySettings(**SMALL))
        for each in (run, plain):
            each.learn(stream[0])
        use, other = run.memory_use(), plain.memory_use()
        assert use["samples"] == other["samples"] == 6
        assert use["bytes"] == other["bytes"] + 6 * 6 * 4  # as many floats as there are classes

    def test_two_draws_are_counted(self) -> None:
        tasks = [Shape(100, 2)] * 2
        one = training_compute("er-reservoir", ReplaySettings(memory_per_class=20), tasks)
        two = training_compute("der++", DarkSettings(memory_per_class=20), tasks)
        assert (one.images, two.images) == (400, 600)


class TestSoftmax:
    def test_over_all_classes(self, stream: ArrayStream, make_noise: Any) -> None:
        run = _run(NaiveSGD, LinearSettings(**SMALL, softmax="all"))
        task = stream[1]
        batch = Batch(task.train.inputs[:10], task.train.labels[:10])
        found = run.method.loss(run.model, {"classes": torch.tensor(task.classes)}, batch, make_noise(0))
        torch.testing.assert_close(found, F.cross_entropy(_scores(run, batch.inputs), batch.labels + 2))

    @pytest.mark.parametrize("method", [name for name, each in METHODS.items() if each.trains and name != "kcl"])
    def test_helps_where_no_task_is_named(self, stream: ArrayStream, method: str) -> None:
        """It changes what is learned, of every method that has it."""
        made = METHODS[method]
        if "softmax" not in made.settings_type.names():
            assert method in ("er-ace", "der++")
            return
        runs = [_run(made, made.settings_type(**SMALL, softmax=softmax)) for softmax in ("task", "all")]
        if not made.joint:
            for run in runs:
                run.learn(stream[0])
                run.learn(stream[1])
            assert not torch.equal(*(run.model.output.weight for run in runs))
