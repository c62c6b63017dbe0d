"""Rows are found again by their keys, in few files, whatever portions they came in and whoever wrote them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl.data import file_cache
from kcl.data.feature_cache import KEY_BYTES, FeatureCache


def _key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def _rows(*numbers: int) -> dict[bytes, np.ndarray]:
    return {_key(number): np.full(3, number, np.float32) for number in numbers}


def _found(cache: FeatureCache, *numbers: int) -> dict[int, float]:
    return {int.from_bytes(key, "big"): float(row[0]) for key, row in cache.find({*map(_key, numbers)}).items()}


@settings(max_examples=15)
@given(portions=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=30), max_size=12))
def test_what_was_added_is_found(tmp_path_factory: pytest.TempPathFactory, portions: list[list[int]]) -> None:
    cache = FeatureCache(tmp_path_factory.mktemp("cache"))
    for portion in portions:
        cache.add(_rows(*portion))
    everything = {number for portion in portions for number in portion}
    assert _found(cache, *range(70)) == {number: number for number in everything}
    assert not [path for path in cache.folder.iterdir() if path.suffix != ".safetensors"]


@pytest.mark.parametrize("small", [0, 2**16])
def test_single_rows_do_not_become_single_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr("kcl.data.feature_cache.SMALL", small)
    cache = FeatureCache(tmp_path)
    for number in range(40):
        cache.add({_key(number): np.full(300, number, np.float32)})
    assert len(list(tmp_path.iterdir())) <= 6
    assert len(_found(cache, *range(40))) == 40


def test_large_files_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcl.data.feature_cache.LARGEST_MERGED", 10)
    cache = FeatureCache(tmp_path)
    for number in range(4):
        cache.add(_rows(number))
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("damage", ["cut", "changed", "other"])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, damage: str) -> None:
    cache = FeatureCache(tmp_path)
    cache.add(_rows(1, 2))
    [path] = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes({"cut": content[:-3], "changed": content, "other": b"{}"}[damage])
    assert _found(cache, 1) == {}
    assert [each.name for each in tmp_path.iterdir()] == [f"{path.name}.broken"]
    cache.add(_rows(1))
    assert _found(cache, 1, 2) == {1: 1.0}


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path)

    def write(first: int) -> None:
        for number in range(first, first + 8):
            cache.add(_rows(number))

    threads = [threading.Thread(target=write, args=(8 * each,)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(_found(cache, *range(32))) == 32


def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FeatureCache(tmp_path)
    cache.add(_rows(1))
    monkeypatch.setattr(file_cache, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        cache.add(_rows(2))
    assert _found(cache, 1, 2) == {1: 1.0}
