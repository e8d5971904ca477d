"""State, event time, expectations and dead letters in one task, over a broker, Spark and Delta."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.operators.single import EpochsOperator
from tests.support.airflow_harness import Harness
from tests.support.example_lab import DAGS, Lab

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [
    pytest.mark.jvm,
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?"),
]
EXAMPLE = "unique_readings"
FEW = {"max_records": 4}


def in_one_task(lab: Lab, *changes: tuple[str, str]) -> Harness:
    """The example with state and expectations, in the layout with one task."""
    from airflow.dag_processing.dagbag import DagBag

    text = (DAGS / f"{EXAMPLE}.py").read_text()
    app = DAGS.parent / "spark_apps"
    for old, new in (
        ('"spark_apps', f'"{app}'),
        ("        ledger_conn", '        layout="single",\n        ledger_conn'),
        ('topics=["readings"]', 'topics=["readings"], max_wait=2'),  # a task that has caught up ends after this
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    file = lab.lake.parent / f"{EXAMPLE}.py"
    file.write_text(text)
    bag = DagBag(dag_folder=str(file))
    assert not bag.import_errors
    (dag,) = bag.dags.values()
    return Harness(dag)


def reading(minute: int, seq: int, celsius: str = "20.5") -> bytes:
    record = {"sensor": "s", "seq": seq, "celsius": celsius, "ts": f"2026-01-02T10:{minute:02}:00Z"}
    return json.dumps(record).encode()


def passed(lab: Lab) -> list[int]:
    return sorted(seq for (seq,) in lab.seen_by_duckdb("silver/readings", "seq"))


def test_each_epoch_of_one_task_reads_the_state_that_the_epoch_before_it_left(examples: Lab) -> None:
    examples.create("readings")
    # every reading comes in three epochs, and one record is none
    examples.produce(
        "readings", [reading(minute, seq) for minute in range(3) for seq in (1, 2, 3, 4)] + [b"no reading"]
    )
    dag = in_one_task(examples)
    assert dag.run("in_one_task", FEW).state == "success"
    ledger = Ledger(LocalStore(examples.lake.parent / "ledger"), EXAMPLE)
    assert ledger.newest_complete() >= 3
    assert passed(examples) == [1, 2, 3, 4]
    assert [value for value, _ in examples.rejected("silver/readings_rejected").values()] == [b"no reading"]
    records = [record for n in range(1, ledger.newest_complete() + 1) if (record := ledger.complete_record(n))]
    assert {tuple(record.metrics["broken"]["readings"].values()) for record in records} == {(0,)}
    examples.produce("readings", [reading(5, seq) for seq in (4, 5)])
    in_one_task(examples, ('        layout="single",\n', "")).run("in_many_tasks")
    assert passed(examples) == [1, 2, 3, 4, 5], "the other layout goes on with the same state"


def test_an_expectation_stops_the_one_task_at_its_epoch_and_the_remedy_goes_on_from_there(
    examples: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    executed = EpochsOperator.execute

    def execute(operator: EpochsOperator, context: Any) -> Any:
        try:
            return executed(operator, context)
        except Exception as error:
            said.append(str(error))
            raise

    monkeypatch.setattr(EpochsOperator, "execute", execute)
    examples.create("readings")
    examples.produce(
        "readings", [reading(0, seq) for seq in (1, 2, 3, 4)] + [reading(1, seq, "99") for seq in (5, 6, 7, 8)]
    )
    assert in_one_task(examples).run("too_hot", FEW).state == "failed"
    assert passed(examples) == [1, 2, 3, 4]
    assert "EPOCHS-EXPECTATION-UNMET" in said[0] and "4 of 4 rows break" in said[0]
    assert "change or remove the expectation" in said[0]
    warmer = in_one_task(examples, ("BETWEEN -40 AND 60", "BETWEEN -40 AND 100"))
    assert warmer.clear("too_hot").state == "success"
    assert passed(examples) == [1, 2, 3, 4, 5, 6, 7, 8]
    second = Ledger(LocalStore(examples.lake.parent / "ledger"), EXAMPLE).complete_record(2)
    assert second and second.receipts["readings"].rows == 4
