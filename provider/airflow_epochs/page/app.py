"""The application of the Epochs page: FastAPI, HTML made by the server, and one script that draws charts.

There is no bundle and no build: what a person sees is a few tables, and those work without any script.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from airflow_epochs.errors import BadArgument, EpochError
from airflow_epochs.page import acting, manual, routes
from airflow_epochs.page.render import argument_page, error_page, mistyped_page, refusal_page

STATIC = Path(str(files("airflow_epochs.page"))) / "static"
_HEADERS = {
    # no script or style but ours, no request to another host, no frame but Airflow's own page
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'self'; "
    "base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


def make_app() -> FastAPI:
    """The application, to be mounted in Airflow's API server."""
    app = FastAPI(title="Epochs", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.include_router(routes.router)
    app.include_router(acting.router)
    app.include_router(manual.router)
    app.add_exception_handler(EpochError, error_page)
    app.add_exception_handler(BadArgument, argument_page)
    app.add_exception_handler(HTTPException, refusal_page)
    app.add_exception_handler(RequestValidationError, mistyped_page)
    app.middleware("http")(_with_headers)
    return app


async def _with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    answer = await call_next(request)
    answer.headers.update(_HEADERS)
    if "/static/" not in request.url.path:
        answer.headers["Cache-Control"] = "no-store"
    return answer
