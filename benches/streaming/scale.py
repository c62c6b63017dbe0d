"""What the streaming head costs: by the number of features, of classes and of samples, and beside refitting.

python benches/streaming/scale.py features  --features DIR      accuracy, condition and seconds from D = 256 to 16,384
                                                                (on a GPU if there is one, or --device)
python benches/streaming/scale.py samples                       1,000 classes × 1,000 samples, streamed
python benches/streaming/scale.py answers                       an answer among 1,000 classes
python benches/streaming/scale.py refitting --features DIR      a lesson more, beside refitting on everything
python benches/streaming/scale.py table     --into docs/streaming.md

DIR has what `text_features.py` made. Each command prints JSON lines and keeps them in results/streaming/scale.json.
Seconds are those of one machine under whatever load it had: compare only those of one line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
import torch
from measure import CHOSEN, FOLDER, Data, Stream, clock, command_line, load_clinc, put_between_markers, replace_file

import kcl
from kcl.core.devices import choose_device, device_name
from kcl.models.lessons import places_among_all

RESULTS = "scale.json"
WIDTHS = tuple(256 << power for power in range(7))
CLASSES, SAMPLES, COLUMNS = 1000, 1000, 64
STREAM_BASES, ANSWER_BASES, REFIT_BASES = 1024, 4096, 2048
ANSWERS = 200
TOLD = (1, 10, 100, 500, 1000)


def record(arguments: argparse.Namespace, kind: str, **values: Any) -> None:
    device = torch.device(arguments.device)
    machine = platform.machine() if device.type == "cpu" else device_name(device)
    row = {"kind": kind, **values, "threads": torch.get_num_threads(), "machine": machine, "command": command_line()}
    done = [old for old in measured(arguments) if (old["kind"], old["bases"]) != (kind, values["bases"])]
    replace_file(arguments.results / RESULTS, json.dumps([*done, row], indent=1) + "\n")
    print(json.dumps(row), flush=True)


def measured(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    path = arguments.results / RESULTS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def timed(function: Callable[..., Any], *arguments: Any, device: str = "cpu") -> float:
    started = clock(device)
    function(*arguments)
    return clock(device) - started


def model_of(bases: int, **settings: Any) -> kcl.ContinualModel:
    return kcl.ContinualModel(head="streaming", standardise=False, bases=bases, **settings)


def chosen_for_clinc(arguments: argparse.Namespace) -> dict[str, Any]:
    chosen = json.loads((arguments.results / CHOSEN).read_text(encoding="utf-8"))
    settings: dict[str, Any] = chosen["texts"]["kcl"]
    return settings | {"unit_length": True}


# Features


def features(arguments: argparse.Namespace) -> None:
    """CLINC150 in ten lessons of 15 classes, for each number of features."""
    data = load_clinc(arguments.features)
    lessons = list(Stream("clinc150", 15, "").tasks(data, 0))
    device = arguments.device
    for bases in arguments.bases:
        model = model_of(bases, device=device, **chosen_for_clinc(arguments))
        learning = 0.0
        for rows in lessons:
            learning += timed(model.learn, data.train[rows], data.labels[rows], "intents", device=device)
        solving = timed(model.logits, data.test[:1], device=device)
        right = model.predict(data.test).label == data.test_labels
        ridge = model.heads.ridge
        solution = ridge.solution(places_among_all(model.tasks), "intents")
        record(
            arguments,
            "features",
            bases=bases,
            samples=len(data.labels),
            accuracy=100.0 * float(right.mean()),
            accuracy_in_float32=accuracy_in_float32(model, data, solution.strength),
            condition=solution.spectrum.condition,
            strength=solution.strength / solution.spectrum.scale,
            learning_seconds=learning,
            solving_seconds=solving,
            peak_mb=peak_mb() if device == "cpu" else torch.cuda.max_memory_allocated() / 1e6,
        )
        del model, ridge, solution


def accuracy_in_float32(model: kcl.ContinualModel, data: Data, strength: float) -> float | None:
    """Of sums and a solution in single precision, at the same λ; None where they would not be positive definite."""
    ridge = model.heads.ridge
    device = model.device
    gram = torch.zeros(ridge.features.dimension, ridge.features.dimension, device=device)
    cross = torch.zeros(len(gram), data.classes, device=device)
    labels = torch.tensor([model.labels.index(label) for label in data.labels.tolist()], device=device)
    for rows in torch.arange(len(labels)).split(1000):
        x = ridge.features(torch.from_numpy(data.train[rows]).to(device)).float()
        gram += x.mT @ x
        cross += x.mT @ torch.nn.functional.one_hot(labels[rows], data.classes).float()
    gram.diagonal().add_(strength)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if int(failed):
        return None
    weights = torch.cholesky_solve(cross, factor)
    tests = torch.from_numpy(data.test).to(device).split(1000)
    scores = torch.cat([ridge.features(part).float() @ weights for part in tests])
    answers = np.array(model.labels)[scores.argmax(1).cpu().numpy()]
    return 100.0 * float((answers == data.test_labels).mean())


# Samples


def drawn(label: int, count: int, seed: int = 0) -> np.ndarray:
    """Samples of one of `CLASSES` Gaussian classes."""
    centre = np.random.default_rng([seed, label]).normal(size=COLUMNS)
    noise = np.random.default_rng([seed + 1, label, count]).normal(size=(count, COLUMNS))
    return (centre + 0.7 * noise).astype(np.float32)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def samples(arguments: argparse.Namespace) -> None:
    """One class after another, each drawn when it is learned."""
    model = model_of(STREAM_BASES, width=8.0)
    before, resident, seconds = peak_mb(), {}, []
    for label in range(CLASSES):
        x = drawn(label, SAMPLES)
        seconds.append(timed(model.learn, x, np.full(len(x), label), "stream"))
        if label + 1 in TOLD:
            resident[label + 1] = resident_mb()
    solving = timed(model.predict, drawn(0, 1))
    queries = np.concatenate([drawn(label, 5) for label in range(CLASSES)])
    accuracy = model.accuracy(queries, np.arange(CLASSES).repeat(5))
    record(
        arguments,
        "samples",
        bases=STREAM_BASES,
        samples=CLASSES * SAMPLES,
        accuracy=accuracy,
        resident_mb=resident,
        peak_mb=peak_mb(),
        begin_mb=before,
        first_hundred_seconds=sum(seconds[:100]),
        last_hundred_seconds=sum(seconds[-100:]),
        solving_seconds=solving,
    )


# Answers


def answers(arguments: argparse.Namespace) -> None:
    """Milliseconds for one query alone, and for each of 64, among 1,000 classes, on one core."""
    torch.set_num_threads(1)
    model = model_of(ANSWER_BASES, width=8.0)
    model.learn(np.concatenate([drawn(label, 8) for label in range(CLASSES)]), np.arange(CLASSES).repeat(8), "stream")
    solving = timed(model.logits, drawn(0, 1))
    result: dict[str, Any] = {"solving_seconds": solving}
    for name, ask in (("logits", model.logits), ("predict", model.predict)):
        for count in (1, 64):
            queries = np.concatenate([drawn(label, 1, 0) for label in range(count)])
            ask(queries)
            took = sorted(timed(ask, queries) for _ in range(ANSWERS))
            result[f"{name}_{count}_ms"] = 1000.0 * took[len(took) // 2] / count
    record(arguments, "answers", bases=ANSWER_BASES, classes=CLASSES, **result)


# Refitting


def refitting(arguments: argparse.Namespace) -> None:
    """CLINC150 class by class: each tenth lesson is timed side by side with refitting on all samples so far."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import LogisticRegression, Ridge

    data, settings = load_clinc(arguments.features), chosen_for_clinc(arguments)
    model, seen = model_of(REFIT_BASES, **settings), np.zeros(0, np.int64)
    seconds: dict[str, list[float]] = {"lesson": [], "answer": [], "ridge": [], "kernel ridge": [], "logistic": []}
    for number, rows in enumerate(Stream("clinc150", 1, "").tasks(data, 0), start=1):
        lesson = timed(model.learn, data.train[rows], data.labels[rows], "intents")
        seen = np.concatenate([seen, rows])
        if number % 30:
            continue
        seconds["lesson"].append(lesson)
        seconds["answer"].append(timed(model.predict, data.test[:1]))
        x, y = data.train[seen], data.labels[seen]
        one_hot, psi = np.eye(data.classes)[y], model.heads.ridge.features
        making = timed(psi, torch.from_numpy(x))
        features = psi(torch.from_numpy(x)).numpy()
        seconds["ridge"].append(making + timed(Ridge(alpha=1.0, fit_intercept=False).fit, features, one_hot))
        machine = KernelRidge(alpha=0.1, kernel="rbf", gamma=1.0)
        seconds["kernel ridge"].append(timed(machine.fit, x.astype(float), one_hot))
        seconds["logistic"].append(timed(LogisticRegression(C=10.0, max_iter=200).fit, x, y))
        print(number, {name: round(values[-1], 3) for name, values in seconds.items()}, flush=True)
    record(arguments, "refitting", bases=REFIT_BASES, lessons=list(range(30, 151, 30)), seconds=seconds)


# Table


def tables(rows: list[dict[str, Any]]) -> str:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_kind.setdefault(row["kind"], []).append(row)
    parts = []
    if widths := sorted(by_kind.get("features", []), key=lambda row: row["bases"]):
        parts.append(features_table(widths))
    for row in by_kind.get("samples", []):
        resident = row["resident_mb"]
        parts.append(
            f"- {row['samples']:,} samples of {CLASSES:,} classes at D = {row['bases']:,}: resident memory grows from "
            f"{resident['10']:,.0f} MB after 10 classes to {resident['1000']:,.0f} MB after 1,000 (peak "
            f"{row['peak_mb']:,.0f} MB); the last 100 classes took "
            f"{row['last_hundred_seconds'] / row['first_hundred_seconds']:.2f} times as long as the first 100."
        )
    for row in by_kind.get("answers", []):
        parts.append(
            f"- An answer among {row['classes']:,} classes at D = {row['bases']:,}, on one core: "
            f"{row['logits_1_ms']:.2f} ms for the scores of one query, {row['logits_64_ms']:.2f} ms each for 64 at "
            f"once; with variance and task (`predict`) {row['predict_1_ms']:.1f} and {row['predict_64_ms']:.2f} ms."
        )
    for row in by_kind.get("refitting", []):
        last = {name: values[-1] for name, values in row["seconds"].items()}
        again = ", ".join(
            f"{name} {last[name] / last['lesson']:,.0f}" for name in ("ridge", "kernel ridge", "logistic")
        )
        parts.append(
            f"- The last of CLINC150's 150 classes at D = {row['bases']:,}: refitting on everything takes so many "
            f"times as long as the lesson: {again}. The first answer after it, which solves, takes "
            f"{last['answer'] / last['lesson']:,.0f} times as long."
        )
    return "\n".join(parts)


def features_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| D | accuracy | in single precision | condition | λ/mean ‖ψ‖² | seconds to learn | to solve | peak MB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        single = row["accuracy_in_float32"]
        lines.append(
            f"| {row['bases']:,} | {row['accuracy']:.2f} | {'–' if single is None else f'{single:.2f}'} | "
            f"{row['condition']:.1e} | {row['strength']:.1e} | {row['learning_seconds']:.1f} | "
            f"{row['solving_seconds']:.1f} | {row['peak_mb']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def write_table(arguments: argparse.Namespace) -> None:
    content = tables(measured(arguments))
    if arguments.into is None:
        print(content)
    else:
        text = put_between_markers(arguments.into.read_text(encoding="utf-8"), content, "scale")
        replace_file(arguments.into, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for function in (features, samples, answers, refitting, write_table):
        options = commands.add_parser("table" if function is write_table else function.__name__)
        options.set_defaults(function=function)
        options.add_argument("--results", type=Path, default=FOLDER)
        options.set_defaults(device="cpu")
        if function in (features, refitting):
            options.add_argument("--features", type=Path, required=True)
        if function is features:
            options.add_argument("--device", default="auto")
            options.add_argument("--bases", type=int, nargs="+", default=list(WIDTHS))
        if function is write_table:
            options.add_argument("--into", type=Path)
    arguments = parser.parse_args()
    arguments.device = choose_device(arguments.device)
    arguments.function(arguments)


if __name__ == "__main__":
    main()
