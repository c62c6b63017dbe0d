"""What a run saw: the images are the task's own, the mistakes are mistakes, the worst first."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kcl.cli.commands import main
from kcl.core.results import read
from kcl.errors import KclError
from kcl.experiments import task_samples
from kcl.report.groups import group_runs
from kcl.report.page_samples import read_samples, samples_html
from kcl.training.stream_run import run_streams

image_files = pytest.importorskip("PIL.Image")


def opened(text: str) -> np.ndarray:
    return np.asarray(image_files.open(io.BytesIO(base64.b64decode(text))))


def test_images_survive_as_they_are_and_large_ones_shrink() -> None:
    grey = torch.arange(64, dtype=torch.uint8).view(1, 8, 8)
    assert np.array_equal(opened(task_samples.png(grey)), grey[0].numpy())
    colour = torch.arange(192, dtype=torch.uint8).view(3, 8, 8)
    assert np.array_equal(opened(task_samples.png(colour)), colour.permute(1, 2, 0).numpy())
    assert opened(task_samples.png(torch.full((1, 2, 2), 0.5))).tolist() == [[128, 128], [128, 128]]
    assert opened(task_samples.png(torch.zeros(3, 84, 84, dtype=torch.uint8))).shape == (40, 40, 3)
    with pytest.raises(KclError, match="are not images"):
        task_samples.png(torch.zeros(8))


@pytest.mark.parametrize("method", ["kcl", "naive-sgd"])
def test_scores_are_those_behind_the_accuracy(make_runs: Any, method: str) -> None:
    runs = make_runs(method, tasks=2)
    plain, stacked = [run.plain() for run in runs.one_by_one()], runs.stacked()
    for learner, own_runs in [*zip(plain, runs.one_by_one(), strict=True), (stacked, runs)]:
        run_streams(learner, own_runs.streams)
        for index in range(2):
            tasks = own_runs.tasks(index)
            scores = learner.scores(tasks)
            right = [100.0 * (run_scores.argmax(-1) == task.test.labels).sum().item() / len(task.test)
                     for run_scores, task in zip(scores, tasks, strict=True)]  # fmt: skip
            assert right == pytest.approx(learner.accuracy(tasks))
    for run, learner in enumerate(plain):
        one, other = (stack.memory_kept(place, 1).get("inputs") for stack, place in ((learner, 0), (stacked, run)))
        assert (one is None) == (other is None) == (method != "kcl")
        assert one is None or torch.equal(one, other)


def test_mistakes_are_wrong_answers_the_surest_first(make_runs: Any) -> None:
    runs = make_runs("kcl", tasks=2)
    learner = runs.stacked()
    run_streams(learner, runs.streams)
    names = ["a", "b", "c"]
    tasks = runs.tasks(1)
    collected = task_samples.collect(learner, runs.streams, [names] * len(tasks))
    for run, task in enumerate(tasks):
        probabilities = learner.scores(tasks)[run].double().softmax(-1)
        answered = probabilities.argmax(-1)
        wrong = [place for place in range(len(task.test)) if answered[place] != task.test.labels[place]]
        expected = sorted((round(float(probabilities[place].max()), 4) for place in wrong), reverse=True)[:5]
        mistakes = collected[run][1]["mistakes"]
        assert [mistake["confidence"] for mistake in mistakes] == expected
        shown = [task.view.move(task.test.inputs[task.test.rows])[place, 0].numpy() for place in wrong]
        for mistake in mistakes:
            assert mistake["said"] != mistake["label"]
            assert any(np.array_equal(opened(mistake["png"]), image) for image in shown)
        assert [sample["label"] for sample in collected[run][1]["samples"]] == names
        kept = learner.memory_kept(run, 1)["inputs"]
        assert all(any(np.array_equal(opened(sample["png"]), image[0].numpy()) for image in kept)
                   for sample in collected[run][1]["coreset"])  # fmt: skip


@pytest.mark.parametrize("engine", ["plain", "stacked"])
def test_runs_that_diverged_have_none(make_runs: Any, engine: str) -> None:
    runs = make_runs("naive-sgd", tasks=2).but(1, lr=1e30)
    for some, expected in (([0, 1], [2, None]), ([1], [None]))[engine == "plain" :]:
        chosen = runs[some]
        learner = chosen.learner(engine)
        run_streams(learner, chosen.streams)
        collected = task_samples.collect(learner, chosen.streams, [["a", "b", "c"]] * len(some))
        assert [None if tasks is None else len(tasks) for tasks in collected] == expected


def test_the_command_line_saves_them_and_the_page_shows_them(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    arguments = ["run", "permuted-digits", "--tasks", "2", "--seeds", "0,1", "--quiet", "--device", "cpu"]
    assert main([*arguments, "--save-samples", "--out", str(tmp_path)]) == 0
    assert len(read_samples(tmp_path / "samples.jsonl")) == 2
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") >= 2 * 15
    assert 'alt="a mistake: ' in page
    assert "seed 0</caption>" in page


def test_lines_that_are_no_samples_and_images_that_are_none_are_left_out(tmp_path: Path) -> None:
    results = Path(__file__).parents[2] / "results" / "demo" / "results.jsonl"
    record = read(results)[0]
    evil = '"><script>alert(1)</script>'
    fake = base64.b64encode(b"<svg onload=alert(1)>").decode()
    true = task_samples.png(torch.zeros(1, 2, 2, dtype=torch.uint8))
    run_fields = {name: record[name] for name in ("benchmark", "method", "kernel", "seed", "settings", "tasks")}
    tasks = [{"samples": [{"png": evil}, {"png": fake}, {"png": true, "label": evil}, 3], "coreset": evil}, None]
    lines = [json.dumps({"format": 1, **run_fields, "samples": tasks}), "torn {", "[]", '{"format": 2}']
    (tmp_path / "samples.jsonl").write_text("\n".join(lines))
    html = samples_html(group_runs([record]), read_samples(tmp_path / "samples.jsonl"))
    assert html.count("<img") == 1
    assert "<script" not in html
    assert fake not in html
    assert read_samples(tmp_path / "missing.jsonl") == []
    assert samples_html(group_runs([record]), []) == ""


def test_missing_pillow_is_told_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert main(["run", "permuted-digits", "--save-samples", "--out", str(tmp_path / "out")]) == 2
    assert "--save-samples needs Pillow" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
