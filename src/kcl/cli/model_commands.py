"""`kcl update`, `forget`, `merge`, `export`: one model that keeps learning."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcl.cli.commands import say, saying_warnings
from kcl.cli.options import SEVERAL, add_device, one_of, option, split_assignment, use_device
from kcl.errors import KclError

if TYPE_CHECKING:
    from kcl.data.user_data import Samples
    from kcl.models.continual_model import ContinualModel
    from kcl.training.step_progress import OnStep, Step


# fmt: off
def add_model(command: argparse.ArgumentParser) -> None:
    option(command, "--model DIR", "the folder of the model's versions", type=Path, required=True)
    option(command, "--label COLUMN", "label column of a table (default: label)", default="label")
    add_device(command)


def add_update(command: argparse.ArgumentParser) -> None:
    option(command, "--data PATH", "a folder of images by class, or an .npz, .csv or .parquet file", type=Path,
           required=True)
    option(command, "--task NAME", "a new task, or an old one to extend", required=True)
    option(command, "--head NAME", "for a new model: auto, coreset or streaming (default: auto, by the data)",
           type=one_of("kcl.models.defaults:HEADS"))
    option(command, "--set NAME=VALUE", "settings of a new model (`kcl list settings` or `streaming-settings`)",
           dest="assignments", **SEVERAL)
    option(command, "--seed", "seed of a new model (default: 0)", type=int)
    option(command, "--held-out SHARE", "for a new model: the share of samples that test it (default: 0.1)", type=float)
    option(command, "--image-size PIXELS", "for a new model: side length to which images are resized (default: the "
           "images' own, at most 84)", type=int)
    add_model(command)
    command.set_defaults(function=_update)


def add_forget(command: argparse.ArgumentParser) -> None:
    option(command, "--task NAME", "the task to forget, or to forget something of", required=True)
    option(command, "--class LABEL", "forget these classes of the task only", dest="classes", nargs="+",
           action="extend")
    option(command, "--samples PATH", "forget these samples only, with their labels, as they were learned", type=Path)
    option(command, "--purge", "remove the versions in the model's folder that still contain it", action="store_true")
    add_model(command)
    command.set_defaults(function=_forget)


def add_merge(command: argparse.ArgumentParser) -> None:
    option(command, "models DIR", "models with the same features, scaling and settings", type=Path, nargs="+")
    option(command, "--out DIR", "folder of the merged model's versions", type=Path, required=True)
    command.set_defaults(function=_merge)


def add_reject_unknown(command: argparse.ArgumentParser) -> None:
    option(command, "--known PATH", "samples in scope that were not learned, with or without labels", type=Path,
           required=True)
    option(command, "--task NAME", "for answers to this task (default: without a task's name)")
    option(command, "--score NAME", "residual (default), response, mahalanobis or variance: docs/streaming.md",
           type=one_of("kcl.models.unknowns:SCORES"))
    option(command, "--error-rate SHARE", "share of samples in scope that may be rejected (default: 0.05)", type=float)
    add_model(command)
    command.set_defaults(function=_reject_unknown)


def add_export(command: argparse.ArgumentParser) -> None:
    option(command, "model DIR", "the folder of the model's versions, or one version", type=Path)
    option(command, "--out FILE", "the ONNX file to write", type=Path, required=True)
    command.set_defaults(function=_export)
# fmt: on


@contextlib.contextmanager
def _new_version(folder: Path) -> Iterator[Path]:
    """The folder of the next version, under the model's lock: of two commands that start from the same version, the
    later would lose what the other learned. An empty folder that was made for the lock is removed if nothing is saved.
    """
    from kcl.core.locking import locked
    from kcl.models import model_folder

    existed = folder.exists()
    model_folder.next_version(folder)  # refuses an unsuitable folder before a lock is put there
    try:
        with locked(folder):
            yield model_folder.next_version(folder)
    except BaseException:
        if not existed:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def load_model_and(options: argparse.Namespace, path: Path, labelled: bool) -> tuple[ContinualModel, Samples]:
    """The model, and the user's data read as it learned its own: in its columns, images cut to its size."""
    from kcl.data import user_data
    from kcl.models import model_folder

    model = model_folder.load_model(options.model, device=use_device(options))
    shape = model.input_shape or ()
    side = shape[-1] if len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2] else None
    return model, user_data.read(path, labelled, options.label, side, model.columns, say)


def _update(options: argparse.Namespace) -> int:
    from kcl.models import model_folder

    with _new_version(options.model) as out:
        if out.name == "0001":
            model, data = _new_model(options)
        elif options.assignments or {options.seed, options.held_out, options.image_size, options.head} != {None}:
            raise KclError(
                f"{options.model} already holds a model: --head, --set, --seed, --held-out and --image-size are for "
                "new ones"
            )
        else:
            model, data = load_model_and(options, options.data, labelled=True)
        with _shown_steps(options.task) as on_step, saying_warnings():
            model.learn(data.inputs, data.labels, options.task, on_step)
        model_folder.save_model(model, out)
    update = model.history[-1]
    print(f"learned {update['samples']} samples of {update['classes']} classes of task {options.task!r}")
    if "held_out" in update:
        print(f"{update['held_out']} samples held out: {update['held_out_accuracy']:.1f} % classified correctly")
    print(f"model: {out} ({model.describe()})")
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


def _new_model(options: argparse.Namespace) -> tuple[ContinualModel, Samples]:
    """A model that chooses its settings by the data, but for those that the user gives; and the data."""
    from kcl.data import user_data
    from kcl.methods.kcl_settings import KclSettings
    from kcl.models.continual_model import ContinualModel
    from kcl.models.streaming_heads import StreamingSettings

    data, head = user_data.read(options.data, True, options.label, options.image_size, say=say), options.head or "auto"
    kind = StreamingSettings if head == "streaming" else KclSettings
    assigned = dict(map(split_assignment, options.assignments))
    settings: dict[str, Any] = {name: kind.parse(name, text) for name, text in assigned.items()}
    share = 0.1 if options.held_out is None else options.held_out
    device = use_device(options)
    model = ContinualModel(options.seed or 0, device=device, held_out_share=share, head=head, **settings)
    model.columns = data.columns
    return model, data


def _forget(options: argparse.Namespace) -> int:
    """Save a version without what is to be forgotten, and name or remove the older ones that contain it."""
    import shutil

    from kcl.models import model_folder

    with _new_version(options.model) as out:
        if out.name == "0001":
            raise KclError(f"{options.model} holds no model that could forget anything")
        samples = classes = None
        if options.samples is not None:
            model, data = load_model_and(options, options.samples, labelled=True)
            samples = data.inputs, data.labels
        else:
            model = model_folder.load_model(options.model, device=use_device(options))
        if options.classes is not None and options.task in model.tasks:
            by_text = {str(label): label for label in model.tasks[options.task].labels}
            classes = [by_text.get(text, text) for text in options.classes]
        receipt = model.forget(options.task, classes, samples)
        model_folder.save_model(model, out)
        print(f"forgot {receipt.forgotten} ({receipt.samples} samples); rounding changed weights by {receipt.gap:.1e}")
        print(f"statistics before: sha256 {receipt.digest_before}")
        print(f"statistics after:  sha256 {receipt.digest_after}")
        older = [folder for folder in model_folder.versions(options.model) if folder != out]
        remaining = [folder for folder in older if options.task in model_folder.read_about(folder)["tasks"]]
        # An export does not say which tasks it knows; all that are here are older than this version.
        remaining += [path for path in sorted(Path(options.model).rglob("*.onnx*")) if remaining and path.is_file()]
        for path in remaining if options.purge else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if remaining:
            names = ", ".join(str(path.relative_to(options.model)) for path in remaining)
            print(f"removed {names}" if options.purge else f"still contained in {names}: --purge removes them")
            print("copies and exports outside this folder are not known to kcl")
        print(f"model: {out}")
    return 0


def _reject_unknown(options: argparse.Namespace) -> int:
    from kcl.models import model_folder
    from kcl.models.unknowns import DEFAULT_RATE, DEFAULT_SCORE

    with _new_version(options.model) as out:
        model, data = load_model_and(options, options.known, labelled=False)
        rate = DEFAULT_RATE if options.error_rate is None else options.error_rate
        known = model.reject_unknown(data.inputs, rate, options.score or DEFAULT_SCORE, options.task)
        model_folder.save_model(model, out)
    print(f"queries are answered from a {known.score} score of {known.threshold:.6g} on, as {100 - 100 * rate:g} % of "
          f"queries like these {len(known.scores)} are")  # fmt: skip
    print(f"model: {out}")
    return 0


def _merge(options: argparse.Namespace) -> int:
    from kcl.models import model_folder
    from kcl.models.merging import merge

    with _new_version(options.out) as out:
        merged = merge(*(model_folder.load_model(folder) for folder in options.models))
        model_folder.save_model(merged, out)
    print(f"merged {len(options.models)} models: {len(merged.tasks)} tasks, {len(merged.labels)} classes")
    print(f"model: {out}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from kcl.models.model_folder import load_model
    from kcl.models.onnx_export import export_onnx

    print(export_onnx(load_model(options.model), options.out))
    return 0
