"""The scikit-learn face: scikit-learn's own checks, tasks, and the company it is used in."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import kcl

SMALL: dict[str, Any] = {"bases": 64, "epochs": 2, "coreset_size_per_class": 10, "random_state": 0}
MAY_FAIL = {
    "check_methods_subset_invariance": "numbers are float32: where a processor sums one row in another order than many "
    "rows, probabilities differ in the seventh digit, and the check asks for equality to 1e-7",
    **{
        f"check_sample_weight_equivalence_on_{kind}_data": "scaling and kernel width are measured without weights"
        for kind in ("dense", "sparse")
    },
}
LEARNS_ONCE = {"check_sample_weights_not_overwritten": "a network or kernel that learns refuses unequal weights"}


@pytest.fixture(autouse=True)
def _global_generator_put_back() -> Any:
    """scikit-learn's checks draw from NumPy's global generator."""
    before = np.random.get_state()  # noqa: NPY002
    yield
    np.random.set_state(before)  # noqa: NPY002


@parametrize_with_checks(
    [
        kcl.KernelContinualClassifier(),
        kcl.KernelContinualClassifier("vrf", bases=128, epochs=2),
        kcl.KernelContinualClassifier("rbf", backbone="mlp", width=32),
        kcl.StreamingKernelClassifier("relu", bases=128, keep="class", balanced=True),
    ],
    expected_failed_checks=lambda estimator: MAY_FAIL | (LEARNS_ONCE if getattr(estimator, "kernel", None) else {}),
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def _clusters(seed: int, labels: list[Any], samples: int = 40) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    centres = 3.0 * random.normal(size=(len(labels), 6))
    which = np.arange(samples * len(labels)) % len(labels)
    return centres[which] + 0.4 * random.normal(size=(len(which), 6)), np.array(labels)[which]


ONE, TWO = _clusters(0, ["cat", "dog"]), _clusters(1, ["red", "green", "blue"])


class TestTasks:
    @pytest.fixture
    def learned(self) -> kcl.KernelContinualClassifier:
        return kcl.KernelContinualClassifier(**SMALL).fit(*ONE, task="animals").partial_fit(*TWO, task="colours")

    def test_named_inferred_and_one_for_each_row(self, learned: kcl.KernelContinualClassifier) -> None:
        assert learned.tasks_ == ["animals", "colours"]
        assert learned.classes_.tolist() == ["blue", "cat", "dog", "green", "red"]
        assert learned.score(*ONE, task="animals") > 0.95
        assert learned.score(*TWO, task="colours") > 0.95
        both, labels = np.concatenate([ONE[0], TWO[0]]), np.concatenate([ONE[1], TWO[1]])
        names = ["animals"] * len(ONE[0]) + ["colours"] * len(TWO[0])
        assert learned.score(both, labels) > 0.9
        assert (learned.predict_task(both) == names).mean() > 0.9
        assert learned.score(both, labels, task=names) > 0.95

    def test_probabilities_are_of_the_tasks_own_classes(self, learned: kcl.KernelContinualClassifier) -> None:
        found = learned.predict_proba(ONE[0], task="animals")
        assert found.shape == (len(ONE[0]), 5)
        np.testing.assert_allclose(found.sum(1), 1.0)
        assert (found[:, learned.classes_ == "red"] == 0.0).all()

    def test_variance_is_larger_for_the_other_task(self, learned: kcl.KernelContinualClassifier) -> None:
        own, other = (learned.predict_variance(ONE[0], task=task).mean() for task in ("animals", "colours"))
        assert own < other

    def test_new_classes_and_samples_of_an_old_task(self, learned: kcl.KernelContinualClassifier) -> None:
        more = _clusters(2, ["horse"])
        learned.partial_fit(*more, task="animals")
        assert learned.score(*more, task="animals") > 0.95
        assert learned.score(*ONE, task="animals") > 0.9
        assert learned.score(*TWO, task="colours") > 0.9

    def test_a_task_not_learned_is_refused(self, learned: kcl.KernelContinualClassifier) -> None:
        with pytest.raises(ValueError, match="learned: animals, colours"):
            learned.predict(ONE[0], task="plants")
        with pytest.raises(ValueError, match="one for each row"):
            learned.predict(ONE[0], task=["animals"])

    def test_labels_of_another_kind_are_refused_and_nothing_is_learned(
        self, learned: kcl.KernelContinualClassifier
    ) -> None:
        before = learned.predict_proba(ONE[0], task="animals")
        with pytest.raises(ValueError, match="string and number"):
            learned.partial_fit(ONE[0], np.arange(len(ONE[0])) % 2, task="animals")
        np.testing.assert_array_equal(learned.predict_proba(ONE[0], task="animals"), before)

    def test_fit_begins_anew(self, learned: kcl.KernelContinualClassifier) -> None:
        assert learned.fit(*TWO).tasks_ == ["default"]
        assert learned.classes_.tolist() == ["blue", "green", "red"]

    def test_partial_fit_without_a_task_goes_on_with_the_same_one(self) -> None:
        """The usual scikit-learn loop: announced classes, one of which comes later."""
        model = kcl.KernelContinualClassifier(**SMALL)
        inputs, labels = TWO
        first = labels != "red"
        model.partial_fit(inputs[first], labels[first], classes=["blue", "green", "red"])
        assert model.classes_.tolist() == ["blue", "green", "red"]
        model.partial_fit(inputs[~first], labels[~first])
        assert model.tasks_ == ["default"]
        assert model.score(inputs, labels) > 0.9


@pytest.mark.parametrize("kernel", [None, "rbf"])
def test_samples_of_no_weight_are_as_if_they_were_not_there(kernel: str | None) -> None:
    (x, y), wrong = _clusters(0, ["a", "b"]), np.array(["b", "a"] * 40)
    weights = np.repeat([2.0, 0.0], len(y))
    options = {"random_state": 0} if kernel is None else SMALL
    classifier, alone = (kcl.KernelContinualClassifier(kernel, **options) for _ in range(2))
    classifier.fit(np.concatenate([x, x]), np.concatenate([y, wrong]), sample_weight=weights)
    alone.fit(x, y)
    assert classifier.score(x, y) == alone.score(x, y) > 0.9
    if kernel is not None:
        with pytest.raises(ValueError, match="unequal sample weights"):
            classifier.partial_fit(x, y, sample_weight=np.arange(len(y)))


def test_the_same_random_state_gives_the_same(tmp_path: Any) -> None:
    one, two = (kcl.KernelContinualClassifier(**SMALL).fit(*ONE) for _ in range(2))
    np.testing.assert_array_equal(one.predict_proba(ONE[0]), two.predict_proba(ONE[0]))
    three = pickle.loads(pickle.dumps(one))  # scikit-learn's own way between processes
    np.testing.assert_array_equal(one.predict_proba(ONE[0]), three.predict_proba(ONE[0]))
    kcl.save_model(one.model_, tmp_path / "model")
    np.testing.assert_allclose(
        kcl.load_model(tmp_path / "model").probabilities(ONE[0], "default").numpy(),
        one.predict_proba(ONE[0]),
        atol=1e-6,
    )


def test_pipeline_and_grid_search() -> None:
    pipeline = make_pipeline(StandardScaler(), kcl.KernelContinualClassifier(**SMALL))
    assert pipeline.fit(*TWO).score(*TWO) > 0.95
    search = GridSearchCV(kcl.KernelContinualClassifier(**SMALL), {"kernel": ["rbf", "linear"], "bases": [16]}, cv=2)
    assert search.fit(*TWO).best_score_ > 0.9
    assert clone(search.best_estimator_).get_params()["bases"] == 16


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(TWO[0], columns=list("abcdef"))
    model = kcl.KernelContinualClassifier(**SMALL).fit(table, pandas.Series(TWO[1]))
    assert model.feature_names_in_.tolist() == list("abcdef")
    assert model.score(table, TWO[1]) > 0.95
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[list("fedcba")])
    names = pandas.Series(["default"] * len(table))
    for tasks in (names, names.astype("category"), pandas.Index(names)):
        np.testing.assert_array_equal(model.predict(table, task=tasks), model.predict(table))
    table.iloc[3, 2] = np.nan
    with pytest.raises(ValueError, match="row 3, column 'c' is NaN"):
        model.predict(table)


@pytest.mark.parametrize(
    "wrong", [{"kernel": "rfb"}, {"backbone": "resnet"}, {"normalise": "no"}, {"lr": -1.0}, {"held_out_share": 0.9}]
)
def test_mistakes_in_parameters_are_value_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        kcl.KernelContinualClassifier(**wrong).fit(*ONE)
