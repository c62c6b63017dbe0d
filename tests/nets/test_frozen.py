"""Frozen features: what the network is shown, that nothing is computed twice, and which mistakes are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import kcl
from kcl.cli.commands import main
from kcl.nets import frozen
from kcl.nets.frozen import FrozenFeatures
from kcl.nets.preparation import Preparation

RANDOM = np.random.default_rng(0)
HALF = {"mean": [0.5] * 3, "std": [0.25] * 3}
Seeded = Callable[[int], AbstractContextManager[None]]


class Counting(nn.Module):
    """The mean of each channel, with weights; counts what it is shown."""

    shown = 0

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(channels, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).shown += len(x)
        return self.dropout(self.layer(x.mean((2, 3))))


@pytest.fixture
def network(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    monkeypatch.setattr(Counting, "shown", 0)
    with seeded(0):
        return Counting()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KCL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _images(count: int, side: int = 8) -> np.ndarray:
    return RANDOM.integers(0, 256, (count, 3, side, side), np.uint8)


def _expected(network: nn.Module, images: np.ndarray) -> np.ndarray:
    layer = network.get_submodule("layer")
    assert isinstance(layer, nn.Linear)
    means = (torch.from_numpy(images).float() / 255.0 - 0.5).mean((2, 3)) / 0.25
    return layer(means).detach().numpy()


class TestPreparation:
    @pytest.mark.parametrize("kind", ["bicubic", "bilinear"])
    @pytest.mark.parametrize("side", [32, 300])
    def test_images_are_resized_as_pillow_does_it(self, kind: str, side: int) -> None:
        image = pytest.importorskip("PIL.Image")
        # Pillow also rounds between the two directions: one step at most, where the filter stays within 0 … 255.
        pixels = RANDOM.integers(90, 166, (side, side, 3), np.uint8)
        large = np.asarray(image.fromarray(pixels).resize((224, 224), image.Resampling[kind.upper()]))
        prepare = Preparation(224, (0.5,) * 3, (0.5,) * 3, filter=kind)
        prepared = prepare(torch.from_numpy(pixels).permute(2, 0, 1)[None])
        shown = ((prepared[0] * 0.5 + 0.5) * 255.0).permute(1, 2, 0).numpy()
        assert np.abs(shown - large).max() <= 1.01

    def test_the_centre_is_shown(self) -> None:
        images = torch.from_numpy(_images(2, 12))
        wide = torch.nn.functional.pad(images, (3, 3))
        same = Preparation(12, (0.0,) * 3, (1.0,) * 3)
        torch.testing.assert_close(same(wide), images / 255.0)
        centre = Preparation(6, (0.0,) * 3, (1.0,) * 3, crop=0.5)
        torch.testing.assert_close(centre(wide), images[:, :, 3:9, 3:9] / 255.0)

    def test_grey_becomes_three_channels(self) -> None:
        prepared = Preparation(8, (0.1, 0.2, 0.3), (1.0,) * 3)(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
        torch.testing.assert_close(prepared[0, :, 0, 0], torch.tensor([-0.1, -0.2, -0.3]))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"filter": "nearest"}, "unknown filter 'nearest'"),
            ({"size": 0}, "at least one pixel"),
            ({"crop": 0.0}, "crop in 0 … 1"),
            ({"crop": 1.5}, "crop in 0 … 1"),
            ({"std": [0.5, 0.0, 0.5]}, "one number for each channel"),
            ({"mean": [0.5]}, "one number for each channel"),
            ({"mean": None}, "give all three"),
        ],
    )
    def test_nonsense_is_refused(self, network: nn.Module, change: dict[str, Any], message: str) -> None:
        with pytest.raises(kcl.KclError, match=message):
            FrozenFeatures(network, **({"size": 8, **HALF} | change))


class TestTransform:
    @settings(max_examples=10)
    @given(batch=st.integers(1, 9), order=st.lists(st.integers(0, 9), min_size=1, max_size=12))
    def test_rows_are_those_of_the_network_in_any_order_and_batch(self, batch: int, order: list[int]) -> None:
        layer = nn.utils.skip_init(nn.Conv2d, 3, 5, 1, bias=False)
        layer.load_state_dict({"weight": torch.arange(15.0).view(5, 3, 1, 1)})
        images = np.random.default_rng(1).integers(0, 256, (10, 3, 4, 4), np.uint8)
        features = FrozenFeatures(layer, 4, **HALF, batch=batch, cache=False).transform(images[order])
        means = ((images / 255.0 - 0.5) / 0.25).mean((2, 3)) @ np.arange(15.0).reshape(5, 3).T
        np.testing.assert_allclose(features, means[order], atol=1e-4)
        assert features.dtype == np.float32

    def test_nothing_is_passed_twice(self, network: nn.Module) -> None:
        images = _images(10)
        first = FrozenFeatures(network, 8, **HALF).transform(images)
        np.testing.assert_allclose(first, _expected(network, images), atol=1e-6)
        assert Counting.shown == 10
        again = FrozenFeatures(network, 8, **HALF).transform(np.concatenate([images[::-1], images[:3], _images(2)]))
        assert Counting.shown == 12
        np.testing.assert_array_equal(again[:13], np.concatenate([first[::-1], first[:3]]))

    def test_equal_inputs_are_passed_once(self, network: nn.Module) -> None:
        FrozenFeatures(network, 8, **HALF, cache=False).transform(_images(1).repeat(5, axis=0))
        assert Counting.shown == 1

    def test_the_module_is_left_as_it_is(self, network: nn.Module) -> None:
        network.train()
        features = FrozenFeatures(network, 8, **HALF, cache=False)
        images = _images(3)
        before = features.transform(images)
        assert network.training
        assert all(parameter.requires_grad for parameter in network.parameters())
        with torch.no_grad():
            network.get_parameter("layer.weight").zero_()
        np.testing.assert_array_equal(features.transform(images), before)

    def test_arrays_go_to_the_network_as_they_are(self, seeded: Seeded) -> None:
        with seeded(0):
            layer = nn.Linear(6, 2)
        rows = RANDOM.normal(size=(5, 6))
        expected = layer(torch.tensor(rows, dtype=torch.float32)).detach().numpy()
        features = FrozenFeatures(layer)
        for given_rows in (rows, rows.tolist(), torch.tensor(rows), rows[::-1][::-1]):
            np.testing.assert_allclose(features.transform(given_rows), expected, atol=1e-6)

    def test_texts_go_to_a_function(self) -> None:
        calls = []

        def embed(texts: list[str]) -> list[list[float]]:
            calls.append(texts)
            return [[len(text), text.count("a")] for text in texts]

        for texts in (["a", "banana", "a"], ("banana", "a"), np.array(["banana", "a"], dtype=object)):
            rows = FrozenFeatures(embed, name="lengths", batch=2).transform(texts)
            np.testing.assert_array_equal(rows, [[len(text), text.count("a")] for text in texts])
        assert sorted(text for batch in calls for text in batch) == ["a", "banana"]

    def test_a_function_without_a_name_keeps_nothing(self, cache: Path) -> None:
        features = FrozenFeatures(lambda texts: np.zeros((len(texts), 2)))
        features.transform(["a"])
        assert features.cache is None
        assert not cache.exists()

    def test_what_was_computed_is_kept_when_it_is_interrupted(self, network: nn.Module) -> None:
        images = _images(6)
        features = FrozenFeatures(network, 8, **HALF, batch=2)
        batches = features._batches

        def interrupted(*arguments: Any) -> Any:
            yield next(batches(*arguments))
            raise KeyboardInterrupt

        features._batches = interrupted
        with pytest.raises(KeyboardInterrupt):
            features.transform(images)
        shown = Counting.shown
        FrozenFeatures(network, 8, **HALF).transform(images)
        assert Counting.shown - shown == 4

    def test_it_is_saved_on_the_way(self, network: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(frozen, "SAVE_SECONDS", 0.0)
        features, sizes = FrozenFeatures(network, 8, **HALF, batch=2), []
        assert features.cache is not None
        add = features.cache.add
        monkeypatch.setattr(features.cache, "add", lambda rows: (sizes.append(len(rows)), add(rows)))
        images = _images(5)
        np.testing.assert_allclose(features.transform(images), _expected(network, images), atol=1e-6)
        assert sizes == [2, 2, 1]

    def test_a_timm_module_says_how_images_are_prepared(self, network: nn.Module) -> None:
        network.pretrained_cfg = {"input_size": (3, 8, 8), "crop_pct": 0.8, "interpolation": "bilinear",
                                  "mean": (0.5,) * 3, "std": (0.25,) * 3}  # fmt: skip
        assert FrozenFeatures(network).preparation == Preparation(8, (0.5,) * 3, (0.25,) * 3, 0.8, "bilinear")
        assert FrozenFeatures(network, 4, **HALF).preparation == Preparation(4, (0.5,) * 3, (0.25,) * 3)


class TestIdentity:
    def test_does_not_depend_on_where_things_lie_in_memory(self, network: nn.Module) -> None:
        twin = copy.deepcopy(network)
        network.call, twin.call = (lambda: lambda x: x,) * 2  # type: ignore[assignment]
        network.act, twin.act = network.call(), twin.call()
        assert repr(network.act) != repr(twin.act)
        assert FrozenFeatures(network, 8, **HALF).identity == FrozenFeatures(twin, 8, **HALF).identity

    def test_differs_where_features_differ(self, network: nn.Module) -> None:
        class Other(Counting):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(2.0 * x)

        other, changed, scaled = (copy.deepcopy(network) for _ in range(3))
        other.__class__ = Other
        with torch.no_grad():
            changed.get_parameter("layer.bias")[0] += 1e-6
        scaled.factor = 2.0  # type: ignore[assignment]
        identities = [FrozenFeatures(each, 8, **HALF).identity for each in (network, other, changed, scaled)]
        identities += [FrozenFeatures(network, size, **HALF).identity for size in (9, 10)]
        identities += [FrozenFeatures(network, 8, **HALF | {"std": [0.5] * 3}).identity]
        identities += [FrozenFeatures(network, 8, **HALF, crop=0.8).identity]
        identities += [FrozenFeatures(network, 8, **HALF, filter="bilinear").identity]
        assert len(set(identities)) == len(identities)
        assert FrozenFeatures(network, 8, **HALF, batch=3, name="ours").identity == identities[0]


class TestMistakes:
    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            (np.zeros((2, 3, 8, 8)), r"must be bytes.*not float64"),
            (np.zeros((2, 8, 8, 3), np.uint8), "give them channels first"),
            (np.zeros((2, 2, 8, 8), np.uint8), r"expected n × 3 × height × width"),
            (np.zeros((3, 8, 8), np.uint8), r"expected n × 3 × height × width"),
            (np.zeros((0, 3, 8, 8), np.uint8), "no inputs"),
            ([], "no inputs"),
            (["a", "b"], "expected arrays; texts"),
            ([[1, 2], [3]], "not an array"),
            (np.array([None, 1]), "expected arrays; texts"),
            ([Path("nowhere.png")], "nowhere.png cannot be read"),
            (Path("nowhere"), "nowhere does not exist"),
        ],
    )
    def test_of_inputs(self, network: nn.Module, inputs: Any, message: str) -> None:
        with pytest.raises(kcl.KclError, match=message):
            FrozenFeatures(network, 8, **HALF).transform(inputs)

    def test_bytes_without_a_preparation(self, network: nn.Module) -> None:
        with pytest.raises(kcl.KclError, match="these inputs are bytes"):
            FrozenFeatures(network).transform(_images(2))

    def test_inputs_that_the_network_cannot_take(self, network: nn.Module) -> None:
        with pytest.raises(kcl.KclError, match=r"does not take inputs of shape \(4,\)"):
            FrozenFeatures(network).transform(np.zeros((2, 4)))

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            (np.zeros((1, 3)), "one row of features for each of 2"),
            (np.zeros((2, 3, 4)), "one row of features"),
            (np.array([[1.0, np.nan], [0.0, 0.0]]), "not finite"),
            ({"features": 1}, "returned dict; expected one tensor"),
        ],
    )
    def test_of_functions(self, returned: Any, message: str, cache: Path) -> None:
        with pytest.raises(kcl.KclError, match=message):
            FrozenFeatures(lambda _: returned, name="ours").transform(["a", "b"])
        assert not list(cache.rglob("*.safetensors"))

    @pytest.mark.parametrize(("arguments", "message"), [({"batch": 0}, "at least 1"), ({"device": "cuda"}, "no CUDA")])
    def test_of_options(self, network: nn.Module, arguments: dict[str, Any], message: str) -> None:
        if arguments.get("device") == "cuda" and torch.cuda.is_available():
            pytest.skip("there is a GPU")
        with pytest.raises(kcl.KclError, match=message):
            FrozenFeatures(network, 8, **HALF, **arguments)


class TestImageFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        image = pytest.importorskip("PIL.Image")
        for label, shape in (("cat", (8, 8, 3)), ("dog", (20, 12, 3))):
            (tmp_path / "images" / label).mkdir(parents=True)
            for number in range(3):
                pixels = RANDOM.integers(0, 256, shape, np.uint8)
                image.fromarray(pixels).save(tmp_path / "images" / label / f"{number}.png")
        return tmp_path / "images"

    def test_files_give_what_arrays_give(self, network: nn.Module, folder: Path) -> None:
        image = pytest.importorskip("PIL.Image")
        features = FrozenFeatures(network, 8, **HALF, batch=4)
        rows, labels, names, columns = features.read(folder)
        assert labels is not None
        assert labels.tolist() == ["cat"] * 3 + ["dog"] * 3
        assert names[-1] == str(Path("dog") / "2.png")
        assert len(set(columns)) == rows.shape[1] == 4
        cats = np.stack([np.asarray(image.open(folder / "cat" / f"{n}.png")).transpose(2, 0, 1) for n in range(3)])
        np.testing.assert_allclose(rows[:3], _expected(network, cats), atol=1e-6)
        np.testing.assert_array_equal(features.transform(folder), rows)
        np.testing.assert_array_equal(features.transform([folder / "dog" / "1.png"]), rows[4:5])
        assert Counting.shown == 6

    def test_a_changed_file_is_seen(self, network: nn.Module, folder: Path) -> None:
        features = FrozenFeatures(network, 8, **HALF)
        before = features.transform(folder)
        (folder / "dog" / "0.png").write_bytes((folder / "cat" / "0.png").read_bytes())
        np.testing.assert_array_equal(features.transform(folder)[3], before[0])
        assert Counting.shown == 6

    def test_the_crop_is_of_the_middle(self, network: nn.Module, folder: Path) -> None:
        image = pytest.importorskip("PIL.Image")
        pixels = np.asarray(image.open(folder / "cat" / "0.png")).transpose(2, 0, 1)
        rows = FrozenFeatures(network, 4, **HALF, crop=0.5).transform([folder / "cat" / "0.png"])
        np.testing.assert_allclose(rows, _expected(network, pixels[None, :, 2:6, 2:6].copy()), atol=1e-6)


@pytest.fixture
def runtime() -> Any:
    pytest.importorskip("onnx")
    return pytest.importorskip("onnxruntime")


def _save(path: Path, rows: int | str = "n", external: bool = False) -> Path:
    """(n, 3, 8, 8) to the means of the channels, times weights."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    dtype = TensorProto.FLOAT
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "means",
        [helper.make_tensor_value_info("x", dtype, [rows, 3, 8, 8])],
        [helper.make_tensor_value_info("y", dtype, [rows, 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


class TestOnnx:
    """The same from an ONNX file, and from a module that ONNX Runtime runs."""

    def _expected(self, images: np.ndarray) -> np.ndarray:
        return ((images / 255.0 - 0.5) / 0.25).mean((2, 3)) @ np.arange(12.0).reshape(3, 4)

    @pytest.mark.parametrize("rows", ["n", 1, 4])
    def test_a_file(self, runtime: Any, tmp_path: Path, rows: int | str) -> None:
        images = _images(6)
        features = FrozenFeatures(_save(tmp_path / "net.onnx", rows), 8, **HALF, batch=5)
        np.testing.assert_allclose(features.transform(images), self._expected(images), atol=1e-5)

    def test_weights_beside_the_file_belong_to_it(self, runtime: Any, tmp_path: Path) -> None:
        path, images = _save(tmp_path / "net.onnx", external=True), _images(2)
        before = FrozenFeatures(path, 8, **HALF)
        np.testing.assert_allclose(before.transform(images), self._expected(images), atol=1e-5)
        weights = tmp_path / "weights.bin"
        weights.write_bytes(bytes(len(weights.read_bytes())))
        after = FrozenFeatures(path, 8, **HALF)
        assert after.identity != before.identity
        assert not after.transform(images).any()
        weights.unlink()
        with pytest.raises(kcl.KclError, match=r"weights.bin cannot be read"):
            FrozenFeatures(path, 8, **HALF)

    def test_weights_elsewhere_are_refused(self, runtime: Any, tmp_path: Path) -> None:
        path = _save(tmp_path / "net.onnx", external=True)
        path.write_bytes(path.read_bytes().replace(b"weights.bin", b"../../a.bin"))
        with pytest.raises(kcl.KclError, match="expected a file beside it"):
            FrozenFeatures(path, 8, **HALF)

    @pytest.mark.parametrize("content", [b"", b"nonsense", b"\n\x08location\x12", None])
    def test_what_is_no_network_is_refused(self, runtime: Any, tmp_path: Path, content: bytes | None) -> None:
        path = tmp_path / "net.onnx"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(kcl.KclError, match=r"net\.onnx"):
            FrozenFeatures(path, 8, **HALF)

    def test_another_size_is_refused(self, runtime: Any, tmp_path: Path) -> None:
        features = FrozenFeatures(_save(tmp_path / "net.onnx"), 16, **HALF)
        with pytest.raises(kcl.KclError, match=r"takes inputs of shape \[3, 8, 8\], not \[3, 16, 16\]"):
            features.transform(_images(1))

    def test_a_network_of_tokens_is_refused(self, runtime: Any, tmp_path: Path) -> None:
        from onnx import TensorProto, helper

        ins = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", 4]) for name in ("ids", "mask")]
        outs = [helper.make_tensor_value_info("y", TensorProto.INT64, ["n", 4])]
        graph = helper.make_graph([helper.make_node("Mul", ["ids", "mask"], ["y"])], "tokens", ins, outs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(kcl.KclError, match="expected one input of floating-point numbers"):
            FrozenFeatures(tmp_path / "net.onnx")

    def test_a_module_in_onnx_runtime(self, runtime: Any, network: nn.Module) -> None:
        pytest.importorskip("onnxscript")
        images = _images(5)
        rows = FrozenFeatures(network, 8, **HALF, onnx=True, batch=2).transform(images)
        np.testing.assert_allclose(rows, _expected(network, images), atol=1e-5)
        np.testing.assert_array_equal(FrozenFeatures(network, 8, **HALF).transform(images), rows)  # from the cache


def test_features_for_a_model_that_keeps_learning(network: nn.Module) -> None:
    images = np.concatenate([_images(20) // 4, 128 + _images(20) // 4])
    labels = np.repeat(["dark", "bright"], 20)
    features = FrozenFeatures(network, 8, **HALF)
    model = kcl.ContinualModel()
    model.learn(features.transform(images), labels)
    assert (model.predict(features.transform(images)).label == labels).all()
    assert Counting.shown == 40


def test_the_command(runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Features for `kcl update`, which refuses those of another network or preparation."""
    images = np.concatenate([_images(20) // 4, 128 + _images(20) // 4])
    np.savez(tmp_path / "images.npz", x=images, y=np.repeat(["dark", "bright"], 20))
    np.savez(tmp_path / "queries.npz", x=images)
    backbone, out = str(_save(tmp_path / "net.onnx")), str(tmp_path / "features.npz")
    network = ["--backbone", backbone, "--size", "8", "--mean", *["0.5"] * 3]

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments])
        return code, *capsys.readouterr()

    assert run("features", str(tmp_path / "images.npz"), *network, "--std", *["0.25"] * 3, "--out", out)[0] == 0
    model = ["--model", str(tmp_path / "model")]
    assert run("update", *model, "--task", "light", "--data", out)[0] == 0
    queries = str(tmp_path / "queries-features.npz")
    of_queries = ["features", str(tmp_path / "queries.npz"), *network, "--unlabelled", "--out", queries]
    assert run(*of_queries, "--std", *["0.25"] * 3)[0] == 0
    code, told, _ = run("predict", *model, "--input", queries)
    assert code == 0
    assert told.count("dark") == told.count("bright") == 20
    assert run(*of_queries, "--std", *["0.5"] * 3)[0] == 0
    code, told, error = run("predict", *model, "--input", queries)
    assert (code, told) == (2, "")
    assert "features of another network or preparation" in error
    code, _, error = run("features", str(tmp_path / "nowhere"), *network, "--std", *["0.25"] * 3, "--out", out)
    assert (code, "does not exist" in error) == (2, True)
    for arguments, words in (
        ([*network, "--out", out], "give all three"),
        (["--backbone", backbone, "--out", str(tmp_path / "features.csv")], "ends in .npz"),
        (["--backbone", str(tmp_path / "none.onnx"), "--out", out], "none.onnx"),
        (["--backbone", backbone, "--out", out], "bytes"),
    ):
        before = (tmp_path / "features.npz").read_bytes()
        code, _, error = run("features", str(tmp_path / "images.npz"), *arguments)
        assert (code, error.count("\n")) == (2, 1)
        assert words in error
        assert (tmp_path / "features.npz").read_bytes() == before
