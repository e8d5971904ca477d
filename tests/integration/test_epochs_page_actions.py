"""What the Epochs page lets users do: it asks, does what it told, and records who did it and why."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import ClassVar

import pytest

from airflow_epochs import DeltaSource, KafkaSource, codes
from airflow_epochs.contracts import Move, Position
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.actions import Abort
from airflow_epochs.coordinator.admin.admin import Account, owner_of, take_over
from airflow_epochs.errors import BadArgument, NoNewData, OutcomeUnknown
from airflow_epochs.hooks import rewind_action
from airflow_epochs.ledger.deeds import deeds
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import DecisionKind, JsonDict, OffsetRange, Run
from airflow_epochs.testing import MemorySink, MemorySource, memory_coordinator, memory_pipeline, run_epoch
from tests.support.page_lab import ORDERS, Browser, Ledgers, as_text, fields_of

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]
ABORT = f"{ORDERS}/actions/abort"
WAIVE = f"{ORDERS}/actions/waive"
TAKEOVER = f"{ORDERS}/actions/takeover"
PAUSE = f"{ORDERS}/actions/pause"
UNPAUSE = f"{ORDERS}/actions/unpause"
SAVEPOINT = f"{ORDERS}/actions/savepoint"
DISPOSE = f"{ORDERS}/actions/dispose-savepoint"
REWIND = f"{ORDERS}/actions/rewind"
REWIND_TO_TIME = f"{ORDERS}/actions/rewind-to-time"
NEW = [PAUSE, UNPAUSE, f"{SAVEPOINT}?savepoint=mine&epoch=1", f"{DISPOSE}?savepoint=kept", f"{REWIND}?to_epoch=1"]
NEW += [f"{REWIND_TO_TIME}?to_time=2026-01-31T00:00Z"]


def done(browser: Browser, path: str, why: str = "it hangs") -> int:
    """Read the confirmation, and send its form; the status of the answer."""
    form = fields_of(browser.page(path))
    return int(browser.post(path.partition("?")[0], {**form, "why": why}).status_code)


def finish(ledgers: Ledgers, run_id: str = "next") -> None:
    """The next run of the DAG."""
    world = ledgers.worlds["orders"]
    pipeline = memory_pipeline(world, ("orders", "audit"), dag_id="orders_dag")
    run_epoch(memory_coordinator(world, pipeline, store=LocalStore(ledgers.root)), Run("orders_dag", run_id))


def test_an_open_attempt_is_aborted_by_name_and_reason_and_the_next_run_takes_its_input(
    ledgers: Ledgers, ada: Browser
) -> None:
    ledgers.unfinished(decided=False)
    assert ABORT in ada.page(ORDERS)
    told = ada.text(ABORT)
    assert "Attempt 1 of epoch 1 of pipeline orders will be aborted" in told and "the same 1 offsets again" in told
    assert done(ada, ABORT) == 303
    decision = ledgers.ledger().decision_record(1, 1)
    assert decision and decision.decision is DecisionKind.GLOBAL_ABORT
    assert decision.reason == "`airflow epochs abort` by ada: it hangs"
    finish(ledgers)
    world = ledgers.worlds["orders"]
    assert (world.table("orders").values(), world.table("audit").values()) == (["c"], ["c"])
    assert world.litter() == set(), "what the aborted attempt had staged is swept"


def test_a_run_that_was_aborted_from_the_page_shows_nothing_of_its_rows(ledgers: Ledgers, ada: Browser) -> None:
    run = ledgers.unfinished(decided=False)
    done(ada, ABORT)
    world = ledgers.worlds["orders"]
    pipeline = memory_pipeline(world, ("orders", "audit"), dag_id="orders_dag")
    task = memory_coordinator(world, pipeline, store=LocalStore(ledgers.root))
    run_epoch(task, run)  # the run goes on, or is cleared: with an attempt of its own
    complete = ledgers.ledger().complete_record(1)
    assert complete and complete.txn_id.attempt == 2
    assert world.table("orders").values() == ["c"]


def test_a_sink_is_waived_after_the_page_has_told_its_loss_and_the_epoch_is_complete_without_it(
    ledgers: Ledgers, ada: Browser
) -> None:
    run = ledgers.unfinished(decided=True)
    assert "Waive sink audit" in ada.page(ORDERS) and "Waive sink orders" in ada.page(ORDERS)
    path = f"{WAIVE}?epoch=1&sink=audit"
    assert "Rows that sink audit loses for good: 1, staged at" in ada.text(path)
    assert done(ada, path, "the table was dropped") == 303
    world = ledgers.worlds["orders"]
    pipeline = memory_pipeline(world, ("orders", "audit"), dag_id="orders_dag")
    task = memory_coordinator(world, pipeline, store=LocalStore(ledgers.root))
    task.commit(run, "orders")
    task.complete(run)
    assert "audit waived" in ada.text(ORDERS) and "by ada: the table was dropped" in ada.page(ORDERS)
    [deed] = deeds(ledgers.ledger(), 10)
    assert (deed.what, deed.epoch, deed.who) == ("waive audit", 1, "ada")
    assert (deed.host, deed.why) == ("Airflow's page", "the table was dropped")
    assert "waived by ada on Airflow&#39;s page" in ada.text(f"{ORDERS}/epochs/1")


def test_a_sink_that_is_waived_is_asked_once_namely_before_the_user_is(
    ledgers: Ledgers, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers.unfinished(decided=True)
    asked = []
    monkeypatch.setattr(MemorySink, "last_committed", lambda self, *about: asked.append(self.name))
    assert done(ada, f"{WAIVE}?epoch=1&sink=audit") == 303
    assert asked == ["audit"] and ledgers.ledger().waiver(1, "audit")


def test_a_pipeline_is_handed_over_to_the_dag_that_was_typed(ledgers: Ledgers, ada: Browser) -> None:
    ledgers.epoch()
    assert "Hand orders over to another DAG" in ada.text(TAKEOVER)
    path = f"{TAKEOVER}?dag_id=new_dag"
    assert "Pipeline orders will go from DAG orders_dag to DAG new_dag." in ada.text(path)
    assert done(ada, path, "the DAG has a new name") == 303
    assert owner_of(ledgers.ledger(), "orders") == "new_dag"
    assert ledgers.ledger().takeovers()[0].who == "ada"


def test_a_paused_pipeline_says_who_paused_it_and_why_until_somebody_unpauses_it(
    ledgers: Ledgers, ada: Browser
) -> None:
    ledgers.epoch()
    assert "Pipeline orders will take no new epoch" in ada.text(PAUSE)
    assert done(ada, PAUSE, "the <b>lake</b> moves") == 303
    html = ada.page(ORDERS)
    assert "paused" in html and UNPAUSE in html and PAUSE not in html
    assert "Paused by ada on Airflow&#39;s page" in as_text(html) and "the &lt;b&gt;lake&lt;/b&gt; moves" in html
    ledgers.worlds["orders"].produce("orders", 0, ["later"])
    with pytest.raises(NoNewData, match="ada has paused the pipeline"):
        finish(ledgers)
    assert "the &lt;b&gt;lake&lt;/b&gt; moves" in ada.page(UNPAUSE)
    assert done(ada, UNPAUSE, "it has moved") == 303
    finish(ledgers)
    assert ledgers.ledger().newest_complete() == 2
    assert [(deed.what, deed.who) for deed in deeds(ledgers.ledger(), 5)] == [("unpause", "ada"), ("pause", "ada")]


def test_an_epoch_gets_a_name_that_one_can_go_back_to_until_it_is_disposed_of(ledgers: Ledgers, ada: Browser) -> None:
    ledgers.epoch()
    ledgers.epoch()
    assert 'name="epoch" type="number" required min="1" value="2"' in ada.page(SAVEPOINT)
    assert done(ada, f"{SAVEPOINT}?savepoint=upgrade&epoch=1", "<script>alert(1)</script>") == 303
    html = ada.page(ORDERS)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html and "<script>alert" not in html
    assert f"{REWIND}?to_epoch=1" in html
    [made] = ledgers.ledger().savepoints()
    assert (made.name, made.epoch, made.who) == ("upgrade", 1, "ada")
    assert "It is epoch 1: &lt;script&gt;" in ada.page(f"{DISPOSE}?savepoint=upgrade")
    assert done(ada, f"{DISPOSE}?savepoint=upgrade") == 303
    assert not ledgers.ledger().savepoints() and 'id="savepoints"' not in ada.page(ORDERS)
    taken = ada.client.get(f"{SAVEPOINT}?savepoint=upgrade&epoch=2", headers={"Accept": "text/html"})
    assert taken.status_code == 409 and "EPOCHS-SAVEPOINT-NAME" in taken.text


class Movable(MemorySource):
    """A source in memory that can go back."""

    def to_offsets(self, position: Position, offsets: dict[str, dict[int, int]], env: object) -> Move:
        there = {t: tuple(OffsetRange(p, at, at) for p, at in of.items()) for t, of in offsets.items()}
        ends = {(t, r.partition): r.end for t, of in position.ranges.items() for r in of}
        again = {t: tuple(r._replace(end=ends[t, r.partition]) for r in of) for t, of in there.items()}
        return Move(position=Position(ranges=there, state=position.state), again=again, ahead=again)

    def to_time(self, position: Position, time: str, env: object) -> Move:
        if not time.startswith("2026-"):
            raise BadArgument(f"The time is {time!r}.", code=codes.KAFKA_SOURCE_ARGUMENT)
        return self.to_offsets(position, {"orders": {0: 1}}, env)


def movable(ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch) -> Movable:
    """Two epochs of a source that can go back."""
    ledgers.epoch("orders", "a")
    ledgers.epoch("orders", "b")
    source = Movable(world=ledgers.worlds["orders"].name, topics=("orders",))
    monkeypatch.setattr(rewind_action, "on_record", lambda spec: source)
    return source


def require_rewound(ledgers: Ledgers) -> None:
    """The next run shows the second record once more, and the ledger says who wanted it."""
    finish(ledgers)
    assert ledgers.worlds["orders"].table("orders").values() == ["a", "b", "b"]
    [deed] = deeds(ledgers.ledger(), 10)
    assert (deed.what, deed.epoch, deed.who, deed.why) == ("rewind", 3, "ada", "a wrong rate")


def test_a_rewind_tells_what_comes_twice_and_the_next_run_obeys(
    ledgers: Ledgers, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = movable(ledgers, monkeypatch)
    path = f"{REWIND}?to_epoch=1"
    told = ada.text(path)
    assert "Epoch 3 of pipeline orders will begin elsewhere" in told
    assert "read again, so rows that are there come twice: 1 offsets, orders[0] [1, 2)" in told
    form = fields_of(ada.page(path))
    assert done(ada, path, "a wrong rate") == 303
    assert ada.post(REWIND, {**form, "why": "once more"}).status_code == 409, "the pipeline stands elsewhere now"
    assert "ordered" in ada.page(ORDERS)
    require_rewound(ledgers)
    monkeypatch.setattr(rewind_action, "on_record", lambda spec: Nowhere(world=source.world, topics=source.topics))
    answer = ada.client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 409 and "EPOCHS-NOTHING-TO-REWIND" in answer.text


@pytest.mark.parametrize("decided", [False, True], ids=["undecided", "in doubt"])
def test_a_rewind_is_offered_only_while_no_epoch_is_undecided_or_in_doubt(
    ledgers: Ledgers, ada: Browser, decided: bool
) -> None:
    ledgers.epoch()
    assert done(ada, f"{SAVEPOINT}?savepoint=mine&epoch=1") == 303
    ways = [f'"{REWIND}"', f'"{REWIND_TO_TIME}"', f'"{REWIND}?to_epoch=1"']
    offered = [*ways, f'"{SAVEPOINT}"', f'"{DISPOSE}?savepoint=mine"']
    assert [way for way in offered if way in ada.page(ORDERS)] == offered
    ledgers.unfinished(decided=decided)
    assert [way for way in offered if way in ada.page(ORDERS)] == offered[len(ways) :]
    if not decided:
        assert done(ada, ABORT) == 303
        assert [way for way in offered if way in ada.page(ORDERS)] == offered


class OnRecord(MemorySource):
    """On record as a source of another kind."""

    recorded: ClassVar[JsonDict] = {}

    def spec(self) -> JsonDict:
        return self.recorded


def epoch_of(ledgers: Ledgers, recorded: JsonDict, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch whose source is on record as ``recorded``."""
    monkeypatch.setattr(OnRecord, "recorded", recorded)
    ledgers.epoch("orders", "a")
    world = ledgers.worlds["orders"]
    world.produce("orders", 0, ["b"])
    source = OnRecord(world=world.name, topics=("orders",))
    pipeline = replace(memory_pipeline(world, ("orders", "audit"), dag_id="orders_dag"), source=source)
    run_epoch(memory_coordinator(world, pipeline, store=LocalStore(ledgers.root)), Run("orders_dag", "next"))


def test_a_rewind_to_a_time_is_not_offered_for_a_source_that_knows_no_times(
    ledgers: Ledgers, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch_of(ledgers, DeltaSource("/lake/orders").spec(), monkeypatch)
    assert f'"{REWIND}"' in ada.page(ORDERS) and REWIND_TO_TIME not in ada.page(ORDERS)
    path = f"{REWIND_TO_TIME}?to_time=2026-01-31T00:00Z"
    answer = ada.client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 409 and "A DeltaSource does not go back to a time." in answer.text


@pytest.mark.parametrize(
    "of_record",
    [{**KafkaSource(["orders"], conn_id="c").spec(), "bounds": "of a newer version"}, {"kind": "kafka"}],
    ids=["newer", "damaged"],
)
def test_a_pipeline_whose_source_on_record_cannot_be_built_here_has_its_page(
    ledgers: Ledgers, ada: Browser, monkeypatch: pytest.MonkeyPatch, of_record: JsonDict
) -> None:
    epoch_of(ledgers, of_record, monkeypatch)
    assert f'"{REWIND_TO_TIME}"' in ada.page(ORDERS), "what is wrong with the source is told when it is asked"
    assert ada.client.get(f"{ORDERS}/lag").json() == {}
    path = f"{REWIND_TO_TIME}?to_time=2026-01-31T00:00Z"
    answer = ada.client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 409 and "EPOCHS-LEDGER-TOO-NEW" in answer.text


@pytest.mark.parametrize("path", [f"{REWIND}?to_epoch=1", f"{REWIND_TO_TIME}?to_time=2026-01-31T00:00Z"])
def test_a_rewind_on_the_page_says_that_it_takes_the_recorded_source_and_how_to_take_that_of_the_dag(
    ledgers: Ledgers, ada: Browser, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    movable(ledgers, monkeypatch)
    told = ada.text(path)
    assert "The source is taken as epoch 2 has it on record" in told
    assert "If the DAG has changed it since, cancel, and type `airflow epochs rewind orders …`" in told


def test_a_rewind_to_a_time_asks_for_the_time_and_goes_back_to_its_first_records(
    ledgers: Ledgers, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    movable(ledgers, monkeypatch)
    assert REWIND_TO_TIME in ada.page(ORDERS)
    assert 'name="to_time"' in ada.page(REWIND_TO_TIME) and "with its zone" in ada.text(REWIND_TO_TIME)
    mistyped = ada.client.get(f"{REWIND_TO_TIME}?to_time=<b>noon</b>", headers={"Accept": "text/html"})
    assert mistyped.status_code == 422 and "The time is &#39;&lt;b&gt;noon&lt;/b&gt;&#39;" in mistyped.text
    assert "Nothing was changed" in mistyped.text and "What to do: Correct the argument" in mistyped.text
    path = f"{REWIND_TO_TIME}?to_time=2026-01-31T00:00Z"
    assert "Rewind to time: what will happen" in ada.text(path)
    assert "read again, so rows that are there come twice: 1 offsets, orders[0] [1, 2)" in ada.text(path)
    form = fields_of(ada.page(path))
    assert done(ada, path, "a wrong rate") == 303
    assert ada.post(REWIND_TO_TIME, {**form, "why": "once more"}).status_code == 409, "the pipeline stands elsewhere"
    require_rewound(ledgers)


class Nowhere(MemorySource):
    """A source that stands already where it is to go."""

    def to_offsets(self, position: Position, offsets: object, env: object) -> Move:
        return Move(position=position)


# -- what is refused, and changes nothing ----------------------------------------------------------------------------


def untouched(ledgers: Ledgers) -> list[str]:
    """Every file of the ledgers, but probes."""
    return sorted(str(path) for path in ledgers.root.rglob("*.json"))


def test_readers_see_no_action_and_can_do_none(ledgers: Ledgers, ada: Browser) -> None:
    ledgers.unfinished(decided=False)
    form = fields_of(ada.page(ABORT))
    before = untouched(ledgers)
    reader = Browser("VIEWER")
    with reader.client:
        assert "/actions/" not in reader.page(ORDERS)
        assert reader.status(ABORT) == 403
        assert reader.post(ABORT, {**form, "why": "so"}).status_code == 403
    nobody = Browser(None)
    with nobody.client:
        assert nobody.status(ABORT) == 401
        assert nobody.post(ABORT, {**form, "why": "so"}).status_code == 401
    assert untouched(ledgers) == before


@pytest.mark.parametrize("path", NEW)
def test_no_action_is_for_readers_for_nobody_or_for_a_form_of_another_site(
    ledgers: Ledgers, ada: Browser, path: str
) -> None:
    ledgers.epoch()
    before = untouched(ledgers)
    form = {"why": "so", "number": "1"}
    for user, status in ((Browser("VIEWER"), 403), (Browser(None), 401)):
        with user.client:
            assert (user.status(path), user.post(path, form).status_code) == (status, status)
    form |= {"savepoint": "kept", "epoch": "1", "to_epoch": "1"}
    assert ada.post(path, form, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert untouched(ledgers) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": ""},
    ],
    ids=str,
)
def test_a_form_of_another_site_does_nothing(ledgers: Ledgers, ada: Browser, headers: dict[str, str]) -> None:
    ledgers.unfinished(decided=False)
    form = fields_of(ada.page(ABORT))
    before = untouched(ledgers)
    assert ada.post(ABORT, {**form, "why": "so"}, **headers).status_code == 403
    assert untouched(ledgers) == before


def test_an_older_browser_that_names_only_the_origin_of_the_form_is_let_in(ledgers: Ledgers, ada: Browser) -> None:
    ledgers.unfinished(decided=False)
    form = fields_of(ada.page(ABORT))
    old = {"Sec-Fetch-Site": "", "Origin": "http://testserver"}
    assert ada.post(ABORT, {**form, "why": "so"}, **old).status_code == 303


@pytest.mark.parametrize("why", ["", "   "])
def test_an_action_without_a_reason_does_nothing(ledgers: Ledgers, ada: Browser, why: str) -> None:
    ledgers.unfinished(decided=False)
    form = fields_of(ada.page(ABORT))
    before = untouched(ledgers)
    answer = ada.post(ABORT, {**form, "why": why})
    assert answer.status_code == 409 and "EPOCHS-REASON-EMPTY" in answer.text
    assert untouched(ledgers) == before


def test_a_reason_is_as_long_as_the_form_lets_it_be_and_no_longer(ledgers: Ledgers, ada: Browser) -> None:
    ledgers.epoch()
    [length] = re.findall(r'<input name="why" required maxlength="(\d+)"', ada.page(PAUSE))
    form, before = fields_of(ada.page(PAUSE)), untouched(ledgers)
    answer = ada.post(PAUSE, {**form, "why": "x" * (int(length) + 1)})
    assert answer.status_code == 409 and "EPOCHS-REASON-TOO-LONG" in answer.text
    assert untouched(ledgers) == before
    assert ada.post(PAUSE, {**form, "why": "x" * int(length)}).status_code == 303
    assert "x" * int(length) in ada.page(ORDERS) and "<details" not in ada.page(ORDERS)


def test_a_long_reason_of_an_older_version_is_folded_wherever_the_page_tells_it(
    ledgers: Ledgers, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "REASON_MAX", 10**6)
    why = "<b>" + "no room " * 2500 + "END"
    ledgers.epoch()
    ledgers.unfinished(decided=True)
    for path in (f"{WAIVE}?epoch=2&sink=audit", f"{SAVEPOINT}?savepoint=mine&epoch=1", PAUSE):
        assert done(ada, path, why) == 303
    ledgers.unfinished(decided=False, pipeline="users")
    users = ORDERS.replace("orders", "users")
    assert done(ada, f"{users}/actions/abort", why) == 303
    pages = {ORDERS: 2, f"{ORDERS}/epochs/2": 1, UNPAUSE: 1, users: 1, f"{users}/epochs/1": 1}
    for path, folded in pages.items():
        html = ada.page(path)
        shown = re.sub(r"(?s)</summary>.*?</details>", "", re.sub(r'(title|value)="[^"]*"', "", html))
        assert html.count('<details class="said">') == folded and len(as_text(shown)) < 4000, path
        assert "&lt;b&gt;no room" in shown and "END" in html and "END" not in shown and "<b>no" not in html


def test_what_has_changed_since_the_page_was_shown_is_refused(ledgers: Ledgers, ada: Browser) -> None:
    ledgers.unfinished(decided=False)
    form = fields_of(ada.page(ABORT))
    finish(ledgers)  # another run has taken over meanwhile, and completed the epoch
    before = untouched(ledgers)
    answer = ada.post(ABORT, {**form, "why": "so"})
    assert answer.status_code == 409
    assert "is not undecided any more" in as_text(answer.text) and "Nothing was changed" in answer.text
    assert untouched(ledgers) == before
    form = fields_of(ada.page(f"{TAKEOVER}?dag_id=mine"))
    by = Account(who="bob", why="faster")
    take_over(ledgers.ledger(), "orders", "his", owner="orders_dag", by=by)
    assert ada.post(TAKEOVER, {**form, "why": "so"}).status_code == 409
    assert owner_of(ledgers.ledger(), "orders") == "his"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (ABORT, 409),
        (f"{WAIVE}?epoch=1&sink=orders", 409),
        (UNPAUSE, 409),
        (f"{ORDERS}/actions/drop", 404),
        ("/epochs/pipelines/epochs_default/nothing/actions/abort", 404),
    ],
)
def test_an_action_that_there_is_not_is_refused_with_what_to_do(
    ledgers: Ledgers, ada: Browser, path: str, status: int
) -> None:
    ledgers.epoch()
    answer = ada.client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == status
    assert status == 404 or "What to do:" in answer.text


@pytest.mark.parametrize(("asked", "epoch"), [("", "epoch 0"), ("?epoch=99&sink=audit", "epoch 99, sink audit")])
def test_a_waiver_of_an_epoch_that_there_is_not_says_so(ledgers: Ledgers, ada: Browser, asked: str, epoch: str) -> None:
    ledgers.unfinished(decided=True)
    answer = ada.client.get(f"{WAIVE}{asked}", headers={"Accept": "text/html"})
    told = as_text(answer.text)
    assert answer.status_code == 409 and f"The pipeline has no {epoch.split(',')[0]}. Only an epoch in doubt" in told
    assert f"Where: pipeline orders, {epoch} What to do: Choose the epoch in doubt" in told


def test_a_form_that_came_too_late_names_the_pipeline_in_what_to_do_and_leads_back_to_it(
    ledgers: Ledgers, ada: Browser
) -> None:
    ledgers.unfinished(decided=True)
    form = fields_of(ada.page(f"{WAIVE}?epoch=1&sink=audit"))
    finish(ledgers)
    answer = ada.post(WAIVE, {**form, "why": "so"})
    told = as_text(answer.text)
    assert answer.status_code == 409 and "EPOCHS-EPOCH-NOT-IN-DOUBT" in told
    assert "`airflow epochs in-doubt orders`" in told and "PIPELINE" not in told and "Where: pipeline orders" in told
    [back, again] = re.findall(r'<a href="([^"]*)">[^<]*orders[^<]*</a>', answer.text)
    assert back == again == ORDERS and "Epochs" in ada.page(back)


def stale(ada: Browser, path: str, **changes: str) -> str:
    """What the page answers to a form that says something else than what was told."""
    form = {**fields_of(ada.page(path)), **changes, "why": "so"}
    answer = ada.post(path.partition("?")[0], form)
    assert answer.status_code == 409, answer.text
    return as_text(answer.text)


def test_nobody_who_has_filled_in_a_form_is_told_to_type_a_command_again(
    ledgers: Ledgers, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    movable(ledgers, monkeypatch)
    empty = ada.post(PAUSE, {**fields_of(ada.page(PAUSE)), "why": ""})
    answers = [
        as_text(empty.text),
        stale(ada, f"{REWIND}?to_epoch=1", attempt="7"),
        stale(ada, f"{TAKEOVER}?dag_id=mine", owner="another"),
        stale(ada, f"{TAKEOVER}?dag_id=mine", dag_id="not/an id"),
    ]
    ledgers.unfinished(decided=True)
    refused = ada.client.get(f"{REWIND}?to_epoch=1", headers={"Accept": "text/html"})
    for told in (*answers, as_text(refused.text)):
        assert "What to do:" in told and "command again" not in told and "this command" not in told, told
        assert "Back to pipeline orders" in told


def test_an_epoch_that_there_is_not_leads_back_to_its_pipeline_and_a_broken_pipeline_not_to_itself(
    ledgers: Ledgers, ada: Browser
) -> None:
    ledgers.epoch()
    missing = ada.client.get(f"{ORDERS}/epochs/99", headers={"Accept": "text/html"})
    assert missing.status_code == 404 and f'<a href="{ORDERS}">orders</a>' in missing.text
    [record] = ledgers.root.glob("orders/epochs/*1/complete.json")
    record.write_text("{")
    broken = ada.client.get(ORDERS, headers={"Accept": "text/html"})
    assert broken.status_code == 500 and ORDERS not in broken.text


LIVE = '<main id="main" data-live>'
"""The script asks for such a page again, and shows the answer in its place."""


def test_the_script_asks_again_for_pages_that_show_a_ledger_and_for_no_form_or_error(
    ledgers: Ledgers, ada: Browser
) -> None:
    ledgers.unfinished(decided=False)
    for path in ("/epochs/", ORDERS, f"{ORDERS}/epochs/1", "/epochs/dags/orders_dag/runs/other"):
        assert LIVE in ada.page(path), path
    for path in (ABORT, TAKEOVER):
        assert LIVE not in ada.page(path), path
    refused = ada.post(ABORT, {**fields_of(ada.page(ABORT)), "why": ""})
    assert refused.status_code == 409 and LIVE not in refused.text


def test_an_action_of_which_nobody_knows_whether_it_happened_says_that_it_did_not_end(
    ledgers: Ledgers, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers.unfinished(decided=False)
    form = fields_of(ada.page(ABORT))

    def no_answer(*of: object) -> str:
        raise OutcomeUnknown("The store does not answer.", remedy="Look at the pipeline again.")

    monkeypatch.setattr(Abort, "do", no_answer)
    answer = ada.post(ABORT, {**form, "why": "so"})
    assert answer.status_code == 500
    assert "<h1>The action did not end</h1>" in answer.text and "Look at the pipeline again." in answer.text


def test_airflows_audit_log_files_an_action_under_the_dag_that_owns_the_pipeline(
    ledgers: Ledgers, ada: Browser
) -> None:
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    ledgers.epoch("audited")
    path = PAUSE.replace("/orders/", "/audited/")
    form = {**fields_of(ada.page(path)), "why": "so", "dag_id": "payroll"}
    assert ada.post(path, form).status_code == 303
    with create_session() as session:
        rows = session.query(Log.dag_id, Log.extra).filter(Log.event == "epochs_pause").all()
    assert [dag_id for dag_id, extra in rows if json.loads(extra or "{}")["pipeline"] == "audited"] == ["audited_dag"]


def test_airflows_audit_log_has_the_action_and_the_user(ledgers: Ledgers, ada: Browser) -> None:
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    ledgers.unfinished(decided=False, pipeline="orders")
    txn = fields_of(ada.page(ABORT))["txn_id"]
    done(ada, ABORT)
    with create_session() as session:
        rows = session.query(Log.event, Log.owner, Log.dag_id, Log.extra).filter(Log.event == "epochs_abort").all()
    told = [(owner, dag_id) for _, owner, dag_id, extra in rows if json.loads(extra or "{}").get("txn_id") == txn]
    assert told == [("ada", "orders_dag")]
