"""A Delta commit as the table grows old: at versions 10, 1,000 and 10,000, with the upkeep that ``complete`` does.

The versions between are made by commits that add one file and remove the one before, so that the log has the
tombstones that compaction leaves behind; what is measured are real epochs of the sink: staged rows, one commit.
"""

from __future__ import annotations

import tempfile

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

from airflow_epochs import DeltaSink
from airflow_epochs.model import TransactionId
from tests.perf.figures import Figure, figure, stopwatch
from tests.support.delta_world import attempt_of, promised, rows, stage, transaction
from tests.support.environment import Environment

VERSIONS = (10, 1_000, 10_000)
COMMITS = 11


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        aging = Aging(DeltaSink("table", f"{folder}/table"))
        samples = {}
        for version in VERSIONS:
            aging.reach(version)
            samples[version] = [aging.epoch() for _ in range(COMMITS)]
    medians = [figure(f"Delta commit at version {version:,}", "ms", samples[version], most=25) for version in VERSIONS]
    flat = [old / young for old, young in zip(samples[10_000], samples[1_000], strict=True)]
    return [*medians, figure("Delta commit at version 10,000 ÷ at 1,000", "ratio", flat, most=2)]


class Aging:
    """One table and the epochs committed to it."""

    def __init__(self, sink: DeltaSink) -> None:
        self.sink, self.world = sink, Environment()
        self.previous: TransactionId | None = None
        self.epochs = 0
        self.epoch()

    def epoch(self) -> float:
        """Stage, vote, commit and maintain one epoch; the milliseconds of the commit."""
        self.epochs += 1
        attempt = attempt_of(transaction(self.epochs, pipeline="bench"), self.previous)
        staged = promised(
            self.sink.vote(attempt, stage(self.sink, attempt, rows(*range(1000)), self.world), self.world)
        )
        with stopwatch() as seconds:
            self.sink.commit(attempt, staged, self.world)
        self.previous = attempt.txn
        self.sink.maintain("bench", self.epochs, self.world)
        return 1e3 * seconds()

    def reach(self, version: int) -> None:
        """Let other writers bring the table to ``version``, with the upkeep that ``complete`` does."""
        table = DeltaTable(self.sink.target)
        columns, number = table.schema(), table.version()
        removed: list[RemoveAction] = []
        while number < version:
            number += 1
            add = AddAction(f"fill-{number}.parquet", 1000, {}, 1, True, '{"numRecords":1}')
            _commit(table, [*([add] if number < version else []), *removed], columns, number)
            removed = [RemoveAction(add.path, True, number, 1000, {})]
            table.update_incremental()
            if number % self.sink.checkpoint_every == 0:
                table.create_checkpoint()


def _commit(table: DeltaTable, actions: list[AddAction | RemoveAction], columns: object, number: int) -> None:
    table.create_write_transaction(
        actions,
        "append",
        columns,
        commit_properties=CommitProperties(app_transactions=[Transaction("fill", number, number)]),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )
