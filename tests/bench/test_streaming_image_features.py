"""The images' features of the streaming bench: what the network is shown, and that portions come together in order."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

BENCH = Path(__file__).parents[2] / "benches" / "streaming" / "image_features.py"


@pytest.fixture
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("streaming_image_features", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_images_are_enlarged_as_pillow_does_it(bench: ModuleType) -> None:
    image = pytest.importorskip("PIL.Image")
    # Pillow also clips between the two directions: values that the filter does not take beyond 0 … 255.
    small = np.random.default_rng(0).integers(90, 166, (32, 32, 3), np.uint8)
    large = np.asarray(image.fromarray(small).resize((224, 224), image.Resampling.BICUBIC))
    prepared = bench.prepare(torch.from_numpy(small).permute(2, 0, 1)[None])
    pixels = (prepared[0] * 128.0 + 127.0).permute(1, 2, 0).numpy()
    # Pillow also rounds between the two directions: one step at most. The filter with a = -3/4 is further off.
    assert np.abs(pixels - large).max() <= 1.0


def test_portions_come_together_in_order(bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the network that gives the image's first pixel."""

    def first_pixel(inputs: torch.Tensor) -> torch.Tensor:
        return (inputs[:, 0, 0, :1] * 128.0 + 127.0).expand(-1, bench.FEATURES)

    images = {"train": 23, "test": 7}
    generator = np.random.default_rng(1)
    data = {
        split: (np.repeat(generator.integers(0, 256, (n, 1, 1, 32), np.uint8), 3, 1), np.arange(n))
        for split, n in images.items()
    }
    monkeypatch.setattr(bench, "read_cifar", lambda _, split: data[split])
    monkeypatch.setattr(bench, "prepare", lambda part: (part.float() - 127.0) / 128.0)
    monkeypatch.setattr(bench, "load_network", lambda *_: first_pixel)
    monkeypatch.setattr(bench, "PORTION", 10)
    monkeypatch.setattr(bench, "ROWS_PER_FILE", 5)
    shared = {"device": "cpu", "batch": 4, "limit": None, "weights_package_path": tmp_path}
    bench.cut(argparse.Namespace(data=tmp_path, out=tmp_path / "cut"))
    for path in sorted((tmp_path / "cut").iterdir()):
        bench.portion(argparse.Namespace(data=path, out=tmp_path / "made", **shared))
    bench.join(argparse.Namespace(data=tmp_path, portions=tmp_path / "made", out=tmp_path / "joined.npz"))
    bench.make(argparse.Namespace(data=tmp_path, out=tmp_path / "once.npz", **shared))
    joined, once = np.load(tmp_path / "joined.npz"), np.load(tmp_path / "once.npz")
    assert sorted(joined) == sorted(once)
    for name in joined:
        np.testing.assert_array_equal(joined[name], once[name])
    for split, (pixels, labels) in data.items():
        np.testing.assert_array_equal(joined[f"{split}_features"][:, 0], pixels[:, 0, 0, 0])
        np.testing.assert_array_equal(joined[f"{split}_labels"], labels)
