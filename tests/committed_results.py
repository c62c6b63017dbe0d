"""The committed files of run results. Benches write lines of their own, into folders of their own."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
BENCHES = ("own-data", "streaming")
RUN_RESULTS = sorted(path for path in (ROOT / "results").rglob("*.jsonl") if path.parent.name not in BENCHES)
