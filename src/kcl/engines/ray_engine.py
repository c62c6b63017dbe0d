"""A Ray cluster: one actor per running job, reused for the next job; its messages are streamed back.

Jobs and messages travel as JSON. Ray places actors by their needs and reports when an actor or its node is lost; the
dispatcher retries. Datasets travel through Ray's object store, once to the cache of each node.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kcl.core.packages import load_package
from kcl.engines.dataset_file import DatasetFile
from kcl.engines.engine import ENDS, Engine, Event, Job, Message, Needs, RunningJob
from kcl.engines.worker import run_job
from kcl.errors import KclError
from kcl.training.stopping import Stop

REFRESH = 1.0
"""Seconds between two queries of the cluster's resources."""


class RayWorker:
    """The actor: does one job at a time, in a thread, so that it can be asked to stop meanwhile."""

    def __init__(self) -> None:
        self._stop = Stop()

    def run(self, text: str, contents: dict[str, list[Any]]) -> Iterator[str]:
        """The messages about a job, the first one says where it runs. `contents`: references to datasets by digest."""
        import ray

        def fetch(file: DatasetFile) -> bytes:
            return bytes(ray.get(contents[file.digest][0]))

        node = ray.get_runtime_context().get_node_id()
        worker = f"{socket.gethostname()}-{node[:4]}-{os.getpid()}"
        yield json.dumps({"kind": "started", "node": node, "worker": worker})
        messages = queue.SimpleQueue[Message]()
        arguments = (Job.from_json(text), messages.put, self._stop, fetch)
        threading.Thread(target=run_job, args=arguments, daemon=True).start()
        while True:
            message = messages.get()
            yield json.dumps(message)
            if message["kind"] in ENDS:
                return

    def stop(self) -> None:
        self._stop.signal = signal.SIGTERM


class _RayJob(RunningJob):
    """A job on an actor; `stream`: its messages."""

    def __init__(self, job: Job, actor: Any, stream: Any) -> None:
        super().__init__(job, "a worker not placed yet")
        self.actor, self.stream, self.node = actor, stream, ""


class RayEngine(Engine):
    """The cluster at an address, or a new one on this machine. `workers`: the most jobs at the same time."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self._ray = _connect(address)
        self._max_jobs = workers
        self._running: dict[Any, _RayJob] = {}
        self._idle: list[_RayJob] = []
        """The last job of every idle actor."""
        self._nodes: dict[str, str] = {}
        """The node of every worker."""
        self._contents: dict[str, list[Any]] = {}
        self._nodes_alive: dict[str, Needs] = {}
        """What every node has."""
        self._refreshed = -REFRESH
        self._actor = self._ray.remote(RayWorker)

    def device(self, requested: str) -> str:
        """auto takes GPUs if the cluster has some."""
        has_gpu = self._ray.cluster_resources().get("GPU", 0.0) > 0
        if requested == "cuda" and not has_gpu:
            raise KclError("--device cuda: the Ray cluster has no GPU; use --device cpu")
        return "cuda" if has_gpu and requested != "cpu" else "cpu"

    def room(self, needs: Needs) -> bool:
        if self._max_jobs is not None and len(self._running) >= self._max_jobs:
            return False
        if time.monotonic() - self._refreshed >= REFRESH:
            self._refreshed = time.monotonic()
            self._nodes_alive = {
                node["NodeID"]: Needs(node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0))
                for node in self._ray.nodes()
                if node["Alive"]
            }
        nodes, used = self._nodes_alive.values(), [running.job.needs for running in self._running.values()]
        cpus = sum(node.cpus for node in nodes) - sum(each.cpus for each in used)
        gpus = sum(node.gpus for node in nodes) - sum(each.gpus for each in used)
        return bool(self._large_enough(needs)) and needs.cpus <= cpus and needs.gpus <= gpus + 1e-9

    def _large_enough(self, needs: Needs) -> list[str]:
        """The nodes that could ever run such a job."""
        nodes = self._nodes_alive.items()
        return [name for name, node in nodes if node.cpus >= needs.cpus and node.gpus >= needs.gpus]

    def start(self, job: Job, avoid: str | None = None) -> None:
        for file in job.datasets:
            if file.digest not in self._contents:  # in a list, so that Ray passes on the reference, not the content
                self._contents[file.digest] = [self._ray.put(Path(file.path).read_bytes())]
        contents = {file.digest: self._contents[file.digest] for file in job.datasets}
        actor = self._actor_for(job.needs, avoid)
        stream = actor.run.options(num_returns="streaming").remote(job.to_json(), contents)
        self._running[stream] = _RayJob(job, actor, stream)

    def wait(self, seconds: float) -> list[Event]:
        if not self._running:
            time.sleep(seconds)
            return []
        streams = list(self._running)
        ready, _ = self._ray.wait(streams, num_returns=1, timeout=seconds, fetch_local=False)
        if ready:
            ready, _ = self._ray.wait(streams, num_returns=len(streams), timeout=0, fetch_local=False)
        events = [event for stream in ready for event in self._receive(self._running[stream])]
        if not all(running.node for running in self._running.values()):
            self._release_idle()  # a node was lost, and idle actors hold what is left
        return events

    def stop(self) -> None:
        for running in self._running.values():
            if running.node:
                running.actor.stop.remote()
            else:
                self._ray.kill(running.actor)  # it has not started, and perhaps never would

    def close(self) -> None:
        self._release_idle()
        for running in self._running.values():
            self._ray.kill(running.actor)
        self._running.clear()
        self._ray.shutdown()

    def _release_idle(self) -> None:
        for idle in self._idle:
            self._ray.kill(idle.actor)
        self._idle.clear()

    def _actor_for(self, needs: Needs, avoid: str | None) -> Any:
        """An idle actor or a new one; not the one to avoid, and if possible not on the same node."""
        avoided_node = self._nodes.get(avoid or "")
        for idle in self._idle:
            if idle.job.needs == needs and idle.node != avoided_node:
                self._idle.remove(idle)
                return idle.actor
        self._release_idle()  # they hold what the new one needs
        strategy: Any = "SPREAD"
        others = [node for node in self._large_enough(needs) if node != avoided_node]
        if avoided_node is not None and others:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            busy = [running.node for running in self._running.values()]
            strategy = NodeAffinitySchedulingStrategy(min(others, key=busy.count), soft=True)
        return self._actor.options(
            num_cpus=needs.cpus, num_gpus=needs.gpus, max_concurrency=2, scheduling_strategy=strategy
        ).remote()

    def _receive(self, running: _RayJob) -> list[Event]:
        """All messages of a job so far."""
        events: list[Event] = []
        try:
            more = True
            while more:
                message = json.loads(self._ray.get(next(running.stream)))
                if message["kind"] == "started":
                    running.node = self._nodes[message["worker"]] = message["node"]
                events += running.receive([message])
                more = running.end is None and self._ray.wait([running.stream], timeout=0, fetch_local=False)[0]
        except StopIteration:
            events += running.lost("the Ray worker is gone: it ended without a message")
        except self._ray.exceptions.RayError as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            events += running.lost(f"the Ray worker is gone: {reason}")
        if running.end is not None:
            del self._running[running.stream]
            if running.end == "done":
                self._idle.append(running)
            else:
                self._ray.kill(running.actor)
        return events


def _connect(address: str | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = load_package("ray", "ray", "--engine ray needs Ray")
    if address is not None and ":" in address and "/" not in address:
        host, _, port = address.rpartition(":")
        try:  # Ray itself would wait for a long time
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, ValueError, OverflowError) as error:
            raise KclError(f"no Ray cluster answers at {address}: {error}") from None
    try:
        with tempfile.TemporaryDirectory() as empty:  # or workers would import modules from the current folder
            ray.init(
                address=address,
                runtime_env={"working_dir": empty},
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False,
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        problem = f"the Ray cluster {address or 'of this machine'} cannot be used: {error}"
        hint = "" if address is None else "; if it asks for a token, set RAY_AUTH_MODE and RAY_AUTH_TOKEN"
        raise KclError(problem + hint) from None
    return ray
