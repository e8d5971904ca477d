"""The marker of a SQL sink: lost, of version 0.1, of another ledger. No row goes in twice, and each remedy works."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Disagreement, SinkAttempt
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import Marker, Receipt, TransactionId, VoteKind
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.sql.marker import MarkerTable
from airflow_epochs.sinks.sql.sink import SqlSink
from tests.support.delta_world import attempt_of, rows, transaction
from tests.support.sql_world import Db, PostgresDb, SqlWorld

pytestmark = pytest.mark.proof

OLD_TABLE = (
    "CREATE TABLE epoch_markers (pipeline varchar(63) NOT NULL, sink varchar(63) NOT NULL, epoch bigint NOT NULL,"
    " txn_id text NOT NULL, row_count bigint NOT NULL, committed_at {instant} NOT NULL, PRIMARY KEY (pipeline, sink))"
)
"""As version 0.1 created it."""
INSTANT = {"postgres": "timestamp with time zone", "sqlite": "TEXT"}


@pytest.fixture
def world(db: Db, tmp_path: Path) -> SqlWorld:
    db.run("CREATE TABLE orders (id bigint)")
    return SqlWorld(db, tmp_path)


def statements(text: str) -> list[str]:
    """The statements of a remedy that put a row back, each with the one that creates the table if it is there."""
    return re.findall(r"(?:CREATE TABLE [^;]*; )?INSERT INTO [^;]*;", text)


def follow(world: SqlWorld, statement: str) -> None:
    world.db.run(*[part for part in statement.split(";") if part.strip()])


def refused(world: SqlWorld, attempt: SinkAttempt, staged: Any) -> Corrupt:
    before = world.ids()
    with pytest.raises(Corrupt) as caught:
        world.sink().commit(attempt, staged, world.env)
    assert world.ids() == before
    return caught.value


LOSSES = pytest.mark.parametrize(
    "loss", ["DELETE FROM epoch_markers", "DROP TABLE epoch_markers"], ids=["row", "table"]
)


@LOSSES
@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("landed", [True, False], ids=["rows are in", "rows are not in"])
def test_an_epoch_whose_marker_is_lost_before_the_receipt_goes_in_once_all_the_same(
    world: SqlWorld, epoch: int, landed: bool, loss: str
) -> None:
    sink = world.sink()
    attempt = attempt_of(transaction(1)) if epoch == 1 else world.second_epoch(sink)
    before = world.ids()
    staged = world.staged(sink, attempt, rows(11, 12, 13, 14))
    if landed:
        sink.commit(attempt, staged, world.env)
    world.db.run(loss)
    error = refused(world, attempt, staged)
    assert "The marker or its table is gone" in error.remedy
    with_rows, without_rows = statements(error.remedy)
    follow(world, with_rows if landed else without_rows)
    assert sink.commit(attempt, staged, world.env).rows == 4
    assert world.ids() == [*before, 11, 12, 13, 14]
    assert sink.last_committed("orders", world.env) == Marker.of(attempt.txn)
    following = attempt_of(transaction(epoch + 1), attempt.txn)
    sink.commit(following, world.staged(sink, following, rows(20)), world.env)
    assert world.ids() == [*before, 11, 12, 13, 14, 20]


def test_a_marker_table_that_was_made_anew_is_no_new_sink(world: SqlWorld) -> None:
    sink, attempt = world.sink(), attempt_of(transaction(1))
    staged = world.staged(sink, attempt, rows(1))
    sink.commit(attempt, staged, world.env)
    world.db.run("DROP TABLE epoch_markers")
    world.epoch(world.sink(), transaction(1, pipeline="other"), None, rows(2))
    assert "has neither the reservation nor the marker of this sink" in refused(world, attempt, staged).what


def test_a_vote_leaves_a_claim_that_nobody_takes_for_an_epoch(world: SqlWorld) -> None:
    sink, attempt = world.sink(), attempt_of(transaction(3))
    for _ in range(2):
        world.staged(sink, attempt, rows(1))
    assert world.marker_rows() == [("orders", "orders", 0, "first epoch 3 claimed by ledger 0f1e2d3c", 0)]
    assert sink.last_committed("orders", world.env) is None


def test_no_claim_is_left_by_a_vote_against(world: SqlWorld) -> None:
    assert "not in the table" in world.reason_against(world.sink(), rows(1, x=[1]))
    with pytest.raises(Exception, match="epoch_markers"):
        world.marker_rows()


def test_a_claim_of_an_aborted_attempt_serves_the_next_one(world: SqlWorld) -> None:
    sink = world.sink()
    world.staged(sink, attempt_of(transaction(1)), rows(1))
    again = attempt_of(transaction(1, attempt=2))
    sink.commit(again, world.staged(sink, again, rows(2)), world.env)
    assert world.ids() == [2]


def test_of_two_ledgers_with_one_pipeline_only_the_last_one_to_vote_commits(world: SqlWorld) -> None:
    sink, mine = world.sink(), attempt_of(transaction(1))
    staged = world.staged(sink, mine, rows(1))
    theirs = replace(attempt_of(transaction(1)), ledger_id="other")
    staged_theirs = world.staged(sink, theirs, rows(2))
    assert "claimed by ledger other" in refused(world, mine, staged).what
    sink.commit(theirs, staged_theirs, world.env)
    assert world.ids() == [2]


@pytest.mark.parametrize("landed", [True, False], ids=["rows are in", "rows are not in"])
def test_a_reservation_that_another_ledger_overwrote_is_put_back_by_the_statement_in_the_error(
    world: SqlWorld, landed: bool
) -> None:
    sink, mine = world.sink(), attempt_of(transaction(1))
    staged = world.staged(sink, mine, rows(1, 2))
    if landed:
        sink.commit(mine, staged, world.env)
        world.db.run("DELETE FROM epoch_markers")
    theirs = replace(attempt_of(transaction(1)), ledger_id="other")
    staged_theirs = world.staged(sink, theirs, rows(3))
    error = refused(world, mine, staged)
    assert error.code is codes.TWO_LEDGERS
    assert "Two ledgers write under one name" in error.remedy
    with_rows, without_rows = statements(error.remedy)
    follow(world, with_rows if landed else without_rows)
    assert sink.commit(mine, staged, world.env).rows == 2
    told = refused(world, theirs, staged_theirs)
    assert told.code is codes.TWO_LEDGERS, "both have an epoch 1"
    assert "complete epoch 1, which is in doubt, without this sink's rows" in told.remedy
    assert "`airflow epochs waive orders 1 orders --why …`" in told.remedy
    assert world.ids() == [1, 2]


def test_a_marker_that_is_put_back_over_one_of_another_ledger_does_not_keep_its_position(world: SqlWorld) -> None:
    """A ledger would be rebuilt from it."""
    sink, mine = world.sink(), attempt_of(transaction(1))
    staged = world.staged(sink, mine, rows(1, 2))
    theirs = replace(attempt_of(transaction(1)), ledger_id="other", ends={"others": {"0": 700}})
    staged_theirs = world.staged(sink, theirs, rows(3))
    with_rows, _ = statements(refused(world, mine, staged).remedy)
    sink.commit(theirs, staged_theirs, world.env)
    follow(world, with_rows)
    shown = sink.last_epoch("orders", world.env)
    assert shown and (shown.txn, shown.ends) == (mine.txn, None)


def test_an_unlogged_marker_table_is_a_vote_against_and_stops_a_commit(world: SqlWorld) -> None:
    if world.db.kind == "sqlite":
        world.db.run("CREATE VIEW epoch_markers AS SELECT 1 AS epoch")
        assert "cannot be the marker table: it is a view" in world.reason_against(world.sink(), rows(1))
        return
    sink, attempt = world.sink(), attempt_of(transaction(1))
    staged = world.staged(sink, attempt, rows(1))
    world.db.run("ALTER TABLE epoch_markers SET UNLOGGED")
    vote = world.voted(sink, attempt, rows(1))
    assert "epoch_markers cannot be the marker table: it is UNLOGGED" in (vote.reason or "")
    assert "UNLOGGED" in refused(world, attempt, staged).what
    (statement,) = re.findall(r"`(ALTER TABLE [^`]*)`", vote.reason or "")
    world.db.run(statement)
    sink.commit(attempt, staged, world.env)
    assert world.ids() == [1]


# -- a sink that points elsewhere ------------------------------------------------------------------------------------


def gone(world: SqlWorld, sink: SqlSink, receipt: Receipt) -> Corrupt:
    expected = TransactionId.parse(receipt.txn_id)
    seen = Disagreement(pipeline="orders", found=None, expected=expected, receipt=receipt)
    told = sink.diagnose(seen, world.env)
    assert told
    return told


def elsewhere(pg: SqlWorld) -> SqlSink:
    """The sink with the table of this name in another schema, which is created."""
    pg.db.run(f"CREATE SCHEMA {schema_of(pg)}_2")
    return SqlSink("orders", "db", f"{schema_of(pg)}_2.orders", staging=str(pg.folder / "staging"))


def schema_of(pg: SqlWorld) -> str:
    return pg.db.table().partition(".")[0]


def test_a_table_that_moved_to_another_schema_without_its_marker_is_told_of_and_gets_it_back(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE orders (id bigint)")
    first = transaction(1)
    _, receipt = pg.epoch(pg.sink(), first, None, rows(1))
    sink = elsewhere(pg)
    pg.db.run(f"ALTER TABLE orders SET SCHEMA {schema_of(pg)}_2")
    error = gone(pg, sink, receipt)
    assert error.code is codes.MARKERS_GONE
    assert f"was moved from schema {schema_of(pg)} to schema {schema_of(pg)}_2" in error.what
    (statement,) = statements(error.remedy)
    follow(pg, statement)
    assert sink.last_committed("orders", pg.env) == Marker.of(first)


def test_a_sink_that_got_a_table_in_another_schema_is_told_of_both_tables(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE orders (id bigint)")
    _, receipt = pg.epoch(pg.sink(), transaction(1), None, rows(1))
    sink = elsewhere(pg)
    pg.db.run(f"CREATE TABLE {schema_of(pg)}_2.orders (id bigint)")
    error = gone(pg, sink, receipt)
    assert error.code is codes.TABLE_ELSEWHERE
    assert f"to table {schema_of(pg)}.orders in schema {schema_of(pg)}" in error.what
    assert "dropped" not in error.what
    assert error.remedy.startswith("Correct `table` if the DAG points the sink to a wrong table.")
    assert len(statements(error.remedy)) == 1, "for a copy that has the rows"


OF_DELTA = {"table": "/lake/orders", "committer": "pyspark", "table_id": "3f0c9d2e-6a34-4c0b-9a59-0a1f8f1d7c55"}
"""The detail of a DeltaSink's receipt."""


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ({"detail": {"topic": "orders"}}, "topic orders"),
        ({"version": 3}, "a Delta table"),
        ({"version": 3, "detail": OF_DELTA}, "a Delta table"),
    ],
)
def test_a_sink_that_changed_its_kind_is_told_of_where_its_last_epoch_went(
    world: SqlWorld, then: dict[str, Any], told: str
) -> None:
    sink = world.sink()
    _, receipt = world.epoch(sink, transaction(1), None, rows(1))
    world.db.run("DELETE FROM epoch_markers")
    error = gone(world, sink, replace(receipt, **{"detail": {}, **then}))
    assert error.code is codes.TABLE_ELSEWHERE
    assert f"was committed to {told}" in error.what
    assert "Give the sink its old kind back" in error.remedy
    assert statements(error.remedy) == []


# -- version 0.1 ----------------------------------------------------------------------------------------------------


def of_version_0_1(world: SqlWorld, *epochs: TransactionId) -> None:
    world.db.run(OLD_TABLE.format(instant=INSTANT[world.db.kind]))
    for txn in epochs:
        world.db.run(f"INSERT INTO epoch_markers VALUES ('orders', 'orders', {txn.epoch}, '{txn}', 1, '2026-01-01')")
        world.db.run("INSERT INTO orders VALUES (1)")


def ends(world: SqlWorld) -> Any:
    ((found,),) = world.db.run("SELECT ends FROM epoch_markers")
    return json.loads(found) if isinstance(found, str) else found


def test_a_marker_table_of_version_0_1_goes_on_and_gets_the_position(world: SqlWorld) -> None:
    first = transaction(1)
    of_version_0_1(world, first)
    sink, position = world.sink(), {"orders": {"0": 7, "1": 9}}
    second = replace(attempt_of(transaction(2), first), ends=position)
    sink.commit(second, world.staged(sink, second, rows(2)), world.env)
    assert (world.ids(), ends(world)) == ([1, 2], position)


def test_a_marker_table_of_version_0_1_that_may_not_be_altered_goes_on_without(world: SqlWorld) -> None:
    first = transaction(1)
    of_version_0_1(world, first)
    if isinstance(world.db, PostgresDb):
        user = f"u{world.db.schema}"
        world.db.run(
            f"CREATE USER {user} PASSWORD 'x'",
            f"GRANT USAGE ON SCHEMA {world.db.schema} TO {user}",
            f"GRANT SELECT, INSERT, UPDATE ON orders, epoch_markers TO {user}",
        )
        world.env.connections["db"] = world.db.connection(login=user, password="x")
    else:
        world.db.run("CREATE TRIGGER busy AFTER INSERT ON orders BEGIN SELECT 1; END")
    sink, previous = world.sink(), first
    for epoch in (2, 3):
        attempt = replace(attempt_of(transaction(epoch), previous), ends={"orders": {"0": epoch}})
        sink.commit(attempt, world.staged(sink, attempt, rows(epoch)), world.env)
        previous = attempt.txn
    assert world.ids() == [1, 2, 3]


def test_only_the_owner_of_an_older_marker_table_tries_to_alter_it(
    pg: SqlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = transaction(1), transaction(2), transaction(3)
    pg.db.run("CREATE TABLE orders (id bigint)")
    of_version_0_1(pg, first)
    user, tried = f"u{schema_of(pg)}", list[str]()
    pg.db.run(
        f"CREATE USER {user} PASSWORD 'x'",
        f"GRANT USAGE ON SCHEMA {schema_of(pg)} TO {user}",
        f"GRANT SELECT, INSERT, UPDATE ON orders, epoch_markers TO {user}",
    )
    pg.env.connections["db"] = pg.db.connection(login=user, password="x")
    add_columns = MarkerTable.add_columns

    def noted(self: MarkerTable) -> None:
        tried.append(self.name)
        add_columns(self)

    monkeypatch.setattr(MarkerTable, "add_columns", noted)
    sink = pg.sink()
    pg.epoch(sink, second, first, rows(2))
    assert tried == [], "the server would refuse it, in each epoch anew"
    pg.db.run(f"ALTER TABLE epoch_markers OWNER TO {user}")
    pg.epoch(sink, third, second, rows(3))
    assert tried == ["epoch_markers"]
    assert pg.db.run("SELECT target FROM epoch_markers") == [("orders",)]


def test_a_first_epoch_that_version_0_1_has_decided_is_committed_without_a_claim(world: SqlWorld) -> None:
    of_version_0_1(world)
    spec = {key: value for key, value in world.sink().spec().items() if key != "claims"}
    sink, attempt = from_spec({**spec, "of a newer version": 1}), attempt_of(transaction(1))
    assert isinstance(sink, SqlSink)
    staged = world.staged(sink, attempt, rows(1))
    assert world.marker_rows() == []
    receipt = sink.commit(attempt, staged, world.env)
    assert sink.commit(attempt, staged, world.env) == receipt
    assert world.ids() == [1]


def test_a_first_epoch_that_version_0_1_has_staged_is_voted_on_and_committed(world: SqlWorld) -> None:
    attempt = attempt_of(transaction(1))
    sink = from_spec({**world.sink().spec(), "claims": False})
    assert isinstance(sink, SqlSink)
    vote = world.voted(sink, attempt, rows(1))
    assert vote.vote is VoteKind.VOTE_COMMIT
    assert vote.staged
    sink.commit(attempt, vote.staged, world.env)
    assert world.ids() == [1]


def test_the_position_stands_with_the_marker_and_a_select_shows_it(world: SqlWorld) -> None:
    sink, position = world.sink(), {"orders": {"0": 7, "1": 9}, "returns": {"0": 1}}
    attempt = replace(attempt_of(transaction(1)), ends=position)
    sink.commit(attempt, world.staged(sink, attempt, rows(1)), world.env)
    page = Path(__file__).parents[2].joinpath("docs", "sql.md").read_text()
    (select,) = re.findall(r"```sql\n(SELECT epoch.*?)\n```", page, re.DOTALL)
    ((epoch, found),) = world.db.run(select)
    assert (epoch, json.loads(found) if isinstance(found, str) else found) == (1, position)
