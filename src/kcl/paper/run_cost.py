"""What a cell's runs cost: images that pass the backbone, bytes that are kept, seconds where they were measured."""

from __future__ import annotations

from typing import Any, NamedTuple

from kcl.methods.views import copies_at_test
from kcl.paper.cell import Cell
from kcl.paper.item import Found
from kcl.paper.paper_tables import MISSING
from kcl.paper.stream_sizes import compute

HEADER = ("bytes kept", "average", "images a sample", "images a query", "seconds a run")
NOTE = (
    "Bytes kept: samples and whatever else a method keeps of its tasks; average: the averaged weights, which are kept "
    "beside the network. Images a sample: how many images pass the backbone while training for each training sample "
    "of the stream, counted exactly, on any machine the same: a batch and the coreset or what is recalled beside it, "
    "in all rotations, in every update. Images a query: in how many views a query is shown. Seconds a run: of training "
    "on one GPU, the share of one among the runs trained together, with whatever else was run on it at the time; “cpu” "
    "where it was one core instead."
)


class Cost(NamedTuple):
    """Of one run."""

    images_per_sample: float
    images_per_query: int
    kept: int | None
    """Bytes; None, like what follows, where no run is finished."""
    average: int | None
    seconds: float | None
    device: str | None

    def shown(self) -> tuple[str, ...]:
        """Under `HEADER`."""
        measured = MISSING if self.seconds is None else f"{self.seconds:.{0 if self.seconds >= 10 else 1}f}"
        return (
            MISSING if self.kept is None else f"{self.kept:,}",
            f"{self.average:,}" if self.average else MISSING,
            f"{self.images_per_sample:.2f}",
            str(self.images_per_query),
            measured + (" (cpu)" if self.device == "cpu" else ""),
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "bytes kept": self.kept,
            "bytes of the average": self.average,
            "images a sample": self.images_per_sample,
            "images a query": self.images_per_query,
            "seconds a run": self.seconds,
            "device": self.device,
        }


def cost_of(cell: Cell, found: Found) -> Cost | None:
    """None where the scale has no runs for the cell."""
    specs, runs = found.scale.specs(cell, found.seeds[:1]), found.runs(cell)
    if not specs:
        return None
    counted = compute(specs[0]).images_per_sample, copies_at_test(specs[0].settings)
    if not runs:
        return Cost(*counted, None, None, None, None)
    shares = [sum(run["learning_seconds"]) / run.get("runs_at_once", 1) for run in runs]
    memory = runs[0]["memory"]
    seconds = sum(shares) / len(shares)
    return Cost(*counted, memory["bytes"], memory.get("average_bytes", 0), seconds, runs[0].get("device"))
