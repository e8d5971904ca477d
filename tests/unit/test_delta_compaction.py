"""Compaction of Delta tables: whoever else writes meanwhile, every row stays, once."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType

from airflow_epochs.errors import OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta import compaction as delta_compaction
from airflow_epochs.storage.files import open_files
from airflow_epochs.storage.local import LocalFiles
from orders_demo.duck import duck
from tests.support.delta_world import ids_in, log_of, rows, seen_by_duckdb


def compacted(table: Path, handle: DeltaTable | None = None, files: LocalFiles | None = None) -> JsonDict:
    return delta_compaction.compact(handle or DeltaTable(str(table)), files or open_files(str(table)))


def small_files(table: Path) -> Path:
    for number in range(4):
        write_deltalake(str(table), rows(number), mode="append")
    return table


def test_a_compaction_that_was_begun_before_another_ended_doubles_no_row(table_path: Path) -> None:
    small_files(table_path)
    late = DeltaTable(str(table_path))
    assert compacted(table_path)["files_removed"] == 4
    assert compacted(table_path, late) == {"files_removed": 0, "files_added": 0, "bytes_rewritten": 0}
    assert ids_in(table_path) == [0, 1, 2, 3]


@pytest.mark.proof
def test_processes_that_compact_at_once_double_no_row(table_path: Path) -> None:
    small_files(table_path)
    context = multiprocessing.get_context("forkserver")
    start = context.Barrier(4)
    racers = [context.Process(target=_race, args=(table_path, start)) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0] * 4
    assert ids_in(table_path) == list(range(4)) + list(range(100, 112))


def _race(table: Path, start: Barrier) -> None:
    for number in range(3):
        handle = DeltaTable(str(table))
        start.wait(30)
        compacted(table, handle)
        if start.wait(30) == 0:
            for more in range(4):
                write_deltalake(str(table), rows(100 + 4 * number + more), mode="append")
        start.wait(30)


class Interrupted(LocalFiles):
    """A table's files. ``meanwhile`` happens just before the first log entry is written."""

    def __init__(self, table: Path, meanwhile: Callable[[], Any]) -> None:
        super().__init__(table)
        self.meanwhile: Callable[[], Any] | None = meanwhile

    def write_new(self, path: str, value: bytes) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, (self.meanwhile if "_delta_log" not in path else None)
        if meanwhile and "_delta_log" in path:
            meanwhile()
        return super().write_new(path, value)


def data_files(table: Path) -> set[str]:
    return {path.name for path in table.glob("*.parquet")}


def referenced(table: Path) -> set[str]:
    return {action["add"]["path"] for entry in log_of(table) for action in entry if "add" in action}


def live(table: Path) -> set[str]:
    return {uri.rsplit("/", 1)[-1] for uri in DeltaTable(str(table)).file_uris()}


def test_an_append_meanwhile_stays_beside_what_is_compacted(table_path: Path) -> None:
    small_files(table_path)
    files = Interrupted(table_path, lambda: write_deltalake(str(table_path), rows(4), mode="append"))
    assert compacted(table_path, files=files)["files_removed"] == 4
    assert ids_in(table_path) == [0, 1, 2, 3, 4]
    assert len(DeltaTable(str(table_path)).file_uris()) == 2
    assert DeltaTable(str(table_path)).version() == 5


@pytest.mark.proof
@pytest.mark.parametrize(
    ("meanwhile", "left"),
    [
        (lambda table: table.delete("id = 102"), [*range(5), 100, 101, 103, *range(200, 204)]),
        (lambda table: table.update(updates={"id": "7"}, predicate="id = 102"), None),
        (lambda table: table.optimize.compact([("p", "=", "b")]), None),
    ],
    ids=["delete", "update", "their compaction"],
)
def test_whoever_changes_a_partition_while_another_one_is_swapped_wins_and_the_others_are_compacted(
    table_path: Path, meanwhile: Callable[[DeltaTable], Any], left: list[int] | None
) -> None:
    for value, first, count in (("a", 0, 5), ("b", 100, 4), ("c", 200, 4)):
        for number in range(first, first + count):
            write_deltalake(str(table_path), rows(number, p=[value]), mode="append", partition_by=["p"])
    files = Interrupted(table_path, lambda: meanwhile(DeltaTable(str(table_path))))
    done = compacted(table_path, files=files)
    if left is None:
        left = ids_in(table_path)
        assert len(left) == len(set(left)) == 13
    assert ids_in(table_path) == seen_by_duckdb(str(table_path)) == left
    assert done["files_removed"] == 9, "a and c are compacted, and b is not"


@pytest.mark.parametrize(
    ("meanwhile", "left"),
    [
        (lambda table: table.optimize.compact(), [0, 1, 2, 3]),
        (lambda table: delta_compaction.compact(table, open_files(table.table_uri)), [0, 1, 2, 3]),
        (lambda table: table.delete("id = 2"), [0, 1, 3]),
        (lambda table: table.update(updates={"id": "10"}, predicate="id = 2"), [0, 1, 3, 10]),
        (lambda table: write_deltalake(table, rows(7), mode="overwrite"), [7]),
        (lambda table: table.alter.add_columns(Field("more", PrimitiveType("string"))), [0, 1, 2, 3]),
        (lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}), [0, 1, 2, 3]),
    ],
    ids=["their compaction", "ours", "delete", "update", "overwrite", "new column", "new property"],
)
def test_whoever_changes_the_files_or_the_table_meanwhile_wins(
    table_path: Path, meanwhile: Callable[[DeltaTable], Any], left: list[int]
) -> None:
    small_files(table_path)
    files = Interrupted(table_path, lambda: meanwhile(DeltaTable(str(table_path))))
    assert compacted(table_path, files=files) == {"files_removed": 0, "files_added": 0, "bytes_rewritten": 0}
    assert ids_in(table_path) == left
    assert DeltaTable(str(table_path)).version() == 4
    assert data_files(table_path) == referenced(table_path)  # what was written in vain is deleted


STALE: dict[str, Callable[[DeltaTable], Any]] = {
    "append": lambda table: write_deltalake(table, rows(7), mode="append"),
    "overwrite": lambda table: write_deltalake(table, rows(7), mode="overwrite"),
    "overwrite where": lambda table: write_deltalake(table, rows(2), mode="overwrite", predicate="id = 2"),
    "delete": lambda table: table.delete("id = 2"),
    "delete all": lambda table: table.delete(),
    "update": lambda table: table.update(updates={"id": "10"}, predicate="id = 2"),
    "merge": lambda table: (
        table.merge(rows(2), "t.id = s.id", source_alias="s", target_alias="t").when_matched_delete().execute()
    ),
    "compact": lambda table: table.optimize.compact(),
    "z-order": lambda table: table.optimize.z_order(["id"]),
    "restore": lambda table: table.restore(1),
}


@pytest.mark.parametrize("theirs", STALE)
def test_whoever_began_before_a_compaction_and_ends_after_it_is_refused_and_undoes_nothing(
    table_path: Path, theirs: str
) -> None:
    small_files(table_path)
    late = DeltaTable(str(table_path))
    assert compacted(table_path)["files_removed"] == 4
    said = "Failed to commit transaction" if theirs == "restore" else "Metadata changed since last commit"
    with pytest.raises(CommitFailedError, match=said):  # as docs/delta.md quotes it
        STALE[theirs](late)
    assert ids_in(table_path) == seen_by_duckdb(str(table_path)) == [0, 1, 2, 3]
    STALE[theirs](DeltaTable(str(table_path)))  # which is what they are told to do


def test_a_compaction_leaves_the_tables_metadata_as_it_is(table_path: Path) -> None:
    properties = {"delta.appendOnly": "true", "delta.logRetentionDuration": "interval 9 days"}
    named: dict[str, Any] = {"name": "orders", "description": "one row per order", "configuration": properties}
    write_deltalake(str(table_path), every_type(0), partition_by=["p"], **named)
    for seed in range(2, 8, 2):
        write_deltalake(str(table_path), every_type(seed), mode="append")
    assert compacted(table_path)["files_removed"] == 4
    first, swap = (_metadata_of(entry) for entry in (log_of(table_path)[0], log_of(table_path)[-1]))
    assert first == swap


def _metadata_of(entry: list[JsonDict]) -> JsonDict:
    found: JsonDict = next(action["metaData"] for action in entry if "metaData" in action)
    return found | {"schemaString": json.loads(found["schemaString"])}


@pytest.mark.proof
def test_where_others_are_always_faster_it_gives_up(table_path: Path) -> None:
    class Busy(LocalFiles):
        def write_new(self, path: str, value: bytes) -> bool:
            if "_delta_log" in path:
                write_deltalake(str(table_path), rows(9), mode="append")
            return super().write_new(path, value)

    small_files(table_path)
    assert compacted(table_path, files=Busy(table_path))["files_removed"] == 0
    assert ids_in(table_path) == [0, 1, 2, 3, *[9] * delta_compaction.ROUNDS_MAX]


def vacuum(table: Path, known: set[str]) -> None:
    """What Spark's VACUUM at 0 hours does, which leaves no log entry: delete every file that it does not know."""
    for path in table.glob("*.parquet"):
        if path.name not in known:
            path.unlink()


@pytest.mark.parametrize("moments", [("before",), ("after",), ("before", "after")])
def test_a_vacuum_that_deletes_what_compaction_has_written_loses_no_row(table_path: Path, moments: tuple[str]) -> None:
    """Before the swap no entry names the new files; a VACUUM that has read the log before does not know them after."""

    left = list(moments)

    class Vacuumed(LocalFiles):
        def write_new(self, path: str, value: bytes) -> bool:
            known = live(table_path)
            if "before" in left:
                left.remove("before")
                vacuum(table_path, known)
            written = super().write_new(path, value)
            if written and "after" in left:
                left.remove("after")
                vacuum(table_path, known)
            return written

    small_files(table_path)
    assert compacted(table_path, files=Vacuumed(table_path))["files_removed"] == 4
    assert left == []
    assert ids_in(table_path) == seen_by_duckdb(str(table_path)) == [0, 1, 2, 3]


class Lossy(LocalFiles):
    """The answer to the log entry is lost, and the entry too unless ``arrives``."""

    arrives = True

    def write_new(self, path: str, value: bytes) -> bool:
        if "_delta_log" not in path:
            return super().write_new(path, value)
        if self.arrives:
            super().write_new(path, value)
        raise OutcomeUnknown("The answer was lost.", remedy="Look.")


def test_a_swap_whose_acknowledgement_is_lost_has_landed(table_path: Path) -> None:
    small_files(table_path)
    assert compacted(table_path, files=Lossy(table_path))["files_removed"] == 4
    assert (ids_in(table_path), DeltaTable(str(table_path)).version()) == ([0, 1, 2, 3], 4)


def test_a_swap_that_may_still_land_keeps_the_files_it_names(table_path: Path) -> None:
    small_files(table_path)
    files = Lossy(table_path)
    files.arrives = False
    with pytest.raises(OutcomeUnknown):
        compacted(table_path, files=files)
    assert ids_in(table_path) == [0, 1, 2, 3]
    assert len(data_files(table_path) - referenced(table_path)) == 1


def test_files_that_were_removed_are_not_taken_again(table_path: Path) -> None:
    small_files(table_path)
    DeltaTable(str(table_path)).delete("id = 2")
    for number in (5, 6, 7):
        write_deltalake(str(table_path), rows(number), mode="append")
    assert compacted(table_path)["files_removed"] == 6
    assert ids_in(table_path) == [0, 1, 3, 5, 6, 7]
    table_handle = DeltaTable(str(table_path))
    table_handle.restore(1)
    assert ids_in(table_path) == [0, 1]


def test_a_file_that_was_removed_and_came_back_is_taken_once(table_path: Path) -> None:
    small_files(table_path)
    DeltaTable(str(table_path)).delete()
    DeltaTable(str(table_path)).restore(3)
    assert compacted(table_path)["files_removed"] == 4
    assert ids_in(table_path) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "of_the_file",
    [
        {"deletionVector": {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1}},
        {"stats": None},
        {"stats": '{"numRecords":-1}'},
    ],
    ids=["deletion vector", "no statistics", "no count"],
)
def test_a_file_whose_rows_the_log_does_not_count_is_left_alone(table_path: Path, of_the_file: JsonDict) -> None:
    write_deltalake(str(table_path), rows(4), mode="append")
    small_files(table_path)
    entry = table_path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"].update(of_the_file)
    entry.write_text("\n".join(map(json.dumps, actions)))
    kept = {path for path in referenced(table_path) if path in json.dumps(log_of(table_path)[0])}
    small = delta_compaction.small_files(open_files(str(table_path)), 4)
    assert {each.path for each in small} == referenced(table_path) - kept
    assert len(small) == 4


def test_the_files_of_its_original_are_left_alone_in_a_shallow_clone(table_path: Path, tmp_path: Path) -> None:
    write_deltalake(str(table_path), rows(4), mode="append")
    (tmp_path / "original").mkdir()
    (own,) = table_path.glob("*.parquet")
    theirs = own.rename(tmp_path / "original" / own.name).as_uri()
    entry = table_path / "_delta_log" / f"{0:020}.json"
    entry.write_text(entry.read_text().replace(f'"path":"{own.name}"', f'"path":"{theirs}"'))
    small_files(table_path)
    assert compacted(table_path)["files_removed"] == 4
    assert own.name in live(table_path) and len(live(table_path)) == 2


def test_what_lies_before_a_log_that_was_cleaned_up_is_left_alone(table_path: Path) -> None:
    small_files(table_path)
    DeltaTable(str(table_path)).create_checkpoint()
    for number in (4, 5, 6, 7):
        write_deltalake(str(table_path), rows(number), mode="append")
    for version in range(4):
        os.unlink(table_path / "_delta_log" / f"{version:020}.json")
    assert compacted(table_path)["files_removed"] == 4
    assert ids_in(table_path) == list(range(8))


def test_a_swap_never_lands_before_the_newest_checkpoint_of_a_log_that_was_cleaned_up(table_path: Path) -> None:
    def pass_by() -> None:
        for number in (4, 5):
            write_deltalake(str(table_path), rows(number), mode="append")
        DeltaTable(str(table_path)).create_checkpoint()
        for version in range(5):
            os.unlink(table_path / "_delta_log" / f"{version:020}.json")

    small_files(table_path)
    assert compacted(table_path, files=Interrupted(table_path, pass_by))["files_removed"] == 0
    assert ids_in(table_path) == [0, 1, 2, 3, 4, 5]


def every_type(seed: int) -> pa.Table:
    instant = dt.datetime(2, 1, 1, 0, 0, 0, 1)
    nested = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    columns: dict[str, tuple[list[Any], Any]] = {
        "id": ([seed, seed + 1], pa.int64()),
        "byte": ([-1, None], pa.int8()),
        "short": ([-1, None], pa.int16()),
        "float": ([float("nan"), -0.0], pa.float32()),
        "double": ([float("inf"), float("nan")], pa.float64()),
        "boolean": ([True, None], pa.bool_()),
        "decimal": ([Decimal("-12345678901234567890.123456"), None], pa.decimal128(38, 6)),
        "text": (["ü\0 ", ""], pa.string()),
        "bytes": ([b"\x00\xff", None], pa.binary()),
        "day": ([dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32()),
        "instant": ([instant, instant.replace(year=9999)], pa.timestamp("us", "UTC")),
        "local": ([instant, instant.replace(year=9999)], pa.timestamp("us")),
        "nested": ([{"a": seed, "b": ["x", None]}, None], nested),
        "structs": ([[{"a": 1, "b": []}], None], pa.list_(nested)),
        "map": ([[("k", Decimal("1.5"))], []], pa.map_(pa.string(), pa.decimal128(5, 2))),
        "p": (["a/b 100%"] * 2, pa.string()),
    }
    return pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})


def contents(table: Path) -> list[str]:
    return sorted(map(repr, DeltaTable(str(table)).to_pyarrow_table().to_pylist()))


def test_values_of_every_type_are_the_same_after_compaction(table_path: Path) -> None:
    for seed in range(0, 8, 2):
        write_deltalake(str(table_path), every_type(seed), mode="append", partition_by=["p"])
    before, before_schema = contents(table_path), DeltaTable(str(table_path)).schema().to_json()
    done = compacted(table_path)
    assert (done["files_removed"], done["files_added"]) == (4, 1)
    assert contents(table_path) == before
    assert DeltaTable(str(table_path)).schema().to_json() == before_schema


NAN = float("nan")
REALS: dict[str, tuple[list[Any], pa.DataType, str]] = {
    "double": ([0.5, NAN], pa.float64(), "v"),
    "float": ([0.5, NAN], pa.float32(), "v"),
    "in a struct": ([{"a": 0.5}, {"a": NAN}], pa.struct([("a", pa.float64())]), "v.a"),
    "deep in a struct": (
        [{"a": {"b": 0.5}}, {"a": {"b": NAN}}],
        pa.struct([("a", pa.struct([("b", pa.float32())]))]),
        "v.a.b",
    ),
    "in an array": ([[0.5], [0.5, NAN]], pa.list_(pa.float64()), "list_max(v)"),
    "in a map": ([[("k", 0.5)], [("k", NAN)]], pa.map_(pa.string(), pa.float32()), "v['k']"),
    "a map's key": ([[(0.5, 1)], [(NAN, 1)]], pa.map_(pa.float64(), pa.int32()), "list_max(map_keys(v))"),
}
"""Two values of a column, its type, and DuckDB's expression for the number, which is NaN in the second value."""


@pytest.mark.parametrize("where", REALS)
def test_after_compaction_duckdb_finds_nan_above_all_numbers_and_no_footer_bounds_them(
    table_path: Path, where: str
) -> None:
    values, kind, number = REALS[where]
    for _ in range(4):
        write_deltalake(str(table_path), pa.table({"id": [1, 2], "v": pa.array(values, kind)}), mode="append")
    assert compacted(table_path)["files_removed"] == 4
    with duck() as database:
        found = database.execute(f"SELECT id FROM delta_scan('{table_path}') WHERE {number} > 1000").fetchall()
    assert found == [(2,)] * 4
    [add] = [action["add"] for action in log_of(table_path)[-1] if "add" in action]
    stats = json.loads(add["stats"])
    assert (stats["numRecords"], stats["minValues"], stats["maxValues"]) == (8, {"id": 1}, {"id": 2})
    bounds = bounds_in(table_path / add["path"])
    assert bounds.pop("id") == (1, 2)
    assert not [path for path, (_, high) in bounds.items() if isinstance(high, float)]


def bounds_in(file: Path) -> dict[str, tuple[Any, Any]]:
    """The least and the greatest value of each column that the footer tells."""
    [group] = pq.ParquetFile(file).metadata.to_dict()["row_groups"]
    columns = {column["path_in_schema"]: column["statistics"] for column in group["columns"]}
    return {path: (told["min"], told["max"]) for path, told in columns.items() if told and told["has_min_max"]}


def test_columns_beside_floating_point_numbers_keep_their_bounds(table_path: Path) -> None:
    nested = pa.array([{"a": 1}, {"a": 2}], pa.struct([("a", pa.int64())]))
    data = pa.table({"n": [0.5, NAN], "n.a": [3, 4], "day": [dt.date(2024, 2, 28), dt.date(2024, 2, 29)], "s": nested})
    for _ in range(4):
        write_deltalake(str(table_path), data, mode="append")
    assert compacted(table_path)["files_removed"] == 4
    [add] = [action["add"] for action in log_of(table_path)[-1] if "add" in action]
    assert json.loads(add["stats"])["maxValues"] == {"n.a": 4, "day": "2024-02-29", "s": {"a": 2}}
    assert bounds_in(table_path / add["path"]).keys() == {"n.a", "day", "s.a"}


def test_rows_older_than_a_column_have_none_in_it_after_compaction(table_path: Path) -> None:
    small_files(table_path)
    write_deltalake(str(table_path), rows(4, more=["x"]), mode="append", schema_mode="merge")
    assert compacted(table_path)["files_removed"] == 5
    found = DeltaTable(str(table_path)).to_pyarrow_table().to_pylist()
    assert [row["more"] for row in sorted(found, key=lambda row: row["id"])] == [None] * 4 + ["x"]


def test_a_lost_file_is_reported_and_nothing_is_swapped(table_path: Path) -> None:
    small_files(table_path)
    next(table_path.glob("*.parquet")).unlink()
    with pytest.raises(DeltaError, match="No such file or directory"):
        compacted(table_path)
    assert DeltaTable(str(table_path)).version() == 3


def test_where_the_log_counts_other_rows_than_the_files_have_nothing_is_swapped(table_path: Path) -> None:
    small_files(table_path)
    entry = table_path / "_delta_log" / f"{3:020}.json"
    entry.write_text(entry.read_text().replace('numRecords\\":1', 'numRecords\\":2'))
    with pytest.raises(Refused, match="read 4 rows from 4 small files; the table's log counts 5"):
        compacted(table_path)
    assert (DeltaTable(str(table_path)).version(), data_files(table_path)) == (3, referenced(table_path))


def test_a_table_whose_files_name_columns_otherwise_is_left_to_spark(table_path: Path) -> None:
    from airflow_epochs.delta.shape import TableShape

    small_files(table_path)
    shape = TableShape.of_table(DeltaTable(str(table_path)))
    assert delta_compaction.rewritable(shape)
    shape.properties["delta.columnMapping.mode"] = "name"
    assert not delta_compaction.rewritable(shape)


@pytest.mark.proof
def test_compaction_does_no_more_than_its_bound_and_takes_the_worst_partition_first(
    table_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        write_deltalake(str(table_path), rows(number, p=["few"]), partition_by=["p"], mode="append")
    for number in range(9):
        write_deltalake(str(table_path), rows(number, p=["many"]), partition_by=["p"], mode="append")
    for number in range(3):
        write_deltalake(str(table_path), rows(number, p=["too few"]), partition_by=["p"], mode="append")
    with monkeypatch.context() as patched:
        patched.setattr(delta_compaction, "WORK_BYTES_MAX", 9 * 700)
        done = compacted(table_path)
    assert (done["files_removed"], done["files_added"]) == (9, 1)
    done = compacted(table_path)
    assert (done["files_removed"], done["files_added"]) == (5, 1)


@pytest.mark.parametrize("value", [None, "a/b", "100%", "ü", "x=y", "it's", "2024-02-29"])
def test_partitions_are_compacted_whatever_their_value(table_path: Path, value: str | None) -> None:
    for number in range(4):
        write_deltalake(str(table_path), rows(number, p=[value]).cast(schema()), partition_by=["p"], mode="append")
    done = compacted(table_path)
    assert (done["files_removed"], done["files_added"]) == (4, 1)
    assert ids_in(table_path) == [0, 1, 2, 3]


def schema() -> pa.Schema:
    return pa.schema([("id", pa.int64()), ("p", pa.string())])


@pytest.mark.parametrize("kind", ["date", "timestamp", "int", "boolean", "decimal"])
def test_partitions_of_other_types_are_compacted(table_path: Path, kind: str) -> None:
    value, arrow = {
        "date": (dt.date(2024, 2, 29), pa.date32()),
        "timestamp": (dt.datetime(2024, 2, 29, 12, 30, 0, 123456, dt.timezone.utc), pa.timestamp("us", "UTC")),
        "int": (-5, pa.int32()),
        "boolean": (True, pa.bool_()),
        "decimal": (Decimal("1.50"), pa.decimal128(5, 2)),
    }[kind]
    for number in range(4):
        data = pa.table({"id": pa.array([number], pa.int64()), "p": pa.array([value], arrow)})
        write_deltalake(str(table_path), data, partition_by=["p"], mode="append")
    done = compacted(table_path)
    assert (done["files_removed"], done["files_added"]) == (4, 1)


@pytest.mark.proof
def test_what_is_kept_of_the_log_does_not_grow_with_statistics_and_number_of_files(
    table_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_compaction, "FILES_MAX", 500)
    (table_path / "_delta_log").mkdir(parents=True)
    stats = json.dumps({"numRecords": 1, "minValues": {"text": "x" * 10_000}})
    common = {"partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True, "stats": stats}
    for version in range(20):
        adds = [{"add": {"path": f"{version}-{number}.parquet", **common}} for number in range(100)]
        (table_path / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, adds)))
    tracemalloc.start()
    try:
        small = delta_compaction.small_files(open_files(str(table_path)), 19)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [each.path for each in (small[0], small[-1])] == ["15-0.parquet", "19-99.parquet"]
    assert kept < 2**20, "a kilobyte per file and more"
