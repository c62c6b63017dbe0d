"""The page: well-formed, self-contained, escaped, readable."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from kcl.cli.commands import main
from kcl.core import results
from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.report.charts import plotly
from kcl.report.page import page, write_page

VOID = {"meta", "br", "input"}


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


def test_the_time_of_runs_that_shared_it_is_counted_once(make_run) -> None:
    """Two trainings done together in 10 seconds, one of them tested in two ways; and a run alone in 12."""
    shared = [{"seconds": 10.0, "runs_at_once": 2, "training_shared_by": count} for count in (2, 2, 1)]
    text = page([make_run(seed, **own) for seed, own in enumerate([*shared, {"seconds": 12.0}])], "a heading")
    assert "22.0 seconds in all" in text


def test_the_page_is_written_whole_and_the_same_each_time(runs, tmp_path: Path) -> None:
    for name in ("one.html", "two.html"):
        write_page(runs, tmp_path / name, "A comparison")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_page_stands_alone(runs) -> None:
    text = page(runs, "A comparison")
    outline = Outline(text)
    assert not {"link", "img", "iframe", "object", "foreignobject", "base"} & {tag for tag, _ in outline.elements}
    for tag, attributes in outline.elements:
        assert not {"src", "href", "srcset"} & attributes.keys()
        assert not any(name.startswith("on") for name in attributes), tag
    own = text.replace(plotly(), "")
    assert not re.findall(r"url\((?!#)|@import|https?://", own)
    assert len(text) < 2e6


def test_only_the_scripts_of_the_page_may_run(runs) -> None:
    """A browser that obeys the policy runs a script only if its hash is named, and asks no one for anything."""
    text = page(runs, "A comparison")
    (allowed,) = (meta["content"] for meta in Outline(text).all("meta") if "http-equiv" in meta)
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(hashes) == 2
    assert re.search(r"script-src ([^;]*)", allowed)[1].split() == [f"'sha256-{value}'" for value in hashes]
    assert "default-src 'none'" in allowed
    assert "connect-src" not in allowed
    assert "connect-src 'self'" in page(runs, "A comparison", version="1")


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
    assert len(outline.all("table")) == len(outline.all("caption")) == 3  # headline, results, settings
    assert [row for row in outline.all("tr") if row.get("class") == "differs"] == [{"class": "differs"}]
    charts = [figure for figure in outline.all("div") if figure.get("role") == "img"]
    assert len(charts) == len(outline.all("figure")) == 5
    assert all(
        region["tabindex"] == "0" and region["aria-label"]
        for region in outline.all("div")
        if region.get("role") == "region"
    )
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
    assert "<script>alert" not in text
    assert [script.get("type") for script in outline.all("script")] == ["application/json", None, None]
    assert outline.text.count(evil) >= 8
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, flags=re.DOTALL)[1])
    assert data["groups"][0]["kernel"] == evil
    assert data["commands"] == [evil]


def test_text_that_cannot_be_encoded_does_not_stop_the_page(make_run, tmp_path: Path) -> None:
    write_page([make_run(command="\ud800")], tmp_path / "page.html", "A \ud800 title")
    assert "A ? title" in (tmp_path / "page.html").read_text()


def test_a_page_of_diverged_runs_has_no_figure(make_run) -> None:
    outline = Outline(page([make_run(diverged=True, command=None)], "Nothing worked"))
    assert outline.all("figure") == outline.all("script") == []
    assert "0 (+1 diverged)" in outline.text
    assert not outline.all("pre")


def test_no_runs_make_no_page(tmp_path: Path) -> None:
    with pytest.raises(KclError, match="no runs"):
        write_page([], tmp_path / "page.html", "Empty")
    assert list(tmp_path.iterdir()) == []


def test_many_settings_are_told_once_where_they_are_the_same(make_run) -> None:
    runs = [make_run(settings={"lr": 0.1 + k, "dropout": 0.5, "tau": 0.25}) for k in range(20)]
    text = page(runs, "A sweep")
    assert text.count("<td>0.25</td>") == 0
    assert "tau 0.25" in text
    assert "<td>19.1</td>" in text


def test_the_sign_stands_for_a_standard_deviation_in_every_table(runs) -> None:
    """Ours and the paper's, in the headline as below; intervals are written in brackets."""
    text = page(runs, "A comparison")
    captions = [caption for caption in re.findall(r"<caption>(.*?)</caption>", text) if "±" in caption]
    assert len(captions) == 2
    assert all("standard deviation" in caption for caption in captions)
    for part in ("headline", "results"):
        table = text.split(f'id="{part}"')[1].split("</section>")[0]
        assert "90.00 ± 1.00" in table
        assert "[87.52, 92.48]" in table


def test_a_number_is_rounded_once(make_run) -> None:
    """Rounded to four digits first, this would be shown as 0.009, and in the terminal as 0.008."""
    run = make_run(tasks=2, drop=0.845)
    assert f"{run['forgetting']:.3f}" == "0.008"
    assert f'"forgetting":{run["forgetting"]!r},' in page([run], "Title")


def test_older_results_have_the_settings_of_their_method_and_no_others(make_run, tmp_path: Path) -> None:
    """The demo's lines were written when every method recorded KCL's settings, and some settings did not exist."""
    new = make_run(benchmark="permuted-mnist", tasks=5, train_per_task=5000, settings=KclSettings().to_dict())
    results.append(tmp_path / "runs" / "results.jsonl", new)
    out = tmp_path / "page.html"
    demo = Path(__file__).parents[2] / "results" / "demo"
    assert main(["report", str(tmp_path / "runs"), str(demo), "--out", str(out), "--quiet"]) == 0
    text = out.read_text(encoding="utf-8")
    rows = dict(re.findall(r'<th scope="row">(\w+)</th>((?:<td>[^<]*</td>)+)', text.split('id="settings"')[1]))
    columns = {name: re.findall(r"<td>([^<]*)</td>", cells) for name, cells in rows.items()}
    assert columns["kernel"] == ["vrf", "–"]
    assert columns["coreset_size_per_class"] == ["20", "–"]
    assert columns["optimizer"] == ["sgd", "sgd"]


def test_the_published_value_stands_beside_ours(make_run) -> None:
    run = make_run(benchmark="permuted-mnist", tasks=20)
    assert "paper: 85.5 ± 0.78" in page([run], "Published")
    assert "paper: 85" not in page([run | {"train_per_task": 100}], "Something else")


def test_a_hundred_runs_of_twenty_tasks_stay_below_five_megabytes(make_run) -> None:
    runs = [make_run(k % 5, tasks=20, settings={"lr": 1.0 + k // 5}, drop=0.5) for k in range(100)]
    assert len(page(runs, "Many").encode()) < 5e6


def test_text_stays_readable() -> None:
    """WCAG AA: a contrast of 4.5 between text and what it stands on, in light and in dark."""

    def luminance(channels: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in channels)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    stylesheet = resources.files("kcl.report").joinpath("script", "page.css").read_text(encoding="utf-8")

    def colours(name: str) -> list[list[float]]:
        return [[int(h[k : k + 2], 16) for k in (0, 2, 4)] for h in re.findall(rf"--{name}: #(\w{{6}})", stylesheet)]

    grounds = list(zip(colours("paper"), colours("ground"), colours("mark"), strict=True))
    for name in ("ink", "muted", "accent"):
        inks = colours(name)
        assert len(inks) == len(grounds) == 2
        for ink, behind in zip(inks, grounds, strict=True):
            for ground in behind if name == "ink" else behind[:2]:
                low, high = sorted((luminance(ink), luminance(ground)))
                assert (high + 0.05) / (low + 0.05) >= 4.5, name
