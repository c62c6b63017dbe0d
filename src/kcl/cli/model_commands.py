"""`kcl update`, `predict`, `inspect`, `export`, `task-free`: one model that keeps learning and answering."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcl.cli.commands import print_lines, say
from kcl.cli.options import COMPILE, OneOf, add_compute, add_device, add_stream_options, split_assignment, use_device
from kcl.errors import KclError

if TYPE_CHECKING:
    from kcl.data.user_data import Samples
    from kcl.models.continual_model import ContinualModel, Prediction
    from kcl.training.step_progress import OnStep, Step

LARGEST_SMALL_IMAGE = 48
# For rows of numbers, as in KernelContinualClassifier. Our own choice: nothing is published.
_TABLE = {"backbone": "identity", "feature_norm": "none", "bases": 512, "epochs": 3, "lr_decay": 0.95, "dropout": 0.0}


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", type=Path, required=True, metavar="DIR", help="the folder of the model's versions")
    command.add_argument("--label", default="label", metavar="COLUMN", help="label column of a table (default: label)")
    add_device(command)


def add_update(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", type=Path, required=True, metavar="PATH",
                         help="a folder of images by class, or an .npz, .csv or .parquet file")  # fmt: skip
    command.add_argument("--task", required=True, metavar="NAME", help="a new task, or one to learn more of")
    command.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", dest="assignments",
                         help="settings of a new model (see `kcl list settings`)")  # fmt: skip
    command.add_argument("--seed", type=int, help="seed of a new model (default: 0)")
    command.add_argument("--held-out", type=float, metavar="SHARE", help="for a new model: the share of samples that "
                         "calibrate and test it instead of training it (default: 0.1)")  # fmt: skip
    command.add_argument("--image-size", type=int, metavar="PIXELS", help="for a new model (default: 84)")
    _add_model(command)
    command.set_defaults(function=_update)


def add_predict(command: argparse.ArgumentParser) -> None:
    command.add_argument("--input", type=Path, required=True, metavar="PATH",
                         help="images, or an .npz, .csv or .parquet file")  # fmt: skip
    command.add_argument("--task", metavar="NAME", help="default: inferred for each sample")
    command.add_argument("--score", action=OneOf, registry="kcl.models.inference:TASK_SCORES", metavar="NAME",
                         help="how the task is inferred; see docs/inference.md")  # fmt: skip
    command.add_argument("--abstain-below", type=float, default=0.0, metavar="P",
                         help="give no answer whose confidence is below P")  # fmt: skip
    command.add_argument("--format", choices=("csv", "json"), default="csv")
    command.add_argument("--out", type=Path, metavar="FILE", help="write to a file instead of the terminal")
    _add_model(command)
    command.set_defaults(function=_predict)


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


def add_export(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", type=Path, metavar="DIR")
    command.add_argument("--out", type=Path, required=True, metavar="FILE")
    command.set_defaults(function=_export)


def _update(options: argparse.Namespace) -> int:
    from kcl.core.locking import locked
    from kcl.models import model_folder

    existed = options.model.exists()
    model_folder.next_version(options.model)  # refuses an unsuitable folder before a lock is put there
    try:
        with locked(options.model):
            return _learn_more(options)
    except BaseException:
        if not existed:
            with contextlib.suppress(OSError):
                options.model.rmdir()
        raise


def _learn_more(options: argparse.Namespace) -> int:
    """Under the folder's lock: of two updates of the same version, the later would lose what the other learned."""
    from kcl.data import user_data
    from kcl.models import model_folder

    model_folder.clear_drafts(options.model)
    out = model_folder.next_version(options.model)
    if out.name == "0001":
        data = user_data.read(options.data, True, options.label, options.image_size, say=say)
        model = _new_model(data, options, use_device(options))
    else:
        if options.assignments or {options.seed, options.held_out, options.image_size} != {None}:
            raise KclError(
                f"{options.model} already holds a model: --set, --seed, --held-out and --image-size are for new ones"
            )
        model = model_folder.load_model(options.model, device=use_device(options))
        data = user_data.read(options.data, True, options.label, _side(model), model.columns, say)
    with _shown_steps(options.task) as on_step:
        model.learn(data.inputs, data.labels, options.task, on_step)
    model_folder.save_model(model, out)
    update = model.history[-1]
    print(f"learned {update['samples']} samples of {update['classes']} classes of task {options.task!r}")
    if "held_out" in update:
        print(f"{update['held_out']} samples held out: {update['held_out_accuracy']:.1f} % classified correctly")
    print(f"model: {out}")
    return 0


@contextlib.contextmanager
def _shown_steps(task: str) -> Iterator[OnStep]:
    """A progress bar on a terminal."""
    from tqdm import tqdm

    with tqdm(desc=f"learning {task}", unit=" steps", leave=False, disable=None) as bar:

        def show(step: Step) -> None:
            bar.total = step.steps
            bar.update(step.step - bar.n)

        yield show


def _new_model(data: Samples, options: argparse.Namespace, device: str) -> ContinualModel:
    """A model with settings that suit the data, and the user's changes to them."""
    from kcl.methods.kcl_settings import KclSettings
    from kcl.methods.recipes import BENCHMARK_RECIPES
    from kcl.models.continual_model import ContinualModel

    shape, table = data.inputs.shape[1:], data.inputs.ndim == 2 and data.inputs.dtype != "uint8"
    settings: dict[str, Any] = dict(_TABLE)
    if not table:
        small = max(shape) <= LARGEST_SMALL_IMAGE
        colour = BENCHMARK_RECIPES["split-cifar100" if small else "split-miniimagenet"]
        settings = dict(colour if len(shape) == 3 and shape[0] == 3 else BENCHMARK_RECIPES["permuted-mnist"])
    for assignment in options.assignments:
        name, text = split_assignment(assignment)
        settings[name] = KclSettings.parse(name, text)
    KclSettings().replace(**settings)
    share = 0.1 if options.held_out is None else options.held_out
    model = ContinualModel(options.seed or 0, device=device, standardise=table, held_out_share=share, **settings)
    model.columns = data.columns
    return model


def _side(model: ContinualModel) -> int | None:
    shape = model.input_shape or ()
    return shape[-1] if len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2] else None


def _predict(options: argparse.Namespace) -> int:
    from kcl.core.files import write_whole
    from kcl.data import user_data
    from kcl.models import model_folder
    from kcl.models.inference import DEFAULT_SCORE

    if not 0.0 <= options.abstain_below <= 1.0:
        raise KclError(f"--abstain-below must be a probability from 0 to 1, not {options.abstain_below:g}")
    model = model_folder.load_model(options.model, device=use_device(options))
    samples = user_data.read(options.input, False, options.label, _side(model), model.columns)
    prediction = model.predict(samples.inputs, options.task, options.score or DEFAULT_SCORE, options.abstain_below)
    rows = _rows(samples, prediction)
    text = json.dumps(rows, ensure_ascii=False, indent=1) + "\n" if options.format == "json" else _as_csv(rows)
    if options.out is not None:
        write_whole(options.out, text.encode())
    else:
        sys.stdout.write(text)
    return 0


def _rows(samples: Samples, prediction: Prediction) -> list[dict[str, Any]]:
    columns = [prediction.task.tolist(), prediction.label.tolist(), *(column.tolist() for column in prediction[2:])]
    return [
        {
            "sample": name,
            "task": task,
            "label": label,
            "confidence": round(confidence, 6),
            "variance": round(variance, 6),
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
    print(f"inputs     {' × '.join(map(str, about['input_shape']))} {about['dtype']}, backbone {about['backbone']}")
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


def _export(options: argparse.Namespace) -> int:
    from kcl.models.model_folder import load_model
    from kcl.models.onnx_export import export_onnx

    print(export_onnx(load_model(options.model), options.out))
    return 0
