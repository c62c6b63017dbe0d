"""Training samples held out for choosing settings. They replace the test data, of which nothing is left."""

from __future__ import annotations

from dataclasses import replace

import torch

from kcl.core.randomness import numpy_generator
from kcl.data.dataset import Dataset
from kcl.errors import KclError

SEED = 0
"""The same samples are held out for every run's seed, so that all runs are compared on the same ones."""


def hold_out(dataset: Dataset, share: float) -> Dataset:
    """The dataset with `share` of every class's training samples as its test data and the rest as its training data.

    Held out of the dataset, not of a task: where tasks transform the same samples, no task trains on them.
    """
    if not 0.0 < share < 1.0:
        raise KclError(f"the share of training samples held out must lie between 0 and 1, not {share:g}")
    held = torch.zeros(len(dataset.train_labels), dtype=torch.bool)
    for label, name in enumerate(dataset.class_names):
        rows = (dataset.train_labels == label).nonzero().flatten()
        count = round(share * len(rows))
        if not 0 < count < len(rows):
            raise KclError(
                f"{share:g} of the {len(rows)} training samples of class {name!r} are {count}: "
                "hold out a share that leaves some on both sides"
            )
        chosen = numpy_generator(SEED, "held out", label).choice(len(rows), count, replace=False)
        held[rows[torch.from_numpy(chosen)]] = True
    return replace(
        dataset,
        train_inputs=dataset.train_inputs[~held],
        train_labels=dataset.train_labels[~held],
        test_inputs=dataset.train_inputs[held],
        test_labels=dataset.train_labels[held],
    )
