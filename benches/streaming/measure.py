"""Streaming classifiers on identical frozen features: accuracy, unknown queries, seconds and bytes.

python benches/streaming/measure.py choose --features DIR [--images FILE]    settings, on validation data
python benches/streaming/measure.py run    --features DIR [--images FILE]    every stream, learned once per seed
python benches/streaming/measure.py tables --into docs/streaming.md

DIR has what `text_features.py` made, FILE what `image_features.py` made; without FILE its streams are left out. `run`
goes on where it was stopped. `--methods` and `--streams` choose some of them.

Streams: the classes of CLINC150, of Banking77 and of both together, one by one in a random order; CLINC150's 10
domains; CIFAR-100 by 5 classes, by 10 and one by one. An answer is right if it is the query's class among all classes:
no task is named. What the order of the samples does not change needs one stream of each data: the tables repeat it.

Settings are chosen once for texts and once for images: on CLINC150's validation queries together with a fifth of
Banking77's training samples, and on a fifth of CIFAR-100's, with which they are learned afterwards as well. While
settings are chosen, random features are `CHOICE_BASES` and training samples `CHOICE_SAMPLES`, for every method. Test
data are used by `run` alone.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import peers
from peers import Array
from sklearn.metrics import roc_auc_score

import kcl
from kcl.models.unknowns import SCORES

RESULTS = Path("results/streaming/measured.jsonl")
CHOSEN = Path("results/streaming/settings.json")
CHOICE_BASES, CHOICE_SAMPLES, CHOICE_QUERIES = 2048, 6000, 2000
OUR_BASES = 4096
HELD_OUT = 0.2
Settings = dict[str, Any]


# Data


@dataclass
class Data:
    """Features and labels 0 … c − 1."""

    name: str
    train: Array
    labels: Array
    test: Array
    test_labels: Array
    validation: tuple[Array, Array] | None = None
    domains: Array | None = None
    """The domain of each class."""
    unknown: dict[str, Array] = field(default_factory=dict)
    """Queries of no class."""

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1


def load_clinc(folder: Path) -> Data:
    with np.load(folder / "clinc150.npz", allow_pickle=False) as file:
        return Data(
            "clinc150",
            file["train_features"],
            file["train_labels"],
            file["test_features"],
            file["test_labels"],
            (file["val_features"], file["val_labels"]),
            file["domains"],
            {"validation": file["oos_val_features"], "test": file["oos_test_features"]},
        )


def load_banking(folder: Path) -> Data:
    with np.load(folder / "banking77.npz", allow_pickle=False) as file:
        return Data(
            "banking77", file["train_features"], file["train_labels"], file["test_features"], file["test_labels"]
        )


def load_both(folder: Path) -> Data:
    return together(load_clinc(folder), load_banking(folder))


def together(first: Data, second: Data) -> Data:
    return Data(
        "both",
        np.concatenate([first.train, second.train]),
        np.concatenate([first.labels, second.labels + first.classes]),
        np.concatenate([first.test, second.test]),
        np.concatenate([first.test_labels, second.test_labels + first.classes]),
    )


def load_images(path: Path) -> Data:
    with np.load(path, allow_pickle=False) as file:
        train, test = file["train_features"].astype(np.float32), file["test_features"].astype(np.float32)
        return Data("cifar100", train, file["train_labels"], test, file["test_labels"])


def split_for_choice(data: Data) -> Data:
    """What settings are chosen with: training samples as `train`, validation samples as `test`."""
    if data.validation is not None:
        return Data(data.name, data.train, data.labels, *data.validation)
    rng, held = np.random.default_rng(0), np.zeros(len(data.labels), bool)
    for label in range(data.classes):
        rows = rng.permutation(np.flatnonzero(data.labels == label))
        held[rows[: round(HELD_OUT * len(rows))]] = True
    return Data(data.name, data.train[~held], data.labels[~held], data.train[held], data.labels[held])


# Streams


@dataclass(frozen=True)
class Stream:
    """`classes_per_task`: zero for the data's domains."""

    data: str
    classes_per_task: int
    title: str

    def tasks(self, data: Data, seed: int) -> Iterator[Array]:
        """Rows of the training samples of one task after another, in a random order of classes or domains."""
        rng = np.random.default_rng([seed, 17])
        if self.classes_per_task:
            order = rng.permutation(data.classes)
            groups = np.split(order, range(self.classes_per_task, data.classes, self.classes_per_task))
        else:
            assert data.domains is not None
            domains = rng.permutation(int(data.domains.max()) + 1)
            groups = [np.flatnonzero(data.domains == domain) for domain in domains]
        for group in groups:
            yield rng.permutation(np.flatnonzero(np.isin(data.labels, group)))


KINDS = {"clinc150": "texts", "banking77": "texts", "both": "texts", "cifar100": "cifar100"}
"""What settings are chosen for."""
STREAMS = {
    "clinc150": Stream("clinc150", 1, "CLINC150, 150 × 1"),
    "clinc150-domains": Stream("clinc150", 0, "CLINC150, 10 × 15"),
    "banking77": Stream("banking77", 1, "Banking77, 77 × 1"),
    "both": Stream("both", 1, "both, 227 × 1"),
    "cifar100-20x5": Stream("cifar100", 5, "CIFAR-100, 20 × 5"),
    "cifar100-10x10": Stream("cifar100", 10, "CIFAR-100, 10 × 10"),
    "cifar100": Stream("cifar100", 1, "CIFAR-100, 100 × 1"),
}


# Methods


class Learner(Protocol):
    def learn(self, features: Array, labels: Array) -> None: ...
    def finish(self) -> None: ...
    def predict(self, features: Array) -> Array: ...
    @property
    def state_bytes(self) -> int: ...


class Ours:
    """`ContinualModel` with a streaming head; every portion is a task of its own."""

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        self.model = kcl.ContinualModel(seed=seed, head="streaming", standardise=False, **settings)

    def learn(self, features: Array, labels: Array) -> None:
        self.model.learn(features, labels, task=f"lesson {len(self.model.tasks)}")
        self.shape = features.shape[1:]

    def finish(self) -> None:
        self.model.predict(np.zeros((1, *self.shape), np.float32))

    def predict(self, features: Array) -> Array:
        return self.model.predict(features).label

    @property
    def state_bytes(self) -> int:
        """ψ and the sums of all tasks."""
        ridge = self.model.heads.ridge
        tensors = [*ridge.features.buffers.values()]
        for unit in ridge.units.values():
            tensors += [unit.cross, unit.sums, unit.squares, unit.moment.tensor]
        if ridge.moment is not None:
            tensors.append(ridge.moment.tensor)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def unknown_scores(self, features: Array) -> dict[str, Array]:
        return {score: self.model.known_scores(features, score).numpy() for score in SCORES}


@dataclass(frozen=True)
class Method:
    """`grid` lists the settings to choose from, with widths of peers as multiples of the median distance; `fixed` are
    the others. `choice` replaces some of the latter while settings are chosen.
    """

    title: str
    make: Callable[..., Learner]
    grid: Sequence[Settings]
    fixed: Settings = field(default_factory=dict)
    choice: Settings = field(default_factory=dict)
    seeds: int = 5
    order_free: bool = True
    """Whether the order of the samples changes nothing but rounding."""


def every(**values: Sequence[Any]) -> list[Settings]:
    """All combinations."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def ours(title: str, bases: int, seeds: int) -> Method:
    """Samples of unit length have distances of order one, so that these widths need no data."""
    grid = [*every(features=("rbf",), width=(0.7, 1.0, 1.4)), {"features": "relu"}]
    return Method(title, Ours, grid, {"bases": bases, "unit_length": True}, {"bases": CHOICE_BASES}, seeds)


def peer(name: str, grid: list[Settings], seeds: int = 5, title: str = "", **more: Any) -> Method:
    kind = peers.PEERS[name]
    seeds = seeds if kind.order_matters or kind.random else 1
    more = {"order_free": not kind.order_matters} | more
    return Method(title or kind.summary, kind, grid, seeds=seeds, **more)


EITHER = (False, True)
METHODS = {
    "kcl": ours("kcl, streaming head, D = 4,096", OUR_BASES, 5),
    "ncm": peer("ncm", every(unit_length=EITHER)),
    "slda": peer("slda", every(unit_length=EITHER)),
    "ranpac": peer("ranpac", every(unit_length=EITHER), 2, choice={"bases": CHOICE_BASES}, order_free=False),
    "ranpac-tuned": peer(
        "ranpac",
        every(unit_length=EITHER, strength=(1e-3, 1e-2, 1e-1)),
        2,
        "RanPAC, λ chosen on validation data",
        choice={"bases": CHOICE_BASES},
    ),
    "klda": peer(
        "klda",
        every(width=(0.5, 0.7, 1.0, 1.4), shrinkage=(1e-6, 1e-2, 1e-1, 1.0)),
        2,
        fixed={"unit_length": True},
        choice={"bases": CHOICE_BASES},
    ),
    "fecam": peer("fecam", every(diagonal=(1.0, 3.0, 10.0, 30.0), rest=(0.0, 1.0))),
    "gkeal": peer("gkeal", every(width=(0.7, 1.0, 2.0), strength=(1e-3, 1e-1)), 2, fixed={"unit_length": True}),
    "sgd": peer("sgd", every(alpha=(1e-5,)), 1, fixed={"unit_length": True}),
    "logistic": peer("logistic", every(penalty=(0.1, 0.03, 0.01)), fixed={"unit_length": True}),
    "kernel-machine": peer(
        "kernel-machine", every(width=(0.7, 1.0), strength=(0.03, 0.1, 0.3)), fixed={"unit_length": True}
    ),
}


def made(method: Method, settings: Settings, data: Data, seed: int) -> Learner:
    """A learner with these settings."""
    settings = dict(settings)
    if "width" in settings and method.make is not Ours:
        unit = settings.get("unit_length", False)
        settings["width"] *= peers.median_distance(peers.unit_length(data.train) if unit else data.train)
    if method.make is peers.SGD:
        settings["classes"] = data.classes
    return method.make(seed=seed, **settings)


# Choosing and measuring


def choose(name: str, split: Data) -> Settings:
    """The settings with the best accuracy on validation data, of `split_for_choice`, learned class by class."""
    method = METHODS[name]
    grid = method.grid
    if len(grid) == 1:
        return grid[0]
    split, rng = copy.copy(split), np.random.default_rng(0)
    rows = rng.permutation(len(split.labels))[:CHOICE_SAMPLES]
    split.train, split.labels = split.train[rows], split.labels[rows]
    queries = rng.permutation(len(split.test_labels))[:CHOICE_QUERIES]
    split.test, split.test_labels = split.test[queries], split.test_labels[queries]
    accuracies, learned = [], Learned()
    for settings in grid:
        learner, _ = learned.get(method, Stream(split.name, 1, ""), split, method.fixed | method.choice | settings, 0)
        accuracies.append(100.0 * float((learner.predict(split.test) == split.test_labels).mean()))
        print(f"{split.name} {name} {settings}: {accuracies[-1]:.2f}", flush=True)
    return grid[int(np.argmax(accuracies))]


class Learned:
    """The learner that was asked for last: where only settings differ that act when it is solved, it is solved anew."""

    def __init__(self) -> None:
        self.key: Any = None

    def get(self, method: Method, stream: Stream, data: Data, settings: Settings, seed: int) -> tuple[Learner, float]:
        """A learner that has learned a stream, and the seconds that took."""
        at_solution = getattr(method.make, "solved_with", ())
        key = method.make, stream, seed, {name: settings[name] for name in settings if name not in at_solution}
        if key != self.key:
            self.learner, self.key = made(method, settings, data, seed), key
            started = time.perf_counter()
            for task in stream.tasks(data, seed):
                self.learner.learn(data.train[task], data.labels[task])
            self.seconds = time.perf_counter() - started
        elif at_solution:
            assert isinstance(self.learner, peers.Peer)
            self.learner.solve_with(**{name: settings[name] for name in at_solution if name in settings})
        return self.learner, self.seconds


def measure(
    name: str, stream: Stream, data: Data, settings: Settings, seed: int, learned: Learned | None = None
) -> dict[str, Any]:
    method = METHODS[name]
    learner, seconds = (learned or Learned()).get(method, stream, data, method.fixed | settings, seed)
    started = time.perf_counter()
    learner.finish()
    solved = time.perf_counter()
    answers = learner.predict(data.test)
    answered = time.perf_counter()
    return {
        "accuracy": 100.0 * float((answers == data.test_labels).mean()),
        "learn_seconds": seconds + solved - started,
        "answer_seconds": answered - solved,
        "bytes": learner.state_bytes,
        "unknown_auroc": unknown_auroc(learner, data) if data.unknown else {},
    }


def unknown_auroc(learner: Learner, data: Data) -> dict[str, float]:
    """The area under the ROC curve of telling test queries from those of no class, by each score."""
    known, unknown = unknown_scores(learner, data.test), unknown_scores(learner, data.unknown["test"])
    truth = np.repeat([1, 0], [len(data.test), len(data.unknown["test"])])
    return {score: float(roc_auc_score(truth, np.concatenate([known[score], unknown[score]]))) for score in known}


def unknown_scores(learner: Learner, features: Array) -> dict[str, Array]:
    """Higher means known."""
    if isinstance(learner, Ours):
        return learner.unknown_scores(features)
    assert isinstance(learner, peers.Peer)
    scores = {"highest score": learner.scores(features).max(1)}
    if isinstance(learner, peers.SLDA):
        scores["Mahalanobis distance"] = -learner.distances(features).min(1)
    return scores


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def same_run(row: dict[str, Any], stream: str, method: str, seed: int, settings: Settings) -> bool:
    return (row["stream"], row["method"], row["seed"], row["settings"]) == (stream, method, seed, settings)


def command_line() -> str:
    return " ".join(["python", *sys.argv])


# Tables


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """Accuracy, unknown queries and cost, in Markdown. Of several rows with other settings the last ones count."""
    latest = {(row["stream"], row["method"], row["seed"]): row for row in rows}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (stream, method, _), row in latest.items():
        groups.setdefault((stream, method), []).append(row)
    streams = [name for name in STREAMS if any(stream == name for stream, _ in groups)]
    methods = [name for name in METHODS if any(method == name for _, method in groups)]
    for stream, method in itertools.product(streams, methods):
        same = STREAMS[stream].data, method  # the stream of single classes is named after its data
        if METHODS[method].order_free and same in groups:
            groups.setdefault((stream, method), groups[same])
    parts = [
        accuracy_table(groups, streams, methods),
        unknown_table(groups, methods),
        cost_table(groups, streams, methods),
    ]
    return "\n\n".join(part for part in parts if part)


Groups = dict[tuple[str, str], list[dict[str, Any]]]


def accuracy_table(groups: Groups, streams: Sequence[str], methods: Sequence[str]) -> str:
    lines = [
        "| method | seeds | " + " | ".join(STREAMS[name].title for name in streams) + " | mean |",
        "| --- | ---: |" + " ---: |" * (len(streams) + 1),
    ]
    for method in methods:
        cells, means = [], []
        for stream in streams:
            rows = groups.get((stream, method), [])
            cells.append(mean_and_deviation([row["accuracy"] for row in rows]))
            means += [statistics.fmean(row["accuracy"] for row in rows)] if rows else []
        seeds = max(len(groups.get((stream, method), [])) for stream in streams)
        mean = f"{statistics.fmean(means):.2f}" if len(means) == len(streams) else "–"
        lines.append(f"| {METHODS[method].title} | {seeds} | {' | '.join(cells)} | {mean} |")
    return "\n".join(lines)


def unknown_table(groups: Groups, methods: Sequence[str]) -> str:
    lines = ["| out-of-scope queries of CLINC150: method | by | AUROC |", "| --- | --- | ---: |"]
    for method in methods:
        rows = groups.get(("clinc150", method), [])
        for score in rows[0]["unknown_auroc"] if rows else ():
            values = [row["unknown_auroc"][score] for row in rows]
            lines.append(f"| {METHODS[method].title} | {score} | {mean_and_deviation(values, 4)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def cost_table(groups: Groups, streams: Sequence[str], methods: Sequence[str]) -> str:
    lines = [
        "| method | " + " | ".join(f"{STREAMS[name].title}: seconds to learn, MB" for name in streams) + " |",
        "| --- |" + " ---: |" * len(streams),
    ]
    for method in methods:
        cells = []
        for stream in streams:
            rows = groups.get((stream, method), [])
            seconds = f"{statistics.median(row['learn_seconds'] for row in rows):.1f}" if rows else "–"
            cells.append(f"{seconds}, {rows[0]['bytes'] / 1e6:,.1f}" if rows else "–")
        lines.append(f"| {METHODS[method].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def mean_and_deviation(values: Sequence[float], digits: int = 2) -> str:
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def put_between_markers(text: str, content: str, name: str = "streaming") -> str:
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"the file needs the lines {begin} and {end}")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def replace_file(path: Path, content: str) -> None:
    """Written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(content, encoding="utf-8")
    draft.replace(path)


# Commands


def load(arguments: argparse.Namespace) -> dict[str, Data]:
    wanted = {STREAMS[name].data for name in arguments.streams}
    loaders = {"clinc150": load_clinc, "banking77": load_banking, "both": load_both}
    data = {name: loader(arguments.features) for name, loader in loaders.items() if name in wanted}
    if "cifar100" in wanted:
        if arguments.images is not None and arguments.images.exists():
            data["cifar100"] = load_images(arguments.images)
        else:
            print("CIFAR-100 is left out: its features are not there (see image_features.py)")
    return data


def choose_all(arguments: argparse.Namespace) -> None:
    chosen = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
    splits = {name: split_for_choice(data) for name, data in load(arguments).items() if name != "both"}
    if {"clinc150", "banking77"} <= splits.keys():
        splits["texts"] = together(splits["clinc150"], splits["banking77"])
    for kind in KINDS.values() & splits.keys():
        for name in arguments.methods:
            if name not in chosen.setdefault(kind, {}) or arguments.again:
                chosen[kind][name] = choose(name, splits[kind])
                replace_file(CHOSEN, json.dumps(chosen, indent=2) + "\n")


def run_all(arguments: argparse.Namespace) -> None:
    chosen = json.loads(CHOSEN.read_text(encoding="utf-8"))
    data = load(arguments)
    done, learned = rows_of(RESULTS), Learned()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(arguments.seeds):
        for stream_name, name in itertools.product(arguments.streams, arguments.methods):
            stream = STREAMS[stream_name]
            if stream.data not in data or seed >= METHODS[name].seeds:
                continue
            settings = METHODS[name].fixed | chosen[KINDS[stream.data]][name]
            same = [row for row in done if same_run(row, stream_name, name, seed, settings)]
            if same and not arguments.again:
                continue
            done = [row for row in done if row not in same]
            row = {"stream": stream_name, "method": name, "seed": seed, "settings": settings}
            row |= measure(name, stream, data[stream.data], settings, seed, learned)
            row |= {"command": command_line(), "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))}
            done.append(row)
            replace_file(RESULTS, "".join(json.dumps(each) + "\n" for each in done))
            print(
                f"{stream_name} {name} seed {seed}: {row['accuracy']:.2f} in {row['learn_seconds']:.1f} s", flush=True
            )


def write_tables(arguments: argparse.Namespace) -> None:
    content = tables(rows_of(RESULTS))
    if arguments.into is None:
        print(content)
    else:
        replace_file(arguments.into, put_between_markers(arguments.into.read_text(encoding="utf-8"), content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, command in (("choose", choose_all), ("run", run_all)):
        options = commands.add_parser(name)
        options.set_defaults(command=command)
        options.add_argument("--features", type=Path, required=True)
        options.add_argument("--images", type=Path)
        options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
        options.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
        options.add_argument("--seeds", type=int, default=5, help="at most; slow and deterministic methods have fewer")
        options.add_argument("--again", action="store_true", help="also what was chosen or measured before")
    options = commands.add_parser("tables")
    options.set_defaults(command=write_tables)
    options.add_argument("--into", type=Path)
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
