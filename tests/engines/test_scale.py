"""What many runs ask of the files they are kept in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcl.core.settings import Settings
from kcl.errors import KclError
from kcl.experiments.run_folder import MANY, Folder, merged_settings
from kcl.experiments.run_spec import RunSpec
from kcl.methods.kcl_settings import KclSettings
from kcl.report.page import page
from kcl.report.unfinished import STALE, engine_statuses


def _specs(count: int, **changes: Any) -> list[RunSpec]:
    return [RunSpec("permuted-mnist", "kcl", seed, KclSettings(**changes), 20) for seed in range(count)]


class TestSettingsOfManyRuns:
    def test_what_they_share_is_told_once_and_nothing_is_lost(self, tmp_path: Path) -> None:
        specs = [*_specs(MANY), *_specs(3, lr=0.07)]
        folder = Folder(tmp_path, resume=False)
        folder.begin(specs, "kcl run")
        path = tmp_path / "settings.json"
        told = json.loads(path.read_text())
        assert told["shared"]["benchmark"] == "permuted-mnist"
        assert told["runs"][0] == {"seed": 0, "settings": {"lr": 0.1}}
        assert path.stat().st_size < 150 * len(specs)
        assert merged_settings(path, [spec.fields() for spec in specs], "again") is None
        folder.begin(_specs(2, momentum=0.5), "another")
        told = json.loads(path.read_text())
        assert len(told["runs"]) == len(specs) + 2
        assert told["runs"][-1] == {"seed": 1, "settings": {"lr": 0.1, "momentum": 0.5}}
        assert told["later_commands"] == ["another"]

    def test_methods_share_what_both_have(self, tmp_path: Path) -> None:
        baseline = RunSpec("permuted-mnist", "naive-sgd", 0, Settings(), 20, held_out=0.2)
        specs = [*_specs(MANY), baseline]
        Folder(tmp_path, resume=False).begin(specs, "kcl run")
        path = tmp_path / "settings.json"
        told = json.loads(path.read_text())
        assert set(told["shared"]["settings"]) == set(Settings.names())
        assert told["runs"][-1] == {"method": "naive-sgd", "seed": 0, "held_out": 0.2, "settings": {}}
        assert merged_settings(path, [spec.fields() for spec in specs], "again") is None

    def test_few_are_told_whole(self, tmp_path: Path) -> None:
        Folder(tmp_path, resume=False).begin(_specs(2), "kcl run")
        told = json.loads((tmp_path / "settings.json").read_text())
        assert "shared" not in told
        assert told["runs"][1] == json.loads(_specs(2)[1].key)

    @pytest.mark.parametrize("runs", [[3], [None], ["x"], [[1]]])
    def test_other_files_are_refused(self, tmp_path: Path, runs: list[Any]) -> None:
        path = tmp_path / "settings.json"
        path.write_text(json.dumps({"format": 1, "shared": {"settings": {}, "seed": 1}, "runs": runs}))
        with pytest.raises(KclError, match="move it away"):
            merged_settings(path, [], "kcl run")


class TestStanding:
    def _written(self, path: Path, **changes: Any) -> Path:
        worker = {"worker": "<b>", "runs": 3, "runs_per_hour": 12.5, "doing": "kcl seed 1"}
        own = {"format": 1, "time": 1000.0, "total": 9, "queued": 4, "running": 2, "done": 3, "failed": 0,
               "average_accuracy": 81.25, "seconds_left": None, "workers": [worker]}  # fmt: skip
        path.write_text(json.dumps(own | changes))
        return path

    def test_is_on_the_live_page(self, tmp_path: Path) -> None:
        [own] = engine_statuses([self._written(tmp_path / "a.json")], now=1001.0)
        text = page([], "heading", "version", statuses=[own])
        assert "<dt>queued</dt><dd>4</dd>" in text
        assert "<td>12.5</td>" in text
        assert "&lt;b&gt;" in text
        assert "81.2 %" in text

    @pytest.mark.parametrize(
        "changes", [{"format": 2}, {"workers": 3}, {"workers": [3]}, {"queued": "4"}, {"time": "x"}]
    )
    def test_what_is_not_sound_is_left_out(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        assert engine_statuses([self._written(tmp_path / "a.json", **changes)], now=1001.0) == []

    def test_what_is_stale_broken_or_gone_is_left_out(self, tmp_path: Path) -> None:
        written = self._written(tmp_path / "a.json")
        (tmp_path / "b.json").write_text("{")
        assert engine_statuses([written, tmp_path / "b.json", tmp_path / "c.json"], now=1000.0 + STALE) == []
