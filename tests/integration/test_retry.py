"""``airflow epochs retry``, and the same on the page: which run Airflow runs again, and what it does then."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import cli, codes
from airflow_epochs.coordinator import admin
from airflow_epochs.coordinator.admin import Account
from airflow_epochs.errors import Refused
from airflow_epochs.hooks.retrying import Retry
from airflow_epochs.ledger.deeds import deeds
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from tests.support.layout_lab import Lab, broken_commit, short
from tests.support.page_lab import ORDERS, Browser, fields_of

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]
ME = Account(who="ana", why="the disk has room again")
RETRY = f"{ORDERS}/actions/retry"
BOTH_LAYOUTS = pytest.mark.parametrize("layout", [{}, {"layout": "single"}], ids=["per step", "single"])


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    return Lab(tmp_path, monkeypatch)


def in_doubt(lab: Lab) -> None:
    lab.produce("a", "b")
    with broken_commit("audit"):
        assert lab.run("r1").state == "failed"


def fresh(lab: Lab) -> Ledger:
    return Ledger(LocalStore(Path(lab.ledger.root)), "orders")


def retried(lab: Lab) -> Retry:
    action = Retry.of(fresh(lab), "orders")
    action.do(fresh(lab), Account(who="ana", why="the disk has room again"))
    return action


@BOTH_LAYOUTS
@pytest.mark.parametrize("policy", ["take_over", "block"])
def test_an_epoch_in_doubt_is_rolled_forward_by_the_run_in_charge_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, str], policy: str
) -> None:
    lab = Lab(tmp_path, monkeypatch, on_failed_epoch=policy, **layout)
    lab.behind = "epochs" if layout else "complete"
    in_doubt(lab)
    told = Retry.of(fresh(lab), "orders").told(fresh(lab))
    assert "The failed tasks of run r1 of DAG" in told[0] and "It is rolled forward" in told[1]
    assert retried(lab).run_id == "r1"
    assert short(lab.harness.drive("r1")).state == "success"
    assert fresh(lab).newest_complete() == 1
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    [deed] = deeds(fresh(lab), 5)
    assert (deed.what, deed.epoch, deed.who) == ("retry: run r1 tasks cleared", 1, "ana")


def test_an_aborted_epoch_takes_the_same_input_again(lab: Lab) -> None:
    lab.produce("a")
    lab.spark.failures = 1
    assert lab.run("r1").state == "failed"
    lab.produce("later")
    assert "The same offsets are taken again." in Retry.of(fresh(lab), "orders").told(fresh(lab))[1]
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    assert lab.shown() == [["a"], ["a"]]


def test_a_new_run_is_started_if_no_epoch_is_unfinished_and_if_airflow_has_forgotten_its_run(lab: Lab) -> None:
    lab.produce("a")
    assert lab.run("r1").state == "success"
    lab.produce("b")
    assert "A new run of DAG" in Retry.of(fresh(lab), "orders").told(fresh(lab))[0]
    retried(lab)
    run_id = fresh(lab).retries()[0].run_id
    assert short(lab.harness.drive(run_id)).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    lab.produce("c")
    with broken_commit("audit"):
        lab.run("r3")
    lab.harness.forget()
    assert retried(lab).run_id == ""
    assert short(lab.harness.drive(fresh(lab).retries()[1].run_id)).state == "success"
    assert lab.shown() == [["a", "b", "c"], ["a", "b", "c"]]


def test_a_run_at_work_is_left_alone_and_two_operators_do_not_retry_at_once(lab: Lab) -> None:
    in_doubt(lab)
    his = Retry.of(fresh(lab), "orders")
    retried(lab)
    with pytest.raises(Refused, match="is queued") as refused:
        his.do(fresh(lab), ME)
    assert refused.value.code is codes.RUN_AT_WORK
    lab.harness.drive("r1")
    with pytest.raises(Refused, match="has moved on") as refused:
        his.do(fresh(lab), ME)
    assert refused.value.code is codes.COMMAND_RACE
    assert len(fresh(lab).retries()) == 1


def test_what_airflow_has_paused_or_does_not_know_is_said(lab: Lab) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    in_doubt(lab)
    dag_id = lab.harness.dag.dag_id
    with create_session() as session:
        session.query(DagModel).filter_by(dag_id=dag_id).update({"is_paused": True})
    assert f"`airflow dags unpause {dag_id}`" in Retry.of(fresh(lab), "orders").told(fresh(lab))[2]
    admin.take_over(fresh(lab), "orders", "nowhere", owner=dag_id, by=ME)
    with pytest.raises(Refused, match="Airflow has no DAG 'nowhere'") as refused:
        Retry.of(fresh(lab), "orders")
    assert refused.value.code is codes.RETRY_REFUSED
    assert not fresh(lab).retries()


def test_the_command_does_the_same(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    in_doubt(lab)
    cli.retry(Namespace(pipeline="orders", ledger_conn_id="epochs_default", why="room again", yes=True))
    assert "The failed tasks of run r1" in capsys.readouterr().out
    assert short(lab.harness.drive("r1")).state == "success"


@pytest.fixture
def ada(lab: Lab) -> Iterator[Browser]:
    browser = Browser("USER")
    with browser.client:
        yield browser


def test_the_page_rolls_forward_for_those_who_may_clear_runs_and_for_nobody_else(lab: Lab, ada: Browser) -> None:
    in_doubt(lab)
    assert "Roll epoch 1 forward" in ada.page(ORDERS)
    form: dict[str, Any] = {**fields_of(ada.page(RETRY)), "why": "room <script>again</script>"}
    for user, status in ((Browser("VIEWER"), 403), (Browser(None), 401)):
        with user.client:
            assert (user.status(RETRY), user.post(RETRY, form).status_code) == (status, status)
    assert ada.post(RETRY, form, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert not fresh(lab).retries()
    assert ada.post(RETRY, form).status_code == 303
    assert fresh(lab).retries()[0].who == "ada"
    assert short(lab.harness.drive("r1")).state == "success"
    assert fresh(lab).newest_complete() == 1
