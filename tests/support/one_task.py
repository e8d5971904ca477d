"""The layout with one task, over coordinators that a test makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from airflow.sdk import DAG, Asset, Context

from airflow_epochs import KafkaSource, SparkConnect
from airflow_epochs.contracts import Sink
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.model import JsonDict, Run
from airflow_epochs.operators.single import EpochsOperator


class Told:
    """What asset events were told, by asset."""

    def __init__(self) -> None:
        self.events: dict[str, SimpleNamespace] = {}

    def __getitem__(self, asset: Any) -> SimpleNamespace:
        return self.events.setdefault(asset.uri, SimpleNamespace(extra={}, key=Asset(asset.uri)))


def run_in_one_task(
    run: Run, sinks: Sequence[Sink], coordinator: Callable[[], Coordinator], **params: object
) -> JsonDict:
    """What Airflow does with the task; the XCom that it returns. Each epoch gets a coordinator of its own."""
    with DAG(run.dag_id, schedule=None, max_active_runs=1) as dag:
        operator = EpochsOperator(
            task_id="epochs",
            pipeline="orders",
            source=KafkaSource(topics=["t"]),  # the coordinators have their own, and all the rest, too
            transform="a.py:f",
            sinks=sinks,
            spark=SparkConnect(),
        )

    def made(context: Context) -> Coordinator:
        found = coordinator()
        vars(operator)["environment"] = found.task.env  # a cached property: its phases are those of the coordinator
        return found

    operator._coordinator = made  # type: ignore[method-assign]
    context = {"dag": dag, "run_id": run.run_id, "params": params, "outlet_events": Told()}
    return operator.execute(cast(Context, context))
