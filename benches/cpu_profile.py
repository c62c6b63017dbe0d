"""Where the time of a step of KCL on a CPU goes: PyTorch's operations by the time they take themselves.

    PYTHONPATH=src python benches/cpu_profile.py [--threads N] [--steps N]

The shape is Permuted MNIST's, the samples are random bytes (`kcl bench mnist`). The profiler itself adds a little.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from kcl.bench import WORKS, _task
from kcl.methods.recipes import METHODS
from kcl.training.run import Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    work = WORKS["mnist"]
    task = _task(work, options.steps)
    run = Run(METHODS["kcl"](work.settings, work.ways), work.backbone, 0, "cpu")
    run.learn(task)  # warms up
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run.learn(replace(task, index=1))
    operations = sorted(found.key_averages(), key=lambda own: -own.self_cpu_time_total)
    calls, total = (sum(getattr(own, name) for own in operations) for name in ("count", "self_cpu_time_total"))
    print(f"{total / options.steps / 1e3:.2f} ms in {calls / options.steps:.0f} operations a step")
    for own in operations[:15]:
        print(f"{own.self_cpu_time_total / options.steps / 1e3:6.2f} ms  {own.count / options.steps:4.0f} ×  {own.key}")


if __name__ == "__main__":
    main()
