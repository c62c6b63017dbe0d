"""The page: well-formed, self-contained, escaped, readable."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kcl.errors import KclError
from kcl.metrics import AccuracyMatrix
from kcl.report.groups import group_runs
from kcl.report.heatmap import heatmap, shading_range
from kcl.report.page import page, write_page
from kcl.report.stylesheet import STYLESHEET

VOID = {"meta", "br"}


class Outline(HTMLParser):
    """Every element, its attributes and the text; fails on a tag that does not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def runs(make_run) -> list[dict]:
    sgd = {"method": "naive-sgd", "drop": 20.0, "settings": {"lr": 0.01, "dropout": 0.5}}
    return [make_run(seed) for seed in range(3)] + [make_run(0, **sgd), make_run(1, diverged=True, **sgd)]


def test_the_page_is_written_whole_and_the_same_each_time(runs, tmp_path: Path) -> None:
    for name in ("one.html", "two.html"):
        write_page(runs, tmp_path / name, "A comparison")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_page_stands_alone(runs) -> None:
    text = page(runs, "A comparison")
    outline = Outline(text)
    assert not {"script", "link", "img", "iframe", "object", "foreignobject"} & {tag for tag, _ in outline.elements}
    for _, attributes in outline.elements:
        for name, value in attributes.items():
            if name in ("href", "src", "xlink:href"):
                assert value.startswith("#")
    assert not re.findall(r"url\((?!#)", text)
    assert "@import" not in text


def test_the_page_tells_what_it_should(runs) -> None:
    outline = Outline(page(runs, "A comparison"))
    for told in (
        "5, of which 1 diverged",
        "permuted-digits (3 tasks)",
        "90.00 ± 1.00",
        "kcl run permuted-digits",
        "0.01",
    ):
        assert told in outline.text
    assert len(outline.all("table")) == len(outline.all("caption")) == 4  # results, two matrices, settings
    assert [row for row in outline.all("tr") if row.get("class") == "differs"] == [{"class": "differs"}]
    (svg,) = outline.all("svg")
    assert svg["role"] == "img"
    assert "KCL (vrf) on permuted-digits ends at 90.0 %" in svg["aria-label"]
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in outline.all("div") if "role" in region)
    identifiers = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))


def test_everything_is_escaped(make_run) -> None:
    evil = '"><script>alert("&\'")</script>'
    run = make_run(
        method=evil,
        benchmark=evil,
        kernel=evil,
        device=evil,
        command=evil,
        settings={evil: evil, "list": [evil]},
        versions={evil: evil},
    )
    text = page([run, run | {"settings": {evil: 1}}], evil)
    outline = Outline(text)
    assert "<script" not in text
    assert outline.all("script") == []
    assert outline.text.count(evil) >= 8
    (svg,) = outline.all("svg")
    assert evil in svg["aria-label"]


def test_text_that_cannot_be_encoded_does_not_stop_the_page(make_run, tmp_path: Path) -> None:
    write_page([make_run(command="\ud800")], tmp_path / "page.html", "A \ud800 title")
    assert "A ? title" in (tmp_path / "page.html").read_text()


def test_a_page_of_diverged_runs_has_no_figure(make_run) -> None:
    outline = Outline(page([make_run(diverged=True, command=None)], "Nothing worked"))
    assert outline.all("svg") == []
    assert "0 (+1 diverged)" in outline.text
    assert "not made from the command line" in outline.text


def test_no_runs_make_no_page(tmp_path: Path) -> None:
    with pytest.raises(KclError, match="no runs"):
        write_page([], tmp_path / "page.html", "Empty")
    assert list(tmp_path.iterdir()) == []


def test_heat_map_cells_are_means_over_seeds(make_run) -> None:
    (group,) = group_runs([make_run(0), make_run(1)])
    assert shading_range([group]) == (80.0, 100.0)
    outline = Outline(heatmap(group, 80.0, 100.0))
    assert [cell.get("style", "") for cell in outline.all("td")][:4] == ["--level:0.53", "", "", "--level:0.47"]
    assert "after task 189.590.5" in outline.text


def test_rows_without_any_accuracy_are_left_out(make_run) -> None:
    rows = [[None, None], [80.0, 90.0]]
    (group,) = group_runs([make_run(tasks=2, accuracy_matrix=rows, **AccuracyMatrix.from_lists(rows).summary())])
    assert "after task 0" not in heatmap(group, 0.0, 100.0)


def test_numbers_stay_readable_on_every_shade() -> None:
    """WCAG AA: a contrast of 4.5 between ink and cell, for no shade and for the full one, in light and in dark."""

    def luminance(channels: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in channels)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def colours(name: str) -> list[list[float]]:
        return [[int(h[k : k + 2], 16) for k in (0, 2, 4)] for h in re.findall(rf"--{name}: #(\w{{6}})", STYLESHEET)]

    heats = [[float(c) for c in found.split()] for found in re.findall(r"--heat: ([\d ]+)", STYLESHEET)]
    strength = float(re.search(r"var\(--level\) \* ([.\d]+)", STYLESHEET)[1])
    modes = list(zip(colours("ink"), colours("paper"), colours("mark"), heats, strict=True))
    assert len(modes) == 2
    for ink, paper, mark, heat in modes:
        full = [strength * h + (1 - strength) * p for h, p in zip(heat, paper, strict=True)]
        for ground in (paper, full, mark):
            low, high = sorted((luminance(ink), luminance(ground)))
            assert (high + 0.05) / (low + 0.05) >= 4.5
