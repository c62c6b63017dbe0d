"""A head from sums: the batch solution in any order, exact forgetting and merging, saved and loaded to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import kcl
from kcl.methods.feature_maps import FEATURE_MAPS
from kcl.models.lessons import places_among_all
from kcl.models.streaming_heads import StreamingHeads

SMALL: dict[str, Any] = {"head": "streaming", "bases": 40, "width": 2.0, "ridge_strength": 1e-3, "standardise": False}
EXACT = 1e-8
KINDS = [kind for kind, feature_map in FEATURE_MAPS.items() if not feature_map.given]


def _data(seed: int = 0, samples: int = 60, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = np.arange(samples) % classes
    return (random.normal(size=(samples, 5)) + 2.0 * np.eye(5)[y]).astype(np.float32), y


def _learned(x: np.ndarray, y: np.ndarray, tasks: Any = 0, **options: Any) -> kcl.ContinualModel:
    """Rows learned in portions of a task each. `tasks`: the task of each row, or one for all."""
    model, tasks = kcl.ContinualModel(**(SMALL | options)), np.broadcast_to(tasks, len(x))
    for task in dict.fromkeys(tasks.tolist()):
        model.learn(x[tasks == task], y[tasks == task], f"task {task}")
    return model


def _weights(model: kcl.ContinualModel, task: str | None = None) -> dict[Any, torch.Tensor]:
    """The column of weights of each class."""
    assert isinstance(model.heads, StreamingHeads)
    solution = model.heads.ridge.solution(places_among_all(model.tasks), task)
    labels = model.labels if task is None else model.tasks[task].labels
    return dict(zip(labels, solution.weights.T, strict=True))


def _gap(one: kcl.ContinualModel, two: kcl.ContinualModel, task: str | None = None) -> float:
    mine, other = _weights(one, task), _weights(two, task)
    assert set(mine) == set(other)
    return max(float((mine[label] - other[label]).abs().max()) for label in mine)


class TestExactness:
    @pytest.mark.parametrize("kind", KINDS)
    def test_equals_scikit_learns_ridge_on_everything(self, kind: str) -> None:
        linear_model = pytest.importorskip("sklearn.linear_model")
        x, y = _data()
        model = _learned(x, y, tasks=y // 2, features=kind)
        assert isinstance(model.heads, StreamingHeads)
        features = model.heads.ridge.features(torch.from_numpy(x)).numpy()
        alpha = 1e-3 * (features**2).sum(1).mean()
        ridge = linear_model.Ridge(alpha=alpha, fit_intercept=False).fit(features, np.eye(4)[y])
        for label, column in _weights(model).items():
            np.testing.assert_allclose(column, ridge.coef_[label], rtol=0, atol=EXACT)

    @hypothesis_settings(max_examples=25)
    @given(st.integers(0, 2**31), st.sampled_from(KINDS), st.sampled_from(["task", "class"]))
    def test_order_and_portions_do_not_matter(self, seed: int, kind: str, keep: str) -> None:
        random, (x, y) = np.random.default_rng(seed), _data()
        order = random.permutation(len(x))
        portions = np.sort(random.integers(0, 6, len(x)))
        whole = _learned(x, y, features=kind, keep=keep)
        model = kcl.ContinualModel(features=kind, keep=keep, **SMALL)
        for rows in (order[portions == number] for number in range(6) if (portions == number).any()):
            model.learn(x[rows], y[rows], "task 0")
        assert _gap(whole, model) < EXACT

    @hypothesis_settings(max_examples=25)
    @given(st.integers(0, 2**31), st.sampled_from(["task", "classes", "samples"]))
    def test_forgetting_is_never_having_learned(self, seed: int, what: str) -> None:
        random, (x, y) = np.random.default_rng(seed), _data(1)
        tasks = random.integers(0, 3, len(x))
        model = _learned(x, y, tasks, keep="class")
        gone = str(f"task {tasks[0]}")
        if what == "task":
            rows = tasks == tasks[0]
            receipt = model.forget(gone)
        elif what == "classes":
            rows = (tasks == tasks[0]) & (y == y[0])
            receipt = model.forget(gone, classes=[int(y[0])])
        else:
            rows = (tasks == tasks[0]) & (random.random(len(x)) < 0.4)
            if not rows.any():
                return
            receipt = model.forget(gone, samples=(x[rows], y[rows]))
        never = _learned(x[~rows], y[~rows], tasks[~rows], keep="class")
        assert {name: set(task.labels) for name, task in model.tasks.items()} == {
            name: set(task.labels) for name, task in never.tasks.items()
        }
        assert _gap(model, never) < EXACT
        assert receipt.samples == rows.sum()
        assert receipt.gap < EXACT
        assert receipt.digest_before != receipt.digest_after
        for name in never.tasks:
            assert _gap(model, never, name) < EXACT

    @pytest.mark.parametrize("parts", [1, 7, 60])
    def test_merged_parts_are_one_model(self, parts: int) -> None:
        x, y = _data(2)
        first = _learned(x, y, tasks=y % 2)
        several = []
        for number in range(parts):
            model = first.blank_copy()
            for row in range(number, len(x), parts):
                model.learn(x[row : row + 1], y[row : row + 1], f"task {y[row] % 2}")
            several.append(model)
        merged = kcl.merge(*several)
        assert _gap(merged, first) < 1e-10
        assert merged.tasks["task 0"].seen == first.tasks["task 0"].seen
        assert len({task.lesson for task in merged.tasks.values()}) == 2
        merged.learn(x, y, "more")

    def test_samples_forgotten_from_one_sum_of_a_task(self) -> None:
        x, y = _data(3)
        model, rows = _learned(x, y, keep="task"), y == 1
        with pytest.raises(kcl.KclError, match="keep='class'"):
            model.forget(classes=[1])
        model.forget(samples=(x[rows], y[rows]))
        assert model.tasks["task 0"].labels == (0, 2, 3)
        assert _gap(model, _learned(x[~rows], y[~rows])) < EXACT

    def test_weights_count_samples_that_many_times(self) -> None:
        x, y = _data(4)
        times = np.arange(len(x)) % 3
        weighted = kcl.ContinualModel(**SMALL)
        weighted.learn(x, y, "task 0", sample_weight=times)
        assert _gap(weighted, _learned(x.repeat(times, 0), y.repeat(times))) < EXACT
        weighted.forget(samples=(x[:30], y[:30]), sample_weight=times[:30])
        assert _gap(weighted, _learned(x[30:].repeat(times[30:], 0), y[30:].repeat(times[30:]))) < EXACT


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keep": "class", "balanced": True},
        {"strength_rule": "held-out", "ridge_strength": 0.0},
        *({"features": k} for k in KINDS),
    ],
)
def test_saved_and_loaded_it_answers_and_learns_on_to_the_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    x, y = _data(5, samples=200)
    model = _learned(x, y, tasks=y // 2, **options)
    loaded = kcl.load_model(kcl.save_model(model, tmp_path / "model"))
    for _ in range(2):
        for task in (None, "task 1"):
            for mine, other in zip(model.predict(x, task), loaded.predict(x, task), strict=True):
                np.testing.assert_array_equal(mine, other)
        for one in (model, loaded):
            one.learn(x[:50] + 1.0, y[:50], "another")
    assert (loaded.history, loaded.tasks, loaded.view) == (model.history, model.tasks, model.view)


class TestRefused:
    @pytest.fixture
    def model(self) -> kcl.ContinualModel:
        x, y = _data()
        return _learned(x, y, tasks=y // 2)

    def test_what_cannot_be_forgotten(self, model: kcl.ContinualModel) -> None:
        x, y = _data()
        before = model.predict(x).confidence
        for match, arguments in {
            "name the task": {},
            "was not learned": {"task": "other"},
            "no class": {"task": "task 0", "classes": [9]},
            "at least one class": {"task": "task 0", "classes": []},
            "never learned class 3": {"task": "task 0", "samples": (x[3:4], y[3:4])},
            "fewer samples": {"task": "task 0", "samples": (x[[0] * 20], y[[0] * 20])},
            "not among those": {"task": "task 0", "samples": (x[:1] + 3.0, y[:1])},
            "not both": {"task": "task 0", "classes": [0], "samples": (x[:1], y[:1])},
            "not finite": {"task": "task 0", "samples": (x[:1] * np.nan, y[:1])},
        }.items():
            with pytest.raises(kcl.KclError, match=match):
                model.forget(**arguments)
            np.testing.assert_array_equal(model.predict(x).confidence, before)

    def test_everything_forgotten_nothing_answered(self, model: kcl.ContinualModel) -> None:
        for task in ("task 0", "task 1"):
            model.forget(task)
        with pytest.raises(kcl.KclError, match="learn a task first"):
            model.predict(_data()[0])
        model.learn(*_data(), task="again")
        assert model.accuracy(*_data()) > 50.0

    def test_a_network_cannot_forget(self) -> None:
        model = kcl.ContinualModel(backbone="mlp", bases=32, width=8)
        model.learn(*_data(), task="a")
        with pytest.raises(kcl.KclError, match="was trained on the data"):
            model.forget("a")
        with pytest.raises(kcl.KclError, match="do not add up"):
            kcl.merge(model, model)

    def test_models_of_other_features(self, model: kcl.ContinualModel) -> None:
        x, y = _data()
        for other in ({"seed": 1}, {"width": 3.0}, {"bases": 41}, {"features": "relu"}, {"standardise": True}):
            with pytest.raises(kcl.KclError, match="model 2 has other"):
                kcl.merge(model, _learned(x, y, **other))

    def test_a_lesson_with_samples_that_are_not_finite(self, model: kcl.ContinualModel) -> None:
        x, y = _data()
        before = model.predict(x).confidence
        for bad in (x * np.inf, x[:, :3], x[:0]):
            with pytest.raises(kcl.KclError):
                model.learn(bad, y[: len(bad)], "task 0")
        np.testing.assert_array_equal(model.predict(x).confidence, before)


class TestDefaults:
    def test_rows_without_settings_get_a_streaming_head(self) -> None:
        model = kcl.ContinualModel()
        model.learn(*_data(), task="a")
        assert model.head == "streaming"
        assert "rbf" in repr(model)
        assert model.accuracy(*_data()) > 75.0

    def test_settings_large_images_and_modules_get_coresets(self, seeded: Any) -> None:
        x, y = _data()
        with seeded(0):
            module = torch.nn.Linear(5, 8)
        for options, inputs in (
            ({"kernel": "rbf", "backbone": "identity"}, x),
            ({"backbone": module}, x),
            ({}, np.repeat((x[:, :4].clip(0, 1) * 255).astype(np.uint8), 1200, axis=1).reshape(-1, 3, 40, 40)),
        ):
            model = kcl.ContinualModel(**options)
            model.learn(inputs[:20], y[:20], task="a")
            assert model.head == "coreset"
        model = kcl.ContinualModel()
        model.learn((x[:, :4].reshape(-1, 1, 2, 2).clip(0, 1) * 255).astype(np.uint8), y, task="a")
        assert model.head == "streaming"

    @pytest.mark.parametrize("seed", range(3))
    def test_permuted_digits_do_not_diverge(self, seed: int) -> None:
        """Standardising by the first task's pixels once made later permutations explode."""
        datasets = pytest.importorskip("sklearn.datasets")
        random, (x, y) = np.random.default_rng(seed), datasets.load_digits(return_X_y=True)
        maps = [random.permutation(64) for _ in range(3)]
        for model in (
            kcl.KernelContinualClassifier(random_state=seed),
            kcl.KernelContinualClassifier("vrf", epochs=1, random_state=0),
        ):
            for number, pixels in enumerate(maps):
                model.partial_fit(x[:500, pixels] / 16.0, y[:500], task=number)
            for number, pixels in enumerate(maps):
                assert model.score(x[1000:, pixels] / 16.0, y[1000:], task=number) > 0.8

    def test_tasks_in_other_units(self) -> None:
        datasets = pytest.importorskip("sklearn.datasets")
        wine, cancer = datasets.load_wine(return_X_y=True), datasets.load_breast_cancer(return_X_y=True)
        streams = {"wine": wine, "cancer": (cancer[0][:, :13], cancer[1])}
        for order in (["wine", "cancer"], ["cancer", "wine"]):
            model = kcl.ContinualModel()
            for name in order:
                x, y = streams[name]
                model.learn(x[::2], y[::2], name)
            assert all(model.accuracy(x[1::2], y[1::2], name) > 85.0 for name, (x, y) in streams.items())

    def test_a_task_no_better_than_chance_is_pointed_out(self) -> None:
        random = np.random.default_rng(0)
        with pytest.warns(kcl.KclWarning, match="no better than by chance"):
            kcl.ContinualModel(held_out_share=0.3).learn(random.normal(size=(200, 3)), random.integers(0, 4, 200))


def test_landmarks_are_handed_in_for_nystroem(tmp_path: Path) -> None:
    x, y = _data()
    landmarks = _data(9)[0]
    model = _learned(x, y, features="nystroem", landmarks=landmarks)
    loaded = kcl.load_model(kcl.save_model(model, tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict(x).confidence, model.predict(x).confidence)
    assert _gap(kcl.merge(model, model.blank_copy()), model) == 0.0
    for options in ({"features": "nystroem"}, {"landmarks": landmarks}):
        with pytest.raises(kcl.KclError, match="landmarks"):
            _learned(x, y, **options)


class TestDevice:
    def test_a_gpu_where_there_is_one(self) -> None:
        pytest.importorskip("sklearn")
        x, y = _data()
        expected = "cuda" if torch.cuda.is_available() else "cpu"
        model = kcl.StreamingKernelClassifier(bases=40, width=2.0, device="auto", random_state=0).fit(x, y)
        assert model.model_.device == expected
        assert model.model_.heads.ridge.features.buffers["frequencies"].device.type == expected
        on_cpu = kcl.StreamingKernelClassifier(bases=40, width=2.0, random_state=0).fit(x, y)
        np.testing.assert_allclose(model.predict_proba(x), on_cpu.predict_proba(x), atol=1e-5)

    def test_one_that_is_not_there(self) -> None:
        pytest.importorskip("sklearn")
        x, y = _data()
        with pytest.raises(kcl.KclError, match="cannot compute on device 'nonsense'"):
            kcl.ContinualModel(device="nonsense")
        with pytest.raises(ValueError, match="cannot compute on device 'nonsense'"):
            kcl.StreamingKernelClassifier(device="nonsense", random_state=0).fit(x, y)


def test_what_is_no_model_cannot_be_merged() -> None:
    pytest.importorskip("sklearn")
    x, y = _data()
    estimator = kcl.StreamingKernelClassifier(bases=40, random_state=0).fit(x, y)
    for several in (("folder", "other"), (estimator, estimator.model_), (estimator.model_, estimator)):
        with pytest.raises(kcl.KclError, match=r"cannot be merged|is not a fitted"):
            kcl.merge(*several)


def test_the_estimator_forgets_and_keeps_its_classes_in_order() -> None:
    pytest.importorskip("sklearn")
    x, y = _data()
    model = kcl.StreamingKernelClassifier(keep="class", random_state=0)
    model.partial_fit(x, y).partial_fit(x + 2.0, y + 10, task="other")
    model.forget(task="other", classes=[11])
    assert model.classes_.tolist() == [0, 1, 2, 3, 10, 12, 13]
    assert model.predict_proba(x).shape == (len(x), 7)
    with pytest.raises(ValueError, match="no class"):
        model.forget(task="other", classes=[11])
