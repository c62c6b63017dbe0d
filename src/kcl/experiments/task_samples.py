"""What a run saw: a few samples of each task, of its coreset, and the mistakes it made most confidently at the end.

Saved on request as one line of `samples.jsonl` per run, small PNGs in base64: one file beside the results.
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
from kcl.core.shapes import Float, Shaped
from kcl.errors import KclError
from kcl.report.page_samples import SAMPLES
from kcl.training.stack import RunStack

FORMAT = 1
OF_EACH = 5
LARGEST_SIDE = 40
"""Larger images are shrunk: they are looked at small, and there are many of them."""


def need_pillow() -> None:
    """Told before anything is run, not after hours of it."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        install = 'pip install "kernel-continual-learning[images]"'
        raise KclError(f"--save-samples needs Pillow to write images; install it: {install}") from None


def collect(
    learner: RunStack, streams: Sequence[Stream], names: Sequence[Sequence[str]]
) -> list[list[dict[str, Any]] | None]:
    """For every run the tasks as `samples.jsonl` has them; None for one that diverged. `names`: of its classes."""
    runs: list[list[dict[str, Any]] | None] = [None if diverged else [] for diverged in learner.diverged]
    for index in range(0 if all(learner.diverged) else len(streams[0])):
        tasks = [stream[index] for stream in streams]
        kept, scores = learner.kept_inputs(index), learner.scores(tasks)
        for run, (task, coreset, answers) in enumerate(zip(tasks, kept, scores, strict=True)):
            own = runs[run]
            if own is not None:
                classes = [names[run][place] for place in task.classes]
                own.append(
                    {
                        "samples": _samples(task, classes),
                        "coreset": [] if coreset is None else [{"png": png(coreset[i])} for i in _spread(len(coreset))],
                        "mistakes": _mistakes(task, classes, answers),
                    }
                )
    return runs


def save(folder: Path, identity: dict[str, Any], tasks: list[dict[str, Any]]) -> None:
    """Add a run's line; `identity` is what its record and this line have in common."""
    line = json.dumps({"format": FORMAT, **identity, "samples": tasks}, ensure_ascii=False)
    try:
        with (folder / SAMPLES).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise KclError(f"{folder / SAMPLES} was not written: {error.strerror or error}") from None


def png(image: Shaped[Tensor, "channels height width"]) -> str:
    """Bytes as stored, or numbers from 0 to 1, grey or in colour, as a PNG in base64."""
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
    """Test samples as the network sees them, of different classes where there are so many."""
    test, chosen = task.test, []
    for label in range(min(task.ways, OF_EACH)):
        chosen += (test.labels == label).nonzero().flatten()[:1].tolist()
    return [{"png": _shown(task, place), "label": classes[int(test.labels[place])]} for place in chosen]


def _mistakes(task: Task, classes: Sequence[str], scores: Float[Tensor, "n c"]) -> list[dict[str, Any]]:
    """Wrong answers in the order of their probability, the highest first."""
    confidence, answered = scores.double().softmax(-1).max(-1)
    wrong = (answered != task.test.labels).nonzero().flatten()
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
    """Places spread evenly: a coreset is ordered by class."""
    return sorted({place * count // OF_EACH for place in range(min(OF_EACH, count))})
