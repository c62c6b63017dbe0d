"""The page of folders that still grow, served to this machine: it follows the results as they arrive.

It answers two addresses, the page and its version; no part of a request becomes a path, and nothing is written.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kcl.errors import KclError

LOCAL = "127.0.0.1"


class LivePage(ThreadingHTTPServer):
    """Serves the page of the files as they are now, built again only when they have changed, until it is closed.

    Only this machine reaches it unless another host is named.
    """

    daemon_threads = True

    def __init__(
        self,
        find: Callable[[], Sequence[Path]],
        make: Callable[[Sequence[Path], str], str],
        host: str = LOCAL,
        port: int = 0,
    ) -> None:
        self._find, self._make = find, make
        self._lock = threading.Lock()
        self._version, self._content = "", b""
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise KclError(f"cannot serve on {host}, port {port}: {reason}; choose another --port") from None
        self.address, self.is_local = f"http://{host}:{self.server_address[1]}/", host == LOCAL

    def version(self) -> str:
        """Changes with the files: which there are, how long and how new."""
        seen = []
        for path in self._find():
            try:
                status = path.stat()
            except OSError:  # deleted in the meantime
                continue
            seen.append(f"{path}\0{status.st_size}\0{status.st_mtime_ns}")
        return hashlib.sha256("\n".join(seen).encode(errors="replace")).hexdigest()[:16]

    def content(self) -> bytes:
        with self._lock:
            version = self.version()
            if version != self._version:
                self._content = self._make(self._find(), version).encode(errors="replace")
                self._version = version
            return self._content

    def start(self) -> None:
        """Serve in the background."""
        threading.Thread(target=self.serve_forever, name="kcl live page", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that is gone is not worth a traceback, whatever was being sent to it."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: LivePage
    server_version, sys_version, timeout = "kcl", "", 30

    def do_GET(self) -> None:
        # DNS rebinding: a foreign page whose name resolves to this machine still sends its own name.
        named = self.headers.get("Host", "").partition(":")[0]  # browsers leave out port 80
        answers = {
            "/": (self.server.content, "text/html; charset=utf-8"),
            "/version": (lambda: self.server.version().encode(), "text/plain"),
        }
        if self.server.is_local and named not in (LOCAL, "localhost"):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"unknown host\n", "text/plain")
        elif self.path not in answers:
            self._send(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain")
        else:
            make, kind = answers[self.path]
            try:
                content = make()
            except (KclError, OSError) as error:  # a flawed file, or a folder that vanishes while it is looked through
                message = f"kcl: {error}\n".encode(errors="replace")
                self._send(HTTPStatus.SERVICE_UNAVAILABLE, message, "text/plain; charset=utf-8")
            else:
                self._send(HTTPStatus.OK, content, kind)

    do_HEAD = do_GET

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """A request every two seconds is not worth a line."""
