"""Two digests of staged rows: are the files still the ones of the vote, and are the rows the same?

``digest_of`` covers what the log and the files' footers say: of every file, in any order, its partition values, bytes,
and statistics (rows, and per column minimum, maximum and nulls); the columns' names and types; and the table that the
rows were staged for. It leaves out what differs between tries: file names, times, and physical column names. It reads
no rows, and tells whether the staged files are the files of the vote.

``content_of`` covers the rows: every value (``spark.driver.row_digest``), in any order and any files. Rows that are
staged again are the rows that the sink voted for if their digest is equal. Spark reports the hashes of the rows that it
wrote. The digest also includes what the log says about them, and both must agree on the number of rows.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from airflow_epochs import secrecy
from airflow_epochs.delta.log import StagedFile, rows_of
from airflow_epochs.delta.shape import physical_name
from airflow_epochs.model import JsonDict, Staged, StagedClaim
from airflow_epochs.spark import reports
from airflow_epochs.spark.driver.plans import RowDigest, StagePlan
from airflow_epochs.staged.staging import Staging

log = secrecy.logger(__name__)

CONTENT_OF_TYPED = "rows-4:"
"""The prefix for rows with variants: a variant's digest includes its type."""
CONTENT_SCHEME = "rows-3:"
CONTENT_OF_STATISTICS = "rows-2:"
"""The prefix of digests with the NULLs of each column that Spark counted for the log. Footers lack some counts."""
SCHEME = "content-2:"
SCHEME_OF_LOG = "content-1:"
"""The prefix if the log has the statistics of all files. Digests with different prefixes cannot be compared."""
_STATISTICS = ("numRecords", "minValues", "maxValues", "nullCount")


def staged_of(claim: StagedClaim, staging: Staging) -> Staged:
    """What a vote promises about the rows at the claimed place.

    Raises:
        Refused: Another version of the provider has staged the rows, so their digest cannot be read.
    """
    told = claim.content and reports.understood(RowDigest, claim.content, StagePlan.JOB)
    return Staged(
        place=claim.place,
        version=staging.version,
        files=len(staging.files),
        rows=sum(map(rows_of, staging.files)),
        bytes=sum(file.size for file in staging.files),
        digest=digest_of(staging),
        content=content_of(staging, told) if told else None,
    )


def content_of(staging: Staging, told: RowDigest) -> str | None:
    """The digest of the rows; None if Spark hashed other rows than it staged, because a task ran twice."""
    rows = sum(map(rows_of, staging.files))
    if told.rows != rows:
        log.warning("%s: Spark hashed %s rows and staged %s, so the rows get no digest", staging.place, told.rows, rows)
        return None
    content = {
        "table": staging.user_metadata.get("table_id"),
        "columns": told.columns,
        "rows": rows,
        "sums": told.sums,
        "partitions": sorted(_partitions(staging).items()),
        **({} if staging.from_footers or told.typed else {"nulls": _nulls(staging, rows)}),
    }
    return _scheme(staging, told) + hashlib.sha256(_compact(content).encode()).hexdigest()


def _scheme(staging: Staging, told: RowDigest) -> str:
    if told.typed:
        return CONTENT_OF_TYPED
    return CONTENT_SCHEME if staging.from_footers else CONTENT_OF_STATISTICS


def needs_statistics(promised: Staged) -> bool:
    """Whether Spark must collect statistics as it stages rows again, to make them comparable with ``promised``."""
    return not (promised.content or "").startswith((CONTENT_SCHEME, CONTENT_OF_TYPED))


def needs_variants_by_json(promised: Staged) -> bool:
    """Whether rows staged again must be hashed with variants as JSON, without their types, as ``promised`` was."""
    return not (promised.content or CONTENT_OF_TYPED).startswith(CONTENT_OF_TYPED)


def _nulls(staging: Staging, rows: int) -> dict[str, int]:
    """The number of NULLs per column and field, from the log. Columns without any value are left out."""
    found: Counter[str] = Counter()
    for file in staging.files:
        nulls = _logical(json.loads(file.stats).get("nullCount"), staging.shape.schema["fields"])
        found.update({_compact(path): count for path, count in _leaves(nulls)})
    return {path: count for path, count in found.items() if 0 < count < rows}


def _leaves(nulls: Any) -> Iterator[tuple[list[str], int]]:
    for name, value in nulls.items() if isinstance(nulls, dict) else ():
        if isinstance(value, dict):
            yield from (([name, *path], count) for path, count in _leaves(value))
        elif isinstance(value, int):
            yield [name], value


def _partitions(staging: Staging) -> Counter[str]:
    """The number of rows per partition, from the log."""
    found: Counter[str] = Counter()
    for file in staging.files:
        values = _logical(file.partition_values, staging.shape.schema["fields"])
        found[_compact(values)] += rows_of(file)
    return found


def digest_of(staging: Staging) -> str:
    """The digest of the staged files, from the log and their footers: no row is read."""
    fields = staging.shape.schema["fields"]
    content = {
        "table": staging.user_metadata.get("table_id"),
        "columns": _columns(staging.shape.schema),
        "partition_by": list(staging.shape.partition_by),
        "files": sorted(_compact(_facts(file, fields)) for file in staging.files),
    }
    return (SCHEME if staging.from_footers else SCHEME_OF_LOG) + hashlib.sha256(_compact(content).encode()).hexdigest()


def _facts(file: StagedFile, fields: list[JsonDict]) -> list[Any]:
    stats = json.loads(file.stats) if file.stats else {}
    return [
        _logical(file.partition_values, fields),
        file.size,
        [_logical(stats.get(key), fields) for key in _STATISTICS],
    ]


def _logical(values: Any, fields: list[JsonDict]) -> Any:
    """``values`` keyed by the columns' own names: the physical names differ in every staging table."""
    if not isinstance(values, dict):
        return values
    by_physical = {physical_name(field): field for field in fields}
    renamed = {}
    for key, value in values.items():
        field = by_physical.get(key, {"name": key, "type": None})
        renamed[field["name"]] = _logical(value, _fields_of(field["type"]))
    return renamed


def _fields_of(kind: Any) -> list[JsonDict]:
    return kind["fields"] if isinstance(kind, dict) and kind["type"] == "struct" else []


def _columns(kind: Any) -> Any:
    """A type reduced to the names, types and nullability of its parts."""
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        return [[field["name"], _columns(field["type"]), field.get("nullable", True)] for field in kind["fields"]]
    return [kind["type"], *(_columns(kind[key]) for key in ("elementType", "keyType", "valueType") if key in kind)]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
