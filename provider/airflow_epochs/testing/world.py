"""What outlives a process, in memory: topics, tables, staging places, and the ledger's store.

A table is like a Delta table with staged files: a commit only *refers* to a staging place's files. So deleting a
published place loses rows here as well.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from weakref import WeakValueDictionary

from airflow_epochs.errors import Corrupt, Refused, RowsGone
from airflow_epochs.model import Marker, OffsetRange, TransactionId
from airflow_epochs.testing.stores import DictStore, Observer, unobserved

_WORLDS: WeakValueDictionary[str, MemoryWorld] = WeakValueDictionary()


class Row(NamedTuple):
    """One record: where it came from, and its value."""

    topic: str
    partition: int
    offset: int
    value: object


@dataclass(frozen=True)
class Place:
    """A staging place. ``log`` tells what was staged. ``files`` are the rows; a commit makes them the table's."""

    txn_id: str
    rows: tuple[Row, ...]
    log: bool = True
    files: bool = True


class TableCommit(NamedTuple):
    """One commit in a table: the sink's application id, its marker, and the staging place that it refers to."""

    app: str
    txn_id: TransactionId
    place: str


class Published(NamedTuple):
    """Where a transaction is in a table's history, and which place's files it took."""

    version: int
    place: str


@dataclass(frozen=True)
class Table:
    """What readers of a table see."""

    name: str
    commits: tuple[TableCommit, ...] = ()
    visible: tuple[Row, ...] = ()

    def values(self) -> list[object]:
        """The visible rows' values, in offset order."""
        return [row.value for row in sorted(self.visible, key=lambda row: row[:3])]


@dataclass(frozen=True, kw_only=True)
class _Topic:
    partitions: dict[int, list[object]] = field(default_factory=dict)
    gone_before: dict[int, int] = field(default_factory=dict)


class MemoryWorld:
    """Topics, tables, places and the ledger's store. ``MemoryWorld.named(world.name)`` finds the world again.

    Attributes:
        store: The ledger's store.
        tables: Table -> its commits. Each is atomic and carries the marker.
        places: All staging places.
        observer: Called before and after every effect on tables and places. ``observe`` sets it for the store, too.
        refusals: Sink -> the reason of its next VOTE_ABORTs, for example a schema that does not match.
        acknowledged: The ranges that sources have acknowledged, in order.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name or uuid.uuid4().hex
        self.store = DictStore()
        self.tables: dict[str, tuple[TableCommit, ...]] = {}
        self.places: dict[str, Place] = {}
        self.refusals: dict[str, str] = {}
        self.acknowledged: list[dict[str, tuple[OffsetRange, ...]]] = []
        self.observer: Observer = unobserved
        self._topics: dict[str, _Topic] = {}
        _WORLDS[self.name] = self

    @staticmethod
    def named(name: str) -> MemoryWorld:
        """The world of this name. Raises Refused if this process has no such world, or no reference to it is left."""
        try:
            return _WORLDS[name]
        except KeyError:
            raise Refused(
                f"This process has no MemoryWorld {name!r}, or nothing refers to it any more.",
                remedy="Keep a reference to the MemoryWorld as long as its sinks and sources are in use.",
            ) from None

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` at every effect, also the store's."""
        self.observer = self.store.observer = observer

    # -- topics -------------------------------------------------------------------------------------------------

    def produce(self, topic: str, partition: int, values: list[object]) -> None:
        """Append records to a partition. Creates topic and partition."""
        self._topics.setdefault(topic, _Topic()).partitions.setdefault(partition, []).extend(values)

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Delete all records before an offset, as retention does."""
        self._topics[topic].gone_before[partition] = before

    def ends(self, topic: str) -> dict[int, int]:
        """Per partition, the offset of the next record."""
        return {number: len(values) for number, values in self._topics.get(topic, _Topic()).partitions.items()}

    def start(self, topic: str, partition: int) -> int:
        """The first offset that is left."""
        return self._topics[topic].gone_before.get(partition, 0)

    def read(self, topic: str, wanted: OffsetRange) -> tuple[Row, ...]:
        """The records of a range. Raises Corrupt if some are gone."""
        start = self.start(topic, wanted.partition)
        if wanted.start < start:
            raise Corrupt(
                f"{topic}-{wanted.partition}: offsets [{wanted.start}, {min(start, wanted.end)}) are gone.",
                remedy="Restore them, or give the pipeline a new name and `starting` offsets.",
            )
        values = self._topics[topic].partitions[wanted.partition][wanted.start : wanted.end]
        return tuple(Row(topic, wanted.partition, wanted.start + n, value) for n, value in enumerate(values))

    # -- tables and places ----------------------------------------------------------------------------------------

    def table(self, name: str) -> Table:
        """What readers see now. Raises AssertionError if a published place's files are gone."""
        commits = self.tables.get(name, ())
        places = [self.places.get(commit.place) for commit in commits]
        lost = [commit for commit, place in zip(commits, places, strict=True) if not (place and place.files)]
        assert not lost, f"published files were deleted: {lost}"
        return Table(name, commits, tuple(row for place in places if place for row in place.rows))

    def place(self, name: str) -> Place | None:
        """The staging place of this name; None if it does not exist."""
        return self.places.get(name)

    def stage(self, name: str, place: Place) -> None:
        """Write a staging place, atomically. Raises Refused if it exists: every try has its own."""
        self.observer(f"before stage {name}")
        if name in self.places:
            raise Refused(
                f"The staging place {name} exists already.",
                remedy="Correct the sink's `place`: each try must have a place of its own.",
            )
        self.places[name] = place
        self.observer(f"after stage {name}")

    def marker(self, table: str, app: str) -> TransactionId | None:
        """The transaction of the last commit of ``app``."""
        return next((c.txn_id for c in reversed(self.tables.get(table, ())) if c.app == app), None)

    def publish(self, table: str, commit: TableCommit, previous: TransactionId | None) -> Published:
        """Compare the marker and commit, atomically. A repeat returns the commit that stands, perhaps of another place.

        Raises:
            RowsGone: The marker is ``previous``, but the place's files are gone.
            Corrupt: The marker is neither ``previous`` nor this commit's.
        """
        self.observer(f"before publish {table} {commit.txn_id}")
        published = self._published(table, commit, previous)
        self.observer(f"after publish {table} {commit.txn_id}")
        return published

    def _published(self, table: str, commit: TableCommit, previous: TransactionId | None) -> Published:
        commits, found = self.tables.get(table, ()), self.marker(table, commit.app)
        if found == commit.txn_id:
            version = [c.txn_id for c in commits].index(commit.txn_id)
            return Published(version, commits[version].place)
        if found != previous:
            raise Corrupt(
                f"The table {table} shows {found}, but the ledger expects {previous}.",
                remedy="Find out what else writes to this table under this name.",
            )
        place = self.places.get(commit.place)
        if not place or not place.files:
            raise RowsGone(
                f"The staged files {commit.place} are gone.",
                remedy="Clear the commit task: it stages the same offsets again. Or restore the files.",
            )
        self.tables[table] = (*commits, commit)
        return Published(len(commits), commit.place)

    def lose_last_commit(self, table: str) -> None:
        """Take the last commit back, as a failover to a late replica does, or a file restored from a copy."""
        self.tables[table] = self.tables[table][:-1]

    def vacuum(self, name: str) -> None:
        """Delete a place's files if no commit refers to them, as VACUUM does."""
        place = self.places.get(name)
        if place and not any(commit.place == name for commits in self.tables.values() for commit in commits):
            self.places[name] = replace(place, files=False)

    def discard(self, name: str, *, published: bool) -> None:
        """Delete a place; of a published one, only its log. Idempotent."""
        self.observer(f"before discard {name}")
        place = self.places.get(name)
        if place and published:
            self.places[name] = replace(place, log=False)
        else:
            self.places.pop(name, None)
        self.observer(f"after discard {name}")

    # -- what is left at the end --------------------------------------------------------------------------------

    def litter(self) -> set[str]:
        """Staging places that no commit refers to, and published ones that still have their log."""
        published = {commit.place for commits in self.tables.values() for commit in commits}
        return {name for name, place in self.places.items() if name not in published or place.log}


def marker_of(txn: TransactionId | None) -> Marker | None:
    """The marker of a transaction; None for None."""
    return Marker.of(txn) if txn else None
