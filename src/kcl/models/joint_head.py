"""One classifier over the classes of all tasks, for a network that learns: kernel ridge regression on the union of all
coresets, at the present weights. Nothing but the coresets is kept, and nothing goes stale.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kcl.core.randomness import numpy_generator
from kcl.methods.feature_maps import median_distance
from kcl.models.all_classes import ClassAnswers
from kcl.models.features import Features
from kcl.models.inference import Answerer
from kcl.models.lessons import LearnedTask
from kcl.models.streaming_ridge import StreamingRidge

FEATURES, BASES = "relu", 2048


@torch.no_grad()
def joint_head(answerer: Answerer, tasks: Mapping[str, LearnedTask]) -> ClassAnswers:
    """The classifier, with every class weighing the same. λ is chosen by the evidence of the coresets."""
    coresets = {name: answerer.coreset(task.lesson) for name, task in tasks.items()}
    inputs = torch.cat([x for x, _ in coresets.values()])
    seed = answerer.stack.seeds[answerer.run]
    width = median_distance(inputs, numpy_generator(seed, "kernel width"))
    features = Features.make(FEATURES, inputs.shape[1], BASES, width, seed=seed).to(inputs.device)
    ridge = StreamingRidge(features, keep="class", balanced=True)
    for name, (x, labels) in coresets.items():
        ridge.learn(name, features(x), labels, len(tasks[name].labels))
    return ClassAnswers(ridge, tasks)
