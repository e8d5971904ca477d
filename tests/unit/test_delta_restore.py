"""Which tables cannot go back to an earlier version. ``tests/integration/test_restore_tables.py`` brings some back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_epochs import DeltaSink, codes
from airflow_epochs.errors import Refused
from airflow_epochs.model import RestorePoint
from tests.support.environment import Environment

POINT = RestorePoint(epoch=1, version=0)


def refusal(sink: DeltaSink) -> str:
    with pytest.raises(Refused) as refused:
        sink.require_restorable(POINT, "orders", Environment())
    assert refused.value.code is codes.DELTA_NOT_RESTORABLE
    return str(refused.value)


def test_a_sink_that_notes_deleted_keys_does_not_go_back_since_the_notes_would_stay(tmp_path: Path) -> None:
    table = str(tmp_path / "lake")
    write_deltalake(table, pa.table({"id": [1], "n": [1]}))
    upsert: dict[str, Any] = {"mode": "upsert", "keys": ["id"], "sequence_by": "n"}
    noting = DeltaSink("lake", table, **upsert, delete_when="n < 0")
    assert "the sink keeps notes of deleted keys, which have no versions" in refusal(noting)
    DeltaSink("lake", table, **upsert).require_restorable(POINT, "orders", Environment())


def test_a_table_that_was_created_anew_does_not_go_back_to_a_version_of_another_one(tmp_path: Path) -> None:
    table = str(tmp_path / "lake")
    write_deltalake(table, pa.table({"id": [1]}))
    write_deltalake(str(tmp_path / "new"), pa.table({"id": [1]}))
    write_deltalake(str(tmp_path / "new"), pa.table({"id": [2]}), mode="append")
    entry = Path("_delta_log") / f"{1:020}.json"
    metadata = (tmp_path / "new/_delta_log" / f"{0:020}.json").read_text().splitlines()
    replaced = [line for line in metadata if '"metaData"' in line]
    (tmp_path / "lake" / entry).write_text("\n".join([*replaced, (tmp_path / "new" / entry).read_text()]))
    assert "another table had this version" in refusal(DeltaSink("lake", table))
