"""Testing the runs of a stack: how they are grouped for it, the heads of tasks at the current weights, their scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task, View
from kcl.core.randomness import numpy_generator
from kcl.core.shapes import Float, Int
from kcl.errors import KclError
from kcl.functional.noise import RunNoise
from kcl.methods.method import Memory, Method
from kcl.methods.views import copies_at_test
from kcl.ops.precision import answering
from kcl.ops.torch_private import tree_map
from kcl.training.draws import DrawnNoise, Recorder, Request, merge
from kcl.training.state import memory_of, over_runs, stack_memories
from kcl.training.weight_average import horizon, horizons

QUERIES_ON_CPU = 2048
BATCHES = 16
"""Batches of test samples moved to the device together; as stored, they need less memory than one in the network."""


def predicted(scores: Float[Tensor, "*s n c"]) -> Int[Tensor, "*s n"]:
    """The class with the highest score; −1, which is no class, where scores are not finite. Otherwise a kernel matrix
    that is not positive definite in single precision would seem to give an answer.
    """
    return torch.where(torch.isfinite(scores).all(-1), scores.argmax(-1), -1)


def as_seen(memory: Memory, view: View) -> Memory:
    """The memory of a task, with its samples scaled as the network sees them."""
    if "inputs" not in memory:
        return memory
    inputs = memory["inputs"]
    return memory | {"inputs": view.scale(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])}


class Variant(NamedTuple):
    """One run: its training, and the weight average it is tested with (None: the last weights)."""

    training: int
    average: int | None


class TestGroup(NamedTuple):
    """Runs of different trainings that are tested in the same way, and therefore together."""

    method: Method
    runs: list[int]
    trainings: list[int]
    average: int | None


def grouped(methods: Sequence[Sequence[Method]]) -> tuple[list[Variant], list[TestGroup]]:
    """Every run, training by training, and all runs grouped by how they are tested. `methods`: the methods that each
    training is tested with.
    """
    runs: list[Variant] = []
    groups: dict[Any, TestGroup] = {}
    for training, tested_by in enumerate(methods):
        averages = horizons(tested_by)
        for method in tested_by:
            averaged = horizon(method.settings)
            average = averages.index(averaged) if averaged in averages else None
            group = groups.setdefault((method.settings.testing_key(), average), TestGroup(method, [], [], average))
            group.runs.append(len(runs))
            group.trainings.append(training)
            runs.append(Variant(training, average))
    return runs, list(groups.values())


class Union(NamedTuple):
    """The classifiers over all classes of a group's runs, and what its classes are."""

    heads: Memory
    places: dict[int, Int[Tensor, "s w"]]
    """Of every task: the place of each of its classes among all."""
    owners: Int[Tensor, "s c"]
    """The task of each class; the first, where tasks share it."""


class Evaluator:
    """Tests the runs of a stack; the methods of the same names of `stack.RunStack` say what is returned."""

    def __init__(self, stack: Any) -> None:
        self.stack = stack
        self._requests: dict[Any, list[Request]] = {}
        self._batch_sizes: dict[Any, int] = {}
        self._shared: dict[int, Memory] = {}
        """By the first run of a group: what the heads of all tasks have in common at the current weights."""
        self._unions: dict[int, Union] = {}
        self._version = stack.version

    @torch.no_grad()
    def accuracy(self, tasks: Sequence[Task]) -> list[float]:
        accuracies = [math.nan] * len(self.stack.runs)
        for group in self.stack.test_groups:
            if tasks[0].index not in self.stack.kept and not group.method.settings.names_tasks:
                continue  # its classes are not among those seen
            correct = torch.zeros(len(group.runs), dtype=torch.int64, device=self.stack.device)
            for scores, labels in self._answers(tasks, group):
                correct += (predicted(scores) == labels).sum(1)
            for run, count in zip(group.runs, correct.tolist(), strict=True):
                accuracies[run] = 100.0 * count / len(tasks[0].test)
        return accuracies

    @torch.no_grad()
    def scores(self, tasks: Sequence[Task]) -> list[Float[Tensor, "n c"]]:
        by_run: dict[int, Tensor] = {}
        for group in self.stack.test_groups:
            scores = torch.cat([scores.cpu() for scores, _ in self._answers(tasks, group)], dim=1)
            by_run |= dict(zip(group.runs, scores, strict=True))
        return [by_run[run] for run in range(len(self.stack.runs))]

    @torch.no_grad()
    def answered_tasks(self, tasks: Sequence[Task]) -> list[list[int] | None]:
        counts: list[list[int] | None] = [None] * len(self.stack.runs)
        for group in self.stack.test_groups:
            if group.method.settings.scenario == "class":
                owners = self._union(group).owners
                of_group = torch.zeros(len(group.runs), 1 + int(owners.max()), dtype=torch.int64, device=owners.device)
                for scores, _ in self._answers(tasks, group):
                    chosen = predicted(scores)
                    answered = owners.gather(1, chosen.clamp_min(0))
                    of_group.scatter_add_(1, answered, (chosen >= 0).long())
                for run, several in zip(group.runs, of_group.tolist(), strict=True):
                    counts[run] = several
        return counts

    @torch.no_grad()
    def rehearse(self, memory: Memory, view: View, index: int) -> None:
        for group in self.stack.test_groups:
            self._heads(group, self._of_group(group, as_seen(memory, view)), index)

    def _answers(self, tasks: Sequence[Task], group: TestGroup) -> Iterator[tuple[Tensor, Tensor]]:
        """Scores (s, n, c) and labels (s, n) of the test samples of a group's runs, several batches at a time."""
        stack, index, length = self.stack, tasks[0].index, len(tasks[0].test)
        if length == 0 or any(len(task.test) != length for task in tasks):
            raise KclError(f"task {index} needs test samples, the same number in every run")
        of_all = not group.method.settings.names_tasks
        memory: Memory = {}
        if index in stack.kept:
            memory, view = stack.kept[index]
        elif stack.answers_unseen:
            pairs = zip(stack.methods, stack.once_per_training(tasks), strict=True)
            memory = stack_memories([method.unseen_memory(task) for method, task in pairs], stack.device)
            view = tasks[0].view.to(stack.device)
        else:
            raise KclError(f"task {index} was not learned yet, so it has no head; learned tasks: {sorted(stack.kept)}")
        if of_all:
            heads = self._union(group).heads
        else:
            heads = self._heads(group, self._of_group(group, as_seen(memory, view)) | self._common(group), index)
        tasks = [tasks[run] for run in group.runs]
        stored, batch = [stack.stored(task.test.inputs) for task in tasks], self._batch_size(tasks[0], group)
        moves = [task.view.to(stack.device).move for task in tasks]
        rows = torch.stack([task.test.rows for task in tasks]).to(stack.device)
        labels = torch.stack([task.test.labels for task in tasks]).to(stack.device)
        if of_all:
            labels = self._union(group).places[index].gather(1, labels)

        def answers(model: nn.Module, head: Memory, inputs: Tensor) -> Tensor:
            parts = [group.method.answer(model, head, view.scale(part), of_all) for part in inputs.split(batch)]
            return torch.cat(parts) if len(parts) > 1 else parts[0]

        several = BATCHES * batch
        for part, part_labels in zip(rows.split(several, dim=1), labels.split(several, dim=1), strict=True):
            arrays = zip(moves, stored, part, strict=True)
            inputs = torch.stack([move(array[run_rows]) for move, array, run_rows in arrays])
            yield self._call(group, answers, heads, inputs), part_labels

    def _heads(self, group: TestGroup, memory: Memory, index: int) -> Memory:
        """The heads of a task for every run of a group, from the memories of its trainings."""
        stack, method = self.stack, group.method
        seeds = [stack.training_seeds[training] for training in group.trainings]
        if stack.plain:
            noise = RunNoise(stack.device, seeds[0], "test noise", index)

            def solve_one(model: nn.Module, memory: Memory) -> Memory:
                return method.classifier(model, method.show(memory), noise)

            return self._call(group, solve_one, memory)
        source = stack.source(self._classifier_requests(group, memory), "test noise", index, seeds)
        source.draw()

        def solve(model: nn.Module, memory: Memory, drawn: list[Tensor]) -> Memory:
            return method.classifier(model, method.show(memory), DrawnNoise(drawn))

        return self._call(group, solve, memory, source.drawn)

    def _classifier_requests(self, group: TestGroup, memory: Memory) -> list[Request]:
        """The noise that solving a head requests, recorded in a dry pass once for all tasks of the same shapes."""
        shapes = (*(tensor.shape[1:] for tensor in memory.values()), group.runs[0])
        if shapes not in self._requests:
            recorder = Recorder(self.stack.device)
            shown = group.method.show({name: tensor[0] for name, tensor in memory.items()})
            group.method.classifier(self.stack.models[0], shown, recorder)
            self._requests[shapes] = merge([recorder.requests] * len(group.runs))
        return self._requests[shapes]

    def _common(self, group: TestGroup) -> Memory:
        """What the heads of all tasks have in common, for every run of a group."""
        self._forget_old_weights()
        method, first = group.method, group.runs[0]
        if method.shares and first not in self._shared:

            def contribution(model: nn.Module, memory: Memory) -> Tensor:
                return method.contribution(model, method.show(memory))

            memories = [self._of_group(group, as_seen(*kept)) for kept in self.stack.kept.values()]
            parts = [self._call(group, contribution, memory) for memory in memories]
            self._shared[first] = method.common(torch.stack(parts).sum(0))
        return self._shared.get(first, {})

    def _union(self, group: TestGroup) -> Union:
        """The classifiers over all classes seen so far, one run after another: λ is chosen by what a run has."""
        self._forget_old_weights()
        stack, method, first = self.stack, group.method, group.runs[0]
        if first not in self._unions:
            memories = [self._of_group(group, as_seen(*kept)) for kept in stack.kept.values()]
            heads, places, owners = [], [], []
            for position, (run, training) in enumerate(zip(group.runs, group.trainings, strict=True)):
                among_all, owners_of_run = _places({task: each[training] for task, each in stack.classes.items()})
                united = method.united([memory_of(position, memory) for memory in memories], among_all)
                rng = numpy_generator(stack.training_seeds[training], "classes of all tasks")
                with answering(stack.precision):
                    model = stack.model_at_test(run)
                    heads.append(method.classifier_of_all(model, method.show(united), rng))
                places.append(among_all)
                owners.append(owners_of_run)
            by_task = {
                index: torch.tensor(several, device=stack.device)
                for index, several in zip(stack.classes, zip(*places, strict=True), strict=True)
            }
            self._unions[first] = Union(
                stack_memories(heads, stack.device), by_task, torch.tensor(owners, device=stack.device)
            )
        return self._unions[first]

    def _forget_old_weights(self) -> None:
        if self._version != self.stack.version:
            self._shared.clear()
            self._unions.clear()
            self._version = self.stack.version

    def _call(self, group: TestGroup, function: Callable[..., Any], *arguments: Any) -> Any:
        """function(model, *arguments) for every run of a group, with the weights it is tested with."""
        stack = self.stack
        with answering(stack.precision):
            if stack.plain:
                alone = tree_map(lambda tensor: tensor[0], arguments)
                answer = function(stack.state.model_at_test(0, group.average), *alone)
                return tree_map(lambda tensor: tensor[None], answer)
            state = self._of_group(group, stack.state.used_at_test(group.average))
            return over_runs(stack.models[0], function, state, *arguments)

    def _of_group(self, group: TestGroup, stacked: Memory) -> Memory:
        """The rows of a group's trainings."""
        if group.trainings == list(range(self.stack.count)):
            return stacked
        rows = torch.tensor(group.trainings, device=self.stack.device)
        return {name: tensor.index_select(0, rows) for name, tensor in stacked.items()}

    def _batch_size(self, task: Task, group: TestGroup) -> int:
        """How many test samples to score at once. On a GPU, as many as fit a quarter of the memory that is free when
        tasks of this size are first tested, by a generous estimate per sample. The size is then kept, and is a power of
        two, because cuDNN searches for the fastest algorithm again for every new size.
        """
        copies = copies_at_test(group.method.settings)
        if self.stack.device.type != "cuda":
            return min(len(task.test), max(1, QUERIES_ON_CPU // copies))
        key = (len(task.test), task.test.inputs.shape[1:], group.runs[0])
        if key not in self._batch_sizes:
            each = copies * (128 * task.test.inputs[0].numel() + 16 * group.method.settings.random_features)
            device = self.stack.device
            unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # held by PyTorch
            free = torch.cuda.mem_get_info(device)[0] + unused
            fitting = max(1, free // 4 // (each * len(group.runs)))
            self._batch_sizes[key] = min(len(task.test), 1 << fitting.bit_length() - 1)
        return self._batch_sizes[key]


def _places(classes: dict[int, tuple[int, ...]]) -> tuple[list[list[int]], list[int]]:
    """For every task, the place of each of its classes among all classes, in the order in which they were seen; and the
    first task of each place.
    """
    owners: dict[int, int] = {}
    for task, several in classes.items():
        owners |= {number: task for number in several if number not in owners}
    order = {number: place for place, number in enumerate(owners)}
    return [[order[number] for number in several] for several in classes.values()], list(owners.values())
