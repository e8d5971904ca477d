"""``airflow epochs rebuild`` and ``acknowledge-code`` as processes of their own, over DAG files.

Sinks and transform are those of the DAG as it is today.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.models import Connection, Variable
from airflow.utils.session import create_session

from airflow_epochs.errors import Refused
from airflow_epochs.ledger.codec import decode
from airflow_epochs.ledger.keys import rebuilt_key
from airflow_epochs.model import RebuiltRecord
from airflow_epochs.operators.transform_file import find_transform
from tests.support import airflow_home
from tests.support.faults_world import DiskWorld, start
from tests.support.remedies import assert_all_rows, refused

pytestmark = [
    pytest.mark.usefixtures("metadata"),
    pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?"),
]

DAG = """\
from airflow.sdk import DAG
from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect

with DAG("{dag_id}", schedule=None, max_active_runs=1):
    EpochPipeline(
        "orders",
        source=KafkaSource(topics=["orders"], conn_id="kafka_default"),
        transform="disk.py:keep_all",
        sinks=[DeltaSink("orders", "{orders}"), DeltaSink("audit", "{audit}")],
        spark=SparkConnect("spark"),
    )
"""


@pytest.fixture
def lost(tmp_path: Path) -> DiskWorld:
    """Two epochs, and a ledger whose folder is gone."""
    world = start(DiskWorld(tmp_path))
    assert world.run(2) is None
    shutil.rmtree(world.ledger_root)
    refused(world)
    return world


def dag_file(world: DiskWorld, dag_id: str = "dag", **tables: str) -> None:
    """A file of today's DAGs."""
    folder = world.folder / "dags"
    folder.mkdir(exist_ok=True)
    places = {sink: tables.get(sink, str(world.table(sink))) for sink in world.sinks}
    (folder / f"{dag_id}.py").write_text(DAG.format(dag_id=dag_id, **places))


def typed(
    world: DiskWorld, *words: str, why: str = "the disk is gone", command: str = "rebuild"
) -> subprocess.CompletedProcess[str]:
    """``airflow epochs <command> orders … --yes``; variables and connections are in the environment."""
    bundle = {"name": "mine", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle"}
    connection = {"conn_type": "epochs", "extra": {"ledger_root": str(world.ledger_root)}}
    said = {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(
            [{**bundle, "kwargs": {"path": str(world.folder / "dags")}}]
        ),
        "AIRFLOW_CONN_EPOCHS_DEFAULT": json.dumps(connection),
        "AIRFLOW_VAR_LAKE": str(world.folder),
    }
    line = [sys.executable, "-m", "airflow", "epochs", command, "orders", "--why", why, "--yes", *words]
    return subprocess.run(line, env={**os.environ, **said}, capture_output=True, text=True, check=False)


@contextmanager
def in_airflows_database(ledger_root: Path, **variables: str) -> Iterator[None]:
    """Variables, and a ledger's connection, as somebody enters them in Airflow's UI."""
    ledger = Connection("epochs_in_the_ui", conn_type="epochs", extra={"ledger_root": str(ledger_root)})
    with create_session() as session:
        session.add(ledger)
    for name, value in variables.items():
        Variable.set(name, value)
    yield
    for name in variables:
        Variable.delete(name)
    with create_session() as session:
        session.delete(ledger)


def test_the_command_takes_sinks_and_templates_from_the_dag_file_and_leaves_a_trace(lost: DiskWorld) -> None:
    dag_file(lost, orders="{{ var.value.lake }}/{{ var.value.table }}")
    why = uuid.uuid4().hex
    with in_airflows_database(lost.ledger_root, table="orders"):
        done = typed(lost, "--ledger-conn-id", "epochs_in_the_ui", why=why)
    assert done.returncode == 0, done.stderr
    assert "sink orders: epoch 2, transaction orders/2/1/" in done.stdout
    assert "Pipeline orders goes on with epoch 3" in done.stdout
    user = pwd.getpwuid(os.geteuid()).pw_name
    with closing(sqlite3.connect(airflow_home.HOME / "airflow.db")) as database:
        query = "SELECT event, owner, dag_id FROM log WHERE json_extract(extra, '$.full_command') LIKE ?"
        assert database.execute(query, [f"%{why}%"]).fetchall() == [("cli_epochs_rebuild", user, "dag")]
    record = decode((lost.records / rebuilt_key(1)).read_bytes(), RebuiltRecord)
    assert (record.who, record.why, sorted(record.sinks)) == (user, why, ["audit", "orders"])
    lost.one_more_epoch(81)
    assert_all_rows(lost, "orders", "audit")


@pytest.mark.long
def test_acknowledge_code_takes_the_transform_from_the_dag_file(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path, code="0" * 64, on_code_change="stop")
    world.produce(2)
    assert world.run(1) is None
    world.produce(2)
    dag_file(world)
    (world.folder / "dags" / "disk.py").write_text("def keep_all(batch, epoch): ...\n")
    changed = replace(world, code=find_transform("disk.py:keep_all", [world.folder / "dags"]).digest)
    assert isinstance(changed.run(2), Refused)
    done = typed(changed, why="the new rates", command="acknowledge-code")
    assert done.returncode == 0, done.stderr
    assert f"in its newest complete epoch  {world.code}" in done.stdout and str(changed.code) in done.stdout
    assert changed.run(2) is None
    assert_all_rows(changed, "orders", "audit")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("files", "words", "told", "code"),
    [
        ([], [], "EPOCHS-PIPELINE-NOT-IN-DAGS: No DAG of this installation has a pipeline 'orders'", 2),
        pytest.param(
            ["dag", "other"],
            [],
            "Several DAGs have a pipeline 'orders'. These DAGs have one: dag, other.",
            2,
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["dag"],
            ["--dag-id", "gone"],
            "DAG 'gone' of this installation has no pipeline 'orders'",
            2,
            marks=pytest.mark.long,
        ),
        (["dag", "other"], ["--dag-id", "other"], "EPOCHS-PIPELINE-OF-OTHER-DAG", 1),
    ],
)
def test_a_dag_that_cannot_be_told_is_refused(
    lost: DiskWorld, files: list[str], words: list[str], told: str, code: int
) -> None:
    for dag_id in files:
        dag_file(lost, dag_id)
    refusal = typed(lost, *words)
    assert refusal.returncode == code
    assert told in refusal.stderr, refusal.stderr
    assert not (lost.records / rebuilt_key(1)).exists()


def test_a_template_that_needs_a_run_is_refused(lost: DiskWorld) -> None:
    dag_file(lost, orders="/lake/{{ ds }}")
    refusal = typed(lost)
    assert refusal.returncode == 1
    assert "EPOCHS-TEMPLATE-NEEDS-RUN" in refusal.stderr and "'ds' is undefined" in refusal.stderr
