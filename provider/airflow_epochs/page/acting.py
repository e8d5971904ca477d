"""The actions of the page: what will happen, a reason, and the deed in the ledger. The command line has the same."""

from __future__ import annotations

import json
from dataclasses import fields
from inspect import signature
from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.models.log import Log
from airflow.utils.session import create_session
from fastapi import APIRouter, Form, HTTPException, Query, Request, Response, status
from fastapi.responses import RedirectResponse
from pydantic import BaseModel

from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.actions import Abort, Action, Pause, Unpause, require_possible
from airflow_epochs.coordinator.admin.admin import REASON_MAX, Account
from airflow_epochs.coordinator.admin.savepoint_actions import DisposeSavepoint, MakeSavepoint
from airflow_epochs.hooks.informed_actions import InformedTakeOver, InformedWaive
from airflow_epochs.hooks.retrying import Retry
from airflow_epochs.hooks.rewind_action import Rewind, RewindToTime
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.page.access import GetUserDep, require_editable, require_runnable
from airflow_epochs.page.forms import FORMS
from airflow_epochs.page.ledgers import ledger_for
from airflow_epochs.page.render import page, path_of

router = APIRouter(prefix="/pipelines/{conn_id}/{pipeline}/actions")

HOST = "Airflow's page"
"""The host in the record of an operator who used the page, and typed no command."""


_KINDS = (
    Abort,
    InformedWaive,
    InformedTakeOver,
    Pause,
    Unpause,
    Retry,
    Rewind,
    RewindToTime,
    MakeSavepoint,
    DisposeSavepoint,
)
ACTIONS: dict[str, type[Any]] = {kind.name: kind for kind in _KINDS}


class Asked(BaseModel):
    """The fields of all forms. Each action uses some of them."""

    epoch: int = 0
    sink: str = ""
    dag_id: str = ""
    owner: str = ""
    txn_id: str = ""
    number: int = 0
    run_id: str = ""
    savepoint: str = ""
    to_epoch: int = 0
    restore_tables: bool = False
    to_time: str = ""
    attempt: int = 0
    ledger_conn_id: str = ""
    """The connection in the page's address; a form cannot change it."""


class Agreed(Asked):
    """What the user has seen, and the reason."""

    why: str = ""


@router.get("/{name}")
def ask(
    request: Request, user: GetUserDep, conn_id: str, pipeline: str, name: str, asked: Annotated[Asked, Query()]
) -> Response:
    """Say what the action will change, and ask for the reason. Changes nothing."""
    ledger = _ledger(user, conn_id, pipeline, name)
    if name in FORMS and not getattr(asked, FORMS[name].needs):
        asking: dict[str, Any] = {"name": name, "form": FORMS[name], "newest": ledger.newest_complete()}
        return page(request, "ask.html", conn_id=conn_id, pipeline=pipeline, **asking)
    action = _action(ledger, pipeline, name, _here(asked, conn_id))
    return page(
        request,
        "action.html",
        conn_id=conn_id,
        pipeline=pipeline,
        action=action,
        fields=_fields(action),
        told=action.told(ledger),
        reason_max=REASON_MAX,
    )


@router.post("/{name}")
def act(
    request: Request, user: GetUserDep, conn_id: str, pipeline: str, name: str, agreed: Annotated[Agreed, Form()]
) -> Response:
    """Do exactly what ``ask`` has told, in the name of the user."""
    _require_own_page(request)
    ledger = _ledger(user, conn_id, pipeline, name)
    action = _agreed(pipeline, name, _here(agreed, conn_id))
    by = Account(who=str(user.get_name()), why=agreed.why.strip(), host=HOST)
    require_possible(action, ledger)  # refused before the audit log says that it happened
    _log(user, action, getattr(action, "dag_id", "") or _owner(ledger, pipeline))
    action.do(ledger, by)
    return RedirectResponse(path_of(request, conn_id, pipeline), status.HTTP_303_SEE_OTHER)


def _ledger(user: GetUserDep, conn_id: str, pipeline: str, name: str) -> Ledger:
    """The ledger, for a user who may do the action."""
    ledger = ledger_for(user, conn_id, pipeline)
    require = require_runnable if name == Retry.name else require_editable
    require(user, _owner(ledger, pipeline))
    return ledger


def _owner(ledger: Ledger, pipeline: str) -> str:
    return admin.owner_of(ledger, pipeline)


def _here(asked: Asked, conn_id: str) -> Asked:
    return asked.model_copy(update={"ledger_conn_id": conn_id})


def _action(ledger: Ledger, pipeline: str, name: str, asked: Asked) -> Action:
    """The action as it stands now."""
    if of := getattr(_kind(name), "of", None):
        given = [each for each in signature(of).parameters if each not in ("ledger", "pipeline")]
        found: Action = of(ledger, pipeline, **{each: getattr(asked, each) for each in given})
        return found
    return _agreed(pipeline, name, asked.model_copy(update={"owner": _owner(ledger, pipeline)}))


def _agreed(pipeline: str, name: str, asked: Asked) -> Action:
    """The action that the user has seen."""
    kind = _kind(name)
    names = [each.name for each in fields(kind) if each.name != "pipeline"]
    agreed: Action = kind(pipeline=pipeline, **{each: getattr(asked, each) for each in names})
    return agreed


def _kind(name: str) -> type[Any]:
    if name not in ACTIONS:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"There is no action {name}.")
    return ACTIONS[name]


def _fields(action: Action) -> dict[str, object]:
    """What the form sends back, so that ``act`` does what ``ask`` has told."""
    return {name: value for name, value in vars(action).items() if name != "pipeline"}


def _require_own_page(request: Request) -> None:
    """Raise HTTPException 403 for a form of another site, which the browser would send with the user's cookie.

    Every browser of today says where a form comes from (``Sec-Fetch-Site``); older ones send at least ``Origin``.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
    own = site == "same-origin" if site else urlsplit(origin).netloc == request.headers.get("host")
    if not own:
        raise HTTPException(status.HTTP_403_FORBIDDEN, "The form does not come from Airflow's own page.")


def _log(user: GetUserDep, action: Action, dag_id: str) -> None:
    """Put an entry into Airflow's audit log, whose ``extra`` is JSON."""
    with create_session() as session:
        session.add(
            Log(
                event=f"epochs_{action.name}", owner=str(user.get_name()), dag_id=dag_id, extra=json.dumps(vars(action))
            )
        )
