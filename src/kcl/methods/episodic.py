"""Episodic memory: samples of earlier tasks in a fixed number of slots, and the recalling of some at every step.

Which samples a slot holds and which a step recalls is planned on the host before a task begins (`Plan`), with the
run's own generator. The step itself then only reads, so that it can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.task import Task
from kcl.core.settings import Settings, setting
from kcl.core.shapes import Float, Int, Shaped
from kcl.errors import KclError
from kcl.methods.method import Memory, Plan, Recalled
from kcl.methods.sgd import LinearMethod, LinearModel

SLOTTED = ("inputs", "classes", "allowed")


@dataclass(frozen=True)
class EpisodicSettings(Settings):
    memory_per_class: int = setting(1, "samples kept per class and task", 1, 100_000, since=2)
    recalled_per_step: int = setting(10, "samples recalled in a step", 1, 1_000_000, since=2)


class EpisodicMethod(LinearMethod):
    """A method that recalls samples. Its memory has `memory_per_class` slots for every class of every task.

    A slot holds a sample as its task shows it, not yet scaled (bytes where the data are bytes), the place of its class
    among all classes, and the classes of its task: it is recalled among those, as it was learned.
    """

    settings: EpisodicSettings
    settings_type = EpisodicSettings
    memory_setting = "memory_per_class"
    keeps = "samples, in a memory of fixed size"

    def check(self, task: Task) -> None:
        super().check(task)
        if self.settings.memory_per_class > len(task.train):
            raise KclError(
                f"a memory of {self.settings.memory_per_class} samples per class is larger than task {task.index} with "
                f"its {len(task.train)} training samples; choose a smaller memory_per_class"
            )

    def initial_state(self, model: LinearModel, task: Task) -> Memory:  # noqa: ARG002
        stored, slots = task.train.inputs, self.slots
        return {
            "inputs": torch.zeros(slots, *stored.shape[1:], dtype=stored.dtype),
            "classes": torch.zeros(slots, dtype=torch.int32),
            "allowed": torch.zeros(slots, self.class_count, dtype=torch.bool),
            "filled": torch.zeros(slots, dtype=torch.bool),
            "seen": torch.zeros((), dtype=torch.int64),
            "scaling": _scaling(task),
        }

    def consolidate(
        self,
        model: LinearModel,  # noqa: ARG002
        method_state: Memory,
        task: Task,
        plan: Plan | None,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> Memory:
        """Every slot holds what the plan says."""
        assert plan is not None  # noqa: S101 - these methods plan every task
        kept = torch.from_numpy(plan.kept).to(method_state["inputs"].device)
        own = (kept - self.slots).clamp_min(0)
        classes = torch.tensor(task.classes, device=kept.device)
        inputs, held, allowed = _pick(method_state, kept, task.moved(own), classes[task.train.labels[own]], classes)
        return method_state | {
            "inputs": inputs,
            "classes": held.to(torch.int32),
            "allowed": allowed,
            "filled": kept >= 0,
            "seen": method_state["seen"] + len(task.train),
        }

    def memory_use(self, memories: Sequence[Memory], method_state: Memory) -> dict[str, int]:
        """Slots that hold nothing yet are not counted."""
        return super().memory_use(
            memories, {name: method_state[name][method_state["filled"]] for name in SLOTTED if method_state}
        )

    @property
    def slots(self) -> int:
        if self.places is None:
            raise KclError(
                f"{self.name} shares its memory out between all tasks and must know them beforehand: give `places`, "
                "the numbers of classes of all tasks added up"
            )
        return self.settings.memory_per_class * self.places

    def check_stored(self, method_state: Memory, task: Task) -> None:
        """Refuse a task whose samples cannot lie in one memory with those of the tasks before."""
        if task.train.inputs.dtype != method_state["inputs"].dtype or not torch.equal(
            _scaling(task), method_state["scaling"].cpu()
        ):
            raise KclError(
                f"task {task.index} stores or scales its samples in another way than the first task; {self.name} keeps "
                "samples of all tasks in one memory and needs them alike"
            )


def _scaling(task: Task) -> Tensor:
    return torch.tensor([*(task.view.mean or ()), *(task.view.std or ())], dtype=torch.float64)


def recall(
    method_state: Memory,
    places: Int[Tensor, " m"],
    weights: Float[Tensor, " m"],
    own_inputs: Shaped[Tensor, "m ..."],
    own_labels: Int[Tensor, " m"],
    classes: Int[Tensor, " w"],
) -> Recalled:
    """What a step recalls, not yet scaled. `own_…`: the task's training samples where a place is one of those, anything
    elsewhere; `classes`: the task's.
    """
    return Recalled(*_pick(method_state, places, own_inputs, classes[own_labels], classes), weights)


def _pick(
    method_state: Memory,
    places: Int[Tensor, " m"],
    own_inputs: Shaped[Tensor, "m ..."],
    own_classes: Int[Tensor, " m"],
    task_classes: Int[Tensor, " w"],
) -> tuple[Tensor, Tensor, Tensor]:
    slots = len(method_state["inputs"])
    old, own = places.clamp(0, slots - 1), places >= slots
    inputs = method_state["inputs"].index_select(0, old)
    inputs = torch.where(own.view(-1, *[1] * (inputs.ndim - 1)), own_inputs, inputs)
    chosen = torch.where(own, own_classes, method_state["classes"].index_select(0, old).long())
    everything = torch.arange(method_state["allowed"].shape[1], device=places.device)
    task_allows = (everything[:, None] == task_classes).any(1)
    allowed = torch.where(own[:, None], task_allows, method_state["allowed"].index_select(0, old))
    return inputs, chosen, allowed


def random_subsets(available: np.ndarray, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """For every step, `size` of the numbers 0 … available − 1, each subset equally likely; and a weight of one each.

    Where fewer are available all of them are taken, and repeated with weight zero until the shape is filled.
    Floyd's algorithm, over all steps at once.
    """
    top = np.maximum(available, size)
    chosen = np.empty((len(available), size), dtype=np.int64)
    for place in range(size):
        last = top - size + place
        drawn = rng.integers(0, last + 1)
        taken = (chosen[:, :place] == drawn[:, None]).any(1)
        chosen[:, place] = np.where(taken, last, drawn)
    filling = np.arange(size) % np.maximum(available, 1)[:, None]
    few = (available < size)[:, None]
    return np.where(few, filling, chosen), (np.arange(size) < available[:, None]).astype(np.float32)
