"""A set of runs and the folder they are kept in: `settings.json`, then one line of `results.jsonl` per finished run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kcl
from kcl import results, resuming, samples
from kcl.benchmarks.catalogue import find_benchmark
from kcl.benchmarks.joint import join
from kcl.benchmarks.task import Stream
from kcl.benchmarks.ways import Ways
from kcl.data.dataset import Dataset
from kcl.errors import KclError
from kcl.loggers import LoggedRun, Loggers
from kcl.methods.method import Method
from kcl.methods.recipes import check_backbone, find_method, published_backbone
from kcl.resuming import Saving
from kcl.settings import Settings
from kcl.training.keeper import Keeper, clear
from kcl.training.learner import Learner, SeparateRuns
from kcl.training.run import Run
from kcl.training.runner import OnProgress, Outcome, run_streams
from kcl.training.stacked import StackedRuns
from kcl.training.state import CannotStack

LONG = 40_000
"""Steps from which compiling, which takes a quarter of a minute, pays on a GPU."""


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides what a run computes.

    What is None is left to the benchmark, or has no meaning for it; `Experiment` puts what the benchmark chose there.
    """

    benchmark: str
    method: str
    seed: int
    settings: Settings
    tasks: int | None = None
    train_per_task: int | None = None
    ways: Ways | None = None
    class_order: str | None = None
    image_size: int | None = None
    data: str | None = None
    """The identity of the data, where different data go by the same name."""

    @property
    def label(self) -> str:
        kernel = f" {self.settings.kernel}" if self.method == "kcl" else ""
        return f"{self.method}{kernel} seed {self.seed}"

    @property
    def key(self) -> str:
        """The same for two runs that compute the same thing."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


CHOICES = ("ways", "class_order", "image_size")
"""What a user may choose of some benchmarks."""


def _given(spec: RunSpec, names: Iterable[str]) -> dict[str, Any]:
    """The fields of a run that are not left to the benchmark."""
    return {name: value for name in names if (value := getattr(spec, name)) is not None}


def key_of(record: dict[str, Any]) -> str:
    """The key of the run that a line of results.jsonl records. Settings it lacks are younger than it: the defaults."""
    fields = {field.name: record.get(field.name) for field in dataclasses.fields(RunSpec)}
    fields["settings"] = Settings().to_dict() | record["settings"]
    return json.dumps(fields, sort_keys=True)


def merged_settings(path: Path, runs: list[dict[str, Any]], command: str) -> dict[str, Any] | None:
    """What settings.json holds when `command` adds its runs to those that are there; None where it has them all."""
    before = results.read_json(path)
    if not isinstance(before, dict) or before.get("format") != 1 or not isinstance(before.get("runs"), list):
        raise KclError(f"{path} is not one that this version of kcl wrote; move it away")
    known = {json.dumps(run, sort_keys=True) for run in before["runs"]}
    new = [run for run in runs if json.dumps(run, sort_keys=True) not in known]
    if not new:
        return None
    later = before.get("later_commands")
    later = [*(later if isinstance(later, list) else []), command]
    return before | {"runs": before["runs"] + new, "later_commands": later}


class Folder:
    """The output folder of an experiment. Made, and seen to be writable, before any work is done."""

    def __init__(self, path: Path, resume: bool, say: Callable[[str], None] = lambda _: None) -> None:
        self.path, self.say = path, say
        self.results = path / "results.jsonl"
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
            for draft in path.glob(".settings.json.*.tmp"):  # of a process that was killed
                draft.unlink()
        except OSError as error:
            raise KclError(f"cannot write to the output folder {path}: {error.strerror or error}") from None
        self.finished: dict[str, dict[str, Any]] = {}
        if not resume and (self.results.exists() or resuming.holds_any(path)):
            what = "results" if self.results.exists() else "unfinished runs"
            raise KclError(
                f"{path} holds {what} already; add --resume to keep its finished runs and do the rest, "
                "or choose another --out"
            )
        self.reload()

    def reload(self) -> None:
        """Look again at what is on the disk: an interrupt may have come just after a run was kept."""
        if self.results.exists():
            self.finished = {key_of(record): record for record in results.read(self.results, self.say)}

    def begin(self, specs: Sequence[RunSpec], command: str) -> None:
        """Save the resolved settings of everything asked for, beside those of earlier commands in the same folder."""
        path, runs = self.path / "settings.json", [json.loads(spec.key) for spec in specs]
        settings = {"format": 1, "command": command, "runs": runs}
        merged = merged_settings(path, runs, command) if path.exists() else settings
        if merged is not None:
            results.write_json(path, merged)

    def add(self, record: dict[str, Any]) -> None:
        results.append(self.results, record)
        self.finished[key_of(record)] = record

    def forget(self, checkpoints: Path) -> None:
        """Remove the checkpoints of a group, whose results are kept."""
        clear(checkpoints)
        with contextlib.suppress(OSError):  # another group's may be there
            checkpoints.parent.rmdir()


class Experiment:
    """Runs asked for, with the data they need; made only if all of them can be done."""

    def __init__(
        self,
        specs: Sequence[RunSpec],
        command: str,
        data_dir: Path | None = None,
        device: str = "cpu",
        runs_at_once: int | None = None,
        compiled: bool | None = None,
        precision: str = "tf32",
        say: Callable[[str], None] = lambda _: None,
        save_samples: bool = False,
    ) -> None:
        self.command, self.runs_at_once, self.save_samples = command, runs_at_once, save_samples
        self.compiled, self.precision = compiled, precision
        self.device = torch.device(device)
        self._datasets: dict[tuple[str, int | None], Dataset] = {}
        self._shapes: dict[str, Any] = {}
        self.specs = [self._admit(spec, data_dir, say) for spec in specs]

    def _admit(self, spec: RunSpec, data_dir: Path | None, say: Callable[[str], None]) -> RunSpec:
        """The run with its benchmark's choices made. What can be refused is refused here, before anything is written.

        `_shapes` tells of every run what must be the same for runs that are trained together.
        """
        benchmark, given = find_benchmark(spec.benchmark), _given(spec, CHOICES)
        benchmark.check_choices(spec.benchmark, given)
        spec = dataclasses.replace(spec, **{**benchmark.load_choices, **given})
        if (spec.benchmark, spec.image_size) not in self._datasets:
            loaded = benchmark.load(data_dir, say, **_given(spec, benchmark.load_choices))
            self._datasets[spec.benchmark, spec.image_size] = loaded
        stream, dataset = self._stream(spec), self._datasets[spec.benchmark, spec.image_size]
        check_backbone(stream.input_shape, spec.settings)
        method = self._method(spec, stream)
        shape = []
        for task in stream:
            method.check(task)
            shape.append((len(task.train), len(task.test), task.ways))
        choices = {name: getattr(stream, name) for name in benchmark.stream_choices}
        spec = dataclasses.replace(spec, tasks=len(stream), data=dataset.identity, **choices)
        self._shapes[spec.key] = tuple(shape)
        return spec

    def _stream(self, spec: RunSpec) -> Stream:
        benchmark, dataset = find_benchmark(spec.benchmark), self._datasets[spec.benchmark, spec.image_size]
        chosen = _given(spec, ("tasks", "train_per_task", *benchmark.stream_choices))
        return benchmark.stream(dataset, seed=spec.seed, **chosen)

    def _method(self, spec: RunSpec, stream: Stream) -> Method:
        places = sum(task.ways for task in stream)
        return find_method(spec.method)(spec.settings, len(stream.class_labels), places)

    def pending(self, folder: Folder) -> list[RunSpec]:
        return [spec for spec in self.specs if spec.key not in folder.finished]

    def records(self, folder: Folder) -> list[dict[str, Any]]:
        """The finished runs among those asked for."""
        found = (folder.finished.get(spec.key) for spec in self.specs)
        return [record for record in found if record is not None]

    def execute(
        self,
        folder: Folder,
        watch: Callable[[str], OnProgress],
        say: Callable[[str], None],
        saving: Saving = Saving(),  # noqa: B008 - it cannot be changed
        loggers: Loggers | None = None,
    ) -> None:
        """Do the runs that are not finished yet, each kept the moment it is; those begun go on."""
        begun = self._begun(folder, saving, say)
        folder.begin(self.specs, self.command)
        taken = {spec.key for group, _ in begun for spec in group}
        fresh = self._groups([spec for spec in self.pending(folder) if spec.key not in taken])
        for group, separate in [*begun, *((group, False) for group in fresh)]:
            place = f"{len(self.records(folder)) + 1}/{len(self.specs)} " if len(self.specs) > len(group) else ""
            label = place + (self._label(group[0]) if len(group) == 1 else f"{group[0].method}, {len(group)} runs")
            try:
                self._train(folder, group, separate, self._logged(group, watch(label), loggers), say, saving)
            except CannotStack as reason:
                say(f"{reason}: the {len(group)} runs are done one after another")
                for spec in group:
                    alone = self._logged([spec], watch(self._label(spec)), loggers)
                    self._train(folder, [spec], True, alone, say, saving)

    def _train(
        self,
        folder: Folder,
        group: Sequence[RunSpec],
        separate: bool,
        on_progress: OnProgress,
        say: Callable[[str], None],
        saving: Saving,
    ) -> None:
        """Train a group and keep its results; then its checkpoints are no longer needed."""
        streams, keys = [self._stream(spec) for spec in group], [spec.key for spec in group]
        about = {"runs": [json.loads(key) for key in keys], "made with": self._made_with(), "command": self.command}
        place = resuming.group_folder(folder.path, keys)
        keeper = Keeper(place, about, saving.every, saving.stop, say)
        learner = self._learner(group, streams, separate)
        outcomes = run_streams(learner, streams, on_progress, keeper)
        for spec, outcome in zip(group, outcomes, strict=True):
            if spec.key not in folder.finished:
                self._keep(folder, spec, outcome, len(group), say)
        self._keep_samples(folder, group, learner, streams)
        folder.forget(place)

    def _begun(self, folder: Folder, saving: Saving, say: Callable[[str], None]) -> list[tuple[list[RunSpec], bool]]:
        """The groups to go on with, and whether each was trained one by one; refused where something has changed."""
        asked, going_on, others = {spec.key: spec for spec in self.specs}, [], []
        for group in resuming.begun(folder.path):
            if all(key in folder.finished for key in group.keys):
                folder.forget(group.folder)
            elif all(key in asked for key in group.keys):
                resuming.check_made_with(group, self._made_with(), saving.force, say)
                going_on.append(([asked[key] for key in group.keys], group.separate))
            else:
                others.append(group)
        taken = {spec.key for specs, _ in going_on for spec in specs}
        left = [json.loads(spec.key) for spec in self.pending(folder) if spec.key not in taken]
        if others and left and not saving.force:
            resuming.refuse_others(others, left)
        return going_on

    def _made_with(self) -> dict[str, Any]:
        return resuming.made_with(self.device, device_name(self.device), self.precision)

    def _logged(self, group: Sequence[RunSpec], watch: OnProgress, loggers: Loggers | None) -> OnProgress:
        if loggers is None:
            return watch
        return loggers.follow([self._logged_run(spec) for spec in group], watch)

    def _logged_run(self, spec: RunSpec) -> LoggedRun:
        settings = spec.settings.to_dict()
        return LoggedRun(
            self._label(spec), spec.benchmark, spec.method, _kernel(spec), spec.seed, spec.tasks or 0, settings
        )

    def _label(self, spec: RunSpec) -> str:
        """The run in a few words: what tells it from the others."""
        own = spec.settings.to_dict()
        varied = [
            name
            for name in own
            if name != "kernel" and any(o.settings.to_dict()[name] != own[name] for o in self.specs)
        ]
        alike = len({other.method for other in self.specs}) == 1
        return " ".join([spec.label, *(f"{name}={own[name]}" for name in varied if alike)])

    def _keep(self, folder: Folder, spec: RunSpec, outcome: Outcome, at_once: int, say: Callable[[str], None]) -> None:
        folder.add(self._record(spec, outcome, at_once))
        if outcome.diverged:
            learned = np.isfinite(np.diagonal(outcome.matrix.values))
            task = int(learned.argmin()) + 1  # beside it, other runs may have gone on to the end
            say(f"{self._label(spec)}: diverged in task {task}, its loss is no longer finite; a lower lr may help")

    def _keep_samples(
        self, folder: Folder, group: Sequence[RunSpec], learner: Learner, streams: Sequence[Stream]
    ) -> None:
        if not self.save_samples:
            return
        names = [self._datasets[spec.benchmark, spec.image_size].class_names for spec in group]
        for spec, tasks in zip(group, samples.collect(learner, streams, names), strict=True):
            if tasks is not None:
                samples.save(folder.path, {**dataclasses.asdict(spec), "kernel": _kernel(spec)}, tasks)

    def _groups(self, specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
        """Runs to be trained together: on a GPU those that stack, on a CPU each alone, where stacking gains nothing."""
        at_once = self.runs_at_once or (1 if self.device.type == "cpu" else None)
        groups: dict[Any, list[RunSpec]] = {}
        for spec in specs:
            data = (spec.benchmark, spec.image_size, self._shapes[spec.key], spec.train_per_task)
            shared = (*data, spec.method, spec.settings.stacking_key())
            groups.setdefault(shared, []).append(spec)
        parts = []
        for group in groups.values():
            size = at_once or self._fitting(group)
            parts += [group[start : start + size] for start in range(0, len(group), size)]
        return parts

    def _fitting(self, group: Sequence[RunSpec]) -> int:
        """How many runs fit the GPU's memory, from what a step of one takes in the task with the most classes."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        stream = self._stream(group[0])
        learner = self._stacked(group[:1], [stream], compiled=False)
        try:
            largest = max(stream, key=lambda task: task.ways)
            learner.rehearse([join(list(stream), len(stream.class_labels)) if learner.joint else largest])
        except CannotStack:
            return len(group)
        each = torch.cuda.max_memory_allocated(self.device)
        return max(1, min(len(group), int(0.7 * torch.cuda.mem_get_info(self.device)[0] / each)))

    def _learner(self, group: Sequence[RunSpec], streams: Sequence[Stream], separate: bool = False) -> Learner:
        if self.device.type == "cuda" and not separate:
            return self._stacked(group, streams)
        return SeparateRuns([self._run(spec, stream) for spec, stream in zip(group, streams, strict=True)])

    def _stacked(
        self, group: Sequence[RunSpec], streams: Sequence[Stream], compiled: bool | None = None
    ) -> StackedRuns:
        pairs = list(zip(group, streams, strict=True))
        methods = [self._method(spec, stream) for spec, stream in pairs]
        backbones = [partial(published_backbone, stream.input_shape, spec.settings) for spec, stream in pairs]
        if compiled is None:
            compiled = self._steps(group[0], streams[0]) >= LONG if self.compiled is None else self.compiled
        return StackedRuns(methods, backbones, [spec.seed for spec in group], self.device, compiled, self.precision)

    def _steps(self, spec: RunSpec, stream: Stream) -> int:
        """About how many steps a run takes."""
        return spec.settings.epochs * sum(len(task.train) for task in stream) // spec.settings.batch_size

    def _run(self, spec: RunSpec, stream: Stream) -> Run:
        make_backbone = partial(published_backbone, stream.input_shape, spec.settings)
        return Run(self._method(spec, stream), make_backbone, spec.seed, self.device)

    def _record(self, spec: RunSpec, outcome: Outcome, at_once: int) -> dict[str, Any]:
        matrix = outcome.matrix
        return {
            "format": results.FORMAT,
            **dataclasses.asdict(spec),
            "kernel": _kernel(spec),
            "versions": {
                "kcl": kcl.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "device": device_name(self.device),
            "threads": torch.get_num_threads(),
            "seconds": round(outcome.seconds, 3),
            "learning_seconds": [round(seconds, 3) for seconds in outcome.learning_seconds],
            "runs_at_once": at_once,
            "precision": self.precision if self.device.type == "cuda" else "float32",
            "accuracy_matrix": matrix.to_lists(),
            "initial_accuracy": outcome.initial_accuracy,
            **matrix.summary(outcome.initial_accuracy),
            "diverged": outcome.diverged,
            "memory": outcome.memory,
            "resumed": outcome.resumed,
            "fingerprint": outcome.fingerprint,
            "command": self.command,
        }


def _kernel(spec: RunSpec) -> str | None:
    return spec.settings.kernel if spec.method == "kcl" else None


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def choose_device(name: str) -> str:
    """auto takes a GPU where there is one."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise KclError("--device cuda: PyTorch finds no CUDA GPU here; use --device cpu")
    return "cuda" if available and name != "cpu" else "cpu"


def choose_threads(asked: int | None) -> int:
    """One thread unless more are asked for: the order of a sum, and so the last digits of a result, depend on it.

    Threads that meet others on a core also wait for each other far longer than they save.
    """
    cores = os.cpu_count() or 1
    if asked is not None and not 1 <= asked <= cores:
        raise KclError(f"--threads must be a whole number from 1 to {cores}, the cores of this machine, not {asked}")
    return asked or 1
