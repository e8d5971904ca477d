"""What the page asks for before an action can say what it will change."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs.coordinator.admin.savepoint_actions import MakeSavepoint
from airflow_epochs.hooks.informed_actions import InformedTakeOver
from airflow_epochs.hooks.rewind_action import Rewind, RewindToTime


@dataclass(frozen=True)
class FormField:
    """One field. ``kind``: ``text``, ``number`` (an epoch; the newest one stands in it) or ``checkbox``."""

    name: str
    label: str
    kind: str = "text"


@dataclass(frozen=True)
class ActionForm:
    """The fields of one action; the first one must not be empty. ``heading``: ``{}`` stands for the pipeline's name."""

    heading: str
    inputs: tuple[FormField, ...]

    @property
    def needs(self) -> str:
        """The field without which nobody can say what the action will do."""
        return self.inputs[0].name


FORMS = {
    InformedTakeOver.name: ActionForm(
        "Hand {} over to another DAG", (FormField("dag_id", "The DAG that runs it from now on"),)
    ),
    MakeSavepoint.name: ActionForm(
        "Make a savepoint of {}",
        (FormField("savepoint", "Its name"), FormField("epoch", "The complete epoch that gets the name", "number")),
    ),
    Rewind.name: ActionForm(
        "Let {} read records once more",
        (
            FormField("to_epoch", "Go back to where this complete epoch ended", "number"),
            FormField("restore_tables", "Bring the Delta tables back to that epoch, too", "checkbox"),
        ),
    ),
    RewindToTime.name: ActionForm(
        "Let {} read the records since a time once more",
        (FormField("to_time", "Go back to the first records of this time, with its zone, such as 2026-01-31T00:00Z"),),
    ),
}
