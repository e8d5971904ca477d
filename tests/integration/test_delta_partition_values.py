"""Values in partition columns come back as they were staged, or the vote says why they would not."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs.model import VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from orders_demo.duck import duck
from tests.support.delta_modes_world import Epochs, values, vote_on
from tests.support.delta_world import attempt_of, log_of, transaction
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


@pytest.mark.parametrize("how", [{}, {"commit": "spark"}, {"mode": "overwrite_partitions"}], ids=str)
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


@pytest.mark.parametrize("how", [{}, {"commit": "spark"}], ids=str)
def test_instants_in_partition_columns_are_in_utc_in_the_log_whatever_the_server_is_set_up_to_write(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    with settings(session, BERLIN | LOCAL_TEXT):
        Epochs(DeltaSink("bronze", table, partition_by=["hour"], **how), world).run(hour(session, 1, FIRST))
    told = [action["add"]["partitionValues"] for entry in log_of(table) for action in entry if "add" in action]
    assert told == [{"hour": "2026-10-25T00:00:00.000000Z"}]
    assert hours_seen(table) == [(1, FIRST)]
