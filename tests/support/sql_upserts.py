"""Epochs of a sink that upserts into a database, one after the other, as a test tells them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_epochs import codes
from airflow_epochs.model import TransactionId, Vote, VoteKind
from airflow_epochs.spark.driver.delta.keys import DELETED
from tests.support.delta_world import attempt_of, promised, transaction
from tests.support.sql_world import SqlWorld

BY: dict[str, Any] = {"mode": "upsert", "keys": ["id"], "sequence_by": "lsn", "delete_when": "op = 'd'"}
TEXT = pa.string()
LONG = pa.int64()

Row = tuple[Any, str | None, Any]


def changes(*rows: Row, id: pa.DataType = TEXT, lsn: pa.DataType = LONG) -> pa.Table:
    """Rows as Spark stages them: key, name and sequence. Without a name, a row deletes its key."""
    ids, names, sequences = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, id),
            "name": pa.array(names, pa.string()),
            "lsn": pa.array(sequences, lsn),
            DELETED: pa.array([name is None for name in names]),
        }
    )


class SqlEpochs:
    """Epochs of one sink that upserts into table ``t``."""

    def __init__(self, world: SqlWorld, table: str, **options: Any) -> None:
        world.db.run(f"CREATE TABLE t ({table})")
        self.world, self.sink = world, world.sink("t", **{**BY, **options})
        self._last: TransactionId | None = None
        self._next = 1

    def votes(self, data: pa.Table) -> Vote:
        """The vote. A yes is committed."""
        txn = transaction(self._next)
        self._next += 1
        attempt = attempt_of(txn, self._last)
        vote = self.world.voted(self.sink, attempt, data)
        if vote.vote is VoteKind.VOTE_COMMIT:
            self.sink.commit(attempt, promised(vote), self.world.env)
            self._last = txn
        return vote

    def takes(self, data: pa.Table) -> None:
        vote = self.votes(data)
        assert vote.vote is VoteKind.VOTE_COMMIT, vote.reason

    def refuses(self, data: pa.Table, *told: str) -> str:
        vote = self.votes(data)
        assert vote.vote is VoteKind.VOTE_ABORT
        assert vote.reason and codes.SQL_ROWS_UNFIT.name in vote.reason
        for text in told:
            assert text in vote.reason
        return vote.reason

    def rows(self) -> list[tuple[Any, ...]]:
        """As another program sees them."""
        return self.world.db.run("SELECT CAST(id AS text), name FROM t ORDER BY 1")
