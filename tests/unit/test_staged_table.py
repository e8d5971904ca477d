"""Rows staged for a sink that copies them: promised as a whole, read in one order, and never taken for other rows."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Corrupt, Refused, RowsGone
from airflow_epochs.model import Staged, StagedClaim
from airflow_epochs.staged.parquet_batches import BATCH_BYTES, ROWS_MAX
from airflow_epochs.staged.table import StagedTable, staging_root
from tests.support.delta_world import attempt_of, rows, stage_with_deltalake, transaction

MANY = rows(*range(25_000))


@pytest.fixture
def area(tmp_path: Path) -> StagedTable:
    return StagedTable(root=str(tmp_path / "staging"), sink="orders", target="topic orders", options={})


@pytest.fixture
def attempt() -> SinkAttempt:
    return attempt_of(transaction(3))


def staged(area: StagedTable, attempt: SinkAttempt, data: pa.Table, try_id: str = "a") -> Staged:
    return area.checked(attempt, stage_with_deltalake(area.plan(attempt, try_id), data))[1]


def ids(area: StagedTable, attempt: SinkAttempt, what: Staged) -> list[int]:
    return [value for batch in area.rows(attempt, what) for value in batch.column("id").to_pylist()]


def a_file(what: Staged) -> Path:
    return next(Path(what.place).rglob("*.parquet"))


def test_what_was_staged_is_read_back_in_order_and_in_small_batches(area: StagedTable, attempt: SinkAttempt) -> None:
    what = staged(area, attempt, MANY)
    assert what.rows == 25_000
    assert ids(area, attempt, what) == list(range(25_000))
    assert max(len(batch) for batch in area.rows(attempt, what)) == ROWS_MAX


def test_files_of_one_task_are_read_in_the_order_in_which_it_wrote_them(area: StagedTable, tmp_path: Path) -> None:
    written = ["part-00000-f1-c000", "part-00000-a1-c001", "part-00002-c9-c000", "part-100000-0-c000"]
    folder = tmp_path / "staging" / "written"
    folder.mkdir(parents=True)
    for number, name in enumerate(written):
        pq.write_table(pa.table({"id": [number]}), folder / f"{name}.snappy.parquet")
    staging: Any = SimpleNamespace(
        place="written",
        files=[SimpleNamespace(path=f"{name}.snappy.parquet") for name in sorted(written)],
        shape=SimpleNamespace(properties={}, schema={"fields": []}),
    )
    assert [value for batch in area.batches(staging) for value in batch.column("id").to_pylist()] == [0, 1, 2, 3]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LARGE: dict[str, Callable[[], pa.Table]] = {
    "each its own": lambda: pa.table({"value": [f"{number:0100000}" for number in range(300)]}),
    "all the same, which a file keeps once": lambda: pa.table({"value": ["x" * 100_000] * 3_000}),
    "one large among small ones": lambda: pa.table({"key": ["x" * 300_000, *map(str, range(2_000))]}),
    "in lists, the first of which is empty": lambda: pa.table(
        {"headers": pa.array([[], *[[{"key": "k", "value": b"v" * 30_000}] * 3] * 3_000], HEADERS)}
    ),
    "in maps": lambda: pa.table({"map": pa.array([[("k", "v" * 100_000)]] * 3_000, pa.map_(pa.string(), pa.string()))}),
}
"""Hundreds of MB each, made when a test asks for them."""


@pytest.mark.few(3)
@pytest.mark.proof
@pytest.mark.parametrize("rows_are", LARGE)
def test_a_batch_is_of_few_bytes_however_large_the_rows_are(
    area: StagedTable, attempt: SinkAttempt, rows_are: str
) -> None:
    data = LARGE[rows_are]()
    what = staged(area, attempt, data)
    read = list(area.rows(attempt, what))
    assert sum(map(len, read)) == len(data)
    assert max(batch.nbytes for batch in read) <= 2 * BATCH_BYTES
    assert read[-1].slice(len(read[-1]) - 1).to_pylist() == data.slice(len(data) - 1).to_pylist()


def test_files_are_read_by_the_number_of_the_task_that_wrote_them(area: StagedTable, attempt: SinkAttempt) -> None:
    first, second = staged(area, attempt, rows(1, 2), "a"), staged(area, attempt, rows(3, 4), "b")
    entry = Path(first.place, "_delta_log", f"{0:020}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    (add,) = (action["add"] for action in actions if "add" in action)
    actions = [action for action in actions if not {"add", "commitInfo"} & action.keys()]
    note = area.plan(attempt, "a")["user_metadata"]
    actions.append({"commitInfo": {"timestamp": 1, "userMetadata": note}})
    for number, (folder, file) in enumerate((("zZ", a_file(first)), ("aA", a_file(second)))):
        path = f"{folder}/part-0000{number}-x.parquet"  # as delta.randomizeFilePrefixes lays them
        Path(first.place, folder).mkdir()
        Path(first.place, path).write_bytes(file.read_bytes())
        actions.append({"add": {**add, "path": path, "size": file.stat().st_size}})
    entry.write_text("\n".join(map(json.dumps, actions)))
    both = area.checked(attempt, StagedClaim(place=first.place))[1]
    assert ids(area, attempt, both) == [1, 2, 3, 4]


def test_the_same_rows_staged_again_have_the_same_digest(area: StagedTable, attempt: SinkAttempt) -> None:
    first, second = (staged(area, attempt, MANY, try_id) for try_id in "ab")
    assert (first.digest, first.place != second.place) == (second.digest, True)


def test_rows_of_another_transaction_or_sink_are_refused(area: StagedTable, attempt: SinkAttempt) -> None:
    claim = stage_with_deltalake(area.plan(attempt, "a"), MANY)
    other = SinkAttempt(txn=transaction(3), ledger_id=attempt.ledger_id, previous=None)
    with pytest.raises(Refused, match="belongs to transaction"):
        area.checked(other, claim)
    with pytest.raises(Refused, match="sees no finished staging table"):
        area.checked(attempt, StagedClaim(place=area.place(attempt, "b")))
    elsewhere = StagedTable(root=area.root, sink="audit", target="topic audit", options={})
    with pytest.raises(Refused, match="not a staging place of sink 'audit'"):
        elsewhere.checked(attempt, claim)


@pytest.mark.parametrize("unseen", ["all", "the files"])
def test_rows_that_spark_reports_and_this_worker_does_not_see_are_told_of_a_disk_that_is_not_shared(
    area: StagedTable, attempt: SinkAttempt, unseen: str
) -> None:
    """To stage again helps nobody: Spark would write to the same disk of another machine."""
    place = area.place(attempt, "a")
    if unseen == "the files":  # as where only the executors have disks of their own
        a_file(staged(area, attempt, MANY, "a")).unlink()
    with pytest.raises(Refused) as error:
        area.checked(attempt, StagedClaim(place=place))
    assert place in error.value.what and "this worker" in error.value.what
    assert "a disk that Spark's driver and executors and all workers share" in (error.value.remedy or "")
    assert "into an object store" in (error.value.remedy or "")


@pytest.mark.parametrize("place", ["/etc", "{root}", "{own}", "{own}/../../x"])
def test_nothing_but_a_place_of_the_sink_is_ever_deleted(area: StagedTable, attempt: SinkAttempt, place: str) -> None:
    own = str(Path(area.place(attempt, "a")).parent)
    with pytest.raises(Refused, match="not a staging place"):
        area.discard(attempt, place.format(root=area.root, own=own))


def test_a_discarded_place_is_gone_and_a_repeat_is_fine(area: StagedTable, attempt: SinkAttempt) -> None:
    what, other = staged(area, attempt, MANY, "a"), staged(area, attempt, MANY, "b")
    for _ in range(2):
        area.discard(attempt, what.place)
    assert (Path(what.place).exists(), Path(other.place).exists()) == (False, True)


def test_promised_rows_that_are_gone_cut_or_damaged_are_to_be_staged_again(
    area: StagedTable, attempt: SinkAttempt
) -> None:
    what = staged(area, attempt, MANY)
    file = a_file(what)
    sound = file.read_bytes()
    middle = len(sound) // 2
    file.write_bytes(sound[:40] + bytes(byte ^ 0xFF for byte in sound[40:middle]) + sound[middle:])
    with pytest.raises(RowsGone, match="is damaged"):
        ids(area, attempt, what)
    file.write_bytes(sound[:-1])
    with pytest.raises(RowsGone):
        ids(area, attempt, what)
    file.unlink()
    with pytest.raises(RowsGone):
        ids(area, attempt, what)


def test_rows_that_vanish_once_they_were_found_are_to_be_staged_again(area: StagedTable, attempt: SinkAttempt) -> None:
    what = staged(area, attempt, MANY)
    found = area.promised(attempt, what)
    a_file(what).unlink()
    with pytest.raises(RowsGone, match="is gone"):
        list(area.batches(found))


def test_other_rows_at_the_promised_place_stop_everything(area: StagedTable, attempt: SinkAttempt) -> None:
    what = staged(area, attempt, rows(1, 2))
    area.discard(attempt, what.place)
    stage_with_deltalake(area.plan(attempt, "a"), rows(1, 3))
    with pytest.raises(Corrupt, match="was changed") as caught:
        ids(area, attempt, what)
    assert not isinstance(caught.value, RowsGone)


def test_an_empty_epoch_has_no_rows(area: StagedTable, attempt: SinkAttempt) -> None:
    what = staged(area, attempt, MANY.slice(0, 0))
    assert (what.rows, ids(area, attempt, what)) == (0, [])


def test_instants_that_were_written_in_the_old_way_are_read_whatever_their_year(
    area: StagedTable, attempt: SinkAttempt
) -> None:
    far = datetime(9999, 12, 31, 23, 59, 59, 999999)
    what = staged(area, attempt, rows(1, at=pa.array([far], pa.timestamp("us", "UTC"))))
    old = io.BytesIO()
    pq.write_table(pa.table({"at": pa.array([far], pa.timestamp("us"))}), old, use_deprecated_int96_timestamps=True)
    entry = Path(what.place, "_delta_log", f"{0:020}.json")
    entry.write_text(
        entry.read_text().replace(f'"size":{a_file(what).stat().st_size}', f'"size":{len(old.getvalue())}')
    )
    a_file(what).write_bytes(old.getvalue())
    what = area.checked(attempt, StagedClaim(place=what.place))[1]
    assert [batch.column("at").to_pylist() for batch in area.rows(attempt, what)] == [[far]]


def test_a_staging_folder_has_one_spelling_and_is_absolute() -> None:
    assert staging_root(" /lake/staging/ ", "orders") == "/lake/staging"
    assert staging_root("s3a://lake/staging/", "orders") == "s3://lake/staging"
    with pytest.raises(Refused, match="neither an absolute path nor a URL"):
        staging_root("staging", "orders")


def test_staged_dates_that_would_be_read_as_others_are_refused(area: StagedTable, attempt: SinkAttempt) -> None:
    claim = stage_with_deltalake(area.plan(attempt, "a"), pa.table({"n": [1], "s": [{"day": date(1500, 1, 1)}]}))
    (path,) = Path(claim.place).rglob("*.parquet")
    data = pq.read_table(path)
    marks = {"org.apache.spark.version": "4.2.0", "org.apache.spark.legacyDateTime": ""}
    with pq.ParquetWriter(path, data.schema) as writer:
        writer.write_table(data)
        writer.add_key_value_metadata(marks)
    entry = next(Path(claim.place, "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).update(size=path.stat().st_size)
    entry.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(Refused, match=r"(?s)staged s\.day in the Julian calendar.*from the transform"):
        area.checked(attempt, claim)
