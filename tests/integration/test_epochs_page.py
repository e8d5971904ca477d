"""The Epochs page in Airflow's own API server: what it shows of ledgers, and whom it lets see it."""

from __future__ import annotations

import json
import re
import shutil
from argparse import Namespace
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from airflow.sdk import DAG
from deltalake import DeltaTable

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect
from airflow_epochs.cli import show_epoch
from airflow_epochs.coordinator.admin.admin import Account, take_over
from airflow_epochs.ledger.codec import encode
from airflow_epochs.ledger.keys import PIPELINE_KEY, complete_key
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Backlog, JsonDict
from airflow_epochs.page import access
from tests.support.airflow_harness import Harness
from tests.support.faults_world import DiskWorld, start
from tests.support.page_lab import HTML, ORDERS, Browser, Ledgers, as_text

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]
OF_ONE_PIPELINE = (ORDERS, f"{ORDERS}/epochs/1", f"{ORDERS}/epochs/1/records", f"{ORDERS}/lag")
SCRIPT = "<script>alert(1)</script>"


def test_the_tab_of_a_dag_lists_each_store_once_whichever_dag_has_the_pipelines_there(
    ledgers: Ledgers, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers.epoch()
    listings, listed = list[str](), LocalStore.folders

    def counted(self: LocalStore) -> list[str]:
        listings.append(str(self.root))
        return listed(self)

    monkeypatch.setattr(LocalStore, "folders", counted)
    for dag_id in ("orders_dag", "other"):
        listings.clear()
        reader.page(f"/epochs/dags/{dag_id}")
        assert listings == [str(ledgers.root)]


# -- what it shows ---------------------------------------------------------------------------------------------------


def test_without_a_pipeline_the_page_says_when_one_appears_and_what_to_do_if_there_was_one(
    ledgers: Ledgers, reader: Browser
) -> None:
    text = reader.text("/epochs/")
    assert "There is no pipeline here. A pipeline appears when a run" in text
    assert f"names {ledgers.root}, and nothing is stored there. Start the first run of a pipeline" in text
    ledgers.epoch()
    assert "nothing is stored" not in reader.text("/epochs/dags/orders_dag") + reader.text("/epochs/dags/other")
    away = ledgers.root.rename(ledgers.root.with_name("away"))
    gone = f"the folder {ledgers.root}, which does not exist on this machine."
    assert gone in reader.text("/epochs/dags/orders_dag") and gone in reader.text("/epochs/dags/orders_dag/runs/r1")
    away.rename(ledgers.root)
    assert "orders idle" in reader.text("/epochs/")


def test_all_pipelines_are_listed_with_their_state_newest_epoch_and_owner(ledgers: Ledgers, reader: Browser) -> None:
    for _ in range(3):
        ledgers.epoch("orders")
    ledgers.epoch("users")
    ledgers.epoch("users", against="column x is a STRING")
    ledgers.unfinished(decided=True, pipeline="payments")
    text = reader.text("/epochs/")
    assert re.search(r"orders idle orders_dag 3 .* 4 ", text)
    assert "users failed audit: column x is a STRING" in text
    assert "payments in doubt waits for sink audit, orders; Airflow does not know run vanished" in text


def test_an_epoch_that_no_living_run_works_on_has_failed(ledgers: Ledgers, reader: Browser) -> None:
    ledgers.unfinished(decided=False)
    assert "failed epoch 1 is not decided, and Airflow does not know run vanished" in reader.text("/epochs/")


def test_a_pipeline_shows_its_epochs_newest_first_and_older_ones_on_further_pages(
    ledgers: Ledgers, reader: Browser
) -> None:
    for _ in range(30):
        ledgers.epoch()
    html = reader.page(ORDERS)
    assert re.findall(r"/epochs/(\d+)\">\d+</a>", html) == [str(n) for n in range(30, 5, -1)]
    assert re.findall(r"/epochs/(\d+)\">\d+</a>", reader.page(f"{ORDERS}?before=6")) == ["5", "4", "3", "2", "1"]
    assert charted(html)["epoch"] == list(range(1, 31))


def charted(html: str) -> dict[str, list[float | None]]:
    told = re.search(r'id="charts">(.*?)</script>', html)
    assert told
    found: dict[str, list[float | None]] = json.loads(told[1])
    return found


def test_a_chart_shows_what_each_epoch_left_unread_and_the_epochs_page_says_it(
    ledgers: Ledgers, reader: Browser
) -> None:
    ledgers.epoch("orders", *range(5), most=2)
    ledgers.epoch("orders", "f", most=2)
    ledgers.epoch("orders", "g", most=9)
    html = reader.page(ORDERS)
    assert charted(html)["left"] == [3, 2, 0]
    assert "lag: offsets left unread" in html and "waited" not in charted(html)
    assert "left unread when it was opened 3 offsets" in reader.text(f"{ORDERS}/epochs/1")


def test_epochs_of_which_nobody_knows_what_they_left_have_no_such_chart(ledgers: Ledgers, reader: Browser) -> None:
    ledgers.epoch()
    path = ledgers.root / "orders" / complete_key(1)
    record = ledgers.ledger().complete_record(1)
    assert record
    path.write_bytes(encode(replace(record, backlog=None)))
    html = reader.page(ORDERS)
    assert "left" not in charted(html) and "lag: offsets" not in html and 'data-chart="rows"' in html
    path.write_bytes(encode(replace(record, backlog=Backlog(offsets=7, seconds=90.0))))
    assert charted(reader.page(ORDERS))["waited"] == [90.0]
    said = "7 offsets, the oldest for at most 1 min 30 s"
    assert said in reader.text(f"{ORDERS}/epochs/1")


def test_an_epoch_shows_offsets_votes_receipts_and_every_attempt(ledgers: Ledgers, reader: Browser) -> None:
    ledgers.epoch()
    failed = ledgers.epoch(against="column x is a STRING")
    ledgers.epoch()
    text = reader.text(f"{ORDERS}/epochs/2")
    assert "Epoch 2 complete" in text
    assert "orders 0 2 4 2" in text, "topic, partition, offsets from 2 to 4, their number"
    for expected in ("Attempt 2", "Attempt 1", "GLOBAL_COMMIT", "GLOBAL_ABORT", "VOTE_ABORT column x is a STRING"):
        assert expected in text
    assert failed.run_id in text
    assert len(re.findall(r"orders/2/[12]/[0-9a-f]{32}", text)) >= 3, "the transaction ids"


def test_every_link_of_an_epoch_to_the_ones_beside_it_leads_to_an_epoch(ledgers: Ledgers, reader: Browser) -> None:
    ledgers.epoch()
    ledgers.epoch()
    assert beside(reader, 1) == ["2"] and beside(reader, 2) == ["1"]
    ledgers.unfinished(decided=False)
    assert beside(reader, 2) == ["1", "3"] and beside(reader, 3) == ["2"]
    shutil.rmtree((ledgers.root / "orders" / complete_key(1)).parent)  # as of a ledger that was rebuilt
    assert beside(reader, 2) == ["3"]


def beside(reader: Browser, number: int) -> list[str]:
    """To which epochs the page of this epoch leads."""
    found = re.findall(rf'href="{ORDERS}/epochs/(\d+)">epoch', reader.page(f"{ORDERS}/epochs/{number}"))
    assert [reader.status(f"{ORDERS}/epochs/{each}") for each in found] == [200] * len(found)
    return found


def test_an_aborted_epoch_is_told_with_what_to_do_now_and_names_no_task_to_clear(
    ledgers: Ledgers, reader: Browser
) -> None:
    ledgers.epoch(against="column x is a STRING.\nWhat to do: Correct the transform. Then clear the stage task.")
    text = reader.text(f"{ORDERS}/epochs/1")
    assert "What to do: Correct the transform. Then type `airflow epochs retry orders --why …`, or let the next" in text
    assert "audit: column x is a STRING." in text and "stage task" not in text
    assert "stage task" not in reader.text("/epochs/")
    ledgers.epoch()
    assert "What to do" not in reader.text(f"{ORDERS}/epochs/1"), "there is nothing left to do"


def test_an_epoch_has_a_place_for_each_sink_with_its_table_and_version(
    ledgers: Ledgers, reader: Browser, tmp_path: Path
) -> None:
    world = start(DiskWorld(tmp_path, ledger_folder=ledgers.root))
    for pruned in (False, True):
        html = reader.page(f"{ORDERS}/epochs/1")
        assert 'id="sinks"' in html
        for sink in world.sinks:
            row = re.search(rf'<tr id="sink-{sink}">.*?</tr>', html, re.DOTALL)
            version = DeltaTable(str(world.table(sink))).version()
            assert row and f" {sink} yes {world.table(sink)} {version} " in as_text(row[0].replace("<", " <")), pruned
        world.ledger.pruning.prune(1)


def test_of_several_tries_the_one_whose_rows_the_sinks_voted_on_is_told(
    ledgers: Ledgers, reader: Browser, tmp_path: Path
) -> None:
    world = start(DiskWorld(tmp_path, ledger_folder=ledgers.root))
    world.produce(2)
    world.crash_at("stage.done", number=2)
    assert world.run(2) is None
    newest, first = re.findall(r"Try \w+ of stage , begun (.*?) session and places", reader.text(f"{ORDERS}/epochs/2"))
    assert newest.endswith(": the sinks voted on its rows")
    assert "voted" not in first


def test_the_records_of_an_epoch_are_what_the_command_prints(
    ledgers: Ledgers, reader: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    ledgers.epoch(against="column x is a STRING")
    ledgers.epoch()
    show_epoch(Namespace(pipeline="orders", epoch=1, ledger_conn_id="epochs_default"))
    answer = reader.client.get(f"{ORDERS}/epochs/1/records")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == json.loads(capsys.readouterr().out)
    assert [each["decision"]["decision"] for each in answer.json()["attempts"]] == ["GLOBAL_ABORT", "GLOBAL_COMMIT"]
    assert f'href="{ORDERS}/epochs/1/records"' in reader.page(f"{ORDERS}/epochs/1")


def test_what_was_pruned_is_said_and_what_is_kept_is_shown(ledgers: Ledgers, reader: Browser) -> None:
    ledgers.epoch()
    ledgers.ledger().pruning.prune(1)
    text = reader.text(f"{ORDERS}/epochs/1")
    assert "The records of the attempts were pruned" in text and "orders 0 0 2 2" in text


def test_a_run_and_a_dag_lead_to_their_epochs(ledgers: Ledgers, reader: Browser) -> None:
    run = ledgers.epoch()
    ledgers.epoch("users")
    assert "Epoch 1 complete" in reader.text(f"/epochs/dags/{run.dag_id}/runs/{run.run_id}")
    assert "last complete epoch 1" in reader.text(f"/epochs/dags/{run.dag_id}")
    assert "This run has worked on no epoch" in reader.text(f"/epochs/dags/{run.dag_id}/runs/other")


def test_a_run_whose_epoch_a_restored_ledger_lacks_is_told_so(ledgers: Ledgers, reader: Browser) -> None:
    ledgers.epoch()
    run = ledgers.epoch()
    shutil.rmtree((ledgers.root / "orders" / complete_key(2)).parent)
    tab = reader.text(f"/epochs/dags/{run.dag_id}/runs/{run.run_id}")
    assert "orders, epoch 2: the ledger has no records of it. It was restored from an older copy, or rebuilt." in tab
    assert "has worked on no epoch" not in tab


def test_a_run_leads_to_its_epoch_also_after_another_dag_has_taken_the_pipeline_over(
    ledgers: Ledgers, reader: Browser
) -> None:
    run = ledgers.epoch()
    take_over(ledgers.ledger(), "orders", "new_dag", owner=run.dag_id, by=Account(who="ana", why="renamed"))
    assert "Epoch 1 complete" in reader.text(f"/epochs/dags/{run.dag_id}/runs/{run.run_id}")


def test_the_tabs_of_a_dag_and_of_a_run_do_not_hide_a_ledger_that_cannot_be_read(
    ledgers: Ledgers, reader: Browser
) -> None:
    run, other = ledgers.epoch(), ledgers.epoch("users")
    complete = ledgers.root / "orders" / complete_key(1)
    whole = complete.read_bytes()
    complete.write_text("{")
    tab = reader.text(f"/epochs/dags/{run.dag_id}/runs/{run.run_id}")
    assert "The ledger of pipeline orders cannot be read." in tab and "is damaged" in tab
    assert "has worked on no epoch" not in tab
    answer = reader.client.get(f"/epochs/dags/{run.dag_id}", headers=HTML, follow_redirects=True)
    assert (answer.status_code, "is damaged" in answer.text) == (500, True)
    assert "has worked on no epoch" in reader.text(f"/epochs/dags/{other.dag_id}/runs/nothing"), "its ledger is whole"
    complete.write_bytes(whole)
    (ledgers.root / "orders" / PIPELINE_KEY).write_text("{")
    assert "orders unreadable" in reader.text(f"/epochs/dags/{run.dag_id}"), "perhaps it is of this DAG"
    assert "The ledger of pipeline orders cannot be read." in reader.text(
        f"/epochs/dags/{run.dag_id}/runs/{run.run_id}"
    )


def test_a_connection_of_a_team_is_not_named_since_only_its_tasks_can_read_it(
    ledgers: Ledgers, reader: Browser
) -> None:
    from airflow.models.connection import Connection
    from airflow.models.team import Team
    from airflow.utils.session import create_session

    extra = {"ledger_root": str(ledgers.root)}
    with create_session() as session:
        session.add(Team(name="payroll"))
        session.flush()
        session.add(Connection("of_all", "epochs", extra=extra))
        session.add(Connection("of_team", "epochs", extra=extra, team_name="payroll"))
    ledgers.epoch()
    try:
        text = reader.text("/epochs/")
    finally:
        with create_session() as session:
            session.query(Connection).filter(Connection.conn_id.in_(["of_all", "of_team"])).delete()
            session.query(Team).filter_by(name="payroll").delete()
    assert "of_all" in text and "of_team" not in text


def test_the_tabs_of_a_dag_and_of_a_run_do_not_hide_a_connection_that_does_not_answer(
    ledgers: Ledgers, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "epochs", "extra": {}}))
    for path, untrue in (("", "There is no pipeline here"), ("/runs/r1", "This run has worked on no epoch")):
        text = reader.text(f"/epochs/dags/orders_dag{path}")
        assert "The pipelines of connection other cannot be listed." in text and untrue not in text


def test_the_page_needs_nothing_of_the_metadata_database(ledgers: Ledgers, reader: Browser) -> None:
    ledgers.epoch()  # no DAG, no run of it was ever in Airflow's database
    assert re.search(r"orders idle orders_dag 1 ", reader.text("/epochs/"))


def test_a_ledger_that_cannot_be_read_hides_no_other_one(ledgers: Ledgers, reader: Browser) -> None:
    ledgers.epoch("orders")
    ledgers.epoch("users")
    (ledgers.root / "users" / "epochs" / f"{1:020}" / "complete.json").write_text("{")
    text = reader.text("/epochs/")
    assert "orders idle" in text and "users unreadable" in text and "is damaged" in text
    answer = reader.client.get("/epochs/pipelines/epochs_default/users", headers={"Accept": "text/html"})
    assert answer.status_code == 500
    assert "EPOCHS-LEDGER-RECORD-DAMAGED" in answer.text and "What to do:" in answer.text


@pytest.mark.parametrize(("dag", "may_see"), [("orders_dag", True), ("other_dag", True), ("stranger", False)])
def test_a_ledger_that_tells_no_owner_is_shown_to_those_who_may_read_a_dag_of_it(
    ledgers: Ledgers, reader: Browser, monkeypatch: pytest.MonkeyPatch, dag: str, may_see: bool
) -> None:
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    named = {"orders_dag": ("epochs_default", "other"), "other_dag": ("epochs_default", "other"), "stranger": ()}
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", lambda self, details, **_: details.id == dag)
    monkeypatch.setattr(SimpleAuthManager, "get_authorized_dag_ids", lambda self, **_: {dag})
    monkeypatch.setattr(access, "_all_dags", lambda: {*named, "another"})
    monkeypatch.setattr(access, "_names", lambda dag_id, conn_id: conn_id in named[dag_id])
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "epochs", "extra": {}}))
    ledgers.epoch("orders")
    ledgers.epoch("users")
    (ledgers.root / "users" / PIPELINE_KEY).write_text("{")
    text = reader.text("/epochs/")
    assert ("users unreadable" in text) is ("The pipelines of connection other cannot" in text) is may_see


def test_a_broken_ledger_that_tells_its_owner_is_shown_to_those_who_may_read_that_dag(
    ledgers: Ledgers, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    ledgers.epoch("users")
    (ledgers.root / "users" / "epochs" / f"{1:020}" / "complete.json").write_text("{")
    for dag, may_see in (("users_dag", True), ("orders_dag", False)):
        monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", lambda self, details, of=dag, **_: details.id == of)
        assert ("users unreadable" in reader.text("/epochs/")) is may_see


def test_a_dag_names_the_connection_of_the_ledger_in_its_tasks(tmp_path: Path) -> None:
    with DAG("names_it", schedule=None, max_active_runs=1) as dag:
        EpochPipeline(
            "orders",
            source=KafkaSource(topics=["orders"]),
            transform="orders.py:orders",
            sinks=[DeltaSink("one", "/lake/one")],
            spark=SparkConnect(),
            ledger_conn_id="my_ledger",
        )
    Harness(dag)
    assert access._names("names_it", "my_ledger")
    assert not access._names("names_it", "another") and not access._names("unknown", "my_ledger")
    assert "names_it" in access._all_dags()


def test_a_connection_that_does_not_answer_hides_no_other_one(
    ledgers: Ledgers, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers.epoch()
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "epochs", "extra": {}}))
    monkeypatch.setenv("AIRFLOW_CONN_LISTED", json.dumps({"conn_type": "epochs", "extra": "[1,2]"}))
    text = reader.text("/epochs/")
    assert "The pipelines of connection other cannot be listed." in text and "orders idle" in text
    assert "The extra of connection &#39;listed&#39; is not a JSON object." in text


@pytest.mark.parametrize(
    "path",
    [
        f"{ORDERS}/epochs/9",
        f"{ORDERS}/epochs/9/records",
        f"{ORDERS}/epochs/0",
        f"{ORDERS}/epochs/{10**30}",
        "/epochs/pipelines/epochs_default/nothing",
        "/epochs/nothing",
        "/epochs/pipelines/epochs_default/..",
        "/epochs/pipelines/aws_default/orders",
        "/epochs/pipelines/epochs_default/%2e%2e%2fetc",
    ],
)
def test_what_is_not_there_is_told_on_a_page_and_to_a_program_as_json(
    ledgers: Ledgers, reader: Browser, path: str
) -> None:
    ledgers.epoch()
    page, answer = (reader.client.get(path, headers=headers) for headers in (HTML, {"Accept": "*/*"}))
    assert page.status_code == answer.status_code == 404
    assert "<h1>Error 404</h1>" in page.text and escape(answer.json()["detail"]) in page.text


# -- links to Spark --------------------------------------------------------------------------------------------------

HISTORY = "https://history.example.com/spark?user=a&b"


def links_out(html: str) -> list[str]:
    return re.findall(r'<a class="outside" rel="noreferrer" target="_blank" href="([^"]*)"', html)


def test_a_try_leads_to_the_ui_that_its_spark_connection_names(
    ledgers: Ledgers, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers.epoch()
    assert links_out(reader.page(f"{ORDERS}/epochs/1")) == [], "the connection is not there"
    for conn_type, known in (("spark_connect", [escape(HISTORY)]), ("spark", [escape(HISTORY)]), ("http", [])):
        connection = {"conn_type": conn_type, "host": "spark", "extra": {"ui_url": HISTORY}}
        monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", json.dumps(connection))
        assert links_out(reader.page(f"{ORDERS}/epochs/1")) == known


def test_an_epoch_leads_to_the_application_that_staged_it_even_when_its_attempts_were_pruned(
    ledgers: Ledgers, reader: Browser
) -> None:
    ledgers.spark.application = {"id": "application_1_0001", "url": "http://rm:8088/proxy/application_1_0001/"}
    ledgers.epoch()
    for _ in range(2):
        html = reader.page(f"{ORDERS}/epochs/1")
        assert links_out(html) == ["http://rm:8088/proxy/application_1_0001/"] and ">application_1_0001</a>" in html
        ledgers.ledger().pruning.prune(1)


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JavaScript://example.com/%0Aalert(1)",
        "data:text/html,<b>",
        "//example.com",
        "http://",
        "http://[",
        "https://ada:secret@example.com/",
        7,
        None,
    ],
)
def test_what_is_no_address_of_a_page_becomes_no_link(
    ledgers: Ledgers, reader: Browser, monkeypatch: pytest.MonkeyPatch, url: object
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_MY_SPARK", json.dumps({"conn_type": "spark", "host": "spark", "extra": {"ui_url": url}})
    )
    ledgers.spark.application = {"id": SCRIPT, "url": url}
    ledgers.epoch()
    html = reader.page(f"{ORDERS}/epochs/1")
    assert links_out(html) == [] and SCRIPT not in html
    assert not re.search(r"""href=["']?\s*(javascript|data):""", html, re.IGNORECASE)
    assert f"staged by Spark&#39;s application {escape(SCRIPT)}" in html.replace("Spark's", "Spark&#39;s")


@pytest.mark.parametrize("forged", [{"spark": "text"}, {"spark": {"url": "http://a"}}, {"spark": ["id"]}])
def test_metrics_of_another_form_do_not_break_the_page(ledgers: Ledgers, reader: Browser, forged: JsonDict) -> None:
    ledgers.epoch()
    record = ledgers.ledger().complete_record(1)
    assert record
    ledgers.ledger().pruning.prune(1)
    (ledgers.root / "orders" / complete_key(1)).write_bytes(encode(replace(record, metrics=forged)))
    assert links_out(reader.page(f"{ORDERS}/epochs/1")) == []


# -- safety ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/epochs/x", "`number` is &#39;x&#39;. Input should be a valid integer"),
        ("/epochs?number=1e5", "`number` is &#39;1e5&#39;."),
        (f"/epochs/{'9' * 5000}", f"`number` is &#39;{'9' * 50}&#39;."),
        ("?before=<b>", "`before` is &#39;&lt;b&gt;&#39;."),
        ("/actions/rewind?to_epoch=x&restore_tables=perhaps", "`restore_tables` is &#39;perhaps&#39;."),
        ("/actions/abort", "You may not edit the DAG orders_dag, which owns this pipeline."),
    ],
)
def test_what_a_person_mistypes_or_may_not_do_is_told_on_a_page_and_to_a_program_as_json(
    ledgers: Ledgers, reader: Browser, path: str, told: str
) -> None:
    ledgers.unfinished(decided=False)
    page, answer = (reader.client.get(f"{ORDERS}{path}", headers=headers) for headers in (HTML, {"Accept": "*/*"}))
    assert page.status_code == answer.status_code == (403 if "DAG" in told else 422)
    assert told in page.text
    assert (f'<a href="{ORDERS}">Back to pipeline orders' in page.text) == path.startswith("/")
    assert told in escape(answer.json()["detail"]).replace("&#x27;", "&#39;")


@pytest.mark.parametrize("path", ["/epochs/", "/epochs/dags/orders_dag", *OF_ONE_PIPELINE])
def test_nobody_sees_anything_without_a_login_or_without_the_right_to_read_the_dag(ledgers: Ledgers, path: str) -> None:
    ledgers.epoch()
    with Browser(None).client as client:
        assert client.get(path).status_code == 401
    stranger = Browser("")
    with stranger.client:
        if path in OF_ONE_PIPELINE:
            assert stranger.status(path) == 403
        else:
            assert "orders idle" not in stranger.text(path)


def test_every_field_is_escaped(ledgers: Ledgers, reader: Browser) -> None:
    ledgers.epoch(against=SCRIPT)
    for path in ("/epochs/", ORDERS, f"{ORDERS}/epochs/1"):
        assert SCRIPT not in reader.page(path)
    assert "&lt;script&gt;alert(1)" in reader.page(f"{ORDERS}/epochs/1")
    assert "<b>" not in reader.page("/epochs/dags/%3Cb%3E")


def test_pages_and_their_files_name_no_other_host_and_allow_none(ledgers: Ledgers, reader: Browser) -> None:
    ledgers.epoch()
    html = reader.page(ORDERS)
    files = re.findall(r'(?:src|href)="([^"]*/static/[^"]*)"', html)
    assert len(files) >= 5
    for path in files:
        answer = reader.client.get(path)
        assert answer.status_code == 200
        assert not re.search(r"(?:src|href|url)\s*[=(:]\s*['\"]?(?:https?:)?//", answer.text)
    assert not re.search(r'(?:src|href)="(?:https?:)?//', html)
    headers = reader.client.get(ORDERS).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"


def test_airflow_finds_the_plugin_and_its_tabs_by_the_entry_point() -> None:
    from airflow import plugins_manager

    views = {
        view["destination"]: view
        for plugin in plugins_manager.get_plugin_info()
        if plugin["name"] == "epochs"
        for view in plugin["external_views"]
    }
    assert {name: view["href"] for name, view in views.items()} == {
        "nav": "epochs/",
        "dag": "epochs/dags/{DAG_ID}",
        "dag_run": "epochs/dags/{DAG_ID}/runs/{RUN_ID}",
    }
