"""Brings an epoch's rows into a table by their keys: a temporary table gets them first, and then the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.sql.database import Session
from airflow_epochs.sinks.sql.deletions import Deletions
from airflow_epochs.sinks.sql.forms import Forms
from airflow_epochs.sinks.sql.statements import Names
from airflow_epochs.sinks.sql.table import SqlTable, qualified, quoted

if TYPE_CHECKING:
    from airflow_epochs.sinks.sql.database import Batches

BATCH_TABLE = "airflow_epochs_rows"
"""The temporary table. Statements always name its schema: a user's table may have the same name and be found first."""
_NAMED_MAX = 5


@dataclass(frozen=True, kw_only=True)
class By:
    """How rows find the rows that they replace.

    Attributes:
        keys: The table's key columns.
        sequence: The table's column that says which of two rows is newer; None: the later epoch's row is newer.
        deleted: The rows' field that says whether a row deletes its key; None: no row does.
    """

    keys: Sequence[str]
    sequence: str | None = None
    deleted: str | None = None


@dataclass(frozen=True, kw_only=True)
class Upsert:
    """One epoch's change of a table.

    Attributes:
        columns: The columns that the rows have, in the order of their fields.
        rehearses: Whether to refuse rows whose key or sequence a trigger changes. A commit has promised them.
    """

    session: Session
    table: SqlTable
    columns: Sequence[str]
    by: By
    rehearses: bool = False

    def run(self, fields: Sequence[JsonDict], rows: Batches) -> int:
        """Change the table.

        Returns:
            How many rows have had their effect: the table has them, or lacks a key that they delete, or has a newer
            row.

        Raises:
            Refused: The database refuses a row, keys are NULL or repeated, the table has keys or sequences of another
                type, or a trigger changes what later epochs look for.
        """
        sent = self._fill(fields, rows)
        self._require_keys()
        if self.by.deleted:
            self.session.index(BATCH_TABLE, list(map(self._names.compared, self.by.keys)))
        forms = self._forms(fields)
        forms.require(self._target, self._batch)
        done = self._delete(self.by.deleted, forms) if self.by.deleted else 0
        done += self._take_older()
        done += self._insert(sent - done)
        self.session.execute(f"DROP TABLE {self._batch}")
        return done

    # -- the temporary table -------------------------------------------------------------------------------------

    def _fill(self, fields: Sequence[JsonDict], rows: Batches) -> int:
        columns, mark = list(self.columns), ""
        copied = ", ".join(map(self._copied, columns))
        if self.by.deleted:
            mark = f", 1 = 0 AS {quoted(self.by.deleted)}"
            columns, fields = [*columns, self.by.deleted], [*fields, {"name": self.by.deleted, "type": "boolean"}]
        self.session.execute(
            f"CREATE TEMPORARY TABLE {BATCH_TABLE} AS SELECT {copied}{mark} FROM {self._target} WHERE 1 = 0"
        )
        into = replace(self.table, schema=self.session.temporary, name=BATCH_TABLE, insert="INSERT")
        return self.session.load(into, columns, fields, rows)

    def _copied(self, name: str) -> str:
        """A column for the temporary table. There, a row that deletes its key has NULL in all but key and sequence."""
        column = self.table.column_of(name)
        if column is None or not self.by.deleted or name in (*self.by.keys, self.by.sequence):
            return quoted(name)
        return f"{self.session.nullable(column)} AS {quoted(name)}"

    def _require_keys(self) -> None:
        keys, compared = self._names.listed(self.by.keys), ", ".join(map(self._names.compared, self.by.keys))
        missing = " OR ".join(f"{quoted(key)} IS NULL" for key in self.by.keys)
        no_key = self.session.execute(f"SELECT {keys} FROM {self._batch} WHERE {missing} LIMIT {_NAMED_MAX}")
        repeated = self.session.execute(
            f"SELECT {compared} FROM {self._batch} GROUP BY {compared} HAVING count(*) > 1 ORDER BY {compared} "
            f"LIMIT {_NAMED_MAX}"
        )
        hint = "" if self.by.sequence else " The sink has no `sequence_by` that tells which row of a key is the newest."
        for found, what, why in (
            (no_key, "are NULL in some rows", ""),
            (repeated, "are not unique in the epoch's rows", hint),
        ):
            if found:
                named = "; ".join(", ".join(map(str, values)) for values in found)
                raise Refused(
                    f"The keys ({', '.join(self.by.keys)}) {what}, among them: {named}.{why}",
                    code=codes.SQL_ROWS_UNFIT,
                    remedy="Correct the transform: let it return one row per key, without NULL in the key columns. "
                    "Then clear the stage task.",
                )

    # -- the target ----------------------------------------------------------------------------------------------

    def _delete(self, mark: str, forms: Forms) -> int:
        """Delete keys. Returns how many rows of the batch need no more: deletions, and rows older than one."""
        deleted = quoted(mark)
        older = self._notes.apply(self._batch, mark, forms) if self._notes else 0
        ((deletions,),) = self.session.execute(f"SELECT count(*) FROM {self._batch} WHERE {deleted}")
        if not deletions:
            return older
        doomed = (
            f"EXISTS (SELECT 1 FROM {self._batch} b WHERE b.{deleted} AND {self._same_keys}"
            f" AND {self._not_older('b', 't')})"
        )
        self._lock_in_order()
        self.session.execute(f"DELETE FROM {self._target} AS t WHERE {doomed}")
        ((left,),) = self.session.execute(f"SELECT count(*) FROM {self._target} t WHERE {doomed}")
        if left:
            raise Refused(
                f"The epoch deletes rows of table {self.table.name}, and {left} of them are still there: a trigger or "
                "a rule of the table keeps them without an error.",
                code=codes.SQL_ROWS_DROPPED,
            )
        self.session.execute(f"DELETE FROM {self._batch} WHERE {deleted}")
        return older + int(deletions)

    def _lock_in_order(self) -> None:
        """Lock all rows that will change, by key: two sinks with overlapping keys wait for each other.

        The database counts them: the driver would hold all rows that it returns.
        """
        if self.session.row_lock:
            self.session.execute(
                f"SELECT count(*) FROM (SELECT 1 FROM {self._target} t JOIN {self._batch} b ON {self._same_keys} "
                f"ORDER BY {self._names.listed(self.by.keys, 't')} {self.session.row_lock} OF t) AS locked"
            )

    def _insert(self, rows: int) -> int:
        columns, keys = self._names.listed(self.columns), self._names.listed(self.by.keys)
        # Ordered by key: two sinks with overlapping keys then wait for each other and do not deadlock.
        written = self.session.change(
            f"{self.table.insert} INTO {self._target} AS t ({columns}) SELECT {columns} FROM {self._batch} WHERE 1 = 1"
            f" ORDER BY {keys} ON CONFLICT ({keys}) DO {self._update()}"
        )
        taken = written if written >= rows else self._found()  # it may not count rows that existed already
        if self.rehearses and taken == rows:
            self._require_kept(all_written=written >= rows)
        return taken

    def _require_kept(self, *, all_written: bool) -> None:
        """Require that the rows kept their keys and sequences, by which later epochs find and compare them.

        ``all_written``: no row of another transaction, which committed a newer one meanwhile, stands in their place.

        Raises:
            Refused: A trigger gives rows another key or another sequence, or deletes them.
        """
        if not (self.by.sequence or self.by.deleted) or not self.session.has_triggers(self.table):
            return
        if lost := self._without("1 = 1"):
            raise self._changed(lost, self.by.keys, ", or deletes them")
        if self.by.sequence and (lost := self._without(self._same_sequence(all_written))):
            raise self._changed(lost, [self.by.sequence])

    def _without(self, alike: str) -> int:
        """How many of the batch's rows have no row in the table with the same key for which the condition is true."""
        there = f"EXISTS (SELECT 1 FROM {self._target} t WHERE {self._same_keys} AND ({alike}))"
        return int(self.session.execute(f"SELECT count(*) FROM {self._batch} b WHERE NOT {there}")[0][0])

    def _same_sequence(self, all_written: bool) -> str:
        """The condition that both rows have the same sequence.

        The temporary table has the target's types, so both have rounded and padded the value in the same way.
        """
        assert self.by.sequence
        here, there = (self._names.ordered(self.by.sequence, each) for each in ("b", "t"))
        same = f"{there} = {here} OR {there} IS NULL AND {here} IS NULL"
        return same if all_written else f"{same} OR NOT {self._not_older('b', 't')}"

    def _changed(self, rows: int, names: Sequence[str], otherwise: str = "") -> Refused:
        columns = f"column{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"
        return Refused(
            f"The sink wrote {rows} rows of table {self.table.name} that the table does not show as they are: a "
            f"trigger changes {columns} of the rows{otherwise}. Later epochs would not find these rows, or would take "
            "newer rows as older.",
            code=codes.SQL_ROWS_DROPPED,
            remedy=f"Change the trigger: let it leave {columns} as the sink writes the rows, and keep its own value in "
            "another column. Or let the transform return the value that the trigger makes. "
            f"{self._looking_newer(names)}Then clear the failed task.",
        )

    def _looking_newer(self, names: Sequence[str]) -> str:
        """The remedy for rows of earlier epochs, which an earlier version or a sink without a rehearsal let in."""
        if self.by.sequence is None or self.by.sequence not in names:
            return ""
        column = quoted(self.by.sequence)
        return (
            "Rows that the trigger has changed before look newer than they are: set their column back to the source's "
            f"value, or to NULL (`UPDATE {self.table.spelled} SET {column} = NULL`), so that the next row of each key "
            "counts. "
        )

    def _update(self) -> str:
        names = [quoted(name) for name in self._others]
        if not names:
            return "NOTHING"
        sets = ", ".join(f"{name} = excluded.{name}" for name in names)
        return f"UPDATE SET {sets} WHERE {self._not_older('excluded', 't')}"

    def _not_older(self, row: str, than: str) -> str:
        """The condition that one row is not older than another. Of two equally new rows, the later epoch's row wins."""
        if self.by.sequence is None:
            return "1 = 1"
        mine, other = (self._names.ordered(self.by.sequence, each) for each in (row, than))
        return f"({other} IS NULL OR {mine} >= {other})"

    def _take_older(self) -> int:
        """Take away the batch's rows that change nothing, because the table has a newer row. Returns how many.

        A trigger may change values, so what the table shows in the end would not tell such a row from one that the
        trigger drops.
        """
        if self.by.sequence is None:
            return 0
        newer = f"SELECT 1 FROM {self._target} t WHERE {self._same_keys} AND NOT {self._not_older('b', 't')}"
        return self.session.change(f"DELETE FROM {self._batch} AS b WHERE EXISTS ({newer})")

    def _found(self) -> int:
        """How many of the batch's rows the table has, equal in all columns or replaced by a newer row.

        A trigger may skip an equal row.
        """
        alike = []
        for name in map(quoted, self._others):
            both = f"CAST(t.{name} AS text) = CAST(b.{name} AS text)"  # some types cannot be compared
            alike.append(f"({both} OR t.{name} IS NULL AND b.{name} IS NULL)")
        shown = f"({' AND '.join(alike) or '1 = 1'}) OR NOT {self._not_older('b', 't')}"
        there = f"EXISTS (SELECT 1 FROM {self._target} t WHERE {self._same_keys} AND ({shown}))"
        return int(self.session.execute(f"SELECT count(*) FROM {self._batch} b WHERE {there}")[0][0])

    # -- names ---------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> Names:
        return Names(self.session, self.table, self.by.keys)

    def _forms(self, fields: Sequence[JsonDict]) -> Forms:
        return Forms(
            session=self.session,
            table=self.table,
            keys=self.by.keys,
            sequence=self.by.sequence,
            kinds={name: field["type"] for name, field in zip(self.columns, fields, strict=True)},
            all_keys=self.rehearses,
        )

    @property
    def _notes(self) -> Deletions | None:
        """The notes of keys that earlier epochs deleted; None if the sink does not order rows."""
        if self.by.sequence is None:
            return None
        return Deletions(session=self.session, table=self.table, keys=self.by.keys, sequence=self.by.sequence)

    @property
    def _same_keys(self) -> str:
        return self._names.same_keys("t", "b")

    @property
    def _others(self) -> list[str]:
        return [name for name in self.columns if name not in self.by.keys]

    @property
    def _target(self) -> str:
        return self.table.spelled

    @property
    def _batch(self) -> str:
        return qualified(self.session.temporary, BATCH_TABLE)
