"""Features ψ of a trained VRF: frequencies from its posterior, for a streaming head on the same frozen inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kcl.core.randomness import numpy_generator
from kcl.errors import KclError
from kcl.functional.kernels import reparameterised
from kcl.models.continual_model import ContinualModel


@torch.no_grad()
def posterior_frequencies(
    model: ContinualModel, bases: int = 1024, task: str | None = None, seed: int = 0
) -> npt.NDArray[np.float64]:
    """Draws of ω ~ q(ω | C_t) from a trained model, (bases, d): for `features="vrf"`, and inputs from `kernel_inputs`.

    Parameters
    ----------
    model : ContinualModel
        A model trained with `kernel="vrf"`.
    bases : int
        The number of draws.
    task : str, optional
        The task whose posterior they come from; by default they are shared out among all tasks.
    seed : int
        Fixes the draws.
    """
    answerer = model.answerer
    name = model._known(task)
    names = list(model.tasks) if name is None else [name]
    if bases < len(names):
        raise KclError(f"{bases} frequencies cannot be shared out among {len(names)} tasks: draw more")
    parts = []
    for place, name in enumerate(names):
        lesson = model.tasks[name].lesson
        features = answerer.plain_features(answerer.as_seen(lesson)["inputs"])
        posterior = answerer.method.posterior(answerer.model, features)
        if posterior is None:
            raise KclError(f"kernel {model.settings.kernel!r} has no posterior over frequencies: train kernel='vrf'")
        count = bases // len(names) + (place < bases % len(names))
        noise = numpy_generator(seed, "posterior frequencies", lesson).standard_normal((count, len(posterior.mean)))
        parts.append(reparameterised(posterior, torch.from_numpy(noise).to(posterior.mean.device)).double().cpu())
    return torch.cat(parts).numpy()


def kernel_inputs(model: ContinualModel, inputs: Any) -> npt.NDArray[np.float32]:
    """What a trained model's kernel sees of n inputs, (n, d): scaled, passed through its backbone, and normalised."""
    return model.answerer.plain_features(model._prepare(inputs)).cpu().numpy()
