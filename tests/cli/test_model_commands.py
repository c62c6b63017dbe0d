"""`kcl update`, `predict`, `inspect` and `export`: a model taught from files, version by version."""

from __future__ import annotations

import csv
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kcl
from kcl.cli.commands import main
from kcl.core.locking import locked
from kcl.data import image_files, image_folders

CENTRES = np.random.default_rng(0).normal(size=(5, 4)) * 3


def _rows(labels: dict[str, int], samples: int = 60) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    names = np.repeat(list(labels), samples)
    inputs = CENTRES[[labels[name] for name in names]] + 0.3 * random.normal(size=(len(names), 4))
    return inputs, names


def _write_csv(path: Path, labels: dict[str, int], columns: str = "abcd", label: str = "label") -> Path:
    inputs, names = _rows(labels)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, label])
        order = ["abcd".index(column) for column in columns]
        writer.writerows([*row[order].tolist(), name] for row, name in zip(inputs, names, strict=True))
    return path


def _write_npz(path: Path, labels: dict[str, int]) -> Path:
    inputs, names = _rows(labels)
    np.savez(path, inputs=inputs, labels=names)
    return path


def _write_parquet(path: Path, labels: dict[str, int]) -> Path:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    inputs, names = _rows(labels)
    columns = {name: inputs[:, place] for place, name in enumerate("abcd")}
    parquet.write_table(pyarrow.table(columns | {"label": names.tolist()}), path)
    return path


@pytest.fixture
def answers(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, str]]]:
    def ask(*arguments: Any) -> list[dict[str, str]]:
        capsys.readouterr()
        assert main(["predict", *map(str, arguments)]) == 0
        return list(csv.DictReader(capsys.readouterr().out.splitlines()))

    return ask


WRITERS = {"csv": _write_csv, "npz": _write_npz, "parquet": _write_parquet}


@pytest.mark.parametrize(("kind", "head"), [*((kind, "streaming") for kind in WRITERS), ("csv", "coreset")])
def test_the_loop(tmp_path: Path, answers: Any, capsys: Any, kind: str, head: str) -> None:
    write, model = WRITERS[kind], tmp_path / "model"
    options = ["--head", head] if head == "coreset" else []  # a streaming head is the default for tables
    one = write(tmp_path / f"one.{kind}", {"low": 0, "high": 1})
    two = write(tmp_path / f"two.{kind}", {"wet": 2, "dry": 3})
    more = write(tmp_path / f"more.{kind}", {"middle": 4})
    for data, task in ((one, "pump"), (two, "valve"), (more, "pump")):
        assert main(["update", "--model", str(model), "--data", str(data), "--task", task, *options]) == 0
        options = []
    assert sorted(path.name for path in model.iterdir()) == ["0001", "0002", "0003"]
    wanted = _rows({"low": 0, "high": 1})[1]
    named = answers("--model", model, "--input", one, "--task", "pump")
    assert np.mean([row["label"] == name for row, name in zip(named, wanted, strict=True)]) > 0.95
    inferred = answers("--model", model, "--input", two)
    assert np.mean([row["task"] == "valve" for row in inferred]) > 0.9
    assert all(row["task_margin"] for row in inferred)
    assert not any(row["task_margin"] for row in named)
    old = answers("--model", model / "0001", "--input", one)
    assert {row["task"] for row in old} == {"pump"}
    capsys.readouterr()
    assert main(["inspect", str(model)]) == 0
    told = capsys.readouterr().out
    assert "pump: 3 classes" in told
    assert "update 3" in told
    assert "held-out samples" in told
    assert main(["inspect", str(model), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["head"] == head
    if head == "coreset":
        assert about["coreset_samples"] == 20 * 5
        assert about["coreset_bytes"] == 60 * (4 * 4 + 3) + 40 * (4 * 4 + 2)
    assert main(["evaluate", "--model", str(model), "--data", str(two), "--task", "valve", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["accuracy"] > 95.0
    assert result["classes"]["wet"]["samples"] == 60


def test_forgetting_and_merging(tmp_path: Path, answers: Any, capsys: Any) -> None:
    one = _write_csv(tmp_path / "one.csv", {"low": 0, "high": 1})
    two = _write_csv(tmp_path / "two.csv", {"wet": 2, "dry": 3})
    model, update = tmp_path / "m", ["update", "--model", str(tmp_path / "m"), "--data"]
    assert main([*update, str(one), "--task", "pump", "--set", "keep=class", "--head", "streaming"]) == 0
    assert main([*update, str(two), "--task", "valve"]) == 0
    forget = ["forget", "--model", str(model), "--task"]
    assert main([*forget, "valve", "--class", "wet"]) == 0
    assert "0002" in capsys.readouterr().out
    assert {row["label"] for row in answers("--model", model, "--input", two, "--task", "valve")} == {"dry"}
    (model / "exported.onnx").write_bytes(b"")
    assert main([*forget, "pump", "--samples", str(one), "--purge"]) == 0
    assert sorted(path.name for path in model.iterdir()) == ["0004"]
    assert {row["task"] for row in answers("--model", model, "--input", one)} == {"valve"}
    for arguments, word in ((["pump"], "not learned"), (["valve", "--class", "wet"], "no class")):
        assert main([*forget, *arguments]) == 2
        assert word in capsys.readouterr().err
    assert main(["merge", str(model), str(model), "--out", str(tmp_path / "both")]) == 0
    assert main(["inspect", str(tmp_path / "both")]) == 0
    assert "120 samples" in capsys.readouterr().out
    coresets = ["--model", str(tmp_path / "c"), "--task", "pump"]
    assert main(["update", *coresets, "--data", str(one), "--head", "coreset"]) == 0
    assert main(["forget", *coresets]) == 2
    assert "trained on the data" in capsys.readouterr().err
    assert main(["merge", str(model), str(tmp_path / "c"), "--out", str(tmp_path / "no")]) == 2
    assert not (tmp_path / "no").exists()


def test_unknown_queries(tmp_path: Path, answers: Any, capsys: Any) -> None:
    one = _write_csv(tmp_path / "one.csv", {"low": 0, "high": 1})
    two = _write_csv(tmp_path / "two.csv", {"wet": 2, "dry": 3})
    both = tmp_path / "both.csv"
    both.write_text(one.read_text("utf-8") + "".join(two.read_text("utf-8").splitlines(keepends=True)[1:]), "utf-8")
    model = ["--model", str(tmp_path / "m")]
    assert main(["update", *model, "--data", str(one), "--task", "pump", "--head", "streaming"]) == 0
    reject = ["reject-unknown", *model, "--known", str(one)]
    for arguments, words in (
        (["--error-rate", "0"], "between 0 and 1"),
        (["--error-rate", "0.001"], "needs 999 known queries"),
        (["--task", "other"], "was not learned"),
    ):
        assert main([*reject, *arguments]) == 2
        assert words in capsys.readouterr().err
    assert main([*reject, "--error-rate", "0.1", "--score", "variance"]) == 0
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["0001", "0002"]
    capsys.readouterr()
    assert main(["predict", *model, "--input", str(one)]) == 0
    captured = capsys.readouterr()
    rows = list(csv.DictReader(captured.out.splitlines()))
    assert np.mean([row["label"] == "" for row in rows]) < 0.1
    assert abs(np.mean([float(row["known"]) for row in rows]) - 0.5) < 1e-5
    assert "drift" not in captured.err
    assert main(["predict", *model, "--input", str(two)]) == 0
    captured = capsys.readouterr()
    assert {row["label"] for row in csv.DictReader(captured.out.splitlines())} == {""}
    assert "drift" in captured.err
    assert main(["evaluate", *model, "--data", str(both), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["unanswered_of_learned_classes"] < 10.0
    assert result["unanswered_of_unknown_classes"] == 100.0
    assert main(["evaluate", *model, "--data", str(both)]) == 0
    assert "100.00 % of the samples of unknown classes" in capsys.readouterr().out
    assert main(["update", *model, "--data", str(two), "--task", "pump"]) == 0
    assert main(["inspect", *model[1:]]) == 0
    assert "stale" in capsys.readouterr().out
    assert main(["predict", *model, "--input", str(two), "--task", "pump"]) == 0
    assert "warning: the model has learned more" in capsys.readouterr().err


def test_images(tmp_path: Path, answers: Any, capsys: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for name, colour in (("red", (220, 30, 30)), ("blue", (30, 30, 220))):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(12):
            pixels = np.clip(random.normal(colour, 20, size=(10, 10, 3)), 0, 255).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "data" / name / f"{number}.png")
    arguments = ["--image-size", "8", "--set", "coreset_size_per_class=4", "bases=64", "epochs=4", "--held-out", "0"]
    data = ["--data", str(tmp_path / "data"), "--task", "colours"]
    assert main(["update", "--model", str(tmp_path / "m"), *data, *arguments]) == 0
    found = answers("--model", tmp_path / "m", "--input", tmp_path / "data")
    assert np.mean([row["sample"].startswith(row["label"]) for row in found]) > 0.8
    assert len(answers("--model", tmp_path / "m", "--input", tmp_path / "data" / "red" / "0.png")) == 1
    (tmp_path / "data" / "blue").rename(tmp_path / "blue")
    (tmp_path / "data" / "red").rename(tmp_path / "data" / "scarlet")
    (tmp_path / "data" / "scarlet" / "notes.txt").write_text("no image")
    assert main(["update", "--model", str(tmp_path / "m"), *data]) == 0  # one new class of an old task
    assert "notes.txt" in capsys.readouterr().err
    (tmp_path / "data" / "empty").mkdir()
    assert main(["update", "--model", str(tmp_path / "m"), *data]) == 2
    assert "class 'empty'" in capsys.readouterr().err
    assert main(["update", "--model", str(tmp_path / "new"), *data, "--image-size", "0"]) == 2
    assert "image size must lie in" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "side"), [((40, 30), 30), ((5, 20), 8), ((90, 100), 84)])
def test_images_keep_their_size_unless_they_are_large(tmp_path: Path, size: tuple[int, int], side: int) -> None:
    """Of most images: neither a large nor a broken one decides."""
    image = pytest.importorskip("PIL.Image")
    for number in range(5):
        image.new("L", (500, 500) if number == 3 else size).save(tmp_path / f"{number}.png")
    (tmp_path / "4.png").write_bytes(b"none")
    paths = sorted(tmp_path.glob("*.png"))
    assert image_files.usual_side(paths, image_folders.SMALLEST_SIDE, image_folders.DEFAULT_SIDE) == side


@pytest.mark.parametrize("setting", [{}, {"kernel": "vrf"}, {"kernel": "rbf"}, {"backbone": "mlp"}], ids=str)
def test_every_way_to_use_a_model_scales_alike(tmp_path: Path, capsys: Any, setting: dict[str, str]) -> None:
    """Columns in different units: without scaling two thirds are right."""
    x, y = pytest.importorskip("sklearn.datasets").load_wine(return_X_y=True)
    train, test = slice(0, None, 2), slice(1, None, 2)
    model = kcl.ContinualModel(**setting)
    model.learn(x[train], y[train], "wine")
    accuracies = [model.accuracy(x[test], y[test])]
    classifier = kcl.KernelContinualClassifier(**setting, random_state=0).fit(x[train], y[train])
    accuracies.append(100.0 * classifier.score(x[test], y[test]))
    for name, rows in (("train", train), ("test", test)):
        np.savez(tmp_path / name, inputs=x[rows], labels=y[rows])
    given = [f"{name}={value}" for name, value in setting.items()]
    learn = ["--data", str(tmp_path / "train.npz"), "--task", "wine", *(["--set", *given] if given else [])]
    assert main(["update", "--model", str(tmp_path / "m"), *learn]) == 0
    capsys.readouterr()
    assert main(["evaluate", "--model", str(tmp_path / "m"), "--data", str(tmp_path / "test.npz"), "--json"]) == 0
    accuracies.append(json.loads(capsys.readouterr().out)["accuracy"])
    assert min(accuracies) > 90.0


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_how_far_a_lesson_is(tmp_path: Path, capsys: Any, monkeypatch: Any, terminal: bool) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    data = ["--data", str(_write_csv(tmp_path / "x.csv", {"low": 0, "high": 1})), "--task", "pump"]
    assert main(["update", "--model", str(tmp_path / "m"), *data, "--head", "coreset"]) == 0
    assert ("learning pump" in capsys.readouterr().err) == terminal


def test_as_many_classes_as_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", inputs=np.random.default_rng(0).normal(size=(100, 4)), labels=np.arange(100))
    data = ["--data", str(tmp_path / "x.npz"), "--task", "t", "--set", "epochs=1"]
    assert main(["update", "--model", str(tmp_path / "m"), *data]) == 0


def test_columns_are_found_by_name(tmp_path: Path, answers: Any) -> None:
    labels = {"low": 0, "high": 1}
    one = _write_csv(tmp_path / "one.csv", labels, label="state")
    assert main(["update", "--model", str(tmp_path / "m"), "--data", str(one), "--task", "t", "--label", "state"]) == 0
    other = _write_csv(tmp_path / "other.csv", labels, "dbca", label="unused")
    ours, others = (answers("--model", tmp_path / "m", "--input", path) for path in (one, other))
    assert [row["label"] for row in ours] == [row["label"] for row in others]


def test_json_withheld_answers_and_a_file(tmp_path: Path) -> None:
    one = _write_csv(tmp_path / "one.csv", {"low": 0, "high": 1})
    model, out = tmp_path / "m", tmp_path / "answers.json"
    assert main(["update", "--model", str(model), "--data", str(one), "--task", "t", "--head", "coreset"]) == 0
    asked = ["predict", "--model", str(model), "--input", str(one), "--format", "json", "--out", str(out)]
    assert main([*asked, "--abstain-below", "1.5"]) == 2
    assert main([*asked, "--abstain-below", "1"]) == 0
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert {row["label"] for row in rows} == {None}
    assert set(rows[0]) == {"sample", "task", "label", "confidence", "variance", "task_margin", "known"}
    assert {row["known"] for row in rows} == {None}


def test_export(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    one = _write_csv(tmp_path / "one.csv", {"low": 0, "high": 1})
    assert main(["update", "--model", str(tmp_path / "m"), "--data", str(one), "--task", "t"]) == 0
    assert main(["export", str(tmp_path / "m"), "--out", str(tmp_path / "m.onnx")]) == 0
    assert (tmp_path / "m.onnx").stat().st_size > 1000


class TestMistakes:
    """One line on standard error, exit code 2, and no new version."""

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        one = _write_csv(tmp_path / "one.csv", {"low": 0, "high": 1})
        assert main(["update", "--model", str(tmp_path / "m"), "--data", str(one), "--task", "t"]) == 0
        return tmp_path / "m"

    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            ("x.csv", "a,b,c,d,label\n1,2,3,?,low\n", "'d', sample 1: '?' is not a finite number"),
            ("x.csv", "a,b,c,d,label\n1,2,3\n", "line 2: 3 values for 5 columns"),
            ("x.csv", "a,b,c,label\n1,2,3,low\n", "lacks the columns d"),
            ("x.csv", "a,b,c,d\n1,2,3,4\n", "no column 'label'"),
            ("x.csv", "a,a,label\n", "each once"),
            ("x.csv", "", "name of every column"),
            ("x.csv", "a,b,c,d,label\n", "holds no samples"),
            ("x.csv", "a,b,c,d,label\n1,2,3,4,low\n1,2,3,inf,high\n", "'d', sample 2: 'inf' is not a finite number"),
            ("x.csv", "a,b,c,d,label\n1,2,3,4,low\n1,,3,4,high\n", "'b', sample 2: '' is not a finite number"),
            ("x.csv", "a,b,c,d,label\n1,2,3,4,low\n1,2,3,4,\n", "sample 2: it has no label"),
            ("x.npz", "nonsense", ".npz file"),
            ("x.parquet", "nonsense", "Parquet"),
            ("x.txt", "nonsense", "expected a folder of images"),
        ],
    )
    def test_in_the_data(self, model: Path, capsys: Any, name: str, content: str, words: str) -> None:
        path = model.parent / name
        path.write_text(content, encoding="utf-8")
        capsys.readouterr()
        assert main(["update", "--model", str(model), "--data", str(path), "--task", "u"]) == 2
        told = capsys.readouterr().err
        assert told.startswith("kcl: ")
        assert words in told
        assert told.count("\n") == 1
        assert [entry.name for entry in model.iterdir()] == ["0001"]

    def test_pickled_arrays_are_not_opened(self, model: Path, capsys: Any) -> None:
        path = model.parent / "x.npz"
        np.savez(path, inputs=np.array([{}], dtype=object), labels=np.array(["a"]))
        assert main(["update", "--model", str(model), "--data", str(path), "--task", "u"]) == 2
        assert "plain arrays" in capsys.readouterr().err
        path.with_suffix(".npz").write_bytes(pickle.dumps([1]))
        assert main(["predict", "--model", str(model), "--input", str(path)]) == 2

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["update", "--model", "M", "--data", "D", "--task", "u", "--set", "lr=0.2"], "for new ones"),
            (["update", "--model", "M/0001", "--data", "D", "--task", "u"], "all versions"),
            (["predict", "--model", "nowhere", "--input", "D"], "holds no model"),
            (["predict", "--model", "M", "--input", "D", "--task", "x"], "was not learned"),
            (["predict", "--model", "M", "--input", "D", "--abstain-below", "nan"], "must be a probability"),
            (["predict", "--model", "M", "--input", "D", "--abstain-below", "5"], "must be a probability"),
            (["update", "--model", "M", "--data", "D", "--task", " "], "needs a name"),
            (["update", "--model", "D", "--data", "D", "--task", "u"], "cannot write to the output folder"),
            (["inspect", "nowhere"], "holds no model"),
            (["update", "--model", "new", "--data", "D", "--task", "u", "--set", "lr"], "NAME=VALUE"),
            (["update", "--model", "new", "--data", "D", "--task", "u", "--set", "lrr=1"], "unknown setting"),
            (["update", "--model", "new", "--data", "nowhere.csv", "--task", "u"], "does not exist"),
        ],
    )
    def test_in_the_options(self, model: Path, monkeypatch: Any, capsys: Any, arguments: list[str], words: str) -> None:
        monkeypatch.chdir(model.parent)
        model.rename("M")
        Path("one.csv").rename("D.csv")
        capsys.readouterr()
        assert main(["D.csv" if argument == "D" else argument for argument in arguments]) == 2
        assert words in capsys.readouterr().err
        assert sorted(path.name for path in Path().iterdir()) == ["D.csv", "M"]
        assert [path.name for path in Path("M").iterdir()] == ["0001"]

    def test_an_index_of_pandas_is_no_feature(self, model: Path, capsys: Any) -> None:
        path = model.parent / "x.csv"
        path.write_text(",a,label\n0,1,low\n1,2,high\n", encoding="utf-8")
        assert main(["update", "--model", str(model.parent / "new"), "--data", str(path), "--task", "u"]) == 2
        assert "index=False" in capsys.readouterr().err

    def test_in_a_parquet_file(self, model: Path, capsys: Any) -> None:
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        path, new = model.parent / "x.parquet", model.parent / "new"
        table = pandas.DataFrame({"a": [1.0, 2.0, 3.0, 9.0], "b": [True, False, True, False], "label": list("xyxy")})
        for column, value, words in (
            ("a", [1.0, None, 3.0, 4.0], "'a', sample 2: 'nan'"),
            ("b", ["1", "2", "c", "d"], "'b', sample 3: 'c'"),
            ("b", pandas.Timestamp("2020-01-01"), "'b', sample 1: '2020"),
            ("label", ["x", None, "y", "x"], "sample 2: it has no label"),
        ):
            table.assign(**{column: value}).to_parquet(path)
            assert main(["update", "--model", str(new), "--data", str(path), "--task", "u"]) == 2
            assert words in capsys.readouterr().err
            assert not new.exists()
        table.iloc[::-1].to_parquet(path)  # its index becomes a column, which is no feature
        assert main(["update", "--model", str(new), "--data", str(path), "--task", "u"]) == 0
        assert json.loads((new / "0001" / "model.json").read_text("utf-8"))["columns"] == ["a", "b"]

    def test_one_at_a_time(self, model: Path, capsys: Any) -> None:
        with locked(model):
            data = ["--data", str(model.parent / "one.csv"), "--task", "u"]
            assert main(["update", "--model", str(model), *data]) == 2
            assert "in use by another kcl" in capsys.readouterr().err
            assert main(["inspect", str(model)]) == 0

    def test_what_a_killed_process_left_is_removed(self, model: Path) -> None:
        (model / ".0002.kcl-half").mkdir()
        assert main(["update", "--model", str(model), "--data", str(model.parent / "one.csv"), "--task", "u"]) == 0
        assert sorted(path.name for path in model.iterdir()) == ["0001", "0002"]


class TestHostileNames:
    """What is printed is printable, and what a spreadsheet opens computes nothing."""

    NAMES = ("=cmd|'/C calc'!A0", "\x1b[31mred\x9b2J", "-1")

    @pytest.fixture
    def hostile(self, tmp_path: Path) -> list[str]:
        rows = [[str(row % 3 + row / 99), str(row), self.NAMES[row % 3]] for row in range(30)]
        with (tmp_path / "x.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["a", "b", "label"], *rows])
        model = ["--model", str(tmp_path / "m")]
        assert main(["update", *model, "--data", str(tmp_path / "x.csv"), "--task", "a\x1b]0;b\x07"]) == 0
        return [*model, "--input", str(tmp_path / "x.csv")]

    def test_escape_sequences_are_shown_not_obeyed(self, hostile: list[str], capsys: Any) -> None:
        model, data = hostile[:2], ["--data", hostile[3]]
        for command in (["inspect", model[1]], ["inspect", model[1], "--json"], ["predict", *hostile],
                        ["predict", *hostile, "--format", "json"], ["evaluate", *model, *data],
                        ["evaluate", *model, *data, "--json"], ["predict", *hostile, "--task", "\x1bc"]):  # fmt: skip
            main(command)
            told = capsys.readouterr()
            assert all(letter.isprintable() or letter == "\n" for letter in told.out + told.err), command
        main(["inspect", model[1], "--json"])
        assert json.loads(capsys.readouterr().out)["tasks"].keys() == {"a\x1b]0;b\x07"}

    def test_formulas_are_text(self, hostile: list[str], capsys: Any) -> None:
        assert main(["predict", *hostile]) == 0
        labels = {row["label"] for row in csv.DictReader(capsys.readouterr().out.splitlines())}
        assert labels == {f"'{self.NAMES[0]}", "\\u001b[31mred\\u009b2J", "-1"}
