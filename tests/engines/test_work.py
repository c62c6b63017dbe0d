"""What an order is said to need and how long it is said to take: guesses, but in proportion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kcl.benchmarks.catalogue import BENCHMARKS, Benchmark
from kcl.benchmarks.mnist import PermutedPixels
from kcl.data.dataset import Dataset
from kcl.engines import work
from kcl.experiment import Experiment, Group
from kcl.run_spec import RunSpec
from kcl.settings import Settings


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[float, float]]:
    """Length and share of a GPU of 20 gigabytes, of five runs with some settings."""
    images, labels = torch.zeros(60, 3, 8, 8, dtype=torch.uint8), torch.arange(60) % 3
    dataset = Dataset("made up", images, labels, images, labels, ("0", "1", "2"))
    monkeypatch.setitem(BENCHMARKS, "made-up", Benchmark("for tests", lambda *_: dataset, PermutedPixels))

    def ask(**settings: Any) -> tuple[float, float]:
        own = Settings(backbone="cifar-resnet", coreset_size_per_class=2, **settings)
        specs = [RunSpec("made-up", "kcl", seed, own, 2, None) for seed in range(5)]
        experiment = Experiment(specs, "kcl run")
        experiment.device = torch.device("cuda")
        group = Group(specs)
        return work.length(experiment, group), work.needs(experiment, group, 20.0).gpus

    return ask


def test_views_and_updates_multiply_what_the_published_settings_take(asked: Callable[..., tuple[float, float]]) -> None:
    length, share = asked()
    assert asked(updates_per_batch=3) == (pytest.approx(3 * length), share)
    turned, mirrored = asked(rotation_labels=True), asked(rotation_labels=True, test_views="flip")
    assert turned[0] == mirrored[0] == pytest.approx(4 * length)
    assert turned[1] == pytest.approx(4 * share, abs=0.05)
    assert mirrored[1] == pytest.approx(8 * share, abs=0.05)
