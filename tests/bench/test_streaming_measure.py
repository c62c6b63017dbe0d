"""The streaming bench: what its streams hold, that choosing sees no test data, and its tables."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "benches" / "streaming" / "measure.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("streaming_measure", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def data(bench):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 10)
    centres = 3.0 * rng.standard_normal((6, 4))
    features = (centres[labels] + rng.standard_normal((60, 4))).astype(np.float32)
    return bench.Data("tiny", features, labels, features, labels, domains=np.array([0, 0, 1, 1, 1, 0]))


@pytest.mark.parametrize(("classes_per_task", "sizes"), [(1, [1] * 6), (2, [2] * 3), (4, [4, 2]), (0, [3, 3])])
def test_a_stream_brings_every_sample_once_and_whole_classes(bench, data, classes_per_task, sizes):
    tasks = list(bench.Stream("tiny", classes_per_task, "").tasks(data, seed=1))
    assert [len(set(data.labels[rows].tolist())) for rows in tasks] == sizes
    assert sorted(np.concatenate(tasks).tolist()) == list(range(60))
    again = bench.Stream("tiny", classes_per_task, "").tasks(data, seed=1)
    assert all((a == b).all() for a, b in zip(tasks, again, strict=True))


def test_a_fifth_of_every_class_is_held_out_where_there_is_no_validation_data(bench, data):
    split = bench.split_for_choice(data)
    assert np.bincount(split.labels).tolist() == [8] * 6
    assert np.bincount(split.test_labels).tolist() == [2] * 6
    both = np.concatenate([split.train, split.test])
    assert len(np.unique(both, axis=0)) == 60


def test_choosing_and_measuring_run_for_a_peer_and_for_our_head(bench, data, capsys):
    assert bench.choose("ncm", bench.split_for_choice(data))[0] in [{"unit_length": False}, {"unit_length": True}]
    stream = bench.Stream("tiny", 1, "")
    data.unknown = {"test": 30.0 * np.ones((5, 4), np.float32)}
    for name, settings in (("ncm", {"unit_length": False}), ("kcl", {"features": "rbf", "bases": 64})):
        row = bench.measure(name, stream, data, settings, seed=0)
        assert row["accuracy"] > 80.0
        assert row["bytes"] > 0
        assert all(0.0 <= value <= 1.0 for value in row["unknown_auroc"].values())


def test_tables_have_a_row_for_every_method_and_go_between_the_markers(bench):
    rows = []
    for stream in ("clinc150", "banking77"):
        unknown = {"highest score": 0.9} if stream == "clinc150" else {}
        shared = {"stream": stream, "settings": {}, "learn_seconds": 1.0, "bytes": 2_000_000, "unknown_auroc": unknown}
        for method in ("kcl", "ncm"):
            rows += [shared | {"method": method, "seed": seed, "accuracy": 90.0 + seed} for seed in (0, 1)]
    rows.append(rows[0] | {"accuracy": 94.0})
    content = bench.tables(rows)
    assert "92.50 ± 2.12 | 90.50 ± 0.71 | 91.50" in content
    assert "0.9000 ± 0.0000" in content
    text = bench.put_between_markers("a\n<!-- begin streaming -->\nold\n<!-- end streaming -->\nb", content)
    assert text.startswith("a\n")
    assert text.endswith("\nb")
    assert "old" not in text
    assert content in text
    with pytest.raises(SystemExit):
        bench.put_between_markers("nothing", content)


def test_rows_are_appended_and_images_that_are_not_there_are_left_out(bench, data, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez(
        tmp_path / "banking77.npz",
        train_features=data.train, train_labels=data.labels, test_features=data.test, test_labels=data.labels,
    )  # fmt: skip
    bench.replace_file(bench.FOLDER / bench.CHOSEN, json.dumps({"texts": {"ncm": {"unit_length": False}}}))
    options = ["--features", str(tmp_path), "--methods", "ncm", "--streams", "banking77", "cifar100"]
    for _ in range(2):
        monkeypatch.setattr("sys.argv", ["measure.py", "run", *options])
        bench.main()
    rows = bench.rows_of(bench.FOLDER / bench.RESULTS)
    assert len(rows) == 1
    assert rows[0]["command"].startswith(f"python benches/streaming/measure.py run --features {tmp_path.name} ")
    assert "CIFAR-100 is left out" in capsys.readouterr().out


def test_what_order_does_not_change_stands_in_every_stream_of_its_data(bench):
    shared = {"seed": 0, "settings": {}, "learn_seconds": 1.0, "bytes": 1, "unknown_auroc": {}}
    rows = [{"stream": "clinc150", "method": name, "accuracy": 91.25} | shared for name in ("kcl", "slda")]
    rows.append({"stream": "clinc150-domains", "method": "ncm", "accuracy": 85.0} | shared)
    kcl, slda = (next(line for line in bench.tables(rows).splitlines() if name in line) for name in ("kcl", "SLDA"))
    assert (kcl.count("91.25"), slda.count("91.25")) == (3, 1)


def test_scores_of_unknown_queries_that_were_measured_apart_are_told_together(bench):
    shared = {"stream": "clinc150", "method": "kcl", "seed": 0, "accuracy": 91.0, "learn_seconds": 1.0, "bytes": 1}
    first = shared | {"settings": {"bases": 8}, "unknown_auroc": {"residual": 0.9625, "response": 0.5}}
    second = shared | {"settings": {"bases": 8}, "unknown_auroc": {"response": 0.9375}}
    table = bench.tables([first, second])
    assert "residual | 0.9625" in table
    assert "response | 0.9375" in table
    assert "residual | 0.9625 |" in bench.tables([first, second, second | {"seed": 1}])
    assert "residual" not in bench.tables([first, second | {"settings": {"bases": 9}}])


def test_our_head_is_solved_anew_with_other_settings(bench, data):
    learned, stream = bench.Learned(), bench.Stream("tiny", 1, "")
    method, fixed = bench.METHODS["kcl-tuned"], {"bases": 64, "features": "relu"}
    for strength in (1e-3, 1.0):
        learner, _ = learned.get(method, stream, data, fixed | {"ridge_strength": strength}, 0)
        assert learner.solution["strength"] == pytest.approx(strength)
        alone, _ = bench.Learned().get(method, stream, data, fixed | {"ridge_strength": strength}, 0)
        scores = learner.unknown_scores(data.test)
        for name, expected in alone.unknown_scores(data.test).items():
            np.testing.assert_allclose(scores[name], expected, rtol=1e-6, atol=1e-9)


def test_settings_that_act_at_the_solution_need_no_second_learning(bench, data):
    learned = bench.Learned()
    stream, first, second = bench.Stream("tiny", 1, ""), {"bases": 64, "strength": 1e-3}, {"bases": 64, "strength": 1.0}
    method = bench.METHODS["ranpac-tuned"]
    learner, _ = learned.get(method, stream, data, first, 0)
    before = learner.scores(data.test)
    again, _ = learned.get(method, stream, data, second, 0)
    assert again is learner
    fresh, _ = bench.Learned().get(method, stream, data, second, 0)
    assert np.array_equal(again.scores(data.test), fresh.scores(data.test))
    assert not np.allclose(before, again.scores(data.test))
