"""The Epochs page in a real browser, in Airflow's UI over the whole stack."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import open_store
from orders_demo.duck import duck
from orders_demo.watch import DAG
from stack.airflow import USER, password_in
from tests.support.browser import Browser, browser
from tests.support.running_stack import DEADLINE_S, RunningStack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]
FRAMED = "/plugin/epochs"
ORDERS = "/epochs/pipelines/epochs_default/orders"
ACTED = "/epochs/pipelines/epochs_default/acted"


@pytest.fixture(scope="module")
def page(running: RunningStack) -> Iterator[Browser]:
    airflow = running.stack.airflow
    with browser(airflow.url) as page:
        page.log_in(USER, password_in(airflow.folder))
        yield page


@pytest.fixture(autouse=True)
def calm(page: Browser) -> Iterator[None]:
    """The browser has nothing to complain of in our pages."""
    page.leave_frame()
    page.troubles()
    yield
    assert page.troubles() == []


def newest(running: RunningStack, pipeline: str = DAG) -> int:
    return ledger_of(running, pipeline).newest_complete()


def ledger_of(running: RunningStack, pipeline: str) -> Ledger:
    return Ledger(open_store(str(running.stack.ledger)), pipeline, checked=False)


def test_the_menu_leads_to_all_pipelines_and_from_there_to_one_and_to_its_epochs(
    running: RunningStack, page: Browser
) -> None:
    page.open("/")
    page.find("button", "Browse").click()
    page.find("a", "Epochs").click()
    page.enter_frame()
    page.picture("pipelines")
    page.find("a", DAG).click()
    assert page.has_text("rows per epoch") and page.has_text("lag: offsets left unread")
    page.wait("document.querySelectorAll('figure canvas').length === 4")
    page.picture("pipeline")
    page.find("#epochs a", "1").click()
    assert page.has_text("Attempt 1") and page.has_text("VOTE_COMMIT") and page.has_text("orders/1/1/")
    page.picture("epoch")


def test_airflows_page_of_providers_leads_to_the_documentation_in_the_package(page: Browser) -> None:
    page.open("/providers")
    page.find("a", "airflow-provider-epochs")
    [there] = page.script("[...document.links].filter(a => a.text === 'airflow-provider-epochs').map(a => a.href)")
    page.open(urlsplit(there).path)
    page.find(".manual a", "Operations").click()
    assert page.has_text("airflow epochs")


def test_a_pipeline_that_has_read_everything_has_no_lag(running: RunningStack, page: Browser) -> None:
    page.open(ORDERS)
    page.wait("document.querySelector('[data-lag]').textContent === 'none'")


def test_the_page_is_dark_when_airflow_is(page: Browser) -> None:
    page.open(FRAMED)
    page.enter_frame()
    page.find("#pipelines")
    background = "getComputedStyle(document.body).backgroundColor"
    page.wait(f"{background} === 'rgb(255, 255, 255)'")
    page.leave_frame()
    page.find("button", "User").click()
    page.find("[role=menuitem]", "Appearance").click()
    page.find("[role^=menuitem]", "Dark Mode").click()
    page.enter_frame()
    page.wait(f"{background} === 'rgb(17, 17, 19)'")
    page.picture("pipelines-dark")


def test_in_a_narrow_window_only_tables_scroll_sideways(page: Browser) -> None:
    page.resize(420, 900)
    try:
        for path in ("/epochs/", ORDERS, f"{ORDERS}/epochs/1"):
            page.open(path)
            page.find("table")
            assert page.script("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
        page.picture("narrow")
    finally:
        page.resize(1400, 900)


def test_the_tab_of_the_dag_and_links_to_airflow_work_within_airflows_page(
    running: RunningStack, page: Browser
) -> None:
    page.open(f"/dags/{DAG}")
    page.find("a", "Epochs").click()
    page.enter_frame()
    assert page.has_text("last complete epoch")
    page.find("a.airflow", DAG).click()
    page.leave_frame()
    page.wait(f"location.pathname === '/dags/{DAG}'")


def test_the_page_shows_a_new_epoch_by_itself(running: RunningStack, page: Browser) -> None:
    page.open(ORDERS)
    before = newest(running)
    page.find("#epochs a", str(before))
    running.produce(200, seed=71)
    with running.taking_orders():
        wait_until(lambda: newest(running) > before, DEADLINE_S)
        page.find("#epochs a", str(before + 1))


# -- actions: on a pipeline that nobody else uses, each test on what it finds ------------------------------------------


@pytest.fixture
def done(running: RunningStack) -> int:
    """The newest epoch of ``acted``, which is complete; the first one, if no test has made one yet."""
    if not newest(running, "acted"):
        assert running.trigger("acted", "first") == "success"
    return newest(running, "acted")


def agree(page: Browser, action: str, why: str) -> None:
    """Read what will happen, give a reason, and press the button."""
    page.find("#told li")
    page.picture(f"action-{action}")
    page.find("input[name=why]").send_keys(why)
    page.find("button.danger", action.replace("-", " ").capitalize()).click()
    page.find("h1", "acted")


def rows(running: RunningStack) -> int:
    """How many orders a stranger counts in the tables."""
    tables = [str(running.stack.lake / "acted" / name) for name in ("orders", "rejected")]
    with duck() as database:
        counts = [database.execute("SELECT count(*) FROM delta_scan(?)", [table]).fetchone() for table in tables]
    return sum(found[0] for found in counts if found)


def test_an_epoch_in_doubt_is_rolled_forward_by_a_click(running: RunningStack, page: Browser, done: int) -> None:
    before = rows(running)
    (running.own / "troubles" / "acted").touch()
    assert running.trigger("acted", "second") == "failed"
    (running.own / "troubles" / "acted").unlink()
    rejected = running.stack.lake / "acted" / "rejected"
    (rejected / "_delta_log_away").rename(rejected / "_delta_log")
    page.open(ACTED)
    page.find(".badge", "in doubt")
    page.find(".actions a", f"Roll epoch {done + 1} forward").click()
    told = "Of run second of DAG acted, the tasks that failed or were skipped will be cleared"
    assert page.has_text(told) and page.has_text("rolled forward")
    agree(page, "retry", "the table is back")
    assert running.wait_ended("acted", "second") == "success"
    assert newest(running, "acted") == done + 1 and rows(running) == before + 2_000
    retried = ledger_of(running, "acted").retries()[-1]
    assert (retried.who, retried.why, retried.run_id) == (USER, "the table is back", "second")


def test_a_paused_pipeline_takes_no_epoch_until_it_is_unpaused_and_a_run_is_started_by_a_click(
    running: RunningStack, page: Browser, done: int
) -> None:
    page.open(ACTED)
    page.find(".actions a", "Pause").click()
    assert page.has_text("will take no new epoch")
    agree(page, "pause", "the lake <script>alert(1)</script> moves")
    assert page.has_text("the lake <script>alert(1)</script> moves")
    page.find(".badge", "paused")
    assert running.trigger("acted", "third") == "success"
    assert running.api.task("acted", "third", "acted.open")["state"] == "skipped"
    assert newest(running, "acted") == done
    page.find(".actions a", "Unpause").click()
    agree(page, "unpause", "it has moved")
    page.find(".actions a", "Start a run").click()
    agree(page, "retry", "go on")
    wait_until(lambda: newest(running, "acted") == done + 1, DEADLINE_S)


def test_a_savepoint_is_made_gone_back_to_and_disposed_of(running: RunningStack, page: Browser, done: int) -> None:
    page.open(ACTED)
    page.find(".actions a", "Make a savepoint").click()
    page.find("input[name=savepoint]").send_keys("before-the-rates")
    page.find("button", "Show what will happen").click()
    agree(page, "savepoint", "new rates")
    assert running.trigger("acted", "fourth") == "success"
    page.open(ACTED)
    page.find("#savepoints a", "rewind to it").click()
    assert page.has_text("read again, so rows that are there come twice")
    agree(page, "rewind", "wrong rates")
    page.find(".badge", "ordered")
    before = rows(running)
    assert running.trigger("acted", "fifth") == "success"
    complete = ledger_of(running, "acted").complete_record(done + 2)
    assert complete and [(each.name, each.who) for each in complete.commands] == [("rewind", USER)]
    assert rows(running) == before + sum(r.end - r.start for r in complete.ranges["orders"])
    page.open(ACTED)
    page.find("#savepoints a", "dispose of it").click()
    agree(page, "dispose-savepoint", "done")
    page.wait("!document.querySelector('#savepoints')")


OF_NOBODY = {
    "Error 401",
    "Not authenticated",
    "Pipelines",
    "Pipelines / acted",  # the name is in the address
    "Back to pipeline acted, as it is now",
}
"""What is shown to a browser without a login."""


@pytest.mark.usefixtures("done")
def test_actions_fit_a_narrow_window_and_a_browser_without_a_login_is_shown_nothing(
    running: RunningStack, page: Browser
) -> None:
    page.resize(420, 900)
    try:
        for path in (ACTED, *(f"{ACTED}/actions/{name}" for name in ("pause", "rewind", "savepoint", "takeover"))):
            page.open(path)
            page.find("h1")
            assert page.script("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
        page.picture("action-narrow")
    finally:
        page.resize(1400, 900)
    with browser(running.stack.airflow.url) as nobody:
        for path in (ACTED, f"{ACTED}/actions/pause"):
            nobody.open(path)
            assert nobody.has_text("401")
            assert {*nobody.find("main").text.splitlines()} <= OF_NOBODY
