"""Split benchmarks from the command line: choices, mistakes, results that are resumed, and real images end to end."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import Said, call
from kcl.experiments.run_spec import RunSpec, key_of
from kcl.methods.recipes import published_settings

CHEAP = ["--set", "bases=16", "coreset_size_per_class=2", "backbone=cifar-resnet", "lr=0.05", "--device", "cpu"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    return functools.partial(call, capsys)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six classes of nine small PNG images, each around a colour of its own."""
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for k in range(6):
        (tmp_path / "own" / f"class {k}").mkdir(parents=True)
        for n in range(9):
            pixels = np.full((10, 12, 3), 40 * np.array([k, 5 - k, k % 2])) + random.integers(0, 20, (10, 12, 3))
            image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "own" / f"class {k}" / f"{n}.png")
    return tmp_path / "own"


def _records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


class TestFolder:
    def test_is_learned_end_to_end(self, run: Any, folder: Path, tmp_path: Path) -> None:
        command = ["run", "split-folder", "--data-dir", folder, "--image-size", 8, "--ways", 2, *CHEAP]
        code, out, err = run(*command, "--out", tmp_path / "out")
        assert code == 0, err
        assert "decoding 54 images once, to 8 × 8" in err
        assert "split-folder" in out
        (record,) = _records(tmp_path / "out")
        chosen = [record[name] for name in ("tasks", "ways", "class_order", "image_size")]
        assert chosen == [3, 2, "fixed", 8]
        assert len(record["data"]) == 16
        assert record["memory"]["samples"] == 3 * 2 * 2
        code, _, err = run(*command, "--out", tmp_path / "out", "--resume")
        assert code == 0
        assert "1 of 1 runs" in err
        assert "decoding" not in err

    def test_other_images_or_sizes_are_other_runs(self, run: Any, folder: Path, tmp_path: Path) -> None:
        command = ["run", "split-folder", "--data-dir", folder, "--ways", 3, "--out", tmp_path / "out", *CHEAP]
        assert run(*command, "--image-size", 8)[0] == 0
        assert run(*command, "--image-size", 9, "--resume")[0] == 0
        (folder / "class 0" / "0.png").write_bytes((folder / "class 1" / "0.png").read_bytes())
        assert run(*command, "--image-size", 8, "--resume")[0] == 0
        records = _records(tmp_path / "out")
        assert [record["image_size"] for record in records] == [8, 9, 8]
        assert len({record["data"] for record in records}) == 3

    def test_varied_ways_with_several_seeds(self, run: Any, folder: Path, tmp_path: Path) -> None:
        command = ["run", "split-folder", "--data-dir", folder, "--image-size", 8, "--ways", "2-3", "--seeds", "0..2"]
        assert run(*command, *CHEAP, "--out", tmp_path / "out")[0] == 0
        records = _records(tmp_path / "out")
        assert all(record["ways"] == [2, 3] for record in records)
        assert run(*command, *CHEAP, "--out", tmp_path / "out", "--resume")[0] == 0
        assert len(_records(tmp_path / "out")) == 3

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            ([], "6 classes of folder do not make whole tasks of 5 ways"),
            (["--ways", "7"], "at most 6"),
            (["--ways", "two"], "--ways 'two': expected"),
            (["--ways", "3-"], "--ways"),
            (["--ways", "3..15"], "--ways"),
            (["--ways", "1"], "at least 2"),
            (["--ways", "0"], "at least 2"),
            (["--ways", "9" * 5000], "--ways '999"),
            (["--ways", "5-3"], "3-5"),
            (["--ways", "3", "--tasks", "3"], "make 2 tasks of 3 ways, not 3"),
            (["--ways", "2", "--image-size", "4"], "image size must lie in 8 … 1024"),
            (["--ways", "2", "--set", "coreset_size_per_class=8"], "coreset"),
            (["--ways", "2", "--train-per-task", "1"], "train_per_task"),
        ],
    )
    def test_mistakes_give_one_line(
        self, run: Any, folder: Path, tmp_path: Path, arguments: list[str], word: str
    ) -> None:
        code, out, err = run(
            "run", "split-folder", "--data-dir", folder, "--quiet", *arguments, "--out", tmp_path / "o"
        )
        assert (code, out) == (2, "")
        assert word in err
        assert err.count("\n") == 1
        assert not (tmp_path / "o").exists()

    def test_a_broken_image_gives_one_line(self, run: Any, folder: Path, tmp_path: Path) -> None:
        (folder / "class 3" / "4.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
        code, out, err = run("run", "split-folder", "--data-dir", folder, "--ways", 2, "--quiet", "--out", "o")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "4.png" in err

    def test_the_cache_is_listed_and_cleared(self, run: Any, folder: Path, tmp_path: Path) -> None:
        run("run", "split-folder", "--data-dir", folder, "--image-size", 64, "--ways", 6, *CHEAP, "--out", "o")
        assert "decoded images" in run("data", "list")[1]
        code, out, _ = run("data", "clear")
        assert code == 0
        assert "removed 1 MB" in out
        assert not (tmp_path / "cache" / "images").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["permuted-mnist", "--ways", "5"], "--ways does not apply to permuted-mnist; it applies to split-cifar100"),
        (["rotated-mnist", "--class-order", "shuffled"], "--class-order does not apply to rotated-mnist"),
        (
            ["split-cifar100", "--image-size", "32"],
            "--image-size does not apply to split-cifar100; it applies to split-f",
        ),
        (["split-folder"], "split-folder needs --data-dir PATH"),
        (["split-cifar100", "--data-dir", "nowhere"], "CIFAR-100 was not found under nowhere"),
        (["split-miniimagenet", "--data-dir", "nowhere"], "miniImageNet was not found under nowhere"),
        (["permuted-digits", "--set", "backbone=cifar-resnet"], "cifar-resnet needs colour images"),
        (["split-cifar100", "--set", "backbone=resnet"], "unknown backbone 'resnet'"),
    ],
)
def test_mistakes_give_one_line(run: Any, tmp_path: Path, arguments: list[str], word: str) -> None:
    pytest.importorskip("sklearn")
    code, out, err = run("run", *arguments, "--out", tmp_path / "out")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert word in err
    assert not (tmp_path / "out").exists()


class TestShowSettings:
    def _shown(self, run: Any, *arguments: str) -> dict[str, str]:
        code, out, err = run("run", *arguments, "--show-settings")
        assert (code, err) == (0, "")
        return {line.split()[0]: line.split()[1] for line in out.splitlines()}

    def test_is_what_is_published(self, run: Any, tmp_path: Path) -> None:
        shown = self._shown(run, "split-cifar100")
        expected = published_settings("split-cifar100", "kcl").to_dict()
        assert {name: str(value) for name, value in expected.items()}.items() <= shown.items()
        assert (shown["tasks"], shown["ways"], shown["class_order"]) == ("20", "5", "fixed")
        assert self._shown(run, "split-miniimagenet")["coreset_size_per_class"] == "30"
        assert self._shown(run, "split-folder")["image_size"] == "84"
        assert "ways" not in self._shown(run, "permuted-mnist")
        assert list(tmp_path.iterdir()) == []

    def test_follows_what_is_asked_for(self, run: Any) -> None:
        shown = self._shown(run, "split-cifar100", "--ways", "3-15", "--set", "lr=0.1,0.2", "--method", "naive-sgd")
        assert (shown["tasks"], shown["ways"], shown["lr"], shown["dropout"]) == ("as", "3-15", "0.1,0.2", "0.0")
        assert self._shown(run, "split-cifar100", "--tasks", "7")["tasks"] == "7"


def test_a_result_from_before_there_were_backbones_and_ways_is_the_same_run() -> None:
    settings = published_settings("permuted-mnist", "kcl")
    spec = RunSpec("permuted-mnist", "kcl", 0, settings, 5, 1000)
    old = {"benchmark": "permuted-mnist", "method": "kcl", "seed": 0, "tasks": 5, "train_per_task": 1000}
    old_settings = {name: value for name, value in settings.to_dict().items() if name != "backbone"}
    assert key_of({**old, "settings": old_settings}) == spec.key


def test_data_fetch_says_why_miniimagenet_is_not_fetched(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KCL_DATA", raising=False)
    code, out, err = run("data", "fetch", "miniimagenet")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "DIR/miniimagenet" in err


@pytest.mark.data
class TestReal:
    SMALL = (
        "--tasks",
        "2",
        "--train-per-task",
        "60",
        "--device",
        "cpu",
        "--set",
        "coreset_size_per_class=4",
        "bases=64",
    )

    def test_split_cifar100(self, run: Any, tmp_path: Path, cifar_dir: Path) -> None:
        code, _, err = run("run", "split-cifar100", *self.SMALL, "--data-dir", cifar_dir, "--out", tmp_path / "out")
        assert code == 0, err
        (record,) = _records(tmp_path / "out")
        assert (record["tasks"], record["ways"], record["settings"]["backbone"]) == (2, 5, "cifar-resnet")
        assert record["memory"] == {"samples": 40, "bytes": 40 * 3072 + 40 * 5 + 2 * 12}

    def test_split_miniimagenet(
        self, run: Any, tmp_path: Path, miniimagenet_dir: Path, miniimagenet_cache: Path, monkeypatch: Any
    ) -> None:
        monkeypatch.setenv("KCL_CACHE", str(miniimagenet_cache))
        small = ["--tasks", "1", "--train-per-task", "30", "--set", "coreset_size_per_class=2", "bases=64"]
        command = ["run", "split-miniimagenet", *small, "--device", "cpu", "--data-dir", miniimagenet_dir]
        code, _, err = run(*command, "--out", tmp_path / "out")
        assert code == 0, err
        assert "decoding" not in err
        (record,) = _records(tmp_path / "out")
        assert (record["tasks"], record["ways"], record["settings"]["backbone"]) == (1, 5, "miniimagenet-resnet")
        assert len(record["data"]) == 16
        assert record["memory"]["samples"] == 10

    def test_verify(self, run: Any, cifar_dir: Path) -> None:
        assert run("data", "verify", "cifar100", "--data-dir", cifar_dir)[0] == 0
        assert str(cifar_dir) in run("data", "list")[1]
