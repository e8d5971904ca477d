"""Real Spark queries and real consumer groups hand over to a pipeline, and back; DuckDB counts every record once."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

from airflow_epochs.operators import definitions
from airflow_epochs.testing import Crash
from stack.broker import Broker
from tests.support.environment import Action
from tests.support.faults_world import crash
from tests.support.rebuilt import Found
from tests.support.remedies import in_the_environment, ordered
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

    def query(self, session: Any, checkpoint: Path | None = None) -> Any:
        """A query that takes what is there, at most two records at a time, and appends it to the table of sink lake."""
        read = session.readStream.format("kafka").options(
            **{
                "kafka.bootstrap.servers": self.broker.bootstrap,
                "subscribe": ",".join(map(self.topic, self.topics)),
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "2",
            }
        )
        rows = read.load().selectExpr(f"from_json(cast(value as string), '{SCHEMA}') as r", "partition", "offset")
        rows = rows.selectExpr("r.source", "partition", "offset", "r.payload")
        write = rows.writeStream.format("delta").option("checkpointLocation", str(checkpoint or self.checkpoint))
        return write.trigger(availableNow=True).start(str(self.folder / "lake"))

    def streamed(self, session: Any, checkpoint: Path | None = None) -> None:
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
        """A command; its screen, or the refusal."""
        with patch.object(definitions, "find", lambda *asked: Found(lambda: self.task(at).task)):
            return ordered(self.ledger_root, "epochs", command, self.name, *words, "--why", "we move")

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


def test_a_pipeline_goes_on_where_a_query_ended_and_the_query_where_the_pipeline_ended(lab: Lab, session: Any) -> None:
    lab.streamed(session)
    lab.produce("efgh")
    screen = lab.types("adopt-checkpoint", str(lab.checkpoint))
    print(screen)
    assert "nothing comes twice, and nothing is missing" in screen
    assert lab.run(1) is None
    assert lab.shown("lake") == "abcdefgh"
    lab.produce("ijkl")
    back = lab.folder / "back"
    print(lab.types("export-checkpoint", str(back)))
    lab.streamed(session, back)
    assert lab.shown("lake") == "abcdefghijkl"


def forgets_its_last_commit(lab: Lab) -> None:
    """As a query that was killed after its sink had taken the batch, and before it said so in its checkpoint."""
    newest = max(lab.checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


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


def test_a_batch_that_the_table_has_and_the_checkpoint_does_not_is_not_read_twice(lab: Lab, session: Any) -> None:
    lab.streamed(session)
    forgets_its_last_commit(lab)
    for other in ("unknown", "empty"):
        (lab.folder / "empty").mkdir(exist_ok=True)
        sure = lab.refused("adopt-checkpoint", str(lab.checkpoint), "--sink-table", str(lab.folder / other))
        assert "EPOCHS-SINK-TABLE-UNKNOWN" in sure and "no Delta table that has a batch of the query" in sure
    screen = lab.types("adopt-checkpoint", str(lab.checkpoint), "--sink-table", str(lab.folder / "lake"))
    assert "nothing comes twice, and nothing is missing" in screen
    lab.produce("ef")
    assert lab.run(1) is None
    assert lab.shown("lake") == "abcdef"


# -- consumer groups --------------------------------------------------------------------------------------------------


def consumed(lab: Lab, group: str, records: int) -> list[str]:
    """What a consumer of the group reads next; it commits, and leaves."""
    consumer = Consumer(
        {"bootstrap.servers": lab.broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        | {"enable.auto.commit": False}
    )
    found: list[str] = []
    try:
        consumer.subscribe([lab.topic()])
        while len(found) < records:
            for message in consumer.consume(records - len(found), timeout=20):
                assert message.error() is None and message.value()
                found.append(json.loads(message.value() or b"")["payload"])
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
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


def test_a_group_that_is_at_work_is_refused_until_its_consumers_are_stopped(lab: Lab) -> None:
    group = f"busy-{lab.id}"
    consumed(lab, group, 2)
    consumer = Consumer({"bootstrap.servers": lab.broker.bootstrap, "group.id": group})
    try:
        consumer.subscribe([lab.topic()])
        wait_until(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()))
        for command in ("adopt-group", "export-group"):
            if command == "export-group":
                assert lab.run(1) is None
            assert "EPOCHS-GROUP-ACTIVE" in lab.refused(command, "--group", group)
    finally:
        consumer.close()


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
    lab.types("adopt-checkpoint", a_checkpoint(lab, **{"offsets/0": f"v1\n{settings}\n{earlier}"}))
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
