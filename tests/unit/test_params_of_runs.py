"""What a run says of a param that its conf misspells. Airflow takes any key without a word."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import DAG, Context

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect
from airflow_epochs.operators.base import EpochOperator
from airflow_epochs.operators.phases import warn_of_misspelled


def context_of(conf: dict[str, Any] | None, layout: str = "tasks") -> Context:
    """Of a run of a DAG with a pipeline, and with a param of another task."""
    with DAG("d", schedule=None, max_active_runs=1, params={"regions": "eu"}) as dag:
        EpochPipeline(
            "orders",
            source=KafkaSource(topics=["t"]),
            transform="a.py:f",
            sinks=[DeltaSink("gold", "/lake/gold")],
            spark=SparkConnect(),
            layout=layout,
        )
    return cast(Context, {"dag": dag, "dag_run": SimpleNamespace(conf=conf)})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("max_record", "max_records"),
        ("max-records", "max_records"),
        ("MAX_RECORDS", "max_records"),
        ("savepiont", "savepoint"),
        ("target_durations", "target_duration"),
        ("region", "regions"),
    ],
)
def test_a_misspelled_param_is_named_with_the_ones_that_there_are(
    key: str, meant: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_misspelled(context_of({key: 5, "max_bytes": "1MiB"}))
    (line,) = caplog.messages
    assert f"has '{key}', which is no param" in line and f"Is '{meant}' meant?" in line
    assert "min_records" in line and "1MiB" not in line


@pytest.mark.parametrize(
    "conf",
    [None, {}, {"max_records": 5, "regions": "us"}, {"date": "2026-01-31", "max_age": 5, "source": "x", "reason": "y"}],
    ids=str,
)
def test_params_and_keys_for_other_tasks_are_no_reason_to_warn(
    conf: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_misspelled(context_of(conf))
    assert caplog.messages == []


@pytest.mark.parametrize(("layout", "key"), [("tasks", "max_record"), ("single", "max_epoch")])
def test_the_first_task_of_each_layout_warns(
    layout: str, key: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_of({key: 5}, layout)
    first = context["dag"].task_dict["orders.open" if layout == "tasks" else "orders.epochs"]
    monkeypatch.setattr(EpochOperator, "_executed", lambda self, context: {})
    assert isinstance(first, EpochOperator)
    first.execute(context)
    assert f"Is '{key}s' meant?" in caplog.text
