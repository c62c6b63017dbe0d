"""The registry of benchmarks: entries are complete, and a stream that belongs to a benchmark is in it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import kcl
from kcl.benchmarks.registry import BENCHMARKS, STREAM_ARGUMENTS, Benchmark, find_benchmark
from kcl.benchmarks.task import Stream
from kcl.data.dataset import Dataset
from kcl.errors import KclError


def _streams(kind: type = Stream) -> list[type]:
    return [each for child in kind.__subclasses__() for each in (child, *_streams(child))]


def test_every_stream_of_a_benchmark_is_registered() -> None:
    recipes = {stream.recipe for stream in _streams() if stream.__module__.startswith("kcl.") and stream.recipe}
    assert recipes <= set(BENCHMARKS)
    assert {getattr(kcl, name).recipe for name in kcl.__all__ if name.startswith(("Permuted", "Rotated"))} <= recipes


def test_an_entry_with_a_part_missing_cannot_be_made() -> None:
    parts: dict[str, Any] = {"description": "", "load": lambda *_: None, "stream": lambda **_: None, "tasks": 20}
    for missing in parts:
        with pytest.raises(TypeError, match=missing):
            Benchmark(**{name: part for name, part in parts.items() if name != missing})


def test_choices_are_those_of_the_loader_and_the_stream() -> None:
    def load(data_dir: Path | None, say: Any, *, image_size: int = 9) -> Dataset:
        raise NotImplementedError

    def stream(dataset: Dataset, tasks: int, seed: int, train_per_task: int, angle: float = 1.0) -> Stream:
        raise NotImplementedError

    benchmark = Benchmark("", load, stream, 20)
    assert benchmark.stream_choices == ("angle",)
    assert benchmark.load_choices == {"image_size": 9}
    assert find_benchmark("split-folder").load_choices == {"image_size": 84}
    assert find_benchmark("split-cifar100").stream_choices == ("ways", "class_order")
    assert find_benchmark("permuted-mnist").stream_choices == ()
    with pytest.raises(KclError, match=r"--ways does not apply to permuted-mnist; .*split-cifar100"):
        find_benchmark("permuted-mnist").check_choices("permuted-mnist", ["ways"])


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_stream_takes_what_all_streams_take(name: str) -> None:
    assert set(STREAM_ARGUMENTS) <= set(inspect.signature(BENCHMARKS[name].stream).parameters)
