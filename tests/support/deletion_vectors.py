"""A DELETE that leaves a file as it is: a deletion vector names the deleted rows, as Spark and Databricks write it.

It is written by hand after Delta's protocol ("Deletion Vectors"), inline in the log entry: deltalake writes none.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable

from airflow_epochs.model import JsonDict

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_MAGIC, _NO_RUNS = 1681511377, 12346
_FEATURES = ["appendOnly", "deletionVectors", "invariants"]
_PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": _FEATURES,
}


def inline_vector(rows: Sequence[int]) -> JsonDict:
    """A deletion vector of these rows of a file, counted from 0: one portable roaring bitmap of one array."""
    array = struct.pack(f"<{len(rows)}H", *sorted(rows))
    bitmap = struct.pack("<IIHHI", _NO_RUNS, 1, 0, len(rows) - 1, 16) + array
    raw = struct.pack("<IQI", _MAGIC, 1, 0) + bitmap
    text = base64.b85encode(raw + b"\0" * (-len(raw) % 4)).decode().translate(str.maketrans(_B85, _Z85))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(raw), "cardinality": len(rows)}


def delete_by_vector(table: str | Path, path: str, *rows: int) -> None:
    """Delete rows of a file that has no deletion vector; ``path``: relative to the table, decoded."""
    version, add = DeltaTable(str(table)).version(), _add_of(Path(table), path)
    kept = ("path", "partitionValues", "size")
    gone = {name: add[name] for name in kept} | {"deletionTimestamp": 1, "dataChange": True}
    stats = json.loads(add["stats"]) | {"tightBounds": False}
    seen = add | {"dataChange": True, "deletionVector": inline_vector(rows), "stats": json.dumps(stats)}
    info = {"operation": "DELETE", "timestamp": int(time.time() * 1000), "operationParameters": {"predicate": "[]"}}
    actions = [{"commitInfo": info}, {"protocol": _PROTOCOL}, {"remove": gone | {"extendedFileMetadata": True}}]
    lines = map(json.dumps, [*actions, {"add": seen}])
    Path(table, "_delta_log", f"{version + 1:020}.json").write_text("\n".join(lines))


def _add_of(table: Path, path: str) -> JsonDict:
    entries = sorted(Path(table, "_delta_log").glob("*.json"), reverse=True)
    actions = (json.loads(line) for entry in entries for line in entry.read_text().splitlines())
    found: JsonDict = next(a["add"] for a in actions if "add" in a and unquote(a["add"]["path"]) == path)
    return found
