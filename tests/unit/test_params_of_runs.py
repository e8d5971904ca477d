"""What a run says of a param that its conf misspells. Airflow takes any key without a word."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from airflow_epochs import DeltaSink, DeltaSource, EpochPipeline, KafkaSource, SparkConnect
from airflow_epochs.errors import Refused
from airflow_epochs.operators.base import EpochOperator
from airflow_epochs.operators.phases import asked_limits, warn_of_misspelled
from airflow_epochs.testing import MemorySource


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


def form(value: dict[str, Any]) -> Any:
    """The params of a run with this conf, as Airflow's API makes them. ParamValidationError is its answer 400."""
    dag = DagSerialization.from_dict(DagSerialization.to_dict(dag_of(KafkaSource(topics=["t"]), layout="single")))
    return dag.params.deep_merge(value).validate()


@pytest.mark.parametrize(
    "value",
    [
        *({name: 10**30} for name in ("max_records", "max_bytes", "min_records", "max_delay", "target_duration")),
        *({name: -(10**30)} for name in ("max_bytes", "max_delay", "target_duration")),
        {"max_epochs": 2**70},
        {"for_seconds": 10**30},
        {"starting": {"t": {"0": 10**30}}},
        {"starting": {"t": {"0": -(10**30)}}},
    ],
    ids=str,
)
def test_a_number_that_no_task_could_be_given_is_refused_where_it_is_typed(value: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        form(value)


@pytest.mark.parametrize(
    "value",
    [
        *(
            {name: number}
            for name in ("max_records", "max_bytes", "min_records", "max_epochs")
            for number in (1, 10**15)
        ),
        {"max_bytes": "256MiB"},
        *({name: each} for name in ("max_delay", "target_duration") for each in (1, 0.5 + 1, 604_800, "10m")),
        {"max_delay": 0},
        {"for_seconds": 0.5},
        *({"starting": each} for each in ("earliest", "2026-01-31T00:00Z", {"t": {"0": 0, "1": 2**63 - 1}})),
    ],
    ids=str,
)
def test_a_number_that_the_source_takes_is_taken_and_reaches_the_task(value: dict[str, Any]) -> None:
    params = form(value)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params)) == params, "as Airflow hands it to the task"
    KafkaSource(topics=["t"])._config(asked_limits(params))


SIZES = {"max_records", "max_bytes", "min_records", "max_delay", "target_duration"}
EVER = {"starting", "savepoint"}
BY_INTERVAL = KafkaSource(topics=["t"], bounds="data_interval", starting="2026-01-01T00:00:00Z")


def dag_of(*sources: Any, params: dict[str, Any] | None = None, layout: str = "tasks") -> DAG:
    """A DAG with a pipeline for each of the sources."""
    with DAG("d", schedule=None, max_active_runs=1, params=params or {}) as dag:
        for number, source in enumerate(sources):
            EpochPipeline(
                f"orders_{number}",
                source=source,
                transform="a.py:f",
                sinks=[DeltaSink("gold", f"/lake/gold_{number}")],
                spark=SparkConnect(),
                layout=layout,
            )
    return dag


@pytest.mark.parametrize(
    ("sources", "offered"),
    [
        ([KafkaSource(topics=["t"])], SIZES | EVER),
        ([KafkaSource(topics=["t"], bounds="{{ params.bounds }}")], SIZES | EVER),
        ([BY_INTERVAL], EVER),
        ([DeltaSource("/lake/bronze")], {"max_bytes"} | EVER),
        ([DeltaSource("/lake/bronze"), BY_INTERVAL], {"max_bytes"} | EVER),
        ([DeltaSource("/lake/bronze"), KafkaSource(topics=["t"])], SIZES | EVER),
        ([MemorySource(world="w", topics=("t",))], SIZES | EVER),
    ],
    ids=["kafka", "template", "intervals", "delta", "delta and intervals", "delta and kafka", "a source of one's own"],
)
def test_the_form_of_a_run_offers_what_a_source_of_the_dag_takes(sources: list[Any], offered: set[str]) -> None:
    assert dag_of(*sources).params.keys() == offered
    assert dag_of(*sources, layout="single").params.keys() == offered | {"for_seconds", "max_epochs"}


def test_a_param_that_the_author_of_the_dag_declared_stays_whatever_the_source_takes() -> None:
    dag = dag_of(DeltaSource("/lake/bronze"), params={"max_records": 5})
    assert dag.params["max_records"] == 5


@pytest.mark.parametrize(
    ("source", "key", "told"),
    [
        (DeltaSource("/lake/bronze"), "min_records", "the param min_records, which a DeltaSource does not have"),
        (BY_INTERVAL, "max_records", "`max_records` is 5, and `bounds` is 'data_interval'"),
    ],
    ids=["delta", "intervals"],
)
def test_a_run_whose_conf_has_a_param_that_the_form_does_not_offer_is_told_why_it_cannot_be(
    source: Any, key: str, told: str
) -> None:
    params = ParamsDict({**dag_of(source).params.dump(), key: 5})  # as Airflow merges the conf of a run
    with pytest.raises(Refused, match=re.escape(told)):
        source._config(asked_limits(params))
