"""A set of runs: which of them are trained together, how, and what is kept of each (`folder`)."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import kcl
from kcl.benchmarks.held_out import hold_out
from kcl.benchmarks.joint_task import join
from kcl.benchmarks.registry import find_benchmark
from kcl.benchmarks.task import Stream
from kcl.core import results
from kcl.core.devices import device_name
from kcl.core.settings import AT_TEST, Settings
from kcl.data.dataset import Dataset
from kcl.errors import KclError
from kcl.experiments import remote_checkpoints, resuming, task_samples
from kcl.experiments.loggers import LoggedRun, Loggers
from kcl.experiments.resuming import Saving
from kcl.experiments.run_folder import Folder, Keeping
from kcl.experiments.run_spec import CHOICES, RunSpec, by_training, given
from kcl.methods.method import Method
from kcl.methods.recipes import check_backbone, find_method, published_backbone
from kcl.ops.precision import used
from kcl.training.batches import CannotStack
from kcl.training.checkpointer import Keeper
from kcl.training.compiler import need_compiler
from kcl.training.stack import LONG, RunStack, stacks
from kcl.training.stream_run import OnProgress, Outcome, run_streams

_ANY = Settings()
DatasetName = tuple[str, int | None, float | None]
"""Benchmark, image size and share held out: what decides the arrays that runs share."""


def dataset_name(spec: RunSpec) -> DatasetName:
    return spec.benchmark, spec.image_size, spec.held_out


class Group(NamedTuple):
    """Runs that are trained together; those that share a training follow one another."""

    specs: list[RunSpec]
    separate: bool = False
    """Whether they are trained one after another although they are together."""
    begun: bool = False
    """Whether a checkpoint of them was found."""


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
        datasets: Mapping[DatasetName, Dataset] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        self.command, self.runs_at_once, self.save_samples = command, runs_at_once, save_samples
        self.compiled, self.precision = compiled, precision
        self.device, self.notes = torch.device(device), dict(notes or {})
        if self.device.type == "cpu" and compiled:
            need_compiler()
        self.datasets: dict[DatasetName, Dataset] = dict(datasets or {})
        self._shapes: dict[str, Any] = {}
        self._admitted: dict[Any, tuple[dict[str, Any], Any]] = {}
        self.specs = [self._admit(spec, data_dir, say) for spec in specs]
        self._varied = _varied(self.specs)

    def _admit(self, spec: RunSpec, data_dir: Path | None, say: Callable[[str], None]) -> RunSpec:
        """The run with its benchmark's choices made. What can be refused is refused here, before anything is written.

        `_shapes` tells of every run what must be the same for runs that are trained together.
        """
        benchmark, chosen = find_benchmark(spec.benchmark), given(spec, CHOICES)
        benchmark.check_choices(spec.benchmark, chosen)
        spec = replace(spec, **{**benchmark.load_choices, **chosen})
        if dataset_name(spec) not in self.datasets:
            loaded = benchmark.load(data_dir, say, **given(spec, benchmark.load_choices))
            self.datasets[dataset_name(spec)] = loaded if spec.held_out is None else hold_out(loaded, spec.held_out)
        alike = (replace(spec, settings=_ANY), spec.settings.stacking_key(), spec.settings.testing_key())
        if alike not in self._admitted:  # a grid over numbers asks for the same tasks again and again
            stream, dataset = self._stream(spec), self.datasets[dataset_name(spec)]
            check_backbone(stream.input_shape, spec.settings)
            method = self._method(spec, stream)
            shape = []
            for task in stream:
                method.check(task)
                shape.append((len(task.train), len(task.test), task.ways))
            choices = {name: getattr(stream, name) for name in benchmark.stream_choices}
            self._admitted[alike] = ({"tasks": len(stream), "data": dataset.identity, **choices}, tuple(shape))
        made, own_shape = self._admitted[alike]
        spec = replace(spec, **made)
        self._shapes[spec.key] = own_shape
        return spec

    def _stream(self, spec: RunSpec) -> Stream:
        benchmark, dataset = find_benchmark(spec.benchmark), self.datasets[dataset_name(spec)]
        chosen = given(spec, ("tasks", "train_per_task", *benchmark.stream_choices))
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
        failed: Callable[[Group, Exception], None] | None = None,
    ) -> None:
        """Do the runs that are not finished yet, each kept the moment it is; those begun go on.

        `failed` is told of a group that raised what nobody expected, and the others go on; without it that is raised.
        """
        for group in self.plan(folder, saving, say):
            place = f"{len(self.records(folder)) + 1}/{len(self.specs)} " if len(self.specs) > len(group.specs) else ""
            try:
                self.train(group, folder, watch, say, saving, loggers, place)
            except (KclError, OSError):  # what was asked for, or a pipe or a disk: the others would meet it too
                raise
            except Exception as error:
                if failed is None:
                    raise
                failed(group, error)

    def plan(
        self, folder: Folder, saving: Saving, say: Callable[[str], None], at_once: int | None = None
    ) -> list[Group]:
        """What is left to do, cut into groups: those begun first. `at_once`: as many together, on whatever device."""
        begun = self._begun(folder, saving, say, elsewhere=at_once is not None)
        folder.begin(self.specs, self.command)
        taken = {spec.key for group in begun for spec in group.specs}
        left = [spec for spec in self.pending(folder) if spec.key not in taken]
        fresh, trainings = self.groups(left, at_once), len(by_training(left))
        if trainings < len(left):
            counted = "one training" if trainings == 1 else f"{trainings} trainings"
            say(f"{len(left)} runs are {counted}: some differ in how they are tested only")
        return [*begun, *(Group(specs) for specs in fresh)]

    def train(
        self,
        group: Group,
        folder: Keeping,
        watch: Callable[[str], OnProgress],
        say: Callable[[str], None],
        saving: Saving,
        loggers: Loggers | None = None,
        place: str = "",
    ) -> None:
        """Train a group and keep its results; one run after another where they cannot be stacked, in halves where the
        GPU's memory turns out too small for all: other programs may have taken some since `groups` looked at it.
        """
        specs, separate = group.specs, group.separate
        label = place + self.group_label(group)
        try:
            return self._train(folder, specs, separate, self.logged(specs, watch(label), loggers), say, saving)
        except CannotStack as reason:
            parts = [Group(own, separate=True) for own in by_training(specs)]
            say(f"{reason}: the {len(specs)} runs are done one after another")
        except torch.OutOfMemoryError:
            parts = self._halves(group, folder)
            if not parts:
                raise
            say(f"{self.group_label(group)} do not fit what is left of the GPU's memory: they are done in two halves")
        torch.cuda.empty_cache()
        for part in parts:
            self.train(part, folder, watch, say, saving, loggers)
        return None

    def _halves(self, group: Group, folder: Keeping) -> list[Group]:
        """None of a single training, nor of a group that has got as far as a checkpoint, which would be lost."""
        trainings = by_training(group.specs)
        begun = resuming.group_folder(folder.path, [spec.key for spec in chain(*trainings)]).exists()
        if begun or len(trainings) < 2:
            return []
        middle = (len(trainings) + 1) // 2
        return [Group(list(chain(*own)), group.separate) for own in (trainings[:middle], trainings[middle:])]

    def group_label(self, group: Group) -> str:
        specs = group.specs
        if len(specs) == 1:
            return self.label(specs[0])
        if len(by_training(specs)) == 1:
            return f"{self.label(specs[0], but=AT_TEST)} tested in {len(specs)} ways"
        return f"{specs[0].method}, {len(specs)} runs"

    def _train(
        self,
        folder: Keeping,
        group: Sequence[RunSpec],
        separate: bool,
        on_progress: OnProgress,
        say: Callable[[str], None],
        saving: Saving,
    ) -> None:
        """Train a group and keep its results; then its checkpoints are no longer needed."""
        trainings = by_training(group)
        group = [spec for own in trainings for spec in own]
        streams = [stream for own in trainings for stream in [self._stream(own[0])] * len(own)]
        shared = [len(own) for own in trainings for _ in own]
        keys = [spec.key for spec in group]
        about = {"runs": [json.loads(key) for key in keys], "made with": self.made_with(), "command": self.command}
        place = resuming.group_folder(folder.path, keys)
        keeper = remote_checkpoints.keeper(saving.checkpoints, Keeper(place, about, saving.every, saving.stop, say))
        learner = self._learner(group, streams, separate)
        outcomes = run_streams(learner, streams, on_progress, keeper)
        for spec, outcome, variants in zip(group, outcomes, shared, strict=True):
            if spec.key not in folder.finished:
                self._keep(folder, spec, outcome, (len(trainings), variants), say)
        self._keep_samples(folder, group, learner, streams)
        folder.forget(place, saving.checkpoints)

    def _begun(self, folder: Folder, saving: Saving, say: Callable[[str], None], elsewhere: bool) -> list[Group]:
        """The groups to go on with; refused where something has changed. `elsewhere`: another process looks at that."""
        asked, going_on, others = {spec.key: spec for spec in self.specs}, [], []
        for group in resuming.begun(folder.path):
            if all(key in folder.finished for key in group.keys):
                folder.forget(group.folder, saving.checkpoints)
            elif all(key in asked for key in group.keys):
                if not elsewhere:
                    resuming.check_made_with(group, self.made_with(), saving.force, say)
                going_on.append(Group([asked[key] for key in group.keys], group.separate, begun=True))
            else:
                others.append(group)
        taken = {spec.key for own in going_on for spec in own.specs}
        left = [json.loads(spec.key) for spec in self.pending(folder) if spec.key not in taken]
        if others and left and not saving.force:
            resuming.refuse_others(others, left)
        return going_on

    def made_with(self) -> dict[str, Any]:
        return resuming.made_with(self.device, device_name(self.device), self.precision, self.compiled)

    def logged(self, group: Sequence[RunSpec], watch: OnProgress, loggers: Loggers | None) -> OnProgress:
        if loggers is None:
            return watch
        return loggers.follow([self._logged_run(spec) for spec in group], watch)

    def _logged_run(self, spec: RunSpec) -> LoggedRun:
        settings = spec.settings.to_dict()
        return LoggedRun(
            self.label(spec), spec.benchmark, spec.method, _kernel(spec), spec.seed, spec.tasks or 0, settings
        )

    def label(self, spec: RunSpec, but: Collection[str] = ()) -> str:
        """The run in a few words: what tells it from the others."""
        varied = (name for name in self._varied if name not in but)
        return " ".join([spec.label, *(f"{name}={getattr(spec.settings, name)}" for name in varied)])

    def _keep(
        self, folder: Keeping, spec: RunSpec, outcome: Outcome, company: tuple[int, int], say: Callable[[str], None]
    ) -> None:
        folder.add(self._record(spec, outcome, *company))
        if outcome.diverged:
            learned = np.isfinite(np.diagonal(outcome.matrix.values))
            task = int(learned.argmin()) + 1  # beside it, other runs may have gone on to the end
            say(f"{self.label(spec)}: diverged in task {task}, its loss is no longer finite; a lower lr may help")

    def _keep_samples(
        self, folder: Keeping, group: Sequence[RunSpec], learner: RunStack, streams: Sequence[Stream]
    ) -> None:
        if not self.save_samples:
            return
        names = [self.datasets[dataset_name(spec)].class_names for spec in group]
        for spec, tasks in zip(group, task_samples.collect(learner, streams, names), strict=True):
            if tasks is not None:
                task_samples.save(folder.path, {**spec.fields(), "kernel": _kernel(spec)}, tasks)

    def groups(self, specs: Sequence[RunSpec], at_once: int | None = None) -> list[list[RunSpec]]:
        """Runs to be trained together: on a GPU those that stack, on a CPU each alone, where stacking gains nothing.

        Runs that share a training are always together, and count as one.
        """
        at_once = 1 if self.device.type == "cpu" else at_once or self.runs_at_once
        groups: dict[Any, list[list[RunSpec]]] = {}
        for training in by_training(specs):
            spec = training[0]
            data = (*dataset_name(spec), self._shapes[spec.key], spec.train_per_task)
            shared = (*data, spec.method, spec.settings.stacking_key())
            groups.setdefault(shared, []).append(training)
        parts = []
        for group in groups.values():
            size = at_once or self._fitting(group)
            parts += [list(chain(*group[start : start + size])) for start in range(0, len(group), size)]
        return parts

    def _fitting(self, group: Sequence[Sequence[RunSpec]]) -> int:
        """How many trainings fit the GPU's memory, from what a step of one takes in the task with the most classes, and
        what its classifier takes, in whichever way it is tested: a captured step gives nothing back while the runs are
        tested.
        """
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        specs = _tested_in_every_way(group)
        stream = self._stream(specs[0])
        learner = self._stacked(specs, [stream] * len(specs), compiled=False)
        try:
            largest = max(stream, key=lambda task: task.ways)
            learner.rehearse([join(list(stream), len(stream.class_labels)) if learner.joint else largest])
        except CannotStack:
            return len(group)
        each = torch.cuda.max_memory_allocated(self.device)
        if learner.method.keeps_coresets:
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            learner.rehearse_classifier([largest])
            each += torch.cuda.max_memory_allocated(self.device) - before
        return max(1, min(len(group), int(0.7 * torch.cuda.mem_get_info(self.device)[0] / each)))

    def _learner(self, group: Sequence[RunSpec], streams: Sequence[Stream], separate: bool = False) -> RunStack:
        if self._stacks and not separate:
            return self._stacked(group, streams)
        [(own, stream)] = _trainings(group, streams)
        methods = [self._method(spec, stream) for spec in own]
        backbone = partial(published_backbone, stream.input_shape, own[0].settings)
        return RunStack(
            [methods[0]], [backbone], [own[0].seed], self.device, False, self.precision, [methods], plain=True
        )

    @property
    def _stacks(self) -> bool:
        return stacks(self.device, self.compiled)

    def _stacked(self, group: Sequence[RunSpec], streams: Sequence[Stream], compiled: bool | None = None) -> RunStack:
        pairs = _trainings(group, streams)
        variants = [[self._method(spec, stream) for spec in own] for own, stream in pairs]
        backbones = [partial(published_backbone, stream.input_shape, own[0].settings) for own, stream in pairs]
        if compiled is None:
            compiled = self.steps(group[0], streams[0]) >= LONG if self.compiled is None else self.compiled
        methods, seeds = [own[0] for own in variants], [own[0].seed for own, _ in pairs]
        return RunStack(methods, backbones, seeds, self.device, compiled, self.precision, variants)

    def steps(self, spec: RunSpec, stream: Stream) -> int:
        """About how many steps a run takes."""
        return _steps(spec.settings, sum(len(task.train) for task in stream))

    def planned_steps(self, spec: RunSpec) -> int:
        """The same, for one of the runs asked for, without a look at its stream."""
        return _steps(spec.settings, sum(train for train, _, _ in self._shapes[spec.key]))

    def _record(self, spec: RunSpec, outcome: Outcome, at_once: int, shared: int) -> dict[str, Any]:
        """`at_once`: trainings done together. `shared`: runs that this training gave, each tested in its own way."""
        matrix = outcome.matrix
        return {
            "format": results.FORMAT,
            **spec.fields(),
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
            "training_shared_by": shared,
            "precision": used(self.precision, self.device, self.compiled),
            "accuracy_matrix": matrix.to_lists(),
            "initial_accuracy": outcome.initial_accuracy,
            **matrix.summary(outcome.initial_accuracy),
            "diverged": outcome.diverged,
            "memory": outcome.memory,
            "resumed": outcome.resumed,
            "fingerprint": outcome.fingerprint,
            "command": self.command,
            **self.notes,
        }


def _trainings(group: Sequence[RunSpec], streams: Sequence[Stream]) -> list[tuple[list[RunSpec], Stream]]:
    """The runs by training, and the stream of each. `streams`: of every run."""
    of_each = {spec.trained: stream for spec, stream in zip(group, streams, strict=True)}
    return [(own, of_each[own[0].trained]) for own in by_training(group)]


def _tested_in_every_way(trainings: Sequence[Sequence[RunSpec]]) -> list[RunSpec]:
    """One training with as many variants as any, and with whatever other ways of testing there are."""
    most = max(trainings, key=len)
    others = {spec.settings.testing_key(): spec.settings for own in trainings for spec in own}
    own = {spec.settings.testing_key() for spec in most}
    more = [settings for key, settings in others.items() if key not in own]
    changes = [{name: getattr(settings, name) for name in AT_TEST} for settings in more]
    return [*most, *(replace(most[0], settings=most[0].settings.replace(**change)) for change in changes)]


def _steps(settings: Settings, samples: int) -> int:
    return settings.epochs * samples // settings.batch_size * settings.updates_per_batch


def _varied(specs: Sequence[RunSpec]) -> list[str]:
    """The settings, beside the kernel, in which runs of one method differ."""
    if len({spec.method for spec in specs}) != 1:
        return []
    names = [name for name in specs[0].settings.to_dict() if name != "kernel"]
    return [name for name in names if len({getattr(spec.settings, name) for spec in specs}) > 1]


def _kernel(spec: RunSpec) -> str | None:
    return spec.settings.kernel if spec.method == "kcl" else None
