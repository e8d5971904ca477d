"""The Epochs page in a real browser, in Airflow's UI over the whole stack."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import open_store
from orders_demo.watch import DAG
from stack.airflow import USER, password_in
from tests.support.browser import Browser, browser
from tests.support.running_stack import RunningStack

pytestmark = [pytest.mark.jvm, pytest.mark.e2e, pytest.mark.timeout(600)]
FRAMED = "/plugin/epochs"
ORDERS = "/epochs/pipelines/epochs_default/orders"


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


def newest(running: RunningStack) -> int:
    return Ledger(open_store(str(running.stack.ledger)), DAG, checked=False).newest_complete()


def test_the_menu_leads_to_all_pipelines_and_from_there_to_one_and_to_its_epochs(
    running: RunningStack, page: Browser
) -> None:
    page.open("/")
    page.find("button", "Browse").click()
    page.find("a", "Epochs").click()
    page.enter_frame()
    page.picture("pipelines")
    page.find("a", DAG).click()
    assert page.has_text("rows per epoch") and page.has_text("lag: offsets that the epoch left unread")
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
    page.find("#epochs a", str(before + 1))
