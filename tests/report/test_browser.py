"""The page in a real browser: it draws, answers to filters and hover, complains of nothing and asks no one."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from kcl.core import results
from kcl.core.metrics import AccuracyMatrix
from kcl.report.page import write_page

ROOT = Path(__file__).parents[2]
CHARTS = ("average", "forgetting", "tasks", "matrix", "cost")


@pytest.fixture(scope="module")
def real_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = [
        record
        for name in ("demo", "mnist-streams")
        for record in results.read(ROOT / "results" / name / "results.jsonl")
    ]
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(records, path, "Real runs")
    return path.as_uri()


@pytest.fixture
def visit(open_page, real_page: str) -> Any:
    return open_page(real_page, viewport={"width": 1280, "height": 900})


def test_every_chart_is_drawn_and_described(visit: Any) -> None:
    for chart in CHARTS:
        assert visit.page.locator(f"#chart-{chart} .main-svg").count() > 0
        assert len(visit.page.get_attribute(f"#chart-{chart}", "aria-label")) > 40
    assert visit.lines("average") == 2
    assert visit.page.locator("#chart-matrix .heatmaplayer image").count() == 1
    assert "KCL (vrf) 86.1 %" in visit.page.get_attribute("#chart-average", "aria-label")
    assert "paper: 85.5 ± 0.78" in visit.text("#headline")


def test_filters_and_choices_change_what_is_drawn(visit: Any) -> None:
    page = visit.page
    assert visit.text("#runs-count") == "6 of 16 runs"
    page.uncheck("#groups label:first-child input")
    assert visit.lines("average") == 1
    page.click("#choose-all")
    assert visit.lines("average") == 2
    page.select_option("#method", "KCL")
    assert visit.lines("average") == 1
    assert visit.text("#runs-count") == "3 of 16 runs"
    page.select_option("#kernel", "vrf")
    page.click(".filters summary")
    page.uncheck("#seeds label:nth-child(1) input")
    assert visit.text("#runs-count") == "2 of 16 runs"
    page.select_option("#method", "")
    page.select_option("#benchmark", "rotated-mnist (20 tasks)")
    assert visit.text("#runs-count") == "4 of 16 runs"
    page.select_option("#benchmark", "")
    assert visit.lines("average") == 3  # the kernel is still chosen, and naive SGD has none
    page.select_option("#band", "runs")
    assert visit.lines("average") == 10


def test_hover_tells_the_value_of_a_cell(visit: Any) -> None:
    visit.page.locator("#figure-matrix").scroll_into_view_if_needed()
    box = visit.page.locator("#chart-matrix .heatmaplayer image").bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + box["height"] * 0.9)
    visit.page.wait_for_selector("#chart-matrix .hoverlayer .hovertext")
    told = visit.page.text_content("#chart-matrix .hoverlayer")
    assert "after task 5, accuracy on task 1: 86." in told


def test_hover_tells_the_value_of_a_curve(visit: Any) -> None:
    visit.page.locator("#figure-average").scroll_into_view_if_needed()
    box = visit.page.locator("#chart-average .draglayer .nsewdrag").first.bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] * 0.94, box["y"] + box["height"] * 0.4)
    visit.page.wait_for_selector("#chart-average .hoverlayer .hovertext")
    told = visit.page.text_content("#chart-average .hoverlayer")
    assert "86.06 ± 0.10" in told
    assert "81.89 ± 1.88" in told


def test_the_single_chart_follows_its_choice_and_the_measure_its_own(visit: Any) -> None:
    visit.page.select_option("#shown", label="KCL (vrf)")
    assert "KCL (vrf)" in visit.text("#words-matrix")
    visit.page.select_option("#measure", "cost")
    visit.page.fill("#price", "3600")
    rows = list(csv.DictReader(io.StringIO(visit.download("#csv-cost"))))
    assert float(rows[1]["cost of a run"]) == pytest.approx(64.5, abs=0.1)  # a second costs 1


def test_numbers_and_files_are_those_of_the_results(visit: Any) -> None:
    rows = list(csv.reader(io.StringIO(visit.download("#csv-average"))))
    assert rows[0][:2] + rows[0][3:4] == ["tasks learned", "naive SGD", "KCL (vrf)"]
    assert rows[5] == ["5", "81.89", "1.88", "86.06", "0.10"]
    svg = visit.download("#svg-matrix")
    assert svg.startswith("<svg")
    assert "after learning task" in svg
    runs = list(csv.DictReader(io.StringIO(visit.download("#csv-runs"))))
    assert [run["seed"] for run in runs] == ["0", "1", "2"] * 2
    assert runs[0]["command"] == "kcl demo --out demo"
    visit.page.click("#numbers-forgetting summary")
    assert "KCL (vrf)" in visit.text("#numbers-forgetting table")


def test_charts_of_one_method_open_on_kcl(visit: Any) -> None:
    """Although naive SGD stands before it in the results."""
    assert visit.page.locator("#shown option").first.text_content() == "naive SGD"
    for chart in ("tasks", "matrix"):
        assert "KCL (vrf)" in visit.text(f"#words-{chart}")


def test_a_column_of_spreads_says_what_they_are(visit: Any) -> None:
    for band, word in (("interval", "95 %"), ("deviation", "standard deviation")):
        visit.page.select_option("#band", band)
        for chart in ("average", "forgetting", "cost"):
            header = next(csv.reader(io.StringIO(visit.download(f"#csv-{chart}"))))
            spreads = [name for name in header if name.startswith("±")]
            assert spreads
            assert all(word in name for name in spreads)


def test_tasks_count_from_one_and_forgetting_is_the_fraction_of_the_results(visit: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(visit.download("#csv-forgetting"))))
    assert [row["task"] for row in rows] == ["1", "2", "3", "4"]
    runs = [run for run in results.read(ROOT / "results" / "demo" / "results.jsonl") if run["method"] == "kcl"]
    average = sum(float(row["KCL (vrf)"]) for row in rows) / len(rows)
    assert average == pytest.approx(sum(run["forgetting"] for run in runs) / len(runs), abs=1e-3)
    matrix = list(csv.reader(io.StringIO(visit.download("#csv-matrix"))))
    assert matrix[0][1:] == ["1", "2", "3", "4", "5"]
    assert "1" in matrix[1][0]


def test_a_table_that_is_cut_off_shows_that_it_scrolls(visit: Any) -> None:
    """By shadows at its edges; the browser under test hides scroll bars."""
    hidden, background = visit.page.evaluate("""() => {
        const region = document.getElementById("runs-table");
        return [region.scrollWidth - region.clientWidth, getComputedStyle(region).backgroundImage];
    }""")
    assert hidden > 0
    assert background.count("linear-gradient") == 4


def test_every_number_of_a_run_can_be_seen_without_scrolling(visit: Any) -> None:
    """What may lie beyond the edge are the words behind the numbers, such as the command."""
    for cell in visit.page.locator("#runs-table .number, #results .number").all():
        place = cell.bounding_box()
        assert place["x"] + place["width"] <= 1280


def test_the_keyboard_reaches_everything(visit: Any) -> None:
    visit.page.focus("#benchmark")
    reached = []
    for _ in range(40):
        visit.page.keyboard.press("Tab")
        reached.append(visit.page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"method", "kernel", "band", "choose-all", "svg-average", "csv-cost", "shown", "measure"} <= set(reached)
    visit.page.focus("#groups input")
    visit.page.keyboard.press("Space")
    assert visit.lines("average") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_screen_in_light_and_dark(open_page, real_page: str, scheme: str, width: int) -> None:
    visit = open_page(real_page, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    ink = visit.page.evaluate("getComputedStyle(document.querySelector('#chart-average .xtick text')).fill")
    assert ink == ("rgb(31, 35, 40)" if scheme == "light" else "rgb(230, 237, 243)")


def test_it_prints_on_white(open_page, real_page: str) -> None:
    visit = open_page(real_page, color_scheme="dark")
    assert visit.page.pdf(format="A4").startswith(b"%PDF")
    visit.page.emulate_media(media="print")
    assert visit.page.evaluate("getComputedStyle(document.body).color") == "rgb(31, 35, 40)"
    assert not visit.page.is_visible(".filters")


def test_names_from_a_file_stay_text(open_page, make_run, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)><a href='javascript:alert(1)'>%{y}"
    names = {"method": evil, "benchmark": evil, "command": f"={evil}", "device": evil}
    runs = [make_run(**names), make_run(**names) | {"seed": 2**60}]
    write_page(runs, tmp_path / "evil.html", evil)
    visit = open_page((tmp_path / "evil.html").as_uri())
    assert visit.page.locator("img, a").count() == 0
    assert "<img" in visit.page.text_content("#chart-average .legend")
    assert len(visit.requests) == 1
    assert str(2**60) in visit.text("#runs-table")
    assert "'=</script>" in visit.download("#csv-runs")


def test_multi_task_runs_and_diverged_ones_are_drawn(open_page, make_run, tmp_path: Path) -> None:
    rows = [[None] * 3, [None] * 3, [80.0, 81.0, 82.0]]
    joint = make_run(method="multi-task", accuracy_matrix=rows, **AccuracyMatrix.from_lists(rows).summary())
    runs = [joint, make_run(tasks=1), make_run(), make_run(1, diverged=True), make_run(method="ewc", diverged=True)]
    write_page(runs, tmp_path / "odd.html", "Odd")
    visit = open_page((tmp_path / "odd.html").as_uri())
    assert visit.lines("average") == 2
    visit.page.select_option("#benchmark", "")
    assert "diverged" in visit.text("#runs-table")


def test_a_thousand_runs_are_loaded(open_page, tmp_path: Path) -> None:
    """Real runs under other seeds and settings: a matter of size only. How long it takes: benches/page.py."""
    real = results.read(ROOT / "results" / "mnist-streams" / "results.jsonl")
    runs = [
        real[k % len(real)] | {"seed": k // 200, "settings": real[0]["settings"] | {"lr": 0.001 * (k % 200)}}
        for k in range(1000)
    ]
    write_page(runs, tmp_path / "many.html", "Many")
    visit = open_page((tmp_path / "many.html").as_uri())
    assert len(visit.page.query_selector_all("#groups input")) == 100
    assert visit.lines("average") == 8
    assert (tmp_path / "many.html").stat().st_size < 5e6
