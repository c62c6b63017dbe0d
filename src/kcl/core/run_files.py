"""Names of the files in a run folder that one package writes and another reads."""

METRICS = "metrics.csv"
"""One row per run and learned task, written while the runs are training."""
SAMPLES = "samples.jsonl"
"""Images of tasks, coresets and mistakes, one line per run."""
STATUS = "standing.json"
"""Counts and workers of a command that an engine is running; removed when it ends."""
