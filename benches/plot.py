"""Two plots of what the engine costs: time per step against the number of runs, and time per task along a stream.

    PYTHONPATH=src python benches/plot.py benches/results/h200-mnist.json results/mnist-streams/results.jsonl OUT

writes OUT.png.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from kcl.core.results import read
from kcl.report.figures import save


def main() -> None:
    bench, results, out = sys.argv[1:]
    rows = json.loads(Path(bench).read_text(encoding="utf-8"))["rows"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    styles = {"kcl": ("#D55E00", "s"), "kcl, compiled": ("#0072B2", "o"), "bare SGD step": ("#009E73", "^")}
    for engine, (colour, marker) in styles.items():
        points = [(row["runs"], row["ms_per_step"]) for row in rows if row["engine"] == engine]
        left.plot(*zip(*points, strict=True), color=colour, marker=marker, label=engine)
        if engine == "kcl, compiled":
            runs = [count for count, _ in points]
            left.plot(
                runs, [points[0][1] * count for count in runs], color="grey", ls=":", label="in proportion to the runs"
            )
    left.set(
        xlabel="runs trained together", ylabel="ms per step", xscale="log", yscale="log", title="Permuted MNIST shape"
    )
    left.set_xticks([1, 5, 20], ["1", "5", "20"])
    left.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    left.minorticks_off()
    left.legend(fontsize=8)
    for benchmark, colour in (("permuted-mnist", "#0072B2"), ("rotated-mnist", "#D55E00")):
        record = next(record for record in read(results) if record["benchmark"] == benchmark)
        seconds = record["learning_seconds"]
        right.plot(range(1, len(seconds)), seconds[1:], marker=".", color=colour, label=f"{benchmark}, 5 runs")
    right.set(xlabel="task (the first, which compiles, left out)", ylabel="seconds to learn it", title="Along a stream")
    right.set_ylim(0, 4)
    right.set_xticks(range(1, 20, 3))
    right.legend(fontsize=8)
    save(figure, out, ("png",))


if __name__ == "__main__":
    main()
