"""The served page: this machine only, two addresses, nothing of the disk, and new results as they come."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kcl.cli.report_commands import live
from kcl.core import results
from kcl.errors import KclError
from kcl.report.live import LivePage
from kcl.report.unfinished import running

HEAD = (
    "run,benchmark,method,kernel,seed,tasks_learned,tasks,average_accuracy,forgetting,accuracy_on_newest_task,seconds"
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[LivePage]:
    (tmp_path / "secret.txt").write_text("a secret")
    with live([tmp_path / "runs"], "Live", lambda _: None) as server:
        yield server


def get(server: LivePage, path: str = "", **headers: str) -> str:
    request = urllib.request.Request(server.address + path, headers=headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        return answer.read().decode()


def test_results_are_shown_as_they_arrive(served: LivePage, tmp_path: Path, make_run) -> None:
    assert "No run is finished yet" in get(served)
    before = get(served, "version")
    assert f'data-version="{before}"' in get(served)
    results.append(tmp_path / "runs" / "one" / "results.jsonl", make_run())
    after = get(served, "version")
    assert after != before
    assert "89.00" in get(served)
    assert f'data-version="{after}"' in get(served)


def test_runs_that_go_on_are_shown(served: LivePage, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    rows = [
        "kcl seed 0,b,kcl,vrf,0,1,3,90.5,,90,1",
        "<b>,b,kcl,vrf,1,3,3,80,0.1,80,1",
        "<i>,b,kcl,vrf,2,2,3,70.25,0.5,9,1",
    ]
    (tmp_path / "runs" / "metrics.csv").write_text("\n".join([HEAD, *rows, "torn,b,kc"]))
    text = get(served)
    assert "<td>kcl seed 0</td><td>b</td><td>1</td><td>3</td><td>90.50</td><td>–</td>" in text
    assert "&lt;i&gt;" in text
    assert "&lt;b&gt;" not in text  # it has learned all its tasks


def test_only_the_newest_row_of_a_run_counts_and_nonsense_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(
        f"{HEAD}\nr,b,kcl,vrf,0,1,3,50,,50,1\nr,b,kcl,vrf,0,2,3,60,0.25,60,2\nr,b,kcl,vrf,0,x,3,60,0.25,60,2\n"
    )
    (row,) = running([file, tmp_path / "missing.csv"])
    assert row[2:] == (2, 3, "60.00", "0.250")
    file.write_bytes(b"\x00\xff" * 100)
    assert running([file]) == []


@pytest.mark.parametrize(
    "path",
    ["secret.txt", "../secret.txt", "%2e%2e/secret.txt", "runs/results.jsonl", "version/", "?x", "/etc/passwd",
     "..\\secret.txt", "index.html"],
)  # fmt: skip
def test_no_other_path_is_answered(served: LivePage, path: str) -> None:
    parts = urlsplit(served.address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    connection.request("GET", f"/{path}")  # as it stands: urllib would tidy it up
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (404, b"not found\n")
    connection.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_is_read_only(served: LivePage, method: str) -> None:
    parts = urlsplit(served.address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    connection.request(method, "/", body=b"x")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_page_of_elsewhere_cannot_read_it(served: LivePage) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(served, Host="evil.example:80")
    assert refused.value.code == 421
    refused.value.close()
    for host in (served.address.split("/")[2].replace("127.0.0.1", "localhost"), "localhost", "127.0.0.1"):
        assert "Live" in get(served, Host=host)  # browsers leave out port 80


def test_only_this_machine_reaches_it(served: LivePage) -> None:
    assert served.address.startswith("http://127.0.0.1:")
    own = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in own - {own_ for own_ in own if own_.startswith("127.")}:
        with socket.socket() as attempt:
            attempt.settimeout(2)
            assert attempt.connect_ex((address, int(served.address.rsplit(":", 1)[1].strip("/")))) != 0


def test_a_flawed_file_is_told_and_the_server_goes_on(served: LivePage, tmp_path: Path, make_run) -> None:
    path = tmp_path / "runs" / "results.jsonl"
    path.parent.mkdir()
    path.write_text("{}\n")
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(served)
    assert b"line 1" in refused.value.read()
    refused.value.close()
    path.unlink()
    results.append(path, make_run())
    assert "89.00" in get(served)


@pytest.mark.parametrize("path", ["", "version"])
def test_a_folder_that_vanishes_is_told(served: LivePage, path: str, capsys: Any) -> None:
    def vanished() -> list[Path]:
        raise FileNotFoundError(2, "No such file or directory", "runs/a")

    find, served._find = served._find, vanished
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(served, path)
    assert refused.value.code == 503
    refused.value.close()
    served._find = find
    assert get(served, path)
    assert "Traceback" not in capsys.readouterr().err


def test_a_port_that_is_taken_or_none_is_told(served: LivePage, tmp_path: Path) -> None:
    port = int(served.address.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(KclError, match="choose another --port"), live([tmp_path], "", print, port=port):
        pass
    with pytest.raises(KclError, match="from 0 to 65535"), live([tmp_path], "", print, port=70000):
        pass


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kcl", "report", str(tmp_path), "--live"], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        line = process.stderr.readline()
        assert line.startswith("live page: http://127.0.0.1:")
        process.send_signal(number)
        assert process.wait(timeout=30) == code
        assert process.stderr.read() == "kcl: stopped\n"
    finally:
        process.kill()
        process.stderr.close()


def test_the_browser_follows(open_page, served: LivePage, tmp_path: Path, make_run) -> None:
    visit = open_page(served.address)
    assert "No run is finished yet" in visit.text("#facts")
    file = tmp_path / "runs" / "results.jsonl"
    for seed in range(2):
        results.append(file, make_run(seed))
    visit.page.wait_for_selector("#runs-count:text('2 of 2 runs')", timeout=15000)
    assert visit.lines("average") == 1
    assert "2 seeds" in visit.text("#headline")
    visit.page.uncheck("#groups input")
    results.append(file, make_run(method="ewc"))
    visit.page.wait_for_selector("#runs-count:text('3 of 3 runs')", timeout=15000)
    assert visit.lines("average") == 0  # what was hidden stays hidden, and nothing is put in its place
    visit.page.goto("about:blank")  # before the server ends, of which the page would complain
