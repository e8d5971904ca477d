"""Keys of a merge that have another type than the table's, on a real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import Run, Staged, VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.testing import run_epoch
from tests.support.delta_modes_world import Epochs, create, shown_by_others, values, vote_on
from tests.support.delta_world import attempt_of, log_of, promised, transaction
from tests.support.environment import Environment
from tests.support.state_lab import Lab

pytestmark = pytest.mark.jvm

COUNT = "WHEN MATCHED THEN UPDATE SET t.n = t.n + s.n WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, s.n)"
COUNTER: dict[str, Any] = {"mode": "merge", "keys": ["id"], "merge": COUNT}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("there", "given", "told"),
    [
        ("BIGINT", "'1'", "column 'id' is string in the rows and long in the table"),
        ("FLOAT", "0.1D", "column 'id' is double in the rows and float in the table"),
        ("DATE", "'2026-01-01'", "string in the rows and date"),
        ("DOUBLE", "1L", "long in the rows and double"),
        ("INT", "1L", "long in the rows and integer"),
        ("TIMESTAMP", "DATE '2026-01-01'", "date in the rows and timestamp"),
        ("DECIMAL(12,2)", "CAST(1 AS DECIMAL(12,3))", "decimal(12,3) in the rows and decimal(12,2)"),
        ("STRUCT<a: INT, b: INT>", "named_struct('a', 1)", "struct<a: integer> in the rows"),
    ],
)
def test_a_key_of_another_type_than_the_tables_is_a_vote_abort_of_a_merge_with_whatever_clauses(
    session: Any, world: Environment, table: str, there: str, given: str, told: str
) -> None:
    create(session, table, f"id {there}, n INT")
    merge = "WHEN MATCHED THEN UPDATE SET t.n = t.n + s.n"
    sink = DeltaSink("silver", table, mode="merge", keys=["id"], merge=merge)
    vote = vote_on(sink, attempt_of(transaction(1)), session.sql(f"SELECT {given} AS id, 1 AS n"), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert told in (vote.reason or "")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("there", "given"),
    [
        ("BIGINT", ["1", "2147483647", "-2147483648"]),
        ("DOUBLE", ["CAST(0.1 AS FLOAT)", "CAST(1e30 AS FLOAT)", "CAST(16777216 AS FLOAT)"]),
        ("DOUBLE", ["2147483647", "2147483646"]),
        ("DECIMAL(38,19)", ["9223372036854775807L", "9223372036854775806L", "0L"]),
        ("DECIMAL(20,4)", ["1.005BD", "1.006BD"]),
        ("TIMESTAMP_NTZ", ["DATE '2026-01-01'", "DATE '0001-01-01'"]),
        ("VARCHAR(5)", ["'a'", "'a '", "'A'"]),
        ("STRUCT<b: BIGINT, a: BIGINT>", ["named_struct('a', 1, 'b', 2)", "named_struct('a', 2, 'b', 1)"]),
    ],
)
def test_a_key_finds_itself_in_a_table_whose_wider_type_has_all_its_values(
    session: Any, world: Environment, table: str, there: str, given: list[str]
) -> None:
    create(session, table, f"id {there}, n INT", "TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')")
    rows = session.sql(" UNION ALL ".join(f"SELECT {each} AS id, 1 AS n" for each in given))
    epochs = Epochs(DeltaSink("silver", table, **COUNTER), world)
    for _ in range(2):
        epochs.run(rows)
    assert [row[1] for row in shown_by_others(table)] == [2] * len(given)


def staged_by_an_earlier_version(
    sink: DeltaSink, attempt: SinkAttempt, frame: Any, world: Environment, monkeypatch: pytest.MonkeyPatch
) -> Staged:
    """Rows that were promised when the vote of a merge did not look at the types of its keys."""
    with monkeypatch.context() as patched:
        patched.setattr(delta_schema, "problems_of_merge", lambda *_: [])
        return promised(vote_on(sink, attempt, frame, world))


@pytest.mark.long
@pytest.mark.parametrize("there", ["(2, 1)", "(7, 1)"], ids=["of the table", "of the rows"])
def test_rows_that_an_earlier_version_decided_for_one_key_stop_the_commit_before_it_writes(
    session: Any, world: Environment, table: str, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    create(session, table, "id BIGINT, n INT")
    session.sql(f"INSERT INTO delta.`{table}` VALUES {there}").collect()
    sink, attempt = DeltaSink("silver", table, **COUNTER), attempt_of(transaction(1))
    frame = values(session, "id, n", "('2', 1)", "('02', 1)", "('3', 1)")
    staged = staged_by_an_earlier_version(sink, attempt, frame, world, monkeypatch)
    before = log_of(table)
    with pytest.raises(Corrupt, match=r"for one row of the table: column 'id' is string in .*: id=2\.") as caught:
        sink.commit(attempt, staged, world)
    assert caught.value.code is codes.DELTA_COMMIT_REFUSED
    assert log_of(table) == before


@pytest.mark.long
def test_rows_that_an_earlier_version_decided_for_keys_of_another_type_are_merged_if_each_has_its_own(
    session: Any, world: Environment, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(session, table, "id BIGINT, n INT")
    session.sql(f"INSERT INTO delta.`{table}` VALUES (2, 1)").collect()
    sink, attempt = DeltaSink("silver", table, **COUNTER), attempt_of(transaction(1))
    frame = values(session, "id, n", "('2', 1)", "('3', 1)")
    staged = staged_by_an_earlier_version(sink, attempt, frame, world, monkeypatch)
    receipt = sink.commit(attempt, staged, world)
    assert sink.commit(attempt, staged, world) == receipt
    assert shown_by_others(table) == [(2, 2), (3, 1)]


PAGES = """
from pyspark.sql import functions as F


def as_text(batch, epoch):
    return batch.select(F.from_json(F.col("value").cast("string"), "page string, n bigint").alias("o")).select("o.*")


def as_number(batch, epoch):
    return as_text(batch, epoch).groupBy(F.col("page").cast("bigint").alias("page")).agg(F.sum("n").alias("n"))
"""


@pytest.mark.long
def test_who_does_what_the_error_of_an_ambiguous_merge_says_gets_the_later_epochs(
    session: Any, lab: Lab, tmp_path: Path
) -> None:
    table, app = lab.at("lake"), tmp_path / "pages.py"
    app.write_text(PAGES)
    create(session, table, "page BIGINT, n BIGINT")
    session.sql(f"INSERT INTO delta.`{table}` VALUES (2, 10)").collect()
    count = "WHEN MATCHED THEN UPDATE SET t.n = t.n + s.n"
    sinks = (DeltaSink("lake", table, mode="merge", keys=["page"], merge=count),)
    lab.produce((0, "2", 1, 0), (1, "02", 1, 0))
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Corrupt) as caught:
        patched.setattr(delta_schema, "problems_of_merge", lambda *_: [])  # an earlier version did not look
        run_epoch(lab.task("pages", "as_text", sinks, None, app=app), Run("dag", "first"))
    assert "[DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE]" in caught.value.what
    assert "Let the transform return each key once, in the type that the table has" in caught.value.remedy
    lab.typed(caught.value, "waive")
    run_epoch(lab.task("pages", "as_number", sinks, None, app=app), Run("dag", "first"))
    assert lab.rows("lake", "page, n") == [(2, 10)]
    lab.produce((0, "2", 3, 0), (1, "02", 4, 0))
    lab.run(lab.task("pages", "as_number", sinks, None, app=app))
    assert lab.rows("lake", "page, n") == [(2, 17)]
