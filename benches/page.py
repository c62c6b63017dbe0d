"""How long the page takes to be written and to be ready in chromium, for many runs.

The runs are real ones, repeated under other seeds and settings: a matter of size, and no result.
python benches/page.py [RUNS] (needs Playwright and chromium)
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from kcl.core.results import read
from kcl.report.page import write_page

ROOT = Path(__file__).parents[1]
TIMES = 5


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    real = read(ROOT / "results" / "mnist-streams" / "results.jsonl")
    runs = [
        real[k % len(real)] | {"seed": k % 5, "settings": real[0]["settings"] | {"lr": 0.001 * (1 + k // 5)}}
        for k in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        begun = time.perf_counter()
        write_page(runs, path, f"{count} runs")
        seconds, size = time.perf_counter() - begun, path.stat().st_size / 1e6
        print(f"{count} runs of 20 tasks: written in {seconds:.2f} s, {size:.2f} MB")
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            times = []
            for _ in range(TIMES):
                page = browser.new_context().new_page()
                begun = time.perf_counter()
                page.goto(path.as_uri())
                page.wait_for_selector("html[data-ready]")
                times.append(time.perf_counter() - begun)
            browser.close()
        print(f"ready in chromium after {statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})")


if __name__ == "__main__":
    main()
