"""The generated parts of the pages are what the committed results give. Everything outside the markers is free."""

from pathlib import Path

import pytest

from kcl.cli.commands import main
from kcl.core.results import read
from kcl.errors import KclError
from kcl.paper.cell import FULL, FinishedRuns
from kcl.paper.page_sections import replace_sections, section_names
from kcl.paper.reproduce import BEYOND, ITEMS, STRONG, WITHOUT_TASK

ROOT = Path(__file__).parents[2]
PAGES = {
    "REPRODUCIBILITY.md": (ITEMS, ("paper", "baselines")),
    "docs/strong.md": (STRONG, ("strong", "strong-round-3", "paper", "baselines")),
    "docs/class-incremental.md": (WITHOUT_TASK, ("class-incremental", "strong")),
}
PAGE = "before\n<!-- kernels: begin -->\nold\n<!-- kernels: end -->\nafter\n"
EMPTY = FinishedRuns([], FULL, range(5))


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_between_the_markers_are_what_the_results_give(name: str) -> None:
    items, folders = PAGES[name]
    records = [record for folder in folders for record in read(ROOT / "results" / folder / "results.jsonl")]
    runs = FinishedRuns(records, FULL, range(5), [ROOT / "results" / "inference-time"])
    page = (ROOT / name).read_text(encoding="utf-8")
    assert replace_sections(page, items, runs) == page, "run make report"


@pytest.mark.parametrize("path", [ROOT / "README.md", *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=str)
def test_every_marker_names_an_item(path: Path) -> None:
    assert set(section_names(path.read_text(encoding="utf-8"))) <= {*ITEMS, *BEYOND}


def test_the_pages_show_the_main_tables() -> None:
    assert {"comparison", "kernels", "ways", "coreset-size", "bases"} <= set(
        section_names((ROOT / "REPRODUCIBILITY.md").read_text(encoding="utf-8"))
    )
    assert set(section_names((ROOT / "docs" / "strong.md").read_text(encoding="utf-8"))) == set(STRONG)


def test_only_the_text_between_the_markers_is_replaced() -> None:
    page = replace_sections(PAGE, ITEMS, EMPTY)
    assert page.startswith("before\n<!-- kernels: begin -->\n\n| benchmark |")
    assert page.endswith("\n\n<!-- kernels: end -->\nafter\n")
    assert "old" not in page
    assert replace_sections(page, ITEMS, EMPTY) == page
    assert replace_sections(PAGE, STRONG, EMPTY) == PAGE


@pytest.mark.parametrize(
    "page",
    ["<!-- kernels: begin -->", "<!-- kernels: end -->", PAGE + PAGE, "<!-- kernels: end --> <!-- kernels: begin -->"],
)
def test_markers_that_do_not_pair_up_are_refused(page: str) -> None:
    with pytest.raises(KclError, match="kernels: end"):
        replace_sections(page, ITEMS, EMPTY)


def test_an_unknown_marker_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("kernels", "kernel"), encoding="utf-8")
    results = str(ROOT / "results" / "baselines")
    arguments = ["reproduce", "kernels", "--report-only", "--results", results, "--into", str(page)]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert "kernels" in capsys.readouterr().err
    assert "old" in page.read_text(encoding="utf-8")
    assert not (tmp_path / "out").exists()
