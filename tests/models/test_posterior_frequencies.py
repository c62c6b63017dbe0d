"""A streaming head on the features of a trained VRF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kcl

SMALL: dict[str, Any] = {"backbone": "identity", "bases": 64, "epochs": 3, "coreset_size_per_class": 5}


def _data(seed: int, samples: int = 120) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = np.arange(samples) % 3
    return (random.normal(size=(samples, 6)) + 2.0 * np.eye(6)[y]).astype(np.float32), y


@pytest.fixture(scope="module")
def trained() -> kcl.ContinualModel:
    model = kcl.ContinualModel(kernel="vrf", **SMALL)
    x, y = _data(0)
    for task in range(2):
        model.learn(x, y + 3 * task, f"task {task}")
    return model


def test_frequencies_have_the_moments_of_the_posterior(trained: kcl.ContinualModel) -> None:
    answerer = trained.answerer
    features = answerer.plain_features(answerer.as_seen(trained.tasks["task 1"].lesson)["inputs"])
    posterior = answerer.method.posterior(answerer.model, features)
    drawn = kcl.posterior_frequencies(trained, 20_000, "task 1")
    spread = posterior.log_variance.mul(0.5).exp().detach().numpy()
    np.testing.assert_allclose(drawn.mean(0), posterior.mean.detach().numpy(), atol=5.0 * spread.max() / 20_000**0.5)
    np.testing.assert_allclose(drawn.std(0), spread, rtol=0.05)
    assert len(kcl.posterior_frequencies(trained, 33)) == 33
    assert np.array_equal(kcl.posterior_frequencies(trained, 9), kcl.posterior_frequencies(trained, 9))


def test_a_streaming_head_has_them_as_its_features(trained: kcl.ContinualModel, tmp_path: Path) -> None:
    (x, y), (queries, truth) = _data(1), _data(2)
    inputs, frequencies = kcl.kernel_inputs(trained, x), kcl.posterior_frequencies(trained, 100)
    model = kcl.ContinualModel(head="streaming", features="vrf", frequencies=frequencies, standardise=False)
    model.learn(inputs[:60], y[:60], "one")
    model.learn(inputs[60:], y[60:], "one")
    assert model.accuracy(kcl.kernel_inputs(trained, queries), truth) > 80.0
    psi = model.heads.features(torch.from_numpy(inputs)).numpy()
    phases = model.heads.ridge.features.buffers["phases"].numpy()
    np.testing.assert_allclose(psi, np.sqrt(2.0 / 100) * np.cos(inputs @ frequencies.T + phases), atol=1e-6)
    loaded = kcl.load_model(kcl.save_model(model, tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict(inputs).confidence, model.predict(inputs).confidence)
    estimator = kcl.StreamingKernelClassifier("vrf", frequencies=frequencies, normalise="none", random_state=0)
    assert estimator.fit(inputs, y).score(inputs, y) > 0.8


def test_what_does_not_fit_is_refused(trained: kcl.ContinualModel) -> None:
    x, y = _data(0)
    frequencies = kcl.posterior_frequencies(trained, 10)
    for options in ({}, {"frequencies": frequencies[:, :2]}, {"frequencies": frequencies, "landmarks": x}):
        with pytest.raises(kcl.KclError, match="frequencies"):
            kcl.ContinualModel(head="streaming", features="vrf", **options).learn(x, y)
    linear = kcl.ContinualModel(kernel="linear", **SMALL)
    linear.learn(x, y, "task 0")
    for model, match, options in (
        (linear, "no posterior", {}),
        (trained, "not learned", {"task": "other"}),
        (trained, "draw more", {"bases": 1}),
    ):
        with pytest.raises(kcl.KclError, match=match):
            kcl.posterior_frequencies(model, **options)
