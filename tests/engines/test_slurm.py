"""Slurm through submitit: its local executor, the sbatch file it writes, and a Slurm of four small scripts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from engine_commands import RUNS, finish, lasting, records, start, until

from kcl.engines.order import Needs
from kcl.engines.slurm import Slurm, parse

pytest.importorskip("submitit")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as Unix has them")

SBATCH = """#!/bin/bash
# Keeps the file it is given and runs it, as a job of that number.
number=$(( $(ls "$PRETENDED" | grep -c sbatch) + 4001 ))
cp "$1" "$PRETENDED/sbatch-$number"
log=$(sed -n 's/#SBATCH --output=//p' "$1" | sed "s/%j/$number/g; s/%t/0/g")
SLURM_JOB_ID=$number SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 \\
  SLURM_JOB_NODELIST=here setsid bash "$1" > "$log" 2>&1 < /dev/null &
echo "Submitted batch job $number"
"""
SRUN = """#!/bin/bash
while [[ "$1" == -* ]]; do [[ "$1" == --output || "$1" == --error ]] && shift; shift; done
exec "$@"
"""
SACCT = """#!/bin/bash
echo 'JobID|State|NodeList'
for file in "$PRETENDED"/sbatch-*; do echo "${file##*-}|RUNNING|here"; done
"""


@pytest.fixture
def pretended(tmp_path: Path) -> dict[str, str]:
    """An environment with sbatch, srun, sacct and scancel."""
    folder, jobs = tmp_path / "bin", tmp_path / "jobs"
    folder.mkdir()
    jobs.mkdir()
    scripts = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": "#!/bin/bash\n"}
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "PRETENDED": str(jobs)}


def test_jobs_that_were_stopped_give_the_numbers_of_one_process_and_ask_for_what_they_need(
    reference: Path, pretended: dict[str, str], tmp_path: Path
) -> None:
    """Begun by submitit's own executor for one machine, gone on with by sbatch."""
    out = tmp_path / "out"
    command = [*RUNS, "lr=0.1,0.05", "--seeds", "0..11", "--runs-at-once", "6", "--out", out, "--engine", "slurm",
               "--workers", "2"]  # fmt: skip
    process = start([*command, "--slurm", "cluster=local"])
    until(lambda: len(records(out)) >= 6, process)
    process.terminate()
    code, said = finish(process, 120)
    assert code == 143, said
    left = 24 - len(records(out))
    assert left > 0
    options = ["partition=short", "time=90", "account=lab", "reservation=mine"]
    code, said = finish(start([*command, "--resume", "--slurm", *options], **pretended))
    assert code == 0, said
    assert _alone(lasting(out)) == _alone(lasting(reference))
    files = [path.read_text() for path in Path(pretended["PRETENDED"]).glob("sbatch-*")]
    assert len(files) == left // 6, "six runs a job"
    for line in ("--partition=short", "--time=90", "--account=lab", "--reservation=mine", "--cpus-per-task=1",
                 "--job-name=kcl", "--nodes=1"):  # fmt: skip
        assert all(f"#SBATCH {line}\n" in text for text in files), line
    assert not any("--gpus" in text for text in files)
    assert not list(out.glob("logs/slurm/*.jsonl")), "what jobs said is kept in the results"
    assert not (out / "logs" / "slurm" / "stop").exists()


def _alone(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the company."""
    return [{name: value for name, value in record.items() if name != "runs_at_once"} for record in found]


def test_a_group_for_a_gpu_asks_for_one_and_not_for_the_node_that_failed(
    pretended: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", pretended["PATH"])
    engine = Slurm(tmp_path, given=parse(["time=30", "gres=gpu:a100:1"]))
    asked = engine.parameters(Needs(cpus=4, gpus=0.5), exclude="node7")
    assert (asked["cpus_per_task"], asked["gpus_per_node"]) == (4, 1)
    assert (asked["slurm_time"], asked["slurm_gres"], asked["slurm_exclude"]) == (30, "gpu:a100:1", "node7")
