"""A Ray cluster: an actor for every group in flight, kept for the next one; what it says streams back.

Orders go out and answers come back as JSON. Ray carries them, places actors by what they need, and says when one or its
node has gone; trying again is the dispatcher's. Data travel through Ray's object store, once to each node's cache.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kcl.engines.engine import Engine, Event
from kcl.engines.job import ENDS, Message, Needs, Order, Parcel
from kcl.engines.worker import do
from kcl.errors import KclError
from kcl.training.stopping import Stop

INSTALL = 'pip install "kernel-continual-learning[ray]"'
LOOK = 1.0
"""Seconds for which what the cluster has is taken to be the same."""


class Hand:
    """The actor: does one order at a time, in a thread, so that it can be asked to stop meanwhile."""

    def __init__(self) -> None:
        self._stop = Stop()

    def do(self, text: str, data: dict[str, list[Any]]) -> Iterator[str]:
        """What is told, as it is told; first where this is. `data`: by digest, a reference to the content."""
        import ray

        def fetch(wanted: Parcel) -> bytes:
            return bytes(ray.get(data[wanted.digest][0]))

        node = ray.get_runtime_context().get_node_id()
        yield json.dumps({"kind": "here", "node": node, "worker": f"{socket.gethostname()}-{node[:4]}-{os.getpid()}"})
        told = queue.SimpleQueue[Message]()
        threading.Thread(target=do, args=(Order.from_json(text), told.put, self._stop, fetch), daemon=True).start()
        while True:
            message = told.get()
            yield json.dumps(message)
            if message["kind"] in ENDS:
                return

    def stop(self) -> None:
        self._stop.asked = signal.SIGTERM


class _Task:
    """An order in flight on an actor."""

    def __init__(self, order: Order, actor: Any, told: Any) -> None:
        self.order, self.actor, self.told = order, actor, told
        self.worker, self.node, self.ended = "a worker not placed yet", "", False


class RayCluster(Engine):
    """The cluster at an address, or one of its own on this machine. `workers`: groups at the same time, at most."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self._ray = _connect(address)
        self._most = workers
        self._tasks: dict[Any, _Task] = {}
        self._idle: list[tuple[Needs, str, str, Any]] = []
        self._nodes: dict[str, str] = {}
        """Which node each worker was on."""
        self._data: dict[str, list[Any]] = {}
        self._alive: list[dict[str, Any]] = []
        """The nodes, as they were when they were last looked at."""
        self._looked = -LOOK
        self._actor = self._ray.remote(Hand)

    def device(self, asked: str) -> str:
        """auto takes GPUs where the cluster has some."""
        has = self._ray.cluster_resources().get("GPU", 0.0) > 0
        if asked == "cuda" and not has:
            raise KclError("--device cuda: the Ray cluster has no GPU; use --device cpu")
        return "cuda" if has and asked != "cpu" else "cpu"

    def room(self, needs: Needs) -> bool:
        if self._most is not None and len(self._tasks) >= self._most:
            return False
        if time.monotonic() - self._looked >= LOOK:
            self._looked, self._alive = time.monotonic(), [node for node in self._ray.nodes() if node["Alive"]]
        if not self._large_enough(needs):
            return False
        used = [task.order.needs for task in self._tasks.values()]
        cpus = sum(node["Resources"].get("CPU", 0) for node in self._alive) - sum(own.cpus for own in used)
        gpus = sum(node["Resources"].get("GPU", 0) for node in self._alive) - sum(own.gpus for own in used)
        return needs.cpus <= cpus and needs.gpus <= gpus + 1e-9

    def _large_enough(self, needs: Needs) -> list[str]:
        """The nodes on which such an order could ever be."""
        return [
            node["NodeID"]
            for node in self._alive
            if node["Resources"].get("CPU", 0) >= needs.cpus and node["Resources"].get("GPU", 0) >= needs.gpus
        ]

    def start(self, order: Order, avoid: str | None = None) -> None:
        for parcel in order.parcels:
            if parcel.digest not in self._data:  # in a list, so that Ray hands on the reference, not the content
                self._data[parcel.digest] = [self._ray.put(Path(parcel.path).read_bytes())]
        data = {parcel.digest: self._data[parcel.digest] for parcel in order.parcels}
        actor = self._hand(order.needs, avoid)
        task = _Task(order, actor, actor.do.options(num_returns="streaming").remote(order.to_json(), data))
        self._tasks[task.told] = task

    def wait(self, seconds: float) -> list[Event]:
        if not self._tasks:
            time.sleep(seconds)
            return []
        events: list[Event] = []
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=seconds, fetch_local=False)
        if ready:
            ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0, fetch_local=False)
        for told in ready:
            events += self._listen(self._tasks[told])
        if not all(task.node for task in self._tasks.values()):
            self._let_go()  # a node has gone, and what is left is held by the idle
        return events

    def stop(self) -> None:
        for task in self._tasks.values():
            if task.node:
                task.actor.stop.remote()
            else:
                self._ray.kill(task.actor)  # it has not begun, and perhaps never would

    def close(self) -> None:
        self._let_go()
        for task in self._tasks.values():
            self._ray.kill(task.actor)
        self._tasks.clear()
        self._ray.shutdown()

    def _let_go(self) -> None:
        for *_, actor in self._idle:
            self._ray.kill(actor)
        self._idle.clear()

    def _hand(self, needs: Needs, avoid: str | None) -> Any:
        """An actor that is idle, or a new one; not the one to be avoided, nor on its node where there is another."""
        shunned = self._nodes.get(avoid or "")
        for place, (own, worker, node, actor) in enumerate(self._idle):
            if own == needs and worker != avoid and node != shunned:
                del self._idle[place]
                return actor
        self._let_go()  # they hold what the new one needs
        options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_concurrency": 2}
        return self._actor.options(**options, scheduling_strategy=self._strategy(needs, shunned)).remote()

    def _strategy(self, needs: Needs, shunned: str | None) -> Any:
        others = [node for node in self._large_enough(needs) if node != shunned]
        if shunned is None or not others:
            return "SPREAD"
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        busy = [task.node for task in self._tasks.values()]
        return NodeAffinitySchedulingStrategy(min(others, key=busy.count), soft=True)

    def _listen(self, task: _Task) -> list[Event]:
        """All that an order has to say by now."""
        found: list[Event] = []
        try:
            while True:
                message = json.loads(self._ray.get(next(task.told)))
                if message["kind"] == "here":
                    task.worker, task.node = message["worker"], message["node"]
                    self._nodes[task.worker] = task.node
                else:
                    found.append(Event(task.order.name, task.worker, message))
                    task.ended = message["kind"] in ENDS
                if task.ended or not self._ray.wait([task.told], timeout=0, fetch_local=False)[0]:
                    break
        except StopIteration:
            found.append(self._lost(task, "it ended without a word"))
        except self._ray.exceptions.RayError as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            found.append(self._lost(task, reason))
        if task.ended:
            del self._tasks[task.told]
            if found[-1].message["kind"] == "done":
                self._idle.append((task.order.needs, task.worker, task.node, task.actor))
            else:
                self._ray.kill(task.actor)
        return found

    def _lost(self, task: _Task, reason: str) -> Event:
        task.ended = True
        return Event(task.order.name, task.worker, {"kind": "lost", "error": f"the Ray worker is gone: {reason}"})


def _connect(address: str | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise KclError(f"--engine ray needs Ray; install it: {INSTALL}") from None
    if address is not None and ":" in address and "/" not in address:
        host, _, port = address.rpartition(":")
        try:  # Ray itself would wait long for an answer
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, ValueError, OverflowError) as error:
            raise KclError(f"no Ray cluster answers at {address}: {error}") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        told = f"the Ray cluster {address or 'of this machine'} cannot be used: {error}"
        hint = "" if address is None else "; if it asks for a token, set RAY_AUTH_MODE and RAY_AUTH_TOKEN"
        raise KclError(told + hint) from None
    return ray
