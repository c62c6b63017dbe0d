"""The table, cell by cell, and as text and Markdown."""

from __future__ import annotations

from kcl.report import results_table
from kcl.report.groups import group_runs


def test_cells_are_the_numbers_of_the_definitions(make_run) -> None:
    """Seeds 0, 1, 2 end at 90 + seed minus 2, 1, 0: averages 89, 90, 91, standard deviation 1, t(2) = 4.3027."""
    memory = {"samples": 30, "bytes": 1_500_000}
    (row,) = results_table.rows(group_runs([make_run(seed, memory=memory) for seed in range(3)]))
    half_width = 4.302653 / 3**0.5
    assert dict(zip(results_table.COLUMNS, row, strict=True)) == {
        "benchmark": "permuted-digits",
        "method": "KCL (vrf)",
        "seeds": "3",
        "average accuracy %": "90.00 ± 1.00",
        "95 % interval": f"[{90 - half_width:.2f}, {90 + half_width:.2f}]",
        "forgetting": "0.015 ± 0.000",
        "learning accuracy %": "91.00 ± 1.00",
        "kept": "30 (1.50 MB)",
        "seconds": "11.0 ± 1.0",
    }


def test_one_seed_shows_no_spread(make_run) -> None:
    (row,) = results_table.rows(group_runs([make_run()]))
    assert row[2:6] == ("1", "89.00", "–", "0.015")


def test_little_is_kept_in_kilobytes_and_what_is_not_told_is_missing(make_run) -> None:
    runs = [make_run(0, memory={"samples": 2, "bytes": 1200}), make_run(1, memory={"samples": 3, "bytes": 1600})]
    place = list(results_table.COLUMNS).index("kept")
    assert results_table.rows(group_runs(runs[:1]))[0][place] == "2 (1.2 kB)"
    assert results_table.rows(group_runs(runs))[0][place] == "2 (1.4 kB)"
    assert results_table.rows(group_runs([make_run()]))[0][place] == "–"


def test_diverged_runs_are_shown_and_not_averaged(make_run) -> None:
    runs = [make_run(0), make_run(1, diverged=True), make_run(0, method="ewc", diverged=True)]
    first, second = results_table.rows(group_runs(runs))
    assert first[2:4] == ("1 (+1 diverged)", "89.00")
    assert second[2:] == ("0 (+1 diverged)", "–", "–", "–", "–", "–", "–")


def test_a_negative_zero_is_a_zero() -> None:
    assert results_table.number(-0.0004, 3) == "0.000"
    assert results_table.number(-0.0006, 3) == "-0.001"


def test_text_is_aligned(make_run) -> None:
    lines = results_table.text([make_run(0), make_run(1), make_run(0, method="naive-sgd", drop=20.0)]).splitlines()
    table = lines[: lines.index("")]
    assert len({len(line) for line in table[1:]}) == 1  # every column ends at the same place
    assert table[2].replace(" ", "").strip("-") == ""
    ends = [end for end in range(len(table[2])) if table[2][end : end + 2] == "- "]
    assert all(line[end + 1 : end + 3] == "  " for line in table[1:] for end in ends)
    assert "Student's t" in lines[lines.index("") + 1] + lines[-1]


def test_markdown_is_a_table_whatever_the_names_are(make_run) -> None:
    text = results_table.markdown([make_run(method="a|b`<i>_x_", benchmark="*bold*")], "A title")
    lines = text.split("## All results\n\n")[1].splitlines()
    assert lines[1] == "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert lines[2].startswith(r"| \*bold\* | a\|b\`&lt;i&gt;\_x\_ | 1 | 89.00 | – |")
    assert lines[3] == ""
