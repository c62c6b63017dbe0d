"""Slurm through submitit: its local executor, the sbatch file it writes, and a Slurm of four small scripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from engine_commands import LONG, RUNS, finish, lasting, records, start, until

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


def test_jobs_give_the_numbers_of_one_process_and_ask_for_what_they_need(
    reference: Path, pretended: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ["--engine", "slurm", "--workers", "2", "--runs-at-once", "6",
               "--slurm", "partition=short", "time=90", "account=lab", "reservation=mine"]  # fmt: skip
    code, said = finish(start([*RUNS, "lr=0.1,0.05", "--seeds", "0..11", "--out", out, *options], **pretended))
    assert code == 0, said
    alike = [{k: v for k, v in own.items() if k != "runs_at_once"} for own in lasting(reference)]
    assert [{k: v for k, v in own.items() if k != "runs_at_once"} for own in lasting(out)] == alike
    files = [path.read_text() for path in Path(pretended["PRETENDED"]).glob("sbatch-*")]
    assert len(files) == 4, "24 runs, six a job"
    for line in ("--partition=short", "--time=90", "--account=lab", "--reservation=mine", "--cpus-per-task=1",
                 "--job-name=kcl", "--nodes=1"):  # fmt: skip
        assert all(f"#SBATCH {line}\n" in text for text in files), line
    assert not any("--gpus" in text for text in files)
    assert not (out / "logs").exists()


def test_stopped_jobs_save_and_the_same_command_goes_on(long_reference: Path, tmp_path: Path) -> None:
    """submitit's own executor for one machine. Whatever engine goes on, the result is the same."""
    out = tmp_path / "out"
    command = [*LONG, "--seeds", "0..2", "--out", out]
    process = start([*command, "--engine", "slurm", "--workers", "2", "--slurm", "cluster=local"])
    until(lambda: list(out.glob("checkpoints/*/*.safetensors")), process)
    process.terminate()
    code, said = finish(process, 60)
    assert code == 143, said
    assert list(out.glob("checkpoints/*/*.safetensors"))
    code, said = finish(start([*command, "--resume"]))
    assert code == 0, said
    assert lasting(out) == lasting(long_reference)
    assert max(record["resumed"] for record in records(out)) == 1
