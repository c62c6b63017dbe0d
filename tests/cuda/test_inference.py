"""What a GPU answers, and what is measured of it: heads, unknown tasks, times.

With pytest these are skipped where there is no GPU. `python tests/cuda/test_inference.py` needs no pytest.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import torch

try:
    import pytest
except ImportError:
    pytest = None

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from kcl.bench import answer_time
from kcl.bench.step_time import Work
from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.benchmarks.registry import BENCHMARKS, Benchmark
from kcl.core.devices import Compute
from kcl.data.dataset import Dataset
from kcl.experiments import task_free
from kcl.experiments.run_spec import RunSpec
from kcl.methods.kcl_settings import KclSettings

DEVICE = "cuda"
if pytest is not None:
    pytestmark = [
        pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA GPU here"),
        pytest.mark.filterwarnings("default"),
    ]

SMALL = KclSettings(bases=128, coreset_size_per_class=5, width=64)
WORKS = {
    "mlp": Work((1, 8, 8), 4, 0, SMALL),
    "resnet": Work((3, 32, 32), 5, 0, SMALL.replace(backbone="cifar-resnet", dropout=0.02)),
}


def test_both_tables_are_measured_of_the_mlp() -> None:
    _measured("mlp")


def test_both_tables_are_measured_of_the_resnet() -> None:
    _measured("resnet")


def _measured(name: str) -> None:
    rows = list(answer_time.paper_tables(name, WORKS[name], (1, 50), DEVICE, 0.01))
    ways = {"plain", "uncollapsed", "collapsed", "backbone"}
    assert {row.way for row in rows} == ways
    assert len(rows) == 2 * 4 * 2 * len(ways)
    assert all(row.ms > 0.0 for row in rows)
    model = answer_time._Model(WORKS[name], {}, 3, 7, DEVICE)
    assert {tensor.device.type for tensor in (*model.memory.values(), model.queries)} == {torch.device(DEVICE).type}
    folded, plain = model.answerer.logits(model.queries, 0), model.uncollapsed(model.queries)
    torch.testing.assert_close(folded, plain, rtol=1e-3, atol=1e-3)
    answer = model.answerer.answer(model.queries)
    told = answer.confidence, answer.variance, answer.task_margin
    assert all(bool(column.isfinite().all()) for column in told)


def test_tasks_are_found_by_stacked_runs() -> None:
    """Three permutations of well-parted classes, three seeds together: what is measured is sound for every run."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(1600) % 4
    images = torch.randint(0, 100, (1600, 1, 8, 8), generator=random)
    images[torch.arange(1600), 0, labels] += 120
    images = images.to(torch.uint8)
    data = Dataset("made up", images[:1200], labels[:1200], images[1200:], labels[1200:], tuple("abcd"))
    settings = SMALL.replace(dropout=0.1, epochs=3)
    specs = [RunSpec("made-up", "kcl", seed, settings, 3) for seed in range(3)]
    BENCHMARKS["made-up"] = Benchmark("for tests", lambda *_: data, PermutedPixels, 20)
    try:
        compute = Compute(DEVICE, compiled=False, precision="tf32")
        rows = task_free.measure(specs, compute, task_free.SampleCounts(held_out=100))
    finally:
        del BENCHMARKS["made-up"]
    assert [row["seed"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert row["test_samples"] == 3 * 400
        assert row["known_task_accuracy"] > 80.0
        assert row["scores"]["typicality"]["task_accuracy"] > 60.0
        assert row["ece_calibrated"] < 0.3


def main() -> int:
    if not torch.cuda.is_available():
        print("nothing was checked: PyTorch finds no CUDA GPU here")
        return 1
    failed = 0
    checks = {name: check for name, check in globals().items() if name.startswith("test_")}
    for name, check in checks.items():
        try:
            check()
            print("passed", name, flush=True)
        except Exception:
            traceback.print_exc()
            print("FAILED", name, flush=True)
            failed += 1
    print(f"{len(checks) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
