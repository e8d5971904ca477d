"""The trigger of a deferred ``stage``: it waits in Airflow's triggerer until an application on YARN has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.sdk import TaskInstanceState
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_epochs import secrecy
from airflow_epochs.errors import NotApplied
from airflow_epochs.spark.yarn import Application, Patience, ResourceManager, pauses

log = secrecy.logger(__name__)

ENDED, GONE, TROUBLE = "ended", "gone", "trouble"
"""Why to look: the application has ended; YARN does not know it; something that only a task can explain."""


class ApplicationTrigger(BaseTrigger):
    """Fires once: when the application has ended, or when only a task can say what is wrong.

    It never fails, and its event is only a hint: ``stage`` looks anew, at YARN and at the report of Spark's driver.

    Args:
        addresses: The web addresses of the ResourceManagers.
        tag: The tag of the application.
    """

    def __init__(self, addresses: Sequence[str], tag: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.addresses, self.tag = list(addresses), tag

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Path and arguments, without secrets: they are kept in Airflow's database."""
        return f"{__name__}.{type(self).__name__}", {"addresses": self.addresses, "tag": self.tag}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, then yield the one event."""
        yield TriggerEvent({"why": await self._why(), "job": self.tag})

    async def on_kill(self) -> None:
        """End the application, if somebody has cleared or marked the task that waits for it.

        Airflow calls this as well when another triggerer has taken the trigger over: then the task is still deferred.
        """
        if await asyncio.to_thread(self._is_deferred):
            log.info("the application with the tag %s runs on: its task still waits, in another triggerer", self.tag)
        else:
            await asyncio.to_thread(ResourceManager(self.addresses).end_with_tag, self.tag)

    def _is_deferred(self) -> bool:
        """Whether the task still waits. False if Airflow does not say so."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        if (task := self.task_instance) is None:
            return False
        try:
            states = RuntimeTaskInstance.get_task_states(
                task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=task.map_index
            )
        except Exception as error:
            log.warning("Airflow does not say whether the task still waits: %s", error)
            return False
        return TaskInstanceState.DEFERRED in states.get(task.run_id, {}).values()  # of this task alone

    async def _why(self) -> str:
        try:
            app = await self._ended()
        except Exception as error:  # `stage` meets the same, and reports it where its users look
            log.warning("the trigger cannot ask YARN about the application; the `stage` task will ask: %s", error)
            return TROUBLE
        return ENDED if app else GONE

    async def _ended(self) -> Application | None:
        manager, patience = ResourceManager(self.addresses), Patience()
        for pause in pauses():
            try:
                app = await asyncio.to_thread(manager.with_tag, self.tag)
                patience = Patience()
                if app is None or app.has_ended:
                    return app
            except NotApplied as error:
                patience.bear(error)
            await asyncio.sleep(pause)
        raise AssertionError("pauses never end")
