"""Made-up runs with known numbers, and a real browser to look at their page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kcl.core import results
from kcl.core.metrics import AccuracyMatrix

Run = dict[str, Any]


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """A checked record whose accuracies fall by `drop` a task, from 90 + seed."""

    def make(
        seed: int = 0, *, method: str = "kcl", tasks: int = 3, drop: float = 1.0, **changes: Any
    ) -> dict[str, Any]:
        matrix = AccuracyMatrix(tasks)
        diverged = changes.get("diverged", False)
        for learned in range(0 if diverged else tasks):
            for task in range(learned + 1):
                matrix.record(learned, task, 90.0 + seed - drop * (learned - task))
        record = {
            "format": 1,
            "benchmark": "permuted-digits",
            "method": method,
            "kernel": "vrf" if method == "kcl" else None,
            "seed": seed,
            "tasks": tasks,
            "settings": {"lr": 0.1, "dropout": 0.5},
            "versions": {"kcl": "0.1.0", "torch": "2.6"},
            "device": "cpu",
            "seconds": 10.0 + seed,
            "accuracy_matrix": matrix.to_lists(),
            "initial_accuracy": None,
            **matrix.summary(),
            "diverged": False,
            "memory": {},
            "command": f"kcl run permuted-digits --method {method}",
        } | changes
        results.check(record)
        return record

    return make


class Visit:
    """One page in a fresh profile, and everything it complained of or asked for."""

    def __init__(self, browser: Any, address: str, **looks: Any) -> None:
        self.context = browser.new_context(accept_downloads=True, **looks)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]")

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def download(self, selector: str) -> str:
        with self.page.expect_download() as waiting:
            self.page.click(selector)
        return Path(waiting.value.path()).read_text(encoding="utf-8")

    def lines(self, chart: str) -> int:
        """Curves that can be seen: the edge of a band is a line of no width."""
        seen = f"#chart-{chart} .scatterlayer .trace .lines path:not([style*='stroke-width: 0'])"
        return int(self.page.locator(seen).count())


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, headless, driven by Playwright; tests are skipped, with the reason, where one of them is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    chromium = os.environ.get("KCL_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or not Path(chromium).exists():
        pytest.skip("no chromium: install Debian's package, or name one in KCL_CHROMIUM")
    quiet = ("background-networking", "component-update", "sync", "gpu", "quic")
    arguments = ["--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in quiet)]
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, headless=True, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Opens an address; afterwards, nothing may have been complained of, and no other machine asked."""
    visits: list[Visit] = []

    def visit(address: str, **looks: Any) -> Visit:
        visits.append(Visit(browser, address, **looks))
        return visits[-1]

    yield visit
    for visited in visits:
        assert visited.complaints == []
        own = ("file:", "blob:", "data:", "http://127.0.0.1:")
        assert [url for url in visited.requests if not url.startswith(own)] == []
        visited.context.close()
