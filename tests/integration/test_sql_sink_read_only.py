"""A session of PostgreSQL that may only read: the error says why, and what it says lets the pipeline run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied
from airflow_epochs.sinks.sql.postgres import Postgres as Database
from airflow_epochs.sinks.sql.table import quoted
from stack.postgres import Postgres
from tests.support.delta_world import rows, transaction
from tests.support.sql_world import SqlWorld, new_postgres
from tests.support.waiting import wait_until

SETTING = "default_transaction_read_only"


@pytest.fixture
def world(own_server: Postgres, tmp_path: Path) -> SqlWorld:
    made = SqlWorld(new_postgres(own_server), tmp_path)
    made.db.run("CREATE TABLE orders (id bigint)")
    return made


def told(world: SqlWorld) -> NotApplied:
    with pytest.raises(NotApplied) as unreached:
        world.sink().last_committed("orders", world.env)
    assert unreached.value.code is codes.SQL_UNREACHABLE
    assert "Then clear the failed task." in unreached.value.remedy
    return unreached.value


def obeyed(world: SqlWorld, error: NotApplied) -> None:
    (typed,) = re.findall(r"`([^`]*)`", error.remedy)
    world.db.run(*typed.split("; "))


def goes_on(world: SqlWorld) -> None:
    world.epoch(world.sink(), transaction(1), None, rows(1))
    assert world.ids() == [1]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "whose",
    ["ROLE {user}", "ROLE {user} IN DATABASE {database}", "DATABASE {database}", "ROLE ALL", "SYSTEM"],
)
def test_a_setting_that_lets_sessions_only_read_is_named_with_the_statement_that_takes_it_back(
    world: SqlWorld, whose: str
) -> None:
    connection = world.db.connection()
    assert connection.login and connection.schema
    name = whose.format(user=quoted(connection.login), database=quoted(connection.schema))
    world.db.run(f"ALTER {name} SET {SETTING} = on", "SELECT pg_reload_conf()")
    wait_until(lambda: world.db.run(f"SHOW {SETTING}") == [("on",)], what="the setting is seen")
    error = told(world)
    assert f"`{SETTING}` is on" in error.what and "session is read-only" in error.what
    obeyed(world, error)
    wait_until(lambda: world.db.run(f"SHOW {SETTING}") == [("off",)], what="the setting is seen")
    goes_on(world)


def test_a_setting_of_the_connection_is_named_as_such(world: SqlWorld) -> None:
    world.env.connections["db"] = world.db.connection(extra={"options": f"-c {SETTING}=on"})
    error = told(world)
    assert f"Take {SETTING} out of `options` in the extra of connection 'db'" in error.remedy
    world.env.connections["db"] = world.db.connection()
    goes_on(world)


def test_a_standby_is_named_as_such_and_takes_rows_once_it_is_promoted(own_server: Postgres, world: SqlWorld) -> None:
    own_server.kill()
    (own_server._cluster / "standby.signal").touch()
    own_server.start_again()
    own_server.wait_ready()
    error = told(world)
    assert "is a standby, which takes no rows" in error.what
    assert error.remedy.startswith("Let connection 'db' lead to the primary server")
    (promoting,) = re.findall(r"`([^`]*)`", error.remedy)
    world.db.run(promoting)
    goes_on(world)


def test_a_session_that_may_only_read_by_the_connections_own_wish_is_no_matter_of_locks(world: SqlWorld) -> None:
    anywhere = {"target_session_attrs": "any", "options": f"-c {SETTING}=on"}
    with Database().connect(world.db.connection(extra=anywhere), ["test"]) as session:
        with pytest.raises(NotApplied, match="in a read-only transaction") as refused:
            session.execute(f"INSERT INTO {world.db.table()} VALUES (1)")
    assert "primary server" in refused.value.remedy and SETTING in refused.value.remedy
    assert "locks" not in refused.value.remedy
