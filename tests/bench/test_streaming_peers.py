"""The peers of the streaming bench, each against its paper's formula written once more."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
linear_model = pytest.importorskip("sklearn.linear_model")
kernel_ridge = pytest.importorskip("sklearn.kernel_ridge")
discriminant = pytest.importorskip("sklearn.discriminant_analysis")

FOLDER = Path(__file__).parents[2] / "benches" / "streaming"
CLASSES, DIMENSION = 5, 6


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"streaming_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load("peers")


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features and labels that are not 0 … c − 1, sorted by class, and queries."""
    rng = np.random.default_rng(0)
    centres = 2.0 * rng.standard_normal((CLASSES, DIMENSION))
    labels = np.repeat(np.array([7, 3, 11, 0, 5]), [30, 20, 25, 40, 35])
    places = np.repeat(np.arange(CLASSES), [30, 20, 25, 40, 35])
    features = centres[places] + rng.standard_normal((150, DIMENSION))
    queries = centres[rng.integers(CLASSES, size=40)] + rng.standard_normal((40, DIMENSION))
    return features.astype(np.float32), labels, queries.astype(np.float32)


def learn(peer, features, labels, by_class=True):
    """In the order of the stream: one class at a time, or everything at once."""
    if by_class:
        for label in dict.fromkeys(labels.tolist()):
            peer.learn(features[labels == label], labels[labels == label])
    else:
        peer.learn(features, labels)
    return peer


def agree(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-3) -> None:
    np.testing.assert_allclose(a, b, atol=tolerance * np.abs(b).max())


def in_order(labels: np.ndarray) -> list[int]:
    return list(dict.fromkeys(labels.tolist()))


def targets_of(labels: np.ndarray) -> np.ndarray:
    return (labels[:, None] == np.array(in_order(labels))).astype(float)


def test_nearest_mean(bench, data):
    features, labels, queries = data
    peer = learn(bench.NearestMean(), features, labels)
    for query, answer in zip(queries, peer.predict(queries), strict=True):
        distances = {label: np.linalg.norm(query - features[labels == label].mean(0)) for label in set(labels.tolist())}
        assert answer == min(distances, key=distances.get)


@pytest.mark.parametrize("by_class", [True, False])
def test_slda_follows_the_running_updates(bench, data, by_class):
    features, labels, queries = data
    peer = learn(bench.SLDA(shrinkage=1e-4), features, labels, by_class)
    means = {label: np.zeros(DIMENSION) for label in in_order(labels)}
    counts = dict.fromkeys(means, 0)
    covariance = np.zeros((DIMENSION, DIMENSION))
    for step, (x, label) in enumerate(zip(features.astype(float), labels.tolist(), strict=True)):
        difference = x - means[label]
        delta = step / (step + 1) * np.outer(difference, difference)
        covariance = (step * covariance + delta) / (step + 1)
        means[label] = means[label] + difference / (counts[label] + 1)
        counts[label] += 1
    agree(peer.covariance, covariance, 1e-10)
    inverse = np.linalg.pinv((1 - 1e-4) * covariance + 1e-4 * np.eye(DIMENSION))
    stacked = np.stack(list(means.values()))
    agree(peer.scores(queries), queries @ inverse @ stacked.T - 0.5 * np.diag(stacked @ inverse @ stacked.T), 1e-6)


def test_ranpac_is_ridge_regression_on_random_relu_features(bench, data):
    features, labels, queries = data
    peer = learn(bench.RanPAC(bases=40, strength=1e-2), features, labels)
    projection = np.random.default_rng(0).standard_normal((DIMENSION, 40), np.float32)
    hidden, answers = np.maximum(features @ projection, 0.0), np.maximum(queries @ projection, 0.0)
    ridge = linear_model.Ridge(alpha=1e-2 * (hidden**2).sum(1).mean(), fit_intercept=False)
    agree(peer.scores(queries), ridge.fit(hidden, targets_of(labels)).predict(answers))


def test_ranpac_chooses_by_the_squared_error_on_a_fifth_of_the_newest_task(bench, data):
    """In the primal form, as the paper has it."""
    features, labels, queries = data
    peer = bench.RanPAC(bases=40)
    peer.learn(features[:75], labels[:75])
    peer.learn(features[75:], labels[75:])
    hidden = peer.projected(torch.from_numpy(features[75:])).double().numpy()
    targets = targets_of(labels)[75:]
    order = np.random.default_rng(1).permutation(75)
    chosen, held = order[:60], order[60:]
    errors = []
    for strength in 10.0 ** np.arange(-8, 9):
        gram = hidden[chosen].T @ hidden[chosen] + strength * np.eye(40)
        errors.append(
            ((hidden[held] @ np.linalg.solve(gram, hidden[chosen].T @ targets[chosen]) - targets[held]) ** 2).mean()
        )
    peer.predict(queries)
    assert peer.newest_strength() == 10.0 ** (np.argmin(errors) - 8.0)


def test_klda_is_linear_discriminant_analysis_on_random_fourier_features(bench, data):
    features, labels, queries = data
    peer = learn(bench.KLDA(bases=12, width=4.0, shrinkage=1e-9), features, labels)
    counts = np.array([(labels == label).sum() for label in in_order(labels)])
    mapped = mapped_by(peer, features)
    order = np.argsort([in_order(labels).index(label) for label in labels.tolist()], kind="stable")
    assert (order == np.arange(len(labels))).all()
    machine = discriminant.LinearDiscriminantAnalysis(solver="lsqr", priors=np.full(CLASSES, 1 / CLASSES))
    machine.fit(mapped, np.repeat(np.arange(CLASSES), counts))
    # scikit-learn averages the classes' covariances by their priors, the paper by their samples.
    scatter = sum(
        (mapped[labels == c] - mapped[labels == c].mean(0)).T @ (mapped[labels == c] - mapped[labels == c].mean(0))
        for c in in_order(labels)
    )
    means = np.stack([mapped[labels == c].mean(0) for c in in_order(labels)])
    inverse = np.linalg.inv(scatter)
    distances = [[-0.5 * (q - m) @ inverse @ (q - m) for m in means] for q in mapped_by(peer, queries)]
    differences = np.array(distances) - np.array(distances)[:, :1]
    scores = peer.scores(queries)
    agree(scores - scores[:, :1], differences, 1e-2)
    assert (peer.predict(queries) == np.array(in_order(labels))[machine.predict(mapped_by(peer, queries))]).mean() > 0.9


def mapped_by(peer, x: np.ndarray) -> np.ndarray:
    return peer.mapped(torch.from_numpy(x)).double().numpy()


def test_klda_features_approximate_the_kernel(bench):
    x = np.random.default_rng(0).standard_normal((20, DIMENSION)).astype(np.float32)
    mapped = mapped_by(bench.KLDA(bases=20_000, width=3.0), x)
    distances = ((x[:, None] - x[None]) ** 2).sum(-1)
    assert np.abs(mapped @ mapped.T - np.exp(-distances / 18.0)).max() < 0.05


def test_fecam_is_a_mahalanobis_distance_with_correlations(bench, data):
    features, labels, queries = data
    peer = learn(bench.FeCAM(diagonal=1.0, rest=0.5), features, labels)

    def tukey(x):
        x = x / np.linalg.norm(x)
        return np.sign(x) * np.sqrt(np.abs(x))

    for column, label in enumerate(in_order(labels)):
        rows = np.stack([tukey(x) for x in features[labels == label].astype(float)])
        covariance = np.cov(rows.T)
        off = covariance[~np.eye(DIMENSION, dtype=bool)].mean()
        shrunk = covariance + np.diag(covariance).mean() * np.eye(DIMENSION) + 0.5 * off * (1 - np.eye(DIMENSION))
        deviation = np.sqrt(np.diag(shrunk))
        inverse = np.linalg.pinv(shrunk / deviation[:, None] / deviation[None, :])
        mean = rows.mean(0) / np.linalg.norm(rows.mean(0))
        for row, query in enumerate(queries.astype(float)):
            difference = tukey(query) / np.linalg.norm(tukey(query)) - mean
            assert peer.scores(queries)[row, column] == pytest.approx(-difference @ inverse @ difference, rel=1e-3)


def test_gkeal_is_kernel_ridge_regression_on_its_landmarks(bench, data):
    """The recursion gives what one solution gives."""
    features, labels, queries = data
    peer = learn(bench.GKEAL(landmarks=25, width=3.0, strength=0.1), features, labels)
    first = features[labels == labels[0]].astype(float)
    landmarks = first[np.random.default_rng(0).permutation(len(first))[:25]]

    def kernel(x):
        return np.exp(-((x[:, None].astype(float) - landmarks[None]) ** 2).sum(-1) / 18.0)

    gram = kernel(features).T @ kernel(features) + 0.1 * np.eye(25)
    expected = kernel(queries) @ np.linalg.solve(gram, kernel(features).T @ targets_of(labels))
    agree(peer.scores(queries), expected, 1e-6)


def test_gkeal_mixes_samples_where_the_first_task_has_too_few(bench, data):
    features, labels, _ = data
    peer = learn(bench.GKEAL(landmarks=50, width=3.0), features, labels)
    assert peer.landmarks.shape == (50, DIMENSION)
    assert bool(peer.landmarks.isfinite().all())


def test_refitted_machines_are_those_of_scikit_learn(bench, data):
    features, labels, queries = data
    machine = learn(bench.KernelMachine(width=3.0, strength=0.1), features, labels)
    reference = kernel_ridge.KernelRidge(alpha=0.1, kernel="rbf", gamma=1.0 / 18.0).fit(features, targets_of(labels))
    agree(machine.scores(queries), reference.predict(queries))
    logistic = learn(bench.Logistic(penalty=0.1, passes=1000), features, labels)
    reference = linear_model.LogisticRegression(C=10.0, max_iter=1000).fit(features, labels)
    assert (logistic.predict(queries) == reference.predict(queries)).all()


def test_a_large_matrix_is_solved_by_halves(bench, data, monkeypatch):
    features, labels, queries = data
    whole = learn(bench.KernelMachine(width=3.0, strength=0.1), features, labels)
    whole.finish()
    monkeypatch.setattr(bench, "MOST_AT_ONCE", 50)
    halves = learn(bench.KernelMachine(width=3.0, strength=0.1), features, labels)
    agree(halves.scores(queries), whole.scores(queries), 1e-5)


def test_sgd_learns_portions(bench, data):
    features, labels, queries = data
    peer = bench.SGD(classes=CLASSES)
    for _ in range(20):
        learn(peer, features, labels, by_class=False)
    expected = learn(bench.NearestMean(), features, labels).predict(queries)
    assert (peer.predict(queries) == expected).mean() > 0.7


def every_peer(bench: ModuleType):
    return bench.PEERS | {name: kind for name, kind in bench.OTHERS.items() if bench.installed(name)}


def make(bench: ModuleType, name: str):
    settings = {
        "ranpac": {"bases": 40, "strength": 1e-2},
        "klda": {"bases": 12, "width": 4.0, "shrinkage": 1e-3},
        "gkeal": {"landmarks": 25, "width": 3.0},
        "sgd": {"classes": CLASSES},
        "kernel-machine": {"width": 3.0},
    }
    return every_peer(bench)[name](**settings.get(name, {}))


def test_what_does_not_depend_on_the_order_learns_class_by_class_as_at_once(bench, data):
    features, labels, queries = data
    checked = 0
    for name, kind in every_peer(bench).items():
        if kind.order_matters:
            continue
        one, all_at_once = make(bench, name), make(bench, name)
        shuffled = np.random.default_rng(2).permutation(len(labels))
        learn(one, features, labels)
        learn(all_at_once, features[shuffled], labels[shuffled], by_class=False)
        columns = [one.classes.tolist().index(label) for label in all_at_once.classes.tolist()]
        # The logistic loss is minimised by steps, to a tolerance.
        tolerance = 2e-2 if name == "logistic" else 2e-3
        agree(one.scores(queries)[:, columns], all_at_once.scores(queries), tolerance)
        assert one.state_bytes == all_at_once.state_bytes
        checked += 1
    assert checked >= 6


def test_every_peer_answers_among_the_classes_seen_so_far(bench, data):
    features, labels, queries = data
    for name in every_peer(bench):
        peer = make(bench, name)
        peer.learn(features[:50], labels[:50])
        assert set(peer.predict(queries).tolist()) <= {7, 3}
        assert peer.scores(queries).shape == (40, 2)
        assert peer.state_bytes > 0
        peer.learn(features[50:], labels[50:])
        assert peer.scores(queries).shape == (40, CLASSES)


def test_unit_length_makes_the_length_irrelevant(bench, data):
    features, labels, queries = data
    peer = learn(bench.NearestMean(unit_length=True), features, labels)
    agree(
        peer.scores(queries), learn(bench.NearestMean(unit_length=True), 3.0 * features, labels).scores(queries), 1e-5
    )
