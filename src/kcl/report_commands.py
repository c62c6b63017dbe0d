"""`kcl report`: the results of any number of runs as a page, as text or as a figure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from kcl import results
from kcl.errors import KclError
from kcl.report import figures, tables
from kcl.report.groups import Record, group_runs
from kcl.report.markdown import markdown
from kcl.report.page import write_page

FORMATS = ("html", "md", "png", "pdf")
RESULTS = "results.jsonl"


def add_options(report: argparse.ArgumentParser) -> None:
    report.add_argument("folders", nargs="+", type=Path, metavar="DIR",
                        help=f"output folders of `kcl run`, folders that hold such, or {RESULTS} files")  # fmt: skip
    report.add_argument("--out", type=Path, help="the file to write (default: report.html, .md, .png or .pdf)")
    report.add_argument("--format", choices=FORMATS, help="default: what --out ends with, else html")
    report.add_argument("--title", help="the heading (default: what was run)")
    report.add_argument("--quiet", action="store_true", help="print nothing but errors")
    report.set_defaults(function=_report)


def find_results(folders: Sequence[Path]) -> list[Path]:
    """The results files named, or below the folders named, each once, in order."""
    found: dict[Path, None] = {}
    for folder in folders:
        own = [folder / RESULTS] if (folder / RESULTS).is_file() else sorted(folder.rglob(RESULTS))
        own = [folder] if folder.is_file() else own
        if not own:
            missing = "no such file or folder" if not folder.exists() else f"no {RESULTS} in it or below it"
            raise KclError(f"{folder}: {missing}; give the output folder of `kcl run`")
        found |= dict.fromkeys(own)
    return list(found)


def read_all(files: Sequence[Path], warn: Callable[[str], None]) -> list[Record]:
    return [record for file in files for record in results.read(file, warn)]


def default_title(records: Sequence[Record]) -> str:
    """The methods and benchmarks, as long as that is a heading."""
    groups = group_runs(records)
    methods = dict.fromkeys(group.label.split(",")[0] for group in groups)
    benchmarks = dict.fromkeys(group.benchmark for group in groups)
    if len(methods) > 3 or len(benchmarks) > 3:
        return f"Comparison of {len(records)} runs"
    return f"{', '.join(methods)} on {', '.join(benchmarks)}"


def _report(options: argparse.Namespace) -> int:
    out, kind = _target(options.out, options.format)
    records = read_all(find_results(options.folders), _say)
    title = options.title or default_title(records)
    if kind == "html":
        write_page(records, out, title)
    elif kind == "md":
        results.write_whole(out, markdown(records, title).encode(errors="replace"))
    else:
        results.write_whole(out, figures.render(figures.overview(records), kind))
    if not options.quiet:
        print(tables.text(records))
        repeats = len(records) - sum(len(group.runs) + len(group.diverged) for group in group_runs(records))
        if repeats:
            print(f"{repeats} runs were made again with the same settings and seed; the last of each counts")
        print(f"{'page' if kind == 'html' else 'report'}: {out}")
    return 0


def _target(out: Path | None, kind: str | None) -> tuple[Path, str]:
    """Where to write and what; the one follows from the other."""
    ending = out.suffix.lower().lstrip(".") if out is not None else ""
    if kind is None:
        kind = ending or "html"
        if kind not in FORMATS:
            raise KclError(f"--out {out}: reports are written as {', '.join(FORMATS)}; give one of these endings")
    return out or Path(f"report.{kind}"), kind


def _say(message: str) -> None:
    print(message, file=sys.stderr)
