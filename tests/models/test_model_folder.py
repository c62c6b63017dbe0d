"""A saved model: the same answers, the same further learning, refused when it is not whole, not ours or too new."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import kcl
from kcl.cli.commands import main
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.ridge_kernels import KERNELS
from kcl.models import model_folder

SMALL: dict[str, Any] = {"bases": 64, "width": 16, "dropout": 0.1, "coreset_size_per_class": 5}


def _clusters(seed: int, labels: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    centres = 3.0 * random.normal(size=(len(labels), 6))
    which = np.arange(40 * len(labels)) % len(labels)
    inputs = centres[which] + 0.3 * random.normal(size=(len(which), 6))
    return inputs.astype(np.float32), np.array(labels)[which]


ONE, TWO, MORE = _clusters(0, ["cat", "dog"]), _clusters(1, ["red", "green", "blue"]), _clusters(2, ["horse"])


def _learned(**options: Any) -> kcl.ContinualModel:
    model = kcl.ContinualModel(**({"backbone": "mlp", "seed": 3} | SMALL | options))
    model.learn(*ONE, task="animals")
    model.learn(*TWO, task="colours")
    return model


def _same(one: kcl.ContinualModel, two: kcl.ContinualModel) -> None:
    for task in (None, "animals"):
        for mine, other in zip(one.predict(ONE[0], task), two.predict(ONE[0], task), strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    "options",
    [
        *({"kernel": kernel} for kernel in KERNELS),
        {"test_draws": 3},
        {"soft_targets": 0.5, "test_strength": 0.4},
        {"matched_targets": True, "soft_targets": 0.5},
        {"network_loss": "linear", "kernel": "rff", "matched_targets": True},
        *({"kernel": kernel, "shared_metric": 0.6} for kernel in ("linear", "vrf", "rbf")),
        {"backbone": "identity", "standardise": True, "feature_norm": "none"},
        {"held_out_share": 0.2},
    ],
    ids=str,
)
def test_answers_and_further_learning_are_the_same_to_the_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    model = _learned(**options)
    loaded = kcl.load_model(kcl.save_model(model, tmp_path / "model"))
    _same(model, loaded)
    assert (loaded.settings, loaded.history, loaded.tasks) == (model.settings, model.history, model.tasks)
    for one in (model, loaded):
        one.learn(*MORE, task="animals")
        one.learn(*_clusters(4, ["x", "y"]), task="letters")
    _same(model, loaded)


def test_loading_solves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _learned()
    folder = kcl.save_model(model, tmp_path / "model")

    def solved(*_: Any) -> None:
        raise AssertionError("a head was solved")

    monkeypatch.setattr("kcl.methods.kcl.KernelContinualLearning.head", solved)
    _same(kcl.load_model(folder), kcl.load_model(folder))


def test_a_backbone_of_ones_own_is_given_again(tmp_path: Path, seeded: Any) -> None:
    with seeded(0):
        module, other = (nn.Sequential(nn.Linear(6, 8), nn.ReLU()) for _ in range(2))
    model = _learned(backbone=module)
    folder = kcl.save_model(model, tmp_path / "model")
    _same(model, kcl.load_model(folder, backbone=other))
    with pytest.raises(kcl.KclError, match="pass it as backbone"):
        kcl.load_model(folder)
    with pytest.raises(kcl.KclError, match="needs no backbone"):
        kcl.load_model(kcl.save_model(_learned(), tmp_path / "named"), backbone=other)


def test_a_benchmarks_learner_is_saved(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    stream = kcl.RotatedDigits(tasks=2, train_per_task=300)
    learner = kcl.KernelContinualLearner(stream)
    for task in stream:
        learner.learn(task)
    loaded = kcl.load_model(kcl.save_model(learner.as_model(), tmp_path / "model"))
    moved = stream[1].view.move(stream[1].test.inputs[:100])
    np.testing.assert_array_equal(loaded.predict(moved).confidence, learner.predict(moved).confidence)
    with pytest.raises(kcl.KclError, match="save it and load it"):
        learner.as_model().learn(moved, stream[1].test.labels[:100], "more")
    loaded.learn(moved, stream[1].test.labels[:100], "more")
    assert list(loaded.tasks) == ["0", "1", "more"]
    assert learner.predict(moved).task.tolist() == learner.predict(moved).task.tolist()


def test_a_learner_predicts_without_a_task_from_all_it_has_learned_so_far() -> None:
    pytest.importorskip("sklearn")
    stream = kcl.RotatedDigits(tasks=2, train_per_task=300)
    learner = kcl.KernelContinualLearner(stream)
    for count, task in enumerate(stream):
        learner.learn(task)
        prediction = learner.predict(stream[count].view.move(task.test.inputs[:50]))
        assert set(prediction.task.tolist()) <= {str(index) for index in range(count + 1)}
        fresh = learner.as_model().predict(stream[count].view.move(task.test.inputs[:50]))
        np.testing.assert_array_equal(prediction.confidence, fresh.confidence)
        np.testing.assert_array_equal(prediction.task, fresh.task)


def test_versions_lie_side_by_side(tmp_path: Path) -> None:
    model = _learned()
    first = kcl.save_model(model, model_folder.next_version(tmp_path / "m"))
    model.learn(*MORE, task="animals")
    second = kcl.save_model(model, model_folder.next_version(tmp_path / "m"))
    assert (first.name, second.name) == ("0001", "0002")
    assert len(kcl.load_model(first).history) == 2
    assert len(kcl.load_model(tmp_path / "m").history) == 3
    with pytest.raises(kcl.KclError, match="holds all versions"):
        model_folder.next_version(second)
    with pytest.raises(kcl.KclError, match="exists already"):
        kcl.save_model(model, second)


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(kcl.KclError, match="No space left"):
        kcl.save_model(_learned(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


class TestRefused:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return kcl.save_model(_learned(), tmp_path / "model")

    def _change(self, folder: Path, **changes: Any) -> None:
        path = folder / "model.json"
        about = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(about | changes), encoding="utf-8")

    def test_another_format(self, folder: Path) -> None:
        self._change(folder, format=99)
        with pytest.raises(kcl.KclError, match=r"format .99"):
            kcl.load_model(folder)

    def test_changed_tensors(self, folder: Path) -> None:
        path = folder / "tensors.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(kcl.KclError, match="SHA-256"):
            kcl.load_model(folder)

    def test_settings_that_do_not_go_with_the_weights_before_anything_is_allocated(self, folder: Path) -> None:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        self._change(folder, settings=about["settings"] | {"width": 65_536, "layers": 64})  # a terabyte
        with pytest.raises(kcl.KclError, match="the tensor model"):
            kcl.load_model(folder)

    def test_a_setting_that_is_missing_is_not_made_up(self, folder: Path) -> None:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        del about["settings"]["bases"]
        self._change(folder, settings=about["settings"])
        with pytest.raises(kcl.KclError, match="lacks the settings bases"):
            kcl.load_model(folder)

    def test_a_model_older_than_a_setting_is_read(self, folder: Path) -> None:
        """As the first models of this format were saved; what came later was off by then."""
        before = kcl.load_model(folder)
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        names = [name for name in KclSettings.names() if KclSettings.field(name).metadata["since"] < 3]
        others = {"memory_per_class": 1, "recalled_per_step": 10, "ewc_fisher": "running", "ewc_strength": 10.0,
                  "ewc_decay": 0.9, "ewc_window": 10, "ewc_fisher_samples": 200}  # fmt: skip
        first = {name: about["settings"][name] for name in names} | others  # those of every method
        assert len(first) == 28
        self._change(folder, settings=first)
        assert kcl.load_model(folder).settings == before.settings

    def test_a_model_older_than_a_bound_of_the_scaling_is_read(self, tmp_path: Path) -> None:
        model = kcl.ContinualModel(standardise=True, backbone="identity", **SMALL)
        model.learn(*ONE, task="animals")
        folder = kcl.save_model(model, tmp_path / "model")
        self._change(folder, view=json.loads((folder / "model.json").read_text(encoding="utf-8"))["view"][:3])
        assert kcl.load_model(folder).view == dataclasses.replace(model.view, reach=None)

    @pytest.mark.parametrize(
        "change", [{"tasks": []}, {"tasks": {"a": {}}}, {"view": 3}, {"seed": "x"}, {"dtype": "?"}]
    )
    def test_nonsense(self, folder: Path, change: dict[str, Any]) -> None:
        self._change(folder, **change)
        with pytest.raises(kcl.KclError):
            kcl.load_model(folder)

    @pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
    def test_no_json(self, folder: Path, content: bytes) -> None:
        (folder / "model.json").write_bytes(content)
        with pytest.raises(kcl.KclError):
            kcl.load_model(folder)

    @pytest.mark.parametrize(
        "change",
        [{"settings": None}, {"input_shape": 4}, {"history": [{}]}, {"tasks": {"a": {}}}, {"seed": 1.5}, {"kcl": None}],
    )
    def test_a_model_that_is_only_described(self, folder: Path, change: dict[str, Any], capsys: Any) -> None:
        self._change(folder, **change)
        assert main(["inspect", str(folder)]) == 2
        told = capsys.readouterr().err
        assert "holds no complete model" in told
        assert told.count("\n") == 1

    def test_a_head_of_another_shape(self, folder: Path) -> None:
        """Whoever changes the tensors may name their digest too."""
        tensors = load_file(folder / "tensors.safetensors")
        name = next(name for name in tensors if name.endswith("head.weights"))
        save_file(tensors | {name: tensors[name][:, 1:].contiguous()}, folder / "tensors.safetensors")
        self._change(folder, sha256=hashlib.sha256((folder / "tensors.safetensors").read_bytes()).hexdigest())
        with pytest.raises(kcl.KclError, match=r"the tensor .*head\.weights"):
            kcl.load_model(folder)

    @pytest.mark.parametrize("keep", [slice(1, None), slice(0, 0)], ids=["other", "none"])
    def test_learned_targets_of_another_shape(self, tmp_path: Path, keep: slice) -> None:
        folder = kcl.save_model(_learned(soft_targets=0.5), tmp_path / "m")
        size, plain = (
            model_folder.describe(folder)["coreset_bytes"],
            model_folder.describe(kcl.save_model(_learned(), tmp_path / "n")),
        )
        tensors = load_file(folder / "tensors.safetensors")
        names = [name for name in tensors if name.endswith("kept.correction")]
        assert size == plain["coreset_bytes"] + 4 * sum(tensors[name].numel() for name in names)
        other = tensors | {names[0]: tensors[names[0]][keep].contiguous()}
        save_file(other, folder / "tensors.safetensors")
        self._change(folder, sha256=hashlib.sha256((folder / "tensors.safetensors").read_bytes()).hexdigest())
        with pytest.raises(kcl.KclError, match=r"the tensor .*kept\.correction"):
            kcl.load_model(folder)
        other.pop(names[0])
        save_file(other, folder / "tensors.safetensors")
        self._change(folder, sha256=hashlib.sha256((folder / "tensors.safetensors").read_bytes()).hexdigest())
        with pytest.raises(kcl.KclError, match="holds no complete model"):
            kcl.load_model(folder)

    @pytest.mark.parametrize(
        "view",
        [
            [None, None, 0.0],
            [None, None, 3.0, -1.0],
            [[0.0], [1.0]],
            [[0.0] * 6, None],
            [None, [1.0] * 6],
            [[0.0] * 6, [0.0] * 6],
            [[0.0] * 6, [1e-300] * 6],
            [[1e300] * 6, [1.0] * 6],
        ],
    )
    @pytest.mark.parametrize("head", ["coreset", "streaming"])
    def test_a_scaling_that_cannot_be_used(self, tmp_path: Path, head: str, view: list[Any]) -> None:
        model = kcl.ContinualModel(head=head, **(SMALL if head == "coreset" else {"bases": 16}))
        model.learn(*ONE, task="animals")
        folder = kcl.save_model(model, tmp_path / "model")
        assert np.shape(ONE[0])[1] == 6
        self._change(folder, view=[[0.0] * 6, [1.0] * 6, 3.0, 3.0])
        kcl.load_model(folder)
        self._change(folder, view=view)
        with pytest.raises(kcl.KclError, match="scaling"):
            kcl.load_model(folder)

    @pytest.mark.parametrize(
        "change",
        [{"seen": [1, 1]}, {"seen": [40]}, {"seen": [-1, 40]}, {"lesson": -1}, {"labels": [None, 1]},
         {"labels": ["a", 1]}, {"labels": ["a", "a"]}],
        ids=str,
    )  # fmt: skip
    def test_senseless_tasks(self, folder: Path, change: dict[str, Any]) -> None:
        tasks = json.loads((folder / "model.json").read_text(encoding="utf-8"))["tasks"]
        name = next(iter(tasks))
        self._change(folder, tasks=tasks | {name: tasks[name] | change})
        with pytest.raises(kcl.KclError, match="holds no complete model"):
            kcl.load_model(folder)

    @pytest.mark.parametrize("change", [{"seed": -1}, {"columns": ["a"]}, {"columns": [1] * 6}, {"input_shape": [0]}])
    def test_senseless_numbers(self, folder: Path, change: dict[str, Any]) -> None:
        self._change(folder, **change)
        with pytest.raises(kcl.KclError, match="holds no complete model"):
            kcl.load_model(folder)

    @pytest.mark.parametrize("head", ["coreset", "streaming"])
    def test_every_tensor_missing_renamed_of_another_type_or_shape_or_not_finite(
        self, tmp_path: Path, head: str
    ) -> None:
        model = kcl.ContinualModel(head=head, **(SMALL if head == "coreset" else {"bases": 16}))
        model.learn(*ONE, task="animals")
        folder = kcl.save_model(model, tmp_path / "model")
        tensors = load_file(folder / "tensors.safetensors")
        for name, tensor in tensors.items():
            others: list[dict[str, Any]] = [{}, {name: tensor, f"{name}.x": tensor.clone()}, {name: tensor[None]}]
            others += [
                {name: tensor.to(kind)}
                for kind in (torch.bool, torch.float8_e4m3fn, torch.float16, torch.float64, torch.int64)
                if kind != tensor.dtype
            ]
            if tensor.is_floating_point() and tensor.numel():
                others.append({name: torch.full_like(tensor, torch.nan)})
            for other in others:
                kept = {each: value for each, value in tensors.items() if each != name} | other
                save_file(kept, folder / "tensors.safetensors")
                self._change(folder, sha256=hashlib.sha256((folder / "tensors.safetensors").read_bytes()).hexdigest())
                with pytest.raises(kcl.KclError, match="holds no complete model"):
                    kcl.load_model(folder)

    def test_a_temperature_of_zero(self, folder: Path) -> None:
        tensors = load_file(folder / "tensors.safetensors")
        name = next(name for name in tensors if name.endswith("temperature"))
        save_file(tensors | {name: torch.tensor(0.0)}, folder / "tensors.safetensors")
        self._change(folder, sha256=hashlib.sha256((folder / "tensors.safetensors").read_bytes()).hexdigest())
        with pytest.raises(kcl.KclError, match="temperature"):
            kcl.load_model(folder)

    @pytest.mark.parametrize("change", [{"settings": {}}, {"features": {}}, {"known": [{}]}], ids=str)
    def test_sums_that_are_only_described(self, tmp_path: Path, change: dict[str, Any], capsys: Any) -> None:
        model = kcl.ContinualModel(head="streaming", bases=16)
        model.learn(*ONE, task="animals")
        folder = kcl.save_model(model, tmp_path / "model")
        self._change(folder, **change)
        assert main(["inspect", str(folder)]) == 2
        assert "holds no complete model" in capsys.readouterr().err

    def test_names_of_any_length_are_told_shortly(self, folder: Path) -> None:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        self._change(folder, settings=about["settings"] | {"x" * 5000: 1})
        with pytest.raises(kcl.KclError) as refused:
            kcl.load_model(folder)
        assert len(str(refused.value)) < 600

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(kcl.KclError, match="holds no model"):
            kcl.load_model(tmp_path / "nowhere")


def test_tensors_are_plain_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    found = load_file(kcl.save_model(_learned(), tmp_path / "m") / "tensors.safetensors")
    assert all(isinstance(tensor, torch.Tensor) for tensor in found.values())
    assert "task.0.head.weights" in found
