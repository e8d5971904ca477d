"""What commands find in today's DAGs, where one DAG has several pipelines of one name, each with its ledger."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import DAG, TaskGroup

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect, codes
from airflow_epochs.errors import Refused
from airflow_epochs.operators import definitions
from airflow_epochs.operators.definitions import find, in_dag
from airflow_epochs.operators.single import EpochsOperator


@pytest.fixture
def regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DAG with the pipeline orders for each region, and the ledgers of two of them."""
    transform = tmp_path / "orders.py"
    transform.write_text("def orders(records):\n    return {}\n")
    monkeypatch.setenv("AIRFLOW_VAR_US_LEDGER", "epochs_us")
    with DAG("regions", schedule=None, max_active_runs=1) as dag:
        for region, ledger in (("eu", "epochs_eu"), ("us", "{{ var.value.us_ledger }}")):
            with TaskGroup(region):
                EpochPipeline(
                    "orders",
                    source=KafkaSource(topics=[f"orders_{region}"]),
                    transform=f"{transform}:orders",
                    sinks=[DeltaSink(f"orders_{region}", str(tmp_path / region))],
                    spark=SparkConnect(),
                    ledger_conn_id=ledger,
                )
    bag = SimpleBag({"regions": dag})
    monkeypatch.setattr(definitions, "_bags", lambda: iter([bag]))


class SimpleBag:
    """As much of Airflow's bag of DAGs as is looked at."""

    def __init__(self, dags: dict[str, DAG]) -> None:
        self.dags, self.import_errors, self.dag_folder = dags, dict[str, str](), ""


@pytest.mark.usefixtures("regions")
@pytest.mark.parametrize("step", ["open", "complete"])
@pytest.mark.parametrize("region", ["eu", "us"])
def test_of_two_pipelines_of_one_name_the_one_with_the_ledger_of_the_command_is_found(region: str, step: str) -> None:
    found = find("orders", None, f"epochs_{region}", step=step)
    assert found.pipeline.source.spec()["topics"] == [f"orders_{region}"]
    assert [sink.name for sink in found.pipeline.sinks] == [f"orders_{region}"]
    assert (found.ledger_conn_id, found.operator.step) == (f"epochs_{region}", step)


@pytest.mark.usefixtures("regions")
@pytest.mark.parametrize("ledger", [None, "a_copy"])
def test_of_two_pipelines_of_one_name_none_is_taken_for_another_ledger(ledger: str | None) -> None:
    with pytest.raises(Refused, match="several pipelines 'orders', with the ledgers epochs_eu, epochs_us") as refused:
        find("orders", "regions", ledger)
    assert refused.value.code is codes.PIPELINE_NOT_IN_DAGS and "--ledger-conn-id" in refused.value.remedy


@pytest.mark.usefixtures("regions")
def test_both_pipelines_of_one_name_in_a_dag_are_checked() -> None:
    assert [each.sinks[0].name for each in in_dag("regions")] == ["orders_eu", "orders_us"]


def test_a_pipeline_whose_operator_is_mapped_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transform = tmp_path / "orders.py"
    transform.write_text("def orders(records):\n    return {}\n")
    with DAG("regions", schedule=None, max_active_runs=1) as dag:
        EpochsOperator.partial(task_id="epochs", transform=f"{transform}:orders", spark=SparkConnect()).expand_kwargs(
            [
                {
                    "pipeline": region,
                    "source": KafkaSource(topics=[f"orders_{region}"]),
                    "sinks": [DeltaSink(f"orders_{region}", str(tmp_path / region))],
                }
                for region in ("eu", "us")
            ]
        )
    monkeypatch.setattr(definitions, "_bags", lambda: iter([SimpleBag({"regions": dag})]))
    assert [each.pipeline for each in in_dag("regions")] == ["eu", "us"]
    found = find("us").pipeline
    assert (found.source.spec()["topics"], found.sinks[0].name) == (["orders_us"], "orders_us")
