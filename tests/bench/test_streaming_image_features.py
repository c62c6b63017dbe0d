"""The images' features of the streaming bench: mean of the last feature map, with labels, in order."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

BENCH = Path(__file__).parents[2] / "benches" / "streaming" / "image_features.py"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH.parent))
    spec = importlib.util.spec_from_file_location("streaming_image_features", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Stripes(torch.nn.Module):
    """A stand-in for the network, with the mean of each channel as features."""

    def extract_features(self, images: torch.Tensor) -> torch.Tensor:
        return images[:, :, ::56, ::56]


def test_features_and_labels_are_saved_in_order(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "load_network", lambda: bench.FeatureMaps(Stripes()))
    levels = {"train": np.arange(0, 250, 10, dtype=np.uint8), "test": np.arange(5, 90, 10, dtype=np.uint8)}
    content = {
        split: {"data": np.repeat(level[:, None], 3072, 1), "fine_labels": list(range(len(level)))}
        for split, level in levels.items()
    }
    monkeypatch.setenv("KCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bench.pickles, "read", lambda path: content[path.name])
    out = tmp_path / "features.npz"
    monkeypatch.setattr(sys, "argv", ["image_features.py", "--data", str(tmp_path), "--out", str(out)])
    bench.main()
    with np.load(out) as saved:
        for split, level in levels.items():
            np.testing.assert_allclose(saved[f"{split}_features"][:, 0], (level - 127.0) / 128.0, atol=1e-3)
            np.testing.assert_array_equal(saved[f"{split}_labels"], np.arange(len(level)))
