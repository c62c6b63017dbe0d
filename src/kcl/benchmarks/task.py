"""A task: rows of a stored array for training and testing, and how a stored row becomes a network input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from kcl.core.shapes import Float, Int, Shaped
from kcl.errors import KclError

RATE_OF_LENGTHS = 1 / 3
"""How fast the logarithm of a sample's length counts beyond `View.reach`."""


@dataclass(frozen=True)
class Examples:
    """Some rows of a stored array, which tasks and runs share without copying."""

    inputs: Shaped[Tensor, "rows ..."]
    rows: Int[Tensor, " n"]
    labels: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device, stored: Tensor) -> Examples:
        """The same rows on a device that already holds the array, as `stored`."""
        return Examples(stored, self.rows.to(device), self.labels.to(device))


@dataclass(frozen=True)
class View:
    """How a stored row becomes a network input: pixels moved, then scaled.

    `pixel_map[j]` is the stored pixel shown at position j, −1 for black: a permutation, or a rotation with
    nearest-neighbour sampling. Stored bytes are divided by 255; then mean and standard deviation per channel, where
    given, are subtracted and divided out. Beyond `limit` values grow with their logarithm only, so that samples in
    other units than those the scale was measured on neither vanish nor explode.
    """

    pixel_map: Int[Tensor, " p"] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    limit: float | None = None
    reach: float | None = None

    def move(self, stored: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "n ..."]:
        """Move the pixels, in the stored data type."""
        if self.pixel_map is None:
            return stored
        moved = stored.flatten(1)[:, self.pixel_map.clamp_min(0)]
        return (moved * (self.pixel_map >= 0)).view(stored.shape)

    def scale(self, moved: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
        """To numbers of order one."""
        x = moved.float() / 255.0 if moved.dtype == torch.uint8 else moved.float()
        if self.mean is not None and self.std is not None:
            x = (x - _channels(self.mean, x.ndim, x.device, x.dtype)) / _channels(self.std, x.ndim, x.device, x.dtype)
        if self.limit is not None:
            x = _eased(x, x.abs(), self.limit)
        if self.reach is not None:
            x = _eased(x, torch.linalg.vector_norm(x, dim=1, keepdim=True), self.reach, RATE_OF_LENGTHS)
        return x

    def to(self, device: torch.device) -> View:
        return self if self.pixel_map is None else replace(self, pixel_map=self.pixel_map.to(device))

    def __call__(self, stored: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
        return self.scale(self.move(stored))


def _eased(
    x: Float[Tensor, "n ..."], sizes: Float[Tensor, "n ..."], limit: float, rate: float = 1.0
) -> Float[Tensor, "n ..."]:
    """x with sizes that grow with their logarithm only beyond a limit."""
    beyond = (sizes / limit).clamp_min(1.0)
    return x / beyond * (1.0 + rate * beyond.log())


@cache
def _channels(values: tuple[float, ...], dimensions: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """One value per channel, built once: a CUDA graph cannot contain a copy from the host."""
    return torch.tensor(values, device=device, dtype=dtype).view(1, -1, *[1] * (dimensions - 2))


@dataclass(frozen=True)
class Task:
    """One task of a stream. Labels are 0 … ways − 1; `classes[label]` is the class's position in `class_labels`."""

    index: int
    train: Examples
    test: Examples
    classes: tuple[int, ...]
    view: View = View()

    @property
    def ways(self) -> int:
        return len(self.classes)

    @property
    def parts(self) -> tuple[Task, ...]:
        """The tasks of the stream that this one consists of: itself, unless several were joined (`joint_task`)."""
        return (self,)

    def to(self, device: torch.device, stored: Tensor) -> Task:
        """The same task for training on a device that already holds the array, as `stored`."""
        return replace(self, train=self.train.to(device, stored), view=self.view.to(device))

    def moved(self, positions: Int[Tensor, " n"]) -> Shaped[Tensor, "n ..."]:
        """Some training samples with their pixels moved, in the stored data type."""
        return self.view.move(self.train.inputs[self.train.rows[positions]])

    def check(self) -> None:
        """Refuse a task that cannot be learned."""
        if self.ways < 2:
            raise KclError(f"task {self.index} has {self.ways} class; a task needs at least two to tell apart")
        if len(self.train) == 0:
            raise KclError(f"task {self.index} has no training samples")
        for name, examples in (("training", self.train), ("test", self.test)):
            if len(examples) and not 0 <= int(examples.labels.min()) <= int(examples.labels.max()) < self.ways:
                raise KclError(f"task {self.index}: {name} labels must lie in 0 … {self.ways - 1}")


class Stream(ABC):
    """A stream: tasks in order, each built on request. The stream's seed fixes everything random in them."""

    task_count: int
    input_shape: tuple[int, ...]
    class_labels: tuple[int, ...]
    """The label of every class of the stream; `Task.classes` are positions in it."""
    recipe: str | None = None
    """The benchmark whose published settings apply to the stream, if any."""

    @abstractmethod
    def task(self, index: int) -> Task: ...

    def __len__(self) -> int:
        return self.task_count

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.task_count:
            raise IndexError(f"task {index} of {self.task_count}")
        return self.task(index)

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(self.task_count))
