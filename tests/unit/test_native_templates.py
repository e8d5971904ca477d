"""DAGs with ``render_template_as_native_obj=True``: Airflow makes the number 123 of the text "123"."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk import DAG, Context

from airflow_epochs import DeltaSink, KafkaSource, SparkConnect, codes
from airflow_epochs.errors import Refused
from airflow_epochs.operators.epoch import OpenEpochOperator


def rendered(
    folder: Path, params: dict[str, Any], *, native: bool = True, topic: str = "{{ topic }}"
) -> OpenEpochOperator:
    """An operator whose options are all templates, rendered."""
    (folder / "a.py").write_text("def f(records):\n    return {}\n")
    with DAG("dag", schedule=None, max_active_runs=1, render_template_as_native_obj=native):
        step = OpenEpochOperator(
            task_id="open",
            pipeline="orders",
            source=KafkaSource(topics=[topic, "clicks"], conn_id="{{ conn }}", group_id="{{ group }}"),
            transform=f"{folder}/a.py:f",
            sinks=[DeltaSink("gold", "{{ table }}", partition_by=["{{ column }}"], storage_conn_id="{{ storage }}")],
            spark=SparkConnect("{{ conn }}"),
            ledger_conn_id="{{ conn }}",
        )
    given = {"table": "/lake/gold", "conn": "c", "group": None, "topic": "t", "column": "day", "storage": "s", **params}
    step.render_template_fields(cast(Context, given), step.get_template_env())
    return step


def test_ids_and_topics_that_are_whole_numbers_are_taken_as_their_texts(tmp_path: Path) -> None:
    step = rendered(tmp_path, {"conn": "123", "topic": "2026", "column": "7"})
    pipeline = step.definition(step.dag)
    source = pipeline.source.spec()
    assert (step.ledger_conn_id, step.spark.conn_id, source["conn_id"]) == ("123", "123", "123")
    assert (source["topics"], source["group_id"]) == (["2026", "clicks"], None)
    assert pipeline.sinks[0].spec()["partition_by"] == ["7"]


def test_a_number_that_was_written_otherwise_is_told_with_its_field_and_is_right_after_each_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step = rendered(tmp_path, {"topic": "1_000", "column": "0x10"})
    pipeline = step.definition(step.dag)
    assert pipeline.source.spec()["topics"] == ["1000", "clicks"]
    assert pipeline.sinks[0].spec()["partition_by"] == ["16"]
    assert "`topics` of KafkaSource has rendered to the number 1000. The text '1000' is used." in caplog.text
    assert "`partition_by` of DeltaSink 'gold' has rendered to the number 16. The text '16' is used." in caplog.text
    caplog.clear()
    step = rendered(tmp_path, {"topic": "1_000"}, topic="'{{ topic }}'")
    assert step.definition(step.dag).source.spec()["topics"] == ["1_000", "clicks"]
    step = rendered(tmp_path, {"topic": "1_000"}, native=False)
    assert step.definition(step.dag).source.spec()["topics"] == ["1_000", "clicks"]
    assert "has rendered" not in caplog.text


@pytest.mark.parametrize(
    "params, told",
    [
        ({"table": "{'a': 1}"}, "`table` of DeltaSink 'gold' has rendered to a value of type dict"),
        ({"table": "None"}, "`table` of DeltaSink 'gold' has rendered to a value of type NoneType"),
        ({"conn": "1.5"}, "`ledger_conn_id` of OpenEpochOperator has rendered to a value of type float"),
        ({"topic": "True"}, "`topics` of KafkaSource has rendered to a value of type bool"),
        ({"storage": "['a']"}, "`storage_conn_id` of DeltaSink 'gold' has rendered to a value of type list"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_is_no_text_is_refused_with_its_field_and_type_and_is_right_without_the_dags_argument(
    tmp_path: Path, params: dict[str, Any], told: str
) -> None:
    step = rendered(tmp_path, params)
    with pytest.raises(Refused) as refused:
        step.definition(step.dag)
    assert refused.value.code is codes.PIPELINE_MISCONFIGURED
    assert told in str(refused.value) and "leave that argument of the DAG out" in str(refused.value)
    step = rendered(tmp_path, {**params, "table": "/lake/gold"}, native=False)
    assert step.definition(step.dag).name == "orders"
