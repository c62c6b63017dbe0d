"""What the thousandth task costs, beside the tenth: 5 new classes of 32 columns in each task."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from own_data_models import MODELS, Learner, PerTask
from own_data_sources import Task

LESSONS = (10, 100, 1000)
"""After which of them is measured."""
CLASSES, COLUMNS, TRAIN, TEST = 5, 32, 20, 4
SPREAD = 1.2
RECENT = 5
"""So many lessons are timed."""
QUERIES = 200
LEARNERS = {
    "ContinualModel": "named",
    "KernelContinualClassifier": "named",
    "GaussianNB": "shared",
    "nearest centroid": "shared",
    "SGDClassifier": "per task",
}
"""Variants by model. One SGD for all tasks would have to update every class in every lesson."""


def embeddings(seed: int, count: int) -> list[Task]:
    """Tasks of classes that are Gaussian clouds around random centres."""
    rng, tasks = np.random.default_rng(seed), []
    for number in range(count):
        centres = rng.normal(size=(CLASSES, COLUMNS))
        labels = CLASSES * number + np.arange(CLASSES)
        x, y = np.repeat(centres, TRAIN + TEST, 0), np.repeat(labels, TRAIN + TEST)
        x += rng.normal(scale=SPREAD, size=x.shape)
        test = np.tile(np.arange(TRAIN + TEST) >= TRAIN, CLASSES)
        tasks.append(Task(f"task {number}", x[~test], y[~test], x[test], y[test]))
    return tasks


def measure(
    name: str, variant: str, tasks: Sequence[Task], lessons: Sequence[int], seed: int
) -> Iterator[dict[str, Any]]:
    """One line after each of these lessons."""
    model, classes = MODELS[name], np.unique(np.concatenate([task.train_y for task in tasks]))
    learner: Learner = (
        PerTask(lambda own: model.make(own, seed)) if variant == "per task" else model.make(classes, seed)
    )
    seconds = []
    for number, task in enumerate(tasks, start=1):
        seconds.append(timed(lambda task=task: learner.learn(task.train_x, task.train_y, task.name))[0])
        if number in lessons:
            row = {"model": name, "variant": variant, "tasks": number, "seed": seed}
            row |= {"learn_seconds": round(float(np.median(seconds[-RECENT:])), 5), "bytes": learner.size()}
            yield row | answers(learner, tasks[:number], variant != "shared", variant != "per task")


def answers(learner: Learner, tasks: Sequence[Task], can_name: bool, can_infer: bool) -> dict[str, Any]:
    """Accuracy and seconds per answer with the task named, for recent tasks, and without, over all tasks."""
    row: dict[str, Any] = {}
    if can_name:
        recent = tasks[-RECENT:]
        timings = [timed(lambda task=task: learner.predict(task.test_x, task.name)) for task in recent]
        right = [float(np.mean(found == task.test_y)) for (_, found), task in zip(timings, recent, strict=True)]
        row |= {"named_accuracy": round(100.0 * float(np.mean(right)), 2)}
        again = sum(timed(lambda task=task: learner.predict(task.test_x, task.name))[0] for task in recent)
        row |= {"named_answer_seconds": round(again / sum(len(task.test_y) for task in recent), 7)}
    if can_infer:
        x, y = (np.concatenate([task[place] for task in tasks]) for place in (3, 4))
        chosen = np.random.default_rng(0).permutation(len(y))[:QUERIES]
        first, _ = timed(lambda: learner.predict(x[chosen[:1]], None))
        took, found = timed(lambda: learner.predict(x[chosen], None))
        row |= {"first_answer_seconds": round(first, 5), "answer_seconds": round(took / len(chosen), 7)}
        row |= {"accuracy": round(100.0 * float(np.mean(found == y[chosen])), 2)}
    return row


def timed(call: Any) -> tuple[float, Any]:
    begun = time.process_time()
    result = call()
    return time.process_time() - begun, result
