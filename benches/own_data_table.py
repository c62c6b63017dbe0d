"""The tables of `own_data.py`, from its lines.

A comparison of two models is made on the streams that both learned. In the scenario `task` everybody but kcl was tried
in two variants, one model per task and one for all; the one with the higher mean over streams stands for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from own_data_models import MODELS
from own_data_streams import SCENARIOS, STREAMS

KEY = ("stream", "scenario", "model", "variant", "seed")
KCL = [name for name, model in MODELS.items() if model.role == "kcl"]
PEERS = [name for name, model in MODELS.items() if model.role == "peer"]
REFITTED = [name for name, model in MODELS.items() if model.role == "refit"]
LEVEL = 0.05
"""Percent within which two means over seeds are level."""
TITLES = {
    "domain": "Nobody names a task (`domain`)",
    "task": "Tasks are named (`task`)",
    "class": "Tasks are named to learn only (`class`)",
}

Row = dict[str, Any]
Means = dict[tuple[str, str], float]
"""Mean accuracy over seeds by stream and scenario."""


class Outcome:
    """Every model's mean accuracies, in the variant that stands for it."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self.seeds = rows, 1 + max(row["seed"] for row in rows)
        self.chosen = {(name, scenario): self._choose(name, scenario) for name in MODELS for scenario in SCENARIOS}
        self.means: dict[str, Means] = {name: {} for name in MODELS}
        for (name, scenario), variant in self.chosen.items():
            self.means[name] |= self._means(name, scenario, variant)

    def _choose(self, model: str, scenario: str) -> str:
        """The variant with the higher mean over the streams of a scenario."""
        variants = {row["variant"] for row in self.rows if (row["model"], row["scenario"]) == (model, scenario)}
        return max(sorted(variants), key=lambda name: mean(self._means(model, scenario, name).values()), default="")

    def _means(self, model: str, scenario: str, variant: str) -> Means:
        grouped: dict[tuple[str, str], list[float]] = {}
        for row in self.rows:
            if (row["model"], row["scenario"], row["variant"]) == (model, scenario, variant):
                grouped.setdefault((row["stream"], scenario), []).append(row["accuracy"])
        return {key: mean(values) for key, values in grouped.items()}

    def scenario(self, model: str, scenario: str | None) -> Means:
        """The means of one scenario, or of all."""
        return {key: value for key, value in self.means[model].items() if scenario in (None, key[1])}

    def best(self, models: Sequence[str]) -> Means:
        """The best of several models, for every stream and scenario."""
        keys = {key for name in models for key in self.means[name]}
        return {key: max(self.means[name][key] for name in models if key in self.means[name]) for key in keys}


def mean(values: Any) -> float:
    return statistics.fmean(values)


def compared(ours: Means, theirs: Means) -> tuple[str, str]:
    """Mean difference; how many were won, level and lost."""
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return "–", "–"
    differences = [ours[key] - theirs[key] for key in shared]
    won, lost = sum(d > LEVEL for d in differences), sum(d < -LEVEL for d in differences)
    return f"{mean(differences):+.1f}", f"{won} / {len(shared) - won - lost} / {lost}"


# Tables


def summary(outcome: Outcome, scenario: str) -> str:
    """One line per model: its mean, and how far kcl's models are ahead of it."""
    lines = [["compared with", "streams", "its mean"]]
    for own in KCL:
        lines[0] += [f"{own} ahead by", "won / level / lost"]
    named = [(name, outcome.scenario(name, scenario)) for name in (*PEERS, *REFITTED)]
    for title, models in (("best incremental model", PEERS), ("better refitted model", REFITTED)):
        best = {key: value for key, value in outcome.best(models).items() if key[1] == scenario}
        named.append((f"*on each stream the {title}*", best))
    for name, theirs in named:
        if theirs:
            variant = f" ({outcome.chosen[name, scenario]})" if scenario == "task" and name in MODELS else ""
            line = [name + variant, str(len(theirs)), f"{mean(theirs.values()):.1f}"]
            for own in KCL:
                line += compared(outcome.scenario(own, scenario), theirs)
            lines.append(line)
    return as_table(lines)


def verdicts(outcome: Outcome) -> str:
    """The targets, and whether they were met."""
    lines = [["target", *KCL]]
    lines.append(["no lesson diverges and no run fails", *(failures(outcome, own) for own in KCL)])
    for title, scenario in [("all scenarios", None), *((f"`{name}`", name) for name in SCENARIOS)]:
        theirs = {name: outcome.scenario(name, scenario) for name in PEERS}
        ahead, often = (
            [f"{title}: on average ahead of every incremental model"],
            [f"{title}: ahead of each of them on at least two thirds of the streams"],
        )
        for own in KCL:
            ours = outcome.scenario(own, scenario)
            ahead.append(yes_unless(name for name in PEERS if mean_difference(ours, theirs[name]) <= 0.0))
            often.append(yes_unless(name for name in PEERS if share_won(ours, theirs[name]) < 2 / 3))
        lines += [ahead, often]
    for title, reference in [
        *((name, outcome.means[name]) for name in REFITTED),
        ("the better", outcome.best(REFITTED)),
    ]:
        gaps = [mean_difference(outcome.scenario(own, "task"), reference) for own in KCL]
        line = f"`task`: at most 5 points behind {title.removesuffix(', refitted')}, refitted"
        lines.append([line, *(f"{'yes' if gap >= -5.0 else 'no'} ({gap:+.1f})" for gap in gaps)])
    return as_table(lines)


def failures(outcome: Outcome, model: str) -> str:
    rows = [row for row in outcome.rows if row["model"] == model]
    diverged = {row["stream"] for row in rows if row.get("diverged")}
    failed = {row["stream"] for row in rows if "error" in row}
    return yes_unless(
        [*(f"{name} diverges" for name in sorted(diverged)), *(f"{name} fails" for name in sorted(failed))]
    )


def yes_unless(exceptions: Iterable[str]) -> str:
    named = ", ".join(exceptions)
    return f"no: {named}" if named else "yes"


def as_table(lines: Sequence[Sequence[str]]) -> str:
    written = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([written[0], "|---" * len(lines[0]) + "|", *written[1:]])


def mean_difference(ours: Means, theirs: Means) -> float:
    shared = ours.keys() & theirs.keys()
    return mean(ours[key] - theirs[key] for key in shared) if shared else float("inf")


def share_won(ours: Means, theirs: Means) -> float:
    shared = ours.keys() & theirs.keys()
    return mean(float(ours[key] - theirs[key] > LEVEL) for key in shared) if shared else 1.0


def by_stream(outcome: Outcome, scenario: str) -> str:
    """Mean accuracies: a line per stream, a column per model; the best of those that learn incrementally is bold."""
    names = [name for name in MODELS if outcome.scenario(name, scenario)]
    streams = [name for name in STREAMS if any((name, scenario) in outcome.means[model] for model in names)]
    lines = [["stream", *names]]
    for stream in streams:
        found = {name: outcome.means[name].get((stream, scenario)) for name in names}
        best = max(value for name, value in found.items() if value is not None and name not in REFITTED)
        line = [stream]
        for name, value in found.items():
            cell = "–" if value is None else f"{value:.1f}"
            bold = value is not None and value > best - LEVEL and name not in REFITTED
            line.append(f"**{cell}**" if bold else cell)
        lines.append(line)
    return as_table(lines)


def costs(outcome: Outcome) -> str:
    """Medians over streams: a lesson, the first answer after it, an answer, and what has to be kept."""
    lines = [["model", "ms a lesson", "ms to the first answer after it", "ms an answer", "kilobytes kept a task"]]
    for name in MODELS:
        rows = [row for row in outcome.rows if row["model"] == name and "error" not in row]
        rows = [row for row in rows if row["variant"] == outcome.chosen[name, row["scenario"]]]
        if rows:
            lesson, first, answer = (
                statistics.median(1e3 * row[field] for row in rows)
                for field in ("learn_seconds", "first_answer_seconds", "answer_seconds")
            )
            kept = [row["bytes"] / row["tasks"] / 1e3 for row in rows if "bytes" in row]
            size = f"{statistics.median(kept):.0f}" if kept else "–"
            lines.append([name, f"{lesson:.1f}", f"{first:.1f}", f"{answer:.3f}", size])
    return as_table(lines)


def thousand_tasks(lines_of_cost: Sequence[Row]) -> str:
    """Lessons and answers after 10, 100 and 1,000 tasks."""
    lines = [["model", "tasks", "ms a lesson", "named: ms an answer", "correct", "not named: ms to the first answer",
              "ms an answer", "correct", "megabytes kept"]]  # fmt: skip
    for row in lines_of_cost:
        line = [f"{row['model']} ({row['variant']})", str(row["tasks"]), f"{1e3 * row['learn_seconds']:.1f}"]
        for name, form, factor in (("named_answer_seconds", ".3f", 1e3), ("named_accuracy", ".1f", 1.0),
                                   ("first_answer_seconds", ".0f", 1e3), ("answer_seconds", ".3f", 1e3),
                                   ("accuracy", ".1f", 1.0)):  # fmt: skip
            line.append(format(factor * row[name], form) if name in row else "–")
        lines.append([*line, f"{row['bytes'] / 1e6:.1f}"])
    return as_table(lines)


def sections(rows: Sequence[Row], lines_of_cost: Sequence[Row]) -> dict[str, str]:
    """The parts of the page by the name in their markers."""
    made = {"own-data-streams": list_streams()}
    halves = {half: [row for row in rows if row["half"] == half] for half in ("development", "final")}
    for half, own in halves.items():
        if own:
            outcome = Outcome(own)
            count = len({row["stream"] for row in own})
            parts = [f"{count} streams, means over {outcome.seeds} seeds.", verdicts(outcome)]
            for scenario in SCENARIOS:
                parts += [f"### {TITLES[scenario]}", summary(outcome, scenario), by_stream(outcome, scenario)]
            made[f"own-data-{half}"] = "\n\n".join(parts)
    if rows:
        made["own-data-cost"] = costs(Outcome(rows))
    if lines_of_cost:
        made["own-data-thousand"] = thousand_tasks(lines_of_cost)
    return made


def list_streams() -> str:
    lines = [["stream", "half", "scenarios", "what it is"]]
    return as_table([*lines, *([s.name, s.half, ", ".join(s.scenarios), s.about] for s in STREAMS.values())])


def replace_sections(page: str, made: Mapping[str, str]) -> str:
    """The page with new parts between their markers."""
    for name, part in made.items():
        before, begin, rest = page.partition(f"<!-- begin {name} -->")
        _, end, after = rest.partition(f"<!-- end {name} -->")
        if begin and end:
            page = f"{before}{begin}\n\n{part}\n\n{end}{after}"
    return page
