"""``s3_program.py PORT``: serves S3 (moto) on 127.0.0.1, all of it in memory.

For a request with ``If-None-Match``, moto looks for the object and then stores it, without a lock: of two puts of a
key, both may win. S3 lets one win. So here one conditional write runs at a time.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class ConditionalWritesInTurn:
    """A WSGI application around another one, which gets at most one request with ``If-None-Match`` at a time."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self._turn = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """As PEP 3333 says."""
        if "HTTP_IF_NONE_MATCH" not in environ:
            return self._application(environ, start_response)
        read_the_body(environ)  # before the turn: a client that stops in the middle must hold up nobody else
        with self._turn:
            return list(self._application(environ, start_response))


def read_the_body(environ: WSGIEnvironment) -> None:
    """Take the request's body from the connection, and leave it in memory for the application."""
    from werkzeug.wsgi import get_input_stream

    environ["wsgi.input"] = io.BytesIO(get_input_stream(environ).read())


def main() -> None:
    """Serve until a signal ends the process."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple

    moto: Any = DomainDispatcherApplication(create_backend_app)
    port = int(sys.argv[1])
    run_simple("127.0.0.1", port, ConditionalWritesInTurn(moto), threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
