"""A CSV of sensor features from the command line: a model is taught one machine after another, version by version.

Run it: python examples/sensors.py
"""

import csv
import tempfile
from pathlib import Path

import numpy as np

from kcl.cli.commands import main as kcl_command

COLUMNS = ("temperature", "pressure", "vibration", "current", "flow")
MACHINES = {
    "pump": {"fine": (60, 3.0, 0.2, 5.0, 9.0), "leaking": (62, 1.8, 0.3, 5.2, 6.0), "worn": (75, 2.9, 0.9, 6.1, 8.5)},
    "press": {"fine": (40, 9.0, 0.5, 12.0, 1.0), "jammed": (48, 11.0, 0.6, 17.0, 0.2)},
}
SPREAD = (2.0, 0.2, 0.06, 0.3, 0.3)


def write(path: Path, states: dict[str, tuple[float, ...]], count: int, seed: int) -> Path:
    random = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([*COLUMNS, "state"])
        for state, means in states.items():
            rows.writerows([*np.round(random.normal(means, SPREAD), 3).tolist(), state] for _ in range(count))
    return path


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, options = str(folder / "model"), ["--label", "state"]
        for seed, (machine, states) in enumerate(MACHINES.items()):
            data = write(folder / f"{machine}.csv", states, 150, seed)
            kcl_command(["update", "--model", model, "--data", str(data), "--task", machine, *options])
        kcl_command(["inspect", model])

        for machine, states in MACHINES.items():
            asked = write(folder / "new.csv", states, 40, 7)
            out = folder / "answers.csv"
            kcl_command(["predict", "--model", model, "--input", str(asked), "--out", str(out), *options])
            with out.open(encoding="utf-8") as file:
                answers = list(csv.DictReader(file))
            wanted = np.repeat(list(states), 40)
            right = np.mean([answer["label"] == state for answer, state in zip(answers, wanted, strict=True)])
            found = np.mean([answer["task"] == machine for answer in answers])
            print(f"{machine}, machine not named: machine found {100 * found:.1f} %, state right {100 * right:.1f} %")


if __name__ == "__main__":
    main()
