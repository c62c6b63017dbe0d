"""Whatever the history – orders, portions, forgettings, merges –, the model is scikit-learn's ridge regression on what
remains.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import kcl
from kcl.functional import primal
from kcl.models.streaming_heads import StreamingHeads

linear_model = pytest.importorskip("sklearn.linear_model")
kernel_ridge = pytest.importorskip("sklearn.kernel_ridge")

HISTORIES = 100
EXACT, ADDED = 1e-8, 1e-10
LEAST, ROUGH = 1e-5, 1e-6
"""λ relative to the mean of ‖ψ‖², below which rounding alone separates any two solvers by more than 1e-8."""
KINDS = ("rbf", "laplacian", "relu", "polynomial", "linear")
CLASSES, TASKS, PORTIONS, COLUMNS = 4, 2, 2, 5
pytestmark = pytest.mark.filterwarnings("ignore::kcl.KclWarning")  # portions of a few samples are meant


def _head(model: kcl.ContinualModel) -> StreamingHeads:
    assert isinstance(model.heads, StreamingHeads)
    return model.heads


def _solution(model: kcl.ContinualModel) -> Any:
    return _head(model).classifier().solution


def _psi(model: kcl.ContinualModel, x: np.ndarray) -> np.ndarray:
    return _head(model).features(torch.from_numpy(x)).numpy()


class History:
    """Samples that are learned in portions by several models, partly forgotten, and merged."""

    def __init__(self, seed: int) -> None:
        self.random = random = np.random.default_rng(seed)
        count = int(random.integers(30, 80))
        self.y, self.tasks = random.integers(CLASSES, size=count), random.integers(TASKS, size=count)
        self.x = (random.normal(size=(count, COLUMNS)) + np.eye(COLUMNS)[self.y]).astype(np.float32)
        self.keep = str(random.choice(["task", "class"]))
        rule, self.strength = [("evidence", 0.0), ("held-out", 0.0), ("evidence", 1e-3)][seed % 3]
        self.first = kcl.ContinualModel(
            head="streaming", features=KINDS[seed % len(KINDS)], bases=int(random.choice([8, 24, 100])), width=2.0,
            keep=self.keep, strength_rule=rule, ridge_strength=self.strength, standardise=False, seed=seed,
        )  # fmt: skip
        self.left = np.ones(count, bool)

    def learn(self, model: kcl.ContinualModel, rows: np.ndarray) -> None:
        """In random portions, each of one task."""
        portion = self.random.integers(PORTIONS, size=len(rows))
        for number, task in self.random.permutation([(p, t) for p in range(PORTIONS) for t in range(TASKS)]):
            chosen = rows[(portion == number) & (self.tasks[rows] == task)]
            if len(chosen):
                model.learn(self.x[chosen], self.y[chosen], f"task {task}")

    def forget(self, model: kcl.ContinualModel) -> None:
        what, task = self.random.choice(["task", "class", "samples"]), int(self.random.choice(self.tasks[self.left]))
        of_task = self.left & (self.tasks == task)
        if what == "class" and self.keep == "class":
            label = int(self.random.choice(self.y[of_task]))
            rows = of_task & (self.y == label)
            receipt = model.forget(f"task {task}", classes=[label])
        elif what == "task":
            rows, receipt = of_task, model.forget(f"task {task}")
        else:
            rows = of_task & (self.random.random(len(self.y)) < 0.5)
            if not rows.any():
                return
            receipt = model.forget(f"task {task}", samples=(self.x[rows], self.y[rows]))
        assert receipt.samples == rows.sum()
        # Of two ways of forgetting the model keeps the better one; the other depends on the condition of G + λI.
        assert receipt.gap < (EXACT if self.strength else ROUGH)
        self.left &= ~rows

    def play(self) -> kcl.ContinualModel:
        """What one model knows that learned and forgot, and was merged with others in between."""
        order = self.random.permutation(len(self.y))
        shares = np.array_split(order, self.random.integers(1, 4))
        self.learn(self.first, shares[0])
        others = [self.first.blank_copy() for _ in shares[1:]]
        for model, rows in zip(others, shares[1:], strict=True):
            self.learn(model, rows)
        merged = kcl.merge(self.first, *others)
        for _ in range(int(self.random.integers(0, 3))):
            if len(np.unique(self.tasks[self.left])) > 1:
                self.forget(merged)
        return merged


@pytest.mark.parametrize("factorised", [False, True])
def test_every_history_ends_at_the_ridge_regression_on_what_remains(
    factorised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`factorised`: solved as more features than these are."""
    if factorised:
        monkeypatch.setattr(primal, "MOST_DECOMPOSED", 0)
    well_conditioned, histories = 0, HISTORIES // 4 if factorised else HISTORIES
    for seed in range(histories):
        history = History(seed)
        model = history.play()
        solution, psi = _solution(model), _psi(model, history.x)
        good = solution.strength > LEAST * solution.spectrum.scale
        well_conditioned, close = well_conditioned + good, {"rtol": 0, "atol": EXACT if good else ROUGH}
        kept = psi[history.left]
        targets = np.eye(CLASSES)[history.y[history.left]][:, list(model.labels)]
        ridge = linear_model.Ridge(alpha=solution.strength, fit_intercept=False).fit(kept, targets)
        np.testing.assert_allclose(solution.weights.T, ridge.coef_, **close, err_msg=str(seed))
        machine = kernel_ridge.KernelRidge(alpha=solution.strength, kernel="precomputed").fit(kept @ kept.T, targets)
        expected = machine.predict(psi @ kept.T)
        np.testing.assert_allclose(psi @ solution.weights.numpy(), expected, **close, err_msg=str(seed))
    assert well_conditioned > 0.9 * histories


@pytest.mark.parametrize("parts", [1, 2, 30, 1000])
def test_any_number_of_parts_is_one_model(parts: int) -> None:
    random = np.random.default_rng(parts)
    y = random.integers(CLASSES, size=1000)
    x = (random.normal(size=(1000, COLUMNS)) + 2.0 * np.eye(COLUMNS)[y]).astype(np.float32)
    whole = kcl.ContinualModel(head="streaming", bases=16, width=2.0, standardise=False)
    whole.learn(x, y, "one")
    several = [whole.blank_copy() for _ in range(parts)]
    for model, rows in zip(several, np.array_split(random.permutation(1000), parts), strict=True):
        model.learn(x[rows], y[rows], "one")
    merged = kcl.merge(*several)
    order = [merged.labels.index(label) for label in whole.labels]
    assert float((_solution(merged).weights[:, order] - _solution(whole).weights).abs().max()) < ADDED
