"""Records that are read again reach an upsert without ``sequence_by`` as the words of ``rewind`` say."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_epochs import SqlSink, codes
from airflow_epochs.contracts import Sink
from airflow_epochs.errors import Refused
from airflow_epochs.model import OffsetRange
from stack.broker import Broker
from tests.support.faults_disk import PARTITIONS
from tests.support.remedies import in_the_environment, ordered
from tests.support.sql_world import new_sqlite
from tests.support.topic_world import TABLE, TopicWorld

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(120)]


@dataclass(frozen=True, kw_only=True)
class Upserting(TopicWorld):
    """A database has the newest record of each payload."""

    def sink(self, name: str) -> Sink:
        staging = str(self.folder / "staging")
        return SqlSink(name, "db", "rows", staging=staging, mode="upsert", keys=["payload"])


@pytest.fixture
def world(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Upserting:
    """Three epochs, which share the key a."""
    db = new_sqlite(tmp_path)
    db.run(TABLE.replace("payload text", "payload text primary key"))
    world = Upserting(folder=tmp_path, broker=broker, db=db, id=uuid.uuid4().hex[:8], sinks=("rows",))
    for name, value in in_the_environment(world.kafka, db.connection()).items():
        monkeypatch.setenv(name, value)
    world.create_topic()
    for number, payloads in enumerate(("ab", "ac", "ad"), 1):
        world.produce(payloads)
        assert world.run(number) is None
    return world


def test_an_epoch_that_reads_a_key_of_several_epochs_again_is_aborted_and_goes_on_as_rewind_says(
    world: Upserting,
) -> None:
    shown = world.db.run("SELECT * FROM rows ORDER BY payload")
    said = ordered(world.ledger_root, "epochs", "rewind", world.name, "--to-epoch", "1", "--why", "a test")
    assert "without `sequence_by`, a key may have one row in an epoch" in said
    error = world.run(4)
    assert isinstance(error, Refused) and error.code is codes.GLOBAL_ABORT and "not unique" in str(error)
    ordered(world.ledger_root, "epochs", "replan", world.name, "--why", "a test")
    for number in (4, 5):
        world.opened(number, max_records=2)
        assert world.run(number) is None
    assert world.completed(5).ranges[world.topic()] == tuple(OffsetRange(p, 2, 3) for p in PARTITIONS)
    assert world.db.run("SELECT * FROM rows ORDER BY payload") == shown
