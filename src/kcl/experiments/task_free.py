"""Accuracy on a benchmark when the task is not given, and the calibration of the probabilities.

A run learns the tasks of the benchmark in order. A few training samples of each task are held out; right after the task
they fit its temperature. At the end the test samples of every task are answered with the task given, by one classifier
over all classes, and with the task inferred by each score. Inputs are transformed as their own task demands; only then
is the task withheld.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kcl.benchmarks.task import Examples, Stream, Task
from kcl.core.devices import Compute
from kcl.core.randomness import numpy_generator
from kcl.errors import KclError
from kcl.experiments.admission import RunPlan, admit, build_learner
from kcl.experiments.group_training import group_trainings, train_parts
from kcl.experiments.run_spec import RunGroup, RunSpec
from kcl.models.calibration import expected_calibration_error, fit_temperature
from kcl.models.inference import JOINT, TASK_SCORES, WITHOUT_A_TASK, Answerer
from kcl.models.joint_head import JointAnswers
from kcl.models.lessons import LearnedTask
from kcl.report.formatting import aligned

COVERAGES = (0.5, 0.8, 0.9, 1.0)


class SampleCounts(NamedTuple):
    """Held-out training samples and test samples per task; `test` None: all."""

    held_out: int
    test: int | None = None


def measure(
    specs: Sequence[RunSpec],
    compute: Compute,
    samples: SampleCounts,
    data_dir: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """The measurements of every run; runs are trained in groups as `kcl run` does."""
    for spec in specs:
        if spec.method != "kcl":
            raise KclError(f"inferring the task needs kernels, which {spec.method} does not have; use --method kcl")
        if not spec.settings.names_tasks:
            raise KclError("kcl task-free measures both, with the task named and without: leave --scenario out")
    plan = admit(specs, compute, data_dir, say)
    rows: list[dict[str, Any]] = []
    for group in group_trainings(plan, [[spec] for spec in plan.specs]):
        train_parts(group, lambda part: rows.extend(_measure_group(plan, part, samples, say)), say)
    return rows


def _measure_group(
    plan: RunPlan, group: RunGroup, samples: SampleCounts, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    specs, device = group.specs, plan.compute.device
    streams = [plan.stream(spec) for spec in specs]
    learner = build_learner(group.trainings, streams, plan.compute, group.plain)
    temperatures = [dict[int, float]() for _ in specs]
    for index in range(len(streams[0])):
        splits = [
            set_aside(stream[index], spec.seed, samples.held_out) for stream, spec in zip(streams, specs, strict=True)
        ]
        learner.learn([task for task, _ in splits], lambda _: None)
        for run, (task, examples) in enumerate(splits):
            if learner.diverged[run]:
                raise KclError(f"seed {specs[run].seed}: the loss is not finite in task {index}; try a lower lr")
            answerer = Answerer(learner, run)
            logits = answerer.evidence(answerer.features(_inputs(task, examples, device), index), index).logits
            temperatures[run][index] = fit_temperature(logits, examples.labels.to(device))
        say(f"{specs[0].benchmark}: learned task {index + 1} of {len(streams[0])}")
    return [
        {
            "benchmark": spec.benchmark,
            "kernel": spec.kernel,
            "seed": spec.seed,
            "tasks": len(stream),
            "train_per_task": spec.train_per_task,
            "held_out": samples.held_out,
            "test_per_task": samples.test,
            "settings": spec.settings.to_dict(),
            **evaluate(Answerer(learner, run, temperatures[run]), stream, device, samples.test),
        }
        for run, (spec, stream) in enumerate(zip(specs, streams, strict=True))
    ]


def set_aside(task: Task, seed: int, count: int) -> tuple[Task, Examples]:
    """A task without `count` of its training samples, and these samples; the seed decides which."""
    if count * 2 > len(task.train):
        raise KclError(f"--held-out {count} takes more than half of the {len(task.train)} training samples of a task")
    order = torch.from_numpy(numpy_generator(seed, "held out", task.index).permutation(len(task.train)))
    train, (held, rest) = task.train, (order[:count], order[count:].sort().values)
    left = Examples(train.inputs, train.rows[rest], train.labels[rest])
    return replace(task, train=left), Examples(train.inputs, train.rows[held], train.labels[held])


def _inputs(task: Task, examples: Examples, device: str) -> Tensor:
    """Samples as the network sees them."""
    return task.view.to(torch.device(device))(examples.inputs[examples.rows].to(device))


@torch.no_grad()
def evaluate(answerer: Answerer, stream: Stream, device: str, test_per_task: int | None = None) -> dict[str, Any]:
    """Accuracies in percent, over the test samples of all tasks; calibration errors as fractions."""
    counts = {way: [0, 0] for way in WITHOUT_A_TASK}
    known, confidences, raw, total = [], [], [], 0
    places = [torch.tensor(task.classes, device=device) for task in stream]
    by_task = pad_sequence(places, batch_first=True)
    joint = JointAnswers(answerer, {str(task.index): LearnedTask(task.index, task.classes, ()) for task in stream})
    for task in stream:
        test = Examples(task.test.inputs, task.test.rows[:test_per_task], task.test.labels[:test_per_task])
        inputs = _inputs(task, test, device)
        features = answerer.features(inputs, task.index)
        truth, total = places[task.index][test.labels.to(device)], total + len(test)
        evidence = [
            answerer.evidence(answerer.features(inputs, index) if answerer.by_task else features, index)
            for index in range(len(stream))
        ]
        predicted = torch.stack([labels[e.logits.argmax(-1)] for labels, e in zip(places, evidence, strict=True)])
        for score, judge in TASK_SCORES.items():
            chosen = torch.stack([judge(e) for e in evidence]).argmax(0)
            counts[score][0] += int((chosen == task.index).sum())
            counts[score][1] += int((predicted.gather(0, chosen[None])[0] == truth).sum())
        answers = joint.answer(answerer.batches(inputs))
        counts[JOINT][0] += int((answers.task == task.index).sum())
        counts[JOINT][1] += int((by_task[answers.task, answers.label] == truth).sum())
        logits, temperature = evidence[task.index].logits, answerer.temperatures.get(task.index, 1.0)
        known.append(predicted[task.index] == truth)
        confidences.append(logits.softmax(-1).amax(-1))
        raw.append((logits * temperature).softmax(-1).amax(-1))
    correct, confidence = torch.cat(known), torch.cat(confidences)
    ranked = correct[confidence.argsort(descending=True, stable=True)].double()
    return {
        "known_task_accuracy": 100.0 * float(correct.double().mean()),
        "scores": {
            score: {"task_accuracy": 100.0 * right / total, "task_free_accuracy": 100.0 * free / total}
            for score, (right, free) in counts.items()
        },
        "ece_uncalibrated": expected_calibration_error(torch.cat(raw), correct),
        "ece_calibrated": expected_calibration_error(confidence, correct),
        "accuracy_of_the_surest": {
            f"{share:g}": 100.0 * float(ranked[: max(1, round(share * total))].mean()) for share in COVERAGES
        },
        "test_samples": total,
    }


def table(rows: Sequence[Any]) -> str:
    """The measurements averaged over the runs, for a terminal."""

    def mean(*path: str) -> float:
        return fmean(reduce(operator.getitem, path, row) for row in rows)

    lines = [("task", "task found %", "class right %"), ("named", "–", f"{mean('known_task_accuracy'):.1f}")]
    for score in WITHOUT_A_TASK:
        inferred, correct = (mean("scores", score, name) for name in ("task_accuracy", "task_free_accuracy"))
        lines.append((f"by {score}", f"{inferred:.1f}", f"{correct:.1f}"))
    text = aligned(lines)
    surest = ", ".join(f"{100 * c:g} %: {mean('accuracy_of_the_surest', f'{c:g}'):.1f}" for c in COVERAGES)
    before, after = mean("ece_uncalibrated"), mean("ece_calibrated")
    text.append(f"expected calibration error, task named: {before:.3f}, with the fitted temperatures {after:.3f}")
    text.append(f"class right % among the surest answers, task named: {surest}")
    return "\n".join(text)
