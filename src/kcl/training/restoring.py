"""Checkpoints held against the runs that resume from them.

What a seed and a task decide is not saved but made again: batch orders, which samples are recalled, views, learning
rates. Coresets are saved and compared with those that the data give now, so that changed data are found out.
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
from kcl.training.checkpoint import Saved, Tree, branch, fit_all
from kcl.training.state import StackState
from kcl.training.weight_average import average_name

Lessons = Sequence[Task]
"""What a run learns, in order: the tasks of its stream, or all of them as one."""


def learned_tasks(tree: Tree, lessons: Lessons) -> list[Task]:
    """The lessons that a checkpoint keeps something of; they must be the first ones."""
    saved = set(branch(tree, "kept"))
    done = [task for task in lessons if str(task.parts[0].index) in saved]
    parts = {str(part.index) for task in done for part in task.parts}
    if parts != saved or any(one is not two for one, two in zip(lessons, done, strict=False)):
        raise KclError("the checkpoint does not fit the run: it keeps other tasks than the first ones of the stream")
    return done


def memory_template(method: Method, model: nn.Module, task: Task, seed: int) -> list[Memory]:
    """What a run would keep of every part of a lesson if it had learned nothing. Restarts the model's head."""
    method.check(task)
    with torch.no_grad():
        memory = method.begin_task(model, task, numpy_generator(seed, "coreset", task.index)).memory
        ended = method.end_task(model, memory)
    return [ended if part is task else method.unseen_memory(part) for part in task.parts]


def fit_memory(saved: Any, template: Mapping[str, Tensor], index: int) -> Memory:
    """A task's memory. What the data alone decide must be what the data give now."""
    memory = fit_all(saved, template, f"kept/{index}")
    for name, tensor in memory.items():
        if not tensor.is_floating_point() and not torch.equal(tensor, template[name].cpu()):
            raise KclError(
                f"the data have changed since the checkpoint was saved: task {index} has other {name} now; "
                "restore the data, or start again with another --out"
            )
    return memory


def fit_method_state(saved: Any, template: Mapping[str, Tensor], class_count: int) -> Memory:
    state = fit_all(saved, template, "carried")
    if "classes" in state and not bool(((state["classes"] >= 0) & (state["classes"] < class_count)).all()):
        raise KclError("the checkpoint does not fit the run: its memory holds classes that the stream does not have")
    return state


def whole_number(value: Any, what: str, most: int, or_none: bool = False) -> Any:
    """A count in a checkpoint, checked to be one."""
    if (or_none and value is None) or (type(value) is int and 0 <= value <= most):
        return value
    raise KclError(f"the checkpoint does not fit the run: {what} is {str(value)[:40]!r}")


def from_single_run(saved: Saved, state: StackState) -> Saved:
    """A checkpoint of one run as versions before the single engine saved it, as one of a stack of one.

    They saved the model's tensors by name, and the momentum by the place of a parameter in the model.
    """
    runs = saved.about.get("separate runs")
    if not isinstance(runs, list) or len(runs) != 1 or not isinstance(runs[0], dict):
        raise KclError("the checkpoint is of several runs by an older version of kcl: start again with another --out")
    tree, model, layout = branch(saved.tensors, "0"), state.models[0], state.layout
    template = state.saved()

    def flat(tensors: Mapping[str, Tensor]) -> Tensor:
        like = {name: model.get_parameter(name) for name in layout.shapes}
        fitted = fit_all({name: tensors[name] for name in like if name in tensors}, like, "model")
        return layout.flatten(fitted)[None]

    def running(tensors: Mapping[str, Tensor]) -> Tree:
        parts = state.running_in_order(fit_all(tensors, model.state_dict(), "model"))
        return {str(place): part for place, part in enumerate(parts)}

    weights = branch(tree, "model")
    buffers = {name: weights[name][None] for name in template["buffers"] if name in weights}
    alive = torch.tensor([[runs[0].get("diverged") is not True]])
    stack: Tree = {"weights": flat(weights), "alive": alive, "running": running(weights), "buffers": buffers}
    for place in range(len(state.averages)):
        average = branch(tree, average_name(place))
        tensors = {name.removeprefix("model."): tensor for name, tensor in average.items() if name != "updates"}
        stack[average_name(place)] = {
            "weights": flat(tensors), "updates": average.get("updates"), "running": running(tensors)
        }  # fmt: skip
    kept = {index: _one_run(memory) for index, memory in branch(tree, "kept").items()}
    converted: Tree = {"stack": stack, "kept": kept, "carried": _one_run(branch(tree, "carried"))}
    step = runs[0].get("step")
    if step is not None:
        parameters = {name: leaf.detach() for name, leaf in model.named_parameters() if leaf.requires_grad}
        trained = branch(tree, "trained")
        moved = {str(place): tensor for place, tensor in enumerate([*parameters.values(), *trained.values()])}
        momentum = branch(tree, "momentum") or {place: torch.zeros_like(tensor) for place, tensor in moved.items()}
        velocities = list(fit_all(momentum, moved, "momentum").values())
        velocity = {name: torch.zeros_like(model.get_parameter(name)) for name in layout.shapes}
        velocity |= dict(zip(parameters, velocities, strict=False))
        converted |= {"velocity": flat(velocity), "noise": {"0": tree.get("noise")}}
        if trained:
            later = dict(zip(trained, velocities[len(parameters) :], strict=True))
            converted |= {"trained": _one_run(trained), "velocities": _one_run(later)}
    return Saved(converted, saved.about | {"stacked runs": 1, "step": step})


def _one_run(memory: Any) -> Any:
    return {name: tensor[None] for name, tensor in memory.items()} if isinstance(memory, dict) else memory
