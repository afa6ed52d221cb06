"""A relay before a hub that can cut uploads, change what is served, answer for the hub, and say what passed."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_OF_ONE_HOP = {"connection", "content-length", "transfer-encoding", "date", "server"}


class Passed(NamedTuple):
    """One request that came by."""

    method: str
    path: str
    authorization: str | None


class Relay:
    """Forwards to `hub_url`; a context manager. Faults are attributes that can be changed at any time."""

    def __init__(self, hub_url: str) -> None:
        self._hub = urlsplit(hub_url).netloc
        self.passed: list[Passed] = []
        self.cut_uploads = 0
        """How many of the next uploads end after a few bytes."""
        self.stalled = threading.Event()
        """Set when an upload was reached that is to hang."""
        self.stalls_uploads = False
        self.files_change = False
        """Whether wheels and archives are served with another last byte."""
        self.redirects_to: str | None = None
        """Another address that every request is sent on to."""
        self.statuses: list[tuple[str, int]] = []
        """Part of a path and a status, each answered once instead of asking the hub."""
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def _forward(self) -> None:
                relay.forward(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _forward

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._released = threading.Event()

    def __enter__(self) -> Relay:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def forward(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        self.passed.append(
            Passed(request.command, request.path, request.headers.get("Authorization"))
        )
        is_upload = request.command == "PUT" or request.path.endswith("/samples")
        if is_upload and self._is_lost(request):
            request.close_connection = True
            return
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if self.redirects_to is not None:
            self._answer(request, 307, {"Location": self.redirects_to + request.path}, b"")
            return
        for fault in self.statuses:
            if fault[0] in request.path:
                self.statuses.remove(fault)
                self._answer(request, fault[1], {"Content-Type": "application/json"}, b"{}")
                return
        connection = http.client.HTTPConnection(self._hub, timeout=30)
        try:
            self._pass_on(request, connection, body)
        except OSError:
            request.close_connection = True  # one of the two has gone, as in real life
        finally:
            connection.close()

    def _pass_on(
        self, request: BaseHTTPRequestHandler, connection: http.client.HTTPConnection, body: bytes
    ) -> None:
        connection.putrequest(
            request.command, request.path, skip_host=True, skip_accept_encoding=True
        )
        for name, value in request.headers.items():
            if name.lower() not in ("connection", "accept-encoding"):
                connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        content = answer.read()
        if self.files_change and request.path.startswith("/files/") and content:
            content = content[:-1] + bytes([content[-1] ^ 1])
        headers = {k: v for k, v in answer.getheaders() if k.lower() not in _OF_ONE_HOP}
        length = answer.getheader("Content-Length") if request.command == "HEAD" else None
        self._answer(request, answer.status, headers, content, length)

    def _is_lost(self, request: BaseHTTPRequestHandler) -> bool:
        if self.stalls_uploads:
            self.stalled.set()
            self._released.wait(30)
            return True
        if self.cut_uploads > 0 and request.path.startswith("/upload/"):
            self.cut_uploads -= 1
            request.rfile.read(10)
            return True
        return False

    def _answer(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        content: bytes,
        length: str | None = None,
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", length or str(len(content)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)
