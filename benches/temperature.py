"""Calibration with and without temperatures from leave-one-out on the coresets, after the last of five tasks.

python benches/temperature.py

Negative log-likelihood and expected calibration error (percent) of new samples, task named, means over three seeds:
with no temperature, with temperatures whose prior has each spread, and with the temperature that is best for the new
samples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

import kcl
from kcl.models import calibration

SPREADS = (0.15, 0.25, 0.5, 1.0, math.inf)
TASKS, TRAIN = 5, 1200
Task = tuple[np.ndarray, np.ndarray]  # rows and labels; the first TRAIN or half of them are learned
MODELS = {
    "mlp, vrf": {"backbone": "mlp", "width": 64, "bases": 256, "epochs": 3, "lr": 0.1},
    "mlp, rbf": {"backbone": "mlp", "width": 64, "kernel": "rbf", "epochs": 3, "lr": 0.1},
    "identity, rbf": {"backbone": "identity", "kernel": "rbf", "epochs": 3},
}


def digits(seed: int, permuted: bool) -> Iterator[tuple[Task, Task]]:
    rows, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    rows, labels = (rows[order] / 16.0).astype(np.float32), labels[order]
    for number in range(TASKS):
        columns = rng.permutation(64) if permuted else np.arange(64)
        chosen = np.ones(len(labels), bool) if permuted else labels // 2 == number
        train, new = np.flatnonzero(chosen[:TRAIN]), TRAIN + np.flatnonzero(chosen[TRAIN:])
        yield (rows[train][:, columns], labels[train]), (rows[new][:, columns], labels[new])


def turned(seed: int, noise: float) -> Iterator[tuple[Task, Task]]:
    """Two classes on either side of a plane, with noisy labels, turned anew for each task."""
    rng = np.random.default_rng(seed)
    for _ in range(TASKS):
        turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
        inputs = rng.normal(size=(TRAIN, 6))
        labels = (inputs[:, 0] + noise * rng.normal(size=TRAIN) > 0).astype(int)
        rows, half = (inputs @ turn).astype(np.float32), TRAIN // 2
        yield (rows[:half], labels[:half]), (rows[half:], labels[half:])


STREAMS = {
    "digits, permuted": lambda seed: digits(seed, permuted=True),
    "digits, by class": lambda seed: digits(seed, permuted=False),
    "turned planes": lambda seed: turned(seed, 0.5),
    "turned planes, noisier": lambda seed: turned(seed, 1.5),
}


def scores(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    confidence, label = logits.softmax(-1).max(-1)
    error = calibration.expected_calibration_error(confidence, label == labels)
    return float(torch.nn.functional.cross_entropy(logits, labels)), 100.0 * (error or 0.0)


def measure(stream: str, model: str) -> np.ndarray:
    """A row for no temperature, one for each spread and one for the best: likelihood and calibration error."""
    found = []
    for seed in range(3):
        learner, tasks = kcl.ContinualModel(seed=seed, standardise=True, **MODELS[model]), list(STREAMS[stream](seed))
        for number, (train, _) in enumerate(tasks):
            learner.learn(*train, task=f"task {number}")
        for number, (_, (rows, truth)) in enumerate(tasks):
            task = learner.tasks[f"task {number}"]
            labels = torch.tensor([task.labels.index(label) for label in truth.tolist()])
            logits = learner.logits(rows, f"task {number}") * learner.answerer.head(task.lesson).temperature
            temperatures = [1.0]
            for spread in SPREADS:
                calibration.SPREAD = spread
                learner.answerer.install({})  # solve the heads, and fit their temperatures, anew
                temperatures.append(float(learner.answerer.head(task.lesson).temperature))
            temperatures.append(calibration.fit_temperature(logits, labels))
            found.append([scores(logits / temperature, labels) for temperature in temperatures])
    return np.mean(found, axis=0)


def main() -> None:
    warnings.simplefilter("ignore", kcl.KclWarning)
    torch.set_num_threads(1)
    names = ["none", *(f"spread {spread}" for spread in SPREADS), "best"]
    print("stream | model | " + " | ".join(names))
    total = np.zeros((len(names), 2))
    for stream in STREAMS:
        for model in MODELS:
            found = measure(stream, model)
            total += found / (len(STREAMS) * len(MODELS))
            print(f"{stream} | {model} | " + " | ".join(f"{nll:.3f}, {ece:.1f}" for nll, ece in found), flush=True)
    print("mean | | " + " | ".join(f"{nll:.3f}, {ece:.1f}" for nll, ece in total))


if __name__ == "__main__":
    main()
