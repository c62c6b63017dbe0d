"""`kcl predict`, `evaluate`, `inspect`, `task-free`: what a model answers, knows and costs."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcl.cli.commands import print_lines, say, saying_warnings
from kcl.cli.model_commands import add_model, load_model_and
from kcl.cli.options import COMPILE, add_compute, add_stream_options, one_of, option, use_device
from kcl.core.printable import printable
from kcl.errors import KclError

if TYPE_CHECKING:
    from kcl.data.user_data import Samples
    from kcl.models.learned_model import Prediction
    from kcl.models.unknowns import Drift

NUMBERS = ("confidence", "variance", "task_margin", "known")
"""Of each answer; empty where they are not finite."""


# fmt: off
def add_predict(command: argparse.ArgumentParser) -> None:
    option(command, "--input PATH", "images, or an .npz, .csv or .parquet file", type=Path, required=True)
    option(command, "--task NAME", "the task of all samples (default: inferred for each)")
    option(command, "--score NAME", "how to answer without a task (default: joint); see docs/inference.md",
           type=one_of("kcl.models.inference:WITHOUT_A_TASK"))
    option(command, "--abstain-below P", "give no answer whose confidence is below P", type=float, default=0.0)
    option(command, "--format", "default: csv", choices=("csv", "json"), default="csv")
    option(command, "--out FILE", "write to a file instead of the terminal", type=Path)
    add_model(command)
    command.set_defaults(function=_predict)


def add_evaluate(command: argparse.ArgumentParser) -> None:
    option(command, "--data PATH", "samples with labels, as for `kcl update`", type=Path, required=True)
    option(command, "--task NAME", "the task of all samples (default: inferred for each)")
    option(command, "--json", "print JSON", action="store_true")
    add_model(command)
    command.set_defaults(function=_evaluate)


def add_inspect(command: argparse.ArgumentParser) -> None:
    option(command, "model DIR", "the folder of the model's versions, or one version", type=Path)
    option(command, "--json", "print JSON", action="store_true")
    command.set_defaults(function=_inspect)


def add_task_free(command: argparse.ArgumentParser) -> None:
    add_stream_options(command)
    add_compute(command)
    option(command, "--held-out N", "training samples per task used for calibration only (default: 200)", type=int,
           default=200)
    option(command, "--test-per-task N", "test samples per task (default: all)", type=int)
    option(command, "--json FILE", "also write the measurements to this file", type=Path)
    command.set_defaults(function=_task_free, out=None)
# fmt: on


def _predict(options: argparse.Namespace) -> int:
    from kcl.core.files import write_whole
    from kcl.models.inference import JOINT

    model, samples = load_model_and(options, options.input, labelled=False)
    with saying_warnings():
        prediction = model.predict(samples.inputs, options.task, options.score or JOINT, options.abstain_below)
    rows = _rows(samples, prediction)
    text = _as_json(rows) + "\n" if options.format == "json" else _as_csv(rows)
    if options.out is not None:
        write_whole(options.out, text.encode())
    else:
        sys.stdout.write(text)
    if rows[0]["known"] is not None:
        _say_drift(model.drift(options.task, len(rows)), prediction)
    return 0


def _say_drift(drift: Drift, prediction: Prediction) -> None:
    """Whether these queries, as one window, are like those that the model was told to know."""
    alarm, (deviation,) = drift.update(prediction.known), drift.deviations
    unanswered, count = sum(label is None for label in prediction.label), len(prediction.label)
    say(f"{unanswered} of {count} queries not answered; these are {'less' if deviation < 0.0 else 'better'} known than "
        f"those of reject-unknown, by {abs(deviation):.1f} standard deviations"
        + (f": drift (by chance more than {drift.limit:.1f} in one of 1,000 files)" if alarm else ""))  # fmt: skip


def _evaluate(options: argparse.Namespace) -> int:
    """Accuracy, calibration and what each class loses, on samples whose labels are known."""
    import numpy as np
    import torch

    from kcl.models.calibration import expected_calibration_error

    model, samples = load_model_and(options, options.data, labelled=True)
    with saying_warnings():
        prediction = model.predict(samples.inputs, options.task)
    expected = [] if samples.labels is None else samples.labels.tolist()
    correct = torch.tensor([a == b for a, b in zip(prediction.label.tolist(), expected, strict=True)])
    unknown = sorted({label for label in expected if label not in model.labels}, key=str)
    ece = expected_calibration_error(torch.tensor(prediction.confidence), correct)
    classes = {}
    for label in dict.fromkeys(expected):
        of_class = correct[torch.tensor([other == label for other in expected])]
        classes[str(label)] = {"samples": len(of_class), "accuracy": 100.0 * float(of_class.double().mean())}
    result = {
        "samples": len(expected),
        "accuracy": 100.0 * float(correct.double().mean()),
        "calibration_error": ece,
        "unknown_classes": list(map(str, unknown)),
        "classes": classes,
    }
    if not np.isnan(prediction.known).all():  # unknown queries are not answered
        for name, learned in (("learned", True), ("unknown", False)):
            of_kind = [answer is None for answer, label in zip(prediction.label, expected, strict=True)
                       if (label not in unknown) == learned]  # fmt: skip
            result[f"unanswered_of_{name}_classes"] = 100.0 * sum(of_kind) / len(of_kind) if of_kind else None
    if options.json:
        print(_as_json(result))
        return 0
    print(f"{result['accuracy']:.2f} % of {len(expected)} samples correct, calibration error {ece or 0.0:.3f}")
    if unknown:
        print(printable(f"the model never learned {', '.join(map(str, unknown[:8]))}: their samples count as wrong"))
    for name in ("learned", "unknown"):
        if (share := result.get(f"unanswered_of_{name}_classes")) is not None:
            print(f"{share:.2f} % of the samples of {name} classes not answered")
    print_lines({name: f"{row['accuracy']:6.2f} % of {row['samples']}" for name, row in classes.items()})
    return 0


def _rows(samples: Samples, prediction: Prediction) -> list[dict[str, Any]]:
    numbers = {name: getattr(prediction, name).tolist() for name in NUMBERS}
    return [
        {"sample": sample, "task": task, "label": label}
        | {name: round(column[row], 6) if math.isfinite(column[row]) else None for name, column in numbers.items()}
        for row, (sample, task, label) in enumerate(
            zip(samples.names, prediction.task.tolist(), prediction.label.tolist(), strict=True)
        )
    ]


def _as_json(value: Any) -> str:
    """Readable JSON in which nothing is obeyed by a terminal."""
    return "\n".join(map(printable, json.dumps(value, ensure_ascii=False, indent=1).split("\n")))


def _as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Text that a terminal does not obey and a spreadsheet does not compute, unless it is a number."""
    if not isinstance(value, str):
        return value
    formula = value.startswith(("=", "+", "-", "@", "\t", "\r"))
    with contextlib.suppress(ValueError):
        formula = formula and not math.isfinite(float(value))
    return printable(f"'{value}" if formula else value)


def _inspect(options: argparse.Namespace) -> int:
    from kcl.models import model_folder

    folder = model_folder.newest(options.model)
    about = model_folder.describe(folder)
    if options.json:
        print(_as_json(about))
        return 0
    with model_folder.as_kcl_error(folder):
        lines = _described(folder, about)
    print("\n".join(map(printable, lines)))
    return 0


def _described(folder: Path, about: dict[str, Any]) -> list[str]:
    lines = [
        f"model      {folder} (format {about['format']}, kcl {about['kcl']}, {about['bytes'] / 1e6:.1f} MB)",
        f"inputs     {' × '.join(map(str, about['input_shape']))} {about['dtype']}",
    ]
    if about["head"] == "streaming":
        features = about["features"]
        lines.append(
            f"features   {features['bases']} {features['kind']}, width {features['width']:.4g}, seed {features['seed']}"
        )
        lines.append(f"sums       {about['statistics_bytes']} bytes, kept by {about['settings']['keep']}; no samples")
    else:
        lines.append(f"backbone   {about['backbone']}")
        lines.append(f"coresets   {about['coreset_samples']} samples, {about['coreset_bytes']} bytes")
    for name, task in about["tasks"].items():
        labels = ", ".join(map(str, task["labels"][:8])) + (", …" if len(task["labels"]) > 8 else "")
        lines.append(f"task       {name}: {len(task['labels'])} classes ({labels}), {sum(task['seen'])} samples seen")
    for known in about.get("known", ()):
        of = f"{100 * known['error_rate']:g} % of {known['queries']} known queries"
        whose = "all classes" if known["task"] is None else known["task"]
        stale = "; stale: the model has learned more since" if known["stale"] else ""
        lines.append(f"unknown    {known['score']} below {known['threshold']:.6g}, as of {of}; for {whose}{stale}")
    for number, update in enumerate(about["history"], start=1):
        accuracy = update.get("held_out_accuracy")
        test = "" if accuracy is None else f", {accuracy:.1f} % of {update['held_out']} held-out samples correct"
        lines.append(f"update {number:<3} {update['task']}: {update.get('samples', '?')} samples, "
              f"{update['classes']} classes{test}")  # fmt: skip
    lines.append("settings   " + ", ".join(f"{name}={value}" for name, value in about["settings"].items()))
    return lines


def _task_free(options: argparse.Namespace) -> int:
    import torch

    from kcl.cli import requested_runs
    from kcl.core.devices import Compute, describe_machine
    from kcl.core.files import write_json
    from kcl.experiments import task_free
    from kcl.models.lessons import LEAST_HELD_OUT
    from kcl.ops.precision import used

    if options.held_out < LEAST_HELD_OUT or (options.test_per_task is not None and options.test_per_task < 1):
        raise KclError(f"--held-out must be at least {LEAST_HELD_OUT} and --test-per-task at least 1")
    specs, device = requested_runs.specs(options), use_device(options)
    if options.show_settings:
        return print_lines(requested_runs.shown(specs))
    compute = Compute(device, COMPILE[options.compile], options.precision)
    samples = task_free.SampleCounts(options.held_out, options.test_per_task)
    rows = task_free.measure(specs, compute, samples, options.data_dir, say)
    print(task_free.table(rows))
    if options.json is not None:
        about = describe_machine(device) | {"command": options.command_line}
        about["precision"] = used(options.precision, torch.device(device), compute.compiled)
        write_json(options.json, {**about, "rows": rows})
    return 0
