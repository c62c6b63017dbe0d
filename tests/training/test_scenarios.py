"""Tests without a task: over all classes seen so far, or over the classes that tasks share; one training for all."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kcl.benchmarks.task import Task
from kcl.core.devices import Compute
from kcl.core.randomness import numpy_generator
from kcl.errors import KclError
from kcl.experiments.admission import admit
from kcl.experiments.run_spec import RunSpec
from kcl.functional import class_ridge
from kcl.methods import class_heads
from kcl.methods.kcl_settings import CLASS_HEADS
from kcl.methods.method import Method
from kcl.methods.recipes import METHODS, published_settings
from kcl.training.checkpointer import Checkpointer, Every
from kcl.training.evaluation import as_seen
from kcl.training.stack import RunStack
from kcl.training.state import memory_of
from kcl.training.stopping import Interrupted, Stop
from kcl.training.stream_run import Outcome, run_streams
from one_run import OneRun

ENGINES = ("plain", "stacked")
TRAINED = [name for name, method in METHODS.items() if method.trains]


def _run(runs: Any, run: int = 0) -> OneRun:
    """One of the runs, after its first two tasks."""
    single = runs[[run]]
    learner = OneRun(single.methods()[0], single.backbones()[0], single.seeds[0])
    for index in range(min(2, single.training_count)):
        learner.learn(single.training_tasks(index)[0])
    return learner


def _test_inputs(task: Task) -> Tensor:
    return task.view(task.test.inputs[task.test.rows])


class TestAnswers:
    @pytest.mark.parametrize("method", ["naive-sgd", "er-reservoir", "multi-task"])
    def test_a_linear_head_compares_its_outputs_of_all_classes(self, make_runs: Any, method: str) -> None:
        runs = make_runs(method, split=True, tasks=3, scenario="class")
        learner, stream = _run(runs), runs.streams[0]
        learned = [stream[index] for index in learner.kept]
        classes = list(itertools.chain.from_iterable(task.classes for task in learned))
        for task in learned:
            expected = learner.model.output(learner.model.backbone(_test_inputs(task)))[:, classes]
            assert torch.allclose(learner.scores(task), expected, atol=1e-6)
            right = expected.argmax(1) == torch.tensor([classes.index(task.classes[i]) for i in task.test.labels])
            assert learner.accuracy(task) == pytest.approx(100.0 * float(right.double().mean()))

    @pytest.mark.parametrize("features", ["linear", "relu"])
    def test_kcl_solves_one_ridge_regression_on_all_coresets(self, make_runs: Any, features: str) -> None:
        runs = make_runs("kcl", split=True, tasks=3, scenario="class", class_features=features, class_bases=50)
        learner, stream = _run(runs), runs.streams[0]

        @torch.no_grad()
        def features_of(inputs: Tensor) -> Tensor:
            x = learner.method.features(learner.model, inputs).double()
            if features == "linear":
                return torch.nn.functional.pad(x, (0, 1), value=1.0)
            rng = numpy_generator(learner.seed, "classes of all tasks")
            frequencies = torch.from_numpy(rng.standard_normal((50, x.shape[1])))
            return (2.0 / 50) ** 0.5 * (x @ frequencies.mT).relu()

        memories = [as_seen({n: t[None] for n, t in kept.memory.items()}, kept.view) for kept in learner.kept.values()]
        parts = [memory_of(0, memory) for memory in memories]
        anchors = features_of(torch.cat([part["inputs"] for part in parts]))
        labels = torch.cat([part["targets"].argmax(1) + 2 * place for place, part in enumerate(parts)])
        solved = class_ridge.solve(anchors, labels, 4)
        for task in (stream[0], stream[1]):
            expected = features_of(_test_inputs(task)) @ solved.weights
            assert torch.allclose(learner.scores(task).double(), expected, atol=1e-4)

    @pytest.mark.parametrize("head", CLASS_HEADS)
    def test_every_head_learns(self, make_runs: Any, head: str) -> None:
        runs = make_runs("kcl", split=True, tasks=2, samples=150, scenario="class", class_head=head, epochs=3)
        learner = _run(runs)
        assert sum(learner.accuracy(task) for task in runs.streams[0]) / 2 > 50.0

    @pytest.mark.parametrize("head", CLASS_HEADS)
    def test_views_vote(self, make_runs: Any, head: str) -> None:
        """Scores of a query do not depend on its mirror image being shown in its place."""
        runs = make_runs(
            "kcl", "resnet", split=True, samples=28, scenario="class", class_head=head, test_views="flip",
            rotation_labels=True, shared_metric=0.5,
        )  # fmt: skip
        learner, method = _run(runs), runs[[0]].methods()[0]
        task = runs.streams[0][1]
        scores = learner.scores(task)
        assert scores.shape == (len(task.test), 4)
        [head_of_all] = [memory_of(0, union.heads) for union in learner.stack._evaluator._unions.values()]
        mirrored = method.answer(learner.model, head_of_all, _test_inputs(task).flip(-1), of_all=True)
        assert torch.allclose(scores, mirrored, atol=1e-4)

    def test_streaming_sums_all_tasks_up(self, make_runs: Any) -> None:
        """As one task that has all of their samples and classes."""
        runs = make_runs("streaming-ridge", split=True, tasks=2, bases=40, scenario="class")
        learner, stream = _run(runs), runs.streams[0]
        whole, counts = [], []
        for task in stream:
            whole.append(learner.model(task.view.scale(task.moved(torch.arange(len(task.train))))))
            counts.append(task.train.labels + 2 * task.index)
        targets = torch.nn.functional.one_hot(torch.cat(counts), 4).double()
        features = torch.cat(whole)
        query = learner.model(_test_inputs(stream[0]))
        scores = learner.scores(stream[0])
        gram, identity = features.mT @ features, torch.eye(40, dtype=torch.float64)
        scale = gram.trace() / len(features)
        strengths = scale * 10.0 ** torch.linspace(-8, 4, 200, dtype=torch.float64)
        solutions = (torch.linalg.solve(gram + strength * identity, features.mT @ targets) for strength in strengths)
        found = [query @ solution for solution in solutions]
        assert min(float((each - scores).abs().max()) for each in found) < 0.02

    @torch.no_grad()
    def test_domain_takes_equal_classes_for_one(self, make_runs: Any) -> None:
        learner = _run(make_runs("kcl", scenario="domain"))
        assert learner.stack._evaluator._union(learner.stack.test_groups[0]).owners.tolist() == [[0, 0, 0]]

    @pytest.mark.parametrize("head", CLASS_HEADS)
    def test_samples_whose_features_are_not_finite_leave_the_others_their_answers(
        self, make_runs: Any, head: str
    ) -> None:
        method = make_runs("kcl", split=True, scenario="class", class_head=head).methods()[0]
        random = torch.Generator().manual_seed(0)
        x = torch.randn(40, 6, generator=random) + 3.0 * torch.eye(4, 6).repeat(10, 1)
        labels = torch.arange(4).repeat(10)
        spoiled = torch.cat([x, torch.full((1, 6), torch.nan), torch.full((1, 6), torch.inf)])
        rng = numpy_generator(0, "classes")
        fitted = class_heads.fit(method.settings, spoiled, torch.cat([labels, labels[:2]]), 4, 1, rng)
        found = class_heads.scores(method.settings, fitted.tensors(), x).argmax(1)
        assert float((found == labels).double().mean()) > 0.9

    def test_a_task_that_was_not_learned_is_not_tested(self, make_runs: Any) -> None:
        runs = make_runs("naive-sgd", split=True, tasks=3, scenario="class")
        assert _run(runs).accuracy(runs.streams[0][2]) != _run(runs).accuracy(runs.streams[0][2])  # not a number

    def test_a_method_that_cannot_says_so(self, make_runs: Any) -> None:
        runs = make_runs("naive-sgd", split=True, scenario="class")
        method = runs.methods()[0]
        with pytest.raises(KclError, match="--scenario task"):
            Method.united(method, [], [])


def _outcomes(runs: Any, engine: str, changes: list[dict[str, Any]]) -> list[Outcome]:
    """Of every training, one run for each change, all sharing its training."""
    variants = [
        [
            METHODS[runs.method](settings.replace(**change), len(stream.class_labels), sum(t.ways for t in stream))
            for change in changes
        ]
        for settings, stream in zip(runs.settings, runs.streams, strict=True)
    ]
    streams = [stream for stream in runs.streams for _ in changes]
    firsts = [several[0] for several in variants]
    learner = RunStack(firsts, runs.backbones(), runs.seeds, variants=variants, plain=engine == "plain")
    return run_streams(learner, streams)


class TestStreams:
    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("method", ["kcl", "naive-sgd", "multi-task", "streaming-ridge"])
    def test_the_same_training_and_the_same_answers_with_the_task(
        self, make_runs: Any, method: str, engine: str
    ) -> None:
        runs = make_runs(method, split=True, tasks=3)
        runs = runs if engine == "stacked" else runs[[0]]
        alone = _outcomes(runs, engine, [{}])
        both = _outcomes(runs, engine, [{}, {"scenario": "class"}])
        for expected, named, free in zip(alone, both[::2], both[1::2], strict=True):
            assert named.matrix.to_lists() == expected.matrix.to_lists()
            assert named.initial_accuracy == expected.initial_accuracy
            assert named.fingerprint == free.fingerprint == expected.fingerprint
            assert (named.task_confusion, free.initial_accuracy) == (None, None)
            assert free.matrix.summary()["average_accuracy"] <= 100.0

    def test_the_confusion_of_tasks(self, make_runs: Any) -> None:
        runs = make_runs("kcl", split=True, tasks=3)
        for outcome, stream in zip(_outcomes(runs, "stacked", [{"scenario": "class"}]), runs.streams, strict=True):
            assert outcome.task_confusion is not None
            assert [sum(row) for row in outcome.task_confusion] == [len(task.test) for task in stream]
            for index, row in enumerate(outcome.task_confusion):
                assert row[index] / sum(row) >= outcome.matrix.values[-1, index] / 100.0  # right class: right task

    def test_stacked_runs_answer_as_alone(self, make_runs: Any) -> None:
        runs = make_runs("kcl", split=True, tasks=3)
        changes = [{"scenario": "class"}, {"scenario": "class", "class_head": "shared-covariance"}]
        together = _outcomes(runs, "stacked", changes)
        for place in range(3):
            for mine, other in zip(
                together[2 * place : 2 * place + 2], _outcomes(runs[[place]], "stacked", changes), strict=True
            ):
                assert mine.matrix.values == pytest.approx(other.matrix.values, abs=5.0, nan_ok=True)  # two samples

    def test_resumed(self, make_runs: Any, tmp_path: Path) -> None:
        runs = make_runs("naive-sgd", split=True, tasks=3, scenario="class")[[0]]
        expected = run_streams(runs.plain(), runs.streams)
        stop = Stop()

        def interrupt(progress: Any) -> None:
            if progress.step is None and progress.task == 1:
                stop.signal = 15

        with pytest.raises(Interrupted):
            run_streams(runs.plain(), runs.streams, interrupt, Checkpointer(tmp_path, {}, Every(steps=1), stop))
        resumed = run_streams(runs.plain(), runs.streams, checkpointer=Checkpointer(tmp_path, {}, Every()))
        assert resumed[0].resumed == 1
        assert resumed[0].matrix.to_lists() == expected[0].matrix.to_lists()
        assert resumed[0].task_confusion == expected[0].task_confusion


@pytest.mark.parametrize(
    ("benchmark", "scenario", "words"),
    [("permuted-digits", "class", "use --scenario domain"), ("split-digits", "domain", "use --scenario class")],
)
def test_scenarios_that_do_not_fit_the_stream(benchmark: str, scenario: str, words: str) -> None:
    pytest.importorskip("sklearn")
    settings = published_settings(benchmark, "kcl").replace(scenario=scenario)
    with pytest.raises(KclError, match=words):
        admit([RunSpec(benchmark, "kcl", 0, settings, tasks=2)], Compute("cpu"))
