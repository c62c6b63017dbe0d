"""Export of a model to one ONNX file: the backbone and the folded heads of all tasks, for any number of queries.

    inputs   n queries as `ContinualModel.predict` takes them: float32, or uint8, which is divided by 255
    task     [1], int64: the position of the task in `tasks`; −1 compares all classes
    logits   n × c: calibrated scores of all classes of all tasks; −∞ for classes outside the task

The metadata holds the JSON lists `kcl_tasks`, `kcl_labels` and `kcl_columns` (names of the inputs, if they came from a
table). The graph contains no solves or factorisations.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from torch import Tensor, nn

from kcl.core.files import write_whole
from kcl.core.shapes import Float, Int, Shaped
from kcl.errors import KclError
from kcl.methods import class_heads, ridge_head, views
from kcl.methods.feature_maps import FEATURE_MAPS
from kcl.methods.ridge_head import Head
from kcl.models.continual_model import ContinualModel, to_be_kept
from kcl.models.coreset_heads import CoresetHeads
from kcl.models.streaming_heads import StreamingHeads
from kcl.nets.onnx_graph import trace

LARGEST = 2**31 - 2**24
"""Bytes of tensors that fit into one ONNX file, with room for its graph."""
_ABSENT = -1e9
IN_ONNX = ("rbf", "laplacian", "relu", "orthogonal-relu", "linear", "vrf")
"""Feature maps of operations that ONNX has."""


class AllHeads(nn.Module):
    """The model as a pure function of queries and task. The heads of all tasks are padded to one shape and stacked."""

    weights: Tensor
    shift: Tensor
    present: Tensor
    scale: Tensor

    def __init__(self, model: ContinualModel, heads: CoresetHeads) -> None:
        super().__init__()
        self.network, self.method = copy.deepcopy(heads.answerer.model).cpu(), heads.answerer.method
        self.view, settings = model.view, model.settings
        self.turns, self.mirrors = views.rotations(settings), views.mirrors(settings)
        of_tasks = [heads.answerer.head(task.lesson) for task in model.tasks.values()]
        labels = list(model.labels)
        rows, draws = max(head.weights.shape[1] for head in of_tasks), len(of_tasks[0].weights)
        weights = torch.zeros(len(of_tasks), draws, rows, self.turns * len(labels))
        present = torch.zeros(len(of_tasks), len(labels), dtype=torch.bool)
        for number, (task, head) in enumerate(zip(model.tasks.values(), of_tasks, strict=True)):
            positions = [labels.index(label) for label in task.labels]
            columns = views.pairs(torch.tensor(positions), self.turns)
            weights[number, :, : head.weights.shape[1], columns] = head.weights.cpu()
            present[number, positions] = True
        shift = torch.stack([head.shift.cpu() for head in of_tasks])[:, None]
        self.register_buffer("weights", weights)
        self.register_buffer("shift", torch.where(present.repeat_interleave(self.turns, dim=1), shift, _ABSENT))
        self.register_buffer("present", present)
        self.register_buffer("scale", torch.ones(()))  # already part of the weights
        parts = [head.tensors() for head in of_tasks]
        names = ("temperature", "frequencies", "anchors", "moments")
        self.by_task: list[str] = [name for name in names if name in parts[0]]
        for name in self.by_task:
            tensors = [part[name].cpu() for part in parts]
            if name == "anchors":  # the padding meets rows of weights that are zero
                tensors = [nn.functional.pad(anchors, (0, 0, 0, rows - len(anchors))) for anchors in tensors]
            self.register_buffer(name, torch.stack(tensors))
        joint = heads.joint()
        self.joint, self.temperature_of_all = list(joint.tensors), joint.temperature
        for name, tensor in joint.tensors.items():
            self.register_buffer(f"joint_{name}", tensor.cpu())
        self.shared: list[str] = [name for name in ("phases", "metric") if name in parts[0]]  # the same for all tasks
        for name in self.shared:
            self.register_buffer(name, parts[0][name].cpu())

    def forward(self, x: Shaped[Tensor, "n ..."], task: Int[Tensor, " 1"]) -> Float[Tensor, "n c"]:
        place = task.clamp_min(0)
        head = Head(
            self.weights.index_select(0, place)[0],
            self.scale,
            self.shift.index_select(0, place),
            **{name: getattr(self, name).index_select(0, place)[0] for name in self.by_task},
            **{name: getattr(self, name) for name in self.shared},
        )
        copies = views.copies(self.view.scale(x), self.turns, self.mirrors)
        features = self.method.features(self.network, copies, head.moments)
        scores = ridge_head.scores(head, self.method.kernel, self.network, features, onnx=True)
        calibrated = ridge_head.calibrated(head, views.vote(scores, self.turns, self.mirrors))
        of_task = torch.where(self.present.index_select(0, place), calibrated, -torch.inf)
        features = features if head.moments is None else self.method.features(self.network, copies)
        joint = {name: getattr(self, f"joint_{name}") for name in self.joint}
        votes = views.vote(class_heads.scores(self.method.settings, joint, features), self.turns, self.mirrors)
        return torch.where(task < 0, votes / self.temperature_of_all, of_task)


class AllSums(nn.Module):
    """The same for a streaming head: features and weights in single precision, the weights over all classes last."""

    weights: Tensor
    present: Tensor

    def __init__(self, model: ContinualModel, heads: StreamingHeads) -> None:
        super().__init__()
        features, labels = heads.ridge.features, list(model.labels)
        if features.kind not in IN_ONNX:
            raise KclError(f"features {features.kind!r} cannot be exported: ONNX lacks an operation they need")
        self.view, self.kind = model.view, features.kind
        self.width, self.unit_length = features.width, features.unit_length
        self.weights = nn.Buffer(torch.zeros(len(model.tasks) + 1, features.dimension, len(labels)))
        self.present = nn.Buffer(torch.ones(len(model.tasks) + 1, len(labels), dtype=torch.bool))
        for number, task in enumerate([*model.tasks, None]):
            solution = heads.classifier(task).solution
            positions = [labels.index(label) for label in (labels if task is None else model.tasks[task].labels)]
            self.weights[number][:, positions] = (solution.weights / solution.temperature).float().cpu()
            self.present[number] = torch.zeros(len(labels)).index_fill(0, torch.tensor(positions), 1.0).bool()
        self.names = list(features.buffers)
        for name, tensor in features.buffers.items():
            self.register_buffer(f"features_{name}", tensor.float().cpu())

    def forward(self, x: Shaped[Tensor, "n ..."], task: Int[Tensor, " 1"]) -> Float[Tensor, "n c"]:
        flat = self.view.scale(x).flatten(1)
        if self.unit_length:
            flat = flat / flat.square().sum(1, keepdim=True).sqrt().clamp_min(1e-12)
        buffers = {name: getattr(self, f"features_{name}") for name in self.names}
        place = torch.where(task < 0, len(self.weights) - 1, task)
        scores = FEATURE_MAPS[self.kind].apply(flat / self.width, buffers) @ self.weights.index_select(0, place)[0]
        return torch.where(self.present.index_select(0, place), scores, -torch.inf)


def export_onnx(model: ContinualModel, path: str | Path) -> Path:
    """Write the model to one ONNX file, whose path is returned. A failed export leaves no file behind.

    The file takes `inputs`, n queries as `predict` does (float32, or uint8), and `task`, (1,) of int64: the position of
    the task in `model.tasks`, or −1 for all classes. It gives `logits`, (n, classes), in the order
    of `model.labels`, which is −∞ for classes outside the task. Its metadata has `kcl_tasks`, `kcl_labels` and
    `kcl_columns` as JSON.
    """
    path, model = Path(path), to_be_kept(model)
    heads = model.heads
    module = AllSums(model, heads) if isinstance(heads, StreamingHeads) else AllHeads(model, heads)
    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    if size > LARGEST:
        raise KclError(
            f"the model has {size:,} bytes of weights and heads; an ONNX file holds at most {LARGEST:,}: use save_model"
        )
    example = torch.zeros(2, *(model.input_shape or ()), dtype=model.dtype)
    names = {"input_names": ["inputs", "task"], "output_names": ["logits"]}
    proto = trace(module.eval(), (example, torch.zeros(1, dtype=torch.int64)), **names)
    for name in ("tasks", "labels", "columns"):
        entry = proto.metadata_props.add()
        entry.key, entry.value = f"kcl_{name}", json.dumps(list(getattr(model, name)), ensure_ascii=False)
    write_whole(path, proto.SerializeToString())
    return path
