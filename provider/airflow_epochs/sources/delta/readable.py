"""Which versions of a table can be read in one go, and what is wrong with the first that cannot."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_epochs.delta.shape import TableShape
from airflow_epochs.delta.table import TableLocation
from airflow_epochs.sources.delta import unreadable
from airflow_epochs.sources.delta.bounds import NO_BOUNDS, Bounds, FilesSize
from airflow_epochs.sources.delta.columns import Columns, changed_column, difference
from airflow_epochs.sources.delta.table_now import TableNow
from airflow_epochs.sources.delta.unreadable import Unreadable
from airflow_epochs.sources.delta.versions import Version, read_version, records_changes
from airflow_epochs.spark.driver.delta.schema import maps_columns


def readable(
    now: TableNow, numbers: Sequence[int], *, feed: bool, bounds: Bounds = NO_BOUNDS
) -> tuple[list[Version], Unreadable | None]:
    """The versions up to the first one that cannot be read, and that one.

    Args:
        now: The table.
        numbers: The versions to read, ascending.
        feed: Whether their changes are read, or only what they append.
        bounds: The versions after the first one with which these are exceeded are not looked at.
    """
    found: list[Version] = []
    flaw, size = None, FilesSize()
    shape = now.known_shape_at(numbers[0]) if numbers and (feed or now.shape.may_have_mapped) else None
    feed_is_on = shape is None or records_changes(shape.properties)
    other_names = tuple(shape.renamed) if shape and maps_columns(shape.properties) else ()
    for number in numbers:
        version = read_version(now.location.files, number)
        if version and version.keeps_feed is not None:
            feed_is_on = version.keeps_feed
        flaw = _flaw_in_entry(now.location.name, number, version, feed_is_on if feed else None)
        if version and version.renamed is not None:
            other_names = version.renamed
        if version and not flaw:
            if feed:
                flaw = _flaw_of_columns(now, version, found, shape)
            else:
                flaw = _flaw_of_names(now, version, found, other_names)
        if flaw or version is None:
            break
        found.append(version)
        size += version.size(feed=feed)
        if bounds.exceeded_by(size):
            break
    return _before_lost_files(now.location, found, flaw, feed)


def _flaw_in_entry(table: str, number: int, version: Version | None, feed_is_on: bool | None) -> Unreadable | None:
    """Why the version's log entry alone makes it unreadable; None if it does not.

    ``feed_is_on``: whether the table records its changes; None if the source does not read them.
    """
    if version is None:
        return unreadable.gone(table, number, "its entry is gone from the table's log")
    if feed_is_on is not None:
        return None if feed_is_on else unreadable.feed_off(table, number)
    if version.removes or any(add.get("deletionVector") for add in version.adds):
        if version.back:
            return unreadable.leads_back(table, number, version.back.to)
        return unreadable.changes_rows(table, number, version.operation)
    return None


def _flaw_of_names(
    now: TableNow, version: Version, earlier: Sequence[Version], names: Sequence[str]
) -> Unreadable | None:
    """Why rows of the version would lose values; None if they would not.

    Spark looks for columns in files by their names of today. ``names``: the columns that the files call by another
    name. A column may be renamed meanwhile, so the rows before such a version are read by the names of their time, in
    an epoch that ends there.
    """
    if not names or not any(each.adds for each in (*earlier, version)):
        return None
    return unreadable.other_names(now.location.name, version.number, names[0])


def _flaw_of_columns(
    now: TableNow, version: Version, earlier: Sequence[Version], shape: TableShape | None
) -> Unreadable | None:
    """Why Spark refuses the changes of the version, or reads them wrongly, after a change of columns; None if not so.

    Spark reads the rows that a version adds and deletes with one set of columns. If the table maps columns, this is the
    set of the last version that is read, and otherwise the set of today. If the files of a version were not partitioned
    by a partition column, it is NULL in their rows, and no error says so.

    Args:
        now: The table.
        version: The version.
        earlier: The versions that are read together with it, before it.
        shape: The table's shape at the first version that is read; None if the log no longer tells it.
    """
    if flaw := _flaw_of_its_own_change(now, version):
        return flaw
    return _flaw_of_a_later_one(now, version, earlier, shape) if earlier else _flaw_of_the_first(now, version, shape)


def _flaw_of_its_own_change(now: TableNow, version: Version) -> Unreadable | None:
    """Why a version cannot be read that deletes rows and changes the columns at once; None if this one does not."""
    before = now.known_shape_at(version.number - 1) if version.columns and (version.removes or version.cdc) else None
    if before and version.columns and (why := difference(Columns.of(before), version.columns, or_gone=False)):
        return unreadable.other_columns(now.location.name, version.number, f"it {why}")
    return None


def _flaw_of_the_first(now: TableNow, version: Version, shape: TableShape | None) -> Unreadable | None:
    if shape and (why := difference(Columns.of(shape), Columns.of(now.shape), or_gone=True)):
        if maps_columns(now.shape.properties) and shape.partition_by == now.shape.partition_by:
            return None
        return unreadable.other_columns(now.location.name, version.number, f"a later version {why}")
    return None


def _flaw_of_a_later_one(
    now: TableNow, version: Version, earlier: Sequence[Version], shape: TableShape | None
) -> Unreadable | None:
    """Why a version cannot be read together with the ``earlier`` ones: it changes or removes a column.

    None if it does not; it may add columns. Spark does not read changes before and after such a version together.
    """
    if version.columns is None:
        return None
    first = earlier[0].number
    known = [each.columns for each in earlier if each.columns] or [Columns.of(shape or now.shape_at(first))]
    if name := changed_column(known[-1].schema, version.columns.schema):
        why = f"it removes or changes the column {name}, so it is not read together with version {first}"
        return unreadable.other_columns(now.location.name, version.number, why)
    return None


def _before_lost_files(
    table: TableLocation, versions: list[Version], flaw: Unreadable | None, feed: bool
) -> tuple[list[Version], Unreadable | None]:
    """The versions before the first one that lacks a file, and its flaw; both as given if no version lacks a file."""
    needed = {version.number: version.files_read(feed=feed) for version in versions}
    missing = table.files.missing(dict.fromkeys(path for paths in needed.values() for path in paths))
    for index, version in enumerate(versions):
        if lost := [path for path in needed[version.number] if path in missing]:
            why = f"{len(lost)} of the files with its rows are gone, for example {lost[0]}"
            return versions[:index], unreadable.gone(table.name, version.number, why)
    return versions, flaw
