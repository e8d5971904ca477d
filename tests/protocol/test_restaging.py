"""Staged files vanish after the decision: the epoch is staged again, and still shown exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest

from airflow_epochs import codes
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt, EpochError, Fenced
from airflow_epochs.ledger.keys import LedgerRecord
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import Receipt, TryRecord, Vote, WaivedRecord
from airflow_epochs.protocol import State
from airflow_epochs.staged.digest import CONTENT_OF_STATISTICS, CONTENT_OF_TYPED, CONTENT_SCHEME
from airflow_epochs.testing import Crash, MemorySink, MemorySpark, Observed
from airflow_epochs.testing.environment import MemoryEpoch, MemoryTransform
from airflow_epochs.testing.world import Row
from tests.support.scenario import BOTH, Coded, Scenario, crashes, in_doubt, moments, nested, newest, observed_run, run

SINKS = [("orders",), BOTH]

RECOVERIES: dict[str, int] = {"the same run, cleared": 1, "another run": 2}


def vacuum(scenario: Scenario) -> None:
    """Every place loses its files, but those of which a table shows the rows."""
    for place in list(scenario.world.places):
        scenario.world.vacuum(place)


@dataclass
class VacuumThen:
    """Files vanish as soon as the decision stands; then ``after`` sees all further moments."""

    scenario: Scenario
    after: Observed
    vacuumed: bool = False

    def __call__(self, moment: str) -> None:
        if self.vacuumed:
            self.after(moment)
        elif moment == "decision.landed":
            self.vacuumed = True
            vacuum(self.scenario)


def restaging_run(scenario: Scenario, observed: Observed) -> EpochError | None:
    """Run 1, in which the rows of every sink must be staged again."""
    return observed_run(scenario, 1, VacuumThen(scenario, observed))


def restaging_moments(sinks: tuple[str, ...]) -> list[str]:
    observed = Observed()
    assert restaging_run(Scenario(sinks), observed) is None
    return observed.seen


def finished(scenario: Scenario) -> None:
    """At rest: every record shown once, nothing left behind, and the lost places cleared away."""
    scenario.settle()
    scenario.check_every_row()


def test_the_phases_of_staging_again_come_in_this_order() -> None:
    assert [moment for moment in restaging_moments(("orders",)) if " " not in moment] == [
        "commit.orders",
        "restage.orders",
        "stage.start",
        "stage.done",
        "restaged.put",
        "restaged.landed",
        "committed.orders",
        "complete.put",
        "complete.landed",
    ]


@pytest.mark.proof
@pytest.mark.parametrize("sinks", SINKS, ids=len)
def test_files_that_vanish_at_any_moment_after_the_decision_cost_no_epoch(sinks: tuple[str, ...]) -> None:
    seen = moments(sinks)
    for at in range(seen.index("decision.landed"), len(seen)):
        scenario = Scenario(sinks)
        act = nested(scenario, partial(vacuum, scenario))
        assert observed_run(scenario, 1, Observed(at=at, then=act)) is None
        assert scenario.ledger.newest_complete() == 1
        scenario.check_every_row()
        finished(scenario)


@pytest.mark.parametrize("sinks", SINKS, ids=len)
def test_only_the_sink_whose_files_are_gone_is_staged_again_and_its_receipt_names_the_place(
    sinks: tuple[str, ...],
) -> None:
    scenario = Scenario(sinks)
    in_doubt(scenario)
    view = newest(scenario)
    assert view.decision
    voted = view.decision.votes["orders"].staged
    assert voted
    scenario.world.vacuum(voted.place)
    spark = MemorySpark()
    coordinator = scenario.coordinator(spark=spark)
    for sink in sinks:
        coordinator.commit(run(1), sink)
    assert [set(job.args["sinks"]) for job in spark.jobs] == [{"orders"}]
    (again,) = scenario.ledger.restaged(1, "orders")
    receipts = scenario.ledger.view(1).receipts
    assert again.staged.place == receipts["orders"].place != voted.place
    assert again.staged.digest == voted.digest
    coordinator.complete(run(1))
    assert scenario.world.place(voted.place) is None
    finished(scenario)


@pytest.mark.proof
@pytest.mark.few(3)
@pytest.mark.parametrize("sinks", SINKS, ids=len)
@pytest.mark.parametrize("gone_again", [False, True], ids=["files stay", "files vanish again"])
@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_crash_at_any_moment_of_staging_again_leaves_exactly_one_epoch(
    sinks: tuple[str, ...], gone_again: bool, recovery: str
) -> None:
    for at in range(len(restaging_moments(sinks))):
        scenario = Scenario(sinks)
        assert crashes(partial(restaging_run, scenario, Observed(at=at)))
        if gone_again:
            vacuum(scenario)
        assert scenario.airflow_run(run(RECOVERIES[recovery])) is None
        assert scenario.ledger.newest_complete() == 1
        finished(scenario)


def commit_all(scenario: Scenario) -> None:
    for sink in scenario.sinks:
        scenario.coordinator().commit(run(1), sink)


def die_on_record(scenario: Scenario) -> None:
    """Another actor stages again, and dies once that is on record."""

    def observer(moment: str) -> None:
        if moment == "restaged.landed":
            raise Crash(moment)

    assert crashes(lambda: scenario.coordinator(observer=observer).commit(run(1), "orders"))


def two_whole_runs(scenario: Scenario) -> None:
    scenario.airflow_run(run(2))
    scenario.produce(2)
    scenario.airflow_run(run(3))


TASKS: list[Callable[[Coordinator], object]] = [lambda c: c.commit(run(1), "orders"), lambda c: c.open(run(2))]
OTHERS: dict[str, Callable[[Scenario], object]] = {
    "commits": commit_all,
    "is a whole run": lambda scenario: scenario.airflow_run(run(2)),
    "is two whole runs": two_whole_runs,
}


@pytest.mark.proof
@pytest.mark.few(4)
@pytest.mark.parametrize("sinks", SINKS, ids=len)
@pytest.mark.parametrize("keep_epochs", [1000, 0], ids=["kept", "pruned at once"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_process_that_is_overtaken_at_any_moment_of_staging_again_changes_nothing(
    sinks: tuple[str, ...], keep_epochs: int, other: str
) -> None:
    for at in range(len(restaging_moments(sinks))):
        scenario = Scenario(sinks, keep_epochs)
        shown: list[object] = []

        def act(scenario: Scenario = scenario, shown: list[object] = shown) -> None:
            OTHERS[other](scenario)
            shown.append(dict(scenario.world.tables))

        error = restaging_run(scenario, Observed(at=at, then=nested(scenario, act)))
        assert not isinstance(error, Corrupt), "a late process is no reason to call a human"
        assert scenario.world.tables == shown[0]
        scenario.check_every_row()
        if keep_epochs:
            finished(scenario)


def test_of_two_that_stage_again_the_second_obeys_the_first_and_clears_its_own_place_away() -> None:
    scenario = Scenario()
    in_doubt(scenario)
    vacuum(scenario)

    def observer(moment: str) -> None:
        if moment == "restaged.put":
            die_on_record(scenario)

    scenario.coordinator(observer=observer).commit(run(1), "orders")
    (record,) = scenario.ledger.restaged(1, "orders")
    assert scenario.ledger.view(1).receipts["orders"].place == record.staged.place
    assert len(scenario.world.places) == 2, "the lost place and the one on record"
    finished(scenario)


@pytest.mark.parametrize("dies", [False, True], ids=["and acknowledged", "by a process that dies then"])
def test_a_lost_place_that_is_published_after_all_is_the_one_that_is_kept(dies: bool) -> None:
    """A late committer has read the ledger before anything stood in, and the files were restored from a backup."""
    scenario = Scenario()
    in_doubt(scenario)
    (lost,) = scenario.world.places.items()

    def meanwhile() -> None:
        vacuum(scenario)
        die_on_record(scenario)
        scenario.world.places[lost[0]] = lost[1]

    act = nested(scenario, meanwhile)

    def observer(moment: str) -> None:
        if moment.startswith("before publish"):
            act()
        if moment == "committed.orders" and dies:
            raise Crash(moment)

    scenario.world.observe(observer)
    assert crashes(lambda: scenario.coordinator(observer=observer).commit(run(1), "orders")) == dies
    scenario.world.observe(lambda moment: None)
    scenario.coordinator().commit(run(1), "orders")
    assert [commit.place for commit in scenario.world.tables["orders"]] == [lost[0]]
    assert scenario.ledger.view(1).receipts["orders"].place == lost[0]
    scenario.coordinator().complete(run(1))
    assert set(scenario.world.places) == {lost[0]}
    finished(scenario)


def test_a_sink_that_has_forgotten_which_place_it_took_keeps_the_one_that_stands_in() -> None:
    scenario = Scenario()
    in_doubt(scenario)
    vacuum(scenario)

    def observer(moment: str) -> None:
        if moment == "committed.orders":
            raise Crash(moment)

    assert crashes(lambda: scenario.coordinator(observer=observer).commit(run(1), "orders"))
    (record,) = scenario.ledger.restaged(1, "orders")
    opened = newest(scenario).opened
    forgotten = Receipt(
        txn_id=opened.txn_id, sink="orders", rows=10, files=1, bytes=1, version=None, committed_at="unknown"
    )
    scenario.ledger.put(forgotten)
    scenario.coordinator().complete(run(1))
    place = scenario.world.place(record.staged.place)
    assert place and place.files and not place.log
    scenario.check_every_row()


@pytest.mark.parametrize("moment", ["restage.orders", "stage.start", "stage.done", "restaged.put", "restaged.landed"])
def test_a_waiver_in_the_midst_of_staging_again_never_costs_rows_that_are_shown(moment: str) -> None:
    scenario = Scenario()
    in_doubt(scenario)
    vacuum(scenario)
    txn = newest(scenario).opened.txn_id

    def waive() -> None:
        scenario.ledger.put(WaivedRecord(txn_id=txn, sink="orders", who="me", why="gone", at="now"))
        scenario.coordinator().complete(run(1))

    act = nested(scenario, waive)
    late = scenario.coordinator(observer=lambda reached: act() if reached == moment else None)
    try:
        late.commit(run(1), "orders")
    except Fenced:
        assert moment not in ("restaged.put", "restaged.landed")
    assert bool(scenario.world.table("orders").commits) == (moment in ("restaged.put", "restaged.landed"))
    scenario.produce(2)
    assert scenario.airflow_run(run(2)) is None
    shown = scenario.world.table("orders").values()
    assert len(set(shown)) == len(shown) in (2, 12)


# -- what cannot be had again ---------------------------------------------------------------------------------------


def fewer(batch: list[Row], epoch: MemoryEpoch) -> list[Row]:
    return batch[1:]


def other_values(batch: list[Row], epoch: MemoryEpoch) -> list[Row]:
    return [row._replace(value=(epoch.seed, index)) for index, row in enumerate(batch)]


def broken(batch: list[Row], epoch: MemoryEpoch) -> dict[str, str]:
    return {"orders": "column 'id' is gone"}


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (fewer, "9 rows instead of 10"),
        (other_values, "the numbers of rows and files are the same, but"),
        (broken, "column 'id' is gone"),
    ],
)
def test_rows_that_come_out_differently_are_refused_and_nothing_is_changed(
    transform: MemoryTransform, why: str
) -> None:
    scenario = Scenario()
    in_doubt(scenario)
    vacuum(scenario)
    before = facts(scenario)
    for task in TASKS:
        with pytest.raises(Corrupt) as caught:
            task(scenario.coordinator(spark=MemorySpark(transform)))
        assert why in caught.value.what
        assert "airflow epochs waive orders 1 orders" in caught.value.remedy
        assert facts(scenario) == before
    scenario.coordinator().commit(run(1), "orders")  # the transform was put back
    finished(scenario)


def with_letters(scenario: Scenario, then: bool) -> Coordinator:
    """One that lacks the staged rows of a decision and makes fewer: with dead letters then, or only now."""
    task = scenario.coordinator()
    task.open(run(1))
    report = task.stage(run(1)).stage
    assert report
    task.vote(run(1), replace(report, metrics={"dead_letter_sink": "audit"} if then else {}))
    vacuum(scenario)
    late = scenario.coordinator(spark=MemorySpark(fewer)).task
    late.pipeline = replace(late.pipeline, dead_letters=None if then else "audit")
    return Coordinator(late)


@pytest.mark.parametrize("then", [True, False], ids=["at the vote", "since"])
def test_where_rows_become_dead_letters_rows_that_come_out_differently_may_be_judged_differently(then: bool) -> None:
    scenario = Scenario(BOTH)
    with pytest.raises(Corrupt, match=r"9 rows instead.*`dead_letters`.*are what they were at the vote\. Nothing"):
        with_letters(scenario, then).commit(run(1), "orders")


def test_dead_letters_that_come_out_differently_may_be_of_another_version_of_the_provider() -> None:
    scenario = Scenario(BOTH)
    with pytest.raises(Corrupt, match=r"what they were at the vote\. So must be the version of the provider") as caught:
        with_letters(scenario, then=True).commit(run(1), "audit")
    assert "undo the change that the message names" in caught.value.remedy


@pytest.mark.proof
def test_an_equal_digest_by_other_code_is_asked_about_and_the_old_code_keeps_the_promise() -> None:
    scenario = Coded()
    in_doubt(scenario)
    vacuum(scenario)
    before = facts(scenario)
    scenario.code = "new"
    for task in TASKS:
        with pytest.raises(
            Corrupt, match=r"code has changed since its rows were staged \(old then, new now\)"
        ) as caught:
            task(scenario.coordinator())
        assert "Put the transform's file, and the files that it imports, back" in caught.value.remedy
        assert facts(scenario) == before
    scenario.code = "old"
    scenario.coordinator().commit(run(1), "orders")
    scenario.coordinator().complete(run(1))
    scenario.code = "new"
    finished(scenario)


def test_the_code_that_was_deployed_before_the_stage_keeps_the_promise_and_that_of_open_does_not() -> None:
    scenario = Coded()
    scenario.coordinator().open(run(1))
    scenario.code = "new"
    report = scenario.coordinator().stage(run(1)).stage
    assert report
    scenario.coordinator().vote(run(1), report)
    vacuum(scenario)
    scenario.code = "old"
    with pytest.raises(Corrupt, match=r"code has changed since its rows were staged \(new then, old now\)"):
        scenario.coordinator().commit(run(1), "orders")
    scenario.code = "new"
    scenario.coordinator().commit(run(1), "orders")


def test_an_equal_digest_by_another_function_of_the_same_file_is_asked_about_like_changed_files() -> None:
    scenario = Coded()
    in_doubt(scenario)
    vacuum(scenario)
    before = facts(scenario)
    scenario.function = "keep_some"
    with pytest.raises(
        Corrupt, match=r"code has changed since .* \(the function keep_all then, keep_some now\)"
    ) as caught:
        scenario.coordinator().commit(run(1), "orders")
    assert caught.value.code is codes.RESTAGED_BY_OTHER_CODE
    assert "Let `transform` of the DAG name the function keep_all again" in caught.value.remedy
    assert facts(scenario) == before
    scenario.function = "keep_all"
    scenario.coordinator().commit(run(1), "orders")


@pytest.mark.parametrize("noted", [True, False], ids=["a try of today", "a try of an older version"])
def test_the_function_that_staged_the_rows_keeps_the_promise(noted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Coded()
    scenario.coordinator().open(run(1))
    scenario.function = "keep_some" if noted else "keep_all"
    if not noted:  # then it is that of the open record
        put = Ledger.put

        def put_as_older_version(ledger: Ledger, record: LedgerRecord) -> LedgerRecord:
            return put(ledger, replace(record, function=None) if isinstance(record, TryRecord) else record)

        monkeypatch.setattr(Ledger, "put", put_as_older_version)
    report = scenario.coordinator().stage(run(1)).stage
    assert report
    scenario.coordinator().vote(run(1), report)
    vacuum(scenario)
    scenario.coordinator().commit(run(1), "orders")


@pytest.mark.parametrize(("digests", "kept"), [(True, True), (False, False)], ids=["of all values", "of another kind"])
@pytest.mark.parametrize("sinks", [("orders",), ("orders", "audit", "more")], ids=["lost", "gained"])
def test_a_promise_outlives_a_dag_that_gains_or_loses_a_sink_if_the_digest_is_of_all_values(
    sinks: tuple[str, ...], digests: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code had to change with the sinks."""
    if digests:
        monkeypatch.setattr(MemorySink, "vote", with_content(MemorySink.vote))
    scenario = Coded(("orders", "audit"))
    in_doubt(scenario)
    vacuum(scenario)
    today = scenario.with_sinks(*sinks)
    assert isinstance(today, Coded)
    today.code, spark = "new", MemorySpark()
    if not kept:
        with pytest.raises(Corrupt, match="old then, new now"):
            today.coordinator(spark=spark).commit(run(1), "orders")
        return
    today.coordinator(spark=spark).commit(run(1), "orders")
    (job,) = spark.jobs
    assert (job.args["again"], job.args["outputs"], set(job.args["sinks"])) == (True, sorted(sinks), {"orders"})
    assert today.airflow_run(run(2)) is None
    assert today.ledger.newest_complete() == 1
    scenario.check_every_row()


@pytest.mark.parametrize(
    ("scheme", "counted", "by_json"),
    [(CONTENT_OF_TYPED, False, False), (CONTENT_SCHEME, False, True), (CONTENT_OF_STATISTICS, True, True)],
)
def test_rows_that_were_promised_by_an_earlier_digest_are_staged_again_with_what_is_in_it(
    scheme: str, counted: bool, by_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemorySink, "vote", with_content(MemorySink.vote, scheme))
    scenario, spark = Scenario(), MemorySpark()
    in_doubt(scenario)
    vacuum(scenario)
    scenario.coordinator(spark=spark).commit(run(1), "orders")
    (job,) = spark.jobs
    assert (job.args["again"], job.args["statistics"], job.args["files_of_0_1"]) == (True, counted, False)
    assert job.args["variants_by_json"] is by_json


def test_a_column_that_the_vote_promised_to_store_is_not_left_out_because_the_rows_are_staged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def storing(*names: str) -> Callable[..., Vote]:
        def voted(*args: object) -> Vote:
            found = vote(*args)
            assert found.staged
            return replace(found, staged=replace(found.staged, detail={"stored": list(names)}))

        return voted

    vote: Callable[..., Vote] = MemorySink.vote
    scenario = Scenario()
    monkeypatch.setattr(MemorySink, "vote", storing("id", "qty"))
    in_doubt(scenario)
    vacuum(scenario)
    monkeypatch.setattr(MemorySink, "vote", storing("id"))
    with pytest.raises(Corrupt, match="differ from the rows that the sink voted for: the table lacks qty") as lacking:
        scenario.coordinator().commit(run(1), "orders")
    assert lacking.value.code is codes.RESTAGED_OTHERWISE
    monkeypatch.setattr(MemorySink, "vote", storing("qty", "id"))
    scenario.coordinator().commit(run(1), "orders")


def with_content(vote: Callable[..., Vote], scheme: str = "content of ") -> Callable[..., Vote]:
    """As a sink votes that has a digest of the rows alone."""

    def voted(*args: object) -> Vote:
        found = vote(*args)
        assert found.staged
        return replace(found, staged=replace(found.staged, content=f"{scheme}{found.staged.digest}"))

    return voted


def facts(scenario: Scenario) -> tuple[object, ...]:
    """What is decided, shown and staged; the notes about tries are no facts."""
    records = {key: value for key, value in scenario.world.store.values.items() if "/epochs/" in key}
    decided = {key: value for key, value in records.items() if ".try." not in key}
    return dict(scenario.world.tables), dict(scenario.world.places), decided


def test_input_that_is_gone_too_is_named_with_its_offsets() -> None:
    scenario = Scenario()
    in_doubt(scenario)
    vacuum(scenario)
    scenario.world.expire("orders", 0, before=2)
    before = facts(scenario)
    with pytest.raises(
        Corrupt, match=r"are gone. The provider cannot stage these rows again: orders-0: offsets \[0, 2\) are gone"
    ):
        scenario.coordinator().commit(run(1), "orders")
    assert facts(scenario) == before
    assert newest(scenario).state is State.IN_DOUBT


def test_a_failing_spark_leaves_the_epoch_in_doubt_and_the_next_try_goes_on() -> None:
    def fails(batch: list[Row], epoch: MemoryEpoch) -> list[Row]:
        raise ValueError("no memory left")

    scenario = Scenario()
    in_doubt(scenario)
    vacuum(scenario)
    with pytest.raises(EpochError, match="no memory left"):
        scenario.coordinator(spark=MemorySpark(fails)).commit(run(1), "orders")
    assert newest(scenario).state is State.IN_DOUBT
    spark = MemorySpark()
    scenario.coordinator(spark=spark).commit(run(1), "orders")
    assert len(spark.stopped) == 2, "both tries of this sink may still be running"
    finished(scenario)


@pytest.mark.proof
def test_staging_one_sink_again_does_not_stop_what_runs_for_another() -> None:
    scenario = Scenario(BOTH)
    in_doubt(scenario)
    vacuum(scenario)
    spark = MemorySpark()
    other: Coordinator = scenario.coordinator(spark=spark)
    act = nested(scenario, lambda: other.commit(run(1), "audit"))
    scenario.coordinator(observer=lambda m: act() if m == "stage.start" else None).commit(run(1), "orders")
    assert spark.stopped == []
    finished(scenario)


def test_a_record_that_stands_in_for_other_rows_is_never_obeyed() -> None:
    scenario = Scenario()
    in_doubt(scenario)
    vacuum(scenario)
    die_on_record(scenario)
    (record,) = scenario.ledger.restaged(1, "orders")
    other = replace(record, number=2, staged=replace(record.staged, digest="of other rows"))
    scenario.ledger.put(other)
    with pytest.raises(Corrupt, match="contradicts the decision"):
        scenario.coordinator().commit(run(1), "orders")
