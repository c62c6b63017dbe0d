"""Avalanche's face: KCL as a strategy on Avalanche's benchmarks, and our streams as benchmarks of theirs.

    benchmark = as_benchmark(kcl.PermutedMNIST(...))
    strategy = KernelContinualStrategy(input_shape=(1, 28, 28), class_count=10, evaluator=...)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)

A task is learned by the library's own engine: coreset, batches, noise and learning rates are fixed by the seed, as
everywhere else, and a run through Avalanche is the run without it. Avalanche drives everything around that:
experiences, evaluation, metrics, loggers. What it offers to look into a step of its own training loop does not exist
here; a plugin that needs such a look is refused rather than left without effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

try:
    from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline, with_task_labels
    from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute, TaskLabels
    from avalanche.core import BaseSGDPlugin
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.plugins.evaluation import default_evaluator
    from avalanche.training.templates import BaseTemplate, SupervisedTemplate
except ImportError as error:
    raise ImportError(
        f"kcl.models.avalanche needs avalanche-lib 0.6 ({error}): pip install 'kernel-continual-learning[avalanche]'"
    ) from error

from kcl.benchmarks.task import Examples, Stream, Task, View
from kcl.errors import KclError
from kcl.methods.kcl import KernelContinualLearning, KernelModel
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import published_backbone
from kcl.models.inference import Answerer, KnownTask
from kcl.nets.backbone import Backbone, ModuleBackbone
from kcl.training.stack import RunStack
from kcl.training.step_progress import Step

BATCH = 1024
NEVER_CALLED = (
    *("before_training_epoch", "before_training_iteration", "before_forward", "after_forward", "before_backward"),
    *("after_backward", "before_update", "after_update", "after_training_iteration", "after_training_epoch"),
    *("before_train_dataset_adaptation", "after_train_dataset_adaptation"),
)
"""Avalanche's callbacks from within its training loop, which is not used here."""


class KernelContinualStrategy(SupervisedTemplate):  # type: ignore[misc]
    """Kernel continual learning as a strategy. Every experience must be one task, with a task label of its own.

    `settings` may be `KclSettings` or some of them by name; batch size, epochs, learning rates and optimiser are
    settings (`kcl list settings`). `backbone` may be any module with one row of features per input. `class_count` is
    how many classes there are in all experiences. Asked for a task that was not learned yet, all classes score the
    same.
    """

    def __init__(
        self,
        *,
        input_shape: Sequence[int],
        class_count: int,
        settings: KclSettings | Mapping[str, Any] | None = None,
        seed: int = 0,
        backbone: nn.Module | None = None,
        device: str | torch.device = "cpu",
        eval_mb_size: int = BATCH,
        plugins: Sequence[Any] | None = None,
        evaluator: EvaluationPlugin | Callable[[], EvaluationPlugin] = default_evaluator,
        eval_every: int = -1,
    ) -> None:
        chosen = settings if isinstance(settings, KclSettings) else KclSettings().replace(**(settings or {}))
        if eval_every not in (-1, 0):
            raise KclError(f"eval_every={eval_every}: give 0 to evaluate after every experience, or -1 not to")
        for plugin in plugins or ():
            _check_plugin(plugin)
        self.input_shape, self.class_count = tuple(input_shape), class_count
        method = KernelContinualLearning(chosen, class_count)
        make = partial(self._backbone, backbone, chosen)
        self.stack = RunStack([method], [make], [seed], device, precision="float32", plain=True)
        network = self.stack.model_at_test(0)
        assert isinstance(network, KernelModel)  # noqa: S101 - what the method builds
        self.answerer = Answerer(method, network, seed)
        self.classes: dict[int, tuple[int, ...]] = {}
        """The classes of every learned task, by its place."""
        self.places: dict[int, int] = {}
        """The place of every learned task, in the order of learning, by its task label."""
        super().__init__(
            model=self.stack.models[0],
            optimizer=None,  # every task begins with one of its own
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=chosen.batch_size,
            train_epochs=chosen.epochs,
            eval_mb_size=eval_mb_size,
            device=self.stack.device,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
        )

    def _backbone(self, given: nn.Module | None, settings: KclSettings) -> Backbone:
        if given is None:
            return published_backbone(self.input_shape, settings)
        return ModuleBackbone(given, self.input_shape)

    # Learning

    def _before_training_exp(self, **kwargs: Any) -> None:
        """Plugins are told; none may change what is learned from, as those that replay samples do."""
        self.train_dataset_adaptation()
        given, self.dataloader = self.adapted_dataset, ()
        BaseTemplate._before_training_exp(self, **kwargs)  # no loader and no optimiser of Avalanche's are needed
        if self.adapted_dataset is not given or self.dataloader != ():
            raise KclError("a plugin has changed the samples to learn from, which KernelContinualStrategy does not use")

    def _train_exp(self, experience: Any, eval_streams: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        label, place = _task_label(experience), len(self.places)
        if label in self.places:
            raise KclError(
                f"experience {experience.current_experience} has the task label {label}, which was learned before; "
                "every experience must be a task of its own: make the benchmark with return_task_id=True or "
                "task_incremental_benchmark"
            )
        task = self._task(experience, place)
        self.stack.learn([task], self._count)
        if self.stack.diverged[0]:
            raise KclError(f"the loss of task {label} stopped being finite; a lower lr may help")
        self.places[label], self.classes[place] = place, task.classes
        self.answerer.tasks[place] = KnownTask(self.stack.memory_kept(0, place), task.view)
        self.answerer.weights_changed()

    def _count(self, step: Step) -> None:
        """Metrics are placed by the steps that were taken."""
        self.loss = torch.tensor([step.loss], device=self.device)
        self.clock.after_training_iteration(self)

    def _task(self, experience: Any, place: int) -> Task:
        """An experience as the library knows it, its samples in memory."""
        inputs, targets = _samples(experience.dataset.train())
        if tuple(inputs.shape[1:]) != self.input_shape:
            raise KclError(f"samples have shape {tuple(inputs.shape[1:])}; input_shape says {self.input_shape}")
        classes = targets.unique()
        if int(classes[0]) < 0 or int(classes[-1]) >= self.class_count:
            raise KclError(f"targets reach from {int(classes[0])} to {int(classes[-1])}; class_count says "
                           f"{self.class_count}")  # fmt: skip
        train = Examples(inputs, torch.arange(len(inputs)), torch.searchsorted(classes, targets))
        none = Examples(inputs[:0], torch.arange(0), targets[:0])
        return Task(place, train, none, tuple(classes.tolist()), View())

    # Answering

    def model_adaptation(self, model: nn.Module | None = None) -> nn.Module:
        """The model stays as it is: what a task adds is in its coreset."""
        return self.stack.models[0] if model is None else model

    def forward(self) -> Tensor:
        """Scores of all classes, −∞ for those that are not of the sample's task; equal where the task is not known."""
        inputs, labels = self.mb_x, self.mb_task_id
        scores = torch.zeros(len(inputs), self.class_count, device=self.device)
        for label in labels.unique().tolist():
            place = self.places.get(label)
            if place is None:
                continue
            rows = torch.nonzero(labels == label).flatten()
            own = torch.full((len(rows), self.class_count), -torch.inf, device=self.device)
            own[:, list(self.classes[place])] = self.answerer.logits(View().scale(inputs[rows]), place)
            scores[rows] = own
        return scores


def as_benchmark(stream: Stream) -> Any:
    """A stream as an Avalanche benchmark: one experience a task, its number the task label, a train and a test stream.

    Samples are as the network sees them: pixels moved, bytes divided by 255. Targets are places among the stream's
    `class_labels`.
    """
    tasks = list(stream)
    parts = {"train": [task.train for task in tasks], "test": [task.test for task in tasks]}
    datasets = {
        name: [_dataset(task, examples) for task, examples in zip(tasks, own, strict=True)]
        for name, own in parts.items()
    }
    return with_classes_timeline(with_task_labels(benchmark_from_datasets(**datasets)))


class _Seen(Dataset[tuple[Tensor, int]]):
    """A task's samples as the network sees them, made when asked for."""

    def __init__(self, task: Task, examples: Examples) -> None:
        self.view, self.examples = task.view, examples
        self.targets = torch.tensor(task.classes)[examples.labels].tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.view(self.examples.inputs[self.examples.rows[index]][None])[0], self.targets[index]


def _dataset(task: Task, examples: Examples) -> Any:
    seen = _Seen(task, examples)
    labels = TaskLabels([task.index] * len(seen))
    return AvalancheDataset([seen], data_attributes=[DataAttribute(seen.targets, "targets"), labels])


def _task_label(experience: Any) -> int:
    labels = getattr(experience, "task_labels", None)
    if labels is None:
        raise KclError("the experiences have no task labels; make the benchmark with task_incremental_benchmark")
    if len(labels) != 1:
        raise KclError(f"experience {experience.current_experience} holds {len(labels)} tasks; it must be one")
    return int(labels[0])


def _samples(dataset: Any) -> tuple[Tensor, Tensor]:
    """All of them, in order: (n, …) in bytes or float32, and the targets."""
    inputs, targets = [], []
    try:
        # A loader draws a number, whether it needs it or not: not from the global generator.
        for batch in DataLoader(dataset, BATCH, generator=torch.Generator()):
            inputs.append(batch[0])
            targets.append(batch[1])
        stacked, labels = torch.cat(inputs), torch.cat(targets).long()
    except (TypeError, RuntimeError) as error:
        told = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise KclError(f"the samples are no tensors of one shape ({told}); give the benchmark a transform") from None
    return (stacked if stacked.dtype == torch.uint8 else stacked.float()), labels


def _check_plugin(plugin: Any) -> None:
    """Refuse what would wait for calls that never come. An evaluation plugin only listens."""
    if isinstance(plugin, EvaluationPlugin):
        return
    idle = [name for name in NEVER_CALLED if _overrides(plugin, name)]
    if idle:
        raise KclError(
            f"{type(plugin).__name__} wants to be called in the midst of training ({', '.join(idle)}), which "
            "KernelContinualStrategy does not do"
        )


def _overrides(plugin: Any, name: str) -> bool:
    own, plain = getattr(type(plugin), name, None), getattr(BaseSGDPlugin, name)
    return own is not None and own is not plain
