"""A topic, a table that one pipeline makes of it, and a pipeline that reads that table: over Connect and by submit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_epochs import SparkSubmit, codes
from airflow_epochs.contracts import Connection, Limits
from airflow_epochs.errors import Corrupt
from airflow_epochs.testing import Crash
from stack.broker import Broker
from stack.connect import ConnectServer
from tests.support.faults_world import crash
from tests.support.spark_world import MASTER, produce
from tests.support.table_lab import TableLab

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(240)]


@pytest.mark.long
def test_a_number_of_a_topic_is_once_at_the_far_end_wherever_the_second_pipeline_was_killed(
    tmp_path: Path, broker: Broker, connect: ConnectServer
) -> None:
    lab, sent = TableLab(tmp_path, connect.where), 0
    for phase in ("stage.start", "stage.done", "delta.commit.before", "delta.commit.after", "complete.put"):
        topic = produce(broker.bootstrap, [str(number) for number in range(sent, sent + 5)])
        sent += 5
        lab.run(pipeline=lab.upstream(broker, topic.name))
        with pytest.raises(Crash):
            lab.run(at={phase: crash})
        lab.run()
    assert lab.ids() == Counter(range(sent))


@pytest.mark.long
def test_versions_are_read_by_spark_submit_as_well(tmp_path: Path, submit_conf: dict[str, str]) -> None:
    lab = TableLab(tmp_path, spark=SparkSubmit("submit", conf=submit_conf), letters=True, transform="judged")
    lab.connections["submit"] = Connection(conn_id="submit", conn_type="spark", host=MASTER)
    lab.write(1, 2, partition_by=["id"])
    lab.run()
    lab.write(3)
    lab.write(4)
    lab.run()
    assert lab.ids() == Counter([1, 2, 3, 4])


@pytest.mark.long
def test_the_second_pipeline_goes_back_as_the_first_did_and_has_each_row_once(
    tmp_path: Path, broker: Broker, connect: ConnectServer
) -> None:
    lab = TableLab(tmp_path, connect.where)
    writer = lab.upstream(broker, produce(broker.bootstrap, [str(number) for number in range(6)]).name)
    for _ in range(3):
        lab.run(Limits(max_records=2), pipeline=writer)
        lab.run()
    assert lab.ids() == Counter(range(6))
    lab.ordered("rewind", "--to-epoch", "1", "--restore-tables", pipeline=writer)
    for _ in range(2):
        lab.run(pipeline=writer)
    with pytest.raises(Corrupt, match="it takes the table back to version 0") as error:
        lab.run()
    assert error.value.code is codes.ROWS_CHANGED
    lab.ordered("rewind", "--to-epoch", "1", "--restore-tables")
    for _ in range(2):
        lab.run()
    assert lab.ids() == Counter(range(6))
