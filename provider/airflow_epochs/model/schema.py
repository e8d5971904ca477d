"""The schemas of a registry, on record."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from airflow_epochs.model.record import FORMAT_UNSIGNED
from airflow_epochs.schemas import WriterSchema


@dataclass(frozen=True, kw_only=True)
class SchemaRecord:
    """``schemas/<digest>.json``: schemas by their ids in a registry. Epochs that found the same schemas share it.

    It has no signature: its key is the digest of what it says, and the open record that names the digest is signed.
    """

    schemas: dict[str, WriterSchema]
    format: int = FORMAT_UNSIGNED

    @property
    def digest(self) -> str:
        """SHA-256 of the schemas, in hex."""
        told = [[number, each.kind, each.text, each.flaw] for number, each in sorted(self.schemas.items())]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()
