"""Many runs trained together as one stacked model, the whole step in one CUDA graph.

Runs are independent, so the gradient of the sum of their losses is each run's own gradient, and SGD acts entry by
entry: stacking changes nothing but the speed. `nets` and `methods` stay single-run code; the loss is vmapped over
the leading dimension of everything a run owns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task, View
from kcl.core.randomness import numpy_generator
from kcl.errors import KclError
from kcl.methods.method import Memory, Method, Plan
from kcl.methods.views import copies_at_test
from kcl.nets.backbone import Backbone
from kcl.ops.precision import answering, products
from kcl.training.checkpoint import Saved, Tree, digest
from kcl.training.draws import PhiloxSource, Recorder, Replay, Request, RunNoise, SeparateSource, Source, merge
from kcl.training.restoring import Lessons, fit_carried, fit_memory, learned, template, whole_number
from kcl.training.run_group import Learner, Own, of_trainings
from kcl.training.single_run import BetweenSteps, OnStep, batch_sizes, build_model, check_device, on, reaches, seen
from kcl.training.single_run import answers as highest
from kcl.training.state import CannotStack, StackedState, over_runs, stack_memories
from kcl.training.trainer import EpochExamples, Trainer
from kcl.training.variants import Alike, alike, members
from kcl.training.weight_average import weights_size

LONG = 40_000
"""Steps from which compiling, which takes a quarter of a minute, pays on a GPU."""
BATCHES = 16
"""Batches of test samples that one classifier answers for; as stored, they take less than one batch in the network."""


def stacks(device: str | torch.device, compiled: bool | None) -> bool:
    """Whether runs are stacked: on a GPU, all together; on a CPU, each alone, where its step is to be compiled.
    `compiled`: None where nothing is asked for.
    """
    return torch.device(device).type == "cuda" or compiled is True


class StackedRuns(Learner):
    """s runs of one method whose settings differ in numbers, and in how they are tested."""

    def __init__(
        self,
        methods: Sequence[Method],
        make_backbones: Sequence[Callable[[], Backbone]],
        seeds: Sequence[int],
        device: str | torch.device,
        compiled: bool = False,
        precision: str = "tf32",
        variants: Sequence[Sequence[Method]] | None = None,
    ) -> None:
        """`methods`, `make_backbones` and `seeds` are of every training; `variants`: where trainings are tested in
        several ways, the methods of each. `compiled`: PyTorch's compiler fuses the step; that takes it a while, so it
        pays for long runs only. `precision`: what may be computed in; see `ops.precision`. The Gram matrix is
        float32 in any case.
        """
        self.methods, self.training_seeds, self.device = methods, seeds, check_device(device)
        self.method, self.count = methods[0], len(seeds)
        own = variants or [[method] for method in methods]
        self.variants, self.runs, self._alike = own, members(own), alike(own)
        self.seeds = [seeds[run.training] for run in self.runs]
        self.joint = self.method.joint
        self.answers_unseen, self.compiled, self.precision = self.method.answers_unseen, compiled, precision
        self.models = [
            build_model(method, make, seed).to(self.device)
            for method, make, seed in zip(methods, make_backbones, seeds, strict=True)
        ]
        self.state = StackedState(self.models, [reaches(several) for several in own])
        self.kept: dict[int, tuple[Memory, View]] = {}
        self.carried: Memory | None = None
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}
        self._asked: dict[Any, list[Request]] = {}
        self._batches: dict[Any, int] = {}
        self._shared: dict[int, Memory] = {}
        """By the first run of a group: what the classifiers of all its tasks have in common, at the present weights."""
        self._trainer: Trainer | None = None
        self._midway: Saved | None = None
        """Where the runs were in the midst of a task when they were saved."""
        self._learning = False

    def learn(self, tasks: Sequence[Task], on_step: OnStep, between_steps: BetweenSteps = lambda: None) -> None:
        tasks = self._of_trainings(tasks)
        index, view = tasks[0].index, tasks[0].view.to(self.device)
        memory, working, examples = self._begin(tasks, view)
        if self.carried is None:
            self.carried = self._carry(tasks)
        plans = self._plans(tasks, examples, self.carried)
        saved, self._midway = self._midway, None
        if saved is not None:
            self.state.load(saved.tensors)  # to begin a task changes the heads
        with products(self.precision):
            if self._trainer is None or not self._trainer.suits(working, examples, view, plans):
                self._trainer = None  # its graphs and what they hold go before others are made
                self._trainer = Trainer(self, working, self.carried, examples, view, plans)
            self._learning = True
            self._trainer.train(index, working, examples, plans, on_step, between_steps, saved)
            self._learning = False
        self._shared.clear()
        memory |= {name: tensor.clone() for name, tensor in self._trainer.trained().items()}
        with torch.no_grad():
            ended = [
                method.end_task(model, _of(run, memory))
                for run, (method, model) in enumerate(zip(self.methods, self.models, strict=True))
            ]
            self._consolidate(tasks, plans, self.carried)
        for parts in zip(*(task.parts for task in tasks), strict=True):
            if parts[0] is not tasks[0]:  # several tasks were learned as one
                ended = [method.unseen_memory(part) for method, part in zip(self.methods, parts, strict=True)]
            self.kept[parts[0].index] = (stack_memories(ended, self.device), parts[0].view.to(self.device))

    def _begin(self, tasks: Sequence[Task], view: View) -> tuple[Memory, Memory, EpochExamples]:
        """What is kept of the task, the same as the network sees it, and what there is to train on."""
        if any((task.view.mean, task.view.std) != (view.mean, view.std) for task in tasks):
            raise CannotStack("the runs see their samples scaled in different ways")
        begun = []
        for method, model, task, seed in zip(self.methods, self.models, tasks, self.training_seeds, strict=True):
            method.check(task)
            begun.append(method.begin_task(model, task, numpy_generator(seed, "coreset", task.index)))
        memory = stack_memories([learnable.memory for learnable in begun], self.device)
        examples = EpochExamples(self, tasks, [learnable.positions for learnable in begun])
        return memory, seen(memory, view, runs=True), examples

    # What is carried from task to task

    def _carry(self, tasks: Sequence[Task]) -> Memory:
        parts = zip(self.methods, self.models, tasks, strict=True)
        return stack_memories([method.carry(model, task) for method, model, task in parts], self.device)

    def _plans(self, tasks: Sequence[Task], examples: EpochExamples, carried: Memory) -> list[Plan] | None:
        """What every run recalls in the task; None where the method recalls nothing."""
        plans = []
        sizes = batch_sizes(self.models[0], examples.length, self.method.settings.batch_size)
        for run, (method, task, seed) in enumerate(zip(self.methods, tasks, self.training_seeds, strict=True)):
            own = _of(run, carried)
            rng = numpy_generator(seed, "recalled", task.index)
            plans.append(method.plan(own, task, examples.orders(run), sizes, rng))
        made = [plan for plan in plans if plan is not None]
        return made or None

    def _consolidate(self, tasks: Sequence[Task], plans: list[Plan] | None, carried: Memory) -> None:
        """Every run carries on what its method says, in the tensors that are here already."""
        parts = zip(self.methods, self.models, tasks, self.training_seeds, strict=True)
        for run, (method, model, task, seed) in enumerate(parts):
            here = task.to(self.device, self.stored(task.train.inputs))
            rng = numpy_generator(seed, "consolidation", task.index)
            new = method.consolidate(model, _of(run, carried), here, plans[run] if plans else None, rng)
            for name, tensor in new.items():
                carried[name][run].copy_(tensor)

    def rehearse(self, tasks: Sequence[Task]) -> None:
        """One step over the first batch, to see that the runs stack and what memory that takes. A task per training."""
        view = tasks[0].view.to(self.device)
        _, working, examples = self._begin(tasks, view)
        carried = self._carry(tasks)
        plans = self._plans(tasks, examples, carried)
        with products(self.precision):
            Trainer(self, working, carried, examples, view, plans).rehearse()

    @torch.no_grad()
    def rehearse_classifier(self, tasks: Sequence[Task]) -> None:
        """The classifier of a task in every way it is tested, to see what memory that takes: all views of a coreset are
        passed at once. A task per training.
        """
        view = tasks[0].view.to(self.device)
        memory, _, _ = self._begin(tasks, view)
        parts = zip(self.methods, self.models, strict=True)
        ended = [method.end_task(model, _of(run, memory)) for run, (method, model) in enumerate(parts)]
        working = seen(stack_memories(ended, self.device), view, runs=True)
        for group in self._alike:
            state, own, drawn = self._asking(group, working, tasks[0].index)

            def solve(model: nn.Module, memory: Memory, drawn: list[Tensor], group: Alike = group) -> Tensor:
                group.method.prepare(model, memory, Replay(drawn))
                return memory["targets"]

            with answering(self.precision):
                over_runs(self.models[0], solve, state, own, drawn)

    @torch.no_grad()
    def accuracy(self, tasks: Sequence[Task]) -> list[float]:
        found = [0.0] * len(self.runs)
        for group in self._alike:
            correct = torch.zeros(len(group.runs), dtype=torch.int64, device=self.device)
            for scores, wanted in self._answers(tasks, group):
                correct += (highest(scores) == wanted).sum(1)
            for run, right in zip(group.runs, correct.tolist(), strict=True):
                found[run] = 100.0 * right / len(tasks[0].test)
        return found

    @torch.no_grad()
    def scores(self, tasks: Sequence[Task]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for group in self._alike:
            scores = torch.cat([scores.cpu() for scores, _ in self._answers(tasks, group)], dim=1)
            found |= dict(zip(group.runs, scores, strict=True))
        return [found[run] for run in range(len(self.runs))]

    def kept_inputs(self, index: int) -> list[Tensor | None]:
        inputs = self.kept[index][0].get("inputs")
        return [None if inputs is None else inputs[run.training].cpu() for run in self.runs]

    def _answers(self, tasks: Sequence[Task], group: Alike) -> Iterator[tuple[Tensor, Tensor]]:
        """Scores (s, n, c) of some of the test samples of every run of a group after another, and the labels (s, n)."""
        index, length = tasks[0].index, len(tasks[0].test)
        if length == 0 or any(len(task.test) != length for task in tasks):
            raise KclError(f"task {index} must have test samples, the same number in every run")
        if index in self.kept:
            memory, view = self.kept[index]
        else:
            own = zip(self.methods, self._of_trainings(tasks), strict=True)
            unseen = [method.unseen_memory(task) for method, task in own]
            memory, view = stack_memories(unseen, self.device), tasks[0].view.to(self.device)
        state, working, drawn = self._asking(group, seen(memory, view, runs=True), index)
        working |= self._common(group, state)
        tasks = [tasks[run] for run in group.runs]
        stored, batch = [self.stored(task.test.inputs) for task in tasks], self._evaluation_batch(tasks[0], group)

        def answers(model: nn.Module, memory: Memory, inputs: Tensor, drawn: list[Tensor]) -> Tensor:
            classifier = group.method.prepare(model, memory, Replay(drawn))
            found = [group.method.answer(model, classifier, view.scale(part)) for part in inputs.split(batch)]
            return torch.cat(found) if len(found) > 1 else found[0]

        moves = [task.view.to(self.device).move for task in tasks]
        rows = torch.stack([task.test.rows for task in tasks]).to(self.device)
        labels = torch.stack([task.test.labels for task in tasks]).to(self.device)
        several = BATCHES * batch
        for part, wanted in zip(rows.split(several, dim=1), labels.split(several, dim=1), strict=True):
            inputs = torch.stack([move(array[own]) for move, array, own in zip(moves, stored, part, strict=True)])
            with answering(self.precision):
                scores = over_runs(self.models[0], answers, state, working, inputs, drawn)
            yield scores, wanted

    def _asking(self, group: Alike, working: Memory, index: int) -> tuple[dict[str, Tensor], Memory, list[Tensor]]:
        """What a classifier of a task is solved from: the state, the memory and the noise of every run of a group."""
        seeds = [self.training_seeds[own] for own in group.trainings]
        state, working = (self._of_group(group, own) for own in (self.state.answering(group.average), working))
        source = self.source(self._classifier_requests(working, group), "test noise", index, seeds)
        source.draw()
        return state, working, source.drawn

    def _of_group(self, group: Alike, stacked: dict[str, Tensor]) -> dict[str, Tensor]:
        """What belongs to a group's trainings of what all have."""
        if group.trainings == list(range(self.count)):
            return stacked
        rows = torch.tensor(group.trainings, device=self.device)
        return {name: tensor.index_select(0, rows) for name, tensor in stacked.items()}

    def _common(self, group: Alike, state: dict[str, Tensor]) -> Memory:
        """What the classifiers of all tasks have in common, of every run of a group."""
        if self._learning:  # the weights change from step to step
            self._shared.clear()
        if group.method.shares and group.runs[0] not in self._shared:
            parts = []
            for memory, view in self.kept.values():
                working = self._of_group(group, seen(memory, view, runs=True))
                with answering(self.precision):
                    parts.append(over_runs(self.models[0], group.method.contribution, state, working))
            self._shared[group.runs[0]] = group.method.common(torch.stack(parts).sum(0))
        return self._shared.get(group.runs[0], {})

    @property
    def diverged(self) -> list[bool]:
        alive = self.state.alive[:, 0].tolist()
        return [not alive[run.training] for run in self.runs]

    def memory_use(self) -> list[dict[str, int]]:
        kept = [memory for memory, _ in self.kept.values()]
        of_trainings = [
            method.memory_use([_of(run, memory) for memory in kept], _of(run, self.carried or {}))
            for run, method in enumerate(self.methods)
        ]
        more = {"average_bytes": weights_size(self.models[0])}
        return [of_trainings[own] | ({} if average is None else more) for own, average in self.runs]

    # Saving

    def saved(self) -> Saved:
        kept = {str(index): memory for index, (memory, _) in self.kept.items()}
        tree: Tree = {"stack": self.state.saved(), "kept": kept, "carried": self.carried or {}}
        about: dict[str, Any] = {"stacked runs": self.count, "step": None}
        if self._learning and self._trainer is not None:
            tensors, about_trainer = self._trainer.saved()
            tree, about = tree | tensors, about | about_trainer
        return Saved(tree, about)

    def restore(self, saved: Saved, lessons: Sequence[Lessons]) -> None:
        lessons, (tree, about) = self._of_trainings(lessons), saved
        if about.get("stacked runs") != self.count:
            raise KclError(f"the checkpoint does not fit the run: it is not one of {self.count} runs trained together")
        for number, _ in enumerate(learned(tree, lessons[0])):
            tasks = [own[number] for own in lessons]
            parts = zip(self.methods, self.models, tasks, self.training_seeds, strict=True)
            like = [template(method, model, task, seed) for method, model, task, seed in parts]
            for part, memories in zip(tasks[0].parts, zip(*like, strict=True), strict=True):
                expected = stack_memories(memories, self.device)
                memory = fit_memory(tree["kept"].get(str(part.index)), expected, part.index)
                self.kept[part.index] = (on(self.device, memory), part.view.to(self.device))
        if "carried" in tree:
            like_carried = self._carry([own[0] for own in lessons])
            self.carried = on(self.device, fit_carried(tree["carried"], like_carried, self.method.class_count))
        self.state.load(tree)
        self._shared.clear()
        if whole_number(about.get("step"), "the step", 2**53, or_none=True) is not None:
            self._midway = saved

    def fingerprints(self) -> list[str]:
        return [
            digest(
                {
                    "model": dict(self.models[own].state_dict()),
                    "kept": {str(index): _of(own, memory) for index, (memory, _) in self.kept.items()},
                    "carried": _of(own, self.carried or {}),
                }
                | ({} if average is None else {"average": dict(self.answering(run).state_dict())})
            )
            for run, (own, average) in enumerate(self.runs)
        ]

    def answering(self, run: int) -> nn.Module:
        """A run's model as it answers; a copy where that is with the average of its weights."""
        training, average = self.runs[run]
        if average is None:
            return self.models[training]
        model = copy.deepcopy(self.models[training]).requires_grad_(False)
        own = self.state.answering(average)
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.data = own[name][training].clone()
        return model

    # What the trainer and the evaluation share

    def source(
        self, requests: Sequence[Request], purpose: str, index: int, seeds: Sequence[int] | None = None
    ) -> Source:
        """Of all trainings, unless their `seeds` are given."""
        seeds = self.training_seeds if seeds is None else seeds
        if self.device.type == "cpu" and not self.compiled:
            return SeparateSource(requests, [RunNoise(self.device, seed, purpose, index) for seed in seeds])
        return PhiloxSource(requests, self.device, seeds, purpose, index)

    def stored(self, inputs: Tensor) -> Tensor:
        """A stored array on the device: moved once, as bytes, for all runs and tasks."""
        key = id(inputs)
        if key not in self._stored:  # the original is kept beside its copy, so that its id stays its own
            self._stored[key] = (inputs, inputs.to(self.device))
        return self._stored[key][1]

    def _classifier_requests(self, working: Memory, group: Alike) -> list[Request]:
        """What a classifier asks of the noise, seen in a dry pass: once for all tasks of the same shapes."""
        shapes = (*(tensor.shape[1:] for tensor in working.values()), group.runs[0])
        if shapes not in self._asked:
            recorder = Recorder(self.device)
            group.method.prepare(self.models[0], {name: tensor[0] for name, tensor in working.items()}, recorder)
            self._asked[shapes] = merge([recorder.requests] * len(group.runs))
        return self._asked[shapes]

    def _of_trainings(self, given: Sequence[Own]) -> list[Own]:
        return of_trainings(given, [len(own) for own in self.variants])

    def _evaluation_batch(self, task: Task, group: Alike) -> int:
        """How many test samples at once: a quarter of the memory that is free when tasks of this size are first tested,
        at a generous guess of what one takes. It stays so, and is a power of two on a GPU, where cuDNN looks for the
        fastest way anew for every size.
        """
        key = (len(task.test), task.test.inputs.shape[1:], group.runs[0])
        if key not in self._batches:
            each = 128 * task.test.inputs[0].numel() + 16 * self.method.settings.random_features
            each *= copies_at_test(group.method.settings)
            fitting = max(1, self._free_memory() // 4 // (each * len(group.runs)))
            if self.device.type == "cuda":
                fitting = 1 << fitting.bit_length() - 1
            self._batches[key] = min(len(task.test), fitting)
        return self._batches[key]

    def _free_memory(self) -> int:
        """Bytes, what PyTorch holds without using it included."""
        if self.device.type != "cuda":
            return 2**33
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + unused


def _of(run: int, stacked: Memory) -> Memory:
    """One run's part of a stacked memory."""
    return {name: tensor[run] for name, tensor in stacked.items()}
