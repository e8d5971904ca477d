"""The Delta sink on S3: credentials from a connection, answers that get lost on the way, Spark's spelling."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Corrupt, NotApplied, OutcomeUnknown
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import open_store
from airflow_epochs.model import Marker, Staged, TransactionId, VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.staged.table import StagedTable
from airflow_epochs.storage.files import open_files
from airflow_epochs.storage.options import storage_options
from tests.support.delta_world import (
    SparkOn,
    attempt_of,
    promised,
    rows,
    spark_epoch,
    stage_with_deltalake,
    transaction,
)
from tests.support.environment import Environment
from tests.support.s3_access import connection
from tests.support.s3_proxy import DenyingProxy, LossyProxy


@pytest.fixture
def s3_url(s3: Any) -> str:
    return f"s3a://{s3.bucket}/{uuid.uuid4().hex}/orders"


@pytest.fixture
def proxy(s3: Any) -> Iterator[LossyProxy]:
    with LossyProxy(s3.endpoint) as proxy:
        yield proxy


def ids_in(sink: DeltaSink, world: Environment) -> list[int]:
    table = DeltaTable(sink.target, storage_options=storage_options(world.connections["s3"]))
    return sorted(table.to_pyarrow_table()["id"].to_pylist())


def staged_rows(
    sink: DeltaSink, world: Environment, txn: TransactionId, previous: TransactionId | None, data: Any
) -> tuple[SinkAttempt, Staged]:
    attempt = attempt_of(txn, previous)
    plan = sink.plan_stage(attempt, uuid.uuid4().hex, world)
    claim = stage_with_deltalake(plan, data, storage_options(world.connections["s3"]))
    return attempt, promised(sink.vote(attempt, claim, world))


def test_epochs_are_committed_cleaned_up_and_maintained_on_s3(
    s3_sink: DeltaSink, s3_world: Environment, s3: Any
) -> None:
    sink = DeltaSink("bronze", s3_sink.table, storage_conn_id="s3", compact_every=4, checkpoint_every=2)
    previous = None
    for epoch in range(1, 5):
        txn = transaction(epoch)
        attempt, staged = staged_rows(sink, s3_world, txn, previous, rows(epoch))
        receipt = sink.commit(attempt, staged, s3_world)
        assert sink.commit(attempt, staged, s3_world) == receipt
        sink.discard(attempt, staged.place, s3_world, published=True)
        assert sink.last_committed("orders", s3_world) == Marker.of(txn)
        previous = txn
    assert ids_in(sink, s3_world) == [1, 2, 3, 4]
    done = sink.maintain("orders", 4, s3_world)
    assert (done["checkpoint"], done["files_removed"], done["files_added"]) == (4, 4, 1)
    assert ids_in(sink, s3_world) == [1, 2, 3, 4]
    files = open_files(sink.target, storage_options(connection(s3)))
    assert not any("_delta_log" in path for path in files.sizes("epochs"))


def test_rows_staged_on_s3_for_a_sink_that_copies_them_are_read_back_in_order(s3: Any) -> None:
    options = storage_options(connection(s3))
    area = StagedTable(root=f"s3://{s3.bucket}/staging", sink="events", target="topic events", options=options)
    attempt = attempt_of(transaction(1))
    claim = stage_with_deltalake(area.plan(attempt, "a"), rows(*range(25_000)), options)
    _, staged = area.checked(attempt, claim)
    assert [i for batch in area.rows(attempt, staged) for i in batch.column("id").to_pylist()] == list(range(25_000))
    area.discard(attempt, staged.place)
    assert only_the_owner_is_named(open_files(area.root, options).sizes(""))


def test_a_discarded_place_is_gone_from_s3(s3_sink: DeltaSink, s3_world: Environment, s3: Any) -> None:
    attempt, staged = staged_rows(s3_sink, s3_world, transaction(1), None, rows(1))
    s3_sink.discard(attempt, staged.place, s3_world, published=False)
    s3_sink.discard(attempt, staged.place, s3_world, published=False)
    assert only_the_owner_is_named(open_files(s3_sink.target, storage_options(connection(s3))).sizes(""))


def test_a_table_around_a_sinks_table_or_around_a_ledger_is_found_on_s3(
    s3_sink: DeltaSink, s3_world: Environment, s3: Any
) -> None:
    options = storage_options(s3_world.connections["s3"])
    inner = DeltaSink("inner", f"{s3_sink.table}/bronze/inner", storage_conn_id="s3")
    place = inner.place(attempt_of(transaction(1), None), "a", s3_world)
    ledger = Ledger(open_store(f"{s3_sink.target}/ledgers", options), "orders")
    assert [*inner.tables_around(place, s3_world), *ledger.tables_around()] == []
    write_deltalake(s3_sink.target, rows(0), storage_options=options)
    assert list(inner.tables_around(place, s3_world)) == [(s3_sink.target, inner.target)]
    assert list(ledger.tables_around()) == [(s3_sink.target, f"{s3_sink.target}/ledgers/orders")]
    assert list(s3_sink.tables_around(s3_sink.place(attempt_of(transaction(1), None), "a", s3_world), s3_world)) == []


def only_the_owner_is_named(left: dict[str, int]) -> bool:
    """The file that says whose the staging folder is stays, once per sink."""
    return [path.rpartition("/")[2] for path in left] == ["_owner.json"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_log_entry_whose_acknowledgement_is_lost_is_committed_once(
    s3_sink: DeltaSink, s3_world: Environment, s3: Any, proxy: LossyProxy, exists: bool
) -> None:
    if exists:
        write_deltalake(s3_sink.target, rows(0), storage_options=storage_options(connection(s3)))
    attempt, staged = staged_rows(s3_sink, s3_world, transaction(1), None, rows(1, 2))
    s3_world.connections["s3"] = connection(s3, proxy.endpoint)
    proxy.losing = True
    receipt = s3_sink.commit(attempt, staged, s3_world)
    assert proxy.lost > 0
    proxy.losing = False
    assert receipt.version == (1 if exists else 0)
    assert ids_in(s3_sink, s3_world) == ([0, 1, 2] if exists else [1, 2])
    assert DeltaTable(s3_sink.target, storage_options=storage_options(connection(s3))).version() == receipt.version


def test_a_checkpoint_that_cannot_be_read_once_leads_no_commit_to_spark(
    s3_sink: DeltaSink, s3_world: Environment, s3: Any
) -> None:
    write_deltalake(s3_sink.target, rows(0), storage_options=storage_options(connection(s3)))
    attempt, staged = staged_rows(s3_sink, s3_world, transaction(1), None, rows(1, 2))
    table = DeltaTable(s3_sink.target, storage_options=storage_options(connection(s3)))
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    table.create_checkpoint()
    with DenyingProxy(s3.endpoint) as proxy:
        s3_world.connections["s3"] = connection(s3, proxy.endpoint)
        proxy.left = 1
        assert s3_sink.commit(attempt, staged, s3_world).version == 2
        assert proxy.left == 0
        proxy.left = 100
        with pytest.raises(NotApplied, match=r"AccessDenied \(Access Denied\) to GET /.*checkpoint\.parquet") as raised:
            s3_sink.plan_stage(attempt_of(transaction(2), transaction(1)), "n", s3_world)
        assert "the right to read" in raised.value.remedy


@pytest.mark.proof
def test_a_server_that_is_down_gives_no_vote_and_leaves_a_commit_unknown(
    s3_sink: DeltaSink, s3_world: Environment, s3: Any
) -> None:
    attempt, staged = staged_rows(s3_sink, s3_world, transaction(1), None, rows(1))
    s3_world.connections["s3"] = connection(s3, "http://127.0.0.1:9")
    with pytest.raises(OutcomeUnknown):
        s3_sink.commit(attempt, staged, s3_world)
    with pytest.raises(NotApplied):
        s3_sink.last_committed("orders", s3_world)


def test_a_bucket_that_does_not_exist_is_said(s3_world: Environment) -> None:
    sink = DeltaSink("bronze", "s3://no-such-bucket/orders", storage_conn_id="s3")
    with pytest.raises(NotApplied, match="no-such-bucket"):
        sink.plan_stage(attempt_of(transaction(1)), "n", s3_world)


def test_a_store_without_conditional_put_is_a_vote_abort(s3_sink: DeltaSink, s3_world: Environment, s3: Any) -> None:
    attempt = attempt_of(transaction(1))
    plan = s3_sink.plan_stage(attempt, "n", s3_world)
    claim = stage_with_deltalake(plan, rows(1), storage_options(connection(s3)))
    options = {"storage_options": {"aws_conditional_put": "disabled"}}
    unsafe = connection(s3)
    unsafe.extra.update(options)
    s3_world.connections["s3"] = unsafe
    vote = s3_sink.vote(attempt, claim, s3_world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "conditional" in (vote.reason or "")


def restored(table: DeltaTable) -> None:
    table.restore(table.version() - 1)


def replaced(table: DeltaTable) -> None:
    DeltaTable.create(table.table_uri, table.schema(), mode="overwrite", storage_options=table._storage_options)


@pytest.mark.parametrize(
    ("change", "told"), [(restored, "RESTORE to version 0"), (replaced, "CREATE OR REPLACE TABLE"), (None, None)]
)
def test_rows_that_others_take_away_on_s3_are_told_of(
    s3_sink: DeltaSink, s3_world: Environment, change: Callable[[DeltaTable], None] | None, told: str | None
) -> None:
    first, second = transaction(1), transaction(2)
    s3_sink.commit(*staged_rows(s3_sink, s3_world, first, None, rows(1)), s3_world)
    since = s3_sink.commit(*staged_rows(s3_sink, s3_world, second, first, rows(2)), s3_world)
    if change:
        change(DeltaTable(s3_sink.target, storage_options=storage_options(s3_world.connections["s3"])))
    found = s3_sink.foreign_changes(since, "orders", (), s3_world)
    place = f"{s3_sink.target} may have lost rows of complete epochs in version 2"
    assert found == ([f"sink bronze: {place} ({told})"] if told else [])
    assert s3_sink.last_committed("orders", s3_world) == Marker.of(second)


TAKES_ROWS_AWAY = {
    "RESTORE TABLE {t} TO VERSION AS OF 0": "RESTORE to version 0",
    "CREATE OR REPLACE TABLE {t} USING delta AS SELECT 5L AS id": "CREATE OR REPLACE TABLE AS SELECT",
    "INSERT OVERWRITE {t} SELECT 6L AS id": "WRITE, overwrite",
}


@pytest.mark.jvm
@pytest.mark.long
def test_rows_that_spark_takes_away_on_s3_are_told_of_and_a_strict_sink_stops(
    connect: Any, s3_world: Environment, s3: Any
) -> None:
    session = connect.session()
    try:
        for statement, told in TAKES_ROWS_AWAY.items():
            url = f"s3://{s3.bucket}/{uuid.uuid4().hex}/orders"
            sink = DeltaSink("bronze", url, storage_conn_id="s3", on_foreign_change="stop")
            first, second = transaction(1), transaction(2)
            sink.commit(*staged_rows(sink, s3_world, first, None, rows(1)), s3_world)
            since = sink.commit(*staged_rows(sink, s3_world, second, first, rows(2)), s3_world)
            assert sink.foreign_changes(since, "orders", (), s3_world) == []
            session.sql(statement.format(t=f"delta.`{url.replace('s3://', 's3a://')}`")).collect()
            with pytest.raises(Corrupt, match=re.escape(f"in version 2 ({told})")):
                sink.foreign_changes(since, "orders", (), s3_world)
    finally:
        session.stop()


@pytest.mark.jvm
def test_spark_stages_to_s3_with_credentials_of_its_own(
    connect: Any, s3_sink: DeltaSink, s3_world: Environment
) -> None:
    session = connect.session()
    try:
        s3_world.spark = SparkOn(session)
        first, second = transaction(1), transaction(2)
        spark_epoch(s3_sink, first, None, session.range(3), s3_world)
        spark_epoch(s3_sink, second, first, session.range(3, 5), s3_world)
        assert ids_in(s3_sink, s3_world) == [0, 1, 2, 3, 4]
        read = session.read.format("delta").load(s3_sink.target.replace("s3://", "s3a://"))
        assert sorted(row.id for row in read.collect()) == [0, 1, 2, 3, 4]
    finally:
        session.stop()
