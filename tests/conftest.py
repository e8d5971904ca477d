"""Session fixtures: real servers, each started when the first test asks for it, one of a kind per session."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import tests.support.airflow_home  # noqa: F401  (first: Airflow reads its settings on import)
from airflow_epochs import secrecy
from stack import class_archive, proxy
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.jars import REGISTRY, Jars, fetch
from stack.postgres import Postgres
from stack.registry import SchemaRegistry
from stack.s3 import S3Server
from stack.spark import DRIVER_OPTIONS, S3Access, home, with_class_archive
from stack.standalone import StandaloneCluster
from tests.support.disk_worlds import all_read, no_epoch, one_epoch, one_sink, seven_unread, two_epochs  # noqa: F401
from tests.support.explored import summary
from tests.support.lanes import mark_all_but_few
from tests.support.spark_world import FEW_ROWS

os.environ.update(proxy.bypass())
os.environ["SPARK_HOME"] = str(home())  # inherited by what tests submit
# An example has no time limit of its own, as a busy machine may be slow: the test has one.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
# Airflow, Hypothesis and ten thousand tests are a million objects. With Python's own threshold of 700 new ones, looking
# for garbage among them takes a tenth of the lane without Java.
gc.set_threshold(20_000, 20, 20)
pytest.register_assert_rewrite("airflow_epochs.testing.conformance")  # shipped, and a test all the same


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how much the models have seen."""
    for line in summary([*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]):
        terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def no_secrets_of_other_tests() -> Iterator[None]:
    """A test's passwords are words of other tests."""
    yield
    secrecy.forget()


@pytest.fixture(autouse=True)
def no_signal_handlers_of_other_tests() -> Iterator[None]:
    """Airflow's task runner leaves one: a later test would meet it, if both came to the same process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-cases", action="store_true", help="mark all cases of a test but its first as long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Divide what needs Java in two: tests with the Connect server, and the others. A second one would gain nothing.

    And what has many cases: those that ``make test`` runs, and the long ones.
    """
    mark_all_but_few(items, first_cases=config.getoption("--first-cases"))
    for item in items:
        if item.get_closest_marker("jvm"):
            item.add_marker("spark" if "connect" in getattr(item, "fixturenames", ()) else "brokers")


MANY_SESSIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m -XX:+UseParallelGC -XX:-UsePerfData"
"""For a server that plans thousands of small jobs. Without the limit, Java's second compiler takes more processor time
than the jobs of the first ten minutes."""


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the servers' data and logs."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def jars() -> Jars:
    return fetch()


@pytest.fixture(scope="session")
def broker(servers: Path, jars: Jars) -> Iterator[Broker]:
    """Kafka at ``broker.bootstrap``; topics are not created by use."""
    with Broker(servers / "broker", jars) as server:
        yield server


@pytest.fixture(scope="session")
def postgres(servers: Path) -> Iterator[Postgres]:
    """PostgreSQL at ``postgres.port`` of 127.0.0.1."""
    with Postgres(servers / "postgres") as server:
        yield server


@pytest.fixture(scope="session")
def registry(servers: Path) -> Iterator[SchemaRegistry]:
    """A schema registry at ``registry.url``."""
    with SchemaRegistry(servers / "registry", fetch(REGISTRY)) as server:
        yield server


@pytest.fixture(scope="session")
def s3(servers: Path) -> Iterator[S3Access]:
    """S3 at ``s3.endpoint`` with ``s3.bucket``, ``s3.key``, ``s3.secret``; honours ``If-None-Match``."""
    with S3Server(servers / "s3") as server:
        yield server.access


@pytest.fixture(scope="session")
def connect(servers: Path, jars: Jars, s3: S3Access) -> Iterator[ConnectServer]:
    """Spark Connect at ``connect.url``, with Delta, Kafka, and ``s3a://`` set up for the ``s3`` fixture."""
    class_archive.make()
    conf = {**FEW_ROWS, DRIVER_OPTIONS: with_class_archive(MANY_SESSIONS)}
    with ConnectServer(servers / "connect", jars, s3=s3, quick_start=False, conf=conf) as server:
        yield server


@pytest.fixture(scope="module")
def session(connect: ConnectServer) -> Iterator[Any]:
    """A Spark session that may VACUUM at once."""
    session = connect.session()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    yield session
    session.stop()


@pytest.fixture
def other_session(connect: ConnectServer) -> Iterator[Any]:
    """A session that a test may set up as a server could be."""
    session = connect.session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def standalone(servers: Path) -> Iterator[StandaloneCluster]:
    """A Spark cluster at ``standalone.master``: two workers of one core and 1 GB each."""
    with StandaloneCluster(servers / "standalone") as cluster:
        yield cluster


@pytest.fixture
def table_path(tmp_path: Path) -> Path:
    """Where a test's Delta table will be."""
    return tmp_path / "orders"


@pytest.fixture
def table(table_path: Path) -> str:
    """The same, as a sink takes it."""
    return str(table_path)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str | int]:
    """Paths that this process flushed since the test began, and inodes: some files get their name afterwards."""
    found: set[str | int] = set()
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        found.update((os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_ino))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    return found
