"""What Airflow shows beside a task: the buttons that lead to its epoch, its records and sinks; and a text about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect
from airflow_epochs.errors import NotApplied
from airflow_epochs.operators.epoch import EpochOperator, OpenEpochOperator
from airflow_epochs.operators.links import EpochLink
from tests.support.scenario import Scenario

KEY = cast(Any, None)


def dag(sink: Any = None) -> DAG:
    with DAG("orders_dag", schedule=None, max_active_runs=1) as made:
        EpochPipeline(
            "orders",
            source=KafkaSource(topics=["orders"]),
            transform="a.py:f",
            sinks=[sink or DeltaSink("gold", "/lake/gold")],
            spark=SparkConnect(),
        )
    return made


def step(name: str = "open") -> EpochOperator:
    found = dag().get_task(f"orders.{name}")
    assert isinstance(found, EpochOperator)
    return found


def link(operator: EpochOperator) -> str:
    return EpochLink().get_link(operator, ti_key=KEY)


def buttons(operator: EpochOperator) -> dict[str, str]:
    """As Airflow shows them: without those whose links are empty."""
    made = {each.name: each.get_link(operator, ti_key=KEY) for each in operator.operator_extra_links}
    return {name: there for name, there in made.items() if there}


def test_a_task_that_has_done_nothing_leads_to_its_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    assert link(step()) == "/epochs/pipelines/epochs_default/orders"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/prod/")
    assert link(step()) == "https://airflow.example.com/prod/epochs/pipelines/epochs_default/orders"


@pytest.mark.parametrize("fails", [False, True])
def test_a_task_leads_to_the_epoch_that_it_worked_on_also_if_it_failed(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    operator, scenario = step(), Scenario()

    def work(coordinator: Any, run: Any, context: Any) -> Any:
        if fails:
            raise NotApplied("No.", remedy="Wait.", epoch=1)
        return coordinator.checkpoint(coordinator.open_epoch(run))

    monkeypatch.setattr(operator, "_coordinator", lambda context: scenario.coordinator())
    monkeypatch.setattr(operator, "work", work)
    context = cast(Any, {"dag": SimpleNamespace(dag_id="dag"), "run_id": "run 1", "params": {}})
    if fails:
        with pytest.raises(NotApplied):
            operator.execute(context)
    else:
        operator.execute(context)
    assert link(operator) == "/epochs/pipelines/epochs_default/orders/epochs/1"


def test_airflow_knows_every_button() -> None:
    kinds = [type(each) for each in OpenEpochOperator.operator_extra_links]
    assert len(kinds) == 3
    assert {f"{kind.__module__}.{kind.__name__}" for kind in kinds} <= {*ProvidersManager().extra_links_class_names}


def test_a_task_without_an_epoch_has_the_button_of_its_pipeline_alone() -> None:
    assert buttons(step()).keys() == {"Epoch"}


def test_each_task_leads_to_the_records_of_its_epoch_and_to_its_sinks() -> None:
    page = "/epochs/pipelines/epochs_default/orders/epochs/7"
    for task in dag().tasks:
        assert isinstance(task, EpochOperator)
        task.epoch = 7
        sinks = "#sink-gold" if task.task_id == "orders.commit.gold" else "#sinks"
        assert buttons(task) == {"Epoch": page, "Ledger records": f"{page}/records", "Sinks": f"{page}{sinks}"}


def test_every_task_says_what_it_does_in_which_pipeline() -> None:
    for task in dag().tasks:
        text = task.doc_md or ""
        first, _, rest = text.partition("\n")
        assert first.endswith(".") and first in (type(task).__doc__ or "")
        for part in (
            "Pipeline **orders**",
            "- transform `a.py:f`",
            "- `DeltaSink('gold', '/lake/gold'",
            "- `KafkaSource(",
        ):
            assert part in rest


def test_a_sink_of_a_user_without_a_text_of_its_own_makes_no_new_version_of_the_dag() -> None:
    class Own(DeltaSink):
        __repr__ = object.__repr__

    def serialized() -> Any:
        made = dag(Own("gold", "/lake/gold"))
        return [task.doc_md for task in made.tasks]

    assert serialized() == serialized()
    assert "- `Own`" in serialized()[0]
    assert DagSerialization.to_dict(dag())["dag"]


def test_a_text_of_the_user_stays() -> None:
    with DAG("d", schedule=None, max_active_runs=1) as made:
        EpochPipeline(
            "orders",
            source=KafkaSource(topics=["orders"]),
            transform="a.py:f",
            sinks=[DeltaSink("gold", "/lake/gold")],
            spark=SparkConnect(),
            operator_args={"doc_md": "ours"},
        )
    assert {task.doc_md for task in made.tasks} == {"ours"}
