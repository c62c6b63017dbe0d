"""Images for the report: a few samples of each task and its coreset, and the most confident mistakes at the end.

Saved on request as one line of `samples.jsonl` per run, with small PNGs in base64.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kcl.benchmarks.task import Stream, Task
from kcl.core.files import SAMPLES
from kcl.core.opening import regular
from kcl.core.shapes import Float, Shaped
from kcl.errors import KclError
from kcl.training.evaluation import predicted
from kcl.training.stack import RunStack

FORMAT = 1
OF_EACH = 5
LARGEST_SIDE = 40
"""Larger images are shrunk: the report shows many of them, and small."""


def collect(
    learner: RunStack, streams: Sequence[Stream], names: Sequence[Sequence[str]]
) -> list[list[dict[str, Any]] | None]:
    """For every run its tasks in the form of `samples.jsonl`; None for a run that diverged. `names`: of its classes."""
    runs: list[list[dict[str, Any]] | None] = [None if diverged else [] for diverged in learner.diverged]
    for index in range(0 if all(learner.diverged) else len(streams[0])):
        tasks = [stream[index] for stream in streams]
        coresets = [learner.memory_kept(run, index).get("inputs") for run in range(len(tasks))]
        scores = learner.scores(tasks)
        for entries, task, coreset, run_scores, class_names in zip(runs, tasks, coresets, scores, names, strict=True):
            if entries is None:
                continue
            classes = [class_names[place] for place in task.classes]
            shown = [] if coreset is None else [{"png": png(coreset[place].cpu())} for place in _spread(len(coreset))]
            mistakes = _mistakes(task, classes, run_scores)
            entries.append({"samples": _samples(task, classes), "coreset": shown, "mistakes": mistakes})
    return runs


def save(folder: Path, identity: dict[str, Any], tasks: list[dict[str, Any]]) -> None:
    """Add the line of a run; `identity`: the fields it shares with the result of that run."""
    line = json.dumps({"format": FORMAT, **identity, "samples": tasks}, ensure_ascii=False)
    try:
        with open(folder / SAMPLES, "a", encoding="utf-8", opener=regular) as file:
            file.write(line + "\n")
    except OSError as error:
        raise KclError(f"{folder / SAMPLES} was not written: {error.strerror or error}") from None


def png(image: Shaped[Tensor, "channels height width"]) -> str:
    """An image of bytes or of numbers from 0 to 1, grey or in colour, as a PNG in base64."""
    from PIL import Image

    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise KclError(f"--save-samples: samples of shape {tuple(image.shape)} are not images; leave it out")
    values = image if image.dtype == torch.uint8 else (image.float().clamp(0, 1) * 255).round().byte()
    array = values.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def _samples(task: Task, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Test samples as the network sees them, each of another class."""
    test, chosen = task.test, []
    for label in range(min(task.ways, OF_EACH)):
        chosen += (test.labels == label).nonzero().flatten()[:1].tolist()
    return [{"png": _shown(task, place), "label": classes[int(test.labels[place])]} for place in chosen]


def _mistakes(task: Task, classes: Sequence[str], scores: Float[Tensor, "n c"]) -> list[dict[str, Any]]:
    """Wrong answers, the most confident first. Without finite scores there is no answer."""
    confidence, answered = scores.double().softmax(-1).amax(-1), predicted(scores)
    wrong = ((answered >= 0) & (answered != task.test.labels)).nonzero().flatten()
    worst = wrong[confidence[wrong].argsort(descending=True, stable=True)][:OF_EACH].tolist()
    return [
        {
            "png": _shown(task, place),
            "label": classes[int(task.test.labels[place])],
            "said": classes[int(answered[place])],
            "confidence": round(float(confidence[place]), 4),
        }
        for place in worst
    ]


def _shown(task: Task, place: int) -> str:
    return png(task.view.move(task.test.inputs[task.test.rows[place]][None])[0])


def _spread(count: int) -> list[int]:
    """Evenly spaced positions, because a coreset is sorted by class."""
    return sorted({place * count // OF_EACH for place in range(min(OF_EACH, count))})
