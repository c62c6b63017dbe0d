"""`kcl report`: the results of any number of runs as a page, as text or as a figure."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kcl.cli.commands import say
from kcl.cli.options import option
from kcl.core import results
from kcl.core.files import METRICS, RESULTS, SAMPLES, STATUS, write_whole
from kcl.errors import KclError
from kcl.report import figures, results_table
from kcl.report.groups import Record, group_runs
from kcl.report.live import LOCAL, LivePage
from kcl.report.page import page, write_page
from kcl.report.page_samples import SavedSamples, read_samples
from kcl.report.unfinished import engine_statuses, running
from kcl.training.stopping import Stop

FORMATS = ("html", "md", "png", "pdf")


# fmt: off
def add_options(report: argparse.ArgumentParser) -> None:
    option(report, "folders DIR", f"output folders of `kcl run`, folders that contain such, or {RESULTS} files",
           type=Path, nargs="+")
    option(report, "--out", "the file to write (default: report.html, .md, .png or .pdf)", type=Path)
    option(report, "--format", "default: the ending of --out, else html", choices=FORMATS)
    option(report, "--live", "write nothing: serve the page and follow the results until Ctrl-C", action="store_true")
    option(report, "--host", f"with --live (default: {LOCAL}, this machine only)", default=LOCAL)
    option(report, "--port", "with --live (default: a free one)", type=int, default=0)
    option(report, "--title", "the heading (default: what was run)")
    option(report, "--quiet", "print nothing but errors", action="store_true")
    report.set_defaults(function=_report)
# fmt: on


def find_results(folders: Sequence[Path]) -> list[Path]:
    """The named results files, and those in or below the named folders, each once, in order."""
    results_files: dict[Path, None] = {}
    for folder in folders:
        files = _results_below(folder)
        if not files:
            missing = "no such file or folder" if not folder.exists() else f"no {RESULTS} in it or below it"
            raise KclError(f"{folder}: {missing}; give the output folder of `kcl run`")
        results_files |= dict.fromkeys(files)
    return list(results_files)


def _results_below(path: Path) -> list[Path]:
    """A results file itself; of a folder, those in or below it. What lies below a folder with results of its own is a
    part of how these came about, as the trials of a search are.
    """
    if path.is_file():
        return [path]
    files = sorted(path.rglob(RESULTS))
    folders = {file.parent for file in files}
    return [file for file in files if folders.isdisjoint(file.parent.parents)]


def read_all(files: Sequence[Path], warn: Callable[[str], None]) -> list[Record]:
    """All runs, with the settings that this version records: old lines and new ones of the same run belong together."""
    from kcl.experiments.run_spec import with_current_settings  # loads PyTorch

    return [with_current_settings(record) for file in files for record in results.read(file, warn)]


def samples_beside(files: Sequence[Path]) -> list[SavedSamples]:
    """The samples that `kcl run --save-samples` saved beside these results."""
    from kcl.experiments.run_spec import with_current_settings  # loads PyTorch

    folders = dict.fromkeys(file.parent for file in files)
    return [with_current_settings(samples) for folder in folders for samples in read_samples(folder / SAMPLES)]


def default_title(records: Sequence[Record]) -> str:
    """The methods and benchmarks, as long as that is a heading."""
    groups = group_runs(records)
    methods = dict.fromkeys(group.label.split(",")[0] for group in groups)
    benchmarks = dict.fromkeys(group.benchmark for group in groups)
    if len(methods) > 3 or len(benchmarks) > 3:
        return f"Comparison of {len(records)} runs"
    return f"{', '.join(methods)} on {', '.join(benchmarks)}"


@contextmanager
def live(
    folders: Sequence[Path], title: str, say: Callable[[str], None], host: str = LOCAL, port: int = 0
) -> Iterator[LivePage]:
    """The page of these folders, served while the context lasts. A folder may be empty, or not exist yet."""
    if not 0 <= port <= 65535:
        raise KclError(f"--port must be a number from 0 to 65535, not {port}")

    def find() -> list[Path]:
        kept = map(_results_below, folders)
        measured = [sorted(path for name in (METRICS, STATUS) for path in folder.rglob(name)) for folder in folders]
        return list(dict.fromkeys(path for paths in (*kept, *measured) for path in paths))

    def make(files: Sequence[Path], version: str) -> str:
        kept = [path for path in files if path.name not in (METRICS, STATUS)]
        going_on = running(path for path in files if path.name == METRICS)
        statuses = engine_statuses(path for path in files if path.name == STATUS)
        return page(read_all(kept, lambda _: None), title, version, going_on, samples_beside(kept), statuses)

    server = LivePage(find, make, LOCAL if host == "localhost" else host, port)
    if host not in (LOCAL, "localhost"):
        say(f"anyone who can reach {host} can read these results")
    say(f"live page: {server.address}")
    server.start()
    try:
        yield server
    finally:
        server.close()


def _report(options: argparse.Namespace) -> int:
    if options.live:
        if options.out is not None or options.format is not None:
            raise KclError("--live writes nothing; leave out --out and --format")
        title = options.title or ", ".join(map(str, options.folders))
        stop = Stop()
        with stop.listening(), stop.deferred(), live(options.folders, title, say, options.host, options.port):
            while stop.signal is None:  # an exception while a thread starts could leave its locks held
                time.sleep(0.1)
        stop.check()
    out, kind = _target(options.out, options.format)
    files = find_results(options.folders)
    records = read_all(files, say)
    title = options.title or default_title(records)
    if kind == "html":
        write_page(records, out, title, samples_beside(files))
    elif kind == "md":
        write_whole(out, results_table.markdown(records, title).encode(errors="replace"))
    else:
        write_whole(out, figures.render(figures.overview(records), kind))
    if not options.quiet:
        print(results_table.text(records))
        repeats = len(records) - sum(len(group.runs) + len(group.diverged) for group in group_runs(records))
        if repeats:
            were = "run was" if repeats == 1 else "runs were"
            print(f"{repeats} {were} repeated with the same settings and seed; the last of each counts")
        print(f"{'page' if kind == 'html' else 'report'}: {out}")
    return 0


def _target(out: Path | None, kind: str | None) -> tuple[Path, str]:
    """The file to write and its format; each follows from the other."""
    ending = out.suffix.lower().lstrip(".") if out is not None else ""
    if kind is None:
        kind = ending or "html"
        if kind not in FORMATS:
            raise KclError(f"--out {out}: reports are written as {', '.join(FORMATS)}; give one of these endings")
    return out or Path(f"report.{kind}"), kind
