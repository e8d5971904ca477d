"""The files of a version, replayed from its log: all that the log says of them, and the same files as for deltalake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_epochs.delta.log import log_entry, remove_of
from airflow_epochs.delta.replay import LogGone, live_files
from airflow_epochs.delta.table import TableLocation
from airflow_epochs.errors import Refused
from airflow_epochs.model import RestorePoint
from airflow_epochs.sinks.delta import restore
from airflow_epochs.storage.files import open_files
from tests.support.deletion_vectors import delete_by_vector
from tests.support.delta_world import seen_by_duckdb

pytestmark = pytest.mark.proof

PARTITIONS = ["plain", "with blank", "50%", "a/b=c"]

steps = st.lists(st.sampled_from(["append", "append", "overwrite", "delete", "optimize", "checkpoint"]), max_size=8)


def rows(number: int) -> pa.Table:
    return pa.table({"n": [number, number + 1], "p": [PARTITIONS[number % 4], PARTITIONS[(number + 1) % 4]]})


def written(path: str, did: list[str]) -> DeltaTable:
    """A table with a history."""
    write_deltalake(path, rows(0), partition_by=["p"])
    for number, step in enumerate(did, 1):
        table = DeltaTable(path)
        if step in ("append", "overwrite"):
            write_deltalake(table, rows(number), mode="append" if step == "append" else "overwrite")
        elif step == "delete":
            table.delete(f"n = {number - 1}")
        elif step == "optimize":
            table.optimize.compact()
        else:
            table.create_checkpoint()
    return DeltaTable(path)


def logged(path: str, version: int) -> dict[str, Any]:
    """Path -> the newest ``add`` action up to a version, as the log entry has it."""
    found = {}
    for number in range(version + 1):
        for line in Path(path, log_entry(number)).read_text().splitlines():
            if add := json.loads(line).get("add"):
                found[unquote(add["path"])] = {key: value for key, value in add.items() if value is not None}
    return found


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(did=steps)
def test_every_version_has_the_files_that_deltalake_sees_with_all_that_was_logged_of_them(
    tmp_path_factory: pytest.TempPathFactory, did: list[str]
) -> None:
    path = str(tmp_path_factory.mktemp("table"))
    newest = written(path, did).version()
    for version in range(newest + 1):
        found = live_files(open_files(path, {}), version)
        seen = DeltaTable(path, version=version).file_uris()
        assert {Path(path, file) for file, _ in found} == {Path(uri) for uri in seen}
        adds = logged(path, version)
        for (file, _), add in found.items():
            known = {key: value for key, value in add.items() if key in adds[file]}
            assert known | {"stats": json.loads(add["stats"])} == adds[file] | {
                "stats": json.loads(adds[file]["stats"])
            }


def test_a_log_that_was_cleaned_up_is_read_from_its_checkpoint_and_earlier_versions_are_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = written(path, ["append", "append", "checkpoint", "append"])
    for version in range(3):
        (tmp_path / "table" / log_entry(version)).unlink()
    files = open_files(path, {})
    assert len(live_files(files, table.version())) == len(table.file_uris())
    with pytest.raises(LogGone, match="entry 0 of its log is gone"):
        live_files(files, 1)


def test_a_checkpoint_with_sidecars_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    written(path, ["append", "checkpoint"])
    checkpoint = tmp_path / "table" / "_delta_log" / f"{1:020}.checkpoint.parquet"
    rows = pq.read_table(checkpoint)
    sidecar = pa.array([{"path": "a.parquet"}] * len(rows))
    pq.write_table(rows.drop_columns(["sidecar"]).append_column("sidecar", sidecar), checkpoint)
    with pytest.raises(LogGone, match="has parts in other files"):
        live_files(open_files(path, {}), 1)


def test_half_a_checkpoint_of_several_parts_is_not_read(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = written(path, ["append", "checkpoint", "append"])
    log = tmp_path / "table" / "_delta_log"
    whole = log / f"{1:020}.checkpoint.parquet"
    whole.rename(log / f"{1:020}.checkpoint.0000000001.0000000002.parquet")
    assert len(live_files(open_files(path, {}), 2)) == len(table.file_uris())


VECTOR = {"storageType": "u", "offset": 1, "sizeInBytes": 36, "cardinality": 1}
OF_PROTOCOL = ("ab^-aqEH.-t@S}K{vb[*k^", "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin")
"""Delta's protocol has this example: a deletion vector's name, and its file."""


@pytest.mark.parametrize("gone", [True, False])
def test_a_version_cannot_come_back_without_the_files_of_its_deletion_vectors(tmp_path: Path, gone: bool) -> None:
    """A VACUUM deletes one as soon as a later one is old enough, while the file whose rows it hides stays."""
    write_deltalake(tmp_path, rows(0))
    location = TableLocation("lake", str(tmp_path), {})
    name, file = OF_PROTOCOL
    [add] = live_files(location.files, 0).values()
    seen = {**add, "deletionVector": {**VECTOR, "pathOrInlineDv": name}}
    later = {**add, "deletionVector": {**VECTOR, "pathOrInlineDv": name.replace("ab", "cd")}}
    for version, (old, new) in enumerate([(add, seen), (seen, later)], 1):
        actions = [{"remove": remove_of(old, 0)}, {"add": new}]
        Path(tmp_path, log_entry(version)).write_text("\n".join(map(json.dumps, actions)))
    if gone:
        with pytest.raises(Refused, match=rf"a VACUUM has deleted 1 of its files, for example {file}"):
            restore.actions(location, RestorePoint(epoch=1, version=1), 2, 0)
        return
    (tmp_path / "ab").mkdir()
    (tmp_path / file).touch()
    removed, added = restore.actions(location, RestorePoint(epoch=1, version=1), 2, 0)
    assert removed["remove"]["deletionVector"] == later["deletionVector"]
    assert added["add"]["deletionVector"] == seen["deletionVector"]


@pytest.mark.parametrize(("to", "kept"), [(1, [1, 3]), (2, [8])], ids=["with the file", "without the file"])
def test_a_file_with_a_deletion_vector_in_the_log_is_one_file_in_a_checkpoint_and_in_entries(
    tmp_path: Path, to: int, kept: list[int]
) -> None:
    """A checkpoint has a NULL where an entry leaves out the offset of a vector."""
    table, location = str(tmp_path), TableLocation("lake", str(tmp_path), {})
    write_deltalake(table, pa.table({"id": [1, 2, 3]}))
    ((file, _),) = live_files(location.files, 0)
    delete_by_vector(table, file, 1)
    DeltaTable(table).create_checkpoint()
    write_deltalake(table, pa.table({"id": [8]}), mode="overwrite")
    write_deltalake(table, pa.table({"id": [9]}), mode="overwrite")
    if to == 2:
        DeltaTable(table).create_checkpoint()
    actions = restore.actions(location, RestorePoint(epoch=1, version=to), 3, 0)
    Path(tmp_path, log_entry(4)).write_text("\n".join(map(json.dumps, actions)))
    assert seen_by_duckdb(table) == kept
