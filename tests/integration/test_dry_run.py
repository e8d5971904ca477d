"""A dry run shows how an epoch would differ, and changes nothing: Spark, a broker, PostgreSQL, Delta tables."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaAdminClient
from kafka import TopicPartition as Partition

from airflow_epochs import KafkaSink, SparkSubmit, SqlSink, expect
from airflow_epochs.contracts import Connection
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.inspection.dry_run import DryRun, SinkResult, dry_run
from airflow_epochs.coordinator.inspection.preview import Preview, preview
from airflow_epochs.coordinator.inspection.verifying import verify
from airflow_epochs.coordinator.looks import Checked, CheckResult
from airflow_epochs.errors import Corrupt, EpochError, Refused
from airflow_epochs.model import Run
from stack.postgres import Postgres
from tests.support import remedies
from tests.support.airflow_harness import initialised
from tests.support.checked import checks_of
from tests.support.kafka_sink_world import create
from tests.support.spark_world import MASTER
from tests.support.sql_world import Db, new_postgres
from tests.support.state_lab import Lab, seen_pages
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

PRICED = """
from pyspark.sql import functions as F

def priced(batch, epoch):
    order = F.from_json(F.col("value").cast("string"), "id string, amount long, day string")
    rows = batch.select(epoch.record, order.alias("o")).select("__record", "o.*")
    is_order = F.col("id").isNotNull()
    good = rows.where(is_order).withColumn("amount", {amount})
    origin = [F.col("__record." + name).alias(name) for name in ("topic", "partition", "offset")]
    return {{
        "lake": good,
        "database": good.select("__record", "id", "amount"),
        "events": good.select("__record", F.col("id").alias("key"), "amount"),
        "rejected": rows.where(~is_order).select(*origin, F.lit("no order").alias("error")),
    }}
"""
THEN = "F.when(F.col('amount') > 100, F.col('amount') - 1).otherwise(F.col('amount'))"
"""The bug: it takes one from large amounts."""
NOW = "F.col('amount')"
OF_DELTA = ("spark.sql.extensions", "spark.sql.catalog.spark_catalog")
ORDERS = [("a", 5), ("b", 500), ("b", 500), ("c", 700), ("d", 100)]


@pytest.fixture
def db(postgres: Postgres, lab: Lab) -> Db:
    made = new_postgres(postgres)
    made.run(f"CREATE TABLE {made.table('orders')} (id varchar(3) NOT NULL, amount bigint)")
    lab.connections["db"] = made.connection()
    create(lab.admin, f"events-{lab.topic}")
    return made


def sent(lab: Lab, *values: tuple[str, int] | bytes) -> None:
    producer = Producer({"bootstrap.servers": lab.broker.bootstrap})
    for value in values:
        text = value if isinstance(value, bytes) else json.dumps({"id": value[0], "amount": value[1], "day": "mon"})
        producer.produce(lab.topic, text, partition=0)
    assert producer.flush(20) == 0


def code(lab: Lab, amount: str) -> Path:
    path = lab.folder / "apps" / f"priced_{abs(hash(amount))}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(PRICED.format(amount=amount))
    return path


def orders(lab: Lab, db: Db, amount: str = THEN, **options: Any) -> Coordinator:
    """Orders in a partitioned table, a database and a topic; what is no order in a table of dead letters."""
    staging = str(lab.folder / "staging")
    (lake, letters) = lab.outputs("lake", "rejected")
    lake.partition_by = ["day"]
    database = SqlSink("database", "db", db.table("orders"), staging=staging)
    markers = f"markers-{lab.topic}"
    events = KafkaSink("events", f"events-{lab.topic}", staging=staging, conn_id="kafka", marker_topic=markers)
    usual = {"dead_letters": "rejected", "app": code(lab, amount)}
    return lab.task("orders", "priced", (lake, database, events, letters), None, **{**usual, **options})


def everything(lab: Lab, db: Db | None = None) -> dict[str, Any]:
    """All that a dry run must leave as it is: every file, the ends of all topics, the rows of the database."""
    found = [path for path in lab.folder.rglob("*") if "apps" not in path.parts]
    files = {str(path): path.stat().st_mtime_ns for path in found if path.is_file()}
    ends = {}
    consumer = Consumer({"bootstrap.servers": lab.broker.bootstrap, "group.id": "looks"})
    for name, topic in consumer.list_topics(timeout=10).topics.items():
        if name.endswith(lab.topic):
            for number in topic.partitions:
                ends[name, number] = consumer.get_watermark_offsets(TopicPartition(name, number), timeout=10)
    consumer.close()
    tables = db.run("SELECT relname, n_tup_ins FROM pg_stat_user_tables") if db else []
    rows = db.run(f"SELECT id, amount FROM {db.table('orders')}") if db else []
    return {"files": files, "ends": ends, "rows": sorted(rows), "tables": len(tables)}


def played(lab: Lab, db: Db, epoch: int = 1, amount: str = THEN, sample: int = 5, **options: Any) -> DryRun:
    return dry_run(orders(lab, db, amount, **options).task, epoch, sample)


def previewed(lab: Lab, db: Db, records: int = 100, **options: Any) -> Preview:
    return preview(orders(lab, db, **options).task, records, 2)


def by_sink(told: DryRun) -> dict[str, SinkResult]:
    return {each.sink: each for each in told.sinks}


def counts(each: SinkResult) -> tuple[int | None, int | None, int | None, int | None]:
    found = each.difference
    return (each.rows_then, each.rows_now, found.only_then if found else None, found.only_now if found else None)


def samples(each: SinkResult) -> tuple[list[Any], list[Any]]:
    assert each.difference
    return [json.loads(row) for row in each.difference.sample_then], [
        json.loads(row) for row in each.difference.sample_now
    ]


def test_a_corrected_transform_shows_exactly_the_rows_that_change_and_the_same_one_none(lab: Lab, db: Db) -> None:
    sent(lab, *ORDERS, ("long", 1), b"no order")
    lab.run(orders(lab, db))
    sent(lab, ("z", 900))
    lab.run(orders(lab, db))
    before = everything(lab, db)
    same, other = played(lab, db), played(lab, db, amount=NOW, sample=2)
    assert everything(lab, db) == before
    assert {name: counts(each) for name, each in by_sink(same).items()} == {
        "database": (5, 5, None, None),
        "events": (6, 6, 0, 0),
        "lake": (6, 6, 0, 0),
        "rejected": (2, 2, 0, 0),
    }
    assert same.decision.value == other.decision.value == "GLOBAL_COMMIT"
    assert same.code_then == same.code_now != other.code_now
    found = by_sink(other)
    assert {name: counts(each) for name, each in found.items()} == {
        "database": (5, 5, None, None),
        "events": (6, 6, 3, 3),
        "lake": (6, 6, 3, 3),
        "rejected": (2, 2, 0, 0),
    }
    assert found["database"].dead_letters == 1
    assert "cannot list the rows of one epoch" in found["database"].note
    b_then, b_now = ({"amount": amount, "day": "mon", "id": "b"} for amount in (499, 500))
    c_then, c_now = ({"amount": amount, "day": "mon", "id": "c"} for amount in (699, 700))
    assert samples(found["lake"]) == ([b_then, c_then], [b_now, c_now])
    assert [json.loads(each["value"])["amount"] for each in samples(found["events"])[1]] == [500, 700]


@pytest.mark.long
def test_verify_finds_all_kinds_of_sink_in_order_and_then_what_was_taken_from_them(lab: Lab, db: Db) -> None:
    sent(lab, *ORDERS, b"no order")
    lab.run(orders(lab, db))
    sent(lab, ("z", 900))
    lab.run(orders(lab, db))

    def checked() -> dict[tuple[str, str], str]:
        before = everything(lab, db)
        found = {(each.about, each.check): each.verdict.value for each in verify(orders(lab, db).task, 100)}
        assert everything(lab, db) == before
        return found

    found = checked()
    assert {key: said for key, said in found.items() if said != "ok"} == {("database", "rows"): "not checked"}
    assert found["events", "rows"] == found["lake", "rows"] == found["database", "marker"] == "ok"
    [database] = [sink for sink in orders(lab, db).task.pipeline.sinks if isinstance(sink, SqlSink)]
    db.run(f"DELETE FROM {db.table(database.marker_table)}")
    with KafkaAdminClient(bootstrap_servers=lab.broker.bootstrap) as admin:
        admin.delete_records({Partition(f"events-{lab.topic}", 0): -1})  # all of them, as retention does
    found = checked()
    assert found["database", "marker"] == "wrong" and found["events", "rows"] == "not checked"
    assert found["events", "marker"] == found["lake", "rows"] == "ok"


@pytest.mark.long
def test_what_the_vote_would_refuse_is_shown_and_nothing_is_written(lab: Lab, db: Db) -> None:
    sent(lab, *ORDERS)
    lab.run(orders(lab, db))
    before = everything(lab, db)
    expected = {"lake": [expect("amount < 600"), expect("id <> 'd'", otherwise="warn")]}
    told = played(lab, db, amount=NOW, expectations=expected)
    assert everything(lab, db) == before
    found = by_sink(told)
    assert told.decision.value == "GLOBAL_ABORT"
    assert len(told.reasons) == 1
    assert "EPOCHS-EXPECTATION-UNMET" in told.reasons[0]
    assert "amount < 600" in told.reasons[0]
    assert found["lake"].broken == {"amount < 600": 1, "id <> 'd'": 1}
    assert found["lake"].vote
    assert found["lake"].vote.vote.value == "VOTE_ABORT"
    assert found["events"].vote
    assert found["events"].vote.vote.value == "VOTE_COMMIT"


@pytest.mark.long
def test_of_a_state_the_changes_are_counted_and_the_state_is_the_one_that_the_epoch_read(lab: Lab) -> None:
    for n in (1, 2):
        lab.produce((0, "a", 1, n), (1, "b", n, n), (2, "c", n, n))
        lab.run(seen_pages(lab))
    before = everything(lab)
    found = by_sink(dry_run(seen_pages(lab).task, 2, 3))
    other = seen_pages(lab)
    text = Path(other.task.pipeline.transform.path).read_text()
    changed = lab.folder / "apps" / "changed.py"
    changed.parent.mkdir()
    changed.write_text(text.replace("def unique(", "def before_it(") + CHANGED)
    transform = replace(other.task.pipeline.transform, path=str(changed))
    other.task.pipeline = replace(other.task.pipeline, transform=transform)
    less = by_sink(dry_run(other.task, 2, 3))
    assert everything(lab) == before
    assert counts(found["seen"]) == (2, 2, 0, 0)
    assert counts(found["firsts"]) == (2, 2, 0, 0)
    assert counts(less["seen"]) == (2, 2, 1, 1)
    assert (less["seen"].deleted_then, less["seen"].deleted_now) == (0, 1)


CHANGED = """


def unique(batch, epoch, state):
    found = before_it(batch, epoch, state)
    found["seen"] = found["seen"].withColumn("__deleted", F.col("page") == "b")
    return found
"""


@pytest.mark.long
def test_an_epoch_that_is_not_complete_or_not_there_is_refused_and_the_remedy_leads_on(lab: Lab, db: Db) -> None:
    def refused(epoch: int) -> EpochError:
        before = everything(lab, db)
        with pytest.raises(EpochError) as error:
            played(lab, db, epoch)
        assert everything(lab, db) == before
        return error.value

    sent(lab, *ORDERS)
    run = Run("dag", "slow")
    assert "EPOCHS-EPOCH-UNKNOWN" in str(refused(1))
    task = orders(lab, db)
    task.open(run)
    assert "EPOCHS-DRY-RUN-UNFINISHED: The epoch is open" in str(refused(1))
    task.vote(run, task.stage(run).stage)
    doubt = refused(1)
    assert "EPOCHS-DRY-RUN-UNFINISHED: The epoch is in doubt" in str(doubt)
    assert "start a run: the epoch is then completed" in doubt.remedy
    lab.run(orders(lab, db))
    assert counts(by_sink(played(lab, db))["lake"]) == (5, 5, 0, 0)
    assert [str(refused(epoch)).split(":")[0] for epoch in (-1, 0, 2, 99)] == ["EPOCHS-EPOCH-UNKNOWN"] * 4


@pytest.mark.long
def test_an_epoch_of_which_something_is_gone_is_refused_and_a_later_one_is_not(lab: Lab, db: Db) -> None:
    sent(lab, *ORDERS)
    lab.run(orders(lab, db))
    sent(lab, ("y", 900), ("z", 1))
    lab.run(orders(lab, db))
    (record,) = lab.folder.glob(f"ledger/**/*{1:020}/*.open.json")
    aside = record.rename(lab.folder / "aside")
    with pytest.raises(Corrupt, match=r"EPOCHS-DRY-RUN-GONE.*no open record any more: it was pruned"):
        played(lab, db)
    aside.rename(record)
    with KafkaAdminClient(bootstrap_servers=lab.broker.bootstrap) as admin:
        admin.delete_records({Partition(lab.topic, 0): 2})
        admin.delete_records({Partition(f"events-{lab.topic}", 0): 1})
    before = everything(lab, db)
    with pytest.raises(Corrupt, match=r"EPOCHS-DRY-RUN-GONE.*Epoch 1 cannot be played again") as gone:
        played(lab, db)
    assert "Choose a later epoch" in gone.value.remedy
    assert everything(lab, db) == before
    assert counts(by_sink(played(lab, db, 2, NOW))["lake"]) == (2, 2, 1, 1)


@pytest.mark.long
def test_rows_that_the_sinks_have_lost_are_only_counted_and_the_note_says_why(lab: Lab, db: Db) -> None:
    sent(lab, *ORDERS)
    lab.run(orders(lab, db))
    with KafkaAdminClient(bootstrap_servers=lab.broker.bootstrap) as admin:
        admin.delete_records({Partition(f"events-{lab.topic}", 0): 1})
    lab.delta("lake").delete("id = 'b'")
    lab.delta("lake").vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    found = by_sink(played(lab, db))
    assert counts(found["lake"]) == counts(found["events"]) == (5, 5, None, None)
    assert "files of its commit are gone: a VACUUM deleted them" in found["lake"].note
    assert "retention has deleted" in found["events"].note


# -- the command -----------------------------------------------------------------------------------------------------

DAG = """
import os, signal
from airflow.sdk import DAG
from airflow_epochs import DeltaSink, EpochPipeline, KafkaSink, KafkaSource, SparkConnect, SqlSink

def look(ballot):
    if os.environ.get("KILLED"):
        os.kill(os.getpid(), signal.SIGKILL)

with DAG("dag", schedule=None, max_active_runs=1):
    EpochPipeline(
        "orders",
        source=KafkaSource(topics=["{topic}"], conn_id="kafka", max_wait=0),
        transform="{transform}:priced",
        sinks=[
            DeltaSink("lake", "{lab}/lake", partition_by=["day"]),
            SqlSink("database", "db", "{table}", staging="{lab}/staging"),
            KafkaSink(
                "events", "events-{topic}", staging="{lab}/staging", conn_id="kafka", marker_topic="markers-{topic}"
            ),
            DeltaSink("rejected", "{lab}/rejected"),
        ],
        dead_letters="rejected",
        vote=look,
        spark=SparkConnect("spark"),
    )
"""


def dag_file(lab: Lab, db: Db) -> None:
    fields = {"topic": lab.topic, "transform": code(lab, THEN), "lab": lab.folder, "table": db.table("orders")}
    path = lab.folder / "apps" / "dags" / "dag.py"
    path.parent.mkdir(parents=True)
    path.write_text(DAG.format(**fields))


def typed(lab: Lab, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``airflow epochs dry-run orders …`` as a process of its own."""
    return command(lab, "dry-run", "orders", *words, **environment)


def command(lab: Lab, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``airflow epochs …`` as a process of its own."""
    bundle = {"name": "mine", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle"}
    dags = [{**bundle, "kwargs": {"path": str(lab.folder / "apps" / "dags")}}]
    ledger = {"conn_type": "epochs", "extra": {"ledger_root": lab.ledger_root}}
    said = {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(dags),
        "AIRFLOW_CONN_EPOCHS_DEFAULT": json.dumps(ledger),
        **remedies.in_the_environment(*lab.connections.values()),
        **environment,
    }
    line = [sys.executable, "-m", "airflow", "epochs", *words]
    return subprocess.run(line, env={**os.environ, **said}, capture_output=True, text=True, check=False)


@pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")
@pytest.mark.long
def test_a_killed_command_leaves_what_the_next_one_clears_away(lab: Lab, db: Db) -> None:
    initialised()
    sent(lab, *ORDERS)
    lab.run(orders(lab, db))
    dag_file(lab, db)
    before = everything(lab, db)
    assert typed(lab, "--epoch", "1", KILLED="yes").returncode == -signal.SIGKILL
    left = [path for path in lab.folder.glob("**/dry-*/*/_delta_log") if path.is_dir()]
    assert len(left) == 4
    now = typed(lab, "--epoch", "1", "--transform", f"{code(lab, NOW)}", "--sample", "1", "--output", "json")
    assert now.returncode == 0, now.stderr
    assert everything(lab, db) == before
    told = json.loads(now.stdout)
    assert (told["epoch"], told["decision"], told["code_then"] != told["code_now"]) == (1, "GLOBAL_COMMIT", True)
    lake = next(each for each in told["sinks"] if each["sink"] == "lake")
    assert {"rows_then": 5, "rows_now": 5, "only_then": 3, "only_now": 3, "vote": "VOTE_COMMIT"}.items() <= lake.items()
    assert [json.loads(row)["amount"] for row in lake["sample_now"]] == [500]


@pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")
@pytest.mark.long
def test_a_transform_that_raises_is_corrected_and_the_command_run_again(lab: Lab, db: Db) -> None:
    initialised()
    sent(lab, *ORDERS)
    lab.run(orders(lab, db))
    dag_file(lab, db)
    file = code(lab, NOW)
    words = ("--epoch", "1", "--transform", str(file), "--output", "json")
    right = file.read_text()
    file.write_text(f"{right}\nraise ValueError\n")
    wrong = typed(lab, *words)
    assert wrong.returncode == 1 and "EPOCHS-TRANSFORM-BROKEN" in wrong.stderr, wrong.stderr
    assert "run the command again" in wrong.stderr.lower() and "clear the" not in wrong.stderr
    file.write_text(right)
    again = typed(lab, *words)
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert [(each["rows_then"], each["rows_now"]) for each in told["sinks"] if each["sink"] == "lake"] == [(5, 5)]


# -- a preview --------------------------------------------------------------------------------------------------------


def test_a_preview_shows_what_every_sink_would_get_and_changes_nothing(lab: Lab, db: Db) -> None:
    sent(lab, *ORDERS, b"no order")
    before = everything(lab, db)
    told = {each.sink: each for each in previewed(lab, db).sinks}
    assert everything(lab, db) == before
    assert {name: each.rows for name, each in told.items()} == {"database": 5, "events": 5, "lake": 5, "rejected": 1}
    samples = {name: each.sample for name, each in told.items() if each.sample}
    assert samples["lake"].columns == (("id", "string"), ("amount", "long"), ("day", "string"))
    assert samples["lake"].rows == ({"id": "a", "amount": 5, "day": "mon"}, {"id": "b", "amount": 499, "day": "mon"})
    assert samples["database"].creates is None
    assert [each.problem for each in told.values()] == [None] * 4
    lab.run(orders(lab, db))
    assert db.run(f"SELECT count(*) FROM {db.table('orders')}") == [(5,)], "the epoch takes the same records"


def test_a_preview_reads_no_more_records_than_were_asked_for(lab: Lab, db: Db) -> None:
    sent(lab, *ORDERS)
    told = {each.sink: each.rows for each in previewed(lab, db, records=2).sinks}
    assert told == {"database": 2, "events": 2, "lake": 2, "rejected": 0}


@pytest.mark.long
def test_a_preview_says_why_rows_would_not_fit(lab: Lab, db: Db) -> None:
    sent(lab, *ORDERS)
    strict = {"lake": [expect("amount < 100")]}
    told = {each.sink: each for each in previewed(lab, db, expectations=strict).sinks}
    assert "amount < 100" in (told["lake"].problem or "")
    assert told["lake"].broken == {"amount < 100": 4}
    assert told["events"].problem is None


@pytest.mark.long
def test_the_statement_that_a_preview_prints_makes_the_table_for_which_open_has_refused_the_epoch(
    lab: Lab, db: Db
) -> None:
    db.run(f"DROP TABLE {db.table('orders')}")
    sent(lab, *ORDERS)
    with pytest.raises(Refused, match="EPOCHS-SQL-TABLE-MISSING") as refused:
        lab.run(orders(lab, db))
    assert "`airflow epochs preview orders`" in str(refused.value)
    (database,) = (each.sample for each in previewed(lab, db).sinks if each.sink == "database")
    assert database and database.creates and database.count == 5
    db.run(database.creates)
    lab.run(orders(lab, db))
    assert sorted(db.run(f"SELECT id, amount FROM {db.table('orders')}")) == [
        ("a", 5),
        ("b", 499),
        ("b", 499),
        ("c", 699),
        ("d", 100),
    ]


# -- a check ----------------------------------------------------------------------------------------------------------


def checks(lab: Lab, db: Db, **options: Any) -> dict[str, Checked]:
    """All checks of the pipeline. None has changed anything."""
    before, task = everything(lab), orders(lab, db, **options).task
    found = checks_of(task)
    assert everything(lab) == before
    return found


def bad(found: Mapping[str, Checked]) -> dict[str, str]:
    """The checks that failed, each with the code of its error."""
    errors = {name: each.error for name, each in found.items() if each.result is CheckResult.FAILED}
    return {name: error.code.name if error and error.code else str(error) for name, error in errors.items()}


def resting(found: Mapping[str, Checked]) -> set[str]:
    """The checks that were not made."""
    return {name for name, each in found.items() if each.result is CheckResult.NOT_CHECKED}


@pytest.mark.long
def test_a_good_pipeline_is_in_order_with_an_empty_topic_and_after_an_epoch(lab: Lab, db: Db) -> None:
    found = checks(lab, db)
    assert {each.result for each in found.values()} == {CheckResult.OK}, found
    assert found["spark, input"].details == "Spark can read; there is no record."
    assert found["spark, python"].details == f"Spark's workers run Python {platform.python_version()}."
    assert found["spark, session"].details.startswith(
        f"Spark {pyspark.__version__}; pyspark {pyspark.__version__} with"
    )
    sent(lab, *ORDERS)
    lab.run(orders(lab, db))
    nothing = checks(lab, db)
    assert {each.result for each in nothing.values()} == {CheckResult.OK}, nothing
    assert nothing["source, input"].details == "The source has no new data."
    sent(lab, *ORDERS)
    before = everything(lab, db)
    found = checks(lab, db)
    assert everything(lab, db) == before
    assert {each.result for each in found.values()} == {CheckResult.OK}, found
    assert found["source, input"].details == "The next epoch can read 5 offsets."
    assert found["spark, input"].details == "Spark has read a record."


def test_what_topics_and_database_lack_is_found_at_once_and_is_gone_after_the_remedies(lab: Lab, db: Db) -> None:
    source = {"topics": [f"more-{lab.topic}"]}
    db.run(f"DROP TABLE {db.table('orders')}")
    gone = f"events-{lab.topic}"
    lab.admin.delete_topics([gone])[gone].result()
    wait_until(lambda: gone not in lab.admin.list_topics(timeout=5).topics)
    found = checks(lab, db, source=source)
    assert bad(found) == {
        "source, input": "EPOCHS-TOPIC-MISSING",
        "sink database, ready": "EPOCHS-SQL-TABLE-MISSING",
        "sink events, ready": "EPOCHS-TOPIC-MISSING",
    }
    assert resting(found) == {"spark, input"}
    create(lab.admin, source["topics"][0])
    create(lab.admin, gone)
    db.run(f"CREATE TABLE {db.table('orders')} (id varchar(3) NOT NULL, amount bigint)")
    assert bad(checks(lab, db, source=source)) == {}


@pytest.mark.long
def test_records_that_are_gone_are_found_until_they_are_skipped(lab: Lab, db: Db) -> None:
    sent(lab, *ORDERS)
    lab.run(orders(lab, db))
    sent(lab, *ORDERS)
    with KafkaAdminClient(bootstrap_servers=lab.broker.bootstrap) as admin:
        admin.delete_records({Partition(lab.topic, 0): 7})
    error = checks(lab, db)["source, input"].error
    assert isinstance(error, Corrupt)
    lab.typed(error, "skip")
    found = checks(lab, db)
    assert bad(found) == {} and found["source, input"].details == "The next epoch can read 3 offsets."


def test_servers_that_do_not_answer_are_found_and_all_else_is_checked(lab: Lab, db: Db) -> None:
    lab.connections["kafka"] = Connection(
        conn_id="kafka",
        conn_type="kafka",
        extra={"bootstrap.servers": "localhost:1", "socket.timeout.ms": "1000"},
    )
    lab.connections["spark"] = Connection(conn_id="spark", conn_type="spark_connect", host="localhost", port=1)
    del lab.connections["db"]
    found = checks(lab, db)
    assert bad(found) == {
        "source, input": "EPOCHS-KAFKA-UNREACHABLE",
        "spark, session": "EPOCHS-SPARK-UNREACHABLE",
        "sink database, connection db": "There is no connection 'db'.\nWhere: pipeline orders\nWhat to do: add it.",
        "sink events, marker": "EPOCHS-KAFKA-UNREACHABLE",
        "sink events, ready": "EPOCHS-KAFKA-UNREACHABLE",
    }
    assert {"sink database, marker", "sink database, ready", "spark, input", "spark, kafka jars"} <= resting(found)
    assert found["sink lake, ready"].result is CheckResult.OK


@pytest.mark.long
def test_a_submit_finds_jars_that_are_missing_and_none_once_they_are_there(
    lab: Lab, db: Db, submit_conf: dict[str, str]
) -> None:
    lab.connections["submit"] = Connection(conn_id="submit", conn_type="spark", host=MASTER)
    without = {name: value for name, value in submit_conf.items() if name not in ("spark.jars", *OF_DELTA)}
    sent(lab, *ORDERS)
    lab.spark = SparkSubmit("submit", conf=without)
    found = checks(lab, db)
    missing = dict.fromkeys(("spark, delta jars", "spark, kafka jars", "spark, input"), "EPOCHS-SPARK-INCOMPLETE")
    assert bad(found) == missing
    assert found["transform, import"].result is found["spark, python"].result is CheckResult.OK
    lab.spark = SparkSubmit("submit", conf=submit_conf)
    assert bad(checks(lab, db)) == {}


@pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")
@pytest.mark.long
def test_the_command_prints_nothing_but_json_and_its_exit_code_says_whether_a_check_failed(lab: Lab, db: Db) -> None:
    initialised()
    dag_file(lab, db)
    before = everything(lab, db)
    Path(lab.ledger_root).mkdir()
    good = command(lab, "check", "dag", "-o", "json")
    assert good.returncode == 0, good.stdout + good.stderr
    assert {row["result"] for row in json.loads(good.stdout)} == {"ok"}
    assert everything(lab, db) == before
    db.run(f"DROP TABLE {db.table('orders')}")
    wrong = command(lab, "check", "dag")
    assert wrong.returncode == 1
    assert "sink database, ready: EPOCHS-SQL-TABLE-MISSING" in wrong.stdout
    assert "run the command again" in wrong.stdout.lower() and "clear the" not in wrong.stdout.lower()
    unknown = command(lab, "check", "gad")
    assert unknown.returncode == 2 and "has no DAG 'gad'; these DAGs have a pipeline: dag." in unknown.stderr
