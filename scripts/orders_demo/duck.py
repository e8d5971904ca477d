"""DuckDB with its Delta reader (delta-kernel): shares no code with deltalake or Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import duckdb_extension_delta


@contextmanager
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory with ``delta_scan``; its extension comes from the installed package, not the network."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as database:
        [extension] = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
        database.execute(f"LOAD '{extension}'")
        database.execute("SET TimeZone = 'UTC'")  # by default times are printed in the machine's zone
        yield database
