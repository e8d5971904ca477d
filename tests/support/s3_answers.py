"""A small S3 that keeps objects in memory, and that gives the answers of S3's own errors while a test says so."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

ERROR = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>{}</Code><Message>{}</Message><RequestId>7</RequestId></Error>"""
LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult><Name>bucket</Name><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"""


class AnsweringS3:
    """``says``: the status, code and message that every request gets; None: S3 does its work."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.objects: dict[str, bytes] = {}
        self.says: tuple[int, str, str] | None = None

    @property
    def options(self) -> dict[str, str]:
        """As the ``object_store`` crate names them."""
        given = {"aws_endpoint": self.endpoint, "allow_http": "true", "aws_region": "eu-1"}
        return {**given, "aws_access_key_id": "id", "aws_secret_access_key": "hunter2hunter2"}


@contextmanager
def answering_s3() -> Iterator[AnsweringS3]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        found = AnsweringS3(f"http://127.0.0.1:{server.server_port}")
        vars(server)["s3"] = found
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield found
        server.shutdown()


class Answering(BaseHTTPRequestHandler):
    """Answers as S3 does: with the headers that its clients need, and without a body to HEAD."""

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test tells."""


class _Handler(Answering):
    def do_PUT(self) -> None:
        value = self.rfile.read(int(self.headers["Content-Length"]))
        if self._works():
            taken = self.headers.get("If-None-Match") == "*" and self.path in self._s3.objects
            self._s3.objects.setdefault(self.path, value)
            self.answer(412 if taken else 200)

    def do_GET(self) -> None:
        if not self._works():
            return
        value = (
            LISTING.encode() if re.search("list-type", self.path) else self._s3.objects.get(urlsplit(self.path).path)
        )
        gone = ERROR.format("NoSuchKey", "The specified key does not exist.").encode()
        self.answer(404, gone) if value is None else self.answer(200, value)

    def do_HEAD(self) -> None:
        if self._works():
            self.answer(200 if self.path in self._s3.objects else 404)

    def do_DELETE(self) -> None:
        if self._works():
            self._s3.objects.pop(self.path, None)
            self.answer(204)

    @property
    def _s3(self) -> AnsweringS3:
        found: AnsweringS3 = vars(self.server)["s3"]
        return found

    def _works(self) -> bool:
        if self._s3.says is None:
            return True
        status, code, message = self._s3.says
        self.answer(status, ERROR.format(code, message).encode())
        return False
