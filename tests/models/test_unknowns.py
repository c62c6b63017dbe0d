"""Unknown queries: scores from the sums, the rate that was asked for, what changes when a model changes, and drift."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kcl
from kcl.models.streaming_heads import StreamingHeads
from kcl.models.unknowns import SCORES, Drift, KnownScores

SMALL: dict[str, Any] = {"head": "streaming", "bases": 40, "width": 3.0, "standardise": False}


def _data(seed: int, samples: int = 200, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = np.arange(samples) % classes
    return (random.normal(size=(samples, 5)) + 3.0 * np.eye(5)[y]).astype(np.float32), y


def _learned(**options: Any) -> kcl.ContinualModel:
    """Classes 0 and 1 in one task, 2 and 3 in another."""
    model, (x, y) = kcl.ContinualModel(**(SMALL | options)), _data(0)
    for number in range(2):
        model.learn(x[y // 2 == number], y[y // 2 == number], f"task {number}")
    return model


class TestScores:
    @pytest.mark.parametrize("task", [None, "task 1"])
    def test_they_are_those_of_the_samples(self, task: str | None) -> None:
        model, (x, y), queries = _learned(ridge_strength=1e-2), _data(0), _data(1)[0]
        if task is not None:
            x, y = x[y > 1], y[y > 1] - 2
        assert isinstance(model.heads, StreamingHeads)
        learned, asked = (model.heads.ridge.features(torch.from_numpy(rows)).numpy() for rows in (x, queries))
        strength = 1e-2 * (learned**2).sum(1).mean()
        inverse = np.linalg.inv(learned.T @ learned + strength * np.eye(learned.shape[1]))
        means = np.stack([learned[y == label].mean(0) for label in np.unique(y)])
        centred = learned - means[y]
        precision = np.linalg.inv((centred.T @ centred + strength * np.eye(learned.shape[1])) / len(y))
        differences = asked[:, None] - means
        responses = asked @ inverse @ learned.T @ np.eye(len(means))[y]
        targets = np.eye(len(means))[responses.argmax(1)]
        expected = {
            "residual": -np.square(responses - targets).sum(1),
            "mahalanobis": -np.sqrt(np.einsum("qcd,de,qce->qc", differences, precision, differences)).min(1),
            "response": responses.max(1),
            "variance": -strength * np.einsum("qd,de,qe->q", asked, inverse, asked),
        }
        for score in SCORES:
            np.testing.assert_allclose(model.known_scores(queries, score, task), expected[score], rtol=1e-6)

    def test_they_do_not_depend_on_order_or_on_what_was_forgotten(self) -> None:
        model, (x, y), queries = _learned(), _data(0), _data(1)[0]
        model.learn(*_data(5), task="other")
        model.forget("other")
        other = kcl.ContinualModel(**SMALL)
        for rows in np.array_split(np.random.default_rng(0).permutation(len(x)), 5):
            other.learn(x[rows], y[rows], "all")
        for score in SCORES:
            torch.testing.assert_close(
                model.known_scores(queries, score), other.known_scores(queries, score), rtol=1e-6, atol=1e-8
            )


class TestRate:
    @pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
    @pytest.mark.parametrize("score", SCORES)
    def test_it_is_the_share_of_known_queries_rejected(self, score: str, rate: float) -> None:
        """The share of one calibration has a beta distribution, whose standard deviation is √(rate (1 − rate) / n)."""
        model, shares = _learned(), []
        for seed in range(1, 9):
            known, fresh = np.split(_data(seed, 3000)[0], [1000])
            model.reject_unknown(known, rate, score)
            answers = model.predict(fresh)
            shares.append(np.mean([label is None for label in answers.label]))
        deviation = (rate * (1.0 - rate) * (1 / 1000 + 1 / 2000) / len(shares)) ** 0.5
        assert abs(np.mean(shares) - rate) < 4.0 * deviation

    @pytest.mark.parametrize("features", ["rbf", "laplacian", "relu", "orthogonal-relu", "polynomial"])
    def test_far_queries_are_rejected_and_near_ones_answered(self, features: str) -> None:
        """With features that grow with their inputs too, whose responses far away are higher than any near by."""
        model = _learned(features=features, bases=1024, width=0.0)
        model.reject_unknown(_data(1)[0], 0.05)
        far = model.predict(_data(2)[0] + 20.0)
        assert set(far.label) == {None}
        assert (far.known == 0.0).all()
        near = model.predict(_data(2)[0])
        assert np.mean([label is not None for label in near.label]) > 0.85
        assert abs(near.known.mean() - 0.5) < 0.1

    @given(
        st.lists(st.integers(-3, 3) | st.floats(-1e6, 1e6), min_size=1, max_size=60),
        st.floats(0.001, 0.999),
        st.floats(-1e6, 1e6),
    )
    def test_never_more_of_the_known_are_below_the_threshold_than_asked(
        self, values: list[float], rate: float, query: float
    ) -> None:
        scores = torch.tensor([*values, query], dtype=torch.float64)
        if rate * (len(scores) + 1) < 1.0:
            with pytest.raises(kcl.KclError, match="known queries or more"):
                KnownScores.of("response", rate, scores)
            return
        known = KnownScores.of("response", rate, scores)
        below = float((~known.accepts(scores)).double().sum())
        assert (below + 1) / (len(scores) + 1) <= rate + 1e-8
        for value in (query, *values):
            direct = np.mean(scores.numpy() < value) + 0.5 * np.mean(scores.numpy() == value)
            assert float(known.share_below(torch.tensor([value], dtype=torch.float64))) == pytest.approx(direct)

    def test_what_is_not_a_number_is_unknown(self) -> None:
        known = KnownScores.of("response", 0.1, torch.arange(20.0))
        scores = torch.tensor([torch.nan, -torch.inf, torch.inf, 5.0])
        assert known.accepts(scores).tolist() == [False, False, True, True]
        assert known.share_below(scores).tolist() == [0.0, 0.0, 1.0, 5.5 / 20]


class TestChanges:
    @pytest.fixture
    def model(self) -> kcl.ContinualModel:
        model = _learned()
        model.reject_unknown(_data(1)[0], 0.1)
        model.reject_unknown(_data(1)[0], 0.1, "variance", task="task 0")
        return model

    def test_learning_makes_it_stale(self, model: kcl.ContinualModel, recwarn: Any) -> None:
        x, y = _data(2)
        model.predict(x)
        assert not recwarn
        model.learn(x, y, "task 1")
        model.predict(x, "task 0")  # whose classifier has not changed
        assert not recwarn
        with pytest.warns(kcl.KclWarning, match="call it again"):
            assert None in model.predict(x).label.tolist()
        model.reject_unknown(_data(1)[0])
        model.predict(x)

    def test_forgetting_undoes_it(self, model: kcl.ContinualModel) -> None:
        """A model that never saw what was forgotten would have no such scores."""
        model.forget("task 1")
        assert isinstance(model.heads, StreamingHeads)
        assert set(model.heads.known) == {"task 0"}
        never = kcl.ContinualModel(**SMALL)
        x, y = _data(0)
        never.learn(x[y < 2], y[y < 2], "task 0")
        never.reject_unknown(_data(1)[0], 0.1, "variance")  # the same with a single task, named or not
        mine, other = (each.predict(_data(2)[0]) for each in (model, never))
        assert mine.label.tolist() == other.label.tolist()
        np.testing.assert_allclose(mine.known, other.known)
        model.forget("task 0", samples=(x[y == 1], y[y == 1]))
        assert not model.heads.known
        assert np.isnan(model.predict(x).known).all()

    def test_a_lesson_that_fails_changes_nothing(self, model: kcl.ContinualModel) -> None:
        x = _data(2)[0]
        before = model.predict(x)
        with pytest.raises(kcl.KclError):
            model.learn(x, ["text"] * len(x), "task 1")
        np.testing.assert_array_equal(before.known, model.predict(x).known)

    def test_copies_and_merged_models_have_none(self, model: kcl.ContinualModel) -> None:
        merged = kcl.merge(model, model.blank_copy())
        assert np.isnan(merged.predict(_data(2)[0]).known).all()

    def test_saved_and_loaded_it_rejects_to_the_bit(self, model: kcl.ContinualModel, tmp_path: Path) -> None:
        x, y = _data(2)
        model.reject_unknown(x, 0.2, task="task 1")
        model.learn(x, y, "task 1")
        loaded = kcl.load_model(kcl.save_model(model, tmp_path / "model"))
        for task in (None, "task 0", "task 1"):
            with nullcontext() if task == "task 0" else pytest.warns(kcl.KclWarning):
                mine, other = (each.predict(x, task) for each in (model, loaded))
            for one, two in zip(mine, other, strict=True):
                np.testing.assert_array_equal(one, two)
        assert loaded.drift("task 0").limit == model.drift("task 0").limit


class TestDamaged:
    @pytest.mark.parametrize(
        "change",
        [
            {"task": "task 7"},
            {"task": "task 0"},
            {"score": "distance"},
            {"error_rate": 1.5},
            {"error_rate": "0.1"},
            {"error_rate": 1e-6},
            {"queries": 199},
            {"queries": -1},
            {"stale": 1},
            {"threshold": 99.0},
        ],
    )
    def test_a_saved_model_is_refused(self, tmp_path: Path, change: dict[str, Any]) -> None:
        model = _learned()
        for task in (None, "task 0"):
            model.reject_unknown(_data(1)[0], task=task)
        about = kcl.save_model(model, tmp_path / "model") / "model.json"
        content = json.loads(about.read_text("utf-8"))
        content["known"][0] |= change
        about.write_text(json.dumps(content), "utf-8")
        with pytest.raises(kcl.KclError, match="model"):
            kcl.load_model(tmp_path / "model")


def test_the_estimator_says_what_is_known() -> None:
    pytest.importorskip("sklearn")
    x, y = _data(0)
    model = kcl.StreamingKernelClassifier(random_state=0).partial_fit(x, y, task="a")
    with pytest.raises(ValueError, match="reject_unknown"):
        model.is_known(x)
    with pytest.raises(ValueError, match="between 0 and 1"):
        model.reject_unknown(x, 2.0)
    known = model.reject_unknown(_data(1)[0], 0.1).is_known(_data(2)[0])
    assert 0.8 < known.mean() < 1.0
    scores = model.score_samples(_data(2)[0])
    assert scores[known].min() > scores[~known].max()
    assert not model.is_known(x + 20.0, task="a").any()
    assert model.predict(x + 20.0).shape == (len(x),)


class TestRefused:
    def test_with_the_model_as_it_was(self) -> None:
        model, x = _learned(), _data(1)[0]
        for match, arguments in {
            "between 0 and 1, not 0": (x, 0.0),
            "between 0 and 1, not 1.0": (x, 1.0),
            "between 0 and 1, not nan": (x, float("nan")),
            "needs 19 known queries or more, not 18": (x[:18],),
            "unknown score": (x, 0.1, "distance"),
            "not finite": (x * np.nan,),
            "3 columns": (x[:, :3],),
            "was not learned": (x, 0.1, "variance", "task 7"),
        }.items():
            with pytest.raises(kcl.KclError, match=match):
                model.reject_unknown(*arguments)
        with pytest.raises(kcl.KclError, match="known queries first"):
            model.drift()
        assert np.isnan(model.predict(x).known).all()

    def test_scores_that_are_not_finite(self) -> None:
        with pytest.raises(kcl.KclError, match="not finite"):
            KnownScores.of("variance", 0.1, torch.tensor([torch.inf, *range(30)]))

    def test_a_network(self) -> None:
        model = kcl.ContinualModel(backbone="mlp", bases=32, width=8)
        model.learn(*_data(0), task="a")
        with pytest.raises(kcl.KclError, match="streaming head"):
            model.reject_unknown(_data(1)[0])
        assert np.isnan(model.predict(_data(1)[0]).known).all()


class TestDrift:
    @pytest.mark.parametrize("kind", ["standard_normal", "standard_cauchy", "standard_exponential", "ties"])
    def test_false_alarms_are_as_frequent_as_said(self, kind: str) -> None:
        """Each calibration watches one window, so that the windows are independent."""
        rng, rate, trials = np.random.default_rng(3), 0.05, 2000
        alarms = 0
        for _ in range(trials):
            draw = getattr(rng, kind, lambda size: rng.integers(0, 40, size))
            known = KnownScores.of("variance", 0.1, torch.from_numpy(draw(80)).double())
            drift = Drift(80, 50, rate)
            alarms += drift.update(known.share_below(torch.from_numpy(draw(50)).double()))
        assert abs(alarms / trials - rate) < 4.0 * (rate * (1.0 - rate) / trials) ** 0.5

    def test_it_equals_mann_and_whitneys_test(self) -> None:
        stats = pytest.importorskip("scipy.stats")
        rng = np.random.default_rng(0)
        old, new = rng.normal(size=70), rng.normal(0.3, 1.0, size=30)
        drift = Drift(70, 30)
        drift.update(KnownScores.of("response", 0.1, torch.from_numpy(old)).share_below(torch.from_numpy(new)))
        test = stats.mannwhitneyu(new, old, use_continuity=False, method="asymptotic")
        assert 2.0 * stats.norm.sf(abs(drift.deviations[0])) == pytest.approx(test.pvalue)

    def test_portions_do_not_matter_and_a_shift_is_told(self) -> None:
        model = _learned()
        model.reject_unknown(_data(1, 1000)[0], score="mahalanobis")
        same, shifted = _data(2, 1000)[0], _data(3, 1000)[0] + 0.6
        known = np.concatenate([model.predict(same).known, model.predict(shifted).known])
        one, many = model.drift(), model.drift()
        assert not one.update(known[:1000])
        assert one.update(known[1000:])
        for part in np.array_split(known, 77):
            many.update(part)
        assert many.deviations == one.deviations
        assert len(one.deviations) == 20
        assert max(one.deviations[10:]) < -one.limit

    def test_mistakes(self) -> None:
        for arguments in ((100, 0), (0, 10), (100, 10, 0.0), (100, 10, float("nan"))):
            with pytest.raises(kcl.KclError):
                Drift(*arguments)
        with pytest.raises(kcl.KclError, match="reject_unknown"):
            Drift(100).update(_learned().predict(_data(1)[0]).known)
