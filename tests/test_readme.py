"""What README and the user's pages show is what happens: their code runs, and their numbers are those measured."""

import doctest
import json
import re
import shlex
import statistics
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import kcl
from kcl.cli import commands, requested_runs
from kcl.core.results import read
from kcl.paper.cell import FULL, Cell, FinishedRuns
from kcl.paper.reproduce import ITEMS
from kcl.report import results_table
from kcl.report.groups import group_runs
from kcl.report.published import TABLE_5

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS_PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
START = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
ELSEWHERE = {
    "docs/inference.md": "needs Avalanche: tests/models/test_avalanche.py runs it",
    "docs/benchmarks.md": "needs MNIST: test_a_benchmark_from_python",
}
"""Pages with code that the test of all blocks cannot run, and what does instead. Tutorials are run by `make docs`."""
NUMBER = r"\d+\.\d+"


def _blocks(path: Path, language: str = "python") -> list[tuple[str, str]]:
    """Code blocks of a page, each with the block of output that follows it, if one does."""
    pattern = rf"```{language}\n(.*?)```(?:\n\n```text\n(.*?)```)?"
    return re.findall(pattern, path.read_text(encoding="utf-8"), flags=re.DOTALL)


PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if _blocks(path)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_code_runs_and_prints_what_the_page_says(
    page: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seeded: Callable[[int], AbstractContextManager[None]],
) -> None:
    if page.relative_to(ROOT).as_posix() in ELSEWHERE:
        return
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code, output in _blocks(page):
        with seeded(0):  # some examples draw their data from PyTorch's global generator
            exec(compile(code, page.name, "exec"), names)
        printed = capsys.readouterr().out
        if output:  # the last digits depend on the machine
            assert re.sub(NUMBER, "#", printed) == re.sub(NUMBER, "#", output)
            told, said = (list(map(float, re.findall(NUMBER, text))) for text in (printed, output))
            assert told == pytest.approx(said, abs=1.0)


def _commands() -> Iterator[tuple[str, str]]:
    """Every command of kcl in its help, on a page of the site or in the README, but for those with parts left out."""
    for name, command in commands.COMMANDS.items():
        yield from ((f"kcl {name} --help", example) for example in command.examples)
    pages = [
        ROOT / "README.md",
        ROOT / "REPRODUCIBILITY.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs").glob("*/*.md"),
    ]
    for page in sorted(pages):
        for block, _ in [*_blocks(page, "sh"), *_blocks(page, r"\{code-cell\} python\n%%bash")]:
            for line in block.replace("\\\n", " ").splitlines():
                command = line.partition("  #")[0].partition(" |")[0].strip()
                if command.startswith("kcl ") and not re.search(r"[…\[$]", command):
                    yield page.name, command


@pytest.mark.parametrize(("page", "command"), sorted(set(_commands())), ids=lambda value: value[:60])
def test_commands_on_the_pages_are_understood(page: str, command: str) -> None:
    options = commands.parse(shlex.split(command)[1:])
    if {"benchmark", "assignments"} <= vars(options).keys():  # the settings are those of the method
        assert requested_runs.specs(options)


def test_other_commands_on_the_pages_name_what_there_is() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")]
    lines = [
        line for page in pages for block, _ in _blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()
    ]
    words = [shlex.split(line, comments=True) for line in lines]
    others = [[word for word in line if not re.match(r"[A-Z_]+=", word)] for line in words if line and line[0] != "kcl"]
    assert others
    for program, *arguments in others:
        if program == "make":
            assert arguments[0] in targets
        elif program == "python":
            assert (ROOT / arguments[0]).is_file()
        else:
            assert (program, arguments[0]) == ("pip", "install")
            wanted = re.search(r"^(?:\.|kernel-continual-learning)\[(.*)\]$", arguments[1])
            assert set(wanted[1].split(",") if wanted else ()) <= set(extras)


def test_pages_whose_code_runs_elsewhere_exist() -> None:
    assert set(ELSEWHERE) <= {page.relative_to(ROOT).as_posix() for page in PAGES}


def test_own_arrays_and_backbone(
    capsys: pytest.CaptureFixture[str], seeded: Callable[[int], AbstractContextManager[None]]
) -> None:
    [code] = [code for code, _ in _blocks(ROOT / "docs" / "guide.md") if "ArrayStream" in code]
    with seeded(0):
        exec(compile(code, "guide.md", "exec"), {})
    accuracies, predicted = capsys.readouterr().out.split("\n", 1)
    assert min(json.loads(accuracies)) > 80
    assert set(re.findall(r"\d+", predicted.split("[")[1])) <= {"2", "3", "4"}


@pytest.mark.data
def test_a_benchmark_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    [(code, _)] = _blocks(ROOT / "docs" / "benchmarks.md")
    smaller = code.replace("tasks=5, train_per_task=2000", "tasks=2, train_per_task=600")
    assert smaller != code
    exec(compile(smaller, "benchmarks.md", "exec"), {})
    accuracies = [float(line) for line in capsys.readouterr().out.split()]
    assert len(accuracies) == 2
    assert min(accuracies) > 60


@pytest.mark.parametrize("page", [page for page in REFERENCE if _blocks(page, "pycon")], ids=lambda path: path.stem)
def test_the_examples_of_the_reference(page: Path, seeded: Callable[[int], AbstractContextManager[None]]) -> None:
    for module in ("sklearn", "onnxruntime", "PIL"):
        pytest.importorskip(module)
    session = "\n\n".join(code for code, _ in _blocks(page, "pycon"))
    examples = doctest.DocTestParser().get_doctest(session, {}, page.name, str(page), 0)
    printed: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    with seeded(0):
        result = runner.run(examples, out=printed.append)
    assert result.attempted > 0
    assert not result.failed, "".join(printed)


def test_the_reference_has_every_public_name() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in REFERENCE)
    documented = set(re.findall(r"auto\w+:: kcl\.(\w+)$", text, flags=re.MULTILINE))
    assert documented == {*kcl.__all__} - {"__version__"}
    examples = "".join(code for page in REFERENCE for code, _ in _blocks(page, "pycon"))
    shown = set(re.findall(r"kcl\.(\w+)", examples))
    by_another = {
        "Task",
        "Examples",
        "View",
        "Settings",
        "KclWarning",
    }  # what a stream gives; KclSettings; nothing to do
    need_data = {
        "PermutedMNIST",
        "RotatedMNIST",
        "SplitCIFAR100",
        "SplitMiniImageNet",
    }  # shown by their small relatives
    assert documented - shown == by_another | need_data


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120
    for command in ("make demo", "make test", "make docs", "pip install"):
        assert command in README


@pytest.mark.parametrize(("device", "many"), [("cpu", 1), ("h200", 3)])
def test_the_costs_of_an_answer_are_what_was_measured(device: str, many: int) -> None:
    page = (ROOT / "docs" / "inference.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "benches" / "results" / f"{device}-inference.json").read_text(encoding="utf-8"))["rows"]
    for table in ("coreset", "bases"):
        for queries, title, digits in ((1, "one query", 3), (10_000, "10,000 queries", many)):
            for way in ("plain", "collapsed"):
                times = [r["ms"] for r in rows if (r["table"], r["queries"], r["way"]) == (table, queries, way)]
                assert f"| {title}, {way} | " + " | ".join(f"{ms:.{digits}f}" for ms in times) + " |" in page
    ways = {"named task": "another task in each call", "task inferred": "task inferred"}
    ways |= {f"all classes, {what}": f"all classes of tasks of five, {what}" for what in ("scores", "answer")}
    for way in {row["way"] for row in rows if row["table"] == "tasks"}:
        title = ways[way]
        times = [r["ms"] for r in rows if r["table"] == "tasks" and r["way"] == way and r["queries"] == 1]
        assert f"| one query, {title} | " + " | ".join(f"{ms:.3f}" for ms in times) + " |" in page


@pytest.mark.parametrize("benchmark", ["permuted-mnist", "rotated-mnist", "split-cifar100", "split-miniimagenet"])
def test_accuracies_without_a_task_are_what_was_measured(benchmark: str) -> None:
    page = (ROOT / "docs" / "inference.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "results" / "task-free" / f"h200-{benchmark}.json").read_text(encoding="utf-8"))
    rows = measured["rows"]
    assert measured["command"] in page
    assert [row["seed"] for row in rows] == [0, 1, 2, 3, 4]

    def shown(values: list[float]) -> str:
        return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"

    cells = [shown([row["known_task_accuracy"] for row in rows])]
    cells += [shown([row["scores"]["typicality"]["task_free_accuracy"] for row in rows])]
    cells += [
        shown([row["scores"][score]["task_accuracy"] for row in rows])
        for score in ("typicality", "variance", "entropy")
    ]
    before, after = (statistics.mean(row[f"ece_{kind}"] for row in rows) for kind in ("uncalibrated", "calibrated"))
    assert f"| {' | '.join(cells)} | {before:.3f} → {after:.3f} |" in page


def test_the_table_is_what_the_results_give() -> None:
    rows = results_table.rows(group_runs(read(ROOT / "results" / "demo" / "results.jsonl")))
    assert len(rows) == 2
    for row in rows:
        _, method, seeds, accuracy, _, forgetting, learning, *_ = row
        assert seeds == "3"
        assert f"| {method} | {accuracy} | {forgetting} | {learning} |" in START


def test_the_streams_are_what_the_results_give() -> None:
    runs = FinishedRuns(read(ROOT / "results" / "paper" / "results.jsonl"), FULL, range(5))
    for cell in ITEMS["comparison"].cells():
        if cell.method == "kcl":
            [row] = results_table.rows(group_runs(runs.of(cell)))
            assert row[2] == "5"
            assert f"| {cell.column} | {row[3]} | {row[5]} |" in RESULTS_PAGE
            assert f"`{runs.command(cell)}`" in RESULTS_PAGE


def test_the_table_of_the_strong_recipe_is_what_the_results_give() -> None:
    runs = FinishedRuns(read(ROOT / "results" / "strong" / "results.jsonl"), FULL, range(5))
    for benchmark, printed in TABLE_5.items():
        cell = Cell("", benchmark, recipe="strong")
        [row] = results_table.rows(group_runs(runs.of(cell)))
        assert row[2] == "5"
        published = f"{printed['kcl'].accuracy:.1f}, {printed['multi-task'].accuracy:.1f}"
        assert f"| {cell.column} | {row[3]} | {row[5]} | {published} | `{runs.command(cell)}` |" in RESULTS_PAGE


def test_the_table_of_the_readme_is_what_the_results_give() -> None:
    runs = {
        name: FinishedRuns(read(ROOT / "results" / name / "results.jsonl"), FULL, range(5))
        for name in ("paper", "strong")
    }

    def accuracy(name: str, cell: Cell) -> str:
        [row] = results_table.rows(group_runs(runs[name].of(cell)))
        return row[3]

    for benchmark, printed in TABLE_5.items():
        strong = Cell("", benchmark, recipe="strong")
        joint = accuracy("strong", Cell("", benchmark, "multi-task", recipe="strong")).split(" ")[0]
        paper = str(printed["kcl"])
        ours = accuracy("paper", Cell("", benchmark)), accuracy("strong", strong)
        assert f"| {strong.column} | {paper} | {ours[0]} | {ours[1]} | {float(joint):.1f} |" in README


@pytest.mark.parametrize(
    ("work", "title", "engine"),
    [
        ("mnist", "Permuted MNIST", "kcl, compiled"),
        ("cifar100", "Split CIFAR-100", "kcl"),
        ("miniimagenet", "Split miniImageNet", "kcl"),
    ],
)
def test_the_speeds_are_what_was_measured(work: str, title: str, engine: str) -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "benches" / "results" / f"h200-{work}.json").read_text(encoding="utf-8"))
    assert measured["command"].replace("miniimagenet", "cifar100") in page
    for row in measured["rows"]:
        ratio = "1" if row["engine"] == "plain loop" else f"{row['times_reference']:.1f}"
        cells = [row["engine"], str(row["runs"]), f"{row['ms_per_step']:.3f}", f"{row['ms_per_run_step']:.3f}", ratio]
        named = cells if work == "mnist" else [work, *cells]
        assert f"| {' | '.join(named)} |" in page
    times = [row["ms_per_step"] for row in measured["rows"] if row["engine"] in ("plain loop", engine)]
    assert f"| {title} | {' | '.join(f'{ms:#.3g}' for ms in times)} |" in RESULTS_PAGE


@pytest.mark.parametrize(("threads", "name"), [(1, "cpu-mnist"), (2, "cpu-mnist-two-threads")])
def test_a_step_on_a_cpu_costs_what_was_measured(threads: int, name: str) -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "benches" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert measured["threads"] == threads
    rows = {row["engine"]: row for row in measured["rows"]}
    plain, ours, bare = (f"{rows[engine]['ms_per_step']:.1f}" for engine in ("plain loop", "kcl", "bare SGD step"))
    assert f"| {threads} | {plain} | {ours} | {rows['kcl']['times_reference']:.1f} | {bare} |" in page


@pytest.mark.parametrize(("threads", "suffix"), [(1, ""), (2, "-two-threads")])
@pytest.mark.parametrize(
    ("name", "precision", "engine"), [("compiled", "float32", "kcl, compiled"), ("bf16", "bf16", "kcl, compiled, bf16")]
)
def test_a_compiled_step_on_a_cpu_costs_what_was_measured(
    threads: int, suffix: str, name: str, precision: str, engine: str
) -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "benches" / "results" / f"cpu-mnist-{name}{suffix}.json").read_text(encoding="utf-8"))
    assert (measured["threads"], measured["precision"]) == (threads, precision)
    command = f"kcl bench mnist --device cpu --threads {threads} --steps 400 --compile both --precision {precision}"
    assert measured["command"].startswith(command)
    rows = {row["engine"]: row for row in measured["rows"]}
    plain, kcl, ours = (rows[name] for name in ("plain loop", "kcl", engine))
    steps = " | ".join(f"{row['ms_per_step']:.1f}" for row in (plain, kcl, ours))
    line = f"| {threads} | {precision} | {steps} | {ours['times_reference']:.1f} | {ours['first_task_s']:.0f} |"
    assert line in page
