"""On a server that takes the word TIMESTAMP for a time without zone, an instant is an instant all the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs import SparkConnect, StateTable
from airflow_epochs.sinks.delta.sink import DeltaSink
from stack.broker import Broker
from stack.connect import ConnectServer
from tests.support.delta_modes_world import Epochs
from tests.support.delta_world import SparkOn
from tests.support.environment import Environment
from tests.support.state_lab import Lab
from tests.support.table_lab import TableLab

pytestmark = pytest.mark.jvm

LOCAL = {"spark.sql.timestampType": "TIMESTAMP_NTZ"}


@pytest.fixture
def of_tables(tmp_path: Path, connect: ConnectServer) -> TableLab:
    return TableLab(tmp_path, connect.where, spark=SparkConnect("spark", session_conf=LOCAL))


@pytest.fixture
def of_states(tmp_path: Path, broker: Broker, connect: ConnectServer) -> Lab:
    return Lab(tmp_path, broker, connect, spark=SparkConnect("spark", session_conf=LOCAL))


@pytest.mark.few(1)
@pytest.mark.parametrize("how", [{}, {"commit": "spark"}], ids=str)
def test_an_instant_beside_a_text_in_a_struct_is_staged_as_one(
    other_session: Any, table: str, how: dict[str, Any]
) -> None:
    other_session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    epochs = Epochs(DeltaSink("bronze", table, **how), Environment(spark=SparkOn(other_session)))
    for id_ in (1, 2):
        rows = f"SELECT {id_}L id, named_struct('name', 'a', 'at', timestamp_seconds(0)) s"
        epochs.run(other_session.sql(rows))
    kinds = str(DeltaTable(table).schema().to_json())
    assert '"timestamp"' in kinds and "timestamp_ntz" not in kinds
    instants = [row["s"]["at"].timestamp() for row in DeltaTable(table).to_pyarrow_table().to_pylist()]
    assert instants == [0, 0]


def test_a_feed_has_its_commits_instants_in_every_epoch(of_tables: TableLab) -> None:
    of_tables.options["changes"] = "feed"
    of_tables.write(1, configuration={"delta.enableChangeDataFeed": "true"})
    of_tables.run()
    of_tables.write(2)
    of_tables.run()
    assert of_tables.ids() == Counter([1, 2])
    (kind,) = of_tables.asked("SELECT DISTINCT typeof(_commit_timestamp) FROM t")
    assert kind == ("TIMESTAMP WITH TIME ZONE",)


def test_dead_letters_have_instants(of_tables: TableLab) -> None:
    of_tables.letters, of_tables.transform = True, "judged"
    of_tables.write(1)
    of_tables.run()
    kinds = {name: kind for name, kind, *_ in of_tables.asked("DESCRIBE t", of="rejected")}
    assert kinds["timestamp"] == "TIMESTAMP WITH TIME ZONE"


def test_a_state_has_the_types_of_its_schema_and_the_transform_the_words_of_its_session(of_states: Lab) -> None:
    of_states.produce((0, "a", 1, 1))
    sql = (
        "select 'a' as page, timestamp_seconds(60) as until, timestamp_ntz'2026-01-01 00:00:00' as local, "
        "typeof(cast(null as timestamp)) as word, false as __deleted"
    )
    app = of_states.folder / "changes.py"
    app.write_text(f"def changes(batch, epoch, state):\n    return batch.sparkSession.sql({sql!r})\n")
    schema = "page string, until timestamp, local timestamp_ntz, word string"
    state = StateTable("seen", of_states.at("seen"), schema=schema, keys=["page"], expires="until")
    for _ in range(2):
        of_states.produce((0, "a", 1, 1))
        of_states.run(of_states.task("changes", "changes", (state,), None, app=app))
    found = of_states.rows("seen", "typeof(until), epoch(until)::BIGINT, typeof(local), word")
    assert found == [("TIMESTAMP WITH TIME ZONE", 60, "TIMESTAMP", "timestamp_ntz")] * 2
