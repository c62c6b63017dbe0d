"""The live page among connections that are cut, silent, endless or nonsense, while its folders come and go."""

from __future__ import annotations

import contextlib
import http.client
import io
import random
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import NamedTuple

from kcl.cli.report_commands import live
from kcl.report.live import LOCAL

SECONDS = 10.0


class Answered(NamedTuple):
    connections: int
    requests: int
    """Whole requests in between: each was answered."""
    told: int
    """Of these, how many were told of a file or folder that could not be read."""
    slowest_seconds: float


def torture(folder: Path, connections: int, line: bytes, seed: int = 0) -> Answered:
    """`line`: a run's line of `results.jsonl`. AssertionError if a whole request is unanswered or a traceback seen."""
    randomness, errors, over = random.Random(seed), io.StringIO(), threading.Event()
    held: list[socket.socket] = []
    requests, told, slowest = 0, 0, 0.0
    with contextlib.redirect_stderr(errors), live([folder], "Live", lambda _: None) as server:
        port = server.server_address[1]
        mover = threading.Thread(target=_come_and_go, args=(folder, line, over, seed))
        mover.start()
        try:
            for number in range(connections):
                one = socket.create_connection((LOCAL, port), timeout=SECONDS)
                with contextlib.suppress(OSError):
                    one.sendall(_nonsense(randomness))
                if randomness.random() < 0.5:
                    one.close()
                else:
                    held.append(one)
                if len(held) > 300:
                    held.pop(randomness.randrange(len(held))).close()
                if number % 5 == 0:
                    begun = time.monotonic()
                    status = _asked(port, "/" if number % 10 else "/version")
                    assert status in (200, 503), status
                    told += status == 503
                    requests, slowest = requests + 1, max(slowest, time.monotonic() - begun)
        finally:
            over.set()
            mover.join()
            for one in held:
                one.close()
    assert "Traceback" not in errors.getvalue(), errors.getvalue()
    return Answered(connections, requests, told, slowest)


def _nonsense(randomness: random.Random) -> bytes:
    return randomness.choice(
        [
            b"",
            b"GET / HT",
            b"GET / HTTP/1.1\r\nHost: ",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            b"POST /version HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n",
            b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            b"GET /version HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
            b"GET /" + b"a" * 70_000,
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200,
            randomness.randbytes(randomness.randrange(1, 2000)),
        ]
    )


def _asked(port: int, path: str) -> int:
    connection = http.client.HTTPConnection(LOCAL, port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def _come_and_go(folder: Path, line: bytes, over: threading.Event, seed: int) -> None:
    randomness = random.Random(seed)
    while not over.is_set():
        place = folder / str(randomness.randrange(5)) / str(randomness.randrange(5))
        if randomness.random() < 0.5:
            place.mkdir(parents=True, exist_ok=True)
            (place / "results.jsonl").write_bytes(line * randomness.randrange(3) + line[: randomness.randrange(99)])
        else:
            shutil.rmtree(randomness.choice([place, place.parent]), ignore_errors=True)
        time.sleep(0.001)
