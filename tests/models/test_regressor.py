"""Numbers and several labels as targets: scikit-learn's checks, and its ridge regression whatever the history."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

import kcl
from kcl.functional import primal

MAY_FAIL = {
    f"check_sample_weight_equivalence_on_{kind}_data": "scaling and kernel width are measured without weights"
    for kind in ("dense", "sparse")
}
FIXED: dict[str, Any] = {"bases": 30, "width": 2.0, "normalise": "none", "random_state": 0}
EXACT = 1e-8


@pytest.fixture(autouse=True)
def _global_generator_put_back() -> Any:
    """scikit-learn's checks draw from NumPy's global generator."""
    before = np.random.get_state()  # noqa: NPY002
    yield
    np.random.set_state(before)  # noqa: NPY002


# The checks have no matrix of labels: they cannot be used for the multilabel classifier.
@parametrize_with_checks([kcl.StreamingKernelRegressor(bases=64)], expected_failed_checks=lambda _: MAY_FAIL)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def _data(seed: int, samples: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Targets of very different units and means."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(samples, 4)).astype(np.float32)
    y = np.stack([np.sin(x[:, 0]) + 0.1 * random.normal(size=samples), 1e4 + 100.0 * x[:, 1] * x[:, 2]], axis=1)
    return x, y


def _expected(model: Any, x: np.ndarray, y: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Ridge regression of the deviations from the mean, on the same features."""
    psi = [model.model_.heads.features(torch.from_numpy(model._queries(part))).numpy() for part in (x, queries)]
    ridge = Ridge(alpha=model.model_.solution().strength, fit_intercept=False).fit(psi[0], y - y.mean(0))
    return ridge.predict(psi[1]) + y.mean(0)


@pytest.mark.parametrize("factorised", [False, True])
@pytest.mark.parametrize("rule", ["evidence", "gcv", "held-out"])
def test_any_history_ends_at_ridge_regression_on_what_remains(
    rule: str, factorised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`factorised`: solved as more features than these are."""
    if factorised:
        monkeypatch.setattr(primal, "MOST_DECOMPOSED", 0)
    for seed in range(5):
        random, (x, y) = np.random.default_rng(seed), _data(seed)
        queries, tasks, scale = _data(seed + 100)[0], random.integers(3, size=len(x)), y.std(0)
        first = kcl.StreamingKernelRegressor(strength_rule=rule, **FIXED)
        second = kcl.StreamingKernelRegressor(strength_rule=rule, **FIXED)
        for model, rows in ((first, random.permutation(50)), (second, 50 + random.permutation(30))):
            for task in random.permutation(3):
                for part in np.array_split(rows[tasks[rows] == task], 2):
                    if len(part):
                        model.partial_fit(x[part], y[part], task=task)
        merged, left = kcl.merge(first, second), tasks != 0
        receipt = merged.forget(task=0)
        assert receipt.samples == (~left).sum()
        gone = left & (tasks == 1) & (np.arange(len(x)) % 3 == 0)
        merged.forget(task=1, samples=(x[gone], y[gone]))
        left &= ~gone
        expected = _expected(merged, x[left], y[left], queries)
        np.testing.assert_allclose((merged.predict(queries) - expected) / scale, 0.0, atol=EXACT)
        alone = kcl.StreamingKernelRegressor(strength_rule=rule, **FIXED).fit(x[left], y[left])
        np.testing.assert_allclose((merged.predict(queries) - alone.predict(queries)) / scale, 0.0, atol=EXACT)
        if factorised and rule == "gcv":  # of fewer samples than features: λ → 0, down to where rounding decides
            continue
        of_task = kcl.StreamingKernelRegressor(strength_rule=rule, **FIXED).fit(x[tasks == 2], y[tasks == 2])
        np.testing.assert_allclose((merged.predict(queries, 2) - of_task.predict(queries)) / scale, 0.0, atol=EXACT)


def test_it_finds_a_function_with_any_unit_and_mean() -> None:
    (x, y), (queries, truth) = _data(0, 600), _data(1, 300)
    model = kcl.StreamingKernelRegressor(random_state=0)
    for part in np.array_split(np.arange(600), 6):
        model.partial_fit(x[part], y[part])
    assert model.score(queries, truth) > 0.9
    weighted = kcl.StreamingKernelRegressor(**FIXED).fit(x, y, sample_weight=np.arange(600) % 2)
    half = kcl.StreamingKernelRegressor(**FIXED).fit(x[1::2], y[1::2])
    np.testing.assert_allclose(weighted.predict(queries), half.predict(queries))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(queries), model.predict(queries))


def test_labels_in_an_indicator_matrix() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 3)).astype(np.float32)
    y = (x > 0.0).astype(int)
    model = kcl.StreamingMultilabelClassifier(random_state=0)
    for part in np.array_split(np.arange(300), 3):
        model.partial_fit(x[part], y[part])
    assert (model.predict(x[300:]) == y[300:]).mean() > 0.9
    assert model.predict(x).shape == y.shape
    with pytest.raises(ValueError, match="Unknown label type"):
        model.partial_fit(x, y * 2)
    with pytest.raises(ValueError, match="2 columns"):
        model.partial_fit(x, y[:, :2])


def test_what_is_refused_changes_nothing() -> None:
    x, y = _data(0)
    model = kcl.StreamingKernelRegressor(**FIXED).fit(x, y, task="a")
    before = model.predict(x)
    with pytest.raises(ValueError, match="was not learned"):
        model.forget(task="b")
    for match, arguments in {
        "fewer samples than are to be forgotten": (np.repeat(x, 2, 0), np.repeat(y, 2, 0)),
        "not among those": (x[:1] + 5.0, y[:1]),
        "not among": (x[:1], 1e3 * y[:1]),
        "finite": (x[:1], y[:1] * np.nan),
        "targets": (x[:2], y[:1]),
        "1 columns": (x[:1], y[:1, :1]),
    }.items():
        with pytest.raises(ValueError, match=match):
            model.forget(samples=arguments)
        np.testing.assert_array_equal(model.predict(x), before)
    others = {
        "other features": kcl.StreamingKernelRegressor(**FIXED | {"width": 3.0}).fit(x, y),
        "other settings": kcl.StreamingKernelRegressor(**FIXED, strength_rule="gcv").fit(x, y),
        "number of targets": kcl.StreamingKernelRegressor(**FIXED).fit(x, y[:, 0]),
        "not a fitted": kcl.StreamingKernelRegressor(**FIXED),
    }
    for match, other in others.items():
        with pytest.raises(kcl.KclError, match=match):
            kcl.merge(model, other)
    model.forget(task="a")
    with pytest.raises(ValueError, match="learn a task first"):
        model.predict(x)
