"""The page of an epoch leads to the logs of the tasks that worked on it, in runs of Airflow's own scheduling code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.admin import Account
from tests.support.layout_lab import Lab, TwoPipelines, broken_commit
from tests.support.page_lab import ORDERS, Browser

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [
    pytest.mark.usefixtures("api_server"),
    pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?"),
]


def logs(html: str) -> dict[str, list[tuple[str, str, str]]]:
    """Run -> path, state and name of each link."""
    lines = re.findall(r'<p class="logs">Task logs of run (.*?): (.*)</p>', html)
    link = re.compile(r'<a class="airflow" href="([^"]*)" title="(\w*)">([^<]*)</a>')
    return {run: link.findall(links) for run, links in lines}


def page(path: str, role: str = "USER") -> str:
    browser = Browser(role)
    with browser.client:
        return browser.page(path)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("layout", "tasks"),
    [
        ({}, ["open", "stage", "vote", "commit.orders", "commit.audit", "complete"]),
        ({"layout": "single"}, ["epochs"]),
        ({"prefix_group_id": False}, ["open", "stage", "vote", "commit.orders", "commit.audit", "complete"]),
    ],
    ids=["per step", "single", "ids without the pipeline's name"],
)
def test_each_task_that_has_begun_has_a_link_to_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, Any], tasks: list[str]
) -> None:
    lab = Lab(tmp_path, monkeypatch, **layout)
    lab.produce("a", "b")
    assert lab.run("r1").state == "success"
    dag_id = lab.harness.dag.dag_id
    [(run, found)] = logs(page(f"{ORDERS}/epochs/1")).items()
    assert run == "r1"
    assert sorted(name for _, _, name in found) == sorted(tasks), "the task behind the pipeline is not the pipeline's"
    assert {state for _, state, _ in found} == {"success"}
    assert {path for path, _, _ in found} == {f"/dags/{dag_id}/runs/r1/tasks/{lab.prefix}{task}" for task in tasks}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("second", "conn_id", "layout"),
    [
        ("refunds", "epochs_default", {"prefix_group_id": False}),
        ("orders", "epochs_second", {}),
        ("orders", "epochs_second", {"prefix_group_id": False}),
    ],
    ids=["no id has a name", "one name, two ledgers", "one name, two ledgers, one without a name"],
)
def test_of_a_dag_with_two_pipelines_each_page_has_the_logs_of_its_own_tasks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str, conn_id: str, layout: dict[str, Any]
) -> None:
    lab = TwoPipelines(tmp_path, monkeypatch, second, conn_id, **layout)
    lab.produce("a")
    lab.world.produce("refunds", 0, ["b"])
    assert lab.run("r1").state == "success"
    of_second = logs(page(f"/epochs/pipelines/{conn_id}/{second}/epochs/1"))["r1"]
    assert [name for _, _, name in of_second] == ["epochs"]
    of_orders = logs(page(f"{ORDERS}/epochs/1"))["r1"]
    tasks = ["commit.audit", "commit.orders", "complete", "open", "stage", "vote"]
    assert sorted(name for _, _, name in of_orders) == tasks


def test_the_logs_of_all_runs_are_there_and_only_for_those_who_may_read_their_dags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, monkeypatch)
    lab.produce("a")
    with broken_commit("audit"):
        assert lab.run("r1").state == "failed"
    assert lab.run("r2").state == "success"
    found = logs(page(f"{ORDERS}/epochs/1"))
    assert list(found) == ["r1", "r2"]
    assert ("failed", "commit.audit") in [(state, name) for _, state, name in found["r1"]]
    old = lab.harness.dag.dag_id
    admin.take_over(lab.ledger, "orders", "another_dag", owner=old, by=Account(who="ada", why="a new name"))
    monkeypatch.setattr("airflow_epochs.page.task_logs.readable_dags", lambda user, dags: set(dags) - {old})
    assert logs(page(f"{ORDERS}/epochs/1")) == {}


def test_without_airflows_database_the_ledger_speaks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch)
    lab.produce("a")
    assert lab.run("r1").state == "success"
    lab.harness.forget()
    html = page(f"{ORDERS}/epochs/1")
    assert logs(html) == {} and "completed by" in html
