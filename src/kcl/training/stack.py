"""s runs of one method, trained together.

Runs are independent, so the gradient of the sum of their losses is the gradient of each run, and an update acts on each
run's weights alone: stacking changes only the speed. `nets` and `methods` are single-run code; the loss is vmapped over
a leading run dimension. A plain stack has one training, whose model is called directly: the default on a CPU, and the
fallback for modules that cannot be vmapped.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task, View
from kcl.core.randomness import check_seed, numpy_generator
from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.methods.method import Learnable, Memory, Method
from kcl.nets.backbone import Backbone
from kcl.ops.precision import answering, products, used
from kcl.ops.torch_private import tree_map
from kcl.training.checkpoint import Saved, Tree, digest, fit_all, load_into
from kcl.training.draws import Request, Source
from kcl.training.evaluation import Evaluator, grouped
from kcl.training.optimizers import OPTIMIZERS
from kcl.training.stacked_task import StackedTask
from kcl.training.stacked_trainer import StackedTrainer
from kcl.training.state import StackState, build_model, memory_of, stack_memories
from kcl.training.step_progress import BetweenSteps, OnStep
from kcl.training.trainer import PlainTrainer, Trainer
from kcl.training.weight_average import horizons, weights_size

PerRun = TypeVar("PerRun")


class RunStack:
    """s runs of one method whose settings differ only in numbers and in how they are tested.

    A run's result does not depend on the other runs. Runs that differ only in how they are tested share one training
    and are listed one after another. Sequences that are passed or returned have one entry per run, in this order.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        make_backbones: Sequence[Callable[[], Backbone]],
        seeds: Sequence[int],
        device: str | torch.device = "cpu",
        compiled: bool = False,
        precision: str = "tf32",
        variants: Sequence[Sequence[Method]] | None = None,
        plain: bool = False,
    ) -> None:
        """`methods`, `make_backbones` and `seeds` have one entry per training; so has `variants`, the methods that each
        training is tested with. `compiled`: fuse the step with PyTorch's compiler, which only pays off in long runs.
        `precision`: one of `ops.precision.PRECISIONS`. `plain`: a single training without vmap.
        """
        for seed in seeds:
            check_seed(seed)
        if plain and (len(seeds) != 1 or compiled):
            raise ValueError("a plain stack has one training and is not compiled")
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise KclError(f"device {str(device)!r}: PyTorch finds no CUDA GPU on this machine; use 'cpu'")
        self.methods, self.training_seeds, self.device = methods, seeds, torch.device(device)
        self.method, self.count, self.plain = methods[0], len(seeds), plain
        self.variants = variants or [[method] for method in methods]
        self.runs, self.test_groups = grouped(self.variants)
        self.seeds = [seeds[run.training] for run in self.runs]
        self.joint, self.answers_unseen = self.method.joint, self.method.answers_unseen
        self.compares_tasks = any(group.method.settings.scenario == "class" for group in self.test_groups)
        """Whether a run tells apart the classes of all tasks."""
        self.compiled, self.precision = compiled, used(precision, self.device, compiled)
        self.models = [
            build_model(method, make, seed).to(self.device)
            for method, make, seed in zip(methods, make_backbones, seeds, strict=True)
        ]
        moments = OPTIMIZERS[self.method.settings.optimizer].moments
        self.state = StackState(self.models, [horizons(several) for several in self.variants], moments)
        self.kept: dict[int, tuple[Memory, View]] = {}
        """By task: the memory of every training, and the view of its samples."""
        self.classes: dict[int, list[tuple[int, ...]]] = {}
        """By task: its classes in every training, as positions among those of the stream."""
        self.method_state: Memory | None = None
        self.learning = False
        self.version = 0
        """Increases whenever the weights change."""
        self._evaluator = Evaluator(self)
        self._stored: dict[int, Tensor] = {}
        self._trainer: Trainer | None = None
        self._resume_from: Saved | None = None
        """A state saved in the middle of a task, until that task is resumed."""

    # Learning

    def learn(
        self, tasks: Sequence[Task], on_step: OnStep = lambda _: None, between_steps: BetweenSteps = lambda: None
    ) -> None:
        """Every run learns its version of the next task, or the rest of it if it was restored in the middle."""
        tasks = self.once_per_training(tasks)
        for part in tasks[0].parts:
            if part.index in self.kept:
                raise KclError(f"task {part.index} was learned before; a stream contains each task once")
        stacked_task = StackedTask(self, tasks)
        self.method_state = stacked_task.method_state
        saved, self._resume_from = self._resume_from, None
        if saved is not None:
            self.state.load(saved.tensors)  # beginning a task has reset the head
        trained_state: Memory = {}
        if self.method.trains:
            with products(self.precision):
                if self._trainer is None or not self._trainer.suits(stacked_task):
                    self._trainer = None  # frees its graphs and their memory before new ones are captured
                    kind = PlainTrainer if self.plain else StackedTrainer
                    self._trainer = kind(self, stacked_task)
                self.learning = True
                self._trainer.train(stacked_task, on_step, between_steps, saved)
                self.learning = False
            trained_state = self._trainer.trained_state()
        self.state.gather_buffers()
        self._end(stacked_task, trained_state)
        self.weights_changed()

    def weights_changed(self) -> None:
        """Invalidate heads that were solved before."""
        self.version += 1

    def learnables(self, tasks: Sequence[Task]) -> list[Learnable]:
        return [
            method.begin_task(model, task, numpy_generator(seed, "coreset", task.index))
            for method, model, task, seed in zip(self.methods, self.models, tasks, self.training_seeds, strict=True)
        ]

    def on_device(self, task: Task) -> Task:
        return task if self.device.type == "cpu" else task.to(self.device, self.stored(task.train.inputs))

    def initial_state(self, tasks: Sequence[Task]) -> Memory:
        parts = zip(self.methods, self.models, tasks, strict=True)
        return stack_memories([method.initial_state(model, task) for method, model, task in parts], self.device)

    @torch.no_grad()
    def _end(self, task: StackedTask, trained_state: Memory) -> None:
        """Let the method update the memory of the task, and its state of all tasks so far."""
        memory = task.stored_memory | {name: tensor.clone() for name, tensor in trained_state.items()}
        tasks, plans, method_state, ended = task.tasks, task.plans, task.method_state, []
        firsts = self.once_per_training(range(len(self.runs)))
        parts = zip(self.methods, self.models, tasks, self.training_seeds, strict=True)
        for run, (method, model, version, seed) in enumerate(parts):
            on_device, kept = self.on_device(version), method.end_task(model, memory_of(run, memory))
            with answering(self.precision):
                ended.append(method.review(self.model_at_test(firsts[run]), kept, on_device))
            before, rng = memory_of(run, method_state), numpy_generator(seed, "consolidation", task.index)
            after = method.consolidate(model, before, on_device, plans[run] if plans else None, rng)
            for name, tensor in after.items():
                method_state[name][run].copy_(tensor)
        for versions in zip(*(version.parts for version in tasks), strict=True):
            if versions[0] is not tasks[0]:  # several tasks were learned as one
                ended = [method.unseen_memory(part) for method, part in zip(self.methods, versions, strict=True)]
            self.kept[versions[0].index] = (stack_memories(ended, self.device), versions[0].view.to(self.device))
            self.classes[versions[0].index] = [version.classes for version in versions]

    def rehearse(self, tasks: Sequence[Task]) -> None:
        """One step on the first batch that changes no weights, to check that the runs can be stacked and to measure
        the memory. One task per training.
        """
        task = StackedTask(self, tasks)
        if self.method.trains:
            with products(self.precision):
                StackedTrainer(self, task).rehearse()

    def rehearse_classifier(self, tasks: Sequence[Task]) -> None:
        """Solve the head of a task for every test group, to measure the memory that takes. One task per training."""
        memory = stack_memories([memories[0] for memories in self._untrained_memories(tasks)], self.device)
        self._evaluator.rehearse(memory, tasks[0].view.to(self.device), tasks[0].index)

    @torch.no_grad()
    def _untrained_memories(self, tasks: Sequence[Task]) -> list[list[Memory]]:
        """For every training, the memory of each part of its task if nothing is trained. Resets the models' heads."""
        memories = []
        for method, task in zip(self.methods, tasks, strict=True):
            method.check(task)
        for method, model, task, learnable in zip(
            self.methods, self.models, tasks, self.learnables(tasks), strict=True
        ):
            ended = method.end_task(model, learnable.memory)
            memories.append([ended if part is task else method.unseen_memory(part) for part in task.parts])
        return memories

    # Answering

    def accuracy(self, tasks: Sequence[Task]) -> list[float]:
        """Percent correct of every run on its version of a task; meaningless where a run has diverged, not a number
        where the task is not named and was not learned.
        """
        return self._evaluator.accuracy(tasks)

    def answered_tasks(self, tasks: Sequence[Task]) -> list[list[int] | None]:
        """How many test samples of its version of a task every run takes for samples of each task; None where tasks are
        named or share their classes.
        """
        return self._evaluator.answered_tasks(tasks)

    def scores(self, tasks: Sequence[Task]) -> list[Float[Tensor, "n c"]]:
        """Class scores of every run on its version of a learned task."""
        return self._evaluator.scores(tasks)

    def model_at_test(self, run: int) -> nn.Module:
        """The model that a run is tested with: with its last weights or with their average."""
        return self.state.model_at_test(*self.runs[run])

    def memory_kept(self, run: int, index: int) -> Memory:
        """A run's memory of a learned task."""
        return memory_of(self.runs[run].training, self.kept[index][0])

    @property
    def diverged(self) -> list[bool]:
        """Which runs had a loss that was not finite; their weights stay as they were before it."""
        alive = self.state.alive[:, 0].tolist()
        return [not alive[run.training] for run in self.runs]

    def memory_use(self) -> list[dict[str, int]]:
        """Samples and bytes kept by every run; the bytes of averaged weights separately."""
        uses = []
        for training, average in self.runs:
            memories = [memory_of(training, memory) for memory, _ in self.kept.values()]
            use = self.methods[training].memory_use(memories, memory_of(training, self.method_state or {}))
            uses.append(use if average is None else use | {"average_bytes": weights_size(self.models[0])})
        return uses

    # Saving

    def saved(self) -> Saved:
        """Everything needed to resume, between two steps or two tasks."""
        kept = {str(index): memory for index, (memory, _) in self.kept.items()}
        tree: Tree = {"stack": self.state.saved(), "kept": kept, "carried": self.method_state or {}}
        about: dict[str, Any] = {"stacked runs": self.count, "plain": self.plain, "step": None}
        if self.learning and self._trainer is not None:
            tensors, about_trainer = self._trainer.saved()
            tree, about = tree | tensors, about | about_trainer
        return Saved(tree, about)

    def restore(self, saved: Saved, training_tasks: Sequence[Sequence[Task]]) -> None:
        """Continue from a saved state, in a new stack. `training_tasks`: what each run learns, in order."""
        if saved.about.get("stacked runs") != self.count:
            raise KclError(f"the checkpoint does not fit the run: it is not of {self.count} runs trained together")
        self._restore_memories(saved.tensors, self.once_per_training(training_tasks))
        self.state.load(saved.tensors)
        self.weights_changed()
        if saved.about.get("step") is not None:
            self._resume_from = saved

    def _restore_memories(self, tree: Tree, training_tasks: Sequence[Sequence[Task]]) -> None:
        """`training_tasks`: what each training learns, in order."""
        saved = tree.get("kept", {})
        names = set(saved) if isinstance(saved, dict) else {"no group of tensors"}
        learned = sum(str(task.parts[0].index) in names for task in training_tasks[0])
        if names != {str(part.index) for task in training_tasks[0][:learned] for part in task.parts}:
            raise KclError("the checkpoint does not fit the run: its tasks are not the first ones of the stream")
        for number in range(learned):
            tasks = [of_run[number] for of_run in training_tasks]
            templates = zip(*self._untrained_memories(tasks), strict=True)
            for place, (part, memories) in enumerate(zip(tasks[0].parts, templates, strict=True)):
                template = stack_memories(memories, self.device)
                memory = fit_all(saved.get(str(part.index)), template, f"kept/{part.index}")
                for name, tensor in memory.items():  # what depends on the data alone must match the present data
                    if not tensor.is_floating_point() and not torch.equal(tensor, template[name].cpu()):
                        raise KclError(
                            f"the data have changed since the checkpoint was saved: the {name} of task {part.index} "
                            "differ; restore the data, or start again with another --out"
                        )
                on_device = {name: tensor.to(self.device) for name, tensor in memory.items()}
                self.kept[part.index] = (on_device, part.view.to(self.device))
                self.classes[part.index] = [versions.parts[place].classes for versions in tasks]
        if "carried" in tree:
            template = self.initial_state([of_run[0] for of_run in training_tasks])
            load_into(template, tree["carried"], "carried")
            classes = template.get("classes", torch.zeros(0))
            if not bool(((classes >= 0) & (classes < self.method.class_count)).all()):
                raise KclError(
                    "the checkpoint does not fit the run: its memory contains classes that the stream does not have"
                )
            self.method_state = template

    def load_run(self, weights: dict[str, Tensor], average: dict[str, Tensor]) -> None:
        """Take the weights of a saved model, and their average if the run is tested with one. For a single run."""
        self.models[0].load_state_dict(weights)
        if self.runs[0].average is not None:
            load_into(self.average_state(0), average, "average")
        self.weights_changed()

    def snapshot(self) -> Callable[[], None]:
        """A function that restores the current state of the runs, between two tasks."""
        state = tree_map(lambda tensor: tensor.clone(), self.state.saved())
        kept = dict(self.kept)
        method_state = None if self.method_state is None else {n: t.clone() for n, t in self.method_state.items()}

        def restore() -> None:
            self.state.load({"stack": state})
            self.kept, self.method_state, self.learning = kept, method_state, False
            self._trainer = None  # it may hold the state that is given up
            self.weights_changed()

        return restore

    def fingerprints(self) -> list[str]:
        """A digest of every parameter, statistic and memory of each run."""
        digests = []
        for run, (training, average) in enumerate(self.runs):
            kept = {str(index): memory_of(training, memory) for index, (memory, _) in self.kept.items()}
            carried = memory_of(training, self.method_state or {})
            tree = {"model": dict(self.models[training].state_dict()), "kept": kept, "carried": carried}
            digests.append(digest(tree if average is None else tree | {"average": self.average_state(run)}))
        return digests

    def average_state(self, run: int) -> dict[str, Tensor]:
        """The weight average that a run is tested with, by name, and its number of updates."""
        average = self.runs[run].average
        assert average is not None  # noqa: S101 - only called for runs with an average
        model = {f"model.{name}": tensor for name, tensor in self.model_at_test(run).state_dict().items()}
        return model | {"updates": self.state.averages[average].updates}

    # Shared with trainer and evaluator

    def source(self, requests: Sequence[Request], purpose: str, index: int, seeds: Sequence[int]) -> Source:
        """The noise of the trainings with these seeds."""
        return Source(requests, self.device, seeds, purpose, index)

    def stored(self, inputs: Tensor) -> Tensor:
        """A stored array on the device: moved once for all runs and tasks, without conversion."""
        if self.device.type == "cpu":
            return inputs
        key = id(inputs)
        if key not in self._stored:
            self._stored[key] = inputs.to(self.device)
            weakref.finalize(inputs, self._stored.pop, key, None)  # an id may be reused
        return self._stored[key]

    def once_per_training(self, values: Sequence[PerRun]) -> list[PerRun]:
        """The values of the first run of each training."""
        if len(values) != len(self.runs):
            raise ValueError(f"{len(values)} values for {len(self.runs)} runs")
        firsts = [0, *itertools.accumulate(len(several) for several in self.variants)][:-1]
        return [values[first] for first in firsts]
