"""Checking checkpoints against the runs that resume from them.

What follows from a seed and a task is not saved but computed again: batch orders, recalled samples, views, learning
rates. Coresets are saved and compared with those that the data give now, which detects changed data.
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


def learned_count(tree: Tree, training_tasks: Sequence[Task]) -> int:
    """How many of a run's training tasks a checkpoint has memories of; they must be the first ones."""
    saved = set(branch(tree, "kept"))
    count = sum(str(task.parts[0].index) in saved for task in training_tasks)
    if saved != {str(part.index) for task in training_tasks[:count] for part in task.parts}:
        raise KclError("the checkpoint does not fit the run: its tasks are not the first ones of the stream")
    return count


def memory_template(method: Method, model: nn.Module, task: Task, seed: int) -> list[Memory]:
    """The memory of every part of a task if nothing had been learned: a template. Resets the model's head."""
    method.check(task)
    with torch.no_grad():
        memory = method.begin_task(model, task, numpy_generator(seed, "coreset", task.index)).memory
        ended = method.end_task(model, memory)
    return [ended if part is task else method.unseen_memory(part) for part in task.parts]


def fit_memory(saved: Any, template: Mapping[str, Tensor], index: int) -> Memory:
    """A task's memory. What depends on the data alone must match the present data."""
    memory = fit_all(saved, template, f"kept/{index}")
    for name, tensor in memory.items():
        if not tensor.is_floating_point() and not torch.equal(tensor, template[name].cpu()):
            raise KclError(
                f"the data have changed since the checkpoint was saved: the {name} of task {index} differ; "
                "restore the data, or start again with another --out"
            )
    return memory


def fit_method_state(saved: Any, template: Mapping[str, Tensor], class_count: int) -> Memory:
    state = fit_all(saved, template, "carried")
    if "classes" in state and not bool(((state["classes"] >= 0) & (state["classes"] < class_count)).all()):
        raise KclError("the checkpoint does not fit the run: its memory contains classes that the stream does not have")
    return state


def whole_number(value: Any, what: str, most: int, or_none: bool = False) -> Any:
    """A count in a checkpoint, checked to be an integer from 0 to `most`."""
    if (or_none and value is None) or (type(value) is int and 0 <= value <= most):
        return value
    raise KclError(f"the checkpoint does not fit the run: {what} is {str(value)[:40]!r}")


def from_single_run(saved: Saved, state: StackState) -> Saved:
    """Convert a checkpoint that older versions saved of a run outside a stack.

    They saved the model's tensors by name, and the momentum by the place of a parameter in the model.
    """
    runs = saved.about.get("separate runs")
    if not isinstance(runs, list) or len(runs) != 1 or not isinstance(runs[0], dict):
        raise KclError("the checkpoint holds several runs of an older version of kcl: start again with another --out")
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
