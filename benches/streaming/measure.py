"""Streaming classifiers on identical frozen features: accuracy, unknown queries, seconds and bytes.

python benches/streaming/measure.py choose --features DIR [--images FILE]    settings, on validation data
python benches/streaming/measure.py run    --features DIR [--images FILE]    every stream, learned once per seed
python benches/streaming/measure.py all    --features DIR [--images FILE]    both, one after the other
python benches/streaming/measure.py tables --into docs/streaming.md

DIR has what `text_features.py` made, FILE what `image_features.py` made; without FILE its streams are left out. `run`
goes on where it was stopped. `--methods` and `--streams` choose some of them.

Streams: the classes of CLINC150, of Banking77 and of both together, one by one in a random order; CLINC150's 10
domains; CIFAR-100 by 5 classes, by 10 and one by one. An answer is right if it is the query's class among all classes:
no task is named. What the order of the samples does not change needs one stream of each data: the tables repeat it.

Settings are chosen once for texts and once for images: on CLINC150's validation queries together with a fifth of
Banking77's training samples, and on a fifth of CIFAR-100's, with which they are learned afterwards as well. What was
seen while choosing is kept too (`choices.jsonl`). Test data are used by `run` alone. All of it takes minutes on a GPU
and a day on a CPU; `--bases 64` tries it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import peers
import torch
from peers import Array

import kcl
from kcl.core.devices import choose_device, device_name
from kcl.models.lessons import places_among_all
from kcl.models.unknowns import SCORES

FOLDER = Path("results/streaming")
RESULTS, CHOSEN, CHOICES = "measured.jsonl", "settings.json", "choices.jsonl"
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
    known: Array = field(default_factory=lambda: np.zeros(0))
    """Of validation data, those that unknown queries are to be told from."""

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1


def load_clinc(folder: Path) -> Data:
    with np.load(folder / "clinc150.npz", allow_pickle=False) as file:
        train, test, validation, *unknown = (
            file[f"{part}_features"].astype(np.float32) for part in ("train", "test", "val", "oos_val", "oos_test")
        )
        return Data(
            "clinc150",
            train,
            file["train_labels"],
            test,
            file["test_labels"],
            (validation, file["val_labels"]),
            file["domains"],
            dict(zip(("validation", "test"), unknown, strict=True)),
        )


def load_banking(folder: Path) -> Data:
    with np.load(folder / "banking77.npz", allow_pickle=False) as file:
        train, test = (file[f"{part}_features"].astype(np.float32) for part in ("train", "test"))
        return Data("banking77", train, file["train_labels"], test, file["test_labels"])


def load_both(folder: Path) -> Data:
    return together(load_clinc(folder), load_banking(folder))


def together(first: Data, second: Data) -> Data:
    return Data(
        "both",
        np.concatenate([first.train, second.train]),
        np.concatenate([first.labels, second.labels + first.classes]),
        np.concatenate([first.test, second.test]),
        np.concatenate([first.test_labels, second.test_labels + first.classes]),
        unknown=first.unknown,
        known=first.known,
    )


def load_images(paths: Sequence[Path]) -> Data:
    """Of one file, or of parts of it in their order, each with some rows of some arrays."""
    arrays: dict[str, list[Array]] = {}
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                arrays.setdefault(name, []).append(file[name])
    names = ("train_features", "train_labels", "test_features", "test_labels")
    train, labels, test, test_labels = (np.concatenate(arrays[name]) for name in names)
    return Data("cifar100", train.astype(np.float32), labels, test.astype(np.float32), test_labels)


def split_for_choice(data: Data) -> Data:
    """What settings are chosen with: training samples as `train`, validation samples as `test`."""
    if data.validation is not None:
        queries, labels = data.validation
        return Data(data.name, data.train, data.labels, queries, labels, unknown=data.unknown, known=queries)
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
    def solve_with(self, **settings: Any) -> None: ...
    def predict(self, features: Array) -> Array: ...
    @property
    def state_bytes(self) -> int: ...


class Ours:
    """`ContinualModel` with a streaming head. All portions are one task, to which classes are added: its sums are what
    the peers keep. Where portions are tasks of their own, the classifier among all classes is the same.
    """

    solved_with = ("strength_rule", "ridge_strength")

    def __init__(self, seed: int = 0, device: str = "cpu", **settings: Any) -> None:
        self.model = kcl.ContinualModel(seed=seed, device=device, head="streaming", standardise=False, **settings)

    def learn(self, features: Array, labels: Array) -> None:
        self.model.learn(features, labels, task="stream")
        self.shape = features.shape[1:]

    def finish(self) -> None:
        self.model.logits(np.zeros((1, *self.shape), np.float32))

    def solve_with(self, strength_rule: str = "evidence", ridge_strength: float = 0.0) -> None:
        ridge = self.model.heads.ridge
        ridge.settings = ridge.settings.replace(strength_rule=strength_rule, ridge_strength=ridge_strength)
        ridge.install(ridge.units, ridge.moment)

    def predict(self, features: Array) -> Array:
        return self.model.predict(features).label

    @property
    def state_bytes(self) -> int:
        """ψ and the sums."""
        ridge = self.model.heads.ridge
        tensors = [*ridge.features.buffers.values()]
        for unit in ridge.units.values():
            tensors += [unit.cross, unit.sums, unit.squares, unit.moment.tensor]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def unknown_scores(self, features: Array) -> dict[str, Array]:
        scores = {score: self.model.known_scores(features, score) for score in SCORES}
        scores |= {score: of(self.model, features) for score, of in TRIED.items()}
        return {score: values.cpu().double().numpy() for score, values in scores.items()}

    @property
    def solution(self) -> dict[str, float]:
        """λ relative to the mean of ‖ψ‖², as it was chosen."""
        solution = self.model.heads.ridge.solution(places_among_all(self.model.tasks))
        return {"strength": solution.strength / solution.spectrum.scale}


@dataclass(frozen=True)
class Method:
    """`grid` lists the settings to choose from, with widths of peers as multiples of the median distance; `fixed` are
    the others.
    """

    title: str
    make: Callable[..., Learner]
    grid: Sequence[Settings]
    fixed: Settings = field(default_factory=dict)
    seeds: int = 3
    order_free: bool = True
    """Whether the order of the samples changes nothing but rounding."""


def every(**values: Sequence[Any]) -> list[Settings]:
    """All combinations."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


OUR_MAPS = [{"features": "orthogonal-relu"}, *every(features=("rbf",), width=(0.7, 1.0, 1.4))]
"""Samples of unit length have distances of order one, so that these widths need no data."""
BY_SUMS: list[Settings] = [{"strength_rule": "evidence"}, {"strength_rule": "gcv"}]
STRENGTHS = (0.01, 0.03, 0.1, 0.3)


def ours(title: str, bases: int, strengths: Sequence[Settings]) -> Method:
    grid = [chosen | strength for chosen, strength in itertools.product(OUR_MAPS, strengths)]
    return Method(title, Ours, grid, {"bases": bases, "unit_length": True})


def peer(name: str, grid: list[Settings], title: str = "", order_free: bool | None = None, **fixed: Any) -> Method:
    kind = (peers.PEERS | peers.OTHERS)[name]
    order_free = not kind.order_matters if order_free is None else order_free
    seeds = 3 if kind.order_matters or kind.random else 1
    return Method(title or kind.summary, kind, grid, fixed, seeds, order_free)


EITHER = (False, True)
RANPAC_TUNED = every(unit_length=EITHER, strength=STRENGTHS)
METHODS = {
    "kcl": ours("kcl, streaming head, D = 10,000, λ by itself", 10_000, BY_SUMS),
    "kcl-tuned": ours("the same, λ chosen on validation data", 10_000, every(ridge_strength=STRENGTHS)),
    "kcl-4096": ours("kcl, streaming head, D = 4,096, λ by itself", 4096, BY_SUMS[:1]),
    "ncm": peer("ncm", every(unit_length=EITHER)),
    "slda": peer("slda", every(unit_length=EITHER, shrinkage=(1e-4, 1e-3, 1e-2, 1e-1))),
    "ranpac": peer("ranpac", every(unit_length=EITHER), order_free=False),
    "ranpac-tuned": peer("ranpac", RANPAC_TUNED, "RanPAC, λ chosen on validation data"),
    "klda": peer("klda", every(width=(0.5, 0.7, 1.0, 1.4), shrinkage=(1e-6, 1e-2, 1e-1, 1.0)), unit_length=True),
    "fecam": peer("fecam", every(diagonal=(1.0, 10.0, 100.0), rest=(0.0, 1.0))),
    "gkeal": peer("gkeal", every(width=(0.7, 1.0, 2.0), strength=(1e-3, 1e-1)), unit_length=True),
    "sgd": peer("sgd", [{"alpha": 1e-5}], unit_length=True),
    "river": peer("river", every(unit_length=EITHER)),
    "logistic": peer("logistic", every(penalty=(0.3, 0.1, 0.03, 0.01)), unit_length=True),
    "kernel-machine": peer(
        "kernel-machine", every(width=(0.5, 0.7, 1.0), strength=(0.03, 0.1, 0.3, 1.0)), unit_length=True
    ),
    "kcl-20000": ours("kcl, streaming head, D = 20,000, λ by itself", 20_000, BY_SUMS[:1]),
    "ranpac-20000": peer("ranpac", RANPAC_TUNED, "RanPAC, 20,000 features, λ likewise", bases=20_000),
}
"""Those at the end take longest."""
TRIED = {
    "highest probability": lambda model, x: model.logits(x).softmax(1).amax(1),
    "energy": lambda model, x: model.logits(x).logsumexp(1),
}
"""How well a query is known, beside the scores of the library."""


def made(method: Method, settings: Settings, data: Data, seed: int, device: str) -> Learner:
    """A learner with these settings."""
    settings = dict(settings)
    if "width" in settings and method.make is not Ours:
        settings["width"] *= peers.median_distance(data.train, settings.get("unit_length", False))
    if method.make is peers.SGD:
        settings["classes"] = data.classes
    return method.make(seed=seed, device=device, **settings)


# Choosing and measuring


def choose(name: str, split: Data, device: str = "cpu", bases: int = 0) -> tuple[Settings, list[dict[str, Any]]]:
    """The settings with the best accuracy on validation data, of `split_for_choice`, learned class by class; and what
    was seen of all.
    """
    method, learned, seen = METHODS[name], Learned(), []
    for settings in method.grid:
        if len(method.grid) == 1:
            return settings, []
        whole = changed(method.fixed | settings, method, bases)
        learner, seconds = learned.get(method, Stream(split.name, 1, ""), split, whole, 0, device)
        accuracy = 100.0 * float((learner.predict(split.test) == split.test_labels).mean())
        row = {"data": split.name, "method": name, "settings": whole, "accuracy": accuracy, "seconds": seconds}
        if split.unknown:
            row["unknown_auroc"] = unknown_auroc(learner, split.known, split.unknown["validation"])
        if isinstance(learner, Ours):
            row |= learner.solution
        seen.append(row)
        print(json.dumps(row), flush=True)
    return method.grid[int(np.argmax([row["accuracy"] for row in seen]))], seen


def changed(settings: Settings, method: Method, bases: int) -> Settings:
    """`bases`: instead of the method's own number of random features, to try the bench."""
    named = {Ours: "bases", peers.RanPAC: "bases", peers.KLDA: "bases", peers.GKEAL: "landmarks"}.get(method.make)  # type: ignore[call-overload]
    return settings | {named: bases} if bases and named else settings


class Learned:
    """The learner that was asked for last: where only settings differ that act when it is solved, it is solved anew."""

    def __init__(self) -> None:
        self.key: Any = None

    def get(
        self, method: Method, stream: Stream, data: Data, settings: Settings, seed: int, device: str = "cpu"
    ) -> tuple[Learner, float]:
        """A learner that has learned a stream, and the seconds that took."""
        at_solution = getattr(method.make, "solved_with", ())
        key = method.make, stream, seed, {name: settings[name] for name in settings if name not in at_solution}
        if key != self.key:
            self.learner, self.key = None, None  # frees its memory
            learner = made(method, settings, data, seed, device)
            started = clock(device)
            for task in stream.tasks(data, seed):
                learner.learn(data.train[task], data.labels[task])
            self.learner, self.key, self.seconds = learner, key, clock(device) - started
        elif at_solution:
            chosen = {name: settings[name] for name in at_solution if name in settings}
            if "width" in chosen:
                chosen["width"] *= peers.median_distance(data.train, settings.get("unit_length", False))
            self.learner.solve_with(**chosen)
        return self.learner, self.seconds


def clock(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(
    name: str,
    stream: Stream,
    data: Data,
    settings: Settings,
    seed: int,
    learned: Learned | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    method = METHODS[name]
    learner, seconds = (learned or Learned()).get(method, stream, data, method.fixed | settings, seed, device)
    started = clock(device)
    learner.finish()
    solved = clock(device)
    answers = learner.predict(data.test)
    answered = clock(device)
    row = {
        "accuracy": 100.0 * float((answers == data.test_labels).mean()),
        "learn_seconds": seconds,
        "solve_seconds": solved - started,
        "answer_seconds": answered - solved,
        "bytes": learner.state_bytes,
        "unknown_auroc": unknown_auroc(learner, data.test, data.unknown["test"]) if data.unknown else {},
    }
    return row | learner.solution if isinstance(learner, Ours) else row


def unknown_auroc(learner: Learner, known: Array, unknown: Array) -> dict[str, float]:
    """The area under the ROC curve of telling known queries from those of no class, by each score."""
    of_known, of_unknown = unknown_scores(learner, known), unknown_scores(learner, unknown)
    return {score: area_under_curve(of_known[score], of_unknown[score]) for score in of_known}


def area_under_curve(above: Array, below: Array) -> float:
    """How often a score of the first is higher than one of the second; where they are equal it counts half."""
    ordered = np.sort(below)
    less, up_to = (np.searchsorted(ordered, above, side=side) for side in ("left", "right"))
    return float((less + up_to).mean() / (2 * len(below)))


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
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def same_run(row: dict[str, Any], stream: str, method: str, seed: int, settings: Settings) -> bool:
    return (row["stream"], row["method"], row["seed"], row["settings"]) == (stream, method, seed, settings)


def command_line() -> str:
    """As a reader would give it: files and folders of this machine by their names alone."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return " ".join(["python", f"benches/streaming/{Path(sys.argv[0]).name}", *words])


# Tables


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """Accuracy, unknown queries and cost, in Markdown. Of several rows of one run the last one counts; scores of
    unknown queries that an earlier one with the same settings had besides are kept.
    """
    latest: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in rows:
        key = row["stream"], row["method"], row["seed"]
        old = latest.get(key)
        if old is not None and old["settings"] == row["settings"]:
            row = row | {"unknown_auroc": old["unknown_auroc"] | row["unknown_auroc"]}
        latest[key] = row
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
            values = [row["unknown_auroc"][score] for row in rows if score in row["unknown_auroc"]]
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
            taken = [row["learn_seconds"] + row.get("solve_seconds", 0.0) for row in rows]
            seconds = f"{statistics.median(taken):.1f}" if rows else "–"
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


def load(arguments: argparse.Namespace, for_choice: bool = False) -> dict[str, Data]:
    """`for_choice`: settings for texts are chosen on both."""
    wanted = {STREAMS[name].data for name in arguments.streams}
    if for_choice and "texts" in {KINDS[name] for name in wanted}:
        wanted = wanted | {"clinc150", "banking77"}
    loaders = {"clinc150": load_clinc, "banking77": load_banking, "both": load_both}
    data = {name: loader(arguments.features) for name, loader in loaders.items() if name in wanted}
    if "cifar100" in wanted:
        if arguments.images and all(path.exists() for path in arguments.images):
            data["cifar100"] = load_images(arguments.images)
        else:
            print("CIFAR-100 is left out: its features are not there (see image_features.py)")
    return data


def installed(arguments: argparse.Namespace) -> list[str]:
    """Methods whose packages are there."""
    missing = [name for name in arguments.methods if not peers.installed(name)]
    if missing:
        print(f"left out, because their packages are not installed: {', '.join(missing)}")
    return [name for name in arguments.methods if name not in missing]


def choose_all(arguments: argparse.Namespace) -> None:
    path = arguments.results / CHOSEN
    chosen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    splits = {name: split_for_choice(data) for name, data in load(arguments, True).items() if name != "both"}
    if {"clinc150", "banking77"} <= splits.keys():
        splits["texts"] = together(splits["clinc150"], splits["banking77"])
    for kind in [kind for kind in dict.fromkeys(KINDS.values()) if kind in splits]:
        for name in installed(arguments):
            if time.monotonic() > arguments.end or (name in chosen.setdefault(kind, {}) and not arguments.again):
                continue
            try:
                chosen[kind][name], seen = choose(name, splits[kind], arguments.device, arguments.bases)
            except RuntimeError:  # one that fails on this machine does not end the others
                print(f"{kind} {name} failed", traceback.format_exc(), sep="\n", flush=True)
                continue
            replace_file(path, json.dumps(chosen, indent=2) + "\n")
            append(arguments.results / CHOICES, [row | about(arguments) for row in seen])


def run_all(arguments: argparse.Namespace) -> None:
    chosen = json.loads((arguments.results / CHOSEN).read_text(encoding="utf-8"))
    data, methods = load(arguments), installed(arguments)
    path = arguments.results / RESULTS
    done, learned = rows_of(path), Learned()
    for seed, stream_name, name in itertools.product(range(arguments.seeds), arguments.streams, methods):
        stream, method = STREAMS[stream_name], METHODS[name]
        if stream.data not in data or seed >= method.seeds or name not in chosen.get(KINDS[stream.data], {}):
            continue
        if method.order_free and stream_name != stream.data:  # the tables repeat it
            continue
        settings = changed(method.fixed | chosen[KINDS[stream.data]][name], method, arguments.bases)
        same = [row for row in done if same_run(row, stream_name, name, seed, settings)]
        if (same and not arguments.again) or time.monotonic() > arguments.end:
            continue
        try:
            row = measure(name, stream, data[stream.data], settings, seed, learned, arguments.device)
        except RuntimeError:
            print(f"{stream_name} {name} seed {seed} failed", traceback.format_exc(), sep="\n", flush=True)
            learned = Learned()
            continue
        row = {"stream": stream_name, "method": name, "seed": seed, "settings": settings} | row | about(arguments)
        done = [row for row in done if row not in same] + [row]
        append(path, [row])
        seconds = row["learn_seconds"] + row["solve_seconds"]
        print(f"{stream_name} {name} seed {seed}: {row['accuracy']:.2f} in {seconds:.1f} s", flush=True)


def choose_and_run(arguments: argparse.Namespace) -> None:
    choose_all(arguments)
    run_all(arguments)


def about(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a row says about how it was made."""
    device = torch.device(arguments.device)
    return {"command": command_line(), "machine": device_name(device), "threads": torch.get_num_threads()}


def append(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A row that was cut short is not read (`rows_of`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_tables(arguments: argparse.Namespace) -> None:
    content = tables(rows_of(arguments.results / RESULTS))
    if arguments.into is None:
        print(content)
    else:
        replace_file(arguments.into, put_between_markers(arguments.into.read_text(encoding="utf-8"), content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, command in (("choose", choose_all), ("run", run_all), ("all", choose_and_run)):
        options = commands.add_parser(name)
        options.set_defaults(command=command)
        options.add_argument("--features", type=Path, required=True)
        options.add_argument("--images", type=Path, nargs="+", help="the file, or its parts")
        options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
        options.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
        options.add_argument("--seeds", type=int, default=3, help="at most; deterministic methods have one")
        options.add_argument("--device", default="auto", help="auto: a GPU if there is one")
        options.add_argument("--again", action="store_true", help="also what was chosen or measured before")
        options.add_argument("--bases", type=int, default=0, help="random features of all methods, to try the bench")
        options.add_argument("--minutes", type=float, default=math.inf, help="begin nothing new after so many")
        options.add_argument("--results", type=Path, default=FOLDER)
    options = commands.add_parser("tables")
    options.set_defaults(command=write_tables)
    options.add_argument("--results", type=Path, default=FOLDER)
    options.add_argument("--into", type=Path)
    arguments = parser.parse_args()
    if "device" in arguments:
        arguments.device = choose_device(arguments.device)
        arguments.end = time.monotonic() + 60.0 * arguments.minutes
    arguments.command(arguments)


if __name__ == "__main__":
    main()
