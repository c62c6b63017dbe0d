"""Whole lines in, checked records out: torn, hostile and contradictory files."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl.core import results
from kcl.core.files import write_json
from kcl.core.metrics import AccuracyMatrix
from kcl.errors import KclError


def make_record(**changes: Any) -> dict[str, Any]:
    rows = [[90.0, None], [80.0, 95.0]]
    return {
        "format": 1,
        "benchmark": "permuted-digits",
        "method": "kcl",
        "kernel": "vrf",
        "seed": 0,
        "tasks": 2,
        "settings": {"lr": 0.1},
        "versions": {"kcl": "0.1.0"},
        "device": "cpu",
        "seconds": 1.5,
        "accuracy_matrix": rows,
        "initial_accuracy": None,
        **AccuracyMatrix.from_lists(rows).summary(),
        "diverged": False,
        "memory": {"samples": 400},
        "command": "kcl run permuted-digits",
    } | changes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    # Surrogates (Cs) cannot be written as UTF-8.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=40)
@given(json_values, st.integers(0, 2**64))
def test_records_round_trip_with_their_extra_fields(tmp_path_factory: Any, extra: Any, seed: int) -> None:
    path = tmp_path_factory.mktemp("results") / "results.jsonl"
    record = make_record(seed=seed, extra=extra)
    results.append(path, record)
    results.append(path, make_record())
    assert results.read(path) == [record, make_record()]
    assert path.read_bytes().count(b"\n") == 2


def test_the_folder_is_made(tmp_path: Path) -> None:
    results.append(tmp_path / "a" / "b.jsonl", make_record())
    assert len(results.read(tmp_path / "a" / "b.jsonl")) == 1


def test_a_diverged_run_may_lack_its_metrics(path: Path) -> None:
    empty = dict.fromkeys(AccuracyMatrix(1).summary())
    record = make_record(diverged=True, accuracy_matrix=[[90.0, None], [None, None]], command=None, **empty)
    results.append(path, record)
    assert results.read(path) == [record]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_ignored_and_told(path: Path, cut: int) -> None:
    results.append(path, make_record())
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-1][:-cut])
    told: list[str] = []
    assert results.read(path, told.append) == [make_record()]
    assert len(told) == 1
    assert f"{path}, line 2" in told[0]
    assert results.read(path) == [make_record()]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_append_cuts_off_a_torn_line(path: Path, cut: int) -> None:
    results.append(path, make_record())
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-1][:-cut])
    results.append(path, make_record(seed=1))
    assert results.read(path) == [make_record(), make_record(seed=1)]


def test_append_ends_a_whole_line_that_lacks_its_newline(path: Path) -> None:
    results.append(path, make_record())
    path.write_bytes(path.read_bytes()[:-1])
    told: list[str] = []
    assert results.read(path, told.append) == [make_record()]
    assert told == []
    results.append(path, make_record(seed=1))
    assert results.read(path) == [make_record(), make_record(seed=1)]


def test_append_survives_a_file_of_one_torn_line_and_a_cut_inside_a_character(path: Path) -> None:
    path.write_bytes('{"benchmark": "λ'.encode()[:-1])
    results.append(path, make_record())
    assert results.read(path) == [make_record()]


@pytest.mark.parametrize("content", [b"# Notes, with no newline at the end", b"\x00\x01"])
def test_append_leaves_other_files_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(KclError, match="not a results file"):
        results.append(path, make_record())
    assert path.read_bytes() == content


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}, "\ud800", 10**30])
def test_append_refuses_what_no_one_could_read_back(path: Path, value: Any) -> None:
    with pytest.raises(KclError, match="could not be saved"):
        results.append(path, make_record(extra=value))
    assert not path.exists()


def test_a_full_disk_leaves_no_part_of_a_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results.append(path, make_record())
    before = path.read_bytes()

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(KclError, match="No space left"):
        results.append(path, make_record(seed=1))
    with pytest.raises(KclError, match="No space left"):
        write_json(path, {"a": 1})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"{",
        b"[]",
        b"1",
        b"null",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"format": 1}',
        b"1" * 10_000,
        json.dumps(make_record(extra=math.nan)).encode(),
        json.dumps(make_record(seconds=-math.inf)).encode(),
        json.dumps(make_record()).replace("1.5", "1e999").encode(),
        json.dumps(make_record()).replace("1.5", "1" + "0" * 400).encode(),
        json.dumps(make_record(benchmark="\ud800")).encode(),
    ],
)
def test_a_bad_line_is_named(path: Path, line: bytes) -> None:
    good = json.dumps(make_record()).encode()
    path.write_bytes(b"\n".join([good, line, good, b""]))
    with pytest.raises(KclError) as caught:
        results.read(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "reads format 1"),
        ({"format": "1"}, "reads format 1"),
        ({"benchmark": 3}, "'benchmark' is int"),
        ({"benchmark": ""}, "printable name"),
        ({"method": "\x1b[31mred"}, "printable name"),
        ({"kernel": "v" * 101}, "printable name"),
        ({"seed": 0.5}, "'seed' is float"),
        ({"seed": True}, "'seed' is bool"),
        ({"tasks": 3}, "2 rows for 3 tasks"),
        ({"settings": []}, "'settings' is list"),
        ({"seconds": -1.0}, "negative"),
        ({"seconds": None}, "expected int or float"),
        ({"diverged": 0}, "'diverged' is int"),
        ({"accuracy_matrix": []}, "at least one"),
        ({"accuracy_matrix": [[90.0], [80.0]]}, "row 0"),
        ({"accuracy_matrix": [[90.0, None], [80.0, 101.0]]}, "percentage"),
        ({"initial_accuracy": [10.0]}, "1 initial accuracies"),
        ({"initial_accuracy": [10.0, "x"]}, "percentage"),
        ({"average_accuracy": None}, "did not diverge"),
        ({"average_accuracy": 99.0}, "the accuracy matrix gives 87.5"),
        ({"forgetting": 0.3}, "the accuracy matrix gives 0.1"),
        ({"forward_transfer": 0.0}, "the accuracy matrix gives None"),
    ],
)
def test_a_contradictory_record_is_refused(path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KclError, match=message):
        results.append(path, make_record(**changes))
    assert not path.exists()
    path.write_text(json.dumps(make_record(**changes)) + "\n")
    with pytest.raises(KclError, match=message):
        results.read(path)


ADDED = ("average_incremental_accuracy", "forgetting_with_last")
"""Metrics that older files do not have."""


@pytest.mark.parametrize("field", sorted(make_record().keys() - {*ADDED}))
def test_every_field_is_required(field: str) -> None:
    record = make_record()
    del record[field]
    with pytest.raises(KclError):
        results.check(record)


@pytest.mark.parametrize("field", ADDED)
def test_a_metric_that_was_added_may_be_missing_but_not_contradict(field: str) -> None:
    record = make_record()
    with pytest.raises(KclError, match=field):
        results.check(record | {field: 0.9})
    del record[field]
    results.check(record)


def test_rounded_metrics_do_not_contradict() -> None:
    results.check(make_record(average_accuracy=87.49, forgetting=0.1004))


def test_lines_have_a_longest_length(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MAX_LINE_BYTES", 1000)
    with pytest.raises(KclError, match="longer than 1000 bytes"):
        results.append(path, make_record(extra="x" * 1000))
    path.write_bytes(b'{"a": "' + b"x" * 2000)
    with pytest.raises(KclError, match=r"line 1: longer than 1000 bytes"):
        results.read(path)
    with pytest.raises(KclError, match="not a results file"):
        results.append(path, make_record())


def test_missing_files_and_folders_in_the_way_are_told(tmp_path: Path) -> None:
    with pytest.raises(KclError, match=r"none\.jsonl could not be read"):
        results.read(tmp_path / "none.jsonl")
    with pytest.raises(KclError, match="could not be read"):
        results.read(tmp_path)
    with pytest.raises(KclError, match="could not be saved"):
        results.append(tmp_path, make_record())
    with pytest.raises(KclError, match="was not written"):
        write_json(tmp_path, {})


def test_write_json_replaces_whole_files_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"a": "λ"})
    write_json(path, {"a": [1.5]})
    assert json.loads(path.read_text()) == {"a": [1.5]}
    for bad in (math.nan, {1}, "\ud800"):
        with pytest.raises(KclError, match="was not written"):
            write_json(path, {"a": bad})
    assert json.loads(path.read_text()) == {"a": [1.5]}
    assert list(tmp_path.iterdir()) == [path]
