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
from kcl.engines.engine import Engine, Worker
from kcl.engines.job import ENDS, Job, Message, Needs
from kcl.engines.worker import run_job
from kcl.errors import KclError
from kcl.training.stopping import Stop

REFRESH = 1.0
"""Seconds between two queries of the cluster's resources."""


class Actor:
    """Does one job at a time, in a thread, so that it can be asked to stop meanwhile."""

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


class RayWorker(Worker):
    """An actor, and the engine that knows the contents of datasets."""

    def __init__(self, engine: RayEngine, needs: Needs, actor: Any) -> None:
        super().__init__("a worker not placed yet", needs)
        self._engine, self._ray, self._actor, self.placed = engine, engine.ray, actor, False

    def do(self, job: Job) -> Iterator[Message]:
        contents = {file.digest: self._engine.content(file) for file in job.datasets}
        return self._messages(self._actor.run.options(num_returns="streaming").remote(job.to_json(), contents))

    def _messages(self, stream: Iterator[Any]) -> Iterator[Message]:
        try:
            for reference in stream:
                message = json.loads(self._ray.get(reference))
                self.placed = True
                yield message
                if message["kind"] in ENDS:
                    return
            reason = "it ended without a message"
        except self._ray.exceptions.RayError as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        yield {"kind": "lost", "error": f"the Ray worker is gone: {reason}"}

    def stop(self) -> None:
        if self.placed:
            self._actor.stop.remote()
        else:
            self.close()  # it has not started, and perhaps never would

    def close(self) -> None:
        self._ray.kill(self._actor)


class RayEngine(Engine):
    """The cluster at an address, or a new one on this machine. `workers`: the most jobs at the same time.

    `device`: auto takes GPUs if the cluster has some.
    """

    def __init__(self, address: str | None = None, workers: int | None = None, device: str = "auto") -> None:
        super().__init__(workers)
        self.ray = _connect(address)
        has_gpu = self.ray.cluster_resources().get("GPU", 0.0) > 0
        if device == "cuda" and not has_gpu:
            raise KclError("--device cuda: the Ray cluster has no GPU; use --device cpu")
        self.device = "cuda" if has_gpu and device != "cpu" else "cpu"
        self._contents: dict[str, list[Any]] = {}
        self._nodes_alive: dict[str, Needs] = {}
        """What every node has."""
        self._refreshed = -REFRESH
        self._actor = self.ray.remote(Actor)

    def content(self, file: DatasetFile) -> list[Any]:
        """The reference to a dataset; in a list, so that Ray passes on the reference, not the content."""
        if file.digest not in self._contents:
            self._contents[file.digest] = [self.ray.put(Path(file.path).read_bytes())]
        return self._contents[file.digest]

    def room(self, needs: Needs) -> bool:
        if time.monotonic() - self._refreshed >= REFRESH:
            self._refreshed = time.monotonic()
            self._nodes_alive = {
                node["NodeID"]: Needs(node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0))
                for node in self.ray.nodes()
                if node["Alive"]
            }
        nodes, used = self._nodes_alive.values(), [worker.needs for worker in self.busy]
        cpus = sum(node.cpus for node in nodes) - sum(each.cpus for each in used)
        gpus = sum(node.gpus for node in nodes) - sum(each.gpus for each in used)
        enough = bool(self._large_enough(needs)) and needs.cpus <= cpus and needs.gpus <= gpus + 1e-9
        return enough and super().room(needs)

    def _large_enough(self, needs: Needs) -> list[str]:
        """The nodes that could ever run such a job."""
        nodes = self._nodes_alive.items()
        return [name for name, node in nodes if node.cpus >= needs.cpus and node.gpus >= needs.gpus]

    def hire(self, needs: Needs, avoid: str | None) -> Worker:
        strategy: Any = "SPREAD"
        others = [node for node in self._large_enough(needs) if node != avoid]
        if avoid is not None and others:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            busy = [worker.node for worker in self.busy]
            strategy = NodeAffinitySchedulingStrategy(min(others, key=busy.count), soft=True)
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "scheduling_strategy": strategy}
        return RayWorker(self, needs, self._actor.options(max_concurrency=2, **options).remote())

    def close(self) -> None:
        self.ray.shutdown()


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
