"""What is asked of YARN's ResourceManager, where it is looked for, and how long one that is away is waited for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult

from airflow_epochs import codes
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.spark import yarn
from airflow_epochs.spark.yarn import Application, ResourceManager
from airflow_epochs.triggers.application import ApplicationTrigger
from tests.support.resource_manager import FakeManager
from tests.support.waiting import wait_until

SITE = "<configuration>{}</configuration>"


@pytest.fixture
def fake() -> Iterator[FakeManager]:
    with FakeManager() as fake:
        yield fake


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks are tried once, and waits are given up at the first failure."""
    monkeypatch.setattr(yarn, "LOOK_S", 0.0)
    monkeypatch.setattr(yarn, "UNREACHABLE_S", 0.0)
    monkeypatch.setattr(yarn, "pauses", lambda: iter([0.01] * 1000))
    monkeypatch.setattr("airflow_epochs.triggers.application.pauses", lambda: iter([0.01] * 1000))


def nowhere() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


# -- one application -------------------------------------------------------------------------------------------------


def test_an_application_is_found_by_its_tag_with_its_end_and_its_place(fake: FakeManager) -> None:
    fake.add("other")
    fake.add("x,mine", "FINISHED", "FAILED", diagnostics=" it broke ")
    app = ResourceManager([fake.address]).with_tag("mine")
    assert app and (app.has_ended, app.has_succeeded) == (True, False)
    assert (app.place, app.end) == ("application_1_0002 (http://rm/proxy/2)", "FINISHED, FAILED. it broke")


def test_no_application_has_a_tag_that_none_was_given(fake: FakeManager) -> None:
    assert ResourceManager([fake.address]).with_tag("mine") is None


def test_of_several_applications_the_one_that_runs_comes_first_and_then_the_one_that_succeeded(
    fake: FakeManager,
) -> None:
    manager = ResourceManager([fake.address])
    fake.add("mine")
    fake.add("mine", "FINISHED", "SUCCEEDED")
    fake.add("mine", "KILLED", "KILLED")
    assert getattr(manager.with_tag("mine"), "id", None) == "application_1_0001"
    fake.apps[0]["state"] = "FAILED"
    assert getattr(manager.with_tag("mine"), "id", None) == "application_1_0002"


def test_an_application_is_ended_by_its_id_once_and_an_ended_one_is_left_alone(fake: FakeManager) -> None:
    fake.add("mine")
    for _ in range(2):
        ResourceManager([fake.address]).end_with_tag("mine")
    [put] = [asked for asked in fake.asked if asked.startswith("PUT")]
    assert put.startswith("PUT /ws/v1/cluster/apps/application_1_0001/state?user.name=")
    assert fake.apps[0]["state"] == "KILLED"


def test_if_an_application_cannot_be_ended_the_task_is_not_disturbed() -> None:
    ResourceManager([nowhere()]).end_with_tag("mine")


# -- answers ---------------------------------------------------------------------------------------------------------


def test_the_address_that_answers_is_asked(fake: FakeManager) -> None:
    fake.add("mine")
    assert ResourceManager([nowhere(), fake.address]).with_tag("mine")


def test_if_no_address_answers_the_error_names_all_of_them() -> None:
    first, second = nowhere(), nowhere()
    with pytest.raises(NotApplied, match=rf"{first}: .*; {second}: ") as failed:
        ResourceManager([first, second]).look("mine")
    assert failed.value.code is codes.YARN_UNREACHABLE


@pytest.mark.parametrize("text", ["<html>This is standby RM</html>", "[]", '{"apps": {"app": [{"name": "x"}]}}'])
def test_an_answer_that_no_resource_manager_gives_counts_as_none(fake: FakeManager, text: str) -> None:
    fake.text = text
    with pytest.raises(NotApplied) as failed:
        ResourceManager([fake.address]).with_tag("mine")
    assert failed.value.code is codes.YARN_UNREACHABLE


def test_an_answer_that_breaks_off_counts_as_none(fake: FakeManager) -> None:
    fake.add("mine")
    fake.breaks_off = True
    with pytest.raises(NotApplied, match="does not answer") as failed:
        ResourceManager([fake.address]).with_tag("mine")
    assert failed.value.code is codes.YARN_UNREACHABLE


@pytest.mark.parametrize("status", [401, 403])
def test_a_resource_manager_that_demands_a_login_is_named_with_what_to_do(fake: FakeManager, status: int) -> None:
    fake.status = status
    with pytest.raises(Refused, match=rf"{fake.address} does not let this host") as refused:
        ResourceManager([fake.address]).with_tag("mine")
    assert yarn.ADDRESS_EXTRA in refused.value.remedy


# -- waiting ---------------------------------------------------------------------------------------------------------


def test_a_wait_ends_with_the_application(fake: FakeManager) -> None:
    fake.add("mine")
    ended: list[object] = []
    waiting = Thread(target=lambda: ended.append(ResourceManager([fake.address]).wait("mine")))
    waiting.start()
    wait_until(lambda: len(fake.asked) > 2)
    assert not ended
    fake.finish()
    waiting.join(10)
    assert len(ended) == 1


def test_a_wait_bears_a_resource_manager_that_is_away_for_a_while_and_no_longer(
    fake: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yarn, "UNREACHABLE_S", 3600.0)
    fake.add("mine", "FINISHED", "SUCCEEDED")
    fake.status = 503
    ended: list[object] = []
    waiting = Thread(target=lambda: ended.append(ResourceManager([fake.address]).wait("mine")))
    waiting.start()
    wait_until(lambda: len(fake.asked) > 2)
    fake.status = 200
    waiting.join(10)
    assert len(ended) == 1
    monkeypatch.setattr(yarn, "UNREACHABLE_S", 0.0)
    with pytest.raises(NotApplied, match="does not answer"):
        ResourceManager([nowhere()]).wait("mine")


def test_a_wait_counts_the_time_of_failures_anew_after_each_answer(
    fake: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yarn, "UNREACHABLE_S", 20.0)
    clock = iter(range(0, 1000, 15))  # seconds: 15 from one failure to the next
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    fake.add("mine")
    answers = iter([503, 200, 503, 200, 503, 200, 503])
    manager = ResourceManager([fake.address])
    asked = manager.with_tag

    def ask(tag: str) -> Application | None:
        fake.status = next(answers, 200)
        if fake.status == 200 and len(fake.asked) > 6:
            fake.finish()
        return asked(tag)

    monkeypatch.setattr(manager, "with_tag", ask)
    ended = manager.wait("mine")
    assert ended and ended.has_succeeded


def test_pauses_begin_short_and_end_at_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    clock = iter([0.0, 0.0, 100.0, 9999.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    pauses = yarn.pauses()
    assert [next(pauses) for _ in range(3)] == [0.5, 5.0, 10.0]


# -- the trigger -----------------------------------------------------------------------------------------------------


def fired_by(trigger: ApplicationTrigger) -> object:
    async def first() -> object:
        return (await anext(trigger.run())).payload

    return asyncio.run(asyncio.wait_for(first(), 20))


def restarted(trigger: ApplicationTrigger) -> ApplicationTrigger:
    """As another triggerer makes it, from the database."""
    path, arguments = trigger.serialize()
    assert path == f"{ApplicationTrigger.__module__}.{ApplicationTrigger.__name__}"
    return ApplicationTrigger(**arguments)


def test_the_trigger_fires_when_the_application_has_ended_however_it_did(fake: FakeManager) -> None:
    fake.add("mine", "KILLED", "KILLED")
    event = fired_by(restarted(ApplicationTrigger([fake.address], "mine")))
    assert event == {"why": "ended", "job": "mine"}


def test_the_trigger_waits_while_the_application_runs(fake: FakeManager) -> None:
    fake.add("mine")

    def end() -> None:
        wait_until(lambda: len(fake.asked) > 2)
        fake.finish()

    ending = Thread(target=end)
    ending.start()
    assert fired_by(ApplicationTrigger([fake.address], "mine")) == {"why": "ended", "job": "mine"}
    assert fake.apps[0]["state"] == "FINISHED"
    ending.join(10)


def test_the_trigger_fires_for_an_application_that_yarn_has_forgotten(fake: FakeManager) -> None:
    assert fired_by(ApplicationTrigger([fake.address], "mine")) == {"why": "gone", "job": "mine"}


def test_the_trigger_fires_rather_than_fail_if_nobody_answers_for_too_long() -> None:
    assert fired_by(ApplicationTrigger([nowhere()], "mine")) == {"why": "trouble", "job": "mine"}


class Supervisor:
    """Airflow, which says of the task ``orders.stage`` that it is in ``state``, or does not answer."""

    def __init__(self, state: str | None, answers: bool = True) -> None:
        self._state, self._answers = state, answers

    def send(self, asked: GetTaskStates) -> TaskStatesResult:
        if not self._answers:
            raise ConnectionError("no answer")
        assert (asked.dag_id, asked.run_ids, asked.task_ids, asked.map_index) == ("orders", ["r"], ["stage"], -1)
        return TaskStatesResult(task_states={"r": {"stage": self._state}})


def cancelled(fake: FakeManager, monkeypatch: pytest.MonkeyPatch, airflow: Supervisor, with_task: bool = True) -> str:
    """The state of the application after Airflow has cancelled its trigger."""
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", airflow, raising=False)
    fake.add("mine")
    trigger = ApplicationTrigger([fake.address], "mine")
    if with_task:
        task = SimpleNamespace(dag_id="orders", run_id="r", task_id="stage", map_index=-1)
        trigger.task_instance = cast(Any, task)
    asyncio.run(trigger.on_kill())
    return str(fake.apps[0]["state"])


@pytest.mark.parametrize("state", [None, "failed", "success"])
def test_a_deferred_task_that_is_cleared_or_marked_ends_its_application(
    fake: FakeManager, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    assert cancelled(fake, monkeypatch, Supervisor(state)) == "KILLED"


def test_an_application_runs_on_when_its_trigger_moves_to_another_triggerer(
    fake: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cancelled(fake, monkeypatch, Supervisor("deferred")) == "RUNNING"


def test_a_cancelled_trigger_ends_its_application_if_airflow_does_not_say_how_the_task_is(
    fake: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cancelled(fake, monkeypatch, Supervisor("deferred", answers=False)) == "KILLED"


def test_a_cancelled_trigger_that_knows_no_task_ends_its_application(
    fake: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cancelled(fake, monkeypatch, Supervisor("deferred"), with_task=False) == "KILLED"


# -- addresses -------------------------------------------------------------------------------------------------------


def given(addresses: str | None = None) -> tuple[str, ...]:
    extra = {yarn.ADDRESS_EXTRA: addresses} if addresses else {}
    return yarn.addresses(Connection(conn_id="spark", conn_type="spark", host="yarn", extra=extra))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    return tmp_path / "yarn-site.xml"


def write(site: Path, **properties: str) -> None:
    lines = [
        f"<property><name>yarn.{name.replace('__', '-').replace('_', '.')}</name><value>{value}</value></property>"
        for name, value in properties.items()
    ]
    site.write_text(SITE.format("".join(lines)))


def test_the_connection_may_name_several_addresses_with_and_without_a_scheme(site: Path) -> None:
    write(site, resourcemanager_hostname="elsewhere")
    assert given("https://one:8090/, two:8088") == ("https://one:8090", "http://two:8088")


@pytest.mark.parametrize("address", ["http://me:secret@rm:8088", "me:secret@rm:8088", "one:8088, me:secret@two:8088/"])
def test_an_address_with_a_login_is_refused(site: Path, address: str) -> None:
    with pytest.raises(Refused, match="contains a login") as refused:
        given(address)
    assert "secret" not in str(refused.value)


def test_nobody_says_where_the_resource_manager_is(site: Path) -> None:
    assert given() == ()
    write(site)
    assert given() == ()


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ({"resourcemanager_hostname": "rm"}, ("http://rm:8088",)),
        ({"resourcemanager_webapp_address": "rm:1"}, ("http://rm:1",)),
        (
            {
                "resourcemanager_hostname": "rm",
                "resourcemanager_webapp_address": "${yarn.resourcemanager.hostname}:2",
            },
            ("http://rm:2",),
        ),
        ({"http_policy": "HTTPS_ONLY", "resourcemanager_hostname": "rm"}, ("https://rm:8090",)),
        (
            {
                "resourcemanager_ha_rm__ids": "a, b",
                "resourcemanager_hostname_a": "one",
                "resourcemanager_webapp_address_b": "two:3",
            },
            ("http://one:8088", "http://two:3"),
        ),
    ],
)
def test_else_yarn_site_names_them_as_hadoop_reads_it(
    site: Path, properties: dict[str, str], found: tuple[str, ...]
) -> None:
    write(site, **properties)
    assert given() == found


def test_a_yarn_site_that_is_no_xml_is_refused_by_name(site: Path) -> None:
    site.write_text("<configuration><property>")
    with pytest.raises(Refused, match="cannot be read as XML") as refused:
        given()
    assert str(site) in refused.value.what and yarn.ADDRESS_EXTRA in refused.value.remedy
    assert given("rm:1") == ("http://rm:1",), "the remedy"


def test_the_folder_of_yarn_comes_before_that_of_hadoop(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(site, resourcemanager_hostname="hadoop")
    (tmp_path / "yarn").mkdir()
    write(tmp_path / "yarn" / "yarn-site.xml", resourcemanager_hostname="yarn")
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path / "yarn"))
    assert given() == ("http://yarn:8088",)
