"""Other DAGs name the asset of a sink as they like: an epoch is completed, and Airflow tells those that it can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset

from airflow_epochs import KafkaSource, records_waiting
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.hooks.retrying import Retry
from airflow_epochs.operators.single import EpochsOperator
from airflow_epochs.testing import MemorySink
from tests.support.airflow_harness import Harness
from tests.support.layout_lab import Lab

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]


def reader(dag_id: str, asset: Asset) -> Callable[[], int]:
    """A DAG that waits for the asset; returns a count of its assets that had an event since its last run."""
    with DAG(dag_id, schedule=[asset], is_paused_upon_creation=False) as dag:
        EmptyOperator(task_id="read")
    Harness(dag)

    def waiting() -> int:
        from airflow.models.asset import AssetDagRunQueue
        from airflow.utils.session import create_session

        with create_session() as session:
            return session.query(AssetDagRunQueue).filter_by(target_dag_id=dag_id).count()

    return waiting


class Named(Lab):
    """A pipeline whose first sink has an asset that another DAG, which Airflow has read before, names otherwise."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, reader: dict[str, str], **layout: Any) -> None:
        self.reader = reader
        self.mine: list[Asset] = []
        super().__init__(folder, monkeypatch, **layout)

    def renamed(self, **layout: Any) -> None:
        self.uri = f"memory://{self.world.name}/orders"
        named: dict[str, Any] = {key: text.format(uri=self.uri) for key, text in self.reader.items()}
        self.waiting = reader(f"reader_{self.world.name}", Asset(**named))
        super().renamed(**layout)

    def dag(self, dag_id: str, **layout: Any) -> DAG:
        """With more assets, which the user names: what the last task reads, and what all tasks write."""
        dag = super().dag(dag_id, **layout)
        for task in dag.tasks:
            task.outlets = [*self.mine, *task.outlets]
        dag.get_task(f"orders.{self.behind}").inlets = [Asset(f"input of {self.uri}")]
        return dag


OTHER_NAMES = {
    "a name of its own": {"name": "silver {uri}", "uri": "{uri}"},
    "a slash at the end": {"uri": "{uri}/"},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("reader", OTHER_NAMES.values(), ids=OTHER_NAMES.keys())
@pytest.mark.parametrize("layout", ["tasks", pytest.param("single", marks=pytest.mark.long)])
def test_an_epoch_is_completed_and_told_to_a_dag_that_gives_the_asset_another_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reader: dict[str, str],
    layout: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab = Named(tmp_path, monkeypatch, reader, layout=layout)
    lab.produce(1, 2)
    assert lab.run("r1").state == "success"
    assert lab.ledger.newest_complete() == 1
    events = {event["sink"]: event for event in lab.harness.asset_events("r1")}
    assert {sink: (event["epoch"], event["rows"]) for sink, event in events.items()} == {
        "orders": (1, 2),
        "audit": (1, 2),
    }
    assert lab.waiting() == 1
    assert f"`Asset({lab.uri!r})`, without a name" in caplog.text


def test_a_name_that_another_dag_gives_to_another_asset_does_not_stop_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lab = Named(tmp_path, monkeypatch, {"name": "{uri}", "uri": "x-other:{uri}"})
    lab.produce(1, 2)
    assert lab.run("r1").state == "success"
    assert [event["sink"] for event in lab.harness.asset_events("r1")] == ["audit"]
    assert f"no active asset with the URI '{lab.uri}'" in caplog.text


def test_an_asset_of_the_users_own_stops_a_task_until_it_is_named_as_the_other_dag_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What docs/operations.md says of it."""
    reader: dict[str, Any] = {"name": f"silver {tmp_path.name}", "uri": f"x-mine:{tmp_path.name}"}
    lab = Named(tmp_path, monkeypatch, reader)
    lab.produce(1)
    assert lab.run("r1").state == "success"
    lab.mine = [Asset(uri=reader["uri"])]
    lab.laid_out()
    lab.produce(2)
    assert lab.run("r2").tasks["open"] == "failed"
    lab.mine = [Asset(**reader)]
    lab.laid_out()
    Retry.of(lab.ledger, "orders").do(lab.ledger, Account(who="ana", why="the asset has its name"))
    assert lab.harness.drive("r2").state == "success"
    assert lab.shown() == [[1, 2], [1, 2]]


class Mapped:
    """One mapped task with a pipeline, whose asset no DAG names until another one waits for it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.uri = f"memory://{lab.world.name}/mapped"
        row = {
            "pipeline": "mapped",
            "source": lab.source,
            "sinks": [MemorySink(name="mapped", world=lab.world.name)],
        }
        shared: dict[str, Any] = {"transform": lab.transform, "spark": lab.spark, "retries": 0}
        with DAG(f"{lab.harness.dag.dag_id}_mapped", schedule=None, max_active_runs=1) as dag:
            EpochsOperator.partial(task_id="epochs", **shared).expand_kwargs([row])
        self.harness = Harness(dag)

    def run(self, run_id: str) -> None:
        self.lab.produce(run_id)
        assert self.harness.run(run_id).state == "success"


def test_a_mapped_pipeline_is_told_to_a_dag_that_waits_for_it_and_blames_no_dag_before_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lab = Lab(tmp_path, monkeypatch)
    mapped = Mapped(lab)
    mapped.run("r1")
    told = [each for each in caplog.records if "asset with the URI" in each.getMessage()]
    assert [(each.levelname, each.getMessage().split(",")[0]) for each in told] == [
        ("INFO", f"no DAG waits for the asset with the URI {mapped.uri!r}")
    ]
    waiting = reader(f"after_{mapped.harness.dag.dag_id}", Asset(mapped.uri))
    assert waiting() == 0
    mapped.run("r2")
    assert waiting() == 1
    assert [event["epoch"] for event in mapped.harness.asset_events("r2")] == [2]
    assert lab.world.table("mapped").values() == ["r1", "r2"]


def waiting_for(pipeline: str, region: str, ledger_conn_id: str) -> Asset:
    source = KafkaSource(topics=[f"{pipeline}_{region}"], max_wait=0)
    return records_waiting(pipeline, source, ledger_conn_id=ledger_conn_id)


def watched(pipeline: str) -> set[str]:
    """The ledgers of the pipelines of this name that Airflow's triggerer would watch."""
    from airflow.models.asset import AssetWatcherModel
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session

    with create_session() as session:
        ids = session.query(AssetWatcherModel.trigger_id)
        found = [trigger.kwargs for trigger in session.query(Trigger).filter(Trigger.id.in_(ids))]
        return {kwargs["ledger_conn_id"] for kwargs in found if kwargs.get("pipeline") == pipeline}


def test_two_pipelines_of_one_name_with_different_ledgers_are_both_watched() -> None:
    """Of assets with one name, Airflow would watch one."""
    for region, ledger_conn_id in (("eu", "epochs_default"), ("us", "ledger_us"), ("eu", "epochs_default")):
        asset = waiting_for("watched", region, ledger_conn_id)
        with DAG(f"watched_{region}", schedule=[asset], is_paused_upon_creation=False) as dag:
            EmptyOperator(task_id="run")
        Harness(dag)
    assert watched("watched") == {"epochs_default", "ledger_us"}


def test_the_asset_of_waiting_records_names_the_ledger_unless_it_is_the_default() -> None:
    assert waiting_for("orders", "eu", "epochs_default").name == "orders-records-waiting"
    assert waiting_for("orders", "eu", "ledger_eu").name == "orders-records-waiting@ledger_eu"
