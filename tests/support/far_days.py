"""A table in whose log a partition has a day that only Spark knows, as version 0.1 of the provider may have left it."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pyarrow as pa

from airflow_epochs.delta.log import log_entry

FAR = "+5881580-07-11"
"""2147483647 days after 1970."""


def of_day(id_: int, day: date) -> pa.Table:
    """One row."""
    return pa.table({"id": pa.array([id_], pa.int64()), "day": pa.array([day], pa.date32())})


def make_far(table: Path, version: int, day: date) -> None:
    """Let the log say that the rows of this day, which the version has added, are of the far one."""
    entry = table / log_entry(version)
    told = entry.read_text()
    assert f'"day":"{day}"' in told
    entry.write_text(told.replace(f'"day":"{day}"', f'"day":"{FAR}"'))


def delete_far(table: Path, version: int) -> None:
    """What Spark's DELETE of the far day's rows writes as the next version: it knows files by their partition."""
    adds = (json.loads(line).get("add") for line in (table / log_entry(version)).read_text().splitlines())
    far = [add for add in adds if add and add["partitionValues"]["day"] == FAR]
    removes = [
        {
            "remove": {**{key: add[key] for key in ("path", "partitionValues", "size")}, "deletionTimestamp": 1}
            | {"dataChange": True, "extendedFileMetadata": True}
        }
        for add in far
    ]
    actions = [{"commitInfo": {"operation": "DELETE", "timestamp": 1}}, *removes]
    (table / log_entry(version + 1)).write_text("\n".join(map(json.dumps, actions)))
