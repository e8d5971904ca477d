"""A sink whose `table` names no schema, after its connection got another `search_path`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Corrupt
from airflow_epochs.testing import Crash
from stack.postgres import Postgres
from tests.support.faults_world import crash
from tests.support.sql_pipeline import PARENT, Related
from tests.support.sql_world import PostgresDb, new_postgres


@dataclass(frozen=True)
class Along(PostgresDb):
    """The DAG names tables without their schema, unless it is given; the connection has a `search_path`."""

    path: str = ""
    named: str = ""

    def connection(self, **changed: Any) -> Connection:
        return super().connection(extra={"options": f"-c search_path={self.path}"}, **changed)

    def table(self, name: str = "orders") -> str:
        return f"{self.named}.{name}" if self.named else name


@pytest.fixture
def world(postgres: Postgres, tmp_path: Path) -> Related:
    db = new_postgres(postgres)
    db.run(PARENT)
    return Related(tmp_path, Along(postgres, db.schema, path=db.schema), names=("orders",))


def along(world: Related) -> Along:
    assert isinstance(world.db, Along)
    return world.db


def astray(world: Related) -> Related:
    """The same DAG, after the connection got the search path of another schema, which is empty."""
    schema = new_postgres(along(world).server).schema
    return replace(world, db=replace(along(world), schema=schema, path=schema))


def epoch(world: Related, number: int) -> None:
    world.source.produce(3)
    assert world.run(number) is None


def left_at(world: Related, moment: str) -> None:
    with pytest.raises(Crash):
        world.run(50, {moment: crash})


def fill(world: Related, other: Related, what: str) -> None:
    """``what`` the other schema has: nothing, the empty table, or a copy of all tables."""
    tables = {"nothing": (), "table": ("orders",), "copy": ("orders", "epoch_markers")}[what]
    for table in tables:
        there = f"{along(world).schema}.{table}"
        other.db.run(f"CREATE TABLE {table} (LIKE {there} INCLUDING ALL)")
        if what == "copy":
            other.db.run(f"INSERT INTO {table} SELECT * FROM {there}")


def told(world: Related, astray: Related) -> Corrupt:
    """The error of a new run that goes astray: it writes no row into any of the two schemas."""
    before = rows_of(world), rows_of(astray)
    error = astray.run(80)
    assert isinstance(error, Corrupt) and error.code is codes.TABLE_ELSEWHERE, error
    assert "The search path of connection 'db' leads to" in error.what
    assert (rows_of(world), rows_of(astray)) == before
    return error


def rows_of(world: Related) -> list[tuple[Any, ...]]:
    [(there,)] = world.db.run("SELECT to_regclass('orders') IS NOT NULL")
    return world.shown("orders")[0] if there else []


def goes_on(world: Related) -> None:
    epoch(world, 90)
    world.require_all_shown("orders")


def named_as(remedy: str, world: Related, schema: str | None = None) -> Related:
    """The DAG with the table of the remedy, whose schema is ``schema`` if somebody has moved the table there."""
    (table,) = re.findall("table='([^']+)'", remedy)
    there, _, name = table.partition(".")
    assert (there, name) == (f'"{along(world).schema}"', "orders")
    return replace(world, db=replace(along(world), named=f'"{schema}"' if schema else there))


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["nothing", "table", "copy"])
def test_the_next_epoch_stops_until_the_search_path_leads_to_the_table_again(world: Related, what: str) -> None:
    epoch(world, 1)
    other = astray(world)
    fill(world, other, what)
    other.source.produce(2)
    remedy = told(world, other).remedy
    assert f'begin with schema "{along(world).schema}" again' in remedy
    goes_on(world)


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["nothing", "table", "copy"])
def test_the_next_epoch_goes_to_the_table_that_the_dag_names_as_the_error_says(world: Related, what: str) -> None:
    epoch(world, 1)
    other = astray(world)
    fill(world, other, what)
    named = named_as(told(world, other).remedy, world)
    goes_on(replace(named, db=replace(along(named), path=along(other).schema)))


def test_a_copy_with_its_markers_goes_on_if_the_dag_names_it(world: Related) -> None:
    epoch(world, 1)
    other = astray(world)
    fill(world, other, "copy")
    named = named_as(told(world, other).remedy, world, along(other).schema)
    goes_on(replace(named, db=replace(along(named), schema=along(other).schema)))
    assert len(world.shown("orders")[0]) == 3, "the old table is left alone"


@pytest.mark.few(3)
@pytest.mark.parametrize("epochs", [0, 1], ids=["first", "later"])
@pytest.mark.parametrize("committed", [False, True], ids=["decided", "committed"])
@pytest.mark.parametrize("what", ["table", "copy"])
def test_a_decided_epoch_is_shown_in_the_table_of_its_vote_alone(
    world: Related, what: str, committed: bool, epochs: int
) -> None:
    for number in range(epochs):
        epoch(world, number)
    world.source.produce(3)
    left_at(world, "decision.landed")
    other = astray(world)
    fill(world, other, what)
    if committed:
        left_at(world, "sql.commit.after")
    told(world, other)
    assert world.run(81) is None, "the search path is as it was, and the next run finishes the epoch"
    world.require_all_shown("orders")
    goes_on(world)


def test_a_schema_that_is_renamed_after_the_vote_is_not_said_to_be_there(world: Related) -> None:
    epoch(world, 1)
    world.source.produce(3)
    schema = along(world).schema
    error = world.run(50, {"decision.landed": lambda: world.db.run(f"ALTER SCHEMA {schema} RENAME TO {schema}_z")})
    assert isinstance(error, Corrupt) and error.code is codes.TABLE_GONE, error
    world.db.run(f"ALTER SCHEMA {schema}_z RENAME TO {schema}")
    assert world.run(50) is None, "the commit task, cleared"
    world.require_all_shown("orders")


def test_a_table_that_was_moved_to_another_schema_with_its_marker_goes_on(world: Related) -> None:
    epoch(world, 1)
    other = astray(world)
    for table in ("orders", "epoch_markers"):
        world.db.run(f"ALTER TABLE {table} SET SCHEMA {along(other).schema}")
    goes_on(other)
