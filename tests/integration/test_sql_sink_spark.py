"""What Spark itself stages arrives in PostgreSQL as it was: its Parquet files are not those of deltalake's writer."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.model import StagedClaim, VoteKind
from delta_world import attempt_of, fill_with_spark, transaction
from sql_world import SqlWorld, new_postgres
from stack.postgres import Postgres

pytestmark = pytest.mark.jvm

UTC = dt.timezone.utc
COLUMNS = {
    "id": ("bigint", "id"),
    "tiny": ("smallint", "cast(id AS tinyint)"),
    "d": ("numeric(38,10)", "cast('-12345678901234567890.5' AS decimal(38,10))"),
    "f": ("double precision", "double('Infinity')"),
    "s": ("text", "concat('Zürich\n', chr(92), '.')"),
    "x": ("bytea", "unhex('00FF5C')"),
    "day": ("date", "date'1582-10-04'"),
    "late": ("timestamptz", "timestamp'9999-12-31 23:59:59.999999 UTC'"),
    "early": ("timestamptz", "timestamp'1600-01-01 00:00:00 UTC'"),
    "wall": ("timestamp", "timestamp_ntz'2500-03-29 02:30:00.000001'"),
    "n": ("jsonb", "named_struct('a', array(1, null), 'm', map('k', cast(1.50 AS decimal(4,2))))"),
}


@pytest.fixture
def world(postgres: Postgres, tmp_path: Path) -> SqlWorld:
    made = SqlWorld(new_postgres(postgres), tmp_path)
    made.db.run(f"CREATE TABLE orders ({', '.join(f'{name} {kind}' for name, (kind, _) in COLUMNS.items())})")
    return made


def staged(world: SqlWorld, session: Any, plan: dict[str, Any], frame: Any) -> StagedClaim:
    return fill_with_spark(session, plan, frame)


def test_rows_that_spark_staged_arrive_as_they_were(world: SqlWorld, session: Any) -> None:
    sink, attempt = world.sink(), attempt_of(transaction(1))
    frame = session.range(2).selectExpr(*(f"{expression} AS {name}" for name, (_, expression) in COLUMNS.items()))
    claim = staged(world, session, sink.plan_stage(attempt, uuid.uuid4().hex, world.env), frame)
    vote = sink.vote(attempt, claim, world.env)
    assert vote.staged is not None, vote.reason
    sink.commit(attempt, vote.staged, world.env)
    names = [name for name in COLUMNS if name != "n"]
    assert world.db.run(f"SELECT {', '.join(names)}, n::text FROM orders ORDER BY id")[1] == (
        1,
        1,
        Decimal("-12345678901234567890.5000000000"),
        float("inf"),
        "Zürich\n\\.",
        b"\x00\xff\\",
        dt.date(1582, 10, 4),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        dt.datetime(1600, 1, 1, tzinfo=UTC),
        dt.datetime(2500, 3, 29, 2, 30, 0, 1),
        '{"a": [1, null], "m": {"k": 1.50}}',
    )


def test_an_epoch_that_spark_staged_without_rows_moves_the_marker(world: SqlWorld, session: Any) -> None:
    sink, attempt = world.sink(), attempt_of(transaction(1))
    claim = staged(world, session, sink.plan_stage(attempt, uuid.uuid4().hex, world.env), session.range(0))
    vote = sink.vote(attempt, claim, world.env)
    assert vote.staged is not None, vote.reason
    assert sink.commit(attempt, vote.staged, world.env).rows == 0
    assert world.marker_rows()[0][2:4] == (1, str(attempt.txn))


def test_a_column_without_a_type_is_a_vote_against(world: SqlWorld, session: Any) -> None:
    sink, attempt = world.sink(), attempt_of(transaction(1))
    frame = session.sql("SELECT 1L AS id, NULL AS s")
    claim = staged(world, session, sink.plan_stage(attempt, uuid.uuid4().hex, world.env), frame)
    vote = sink.vote(attempt, claim, world.env)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "'s' is void in the rows" in (vote.reason or "")
