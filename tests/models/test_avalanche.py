"""KCL through Avalanche: the same numbers as without it, its metrics, our streams as its benchmarks, wrong uses.

With pytest these are skipped where Avalanche cannot be imported. `python tests/models/test_avalanche.py` needs no
pytest: it prints a line per check and exits with 1 if any fails.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

try:
    import pytest
except ImportError:
    pytest = None

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from avalanche.benchmarks import benchmark_from_datasets, task_incremental_benchmark
        from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
        from avalanche.evaluation.metrics import accuracy_metrics, bwt_metrics, forgetting_metrics, loss_metrics
        from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin

        from kcl.models.avalanche import KernelContinualStrategy, as_benchmark
except ImportError as missing:
    if pytest is None or __name__ == "__main__":
        raise
    pytest.skip(f"Avalanche cannot be imported here: {missing}", allow_module_level=True)

if pytest is not None:
    # What Avalanche and its own dependencies warn of is none of these tests' business.
    pytestmark = pytest.mark.filterwarnings("default")

    @pytest.fixture(autouse=True)
    def _avalanche_draws_from_the_global_generator() -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            yield


import kcl
from kcl import ArrayStream, KclError, KernelContinualLearner
from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.benchmarks.split import SplitClasses
from kcl.benchmarks.task import Stream
from kcl.data.dataset import Dataset
from kcl.data.digits import DIGITS

SETTINGS: dict[str, Any] = {"bases": 64, "width": 32, "layers": 1, "coreset_size_per_class": 4, "lr": 0.05}


def _data() -> Dataset:
    """Six classes of 4 × 4 images, each bright in a place of its own."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(360) % 6
    images = torch.randint(0, 120, (360, 1, 4, 4), generator=random, dtype=torch.int64)
    images[torch.arange(360), 0, labels // 4, labels % 4] += 90
    images = images.to(torch.uint8)
    return Dataset("made up", images[:240], labels[:240], images[240:], labels[240:], tuple("abcdef"))


def _streams() -> dict[str, Stream]:
    data = _data()
    inputs = [data.train_inputs[data.train_labels // 2 == pair].float() / 255 for pair in range(3)]
    labels = [data.train_labels[data.train_labels // 2 == pair] for pair in range(3)]
    pairs = list(zip(inputs, labels, strict=True))
    return {
        "permuted": PermutedPixels(data, 3, 7),
        "split": SplitClasses(data, seed=0, ways=2),
        "arrays": ArrayStream(pairs, pairs),
    }


def _evaluator() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is logged
        metrics = (accuracy_metrics(experience=True, stream=True), loss_metrics(experience=True))
        return EvaluationPlugin(*metrics, forgetting_metrics(experience=True, stream=True), bwt_metrics(stream=True))


def _strategy(stream: Stream, **changes: Any) -> Any:
    given = {"settings": SETTINGS, "seed": 3, "evaluator": _evaluator(), **changes}
    return KernelContinualStrategy(input_shape=stream.input_shape, class_count=len(stream.class_labels), **given)


def _of(metrics: dict[str, Any], name: str, experience: int) -> float:
    [value] = [
        own for key, own in metrics.items() if key.startswith(f"{name}/") and key.endswith(f"Exp{experience:03d}")
    ]
    return float(value)


@contextlib.contextmanager
def _refused(words: str) -> Iterator[None]:
    message = "no error was raised"
    try:
        yield
    except KclError as error:
        message = str(error)
    assert words in message, message
    assert "\n" not in message, message


def _equals_our_own_learner(name: str) -> None:
    stream = _streams()[name]
    benchmark, strategy = as_benchmark(stream), _strategy(stream)
    learner = KernelContinualLearner(stream, seed=3, **SETTINGS)
    best: list[float] = []
    for task, experience in zip(stream, benchmark.train_stream, strict=True):
        strategy.train(experience)
        learner.learn(task)
        metrics = strategy.eval(benchmark.test_stream)
        for known in range(task.index + 1):
            ours = learner.accuracy(stream[known]) / 100.0
            assert abs(_of(metrics, "Top1_Acc_Exp", known) - ours) < 1e-6
            if known == task.index:
                best.append(ours)
            else:
                assert abs(_of(metrics, "ExperienceForgetting", known) - (best[known] - ours)) < 1e-6
    for mine, theirs in zip(strategy.model.parameters(), learner.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    forgotten = [_of(metrics, "ExperienceForgetting", known) for known in range(len(stream) - 1)]
    [mean] = [value for key, value in metrics.items() if key.startswith("StreamForgetting/")]
    assert abs(mean - sum(forgotten) / len(forgotten)) < 1e-6
    assert any(key.startswith("StreamBWT/") for key in metrics)
    assert min(best) > 0.5


def test_permuted_pixels_give_what_our_own_learner_gives() -> None:
    _equals_our_own_learner("permuted")


def test_split_classes_give_what_our_own_learner_gives() -> None:
    _equals_our_own_learner("split")


def test_own_arrays_give_what_our_own_learner_gives() -> None:
    _equals_our_own_learner("arrays")


def test_an_avalanche_benchmark_of_other_task_labels_and_a_module_of_the_user_s() -> None:
    """A backbone with BatchNorm and dropout of PyTorch's own; the class labels of a task need not be neighbours."""
    data = _data()
    datasets = []
    for classes in ((0, 3), (1, 5), (2, 4)):
        rows = [row for row, label in enumerate(data.train_labels.tolist()) if label in classes]
        pairs = [(data.train_inputs[row].float() / 255, int(data.train_labels[row])) for row in rows]
        targets = DataAttribute([label for _, label in pairs], "targets")
        datasets.append(AvalancheDataset([pairs], data_attributes=[targets]))
    benchmark = task_incremental_benchmark(benchmark_from_datasets(train=datasets, test=datasets))
    body = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(16, 24), torch.nn.BatchNorm1d(24), torch.nn.ReLU(), torch.nn.Dropout(0.1)
    )
    strategy = _strategy(_streams()["split"], backbone=body, eval_every=0)
    order = [2, 0, 1]
    for number in order:
        strategy.train(benchmark.train_stream[number], [benchmark.test_stream])
    assert strategy.task_indices == {2: 0, 0: 1, 1: 2}
    metrics = strategy.eval(benchmark.test_stream)
    assert min(_of(metrics, "Top1_Acc_Exp", number) for number in order) > 0.6
    steps = 3 * ((80 - 2 * SETTINGS["coreset_size_per_class"]) // 10 + 1)
    assert strategy.clock.train_iterations == steps


def test_a_task_that_was_not_learned_yet_is_answered_with_equal_scores() -> None:
    stream = _streams()["split"]
    benchmark, strategy = as_benchmark(stream), _strategy(stream)
    strategy.train(benchmark.train_stream[0])
    metrics = strategy.eval(benchmark.test_stream)
    loss = _of(metrics, "Loss_Exp", 2)
    assert abs(loss - float(torch.tensor(6.0).log())) < 1e-5
    assert _of(metrics, "Top1_Acc_Exp", 2) == 0.0


def test_streams_as_benchmarks() -> None:
    for name, stream in _streams().items():
        benchmark = as_benchmark(stream)
        assert len(benchmark.train_stream) == len(benchmark.test_stream) == len(stream) == 3, name
        for task, train, test in zip(stream, benchmark.train_stream, benchmark.test_stream, strict=True):
            assert train.current_experience == train.task_label == test.task_label == task.index
            assert train.task_labels == [task.index]
            assert set(train.classes_in_this_experience) == set(task.classes)
            for experience, examples in ((train, task.train), (test, task.test)):
                assert len(experience.dataset) == len(examples)
                place = len(examples) // 2
                inputs, target, label = experience.dataset[place]
                row = examples.inputs[examples.rows[place : place + 1]]
                assert torch.equal(inputs, task.view(row)[0])
                assert target == task.classes[int(examples.labels[place])]
                assert label == task.index


class _Looks(SupervisedPlugin):
    def after_backward(self, strategy: Any, *arguments: Any, **options: Any) -> None:
        """Never called."""


class _Waits(SupervisedPlugin):
    seen = 0

    def after_training_exp(self, strategy: Any, *arguments: Any, **options: Any) -> None:
        self.seen += 1


def test_wrong_uses_are_told_in_one_sentence() -> None:
    stream = _streams()["split"]
    benchmark = as_benchmark(stream)
    with _refused("(after_backward)"):
        _strategy(stream, plugins=[_Looks()])
    with _refused("a plugin changed the training samples"):
        _strategy(stream, plugins=[ReplayPlugin(mem_size=10)]).train(benchmark.train_stream)
    with _refused("eval_every=2"):
        _strategy(stream, eval_every=2)
    with _refused("unknown setting"):
        _strategy(stream, settings={"base": 3})
    strategy = _strategy(stream)
    strategy.train(benchmark.train_stream[0])
    with _refused("has the task label 0, which was learned before"):
        strategy.train(benchmark.train_stream[0])
    with _refused("samples have shape (1, 4, 4), but input_shape is (1, 5, 5)"):
        KernelContinualStrategy(input_shape=(1, 5, 5), class_count=6, evaluator=_evaluator()).train(
            benchmark.train_stream[0]
        )
    with _refused("class_count is 3"):
        KernelContinualStrategy(input_shape=(1, 4, 4), class_count=3, evaluator=_evaluator()).train(
            benchmark.train_stream[2]
        )
    bare = AvalancheDataset([[("no", 0), ("tensor", 1)]], data_attributes=[DataAttribute([0, 1], "targets")])
    with _refused("no task labels"):
        strategy.train(benchmark_from_datasets(train=[bare]).train_stream[0])
    with _refused("give the benchmark a transform"):
        strategy.train(task_incremental_benchmark(benchmark_from_datasets(train=[bare, bare])).train_stream[1])
    plugin = _Waits()
    _strategy(stream, plugins=[plugin]).train(benchmark.train_stream)
    assert plugin.seen == 3


def test_the_code_on_the_pages() -> None:
    """With scikit-learn's digits in place of MNIST, which Avalanche and kcl would fetch."""
    docs, found = Path(__file__).parents[2] / "docs", 0
    for page in (docs / "inference.md", docs / "tutorials" / "8-inside-other-tools.md"):
        for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            smaller = code.replace("kcl.PermutedMNIST(tasks=5)", "kcl.PermutedDigits(tasks=2, train_per_task=300)")
            smaller = smaller.replace("= SplitMNIST(5, return_task_id=True)", "= split_digits")
            smaller = smaller.replace("(1, 28, 28)", "(1, 8, 8)")
            assert smaller != code
            names: dict[str, Any] = {
                "kcl": kcl,
                "split_digits": as_benchmark(kcl.SplitClasses(DIGITS.load(None), ways=2)),
            }
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(smaller, page.name, "exec"), names)
            assert "Top1_Acc_Stream" in printed.getvalue()
            found += 1
    assert found == 2


def main() -> int:
    checks = {name: check for name, check in globals().items() if name.startswith("test_")}
    failed = 0
    for name, check in checks.items():
        try:
            check()
            print("passed", name, flush=True)
        except Exception:
            traceback.print_exc()
            print("FAILED", name, flush=True)
            failed += 1
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
