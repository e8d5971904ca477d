"""Who clears what an error says through Airflow's REST API, and nothing else, gets a green run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Context

from airflow_epochs.operators.base import EpochOperator
from tests.support.layout_lab import Lab
from tests.support.page_lab import Browser

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What each failed task said."""
    texts: dict[str, str] = {}
    told = EpochOperator._told

    def tell(operator: EpochOperator, context: Context) -> Any:
        try:
            return told(operator, context)
        except Exception as error:
            texts[operator.task_id] = str(error)
            raise

    monkeypatch.setattr(EpochOperator, "_told", tell)
    return texts


def clear(lab: Lab, run_id: str, task_id: str, *, downstream: bool) -> None:
    """The rest of the request is what the API does by default."""
    asked = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "include_downstream": downstream}
    operator = Browser("ADMIN")
    with operator.client:
        answer = operator.client.post(f"/api/v2/dags/{lab.harness.dag.dag_id}/clearTaskInstances", json=asked)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("layout", ["tasks", "single"])
def test_a_run_whose_failed_task_is_cleared_as_its_error_says_shows_its_epoch_and_is_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: dict[str, str], layout: str
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    lab = Lab(tmp_path, monkeypatch, layout=layout)
    lab.produce("a")
    app = Path(lab.transform.partition(":")[0])
    app.rename(app.with_suffix(".away"))
    assert lab.run("r1").state == "failed"
    app.with_suffix(".away").rename(app)
    task_id, said = next(iter(failures.items()))  # `abort` looks, and has nothing to abort
    assert "clear the " in said
    clear(lab, "r1", task_id, downstream="with its downstream tasks" in said)
    assert lab.harness.drive("r1").state == "success"
    assert lab.shown() == [["a"], ["a"]]
    assert lab.after == [1], "the user's task behind the pipeline"
