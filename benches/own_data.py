"""kcl's defaults on data that a person would bring, beside what they would take instead.

KCL_DATA=DIR python benches/own_data.py run [--half development]    learn the streams, and keep one line per run
python benches/own_data.py cost [--tasks 1000]                       what the thousandth task costs beside the tenth
python benches/own_data.py table [--into docs/own-data.md]           the tables of all lines
python benches/own_data.py list                                      streams, scenarios and halves

Nothing is tuned and every lesson is passed once, in the same order, by all. Lines of the same run replace older ones.
river and wordllama are needed by some streams and models, which are left out, and named, where they are not installed.
Seconds are CPU seconds of one thread, so that others on the machine matter little.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import own_data_cost
from kcl.core.files import write_whole
from own_data_models import MODELS, Learner, Model, PerTask
from own_data_sources import Missing, Task
from own_data_streams import HALVES, STREAMS, Stream
from own_data_table import KEY, replace_sections, sections

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "own-data" / "measured.jsonl"
COST, COST_KEY = "cost.jsonl", ("model", "tasks", "seed")
DISTRIBUTIONS = {"kcl": "kernel-continual-learning"}

Row = dict[str, Any]


def learn_stream(stream: Stream, seed: int, models: Sequence[str], with_size: bool) -> Iterator[Row]:
    """One row per model, variant and scenario."""
    tasks = stream.tasks(seed)
    classes = np.unique(np.concatenate([task.train_y for task in tasks]))
    for name in models:
        model = MODELS[name]
        if not model.takes(tasks):
            continue
        for variant, scenarios in variants(model, stream.scenarios):
            identity = {"stream": stream.name, "half": stream.half, "model": name, "variant": variant, "seed": seed}
            for scenario, measured in attempt(model, tasks, classes, seed, variant, scenarios, with_size):
                yield identity | {"scenario": scenario} | measured | {"versions": versions(model.packages)}


def variants(model: Model, scenarios: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The ways in which a model is used, each with the scenarios that it answers."""
    if model.role == "kcl":
        ways = [("named", [name for name in scenarios if name != "domain"]),
                ("unnamed", [name for name in scenarios if name == "domain"])]  # fmt: skip
    else:
        ways = [("shared", list(scenarios)), ("per task", [name for name in scenarios if name == "task"])]
    return [(variant, answered) for variant, answered in ways if answered]


def attempt(
    model: Model,
    tasks: Sequence[Task],
    classes: np.ndarray,
    seed: int,
    variant: str,
    scenarios: Sequence[str],
    with_size: bool,
) -> list[tuple[str, Row]]:
    """What was measured in each scenario; a model that raises is right about nothing."""
    measured: list[tuple[str, Row]] = []
    try:
        learner = PerTask(lambda own: model.make(own, seed)) if variant == "per task" else model.make(classes, seed)
        named = variant in ("named", "per task")
        seconds = [timed(learner.learn, task.train_x, task.train_y, task.name if named else None) for task in tasks]
        learned = {"tasks": len(tasks), "learn_seconds": round(float(np.mean(seconds)), 5)}
        for scenario in scenarios:
            # A model that cannot be told the task answers the same in every scenario.
            repeated = variant == "shared" and measured
            answered = measured[0][1] if repeated else answer(learner, tasks, named and scenario == "task")
            measured.append((scenario, learned | answered | {"diverged": learner.diverged()}))
        if with_size:
            size = {"bytes": learner.size()}
            measured = [(scenario, row | size) for scenario, row in measured]
    except ImportError:
        raise
    except Exception as error:  # whatever goes wrong on a person's data is a result
        failed = {"tasks": len(tasks), "accuracy": 0.0, "error": f"{type(error).__name__}: {error}"[:300]}
        done = [scenario for scenario, _ in measured]
        measured += [(scenario, failed) for scenario in scenarios if scenario not in done]
    return measured


def answer(learner: Learner, tasks: Sequence[Task], named: bool) -> Row:
    """Percent correct per task, and its mean. The first answer after a lesson may have to solve or fit something."""
    names = [task.name if named else None for task in tasks]
    first = [timed(learner.predict, task.test_x[:1], name) for task, name in zip(tasks, names, strict=True)]
    accuracies, seconds = [], 0.0
    for task, name in zip(tasks, names, strict=True):
        begun = time.process_time()
        predicted = learner.predict(task.test_x, name)
        seconds += time.process_time() - begun
        accuracies.append(100.0 * float(np.mean(predicted == task.test_y)))
    return {
        "accuracy": round(float(np.mean(accuracies)), 3),
        "task_accuracies": [round(value, 2) for value in accuracies],
        "first_answer_seconds": round(max(first), 5),
        "answer_seconds": round(seconds / sum(len(task.test_y) for task in tasks), 8),
    }


def timed(call: Any, *arguments: Any) -> float:
    begun = time.process_time()
    call(*arguments)
    return time.process_time() - begun


def versions(packages: Sequence[str]) -> dict[str, str]:
    found = {name: importlib.metadata.version(DISTRIBUTIONS.get(name, name)) for name in packages}
    return found | {"python": platform.python_version()}


def run(options: argparse.Namespace) -> None:
    models = [name for name in options.models or MODELS if installed(MODELS[name].packages)]
    chosen = [STREAMS[name] for name in options.streams or STREAMS]
    for stream in (stream for stream in chosen if options.half in (stream.half, "both")):
        begun, rows = time.process_time(), list[Row]()
        try:
            for seed in range(options.seeds):
                rows += learn_stream(stream, seed, models, with_size=seed == 0)
        except Missing as reason:
            print(f"{stream.name}: left out: {reason}")
            continue
        keep(options.out, rows)
        print(f"{stream.name}: {len(rows)} lines, {time.process_time() - begun:.0f} s", flush=True)


def installed(packages: Sequence[str]) -> bool:
    try:
        versions(packages)
    except importlib.metadata.PackageNotFoundError as error:
        print(f"models of {error.name} are left out: it is not installed")
        return False
    return True


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def keep(path: Path, rows: Sequence[Row], key: Sequence[str] = KEY) -> None:
    """Add rows to a file; they replace those of the same runs."""
    by_key = {tuple(row[name] for name in key): row for row in [*read_rows(path), *rows]}
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for _, row in sorted(by_key.items())]
    write_whole(path, ("\n".join(lines) + "\n").encode())


def cost(options: argparse.Namespace) -> None:
    """The lines of one model after the other, kept as soon as they are measured."""
    tasks = own_data_cost.embeddings(0, options.tasks)
    for name, variant in own_data_cost.LEARNERS.items():
        if name in (options.models or MODELS):
            for row in own_data_cost.measure(name, variant, tasks, own_data_cost.LESSONS, 0):
                keep(options.out.with_name(COST), [row | {"versions": versions(MODELS[name].packages)}], COST_KEY)
                print(json.dumps(row), flush=True)


def table(options: argparse.Namespace) -> None:
    rows = [row for row in read_rows(options.out) if options.half in (row["half"], "both")]
    made = sections(rows, read_rows(options.out.with_name(COST)))
    if options.into is None:
        print("\n\n".join(made.values()))
    else:
        write_whole(options.into, replace_sections(options.into.read_text(encoding="utf-8"), made).encode())


def show_streams() -> None:
    for stream in STREAMS.values():
        print(f"{stream.name:20} {stream.half:12} {', '.join(stream.scenarios):20} {stream.about}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "cost", "table", "list"))
    parser.add_argument("--half", choices=(*HALVES, "both"), default="both")
    parser.add_argument("--streams", nargs="*", choices=tuple(STREAMS), metavar="STREAM")
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), metavar="MODEL")
    parser.add_argument("--seeds", type=int, default=5, metavar="COUNT")
    parser.add_argument("--tasks", type=int, default=1000, metavar="COUNT")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--into", type=Path, metavar="PAGE")
    options = parser.parse_args(arguments)
    if options.what == "list":
        show_streams()
    elif options.what == "table":
        table(options)
    else:
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.set_num_threads(1)
            (cost if options.what == "cost" else run)(options)


if __name__ == "__main__":
    main()
