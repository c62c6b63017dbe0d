"""Episodic memory: samples of earlier tasks in a fixed number of slots, some of which are replayed at every step.

Which samples the slots hold and which a step replays is planned on the host before a task begins (`ReplayPlan`), with
the run's own generator. The step then only reads, so that it can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.task import Task
from kcl.core.settings import Settings, setting
from kcl.core.shapes import Float, Int, Shaped
from kcl.errors import KclError
from kcl.methods.method import Memory, Replayed, ReplayPlan
from kcl.methods.sgd import LinearMethod, LinearModel, LinearSettings, among

SLOTTED = ("inputs", "classes", "allowed")
"""What every method keeps of a sample."""


@dataclass(frozen=True)
class EpisodicSettings(Settings):
    memory_per_class: int = setting(1, "samples kept per class and task", 1, 100_000, since=2)
    recalled_per_step: int = setting(10, "samples replayed per step", 1, 1_000_000, since=2)


@dataclass(frozen=True)
class ReplaySettings(EpisodicSettings, LinearSettings):
    """Of methods that do not say themselves among which classes a sample is classified."""


class EpisodicMethod(LinearMethod):
    """A method that replays samples. Its memory has `memory_per_class` slots for every class of every task.

    A slot holds a sample before scaling (bytes where the data are bytes), the index of its class among all classes, and
    the classes of its task: when replayed, it is classified among those, as when it was learned.
    """

    settings: EpisodicSettings
    settings_type: ClassVar[type[Settings]] = EpisodicSettings
    memory_setting = "memory_per_class"
    slotted: ClassVar[tuple[str, ...]] = SLOTTED
    """The tensors with one row per slot that count as memory."""
    draws: ClassVar[int] = 1
    """How often a step draws `recalled_per_step` samples."""
    keeps = "samples, in a memory of fixed size"

    def check(self, task: Task) -> None:
        super().check(task)
        if self.settings.memory_per_class > len(task.train):
            raise KclError(
                f"task {task.index} has {len(task.train)} training samples, fewer than memory_per_class="
                f"{self.settings.memory_per_class}; choose a smaller memory_per_class"
            )

    def initial_state(self, model: LinearModel, task: Task) -> Memory:
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
        self, model: LinearModel, method_state: Memory, task: Task, plan: ReplayPlan | None, rng: np.random.Generator
    ) -> Memory:
        """Fill the slots according to the plan."""
        assert plan is not None  # noqa: S101 - these methods plan every task
        places = torch.from_numpy(plan.kept).to(method_state["inputs"].device)
        rows, filled = (places - self.slots).clamp_min(0), places >= 0
        classes = torch.tensor(task.classes, device=places.device)
        samples = task.moved(rows), task.train.labels[rows]
        held = self.replayed(method_state, places, filled.float(), *samples, classes)
        return method_state | {
            "inputs": held.inputs,
            "classes": held.classes.to(torch.int32),
            "allowed": held.allowed,
            "filled": filled,
            "seen": method_state["seen"] + len(task.train),
        }

    def replayed(
        self,
        method_state: Memory,
        places: Int[Tensor, " m"],
        weights: Float[Tensor, " m"],
        task_inputs: Shaped[Tensor, "m ..."],
        task_labels: Int[Tensor, " m"],
        classes: Int[Tensor, " w"],
    ) -> Replayed:
        slots = len(method_state["inputs"])
        slot, from_task = places.clamp(0, slots - 1), places >= slots
        inputs, held_classes, allowed = (method_state[name].index_select(0, slot) for name in SLOTTED)
        return Replayed(
            torch.where(from_task.view(-1, *[1] * (inputs.ndim - 1)), task_inputs, inputs),
            torch.where(from_task, classes[task_labels], held_classes.long()),
            torch.where(from_task[:, None], among(classes, allowed.shape[1]), allowed),
            weights,
            self.beside(method_state, places, weights, classes),
        )

    def beside(
        self, method_state: Memory, places: Int[Tensor, " m"], weights: Float[Tensor, " m"], classes: Int[Tensor, " w"]
    ) -> Memory:
        """What the loss needs of replayed samples beside their classes; parameters as for `replayed`."""
        return {}

    def memory_use(self, memories: Sequence[Memory], method_state: Memory) -> dict[str, int]:
        """Empty slots are not counted."""
        return super().memory_use(
            memories, {name: method_state[name][method_state["filled"]] for name in self.slotted if method_state}
        )

    @property
    def slots(self) -> int:
        if self.places is None:
            raise KclError(
                f"{self.name} divides its memory between all tasks and must know their size: pass `places`, the total "
                "number of classes over all tasks"
            )
        return self.settings.memory_per_class * self.places

    def check_stored(self, method_state: Memory, task: Task) -> None:
        """Raise if a task's samples cannot share one memory with those of earlier tasks."""
        if task.train.inputs.dtype != method_state["inputs"].dtype or not torch.equal(
            _scaling(task), method_state["scaling"].cpu()
        ):
            raise KclError(
                f"task {task.index} stores or scales its samples differently from the first task; {self.name} keeps "
                "samples of all tasks in one memory: use the same type and scaling for all"
            )


def _scaling(task: Task) -> Tensor:
    return torch.tensor([*(task.view.mean or ()), *(task.view.std or ())], dtype=torch.float64)


def random_subsets(available: np.ndarray, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A uniformly random subset of `size` of the numbers 0 … available − 1 for every step, and weights of one.

    Where fewer are available, all of them are taken, and repeated with weight zero to fill the shape. This is Floyd's
    algorithm, vectorised over steps.
    """
    top = np.maximum(available, size)
    chosen = np.empty((len(available), size), dtype=np.int64)
    for column in range(size):
        last = top - size + column
        drawn = rng.integers(0, last + 1)
        taken = (chosen[:, :column] == drawn[:, None]).any(1)
        chosen[:, column] = np.where(taken, last, drawn)
    filling = np.arange(size) % np.maximum(available, 1)[:, None]
    few = (available < size)[:, None]
    return np.where(few, filling, chosen), (np.arange(size) < available[:, None]).astype(np.float32)
