"""Slurm through submitit: its local executor, the sbatch file it writes, and a Slurm of four small scripts."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_commands import RUNS, finish, lasting, records, start, until

from kcl.engines import slurm_engine
from kcl.engines.dispatcher import Dispatcher
from kcl.engines.job import Job, Message, Needs
from kcl.engines.slurm_engine import SlurmEngine, parse_options
from kcl.engines.status import JobState, StatusTracker
from kcl.errors import KclError
from kcl.training.stopping import Interrupted, Stop

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
    command = [*RUNS, "lr=0.1,0.05", "--seeds", "0..5", "--out", out, "--engine", "slurm",
               "--workers", "2"]  # fmt: skip
    process = start([*command, "--slurm", "cluster=local"])
    until(lambda: records(out), process)
    process.terminate()
    code, said = finish(process, 120)
    assert code == 143, said
    left = 12 - len(records(out))
    assert left > 0
    (out / "logs" / "slurm" / "earlier").mkdir(parents=True)
    options = ["partition=short", "time=90", "account=lab", "reservation=mine"]
    code, said = finish(start([*command, "--resume", "--slurm", *options], **pretended))
    assert code == 0, said
    assert lasting(out) == [run for run in lasting(reference) if run["seed"] < 6]
    files = [path.read_text() for path in Path(pretended["PRETENDED"]).glob("sbatch-*")]
    assert len(files) == left, "a job for every run"
    for line in ("--partition=short", "--time=90", "--account=lab", "--reservation=mine", "--cpus-per-task=1",
                 "--job-name=kcl", "--nodes=1"):  # fmt: skip
        assert all(f"#SBATCH {line}\n" in text for text in files), line
    assert not any("--gpus" in text for text in files)
    assert not list(out.rglob("logs/slurm/**/*.jsonl")), "what jobs said is kept in the results"
    assert (out / "logs" / "slurm" / "earlier" / "stop").exists(), "jobs of an earlier command are asked to end"


def test_a_group_for_a_gpu_asks_for_one_and_not_for_the_node_that_failed(
    pretended: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", pretended["PATH"])
    engine = SlurmEngine(options=parse_options(["time=30", "gres=gpu:a100:1"]))
    asked = engine.parameters(Needs(cpus=4, gpus=0.5), exclude="node7")
    assert (asked["cpus_per_task"], asked["gpus_per_node"]) == (4, 1)
    assert (asked["slurm_time"], asked["slurm_gres"], asked["slurm_exclude"]) == (30, "gpu:a100:1", "node7")


class _Sbatch:
    """Takes so many jobs at a time, none of them on a node that is excluded; each ends as it is told."""

    class Job:
        job_id, state = "1", "RUNNING"
        paths = SimpleNamespace(
            **dict.fromkeys(
                ("submission_file", "submitted_pickle", "result_pickle", "stderr", "stdout"), Path("nowhere")
            )
        )

        def done(self) -> bool:
            return False

        def cancel(self, check: bool) -> None: ...

    def __init__(self, most: int) -> None:
        self.most, self.answers, self.refused = most, list[Path](), 0

    def executor(self, needs: Needs, exclude: str = "") -> Any:
        return SimpleNamespace(submit=lambda work, text, answers: self._submit(Path(answers), exclude))

    def _submit(self, answers: Path, exclude: str) -> Any:
        ended = sum(path.exists() for path in self.answers)
        if exclude or len(self.answers) - ended >= self.most:
            self.refused += 1
            raise RuntimeError("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        self.answers.append(answers)
        return self.Job()

    def end(self, place: int, kind: str) -> None:
        self.answers[place].write_text(json.dumps({"kind": kind}) + "\n")


def _job(number: int) -> Job:
    return Job([{"number": number}], "out")


def _engine(sbatch: _Sbatch, folder: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmEngine:
    monkeypatch.setattr(SlurmEngine, "executor", lambda _, needs, exclude="": sbatch.executor(needs, exclude))
    monkeypatch.setattr(slurm_engine, "POLL", 0.01)
    monkeypatch.setattr(slurm_engine, "FINAL_WAIT", 0.0)
    engine = SlurmEngine()
    engine.open(folder)
    return engine


class _Kept(StatusTracker):
    """Ends the first job that sbatch took when it has refused another, then stops."""

    def __init__(self, sbatch: _Sbatch, stop: Stop) -> None:
        super().__init__(3, lambda job: job.name)
        self.sbatch, self.stop, self.ended = sbatch, stop, list[tuple[str, str]]()

    def job_ended(self, state: JobState, worker: str, message: Message) -> None:
        self.ended.append((state.job.name, message["kind"]))

    def tick(self, stuck: Collection[Needs]) -> None:
        if len(self.sbatch.answers) == 1 and self.sbatch.refused == 1:
            self.sbatch.end(0, "done")
        if len(self.sbatch.answers) == 2 and self.sbatch.refused == 2:
            self.stop.signal = 15


def test_what_sbatch_does_not_take_beside_other_jobs_waits_until_one_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch, stop = _Sbatch(most=1), Stop()
    kept = _Kept(sbatch, stop)
    dispatcher = Dispatcher(_engine(sbatch, tmp_path, monkeypatch), stop=stop)
    with pytest.raises(Interrupted):
        dispatcher.run([_job(0), _job(1), _job(2)], list, kept, tmp_path)
    assert kept.ended == [(_job(0).name, "done"), (_job(1).name, "stopped")], "the second had not begun"
    sbatch.most, stop.signal = 0, None
    with pytest.raises(KclError, match="could not be submitted: sbatch: error: QOSMax"):
        dispatcher.run([_job(3)], list, kept, tmp_path)


def test_where_there_is_no_other_node_the_one_that_failed_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = _Sbatch(most=1)
    worker = _engine(sbatch, tmp_path, monkeypatch).hire(Needs(), "node7")
    messages = worker.do(_job(0))
    assert (sbatch.refused, len(sbatch.answers)) == (1, 1)
    lines = ({"kind": "started", "node": "node7", "worker": "node7-1"}, {"kind": "done"})
    sbatch.answers[0].write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"kind": "do')
    assert list(messages) == list(lines)
