"""Real Spark queries and real consumer groups hand over to a pipeline, and back; DuckDB counts every record once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from airflow_epochs.commands import asking
from airflow_epochs.model import Run
from airflow_epochs.operators import definitions
from airflow_epochs.storage.files import open_files
from airflow_epochs.storage.options import storage_options
from airflow_epochs.testing import Crash
from stack.broker import Broker
from stack.spark import S3Access
from tests.support.environment import Action
from tests.support.faults_world import crash
from tests.support.rebuilt import Found
from tests.support.remedies import in_the_environment, ordered, typed
from tests.support.s3_access import connection
from tests.support.sql_world import new_sqlite
from tests.support.topic_world import TopicWorld
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

SCHEMA = "source string, payload string"


class Lab(TopicWorld):
    """A topic, a table, and who reads the one and writes the other: a query of Spark, or the pipeline."""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def query(self, session: Any, checkpoint: Path | str | None = None) -> Any:
        """A query that takes what is there, at most two records at a time, and appends it to the table of sink lake."""
        topics = {"subscribe": self.topic()} if checkpoint else {"subscribePattern": f"{self.topic()[:-1]}."}
        read = session.readStream.format("kafka").options(
            **{
                "kafka.bootstrap.servers": self.broker.bootstrap,
                **topics,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "2",
            }
        )
        rows = read.load().selectExpr(f"from_json(cast(value as string), '{SCHEMA}') as r", "partition", "offset")
        rows = rows.selectExpr("r.source", "partition", "offset", "r.payload")
        write = rows.writeStream.format("delta").option("checkpointLocation", str(checkpoint or self.checkpoint))
        return write.trigger(availableNow=True).start(str(self.folder / "lake"))

    def streamed(self, session: Any, checkpoint: Path | str | None = None) -> None:
        """The query runs to the end of what is there."""
        query = self.query(session, checkpoint)
        assert query.awaitTermination(120)
        assert query.exception() is None

    def dies(self, session: Any) -> str:
        """The query runs, and fails."""
        query = self.query(session)
        with pytest.raises(Exception) as failed:
            query.awaitTermination(120)
        return str(failed.value)

    def types(self, command: str, *words: str, at: dict[str, Action] | None = None) -> str:
        """A command of these; its screen."""
        with patch.object(definitions, "find", lambda *asked: Found(lambda: self.task(at).task)):
            return self.asks(command, *words, "--why", "we move")

    def asks(self, command: str, *words: str) -> str:
        """Any command; its screen."""
        return ordered(self.ledger_root, "epochs", command, self.name, *words)

    def refused(self, command: str, *words: str) -> str:
        with pytest.raises(SystemExit) as refused:
            self.types(command, *words)
        return str(refused.value)


@pytest.fixture
def lab(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A topic of two partitions, with a, c in the one and b, d in the other."""
    lab = Lab(folder=tmp_path, broker=broker, db=new_sqlite(tmp_path), id=f"{abs(hash(request.node.name)):x}")
    for name, value in in_the_environment(lab.kafka).items():
        monkeypatch.setenv(name, value)
    lab.create_topic()
    lab.produce("abcd")
    return lab


NEWEST_FORMATS = ("offsetLog.formatVersion", "stateStore.checkpointFormatVersion")


@pytest.fixture
def v2(session: Any) -> Iterator[Any]:
    """A session whose queries write the newest formats that Spark knows."""
    for setting in NEWEST_FORMATS:
        session.conf.set(f"spark.sql.streaming.{setting}", "2")
    yield session
    for setting in NEWEST_FORMATS:
        session.conf.unset(f"spark.sql.streaming.{setting}")


def test_a_pipeline_takes_over_from_a_query_a_query_from_it_and_another_pipeline_from_that(lab: Lab, v2: Any) -> None:
    lab.streamed(v2)
    assert [lab.checkpoint.joinpath(log, "0").read_text()[:2] for log in ("offsets", "commits")] == ["v2", "v2"]
    lab.produce("efgh")
    screen = lab.types("adopt-checkpoint", str(lab.checkpoint))
    assert "has planned no batch after it: the pipeline reads no record of its batches" in screen
    assert lab.run(1) is None
    assert lab.shown("lake") == "abcdefgh"
    lab.produce("ijkl")
    back = lab.folder / "back"
    lab.types("export-checkpoint", str(back))
    lab.streamed(v2, back)
    assert lab.shown("lake") == "abcdefghijkl"
    again = replace(lab, name="again")
    again.types("adopt-checkpoint", str(back), "--sink-table", str(lab.folder / "lake"))
    again.produce("mn")
    assert again.run(1) is None
    assert lab.shown("lake") == "abcdefghijklmn"


@pytest.mark.long
def test_checkpoints_in_an_object_store_are_written_and_taken_over(
    lab: Lab, session: Any, s3: S3Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in in_the_environment(connection(s3)).items():
        monkeypatch.setenv(name, value)
    there, login = f"s3a://{s3.bucket}/{lab.id}", ("--storage-conn-id", "s3")
    assert lab.run(1) is None
    assert s3.secret not in lab.types("export-checkpoint", there, *login)
    lab.produce("ef")
    lab.streamed(session, there)
    assert "EPOCHS-EXPORT-OCCUPIED" in lab.refused("export-checkpoint", there, *login)
    again = replace(lab, name="again")
    copy = a_table_of_the_query(there, storage_options(connection(s3)), batch=1)
    screen = again.types("adopt-checkpoint", there, *login, "--sink-table", copy)
    assert f"with batch 1, the newest one that {copy} has" in screen
    again.produce("gh")
    assert again.run(1) is None
    assert lab.shown("lake") == "abcdefgh"


def a_table_of_the_query(checkpoint: str, options: dict[str, str], batch: int) -> str:
    """A table beside the checkpoint that has a batch, as Spark's Delta sink marks it."""
    query = json.loads(open_files(checkpoint, options).read("metadata") or b"")["id"]
    commit = CommitProperties(app_transactions=[Transaction(query, batch)])
    write_deltalake(f"{checkpoint}-table", pa.table({"n": [1]}), storage_options=options, commit_properties=commit)
    return f"{checkpoint}-table"


@contextmanager
def next_commit_fails(lab: Lab) -> Iterator[None]:
    """The sink takes the next batch, and then the query dies, since it cannot write to commits."""
    batch = 1 + max(int(path.name) for path in lab.checkpoint.glob("commits/[0-9]*"))
    in_the_way = lab.checkpoint / "commits" / str(batch)
    in_the_way.mkdir()
    yield
    in_the_way.rmdir()


@pytest.mark.long
def test_a_query_that_failed_before_its_sink_took_the_batch_has_lost_nothing(lab: Lab, session: Any) -> None:
    lab.streamed(session)
    table = DeltaTable(str(lab.folder / "lake"))
    table.alter.add_constraint({"no_e": "payload <> 'e'"})
    lab.produce("ef")
    assert "no_e" in lab.dies(session)
    table.update_incremental()
    table.alter.drop_constraint("no_e")
    screen = lab.types("adopt-checkpoint", str(lab.checkpoint))
    assert "Batch 2 is planned but not committed: the pipeline reads it again, 2 offsets" in screen
    assert "If it writes a Delta table, answer no and add --sink-table TABLE" in screen
    again = lab.types("adopt-checkpoint", str(lab.checkpoint), "--sink-table", str(lab.folder / "lake"))
    assert "The table does not have batch 2, so the pipeline reads it: 2 offsets" in again
    lab.produce("gh")
    assert lab.run(1) is None
    assert lab.shown("lake") == "abcdefgh"


@pytest.mark.long
def test_a_batch_that_the_table_has_and_the_checkpoint_does_not_is_not_read_twice(lab: Lab, session: Any) -> None:
    lab.streamed(session)
    lab.produce("ef")
    with next_commit_fails(lab):
        lab.dies(session)
    assert lab.shown("lake") == "abcdef"
    for other in ("unknown", "empty"):
        (lab.folder / "empty").mkdir(exist_ok=True)
        sure = lab.refused("adopt-checkpoint", str(lab.checkpoint), "--sink-table", str(lab.folder / other))
        assert "EPOCHS-SINK-TABLE-UNKNOWN" in sure and "no Delta table that has a batch of the query" in sure
    screen = lab.types("adopt-checkpoint", str(lab.checkpoint), "--sink-table", str(lab.folder / "lake"))
    assert "has planned no batch after it: the pipeline reads no record of its batches" in screen
    lab.produce("gh")
    assert lab.run(1) is None
    assert lab.shown("lake") == "abcdefgh"


def test_of_a_table_that_was_taken_back_the_screen_says_what_nobody_can_see_and_the_offsets_bring_its_rows_back(
    lab: Lab, session: Any
) -> None:
    """The table still says that it has the batches: so the pipeline cannot know that their rows are in no sink."""
    lab.streamed(session)
    lab.produce("ef")
    lab.streamed(session)
    table = DeltaTable(str(lab.folder / "lake"))
    table.restore(table.version() - 1)
    assert lab.shown("lake") == "abcd"
    lab.produce("gh")
    words = ("adopt-checkpoint", str(lab.checkpoint), "--sink-table", str(lab.folder / "lake"))
    screen = replace(lab, name="trusting").types(*words)
    assert "missing" not in screen.partition("The command cannot see these")[0]
    assert "nothing comes twice" not in screen
    assert (
        "    if the sink was taken back (a backup, RESTORE, DELETE), rows of the batches that it lost are miss"
        in screen
    )
    assert "    if a topic was deleted and created again since, the offsets stand for other records" in screen
    assert "older copy" not in screen, "the table would have told"
    before = json.dumps({lab.topic(): {"0": 2, "1": 2}})  # as the page says: these offsets into `starting`
    assert lab.but(starting=before).run(1) is None
    assert lab.shown("lake") == "abcdefgh"


def test_without_a_table_the_screen_says_that_it_cannot_know_an_older_copy_of_a_folder(lab: Lab) -> None:
    screen = lab.types("adopt-checkpoint", a_checkpoint(lab))
    assert "    if the folder is an older copy, rows of the batches since then come twice;" in screen


# -- consumer groups --------------------------------------------------------------------------------------------------


def consumed(lab: Lab, group: str, records: int, reset: str = "earliest") -> list[str]:
    """What a consumer of the group reads next; it commits, and leaves."""
    consumer = Consumer(
        {"bootstrap.servers": lab.broker.bootstrap, "group.id": group, "auto.offset.reset": reset}
        | {"enable.auto.commit": False}
    )
    try:
        consumer.subscribe([lab.topic()])
        found = read(consumer, records)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def read(consumer: Consumer, records: int) -> list[str]:
    """The payloads of the next records."""
    found: list[str] = []

    def are_read() -> bool:
        for message in consumer.consume(records - len(found), timeout=1):
            assert message.error() is None and message.value()
            found.append(json.loads(message.value() or b"")["payload"])
        return len(found) == records

    wait_until(are_read)
    return found


def test_a_pipeline_goes_on_where_a_group_ended_and_the_group_where_the_pipeline_ended(lab: Lab) -> None:
    assert sorted(consumed(lab, f"old-{lab.id}", 4)) == [*"abcd"]
    lab.produce("efg")
    screen = lab.types("adopt-group", "--group", f"old-{lab.id}")
    assert f"there to be read now: 3 offsets, {lab.topic()}[0] [2, 4), {lab.topic()}[1] [2, 3)" in screen
    assert lab.run(1) is None
    assert lab.shown("lake") == "efg"
    lab.produce("hi")
    taken = lab.refused("export-group", "--group", f"old-{lab.id}")
    assert "EPOCHS-EXPORT-OCCUPIED" in taken
    assert "Consumers of the group" in lab.types("export-group", "--group", f"new-{lab.id}")
    assert sorted(consumed(lab, f"new-{lab.id}", 2)) == ["h", "i"]


def test_a_group_that_has_not_read_every_partition_needs_to_be_told_where_the_others_begin(lab: Lab) -> None:
    lab.create_topic("half")
    half = replace(lab, topics=("half",))
    half.produce("ab", "half", [0])
    consumer = Consumer({"bootstrap.servers": lab.broker.bootstrap, "group.id": f"half-{lab.id}"})
    consumer.commit(offsets=[TopicPartition(lab.topic("half"), 0, 1)], asynchronous=False)
    consumer.close()
    half.produce("xy", "half", [1])
    missing = half.refused("adopt-group", "--group", f"half-{lab.id}")
    assert "EPOCHS-GROUP-OFFSETS-MISSING" in missing and f"{lab.topic('half')}[1]" in missing
    assert "add --starting with earliest, latest, or a time" in missing
    screen = half.types("adopt-group", "--group", f"half-{lab.id}", "--starting", "earliest")
    assert f"has no offset there, and begins at earliest, as --starting says: {lab.topic('half')}[1]" in screen
    assert half.run(1) is None
    assert half.shown("lake") == "bxy"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_that_is_at_work_is_refused_until_its_consumers_are_stopped(lab: Lab, protocol: str) -> None:
    group = f"busy-{lab.id}"
    consumer = Consumer(
        {"bootstrap.servers": lab.broker.bootstrap, "group.id": group, "group.protocol": protocol}
        | {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    try:
        consumer.subscribe([lab.topic()])
        assert sorted(read(consumer, 4)) == [*"abcd"]
        consumer.commit(asynchronous=False)
        assert "EPOCHS-GROUP-ACTIVE" in lab.refused("adopt-group", "--group", group)
        assert replace(lab, name="other").run(1) is None
        assert "EPOCHS-GROUP-ACTIVE" in replace(lab, name="other").refused("export-group", "--group", group)
    finally:
        consumer.close()
    lab.produce("ef")
    lab.types("adopt-group", "--group", group)
    pipeline = replace(lab, tables={"lake": "taken"})
    assert pipeline.run(1) is None
    assert pipeline.shown("lake") == "ef"


def test_offsets_in_a_transaction_count_when_it_is_committed_and_not_before(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, extra = f"eos-{lab.id}", {**lab.kafka.extra, "socket.timeout.ms": "2000"}
    for name, value in in_the_environment(replace(lab.kafka, extra=extra)).items():
        monkeypatch.setenv(name, value)
    ends = [TopicPartition(lab.topic(), partition, 2) for partition in (0, 1)]
    producer = Producer({"bootstrap.servers": lab.broker.bootstrap, "transactional.id": group})
    consumer = Consumer({"bootstrap.servers": lab.broker.bootstrap, "group.id": group})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata(), 20)
    consumer.close()
    refused = lab.refused("adopt-group", "--group", group)
    assert "EPOCHS-GROUP-ACTIVE" in refused and "A transaction has offsets of the consumer group" in refused
    producer.commit_transaction(20)
    lab.produce("ef")
    lab.types("adopt-group", "--group", group)
    assert lab.run(1) is None
    assert lab.shown("lake") == "ef"


def test_a_group_that_never_read_the_topics_is_refused_also_with_a_place_to_start(lab: Lab) -> None:
    for words in ([], ["--starting", "earliest"]):
        refused = lab.refused("adopt-group", "--group", f"mistyped-{lab.id}", *words)
        assert "EPOCHS-GROUP-OFFSETS-MISSING" in refused and "none at all" in refused


def test_consumers_read_a_new_partition_from_its_first_record_on(lab: Lab) -> None:
    """Whatever their auto.offset.reset says: so would the pipeline."""
    assert lab.run(1) is None
    lab.add_partition()
    lab.produce("xyz", partitions=[2])
    screen = lab.types("export-group", "--group", f"grown-{lab.id}")
    assert f"no epoch has read these partitions yet: {lab.topic()}[2] 0" in screen
    assert consumed(lab, f"grown-{lab.id}", 3, "latest") == [*"xyz"]


def test_consumers_get_all_that_is_there_after_a_loss_once_it_is_accepted_as_the_refusal_says(lab: Lab) -> None:
    """At an offset that was deleted they would begin where their auto.offset.reset says: at the end."""
    assert lab.run(1) is None
    lab.produce("efgh")
    lab.delete_before(0, 3)
    refused = lab.refused("export-group", "--group", f"lost-{lab.id}")
    assert "EPOCHS-RECORDS-GONE" in refused and f"{lab.topic()}[0] offsets [2, 3)" in refused
    assert f"lost for good: 1 offsets, {lab.topic()}[0] [2, 3)" in typed(lab.ledger_root, refused, "skip")
    lab.types("export-group", "--group", f"lost-{lab.id}")
    assert sorted(consumed(lab, f"lost-{lab.id}", 3, "latest")) == [*"fgh"]


# -- wrong use, and moments of death -----------------------------------------------------------------------------------


def a_checkpoint(lab: Lab, **changed: str) -> str:
    """The folder of a query that has read everything, as text files; ``changed``: other texts, by the file's name."""
    folder = lab.folder / "written"
    ends = {lab.topic(): {"0": 2, "1": 2}}
    texts = {
        "offsets/0": f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{json.dumps(ends)}',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
        "metadata": '{"id":"0b8bd3a5-4a3c-4b0b-9f6e-5c4a3e1c2d1f"}',
    }
    for path, text in {**texts, **changed}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return str(folder)


def test_a_pipeline_that_has_begun_is_not_moved_by_these_commands(lab: Lab) -> None:
    assert lab.run(1) is None
    for command, words in {"adopt-checkpoint": [a_checkpoint(lab)], "adopt-group": ["--group", "any"]}.items():
        refused = lab.refused(command, *words)
        assert "EPOCHS-PIPELINE-NOT-NEW" in refused and "airflow epochs rewind orders --offsets FILE" in refused
    lab.produce("ef")
    assert lab.run(2) is None
    assert lab.shown("lake") == "abcdef"


def test_a_command_that_is_killed_has_changed_nothing_and_is_typed_again(lab: Lab) -> None:
    folder = a_checkpoint(lab)
    with pytest.raises(Crash):
        lab.types("adopt-checkpoint", folder, at={"adopt.put": crash})
    assert lab.ledger.open_record(1, 1) is None
    lab.types("adopt-checkpoint", folder)
    lab.produce("ef")
    assert lab.run(1) is None
    assert lab.shown("lake") == "ef"


def test_a_first_epoch_that_dies_begins_again_where_the_other_reader_ended(lab: Lab) -> None:
    lab.types("adopt-checkpoint", a_checkpoint(lab))
    lab.produce("ef")
    for number, moment in enumerate(("open.put", "open.landed", "stage.done"), 1):
        with pytest.raises(Crash):
            lab.run(number, {moment: crash})
    assert lab.run(4) is None
    lab.produce("gh")
    assert lab.run(5) is None
    assert lab.shown("lake") == "efgh"
    assert [command.name for command in lab.completed(1).commands] == ["adopt-checkpoint"]


def test_a_second_command_takes_the_place_of_the_first(lab: Lab) -> None:
    lab.types("adopt-checkpoint", a_checkpoint(lab))
    earlier = json.dumps({lab.topic(): {"0": 1, "1": 2}})
    settings = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
    again = a_checkpoint(lab, **{"offsets/0": f"v1\n{settings}\n{earlier}"})
    lab.types("adopt-checkpoint", again)
    for _ in range(2):  # the second time, `reset-source` waits as well
        screen = lab.asks("reset-source", "--starting", "latest", "--why", "too slow")
        assert screen.count("counted together with an earlier command") == 1
        assert "counted together with an earlier command: `adopt-checkpoint`" in screen
        lab.types("adopt-checkpoint", again)
    assert lab.run(1) is None
    assert lab.shown("lake") == "c"


def test_offsets_that_the_brokers_no_longer_have_are_refused(lab: Lab) -> None:
    lab.produce("efgh")
    lab.delete_before(0, 3)
    refused = lab.refused("adopt-checkpoint", a_checkpoint(lab))
    assert "EPOCHS-OFFSETS-UNUSABLE" in refused and "retention has deleted records" in refused
    assert lab.ledger.open_record(1, 1) is None


def test_a_folder_that_is_not_empty_is_not_overwritten(lab: Lab) -> None:
    assert lab.run(1) is None
    folder = a_checkpoint(lab)
    assert "EPOCHS-EXPORT-OCCUPIED" in lab.refused("export-checkpoint", folder)
    shutil.rmtree(folder)
    lab.types("export-checkpoint", folder)
    lines = Path(folder, "offsets/0").read_text().splitlines()
    assert json.loads(lines[-1]) == {lab.topic(): {"0": 2, "1": 2}}


def test_a_reader_of_other_topics_is_refused_until_the_dag_reads_them(lab: Lab) -> None:
    settings = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
    folder = a_checkpoint(lab, **{"offsets/0": f'v1\n{settings}\n{{"{lab.topic("more")}":{{"0":1}}}}'})
    refused = lab.refused("adopt-checkpoint", folder)
    assert "EPOCHS-TOPIC-UNKNOWN" in refused and "write its topics into `topics` in the DAG" in refused
    lab.create_topic("more", 1)
    lab.produce("xy", "more", [0])
    both = replace(lab, topics=("in", "more"))
    assert f"not read before: {lab.topic()}" in both.types("adopt-checkpoint", folder)
    assert both.run(1) is None
    assert both.shown("lake") == "abcdy"


def test_what_cannot_be_reached_is_named(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(command: str, *words: str) -> str:
        assert lab.refused(command, *words) == "2", "the exit code"
        return capsys.readouterr().err

    nothing = lab.refused("adopt-checkpoint", str(lab.folder / "nothing"))
    assert "EPOCHS-CHECKPOINT-UNUSABLE" in nothing and str(lab.folder / "nothing") in nothing
    for command, words in {"adopt-checkpoint": [a_checkpoint(lab)], "export-checkpoint": ["/new"]}.items():
        assert "no connection 'unknown'" in missing(command, *words, "--storage-conn-id", "unknown")
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA")
    assert "no connection 'kafka'" in missing("adopt-checkpoint", a_checkpoint(lab))
    assert lab.ledger.identity() is None, "nothing was changed"


def test_nothing_is_exported_while_an_epoch_is_in_doubt(lab: Lab) -> None:
    assert "EPOCHS-POSITION-MISSING" in lab.refused("export-group", "--group", lab.id)
    with pytest.raises(Crash):
        lab.run(1, {"committed.lake": crash})
    folder = lab.folder / "back"
    for command, words in {"export-checkpoint": [str(folder)], "export-group": ["--group", lab.id]}.items():
        assert "EPOCHS-EPOCH-UNFINISHED: The epoch is in doubt." in lab.refused(command, *words)
    assert not folder.exists()
    assert lab.run(2) is None
    lab.types("export-group", "--group", lab.id)
    lab.produce("ef")
    assert sorted(consumed(lab, lab.id, 2)) == ["e", "f"]


@pytest.mark.parametrize("began", ["complete", "aborted"])
def test_a_pipeline_that_has_begun_goes_where_the_checkpoint_says_by_the_command_that_the_refusal_names(
    lab: Lab, began: str
) -> None:
    if began == "complete":
        assert lab.run(1) is None
    else:
        lab.opened(1)
        lab.task().abort(Run("dag", "run 1"), "too early")
    lab.produce("ef")
    refused = lab.refused("adopt-checkpoint", folder := a_checkpoint(lab))
    assert "airflow epochs rewind orders --offsets FILE --why" in refused
    file = lab.folder / "FILE"
    file.write_text(Path(folder, "offsets/0").read_text().splitlines()[-1])
    lab.asks("rewind", "--offsets", str(file), "--why", "we move")
    assert lab.run(2) is None
    assert lab.shown("lake") == ("abcdef" if began == "complete" else "ef")


def test_a_reader_that_goes_on_while_the_question_stands_is_noticed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_checkpoint(lab)

    def meanwhile(question: str) -> bool:
        for log in ("offsets", "commits"):
            shutil.copy(Path(folder, log, "0"), Path(folder, log, "1"))
        return True

    monkeypatch.setattr(asking, "ask_yesno", lambda question: False)
    assert "EPOCHS-NOT-CONFIRMED" in lab.refused("adopt-checkpoint", folder)
    monkeypatch.setattr(asking, "ask_yesno", meanwhile)
    assert "EPOCHS-OTHER-READER-WORKS" in lab.refused("adopt-checkpoint", folder)
    assert lab.ledger.identity() is None, "nothing was changed"
    assert "with batch 1, the newest one" in lab.types("adopt-checkpoint", folder)
    assert lab.ledger.open_record(1, 1)


def test_before_and_after_the_first_run_the_lists_say_who_took_over_and_why(lab: Lab) -> None:
    lab.types("adopt-checkpoint", a_checkpoint(lab))
    lab.produce("ef")
    assert "The next run obeys `adopt-checkpoint`" in lab.asks("in-doubt")
    for _ in range(2):
        for command in ("history", "list"):
            assert "adopt-checkpoint" in lab.asks(command, "--output", "plain")
        assert "we move" in lab.asks("history", "--output", "plain")
        assert "adopt-checkpoint" in lab.asks("show", "1")
        assert lab.run(1) is None
