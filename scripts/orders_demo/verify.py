"""Asks DuckDB, which knows nothing of this project, whether every produced record is in exactly one row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orders_demo.duck import duck

TABLES = {"orders": "silver/orders", "rejected": "silver/orders_rejected"}

SHOWN = " UNION ALL ".join(
    f"""SELECT '{sink}' AS sink, partition, "offset" FROM delta_scan('{{lake}}/{path}')"""
    for sink, path in TABLES.items()
)

CHECK = """
WITH produced AS (FROM read_csv('{places}', header = true, columns = {{'partition': 'INTEGER', 'offset': 'BIGINT'}})),
     shown AS ({shown}),
     counted AS (SELECT partition, "offset", count(*) AS rows FROM shown GROUP BY ALL),
     beside AS (SELECT p.partition AS produced, c.partition AS shown, coalesce(c.rows, 0) AS rows
                FROM produced p FULL JOIN counted c USING (partition, "offset"))
SELECT (SELECT count(*) FROM produced),
       (SELECT count(*) FROM shown),
       (SELECT count(*) FROM shown WHERE sink = 'rejected'),
       count(*) FILTER (WHERE shown IS NULL),
       count(*) FILTER (WHERE rows > 1),
       count(*) FILTER (WHERE produced IS NULL)
FROM beside
"""


@dataclass(frozen=True)
class Verdict:
    """Counts of records. ``strange``: shown, though never produced."""

    produced: int
    shown: int
    rejected: int
    missing: int
    duplicated: int
    strange: int

    @property
    def exactly_once(self) -> bool:
        return self.produced == self.shown > 0 and not (self.missing or self.duplicated or self.strange)

    def __str__(self) -> str:
        kind = "exactly once" if self.exactly_once else "NOT exactly once"
        strange = f", {self.strange} never produced" if self.strange else ""
        wrong = f"{self.missing} missing, {self.duplicated} duplicated{strange}"
        return f"{kind}: {self.produced} in, {self.shown} out, {wrong}"


def verify(lake: Path, places: Path) -> Verdict:
    """Compare the CSV file of produced (partition, offset) pairs with the rows of both tables."""
    with duck() as database:
        row = database.execute(CHECK.format(places=places, shown=SHOWN.format(lake=lake))).fetchone()
    assert row is not None
    return Verdict(*row)
