"""EWC against formulas: linear-Gaussian models, where its Fisher and its solution are known."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from kcl.benchmarks.array_stream import ArrayStream
from kcl.benchmarks.task import View
from kcl.methods.ewc import ElasticWeightConsolidation, EwcSettings, anchored
from kcl.methods.recipes import select_settings
from kcl.methods.sgd import LinearModel, NaiveSGD
from kcl.nets.backbone import ModuleBackbone
from kcl.nets.flat import Layout
from one_run import OneRun


def _carried(size: int, strength: float) -> dict[str, torch.Tensor]:
    zeros = torch.zeros(size, dtype=torch.float64)
    return {"importance": zeros, "pull": zeros, "offset": zeros.sum(), "strength": zeros.sum() + strength}


@pytest.fixture
def classic() -> ElasticWeightConsolidation:
    return ElasticWeightConsolidation(EwcSettings(ewc_fisher="classic", dropout=0.0), class_count=2)


class TestPenalty:
    def test_is_the_sum_of_the_tasks_parabolas(self, classic: ElasticWeightConsolidation, draw64: Any) -> None:
        fishers, anchors, weights = draw64.uniform(3, 6), draw64.normal(3, 6), draw64.normal(6)
        method_state = _carried(6, 0.7)
        for fisher, anchor in zip(fishers, anchors, strict=True):
            method_state = anchored(method_state, fisher, anchor, add=True)
        expected = 0.7 * (fishers * (weights - anchors) ** 2).sum()
        torch.testing.assert_close(classic.penalty(weights, method_state), expected)
        assert expected > 0.1

    def test_enters_as_its_gradient(self, classic: ElasticWeightConsolidation, draw64: Any) -> None:
        method_state = anchored(_carried(6, 0.7), draw64.uniform(6), draw64.normal(6), add=True)
        method_state = anchored(method_state, draw64.uniform(6), draw64.normal(6), add=True)
        weights, gradient = draw64.normal(6).requires_grad_(), draw64.normal(6)
        (slope,) = torch.autograd.grad(classic.penalty(weights, method_state), weights)
        followed, changed = classic.direction(weights.detach(), gradient[None], method_state)
        torch.testing.assert_close(followed, gradient + slope)
        assert changed == {}
        assert slope.abs().min() > 1e-3

    def test_is_nothing_before_the_first_task_ended(self, classic: ElasticWeightConsolidation, draw64: Any) -> None:
        weights, gradient, method_state = draw64.normal(6), draw64.normal(6), _carried(6, 0.7)
        assert classic.penalty(weights, method_state) == 0.0
        assert torch.equal(classic.direction(weights, gradient[None], method_state)[0], gradient)


class TestLinearGaussian:
    """y = w·x + ε, ε ~ N(0, 1): the Fisher of n samples is XᵀX, diagonal where the inputs' columns are orthogonal.

    There the penalty ½ Σ F (w − w₁)² is what task 1 loses, so that EWC with λ = ½ ends where both tasks together end.
    """

    def test_ends_where_both_tasks_together_end(self, classic: ElasticWeightConsolidation, draw64: Any) -> None:
        first = torch.linalg.qr(draw64.normal(20, 4)).Q * torch.tensor([3.0, 1.0, 0.3, 2.0])
        second, truth = draw64.normal(15, 4), draw64.normal(4)
        one, two = first @ truth + draw64.normal(20), second @ truth + draw64.normal(15)
        weights = torch.linalg.lstsq(first, one[:, None]).solution[:, 0]
        fisher = (first.T @ first).diagonal()
        method_state, lost = anchored(_carried(4, 0.5), fisher, weights, add=True), weights + draw64.normal(4)

        def loss(w: torch.Tensor) -> torch.Tensor:
            return 0.5 * (first @ w - one).square().sum()

        torch.testing.assert_close(classic.penalty(lost, method_state), loss(lost) - loss(weights))
        for _ in range(4000):
            gradient = second.T @ (second @ weights - two)
            weights = weights - 0.01 * classic.direction(weights, gradient[None], method_state)[0]
        both = torch.linalg.lstsq(torch.cat([first, second]), torch.cat([one, two])[:, None]).solution[:, 0]
        alone = torch.linalg.lstsq(second, two[:, None]).solution[:, 0]
        torch.testing.assert_close(weights, both)
        assert (both - alone).abs().max() > 0.05

    def test_the_running_fisher_is_the_recurrence_on_known_gradients(self, draw64: Any) -> None:
        """25 steps of g = (w·x − y) x: two full windows enter, the third does not."""
        method = ElasticWeightConsolidation(EwcSettings(ewc_fisher="running", ewc_window=10), class_count=2)
        zeros = torch.zeros(3, dtype=torch.float64)
        method_state = _carried(3, 1.0) | {
            "fisher": zeros, "window": zeros, "steps": torch.tensor(0), "decay": torch.tensor(0.8, dtype=torch.float64)
        }  # fmt: skip
        weights, inputs, targets = draw64.normal(3), draw64.normal(25, 3), draw64.normal(25)
        gradients = (inputs @ weights - targets)[:, None] * inputs
        for gradient in gradients:
            followed, changed = method.direction(weights, gradient[None], method_state)
            torch.testing.assert_close(followed, gradient)
            method_state |= changed
        means = [gradients[start : start + 10].square().mean(0) for start in (0, 10)]
        torch.testing.assert_close(method_state["fisher"], 0.8 * means[1] + 0.2 * 0.8 * means[0])
        torch.testing.assert_close(method_state["window"], gradients[20:].square().sum(0))
        assert method_state["steps"] == 25

    def test_the_running_fisher_is_of_the_task_s_gradient_without_the_penalty(self, draw64: Any) -> None:
        method = ElasticWeightConsolidation(EwcSettings(ewc_fisher="running", ewc_window=1), class_count=2)
        weights, gradient = draw64.normal(3), draw64.normal(3)
        running = {"fisher": torch.zeros(3), "window": torch.zeros(3), "steps": torch.tensor(0)}
        method_state = anchored(_carried(3, 1.0), draw64.uniform(3), draw64.normal(3), add=True) | running
        followed, changed = method.direction(weights, gradient[None], method_state | {"decay": torch.tensor(1.0)})
        assert (followed - gradient).abs().min() > 1e-3
        torch.testing.assert_close(changed["fisher"], gradient.square())


@pytest.fixture
def stream(draw: Any) -> ArrayStream:
    """Two tasks on the same two classes: the first turns on input 0, the second on input 3."""
    tasks = []
    for column in (0, 3):
        inputs = draw.normal(300, 4)
        tasks.append((inputs, (inputs[:, column] > 0).long()))
    return ArrayStream(tasks, tasks)


def _run(fisher: str, strength: float, **settings: Any) -> OneRun:
    made = EwcSettings(
        ewc_fisher=fisher, ewc_strength=strength, lr=0.05, lr_decay=1.0, momentum=0.0, dropout=0.0, **settings
    )
    return OneRun(ElasticWeightConsolidation(made, 2), lambda: ModuleBackbone(torch.nn.Identity(), (4,)), 0)


@pytest.mark.parametrize("fisher", ["running", "classic"])
class TestInARun:
    def test_the_penalty_is_not_always_zero(self, fisher: str, stream: ArrayStream) -> None:
        run = _run(fisher, 1.0)
        run.learn(stream[0])
        layout = Layout(run.model)
        assert run.method.penalty(layout.weights(run.model), run.method_state) == pytest.approx(0.0, abs=1e-5)
        assert float(run.method_state["importance"].max()) > 0.01
        assert float(run.method_state["importance"].min()) >= 0.0
        run.learn(stream[1])
        assert torch.equal(run.method_state["pull"] != 0, run.method_state["importance"] != 0)

    def test_weights_that_matter_move_less_and_the_first_task_is_kept_better(
        self, fisher: str, stream: ArrayStream
    ) -> None:
        moved, kept = [], []
        for strength in (0.0, 5.0):
            run = _run(fisher, strength)
            run.learn(stream[0])
            importance = Layout(run.model).split(run.method_state["importance"])["output.weight"]
            before = run.model.output.weight.detach().clone()
            run.learn(stream[1])
            change = (run.model.output.weight.detach() - before).abs()
            most = importance.flatten().topk(2).indices
            moved.append(float(change.flatten()[most].sum()))
            kept.append(run.accuracy(stream[0]))
        assert moved[1] < 0.7 * moved[0]
        assert kept[1] > kept[0] + 2.0

    def test_without_strength_is_naive(self, fisher: str, stream: ArrayStream) -> None:
        run = _run(fisher, 0.0)
        settings = select_settings("naive-sgd", run.method.settings.to_dict())
        naive = OneRun(NaiveSGD(settings, 2), lambda: ModuleBackbone(torch.nn.Identity(), (4,)), 0)
        for task in stream:
            run.learn(task)
            naive.learn(task)
        torch.testing.assert_close(run.model.state_dict(), naive.model.state_dict(), rtol=1e-5, atol=1e-6)


def test_the_running_fisher_is_rescaled_over_all_weights_and_replaces_the_penalty_before(stream: ArrayStream) -> None:
    run = _run("running", 1.0)
    for task in stream:
        run.learn(task)
        layout = Layout(run.model)
        weights = torch.cat([part.flatten() for part in layout.split(run.method_state["importance"]).values()])
        assert (float(weights.min()), float(weights.max())) == (0.0, 1.0)
        fisher = torch.cat([part.flatten() for part in layout.split(run.method_state["fisher"]).values()])
        torch.testing.assert_close(weights, (fisher - fisher.min()) / (fisher.max() - fisher.min()))
        torch.testing.assert_close(run.method_state["pull"], run.method_state["importance"] * layout.weights(run.model))
        assert not run.method_state["window"].any()
        assert run.method_state["steps"] == 0


def test_the_classic_fisher_is_that_of_softmax_regression(stream: ArrayStream) -> None:
    run = _run("classic", 1.0, ewc_fisher_samples=300)
    run.learn(stream[0])
    model: LinearModel = run.model
    inputs = stream[0].train.inputs
    probabilities = torch.softmax(model.output(inputs), 1)
    spread = probabilities * (1.0 - probabilities)
    expected = torch.einsum("nk,nj->kj", spread, inputs.square()) / len(inputs)
    found = Layout(model).split(run.method_state["importance"])
    torch.testing.assert_close(found["output.weight"], expected.detach(), rtol=1e-4, atol=1e-6)


def test_the_classic_penalties_of_all_tasks_add_up(stream: ArrayStream) -> None:
    """Each with the Fisher and the weights of its own end."""
    run, expected = _run("classic", 1.0), []
    for task in stream:
        before = dict(run.method_state or {})
        run.learn(task)
        weights = Layout(run.model).weights(run.model)
        own = run.method_state["importance"] - before.get("importance", 0.0)
        assert (own >= 0).all()
        assert (own > 0.01).any()
        expected.append((own, weights))
    there = torch.linspace(-1.0, 1.0, len(weights))
    total = sum((fisher * (there - anchor) ** 2).sum() for fisher, anchor in expected)
    torch.testing.assert_close(run.method.penalty(there, run.method_state), total, rtol=1e-4, atol=1e-5)


def test_the_classic_fisher_sees_samples_as_their_task_shows_them() -> None:
    """Where a permutation brings dark pixels to the front, the weights of the front do not matter."""
    images = torch.zeros(40, 1, 2, 2, dtype=torch.uint8)
    images[:, :, 0] = torch.randint(50, 255, (40, 1, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    task = ArrayStream([(images, torch.arange(40) % 2)])[0]
    settings = EwcSettings(ewc_fisher="classic", lr=0.05, dropout=0.0, ewc_fisher_samples=40)
    for turned in (False, True):
        view = View(torch.tensor([2, 3, 0, 1])) if turned else View()
        run = OneRun(ElasticWeightConsolidation(settings, 2), lambda: ModuleBackbone(torch.nn.Flatten(), (1, 2, 2)), 0)
        run.learn(dataclasses.replace(task, view=view))
        fisher = Layout(run.model).split(run.method_state["importance"])["output.weight"]
        assert (fisher > 0).tolist() == [[turned ^ (place < 2) for place in range(4)]] * 2


def test_the_classic_fisher_counts_only_the_task_s_own_classes(draw: Any) -> None:
    stream = ArrayStream([(draw.normal(40, 4), torch.arange(40) % 2 + 2 * task) for task in range(2)])
    settings = EwcSettings(ewc_fisher="classic", lr=0.05, dropout=0.0, ewc_fisher_samples=10)
    run = OneRun(ElasticWeightConsolidation(settings, 4), lambda: ModuleBackbone(torch.nn.Identity(), (4,)), 0)
    run.learn(stream[0])
    fisher = Layout(run.model).split(run.method_state["importance"])["output.bias"]
    assert (fisher[:2] > 0).all()
    assert not fisher[2:].any()


def test_memory_is_told_in_bytes(stream: ArrayStream) -> None:
    size = 64  # ten weights, padded
    for fisher, vectors in (("classic", 2), ("running", 4)):
        run = _run(fisher, 1.0)
        run.learn(stream[0])
        use = run.memory_use()
        assert use["samples"] == 0
        assert vectors * 4 * size <= use["bytes"] <= vectors * 4 * size + 50
