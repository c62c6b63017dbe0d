"""`kcl predict`, `evaluate`, `inspect`, `task-free`: what a model answers, knows and costs."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcl.cli.commands import print_lines, say
from kcl.cli.model_commands import add_model, image_side
from kcl.cli.options import COMPILE, OneOf, add_compute, add_stream_options, use_device
from kcl.errors import KclError

if TYPE_CHECKING:
    from kcl.data.user_data import Samples
    from kcl.models.continual_model import Prediction


def add_predict(command: argparse.ArgumentParser) -> None:
    command.add_argument("--input", type=Path, required=True, metavar="PATH",
                         help="images, or an .npz, .csv or .parquet file")  # fmt: skip
    command.add_argument("--task", metavar="NAME", help="default: inferred for each sample")
    command.add_argument("--score", action=OneOf, registry="kcl.models.inference:WITHOUT_A_TASK", metavar="NAME",
                         help="what is done without a task; see docs/inference.md")  # fmt: skip
    command.add_argument("--abstain-below", type=float, default=0.0, metavar="P",
                         help="give no answer whose confidence is below P")  # fmt: skip
    command.add_argument("--format", choices=("csv", "json"), default="csv")
    command.add_argument("--out", type=Path, metavar="FILE", help="write to a file instead of the terminal")
    add_model(command)
    command.set_defaults(function=_predict)


def add_evaluate(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", type=Path, required=True, metavar="PATH",
                         help="samples with labels, as for `kcl update`")  # fmt: skip
    command.add_argument("--task", metavar="NAME", help="default: inferred for each sample")
    command.add_argument("--json", action="store_true", help="as JSON")
    add_model(command)
    command.set_defaults(function=_evaluate)


def add_inspect(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", type=Path, metavar="DIR")
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(function=_inspect)


def add_task_free(command: argparse.ArgumentParser) -> None:
    add_stream_options(command)
    add_compute(command)
    command.add_argument("--held-out", type=int, default=200, metavar="N",
                         help="training samples per task used for calibration only (default: 200)")  # fmt: skip
    command.add_argument("--test-per-task", type=int, metavar="N", help="test samples per task (default: all)")
    command.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements to this file")
    command.set_defaults(function=_task_free, out=None)


def _predict(options: argparse.Namespace) -> int:
    from kcl.core.files import write_whole
    from kcl.data import user_data
    from kcl.models import model_folder
    from kcl.models.inference import JOINT

    if not 0.0 <= options.abstain_below <= 1.0:
        raise KclError(f"--abstain-below must be a probability from 0 to 1, not {options.abstain_below:g}")
    model = model_folder.load_model(options.model, device=use_device(options))
    samples = user_data.read(options.input, False, options.label, image_side(model), model.columns, say)
    prediction = model.predict(samples.inputs, options.task, options.score or JOINT, options.abstain_below)
    rows = _rows(samples, prediction)
    text = json.dumps(rows, ensure_ascii=False, indent=1) + "\n" if options.format == "json" else _as_csv(rows)
    if options.out is not None:
        write_whole(options.out, text.encode())
    else:
        sys.stdout.write(text)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    """Accuracy, calibration and what each class loses, on samples whose labels are known."""
    import torch

    from kcl.data import user_data
    from kcl.models import model_folder
    from kcl.models.calibration import expected_calibration_error

    model = model_folder.load_model(options.model, device=use_device(options))
    samples = user_data.read(options.data, True, options.label, image_side(model), model.columns, say)
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
    if options.json:
        print(json.dumps(result, ensure_ascii=False, indent=1))
        return 0
    print(f"{result['accuracy']:.2f} % of {len(expected)} samples correct, calibration error {ece or 0.0:.3f}")
    if unknown:
        print(f"the model never learned {', '.join(map(str, unknown[:8]))}: their samples count as wrong")
    print_lines({name: f"{row['accuracy']:6.2f} % of {row['samples']}" for name, row in classes.items()})
    return 0


def _rows(samples: Samples, prediction: Prediction) -> list[dict[str, Any]]:
    columns = [prediction.task.tolist(), prediction.label.tolist(), *(column.tolist() for column in prediction[2:])]
    return [
        {
            "sample": name,
            "task": task,
            "label": label,
            "confidence": round(confidence, 6) if math.isfinite(confidence) else None,
            "variance": round(variance, 6) if math.isfinite(variance) else None,
            "task_margin": round(margin, 6) if math.isfinite(margin) else None,
        }
        for name, task, label, confidence, variance, margin in zip(samples.names, *columns, strict=True)
    ]


def _as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _inspect(options: argparse.Namespace) -> int:
    from kcl.models import model_folder

    folder = model_folder.newest(options.model)
    about = model_folder.describe(folder)
    if options.json:
        print(json.dumps(about, ensure_ascii=False, indent=1))
        return 0
    print(f"model      {folder} (format {about['format']}, kcl {about['kcl']}, {about['bytes'] / 1e6:.1f} MB)")
    print(f"inputs     {' × '.join(map(str, about['input_shape']))} {about['dtype']}")
    if about["head"] == "streaming":
        features = about["features"]
        print(
            f"features   {features['bases']} {features['kind']}, width {features['width']:.4g}, seed {features['seed']}"
        )
        print(f"sums       {about['statistics_bytes']} bytes, kept by {about['settings']['keep']}; no samples")
    else:
        print(f"backbone   {about['backbone']}")
        print(f"coresets   {about['coreset_samples']} samples, {about['coreset_bytes']} bytes")
    for name, task in about["tasks"].items():
        labels = ", ".join(map(str, task["labels"][:8])) + (", …" if len(task["labels"]) > 8 else "")
        print(f"task       {name}: {len(task['labels'])} classes ({labels}), {sum(task['seen'])} samples seen, "
              f"temperature {task['temperature']:.3f}")  # fmt: skip
    for number, update in enumerate(about["history"], start=1):
        accuracy = update.get("held_out_accuracy")
        test = "" if accuracy is None else f", {accuracy:.1f} % of {update['held_out']} held-out samples correct"
        print(f"update {number:<3} {update['task']}: {update.get('samples', '?')} samples, "
              f"{update['classes']} classes{test}")  # fmt: skip
    print("settings   " + ", ".join(f"{name}={value}" for name, value in about["settings"].items()))
    return 0


def _task_free(options: argparse.Namespace) -> int:
    import torch

    from kcl.cli import requested_runs
    from kcl.core.compute import Compute
    from kcl.core.devices import describe_machine
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
    rows = list(task_free.measure(specs, compute, samples, options.data_dir, say))
    print(task_free.table(rows))
    if options.json is not None:
        about = describe_machine(device) | {"command": options.command_line}
        about["precision"] = used(options.precision, torch.device(device), compute.compiled)
        write_json(options.json, {**about, "rows": rows})
    return 0
