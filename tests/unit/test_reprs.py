"""The reprs of sinks and runners: where they lead and how they write, without secrets."""

from __future__ import annotations

import pytest

from airflow_epochs import DeltaSink, KafkaSink, SparkConnect, SparkSubmit, SqlSink, StateTable

SHOWN = [
    (DeltaSink("gold", "/lake/gold"), "DeltaSink('gold', '/lake/gold', mode='append')"),
    (
        DeltaSink("gold", "s3://lake/gold", mode="upsert", keys=["id"], storage_conn_id="lake"),
        "DeltaSink('gold', 's3://lake/gold', mode='upsert', keys=['id'], commit='spark', storage_conn_id='lake')",
    ),
    (
        StateTable("sums", "/lake/sums", keys=["id"], schema="id LONG, n LONG"),
        "StateTable('sums', '/lake/sums', keys=['id'])",
    ),
    (
        KafkaSink("alerts", "alerts", conn_id="kafka", staging="/lake/staged"),
        "KafkaSink('alerts', 'alerts', conn_id='kafka')",
    ),
    (
        SqlSink("users", "postgres", "users", mode="upsert", keys=["id"], staging="/s"),
        "SqlSink('users', 'postgres', 'users', mode='upsert', keys=['id'])",
    ),
    (
        SparkConnect("spark", session_conf={"spark.password": "geheim"}),
        "SparkConnect('spark', session_conf=['spark.password'])",
    ),
    (
        SparkSubmit("spark", conf={"spark.password": "geheim"}),
        "SparkSubmit('spark', conf=['spark.password'])",
    ),
    (
        SparkSubmit("spark", deploy_mode="cluster", work_url="s3://work/epochs"),
        "SparkSubmit('spark', deploy_mode='cluster', work_url='s3://work/epochs')",
    ),
]


@pytest.mark.parametrize(("thing", "shown"), SHOWN, ids=lambda value: value if isinstance(value, str) else "")
def test_a_repr_is_a_call_with_the_options_that_are_set_without_the_values_of_settings(
    thing: object, shown: str
) -> None:
    assert repr(thing) == shown


def test_a_repr_tells_no_login_of_a_work_folder() -> None:
    assert "geheim" not in repr(SparkSubmit("spark", work_url="s3://user:geheim@work/epochs"))
