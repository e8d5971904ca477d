"""Whoever can add a file to the ledger does not own the worker: what a forged record names stays as it is."""

from __future__ import annotations

import json
import os
import socket
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import DecisionKind, DecisionRecord, JsonDict, Receipt, RestagedRecord
from tests.support.faults_history import finished
from tests.support.faults_world import DiskWorld, start
from tests.support.forging import NONCE, alter, decided, files_below, opened, own_places, plant, tried

MODULE = "a_module_that_nobody_asked_for"


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the module leaves behind if it is imported."""
    folder, trace = tmp_path / "path", tmp_path / "imported"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Sink: ...\n")
    monkeypatch.syspath_prepend(folder)
    return trace


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("is_decided", [True, False])
def test_a_sink_class_that_only_a_record_names_is_not_imported(
    world: DiskWorld, importable: Path, is_decided: bool, number: int
) -> None:
    attempt = opened(world, {"orders": {"kind": f"{MODULE}:Sink"}})
    plant(world, attempt)
    plant(world, tried(attempt, own_places(attempt)))
    if is_decided:
        plant(world, decided(attempt, own_places(attempt)))
    before = world.snapshot_of_tables()
    error = world.run(number)
    assert not importable.exists() and MODULE not in sys.modules
    assert isinstance(error, Refused), error
    assert (error.epoch, error.attempt, error.sink) == (2, 1, "orders")
    assert f"kind '{MODULE}:Sink'" in error.what and "airflow_epochs.sinks" in error.remedy
    assert world.snapshot_of_tables() == before


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": "audit"}, "the record gives it the name 'audit'"),
        ({"name": "../orders"}, "The sink name '../orders' is not valid"),
        ({"partition_by": 7}, "TypeError"),
        ({"table": {"x": {}}}, "table: Expected `str`, got `object`"),
        ({"mode": "of its own"}, "mode"),
    ],
)
def test_a_record_that_describes_no_sink_or_another_one_is_named(
    world: DiskWorld, changed: dict[str, object], told: str
) -> None:
    attempt = opened(world, {"orders": changed})
    path = plant(world, attempt)
    plant(world, decided(attempt, own_places(attempt)))
    before = world.snapshot_of_tables()
    error = world.run(2)
    assert isinstance(error, Corrupt), error
    assert str(path.relative_to(world.ledger_root)) in error.what and told in error.what
    assert world.snapshot_of_tables() == before


def of_somebody_else(folder: Path, name: str = "numpy.orders", epoch: int = 2) -> Path:
    """A folder that is none of ours, and has the shape of a staging folder."""
    place = folder / "site-packages" / name / f"{epoch}-1-{NONCE}"
    place.mkdir(parents=True)
    (place / "module.py").write_text("pass\n")
    return place


@pytest.mark.parametrize("how", ["decided", "aborted", "undecided"])
def test_a_ledger_id_with_dots_leads_nowhere(world: DiskWorld, how: str) -> None:
    of_somebody_else(world.folder)
    before = files_below(world.folder / "site-packages")
    attempt, other = opened(world), "../../site-packages/numpy"
    path = plant(world, attempt)
    alter(path, attempt.ledger_id, other)
    plant(world, tried(attempt, {n: p.replace(attempt.ledger_id, other) for n, p in own_places(attempt).items()}))
    decision = decided(attempt, own_places(attempt))
    assert Path(own_places(attempt)["orders"].replace(attempt.ledger_id, other)).is_dir()
    if how != "undecided":
        kind = DecisionKind.GLOBAL_COMMIT if how == "decided" else DecisionKind.GLOBAL_ABORT
        plant(world, replace(decision, decision=kind, votes=decision.votes if how == "decided" else {}))
    tables = world.snapshot_of_tables()
    error = world.run(2)
    assert isinstance(error, Corrupt), error
    assert str(path.relative_to(world.ledger_root)) in error.what and "ledger name" in error.what
    assert files_below(world.folder / "site-packages") == before
    assert world.snapshot_of_tables() == tables


def test_the_records_of_another_ledger_delete_nothing_of_its_tables(tmp_path: Path) -> None:
    theirs, ours = (DiskWorld(tmp_path / name) for name in ("theirs", "ours"))
    for world in (theirs, ours):
        world.folder.mkdir()
        start(world)
    left = theirs.crash_at("stage.done")
    attempt = theirs.ledger.view(2).opened
    path = plant(ours, replace(attempt, ledger=str(ours.ledger_root)))
    for record in theirs.ledger.tries(2):
        plant(ours, record)
    before = theirs.snapshot()
    error = ours.run(3)
    assert isinstance(error, Corrupt), error
    assert str(path.relative_to(ours.ledger_root)) in error.what
    assert f"it belongs to ledger {attempt.ledger_id}" in error.what
    assert theirs.snapshot() == before
    assert theirs.run(3) is None
    finished(theirs, left)


def staged_in(world: DiskWorld, sink: str = "orders") -> DecisionRecord:
    """The decision of an epoch in doubt."""
    world.crash_at("decision.landed")
    decision = world.ledger.view(2).decision
    assert decision and decision.votes[sink].staged
    return decision


def named(decision: DecisionRecord, place: str) -> DecisionRecord:
    """The decision with another place for ``orders``."""
    vote = decision.votes["orders"]
    assert vote.staged
    return replace(
        decision, votes={**decision.votes, "orders": replace(vote, staged=replace(vote.staged, place=place))}
    )


ELSEWHERE = [
    lambda place: f"{place}/..",
    lambda place: f"{place}/../../../../audit",
    lambda place: place.replace("/orders/epochs/", "/audit/epochs/"),
    lambda place: place.replace(".orders/", ".audit/"),
    lambda place: place.replace("/2-1-", "/1-1-"),
    lambda place: place.replace("/2-1-", "/2-2-"),
    lambda place: place.replace("/2-1-", "/x/../2-1-"),
    lambda place: "/etc",
    lambda place: "",
]


@pytest.mark.few(6)
@pytest.mark.parametrize("elsewhere", ELSEWHERE)
@pytest.mark.parametrize("number", [2, 3])
def test_a_decision_that_names_another_place_is_corrupt_and_nothing_is_read_there(
    world: DiskWorld, number: int, elsewhere: Callable[[str], str]
) -> None:
    decision = staged_in(world)
    staged = decision.votes["orders"].staged
    assert staged
    left = world.left()
    path = plant(world, named(decision, elsewhere(staged.place)))
    before = world.snapshot_of_tables()
    error = world.run(number)
    assert isinstance(error, Corrupt), error
    assert str(path.relative_to(world.ledger_root)) in error.what and error.sink == "orders"
    assert {name: digest for name, digest in before.items() if "/orders/" in name} == {
        name: digest for name, digest in world.snapshot_of_tables().items() if "/orders/" in name
    }
    plant(world, decision)
    assert world.run(number) is None
    finished(world, left)


def test_what_was_staged_again_in_another_place_is_corrupt(world: DiskWorld) -> None:
    decision = staged_in(world)
    left = world.left()
    staged = decision.votes["orders"].staged
    assert staged
    place = staged.place.replace("/orders/epochs/", "/audit/epochs/")
    path = plant(
        world,
        RestagedRecord(
            txn_id=decision.txn_id,
            sink="orders",
            number=1,
            staged=replace(staged, place=place),
            at="now",
            writer="somebody",
        ),
    )
    error = world.run(2)
    assert isinstance(error, Corrupt), error
    assert str(path.relative_to(world.ledger_root)) in error.what
    path.unlink()
    assert world.run(2) is None
    finished(world, left)


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_a_try_that_names_another_place_clears_nothing_away(
    world: DiskWorld, elsewhere: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    world.crash_at("stage.done")
    attempt = world.ledger.view(2).opened
    [mine] = world.ledger.tries(2)
    places = {name: elsewhere(place) for name, place in mine.places.items()}
    plant(world, replace(mine, try_id=NONCE, places=places))
    first = {name: digest for name, digest in world.snapshot_of_tables().items() if "/2-" not in name}
    assert world.run(3) is None
    assert first.items() <= world.snapshot_of_tables().items()
    assert f"as a staging place of {attempt.txn_id}, but this attempt cannot have made it" in caplog.text
    assert world.rows("orders") == world.rows("audit") == sorted(world.source.all_rows())


def test_a_receipt_that_names_another_place_takes_no_rows_away(world: DiskWorld) -> None:
    decision = staged_in(world)
    receipt = Receipt(
        txn_id=decision.txn_id,
        sink="orders",
        rows=5,
        files=1,
        bytes=1,
        version=1,
        committed_at="now",
        place=str(of_somebody_else(world.folder)),
    )
    before = files_below(world.folder / "site-packages")
    plant(world, receipt)
    error = world.run(2)
    assert files_below(world.folder / "site-packages") == before
    assert error is None
    assert world.rows("orders") == sorted(world.source.all_rows())


@pytest.mark.parametrize("session_id", ["java", "", "--session", 7, ["x"], f"{uuid.UUID(int=1)};token=x"])
def test_a_try_whose_session_is_none_is_corrupt_and_no_process_is_ended(
    world: DiskWorld, monkeypatch: pytest.MonkeyPatch, session_id: object
) -> None:
    world.crash_at("stage.done")
    session = {"kind": "spark_submit", "host": socket.gethostname(), "conn_id": "spark"}
    [mine] = world.ledger.tries(2)
    path = plant(world, replace(mine, try_id=NONCE, session={**session, "session_id": str(uuid.UUID(int=1))}))
    alter(path, f'"{uuid.UUID(int=1)}"', json.dumps(session_id))
    stopped: list[JsonDict] = []
    coordinator = world.coordinator()
    monkeypatch.setattr(coordinator.task.env.spark, "stop", stopped.append)
    error = world.run(2, coordinator)
    assert isinstance(error, Corrupt), error
    assert str(path.relative_to(world.ledger_root)) in error.what and "not a Spark session" in error.what
    assert stopped == []


NESTED = 200_000


def a_deep_one(path: Path) -> None:
    alter(path, '"format":1', '"later":' + "[" * NESTED + "]" * NESTED + ',"format":1')


def a_huge_one(path: Path) -> None:
    """It takes no room on the disk, and reading it whole would take all memory."""
    with path.open("r+b") as file:
        file.truncate(1 << 40)


def one_that_never_comes(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.few(6)
@pytest.mark.parametrize("spoil", [a_deep_one, a_huge_one, one_that_never_comes])
@pytest.mark.parametrize("name", ["pipeline.json", "open.json", "decision.json", "complete.json"])
def test_a_record_that_would_take_all_memory_or_time_is_corrupt_and_named(
    world: DiskWorld, name: str, spoil: Callable[[Path], None]
) -> None:
    left = world.crash_at("decision.landed")
    path = max(world.records.rglob(f"*{name}"))
    sound = path.read_bytes()
    spoil(path)
    error = world.run(2)
    assert isinstance(error, Corrupt), error
    assert str(path.relative_to(world.ledger_root)) in error.what
    path.unlink()
    path.write_bytes(sound)
    assert world.run(2) is None
    finished(world, left)
