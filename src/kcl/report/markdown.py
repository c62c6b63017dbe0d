"""The report in GitHub's Markdown, for a README or a paper's notes: headline, all results, commands."""

from __future__ import annotations

from collections.abc import Sequence

from kcl.report import results_table, significance
from kcl.report.groups import Record, group_runs
from kcl.report.headline import Cell, headline
from kcl.report.published import SOURCE
from kcl.report.results_table import plain


def markdown(records: Sequence[Record], title: str) -> str:
    columns, rows = headline(group_runs(records))
    head = ["method", *(plain(str(column)) for column in columns)]
    lines = [head, ["---", *("---:" for _ in columns)], *([plain(r.label), *map(_cell, r.cells)] for r in rows)]
    told = any(cell and cell.published for row in rows for cell in row.cells)
    commands = [command for command in dict.fromkeys(record["command"] for record in records) if command]
    parts = [
        f"# {plain(title)}",
        "\n".join(f"| {' | '.join(line)} |" for line in lines),
        "Average accuracy in percent, mean ± half the 95 % confidence interval over seeds (Student's t). "
        + significance.NOTE.replace("marked", "in bold")
        + (f" In brackets: {SOURCE}." if told else ""),
        "## All results",
        results_table.markdown(records).rstrip(),
    ]
    if commands:
        # Indented, not fenced: no command can end the block.
        parts += ["## Commands", "\n".join("    " + " ".join(command.splitlines()) for command in commands)]
    return "\n\n".join(parts) + "\n"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    value = f"**{cell}**" if cell.best else str(cell)
    return f"{value} ({cell.published})" if cell.published else value
