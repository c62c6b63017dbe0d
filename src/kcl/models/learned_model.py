"""The half of a `ContinualModel` that answers: what was learned, and predictions with it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from kcl.benchmarks.task import View
from kcl.core.settings import nearest
from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.models.coreset_heads import CoresetHeads
from kcl.models.inference import JOINT, NOTHING_LEARNED, Answerer, finite
from kcl.models.inputs import Label, as_tensor, check_columns, checked, column_names, label_array, labelled
from kcl.models.lessons import LearnedTask
from kcl.models.streaming_heads import StreamingHeads
from kcl.models.unknowns import DEFAULT_RATE, DEFAULT_SCORE, Drift, KnownScores
from kcl.training.stack import RunStack


class Prediction(NamedTuple):
    """Predictions for n queries, as arrays."""

    label: np.ndarray
    """(n,): the class; None where the model abstains."""
    task: np.ndarray
    """(n,) of text: the task of that class, named or inferred."""
    confidence: np.ndarray
    """(n,): the probability of that class."""
    variance: np.ndarray
    """(n,): how unlike all that was learned the query is; near zero for what is known well."""
    task_margin: np.ndarray
    """(n,): the lead over the second-best: of the class's probability, or of the task's score where a score inferred
    the task; infinite if the task was named or nothing else was learned.
    """
    known: np.ndarray
    """(n,): the share of known queries that are less known (`reject_unknown`), else not a number."""


class LearnedModel:
    """What was learned. A lesson replaces all attributes at once, and a prediction takes one reference to them
    (`as_it_is`): it sees a lesson in another thread entirely or not at all.
    """

    module: nn.Module | None
    settings: KclSettings
    history: list[dict[str, Any]]
    dtype: torch.dtype
    columns: tuple[str, ...]
    """Names of the input features, where they come from a table."""
    input_shape: tuple[int, ...] | None
    _heads: CoresetHeads | StreamingHeads | None

    # What was learned

    def __repr__(self) -> str:
        if self._heads is None:
            return "ContinualModel(nothing learned yet)"
        tasks = f"{len(self.tasks)} task{'' if len(self.tasks) == 1 else 's'}"
        return f"ContinualModel({tasks}, {len(self.labels)} classes; {self.describe()})"

    def describe(self) -> str:
        """What the model is made of, in one line."""
        if isinstance(self._heads, StreamingHeads):
            return self._heads.describe()
        backbone = self.settings.backbone if self.module is None else type(self.module).__name__
        return f"backbone {backbone}, kernel {self.settings.kernel}, {self.settings.coreset_size_per_class} per class"

    @property
    def heads(self) -> CoresetHeads | StreamingHeads:
        if self._heads is None:
            raise KclError(NOTHING_LEARNED)
        return self._heads

    @property
    def answerer(self) -> Answerer:
        if not isinstance(self.heads, CoresetHeads):
            raise KclError("this needs a network with coresets; the model has a streaming head")
        return self.heads.answerer

    @property
    def stack(self) -> RunStack:
        return self.answerer.stack

    @property
    def tasks(self) -> dict[str, LearnedTask]:
        """By name."""
        return {} if self._heads is None else self._heads.tasks

    @property
    def view(self) -> View:
        """How inputs are scaled."""
        return View() if self._heads is None else self._heads.view

    @property
    def labels(self) -> tuple[Label, ...]:
        """The classes of all tasks, each once, in the order of first appearance."""
        return tuple(dict.fromkeys(label for task in self.tasks.values() for label in task.labels))

    def _streaming(self) -> StreamingHeads:
        if not isinstance(self.heads, StreamingHeads):
            raise KclError("this needs a streaming head (head='streaming'); the model has a network with coresets")
        return self.heads

    # Prediction

    def predict(
        self,
        inputs: Any,
        task: str | None = None,
        score: str = JOINT,
        abstain_below: float = 0.0,
    ) -> Prediction:
        """The class of each input, with confidence and variance.

        Parameters
        ----------
        inputs : (n, d) or (n, channels, height, width)
            n queries.
        task : str, optional
            The task they belong to. By default all classes of all tasks are compared.
        score : str, by default "joint"
            With coresets and without a task: "joint" compares all classes with one classifier; any other score infers
            the task first, and then answers within it.
        abstain_below : float in 0 … 1
            Queries whose confidence is lower get no answer (None).
        """
        if not 0.0 <= abstain_below <= 1.0:
            raise KclError(f"abstain_below must be a probability from 0 to 1, not {abstain_below:g}")
        model = self.as_it_is()
        name = model._known(task)
        answers = model.heads.answer(model._prepare(inputs), name, score, abstain_below)
        asked = model.tasks if name is None else [name]  # one of a thousand tasks is not to be looked for
        names = {model.tasks[task_name].lesson: task_name for task_name in asked}
        chosen = [names[lesson] for lesson in answers.task.tolist()]
        pairs = zip(chosen, answers.label.tolist(), strict=True)
        return Prediction(
            label_array([None if label < 0 else model.tasks[task_name].labels[label] for task_name, label in pairs]),
            label_array(chosen),
            *(column.cpu().numpy() for column in answers[2:]),
        )

    # Unknown queries

    def reject_unknown(
        self,
        inputs: Any,
        error_rate: float = DEFAULT_RATE,
        score: str = DEFAULT_SCORE,
        task: str | None = None,
    ) -> KnownScores:
        """From now on give no answer (None) to queries that are less known than nearly all of these.

        After more lessons call it again: until then the rate may differ, and predictions warn. Forgetting undoes it.

        Parameters
        ----------
        inputs : (n, d) or (n, channels, height, width)
            Queries that you know to be fine. They need no labels, and must not have been learned.
        error_rate : float in 0 … 1, by default 0.05
            The share of further queries like them that will be rejected.
        score : "residual" (default), "response", "mahalanobis" or "variance"
            How well a query is known.
        task : str, optional
            For predictions in this task; by default for those without a task.
        """
        known = KnownScores.of(score, error_rate, self.known_scores(inputs, score, task))
        heads = self._streaming()
        heads.known = {**heads.known, None if task is None else str(task): known}
        return known

    def known_scores(self, inputs: Any, score: str = DEFAULT_SCORE, task: str | None = None) -> Tensor:
        """How well each of n inputs is known, (n,), higher is better; parameters as for `reject_unknown`."""
        model = self.as_it_is()
        heads, queries = model._streaming(), model._prepare(inputs)
        return heads.known_scores(queries, model._known(task), score)

    def drift(self, task: str | None = None, window: int = 100, false_alarms: float = 1e-3) -> Drift:
        """What tells whether queries are still like those of `reject_unknown`.

        Pass `update` of it the `known` of each prediction: it returns True where a window of so many answers deviates
        further than chance does in `false_alarms` of all windows.
        """
        known = self._streaming().known_for(self._known(task))
        if known is None:
            raise KclError("call reject_unknown with known queries first")
        return Drift(len(known.scores), window, false_alarms)

    def logits(self, inputs: Any, task: str | None = None) -> Tensor:
        """Calibrated scores, (n, classes): of a task's classes in the order of `tasks[task].labels`, without a task of
        all `labels`. The fastest way to predict.
        """
        model = self.as_it_is()
        queries = model._prepare(inputs)  # raises if nothing was learned
        return model.heads.logits(queries, model._known(task))

    def probabilities(self, inputs: Any, task: str | None = None) -> Tensor:
        """The probabilities of the classes, (n, classes), in the order of `logits`; refused where they are not finite,
        which in `logits` they may be.
        """
        return finite(self.logits(inputs, task).softmax(-1))

    def accuracy(self, inputs: Any, labels: Any = None, task: str | None = None) -> float:
        """Percent of inputs classified correctly, whose labels are (n,) or come with a dataset."""
        _, expected = labelled(inputs, labels)
        predicted = self.predict(inputs, task).label.tolist()
        return 100.0 * sum(a == b for a, b in zip(predicted, expected.tolist(), strict=True)) / len(expected)

    def _known(self, task: str | None) -> str | None:
        """The name of a task, checked, or None for all classes together."""
        if task is not None and str(task) not in self.tasks:
            raise KclError(f"task {str(task)!r} was not learned; {nearest(str(task), list(self.tasks))}")
        return None if task is None else str(task)

    def _prepare(self, inputs: Any) -> Tensor:
        """Inputs scaled for the network, on its device."""
        device = self.heads.device  # raises if nothing was learned
        if not self.tasks:
            raise KclError(NOTHING_LEARNED)
        return self.view.scale(self._as_stored(as_tensor(inputs), column_names(inputs)).to(device))

    def _as_stored(self, x: Tensor, names: Sequence[str]) -> Tensor:
        """Inputs of the shape, columns and kind that the model learned from."""
        check_columns(self.columns, names)
        of_bytes = self.dtype == torch.uint8
        if (x.dtype == torch.uint8) != of_bytes:
            kind = "bytes (uint8), which are divided by 255" if of_bytes else "numbers, which are used as they are"
            raise KclError(f"the model learned from {kind}; these inputs are {x.dtype}: convert them")
        return checked(x if of_bytes else x.float(), self.input_shape or (), self.columns)

    def as_it_is(self) -> Self:
        """This model in its present state, whatever other threads teach it meanwhile."""
        return copy.copy(self)
