"""What the operators do around the coordinator's steps, for the layout with a task per step and for that with one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Limits
from airflow_epochs.coordinator.admin import savepoints
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.run_ids import airflow_run
from airflow_epochs.names import RUN_NOTE
from airflow_epochs.operators.telling import in_brief

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context

    from airflow_epochs.coordinator.coordinator import Coordinator
    from airflow_epochs.model import Checkpoint, Run

log = secrecy.logger(__name__)

_ALIKE = 0.8
"""How alike a key must be to count as a misspelled name: `max_record` counts, `max_age` does not."""


def warn_of_misspelled(context: Context) -> None:
    """Warn of keys in the run's conf that are nearly a param's name. Airflow takes any key, also for other tasks."""
    conf = getattr(context.get("dag_run"), "conf", None)
    if not conf:
        return
    known = context["dag"].params.keys()
    for key in conf.keys() - known:
        if meant := get_close_matches(str(key).lower().replace("-", "_"), known, 1, _ALIKE):
            log.warning(
                "the conf of this run has %r, which is no param of the DAG, so the pipeline does not see it. Is %r "
                "meant? The params are: %s.",
                key,
                meant[0],
                ", ".join(known),
            )


def asked_limits(params: Mapping[str, Any]) -> Limits:
    """The limits that the run's params set."""
    return Limits(**{each.name: _asked(params, each.name) for each in fields(Limits) if each.name in params})


def asked_savepoint(params: Mapping[str, Any]) -> str | None:
    """The savepoint's name that the run's params set; None: no savepoint is made."""
    name: str | None = _asked(params, "savepoint")
    return name


def _asked(params: Mapping[str, Any], name: str) -> Any:
    """A param's value. A blank text asks for nothing, as the form of a run says."""
    value = params.get(name)
    return None if isinstance(value, str) and not value.strip() else value


def limits_again(params: Mapping[str, Any]) -> Limits:
    """The same for a task behind ``open`` that plans a further attempt: for more data, it waits as the source says."""
    return replace(asked_limits(params), min_records=None, max_delay=None)


def require_free_name(coordinator: Coordinator, run: Run, params: Mapping[str, Any]) -> None:
    """Raise Refused if a run that has no epoch yet wants a savepoint's name that is taken.

    A run whose records are read again may have taken it itself.
    """
    name, ledger = asked_savepoint(params), coordinator.task.ledger
    if name and ledger.epoch_of(run) is None and airflow_run(ledger, run) == run:
        savepoints.require_free(ledger, coordinator.task.pipeline.name, name)


def stage(coordinator: Coordinator, run: Run, params: Mapping[str, Any]) -> Checkpoint:
    """Stage all sinks, and log the warnings."""
    checkpoint = coordinator.stage(run, limits_again(params))
    for warning in checkpoint.stage.warnings if checkpoint.stage else ():
        log.warning("warning while the rows were staged: %s", warning)
    return checkpoint


def name_epoch(coordinator: Coordinator, run: Run, params: Mapping[str, Any], epoch: int) -> None:
    """Make the savepoint that the run's param names, if it names one.

    The epoch is complete. So a name that was taken since ``open`` does not fail the run: its params stay as they are.
    """
    ledger, pipeline, name = coordinator.task.ledger, coordinator.task.pipeline.name, asked_savepoint(params)
    if not name or ledger.disposed(name):  # disposed of since, and the run was cleared
        return
    try:
        savepoints.make(ledger, pipeline, name, epoch, Account(who="", why=f"the DAG param of {run}"))
    except Refused as error:
        if error.code is not codes.SAVEPOINT_NAME:
            raise
        error.remedy = f"Type `airflow epochs savepoint {pipeline} ANOTHER-NAME --epoch {epoch} --why …`."
        log.error("epoch %s is complete, and has no savepoint: %s", epoch, error)


def tell_of_newest(
    coordinator: Coordinator,
    assets: Mapping[str, Asset],
    context: Context,
    done: Checkpoint,
    first: int | None = None,
) -> None:
    """Let the asset events carry the newest complete epoch, which may be a later one than the run's own.

    ``done``: the run's last epoch. ``first``: its first one, in the layout with one task.
    """
    newest = coordinator.newest_complete()
    note = _run_note(coordinator.task.pipeline.name, context, done, first)
    for sink, asset in assets.items():
        if receipt := newest.receipts.get(sink):
            context["outlet_events"][asset].extra.update(
                pipeline=coordinator.task.pipeline.name,
                epoch=newest.txn_id.epoch,
                sink=sink,
                rows=receipt.rows,
                version=receipt.version,
                transaction_id=str(receipt.txn_id),
                **{RUN_NOTE: note},
                **({"first_epoch": first} if first else {}),
            )


def _run_note(pipeline: str, context: Context, done: Checkpoint, first: int | None) -> str:
    """What the run has done, for its note. Where a DAG has several pipelines, each has a line with its name."""
    from airflow_epochs.operators.mapped import of_pipelines

    line = in_brief(done, first)
    pipelines = {task.pipeline for task in of_pipelines(context["dag"])}
    return f"{pipeline}: {line}" if len(pipelines) > 1 else line
