"""Runs by key: those that files of every version recorded are the runs that would be asked for now."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kcl.core import results
from kcl.core.settings import Settings, setting
from kcl.experiments.run_spec import RunSpec, by_training, key_of, with_current_settings
from kcl.methods.recipes import METHODS, published_settings
from kcl.methods.sgd import NaiveSGD

ROOT = Path(__file__).parents[2]
COMMITTED = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "results").rglob("*.jsonl")
    if path.name not in ("measured.jsonl", "cost.jsonl")  # written by a bench, in lines of its own
)
EVERY_METHOD = {name: value for kind in METHODS.values() for name, value in kind.settings_type().to_dict().items()}
"""The settings that a line held before they belonged to methods."""


def _spec(method: str, **changes: Any) -> RunSpec:
    return RunSpec("permuted-digits", method, 3, published_settings("permuted-digits", method).replace(**changes), 2)


class TestCommittedResults:
    def test_are_there(self) -> None:
        assert COMMITTED

    @pytest.mark.parametrize("path", COMMITTED, ids=str)
    def test_are_read_as_the_runs_they_are(self, path: Path) -> None:
        records = results.read(ROOT / path)
        for record in records:
            spec = RunSpec.from_fields(record)
            assert type(spec.settings) is METHODS[spec.method].settings_type
            assert spec.key == key_of(record)
            assert spec.kernel == record["kernel"]
            values = spec.settings.to_dict()
            assert all(values[name] == value for name, value in record["settings"].items() if name in values)

    @pytest.mark.parametrize("path", COMMITTED, ids=str)
    def test_of_different_runs_have_different_keys(self, path: Path) -> None:
        """A run may be there twice, repeated by another build; dropping what the method lacks makes no two runs one."""
        records = results.read(ROOT / path)
        keys = [json.loads(key_of(record)) for record in records]
        whole = [key | {"settings": EVERY_METHOD | own["settings"]} for key, own in zip(keys, records, strict=True)]
        assert len({key_of(record) for record in records}) == len({json.dumps(key, sort_keys=True) for key in whole})


@pytest.mark.parametrize("method", METHODS)
class TestOldLines:
    def test_have_the_key_of_the_run(self, method: str) -> None:
        spec = _spec(method)
        fields = spec.fields()
        assert set(fields["settings"]) == set(METHODS[method].settings_type.names())
        old = fields | {"settings": EVERY_METHOD | fields["settings"]}
        assert key_of(old) == spec.key == key_of(json.loads(json.dumps(fields)))
        assert RunSpec.from_fields(old) == spec
        assert with_current_settings(old) == fields

    def test_lack_what_came_later(self, method: str) -> None:
        spec, settings_type = _spec(method), METHODS[method].settings_type
        first = {
            name: value
            for name, value in spec.settings.to_dict().items()
            if settings_type.field(name).metadata["since"] == 1
        }
        old = {name: value for name, value in spec.fields().items() if name not in ("ways", "class_order", "data")}
        assert key_of(old | {"settings": first}) == spec.key

    def test_of_other_values_are_other_runs(self, method: str) -> None:
        old = _spec(method).fields()
        assert key_of(old | {"settings": EVERY_METHOD | old["settings"] | {"lr": 0.7}}) == _spec(method, lr=0.7).key
        assert key_of(old | {"settings": old["settings"] | {"of_a_later_version": 1}}) != _spec(method).key


def test_what_is_no_run_is_left_as_it_is() -> None:
    for record in ({}, {"method": 3, "settings": {}}, {"method": "kcl", "settings": None}):
        assert with_current_settings(record) == record
        assert key_of(record)


@dataclasses.dataclass(frozen=True)
class _TiltedSettings(Settings):
    tilt: float = setting(0.5, "a number of its own", 0.0, 1.0, stackable=True)
    looks: int = setting(1, "at test only", 1, 9, at_test=True)


class _TiltedSGD(NaiveSGD):
    name = "tilted-sgd"
    settings_type = _TiltedSettings


def test_a_method_from_outside_has_settings_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "tilted-sgd", _TiltedSGD)
    spec = RunSpec("permuted-digits", "tilted-sgd", 0, _TiltedSettings(tilt=0.25), 2)
    fields = json.loads(json.dumps(spec.fields()))
    assert fields["settings"]["tilt"] == 0.25
    assert RunSpec.from_fields(fields) == spec
    assert key_of(fields | {"settings": EVERY_METHOD | fields["settings"]}) == spec.key
    others = [dataclasses.replace(spec, settings=spec.settings.replace(looks=looks)) for looks in (1, 2, 3)]
    assert by_training(others) == [others]
    assert spec.label == "tilted-sgd seed 0"
