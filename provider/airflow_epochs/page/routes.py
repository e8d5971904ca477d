"""The pages by their paths. Each reads the ledgers anew; nothing is kept between two requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response, status
from fastapi.responses import RedirectResponse

from airflow_epochs.coordinator.orders import rewinding
from airflow_epochs.coordinator.runs import series
from airflow_epochs.hooks.known_runs import is_at_work
from airflow_epochs.hooks.retrying import needed_backfill
from airflow_epochs.ledger import run_ids
from airflow_epochs.ledger.documents import document
from airflow_epochs.ledger.epoch_records import epoch_records
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.overview import MEANINGS, Condition, pipeline_row
from airflow_epochs.ledger.queries import EpochRow, accounts, newest_epochs
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import Run
from airflow_epochs.page.access import GetUserDep, may_edit, may_run
from airflow_epochs.page.airflow_runs import AirflowRuns
from airflow_epochs.page.figures import Bars, charts
from airflow_epochs.page.lags import lag_now
from airflow_epochs.page.ledgers import Listed, all_pipelines, ledger_for
from airflow_epochs.page.render import page, path_of
from airflow_epochs.page.spark_ui import LinkedApplication, uis
from airflow_epochs.page.task_logs import task_logs

router = APIRouter()

SHOWN = 25
"""Epochs in the table of one page."""
CHARTED = 200
"""Epochs in the charts."""


@router.get("/")
def pipelines(request: Request, user: GetUserDep) -> Response:
    """All pipelines that the user may see."""
    listed, unlisted = all_pipelines(user)
    return _list(request, listed, unlisted=unlisted, heading="Pipelines")


@router.get("/dags/{dag_id}")
def pipelines_of_dag(request: Request, user: GetUserDep, dag_id: str) -> Response:
    """The tab of a DAG: its pipeline; a list, if it has several or no pipelines."""
    listed, unlisted = all_pipelines(user, dag_id)
    its = [each for each in listed if each.row.dag_id == dag_id]
    if len(its) == 1:
        return RedirectResponse(path_of(request, its[0].conn_id, its[0].row.name))
    unknown = [each for each in listed if not each.row.dag_id]
    return _list(request, [*its, *unknown], unlisted=unlisted, heading=f"Pipelines of DAG {dag_id}")


@router.get("/dags/{dag_id}/runs/{run_id}")
def epochs_of_run(request: Request, user: GetUserDep, dag_id: str, run_id: str) -> Response:
    """The tab of a run: the epochs that it worked on."""
    run, found = Run(dag_id, run_id), []
    listed, unlisted = all_pipelines(user, dag_id)
    its = [each for each in listed if dag_id in each.row.owners or not each.row.owners]
    unreadable = [each for each in its if each.row.condition is Condition.UNREADABLE]
    for each in its:
        if each not in unreadable:
            ledger = ledger_for(user, each.conn_id, each.row.name)
            found += [(each, epoch, _known(ledger, epoch) is not None) for epoch in series.epochs_of(ledger, run)]
    if len(found) == 1 and found[0][-1]:
        ((each, epoch, _),) = found
        return RedirectResponse(f"{path_of(request, each.conn_id, each.row.name)}/epochs/{epoch}")
    return page(request, "run.html", found=found, run=run, unreadable=unreadable, unlisted=unlisted)


@router.get("/pipelines/{conn_id}/{pipeline}")
def one_pipeline(
    request: Request, user: GetUserDep, conn_id: str, pipeline: str, before: int | None = None
) -> Response:
    """One pipeline: its state, charts of its newest epochs, and a table of epochs. ``before``: only earlier ones."""
    ledger = ledger_for(user, conn_id, pipeline)
    row = pipeline_row(pipeline, ledger)
    views = list(newest_epochs(ledger, SHOWN, before))
    shown = [EpochRow.of(ledger, view, ledger.complete_record(view.number - 1)) for view in views]
    return page(
        request,
        "pipeline.html",
        listed=Listed(conn_id, row),
        condition=AirflowRuns.of([row]).condition(row),
        meanings=_meanings(),
        epochs=list(zip(shown, Bars.of(views), strict=True)),
        older=shown[-1].number if shown and shown[-1].number > 1 else None,
        newer=before is not None,
        savepoints=ledger.savepoints(),
        by_time=rewinding.may_go_to_a_time(ledger),
        charts=charts(newest_epochs(ledger, CHARTED)),
        acts=may_edit(user, row.dag_id),
        runs=(runs := may_run(user, row.dag_id)),
        only_backfill=needed_backfill(ledger, pipeline, conn_id) if runs and row.dag_id else None,
        at_work=row.run is not None and is_at_work(pipeline, row.run, conn_id),
    )


@router.get("/pipelines/{conn_id}/{pipeline}/lag")
def lag(user: GetUserDep, conn_id: str, pipeline: str) -> dict[str, Any]:
    """How far a pipeline is behind, for the script: it asks the source, which may take longer than the page itself."""
    found = lag_now(ledger_for(user, conn_id, pipeline), conn_id, pipeline)
    return {"records": found.records, "seconds": found.seconds} if found else {}


@router.get("/pipelines/{conn_id}/{pipeline}/epochs")
def chosen_epoch(request: Request, user: GetUserDep, conn_id: str, pipeline: str, number: int) -> Response:
    """The target of the form that asks for an epoch's number."""
    return RedirectResponse(f"{path_of(request, conn_id, pipeline)}/epochs/{number}")


@router.get("/pipelines/{conn_id}/{pipeline}/epochs/{number}")
def one_epoch(request: Request, user: GetUserDep, conn_id: str, pipeline: str, number: int) -> Response:
    """One epoch: everything that the ledger has of it."""
    ledger = ledger_for(user, conn_id, pipeline)
    view = _opened(ledger, pipeline, number)
    records = epoch_records(ledger, view)
    newest = records.complete or records.attempts[-1].opened
    return page(
        request,
        "epoch.html",
        conn_id=conn_id,
        pipeline=pipeline,
        records=records,
        newest=newest,
        row=EpochRow.of(ledger, view, ledger.complete_record(number - 1)),
        accounts=accounts(records.complete) if records.complete else {},
        beside=[other for other in (number - 1, number + 1) if _known(ledger, other)],
        run_of=partial(run_ids.airflow_run, ledger),
        application=LinkedApplication.of,
        uis=uis(records),
        logs=task_logs(user, ledger, conn_id, pipeline, records),
    )


@router.get("/pipelines/{conn_id}/{pipeline}/epochs/{number}/records")
def records_of_epoch(user: GetUserDep, conn_id: str, pipeline: str, number: int) -> Response:
    """What ``airflow epochs show`` prints: all records of one epoch, as JSON."""
    ledger = ledger_for(user, conn_id, pipeline)
    told = document(ledger, _opened(ledger, pipeline, number))
    return Response(json.dumps(told, indent=2), media_type="application/json")


def _opened(ledger: Ledger, pipeline: str, number: int) -> EpochView:
    view = _known(ledger, number)
    if view is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"Pipeline {pipeline} has no epoch {number}.")
    return view


def _known(ledger: Ledger, number: int) -> EpochView | None:
    """The epoch; None if it was never opened, or a ledger that was rebuilt does not have it."""
    view = ledger.view(number) if 0 < number < 10**20 else None
    return view if view and (view.open or view.complete) else None


def _list(request: Request, listed: Sequence[Listed], **values: Any) -> Response:
    runs = AirflowRuns.of([each.row for each in listed])
    rows = [(each, *runs.condition(each.row)) for each in listed]
    return page(request, "pipelines.html", rows=rows, meanings=_meanings(), **values)


def _meanings() -> dict[str, str]:
    known = {condition.value: meaning for condition, meaning in MEANINGS.items()}
    return {**known, "blocked": "an epoch belongs to an earlier run, and later runs fail because of it"}
