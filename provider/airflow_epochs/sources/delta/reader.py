"""A Delta source's work in an epoch: plan its versions, check that they can be read, describe Spark's read.

An epoch that begins at version 0 reads the table as it is at the epoch's last version. So a long history need not be
there any more. Every other epoch reads what its versions have changed. Both rest on versions alone, which never change,
so a rerun reads the same rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from urllib.parse import unquote

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import TABLE_ID, Environment, Move, PlannedEpoch, Position, SparkRead
from airflow_epochs.delta.log import entry_version, log_entry
from airflow_epochs.delta.table import TableLocation
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import Backlog, JsonDict, Ranges
from airflow_epochs.names import resolved
from airflow_epochs.sources.delta import moves
from airflow_epochs.sources.delta.bounds import NO_BOUNDS, Bounds, FilesSize
from airflow_epochs.sources.delta.config import EARLIEST, LATEST, DeltaConfig, parse_starting
from airflow_epochs.sources.delta.moves import DIGEST, of_versions, versions_in
from airflow_epochs.sources.delta.readable import readable
from airflow_epochs.sources.delta.table_now import TableNow, Whole, look, whole
from airflow_epochs.sources.delta.taken_back import LOOKED_AT_MAX, not_taken_back
from airflow_epochs.sources.delta.unreadable import Unreadable
from airflow_epochs.sources.delta.versions import Version, digest_of, next_shape, next_with_files, read_version
from airflow_epochs.spark.driver.plans import TableRead
from airflow_epochs.spark.driver.wire import as_json
from airflow_epochs.storage.options import storage_options

log = secrecy.logger(__name__)

POLL_S = 0.5
SEARCHED_MAX = 1_000
"""How many versions to try, to suggest one in place of ``starting``: each may take a request to the store."""
_FOR_MANY_VERSIONS = (codes.CHANGE_FEED_OFF, codes.COLUMNS_CHANGED)
"""Flaws that mostly last until the table's metadata change. So not every version is tried: each try opens the table."""
_BYTES_PER_ROW = 100
"""The bytes that a row takes in a file without statistics: an estimate."""


def require_no_loop(table: str, writes: Collection[str]) -> None:
    """Raise Refused if the table is among the sinks' destinations."""
    if resolved(table) in writes:
        raise Refused(
            f"A sink writes to {table}, which the pipeline reads. The pipeline would read its own rows again and "
            "again.",
            code=codes.LOOP,
        )


@dataclass(frozen=True)
class DeltaReader:
    """The operations of ``contracts.Source`` for one Delta source's options, in one task's environment."""

    config: DeltaConfig
    env: Environment

    @cached_property
    def location(self) -> TableLocation:
        """Where the table is, with the options of its store."""
        conn_id, table = self.config.storage_conn_id, self.config.table
        options = storage_options(self.env.connection(conn_id) if conn_id else None)
        return TableLocation(table, table, options, conn_id)

    # -- an epoch ----------------------------------------------------------------------------------------------------

    def plan(self, position: Position | None) -> PlannedEpoch | None:
        """Plan the versions of a new epoch; None after ``max_wait`` seconds without a new version.

        A first epoch that starts at ``"latest"`` is empty: it records where the pipeline begins.

        Raises:
            Corrupt: The table has been replaced, or versions that the pipeline has not read cannot be read any more.
            Refused: There is no table, or it cannot be read in this way.
        """
        now = look(self.location, feed=self.config.feed)
        if position is None:
            start = self._first(now)
            if self.config.starting == LATEST:
                return self._planned(now, start, start)
        else:
            start = self._go_on(now, position)
        newest = self._wait(start, now.newest)
        if newest < start:
            return None
        now = now if newest == now.newest else look(self.location, feed=self.config.feed)
        with self._telling_where_to_start(now, start) if position is None else nullcontext():
            end = self._end(now, start, whole=moves.is_whole(position))
        return self._planned(now, start, end)

    def _first(self, now: TableNow) -> int:
        starting = self.config.starting
        if starting == EARLIEST:
            return 0
        start = now.newest + 1 if starting == LATEST else int(starting)
        if start > now.newest + 1:
            raise Refused(
                f"`starting` is {start}, and the newest version of {now.location.name} is {now.newest}.",
                code=codes.STARTING_UNUSABLE,
                remedy="Correct `starting` of the DeltaSource, and clear the failed task. If a param of the run set "
                "it, start a run with another value.",
            )
        return start

    @contextmanager
    def _telling_where_to_start(self, now: TableNow, start: int) -> Iterator[None]:
        """No command moves a pipeline that has no epoch yet, so an error must not name one."""
        try:
            yield
        except Corrupt as unreadable:
            if start == 0:
                raise
            until = min(now.newest + 1, self._oldest_entry(now, start) + SEARCHED_MAX)
            first = self._first_readable(now, start, until)
            known = f"{first}, the first version after it that can be read" if first < until else repr(LATEST)
            raise Refused(
                f"`starting` is {start}. {unreadable.what}",
                code=codes.STARTING_UNUSABLE,
                remedy=f"Set `starting` of the DeltaSource to {EARLIEST!r}: the first epoch then reads all rows that "
                f"the table has. Or set it to {known}. Then clear the failed task. If a param of the run set it, start "
                "a run with another value.",
            ) from unreadable

    def _go_on(self, now: TableNow, position: Position) -> int:
        self._require_of_table(position)
        _, start = versions_in(position.ranges)
        self._require_same(now, position.state, start)
        return start

    def _wait(self, start: int, newest: int) -> int:
        """The newest version, after a wait of at most ``max_wait`` for version ``start``."""
        deadline = time.monotonic() + self.config.max_wait_s
        while newest < start and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left))
            newest = start if self.location.files.read(log_entry(start)) is not None else newest
        return newest

    def _end(self, now: TableNow, start: int, *, whole: bool) -> int:
        """The end of the epoch: the first version that it does not read. Raises Corrupt if it cannot read any.

        ``whole``: whether a command lets the epoch read the whole table.
        """
        if start == 0 and (whole or self.config.starting == EARLIEST):
            return self._end_of_all(now, _IN_STEPS if whole else None)
        end = min(now.newest + 1, start + self.config.max_versions)
        if start == 0:
            return self._end_of_beginning(now, end)
        versions, flaw = self._readable(now, start, end, self.config.bounds)
        if self._may_be_taken_back(now, versions, flaw):
            end = min(now.newest + 1, end + LOOKED_AT_MAX)
            numbers = not_taken_back(now.location.files, start, end)[: self.config.max_versions]
            versions, flaw = readable(now, numbers, feed=False, bounds=self.config.bounds)
        if versions:
            return self._behind(versions)
        if flaw and flaw.version == start:
            raise flaw.error
        return flaw.version if flaw else end

    def _behind(self, versions: Sequence[Version]) -> int:
        """The end of an epoch that reads as many of these versions as fit."""
        count = self._fitting(versions[0].number, [version.size(feed=self.config.feed) for version in versions])
        return versions[count - 1].number + 1

    def _may_be_taken_back(self, now: TableNow, versions: Sequence[Version], flaw: Unreadable | None) -> bool:
        """Whether a later version can have taken back some of these: the newest one lacks files that they added."""
        if self.config.feed or (versions and versions[-1].number == now.newest):
            return False
        added = {path for version in versions for path in version.files_read(feed=False)}
        return flaw is not None or (bool(added) and not _newest_has(now, added))

    def _end_of_all(self, now: TableNow, remedy: str | None) -> int:
        """The end of an epoch that reads the whole table. Raises Refused if that is more than the user allows."""
        size = self._require_whole(now, now.newest, _REPAIR).size
        if now.newest > 0 and self.config.bounds.exceeded_by(size):
            raise Refused(
                f"The epoch would read all rows that the table {now.location.name} has, in {size}, and the source has "
                f"{self.config.bounds}.",
                code=codes.FIRST_EPOCH_TOO_LARGE,
                remedy=remedy,
            )
        return now.newest + 1

    def _end_of_beginning(self, now: TableNow, end: int) -> int:
        """The end of an epoch that begins at version 0 and may end before the newest one."""
        if self.config.bounds != NO_BOUNDS:
            end = self._fitting(0, self._sizes_of_beginning(now, end))
        found = self._require_whole(now, end - 1, _READ_ALL)
        if end <= now.newest and not _newest_has(now, found.files):
            kept = not_taken_back(now.location.files, 0, min(now.newest + 1, end + LOOKED_AT_MAX))
            end = max((number for number in kept if number < end), default=end - 1) + 1
        return end

    def _sizes_of_beginning(self, now: TableNow, end: int) -> Iterator[FilesSize]:
        for number in range(end):
            version = read_version(now.location.files, number)
            if version is None:
                raise Corrupt(
                    f"The entry of version {number} is gone from the log of the table {now.location.name}, so its "
                    "size is not known.",
                    code=codes.VERSIONS_GONE,
                    remedy=_READ_ALL,
                )
            yield version.size(feed=False)

    def _fitting(self, start: int, sizes: Iterable[FilesSize]) -> int:
        """How many versions the epoch reads. A version that is larger than the bounds is an epoch of its own."""
        told = iter(sizes)  # not a list: what is behind the bounds need not be read
        first = next(told)
        if self.config.bounds.exceeded_by(first):
            log.warning("version %s has %s, more than %s: it is an epoch of its own", start, first, self.config.bounds)
        return self.config.bounds.fitting(chain([first], told))

    def _planned(self, now: TableNow, start: int, end: int) -> PlannedEpoch:
        state = {TABLE_ID: now.id, DIGEST: digest_of(now.location.files, end - 1)}
        left = Backlog(offsets=now.newest + 1 - end)
        return PlannedEpoch(ranges=of_versions(self.config.table, start, end), state=state, backlog=left)

    def check(self, ranges: Ranges, state: JsonDict) -> None:
        """Raise Corrupt unless every row of the planned versions can still be read. Reads only."""
        now = self._look_again(ranges, state)
        self._require_readable(now, *versions_in(ranges))

    def confirm(self, ranges: Ranges, state: JsonDict) -> None:
        """After Spark's read: raise Corrupt if the table has been replaced meanwhile."""
        self._look_again(ranges, state)

    def _look_again(self, ranges: Ranges, state: JsonDict) -> TableNow:
        self._require_of_table(Position(ranges=ranges, state=state))
        now = look(self.location, feed=self.config.feed)
        self._require_same(now, state, versions_in(ranges)[1])
        return now

    # -- what can be read --------------------------------------------------------------------------------------------

    def _require_readable(self, now: TableNow, start: int, end: int) -> None:
        if start == 0 and end > 0:
            self._require_whole(now, end - 1, _PLAN_ANEW)
        elif flaw := self._readable(now, start, end)[1]:
            raise flaw.error

    def _readable(
        self, now: TableNow, start: int, end: int, bounds: Bounds = NO_BOUNDS
    ) -> tuple[list[Version], Unreadable | None]:
        """The versions that an epoch of ``[start, end)`` reads, up to the first that cannot be read, and that one."""
        found = readable(now, range(start, end), feed=self.config.feed, bounds=bounds)
        if found[1] is None or self.config.feed:
            return found
        numbers = not_taken_back(now.location.files, start, end)
        return readable(now, numbers, feed=False, bounds=bounds) if len(numbers) < end - start else found

    def _require_whole(self, now: TableNow, version: int, remedy: str) -> Whole:
        """The files of a version. Raises Corrupt unless all are there."""
        found = whole(now.at(version, remedy))
        missing = sorted(now.location.files.missing(found.files))
        if missing:
            raise Corrupt(
                f"The epoch begins with all rows of version {version} of the table {now.location.name}, and "
                f"{len(missing)} of its files are gone, for example {missing[0]}.",
                code=codes.VERSIONS_GONE,
                remedy=remedy,
            )
        return found

    # -- is it the same table ----------------------------------------------------------------------------------------

    def _require_of_table(self, position: Position) -> None:
        """Raise Corrupt if the position is not one of this table: the DAG has got another source."""
        table, of = self.config.table, position.ranges
        is_ours = len(of) == 1 and all(len(each) == 1 for each in of.values())
        if not is_ours or (TABLE_ID not in position.state and table not in of):
            raise Corrupt(
                f"The pipeline has read from {', '.join(sorted(of))}, and its source is the table {table} now.",
                code=codes.SOURCE_TABLE_REPLACED,
            )

    def _require_same(self, now: TableNow, state: JsonDict, end: int) -> None:
        """Raise Corrupt unless the table is the one whose versions up to ``end`` have been read or planned."""
        name, known = now.location.name, state.get(TABLE_ID)
        if known and known != now.id:
            what = f"has the id {now.id}, and the pipeline has read the table with the id {known}"
        elif now.newest + 1 < end:
            what = f"ends with version {now.newest}, and the pipeline has got to version {end - 1}"
        elif not self._is_same_entry(now, state, end):
            what = f"has another version {end - 1} than the one that the pipeline has got to"
        else:
            return
        raise Corrupt(f"The table {name} {what}.", code=codes.SOURCE_TABLE_REPLACED)

    def _is_same_entry(self, now: TableNow, state: JsonDict, end: int) -> bool:
        """Whether the last version is the known one, as far as the log still tells."""
        known, found = state.get(DIGEST), digest_of(now.location.files, end - 1)
        return known is None or found is None or known == found

    # -- commands ----------------------------------------------------------------------------------------------------

    def past_losses(self, position: Position, topics: Sequence[str]) -> Move:
        """Go on with the first version that can be read."""
        now, start = self._standing(position, topics)
        to = self._first_readable(now, start, now.newest + 1)
        return moves.moved(position, self.config.table, now.id, to, now.newest)

    def _first_readable(self, now: TableNow, start: int, until: int) -> int:
        """The first version from ``start`` on that can be read; ``until`` or a later number if none before it can."""
        to = start
        while 0 < to < until and (flaw := self._readable(now, to, to + 1)[1]):
            to = self._next_to_try(now, to, flaw.error, until)
        return to

    def _next_to_try(self, now: TableNow, lost: int, why: Corrupt, until: int) -> int:
        files = now.location.files
        if files.read(log_entry(lost)) is None:
            return self._oldest_entry(now, lost)
        if why.code is codes.VERSIONS_GONE:
            return next_with_files(files, lost, until, feed=self.config.feed)
        return next_shape(files, lost, until) if why.code in _FOR_MANY_VERSIONS else lost + 1

    def _oldest_entry(self, now: TableNow, lost: int) -> int:
        """The next version that has an entry in the log."""
        known = (entry_version(name) for name in now.location.files.names("_delta_log"))
        return min((each for each in known if each is not None and each > lost), default=now.newest + 1)

    def to_offsets(self, position: Position, offsets: Mapping[str, Mapping[int, int]]) -> Move:
        """Go on with the version that ``offsets`` name."""
        offsets = self._by_todays_name(position, offsets)
        now, _ = self._standing(position, list(offsets))
        return moves.moved(position, self.config.table, now.id, self._version_in(now, offsets), now.newest)

    def _by_todays_name(
        self, position: Position, offsets: Mapping[str, Mapping[int, int]]
    ) -> Mapping[str, Mapping[int, int]]:
        """``offsets`` with the table's path of today, if they name an earlier one, which the position has.

        ``_go_on`` finds out whether it is the same table.
        """
        if not position.state.get(TABLE_ID):
            return offsets
        return {self.config.table if topic in position.ranges else topic: of for topic, of in offsets.items()}

    def to_another(self, position: Position, starting: object) -> Move:
        """Go on in the table that is there now."""
        now, table = look(self.location, feed=self.config.feed), self.config.table
        if isinstance(starting, Mapping):
            return moves.to_another(position, table, now.id, self._version_in(now, starting), now.newest)
        parsed = parse_starting(starting, table)
        to = 0 if parsed == EARLIEST else now.newest + 1 if parsed == LATEST else self._there(now, int(parsed))
        return moves.to_another(position, table, now.id, to, now.newest, whole=parsed == EARLIEST)

    def _version_in(self, now: TableNow, offsets: Mapping[str, Mapping[int, int]]) -> int:
        self._require_named(list(offsets))
        of = offsets[self.config.table] if offsets else {}
        if of.keys() != {0}:
            raise Refused(
                f"The offsets of the table {self.config.table} name the partitions {sorted(of)}. A table has only "
                "partition 0, whose offset is the version to go on with. Nothing was changed.",
                code=codes.OFFSETS_UNUSABLE,
            )
        return self._there(now, of[0])

    def _there(self, now: TableNow, version: int) -> int:
        if version > now.newest + 1:
            raise Refused(
                f"The command would go on at version {version}, and the newest version of {self.config.table} is "
                f"{now.newest}. Nothing was changed.",
                code=codes.OFFSETS_UNUSABLE,
            )
        return version

    def _standing(self, position: Position, topics: Sequence[str]) -> tuple[TableNow, int]:
        self._require_named(topics)
        now = look(self.location, feed=self.config.feed)
        return now, self._go_on(now, position)

    def _require_named(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if topic != self.config.table:
                raise Refused(
                    f"The pipeline does not read {topic!r}. It reads the table {self.config.table}.",
                    code=codes.TOPIC_UNKNOWN,
                )

    # -- Spark -------------------------------------------------------------------------------------------------------

    def spark_read(self, ranges: Ranges) -> SparkRead:
        """What Spark reads of the table for these versions."""
        now = look(self.location, feed=self.config.feed)
        return SparkRead(options={}, table=as_json(self._table_read(now, *versions_in(ranges))))

    def _table_read(self, now: TableNow, start: int, end: int) -> TableRead:
        shape = now.shape_at(max(0, end - 1))
        read = TableRead(
            location=self.config.table,
            start=start,
            end=end,
            feed=self.config.feed,
            schema=shape.schema,
            partition_by=shape.partition_by,
        )
        if start == end:
            return read
        return self._of_whole(now, read) if start == 0 else self._of_versions(now, read)

    def _of_whole(self, now: TableNow, read: TableRead) -> TableRead:
        last = read_version(now.location.files, read.end - 1)
        at_ms = last.timestamp_ms if last else None
        return replace(read, records=whole(now.at(read.end - 1)).records, at_ms=at_ms)

    def _of_versions(self, now: TableNow, read: TableRead) -> TableRead:
        versions, flaw = self._readable(now, read.start, read.end)
        if flaw:
            raise flaw.error
        adds = [add for version in versions for add in version.adds]
        records = sum(map(_rows_of, adds)) + sum(map(_rows_of, (file for version in versions for file in version.cdc)))
        if read.feed:
            return replace(read, records=records)
        files = {unquote(add["path"]): _partition_of(now, add, read.partition_by) for add in adds}
        _require_distinct(now, files)
        return replace(read, records=records, files=files)


def _newest_has(now: TableNow, files: Iterable[str]) -> bool:
    return {*files} <= {*whole(now.at(now.newest)).files}


def _partition_of(now: TableNow, add: JsonDict, columns: Sequence[str]) -> tuple[str | None, ...]:
    """The values of a file's partition columns. Raises Refused if the log lacks one.

    An empty text stands for NULL, as in Delta's protocol.
    """
    values = add["partitionValues"]
    if unknown := [column for column in columns if column not in values]:
        raise Refused(
            f"The log of the table {now.location.name} does not tell the partition column {unknown[0]!r} of the file "
            f"{unquote(add['path'])}.",
            code=codes.DELTA_SOURCE_UNREADABLE,
        )
    return tuple(values[column] or None for column in columns)


def _rows_of(file: JsonDict) -> int:
    """The rows of a file by its statistics; without these, an estimate from its size."""
    try:
        return int(json.loads(file["stats"])["numRecords"])
    except (KeyError, TypeError, ValueError):
        return int(file.get("size", 0)) // _BYTES_PER_ROW


def _require_distinct(now: TableNow, files: Mapping[str, tuple[str | None, ...]]) -> None:
    """Raise Refused if two files of different partitions have one name: Spark tells files by their names."""
    known: dict[str, tuple[str | None, ...]] = {}
    for path, values in files.items():
        if known.setdefault(path.rpartition("/")[2], values) != values:
            raise Refused(
                f"The table {now.location.name} has files of one name in different partitions, for example {path}.",
                code=codes.DELTA_SOURCE_UNREADABLE,
            )


_READ_ALL = (
    "Set `starting` of the DeltaSource to 'earliest': the epoch then reads all rows that the table has now. Then clear "
    "the failed task."
)
_IN_STEPS = (
    "Set `starting` of the DeltaSource to 0, and run `airflow epochs reset-source PIPELINE --starting 0 --why …`: the "
    "epochs then go through the table's versions in steps. If the old versions are gone, remove `max_files` and "
    "`max_bytes` from the DAG for this one epoch instead. Then clear the failed task."
)
_REPAIR = "Put the files back, or repair the table, and clear the failed task."
_PLAN_ANEW = (
    "Put the files back, and clear the failed task. If they are gone for good, plan the epoch anew, with the rows that "
    "the table has now: `airflow epochs replan PIPELINE --why …`. Then clear the failed task."
)
