"""How well a benchmark is answered when nobody names the task, and what its probabilities are worth.

A run learns the benchmark's tasks in order; of each task's training samples a few are held out, and right after the
task they fit its temperature. At the end every task's test samples are answered with the task named, and with the task
inferred by each score. Pixels are moved as the sample's own task moves them, and only then the task is withheld.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kcl.benchmarks.registry import find_benchmark
from kcl.benchmarks.task import Examples, Stream, Task
from kcl.core.randomness import numpy_generator
from kcl.errors import KclError
from kcl.experiments.run_spec import RunSpec
from kcl.methods.kcl import KernelContinualLearning, KernelModel
from kcl.methods.recipes import published_backbone
from kcl.models.calibration import expected_calibration_error, fit_temperature
from kcl.models.inference import TASK_SCORES, Answerer, KnownTask
from kcl.ops.compiler import need_compiler
from kcl.training.batches import CannotStack
from kcl.training.stack import LONG, RunStack, stacks

COVERAGES = (0.5, 0.8, 0.9, 1.0)


class Engine(NamedTuple):
    """How runs are trained; a CPU takes them one by one. `compiled`: None where long runs are to be on a GPU."""

    compiled: bool | None = None
    precision: str = "tf32"


class HeldOut(NamedTuple):
    """A task without the samples held out, and those."""

    task: Task
    examples: Examples


def measure(
    specs: Sequence[RunSpec],
    data_dir: Path | None,
    device: str,
    held_out: int,
    test_per_task: int | None = None,
    say: Callable[[str], None] = lambda _: None,
    engine: Engine = Engine(),  # noqa: B008 - it cannot be changed
) -> Iterator[dict[str, Any]]:
    """What was measured, run by run; on a GPU runs with the same settings are trained together."""
    benchmark = find_benchmark(specs[0].benchmark)
    if device == "cpu" and engine.compiled:
        need_compiler()
    groups: dict[Any, list[RunSpec]] = {}
    for place, spec in enumerate(specs):
        if spec.method != "kcl":
            raise KclError(f"a task is inferred from kernels, which {spec.method} does not have; use --method kcl")
        groups.setdefault(spec.settings if device == "cuda" else place, []).append(spec)
    size = specs[0].image_size
    choices = {**benchmark.load_choices, **({} if size is None else {"image_size": size})}
    loaded = benchmark.load(data_dir, say, **choices)
    for group in groups.values():
        streams = []
        for spec in group:
            given = {name: getattr(spec, name) for name in ("tasks", "train_per_task", *benchmark.stream_choices)}
            known = {name: value for name, value in given.items() if value is not None}
            streams.append(benchmark.stream(loaded, seed=spec.seed, **known))
        try:
            stacked = engine if stacks(device, engine.compiled) else None
            yield from _group(group, streams, device, held_out, test_per_task, say, stacked)
        except CannotStack as reason:
            say(f"{reason}: the {len(group)} runs are done one after another")
            for spec, stream in zip(group, streams, strict=True):
                yield from _group([spec], [stream], device, held_out, test_per_task, say, None)


def _group(
    group: Sequence[RunSpec],
    streams: Sequence[Stream],
    device: str,
    held_out: int,
    test_per_task: int | None,
    say: Callable[[str], None],
    stacked: Engine | None,
) -> Iterator[dict[str, Any]]:
    learner, temperatures = _learner(group, streams, device, stacked), [dict[int, float]() for _ in group]
    for index in range(len(streams[0])):
        split = [hold_out(stream[index], spec.seed, held_out) for stream, spec in zip(streams, group, strict=True)]
        learner.learn([own.task for own in split], lambda _: None)
        for run, own in enumerate(split):
            if learner.diverged[run]:
                raise KclError(f"seed {group[run].seed}: the loss stopped being finite in task {index}; try a lower lr")
            answerer = _answerer(learner, run, {})
            logits = answerer.evidence(answerer.features(_inputs(own.task, own.examples, device), index), index).logits
            temperatures[run][index] = fit_temperature(logits, own.examples.labels.to(device))
        say(f"{group[0].benchmark}: learned task {index + 1} of {len(streams[0])}")
    for run, (spec, stream) in enumerate(zip(group, streams, strict=True)):
        found = evaluate(_answerer(learner, run, temperatures[run]), stream, device, test_per_task)
        about = {"benchmark": spec.benchmark, "kernel": spec.kernel, "seed": spec.seed, "tasks": len(stream)}
        sizes = {"train_per_task": spec.train_per_task, "held_out": held_out, "test_per_task": test_per_task}
        yield about | sizes | {"settings": spec.settings.to_dict()} | found


def _learner(group: Sequence[RunSpec], streams: Sequence[Stream], device: str, stacked: Engine | None) -> RunStack:
    methods = [
        KernelContinualLearning(spec.settings, len(stream.class_labels))
        for spec, stream in zip(group, streams, strict=True)
    ]
    backbones = [partial(published_backbone, streams[0].input_shape, spec.settings) for spec in group]
    seeds = [spec.seed for spec in group]
    if stacked is not None:
        settings = group[0].settings
        steps = settings.epochs * sum(len(task.train) for task in streams[0]) // settings.batch_size
        compiled = steps >= LONG if stacked.compiled is None else stacked.compiled
        return RunStack(methods, backbones, seeds, device, compiled, stacked.precision)
    return RunStack(methods, backbones, seeds, device, plain=True)


def hold_out(task: Task, seed: int, count: int) -> HeldOut:
    """`count` training samples set aside, which samples being fixed by the seed."""
    if count * 2 > len(task.train):
        raise KclError(f"--held-out {count} takes more than half of the {len(task.train)} training samples of a task")
    order = torch.from_numpy(numpy_generator(seed, "held out", task.index).permutation(len(task.train)))
    train, (held, rest) = task.train, (order[:count], order[count:].sort().values)
    return HeldOut(
        replace(task, train=Examples(train.inputs, train.rows[rest], train.labels[rest])),
        Examples(train.inputs, train.rows[held], train.labels[held]),
    )


def _answerer(learner: RunStack, run: int, temperatures: dict[int, float]) -> Answerer:
    """Answers from one of the runs, as its weights are now."""
    method, model = learner.methods[run], learner.model_at_test(run)
    assert isinstance(method, KernelContinualLearning)  # noqa: S101 - checked in `measure`
    assert isinstance(model, KernelModel)  # noqa: S101 - what that method builds
    answerer = Answerer(method, model, learner.seeds[run])
    answerer.tasks = {
        index: KnownTask(learner.memory_kept(run, index), view, temperatures.get(index, 1.0))
        for index, (_, view) in learner.kept.items()
    }
    return answerer


def _inputs(task: Task, examples: Examples, device: str) -> Tensor:
    """Samples as the network sees them."""
    return task.view.to(torch.device(device))(examples.inputs[examples.rows].to(device))


@torch.no_grad()
def evaluate(answerer: Answerer, stream: Stream, device: str, test_per_task: int | None = None) -> dict[str, Any]:
    """Accuracies in percent, over the test samples of all tasks; calibration errors as fractions."""
    counts = {score: [0, 0] for score in TASK_SCORES}
    known, confidences, raw, total = [], [], [], 0
    places = [torch.tensor(task.classes, device=device) for task in stream]
    for task in stream:
        test = Examples(task.test.inputs, task.test.rows[:test_per_task], task.test.labels[:test_per_task])
        inputs, labels = _inputs(task, test, device), test.labels.to(device)
        features = answerer.features(inputs, task.index)
        truth, total = places[task.index][labels], total + len(test)
        evidence = [
            answerer.evidence(answerer.features(inputs, index) if answerer.by_task else features, index)
            for index in range(len(stream))
        ]
        predicted = torch.stack([own[e.logits.argmax(-1)] for own, e in zip(places, evidence, strict=True)])
        for score, judge in TASK_SCORES.items():
            chosen = torch.stack([judge(own) for own in evidence]).argmax(0)
            counts[score][0] += int((chosen == task.index).sum())
            counts[score][1] += int((predicted.gather(0, chosen[None])[0] == truth).sum())
        logits, temperature = evidence[task.index].logits, answerer.tasks[task.index].temperature
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


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What was measured, averaged over the runs, for a terminal."""

    def mean(*path: str) -> float:
        values: list[Any] = list(rows)
        for name in path:
            values = [value[name] for value in values]
        return sum(values) / len(values)

    lines = [("task", "task found %", "class right %"), ("named", "–", f"{mean('known_task_accuracy'):.1f}")]
    for score in TASK_SCORES:
        found, free = (mean("scores", score, name) for name in ("task_accuracy", "task_free_accuracy"))
        lines.append((f"by {score}", f"{found:.1f}", f"{free:.1f}"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]
    surest = ", ".join(f"{100 * c:g} %: {mean('accuracy_of_the_surest', f'{c:g}'):.1f}" for c in COVERAGES)
    before, after = mean("ece_uncalibrated"), mean("ece_calibrated")
    text.append(f"expected calibration error, task named: {before:.3f}, with the fitted temperatures {after:.3f}")
    text.append(f"class right % among the surest answers, task named: {surest}")
    return "\n".join(text)
