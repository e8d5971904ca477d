"""What a state table's log says of its rows. The logs are written by deltalake, as other programs do."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from airflow_epochs import codes
from airflow_epochs.delta.log import entry_of, log_entry
from airflow_epochs.delta.table import TableLocation
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.event_time import micros
from airflow_epochs.sinks.delta.state.table_log import StateFacts, removes, require_unchanged
from orders_demo.duck import duck
from tests.support.remedies import taken_back

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
FACTS = StateFacts(of=2, fold=False, keys=("key",), expires="until", expired_to=None, base=0, changes=0, epochs=0)
LOST = "the state must begin anew."
RULES = {"keys": ["key"], "expires": "until"}


def rows(*minutes: int | None) -> pa.Table:
    """A change per minute after noon at which it expires; None: never."""
    until = [None if minute is None else NOON + timedelta(minutes=minute) for minute in minutes]
    return pa.table(
        {
            "key": [str(number) for number in range(len(minutes))],
            "until": pa.array(until, pa.timestamp("us", "UTC")),
        }
    )


def test_a_state_that_a_newer_version_has_staged_is_left_to_that_version() -> None:
    facts = dict(vars(FACTS))
    assert StateFacts.told(facts) == FACTS
    with pytest.raises(Refused, match="its tomorrow is not known here") as refused:
        StateFacts.told({**facts, "tomorrow": 1})
    assert refused.value.code is codes.LEDGER_TOO_NEW


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Three epochs, a file each: rows that expire after 1, after 2 and 3 minutes, and one of them never."""
    for minutes in ((1,), (2, 3), (1, None)):
        write_deltalake(str(tmp_path / "open"), rows(*minutes), mode="append")
    return DeltaTable(str(tmp_path / "open"))


def location(table: DeltaTable) -> TableLocation:
    path = table.table_uri.removeprefix("file://").rstrip("/")
    return TableLocation(path, path, {})


def after(minutes: float) -> int:
    return micros(NOON + timedelta(minutes=minutes))


def taken(table: DeltaTable, facts: StateFacts) -> set[str]:
    newest = DeltaTable(table.table_uri).version()
    return {action["remove"]["path"] for action in removes(location(table), facts, newest, 7, LOST)}


def of_version(table: DeltaTable, version: int) -> set[str]:
    """The files that a version added."""
    earlier = set(DeltaTable(table.table_uri, version=version - 1).file_uris()) if version else set()
    return {Path(uri).name for uri in set(DeltaTable(table.table_uri, version=version).file_uris()) - earlier}


def test_files_in_which_every_row_has_expired_are_taken_away(table: DeltaTable) -> None:
    assert taken(table, FACTS) == set()
    assert taken(table, replace(FACTS, expired_to=after(1))) == set(), "statistics end at the millisecond"
    assert taken(table, replace(FACTS, expired_to=after(1.1))) == of_version(table, 0)
    assert taken(table, replace(FACTS, expired_to=after(2.9))) == of_version(table, 0)
    assert taken(table, replace(FACTS, expired_to=after(60))) == of_version(table, 0) | of_version(table, 1)


def test_a_fold_takes_every_file_away_that_it_stands_for(table: DeltaTable) -> None:
    assert taken(table, replace(FACTS, fold=True)) == {Path(uri).name for uri in table.file_uris()}
    assert removes(location(table), replace(FACTS, of=None, fold=True), -1, 7, LOST) == []


def test_the_table_without_what_a_fold_takes_away_is_empty_to_others(table: DeltaTable) -> None:
    found = removes(location(table), replace(FACTS, fold=True), 2, 7, LOST)
    location(table).files.write_new(log_entry(3), entry_of([{"commitInfo": {"timestamp": 7}}, *found]))
    assert DeltaTable(table.table_uri).to_pyarrow_table().num_rows == 0
    assert DeltaTable(table.table_uri, version=2).to_pyarrow_table().num_rows == 5


def test_files_that_others_have_rearranged_are_still_the_same_rows(table: DeltaTable) -> None:
    table.optimize.compact()
    require_unchanged(location(table), 2, DeltaTable(table.table_uri).version(), LOST)
    assert taken(table, replace(FACTS, fold=True)) == {
        Path(uri).name for uri in DeltaTable(table.table_uri).file_uris()
    }


CHANGES: dict[str, Any] = {
    "rows are added": lambda table: write_deltalake(table, rows(9), mode="append"),
    "rows are deleted": lambda table: table.delete("key = '0'"),
    "rows are updated": lambda table: table.update({"key": "'x'"}),
    "the table is overwritten": lambda table: write_deltalake(table, rows(9), mode="overwrite"),
    "the table is compacted after rows are added": lambda table: (
        write_deltalake(table, rows(9), mode="append"),
        DeltaTable(table.table_uri).optimize.compact(),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_rows_by_others_stops_the_pipeline_until_it_is_undone(table: DeltaTable, what: str) -> None:
    CHANGES[what](table)
    newest = DeltaTable(table.table_uri).version()
    for look in (
        lambda: require_unchanged(location(table), 2, newest, LOST),
        lambda: removes(location(table), FACTS, newest, 7, LOST),
    ):
        with pytest.raises(Corrupt, match=r"EPOCHS-STATE-CHANGED.* in version 3") as changed:
            look()
    remedy = str(changed.value)
    assert "TO VERSION AS OF 2 in Spark" in remedy and f'DeltaTable("{location(table).url}").restore(2)' in remedy
    DeltaTable(location(table).url).restore(2)
    require_unchanged(location(table), 2, DeltaTable(table.table_uri).version(), LOST)


def changed(table: DeltaTable) -> Corrupt:
    """What is told of the table since version 2."""
    with pytest.raises(Corrupt, match="EPOCHS-STATE-CHANGED") as error:
        require_unchanged(location(table), 2, DeltaTable(table.table_uri).version(), LOST)
    return error.value


@pytest.mark.proof
def test_a_second_change_after_one_that_was_undone_ends_too_by_the_restore_that_is_told(table: DeltaTable) -> None:
    table.delete("key = '0'")
    taken_back(changed(table))
    DeltaTable(table.table_uri).optimize.compact()
    DeltaTable(table.table_uri).delete("key = '1'")
    error = changed(table)
    assert "in version 6." in error.what and "rows of the pipeline is 5." in error.what
    taken_back(error)
    require_unchanged(location(table), 2, DeltaTable(table.table_uri).version(), LOST)
    with duck() as database:
        found = database.execute("SELECT key FROM delta_scan(?) ORDER BY key", [location(table).url]).fetchall()
    assert "".join(key for (key,) in found) == "00011"


def test_a_restore_for_which_files_are_missing_works_once_a_backup_has_put_them_back(table: DeltaTable) -> None:
    folder = Path(location(table).url)
    backup = {file: file.read_bytes() for file in folder.glob("*.parquet")}
    table.delete("key = '0'")
    DeltaTable(folder).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    error = changed(table)
    with pytest.raises(DeltaError, match="missing file"):
        taken_back(error)
    assert (
        "put them back from a backup, and repeat it. If no backup has them, the state must begin anew" in error.remedy
    )
    for file, content in backup.items():
        file.write_bytes(content)
    taken_back(error)
    require_unchanged(location(table), 2, DeltaTable(table.table_uri).version(), LOST)
    assert DeltaTable(folder).to_pyarrow_table().num_rows == 5


def test_files_that_were_rearranged_and_taken_back_are_the_same_rows_and_those_rearranged_while_changed_are_not(
    table: DeltaTable,
) -> None:
    table.optimize.compact()
    DeltaTable(table.table_uri).restore(2)
    require_unchanged(location(table), 2, DeltaTable(table.table_uri).version(), LOST)
    DeltaTable(table.table_uri).restore(3)
    require_unchanged(location(table), 2, DeltaTable(table.table_uri).version(), LOST)
    DeltaTable(table.table_uri).restore(2)
    write_deltalake(table.table_uri, rows(9), mode="append")
    DeltaTable(table.table_uri).optimize.compact()
    assert "is 6." in changed(table).what
    DeltaTable(table.table_uri).restore(7)
    assert "is 6." in changed(table).what


def test_rows_that_a_deletion_vector_takes_away_are_a_change(table: DeltaTable) -> None:
    path = Path(table.file_uris()[0]).name
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "vBn[lx{q8@P<9BNH/isA",
        "offset": 1,
        "sizeInBytes": 36,
        "cardinality": 1,
    }
    actions = [
        {"remove": {"path": path, "dataChange": True}},
        {"add": {"path": path, "dataChange": True, "deletionVector": vector}},
    ]
    location(table).files.write_new(log_entry(3), entry_of(actions))
    with pytest.raises(Corrupt, match="EPOCHS-STATE-CHANGED"):
        require_unchanged(location(table), 2, 3, LOST)


def test_rows_in_the_table_of_a_state_that_begins_are_not_taken_for_state(table: DeltaTable) -> None:
    with pytest.raises(Corrupt, match=r"EPOCHS-STATE-CHANGED.*another program has put rows into its table"):
        removes(location(table), replace(FACTS, of=None), 2, 7, LOST)
    table.delete()
    assert removes(location(table), replace(FACTS, of=None), 3, 7, LOST) == []


def test_a_version_whose_log_is_gone_is_told(table: DeltaTable) -> None:
    with pytest.raises(Corrupt, match=r"EPOCHS-STATE-GONE.*Version 7 of the state table"):
        require_unchanged(location(table), 7, 8, LOST)
    Path(location(table).url, log_entry(1)).unlink()
    with pytest.raises(Corrupt, match="EPOCHS-STATE-GONE"):
        require_unchanged(location(table), 0, 2, LOST)


def test_the_bytes_since_the_last_fold_are_counted(table: DeltaTable) -> None:
    facts = replace(FACTS, base=100, changes=10, epochs=3)
    assert facts.after(7) == {**RULES, "base": 100, "changes": 17, "epochs": 4}
    assert replace(facts, fold=True).after(90) == {**RULES, "base": 90, "changes": 0, "epochs": 0}
    assert replace(facts, of=None).after(5) == {**RULES, "base": 5, "changes": 0, "epochs": 0}
