"""Several views of each sample: rotated copies with their own labels, mirror images, and random augmentation.

Rotation labels (Lee, Hwang and Shin, "Self-supervised label augmentation via input transformations", 2020): every image
is shown in four rotations, and every class becomes four (class, rotation) pairs, pair = 4 · class + rotation. At test
time the four rotated copies of a query vote, each with the scores of its own rotation. Only the computation grows:
images are stored once.

Methods need not know about views: `Method.observe`, `show` and `answer` pass them batch, coreset and queries as copies,
one block of samples per view, with rotations inside mirror images. Without these settings, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kcl.core.settings import Settings
from kcl.core.shapes import Float, Int
from kcl.errors import KclError
from kcl.functional.noise import Noise

if TYPE_CHECKING:
    from kcl.methods.method import Batch, Memory

ROTATIONS = 4
REACH = 1 / 8
"""The largest shift by `augmentation=flip-shift`, as a fraction of an image's side."""


def rotations(settings: Settings) -> int:
    """Number of rotations of each sample, and of labels per class."""
    return ROTATIONS if settings.rotation_labels else 1


def mirrors(settings: Settings) -> int:
    """Number of mirror images of each sample at test time, the original included."""
    return 2 if settings.test_views == "flip" else 1


def copies_at_test(settings: Settings) -> int:
    """Number of copies of each query that the network sees."""
    return rotations(settings) * mirrors(settings)


def asked(settings: Settings) -> str:
    """The names of the active settings that change how samples are shown; empty if there are none."""
    active = {
        "rotation_labels": settings.rotation_labels,
        "test_views": settings.test_views != "plain",
        "augmentation": settings.augmentation != "none",
    }
    return ", ".join(name for name, on in active.items() if on)


def check_images(input_shape: Sequence[int], settings: Settings) -> None:
    """Raise if the settings need views of inputs that cannot be rotated or mirrored."""
    if asked(settings) and len(input_shape) != 3:
        raise KclError(
            f"{asked(settings)}: only for images (channels, height, width), not inputs of shape {tuple(input_shape)}"
        )
    if settings.rotation_labels and input_shape[1] != input_shape[2]:
        raise KclError(f"rotation_labels needs square images, not {input_shape[1]} × {input_shape[2]} pixels")


def pairs(classes: Int[Tensor, " w"], count: int) -> Int[Tensor, " v"]:
    """The labels of classes in all their rotations."""
    return (classes[:, None] * count + torch.arange(count, device=classes.device)).flatten()


def copies(x: Float[Tensor, "n c h w"], turns: int, mirrored: int = 1) -> Float[Tensor, "v c h w"]:
    """Every image in all rotations, followed by the same for its mirror image."""
    if turns == mirrored == 1:
        return x
    images = [x, x.flip(-1)][:mirrored]
    return torch.cat([torch.rot90(image, turn, (-2, -1)) for image in images for turn in range(turns)])


def turned_labels(labels: Int[Tensor, " n"], turns: int) -> Int[Tensor, " v"]:
    """The labels of `copies`."""
    return torch.cat([labels * turns + turn for turn in range(turns)])


def turned_targets(targets: Tensor, turns: int, mirrored: int = 1) -> Tensor:
    """One-hot targets (m × w) of `copies`: (m · copies) × (w · turns)."""
    zeros = torch.zeros_like(targets)
    by_turn = [
        torch.stack([targets if column == turn else zeros for column in range(turns)], dim=-1).flatten(1)
        for turn in range(turns)
    ]
    return torch.cat(by_turn * mirrored)


def shown_memory(memory: Memory, turns: int, mirrored: int = 1) -> Memory:
    """A task's memory with its samples as copies and its classes as pairs.

    Every copy of the coreset adds its squared errors to the ridge regression. λ was trained without mirror images, so
    it is multiplied by their number to keep the balance: a network that does not distinguish an image from its mirror
    image then predicts as without mirror images.
    """
    shown: dict[str, Callable[[Tensor], Tensor]] = {
        "inputs": lambda inputs: copies(inputs, turns, mirrored),
        "targets": lambda targets: turned_targets(targets, turns, mirrored),
        "matched": lambda matched: matched.transpose(0, 1).flatten(0, 1).flatten(1).repeat(mirrored, 1),
        "correction": lambda correction: turned_targets(correction, turns, mirrored),
        "classes": lambda classes: pairs(classes, turns),
        "labels": lambda labels: turned_labels(labels, turns).repeat(mirrored),
        "slices": lambda slices: slices.repeat_interleave(turns, dim=-1),
        "strength": lambda strength: strength * mirrored,
    }
    return {name: shown[name](tensor) if name in shown else tensor for name, tensor in memory.items()}


def shown_in_training(memory: Memory, batch: Batch, settings: Settings, noise: Noise) -> tuple[Memory, Batch]:
    """Memory and batch with random augmentation, as copies."""
    turns, augmentation, replayed = rotations(settings), settings.augmentation, batch.replayed
    inputs = copies(varied(batch.inputs, augmentation, noise), turns)
    if "inputs" in memory:
        memory = memory | {"inputs": varied(memory["inputs"], augmentation, noise)}
    if replayed is not None:
        replayed = replayed._replace(
            inputs=copies(varied(replayed.inputs, augmentation, noise), turns),
            classes=turned_labels(replayed.classes, turns),
            allowed=replayed.allowed.repeat_interleave(turns, dim=-1).repeat(turns, 1),
            weights=replayed.weights.repeat(turns),
            beside=shown_beside(replayed.beside, turns),
        )
    labels = turned_labels(batch.labels, turns)
    return shown_memory(memory, turns), batch._replace(inputs=inputs, labels=labels, replayed=replayed)


def shown_beside(beside: Memory, turns: int) -> Memory:
    """What is replayed with samples, for their copies."""
    shown: dict[str, Callable[[Tensor], Tensor]] = {
        "seen": lambda seen: seen.repeat_interleave(turns, dim=-1),
        "logits": lambda logits: logits.unflatten(1, (turns, -1)).transpose(0, 1).flatten(0, 1),
        "stored": lambda stored: stored.repeat(turns),
    }
    return {name: shown[name](tensor) for name, tensor in beside.items()}


def varied(x: Float[Tensor, "n c h w"], augmentation: str, noise: Noise) -> Float[Tensor, "n c h w"]:
    """Images with random augmentation, as in training."""
    if augmentation == "none":
        return x
    mirrored = mirrored_by_chance(x, noise)
    return mirrored if augmentation == "flip" else moved_by_chance(mirrored, noise)


def mirrored_by_chance(x: Float[Tensor, "n c h w"], noise: Noise) -> Float[Tensor, "n c h w"]:
    """Each image or its mirror image, at random."""
    heads = noise.uniform(len(x)) < 0.5
    return torch.where(heads[:, None, None, None], x.flip(-1), x)


def moved_by_chance(x: Float[Tensor, "n c h w"], noise: Noise) -> Float[Tensor, "n c h w"]:
    """Each image shifted by whole pixels, up to `REACH` of its side in each direction; edge pixels are repeated."""
    uniform = noise.uniform(2, len(x))
    for axis, drawn in ((-2, uniform[0]), (-1, uniform[1])):
        side = x.shape[axis]
        reach = max(1, int(side * REACH))
        shift = (drawn * (2 * reach + 1)).floor().clamp_max(2 * reach).long() - reach
        sources = (torch.arange(side, device=x.device) + shift[:, None]).clamp(0, side - 1)
        shape = (-1, 1, side, 1) if axis == -2 else (-1, 1, 1, side)
        x = x.gather(axis, sources.view(shape).expand_as(x))
    return x


def vote(scores: Float[Tensor, "v k"], turns: int, mirrored: int) -> Float[Tensor, "n w"]:
    """Scores of classes from the scores of pairs for `copies` of queries: the mean over copies of the scores of each
    copy's own rotation.

    A softmax of this mean is the geometric mean of the copies' probabilities. Normalising each copy first (log-softmax)
    would add the same number to all classes and change nothing.
    """
    if turns == mirrored == 1:
        return scores
    by_copy = scores.unflatten(0, (mirrored, turns, -1)).unflatten(-1, (-1, turns))
    return by_copy.diagonal(dim1=1, dim2=-1).mean((0, -1))


def mean_over_copies(values: Float[Tensor, " v"], count: int) -> Float[Tensor, " n"]:
    return values if count == 1 else values.unflatten(0, (count, -1)).mean(0)
