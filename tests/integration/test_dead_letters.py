"""Dead letters: rows that a sink would not take, in the same epoch as the others; Spark, a broker, PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import string
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from airflow_epochs import DeltaSink, KafkaSink, SqlSink, expect
from airflow_epochs.coordinator import dead_letters
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.model import Run
from airflow_epochs.spark.driver import observed
from airflow_epochs.spark.driver.flaws import first_flaw
from airflow_epochs.spark.driver.letters import judged
from airflow_epochs.spark.driver.plans import Fit, LettersPlan, StagePlan, TransformFile
from airflow_epochs.testing import Crash
from stack.postgres import Postgres
from tests.support import remedies
from tests.support.faults_world import crash
from tests.support.kafka_sink_world import create
from tests.support.spark_world import APPS
from tests.support.sql_world import Db, new_postgres, new_sqlite
from tests.support.state_lab import Lab

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

LATE = 9_000_000_000_000
"""Seconds since 1970: about the year 287,000."""
RECORDS = {
    0: b"a|fine|0",
    1: b"b|nul\0|0",
    2: b"c|\xff|0",
    3: f"d|late|{LATE}".encode(),
    4: b"e|much too long a note|0",
    5: b"garbage",
    6: None,
    7: b"h|fine|0",
}
"""By offset."""
EXPECTED = [
    (1, "database", "column note has a NUL character"),
    (2, "database", "column note is not UTF-8"),
    (2, "lake", "column note is not UTF-8"),
    (3, "database", "column at is outside of the years 1 to 9999"),
    (4, "database", "column note has more than 10 characters"),
    (5, None, "not three parts"),
    (6, None, "not three parts"),
]


PLAN = StagePlan(
    txn_id="p/1/1/x",
    pipeline="p",
    epoch=1,
    attempt=1,
    now="2026-01-02T03:04:05+00:00",
    seed=77,
    read={},
    transform=TransformFile(path="/app.py", function="f"),
    outputs=(),
    sinks={},
)
ACCOUNTING = {
    "database": {"read": 8, "written": 2, "dead_letters": 6, "left_out": 0},
    "events": {"read": 8, "written": 6, "dead_letters": 2, "left_out": 0},
    "lake": {"read": 8, "written": 5, "dead_letters": 3, "left_out": 0},
}
"""Two of the dead letters of each sink are records that the transform could not parse."""


@pytest.fixture
def db(postgres: Postgres, lab: Lab) -> Db:
    made = new_postgres(postgres)
    made.run(f"CREATE TABLE {made.table('notes')} (id text NOT NULL, note varchar(10), at timestamptz)")
    lab.connections["db"] = made.connection()
    create(lab.admin, f"events-{lab.topic}")
    return made


def sent(lab: Lab, records: Sequence[bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": lab.broker.bootstrap})
    for value in records:
        producer.produce(lab.topic, value, partition=0, key=b"k")
    assert producer.flush(20) == 0


def taken(lab: Lab, db: Db) -> dict[str, list[str]]:
    """The ids that each sink shows."""
    events = messages(lab, f"events-{lab.topic}")
    return {
        "lake": sorted(key for (key,) in lab.rows("lake", "id")),
        "database": sorted(key for (key,) in db.run(f"SELECT id FROM {db.table('notes')}")),
        "events": sorted(str(event.key(), "utf-8") for event in events),
    }


def pipeline(lab: Lab, db: Db, letters: Any = None, **options: Any) -> Coordinator:
    """A lake, a database, events, and what they would not take."""
    staging = str(lab.folder / "staging")
    events = KafkaSink(
        "events", f"events-{lab.topic}", staging=staging, conn_id="kafka", marker_topic=f"markers-{lab.topic}"
    )
    sinks = (
        *lab.outputs("lake"),
        SqlSink("database", "db", db.table("notes"), staging=staging),
        events,
        letters or lab.outputs("rejected")[0],
    )
    return lab.task("letters", "split", sinks, None, app=APPS / "letters.py", **{"dead_letters": "rejected", **options})


def accounting(lab: Lab) -> Any:
    """What ``airflow epochs show`` says of the first epoch."""
    return json.loads(remedies.ordered(Path(lab.ledger_root), "epochs", "show", "letters", "1"))["accounting"]


def rejected(lab: Lab) -> list[tuple[Any, ...]]:
    return sorted(lab.rows("rejected", '"offset", sink, error'), key=str)


def test_rows_that_a_sink_would_not_take_land_with_their_records_in_the_same_epoch(lab: Lab, db: Db) -> None:
    sent(lab, list(RECORDS.values()))
    run, task = Run("dag", "letters"), pipeline(lab, db)
    task.open(run)
    report = task.stage(run).stage
    assert report
    assert report.metrics["dead_letters"] == {"database": 4, "lake": 1}
    assert report.metrics["rows_in"] == len(RECORDS)
    task.vote(run, report)
    for sink in ("database", "events", "lake", "rejected"):
        task.commit(run, sink)
    task.complete(run)
    assert taken(lab, db) == {"lake": list("abdeh"), "database": list("ah"), "events": list("abcdeh")}
    assert rejected(lab) == EXPECTED
    assert accounting(lab) == ACCOUNTING
    raw = lab.rows("rejected", 'DISTINCT "offset", topic, "partition", key, value, row IS NULL')
    for offset, topic, partition, key, value, is_parsed_by_nobody in raw:
        assert (topic, partition, bytes(key)) == (lab.topic, 0, b"k")
        assert (bytes(value) if value is not None else None) == RECORDS[offset]
        assert is_parsed_by_nobody == (offset in (5, 6))
    sent(lab, [b"i|fine|0"])
    lab.run(pipeline(lab, db))
    assert taken(lab, db)["database"] == list("ahi")
    assert rejected(lab) == EXPECTED, "the next epoch has none"


def noted(lab: Lab, db: Db, function: str = "noted", **options: Any) -> Coordinator:
    """A database, and what it would not take."""
    database = SqlSink("database", "db", db.table("notes"), staging=str(lab.folder / "staging"))
    sinks = (database, *(lab.outputs("rejected") if function == "noted" else ()))
    return lab.task("letters", function, sinks, None, app=APPS / "letters.py", **options)


def with_letters_in_a_backfill(lab: Lab, db: Db) -> Run:
    """A run that opened its attempt before `dead_letters` was deployed, with a backfill of the sink that gets them."""
    sent(lab, [RECORDS[0], RECORDS[7]])
    lab.run(noted(lab, db, "anonymous"))
    sent(lab, [b"b|nul\0|0", b"x|bad|0", b"y|fine|0"])
    run = Run("dag", "second")
    noted(lab, db, backfill={"rejected": 1}).open(run)
    return run


NOT_BAD: Any = {"database": [expect("note <> 'bad'", otherwise="quarantine")]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("rules", "reason", "letters"),
    [
        ({}, "NUL character", [(2, "database", "column note has a NUL character")]),
        pytest.param(
            NOT_BAD,
            "note <> 'bad'",
            [
                (2, "database", "column note has a NUL character"),
                (3, "database", "the row breaks the expectation \"note <> 'bad'\""),
            ],
            marks=pytest.mark.long,
        ),
    ],
)
def test_no_row_is_lost_in_an_attempt_that_was_opened_with_a_backfill_of_the_letters(
    lab: Lab, db: Db, rules: Any, reason: str, letters: list[Any]
) -> None:
    run, today = with_letters_in_a_backfill(lab, db), {"dead_letters": "rejected", "expectations": rules}
    report = noted(lab, db, **today).stage(run).stage
    assert report
    assert not report.metrics.keys() & {"dead_letters", "dead_letter_sink"}
    with pytest.raises(Refused, match=reason) as refused:
        noted(lab, db, **today).vote(run, report)
    why = "it was opened with a backfill of the sink 'rejected', which gets them. The next attempt has them."
    assert f"This attempt has no dead letters: {why}" in str(refused.value)
    lab.run(noted(lab, db, **today))
    shown = sorted(key for (key,) in db.run(f"SELECT id FROM {db.table('notes')}"))
    assert shown == (list("ahy") if rules else list("ahxy"))
    assert rejected(lab) == letters


@pytest.mark.long
def test_a_row_that_is_left_out_fails_the_stage_if_no_sink_of_its_job_gets_it(
    lab: Lab, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second guard. Its remedy is followed: without dead letters, nothing is left out."""
    run, today = with_letters_in_a_backfill(lab, db), {"dead_letters": "rejected", "expectations": NOT_BAD}
    with monkeypatch.context() as patched:
        patched.setattr(dead_letters, "sink_in", lambda task, opened: "rejected")
        with pytest.raises(Refused, match=r"EPOCHS-DEAD-LETTERS-APART: 2 rows of sink database(.|\n)*does not stage"):
            noted(lab, db, **today).stage(run)
    without = noted(lab, db)
    with pytest.raises(Refused, match="NUL character"):
        without.vote(run, without.stage(run).stage)
    assert db.run(f"SELECT count(*) FROM {db.table('notes')}") == [(2,)], "those of the first epoch"


@pytest.mark.long
@pytest.mark.parametrize(
    "phase",
    [
        pytest.param("stage.done", marks=pytest.mark.long),
        pytest.param("decision.landed", marks=pytest.mark.long),
        "committed.rejected",
        pytest.param("complete.put", marks=pytest.mark.long),
    ],
)
def test_a_killed_epoch_shows_each_letter_once(lab: Lab, db: Db, phase: str) -> None:
    sent(lab, list(RECORDS.values()))
    with pytest.raises(Crash):
        lab.run(pipeline(lab, db, then={phase: crash}))
    lab.run_all(lambda: pipeline(lab, db))
    assert rejected(lab) == EXPECTED
    assert accounting(lab) == ACCOUNTING, "whoever completed it"
    assert taken(lab, db) == {"lake": list("abdeh"), "database": list("ah"), "events": list("abcdeh")}


@pytest.mark.parametrize("lost", ["rejected", "database"])
@pytest.mark.long
def test_rows_that_are_lost_after_the_decision_are_staged_again_as_they_were(lab: Lab, db: Db, lost: str) -> None:
    """The letters alone, too: they are those of all sinks."""
    sent(lab, list(RECORDS.values()))

    def lose() -> None:
        place = next(each.places[lost] for each in lab.ledger("letters").tries(1))
        shutil.rmtree(place)

    lab.run(pipeline(lab, db, then={"decision.landed": lose}))
    assert rejected(lab) == EXPECTED
    assert taken(lab, db)["database"] == list("ah")


@pytest.mark.long
def test_without_dead_letters_the_epoch_is_aborted_as_before(lab: Lab, db: Db) -> None:
    sent(lab, [RECORDS[0], RECORDS[1]])
    with pytest.raises(Refused, match="NUL character"):
        lab.run(pipeline(lab, db, dead_letters=None, letters=DeltaSink("rejected", lab.at("rejected"))))


@pytest.mark.long
def test_sqlite_gets_no_text_that_is_none_and_no_time_that_it_cannot_hold(lab: Lab, tmp_path: Path) -> None:
    """Without dead letters the epoch is aborted; with them, only these rows are left out. It takes NUL characters."""
    db = new_sqlite(tmp_path)
    db.run(f"CREATE TABLE {db.table('notes')} (id text NOT NULL, note varchar(10), at timestamptz)")
    lab.connections["db"] = db.connection()
    create(lab.admin, f"events-{lab.topic}")
    sent(lab, [RECORDS[number] for number in (0, 1, 2, 3, 7)])
    with pytest.raises(Refused, match="is not UTF-8"):
        lab.run(pipeline(lab, db, dead_letters=None))
    assert db.run(f"SELECT * FROM {db.table('notes')}") == []
    lab.run(pipeline(lab, db))
    assert db.run(f"SELECT id, note, typeof(note), substr(at, 1, 10) FROM {db.table('notes')} ORDER BY id") == [
        ("a", "fine", "text", "1970-01-01"),
        ("b", "nul\0", "text", "1970-01-01"),
        ("h", "fine", "text", "1970-01-01"),
    ]
    assert rejected(lab) == [
        (2, "database", "column note is not UTF-8"),
        (2, "lake", "column note is not UTF-8"),
        (3, "database", "column at is outside of the years 1 to 9999"),
    ]


def test_a_topic_gets_the_record_as_it_was_read_with_the_rest_in_headers(lab: Lab, db: Db) -> None:
    topic = create(lab.admin, f"letters-{lab.topic}")
    letters = KafkaSink(
        "rejected", topic, staging=str(lab.folder / "s"), conn_id="kafka", marker_topic=f"markers-{lab.topic}"
    )
    sent(lab, [RECORDS[1], RECORDS[5], RECORDS[6]])
    lab.run(pipeline(lab, db, letters))
    told = messages(lab, topic)
    seen = {
        (dict(m.headers())["dead-letter.offset"], dict(m.headers())["dead-letter.error"]): (m.key(), m.value())
        for m in told
    }
    assert seen == {
        (b"0", b"column note has a NUL character"): (b"k", RECORDS[1]),
        (b"1", b"not three parts"): (b"k", RECORDS[5]),
        (b"2", b"not three parts"): (b"k", None),
    }
    times = {dict(m.headers())["dead-letter.offset"]: dict(m.headers())["dead-letter.timestamp"] for m in told}
    when = {b"%d" % m.offset(): utc(m.timestamp()[1]).encode() for m in messages(lab, lab.topic)}
    assert times == when


def utc(milliseconds: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=milliseconds)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def messages(lab: Lab, topic: str) -> list[Message]:
    """What a consumer that reads committed records has of the topic."""
    options = {"bootstrap.servers": lab.broker.bootstrap, "group.id": "letters", "isolation.level": "read_committed"}
    consumer = Consumer({**options, "enable.partition.eof": True, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(20)) is not None and not message.error():
        found.append(message)
    consumer.close()
    return found


VALUES = {
    "at": ("timestamp'2026-11-29 01:02:03.000001Z'", "2026-11-29T01:02:03.000001Z"),
    "wall": ("timestamp_ntz'2026-11-29 01:02:03.000001'", "2026-11-29T01:02:03.000001"),
    "late": ("timestamp'+12000-01-01 00:00:00Z'", "+12000-01-01T00:00:00.000000Z"),
    "day": ("date'2026-11-29'", "2026-11-29"),
    "euros": ("12345678901234567890.1234567890BD", Decimal("12345678901234567890.1234567890")),
    "rate": ("double('NaN')", "NaN"),
    "least": ("double('-Infinity')", "-Infinity"),
    "raw": ("X'00FF'", "AP8="),
    "currency": ("CAST(NULL AS STRING)", None),
    "deep": (
        "named_struct('at', array(timestamp'2026-11-29 01:02:03.000001Z', NULL), 'n', CAST(NULL AS INT))",
        {"at": ["2026-11-29T01:02:03.000001Z", None], "n": None},
    ),
    "m": ("map('at', timestamp_ntz'2026-11-29 01:02:03.000001')", {"at": "2026-11-29T01:02:03.000001"}),
    "raw_keys": ("map(CAST(repeat('y', 60) AS BINARY), X'62')", {"eXl5" * 20: "Yg=="}),
    "raw keys in it": (
        "array(named_struct('a b', map(struct(X'61' AS `c d`), map(X'62', CAST(NULL AS INT)))), NULL)",
        [{"a b": {'{"c d":"YQ=="}': {"Yg==": None}}}, None],
    ),
}
"""By column: a value in SQL, and what the row of a letter has of it."""


def test_the_row_of_a_letter_has_every_value_of_every_column_with_times_in_utc(other_session: Any) -> None:
    other_session.conf.set("spark.sql.session.timeZone", "America/New_York")
    rows = other_session.sql("SELECT " + ", ".join(f"{value} AS `{name}`" for name, (value, _) in VALUES.items()))
    fits = {"database": Fit(conditions=(("every rule", "false"),))}
    plan = replace(PLAN, letters=LettersPlan(sink="rejected", as_records=False, fits=fits))
    (letter,) = judged(plan, {"database": rows})["database"].bad.collect()
    assert json.loads(letter.row, parse_float=Decimal) == {name: told for name, (_, told) in VALUES.items()}


@pytest.mark.long
def test_a_row_that_does_not_tell_its_record_lands_as_json(lab: Lab, db: Db) -> None:
    sent(lab, [RECORDS[0], RECORDS[4]])
    sinks = (SqlSink("database", "db", db.table("notes"), staging=str(lab.folder / "s")), *lab.outputs("rejected"))
    lab.run(lab.task("letters", "anonymous", sinks, None, app=APPS / "letters.py", dead_letters="rejected"))
    (row,) = lab.rows("rejected", 'topic, "offset", value, sink, row')
    assert row[:4] == (None, None, None, "database")
    assert json.loads(row[4]) == {"id": "e", "note": "much too long a note", "at": "1970-01-01T00:00:00.000000Z"}


@pytest.mark.long
def test_rows_that_are_others_each_time_they_are_computed_are_shown_nowhere(lab: Lab, db: Db) -> None:
    """One of them could be left out of the sink, and be no dead letter a moment later."""
    sent(lab, [str(number).encode() for number in range(200)])
    sinks = (SqlSink("database", "db", db.table("notes"), staging=str(lab.folder / "s")), *lab.outputs("rejected"))
    with pytest.raises(NotApplied, match=r"EPOCHS-DEAD-LETTERS-CHANGED(.|\n)*Make the transform deterministic"):
        lab.run(lab.task("letters", "shaky", sinks, None, app=APPS / "letters.py", dead_letters="rejected"))
    assert db.run(f"SELECT count(*) FROM {db.table('notes')}") == [(0,)]
    assert not Path(lab.at("rejected"), "_delta_log").exists()


@pytest.mark.long
def test_rows_that_break_an_expectation_may_be_put_in_quarantine(lab: Lab, db: Db) -> None:
    sent(lab, [RECORDS[0], RECORDS[7], b"x|bad|0"])
    expected = {"lake": [expect("note <> 'bad'", otherwise="quarantine"), expect("id < 'h'", otherwise="warn")]}
    lab.run(pipeline(lab, db, expectations=expected))
    assert taken(lab, db) == {"lake": list("ah"), "database": list("ahx"), "events": list("ahx")}
    assert rejected(lab) == [(2, "lake", "the row breaks the expectation \"note <> 'bad'\"")]


@pytest.mark.parametrize("lost", [False, pytest.param(True, marks=pytest.mark.long)])
def test_rows_in_quarantine_are_counted_for_the_expectation_that_their_letters_name(
    lab: Lab, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that breaks the first one is not looked at by the second, which could not be computed of it."""
    if lost:  # Spark has lost the counts on their way
        monkeypatch.setattr(observed, "result", lambda observation: {})
    sent(lab, [b"good|EU|12", b"bad|EU|x", b"worse|EU|y", b"late|US|-3", b"fine|US|4"])
    rules = {
        "lake": [
            expect("offset RLIKE '^-?[0-9]+$'", otherwise="quarantine"),
            expect("cast(offset AS int) >= 0", otherwise="quarantine"),
            expect("topic <> 'never'", otherwise="quarantine"),
            expect("topic <> 'fine'", otherwise="warn"),
        ]
    }
    sinks, run = tuple(lab.outputs("lake", "rejected")), Run("dag", "counted")
    task = lab.task(
        "letters", "news", sinks, None, app=APPS / "letters.py", dead_letters="rejected", expectations=rules
    )
    task.open(run)
    report = task.stage(run).stage
    assert report
    assert report.metrics["dead_letters"] == {"lake": 3}
    assert report.metrics["broken"] == {
        "lake": {
            "offset RLIKE '^-?[0-9]+$'": 2,
            "cast(offset AS int) >= 0": 1,
            "topic <> 'never'": 0,
            "topic <> 'fine'": 1,
        }
    }


@pytest.mark.long
@pytest.mark.parametrize(
    "condition",
    [
        "nota <> 'bad'",
        pytest.param("note <>", marks=pytest.mark.long),
        "note",
        pytest.param("count(*) > 0", marks=pytest.mark.long),
    ],
)
def test_a_quarantine_that_cannot_be_computed_is_refused_before_rows_are_staged(
    lab: Lab, db: Db, condition: str
) -> None:
    """Else the rows that it should take out would be shown."""
    sent(lab, [RECORDS[0], b"x|bad|0"])
    with pytest.raises(Refused, match="EPOCHS-EXPECTATION-INVALID"):
        lab.run(pipeline(lab, db, expectations={"lake": [expect(condition, otherwise="quarantine")]}))
    right = {"lake": [expect("note <> 'bad'", otherwise="quarantine")]}
    lab.run_all(lambda: pipeline(lab, db, expectations=right))
    assert taken(lab, db) == {"lake": ["a"], "database": list("ax"), "events": list("ax")}


@pytest.mark.long
def test_a_deletion_needs_no_values_but_its_key_and_its_sequence(lab: Lab, session: Any) -> None:
    table = f"delta.`{lab.at('people')}`"
    session.sql(f"CREATE TABLE {table} (id STRING NOT NULL, op STRING, note STRING NOT NULL, seq BIGINT) USING delta")
    session.sql(f"ALTER TABLE {table} ADD CONSTRAINT told CHECK (char_length(note) > 2)")
    session.sql(f"INSERT INTO {table} VALUES ('a', 'I', 'fine', 1), ('b', 'I', 'fine', 1)")
    people = DeltaSink(
        "people", lab.at("people"), mode="upsert", keys=["id"], sequence_by="seq", delete_when="op = 'D'"
    )
    changes = [
        {"id": "a", "op": "D", "seq": 2},
        {"id": "c", "op": "I", "note": "no sequence"},
        {"id": "d", "op": "I", "note": "no", "seq": 2},
        {"id": "e", "op": "I", "seq": 2},
        {"op": "D", "seq": 2},
    ]
    sent(lab, [json.dumps(each).encode() for each in changes])
    sinks = (people, *lab.outputs("rejected"))
    lab.run(lab.task("letters", "people", sinks, None, app=APPS / "letters.py", dead_letters="rejected"))
    assert lab.rows("people", "id") == [("b",)]
    assert rejected(lab) == [
        (1, "people", "column seq is NULL"),
        (2, "people", "the row breaks the CHECK constraint told (char_length ( note ) > 2)"),
        (3, "people", "column note is NULL"),
        (4, "people", "column id is NULL"),
    ]


@pytest.mark.long
def test_a_deletion_that_breaks_a_quarantine_still_deletes(lab: Lab) -> None:
    """As those of PostgreSQL, which bring the keys alone."""
    people = DeltaSink(
        "people", lab.at("people"), mode="upsert", keys=["id"], sequence_by="seq", delete_when="op = 'D'"
    )
    sinks, rules = (people, *lab.outputs("rejected")), {"people": [expect("note IS NOT NULL", otherwise="quarantine")]}
    for change, shown in (
        ({"id": "a", "op": "I", "note": "fine", "seq": 1}, [("a",)]),
        ({"id": "a", "op": "D", "seq": 2}, []),
    ):
        sent(lab, [json.dumps(change).encode()])
        options: Any = {"dead_letters": "rejected", "expectations": rules}
        lab.run(lab.task("letters", "people", sinks, None, app=APPS / "letters.py", **options))
        assert lab.rows("people", "id") == shown
    assert rejected(lab) == []


@pytest.mark.long
def test_a_letter_that_quotes_its_record_lands_in_every_table(lab: Lab, postgres: Postgres) -> None:
    """Neither its text nor its time may be what the table does not take."""
    late = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    lab.topic = f"late-{lab.topic}"
    lab.admin.create_topics([NewTopic(lab.topic, 1, 1, config=late)])[lab.topic].result()
    producer = Producer({"bootstrap.servers": lab.broker.bootstrap})
    producer.produce(lab.topic, b"a\xff\0b", timestamp=LATE * 1000)
    assert producer.flush(20) == 0
    db = new_postgres(postgres)
    kinds = 'topic text, partition int, "offset" bigint, timestamp timestamptz, sink text, error text'
    db.run(f"CREATE TABLE {db.table('letters')} ({kinds}, key bytea, value bytea, row text)")
    lab.connections["db"] = db.connection()
    staging, rules = str(lab.folder / "staging"), {"rejected": [expect("sink IS NULL")]}
    for name, letters in {
        "one": lab.outputs("rejected")[0],
        "other": SqlSink("rejected", "db", db.table("letters"), staging=staging),
    }.items():
        sinks, app = (letters, DeltaSink("lake", lab.at(name))), APPS / "letters.py"
        lab.run(lab.task(name, "quoting", sinks, None, app=app, dead_letters="rejected", expectations=rules))
    expected = [(None, "not JSON: a\ufffd\ufffdb", b"a\xff\0b")]
    assert lab.rows("rejected", "timestamp, error, value") == expected
    found = db.run(f"SELECT timestamp, error, value FROM {db.table('letters')}")
    assert [(at, error, bytes(value)) for at, error, value in found] == expected


@pytest.mark.long
def test_a_row_whose_columns_are_called_as_those_of_a_record_lands_as_json(lab: Lab) -> None:
    topic = create(lab.admin, f"letters-{lab.topic}")
    letters = KafkaSink(
        "rejected", topic, staging=str(lab.folder / "s"), conn_id="kafka", marker_topic=f"markers-{lab.topic}"
    )
    sent(lab, [b"sports|EU|far\xff", b"sports\xff|3|12"])
    sinks = (*lab.outputs("lake"), letters)
    lab.run(lab.task("letters", "news", sinks, None, app=APPS / "letters.py", dead_letters="rejected"))
    found = [json.loads(message.value() or b"null") for message in messages(lab, topic)]
    assert sorted((each["partition"], each["offset"]) for each in found) == [("3", "12"), ("EU", "far\ufffd")]


def test_rows_are_put_in_quarantine_nowhere_if_the_attempt_began_without_dead_letters(lab: Lab) -> None:
    """As after a stage task that failed, the DAG gained them, and the task was cleared alone."""
    sent(lab, [b"bad|EU|12"])
    run, app = Run("dag", "letters"), APPS / "letters.py"
    lab.task("letters", "news", tuple(lab.outputs("lake")), None, app=app).open(run)
    rules = {"lake": [expect("topic <> 'bad'", otherwise="quarantine")]}
    sinks = tuple(lab.outputs("lake", "rejected"))
    now = lab.task("letters", "news", sinks, None, app=app, dead_letters="rejected", expectations=rules)
    report = now.stage(run).stage
    assert report and "topic <> 'bad'" in str(report.claims["lake"].unmet)


BAD, NUL = "cast(unhex('61FF') as string)", "concat('a', char(0))"
LONG_AGO, FAR_AHEAD = "timestamp_micros(-62135596800000001)", "timestamp_micros(253402300800000000)"
DATABASE, TOPIC = Fit(nul=False, calendar=True), Fit(calendar=True, is_topic=True, record_bytes=300)
PARTED = Fit(dates=True, partition_by=("P",))
FOLDERS = replace(PARTED, folders=True)
CHANGED = replace(PARTED, unless="gone", keys=("K",))
PACKED = replace(TOPIC, packed=True)
HUNDRED_TIMES, TIME = replace(TOPIC, record_bytes=3100), "timestamp'2026-11-29 01:02:03.000001Z'"
WHOLE, TEXTS = "timestamp'2026-11-29 01:02:03Z'", "array_repeat('2026-11-29T01:02:03.000000', 120)"
NESTED = "array(NULL, named_struct('a.b', map('x', cast(repeat('y', 256) AS binary), repeat('z', 256), NULL)))"
DELETES = Fit(required=("C", "K"), unless="gone", keys=("K",))
RULED = Fit(conditions=(("it", "c > 1"),), expected=(expect("c < 3"),), unless="gone", keys=("K",))
EQUAL_KEYS = """from_json('{"x": 1, "x": 2}', 'map<string, int>')"""
FLAWS: list[tuple[Fit, str, str | None]] = [
    (DATABASE, "'fine' AS c", None),
    (DATABASE, "cast(NULL AS string) AS c", None),
    (DATABASE, f"{BAD} AS c", "column c is not UTF-8"),
    (DATABASE, f"{NUL} AS c", "column c has a NUL character"),
    (Fit(), f"{NUL} AS c", None),
    (DATABASE, f"named_struct('a', 1, 'b', array(map('k', {NUL}))) AS c", "column c has a NUL character"),
    (DATABASE, f"map({BAD}, 1) AS c", "column c is not UTF-8"),
    (DATABASE, "array(named_struct('a', cast(NULL AS string))) AS c", None),
    (DATABASE, f"{LONG_AGO} AS c", "column c is outside of the years 1 to 9999"),
    (DATABASE, f"{FAR_AHEAD} AS c", "column c is outside of the years 1 to 9999"),
    (DATABASE, "timestamp_micros(-62135596800000000) AS c", None),
    (DATABASE, "timestamp_micros(253402300799999999) AS c", None),
    (DATABASE, f"array(cast({FAR_AHEAD} AS date)) AS c", "column c is outside of the years 1 to 9999"),
    (DATABASE, f"cast({LONG_AGO} AS timestamp_ntz) AS c", "column c is outside of the years 1 to 9999"),
    (Fit(), f"{FAR_AHEAD} AS c", None),
    (PARTED, f"cast({FAR_AHEAD} AS date) AS c", "column c is outside of the years 1 to 9999"),
    (PARTED, f"cast({LONG_AGO} AS date) AS c", "column c is outside of the years 1 to 9999"),
    (CHANGED, f"cast({FAR_AHEAD} AS date) AS c, 1 AS k, true AS gone", None),
    (PARTED, f"{FAR_AHEAD} AS c, array(cast({FAR_AHEAD} AS date)) AS d", None),
    (PARTED, f"{FAR_AHEAD} AS p", "the partition column p is outside of the years 1 to 9999"),
    (CHANGED, f"{LONG_AGO} AS p, 1 AS k, true AS gone", "the partition column p is outside of the years 1 to 9999"),
    (PARTED, "timestamp_micros(253402300799999999) AS p, date'0001-01-01' AS c", None),
    (PARTED, "'__HIVE_DEFAULT_PARTITION__' AS c, '' AS p", None),
    (PARTED, "'__HIVE_DEFAULT_PARTITION__' AS p", "column p is the text __HIVE_DEFAULT_PARTITION__, which Spark takes"),
    (FOLDERS, "concat('ü/', repeat('x', 248)) AS p, repeat('x', 300) AS c", None),
    (FOLDERS, "concat('ü/', repeat('x', 249)) AS p", "column p makes the name of a folder that no disk takes"),
    (FOLDERS, "concat('ü', char(9), repeat('x', 249)) AS p", "column p makes the name of a folder that no disk takes"),
    (FOLDERS, f"{NUL} AS p", "column p makes the name of a folder that no disk takes"),
    (FOLDERS, "1 AS p", None),
    (PARTED, f"concat({NUL}, repeat('x', 300)) AS p", None),
    (Fit(longest={"C": 3}), "'éàü' AS c", None),
    (Fit(longest={"C": 3}), "'éàüx' AS c", "column c has more than 3 characters"),
    (Fit(required=("C",)), "cast(NULL AS int) AS c", "column c is NULL"),
    (Fit(required=("other",)), "cast(NULL AS int) AS c", None),
    (Fit(conditions=(("the CHECK constraint positive (c > 0)", "c > 0"),)), "-1 AS c", "the row breaks the CHECK"),
    (Fit(conditions=(("it", "c > 0"),)), "cast(NULL AS int) AS c", "the row breaks it"),
    (Fit(expected=(expect("c > 0"),)), "-1 AS c", "the row breaks the expectation 'c > 0'"),
    (Fit(), f"{BAD} AS `it's a \\\\ name`", "is not UTF-8"),
    (TOPIC, f"{BAD} AS value", None),
    (TOPIC, f"{BAD} AS c", "column c is not UTF-8"),
    (TOPIC, "repeat('x', 30) AS value", None),
    (TOPIC, "repeat('x', 300) AS value", "the record has more than 300 bytes"),
    (TOPIC, "repeat('x', 300) AS c", "the record has more than 300 bytes"),
    (Fit(is_topic=True, keyed=True), "cast(NULL AS string) AS key", "the record has no key"),
    (Fit(is_topic=True, partitions=3), "2 AS partition", None),
    (Fit(is_topic=True, partitions=3), "3 AS partition", "the topic has only 3 partitions"),
    (Fit(is_topic=True, partitions=3), "-1 AS partition", "the topic has only 3 partitions"),
    (TOPIC, "repeat('x', 300) AS value, cast(NULL AS array<struct<key string, value binary>>) AS headers", "300 bytes"),
    (TOPIC, "struct('x') AS value, map('a', 'b') AS headers", None),  # of which the vote says what is wrong
    (TOPIC, "repeat('x', 21000000) AS c", "the record has more than 300 bytes"),
    (TOPIC, "array_repeat(cast(0.1 AS float), 20) AS c", "the record has more than 300 bytes"),
    (TOPIC, "array_repeat(1.5, 20) AS c", "the record has more than 300 bytes"),
    (TOPIC, "array_repeat(cast(NULL AS int), 100) AS c", "the record has more than 300 bytes"),
    (TOPIC, f"cast(NULL AS int) AS {'long' * 80}", "the record has more than 300 bytes"),
    # as many bytes as the sink writes: a fraction of a second only where it is not zero
    (HUNDRED_TIMES, f"array_repeat({TIME}, 100) AS c", "the record has more than 3100 bytes"),
    (HUNDRED_TIMES, f"array_repeat(named_struct('n', {TIME}), 95) AS c", "the record has more than 3100 bytes"),
    (HUNDRED_TIMES, f"array_repeat(CAST({TIME} AS TIMESTAMP_NTZ), 105) AS c", "the record has more than 3100 bytes"),
    (HUNDRED_TIMES, "array_repeat(timestamp'2026-11-29 01:02:03Z', 100) AS c", None),
    (HUNDRED_TIMES, "array_repeat(timestamp_ntz'2026-11-29 01:02:03', 100) AS c", None),
    (HUNDRED_TIMES, f"array_repeat(map('x', {WHOLE}), 90) AS c", None),
    (HUNDRED_TIMES, f"array_repeat(named_struct('a b', map('x', array(NULL, {WHOLE}))), 60) AS c", None),
    (HUNDRED_TIMES, f"{TEXTS} AS c, {TIME} AS at, CAST(NULL AS timestamp) AS d", "the record has more than 3100 bytes"),
    (HUNDRED_TIMES, f"named_struct('a b', {TEXTS}, 'at', {WHOLE}) AS c", "the record has more than 3100 bytes"),
    # what Avro or Protobuf may write in fewer bytes, and what they cannot
    (PACKED, "array_repeat(1.5, 200) AS c, 2 AS d", None),
    (PACKED, "array_repeat(named_struct('long_name_of_a_field', 1, 'of_an_enum', 'NAME'), 100) AS c", None),
    (PACKED, "cast(NULL AS array<struct<a: map<string, binary>>>) AS c, cast(NULL AS string) AS d", None),
    (PACKED, "repeat('x', 290) AS c, repeat('x', 11) AS key", "the record has more than 300 bytes"),
    (PACKED, "repeat('x', 290) AS c, repeat('x', 10) AS key", None),
    (PACKED, f"{NESTED} AS c", "the record has more than 300 bytes"),
    (Fit(json=True), f"{EQUAL_KEYS} AS c", "column c has a map with equal keys"),
    (Fit(json=True), f"array(named_struct('m', {EQUAL_KEYS})) AS c", "column c has a map with equal keys"),
    (Fit(json=True), "map('x', 1, 'y', 1) AS c", None),
    (Fit(json=True), "cast(NULL AS map<string, int>) AS c", None),
    (Fit(), f"{EQUAL_KEYS} AS c", None),
    (DELETES, "NULL AS c, 1 AS k, true AS gone", None),
    (DELETES, "NULL AS c, 1 AS k, cast(NULL AS boolean) AS gone", "column c is NULL"),
    (DELETES, "1 AS c, NULL AS k, true AS gone", "column k is NULL"),
    (RULED, "NULL AS c, 1 AS k, true AS gone", None),
    (RULED, "1 AS c, 1 AS k, false AS gone", "the row breaks it"),
    (RULED, "3 AS c, 1 AS k, cast(NULL AS boolean) AS gone", "the row breaks the expectation 'c < 3'"),
    (Fit(conditions=(("it", "elsewhere > 0"), ("that", "c > 0"))), "-1 AS c", "the row breaks that"),
]


@pytest.mark.long
def test_a_row_is_judged_by_what_its_destination_takes(session: Any) -> None:
    for fit, column, expected in FLAWS:
        frame = session.sql(f"SELECT {column}")
        flaw = first_flaw(frame, fit)
        (row,) = frame.select(flaw.alias("flaw")).collect() if flaw is not None else [[None]]
        assert (row[0] is None) == (expected is None) and (expected or "") in (row[0] or ""), (fit, column, row)


@pytest.mark.long
def test_keys_that_are_too_long_for_an_index_are_kept_out_by_an_expectation_or_by_a_digest(lab: Lab, db: Db) -> None:
    long = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=6_000))
    lab.produce((0, "a", 1, 1), (1, long, 2, 1))
    db.run(f"CREATE TABLE {db.table('keyed')} (page text PRIMARY KEY, n bigint)")
    keyed = SqlSink("keyed", "db", db.table("keyed"), mode="upsert", keys=["page"], staging=str(lab.folder / "s"))

    def upserting(function: str, **options: Any) -> Coordinator:
        app = APPS / "audited.py"
        return lab.task("keyed", function, (keyed, *lab.outputs("rejected")), None, app=app, **options)

    with pytest.raises(Refused, match="EPOCHS-SQL-LIMIT"):
        lab.run(upserting("keyed", dead_letters="rejected"))
    short = expect("octet_length(page) <= 2600", otherwise="quarantine")
    lab.run_all(lambda: upserting("keyed", dead_letters="rejected", expectations={"keyed": [short]}))
    assert db.run(f"SELECT page, n FROM {db.table('keyed')}") == [("a", 1)]
    assert [json.loads(row)["page"] for (row,) in lab.rows("rejected", "row")] == [long]
    lab.produce((1, long, 3, 2))
    lab.run_all(lambda: upserting("digested", dead_letters="rejected"))
    digest = hashlib.sha256(long.encode()).hexdigest()
    assert db.run(f"SELECT page, n FROM {db.table('keyed')} ORDER BY n") == [("a", 1), (digest, 3)]
