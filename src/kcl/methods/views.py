"""Samples shown in more than one way: turned by quarter turns with labels of their own, and mirrored.

Rotation labels (Lee, Hwang and Shin, "Self-supervised label augmentation via input transformations", 2020): every image
is shown in its four rotations and a class becomes four, (class, rotation) pairs, pair = 4 · class + rotation. At test
the four turned copies of a query vote, each with the scores of its own rotation. Only what is computed grows: images
are stored once, as they are.

A method knows nothing of this: `Method.observe`, `prepare` and `answer` show it batch, coreset and queries as copies,
one block of samples for each view, rotations within mirror images. Where the settings ask for nothing, nothing is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kcl.core.settings import Settings
from kcl.core.shapes import Float, Int
from kcl.errors import KclError
from kcl.functional.noise import Noise

if TYPE_CHECKING:
    from kcl.methods.method import Memory, Recalled

ROTATIONS = 4
REACH = 1 / 8
"""Of an image's side, by which `augmentation=flip-shift` moves it at most."""


def rotations(settings: Settings) -> int:
    """In how many rotations a sample is shown; as many labels stand for one class."""
    return ROTATIONS if settings.rotation_labels else 1


def mirrors(settings: Settings) -> int:
    """In how many mirror images a sample is shown at test."""
    return 2 if settings.test_views == "flip" else 1


def copies_at_test(settings: Settings) -> int:
    """How often the network sees a query."""
    return rotations(settings) * mirrors(settings)


def asked(settings: Settings) -> str:
    """The settings that show samples in more than one way, named; empty where none does."""
    given = {
        "rotation_labels": settings.rotation_labels,
        "test_views": settings.test_views != "plain",
        "augmentation": settings.augmentation != "none",
    }
    return ", ".join(name for name, on in given.items() if on)


def check_images(input_shape: Sequence[int], settings: Settings) -> None:
    """Refuse views of what cannot be turned or mirrored."""
    if asked(settings) and len(input_shape) != 3:
        raise KclError(f"{asked(settings)}: for images, (channels, height, width), not shape {tuple(input_shape)}")
    if settings.rotation_labels and input_shape[1] != input_shape[2]:
        raise KclError(f"rotation_labels needs square images, not {input_shape[1]} × {input_shape[2]} pixels")


def pairs(classes: Int[Tensor, " w"], count: int) -> Int[Tensor, " v"]:
    """The labels that stand for some classes: of each class all of its rotations."""
    if count == 1:
        return classes
    return (classes[:, None] * count + torch.arange(count, device=classes.device)).flatten()


def copies(x: Float[Tensor, "n c h w"], turns: int, mirrored: int = 1) -> Float[Tensor, "v c h w"]:
    """Every image in its rotations, then all of that for its mirror image."""
    if turns == mirrored == 1:
        return x
    images = [x, x.flip(-1)][:mirrored]
    return torch.cat([torch.rot90(image, turn, (-2, -1)) for image in images for turn in range(turns)])


def turned_labels(labels: Int[Tensor, " n"], turns: int) -> Int[Tensor, " v"]:
    """The labels of `copies`."""
    return labels if turns == 1 else torch.cat([labels * turns + turn for turn in range(turns)])


def turned_targets(targets: Tensor, turns: int, mirrored: int = 1) -> Tensor:
    """One-hot targets (m × w) of `copies`: (m · copies) × (w · turns)."""
    if turns > 1:
        nothing = torch.zeros_like(targets)
        targets = torch.cat(
            [
                torch.stack([targets if own == turn else nothing for own in range(turns)], dim=-1).flatten(1)
                for turn in range(turns)
            ]
        )
    return targets if mirrored == 1 else torch.cat([targets] * mirrored)


def shown_memory(memory: Memory, turns: int, mirrored: int = 1) -> Memory:
    """What is kept of a task, its samples as copies and its classes as pairs.

    As many copies of the coreset add as many squared errors to the ridge regression; mirror images, of which training
    knew nothing, get a λ as many times as large, so that the balance it was learned for stays: a network that does not
    tell an image from its mirror image answers as if there were no mirror images.
    """
    if turns == mirrored == 1:
        return memory
    shown = dict(memory)
    if "inputs" in memory:
        shown["inputs"] = copies(memory["inputs"], turns, mirrored)
    for name in ("targets", "correction"):
        if name in memory:
            shown[name] = turned_targets(memory[name], turns, mirrored)
    if "classes" in memory:
        shown["classes"] = pairs(memory["classes"], turns)
    if "slices" in memory:
        shown["slices"] = memory["slices"].repeat_interleave(turns, dim=-1)
    if "strength" in memory:
        shown["strength"] = memory["strength"] * mirrored
    return shown


def shown_recalled(recalled: Recalled, turns: int) -> Recalled:
    """What a step recalls, as copies."""
    if turns == 1:
        return recalled
    return recalled._replace(
        inputs=copies(recalled.inputs, turns),
        classes=turned_labels(recalled.classes, turns),
        allowed=recalled.allowed.repeat_interleave(turns, dim=-1).repeat(turns, 1),
        weights=recalled.weights.repeat(turns),
    )


def varied(x: Float[Tensor, "n c h w"], augmentation: str, noise: Noise) -> Float[Tensor, "n c h w"]:
    """Each image as the setting of this name varies it while training."""
    if augmentation == "none":
        return x
    mirrored = mirrored_by_chance(x, noise)
    return mirrored if augmentation == "flip" else moved_by_chance(mirrored, noise)


def mirrored_by_chance(x: Float[Tensor, "n c h w"], noise: Noise) -> Float[Tensor, "n c h w"]:
    """Each image, or its mirror image."""
    heads = noise.uniform(len(x)) < 0.5
    return torch.where(heads[:, None, None, None], x.flip(-1), x)


def moved_by_chance(x: Float[Tensor, "n c h w"], noise: Noise) -> Float[Tensor, "n c h w"]:
    """Each image moved by whole pixels, up to `REACH` of its side each way and along; what comes in is its edge."""
    drawn = noise.uniform(2, len(x))
    for axis, own in ((-2, drawn[0]), (-1, drawn[1])):
        side = x.shape[axis]
        reach = max(1, int(side * REACH))
        move = (own * (2 * reach + 1)).floor().clamp_max(2 * reach).long() - reach
        places = (torch.arange(side, device=x.device) + move[:, None]).clamp(0, side - 1)
        shape = (-1, 1, side, 1) if axis == -2 else (-1, 1, 1, side)
        x = x.gather(axis, places.view(shape).expand_as(x))
    return x


def vote(scores: Float[Tensor, "v k"], turns: int, mirrored: int) -> Float[Tensor, "n w"]:
    """Scores of the classes from scores of the pairs for the `copies` of queries: of each copy those of its own
    rotation, their mean over copies.

    A softmax over the mean is the geometric mean of the copies' own probabilities; normalising each copy first (log-
    softmax) would add the same number to all classes and change nothing.
    """
    if turns == mirrored == 1:
        return scores
    by_copy = scores.unflatten(0, (mirrored, turns, -1)).unflatten(-1, (-1, turns))
    return by_copy.diagonal(dim1=1, dim2=-1).mean((0, -1))


def mean_over_copies(values: Float[Tensor, " v"], count: int) -> Float[Tensor, " n"]:
    return values if count == 1 else values.unflatten(0, (count, -1)).mean(0)
