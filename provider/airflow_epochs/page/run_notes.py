"""Writes what a run has done into the note of the run, which Airflow's grid shows.

A task cannot write it: the Task SDK has no call for it. A listener of runs could, but it is called in the scheduler, in
the transaction that decides over many runs: an error there can end the scheduler. Listeners of asset events are called
in the API server, when the task's own transaction is over. So the last task says its line in its asset events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.listeners import hookimpl

from airflow_epochs.names import RUN_NOTE

if TYPE_CHECKING:
    from airflow.listeners.types import AssetEvent

WRITER = "airflow_epochs"
"""The writer of notes that this module may change. A note with another writer is a person's, and stays."""
LENGTH_MAX = 1000
"""The longest note that Airflow's database stores."""


@hookimpl
def on_asset_event_emitted(asset_event: AssetEvent) -> None:
    """Called by Airflow for each asset event of a task, after the task's end is on record. Never raises."""
    line, run_id = asset_event.extra.get(RUN_NOTE), asset_event.source_run_id
    if not isinstance(line, str) or not asset_event.source_dag_id or not run_id:
        return
    try:
        _write(asset_event.source_dag_id, run_id, str(asset_event.extra.get("pipeline")), line)
    except Exception as error:  # a note is never needed
        from airflow_epochs import secrecy

        secrecy.logger(__name__).warning("the note of run %s was not written: %r", run_id, error)


def _write(dag_id: str, run_id: str, pipeline: str, line: str) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session(scoped=False) as session:
        run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
        if run is None:
            return
        if run.dag_run_note is None:
            run.note = (line[:LENGTH_MAX], WRITER)
        elif run.dag_run_note.user_id == WRITER:
            run.dag_run_note.content = merged(run.note or "", pipeline, line)[:LENGTH_MAX]


def merged(note: str, pipeline: str, line: str) -> str:
    """The note with the pipeline's new line. A line that begins with the pipeline's name keeps the lines of others."""
    name = f"{pipeline}: "
    if not line.startswith(name):
        return line
    return "\n".join(sorted({*(each for each in note.splitlines() if not each.startswith(name)), line}))
