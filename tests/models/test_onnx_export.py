"""The ONNX file gives what PyTorch gives, in onnxruntime, for any number of queries and every task."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kcl
from kcl.methods.ridge_kernels import KERNELS
from kcl.nets.resnet import ResNet18

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

SMALL: dict[str, Any] = {"bases": 64, "width": 16, "dropout": 0.1, "coreset_size_per_class": 5}


def _clusters(seed: int, labels: list[Any], shape: tuple[int, ...] = (6,)) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    centres = random.normal(size=(len(labels), *shape))
    which = np.arange(20 * len(labels)) % len(labels)
    return (centres[which] + 0.3 * random.normal(size=(len(which), *shape))).astype(np.float32), np.array(labels)[which]


def _check(model: kcl.ContinualModel, queries: np.ndarray, path: Path) -> Any:
    kcl.export_onnx(model, path)
    graph = onnx.load(path)
    onnx.checker.check_model(graph)
    session, labels = runtime.InferenceSession(str(path)), list(model.labels)
    assert json.loads(session.get_modelmeta().custom_metadata_map["kcl_labels"]) == labels
    assert json.loads(session.get_modelmeta().custom_metadata_map["kcl_tasks"]) == list(model.tasks)
    for count in (1, 2, len(queries)):
        for number, (name, task) in enumerate(model.tasks.items()):
            [found] = session.run(None, {"inputs": queries[:count], "task": np.array([number])})
            places = [labels.index(label) for label in task.labels]
            expected = model.logits(queries[:count], name).numpy()
            np.testing.assert_allclose(found[:, places], expected, rtol=0, atol=1e-4)
            assert np.isneginf(np.delete(found, places, axis=1)).all()
        [found] = session.run(None, {"inputs": queries[:count], "task": np.array([-1])})
        np.testing.assert_allclose(found, model.logits(queries[:count]).numpy(), rtol=1e-3, atol=2e-3)
    return graph


@pytest.mark.parametrize(
    "options",
    [
        *({"kernel": kernel} for kernel in KERNELS),
        {"test_draws": 3, "backbone": "identity", "standardise": True, "held_out_share": 0.3},
        {"soft_targets": 0.5, "test_strength": 0.4},
        {"matched_targets": True},
        *({"kernel": kernel, "shared_metric": 0.6} for kernel in ("linear", "vrf", "rbf")),
    ],
    ids=str,
)
def test_equals_pytorch(tmp_path: Path, options: dict[str, Any]) -> None:
    model = kcl.ContinualModel(**(SMALL | {"backbone": "mlp"} | options))
    model.learn(*_clusters(0, ["cat", "dog"]), task="animals")
    model.learn(*_clusters(1, ["red", "dog", "blue"]), task="mixed")  # another number of classes, one of them shared
    graph = _check(model, _clusters(2, ["a", "b"])[0], tmp_path / "model.onnx")
    kinds = {node.op_type for node in graph.graph.node}
    assert not any("Cholesky" in kind or "Solve" in kind or "Inverse" in kind or kind == "Det" for kind in kinds)
    assert list(tmp_path.iterdir()) == [tmp_path / "model.onnx"]


def test_bytes_through_a_resnet(tmp_path: Path) -> None:
    model = kcl.ContinualModel(backbone="cifar-resnet", batch_size=20, **SMALL)
    inputs, labels = _clusters(0, [0, 1], (3, 8, 8))
    images = np.clip(128 + 40 * inputs, 0, 255).astype(np.uint8)
    model.learn(images, labels)
    _check(model, images[:9], tmp_path / "model.onnx")


def test_a_backbone_of_ones_own(tmp_path: Path, seeded: Any) -> None:
    with seeded(0):
        module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
    model = kcl.ContinualModel(backbone=module, **SMALL)
    model.learn(*_clusters(0, ["cat", "dog"]))
    before = {name: tensor.clone() for name, tensor in model.stack.models[0].state_dict().items()}
    _check(model, _clusters(2, ["a", "b"])[0], tmp_path / "model.onnx")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.stack.models[0].state_dict().items())


def test_without_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    model = kcl.ContinualModel(**SMALL)
    model.learn(*_clusters(0, ["cat", "dog"]))
    with pytest.raises(kcl.KclError, match="pip install"):
        kcl.export_onnx(model, tmp_path / "model.onnx")


def test_with_every_ingredient_of_the_strong_recipe(tmp_path: Path, seeded: Any) -> None:
    """Copies vote within the file, BatchNorm uses the task's own statistics, weights are averaged."""
    strong = {"rotation_labels": True, "test_views": "flip", "batch_norm": "coreset", "weight_average": 0.8}
    strong |= {"feature_stages": 2}
    with seeded(0):
        net = ResNet18((4, 6, 8), (1, 2, 1), stem=3, dropout=0.0, feature_stages=2)
    model = kcl.ContinualModel(backbone=net, kernel="vrf", lr=0.01, **strong, **(SMALL | {"dropout": 0.0}))
    model.learn(*_clusters(0, ["cat", "dog"], (3, 6, 6)), task="animals")
    model.learn(*_clusters(1, ["red", "dog", "blue"], (3, 6, 6)), task="mixed")
    _check(model, _clusters(2, ["a", "b"], (3, 6, 6))[0], tmp_path / "model.onnx")


SUMS = [{}, {"features": "laplacian"}, {"features": "relu"}, {"features": "orthogonal-relu"}]


@pytest.mark.parametrize("options", [*SUMS, {"features": "linear", "unit_length": True}], ids=str)
def test_a_streaming_head_with_and_without_a_task(tmp_path: Path, options: dict[str, Any]) -> None:
    model = kcl.ContinualModel(head="streaming", **({"bases": 64} | options))
    model.learn(*_clusters(0, ["cat", "dog"]), task="animals")
    model.learn(*_clusters(1, ["red", "dog", "blue"]), task="mixed")
    queries, path = _clusters(2, ["a", "b"])[0], tmp_path / "model.onnx"
    kcl.export_onnx(model, path)
    session = runtime.InferenceSession(str(path))
    for number, name in ((-1, None), (0, "animals"), (1, "mixed")):
        [scores] = session.run(None, {"inputs": queries, "task": np.array([number])})
        labels = model.labels if name is None else model.tasks[name].labels
        places = [model.labels.index(label) for label in labels]
        np.testing.assert_allclose(scores[:, places], model.logits(queries, name).numpy(), rtol=1e-3, atol=1e-3)
        assert np.isneginf(np.delete(scores, places, axis=1)).all()


def test_features_that_onnx_cannot_compute_are_refused(tmp_path: Path) -> None:
    model = kcl.ContinualModel(head="streaming", features="polynomial", bases=64)
    model.learn(*_clusters(0, ["cat", "dog"]))
    with pytest.raises(kcl.KclError, match="cannot be exported"):
        kcl.export_onnx(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
