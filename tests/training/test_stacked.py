"""Stacked runs are the same runs: parameters, buffers, memories, losses and answers of each as if it were alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from kcl.benchmarks.array_stream import ArrayStream
from kcl.benchmarks.task import Examples, Stream, Task, View
from kcl.errors import KclError
from kcl.methods.ridge_kernels import KERNELS
from kcl.nets.backbone import ModuleBackbone
from kcl.training.evaluation import Evaluator
from kcl.training.stack import RunStack
from kcl.training.state import CannotStack
from kcl.training.step_progress import Step
from reference_run import TRAINED, ReferenceRun, ReferenceRuns

# In double precision two orders of summation are 10⁻¹² apart after ten steps, the ResNets' 10⁻¹⁰.
CLOSE = {"mlp": 1e-10, "resnet": 1e-8}


def _learn(learner: Any, tasks: list[Task]) -> list[Step]:
    steps: list[Step] = []
    learner.learn(tasks, steps.append)
    return steps


def _mean_losses(steps: list[Step], runs: int) -> list[float]:
    """The losses that the reference tells one run after another, averaged over runs as stacked runs tell them."""
    count = len(steps) // runs
    return [sum(step.loss for step in steps[place::count]) / runs for place in range(count)]


def _settle(learner: Any, difference: Any) -> None:
    """Running statistics as after a long training, but different in every run: no answers that hang on rounding."""
    for run, model in enumerate(difference.models(learner)):
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.fill_(0.02 * run)
                module.running_var.fill_(1.0 + 0.1 * run)


def _margin(learner: ReferenceRuns, tasks: list[Task]) -> float:
    """The least distance between a test sample's two best classes: ties may be broken either way."""
    return min(scores.topk(2).values.diff().abs().min().item() for scores in learner.scores(tasks))


def _assert_same(runs: Any, difference: Any, tasks: int = 2) -> None:
    """The stack and the reference learn `tasks` tasks; after each, everything about every run agrees."""
    separate, stacked, tolerance = runs.separate(), runs.stacked(), CLOSE[runs.net]
    difference.assert_none(separate, stacked, 0.0)
    for index in range(min(tasks, runs.training_count)):
        before = difference.snapshot(separate)
        expected, steps = _learn(separate, runs.training_tasks(index)), _learn(stacked, runs.training_tasks(index))
        count = len(expected) // len(runs.seeds)
        assert [(step.step, step.steps) for step in steps] == [(place, count) for place in range(1, count + 1)]
        assert [step.loss for step in steps] == pytest.approx(_mean_losses(expected, len(runs.seeds)), rel=tolerance)
        difference.assert_none(separate, stacked, tolerance, range(index + 1))
        moved = [
            max((after[name] - tensors[name]).abs().max().item() for name in tensors)
            for tensors, after in zip(before, difference.snapshot(separate), strict=True)
        ]
        assert min(moved) > 1e5 * tolerance  # or the agreement would say nothing
    if runs.net == "resnet":
        _settle(separate, difference)
        _settle(stacked, difference)
    for index in range(tasks):
        assert _margin(separate, runs.tasks(index)) > 10 * tolerance
        assert stacked.accuracy(runs.tasks(index)) == separate.accuracy(runs.tasks(index))
    assert stacked.memory_use() == separate.memory_use()
    assert stacked.diverged == separate.diverged == [False] * len(runs.seeds)


@pytest.mark.usefixtures("double")
class TestEqualsTheReference:
    """Different seeds and different numbers, two tasks in a row, the last batch of 8 after batches of 10."""

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_every_kernel(self, make_runs: Any, difference: Any, kernel: str) -> None:
        _assert_same(make_runs(kernel=kernel), difference)

    @pytest.mark.parametrize("split", [False, True])
    @pytest.mark.parametrize("method", TRAINED)
    def test_every_method(self, make_runs: Any, difference: Any, method: str, split: bool) -> None:
        """Three tasks, so that the methods' state was made, used and renewed."""
        _assert_same(make_runs(method, samples=48, tasks=3, split=split), difference, tasks=3)

    @pytest.mark.parametrize("method", TRAINED)
    def test_every_method_with_batchnorm_and_dropout(self, make_runs: Any, difference: Any, method: str) -> None:
        _assert_same(make_runs(method, "resnet", samples=28, split=True, dropout=0.02), difference)

    @pytest.mark.parametrize("options", [{"memory_per_class": 5}, {"recalled_per_step": 3}, {"epochs": 3}], ids=str)
    @pytest.mark.parametrize("method", ["a-gem", "er-reservoir"])
    def test_other_memories(self, make_runs: Any, difference: Any, method: str, options: dict[str, Any]) -> None:
        _assert_same(make_runs(method, samples=35, tasks=3, **options), difference, tasks=3)

    @pytest.mark.parametrize("net", ["mlp", "resnet"])
    def test_ewc_with_the_classic_fisher(self, make_runs: Any, difference: Any, net: str) -> None:
        runs = make_runs("ewc", net, samples=28, tasks=2, split=True, ewc_fisher="classic", ewc_fisher_samples=11)
        _assert_same(runs, difference)

    @pytest.mark.parametrize("method", TRAINED)
    def test_without_dropout(self, make_runs: Any, difference: Any, method: str) -> None:
        _assert_same(make_runs(method, dropout=0.0), difference)

    @pytest.mark.parametrize(
        "options",
        [
            {"monte_carlo_samples": 3, "test_draws": 2},
            {"feature_norm": "batch-minmax"},
            {"feature_norm": "none"},
            {"layers": 1},
            {"coreset_size_per_class": 1},
        ],
        ids=str,
    )
    def test_other_settings(self, make_runs: Any, difference: Any, options: dict[str, Any]) -> None:
        _assert_same(make_runs(**options), difference)

    @pytest.mark.parametrize(
        ("samples", "batches"), [(52, [10] * 4), (53, [10] * 4 + [1]), (20, [8]), (22, [10]), (13, [1])]
    )
    def test_every_cut_into_batches(self, make_runs: Any, difference: Any, samples: int, batches: list[int]) -> None:
        runs = make_runs(samples=samples)
        _assert_same(runs, difference)
        learner = runs.stacked()
        learner.learn(runs.tasks(0), lambda _: None)
        assert learner._trainer.sizes == batches

    def test_several_epochs(self, make_runs: Any, difference: Any) -> None:
        _assert_same(make_runs(samples=35, epochs=3), difference)

    @pytest.mark.parametrize("kernel", ["vrf", "rbf"])
    def test_batchnorm_and_dropout(self, make_runs: Any, difference: Any, kernel: str) -> None:
        _assert_same(make_runs(net="resnet", kernel=kernel, samples=40), difference)

    def test_batchnorm_and_dropout_of_naive_sgd(self, make_runs: Any, difference: Any) -> None:
        _assert_same(make_runs("naive-sgd", "resnet", samples=28, dropout=0.02), difference)

    def test_batchnorm_with_a_last_batch_of_one(self, make_runs: Any, difference: Any) -> None:
        """33 samples, of which twelve are kept: the sample left over joins the batch before it."""
        runs = make_runs(net="resnet", samples=33, epochs=2)
        _assert_same(runs, difference, tasks=1)
        learner = runs.stacked()
        learner.learn(runs.tasks(0), lambda _: None)
        assert learner._trainer.sizes == [10, 11]

    def test_one_run(self, make_runs: Any, difference: Any) -> None:
        _assert_same(make_runs()[[1]], difference)

    def test_the_same_seed_with_other_numbers(self, make_runs: Any, difference: Any) -> None:
        runs = make_runs()
        _assert_same(dataclasses.replace(runs, seeds=[5] * 3, streams=[runs.streams[0]] * 3), difference)


class TestInSinglePrecision:
    """As it is used. After a few steps the rounding of two orders of summation is still small."""

    @pytest.mark.parametrize("method", TRAINED)
    def test_equals_the_reference(self, make_runs: Any, difference: Any, method: str) -> None:
        runs = make_runs(method, samples=45)
        separate, stacked = runs.separate(), runs.stacked()
        for index in range(runs.training_count):
            expected, steps = _learn(separate, runs.training_tasks(index)), _learn(stacked, runs.training_tasks(index))
            assert [step.loss for step in steps] == pytest.approx(_mean_losses(expected, 3), abs=1e-5)
            difference.assert_none(separate, stacked, 2e-5, [index])

    def test_equals_the_reference_with_batchnorm(self, make_runs: Any, difference: Any) -> None:
        runs = make_runs(net="resnet", samples=32)
        separate, stacked = runs.separate(), runs.stacked()
        assert len(_learn(separate, runs.tasks(0))) == 3 * len(_learn(stacked, runs.tasks(0))) == 6
        difference.assert_none(separate, stacked, 2e-5, [0])

    @pytest.mark.parametrize(("method", "net"), [("kcl", "resnet"), *((method, "mlp") for method in TRAINED)])
    def test_a_run_does_not_notice_its_neighbours(self, make_runs: Any, method: str, net: str) -> None:
        """A beside B is A beside C, and A in another place of the stack."""
        runs = make_runs(method, net, samples=32)
        states = []
        for which in ([0, 1], [0, 2], [2, 0], [0, 1, 2]):
            learner = runs[which].stacked()
            for index in range(runs.training_count):
                learner.learn(runs[which].training_tasks(index), lambda _: None)
            place = which.index(0)
            states.append({name: tensor[place].clone() for name, tensor in learner.state.parameters().items()})
            states[-1] |= {name: tensor[place].clone() for name, tensor in learner.state.buffers.items()}
            states[-1] |= {name: tensor[place].clone() for name, tensor in learner.state.statistics().items()}
        for state in states[1:]:
            torch.testing.assert_close(state, states[0], rtol=1e-6, atol=1e-6)


class _Tasks(Stream):
    """Tasks as given."""

    class_labels = (0, 1, 2)

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks, self.task_count = tasks, len(tasks)
        self.input_shape = tuple(tasks[0].train.inputs.shape[1:])

    def task(self, index: int) -> Task:
        return self.tasks[index]


def _with_tasks(runs: Any, change: Callable[[int, Task], Task]) -> Any:
    """The same runs with every task changed: change(run, task)."""
    streams = [_Tasks([change(run, task) for task in stream]) for run, stream in enumerate(runs.streams)]
    return dataclasses.replace(runs, streams=streams)


def _part(examples: Examples, start: int, count: int) -> Examples:
    part = slice(start, start + count)
    return dataclasses.replace(examples, rows=examples.rows[part], labels=examples.labels[part])


@pytest.mark.usefixtures("double")
class TestTasksOfManyKinds:
    """A trainer is made for the first task; the second must not be seen as the first was."""

    def test_normalised_images(self, make_runs: Any, difference: Any) -> None:
        view = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25)}
        runs = make_runs("naive-sgd", "resnet", samples=30)
        change = lambda _, task: dataclasses.replace(task, view=dataclasses.replace(task.view, **view))  # noqa: E731
        _assert_same(_with_tasks(runs, change), difference)

    def test_tasks_normalised_each_in_its_own_way(self, make_runs: Any, difference: Any) -> None:
        def change(_: int, task: Task) -> Task:
            view = View(task.view.pixel_map, mean=(0.2 + 0.3 * task.index,), std=(0.3 + 0.4 * task.index,))
            return dataclasses.replace(task, view=view)

        _assert_same(_with_tasks(make_runs(), change), difference)

    def test_runs_normalised_each_in_its_own_way_are_learned_right_or_refused(
        self, make_runs: Any, difference: Any
    ) -> None:
        def change(run: int, task: Task) -> Task:
            return dataclasses.replace(task, view=View(task.view.pixel_map, mean=(0.2 * run,), std=(0.3 + run,)))

        try:
            _assert_same(_with_tasks(make_runs(), change), difference)
        except CannotStack:
            return

    def test_bytes_then_numbers(self, make_runs: Any, difference: Any) -> None:
        def change(_: int, task: Task) -> Task:
            if task.index == 0:
                return task
            return dataclasses.replace(task, train=numbers, test=dataclasses.replace(task.test, inputs=tested))

        runs = make_runs()
        second = runs.streams[0][1]
        numbers = dataclasses.replace(second.train, inputs=second.train.inputs / 255.0)
        tested = second.test.inputs / 255.0
        _assert_same(_with_tasks(runs, change), difference)

    @pytest.mark.parametrize("method", ["kcl", "naive-sgd"])
    @pytest.mark.parametrize(
        ("sizes", "ways"), [((30, 44, 30), (2, 3, 2)), ((30, 45, 31), (3, 3, 3)), ((30, 30, 30), (3, 2, 3))], ids=str
    )
    def test_other_sizes_and_other_numbers_of_classes(
        self, draw: Any, make_runs: Any, difference: Any, method: str, sizes: Any, ways: Any
    ) -> None:
        pairs = [
            (draw.normal(size, 1, 4, 4), torch.arange(size) % count + task)
            for task, (size, count) in enumerate(zip(sizes, ways, strict=True))
        ]
        runs = dataclasses.replace(make_runs(method), streams=[ArrayStream(pairs, pairs)] * 3)
        _assert_same(runs, difference, tasks=3)

    def test_rows_of_every_run_s_own(self, make_runs: Any, difference: Any) -> None:
        """As with `train_per_task`: other training rows in every run, and other test rows."""

        def change(run: int, task: Task) -> Task:
            train, test = _part(task.train, 3 * run, 45), _part(task.test, 3 * run, 30)
            return dataclasses.replace(task, train=train, test=test)

        _assert_same(_with_tasks(make_runs(), change), difference)


class TestState:
    def test_the_models_are_views_of_the_stack(self, make_runs: Any) -> None:
        """So whatever a method does to one run's model is done to the stack, and back."""
        learner = make_runs(net="resnet").stacked()
        stacked = learner.state.parameters() | learner.state.buffers | learner.state.statistics()
        for run, model in enumerate(learner.models):
            tensors = dict([*model.named_parameters(), *model.named_buffers()])
            assert tensors.keys() == stacked.keys()
            for name, tensor in tensors.items():
                assert tensor.data_ptr() == stacked[name][run].data_ptr()
                assert torch.equal(tensor, stacked[name][run])
        assert learner.state.flat.shape[1] % 64 == 0

    def test_frozen_parameters_stay_as_they_are(self, make_runs: Any, difference: Any) -> None:
        """A backbone whose first layer is not trained."""
        runs = make_runs()

        def frozen(make: Callable[[], Any]) -> Callable[[], Any]:
            def made() -> Any:
                backbone = make()
                backbone.layers[0].requires_grad_(False)
                return backbone

            return made

        backbones = [frozen(make) for make in runs.backbones()]
        parts = zip(runs.methods(), backbones, runs.seeds, strict=True)
        separate = ReferenceRuns([ReferenceRun(method, backbone, seed) for method, backbone, seed in parts])
        stacked = RunStack(runs.methods(), backbones, runs.seeds, "cpu")
        before = [model.backbone.layers[0].weight.clone() for model in stacked.models]
        separate.learn(runs.tasks(0), lambda _: None)
        stacked.learn(runs.tasks(0), lambda _: None)
        difference.assert_none(separate, stacked, 2e-5, [0])
        after = [model.backbone.layers[0].weight for model in stacked.models]
        assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))

    def test_a_rehearsal_goes_through_a_step_and_moves_nothing(self, make_runs: Any) -> None:
        runs = make_runs("naive-sgd", dropout=0.1)
        learner = runs.stacked()
        before = learner.state.flat.clone()
        learner.rehearse(runs.tasks(0))
        assert learner.state.moments[0].abs().max() > 0.0
        assert torch.equal(learner.state.flat, before)
        assert learner.kept == {}
        assert learner.method_state is None
        assert learner.diverged == [False] * 3

    def test_evaluation_changes_nothing(self, make_runs: Any, difference: Any) -> None:
        runs = make_runs(net="resnet", samples=32)
        learner = runs.stacked()
        learner.learn(runs.tasks(0), lambda _: None)
        before = difference.snapshot(learner)
        first = learner.accuracy(runs.tasks(0))
        assert learner.accuracy(runs.tasks(0)) == first
        torch.testing.assert_close(difference.snapshot(learner), before, rtol=0.0, atol=0.0)

    def test_evaluation_in_parts_is_the_same(self, make_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        runs = make_runs()
        learner = runs.stacked()
        learner.learn(runs.tasks(0), lambda _: None)
        whole = learner.accuracy(runs.tasks(0))
        for size in (1, 7, 40):
            monkeypatch.setattr(Evaluator, "_batch_size", lambda *_, size=size: size)
            assert learner.accuracy(runs.tasks(0)) == whole

    def test_a_classifier_is_solved_once_for_many_batches(
        self, make_runs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And what noise it asks for is found out once: both cost a pass of the coreset."""
        runs = make_runs("kcl", kernel="vrf")
        learner = runs.stacked()
        for index in range(2):
            learner.learn(runs.tasks(index), lambda _: None)
        solved, classifier = [], learner.method.classifier
        monkeypatch.setattr(
            learner.method,
            "classifier",
            lambda model, memory, noise: solved.append(1) or classifier(model, memory, noise),
        )
        monkeypatch.setattr(Evaluator, "_batch_size", lambda *_: 3)
        whole = learner.scores(runs.tasks(0))
        assert len(solved) == 2
        assert len(whole[0]) > 6
        learner.scores(runs.tasks(1))
        assert len(solved) == 3
        monkeypatch.setattr("kcl.training.evaluation.BATCHES", 1)
        for one, two in zip(learner.scores(runs.tasks(0)), whole, strict=True):
            assert torch.equal(one, two)
        assert len(solved) == 4

    def test_batches_on_a_gpu_have_few_sizes(self, make_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """A power of two by what is free, what PyTorch holds unused included, when the first task is tested."""
        runs = make_runs(bases=8)
        [task, *_] = runs.tasks(0)
        [group] = runs.stacked().test_groups
        each, sizes = 4 * 3 * (128 * task.test.inputs[0].numel() + 16 * 8), []
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 9 * each)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 8 * each)
        for fitting in (0, 1, 5, 7, 8, 15, 10_000):
            learner = runs.stacked()
            learner.device = torch.device("cuda")
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, fitting=fitting: ((fitting - 1) * each + 5, 0))
            sizes.append(learner._evaluator._batch_size(task, group))
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, 0))
            assert learner._evaluator._batch_size(task, group) == sizes[-1]
        assert sizes == [1, 1, 4, 4, 8, 8, len(task.test)]

    def test_tasks_to_test_on_must_be_of_one_size(self, make_runs: Any) -> None:
        runs = make_runs()
        learner = runs.stacked()
        learner.learn(runs.tasks(0), lambda _: None)
        tasks = runs.tasks(0)
        tasks[1] = dataclasses.replace(tasks[1], test=_part(tasks[1].test, 0, 39))
        with pytest.raises(KclError, match="same number in every run"):
            learner.accuracy(tasks)


class TestCannotStack:
    """Refused before a step is taken, so that the runs can be begun anew, one after another."""

    def _refused(self, runs: Any, words: str) -> None:
        learner = runs.stacked()
        before = learner.state.flat.clone()
        with pytest.raises(CannotStack, match=words):
            learner.learn(runs.tasks(0), lambda _: None)
        assert torch.equal(learner.state.flat, before) or runs.method == "kcl"  # kcl has begun its head anew
        with pytest.raises(CannotStack, match=words):
            runs.stacked().rehearse(runs.tasks(0))

    def test_classes_with_too_few_samples_in_one_run(self, make_runs: Any) -> None:
        """One run has two samples of a class left, so that its coreset is smaller."""

        def change(run: int, task: Task) -> Task:
            if run != 1:
                return dataclasses.replace(task, train=_part(task.train, 0, 42))
            few, many = (task.train.labels == 2).nonzero().flatten()[:2], (task.train.labels != 2).nonzero().flatten()
            left = torch.cat([few, many])
            train = dataclasses.replace(task.train, rows=task.train.rows[left], labels=task.train.labels[left])
            return dataclasses.replace(task, train=train)

        self._refused(_with_tasks(make_runs(), change), "memories of different shapes")

    @pytest.mark.parametrize("method", ["kcl", "naive-sgd"])
    def test_training_sets_of_different_sizes(self, make_runs: Any, method: str) -> None:
        def change(run: int, task: Task) -> Task:
            return dataclasses.replace(task, train=_part(task.train, 0, 50 - run))

        self._refused(_with_tasks(make_runs(method), change), "different sizes")

    @pytest.mark.parametrize("method", ["kcl", "naive-sgd"])
    def test_different_arrays(self, make_runs: Any, method: str) -> None:
        def change(run: int, task: Task) -> Task:
            copied = task.train.inputs.clone() if run == 2 else task.train.inputs
            return dataclasses.replace(task, train=dataclasses.replace(task.train, inputs=copied))

        self._refused(_with_tasks(make_runs(method), change), "different arrays")

    def test_different_numbers_of_classes(self, draw: Any, make_runs: Any) -> None:
        inputs = draw.normal(60, 1, 4, 4)
        streams = [ArrayStream([(inputs, torch.arange(60) % ways)]) for ways in (2, 3, 3)]
        self._refused(dataclasses.replace(make_runs(), streams=streams), "memories of different shapes")

    def test_different_arrays_to_test_on_are_refused_or_tested_right(self, make_runs: Any) -> None:
        """Otherwise every run would be tested on the first run's array."""

        def change(run: int, task: Task) -> Task:
            inputs = task.test.inputs.flip(0) if run == 1 else task.test.inputs
            return dataclasses.replace(task, test=dataclasses.replace(task.test, inputs=inputs))

        runs = _with_tasks(make_runs(kernel="rbf", dropout=0.0, epochs=3), change)
        stacked, separate = runs.stacked(), runs.separate()
        stacked.learn(runs.tasks(0), lambda _: None)
        separate.learn(runs.tasks(0), lambda _: None)
        try:
            measured = stacked.accuracy(runs.tasks(0))
        except CannotStack:
            return
        assert measured == separate.accuracy(runs.tasks(0))


class TestModulesOfTheUsersOwn:
    """Stacked where they can be vmapped, and right; refused before anything is changed where they cannot."""

    def _learners(self, runs: Any, *layers: Callable[[], nn.Module]) -> tuple[ReferenceRuns, RunStack]:
        def make() -> ModuleBackbone:
            return ModuleBackbone(nn.Sequential(nn.Flatten(), *(layer() for layer in layers)), (1, 4, 4))

        pairs = zip(runs.methods(), runs.seeds, strict=True)
        separate = ReferenceRuns([ReferenceRun(method, make, seed) for method, seed in pairs])
        return separate, RunStack(runs.methods(), [make] * len(runs.seeds), runs.seeds, "cpu")

    def test_a_plain_one_stacks(self, make_runs: Any, difference: Any, double: None) -> None:
        runs = make_runs()
        layers = [partial(nn.Linear, 16, 12), nn.Tanh, partial(nn.LayerNorm, 12), partial(nn.Linear, 12, 8)]
        separate, stacked = self._learners(runs, *layers)
        for index in range(2):
            separate.learn(runs.tasks(index), lambda _: None)
            stacked.learn(runs.tasks(index), lambda _: None)
            assert stacked.accuracy(runs.tasks(index)) == separate.accuracy(runs.tasks(index))
        difference.assert_none(separate, stacked, 1e-9, [0, 1])

    def test_one_with_batchnorm_is_learned_right_or_refused(
        self, make_runs: Any, difference: Any, double: None
    ) -> None:
        runs = make_runs(lr=0.01)
        separate, stacked = self._learners(runs, partial(nn.Linear, 16, 12), partial(nn.BatchNorm1d, 12), nn.ReLU)
        try:
            stacked.learn(runs.tasks(0), lambda _: None)
        except CannotStack:
            return
        separate.learn(runs.tasks(0), lambda _: None)
        difference.assert_none(separate, stacked, 1e-8, [0])

    @pytest.mark.parametrize("several", [True, False])
    def test_one_that_cannot_be_vmapped_is_refused(self, make_runs: Any, several: bool) -> None:
        """nn.Dropout draws from the global generator, which `ModuleBackbone` seeds with a number of the run's noise."""
        runs = make_runs() if several else make_runs()[[0]]
        _, stacked = self._learners(runs, partial(nn.Linear, 16, 8), partial(nn.Dropout, 0.2))
        with pytest.raises(CannotStack):
            stacked.learn(runs.tasks(0), lambda _: None)
