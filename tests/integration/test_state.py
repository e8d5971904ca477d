"""State from epoch to epoch, with everything real but Airflow; the oracle is plain Python over what was produced."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import DeltaSink, EventTime, StateTable
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt, Refused, located
from airflow_epochs.model import Marker, Run, TransactionId
from airflow_epochs.read import state as read_state
from airflow_epochs.sinks.delta.state import pinning
from airflow_epochs.sinks.delta.state.pinning import FOLD_EPOCHS_MIN
from airflow_epochs.spark.driver.delta import state as driver_state
from airflow_epochs.testing import Crash
from orders_demo.duck import duck
from tests.support.faults_world import crash
from tests.support.spark_world import APPS
from tests.support.state_clicks import EPOCH, some_clicks
from tests.support.state_lab import ALWAYS, OPEN, PARTITIONS, Lab, firsts, folds, seen_pages

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]
PHASES = (
    "open.landed",
    "stage.start",
    "stage.done",
    "decision.put",
    "decision.landed",
    "commit.open",
    "delta.commit.before",
    "delta.commit.after",
    "committed.hourly",
    "committed.open",
    "complete.put",
    "complete.landed",
)


def test_windows_close_once_and_late_clicks_are_told_apart(lab: Lab) -> None:
    lab.produce((0, "a", 1, 10), (1, "a", 2, 20), (0, "b", 3, 110))
    lab.run(lab.windows())
    lab.produce((0, "a", 4, 250), (1, "b", 5, 240), (0, "a", 6, 90))
    lab.run(lab.windows())
    lab.produce((1, "b", 7, 30), (0, "c", 8, 260))
    lab.run(lab.windows())
    lab.require_oracle()
    lab.run_all(lab.windows)
    lab.require_oracle()
    assert len(lab.rows("hourly", "*")) == 2
    assert lab.rows("late", '"partition", "offset"') == [(1, 2)]


def test_records_with_times_far_away_stop_no_epoch_and_leave_no_window_that_others_cannot_read(lab: Lab) -> None:
    lab.produce((0, "a", 1, 10), (1, "a", 2, 20), (2, "b", 3, 30))
    producer = Producer({"bootstrap.servers": lab.broker.bootstrap})
    for time in ("9999-12-31T23:59:59Z", "+294247-01-10T04:00:54Z"):
        producer.produce(lab.topic, json.dumps({"page": "far", "n": 1, "ts": time}), partition=0)
    assert producer.flush(30) == 0
    lab.run_all(lambda: lab.windows(transform="windows.py:hourly"))
    assert sorted(lab.rows("late", '"partition", "offset"')) == [(0, 1), (0, 2)]
    kept = DeltaTable(lab.at("open")).to_pyarrow_table().to_pylist()
    assert sorted((row["page"], row["total"]) for row in kept) == [("a", 3), ("b", 3)]


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(4, len(PHASES), 4))])
def test_an_epoch_killed_at_any_phase_leaves_state_and_outputs_as_the_oracle_has_them(lab: Lab, first: int) -> None:
    dice = random.Random(first)
    for epoch, phase in enumerate(PHASES[first : first + 4]):
        lab.produce(*some_clicks(dice, epoch))
        with pytest.raises(Crash):
            lab.run(lab.windows(then={phase: crash}))
        lab.run_all(lab.windows)
    lab.produce(*((partition, "z", 1, 100_000) for partition in range(PARTITIONS)))
    lab.run_all(lab.windows)
    lab.require_oracle()
    assert folds(lab) >= 1, "no epoch has staged the whole state"


CORRECTED = """
from datetime import timedelta

from airflow_epochs.transforms import windowed
from pyspark.sql import functions as F
from tests.apps.clicks import clicks


def corrected(batch, epoch, state):
    [(name, before)] = state.items()
    w = windowed(
        clicks(batch, epoch),
        before,
        epoch,
        time="ts",
        size=timedelta(seconds=100),
        lateness=timedelta(seconds=500),
        keys=["page"],
        agg=[F.count("*").alias("clicks"), F.sum("n").alias("total")],
        merge=[F.sum("clicks").alias("clicks"), F.sum("total").alias("total")],
    )
    return {"hourly": w.out, name: w.changes}
"""


@pytest.mark.long
@pytest.mark.parametrize("has_rows", [False, pytest.param(True, marks=pytest.mark.long)])
def test_windows_with_a_lateness_are_kept_by_no_table_that_expires_at_their_end(lab: Lab, has_rows: bool) -> None:
    (lab.folder / "corrected.py").write_text(CORRECTED)

    def pipeline(name: str, expires: str) -> Coordinator:
        kept = lab.open_table(name, schema=f"{OPEN}, expires timestamp", expires=expires)
        sinks = (*lab.outputs("hourly"), kept)
        times = EventTime("0 s", max_ahead=ALWAYS)
        return lab.task("clicks", "corrected", sinks, times, app=lab.folder / "corrected.py")

    lab.produce((0, "a", 1, 10), (1, "a", 1, 10), (2, "a", 1, 10))
    if has_rows:
        with pytest.MonkeyPatch.context() as earlier:
            earlier.setattr(driver_state, "expiring", lambda state, by: state)
            lab.run(pipeline("open", "window_end"))
        lab.produce((0, "a", 1, 20))
    with pytest.raises(Refused, match="must expire by 'expires', and it expires by 'window_end'") as refused:
        lab.run(pipeline("open", "window_end"))
    assert "If the table has rows, give the state another name and path: `open` then names" in refused.value.remedy
    mended = "kept" if has_rows else "open"
    if has_rows:
        with pytest.raises(Refused, match="EPOCHS-STATE-REPLACED") as refused, located("clicks"):
            lab.run(pipeline(mended, "expires"))
        lab.typed(refused.value, "adopt-sink")
    lab.run(pipeline(mended, "expires"))
    lab.produce(*((partition, "z", 1, 300) for partition in range(PARTITIONS)))
    lab.run_all(lambda: pipeline(mended, "expires"))
    lab.produce((0, "a", 1, 30))
    lab.run_all(lambda: pipeline(mended, "expires"))
    assert sorted(lab.rows("hourly", "clicks")) == ([(1,), (2,)] if has_rows else [(3,), (4,)])


# -- state that must survive ---------------------------------------------------------------------------------------


def test_rows_lost_after_the_state_was_committed_are_staged_again_from_the_state_before(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1), (1, "b", 1, 1))
    lab.run(seen_pages(lab))
    lab.produce((0, "a", 1, 2), (0, "c", 1, 2))
    run, task = Run("dag", "struck"), seen_pages(lab)
    task.open(run)
    task.vote(run, task.stage(run).stage)
    task.commit(run, "seen")
    (place,) = (found.places["firsts"] for found in task.task.ledger.tries(2))
    for file in Path(place).rglob("*.parquet"):
        file.unlink()
    task = seen_pages(lab)
    task.commit(run, "firsts")
    task.complete(run)
    assert len(task.task.ledger.restaged(2, "firsts")) == 1
    assert firsts(lab) == [("a", 1), ("b", 1), ("c", 1)]


def test_a_state_that_others_have_changed_stops_the_pipeline_until_the_change_is_undone(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1))
    lab.run(seen_pages(lab))
    table = DeltaTable(str(lab.folder / "seen"))
    table.delete("page = 'a'")
    lab.produce((0, "a", 1, 2))
    with pytest.raises(Corrupt, match="EPOCHS-STATE-CHANGED"):
        lab.run(seen_pages(lab))
    table.restore(0)
    lab.run(seen_pages(lab))
    assert firsts(lab) == [("a", 1)]


def test_a_state_does_not_come_back_after_epochs_without_it(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1))
    lab.run_all(lambda: seen_pages(lab))
    lab.produce((0, "b", 1, 2))
    lab.run(lab.task("firsts", "stateless", (DeltaSink("firsts", str(lab.folder / "firsts")),), None))
    lab.produce((0, "c", 1, 3))
    with pytest.raises(Corrupt, match=r"EPOCHS-BACKFILL-GONE.*Epoch 2 read no state 'seen'"):
        lab.run(seen_pages(lab, DeltaSink("more", str(lab.folder / "more")), backfill={"more": 1}))
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SKIPPED.*'seen' is as of epoch 1, and epochs 2 to 2"):
        lab.run(seen_pages(lab))


@pytest.mark.long
def test_a_state_lives_wherever_a_table_can(lab: Lab) -> None:
    lab.lake = str(lab.folder / "a=1" / "_of {all} [kinds]*? ä")
    for page in "ab":
        lab.produce((0, "a", 1, 1), (1, page, 1, 2))
        lab.run(seen_pages(lab))
    assert firsts(lab) == [("a", 1), ("b", 1)]


@pytest.mark.long
def test_a_state_begins_with_the_rows_of_another_table_and_in_no_table_with_rows(lab: Lab) -> None:
    old = str(lab.folder / "old")
    write_deltalake(old, pa.table({"page": ["a", "z"], "n": [1, 1], "more": ["x", "y"]}))
    lab.produce((0, "a", 1, 1), (1, "b", 1, 1))
    lab.run(seen_pages(lab, initial=old))
    assert firsts(lab) == [("b", 1)]
    assert sorted(lab.rows("seen", "page, n, __epoch")) == [("a", 1, 1), ("b", 1, 1), ("z", 1, 1)]
    write_deltalake(old, pa.table({"page": ["c"], "n": [1], "more": ["x"]}), mode="append")
    lab.produce((0, "c", 1, 2))
    lab.run(seen_pages(lab, initial=old))
    assert firsts(lab) == [("b", 1), ("c", 1)], "the state begins once"
    there = StateTable("other", old, schema="page string, n bigint", keys=["page"])
    with pytest.raises(Refused, match="EPOCHS-STATE-NOT-EMPTY"):
        lab.run(lab.task("others", "unique", (DeltaSink("firsts", str(lab.folder / "x")), there), None))


FAR_DAY = 2**31 - 1
CHANGES = """
def changes(batch, epoch, state):
    return batch.sparkSession.sql({sql!r})
"""
DOUBLED = """
def alike(batch, epoch):
    return {"lake": batch.selectExpr("1 as n"), "other": batch.selectExpr("1 as n", "2 as N")}


def named(batch, epoch):
    found = alike(batch, epoch)
    return {**found, "other": found["other"].toDF("n", "m")}
"""
WRONG = {
    "select string(null) as page, bigint(1) as n": "rule of state that its key column page is not NULL",
    "select string(X'61FF') as page, bigint(1) as n": "rule of state that column page is UTF-8",
    "select 'a' as page, explode(array(1L, 2L)) as n": "Some keys change more than once in this epoch: page='a'",
    "select 'a' as page, 1L as m": "they lack n; they have m, which the state does not have",
    "select 'a' as page, 1 as n": "n is int instead of bigint",
}


def changing(
    lab: Lab,
    sql: str,
    schema: str = "page string, n bigint",
    expires: str | None = None,
    keys: Sequence[str] = ("page",),
    initial: str | None = None,
) -> Coordinator:
    """A pipeline whose only output is its state; the changes of an epoch are what the statement selects."""
    lab.produce((0, "a", 1, 1))
    (lab.folder / "changes.py").write_text(
        CHANGES.format(sql=sql if "__deleted" in sql else f"select *, false as __deleted from ({sql})")
    )
    state = StateTable("seen", lab.at("seen"), schema=schema, keys=list(keys), expires=expires, initial=initial)
    return lab.task("changes", "changes", (state,), None, app=lab.folder / "changes.py")


def test_changes_that_are_no_state_are_a_vote_to_abort_that_says_why(lab: Lab) -> None:
    for sql, told in WRONG.items():
        with pytest.raises(Refused, match="EPOCHS-GLOBAL-ABORT") as refused:
            lab.run(changing(lab, sql))
        assert told in str(refused.value)
    assert not (lab.folder / "seen/_delta_log").exists()
    lab.run(changing(lab, "select 'a' as page, 1L as n"))
    assert lab.rows("seen", "page, n") == [("a", 1)]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["double", pytest.param("float", marks=pytest.mark.long)])
def test_zeros_of_both_signs_are_one_key_to_the_vote_to_spark_and_to_other_readers_and_so_are_all_nans(
    lab: Lab, kind: str
) -> None:
    schema = f"page {kind}, n bigint"
    old = str(lab.folder / "old")
    write_deltalake(old, pa.table({"page": pa.array([-0.0], pa.float32() if kind == "float" else None), "n": [0]}))
    zero, nan = f"{kind}(n * 0)", f"{kind}('NaN')"
    lab.run(changing(lab, f"select {nan} as page, 1L as n", schema, initial=old))
    assert_read_by_all(lab, {"0.0": 0, "nan": 1})
    lab.run(changing(lab, f"select explode(array(-{zero}, -{nan})) as page, n from (select 2L as n)", schema))
    assert_read_by_all(lab, {"0.0": 2, "nan": 2})
    for twice in (f"array(-{zero}, {zero})", f"array({nan}, -{nan})"):
        with pytest.raises(Refused, match=r"Some keys change more than once in this epoch: page=(0.0|nan)\."):
            lab.run(changing(lab, f"select explode({twice}) as page, n from (select id as n from range(1))", schema))
    for n in range(3, 3 + FOLD_EPOCHS_MIN):
        lab.run(changing(lab, f"select explode(array(-{zero}, {nan})) as page, n from (select {n}L as n)", schema))
        assert_read_by_all(lab, {"0.0": n, "nan": n})
    assert folds(lab, "seen") == 1
    assert len(lab.rows("seen", "page")) == 2


def assert_read_by_all(lab: Lab, expected: dict[str, int]) -> None:
    """DuckDB and deltalake find these keys in the state, whose zeros have no sign."""
    found = read_state("changes", "seen", ledger_root=lab.ledger_root)
    with duck() as db:
        by_duckdb = dict(db.execute(found.sql_duckdb()).fetchall())
    by_us = {row["page"]: row["n"] for row in found.to_arrow().to_pylist()}
    assert {str(page): n for page, n in by_duckdb.items()} == {str(page): n for page, n in by_us.items()} == expected


def test_a_new_column_is_added_and_is_null_in_older_rows_but_no_column_gets_another_type(lab: Lab) -> None:
    lab.run(changing(lab, "select 'a' as page, 1L as n"))
    wide = "page string, more string, n bigint"
    lab.run(changing(lab, "select 'b' as page, 'x' as more, 2L as n", wide))
    assert sorted(lab.rows("seen", "page, n, more")) == [("a", 1, None), ("b", 2, "x")]
    lab.run(changing(lab, "select 'b' as page, 'y' as more, 3L as n", wide))
    assert len(lab.rows("seen", "page, n, more")) == 3
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SCHEMA.*n is bigint there and string in `schema`"):
        lab.run(changing(lab, "select 'c' as page, 'z' as n", "page string, n string"))
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SCHEMA.*`keys` of the state 'seen' is \['n'\], and its rows"):
        lab.run(changing(lab, "select 'c' as page, 'z' as more, 4L as n", wide, keys=["n"]))
    lab.run(changing(lab, "select 'c' as page, 'z' as more, 4L as n", wide))
    assert sorted(lab.rows("seen", "page, n"))[-1] == ("c", 4)


@pytest.mark.long
def test_text_that_is_not_utf8_is_taken_from_no_column_and_from_no_table_that_a_state_begins_with(
    lab: Lab, session: Any
) -> None:
    schema = "page string, tags array<struct<t: string>>"
    texts = "select 'a' as page, array(named_struct('t', string({}))) as tags"
    with pytest.raises(Refused, match="rule of state that column tags is UTF-8 of"):
        lab.run(changing(lab, texts.format("X'61FF'"), schema))
    lab.run(changing(lab, texts.format("X'61C3A4'"), schema))
    assert lab.rows("seen", "page, tags[1].t") == [("a", "aä")]
    session.sql("select string(X'61FF') as page, 1L as n").write.format("delta").save(lab.at("old"))
    (lab.folder / "beside").mkdir()
    beside = lab.beside("beside")
    with pytest.raises(Refused, match="rule of state that column page is UTF-8 in the table in `initial`"):
        beside.run(changing(beside, "select 'b' as page, 1L as n", initial=lab.at("old")))


@pytest.mark.long
def test_a_fold_frees_a_state_of_text_that_is_not_utf8_and_keeps_dates_that_only_spark_knows(
    lab: Lab, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = "page string, more string, day date"
    row = f"select 'a' as page, string({{}}) as more, date_from_unix_date({FAR_DAY}) as day"
    with monkeypatch.context() as earlier:
        earlier.setattr(driver_state, "_of_texts", lambda *_: ())
        lab.run(changing(lab, row.format("X'61FF'"), schema))
    found = read_state("changes", "seen", ledger_root=lab.ledger_root)
    with pytest.raises(Refused, match="EPOCHS-STATE-TEXT-UNREADABLE"):
        found.to_arrow()
    assert session.sql(found.sql_spark()).selectExpr("page", "hex(more)").collect() == [("a", "61FF")]
    monkeypatch.setattr(pinning, "FOLD_EPOCHS_MIN", 1)
    lab.run(changing(lab, row.format("'a'"), schema))
    lab.run(changing(lab, row.format("'b'"), schema))
    assert folds(lab, "seen") >= 1
    arrow = read_state("changes", "seen", ledger_root=lab.ledger_root).to_arrow()
    assert arrow.select(["page", "more"]).to_pylist() == [{"page": "a", "more": "b"}]
    assert arrow["day"].cast(pa.int32()).to_pylist() == [FAR_DAY]


@pytest.mark.long
def test_a_wrong_change_of_a_key_that_is_a_date_only_spark_knows_is_told(lab: Lab) -> None:
    schema = "day date, until timestamp, n bigint"
    row = f"select date_from_unix_date({FAR_DAY}) as day, timestamp'2026-01-0{{}} 00:00:00Z' as until, {{}} as n"

    def one(until: int, n: str = "1L") -> Coordinator:
        return changing(lab, row.format(until, n), schema, expires="until", keys=["day"])

    with pytest.raises(Refused, match=r"change more than once in this epoch: day=a time of the year 5881580\."):
        lab.run(one(2, "explode(array(1L, 2L))"))
    lab.run(one(2))
    with pytest.raises(Refused, match=r"until is earlier than in an earlier epoch: day='\+5881580-07-11'"):
        lab.run(one(1))
    lab.run(one(3))
    assert lab.rows("seen", "n") == [(1,), (1,)]


@pytest.mark.long
def test_a_fence_of_a_clustered_state_changes_neither_its_clustering_nor_its_rows(lab: Lab, session: Any) -> None:
    """Spark puts it, since deltalake does not know clustering."""
    task = changing(lab, "select 'a' as page, 1L as n")
    lab.run(task)
    table = f"delta.`{lab.at('seen')}`"
    session.sql(f"ALTER TABLE {table} CLUSTER BY (page)").collect()
    complete, [sink] = task.task.ledger.complete_record(1), task.task.pipeline.sinks
    assert complete and isinstance(sink, StateTable)
    env, over = task.task.env, complete.txn_id
    fence = TransactionId(over.pipeline, 2, over.attempt, over.nonce).fence
    assert sink.fence("changes", [over], fence, env) and sink.last_committed("changes", env) == Marker.of(fence)
    detail = session.sql(f"DESCRIBE DETAIL {table}").collect()[0]
    assert (detail["clusteringColumns"], detail["numFiles"]) == (["page"], 1)
    assert sink.pin(complete.receipts["seen"], "changes", env).version == 2, "the fence"
    assert lab.rows("seen", "page, n") == [("a", 1)]
    kept = session.sql(read_state("changes", "seen", ledger_root=lab.ledger_root).sql_spark())
    kept.write.format("delta").save(lab.at("kept"))
    beside = lab.beside("beside")
    beside.folder.mkdir()
    beside.run(changing(beside, "select 'b' as page, 2L as n", initial=lab.at("kept")))
    assert sorted(beside.rows("seen", "page, n")) == [("a", 1), ("b", 2)], "a state can go on from its rows"


def test_columns_that_spark_takes_for_one_are_refused_until_all_columns_get_names_of_their_own(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1))
    (lab.folder / "doubled.py").write_text(DOUBLED)

    def task(function: str) -> Coordinator:
        sinks = (DeltaSink("lake", lab.at("lake")), DeltaSink("other", lab.at("other")))
        return lab.task("doubled", function, sinks, None, app=lab.folder / "doubled.py")

    with pytest.raises(Refused, match=r"EPOCHS-TRANSFORM-COLUMNS.* for sink 'other' .* for one: n, N\.") as refused:
        lab.run(task("alike"))
    assert refused.value.sink == "other" and "`rows.toDF(…)`" in refused.value.remedy
    lab.run(task("named"))
    assert lab.rows("other", "n, m") == [(1, 2)]


def test_a_key_of_several_parts_is_refused_before_rows_are_staged(lab: Lab) -> None:
    """The vote looks for keys that come twice, and cannot compare such values."""
    nested = "origin struct<topic: string, offset: bigint>, tags array<string>, n bigint"
    sql = "select named_struct('topic', 'a', 'offset', 1L) as origin, array('x') as tags, 1L as n"
    for keys in (["origin", "n"], ["tags"]):
        with pytest.raises(Refused, match="EPOCHS-STATE-SCHEMA") as refused:
            lab.run(changing(lab, sql, nested, keys=keys))
        assert f"a struct, an array, a map or a variant: {keys[0]}. Make columns of their parts" in str(refused.value)
    lab.run(changing(lab, sql, nested, keys=["n"]))
    assert lab.rows("seen", "n") == [(1,)]


@pytest.mark.few(1)
@pytest.mark.parametrize("earlier_epochs", [1, FOLD_EPOCHS_MIN + 1], ids=["among changes", "in a fold"])
def test_an_end_that_falls_is_a_vote_to_abort_since_an_older_row_would_come_back(lab: Lab, earlier_epochs: int) -> None:
    schema, until = "page string, until timestamp", "select 'a' as page, timestamp'2026-01-01 {}:00:00Z' as until"
    for _ in range(earlier_epochs):
        lab.run(changing(lab, until.format(12), schema, "until"))
    with pytest.raises(Refused, match=r"(For some keys until is earlier|rule of state that until never falls)"):
        lab.run(changing(lab, until.format(11), schema, "until"))
    lab.run(changing(lab, until.format(13), schema, "until"))
    assert len(lab.rows("seen", "page")) == (1 if earlier_epochs > 1 else 2)
    gone = "select 'a' as page, timestamp(null) as until, true as __deleted"
    lab.run(changing(lab, gone, schema, "until"))
    lab.run(changing(lab, until.format(11), schema, "until"))


@pytest.mark.long
def test_columns_of_a_state_may_have_dots_in_their_names(lab: Lab) -> None:
    for clicks in (
        [(0, "a", 1, 10), (1, "a", 2, 20), (0, "b", 3, 50)],
        [(0, "a", 4, 100), (1, "b", 5, 61)],
        [(0, "b", 6, 85), (1, "c", 7, 200)],
    ):
        lab.produce(*clicks)
        lab.run(dotted(lab))
    sessions = '"the.page", epoch(session_start)::bigint, "a.n"'
    shown = [(page, start - EPOCH, n) for page, start, n in lab.rows("over", sessions)]
    assert sorted(shown) == [("a", 10, 2)]
    assert sorted(lab.rows("counted", '"the.page", "a.n"')) == [
        ("a", 2),
        ("a", 3),
        ("b", 1),
        ("b", 2),
        ("b", 3),
        ("c", 1),
    ]
    found = read_state("dotted", "counts", ledger_root=lab.ledger_root)
    assert sorted(tuple(row.values()) for row in found.to_arrow().to_pylist()) == [("a", 3), ("b", 3), ("c", 1)]


def dotted(lab: Lab) -> Coordinator:
    columns = "`the.page` string, session_start timestamp, session_end timestamp, `a.n` bigint"
    keys = ["the.page", "session_start"]
    states = (
        StateTable("sessions", lab.at("sessions"), schema=columns, keys=keys, expires="session_end"),
        StateTable("counts", lab.at("counts"), schema="`the.page` string, `a.n` bigint", keys=["the.page"]),
    )
    sinks = (*lab.outputs("over", "counted"), *states)
    return lab.task("dotted", "visits", sinks, EventTime("10 s", max_ahead=ALWAYS), app=APPS / "dotted.py")


@pytest.mark.long
def test_nan_and_zero_are_keys_of_a_state_like_other_numbers(lab: Lab) -> None:
    for clicks in (
        [(0, "NaN", 1, 10), (1, "0.0", 2, 20), (0, "1.5", 3, 50)],
        [(0, "-0.0", 4, 100), (1, "NaN", 5, 61), (1, "0.0", 5, 61)],
        [(0, "NaN", 4, 110)],
    ):
        lab.produce(*clicks)
        lab.run(float_keys(lab))
    found = read_state("floats", "counts", ledger_root=lab.ledger_root)
    with duck() as db:
        db.execute(found.view_duckdb())
        assert sorted(db.execute("SELECT x::text, n FROM counts").fetchall()) == [("0.0", 3), ("1.5", 1), ("nan", 3)]


def float_keys(lab: Lab) -> Coordinator:
    counts = StateTable("counts", lab.at("counts"), schema="x double, n bigint", keys=["x"])
    times = EventTime("0 s", max_ahead=ALWAYS, tick=False)
    return lab.task("floats", "counted", (*lab.outputs("shown"), counts), times, app=APPS / "float_keys.py")
