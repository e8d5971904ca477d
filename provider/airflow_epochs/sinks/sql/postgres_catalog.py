"""What PostgreSQL's catalog says of tables: columns, keys, partitions, rights, and the sequences that number rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_epochs.sinks.sql.database import Numbers
from airflow_epochs.sinks.sql.table import Comparison, SqlColumn, SqlTable, quoted

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
_PERMANENT = "p"
"""The value of ``relpersistence`` for a table that is neither UNLOGGED nor temporary."""
_PARTS = """
    WITH RECURSIVE part(oid) AS (
        SELECT %s::oid UNION SELECT i.inhrelid FROM part JOIN pg_catalog.pg_inherits i ON i.inhparent = part.oid
    )
"""
"""Begins a statement: the table and all of its partitions."""
_LEAVES = f"""{_PARTS}
    SELECT c.relispartition, n.nspname, c.relname, c.relkind, c.relpersistence
    FROM part JOIN pg_catalog.pg_class c USING (oid) JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE CASE WHEN c.relispartition THEN c.relkind <> 'p'
               ELSE c.relpersistence <> 't'
                    AND c.oid IN (SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = %s) END
    ORDER BY c.relname
"""
"""The partitions that have rows, and the tables that inherit from the table itself in the older way.

Not temporary ones: their rows are seen by one session alone.
"""
_TRIGGERS = f"""{_PARTS}
    SELECT EXISTS (SELECT 1 FROM part JOIN pg_catalog.pg_trigger t ON t.tgrelid = part.oid WHERE NOT t.tgisinternal)
"""
_TABLE = """
    SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, has_any_column_privilege(c.oid, 'INSERT'),
           pg_catalog.row_security_active(c.oid)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = pg_catalog.to_regclass(%s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_BASE = """
    (WITH RECURSIVE base(typ, mod) AS (
        SELECT a.atttypid, a.atttypmod
        UNION ALL
        SELECT d.typbasetype, d.typtypmod
        FROM base JOIN pg_catalog.pg_type d ON d.oid = base.typ AND d.typtype = 'd'
    ) SELECT pg_catalog.format_type(typ, mod) FROM base JOIN pg_catalog.pg_type b ON b.oid = base.typ
    WHERE b.typtype <> 'd')
"""
"""The type of the column ``a``; of a domain, the type below all domains."""
_COLUMNS = f"""
    SELECT a.attname, {_BASE},
           a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND t.typdefault IS NULL,
           a.attgenerated <> '' OR a.attidentity = 'a',
           ARRAY(WITH RECURSIVE part(typ, mod) AS (
               SELECT a.atttypid, a.atttypmod
               UNION
               SELECT inner_part.typ, inner_part.mod
               FROM part JOIN pg_catalog.pg_type p ON p.oid = part.typ, LATERAL (
                   SELECT p.typbasetype, p.typtypmod WHERE p.typtype = 'd'
                   UNION ALL SELECT p.typelem, part.mod WHERE p.typcategory = 'A'
                   UNION ALL SELECT f.atttypid, f.atttypmod FROM pg_catalog.pg_attribute f
                             WHERE p.typtype = 'c' AND f.attrelid = p.typrelid AND f.attnum > 0 AND NOT f.attisdropped
                   UNION ALL SELECT r.rngsubtype, -1 FROM pg_catalog.pg_range r WHERE p.oid IN ({{ranges}})
               ) AS inner_part(typ, mod)
           ) SELECT pg_catalog.format_type(typ, mod) FROM part),
           a.attnotnull OR t.typnotnull
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_RIGHTS = """
    SELECT a.attname, ARRAY(SELECT right_of_user FROM pg_catalog.unnest(%s::text[]) AS right_of_user
                            WHERE has_column_privilege(c.oid, a.attnum, right_of_user))
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
    WHERE c.oid = pg_catalog.to_regclass(%s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
          AND a.attnum > 0 AND NOT a.attisdropped
"""
_RANGES = "r.rngtypid"
_MULTIRANGES = "r.rngmultitypid"
_MULTIRANGES_SINCE = 140_000
"""The first server version that has multiranges."""
_NAMES = """
    SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind IN ('r', 'p')
          AND pg_catalog.left(c.relname::text, pg_catalog.length(%s::text)) = %s::text
    ORDER BY c.relname
"""
_UNIQUE = f"""
    SELECT i.indexrelid::bigint, a.attname, op_in.nspname, op.oprname,
           CASE WHEN c.opcintype = 'pg_catalog.anyenum'::regtype THEN {_BASE} END, coll_in.nspname, coll.collname
    FROM pg_catalog.pg_index i
    CROSS JOIN LATERAL ROWS FROM (
        pg_catalog.unnest(i.indkey::int2[]), pg_catalog.unnest(i.indclass::oid[]),
        pg_catalog.unnest(i.indcollation::oid[])
    ) WITH ORDINALITY AS k(num, class, collates, n)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num
    JOIN pg_catalog.pg_opclass c ON c.oid = k.class
    JOIN pg_catalog.pg_amop m ON m.amopfamily = c.opcfamily AND m.amopstrategy = 3
         AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
    JOIN pg_catalog.pg_operator op ON op.oid = m.amopopr
    JOIN pg_catalog.pg_namespace op_in ON op_in.oid = op.oprnamespace
    LEFT JOIN pg_catalog.pg_collation coll ON coll.oid = k.collates
    LEFT JOIN pg_catalog.pg_namespace coll_in ON coll_in.oid = coll.collnamespace
    WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid
          AND i.indpred IS NULL AND i.indexprs IS NULL AND k.n <= i.indnkeyatts
    ORDER BY pg_catalog.bool_and(coalesce(coll.collisdeterministic, true)) OVER (PARTITION BY i.indexrelid) DESC,
             i.indexrelid, k.n
"""
"""Strategy 3 is equality. An index whose collation takes different texts as equal comes last: of several on the same
columns, it decides which rows ON CONFLICT finds. The operator of enums takes no domain over an enum."""
_DEFERRABLE = """
    WITH RECURSIVE up(columns, oid, parent) AS (
        SELECT ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                     WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)), c.oid, c.conparentid
        FROM pg_catalog.pg_constraint c WHERE c.conrelid = %s AND c.contype IN ('p', 'u') AND c.condeferrable
        UNION ALL
        SELECT up.columns, c.oid, c.conparentid FROM up JOIN pg_catalog.pg_constraint c ON c.oid = up.parent
    )
    SELECT up.columns, n.nspname, t.relname, c.conname
    FROM up JOIN pg_catalog.pg_constraint c USING (oid) JOIN pg_catalog.pg_class t ON t.oid = c.conrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace WHERE up.parent = 0 ORDER BY c.conname
"""
"""What a partition has from its partitioned table can be dropped only there."""
_SEQUENCES = """
    WITH numbering(oid, attname, is_number) AS (
        SELECT d.refobjid, a.attname, pg_catalog.pg_get_expr(f.adbin, f.adrelid) LIKE 'nextval(''%''::regclass)'
        FROM pg_catalog.pg_attrdef f
        JOIN pg_catalog.pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
        JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = f.oid
        WHERE f.adrelid = %s AND a.attname = ANY (%s)
              AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjsubid = 0
        UNION
        SELECT d.objid, a.attname, true FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.refclassid = d.classid AND d.deptype = 'i'
              AND d.refobjid = %s AND a.attname = ANY (%s)
    )
    SELECT c.oid::regclass::text, pg_catalog.has_sequence_privilege(c.oid, 'SELECT'),
           pg_catalog.pg_sequence_last_value(c.oid), s.seqincrement, n.attname, n.is_number,
           CASE WHEN s.seqincrement > 0 THEN s.seqmax ELSE s.seqmin END, s.seqcycle
    FROM numbering n JOIN pg_catalog.pg_class c USING (oid) JOIN pg_catalog.pg_sequence s ON s.seqrelid = c.oid
    WHERE CASE WHEN c.relkind = 'S' THEN pg_catalog.has_sequence_privilege(c.oid, 'SELECT, USAGE') ELSE false END
"""
"""A number is a column's value as it is drawn, and not part of what a default computes. The function fails for what is
no sequence, and only CASE keeps the server from asking it before the joins. The last value is NULL until a number has
been drawn, from the beginning or since a RESTART."""
_WIDTHS = {"smallint": 2**15, "integer": 2**31}
"""The types of columns that may end before the sequence does: how many negative numbers each has."""


class PostgresCatalog(ABC):
    """The questions of ``database.Session`` that the catalog answers."""

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement."""

    @property
    @abstractmethod
    def server_version(self) -> int:
        """The server's version in libpq's form: 160004 is 16.4."""

    def table(self, schema: str | None, name: str, *, keyed: bool = False) -> SqlTable | None:
        """Look the table up with ``to_regclass``: along the search path if ``schema`` is None."""
        found = self.execute(_TABLE, (regclass(schema, name),))
        if not found:
            return None
        ((oid, its_schema, its_name, kind, persistence, writable, hides),) = found
        leaves = self.execute(_LEAVES, (oid, oid))
        partitions = [each for is_partition, *each in leaves if is_partition]
        return SqlTable(
            schema=its_schema,
            name=its_name,
            columns=tuple(
                SqlColumn(
                    name=column,
                    kind=spelled,
                    required=required,
                    generated=generated,
                    parts=tuple(parts),
                    not_null=not_null,
                )
                for column, spelled, required, generated, parts, not_null in self._columns(oid)
            ),
            unique=self._unique(oid) if keyed else {},
            deferrable=self._deferrable(oid) if keyed else {},
            problem=_problem(kind, persistence) or _problem_of(partitions),
            writable=writable,
            heirs=tuple(regclass(schema, name) for is_partition, schema, name, *_ in leaves if not is_partition),
            hides=hides,
            id=str(oid),
            lasts=_text(persistence) == _PERMANENT,
            partitions=frozenset((schema, leaf) for schema, leaf, *_ in partitions),
        )

    def _columns(self, oid: int) -> list[tuple[Any, ...]]:
        has_multiranges = self.server_version >= _MULTIRANGES_SINCE
        ranges = f"{_RANGES}, {_MULTIRANGES}" if has_multiranges else _RANGES
        return self.execute(_COLUMNS.format(ranges=ranges), (oid,))

    def _unique(self, oid: int) -> dict[frozenset[str], dict[str, Comparison]]:
        found: dict[int, dict[str, Comparison]] = {}
        for index, column, schema, operator, enum, *collation in self.execute(_UNIQUE, (oid,)):
            # With its schema: along the search path, PostgreSQL may find the operator of another type.
            equals = f"OPERATOR({quoted(schema)}.{operator})"
            spelled = ".".join(map(quoted, collation)) if collation[0] else None
            found.setdefault(index, {})[column] = Comparison(equals=equals, collation=spelled, enum=enum)
        return {frozenset(columns): columns for columns in found.values()}

    def _deferrable(self, oid: int) -> dict[frozenset[str], list[str]]:
        drops: dict[frozenset[str], list[str]] = {}
        for columns, schema, table, constraint in self.execute(_DEFERRABLE, (oid,)):
            drop = f"ALTER TABLE {regclass(schema, table)} DROP CONSTRAINT {quoted(constraint)}"
            drops.setdefault(frozenset(columns), []).append(drop)
        return drops

    def has_triggers(self, table: SqlTable) -> bool:
        """Asks the catalog. The triggers of foreign keys are the server's own."""
        return bool(self.execute(_TRIGGERS, (table.id,))[0][0])

    def lacks(self, table: SqlTable, *rights: str) -> list[str]:
        """Asks ``has_any_column_privilege``, which is true of rights on the whole table too. DELETE has no columns."""
        asked = (
            "SELECT r FROM pg_catalog.unnest(%s::text[]) AS r WHERE NOT CASE r WHEN 'DELETE' THEN "
            "has_table_privilege(%s::oid, r) ELSE has_any_column_privilege(%s::oid, r) END"
        )
        return [right for (right,) in self.execute(asked, (list(rights), table.id, table.id))]

    def lacks_of(self, table: SqlTable, right: str, columns: Sequence[str]) -> list[str]:
        """Asks ``has_column_privilege``, which is true of rights on the whole table too."""
        asked = "SELECT c FROM pg_catalog.unnest(%s::text[]) AS c WHERE NOT has_column_privilege(%s::oid, c, %s)"
        return [column for (column,) in self.execute(asked, (list(columns), table.id, right))]

    def rights_on(self, schema: str, name: str, *rights: str) -> Mapping[str, Collection[str]] | None:
        """Asks ``has_column_privilege``, which is true of rights on the whole table too."""
        found = self.execute(_RIGHTS, (list(rights), regclass(schema, name)))
        return dict(found) if found else None

    def owns(self, table: SqlTable) -> bool:
        """Asks whether the user has the rights of the owner, as a member of its role has."""
        asked = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_catalog.pg_class WHERE oid = %s::oid"
        return self.execute(asked, (table.id,)) == [(True,)]

    def may_create_in(self, schema: str) -> bool:
        """Asks ``has_schema_privilege``."""
        return bool(self.execute("SELECT has_schema_privilege(%s, 'CREATE')", (schema,))[0][0])

    def lacks_temporary(self) -> str | None:
        """Asks ``has_database_privilege``."""
        asked = "SELECT current_database(), has_database_privilege(current_database(), 'TEMPORARY')"
        ((name, may),) = self.execute(asked)
        return None if may else str(name)

    def schema_of(self, schema: str | None, name: str) -> str:
        """``schema`` if it is given; else the table's own, or the one where CREATE TABLE would put it."""
        if schema is not None:
            return schema
        statement = (
            "SELECT coalesce((SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
            " ON n.oid = c.relnamespace WHERE c.oid = pg_catalog.to_regclass(%s)), pg_catalog.current_schema())"
        )
        return str(self.execute(statement, (regclass(None, name),))[0][0])

    def has_schema(self, name: str) -> bool:
        """Asks ``to_regnamespace`` for the quoted name."""
        return bool(self.execute("SELECT pg_catalog.to_regnamespace(%s) IS NOT NULL", (quoted(name),))[0][0])

    def exists(self, schema: str, name: str) -> bool:
        """Asks ``to_regclass`` for the quoted name."""
        found = self.execute("SELECT pg_catalog.to_regclass(%s) IS NOT NULL", (regclass(schema, name),))
        return bool(found[0][0])

    def names(self, schema: str, prefix: str) -> list[str]:
        """Asks the catalog, without regard to rights."""
        return [name for (name,) in self.execute(_NAMES, (schema, prefix, prefix))]

    def numbers_left(self, table: SqlTable, given: Sequence[str]) -> list[Numbers]:
        """Sequences of the columns that are not ``given``; without those that cycle or that the user may not read."""
        kinds = {column.name: column.kind for column in table.columns if column.name not in given}
        drawn = []
        for name, reads, last, step, column, *rest in self.execute(_SEQUENCES, (table.id, list(kinds)) * 2):
            before = self._before_first(name, step, reads=reads) if last is None else last
            drawn.append(_drawn(kinds[column], column, name, before, step, *rest))
        return [numbers for numbers in drawn if numbers]

    def _before_first(self, sequence: str, step: int, *, reads: bool) -> int:
        """The value before the next number of a sequence, if no number was drawn since it began or was restarted.

        Only the sequence itself says where it was restarted. A user who has USAGE, but not SELECT, may not read it, but
        may draw a number, which is then gone.
        """
        if not reads:
            return int(self.execute("SELECT pg_catalog.nextval(%s::regclass)", (sequence,))[0][0])
        ((last, drawn),) = self.execute(f"SELECT last_value, is_called FROM {sequence}")
        return int(last) if drawn else int(last) - step


def _drawn(
    kind: str, column: str, sequence: str, last: int, step: int, is_number: bool, end: int, cycles: bool
) -> Numbers | None:
    """What a column draws from a sequence; None if it never ends. ``kind``: the column's type."""
    width = _WIDTHS.get(kind) if is_number else None
    greatest = end if width is None else min(end, width - 1) if step > 0 else max(end, -width)
    if cycles and greatest == end:
        return None
    left = max(0, (greatest - last) // step)
    return Numbers(sequence=sequence, column=column, left=left, too_small=kind if greatest != end else None)


def regclass(schema: str | None, name: str) -> str:
    """A table's name for ``to_regclass``. Without a schema, the server looks along the search path."""
    return ".".join(quoted(part) for part in (schema, name) if part is not None)


def _text(value: str | bytes) -> str:
    """A value of the catalog's type "char", which comes as text or bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _problem(kind: str | bytes, persistence: str | bytes) -> str | None:
    """Why a relation cannot be a sink's table; None if it can."""
    if _text(kind) in _KINDS:
        return f"it is {_KINDS[_text(kind)]}"
    if _text(persistence) != _PERMANENT:
        return "it is UNLOGGED or temporary, so it would lose its rows in a crash of the server"
    return None


def _problem_of(partitions: Sequence[Sequence[Any]]) -> str | None:
    """Why one of the partitions, as ``_LEAVES`` lists them, makes a table unusable; None if all are usable."""
    for _, name, kind, persistence in partitions:
        if problem := _problem(kind, persistence):
            return f"its partition {name!r} is not usable: {problem}"
    return None
