"""Adds the statistics in the files' footers to what a staging log says of its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from airflow_epochs import codes
from airflow_epochs.delta.log import StagedFile
from airflow_epochs.errors import Refused
from airflow_epochs.staged.file_statistics import statistics_of
from airflow_epochs.staged.staging import Staging
from airflow_epochs.storage.files import Files

MAGIC = b"PAR1"
"""The last bytes of a Parquet file, after the length of its footer."""
_END = 8
READ_BYTES = 64 * 1024
"""How much is read of a file's end: most footers are shorter."""
FILES_AT_ONCE = 256
"""The most file ends that are in memory at once."""


def completed(files: Files, staging: Staging) -> Staging:
    """``staging`` with the statistics of every file: from the log if it has some, else from the file's footer.

    Every file must be there.

    Raises:
        Refused: A file does not end as a Parquet file does.
        NotApplied: A file cannot be read.
    """
    known: dict[str, int] = {}
    unknown: dict[str, int] = {}
    for file in staging.files:
        (known if file.stats else unknown)[f"{staging.place}/{file.path}"] = file.size
    for path, tail in files.tails(known, len(MAGIC)):
        _require_end(path, tail)
    found = {path: statistics_of(footer, staging.shape) for path, footer in _footers(files, unknown)}
    whole = tuple(_with(file, found.get(f"{staging.place}/{file.path}")) for file in staging.files)
    return replace(staging, files=whole, from_footers=bool(unknown))


def _with(file: StagedFile, statistics: str | None) -> StagedFile:
    return file if statistics is None else replace(file, stats=statistics)


def _footers(files: Files, sizes: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
    """Path and footer of each file."""
    paths = list(sizes)
    for start in range(0, len(paths), FILES_AT_ONCE):
        for path, tail in files.tails({path: sizes[path] for path in paths[start : start + FILES_AT_ONCE]}, READ_BYTES):
            yield path, _footer(path, _all_of_it(files, path, sizes[path], tail))


def _all_of_it(files: Files, path: str, size: int, tail: bytes) -> bytes:
    """The file's bytes from the start of its footer to its end. ``tail``: the last of them, which were read already."""
    _require_end(path, tail)
    length = int.from_bytes(tail[-_END : -len(MAGIC)], "little") + _END
    return tail if length <= len(tail) else dict(files.tails({path: size}, length))[path]


def _footer(path: str, tail: bytes) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(pa.BufferReader(tail))
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path) from error


def _require_end(path: str, tail: bytes) -> None:
    if not tail.endswith(MAGIC):
        raise _damaged(path)


def _damaged(path: str) -> Refused:
    return Refused(
        f"The staged file {path} is cut off or damaged: it does not end as a Parquet file does.",
        code=codes.STAGED_INCOMPLETE,
    )
