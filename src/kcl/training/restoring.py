"""What a stack keeps of the tasks it has learned, read from a checkpoint and checked against the present data.

What follows from a seed and a task is not saved but computed again: batch orders, replayed samples, views, learning
rates. Coresets are saved and compared with those that the data give now, which detects changed data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task
from kcl.core.randomness import numpy_generator
from kcl.errors import KclError
from kcl.methods.method import Memory, Method
from kcl.training.checkpoint import Tree, branch, fit_all
from kcl.training.state import on_device, stack_memories

if TYPE_CHECKING:
    from kcl.training.stack import RunStack


def restore_memories(stack: RunStack, tree: Tree, training_tasks: Sequence[Sequence[Task]]) -> None:
    """Fill a new stack's memories and method state. `training_tasks`: what each training learns, in order."""
    saved = branch(tree, "kept")
    learned = sum(str(task.parts[0].index) in saved for task in training_tasks[0])
    if set(saved) != {str(part.index) for task in training_tasks[0][:learned] for part in task.parts}:
        raise KclError("the checkpoint does not fit the run: its tasks are not the first ones of the stream")
    for number in range(learned):
        tasks = [of_run[number] for of_run in training_tasks]
        parts = zip(stack.methods, stack.models, tasks, stack.training_seeds, strict=True)
        templates = [_memory_template(*each) for each in parts]
        for part, memories in zip(tasks[0].parts, zip(*templates, strict=True), strict=True):
            template = stack_memories(memories, stack.device)
            memory = _fit_memory(saved.get(str(part.index)), template, part.index)
            stack.kept[part.index] = (on_device(stack.device, memory), part.view.to(stack.device))
    if "carried" in tree:
        template = stack.initial_state([of_run[0] for of_run in training_tasks])
        state = fit_all(tree["carried"], template, "carried")
        classes = state.get("classes", torch.zeros(0))
        if not bool(((classes >= 0) & (classes < stack.method.class_count)).all()):
            raise KclError(
                "the checkpoint does not fit the run: its memory contains classes that the stream does not have"
            )
        stack.method_state = on_device(stack.device, state)


def _memory_template(method: Method, model: nn.Module, task: Task, seed: int) -> list[Memory]:
    """The memory of every part of a task if nothing had been learned. Resets the model's head."""
    method.check(task)
    with torch.no_grad():
        memory = method.begin_task(model, task, numpy_generator(seed, "coreset", task.index)).memory
        ended = method.end_task(model, memory)
    return [ended if part is task else method.unseen_memory(part) for part in task.parts]


def _fit_memory(saved: Any, template: Mapping[str, Tensor], index: int) -> Memory:
    """A task's memory. What depends on the data alone must match the present data."""
    memory = fit_all(saved, template, f"kept/{index}")
    for name, tensor in memory.items():
        if not tensor.is_floating_point() and not torch.equal(tensor, template[name].cpu()):
            raise KclError(
                f"the data have changed since the checkpoint was saved: the {name} of task {index} differ; "
                "restore the data, or start again with another --out"
            )
    return memory
