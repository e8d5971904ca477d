"""Two ways to look at a table agree, and the short one knows when it cannot tell."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from airflow_epochs import codes
from airflow_epochs.delta import snapshot as delta_snapshot
from airflow_epochs.delta import table as delta_table
from airflow_epochs.delta.snapshot import LogPosition, Snapshot, position_at, read_snapshot, snapshot_from
from airflow_epochs.delta.table import App, CannotOpen, TableLocation
from airflow_epochs.errors import Corrupt, NotApplied
from airflow_epochs.model import Marker, RestorePoint, TransactionId
from airflow_epochs.sinks.delta.restore import _require_same_columns as require_same_columns
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.delta.state import table_log
from airflow_epochs.sinks.delta.state.view import ReadableState
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.sources.delta.table_now import TableNow, look
from airflow_epochs.storage.local import LocalFiles
from tests.support.delta_world import attempt_of, ids_in, promised, rows, run_epoch, stage, transaction
from tests.support.environment import Environment

OURS, OTHERS = App.of("orders", "bronze"), App.of("returns", "bronze")


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = str(tmp_path / "orders")
    write_deltalake(path, rows(0))
    return path


@pytest.fixture
def location(table: str) -> TableLocation:
    return TableLocation(table, table, {})


@pytest.fixture
def position(location: TableLocation) -> LogPosition:
    found = read_snapshot(location, OURS).position
    assert found is not None
    return found


def go_on(position: LogPosition, location: TableLocation) -> Snapshot | None:
    return snapshot_from(position, OURS, location.files)


def signed(table: str, app: App, txn: TransactionId, *, by_spark: bool = False) -> None:
    note = json.dumps({"airflow_epochs": {"app": app.epoch, "txn": str(txn)}})
    names = (
        {app.epoch: txn.epoch} if by_spark else {app.epoch: txn.epoch, app.token: txn.token, app.token_epoch: txn.epoch}
    )
    write_deltalake(
        table,
        rows(txn.epoch),
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": note},
            app_transactions=[Transaction(name, version, 1) for name, version in names.items()],
        ),
    )


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(8))
def test_both_ways_see_the_same_version_marker_and_commit(
    table: str, location: TableLocation, position: LogPosition, seed: int
) -> None:
    dice = random.Random(seed)
    epoch = 0
    for _ in range(8):
        match dice.choice(["ours", "spark", "theirs", "append", "compact", "delete"]):
            case "ours" | "spark" as way:
                epoch += 1
                signed(table, OURS, transaction(epoch), by_spark=way == "spark")
            case "theirs":
                signed(table, OTHERS, transaction(epoch + 1, pipeline="returns"))
            case "append":
                write_deltalake(table, rows(1), mode="append")
            case "compact":
                DeltaTable(table).optimize.compact()
            case "delete":
                DeltaTable(table).delete("id = 1")
        full, short = read_snapshot(location, OURS), go_on(position, location)
        assert short is not None
        assert (short.version, short.marker, short.position) == (full.version, full.marker, full.position)
        assert delta_snapshot.commit_of(short, OURS, location.files) == delta_snapshot.commit_of(
            full, OURS, location.files
        )
        if dice.random() < 0.3 and short.position:
            position = short.position


def cleaned_up(table: str) -> None:
    for number in range(3):
        write_deltalake(table, rows(number), mode="append")
    DeltaTable(table).create_checkpoint()
    for version in (1, 2):
        Path(table, "_delta_log", f"{version:020}.json").unlink()


def replaced(table: str) -> None:
    shutil.rmtree(table)
    write_deltalake(table, rows(5))


@pytest.mark.parametrize(
    "change",
    [
        lambda table: DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"}),
        lambda table: DeltaTable(table).alter.add_constraint({"small": "id < 100"}),
        lambda table: write_deltalake(table, rows(1, x=[1]), mode="append", schema_mode="merge"),
        cleaned_up,
        replaced,
        shutil.rmtree,
    ],
)
def test_the_short_way_asks_deltalake_when_it_cannot_tell(
    table: str, location: TableLocation, position: LogPosition, change: Callable[[str], None]
) -> None:
    change(table)
    assert go_on(position, location) is None


def test_the_short_way_ends_after_too_many_entries(
    table: str, location: TableLocation, position: LogPosition, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        write_deltalake(table, rows(number), mode="append")
    monkeypatch.setattr(delta_snapshot, "ENTRIES_MAX", 5)
    assert go_on(position, location) is not None
    monkeypatch.setattr(delta_snapshot, "ENTRIES_MAX", 4)
    assert go_on(position, location) is None


@pytest.mark.parametrize("marker", [None, Marker(3, 9), Marker(3, None)])
def test_a_position_survives_json(location: TableLocation, marker: Marker | None) -> None:
    position = position_at(0, marker, location.files)
    assert position is not None
    assert LogPosition.from_json(json.loads(json.dumps(position.as_json()))) == position


@pytest.mark.proof
def test_a_commit_costs_the_same_however_long_the_log_is(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, world = DeltaSink("bronze", table, checkpoint_every=10), Environment()
    first, second, third = (transaction(epoch) for epoch in (1, 2, 3))
    run_epoch(sink, first, None, rows(1), world)
    read, names, reads = LocalFiles.read, LocalFiles.names, list[str]()

    def noting(files: LocalFiles, path: str) -> bytes | None:
        reads.append(path)
        return read(files, path)

    def listing(files: LocalFiles, folder: str) -> set[str]:
        assert folder.startswith("epochs/"), "the table's own log was listed"
        return names(files, folder)

    def committed(txn: TransactionId, previous: TransactionId) -> int:
        attempt = attempt_of(txn, previous)
        staged = promised(sink.vote(attempt, stage(sink, attempt, rows(txn.epoch), world), world))
        with monkeypatch.context() as patched:
            patched.setattr(LocalFiles, "read", noting)
            patched.setattr(LocalFiles, "names", listing)
            patched.setattr(delta_snapshot, "open_table", lambda location: pytest.fail("deltalake lists the log"))
            reads.clear()
            sink.commit(attempt, staged, world)
        return len(reads)

    young = committed(second, first)
    for version in range(DeltaTable(table).version() + 1, 1_000):
        entry = {"commitInfo": {"timestamp": 1, "operation": "WRITE"}}
        Path(table, "_delta_log", f"{version:020}.json").write_text(json.dumps(entry))
    sink.maintain("orders", 2, world)
    assert committed(third, second) == young
    assert ids_in(table) == [0, 1, 2, 3]


def test_a_stale_look_below_the_newest_checkpoint_is_not_taken_for_a_commit(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that slept while the log was cleaned up would find its version free again."""
    sink, world = DeltaSink("bronze", table), Environment()
    attempt = attempt_of(transaction(1))
    staged = promised(sink.vote(attempt, stage(sink, attempt, rows(1), world), world))

    def clean_up() -> None:
        world.at.clear()
        cleaned_up(table)
        Path(table, "_delta_log", f"{0:020}.json").unlink()

    world.at["delta.commit.before"] = clean_up
    sink.commit(attempt, staged, world)
    assert ids_in(table) == [0, 0, 1, 1, 2]
    assert sink.last_committed("orders", world) == Marker.of(attempt.txn)


VANISHED = "Kernel error: File not found: orders/_delta_log/00000000000000000003.json"
"""What deltalake 1.6.6 says of a log entry that it has listed and that is gone when it reads it."""


class Vanishing:
    """Opens tables, but fails the first times as deltalake does while somebody else cleans the log up."""

    def __init__(self, times: int, message: str = VANISHED) -> None:
        self.left, self.message, self.real = times, message, DeltaTable

    def __call__(self, *args: Any, **options: Any) -> DeltaTable:
        if self.left:
            self.left -= 1
            raise DeltaError(self.message)
        return self.real(*args, **options)


def test_a_log_entry_that_vanishes_after_it_was_listed_has_the_log_listed_again(
    location: TableLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanishing = Vanishing(2)
    monkeypatch.setattr("deltalake.DeltaTable", vanishing)
    assert read_snapshot(location, OURS).version == 0
    assert vanishing.left == 0


@pytest.mark.proof
@pytest.mark.parametrize(("message", "asked"), [(VANISHED, 4), ("Unknown reader feature", 1)])
def test_a_log_that_stays_broken_is_told_after_a_few_looks_and_another_trouble_at_once(
    location: TableLocation, monkeypatch: pytest.MonkeyPatch, message: str, asked: int
) -> None:
    vanishing = Vanishing(100, message)
    monkeypatch.setattr("deltalake.DeltaTable", vanishing)
    with pytest.raises(CannotOpen, match=message):
        read_snapshot(location, OURS)
    assert vanishing.left == 100 - asked


FAILED = "Kernel error: Arrow error: External: "
CHECKPOINT = "orders/_delta_log/00000000000000000002.checkpoint.parquet"
GET = f"Error performing GET http://s3/lake/{CHECKPOINT} in 2.66ms"
STORE_FAILED = (
    f"{FAILED}Generic S3 error: {GET}, after 10 retries, max_retries: 10, retry_timeout: 180s  - Server returned "
    "non-2xx status code: 503 Service Unavailable: ",
    f"{FAILED}The operation lacked the necessary privileges to complete for path {CHECKPOINT}: {GET} - Server returned "
    "non-2xx status code: 403 Forbidden: ",
    f"{FAILED}The operation lacked valid authentication credentials for path {CHECKPOINT}: {GET} - Server returned "
    "non-2xx status code: 401 Unauthorized: ",
)
"""What deltalake 1.6.6 says if it cannot read a checkpoint: as a DeltaError, not an OSError."""
GONE = (
    f"{FAILED}Object at location {CHECKPOINT} not found: {GET} - Server returned non-2xx status code: 404 Not Found: ",
    "Kernel error: Generic delta kernel error: LogSegment end version 3 not the same as the specified end version 17",
    "Generic DeltaTable error: the log is damaged",
)


SINK = DeltaSink("orders", "/lake/orders")
LOOKS: dict[str, Callable[[TableLocation, TableNow], object]] = {
    "target": lambda location, now: Target.seen(location, OURS, Environment()),
    "snapshot": lambda location, now: read_snapshot(location, OURS),
    "source": lambda location, now: look(location, feed=False),
    "version of a source": lambda location, now: now.at(0),
    "columns of a source": lambda location, now: now.known_shape_at(0),
    "state": lambda location, now: table_log.files_at(location, 0),
    "state, to read": lambda location, now: readable_state(location).to_arrow(),
    "restore": lambda location, now: require_same_columns(SINK, location, now.shape, RestorePoint(epoch=0, version=0)),
}
"""Every way to open a table, or a version of it."""


def readable_state(location: TableLocation) -> ReadableState:
    facts: dict[str, Any] = {"columns": ("id",), "keys": ("id",), "expires": None, "hidden_to": None, "options": {}}
    return ReadableState(name="s", table=location.url, version=0, epoch=1, files=1, bytes=1, **facts)


@pytest.mark.parametrize("said", STORE_FAILED, ids=["503", "403", "401"])
@pytest.mark.parametrize("way", LOOKS)
def test_a_checkpoint_that_the_store_does_not_give_says_nothing_of_the_table(
    location: TableLocation, monkeypatch: pytest.MonkeyPatch, way: str, said: str
) -> None:
    now = look(location, feed=False)
    monkeypatch.setattr("deltalake.DeltaTable", Vanishing(100, said))
    with pytest.raises(NotApplied) as raised:
        LOOKS[way](location, now)
    assert raised.value.code is codes.DELTA_UNREACHABLE and "Error performing GET" in raised.value.what


@pytest.mark.parametrize("said", GONE)
def test_a_checkpoint_that_is_gone_or_damaged_is_no_store_that_fails(
    location: TableLocation, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    now = look(location, feed=False)
    monkeypatch.setattr(delta_table, "_LISTED_AGAIN_S", ())
    monkeypatch.setattr("deltalake.DeltaTable", Vanishing(100, said))
    target = Target.seen(location, OURS, Environment())
    assert target.problem is not None and target.problem in said
    assert now.known_shape_at(0) is None
    with pytest.raises(Corrupt) as raised:
        table_log.files_at(location, 0)
    assert raised.value.code is codes.STATE_GONE


def test_a_marker_that_the_store_does_not_give_says_nothing_of_the_table(location: TableLocation) -> None:
    class Opened:
        def transaction_version(self, app: str) -> int:
            raise DeltaError(STORE_FAILED[0])

    target = Target(location, OURS, cast(DeltaTable, Opened()), None, Environment())
    with pytest.raises(NotApplied, match=r"cannot reach the table .*503"):
        target.marker  # noqa: B018
