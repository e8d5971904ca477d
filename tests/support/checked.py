"""All checks of a pipeline, as ``airflow epochs check`` makes them, without Airflow."""

from __future__ import annotations

from airflow_epochs.coordinator.inspection.checking import CheckedPipeline, looks_at
from airflow_epochs.coordinator.looks import Checked, made
from airflow_epochs.coordinator.task import TaskTry


def checks_of(task: TaskTry, ledger_conn_id: str = "epochs_default") -> dict[str, Checked]:
    """By what they are about."""
    subject = CheckedPipeline(
        pipeline=task.pipeline,
        env=task.env,
        ledger_conn_id=ledger_conn_id,
        ledger=lambda: task.ledger,
        probe=lambda: "",
        keys=lambda: "",
        transform=lambda: task.pipeline.transform,
    )
    return {f"{each.about}, {each.check}": each for each in made(task.pipeline.name, looks_at(subject))}
