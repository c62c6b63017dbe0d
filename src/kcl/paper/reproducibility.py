"""The tables of REPRODUCIBILITY.md: every printed number, ours, their difference, a verdict and the command; and those
of docs/strong.md, where nothing is printed to be held against.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kcl.benchmarks.ways import show_ways
from kcl.errors import KclError
from kcl.methods.strong_recipe import recipe_settings
from kcl.paper.cell import Cell
from kcl.paper.item import Found, Item
from kcl.paper.paper_tables import MISSING, row
from kcl.paper.verdict import LIMIT, judge


def section(item: Item, found: Found) -> str:
    """An item's table: with verdicts where the paper prints numbers, else ours alone; past the paper, its own."""
    cells = item.cells()
    if not item.judged:
        return item.markdown(found)
    if any(cell.published for cell in cells):
        return _judged([cell for cell in cells if cell.published], found)
    return _grid(cells, found) if cells else item.markdown(found)


def renewed(page: str, items: Iterable[Item], found: Found) -> str:
    """The page with its tables made anew, each between the two comments that name its item."""
    for item in items:
        begin, end = f"<!-- {item.name}: begin -->", f"<!-- {item.name}: end -->"
        if begin not in page:
            continue
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
            raise KclError(f"the page must hold {begin} and, after it, {end} once each")
        before, after = page.split(begin)[0], page.split(end)[1]
        page = f"{before}{begin}\n\n{section(item, found).strip()}\n\n{end}{after}"
    return page


def command(cell: Cell, found: Found) -> str:
    """The command that does a cell's runs, in the precision they were done in."""
    words = ["kcl run", cell.benchmark]
    words += [] if cell.method == "kcl" else ["--method", cell.method]
    words += [] if cell.recipe == "paper" else ["--recipe", cell.recipe]
    usual = recipe_settings(cell.recipe, cell.benchmark, cell.method).to_dict()
    changes = {name: value for name, value in cell.changes.items() if usual[name] != value}
    words += ["--kernel", changes.pop("kernel")] if "kernel" in changes else []
    words += _options(replace(cell, changes=changes))
    words += ["--ways", show_ways(cell.ways)] if cell.ways is not None else []
    words += ["--seeds", _seeds(found.seeds)]
    runs = found.runs(cell)
    if runs and runs[0]["device"] != "cpu" and runs[0]["precision"] != "tf32":
        words += ["--precision", runs[0]["precision"]]
    return " ".join(words)


def _options(cell: Cell) -> list[str]:
    """What is asked for beside the recipe."""
    words = [f"--set {name}={value}" for name, value in cell.changes.items()]
    return words + ([] if cell.train_per_task is None else [f"--train-per-task {cell.train_per_task}"])


def _seeds(seeds: Sequence[int]) -> str:
    first, last = seeds[0], seeds[-1]
    return f"{first}..{last}" if list(seeds) == list(range(first, last + 1)) else ",".join(map(str, seeds))


def _judged(cells: Sequence[Cell], found: Found) -> str:
    lines, verdicts, explained = [], [], 0
    for cell in cells:
        group, paper = found.group(cell), cell.published
        ours = group.summary("average_accuracy") if group else None
        forgetting = group.summary("forgetting") if group else None
        verdict = judge(ours, paper)
        verdicts += [verdict] if verdict else []
        reason = _explanation(cell, found) if verdict and not verdict.reproduced else ""
        explained += bool(reason)
        lines.append(
            (
                cell.column,
                cell.row,
                _spread(paper.accuracy, paper.deviation) if paper else MISSING,
                _spread(ours.mean, ours.deviation) if ours else "not run yet",
                f"{verdict.difference:+.1f} ({verdict.deviations:+.1f} sd)" if verdict else MISSING,
                f"{verdict}{reason}" if verdict else MISSING,
                f"{paper.forgetting:.2f}" if paper and paper.forgetting is not None else MISSING,
                f"{forgetting.mean:.3f}" if forgetting else MISSING,
                f"`{command(cell, found)}`",
            )
        )
    header = (
        "benchmark", "row", "paper %", "ours %", "difference", "verdict", "paper's forgetting", "ours", "command",
    )  # fmt: skip
    good = sum(verdict.reproduced for verdict in verdicts)
    count = f"{good} of {len(verdicts)} accuracies lie within {LIMIT:.0f} standard deviations of the difference."
    if explained:
        count += f" {explained} more, marked as explained, with settings nearer to those behind the printed number."
    return "\n".join([row(header), row(["---"] * len(header)), *map(row, lines), "", count])


def _explanation(cell: Cell, found: Found) -> str:
    """What settings nearer to those behind the printed number give, where that is the printed number."""
    if cell.nearer is None:
        return ""
    group = found.group(cell.nearer)
    ours = group.summary("average_accuracy") if group else None
    verdict = judge(ours, cell.published)
    if ours is None or verdict is None or not verdict.reproduced:
        return ""
    return f"; explained: {_spread(ours.mean, ours.deviation)} with `{' '.join(_options(cell.nearer))}`"


def _grid(cells: Sequence[Cell], found: Found) -> str:
    """One row per setting, one column per benchmark: average accuracy after the last task."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    lines: dict[str, dict[str, str]] = {}
    for cell in cells:
        group = found.group(cell)
        ours = group.summary("average_accuracy") if group else None
        lines.setdefault(cell.row, dict.fromkeys(columns, MISSING))[cell.column] = (
            _spread(ours.mean, ours.deviation) if ours else "not run yet"
        )
    header = ["", *columns]
    body = [row([name, *values.values()]) for name, values in lines.items()]
    return "\n".join([row(header), row(["---"] * len(header)), *body])


def _spread(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"
