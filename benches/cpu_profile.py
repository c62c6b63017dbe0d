"""Where the time of a step of KCL on a CPU goes: PyTorch's operations by the time they take themselves.

    PYTHONPATH=src python benches/cpu_profile.py [--threads N] [--steps N] [--compile] [--precision bf16]

The shape is Permuted MNIST's, the samples are random bytes (`kcl bench mnist`). The profiler itself adds a little.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch._inductor import config as inductor
from torch.profiler import ProfilerActivity, profile, record_function

from kcl.bench.step_time import WORKS, _task
from kcl.methods.recipes import METHODS
from kcl.ops import draw_philox
from kcl.ops.precision import PRECISIONS
from kcl.training.stack import RunStack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--compile", action="store_true", help="the step compiled, its fused operations by name")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="float32", help="with --compile")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    work = WORKS["mnist"]
    task = _task(work, options.steps)
    method = METHODS["kcl"](work.settings, work.ways)
    if options.compile:
        inductor.cpp.enable_kernel_profile = True
        [drawing] = draw_philox._on_cpu
        draw_philox._on_cpu = [replace(drawing, run=record_function("draw_philox")(drawing.run))]
        learner = RunStack([method], [work.backbone_of("kcl")], [0], "cpu", True, options.precision)
    else:
        learner = RunStack([method], [work.backbone_of("kcl")], [0], plain=True)
    learner.learn([task], lambda _: None)  # warms up
    with profile(activities=[ProfilerActivity.CPU]) as found:
        learner.learn([replace(task, index=1)], lambda _: None)
    operations = sorted(found.key_averages(), key=lambda own: -own.self_cpu_time_total)
    calls, total = (sum(getattr(own, name) for own in operations) for name in ("count", "self_cpu_time_total"))
    print(f"{total / options.steps / 1e3:.2f} ms in {calls / options.steps:.0f} operations a step")
    for own in operations[:15]:
        taken, name = own.self_cpu_time_total / options.steps / 1e3, own.key[:100]
        print(f"{taken:6.2f} ms  {own.count / options.steps:4.0f} ×  {name}")


if __name__ == "__main__":
    main()
