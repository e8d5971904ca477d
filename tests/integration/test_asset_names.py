"""Other DAGs name the asset of a sink as they like: an epoch is completed, and Airflow tells those that it can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset

from tests.support.airflow_harness import Harness
from tests.support.layout_lab import Lab

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]


class Named(Lab):
    """A pipeline whose first sink has an asset that another DAG, which Airflow has read before, names otherwise."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, reader: dict[str, str], **layout: Any) -> None:
        self.reader = reader
        super().__init__(folder, monkeypatch, **layout)

    def renamed(self, **layout: Any) -> None:
        self.uri = f"memory://{self.world.name}/orders"
        asset = Asset(**{key: text.format(uri=self.uri) for key, text in self.reader.items()})
        with DAG(f"reader_{self.world.name}", schedule=[asset], is_paused_upon_creation=False) as dag:
            EmptyOperator(task_id="read")
        self.consumer = Harness(dag)
        super().renamed(**layout)

    def dag(self, dag_id: str, **layout: Any) -> DAG:
        """With one more asset, which the user names as what the tasks read."""
        dag = super().dag(dag_id, **layout)
        dag.get_task(f"orders.{self.behind}").inlets = [Asset(f"input of {self.uri}")]
        return dag

    def waiting(self) -> int:
        """How many of the reader's assets have had an event since its last run."""
        from airflow.models.asset import AssetDagRunQueue
        from airflow.utils.session import create_session

        with create_session() as session:
            return session.query(AssetDagRunQueue).filter_by(target_dag_id=self.consumer.dag.dag_id).count()


OTHER_NAMES = {
    "a name of its own": {"name": "silver {uri}", "uri": "{uri}"},
    "a slash at the end": {"uri": "{uri}/"},
}


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
