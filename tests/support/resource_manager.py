"""A ResourceManager that says of applications what a test wants it to say, over HTTP."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from typing_extensions import Self

from airflow_epochs.contracts import Connection
from airflow_epochs.spark.yarn import ADDRESS_EXTRA


class FakeManager:
    """Answers at ``address``.

    ``apps``: what it knows, as JSON. ``status``: what it answers to everybody; ``text``: the same. ``breaks_off``:
    answers lack their last byte. ``asked``: methods and paths. A PUT of a state is obeyed; a POST, which no
    ResourceManager knows, adds an application, once ``takes`` is set.
    """

    def __init__(self) -> None:
        self.apps: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.status = 200
        self.text: str | None = None
        self.breaks_off = False
        self.takes = Event()
        self.takes.set()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answered(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fake.asked.append(f"{self.command} {self.path}")
                content = fake.answer(self.command, self.path, json.loads(body or "null")).encode()
                self.send_response(fake.status)
                self.send_header("Content-Length", str(len(content) + fake.breaks_off))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = answered

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def connection(self) -> Connection:
        """A connection to YARN whose ResourceManager this is."""
        extra = {"deploy-mode": "cluster", ADDRESS_EXTRA: self.address}
        return Connection(conn_id="spark", conn_type="spark", host="yarn", extra=extra)

    def add(self, tag: str, state: str = "RUNNING", final: str = "UNDEFINED", **more: Any) -> dict[str, Any]:
        """One more application, started after the others."""
        number = len(self.apps) + 1
        told = {"id": f"application_1_{number:04}", "state": state, "finalStatus": final, "startedTime": number}
        self.apps.append({**told, "applicationTags": tag, "trackingUrl": f"http://rm/proxy/{number}", **more})
        return self.apps[-1]

    def finish(self, state: str = "FINISHED", final: str = "SUCCEEDED", diagnostics: str = "") -> None:
        """The end of the newest application."""
        self.apps[-1].update(state=state, finalStatus=final, diagnostics=diagnostics)

    def answer(self, method: str, path: str, body: Any) -> str:
        if self.text is not None:
            return self.text
        if method == "POST":
            self.takes.wait(10)
            return json.dumps(self.add(body["tag"]))
        asked = urlsplit(path)
        if method == "PUT":
            [app] = [each for each in self.apps if each["id"] == asked.path.split("/")[-2]]
            app.update(state=body["state"], finalStatus="KILLED", diagnostics="Application killed by user.")
            return json.dumps(body)
        [tag] = parse_qs(asked.query)["applicationTags"]
        found = [app for app in self.apps if tag in app["applicationTags"].split(",")]
        return json.dumps({"apps": {"app": found} if found else None})
