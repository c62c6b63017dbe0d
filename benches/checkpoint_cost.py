"""What saving runs costs: the size of a checkpoint, the time one takes, and its share of a run as `kcl run` does it.

python benches/checkpoint_cost.py DATA_DIR
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kcl.benchmarks.registry import find_benchmark
from kcl.methods.recipes import find_method, published_backbone, published_settings
from kcl.training.checkpointer import Checkpointer, Every, numbered
from kcl.training.stack import RunStack
from kcl.training.stream_run import run_streams

WORKS = {"permuted-mnist": {"tasks": 5, "train_per_task": 5000}, "split-cifar100": {"tasks": 2, "train_per_task": 500}}
IDLE = 100_000


def learner(benchmark: str, streams: list[Any]) -> RunStack:
    settings, [stream] = published_settings(benchmark, "kcl"), streams
    method = find_method("kcl")(settings, len(stream.class_labels), sum(task.ways for task in stream))
    return RunStack([method], [partial(published_backbone, stream.input_shape, settings)], [0], plain=True)


def measure(benchmark: str, data_dir: Path) -> None:
    known = find_benchmark(benchmark)
    streams = [known.stream(known.load(data_dir, print), seed=0, **WORKS[benchmark])]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        often = Checkpointer(Path(folder) / "often", {}, Every(steps=100, seconds=None, thrifty=False))
        run_streams(learner(benchmark, streams), streams, checkpointer=often)
        size = numbered(Path(folder) / "often")[-1].stat().st_size
        usual = Checkpointer(Path(folder) / "usual")
        begun = time.perf_counter()
        [outcome] = run_streams(learner(benchmark, streams), streams, checkpointer=usual)
        took = time.perf_counter() - begun
    print(f"{benchmark} {WORKS[benchmark]}: {size / 1e6:.1f} MB and {1000 * often.seconds / often.saves:.0f} ms a save "
          f"({often.saves} saves); by default {usual.saves} saves in a run of {took:.1f} s, {usual.seconds:.3f} s, "
          f"{100 * usual.seconds / took:.2f} % of it; accuracy {outcome.matrix.average_accuracy:.2f} %")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", type=Path)
    torch.set_num_threads(1)
    data_dir = parser.parse_args().data_dir
    for benchmark in WORKS:
        measure(benchmark, data_dir)
    with tempfile.TemporaryDirectory() as folder:
        checkpointer, begun = Checkpointer(Path(folder)), time.perf_counter()
        for _ in range(IDLE):
            checkpointer.after_step(lambda: None)  # type: ignore[arg-type, return-value]
        print(f"between two steps, when nothing is due: {(time.perf_counter() - begun) / IDLE * 1e6:.2f} µs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
