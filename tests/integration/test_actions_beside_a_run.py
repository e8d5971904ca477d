"""What operators may do while Airflow works on the epoch, and what they are told of the runs and DAGs that it knows."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_epochs import cli
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from tests.support.layout_lab import Lab, TwoPipelines, broken_commit, short
from tests.support.page_lab import ORDERS, Browser, as_text

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]
WAIVE = f"{ORDERS}/actions/waive"
WAIVE_AUDIT = f"{WAIVE}?epoch=1&sink=audit"
TAKEOVER = f"{ORDERS}/actions/takeover"
HTML = {"Accept": "text/html"}


@pytest.fixture
def lab(api_server: None, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch, **getattr(request, "param", {}))


def in_doubt(lab: Lab) -> None:
    """Run ``r1`` has committed ``orders``, and has failed at ``audit``."""
    lab.produce("a", "b")
    with broken_commit("audit"):
        assert lab.run("r1").state == "failed"


def at_work(lab: Lab, state: str | None = None) -> None:
    """Run ``r1`` has committed ``orders``, and is about to commit ``audit``; ``state``: that of the task."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState

    in_doubt(lab)
    with create_session() as session:
        dag_id = lab.harness.dag.dag_id
        session.query(DagRun).filter_by(dag_id=dag_id, run_id="r1").one().set_state(DagRunState.RUNNING)
    set_tasks(lab, "upstream_failed", None)
    set_tasks(lab, "failed", state)


def set_tasks(lab: Lab, before: str | None, state: str | None) -> None:
    """Put the tasks of run ``r1`` that are in one state into another."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        tasks = session.query(TaskInstance).filter_by(dag_id=lab.harness.dag.dag_id, run_id="r1", state=before)
        tasks.update({"state": state})


def mark_as_failed(lab: Lab) -> None:
    """As somebody does in Airflow's UI."""
    from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.utils.session import create_session

    stored = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(lab.harness.dag))
    with create_session() as session:
        set_dag_run_state_to_failed(dag=stored, run_id="r1", commit=True, session=session)


def fresh(lab: Lab) -> Ledger:
    return Ledger(LocalStore(Path(lab.ledger.root)), "orders")


def args(**values: object) -> Namespace:
    return Namespace(pipeline="orders", ledger_conn_id="epochs_default", why="the table is gone", yes=True, **values)


def waive_by_command(lab: Lab) -> str:
    """What the refused command says."""
    with pytest.raises(SystemExit) as refused:
        cli.waive(args(epoch=1, sink="audit"))
    return str(refused.value)


def waive_by_page(lab: Lab) -> str:
    """What the page says to a form that was shown before the run went to work."""
    browser = Browser("USER")
    with browser.client:
        form = {"epoch": "1", "sink": "audit", "why": "the table is gone"}
        answer = browser.post(WAIVE, form)
        asked = browser.client.get(WAIVE_AUDIT, headers=HTML)
    assert answer.status_code == asked.status_code == 409
    return str(as_text(answer.text))


WAYS = pytest.mark.parametrize("waive", [waive_by_command, waive_by_page], ids=["command", "page"])


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("lab", "state"),
    [({}, None), ({}, "up_for_retry"), ({"layout": "single"}, "running")],
    ids=["about to start", "to be retried", "running, single"],
    indirect=["lab"],
)
@WAYS
def test_a_sink_that_a_run_is_about_to_commit_is_not_waived_and_waiting_as_told_shows_all_rows(
    lab: Lab, waive: Callable[[Lab], str], state: str | None
) -> None:
    at_work(lab, state)
    told = waive(lab)
    assert "EPOCHS-RUN-AT-WORK: " in told
    assert f"Run r1 of DAG {lab.harness.dag.dag_id} is at work on this epoch, and will commit sink audit." in told
    assert f"Wait until run r1 of DAG {lab.harness.dag.dag_id} has ended." in told
    assert fresh(lab).waiver(1, "audit") is None
    set_tasks(lab, state, None)  # the wait is over, or the worker has died
    assert short(lab.harness.drive("r1")).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]


@pytest.mark.few(1)
@WAYS
def test_a_run_that_is_marked_as_failed_as_told_lets_its_sink_be_waived_and_the_epoch_ends_without_it(
    lab: Lab, waive: Callable[[Lab], str]
) -> None:
    at_work(lab)
    assert "mark it as failed in Airflow, and waive the sink then" in waive(lab)
    mark_as_failed(lab)
    cli.waive(args(epoch=1, sink="audit"))
    cli.retry(args())
    assert short(lab.harness.drive("r1")).state == "success"
    assert lab.shown() == [["a", "b"], []]
    lab.produce("c")
    assert lab.run("r2").state == "success"
    assert lab.shown() == [["a", "b", "c"], ["c"]]


def test_the_page_offers_a_waiver_only_while_no_run_is_at_work_on_the_epoch(lab: Lab, ada: Browser) -> None:
    at_work(lab)
    html = ada.page(ORDERS)
    assert "Waive sink" not in html and "/actions/pause" in html
    mark_as_failed(lab)
    assert "Waive sink audit" in ada.page(ORDERS)


def test_a_sink_is_waived_while_only_another_pipeline_of_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState

    lab = TwoPipelines(tmp_path, monkeypatch, "refunds", "epochs_refunds")
    lab.world.produce("refunds", 0, ["x"])
    in_doubt(lab)
    with create_session() as session:
        dag_id = lab.harness.dag.dag_id
        session.query(DagRun).filter_by(dag_id=dag_id, run_id="r1").one().set_state(DagRunState.RUNNING)
        others = session.query(TaskInstance).filter_by(dag_id=dag_id, run_id="r1")
        assert others.filter(TaskInstance.task_id.like("second.refunds%")).update({"state": "running"})
    cli.waive(args(epoch=1, sink="audit"))
    assert fresh(lab).waiver(1, "audit")


def test_a_waiver_tells_of_a_later_run_that_may_be_about_to_finish_the_epoch(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState

    in_doubt(lab)
    with broken_commit("audit"):
        assert lab.run("r2").state == "failed"
    with create_session() as session:
        dag_id = lab.harness.dag.dag_id
        session.query(DagRun).filter_by(dag_id=dag_id, run_id="r2").one().set_state(DagRunState.RUNNING)
        for task in session.query(DagRun).filter_by(dag_id=dag_id, run_id="r2").one().task_instances:
            task.state = None
    cli.waive(args(epoch=1, sink="audit"))
    told = f"Run r2 of DAG {dag_id} is running, and may be about to finish this epoch with sink audit."
    assert told in capsys.readouterr().out


@pytest.mark.few(1)
@pytest.mark.parametrize("knows", [True, False], ids=["forgotten", "no database"])
def test_where_airflow_does_not_tell_whether_the_run_is_at_work_the_waiver_names_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], knows: bool
) -> None:
    in_doubt(lab)
    if knows:
        lab.harness.forget()
    else:
        without_database(monkeypatch)
    cli.waive(args(epoch=1, sink="audit"))
    told = capsys.readouterr().out
    assert f"Run r1 of DAG {lab.harness.dag.dag_id} is in charge of the epoch." in told
    assert "it may be about to commit sink audit" in told


def without_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which Airflow's database was never made."""
    from airflow import settings
    from sqlalchemy import create_engine
    from sqlalchemy.orm import scoped_session, sessionmaker

    nothing = scoped_session(sessionmaker(bind=create_engine("sqlite://")))
    monkeypatch.setattr(settings, "Session", nothing)
    monkeypatch.setattr(settings, "NonScopedSession", sessionmaker(bind=create_engine("sqlite://")))


# -- another DAG -----------------------------------------------------------------------------------------------------


def take_over(lab: Lab, dag_id: str) -> None:
    cli.take_over(args(dag_id=dag_id))


def test_before_a_takeover_command_and_page_say_that_airflow_does_not_have_the_dag(
    lab: Lab, ada: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    in_doubt(lab)
    page = as_text(ada.page(f"{TAKEOVER}?dag_id=no_such_dag"))
    take_over(lab, "no_such_dag")
    for told in (page.replace("&#39;", "'"), capsys.readouterr().out):
        assert "Airflow has no DAG 'no_such_dag' (yet). Until it has, nothing runs the pipeline." in told
        assert "only those who may read all DAGs see the pipeline from then on" in told
        assert "A run of DAG no_such_dag will finish or abort it" in told


def test_a_takeover_by_a_dag_that_airflow_has_says_who_sees_the_pipeline(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    in_doubt(lab)
    lab.renamed()
    new = lab.harness.dag.dag_id
    take_over(lab, new)
    told = capsys.readouterr().out
    assert "Airflow has no DAG" not in told
    assert f"On the Epochs page, those who may read DAG {new} see the pipeline from then on." in told


def test_a_takeover_that_ends_the_pipeline_says_that_no_dag_will_run_it(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    in_doubt(lab)
    take_over(lab, "orders_ended")
    told = capsys.readouterr().out
    assert "Pipeline orders will end: no DAG will run it any more." in told
    assert "No later run will finish it." in told and "will finish or abort it" not in told and "(yet)" not in told


def test_a_takeover_beside_a_run_at_work_says_that_the_run_goes_on(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    at_work(lab)
    take_over(lab, "no_such_dag")
    old = lab.harness.dag.dag_id
    assert f"Run r1 of DAG {old} is at work on epoch 1, and goes on with it" in capsys.readouterr().out
    assert short(lab.harness.drive("r1")).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]


def test_after_a_takeover_by_a_missing_dag_a_user_with_rights_for_single_dags_does_not_see_the_pipeline(
    lab: Lab, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    in_doubt(lab)
    old = lab.harness.dag.dag_id
    only = {"DAG of the old owner": old}

    def authorized(self: object, *, method: str, user: object, access_entity: object = None, details: object) -> bool:
        return getattr(details, "id", None) in only.values()

    monkeypatch.setattr(type(get_auth_manager()), "is_authorized_dag", authorized)
    assert ada.status(ORDERS) == 200
    take_over(lab, "no_such_dag")
    assert ada.status(ORDERS) == 403, "as the form tells"
    assert fresh(lab).view(1).opened.run == Run(old, "r1")
