"""What tests of one subject share. A module that needs it otherwise has a fixture of its own with the same name."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient

from airflow_epochs.sinks.delta.sink import DeltaSink
from stack import spark
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.jars import Jars
from stack.postgres import Postgres
from stack.registry import SchemaRegistry
from stack.spark import S3Access
from tests.support import example_lab
from tests.support.airflow_harness import initialised
from tests.support.delta_modes_world import table_in_catalog
from tests.support.delta_world import SparkOn
from tests.support.environment import Environment
from tests.support.kafka_secured import Secured, secured_broker
from tests.support.kafka_sink_world import Feed, a_feed, create
from tests.support.kafka_world import SUDDEN
from tests.support.page_lab import Browser, Ledgers, connected
from tests.support.remedies import in_the_environment
from tests.support.s3_access import connection
from tests.support.spark_world import FEW_ROWS, MASTER, Topic, produce
from tests.support.sql_world import Db, PostgresDb, SqlWorld, new_postgres, new_sqlite
from tests.support.state_lab import Lab
from tests.support.table_lab import TableLab
from tests.support.topic_world import TABLE, TopicWorld

# -- the Delta sink, with Spark ----------------------------------------------------------------------------------


@pytest.fixture
def world(session: Any) -> Environment:
    """Connections and a Spark session, as a Delta sink needs them."""
    return Environment(spark=SparkOn(session))


@pytest.fixture
def named(session: Any) -> Iterator[str]:
    """A table in the catalog that has rows, a property and a constraint."""
    with table_in_catalog(session) as name:
        yield name


@pytest.fixture
def submit_conf(jars: Jars, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Settings of applications by the connection ``submit``, which find Spark and Python by the environment."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "spark"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("AIRFLOW_CONN_SUBMIT", json.dumps({"conn_type": "spark", "host": MASTER}))
    java = spark.with_class_archive(spark.QUICK_START)
    quick = {"spark.driver.memory": "700m", "spark.driver.extraJavaOptions": java}
    return {**spark.settings(jars), **FEW_ROWS, **quick}


@pytest.fixture(scope="module")
def numbers(broker: Broker) -> Topic:
    """A topic of 100 records: every tenth is not a number."""
    return produce(broker.bootstrap, [str(number) if number % 10 else "bad" for number in range(100)])


# -- S3 ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3_world(s3: S3Access) -> Environment:
    """The connection ``s3``, and no Spark."""
    return Environment(connections={"s3": connection(s3)})


@pytest.fixture
def s3_url(s3: S3Access) -> str:
    """Where a test's Delta table will be on S3."""
    return f"s3://{s3.bucket}/{uuid.uuid4().hex}/orders"


@pytest.fixture
def s3_sink(s3_url: str) -> DeltaSink:
    """A sink that appends to the table on S3."""
    return DeltaSink("bronze", s3_url, storage_conn_id="s3")


# -- state -------------------------------------------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path, broker: Broker, connect: ConnectServer) -> Lab:
    return Lab(tmp_path, broker, connect)


# -- pipelines that read a table, and the example DAGs -------------------------------------------------------------


@pytest.fixture
def table_lab(tmp_path: Path, connect: ConnectServer) -> TableLab:
    """A pipeline that reads a Delta table, by Spark; the table is not there yet."""
    return TableLab(tmp_path, connect.where)


@pytest.fixture
def examples(
    tmp_path: Path, broker: Broker, connect: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> example_lab.Lab:
    """What the example DAGs need: connections and an empty lake."""
    return example_lab.Lab(tmp_path, broker, connect, monkeypatch)


# -- Kafka with logins -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def secured(servers: Path, jars: Jars) -> Iterator[Secured]:
    """A broker whose listeners are plain (all rights), SASL over TLS, and TLS with client certificates."""
    with secured_broker(servers / "secured", jars) as secured:
        yield secured


# -- Kafka that may be stopped ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def own_broker(servers: Path, jars: Jars) -> Iterator[Broker]:
    """A broker that a test may restart, and that ends idle transactions quickly."""
    settings = {**SUDDEN, "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with Broker(servers / "own", jars, settings=settings) as broker:
        yield broker


# -- the Kafka sink ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def topic(admin: AdminClient) -> str:
    """A topic for a sink's rows, empty."""
    return create(admin, f"out-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def pipeline() -> str:
    """A name that no other test has, so that markers can share a topic."""
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def feed(broker: Broker, topic: str, pipeline: str, tmp_path: Path) -> Feed:
    """A sink for the topic, at its first epoch."""
    return a_feed(broker.bootstrap, topic, pipeline, tmp_path)


# -- pipelines that read a topic -----------------------------------------------------------------------------------


@pytest.fixture
def topic_world(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Callable[..., TopicWorld]:
    """Makes a pipeline that reads a topic of two partitions, which is empty. ``options``: those of ``TopicWorld``."""

    def made(**options: Any) -> TopicWorld:
        number = f"{abs(hash(request.node.nodeid)):x}"
        world = TopicWorld(folder=tmp_path, broker=broker, db=new_sqlite(tmp_path), id=number, **options)
        world.create_topic()
        return world

    return made


@pytest.fixture
def known_topic_world(
    topic_world: Callable[..., TopicWorld], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., TopicWorld]:
    """The same; its database has a table for a sink, and Airflow has the connections."""

    def made(**options: Any) -> TopicWorld:
        world = topic_world(**options)
        world.db.run(TABLE)
        for name, value in in_the_environment(world.kafka, world.db.connection()).items():
            monkeypatch.setenv(name, value)
        return world

    return made


# -- a schema registry -------------------------------------------------------------------------------------------


@pytest.fixture
def client(registry: SchemaRegistry) -> Iterator[SchemaRegistryClient]:
    """Confluent's own client, with which a test registers schemas."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


# -- the SQL sink ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["postgres", "sqlite"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Db:
    """An empty database; the test runs once for each kind."""
    return new_sqlite(tmp_path) if request.param == "sqlite" else new_postgres(request.getfixturevalue("postgres"))


@pytest.fixture
def sql_tables() -> Sequence[str]:
    """The statements that ``sql_world`` and ``pg`` begin with. A module that needs tables says which."""
    return ()


@pytest.fixture
def sql_world(db: Db, sql_tables: Sequence[str], tmp_path: Path) -> SqlWorld:
    """A database with these tables; the test runs once for each kind."""
    for statement in sql_tables:
        db.run(statement)
    return SqlWorld(db, tmp_path)


@pytest.fixture
def pg_db(postgres: Postgres) -> PostgresDb:
    """An empty PostgreSQL database."""
    return new_postgres(postgres)


@pytest.fixture
def pg(pg_db: PostgresDb, sql_tables: Sequence[str], tmp_path: Path) -> SqlWorld:
    """A PostgreSQL database with these tables, for what SQLite has not."""
    for statement in sql_tables:
        pg_db.run(statement)
    return SqlWorld(pg_db, tmp_path)


@pytest.fixture
def sqlite(tmp_path: Path) -> SqlWorld:
    """An empty SQLite file, for what PostgreSQL has not."""
    return SqlWorld(new_sqlite(tmp_path), tmp_path)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Postgres]:
    """A server that the test may kill, or set otherwise."""
    with Postgres(tmp_path / "own") as server:
        yield server


# -- the page ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metadata() -> None:
    """Airflow's metadata database has its tables."""
    initialised()


@pytest.fixture
def api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process takes itself for Airflow's API server."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")


@pytest.fixture
def ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledgers:
    """Ledgers that the page shows; none is there yet."""
    return connected(tmp_path / "ledger", monkeypatch)


@pytest.fixture
def reader(ledgers: Ledgers) -> Iterator[Browser]:
    """A user who may look at DAGs and their ledgers, and no more."""
    browser = Browser("VIEWER")
    with browser.client:
        yield browser


@pytest.fixture
def ada(api_server: None) -> Iterator[Browser]:
    """She may edit DAGs. Ask for what the page is to show first."""
    browser = Browser("USER")
    with browser.client:
        yield browser
