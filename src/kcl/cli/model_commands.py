"""`kcl update`, `kcl predict`, `kcl inspect`, `kcl export`: one model that keeps learning and answering."""

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
from typing import Any

import torch

from kcl import __version__
from kcl.cli import run_options
from kcl.core.compute import COMPILE_CHOICES, Compute
from kcl.core.devices import choose_device, choose_threads, device_name
from kcl.core.files import write_json, write_whole
from kcl.core.locking import locked
from kcl.data import user_data
from kcl.data.user_data import DEFAULT_LABEL, Samples
from kcl.errors import KclError
from kcl.experiments import task_free
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import BENCHMARK_RECIPES
from kcl.models import model_folder
from kcl.models.continual_model import LEAST_HELD_OUT, ContinualModel, Prediction
from kcl.models.inference import DEFAULT_SCORE, TASK_SCORES
from kcl.models.onnx_export import export_onnx
from kcl.ops.precision import PRECISIONS, used
from kcl.training.cuda_graph import OnStep, Step

LARGEST_SMALL_IMAGE = 48
# For rows of numbers, as KernelContinualClassifier: our own choice, nothing is published.
_TABLE = {"backbone": "identity", "feature_norm": "none", "bases": 512, "epochs": 3, "lr_decay": 0.95, "dropout": 0.0}


def add_commands(commands: Any) -> None:
    update = commands.add_parser("update", help="teach a model one more task, or more of one, from your own data")
    update.add_argument("--data", type=Path, required=True, help="a folder of images by class, .npz, .csv or .parquet")
    update.add_argument("--task", required=True, metavar="NAME", help="a new task, or one to learn more of")
    update.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", dest="assignments",
                        help="settings of a new model (see `kcl list settings`)")  # fmt: skip
    update.add_argument("--seed", type=int, help="of a new model (default: 0)")
    update.add_argument("--held-out", type=float, metavar="SHARE", help="of a new model: share of the samples that is "
                        "not learned from but calibrates and tests (default: 0.1)")  # fmt: skip
    update.add_argument("--image-size", type=int, metavar="PIXELS", help="of a new model (default: 84)")
    update.set_defaults(function=_update)

    predict = commands.add_parser("predict", help="answer with a model; without --task the task is inferred")
    predict.add_argument("--input", type=Path, required=True, help="images, .npz, .csv or .parquet")
    predict.add_argument("--task", metavar="NAME")
    predict.add_argument(
        "--score", choices=tuple(TASK_SCORES), default=DEFAULT_SCORE, help="what a task is inferred by"
    )
    predict.add_argument("--abstain-below", type=float, default=0.0, metavar="P", help="withhold less sure answers")
    predict.add_argument("--format", choices=("csv", "json"), default="csv")
    predict.add_argument("--out", type=Path, help="write there instead of to the terminal")
    predict.set_defaults(function=_predict)

    for command in (update, predict):
        command.add_argument("--model", type=Path, required=True, metavar="DIR", help="the folder of its versions")
        command.add_argument("--label", default=DEFAULT_LABEL, metavar="COLUMN", help="of a table (default: label)")
        command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
        command.add_argument("--threads", type=int, help="CPU threads (default: 1)")

    inspect = commands.add_parser("inspect", help="what a model knows: tasks, classes, memory, settings, history")
    inspect.add_argument("model", type=Path, metavar="DIR")
    inspect.add_argument("--json", action="store_true", help="as JSON")
    inspect.set_defaults(function=_inspect)

    free = commands.add_parser("task-free", help="a benchmark answered without naming the task; calibration")
    run_options.add_options(free)
    free.add_argument("--held-out", type=int, default=200, metavar="N",
                      help="training samples of a task that only calibrate (default: 200)")  # fmt: skip
    free.add_argument("--test-per-task", type=int, metavar="N", help="test samples asked (default: all)")
    free.add_argument("--data-dir", type=Path, help="where the data lie (default: KCL_DATA, then the cache)")
    free.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    free.add_argument("--threads", type=int, help="CPU threads (default: 1)")
    free.add_argument("--compile", choices=("auto", "on", "off"), default="auto",
                      help="fuse the step with PyTorch's compiler (default: on a GPU if long; on a CPU, which needs a "
                      "C++ compiler, off)")  # fmt: skip
    free.add_argument("--precision", choices=tuple(PRECISIONS), default="tf32", help="what may be trained in")
    free.add_argument("--json", type=Path, help="also write what was measured to this file")
    free.set_defaults(function=_task_free, out=None)

    export = commands.add_parser("export", help="write a model as one ONNX file")
    export.add_argument("model", type=Path, metavar="DIR")
    export.add_argument("--out", type=Path, required=True, metavar="FILE")
    export.set_defaults(function=_export)


def _device(options: argparse.Namespace) -> str:
    torch.set_num_threads(choose_threads(options.threads))
    return choose_device(options.device)


def _update(options: argparse.Namespace) -> int:
    there = options.model.exists()
    model_folder.next_version(options.model)  # refuses what can hold no versions, before a lock is put there
    try:
        with locked(options.model):
            return _learn_more(options)
    except BaseException:
        if not there:
            with contextlib.suppress(OSError):
                options.model.rmdir()
        raise


def _learn_more(options: argparse.Namespace) -> int:
    """Alone in the folder: of two that began with the same version, the later would lose what the other learned."""
    model_folder.clear_drafts(options.model)
    out = model_folder.next_version(options.model)
    if out.name == "0001":
        data = user_data.read(options.data, True, options.label, options.image_size, say=_say)
        model = _new_model(data, options, _device(options))
    else:
        if options.assignments or any(
            given is not None for given in (options.seed, options.held_out, options.image_size)
        ):
            raise KclError(
                f"{options.model} holds a model already: --set, --seed, --held-out and --image-size are for new ones"
            )
        model = model_folder.load_model(options.model, device=_device(options))
        data = user_data.read(options.data, True, options.label, _side(model), model.columns, _say)
    with _shown_steps(options.task) as on_step:
        model.learn(data.inputs, data.labels, options.task, on_step)
    model_folder.save_model(model, out)
    told = model.history[-1]
    print(f"learned {told['samples']} samples of {told['classes']} classes of task {options.task!r}")
    if "held_out" in told:
        print(f"{told['held_out']} samples held out: {told['held_out_accuracy']:.1f} % answered right")
    print(f"model: {out}")
    return 0


@contextlib.contextmanager
def _shown_steps(task: str) -> Iterator[OnStep]:
    """A bar, where a person looks at a terminal."""
    from tqdm import tqdm

    with tqdm(desc=f"learning {task}", unit=" steps", leave=False, disable=None) as bar:

        def show(step: Step) -> None:
            bar.total = step.steps
            bar.update(step.step - bar.n)

        yield show


def _new_model(data: Samples, options: argparse.Namespace, device: str) -> ContinualModel:
    """A model with settings that suit the data, before the user's own changes."""
    shape, table = data.inputs.shape[1:], data.inputs.ndim == 2 and data.inputs.dtype != "uint8"
    settings: dict[str, Any] = dict(_TABLE)
    if not table:
        small = max(shape) <= LARGEST_SMALL_IMAGE
        colour = BENCHMARK_RECIPES["split-cifar100" if small else "split-miniimagenet"]
        settings = dict(colour if len(shape) == 3 and shape[0] == 3 else BENCHMARK_RECIPES["permuted-mnist"])
    for assignment in options.assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise KclError(f"--set {assignment!r}: expected NAME=VALUE, such as lr=0.05")
        settings[name] = KclSettings.parse(name, text)
    KclSettings().replace(**settings)
    share = 0.1 if options.held_out is None else options.held_out
    made = ContinualModel(options.seed or 0, device=device, standardise=table, held_out_share=share, **settings)
    made.columns = data.columns
    return made


def _side(model: ContinualModel) -> int | None:
    shape = model.input_shape or ()
    return shape[-1] if len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2] else None


def _predict(options: argparse.Namespace) -> int:
    model = model_folder.load_model(options.model, device=_device(options))
    asked = user_data.read(options.input, False, options.label, _side(model), model.columns)
    found = model.predict(asked.inputs, options.task, options.score, options.abstain_below)
    text = (_as_json if options.format == "json" else _as_csv)(_rows(asked, found))
    if options.out is not None:
        write_whole(options.out, text.encode())
    else:
        sys.stdout.write(text)
    return 0


def _rows(asked: Samples, found: Prediction) -> list[dict[str, Any]]:
    columns = [found.task.tolist(), found.label.tolist(), *(column.tolist() for column in found[2:])]
    return [
        {
            "sample": name,
            "task": task,
            "label": label,
            "confidence": round(confidence, 6),
            "variance": round(variance, 6),
            "task_margin": round(margin, 6) if math.isfinite(margin) else None,
        }
        for name, task, label, confidence, variance, margin in zip(asked.names, *columns, strict=True)
    ]


def _as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _as_json(rows: list[dict[str, Any]]) -> str:
    return json.dumps(rows, ensure_ascii=False, indent=1) + "\n"


def _inspect(options: argparse.Namespace) -> int:
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
    for number, lesson in enumerate(about["history"], start=1):
        accuracy = lesson.get("held_out_accuracy")
        told = "" if accuracy is None else f", {accuracy:.1f} % of {lesson['held_out']} held-out samples right"
        shown = f"{lesson.get('samples', '?')} samples, {lesson['classes']} classes{told}"
        print(f"lesson {number:<3} {lesson['task']}: {shown}")
    print("settings   " + ", ".join(f"{name}={value}" for name, value in about["settings"].items()))
    return 0


def _task_free(options: argparse.Namespace) -> int:
    if options.held_out < LEAST_HELD_OUT or (options.test_per_task is not None and options.test_per_task < 1):
        raise KclError(f"--held-out must be at least {LEAST_HELD_OUT} and --test-per-task at least 1")
    specs, device = run_options.specs(options), _device(options)
    if options.show_settings:
        print("\n".join(f"{name}: {text}" for name, text in run_options.shown(specs).items()))
        return 0
    compute = Compute(device, COMPILE_CHOICES[options.compile], options.precision)
    samples = task_free.SampleCounts(options.held_out, options.test_per_task)
    rows = list(task_free.measure(specs, compute, samples, options.data_dir, _say))
    print(task_free.table(rows))
    if options.json is not None:
        about = {"command": options.command_line, "device": device_name(torch.device(device))}
        about["precision"] = used(options.precision, torch.device(device), compute.compiled)
        versions = {"kcl": __version__, "torch": torch.__version__}
        write_json(options.json, {**about, "versions": versions, "rows": rows})
    return 0


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _export(options: argparse.Namespace) -> int:
    print(export_onnx(model_folder.load_model(options.model), options.out))
    return 0
