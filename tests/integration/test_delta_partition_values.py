"""Values in partition columns come back as they were staged, or the vote says why they would not."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs.model import VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from orders_demo.duck import duck
from tests.support.delta_modes_world import Epochs, create, shown, shown_by_others, values, vote_on
from tests.support.delta_world import attempt_of, log_of, promised, stage_with_spark, transaction
from tests.support.environment import Environment
from tests.support.spark_world import settings

pytestmark = pytest.mark.jvm

BERLIN = {"spark.sql.session.timeZone": "Europe/Berlin"}
UTC = {"spark.sql.session.timeZone": "UTC"}
LOCAL_TEXT = {"spark.databricks.delta.write.utcTimestampPartitionValues": "false"}
FIRST, SECOND = 1792886400, 1792890000
"""Two o'clock in Berlin on 2026-10-25, before and after the clocks were set back: 00:00Z and 01:00Z."""


def hour(session: Any, id_: int, second: int) -> Any:
    return values(session, "id, hour", f"({id_}L, timestamp_seconds({second}))")


def hours_seen(table: str) -> list[tuple[int, int]]:
    """Ids and hours as DuckDB sees them, which must be as deltalake does."""
    with duck() as database:
        found = database.execute("SELECT id, epoch(hour)::BIGINT FROM delta_scan(?) ORDER BY id", [table]).fetchall()
    arrow = DeltaTable(table).to_pyarrow_table().sort_by("id").to_pylist()
    assert found == [(row["id"], int(row["hour"].timestamp())) for row in arrow]
    return found


@pytest.mark.parametrize(
    "how", [{}, {"commit": "spark"}, pytest.param({"mode": "overwrite_partitions"}, marks=pytest.mark.long)], ids=str
)
def test_an_hour_that_comes_twice_in_the_sessions_zone_is_no_partition_until_the_zone_is_utc(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    sink = DeltaSink("bronze", table, partition_by=["hour"], **how)
    epochs = Epochs(sink, world)
    with settings(session, BERLIN):
        epochs.run(hour(session, 1, FIRST))
        vote = vote_on(sink, attempt_of(transaction(2), epochs.previous), hour(session, 2, SECOND), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "column hour" in (vote.reason or "") and "ambiguous in the session's time zone" in (vote.reason or "")
    assert "Set spark.sql.session.timeZone=UTC" in (vote.reason or "")
    with settings(session, UTC):
        epochs.run(hour(session, 2, SECOND))
    assert hours_seen(table) == [(1, FIRST), (2, SECOND)]


@pytest.mark.parametrize("how", [{}, pytest.param({"commit": "spark"}, marks=pytest.mark.long)], ids=str)
def test_an_hour_that_the_table_computes_and_that_comes_twice_is_no_partition_until_the_zone_is_utc(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    computed = "hour TIMESTAMP GENERATED ALWAYS AS (date_trunc('HOUR', at))"
    create(session, table, f"id BIGINT, at TIMESTAMP, {computed}", "PARTITIONED BY (hour)")
    sink, rows = DeltaSink("bronze", table, **how), values(session, "id, at", f"(2L, timestamp_seconds({SECOND + 60}))")
    with settings(session, BERLIN):
        vote = vote_on(sink, attempt_of(transaction(1)), rows, world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "column hour" in (vote.reason or "") and "ambiguous in the session's time zone" in (vote.reason or "")
    with settings(session, UTC):
        Epochs(sink, world).run(rows)
    assert hours_seen(table) == [(2, SECOND)]


@pytest.mark.parametrize("how", [{}, {"commit": "spark"}], ids=str)
def test_instants_in_partition_columns_are_in_utc_in_the_log_whatever_the_server_is_set_up_to_write(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    with settings(session, BERLIN | LOCAL_TEXT):
        Epochs(DeltaSink("bronze", table, partition_by=["hour"], **how), world).run(hour(session, 1, FIRST))
    told = [action["add"]["partitionValues"] for entry in log_of(table) for action in entry if "add" in action]
    assert told == [{"hour": "2026-10-25T00:00:00.000000Z"}]
    assert hours_seen(table) == [(1, FIRST)]


MODES: list[Any] = [
    {},
    {"commit": "spark"},
    {"mode": "upsert", "keys": ["id"]},
    pytest.param({"mode": "overwrite"}, marks=pytest.mark.long),
    {"mode": "overwrite_partitions"},
]


@pytest.mark.parametrize("how", MODES, ids=str)
def test_an_empty_text_in_a_partition_column_that_must_not_be_null_is_a_vote_abort(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, country STRING NOT NULL", "PARTITIONED BY (country)")
    sink, attempt = DeltaSink("bronze", table, **how), attempt_of(transaction(1))
    vote = vote_on(sink, attempt, session.sql("SELECT 1L id, '' country"), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "not null" in (vote.reason or "").lower() and "country" in (vote.reason or "")
    Epochs(sink, world).run(session.sql("SELECT 1L id, 'DE' country"))
    assert shown_by_others(table) == [(1, "DE")]


def test_a_check_of_an_empty_text_in_a_partition_column_is_that_of_null(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT, country STRING", "PARTITIONED BY (country)")
    session.sql(f"ALTER TABLE delta.`file://{table}` ADD CONSTRAINT known CHECK (country <> 'XX')").collect()
    sink, attempt = DeltaSink("bronze", table, commit="spark"), attempt_of(transaction(1))
    vote = vote_on(sink, attempt, session.sql("SELECT 1L id, '' country"), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "CHECK constraint known" in (vote.reason or "")


@pytest.mark.parametrize("how", MODES[1:], ids=str)
def test_an_empty_text_in_a_partition_column_is_digested_and_shown_as_null(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, Country STRING COMMENT 'of birth'", "PARTITIONED BY (Country)")
    sink, attempt = DeltaSink("bronze", table, **how), attempt_of(transaction(1))
    staged = [
        promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.sql(query), world), world))
        for query in ("SELECT 1L id, '' country", "SELECT 1L id, CAST(NULL AS STRING) country")
    ]
    assert staged[0].has_rows_of(staged[1])
    sink.commit(attempt, staged[0], world)
    assert shown(session, table) == shown_by_others(table) == [(1, None)]
