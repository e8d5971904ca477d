"""A door with TLS in front of a schema registry. It asks for a password, a token or a certificate."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.support.kafka_certificates import Authority

USER, PASSWORD = "reader", "pa:ss-w0rd"
CLIENT, CLIENT_SECRET, TOKEN = "epochs", "cl13nt-s3cret", "t0k3n-of-the-gate"
BASIC = "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode()
BEARER = f"Bearer {TOKEN}"


class Gate:
    """A registry at ``url``. Clients trust it with the certificates in ``ca``."""

    def __init__(self, folder: Path, upstream: str, *, entry: str | None, needs_certificate: bool = False) -> None:
        folder.mkdir(parents=True)
        authority = Authority("the registry's")
        self.folder, self.upstream, self.entry = folder, upstream, entry
        self.ca = self._file("ca.pem", authority.pem)
        self.certificate, self.key = self._pair(authority, "client")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._pair(authority, "registry"))
        if needs_certificate:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        self.server = _Server(("127.0.0.1", 0), self._handler())
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.server.server_port}"

    def _file(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def _pair(self, authority: Authority, name: str) -> tuple[str, str]:
        pair = authority.issue(name)
        return self._file(f"{name}.pem", pair.certificate_pem), self._file(f"{name}.key", pair.key_pem())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(*gate.passed(self.path, None, dict(self.headers)))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                told = gate.token(self.headers["Authorization"]) if self.path == "/token" else None
                self._answer(*(told or gate.passed(self.path, body, dict(self.headers))))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        return Handler

    def token(self, authorization: str | None) -> tuple[int, bytes]:
        """What the endpoint of tokens says to a client (RFC 6749, section 4.4)."""
        if authorization != "Basic " + b64encode(f"{CLIENT}:{CLIENT_SECRET}".encode()).decode():
            return 401, json.dumps({"error": "invalid_client"}).encode()
        return 200, json.dumps({"access_token": TOKEN, "token_type": "Bearer", "expires_in": 300}).encode()

    def passed(self, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """What the registry answers to those who may enter."""
        if self.entry not in (None, headers.get("Authorization")):
            return 401, b'{"error_code": 40101, "message": "Unauthorized"}'
        kept = {name: headers[name] for name in ("Accept", "Content-Type") if name in headers}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.upstream + path, body, kept), timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *args: object) -> None:
        """Say nothing: clients that the door does not trust break off."""


@contextmanager
def gate(folder: Path, upstream: str, *, entry: str | None = None, needs_certificate: bool = False) -> Iterator[Gate]:
    """A gate that answers. ``entry``: the header ``Authorization`` that opens it, if it wants one."""
    door = Gate(folder, upstream, entry=entry, needs_certificate=needs_certificate)
    thread = Thread(target=door.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield door
    finally:
        door.server.shutdown()
        thread.join()
        door.server.server_close()
