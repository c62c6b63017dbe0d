"""Tasks of different shapes: within one run, stacked or not, and between runs that are then not trained together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kcl.benchmarks.registry import BENCHMARKS, Benchmark
from kcl.benchmarks.split import SplitClasses
from kcl.core.devices import Compute
from kcl.data.dataset import Dataset
from kcl.experiments.admission import admit
from kcl.experiments.group_training import Experiment, remaining_groups, train_group
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunSpec
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import METHODS, select_settings
from kcl.nets.backbone import Backbone
from kcl.nets.mlp import MLP
from kcl.nets.resnet import ResNet18
from kcl.report import page, results_table
from kcl.report.groups import group_runs
from kcl.training.stack import RunStack
from kcl.training.stream_run import run_streams
from like_gpu import LikeGpu
from reference_run import ReferenceRun, ReferenceRuns

SMALL = KclSettings(bases=16, width=8, coreset_size_per_class=3, batch_size=10, dropout=0.2)
CLASSES = 18


def _images(per_class: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(CLASSES * per_class) % CLASSES
    random = torch.Generator().manual_seed(seed)
    centres = torch.rand(CLASSES, 3, 4, 4, generator=torch.Generator().manual_seed(9))
    noise = torch.rand(len(labels), 3, 4, 4, generator=random)
    return (200 * centres[labels] + 50 * noise).to(torch.uint8), labels


@pytest.fixture
def dataset() -> Dataset:
    names = tuple(map(str, range(CLASSES)))
    return Dataset("made up", *_images(9, 1), *_images(4, 2), names, (0.5, 0.5, 0.5), (0.3, 0.2, 0.1), "abc")


@pytest.fixture(autouse=True)
def _benchmark(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = Benchmark("for tests", lambda *_: dataset, SplitClasses, 20)
    monkeypatch.setitem(BENCHMARKS, "made-up", made_up)


BACKBONES: dict[str, Callable[[], Backbone]] = {
    "mlp": lambda: MLP((3, 4, 4), SMALL.width, SMALL.layers, SMALL.dropout),
    "resnet": lambda: ResNet18((4, 8), (1, 2), stem=3, dropout=SMALL.dropout),
}


@pytest.mark.parametrize("net", BACKBONES)
@pytest.mark.parametrize("method", ["kcl", "naive-sgd"])
@pytest.mark.parametrize("ways", [(2, 7), 3])
def test_stacked_runs_learn_tasks_of_different_shapes(
    dataset: Dataset, difference: Any, net: str, method: str, ways: Any, request: pytest.FixtureRequest
) -> None:
    """The same stream for both runs, whose seeds decide the rest: stacked they give what they give alone."""
    request.getfixturevalue("double")
    streams = [SplitClasses(dataset, seed=4, ways=ways, class_order="shuffled") for _ in range(2)]
    assert len({task.ways for task in streams[0]}) > 1 or ways == 3
    seeds = (3, 11)
    settings = select_settings(method, SMALL.to_dict() | {"lr": 0.01})  # BatchNorm over few samples needs small steps
    separate = ReferenceRuns([ReferenceRun(METHODS[method](settings, CLASSES), BACKBONES[net], seed) for seed in seeds])
    stacked = RunStack([METHODS[method](settings, CLASSES) for _ in seeds], [BACKBONES[net]] * 2, seeds, "cpu")
    expected, together = (run_streams(learner, streams) for learner in (separate, stacked))
    difference.assert_none(separate, stacked, 1e-9, range(len(streams[0])))
    for one, two in zip(expected, together, strict=True):
        assert one.matrix.to_lists() == two.matrix.to_lists()
        assert one.memory == two.memory


def _specs(seeds: Sequence[int] = range(4), **options: Any) -> list[RunSpec]:
    return [RunSpec("made-up", "kcl", seed, SMALL, **options) for seed in seeds]


def _execute(path: Path, specs: list[RunSpec]) -> tuple[list[dict[str, Any]], list[str]]:
    said: list[str] = []
    plan = admit(specs, LikeGpu(runs_at_once=9))
    experiment = Experiment(plan, Folder(path, False), say=said.append)
    for group in remaining_groups(experiment):
        train_group(experiment, group, lambda _: lambda _: None)
    return [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()], said


class TestExperiments:
    def test_seeds_with_other_ways_are_kept_apart_without_a_word(self, tmp_path: Path) -> None:
        records, said = _execute(tmp_path, _specs(ways=(2, 7)))
        assert said == []
        assert [record["runs_at_once"] for record in records] == [1] * 4
        assert all(record["ways"] == [2, 7] for record in records)
        assert len({record["tasks"] for record in records}) > 1
        assert all(len(record["accuracy_matrix"]) == record["tasks"] for record in records)

    def test_seeds_with_the_same_ways_are_together_whatever_the_order_of_classes(self, tmp_path: Path) -> None:
        records, said = _execute(tmp_path, _specs(ways=6, class_order="shuffled"))
        assert said == []
        assert [record["runs_at_once"] for record in records] == [4] * 4
        assert {(record["tasks"], record["ways"], record["class_order"]) for record in records} == {(3, 6, "shuffled")}

    def test_choices_of_the_benchmark_are_recorded_and_are_the_same_run_as_when_asked_for(self) -> None:
        explicit = _specs([0], tasks=3, ways=5, class_order="fixed")
        left = _specs([0], tasks=3)
        assert explicit[0].key != left[0].key
        assert admit(explicit, Compute()).specs == admit(left, Compute()).specs
        [spec] = admit(left, Compute()).specs
        assert (spec.ways, spec.class_order, spec.data, spec.image_size) == (5, "fixed", "abc", None)

    @pytest.mark.parametrize("options", [{"ways": 3}, {"ways": (3, 4)}, {"class_order": "shuffled"}, {"tasks": 1}])
    def test_other_choices_are_other_runs(self, options: dict[str, Any]) -> None:
        base: dict[str, Any] = {"ways": 6}
        one, two = (admit(_specs([0], **parameters), Compute()).specs[0] for parameters in (base, base | options))
        assert one.key != two.key

    def test_the_report_takes_seeds_of_one_range_together(self, tmp_path: Path) -> None:
        records, _ = _execute(tmp_path, _specs(ways=(2, 7)))
        [group] = group_runs(records)
        assert len(group.runs) == 4
        assert group.matrices().shape == (4, group.tasks, group.tasks)
        assert group.tasks == max(record["tasks"] for record in records)
        assert "made-up" in results_table.text(records)
        pytest.importorskip("matplotlib")
        assert "<html" in page.page(records, "varied ways")

    def test_the_report_tells_other_choices_apart(self, tmp_path: Path) -> None:
        records = [*_execute(tmp_path / "a", _specs(ways=6))[0], *_execute(tmp_path / "b", _specs(ways=3))[0]]
        assert [len(group.runs) for group in group_runs(records)] == [4, 4]
