"""Answers of a network without a task: the classifier that runs are tested with, for models of any shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kcl
from kcl.methods.kcl_settings import CLASS_HEADS
from kcl.models.coreset_heads import CoresetHeads
from kcl.models.joint_head import JointAnswers

SMALL: dict[str, Any] = {"backbone": "identity", "bases": 64, "coreset_size_per_class": 8, "class_bases": 100}


def _points(centre: float, labels: list[str], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    names = np.repeat(labels, 30)
    shifts = np.array([2.0 * np.eye(4)[labels.index(name)] for name in names])
    return (centre + shifts + 0.4 * random.normal(size=shifts.shape)).astype(np.float32), names


def _model(**settings: Any) -> kcl.ContinualModel:
    model = kcl.ContinualModel(**(SMALL | settings))
    model.learn(*_points(0.0, ["a", "b"]), task="low")
    model.learn(*_points(4.0, ["c", "d", "e"]), task="high")
    return model


def _joint(model: kcl.ContinualModel) -> JointAnswers:
    assert isinstance(model.heads, CoresetHeads)
    return model.heads.joint()


@pytest.mark.parametrize("features", ["relu", "linear", "rbf"])
@pytest.mark.parametrize("head", CLASS_HEADS)
def test_every_head_answers(head: str, features: str) -> None:
    model = _model(class_head=head, class_features=features, feature_norm="none")
    for centre, labels, task in ((0.0, ["a", "b"], "low"), (4.0, ["c", "d", "e"], "high")):
        x, names = _points(centre, labels, seed=1)
        found = model.predict(x)
        assert (found.label == names).mean() > 0.9
        assert (found.task == task).mean() > 0.9
        assert np.isfinite(found.confidence).all()
        assert np.isfinite(found.variance).all() == (head == "joint-ridge")
    assert np.allclose(model.logits(x).argmax(1), [model.labels.index(label) for label in found.label])


def test_equal_labels_of_two_tasks_are_one_class() -> None:
    model = kcl.ContinualModel(**(SMALL | {"feature_norm": "none"}))
    model.learn(*_points(0.0, ["a", "b"]), task="low")
    model.learn(*_points(4.0, ["a", "c"]), task="high")
    assert model.logits(_points(0.0, ["a", "b"])[0]).shape[1] == 3
    for centre, labels, task in ((0.0, ["a", "b"], "low"), (4.0, ["a", "c"], "high")):
        x, names = _points(centre, labels, seed=1)
        found = model.predict(x)
        assert (found.label == names).mean() > 0.9
        assert (found.task == task).mean() > 0.9


def test_copies_of_a_query_vote() -> None:
    random = np.random.default_rng(0)
    images = random.normal(size=(60, 3, 6, 6)).astype(np.float32) + np.repeat([0.0, 2.0, 4.0], 20)[:, None, None, None]
    model = kcl.ContinualModel(
        backbone="cifar-resnet", batch_size=10, test_views="flip", rotation_labels=True, coreset_size_per_class=4,
        bases=32, shared_metric=0.5, class_bases=50,
    )  # fmt: skip
    model.learn(images[:40], np.repeat(["a", "b"], 20), task="one")
    model.learn(images[20:], np.repeat(["c", "d"], 20), task="two")
    found, mirrored = (model.logits(x).numpy() for x in (images, np.ascontiguousarray(images[..., ::-1])))
    np.testing.assert_allclose(found, mirrored, rtol=1e-2, atol=1e-2)
    assert np.array_equal(model.predict(images).label, np.array(model.labels)[found.argmax(1)])


def test_the_temperature_suits_new_samples() -> None:
    """The likelihood of their labels is near the best that any temperature gives."""
    model = kcl.ContinualModel(**(SMALL | {"feature_norm": "none", "coreset_size_per_class": 20}))
    model.learn(*_points(0.0, ["a", "b"]), task="low")
    model.learn(*_points(0.8, ["c", "d", "e"]), task="high")
    parts = [_points(0.0, ["a", "b"], seed=1), _points(0.8, ["c", "d", "e"], seed=1)]
    logits = np.concatenate([model.logits(x).double().numpy() for x, _ in parts])
    labels = np.concatenate([[model.labels.index(name) for name in names] for _, names in parts])

    def loss(factor: float) -> float:
        scaled = factor * logits
        return float(np.mean(np.log(np.exp(scaled).sum(1)) - scaled[np.arange(len(labels)), labels]))

    assert loss(1.0) < min(loss(2.0**power) for power in np.arange(-4.0, 4.0, 0.25)) + 0.1


def test_a_class_without_samples_is_never_the_answer() -> None:
    for head in CLASS_HEADS:
        model = kcl.ContinualModel(**(SMALL | {"class_head": head}))
        model.learn(*_points(0.0, ["a", "b"]), task="low", classes=["never"])
        model.learn(*_points(4.0, ["c", "d"]), task="high")
        assert "never" not in set(model.predict(_points(0.0, ["a", "b"], seed=1)[0]).label)


def test_the_head_follows_the_weights() -> None:
    model = _model()
    before = _joint(model)
    model.learn(*_points(8.0, ["f", "g"]), task="new")
    assert _joint(model) is not before
    assert len(model.labels) == model.logits(_points(0.0, ["a", "b"])[0]).shape[1] == 7
