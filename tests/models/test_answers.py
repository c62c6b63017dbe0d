"""Which task answers, and by how much: every score against its formula, the choice against all heads side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import kcl
from kcl.models.inference import TASK_SCORES, Answerer, Evidence

SMALL: dict[str, Any] = {
    "standardise": False, "backbone": "identity", "feature_norm": "l2", "bases": 64, "coreset_size_per_class": 5,
    "test_draws": 2,
}  # fmt: skip


def _points(centre: float, labels: list[str]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(int(10 * centre))
    names = np.repeat(labels, 30)
    shifts = np.array([np.eye(4)[labels.index(name)] for name in names])
    return (centre + shifts + 0.5 * random.normal(size=shifts.shape)).astype(np.float32), names


@pytest.fixture(scope="module")
def model() -> kcl.ContinualModel:
    made = kcl.ContinualModel(held_out_share=0.2, **SMALL)
    for centre, name, labels in ((0.0, "low", ["a", "b"]), (0.7, "middle", ["a", "c", "d"]), (1.4, "high", ["e", "f"])):
        made.learn(*_points(centre, labels), task=name)
    assert all(made.answerer.head(task.lesson).temperature != 1.0 for task in made.tasks.values())
    return made


def _expected_scores(evidence: Evidence) -> dict[str, np.ndarray]:
    logits, responses = evidence.logits.double().numpy(), evidence.responses.double().numpy()
    powers = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = powers / powers.sum(1, keepdims=True)
    nearest = np.eye(responses.shape[1])[responses.argmax(1)]
    return {
        "typicality": -evidence.surprise.numpy(),
        "variance": -evidence.variance.numpy(),
        "probability": probabilities.max(1),
        "entropy": (probabilities * np.log(probabilities)).sum(1),
        "response": responses.max(1),
        "residual": -((responses - nearest) ** 2).sum(1),
    }


@pytest.mark.parametrize("score", TASK_SCORES)
def test_the_task_with_the_best_score_answers(model: kcl.ContinualModel, score: str) -> None:
    queries = np.concatenate([_points(centre, ["a", "b"])[0] for centre in (0.1, 0.8, 1.5)])
    answerer = model.answerer
    evidence = {
        name: answerer.evidence(answerer.features(torch.from_numpy(queries), task.lesson), task.lesson)
        for name, task in model.tasks.items()
    }
    fits = np.stack([_expected_scores(own)[score] for own in evidence.values()])
    found = model.predict(queries, score=score)
    ordered = np.sort(fits, axis=0)
    np.testing.assert_allclose(found.task_margin, ordered[-1] - ordered[-2], rtol=1e-3, atol=1e-5)
    clear = ordered[-1] - ordered[-2] > 1e-4
    assert clear.mean() > 0.9
    assert (found.task == np.array(list(model.tasks))[fits.argmax(0)])[clear].all()
    assert len(set(found.task)) > 1
    for name, own in evidence.items():
        mine = found.task == name
        np.testing.assert_allclose(found.variance[mine], own.variance.numpy()[mine], rtol=1e-4, atol=1e-6)


def test_an_answer_just_as_sure_as_asked_for_is_given(model: kcl.ContinualModel) -> None:
    queries = _points(0.1, ["a", "b"])[0]
    sure = model.predict(queries, "low").confidence
    found = model.predict(queries, "low", abstain_below=float(np.sort(sure)[30])).label
    assert sum(label is not None for label in found) == (sure >= np.sort(sure)[30]).sum() >= 30


def test_evidence_is_the_ridge_regression_s_own(model: kcl.ContinualModel) -> None:
    """Responses before scale, shift and temperature; surprise in the deviations usual for the task."""
    queries = torch.from_numpy(_points(0.1, ["a", "b"])[0])
    for name, task in model.tasks.items():
        answerer, memory = model.answerer, model.stack.memory_kept(0, task.lesson)
        head = answerer.head(task.lesson)
        found = answerer.evidence(answerer.features(queries, task.lesson), task.lesson)
        torch.testing.assert_close(found.logits, model.logits(queries, name))
        scores = found.logits * head.temperature
        torch.testing.assert_close(found.responses, (scores - memory["shift"]) / memory["scale"], rtol=1e-4, atol=1e-5)
        mean, deviation = head.usual.mean(0)
        torch.testing.assert_close(found.surprise * deviation + mean, found.variance, rtol=1e-4, atol=1e-6)


def test_heads_follow_the_weights() -> None:
    """A lesson moves what all tasks share: no head of before it answers any more."""
    made = kcl.ContinualModel(**(SMALL | {"backbone": "mlp", "width": 16}))
    made.learn(*_points(0.0, ["a", "b"]), task="low")
    queries = torch.from_numpy(_points(0.1, ["a", "b"])[0])
    before = made.logits(queries, "low")
    made.learn(*_points(0.7, ["c", "d"]), task="middle")
    anew = Answerer(made.stack, calibrated=True)
    torch.testing.assert_close(made.logits(queries, "low"), anew.logits(made.view.scale(queries), 0))
    assert (made.logits(queries, "low") - before).abs().max() > 1e-2


@pytest.mark.parametrize("kernel", ["linear", "polynomial"])
@pytest.mark.parametrize("head", ["coreset", "streaming"])
def test_far_beyond_everything_no_answer_is_given_however_sure_it_seems(head: str, kernel: str) -> None:
    """The scores of such a query may be finite, and one class far ahead, where its variance is not."""
    coreset = {"kernel": kernel, "backbone": "identity", "feature_norm": "none"}
    options: dict[str, Any] = coreset if head == "coreset" else {"features": "linear"}
    model = kcl.ContinualModel(head=head, standardise=False, **options)
    model.learn(*_points(0.0, ["a", "b"]), task="one")
    model.learn(*_points(0.7, ["c", "d"]), task="two")
    far = np.full((1, 4), 1e38, np.float32)
    for task in ("one", None):
        for least in (0.0, 0.99):
            assert model.predict(far, task, abstain_below=least).label.tolist() == [None]


def test_probabilities_that_are_not_finite_are_refused() -> None:
    options = {"kernel": "polynomial", "backbone": "identity", "feature_norm": "none"}
    model = kcl.ContinualModel(head="coreset", standardise=False, **options)
    x, y = _points(0.0, ["a", "b"])
    model.learn(x, y, task="one")
    x[3] = 1e38
    with pytest.raises(kcl.KclError, match="row 3 is so far"):
        model.probabilities(x)


class _Unseen(dict[str, Any]):
    """Tasks that can be asked for by name only."""

    def __iter__(self) -> Any:
        raise AssertionError("a thousand tasks would be looked through")

    keys = values = items = __iter__  # type: ignore[assignment]


@pytest.mark.parametrize("head", ["coreset", "streaming"])
def test_an_answer_for_a_named_task_looks_at_no_other(head: str) -> None:
    model = kcl.ContinualModel(head=head, **(SMALL if head == "coreset" else {"bases": 16}))
    model.learn(*_points(0.0, ["a", "b"]), task="one")
    model.learn(*_points(0.7, ["c", "d"]), task="two")
    queries = _points(0.0, ["a", "b"])[0]
    expected = model.predict(queries, "one").label.tolist(), model.logits(queries, "one")
    model.heads.tasks = _Unseen(model.tasks)
    assert model.predict(queries, "one").label.tolist() == expected[0]
    assert torch.equal(model.logits(queries, "one"), expected[1])
