"""What all records share: their formats, and who wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FORMAT = 2
"""The format of signed records. A record that was read has this format only if its signature was checked."""
FORMAT_UNSIGNED = 1
"""The format of unsigned records, the only one that version 0.1 knows."""
JsonDict = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """An Airflow run, by its two ids. The run that opens an attempt is in charge of it."""

    dag_id: str
    run_id: str

    def __str__(self) -> str:
        return f"run {self.run_id} of DAG {self.dag_id}"


def process_of(writer: str) -> str:
    """The process and host in a record's ``writer``, for a text; empty for a record of version 0.1."""
    _, _, process = writer.partition("@")
    host, _, pid = process.rpartition(":")
    return f" (process {pid} on host {host})" if host else ""


SHORT_CODE = 12
"""How many digits of a transform's digest a text shows."""
