"""The result line of a finished run."""

from __future__ import annotations

import platform

import numpy as np
import torch

import kcl
from kcl.core import results
from kcl.core.devices import device_name
from kcl.experiments.experiment import Experiment
from kcl.experiments.run_spec import RunSpec
from kcl.ops.precision import used
from kcl.training.stream_run import Outcome


def store_result(experiment: Experiment, spec: RunSpec, outcome: Outcome, trainings: int, shared_by: int) -> None:
    """Store a run's result and report divergence. `trainings`: how many were trained together; `shared_by`: the number
    of runs that share the training of this one.
    """
    compute, matrix = experiment.plan.compute, outcome.matrix
    experiment.store.add(
        {
            "format": results.FORMAT,
            **spec.fields(),
            "kernel": spec.kernel,
            "versions": {
                "kcl": kcl.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "device": device_name(compute.torch_device),
            "threads": torch.get_num_threads(),
            "seconds": round(outcome.seconds, 3),
            "learning_seconds": [round(seconds, 3) for seconds in outcome.learning_seconds],
            "runs_at_once": trainings,
            "training_shared_by": shared_by,
            "precision": used(compute.precision, compute.torch_device, compute.compiled),
            "accuracy_matrix": matrix.to_lists(),
            "initial_accuracy": outcome.initial_accuracy,
            **matrix.summary(outcome.initial_accuracy),
            "diverged": outcome.diverged,
            "memory": outcome.memory,
            "resumed": outcome.resumed,
            "fingerprint": outcome.fingerprint,
            "command": experiment.command,
            **experiment.notes,
        }
    )
    if outcome.diverged:
        finite = np.isfinite(np.diagonal(matrix.values))
        task = int(finite.argmin()) + 1  # runs trained beside it may have continued to the end
        label = experiment.plan.label(spec)
        experiment.say(f"{label}: diverged in task {task}: the loss is not finite; try a lower lr")
