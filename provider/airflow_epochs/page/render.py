"""Turns values into HTML. Every value is escaped by Jinja2."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.exceptions import HTTPException

from airflow_epochs.coordinator.reasons import reason_and_remedy
from airflow_epochs.errors import BadArgument, EpochError, Refused, cause_and_remedy, filled, with_remedy
from airflow_epochs.ledger.queries import causes_of
from airflow_epochs.model import DecisionRecord
from airflow_epochs.names import PAGE
from airflow_epochs.operators.wording import of_page

_UNITS = ("B", "kB", "MB", "GB", "TB")


def grouped(number: float | None) -> str:
    """A number with its thousands apart; empty for None."""
    return "" if number is None else f"{number:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def sized(number: float) -> str:
    """A number of bytes, such as ``1.5 MB``."""
    for unit in _UNITS:
        if number < 1000 or unit == _UNITS[-1]:
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def lasted(seconds: float | None) -> str:
    """A duration, such as ``1.5 s`` or ``2 min 3 s``; empty for None."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def instant(text: str | None) -> datetime | None:
    """ISO 8601 as an instant; None if it is not ISO 8601: a forged record may hold anything."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def cause(reason: str) -> str:
    """A vote's reason without what it asks for: after an abort, ``remedy`` says that."""
    return cause_and_remedy(reason)[0]


def remedy(decision: DecisionRecord) -> str:
    """What to do after an abort, in every layout; empty if no vote says it."""
    said = reason_and_remedy(decision)[1]
    return filled(said, PIPELINE=decision.txn_id.pipeline)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("airflow_epochs.page"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "grouped": grouped,
        "sized": sized,
        "lasted": lasted,
        "cause": cause,
        "causes": causes_of,
        "remedy": remedy,
    }
    return made


_ENVIRONMENT = _environment()


def page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A template, filled. ``here`` and ``airflow``: the paths of this application and of Airflow's UI."""
    here = str(request.scope.get("root_path", ""))
    found = _ENVIRONMENT.get_template(template)
    return HTMLResponse(found.render(here=here, airflow=here.removesuffix(PAGE), **values), status)


def path_of(request: Request, conn_id: str, pipeline: str) -> str:
    """The path of a pipeline's page."""
    return f"{request.scope.get('root_path', '')}/pipelines/{quote(conn_id, safe='')}/{quote(pipeline, safe='')}"


def error_page(request: Request, error: Exception) -> Response:
    """An error of ours: cause, place and remedy, a line each."""
    assert isinstance(error, EpochError)
    error.pipeline = error.pipeline or request.path_params.get("pipeline")
    title, status = _heading(request, error)
    return _error_page(request, status, title, str(of_page(error)).splitlines())


def _heading(request: Request, error: EpochError) -> tuple[str, int]:
    if isinstance(error, Refused) and "/actions/" in request.url.path:
        return "Nothing was changed", 409
    return ("The action did not end" if request.method == "POST" else "The ledger cannot be shown"), 500


def argument_page(request: Request, error: Exception) -> Response:
    """The page for an error in what a user has typed."""
    assert isinstance(error, BadArgument)
    remedy = filled(error.code.remedy, PIPELINE=request.path_params.get("pipeline"))
    return _error_page(request, 422, "Nothing was changed", with_remedy(str(error), remedy).splitlines())


def refusal_page(request: Request, error: Exception) -> Response:
    """A refusal, such as 401: HTML for a browser, JSON for others."""
    assert isinstance(error, HTTPException)
    if not _is_browser(request):
        return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)
    return _error_page(request, error.status_code, f"Error {error.status_code}", [error.detail])


def mistyped_page(request: Request, error: Exception) -> Response:
    """A value of the address or of a form that is not of its type, such as an epoch ``x``: as ``refusal_page``."""
    assert isinstance(error, RequestValidationError)
    lines = [f"`{each['loc'][-1]}` is {str(each['input'])[:50]!r}. {each['msg']}." for each in error.errors()]
    if not _is_browser(request):
        return JSONResponse({"detail": " ".join(lines)}, 422)
    return _error_page(request, 422, "Error 422", lines)


def _is_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _error_page(request: Request, status: int, title: str, lines: Sequence[str]) -> Response:
    """An error, with a way back to the pipeline that the address names, unless it is the address of its own page."""
    conn_id, pipeline = (request.path_params.get(name) for name in ("conn_id", "pipeline"))
    back = path_of(request, conn_id, pipeline) if conn_id and pipeline else ""
    if unquote(back) == request.url.path:
        back = ""
    return page(request, "error.html", status, title=title, lines=lines, back=back, pipeline=pipeline)
