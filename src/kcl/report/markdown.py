"""The report in GitHub's Markdown, for a README or a paper's notes: headline, all results, commands."""

from __future__ import annotations

from collections.abc import Sequence

from kcl.report import results_table, significance
from kcl.report.formatting import MISSING, markdown_table, plain
from kcl.report.groups import Record, group_runs
from kcl.report.headline import HeadlineCell, headline
from kcl.report.published import SOURCE


def markdown(records: Sequence[Record], title: str) -> str:
    columns, rows = headline(group_runs(records))
    header = ["method", *(plain(str(column)) for column in columns)]
    compared = any(cell and cell.published for row in rows for cell in row.cells)
    commands = [command for command in dict.fromkeys(record["command"] for record in records) if command]
    parts = [
        f"# {plain(title)}",
        markdown_table(header, [[plain(row.label), *map(_cell, row.cells)] for row in rows]),
        "Average accuracy in percent, mean ± half the 95 % confidence interval over seeds (Student's t). "
        + significance.NOTE.replace("marked", "in bold")
        + (f" In brackets: {SOURCE}." if compared else ""),
        "## All results",
        results_table.markdown(records).rstrip(),
    ]
    if commands:
        # Indented, not fenced: no command can end the block.
        parts += ["## Commands", "\n".join("    " + " ".join(command.splitlines()) for command in commands)]
    return "\n\n".join(parts) + "\n"


def _cell(cell: HeadlineCell | None) -> str:
    if cell is None:
        return MISSING
    value = f"**{cell}**" if cell.best else str(cell)
    return f"{value} ({cell.published})" if cell.published else value
