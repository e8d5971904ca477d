"""A table as the database describes it, and the check whether rows fit it. No I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.sql.types import variant_in
from airflow_epochs.spark.driver.delta.keys import DELETED
from airflow_epochs.spark.driver.delta.schema import type_name
from airflow_epochs.transforms import exact_json

_STEM_BYTES = 40
"""How many bytes of a table's name an index's name keeps: PostgreSQL cuts names to 63 bytes."""


def quoted(name: str) -> str:
    """A name in double quotes, as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def qualified(schema: str, name: str) -> str:
    """Schema and name of a table, quoted for a statement."""
    return f"{quoted(schema)}.{quoted(name)}"


def _meant(name: str, names: Sequence[str]) -> str | None:
    """``name``, if it is in ``names``; else the name that differs only in case, if there is exactly one."""
    alike = [each for each in names if each.lower() == name.lower()]
    return name if name in names else alike[0] if len(alike) == 1 else None


@dataclass(frozen=True, kw_only=True)
class SqlColumn:
    """One column.

    Attributes:
        kind: Its type, as the database spells it.
        parts: The types inside it: an array's elements, a domain's base type, a row type's fields.
        required: Whether rows must have it, because it is NOT NULL without a default.
        generated: Whether rows must not have it, because the database computes it.
        not_null: Whether a row's value must not be NULL.
        affinity: In SQLite, what it makes of texts and numbers in the column, as ``types.sqlite_affinity`` says.
        encoding: In SQLite, how it stores texts: ``UTF-8`` or another.
    """

    name: str
    kind: str
    required: bool
    generated: bool
    parts: tuple[str, ...] = ()
    not_null: bool = False
    affinity: str = ""
    encoding: str = "UTF-8"

    @property
    def told_kind(self) -> str:
        """The column's type, for messages. A column of SQLite may have no type."""
        return self.kind or "without a type"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How a unique index compares the values of one of its columns. All are spelled as a statement needs them.

    Attributes:
        equals: The operator that says whether two values are equal.
        collation: The collation; None if the values have no collation.
        enum: The enum to which the values must be cast, for they may be of a domain over it; None if they need no cast.
    """

    equals: str = "="
    collation: str | None = None
    enum: str | None = None


@dataclass(frozen=True, kw_only=True)
class SqlTable:
    """A table that exists.

    Attributes:
        unique: The columns of each unique index that an upsert can use -> how it compares each of them.
        deferrable: The columns of deferrable unique constraints, by which no upsert can go, even where there is an
            index on the same columns that it could use -> the statements that drop them. Both are empty unless
            the session was asked for a ``keyed`` table.
        problem: Why no sink can use the table, whatever the rows are; None if a sink can.
        virtual: Whether a module of SQLite stores the rows as it likes: R*Tree rounds numbers to 32 bits.
        hides: Whether row-level security applies to the user, so that it may hide rows.
        id: Differs for another table of the same name; None if the database has no such id.
        insert: How an INSERT must begin so that it drops no row in silence.
        partitions: Schema and name of each partition that has rows.
        writable: Whether the user may INSERT into it, at least into some columns.
        heirs: The tables that inherit from it and are no partitions, as a statement needs them.
        lasts: Whether a crash of the server leaves its rows; of a partitioned table, see ``problem``.
    """

    schema: str
    name: str
    columns: tuple[SqlColumn, ...]
    unique: Mapping[frozenset[str], Mapping[str, Comparison]]
    problem: str | None
    virtual: bool = False
    hides: bool = False
    id: str | None = None
    insert: str = "INSERT"
    partitions: frozenset[tuple[str, str]] = frozenset()
    deferrable: Mapping[frozenset[str], Sequence[str]] = field(default_factory=dict)
    lasts: bool = True
    writable: bool = True
    heirs: tuple[str, ...] = ()

    def has_rows_in(self, place: tuple[str, str]) -> bool:
        """Whether the table, or one of its partitions, has this schema and name."""
        return place == (self.schema, self.name) or place in self.partitions

    @property
    def spelled(self) -> str:
        """Schema and name, as a statement needs them."""
        return self.beside(self.name)

    @property
    def schema_spelled(self) -> str:
        """The schema, as a statement needs it."""
        return quoted(self.schema)

    def beside(self, name: str) -> str:
        """Another table of the same schema, as a statement needs it."""
        return qualified(self.schema, name)

    @property
    def disinheriting(self) -> str:
        """The statements that end all inheritance from the table, for an error's text."""
        return ", ".join(f"`ALTER TABLE {heir} NO INHERIT {self.spelled}`" for heir in self.heirs)

    def column_of(self, name: str) -> SqlColumn | None:
        """The column of this name; else the one whose name differs only in case, if there is exactly one."""
        meant = _meant(name, [column.name for column in self.columns])
        return next((column for column in self.columns if column.name == meant), None)


Takes = Callable[[SqlColumn, Any], bool]
"""Whether a column can store a Delta type."""


TypeFor = Callable[[Any], str | None]
"""The column type to create for a Delta type; None if there is none."""


Sorts = Callable[[SqlColumn, Any], bool]
"""Whether a column orders the values of a Delta type as Spark does."""
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")

_TYPES = re.compile(r"(\bas\b|::)\s*\w+(\s*<[^()]*>)?|\binterval\s+(''|[-+]?\w+)\s+\w+")
"""Words in a condition that are no columns: the type of a cast, and the unit of an interval."""


def written(
    table: SqlTable, staged: Sequence[JsonDict], delete_when: str | None, kept: Collection[str | None]
) -> list[JsonDict]:
    """The fields of the staged rows that go into the table.

    Args:
        table: The table.
        staged: All fields.
        delete_when: The condition of the sink. A field that it names and the table lacks has done its work in Spark.
        kept: Fields that the sink needs in the table.
    """
    spelled = _TYPES.sub("", _QUOTED.sub("''", delete_when or "").lower())
    needed = {name.lower() for name in kept if name}

    def has_done(name: str) -> bool:
        # A name before a parenthesis is a function, and a name before a text is a type.
        used = re.search(rf"(?<![\w.]){re.escape(name.lower())}(?!\w|\s*[('])", spelled)
        return bool(used) and name.lower() not in needed and table.column_of(name) is None

    return [field for field in staged if field["name"] != DELETED and not has_done(field["name"])]


def columns_for(table: SqlTable, fields: Sequence[JsonDict], takes: Takes, type_for: TypeFor) -> list[str]:
    """The table's columns for rows with these fields, in the fields' order. ``type_for``: for the remedy.

    Raises:
        Refused: The rows do not fit; with every reason.
    """
    columns = {given["name"]: table.column_of(given["name"]) for given in fields}
    found = [problem for given in fields if (problem := _misfit(columns[given["name"]], given, takes))]
    names = [column.name for column in columns.values() if column]
    found += [
        f"two columns of the rows match column {name!r}" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    found += [
        f"column {column.name!r} is NOT NULL without a default in the table, and the rows do not have it"
        for column in table.columns
        if column.required and column.name not in names
    ]
    if found:
        raise Refused(
            f"The rows do not fit table {table.name!r}: {'; '.join(found)}.",
            code=codes.SQL_ROWS_UNFIT,
            remedy=_remedy(table, fields, takes, type_for),
        )
    return names


def _remedy(table: SqlTable, fields: Sequence[JsonDict], takes: Takes, type_for: TypeFor) -> str | None:
    """The remedy if columns have other types than the rows; None if all types fit."""
    there = [given for given in fields if table.column_of(given["name"])]
    variants = [given for given in there if variant_in(given["name"], given["type"])]
    texts = [{**given, "type": "string"} if given in variants else given for given in there]
    steps = [f"Make text of column {name!r} in the transform, by {call}" for name, call in map(_as_text, variants)]
    if types := _declarations(table, texts, takes, type_for):
        steps.append(f"Correct the transform, or declare in the table: {', '.join(types)}")
    return ". ".join([*steps, "Then clear the stage task."]) if steps else None


def _as_text(given: JsonDict) -> tuple[str, str]:
    """A column's name, and the call of Spark that makes text of it."""
    return given["name"], exact_json.call(given["name"], type_name(given["type"]))


def _declarations(table: SqlTable, fields: Sequence[JsonDict], takes: Takes, type_for: TypeFor) -> list[str]:
    """The columns that do not take these fields, each with a type that does."""
    return [
        f"{column.name!r} {kind}"
        for given in fields
        if (column := table.column_of(given["name"])) and not column.generated
        if not takes(column, given["type"]) and (kind := type_for(given["type"]))
    ]


def _misfit(column: SqlColumn | None, given: JsonDict, takes: Takes) -> str | None:
    name, kind = given["name"], type_name(given["type"])
    if column is None:
        return f"column {name!r} ({kind}) is not in the table"
    if column.generated:
        return f"the database computes column {name!r}, so the rows must not have it"
    if variant := variant_in(name, given["type"]):
        return f"{variant!r} is a variant, which the sink cannot write"
    if not takes(column, given["type"]):
        return f"column {name!r} is {kind} in the rows and {column.told_kind} in the table"
    return None


def key_columns(table: SqlTable, keys: Sequence[str], given: Sequence[str], spelled: str) -> list[str]:
    """The table's columns for ``keys``. ``spelled``: the table, as the DAG has it.

    Raises:
        Refused: The rows lack a key column, or no unique index has exactly these columns.
    """
    found = [column.name for key in keys if (column := table.column_of(key)) and column.name in given]
    if len(found) != len(keys):
        raise Refused(
            f"The rows do not have all key columns of the sink: {', '.join(keys)}.",
            code=codes.SQL_ROWS_UNFIT,
            remedy="Correct `keys` of the sink, or the transform. Then clear the stage task.",
        )
    _require_index(table, found, spelled)
    return found


def sequence_column(table: SqlTable, sequence: str, fields: Sequence[JsonDict], sorts: Sorts) -> str:
    """The table's column for ``sequence_by``, which ``fields`` have.

    Raises:
        Refused: The table lacks the column, or the database orders its values in another way than Spark.
    """
    column = require_sequence(table, sequence)
    kind = next(field["type"] for field in fields if table.column_of(field["name"]) is column)
    if not sorts(column, kind):
        raise Refused(
            f"`sequence_by` of the sink is {sequence!r}, which is {type_name(kind)} in the rows and "
            f"{column.told_kind} in table {table.name!r}. The database orders such values in another way than "
            "Spark, so the two would not agree which row is the newest.",
            code=codes.SQL_ROWS_UNFIT,
            remedy="Give the sink a `sequence_by` with whole numbers or times. For texts, make the column of the table "
            "a text; in SQLite, also use a file whose `PRAGMA encoding` is UTF-8. Then clear the stage task.",
        )
    return column.name


def require_sequence(table: SqlTable, sequence: str) -> SqlColumn:
    """The table's column for ``sequence_by``. Raises Refused if the table lacks it."""
    if column := table.column_of(sequence):
        return column
    raise Refused(
        f"Table {table.name!r} has no column {sequence!r}, which `sequence_by` of the sink names. Its columns are: "
        f"{', '.join(column.name for column in table.columns)}.",
        code=codes.SQL_ROWS_UNFIT,
        remedy="Add the column to the table: in later epochs it tells whether a row is older than the one in the "
        "table. Or correct `sequence_by`. Then clear the failed task.",
    )


def require_keys(table: SqlTable, keys: Sequence[str], spelled: str) -> list[str]:
    """The table's columns for ``keys``. ``spelled``: as for ``key_columns``.

    Raises:
        Refused: The table lacks one of them, or an index on them.
    """
    if missing := [key for key in keys if not table.column_of(key)]:
        raise Refused(
            f"Table {table.name!r} has no column {', '.join(map(repr, missing))}, which `keys` of the sink names. Its "
            f"columns are: {', '.join(column.name for column in table.columns)}.",
            code=codes.SQL_ROWS_UNFIT,
            remedy="Correct `keys` of the sink, or add the column to the table. Then clear the failed task.",
        )
    found = [column.name for key in keys if (column := table.column_of(key))]
    _require_index(table, found, spelled)
    return found


def require_usable(table: SqlTable, spelled: str) -> None:
    """Require that a sink can write to the table, by its kind and the right to INSERT."""
    if table.problem:
        raise Refused(
            f"A sink cannot write to table {spelled}: {table.problem}.",
            code=codes.SQL_TABLE_UNUSABLE,
        )
    if not table.writable:
        raise Refused(
            f"A sink cannot write to table {spelled}: the connection's user may not INSERT into it.",
            code=codes.SQL_TABLE_UNUSABLE,
            remedy=f"Grant it: `GRANT INSERT ON {table.spelled} TO <the user>`. Then clear the failed task.",
        )


def require_kept(table: SqlTable, spelled: str) -> None:
    """Require that the table keeps values unchanged. A commit does not ask this: votes of earlier versions did not."""
    if table.virtual:
        raise Refused(
            f"A sink cannot write to table {spelled}: it is a virtual table, which may keep other values than it gets.",
            code=codes.SQL_TABLE_UNUSABLE,
            remedy="Give the sink an ordinary table, and let a trigger of that table fill the virtual one. Then clear "
            "the failed task.",
        )


def require_all_seen(table: SqlTable, spelled: str) -> None:
    """Require that the user sees all rows of the table, as an append by COPY and a deletion need."""
    if table.hides:
        raise Refused(
            f"A sink cannot write to table {spelled}: its row-level security applies to the connection's user, so COPY "
            "cannot write to it, and a deletion does not see the rows that a policy hides.",
            code=codes.SQL_TABLE_UNUSABLE,
        )


def _require_index(table: SqlTable, columns: Sequence[str], spelled: str) -> None:
    require_none_deferrable(table, columns, spelled)
    if frozenset(columns) not in table.unique:
        raise Refused(
            f"Table {table.name!r} has no unique index on exactly {', '.join(columns)}.",
            code=codes.SQL_UNIQUE_INDEX_MISSING,
            remedy="Create a unique index that is neither partial nor deferrable: "
            f"`{_unique_index(table, columns, spelled)}`. Then clear the failed task.",
        )


def require_none_deferrable(table: SqlTable, columns: Sequence[str], spelled: str) -> None:
    """Raise Refused if a deferrable constraint on exactly these columns stops each ON CONFLICT that names them."""
    drops = table.deferrable.get(frozenset(columns), ())
    if not drops:
        return
    creates = [] if frozenset(columns) in table.unique else [_unique_index(table, columns, spelled)]
    raise Refused(
        f"Table {table.name!r} has a unique constraint on exactly {', '.join(columns)} that is deferrable. ON CONFLICT "
        "takes no such constraint, even if there is another unique index on these columns.",
        code=codes.SQL_UNIQUE_INDEX_MISSING,
        remedy=f"{_in_place(drops, creates)}. Then clear the failed task.",
    )


def _in_place(drops: Sequence[str], creates: Sequence[str]) -> str:
    told = ["Drop the constraint", *(["create a unique index that is not deferrable in its place"] if creates else [])]
    return f"{', and '.join(told)}: {', then '.join(f'`{each}`' for each in (*drops, *creates))}"


def _unique_index(table: SqlTable, columns: Sequence[str], spelled: str) -> str:
    """A statement that both kinds of database execute. SQLite needs a name: one for each set of columns."""
    digest = hashlib.sha256(json.dumps([table.name, *columns]).encode()).hexdigest()[:8]
    name = f"{table.name.encode()[:_STEM_BYTES].decode(errors='ignore')}_keys_{digest}"
    return f"CREATE UNIQUE INDEX {quoted(name)} ON {spelled} ({', '.join(map(quoted, columns))})"


def suggestion(table: str, fields: Sequence[JsonDict], keys: Sequence[str], spelled: TypeFor) -> str:
    """A statement that creates a table for rows with these fields."""
    lines = [f"{quoted(given['name'])} {spelled(given['type']) or '?'}" for given in fields]
    if keys:
        names = [given["name"] for given in fields]
        lines.append(f"PRIMARY KEY ({', '.join(quoted(_meant(key, names) or key) for key in keys)})")
    return f"CREATE TABLE {table} ({', '.join(lines)})"
