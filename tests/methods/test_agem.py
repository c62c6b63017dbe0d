"""A-GEM: its projection against the closed form, and its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kcl.benchmarks.array_stream import ArrayStream
from kcl.errors import KclError
from kcl.methods.agem import AveragedGEM, project
from kcl.methods.episodic import ReplaySettings
from kcl.methods.method import Batch
from kcl.nets.mlp import MLP
from one_run import OneRun
from reference_run import replayed_in


class TestProjection:
    def test_is_the_nearest_vector_that_does_not_hurt(self, draw64: Any) -> None:
        """The solution of min ‖z − g‖² with z·g_ref ≥ 0, found by projected gradient descent on its dual."""
        hurting = 0
        for _ in range(50):
            gradient, reference = draw64.normal(7), draw64.normal(7)
            found = project(gradient, reference)
            price = torch.zeros((), dtype=torch.float64)  # z = g + price · g_ref, price ≥ 0
            for _ in range(500):
                slope = (gradient + price * reference) @ reference
                price = (price - 0.5 * slope / reference.square().sum()).clamp_min(0.0)
            torch.testing.assert_close(found, gradient + price * reference)
            hurting += int(gradient @ reference < 0)
        assert 10 < hurting < 40

    def test_equals_the_formula_where_it_would_hurt_and_leaves_the_rest(self, draw64: Any) -> None:
        gradient, reference = draw64.normal(7), draw64.normal(7)
        if gradient @ reference > 0:
            reference = -reference
        expected = gradient - (gradient @ reference) / (reference @ reference) * reference
        torch.testing.assert_close(project(gradient, reference), expected)
        assert abs(float(project(gradient, reference) @ reference)) < 1e-12
        assert torch.equal(project(gradient, -reference), gradient)

    def test_without_a_reference_nothing_changes(self, draw64: Any) -> None:
        gradient = draw64.normal(7)
        assert torch.equal(project(gradient, torch.zeros_like(gradient)), gradient)

    def test_is_made_for_every_run_on_its_own(self, draw64: Any) -> None:
        gradients, references = draw64.normal(20, 7), draw64.normal(20, 7)
        found = torch.func.vmap(project)(gradients, references)
        for one, gradient, reference in zip(found, gradients, references, strict=True):
            torch.testing.assert_close(one, project(gradient, reference))


@pytest.fixture
def stream(draw: Any) -> ArrayStream:
    """Three tasks with two classes each, of which the last has two samples of one class."""
    tasks = []
    for task in range(3):
        labels = torch.arange(40) % 2 if task < 2 else (torch.arange(40) >= 2).long()
        tasks.append((draw.normal(40, 6) + labels[:, None], 2 * task + labels))
    return ArrayStream(tasks, tasks)


def _run(**settings: Any) -> OneRun:
    made = ReplaySettings(width=8, lr=0.1, lr_decay=1.0, momentum=0.0, **{"dropout": 0.0, **settings})
    return OneRun(AveragedGEM(made, 6, 6), lambda: MLP((6,), 8, 2, made.dropout), 0)


class TestMemory:
    @pytest.mark.parametrize("size", [1, 3])
    def test_holds_samples_of_every_class_of_every_task(self, stream: ArrayStream, size: int) -> None:
        run = _run(memory_per_class=size)
        for count, task in enumerate(stream, start=1):
            run.learn(task)
            filled = run.method_state["filled"]
            held = run.method_state["classes"][filled].tolist()
            expected = [min(size, 2) if value == 4 else size for value in range(2 * count)]
            assert [held.count(value) for value in range(2 * count)] == expected
            assert run.memory_use()["samples"] == sum(expected)
            for inputs, place, allowed in zip(
                run.method_state["inputs"][filled], held, run.method_state["allowed"][filled], strict=True
            ):
                own = stream[place // 2]
                found = (own.train.inputs == inputs).all(1).nonzero().flatten()
                assert len(found) == 1
                assert own.classes[int(own.train.labels[found])] == place
                assert allowed.nonzero().flatten().tolist() == list(own.classes)

    def test_every_sample_of_a_class_is_as_likely_to_be_kept(self, stream: ArrayStream) -> None:
        """Of 20 samples one is kept: counts are Binomial(2000, 1/20), one of 40 beyond 5.6 deviations once in 10⁶."""
        method, counts = _run().method, np.zeros(40)
        method_state = method.initial_state(None, stream[0])
        for seed in range(2000):
            plan = method.plan(method_state, stream[0], [np.arange(40)], [10] * 4, np.random.default_rng(seed))
            counts[plan.kept[plan.kept >= 0] - 6] += 1
        assert counts.sum() == 4000
        assert np.abs(counts - 100).max() < 5.6 * np.sqrt(2000 * 0.05 * 0.95)

    def test_what_it_held_stays(self, stream: ArrayStream) -> None:
        run = _run(memory_per_class=2)
        run.learn(stream[0])
        before = run.method_state["inputs"][:4].clone()
        run.learn(stream[1])
        assert torch.equal(run.method_state["inputs"][:4], before)
        assert run.method_state["filled"].tolist() == [True] * 8 + [False] * 4

    def test_bytes_are_those_of_filled_slots(self, stream: ArrayStream) -> None:
        run = _run(memory_per_class=2)
        run.learn(stream[0])
        classes = 2 * 8  # of the one task learned
        assert run.memory_use() == {"samples": 4, "bytes": 4 * (6 * 4 + 4 + 6) + classes}

    def test_must_know_the_stream(self, stream: ArrayStream) -> None:
        run = OneRun(AveragedGEM(ReplaySettings(width=8), 6), lambda: MLP((6,), 8, 2, 0.5), 0)
        with pytest.raises(KclError, match="places"):
            run.learn(stream[0])

    def test_samples_stored_in_another_way_are_refused(self, draw: Any) -> None:
        pairs = [
            (draw.normal(20, 6), torch.arange(20) % 2),
            (torch.ones(20, 6, dtype=torch.uint8), torch.arange(20) % 2),
        ]
        run = _run()
        first, second = ArrayStream(pairs)
        run.learn(first)
        with pytest.raises(KclError, match="same type and scaling"):
            run.learn(second)


class TestSteps:
    def test_replay_only_earlier_tasks_and_none_twice(self, stream: ArrayStream) -> None:
        run = _run(memory_per_class=3, recalled_per_step=5)
        method = run.method
        for task in stream:
            method_state = run.method_state or method.initial_state(run.model, task)
            held = int(method_state["filled"].sum())
            plan = method.plan(method_state, task, [np.arange(40)] * 2, [10] * 4, np.random.default_rng(0))
            if task.index == 0:
                assert plan.places.shape == (8, 0)
            else:
                assert plan.places.shape == (8, 5)
                assert plan.places.max() < held
                assert all(len(set(row)) == 5 for row in plan.places.tolist())
                assert (plan.weights == 1.0).all()
            run.learn(task)

    def test_use_everything_where_fewer_are_held(self, stream: ArrayStream) -> None:
        run = _run(recalled_per_step=10)  # six slots in all, two of them filled
        run.learn(stream[0])
        plan = run.method.plan(run.method_state, stream[1], [np.arange(40)], [10] * 4, np.random.default_rng(0))
        assert plan.places.tolist() == [[0, 1, 0, 1, 0, 1]] * 4
        assert plan.weights.tolist() == [[1.0, 1.0, 0.0, 0.0, 0.0, 0.0]] * 4

    def test_never_increase_the_reference_loss_to_first_order(self, stream: ArrayStream) -> None:
        """Along every step's direction the loss on the replayed samples has a slope of zero or less; some are bent."""
        run = _run(memory_per_class=3)
        method, seen = run.method, []
        direction = method.direction

        def watched(weights: Any, gradients: Any, method_state: Any) -> Any:
            followed, changed = direction(weights, gradients, method_state)
            seen.append((gradients.clone(), followed.clone()))
            return followed, changed

        method.direction = watched  # type: ignore[method-assign]
        run.learn(stream[0])
        assert all(torch.equal(gradients[0], followed) and len(gradients) == 1 for gradients, followed in seen)
        seen.clear()
        run.learn(stream[1])
        run.learn(stream[2])
        bent = [not torch.equal(gradients[0], followed) for gradients, followed in seen]
        assert len(bent) == 8
        assert any(bent)
        for gradients, followed in seen:
            assert float(followed @ gradients[1]) >= -1e-5 * float(gradients[1].norm() * gradients[0].norm())

    @pytest.mark.parametrize(("size", "recalled_per_step"), [(2, 5), (1, 10)])  # of 8, and 4 of which two fill up
    def test_the_reference_loss_is_over_each_sample_s_own_classes(
        self, stream: ArrayStream, make_noise: Any, size: int, recalled_per_step: int
    ) -> None:
        run = _run(memory_per_class=size, recalled_per_step=recalled_per_step)
        run.learn(stream[0])
        run.learn(stream[1])
        plan = run.method.plan(run.method_state, stream[2], [np.arange(40)], [10] * 4, np.random.default_rng(0))
        memory = {"classes": torch.tensor(stream[2].classes)}
        replayed = replayed_in(run.method, run.method_state, stream[2], memory, plan, 0)
        batch = stream[2].train.inputs[:10], stream[2].train.labels[:10]
        loss, reference = run.method.losses(run.model, memory, Batch(*batch, replayed), make_noise(0))
        expected = []
        for place in set(plan.places[0].tolist()):
            value = int(run.method_state["classes"][place])
            classes = stream[value // 2].classes
            scores = run.model.output(run.model.backbone(run.method_state["inputs"][place][None]))[:, list(classes)]
            expected.append(F.cross_entropy(scores, torch.tensor([classes.index(value)])))
        torch.testing.assert_close(reference, torch.stack(expected).mean())
        torch.testing.assert_close(loss, run.method.loss(run.model, memory, Batch(*batch), make_noise(0)))
