"""A proxy in front of S3 that meddles with answers: ones that get lost, writes that are refused, files that are old."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TypeVar
from urllib.parse import urlsplit

_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_LAST_MODIFIED = re.compile(rb"<LastModified>([^<]+)</LastModified>")


@dataclass
class Answer:
    """What S3 says."""

    status: int
    content: bytes
    headers: list[tuple[str, str]]


Ask = Callable[[], Answer]
Self = TypeVar("Self", bound="S3Proxy")


class S3Proxy:
    """Forwards to S3 all that it is asked."""

    def __init__(self, endpoint: str) -> None:
        self._upstream = urlsplit(endpoint).netloc
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = proxy.answer(self.command, self.path, lambda: proxy._asked(self, body))
                self.send_response(answer.status)
                given = {key.lower(): value for key, value in answer.headers}
                for key, value in answer.headers:
                    if key.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                        self.send_header(key, value)
                of_head = self.command == "HEAD"
                length = given.get("content-length", "0") if of_head else str(len(answer.content))
                self.send_header("Content-Length", length)
                self.end_headers()
                if not of_head:
                    self.wfile.write(answer.content)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def answer(self, command: str, path: str, ask: Ask) -> Answer:
        """What the client gets; ``ask`` asks S3."""
        return ask()

    def _asked(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        server = http.client.HTTPConnection(self._upstream)
        server.request(handler.command, handler.path, body, dict(handler.headers))
        answer = server.getresponse()
        found = Answer(answer.status, answer.read(), answer.getheaders())
        server.close()
        return found

    def __enter__(self: Self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class LossyProxy(S3Proxy):
    """While ``losing`` is set, a PUT of a table's log entry is applied and answered with an error."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.losing, self.lost = False, 0

    def answer(self, command: str, path: str, ask: Ask) -> Answer:
        answer = ask()
        if self.losing and command == "PUT" and "/orders/_delta_log/0" in path and answer.status == 200:
            self.lost += 1
            return Answer(503, b"", answer.headers)
        return answer


class WriteOnceProxy(S3Proxy):
    """Parquet files cannot be written any more, as under a policy of their bucket."""

    def answer(self, command: str, path: str, ask: Ask) -> Answer:
        if command in ("PUT", "POST") and ".parquet" in path:
            return Answer(403, _DENIED, [("Content-Type", "application/xml")])
        return ask()


class DenyingProxy(S3Proxy):
    """Refuses to give ``left`` times a checkpoint of a table's log."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.left = 0

    def answer(self, command: str, path: str, ask: Ask) -> Answer:
        if command != "PUT" and self.left and ".checkpoint.parquet" in path:
            self.left -= 1
            return Answer(403, _DENIED, [("Content-Type", "application/xml")])
        return ask()


class AgeingProxy(S3Proxy):
    """Lists what was written up to ``until`` as older by ``by`` than it is."""

    def __init__(self, endpoint: str, until: datetime, by: timedelta) -> None:
        super().__init__(endpoint)
        self._until, self._by = until, by

    def answer(self, command: str, path: str, ask: Ask) -> Answer:
        answer = ask()
        if command == "GET" and "list-type=2" in path:
            answer.content = _LAST_MODIFIED.sub(self._aged, answer.content)
        return answer

    def _aged(self, found: re.Match[bytes]) -> bytes:
        at = datetime.strptime(found[1].decode(), "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        shown = at - self._by if at <= self._until else at
        return f"<LastModified>{shown:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>".encode()
