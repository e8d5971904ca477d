"""What a submit to YARN does and says: a script in place of spark-submit, and a ResourceManager that is played."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_epochs import codes
from airflow_epochs.contracts import Connection, Following, RunsOn, SparkJob
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.spark import yarn
from airflow_epochs.spark.on_yarn import OnYarn
from airflow_epochs.spark.runners import SparkSubmit
from airflow_epochs.spark.submit import SubmitRunner
from tests.support.environment import connected
from tests.support.resource_manager import FakeManager
from tests.support.spark_world import stage_job
from tests.support.waiting import wait_until

SCRIPT = f"""#!{sys.executable}
import json, os, sys, urllib.request
settings = dict(each.split("=", 1) for each in sys.argv[1:] if each.startswith("spark."))
open(os.environ["SEEN"], "a").write(json.dumps(settings) + "\\n")
if tag := settings.get("spark.yarn.tags"):
    urllib.request.urlopen(os.environ["MANAGER"], json.dumps({{"tag": tag}}).encode()).close()
"""
RESULT: JsonDict = {"result": {"sinks": {}}}


@dataclass
class World:
    """Tasks that submit to one cluster. ``following``: how the next one waits."""

    folder: Path
    manager: FakeManager
    connection: Connection
    conf: dict[str, str] = field(default_factory=dict)

    def task(self, *, elsewhere: bool = True, awaited: str | None = None) -> SubmitRunner:
        config = SparkSubmit("spark", conf=self.conf, work_url=f"file://{self.folder / 'work'}")
        runner = config.runner(connected(self.connection))
        runner.follow(Following(elsewhere=elsewhere, awaited=awaited))
        return runner

    @property
    def job(self) -> SparkJob:
        (self.folder / "app.py").write_text("def f(batch, epoch): return batch\n")
        return stage_job(None, f"{self.folder / 'app.py'}:f", {"one": self.folder / "one"})

    def submitted(self) -> JsonDict:
        """The session of an application that runs without its task."""
        runner = self.task()
        session = runner.new_session()
        with pytest.raises(RunsOn):
            runner.run(self.job, session)
        return session

    def report(self, session: JsonDict, told: Any) -> Path:
        """As Spark's driver leaves it."""
        folder: Path = self.folder / "work" / session["session_id"]
        folder.mkdir(parents=True)
        (folder / "part-00000").write_text(json.dumps(told))
        (folder / "_SUCCESS").touch()
        return folder

    def settings(self) -> list[dict[str, str]]:
        """Of each call of spark-submit."""
        return [json.loads(line) for line in (self.folder / "seen").read_text().splitlines()]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script.parent / "python"))
    monkeypatch.setattr(yarn, "LOOK_S", 0.0)
    monkeypatch.setattr(yarn, "UNREACHABLE_S", 0.0)
    monkeypatch.setattr(yarn, "pauses", lambda: iter([0.01] * 1000))
    for name in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with FakeManager() as manager:
        connection = manager.connection
        monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
        monkeypatch.setenv("MANAGER", manager.address)
        told = {"conn_type": "spark", "host": "yarn", "extra": connection.extra}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(told))
        yield World(tmp_path, manager, connection)


# -- submitting ------------------------------------------------------------------------------------------------------


def test_a_task_that_waits_elsewhere_leaves_as_soon_as_yarn_has_the_application(world: World) -> None:
    world.conf = {"spark.yarn.tags": "team-a", "spark.yarn.submit.waitAppCompletion": "true"}
    runner = world.task()
    session = runner.new_session()
    with pytest.raises(RunsOn, match="application_1_0001") as gone:
        runner.run(world.job, session)
    tag = f"airflow-epochs-{session['session_id']}"
    assert (gone.value.job, gone.value.addresses) == (tag, (world.manager.address,))
    [settings] = world.settings()
    assert settings["spark.yarn.tags"] == f"team-a,{tag}"
    assert settings["spark.yarn.submit.waitAppCompletion"] == "false"
    assert settings["spark.yarn.maxAppAttempts"] == "1", "a second driver would write where the first one wrote"


def test_other_jobs_than_staging_are_waited_for_by_spark_submit(world: World) -> None:
    with pytest.raises(NotApplied, match="left no complete report"):
        world.task().run(SparkJob(kind="delta_describe", args={"target": "/t"}))
    assert "spark.yarn.tags" not in world.settings()[0]


def test_without_deferrable_the_task_waits_for_the_application_itself(world: World) -> None:
    session = world.submitted()
    world.report(session, RESULT)
    world.manager.finish()
    assert world.task(elsewhere=False).rejoin(session) == RESULT["result"]


def test_a_deferred_stage_without_an_address_is_refused_before_it_submits(world: World) -> None:
    world.connection = replace(world.connection, extra={"deploy-mode": "cluster"})
    with pytest.raises(Refused, match="nothing says where the ResourceManager") as refused:
        world.task().run(world.job)
    assert yarn.ADDRESS_EXTRA in refused.value.remedy and "HADOOP_CONF_DIR" in refused.value.remedy
    assert not (world.folder / "seen").exists()


@pytest.mark.parametrize("status", [200, 401, 503])
def test_without_deferrable_spark_submit_waits_as_ever_if_no_resource_manager_can_be_asked(
    world: World, status: int
) -> None:
    world.manager.status = status
    if status == 200:
        world.connection = replace(world.connection, extra={"deploy-mode": "cluster"})
    with pytest.raises(NotApplied, match="left no complete report"):
        world.task(elsewhere=False).run(world.job)
    assert "spark.yarn.tags" not in world.settings()[0]


def test_a_deferred_stage_is_not_submitted_to_a_cluster_that_does_not_answer(world: World) -> None:
    world.manager.status = 503
    with pytest.raises(NotApplied) as failed:
        world.task().run(world.job)
    assert failed.value.code is codes.YARN_UNREACHABLE
    assert not (world.folder / "seen").exists()


def require_killed(world: World, runner: SubmitRunner, kill: Callable[[], None]) -> None:
    """``kill``, in a thread of its own, ends the job that the task runs, and its application."""
    killer = Thread(target=kill)
    killer.start()
    with pytest.raises(NotApplied):
        runner.run(world.job)
    killer.join(10)
    assert world.manager.apps[0]["state"] == "KILLED"


def test_a_killed_task_ends_the_application_that_it_waits_for(world: World) -> None:
    runner = world.task(elsewhere=False)

    def kill() -> None:
        wait_until(lambda: world.manager.apps)
        runner.cancel()

    require_killed(world, runner, kill)


def test_a_task_that_is_killed_between_the_submit_and_the_wait_ends_the_application(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, result = world.task(elsewhere=False), OnYarn.result

    def killed_before(on_yarn: OnYarn, manager: yarn.ResourceManager, session: JsonDict) -> JsonDict:
        runner.cancel()
        return result(on_yarn, manager, session)

    monkeypatch.setattr(OnYarn, "result", killed_before)
    with pytest.raises(NotApplied):
        runner.run(world.job)
    assert world.manager.apps[0]["state"] == "KILLED"


@pytest.mark.proof
def test_an_application_that_yarn_takes_while_its_submit_is_being_killed_is_ended_as_well(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, on_kill = world.task(elsewhere=False), SparkSubmitHook.on_kill
    world.manager.takes.clear()

    def too_late(hook: SparkSubmitHook) -> None:
        world.manager.takes.set()
        wait_until(lambda: world.manager.apps)
        on_kill(hook)

    def kill() -> None:
        wait_until((world.folder / "seen").exists)
        runner.cancel()

    monkeypatch.setattr(SparkSubmitHook, "on_kill", too_late)
    require_killed(world, runner, kill)


# -- going on with it ------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_a_later_task_goes_on_with_the_application_and_submits_none(world: World) -> None:
    session = world.submitted()
    with pytest.raises(RunsOn):
        world.task().rejoin(session)
    folder = world.report(session, RESULT)
    with pytest.raises(RunsOn):
        world.task().rejoin(session)  # a report alone is not enough while the application runs
    world.manager.finish()
    for _ in range(2):
        assert world.task().rejoin(session) == RESULT["result"]
    world.task().release(session)
    assert not folder.exists() and len(world.manager.apps) == 1


def test_who_waited_for_an_application_knows_its_id_and_where_people_read_about_it(world: World) -> None:
    session = world.submitted()
    world.report(session, RESULT)
    world.manager.finish()
    runner = world.task()
    assert runner.ran_as() == {}
    runner.rejoin(session)
    assert runner.ran_as() == {"id": "application_1_0001", "url": "http://rm/proxy/1"}
    world.manager.apps.clear()
    runner.rejoin(session)
    assert runner.ran_as() == {}, "YARN has forgotten it"


def test_an_application_that_was_never_submitted_is_not_waited_for(world: World) -> None:
    runner = world.task()
    assert runner.rejoin(runner.new_session()) is None


@pytest.mark.proof
def test_an_application_that_yarn_has_forgotten_is_known_by_its_report(world: World) -> None:
    session = world.submitted()
    world.report(session, RESULT)
    world.manager.apps.clear()
    assert world.task().rejoin(session) == RESULT["result"]


def test_the_error_in_the_report_of_a_forgotten_application_is_not_gone_on_with(world: World) -> None:
    session = world.submitted()
    world.report(session, {"error": {"type": "Refused", "what": "No.", "code": "EPOCHS-SPARK-PLAN-REFUSED"}})
    world.manager.apps.clear()
    assert world.task().rejoin(session) is None


@pytest.mark.proof
def test_a_forgotten_application_without_a_report_fails_the_task_that_waited_and_no_other(world: World) -> None:
    session = world.submitted()
    world.manager.apps.clear()
    tag = yarn.tag_of(session["session_id"])
    with pytest.raises(NotApplied, match=f"knows no application with the tag {tag}") as failed:
        world.task(awaited=tag).rejoin(session)
    assert world.manager.address in failed.value.what
    assert world.task().rejoin(session) is None


@pytest.mark.proof
def test_a_killed_application_fails_the_task_that_waited_with_yarns_words_and_no_other(world: World) -> None:
    session = world.submitted()
    world.manager.finish("KILLED", "KILLED", "Application killed by user bob.")
    with pytest.raises(NotApplied) as failed:
        world.task(awaited=yarn.tag_of(session["session_id"])).rejoin(session)
    cause, remedy = str(failed.value).splitlines()
    assert "application_1_0001 (http://rm/proxy/1) ended on YARN: KILLED, KILLED. Application killed by user" in cause
    assert "yarn logs -applicationId application_1_0001" in remedy
    assert world.task().rejoin(session) is None


@pytest.mark.proof
def test_the_drivers_own_error_is_told_with_the_application_that_it_is_from(world: World) -> None:
    session = world.submitted()
    error = {"type": "Refused", "what": "No column x.", "code": "EPOCHS-SPARK-PLAN-REFUSED", "remedy": "Add it."}
    world.report(session, {"error": error})
    world.manager.finish("FINISHED", "FAILED", "User application exited with status 1")
    with pytest.raises(Refused) as refused:
        world.task(awaited=yarn.tag_of(session["session_id"])).rejoin(session)
    assert refused.value.what == "No column x. This was application application_1_0001 (http://rm/proxy/1) on YARN."
    assert refused.value.remedy == "Add it."


@pytest.mark.proof
def test_a_result_of_an_application_that_failed_afterwards_is_not_used(world: World) -> None:
    session = world.submitted()
    world.report(session, RESULT)
    world.manager.finish("FAILED", "FAILED", "lost its node")
    assert world.task().rejoin(session) is None


@pytest.mark.proof
def test_an_application_that_succeeded_without_a_report_is_not_believed(world: World) -> None:
    session = world.submitted()
    world.manager.finish()
    with pytest.raises(NotApplied, match="left no complete report, although application application_1_0001"):
        world.task(awaited=yarn.tag_of(session["session_id"])).rejoin(session)
    assert world.task().rejoin(session) is None


@pytest.mark.proof
def test_if_yarn_is_away_the_task_fails_and_a_later_try_goes_on(world: World) -> None:
    session = world.submitted()
    world.manager.status = 503
    with pytest.raises(NotApplied) as failed:
        world.task().rejoin(session)
    assert failed.value.code is codes.YARN_UNREACHABLE and "it goes on with the application" in failed.value.remedy
    world.manager.status = 200
    with pytest.raises(RunsOn):
        world.task().rejoin(session)


@pytest.mark.proof
def test_sessions_of_other_kinds_and_connections_are_left_alone(world: World) -> None:
    session = world.submitted()
    assert world.task().rejoin({**session, "conn_id": "another"}) is None
    assert world.task().rejoin({**session, "kind": "spark_connect"}) is None
    world.task().end({**session, "conn_id": "another"})
    world.task().end({**session, "kind": "spark_connect"})
    assert world.manager.apps[0]["state"] == "RUNNING"


@pytest.mark.proof
def test_an_application_that_nobody_goes_on_with_is_ended_by_its_tag(world: World) -> None:
    ours, other = world.submitted(), world.submitted()
    world.task(elsewhere=False).end(ours)
    assert [app["state"] for app in world.manager.apps] == ["KILLED", "RUNNING"]
    world.task(elsewhere=False).end(ours)
    world.manager.status = 503
    world.task(elsewhere=False).end(other)  # it is logged


def test_only_stage_jobs_in_cluster_mode_on_yarn_outlive_their_tasks(world: World) -> None:
    assert world.task().outlives()
    world.connection = replace(world.connection, host="k8s://https://api")
    assert not world.task().outlives()
    world.connection = replace(world.connection, host="yarn", extra={})
    assert not world.task().outlives()
