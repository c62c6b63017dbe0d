"""
Sensors in a CSV file
=====================

A model learns one machine after another from CSV files, on the command line, and every lesson writes a new version of
it. Then it is asked about both machines, without being told which.
"""

import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from kcl.cli.commands import main as kcl_command

COLUMNS = ("temperature", "pressure", "vibration", "current", "flow")
MACHINES = {
    "pump": {
        "fine": (60, 3.0, 0.2, 5.0, 9.0),
        "leaking": (62, 1.8, 0.3, 5.2, 6.0),
        "worn": (75, 2.9, 0.9, 6.1, 8.5),
    },
    "press": {"fine": (40, 9.0, 0.5, 12.0, 1.0), "jammed": (48, 11.0, 0.6, 17.0, 0.2)},
}
SPREAD = (4.0, 0.4, 0.12, 0.6, 0.6)


def write(path: Path, states: dict[str, tuple[float, ...]], count: int, seed: int) -> Path:
    """A CSV file with so many rows of each state."""
    random = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([*COLUMNS, "state"])
        for state, means in states.items():
            for values in random.normal(means, SPREAD, (count, len(COLUMNS))).round(3):
                rows.writerow([*values.tolist(), state])
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


# %%
# Learning: `kcl update` makes the model, then teaches it the next machine. Each call is what you would type in a
# shell.

folder = Path(tempfile.mkdtemp())
model, options = str(folder / "model"), ["--label", "state"]
for seed, (machine, states) in enumerate(MACHINES.items()):
    data = write(folder / f"{machine}.csv", states, 150, seed)
    kcl_command(["update", "--model", model, "--data", str(data), "--task", machine, *options])

# %%
# Answers: no machine is named, so that every row is compared with all five states.

figure, axes = plt.subplots(figsize=(6, 3.5))
for machine, states in MACHINES.items():
    asked, out = write(folder / "new.csv", states, 40, 7), folder / "answers.csv"
    files = ["--input", str(asked), "--out", str(out)]
    kcl_command(["predict", "--model", model, *files, *options])
    rows, answers = read(asked), read(out)
    right = np.mean([answer["label"] == row["state"] for answer, row in zip(answers, rows, strict=True)])
    found = np.mean([answer["task"] == machine for answer in answers])
    print(f"{machine}: machine found {100 * found:.1f} %, state right {100 * right:.1f} %")
    for state in states:
        points = [row for row, answer in zip(rows, answers, strict=True) if answer["label"] == state]
        x, y = ([float(row[name]) for row in points] for name in ("temperature", "pressure"))
        axes.plot(x, y, "o", alpha=0.7, label=f"{machine}: {state}")
axes.set(xlabel="temperature", ylabel="pressure", title="states as predicted")
axes.legend(fontsize=8)
figure.tight_layout()
plt.show()
