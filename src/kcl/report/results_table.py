"""The results as text: the table for a terminal, and the whole report in GitHub's Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kcl.report.formatting import MISSING, aligned, interval, markdown_table, number, plain, seed_count, spread
from kcl.report.groups import Record, SeedGroup, group_runs
from kcl.report.headline import HeadlineCell, headline
from kcl.report.published import SOURCE
from kcl.report.summary import SIGNIFICANCE

NOTE = (
    "Mean ± sample standard deviation over seeds; 95 % confidence interval of the mean average accuracy\n"
    "by Student's t. Diverged runs are counted, not averaged. Kept: samples, and the memory used for all that is kept."
)
TEXT_COLUMNS = 2  # benchmark and method; the others are numbers, aligned to the right


def _field(name: str, digits: int) -> Callable[[SeedGroup], str]:
    return lambda group: spread(group.summary(name), digits)


def _kept(group: SeedGroup) -> str:
    """Samples kept at the end, and the memory of everything kept; means where the runs differ."""
    memories = [run["memory"] for run in group.runs]
    if not memories or any(type(memory.get(name)) is not int for memory in memories for name in ("samples", "bytes")):
        return MISSING
    samples, size = (sum(memory[name] for memory in memories) / len(memories) for name in ("samples", "bytes"))
    used = f"{number(size / 1e6, 2)} MB" if size >= 1e6 else f"{number(size / 1e3, 1)} kB"
    return f"{number(samples, 0)} ({used})"


COLUMNS: dict[str, Callable[[SeedGroup], str]] = {
    "benchmark": lambda group: group.benchmark,
    "method": lambda group: group.label,
    "seeds": lambda group: seed_count(len(group.runs), len(group.diverged)),
    "average accuracy %": _field("average_accuracy", 2),
    "95 % interval": lambda group: interval(group.summary("average_accuracy")),
    "forgetting": _field("forgetting", 3),
    "learning accuracy %": _field("learning_accuracy", 2),
    "kept": _kept,
    "seconds": _field("seconds", 1),
}
WITHOUT_TASK = {
    "incremental accuracy %": _field("average_incremental_accuracy", 2),
    "task right %": _field("task_accuracy", 2),
}
"""Further columns, where the task of a sample was not named: average accuracy over the stream, and the share of samples
whose answer is a class of their own task.
"""


def header(groups: Sequence[SeedGroup]) -> tuple[str, ...]:
    return (*COLUMNS, *(() if all(group.names_tasks for group in groups) else WITHOUT_TASK))


def rows(groups: Sequence[SeedGroup]) -> list[tuple[str, ...]]:
    """One row of cells per group, under `header`."""
    names, columns = header(groups), COLUMNS | WITHOUT_TASK
    return [
        tuple(MISSING if group.names_tasks and name in WITHOUT_TASK else columns[name](group) for name in names)
        for group in groups
    ]


def text(records: Sequence[Record]) -> str:
    """The table for a terminal, columns aligned, with the note that explains it."""
    groups = group_runs(records)
    cells = rows(groups)
    upper, lower = zip(*map(_two_lines, header(groups)), strict=True)
    rule = ["-" * max(map(len, column)) for column in zip(upper, lower, *cells, strict=True)]
    return "\n".join([*aligned([upper, lower, rule, *cells], TEXT_COLUMNS), "", NOTE]) + "\n"


def markdown(records: Sequence[Record], title: str) -> str:
    """Headline, all results and commands, for a README or a paper's notes."""
    groups = group_runs(records)
    columns, methods = headline(groups)
    cells = [(*map(plain, row[:TEXT_COLUMNS]), *row[TEXT_COLUMNS:]) for row in rows(groups)]
    compared = any(cell and cell.published for row in methods.values() for cell in row)
    commands = [command for command in dict.fromkeys(record["command"] for record in records) if command]
    parts = [
        f"# {plain(title)}",
        markdown_table(
            ["method", *map(plain, columns)],
            [[plain(label), *map(_headline_cell, row)] for label, row in methods.items()],
        ),
        "Average accuracy in percent, mean ± standard deviation over seeds. "
        + SIGNIFICANCE.replace("marked", "in bold")
        + (f" In brackets: {SOURCE}." if compared else ""),
        "## All results",
        markdown_table(header(groups), cells, slice(TEXT_COLUMNS, None)),
        NOTE,
    ]
    if commands:
        # Indented, not fenced: no command can end the block.
        parts += ["## Commands", "\n".join("    " + " ".join(command.splitlines()) for command in commands)]
    return "\n\n".join(parts) + "\n"


def _headline_cell(cell: HeadlineCell | None) -> str:
    if cell is None:
        return MISSING
    value = f"**{cell}**" if cell.best else str(cell)
    return f"{value} ({cell.published})" if cell.published else value


def _two_lines(name: str) -> tuple[str, str]:
    """Long column names would make the table wider than its numbers do."""
    first, _, rest = name.partition(" ")
    return (first, rest) if len(name) > 14 else ("", name)
