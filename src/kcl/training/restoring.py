"""The state of runs as tensors by name, and back: everything a run needs to go on as if it had never stopped.

What a seed and a task fix is not saved but made again: batch orders, which samples are recalled, views, learning
rates. Coresets are saved and held against those that the data give now: other data are found out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task
from kcl.core.randomness import numpy_generator
from kcl.errors import KclError
from kcl.methods.method import Memory, Method
from kcl.training.checkpoint import Tree, branch, digest, fit_all
from kcl.training.single_run import Kept, Midway, Run, on
from kcl.training.weight_average import named

Lessons = Sequence[Task]
"""What a run learns, in order: the tasks of its stream, or all of them as one."""


def run_state(run: Run) -> Tree:
    """Weights, statistics and memory of a run, and, in the midst of a task, its optimiser and its noise."""
    tree = _learned_state(run)
    for place, average in enumerate(run.averages.values()):
        tree[named(place)] = dict(average.state_dict())
    if run.midway is not None:
        tree |= {"momentum": _momentum(run.midway), "noise": run.midway.noise.generator.get_state()}
        if run.midway.trained:
            tree["trained"] = {name: tensor.detach() for name, tensor in run.midway.trained.items()}
    return tree


def fingerprint(run: Run, variant: int) -> str:
    """A digest of what a run has learned and, where this variant of it answers with an average, of that."""
    average = run.variants[variant].average
    return digest(_learned_state(run) | ({} if average is None else {"average": dict(average.state_dict())}))


def _learned_state(run: Run) -> Tree:
    return {
        "model": dict(run.model.state_dict()),
        "kept": {str(index): kept.memory for index, kept in run.kept.items()},
        "carried": run.carried or {},
    }


def _momentum(midway: Midway) -> Memory:
    """The momentum of every parameter; zero, which is what none amounts to, for one that no loss has reached yet."""
    if not midway.momentum:
        return {}
    found = (midway.optimizer.state.get(parameter, {}).get("momentum_buffer") for parameter in midway.parameters)
    return {
        str(place): torch.zeros_like(parameter) if buffer is None else buffer
        for place, (parameter, buffer) in enumerate(zip(midway.parameters, found, strict=True))
    }


def restore_run(run: Run, tree: Tree, step: int | None, diverged: bool, lessons: Lessons) -> None:
    """The inverse of `run_state`, for a run that has learned nothing yet. `step`: those done of the task it is in."""
    run.kept = restored_kept(run, tree, lessons)
    if "carried" in tree:
        like = on(run.device, run.method.carry(run.model, lessons[0]))
        run.carried = on(run.device, fit_carried(tree["carried"], like, run.method.class_count))
    weights = fit_all(tree.get("model"), run.model.state_dict(), "model")
    run.model.load_state_dict(weights)
    for place, average in enumerate(run.averages.values()):
        average.restore(branch(tree, named(place)))
    run.diverged = diverged

    def go_on(midway: Midway) -> None:
        """The task is begun; put back what the steps done have changed."""
        run.model.load_state_dict(weights)
        for name, tensor in fit_all(tree.get("trained"), dict(midway.trained), "trained").items():
            midway.trained[name].data.copy_(tensor)
        momentum = fit_all(tree.get("momentum"), _momentum(midway), "momentum")
        for place, buffer in momentum.items():
            parameter = midway.parameters[int(place)]
            midway.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer)
        midway.noise.restore(tree.get("noise"))
        midway.step = step or 0

    run.go_on = go_on if step is not None else None


def restored_kept(run: Run, tree: Tree, lessons: Lessons) -> dict[int, Kept]:
    """What is kept of the tasks learned."""
    kept: dict[int, Kept] = {}
    for task in learned(tree, lessons):
        like = template(run.method, run.model, task, run.seed)
        for part, memory in zip(task.parts, like, strict=True):
            given = fit_memory(tree["kept"].get(str(part.index)), memory, part.index)
            kept[part.index] = Kept(on(run.device, given), part.classes, part.view.to(run.device))
    return kept


def learned(tree: Tree, lessons: Lessons) -> list[Task]:
    """The lessons a checkpoint keeps something of; they must be the first ones."""
    saved = set(branch(tree, "kept"))
    done = [task for task in lessons if str(task.parts[0].index) in saved]
    parts = {str(part.index) for task in done for part in task.parts}
    if parts != saved or any(one is not two for one, two in zip(lessons, done, strict=False)):
        raise KclError("the checkpoint does not fit the run: it keeps other tasks than the first ones of the stream")
    return done


def template(method: Method, model: nn.Module, task: Task, seed: int) -> list[Memory]:
    """What a run would keep of every part of a lesson, had it learned nothing. Begins the model's head anew."""
    method.check(task)
    with torch.no_grad():
        memory = method.begin_task(model, task, numpy_generator(seed, "coreset", task.index)).memory
        ended = method.end_task(model, memory)
    return [ended if part is task else method.unseen_memory(part) for part in task.parts]


def fit_memory(given: Any, like: Mapping[str, Tensor], index: int) -> Memory:
    """A task's memory; what the data alone decide must be what the data give now."""
    memory = fit_all(given, like, f"kept/{index}")
    for name, tensor in memory.items():
        if not tensor.is_floating_point() and not torch.equal(tensor, like[name].cpu()):
            raise KclError(
                f"the data have changed since the checkpoint was saved: task {index} gives other {name} now; "
                "bring the data back, or begin anew in another --out"
            )
    return memory


def fit_carried(given: Any, like: Mapping[str, Tensor], class_count: int) -> Memory:
    carried = fit_all(given, like, "carried")
    if "classes" in carried and not bool(((carried["classes"] >= 0) & (carried["classes"] < class_count)).all()):
        raise KclError("the checkpoint does not fit the run: its memory holds classes that the stream has not")
    return carried


def whole_number(value: Any, what: str, most: int, or_none: bool = False) -> Any:
    """A count in a checkpoint, seen to be one."""
    if (or_none and value is None) or (type(value) is int and 0 <= value <= most):
        return value
    raise KclError(f"the checkpoint does not fit the run: {what} is {str(value)[:40]!r}")
