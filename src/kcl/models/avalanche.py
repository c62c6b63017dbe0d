"""Integration with Avalanche: KCL as an Avalanche strategy, and kcl streams as Avalanche benchmarks.

    benchmark = as_benchmark(kcl.PermutedMNIST(...))
    strategy = KernelContinualStrategy(input_shape=(1, 28, 28), class_count=10, evaluator=...)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)

Tasks are learned by kcl's own engine: the seed fixes coreset, batches, noise and learning rates, so that a run through
Avalanche equals a run without it. Avalanche drives the rest: experiences, evaluation, metrics, loggers. Its callbacks
within a training step are never called; a plugin that needs them raises an error instead of having no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
except (ImportError, RuntimeError) as error:  # RuntimeError: what a torchvision raises that was built for another torch
    raise ImportError(
        f"kcl.models.avalanche needs avalanche-lib 0.6 and a torchvision built for this PyTorch ({error}): "
        "pip install 'kernel-continual-learning[avalanche]', and torch and torchvision from the same index"
    ) from error

from kcl.benchmarks.task import Examples, Stream, Task, View
from kcl.errors import KclError
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.kcl_settings import KclSettings
from kcl.models.inference import Answerer, start_run
from kcl.training.step_progress import Step

BATCH = 1024
NEVER_CALLED = (
    *("before_training_epoch", "before_training_iteration", "before_forward", "after_forward", "before_backward"),
    *("after_backward", "before_update", "after_update", "after_training_iteration", "after_training_epoch"),
    *("before_train_dataset_adaptation", "after_train_dataset_adaptation"),
)
"""Callbacks of Avalanche's own training loop, which is not used here."""


class KernelContinualStrategy(SupervisedTemplate):  # type: ignore[misc]
    """Kernel continual learning as a strategy. Every experience must be one task with its own task label.

    `settings` are `KclSettings`, or a mapping with those to change; batch size, epochs, learning rates and optimiser
    are settings (`kcl list settings`). `backbone` may be any module that returns one row of features per input.
    `class_count` is the number of classes in all experiences. For a task that was not learned yet, all classes have the
    same score.
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
        settings = settings if isinstance(settings, KclSettings) else KclSettings().replace(**(settings or {}))
        if eval_every not in (-1, 0):
            raise KclError(
                f"eval_every={eval_every} is not supported: use 0 to evaluate after every experience, or -1 for never"
            )
        for plugin in plugins or ():
            _check_plugin(plugin)
        self.input_shape, self.class_count = tuple(input_shape), class_count
        method = KernelContinualLearning(settings, class_count)
        self.stack = start_run(method, input_shape, backbone, seed, device)
        self.answerer = Answerer(self.stack)
        self.classes: dict[int, tuple[int, ...]] = {}
        """The classes of every learned task, by its index."""
        self.task_indices: dict[int, int] = {}
        """The index of every learned task, in the order of learning, by its task label."""
        super().__init__(
            model=self.stack.models[0],
            optimizer=None,  # every task starts with a new one
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=settings.batch_size,
            train_epochs=settings.epochs,
            eval_mb_size=eval_mb_size,
            device=self.stack.device,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
        )

    # Learning

    def _before_training_exp(self, **kwargs: Any) -> None:
        """Call the plugins. None may change the training samples, as replay plugins do."""
        self.train_dataset_adaptation()
        dataset, self.dataloader = self.adapted_dataset, ()
        BaseTemplate._before_training_exp(self, **kwargs)  # without Avalanche's data loader and optimiser
        if self.adapted_dataset is not dataset or self.dataloader != ():
            raise KclError(
                "a plugin changed the training samples, which KernelContinualStrategy does not support: remove it"
            )

    def _train_exp(self, experience: Any, eval_streams: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        label, index = _task_label(experience), len(self.task_indices)
        if label in self.task_indices:
            raise KclError(
                f"experience {experience.current_experience} has the task label {label}, which was learned before. "
                "Every experience must be a new task: create the benchmark with return_task_id=True or "
                "task_incremental_benchmark"
            )
        task = self._task(experience, index)
        self.stack.learn([task], self._count)
        if self.stack.diverged[0]:
            raise KclError(f"the loss of task {label} stopped being finite; try a lower lr")
        self.task_indices[label], self.classes[index] = index, task.classes

    def _count(self, step: Step) -> None:
        """Advance Avalanche's clock, by which metrics are logged."""
        self.loss = torch.tensor([step.loss], device=self.device)
        self.clock.after_training_iteration(self)

    def _task(self, experience: Any, index: int) -> Task:
        """An experience as a task, with its samples in memory."""
        inputs, targets = _samples(experience.dataset.train())
        if tuple(inputs.shape[1:]) != self.input_shape:
            raise KclError(f"samples have shape {tuple(inputs.shape[1:])}, but input_shape is {self.input_shape}")
        classes = targets.unique()
        if int(classes[0]) < 0 or int(classes[-1]) >= self.class_count:
            raise KclError(
                f"targets range from {int(classes[0])} to {int(classes[-1])}, but class_count is {self.class_count}"
            )
        train = Examples(inputs, torch.arange(len(inputs)), torch.searchsorted(classes, targets))
        no_test = Examples(inputs[:0], torch.arange(0), targets[:0])
        return Task(index, train, no_test, tuple(classes.tolist()), View())

    # Answering

    def model_adaptation(self, model: nn.Module | None = None) -> nn.Module:
        """Leave the model unchanged: what a task adds is in its coreset."""
        return self.stack.models[0] if model is None else model

    def forward(self) -> Tensor:
        """Scores of all classes, −∞ for classes outside the sample's task; all zero if the task was not learned."""
        inputs, labels = self.mb_x, self.mb_task_id
        scores = torch.zeros(len(inputs), self.class_count, device=self.device)
        for label in labels.unique().tolist():
            index = self.task_indices.get(label)
            if index is None:
                continue
            rows = torch.nonzero(labels == label).flatten()
            scores[rows] = -torch.inf
            logits = self.answerer.logits(View().scale(inputs[rows]), index)
            scores[rows[:, None], torch.tensor(self.classes[index], device=self.device)] = logits
        return scores


def as_benchmark(stream: Stream) -> Any:
    """A stream as an Avalanche benchmark, with train and test streams: one experience per task, labelled by its index.

    Samples are as the network sees them: pixels permuted or rotated, bytes divided by 255. Targets are positions in the
    stream's `class_labels`.
    """
    tasks = list(stream)
    datasets = {
        "train": [_dataset(task, task.train) for task in tasks],
        "test": [_dataset(task, task.test) for task in tasks],
    }
    return with_classes_timeline(with_task_labels(benchmark_from_datasets(**datasets)))


class _TaskDataset(Dataset[tuple[Tensor, int]]):
    """A task's samples as the network sees them, computed on access."""

    def __init__(self, task: Task, examples: Examples) -> None:
        self.view, self.examples = task.view, examples
        self.targets = torch.tensor(task.classes)[examples.labels].tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.view(self.examples.inputs[self.examples.rows[index]][None])[0], self.targets[index]


def _dataset(task: Task, examples: Examples) -> Any:
    dataset = _TaskDataset(task, examples)
    labels = TaskLabels([task.index] * len(dataset))
    return AvalancheDataset([dataset], data_attributes=[DataAttribute(dataset.targets, "targets"), labels])


def _task_label(experience: Any) -> int:
    labels = getattr(experience, "task_labels", None)
    if labels is None:
        raise KclError("the experiences have no task labels; create the benchmark with task_incremental_benchmark")
    if len(labels) != 1:
        raise KclError(f"experience {experience.current_experience} holds {len(labels)} tasks; it must hold one")
    return int(labels[0])


def _samples(dataset: Any) -> tuple[Tensor, Tensor]:
    """All inputs in order, as uint8 or float32 (n, …), and their targets."""
    inputs, targets = [], []
    try:
        # A DataLoader always draws a seed; a generator of its own keeps it from advancing the global one.
        for batch in DataLoader(dataset, BATCH, generator=torch.Generator()):
            inputs.append(batch[0])
            targets.append(batch[1])
        stacked, labels = torch.cat(inputs), torch.cat(targets).long()
    except (TypeError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise KclError(f"the samples are not tensors of one shape ({reason}); give the benchmark a transform") from None
    return (stacked if stacked.dtype == torch.uint8 else stacked.float()), labels


def _check_plugin(plugin: Any) -> None:
    """Raise if a plugin relies on callbacks that are never called. Evaluation plugins only listen."""
    if isinstance(plugin, EvaluationPlugin):
        return
    own = type(plugin)
    unsupported = [
        name for name in NEVER_CALLED if getattr(own, name, None) not in (None, getattr(BaseSGDPlugin, name))
    ]
    if unsupported:
        raise KclError(
            f"{own.__name__} needs callbacks within a training step ({', '.join(unsupported)}), which "
            "KernelContinualStrategy does not make: remove the plugin"
        )
