"""The coordinator with everything real but Airflow: Kafka, Spark Connect, Delta, a ledger on disk; read by DuckDB."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import CommitProperties, DeltaTable
from kafka import KafkaAdminClient, TopicPartition

from airflow_epochs import DeltaSink, KafkaSource, SparkConnect
from airflow_epochs.contracts import Connection
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, EpochError, NoNewData
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run, starting_at_ends
from airflow_epochs.operators.transform_file import find_transform
from airflow_epochs.spark.driver.delta import dates, partitions
from airflow_epochs.testing import Crash, run_epoch
from orders_demo.duck import duck
from stack.broker import Broker
from stack.connect import ConnectServer
from tests.support.cells import fired
from tests.support.environment import Environment
from tests.support.faults_world import crash
from tests.support.pages import blocks, filled, printed
from tests.support.rebuilt import typed_rebuild
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(180)]
SPARK_APPS = Path(__file__).parents[2] / "spark_apps"
PHASES = (
    "open.landed",
    "stage.start",
    "stage.done",
    "decision.landed",
    "commit.orders",
    "committed.orders",
    "committed.rejected",
    "complete.put",
    "complete.landed",
)
_numbers = itertools.count()


class Lab:
    def __init__(self, folder: Path, broker: Broker, connect: ConnectServer) -> None:
        self.folder, self.bootstrap, self.topic = folder, broker.bootstrap, f"orders{next(_numbers)}"
        self.connections = {
            "kafka": Connection(conn_id="kafka", conn_type="kafka", extra={"bootstrap.servers": broker.bootstrap}),
            "spark": Connection(conn_id="spark", conn_type="spark_connect", **connect.where),
        }
        self.create_topic()

    def create_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result()

    def recreate_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([self.topic])[self.topic].result()
        wait_until(lambda: self.topic not in admin.list_topics(timeout=10).topics)
        self.create_topic()

    def produce(self, records: int, customer: str = "c") -> None:
        """Every tenth record is no order."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(records):
            order = {"order_id": f"o{number}", "customer": customer, "amount": "1.50", "currency": "EUR"}
            text = "no json" if number % 10 == 0 else json.dumps({**order, "ts": "2026-01-02T03:04:05Z"})
            producer.produce(self.topic, value=text, partition=number % 2)
        assert producer.flush(30) == 0

    def task(
        self,
        die_at: str | None = None,
        app: str = "orders.py",
        name: str = "orders",
        starting: str = "earliest",
        then: Mapping[str, Callable[[], None]] | None = None,
    ) -> Coordinator:
        """What one task process makes."""
        env = Environment(self.connections, {**({die_at: crash} if die_at else {}), **(then or {})})
        env.spark = SparkConnect("spark").runner(env)
        return Coordinator(
            TaskTry(
                pipeline=Pipeline(
                    wait_for_others=0,
                    name=name,
                    dag_id="dag",
                    source=KafkaSource(topics=[self.topic], conn_id="kafka", max_wait=0, starting=starting),
                    sinks=(
                        DeltaSink("orders", str(self.folder / "orders"), partition_by=["day"]),
                        DeltaSink("rejected", str(self.folder / "rejected")),
                    ),
                    transform=find_transform(f"{app}:orders", [SPARK_APPS]),
                ),
                ledger=Ledger(LocalStore(self.folder / "ledger"), name),
                env=env,
            )
        )

    def rows(self) -> list[tuple[Any, ...]]:
        """(sink, partition, offset) of every visible row, by DuckDB."""
        with duck() as db:
            return [
                (sink, *row)
                for sink in ("orders", "rejected")
                for row in db.execute(
                    'select "partition", "offset" from delta_scan(?) order by all', [str(self.folder / sink)]
                ).fetchall()
            ]

    def require_exactly_once(self, records: int) -> None:
        found = sorted((partition, offset) for _, partition, offset in self.rows())
        assert found == sorted((number % 2, number // 2) for number in range(records))

    def staged_files(self, sink: str = "*") -> list[Path]:
        """Every data file below a table's staging folder; once committed, they are the table's own."""
        return list(self.folder.glob(f"{sink}/epochs/**/*.parquet"))

    def staging_left(self) -> list[Path]:
        return list(self.folder.glob("*/epochs/*/*/_delta_log"))


@pytest.fixture
def lab(tmp_path: Path, broker: Broker, connect: ConnectServer) -> Iterator[Lab]:
    yield Lab(tmp_path, broker, connect)


def test_epochs_show_every_record_exactly_once_in_exactly_one_sink(lab: Lab) -> None:
    lab.produce(100)
    first = run_epoch(lab.task(), Run("dag", "r1"))
    assert {sink: receipt.rows for sink, receipt in first.receipts.items()} == {"orders": 90, "rejected": 10}
    lab.produce(100)
    second = run_epoch(lab.task(), Run("dag", "r2"))
    assert [second.receipts[sink].version for sink in ("orders", "rejected")] == [1, 1]
    found = sorted((partition, offset) for _, partition, offset in lab.rows())
    assert found == [(partition, offset) for partition in (0, 1) for offset in range(100)]
    assert lab.staging_left() == []
    with pytest.raises(NoNewData):
        lab.task().open(Run("dag", "r3"))


@pytest.mark.few(4)
@pytest.mark.parametrize("phase", PHASES)
def test_a_task_that_dies_anywhere_loses_and_doubles_nothing(lab: Lab, phase: str) -> None:
    lab.produce(40)
    with pytest.raises(Crash):
        run_epoch(lab.task(die_at=phase), Run("dag", "r1"))
    # of an epoch that its own run has completed, only Airflow's repeat of that run's `complete` tells
    run_epoch(lab.task(), Run("dag", "r1" if phase == "complete.landed" else "r2"))
    lab.require_exactly_once(40)
    assert lab.task().task.ledger.newest_complete() == 1
    lab.task().complete(Run("dag", lab.task().newest_complete().opened_by.run_id))
    assert lab.staging_left() == []


def test_a_schema_that_does_not_match_is_a_vote_abort_that_names_the_column_and_shows_nothing(
    lab: Lab, tmp_path: Path
) -> None:
    lab.produce(20)
    run_epoch(lab.task(), Run("dag", "r1"))
    before = lab.rows()
    app = tmp_path / "orders.py"
    text = (SPARK_APPS / "orders.py").read_text()
    app.write_text(text.replace('good.select("order.*"', 'good.select(F.lit(1).alias("extra"), "order.*"'))
    lab.produce(20)
    task = lab.task(app=str(app))
    task.open(Run("dag", "r2"))
    report = task.stage(Run("dag", "r2")).stage
    with pytest.raises(EpochError, match="extra"):
        task.vote(Run("dag", "r2"), report)
    assert lab.rows() == before
    run_epoch(lab.task(), Run("dag", "r3"))
    assert len(lab.rows()) == 40


def strangers_change(table: Path) -> None:
    """An entry in the log with a note of its own, as anybody may leave one."""
    note = CommitProperties(custom_metadata={"userMetadata": "see the wiki"})
    DeltaTable(table).alter.set_table_description("Orders", commit_properties=note)


def in_the_history(block: str, table: Path, **known: Any) -> Any:
    """The offsets that a command of docs/operations.md prints for a table of the pipeline ``orders``."""
    names = {"orders/orders": f"orders/{table.name}", "/lake/orders": str(table)}
    return json.loads(printed(filled(block, names), **known))


@pytest.mark.long
def test_after_the_ledger_is_lost_it_is_rebuilt_from_what_the_tables_history_says(lab: Lab, session: Any) -> None:
    for number in (1, 2):
        lab.produce(40)
        run_epoch(lab.task(), Run("dag", f"r{number}"))
    for sink in ("orders", "rejected"):
        strangers_change(lab.folder / sink)
    lab.produce(20)
    shutil.rmtree(lab.folder / "ledger")
    with pytest.raises(Corrupt, match="The ledger is behind the table") as stopped:
        lab.task().open(Run("dag", "r3"))
    typed_rebuild(lambda: lab.task().task, stopped.value, ledger_root=lab.folder / "ledger")
    ends = starting_at_ends(lab.task().newest_complete().ranges)
    in_deltalake, in_spark = blocks("operations.md", "Where the offsets are", "python")
    for sink in ("orders", "rejected"):
        assert in_the_history(in_deltalake, lab.folder / sink) == ends
        assert in_the_history(in_spark, lab.folder / sink, spark=session) == ends
    run_epoch(lab.task(), Run("dag", "r4"))
    lab.require_exactly_once(100)


def test_a_topic_that_is_created_again_after_the_check_and_before_spark_reads_it_is_never_committed(lab: Lab) -> None:
    lab.produce(40, "old")

    def create_again() -> None:
        lab.recreate_topic()
        lab.produce(60, "new")

    late = lab.task(then={"stage.start": create_again})
    late.open(Run("dag", "r1"))
    with pytest.raises(Corrupt, match="created again"):
        late.stage(Run("dag", "r1"))
    assert late.abort(Run("dag", "r1"), "failed before a decision")
    assert not (lab.folder / "orders" / "_delta_log").exists()
    assert lab.staging_left() == []


def test_a_first_epoch_whose_oldest_records_retention_takes_after_open_goes_on_with_the_others(lab: Lab) -> None:
    lab.produce(40)
    late = lab.task()
    late.open(Run("dag", "r1"))
    with KafkaAdminClient(bootstrap_servers=lab.bootstrap) as admin:
        admin.delete_records({TopicPartition(lab.topic, 1): 15})
    with pytest.raises(Corrupt, match="begins at the oldest records of its topics, and retention deleted some of them"):
        late.stage(Run("dag", "r1"))
    late.abort(Run("dag", "r1"), "failed before a decision")
    report = late.stage(Run("dag", "r1")).stage  # cleared, as the error says
    late.vote(Run("dag", "r1"), report)
    for sink in ("orders", "rejected"):
        late.commit(Run("dag", "r1"), sink)
    late.complete(Run("dag", "r1"))
    found = sorted((partition, offset) for _, partition, offset in lab.rows())
    assert found == [(0, offset) for offset in range(20)] + [(1, offset) for offset in range(15, 20)]


def in_doubt(lab: Lab, run: str, app: str = "orders.py") -> None:
    with pytest.raises(Crash):
        run_epoch(lab.task(die_at="decision.landed", app=app), Run("dag", run))


def test_staged_files_that_are_gone_after_the_decision_are_staged_again_with_the_same_digest(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.produce(40)
    in_doubt(lab, "r1")

    def judged(*_: Any) -> Any:
        raise AssertionError("today's rules for values do not judge rows that are promised")

    monkeypatch.setattr(dates, "known", judged)
    monkeypatch.setattr(partitions, "sound", judged)
    for file in lab.staged_files():
        file.unlink()
    for sink in ("orders", "rejected"):
        lab.task().commit(Run("dag", "r1"), sink)
    done = lab.task().complete(Run("dag", "r1"))
    decision = lab.task().task.ledger.decision_record(1, 1)
    for sink, receipt in done.receipts.items():
        (again,) = lab.task().task.ledger.restaged(1, sink)
        voted = decision.votes[sink].staged if decision else None
        assert voted and voted.digest == again.staged.digest
        assert voted.place != again.staged.place == receipt.place
    lab.require_exactly_once(40)
    assert lab.staging_left() == []
    places = [path for path in lab.folder.glob("*/epochs/*/*") if path.is_dir()]
    assert len(places) == 2, "the lost places are cleared away"
    fired("F19", 8, "C")


def test_vacuum_at_0_hours_after_the_decision_takes_the_staged_files_and_the_next_run_stages_them_again(
    lab: Lab, connect: ConnectServer
) -> None:
    lab.produce(40)
    run_epoch(lab.task(), Run("dag", "r1"))
    committed = set(lab.staged_files("orders"))
    lab.produce(40)
    in_doubt(lab, "r2")
    assert set(lab.staged_files("orders")) > committed
    vacuum_at_0_hours(lab.folder / "orders", connect)
    assert set(lab.staged_files("orders")) == committed
    assert lab.task().open(Run("dag", "r3")).txn_id.epoch == 2
    assert lab.task().newest_complete().txn_id.epoch == 2
    assert [len(lab.task().task.ledger.restaged(2, sink)) for sink in ("orders", "rejected")] == [1, 0]
    found = sorted((partition, offset) for _, partition, offset in lab.rows())
    assert found == [(partition, offset) for partition in (0, 1) for offset in range(40)]
    assert lab.staging_left() == []
    fired("F19", 8, "C")


def vacuum_at_0_hours(table: Path, connect: ConnectServer) -> None:
    session = connect.session()
    try:
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        session.sql(f"VACUUM delta.`file://{table}` RETAIN 0 HOURS").collect()
    finally:
        session.stop()


def test_a_transform_that_is_not_deterministic_cannot_be_staged_again_and_nothing_is_changed(
    lab: Lab, tmp_path: Path
) -> None:
    app = tmp_path / "orders.py"
    text = (SPARK_APPS / "orders.py").read_text()
    app.write_text(text.replace('good.select("order.*"', 'good.select((F.rand() < 0.5).alias("luck"), "order.*"'))
    lab.produce(40)
    in_doubt(lab, "r1", str(app))
    for file in lab.staged_files():
        file.unlink()
    before = sorted(lab.folder.glob("orders/**/*"))
    with pytest.raises(
        Corrupt, match="differ from the rows that the sink voted for: the number of rows is the same, but values"
    ) as caught:
        lab.task(app=str(app)).commit(Run("dag", "r1"), "orders")
    assert "airflow epochs waive orders 1 orders" in caught.value.remedy
    assert sorted(lab.folder.glob("orders/**/*")) == before
    assert lab.task().task.ledger.view(1).receipts == {}
    assert lab.task().task.ledger.restaged(1, "orders") == []
    fired("F19", 8, "X")
