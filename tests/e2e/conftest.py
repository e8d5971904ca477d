"""One running stack for all end-to-end tests: the examples, and DAGs that fail when told to, that wait, that storm."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from orders_demo.watch import DAG, Watch
from stack.jars import Jars
from stack.postgres import DATABASE, USER, Postgres
from stack.whole import PROJECT, Stack
from tests.support.lineage_file import LineageFile
from tests.support.running_stack import DEADLINE_S, ENOUGH, EPOCH_RECORDS_MAX, ORDERS, RunningStack
from tests.support.spark_world import FEW_ROWS
from tests.support.statsd import StatsdServer
from tests.support.waiting import wait_until


@pytest.fixture(scope="package")  # it never rests: tests of other packages would wait for processors
def running(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[RunningStack]:
    """A stack whose ``orders`` DAG has taken the first 9,000 orders, in epochs of at most 4,000, and is paused."""
    folder, own = tmp_path_factory.mktemp("stack"), tmp_path_factory.mktemp("own")
    # a cleared run waits for the active one, which waits for new orders; a run without orders costs 4 s of a processor
    env = {"ORDERS_MAX_RECORDS": str(EPOCH_RECORDS_MAX), "ORDERS_MAX_WAIT": "4", "TROUBLES": str(own / "troubles")}
    env |= {"ORDERS_ENOUGH": str(ENOUGH), "ORDERS_FOR_SECONDS": "60"}
    # one that looks every 0.1 s, as that of the local stack does, keeps a fifth of a processor busy with nothing
    env |= {"AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3"}
    # all DAG files, parsed every 30 s, would keep a tenth of a processor busy; one that changes is parsed all the same
    env |= {"AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120"}
    (own / "troubles").mkdir()
    lineage = LineageFile(own / "lineage.jsonl", DAG)
    env |= lineage.env
    with (
        StatsdServer() as statsd,
        Postgres(own / "metadata") as metadata,
        Stack(
            folder, jars, dags=project(own), env={**env, **statsd.env, **kept_in(metadata)}, spark_conf=FEW_ROWS
        ) as stack,
    ):
        state = stack.state
        watch = Watch(stack.airflow.api(), state.bootstrap, state.ledger)
        running = RunningStack(stack, watch, own, statsd, lineage)
        running.produce(ORDERS, seed=1)
        with running.taking_orders():
            wait_until(running.watch.consumed, 2 * DEADLINE_S)  # the servers have just started, all at once
        yield running


def kept_in(server: Postgres) -> dict[str, str]:
    """Airflow's metadata in PostgreSQL. With SQLite, tasks wait for its one lock, sometimes until they give up."""
    url = f"postgresql+psycopg://{USER}:{quote(server.password)}@127.0.0.1:{server.port}/{DATABASE}"
    return {f"AIRFLOW__DATABASE__{name}": url for name in ("SQL_ALCHEMY_CONN", "SQL_ALCHEMY_CONN_ASYNC")}


def project(folder: Path) -> Path:
    """The examples and DAGs of the tests as a user's project would have them; returns its folder of DAGs."""
    dags, apps = folder / "project" / "dags", folder / "project" / "spark_apps"
    shutil.copytree(PROJECT / "dags", dags)
    shutil.copytree(PROJECT / "spark_apps", apps)
    ours = Path(__file__).parent / "project"
    shutil.copy(ours / "troubled.py", dags)
    shutil.copy(ours / "waits.py", dags)
    shutil.copy(ours / "acted.py", dags)
    shutil.copy(ours / "storms.py", dags)
    shutil.copy(ours / "troubled_transform.py", apps / "troubled.py")
    shutil.copy(ours / "storms_transform.py", apps / "storms.py")
    return dags
