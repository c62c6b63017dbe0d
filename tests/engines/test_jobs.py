"""The estimated needs and length of jobs: guesses, but in proportion; and jobs whose runs share a training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.benchmarks.registry import BENCHMARKS, Benchmark
from kcl.core.devices import Compute
from kcl.data.dataset import Dataset
from kcl.engines import worker
from kcl.engines.job import Job, estimate_length, estimate_needs, make_jobs
from kcl.experiments.admission import admit
from kcl.experiments.group_training import Experiment, group_trainings
from kcl.experiments.resuming import RunOptions
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunGroup, RunSpec, by_training, key_of
from kcl.methods.kcl_settings import KclSettings
from kcl.training.checkpointer import Every
from kcl.training.stopping import Stop


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[float, float]]:
    """Length and share of a GPU of 20 gigabytes, of five runs with some settings, or with each of several."""
    images, labels = torch.zeros(60, 3, 8, 8, dtype=torch.uint8), torch.arange(60) % 3
    dataset = Dataset("made up", images, labels, images, labels, ("0", "1", "2"))
    monkeypatch.setitem(BENCHMARKS, "made-up", Benchmark("for tests", lambda *_: dataset, PermutedPixels, 20))

    def ask(*others: dict[str, Any], **settings: Any) -> tuple[float, float]:
        own = KclSettings(backbone="cifar-resnet", coreset_size_per_class=2, **settings)
        several = [own, *(own.replace(**other) for other in others)]
        specs = [RunSpec("made-up", "kcl", seed, one, 2, None) for seed in range(5) for one in several]
        plan, group = admit(specs, Compute("cuda")), RunGroup(by_training(specs))
        return estimate_length(plan, group), estimate_needs(plan, group, 20.0).gpus

    return ask


def test_views_and_updates_add_to_what_the_published_settings_take(asked: Callable[..., tuple[float, float]]) -> None:
    length, share = asked()
    assert asked(updates_per_batch=3) == (pytest.approx(3 * length), share)
    turned, mirrored = asked(rotation_labels=True), asked(rotation_labels=True, test_views="flip")
    assert length < turned[0] == mirrored[0] < 4 * length
    assert asked(kernel="linear", network_loss="linear")[0] < length
    assert turned[1] == pytest.approx(4 * share, abs=0.05)
    assert mirrored[1] == pytest.approx(8 * share, abs=0.05)


def test_runs_that_share_a_training_take_it_once_and_the_room_of_the_largest_test(
    asked: Callable[..., tuple[float, float]],
) -> None:
    length, share = asked(test_views="flip")
    assert asked({"test_views": "flip"}, {"weight_average": 0.9}) == (length, share)
    assert asked()[1] < share


@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_trains_them_once_and_goes_on_with_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stopped: bool
) -> None:
    images = torch.randint(256, (60, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    dataset = Dataset("made up", images, torch.arange(60) % 3, images.flip(0), torch.arange(60) % 3, ("0", "1", "2"))
    monkeypatch.setitem(BENCHMARKS, "made-up", Benchmark("for tests", lambda *_: dataset, PermutedPixels, 20))
    small = KclSettings(bases=16, width=8, coreset_size_per_class=4, weight_average=0.2)
    several = [small, small.replace(weight_average=0.0, test_draws=2)]
    specs = [RunSpec("made-up", "kcl", seed, own, 2, None) for own in several for seed in (0, 1)]

    def jobs(own: list[RunSpec], out: str) -> list[Job]:
        plan, options = admit(own, Compute()), RunOptions(Every(steps=3, seconds=None, thrifty=False))
        experiment = Experiment(plan, Folder(tmp_path / out, resume=False), options._replace(command="kcl run"))
        return make_jobs(experiment, group_trainings(plan, by_training(plan.specs)))

    def done(job: Job, stop: Stop) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []

        def tell(message: dict[str, Any]) -> None:
            said.append(json.loads(json.dumps(message)))
            stop.signal = 15 if stopped and message["kind"] == "progress" and job.attempt == 0 else stop.signal

        worker.run_job(job, tell, stop)
        assert said[-1]["kind"] == ("stopped" if stop.signal else "done")
        return [message["record"] for message in said if message["kind"] == "record"]

    passing = ("seconds", "learning_seconds", "training_shared_by", "resumed")

    def found(jobs: list[Job]) -> dict[str, dict[str, Any]]:
        records = [record for job in jobs for record in done(job, Stop()) or done(job.next_attempt(), Stop())]
        assert {record["resumed"] for record in records} == {int(stopped)}
        return {key_of(own): {k: v for k, v in own.items() if k not in passing} for own in records}

    shared = jobs(specs, "shared")
    assert [len(job.runs) for job in shared] == [2, 2]
    alone = [job for place, spec in enumerate(specs) for job in jobs([spec], str(place))]
    assert found(shared) == found(alone)
