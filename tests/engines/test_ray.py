"""A real Ray cluster on one machine: a head and two more nodes, each with its own processes and its own cache."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from engine_commands import RUNS, environment, finish, lasting, records, start, until

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as Unix has them")


class Node:
    """`ray start --block`, and everything it starts, in a session of their own."""

    def __init__(self, arguments: list[str], folder: Path, cache: Path, token: dict[str, str]) -> None:
        self.cache, self.log = cache, cache.with_suffix(".log")
        told = {"KCL_CACHE": str(cache), "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(folder)} | token
        told |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "5"}
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1", *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--object-store-memory=100000000"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(**told),
                start_new_session=True,
            )

    def wait(self, seconds: float = 90.0) -> None:
        """Until it has joined the cluster."""
        end = time.monotonic() + seconds
        while "Ray runtime started" not in self.log.read_text():
            assert time.monotonic() < end, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """As when the power fails."""
        for pid in _session(self.process.pid):
            with suppress(ProcessLookupError):  # it has ended since it was listed
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader:
                found.append(int(entry.name))
    return found


class Cluster(NamedTuple):
    address: str
    nodes: list[Node]
    token: dict[str, str]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Only who has its token, made for it here, can use it."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, folder = f"127.0.0.1:{port}", Path("/tmp") / f"kcl-ray-{port}"  # Ray's sockets need a short path
    nodes = [
        Node(
            ["--head", "--include-dashboard=false", f"--port={port}", "--node-ip-address=127.0.0.1"],
            folder,
            tmp_path / "cache-0",
            token,
        )
    ]
    try:
        nodes[0].wait()
        for number in (1, 2):  # one after another: nodes of one machine choose the names of their sockets
            nodes.append(
                Node(
                    [f"--address={address}", "--node-ip-address=127.0.0.1"], folder, tmp_path / f"cache-{number}", token
                )
            )
            nodes[-1].wait()
        yield Cluster(address, nodes, token)
    finally:
        for node in nodes:
            node.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _workers(out: Path) -> list[str]:
    try:
        workers = json.loads((out / "standing.json").read_text())["workers"]
        return [each["worker"] for each in workers if each["doing"]]
    except (OSError, ValueError):
        return []


def _kill_one(out: Path) -> bool:
    """One of the workers that do something; those that ended since are passed over."""
    for worker in _workers(out):
        with suppress(ProcessLookupError):
            os.kill(int(worker.rpartition("-")[2]), signal.SIGKILL)
            return True
    return False


def test_24_runs_on_three_nodes_of_which_workers_die_and_one_node_leaves(
    cluster: Cluster, reference: Path, tmp_path: Path
) -> None:
    nodes = cluster.nodes
    out, again = tmp_path / "out", tmp_path / "again"
    command = [*RUNS, "lr=0.1,0.05", "--engine", "ray", "--address", cluster.address, "--seeds"]
    told = {"KCL_CACHE": str(tmp_path / "cache-driver")} | cluster.token
    code, said = finish(start([*command, "0..2", "--out", out], **told))
    assert code == 0, said
    assert lasting(out) == [run for run in lasting(reference) if run["seed"] < 3]
    files = {path for node in nodes for path in node.cache.glob("images/dataset-*")}
    assert len({path.name for path in files}) == 1, "the data have one content"
    assert len(files) == 3, "and reached every node"

    process = start([*command, "0..11", "--out", again], **told)
    for done in (4, 6, 8):  # one may be idle when it dies, which costs nothing and is not told
        until(lambda done=done: len(records(again)) >= done and _kill_one(again), process)
    until(lambda: len(records(again)) >= 9, process)
    nodes[2].kill()
    code, said = finish(process)
    assert code == 0, said
    assert "trying again" in said
    assert lasting(again) == lasting(reference)
