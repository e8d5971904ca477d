"""No row and no value is lost on its way into a database without a word: what went in is what the database says."""

from __future__ import annotations

import datetime as dt
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from airflow_epochs.errors import Corrupt, NotApplied, OutcomeUnknown, Refused
from airflow_epochs.sinks.sql.postgres import Postgres as Database
from airflow_epochs.sinks.sql.postgres import PostgresSession, _parameters
from stack.postgres import Postgres
from tests.support.delta_world import attempt_of, rows, transaction
from tests.support.sql_world import PostgresDb, SqlWorld, new_postgres
from tests.support.tcp_proxy import ANSWERS, Proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.proof

UPSERT: dict[str, Any] = {"mode": "upsert", "keys": ["id"]}
MODES = pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
DROPS = (
    "CREATE FUNCTION drop_two() RETURNS trigger AS 'BEGIN IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW; END'"
    " LANGUAGE plpgsql"
)


# -- tables that do not last ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", ["a partition", "a partition of a partition"])
def test_a_partition_that_would_be_empty_after_a_crash_is_a_vote_against(pg: SqlWorld, depth: str) -> None:
    parent = "v"
    pg.db.run("CREATE TABLE v (id bigint) PARTITION BY RANGE (id)")
    if depth != "a partition":
        parent = "v1"
        pg.db.run("CREATE TABLE v1 PARTITION OF v FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id)")
    pg.db.run(f"CREATE UNLOGGED TABLE leaf PARTITION OF {parent} FOR VALUES FROM (0) TO (10)")
    reason = pg.reason_against(pg.sink("v"), rows(1))
    assert "partition 'leaf'" in reason
    assert "UNLOGGED" in reason


def test_a_partition_that_lies_in_another_database_is_a_vote_against(pg: SqlWorld) -> None:
    assert isinstance(pg.db, PostgresDb)
    server = f"elsewhere_{pg.db.schema}"
    pg.db.run(
        f"CREATE FOREIGN DATA WRAPPER {server}",
        f"CREATE SERVER {server} FOREIGN DATA WRAPPER {server}",
        "CREATE TABLE v (id bigint) PARTITION BY RANGE (id)",
        f"CREATE FOREIGN TABLE leaf PARTITION OF v FOR VALUES FROM (0) TO (10) SERVER {server}",
    )
    assert "partition 'leaf' is not usable: it is a foreign table" in pg.reason_against(pg.sink("v"), rows(11))


def test_a_partition_that_was_replaced_after_the_vote_stops_the_commit(pg: SqlWorld) -> None:
    pg.db.run(
        "CREATE TABLE v (id bigint) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF v FOR VALUES FROM (0) TO (10)",
    )
    sink, attempt = pg.sink("v"), attempt_of(transaction(1))
    staged = pg.staged(sink, attempt, rows(1))
    pg.db.run("ALTER TABLE leaf SET UNLOGGED")
    with pytest.raises(Corrupt, match="partition 'leaf'"):
        sink.commit(attempt, staged, pg.env)
    pg.db.run("ALTER TABLE leaf SET LOGGED")
    sink.commit(attempt, staged, pg.env)
    assert pg.ids("v") == [1]


# -- rows that a database drops -------------------------------------------------------------------------------------


@MODES
def test_rows_that_a_trigger_drops_are_a_vote_against(pg: SqlWorld, options: dict[str, Any]) -> None:
    pg.db.run(
        "CREATE TABLE v (id bigint PRIMARY KEY, n bigint)",
        DROPS,
        "CREATE TRIGGER t BEFORE INSERT ON v FOR EACH ROW EXECUTE FUNCTION drop_two()",
    )
    assert "sent 3 rows to table v, and the database wrote 2" in pg.reason_against(
        pg.sink("v", **options), rows(1, 2, 3, n=[0, 0, 0])
    )
    pg.epoch(pg.sink("v", **options), transaction(1), None, rows(1, 3, n=[0, 0]))
    assert pg.ids("v") == [1, 3]


def test_a_trigger_made_after_the_vote_stops_the_commit_and_nothing_is_written(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE v (id bigint PRIMARY KEY)", DROPS)
    sink, attempt = pg.sink("v"), attempt_of(transaction(1))
    staged = pg.staged(sink, attempt, rows(1, 2))
    pg.db.run("CREATE TRIGGER t BEFORE INSERT ON v FOR EACH ROW EXECUTE FUNCTION drop_two()")
    with pytest.raises(Corrupt, match="sent 2 rows to table v, and the database wrote 1"):
        sink.commit(attempt, staged, pg.env)
    assert pg.ids("v") == []
    pg.db.run("DROP TRIGGER t ON v")
    assert sink.commit(attempt, staged, pg.env).rows == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("keys", [["id"], ["id", "n"]], ids=["with others", "keys alone"])
def test_a_key_that_the_database_drops_from_an_upsert_is_a_vote_against(pg: SqlWorld, keys: list[str]) -> None:
    pg.db.run(
        "CREATE TABLE v (id bigint, n bigint, UNIQUE (id), UNIQUE (id, n))",
        DROPS,
        "CREATE TRIGGER t BEFORE INSERT ON v FOR EACH ROW EXECUTE FUNCTION drop_two()",
    )
    sink = pg.sink("v", mode="upsert", keys=keys)
    assert "the database wrote 1" in pg.reason_against(sink, rows(1, 2, n=[0, 0]))
    first, second = transaction(1), transaction(2)
    pg.epoch(sink, first, None, rows(1, n=[0]))
    pg.epoch(sink, second, first, rows(1, 3, n=[0, 0]))
    assert pg.ids("v") == [1, 3]


def test_a_trigger_that_leaves_alone_what_is_the_same_drops_no_row(pg: SqlWorld) -> None:
    pg.db.run(
        "CREATE TABLE v (id bigint PRIMARY KEY, n bigint, j json)",
        "CREATE TRIGGER t BEFORE UPDATE ON v FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        """INSERT INTO v VALUES (1, 10, '{"a":1}'), (2, NULL, NULL), (3, 30, NULL)""",
    )
    given = rows(1, 2, 3, n=[10, None, 31], j=['{"a":1}', None, None])
    pg.epoch(pg.sink("v", **UPSERT), transaction(1), None, given)
    assert pg.db.run("SELECT id, n FROM v ORDER BY id") == [(1, 10), (2, None), (3, 31)]


def test_rules_that_do_nothing_instead_lose_no_row(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE v (id bigint PRIMARY KEY, n bigint)")
    pg.db.run("CREATE RULE nothing AS ON INSERT TO v DO INSTEAD NOTHING")
    assert "sent 1 rows to table v, and the database wrote 0" in pg.reason_against(
        pg.sink("v", **UPSERT), rows(1, n=[0])
    )
    pg.epoch(pg.sink("v"), transaction(1), None, rows(1, n=[0]))
    assert pg.ids("v") == [1], "COPY goes past rules"


@pytest.mark.parametrize("lost", ["DO INSTEAD NOTHING", "trigger"])
def test_a_marker_that_is_not_set_in_silence_is_a_vote_against(pg: SqlWorld, lost: str) -> None:
    pg.db.run("CREATE TABLE v (id bigint)")
    sink, first = pg.sink("v"), transaction(1)
    pg.epoch(sink, first, None, rows(1))
    if lost == "trigger":
        pg.db.run(
            "CREATE FUNCTION lose() RETURNS trigger AS 'BEGIN RETURN NULL; END' LANGUAGE plpgsql",
            "CREATE TRIGGER t BEFORE UPDATE ON epoch_markers FOR EACH ROW EXECUTE FUNCTION lose()",
        )
    else:
        pg.db.run("CREATE RULE r AS ON UPDATE TO epoch_markers WHERE NEW.epoch > 1 DO INSTEAD NOTHING")
    vote = pg.voted(sink, attempt_of(transaction(2), first), rows(2))
    assert {"trigger": "could not set the marker", "DO INSTEAD NOTHING": "UPDATE rules"}[lost] in (vote.reason or "")


@MODES
@pytest.mark.parametrize("clause", ["IGNORE", "REPLACE"])
def test_rows_that_sqlite_ignores_or_replaces_in_silence_are_a_vote_against(
    sqlite: SqlWorld, clause: str, options: dict[str, Any]
) -> None:
    require_a_vote_against(sqlite, f"n bigint UNIQUE ON CONFLICT {clause}", options)


def require_a_vote_against(sqlite: SqlWorld, columns: str, options: dict[str, Any]) -> None:
    """A row that SQLite would leave out, or put in the place of another, is a vote against; the next epoch goes in."""
    sqlite.db.run(f"CREATE TABLE v (id bigint PRIMARY KEY, {columns})")
    sink, first = sqlite.sink("v", **options), transaction(1)
    sqlite.epoch(sink, first, None, rows(1, 2, n=[10, 20]))
    vote = sqlite.voted(sink, attempt_of(transaction(2), first), rows(3, 4, n=[10, 30]))
    assert "UNIQUE constraint failed: v.n" in (vote.reason or "")
    sqlite.epoch(sink, transaction(2), first, rows(4, n=[30]))
    assert sqlite.db.run("SELECT id, n FROM v ORDER BY id") == [(1, 10), (2, 20), (4, 30)]


CLAUSES = {
    "a comment": "n bigint UNIQUE ON /* whatever */ CONFLICT REPLACE",
    "a line of comment": "n bigint UNIQUE ON -- whatever\nCONFLICT REPLACE",
    "comment and blanks": "n bigint UNIQUE on /* ' */ /**/\n-- '\n conflict /* \" */ replace",
    "a text that begins no comment": "m text DEFAULT '/*', n bigint UNIQUE ON CONFLICT REPLACE, o text DEFAULT '*/'",
    "a name that begins no comment": 'm text, "--" text, n bigint UNIQUE ON CONFLICT REPLACE',
    "a quote in a comment": "-- the owner's\nn bigint UNIQUE ON /* isn't */ CONFLICT REPLACE",
    "quotes of all kinds": "[a--'b] text, `c/*'` text, \"d\"\"--\" text DEFAULT 'e''--',"
    " n bigint UNIQUE ON/**/CONFLICT REPLACE",
}


@MODES
@pytest.mark.parametrize("spelled", CLAUSES)
def test_a_row_that_sqlite_would_replace_is_not_lost_however_the_table_spells_it(
    sqlite: SqlWorld, spelled: str, options: dict[str, Any]
) -> None:
    require_a_vote_against(sqlite, CLAUSES[spelled], options)


@pytest.mark.parametrize("told", ["/* no ON CONFLICT */", "-- no ON CONFLICT\n", "DEFAULT 'no ON CONFLICT'"])
def test_a_trigger_of_sqlite_may_ignore_rows_of_its_own_where_the_table_only_tells_of_conflicts(
    sqlite: SqlWorld, told: str
) -> None:
    """An INSERT that says what becomes of conflicts says so for the triggers' statements too."""
    sqlite.db.run(
        f"CREATE TABLE v (id bigint PRIMARY KEY, n bigint {told})",
        "CREATE TABLE seen (n bigint UNIQUE)",
        "CREATE TRIGGER t AFTER INSERT ON v BEGIN INSERT OR IGNORE INTO seen VALUES (NEW.n); END",
    )
    sqlite.epoch(sqlite.sink("v"), transaction(1), None, rows(1, 2, n=[10, 10]))
    assert (sqlite.ids("v"), sqlite.db.run("SELECT n FROM seen")) == ([1, 2], [(10,)])


@MODES
def test_rows_that_a_trigger_of_sqlite_ignores_are_a_vote_against(sqlite: SqlWorld, options: dict[str, Any]) -> None:
    sqlite.db.run(
        "CREATE TABLE v (id bigint PRIMARY KEY, n bigint)",
        "CREATE TRIGGER t BEFORE INSERT ON v WHEN NEW.id = 2 BEGIN SELECT RAISE(IGNORE); END",
    )
    assert "sent 2 rows to table v, and the database wrote 1" in sqlite.reason_against(
        sqlite.sink("v", **options), rows(1, 2, n=[0, 0])
    )


@pytest.mark.parametrize("where", ["column", "index"])
def test_keys_that_the_table_takes_for_equal_are_a_vote_against(sqlite: SqlWorld, where: str) -> None:
    if where == "column":
        sqlite.db.run("CREATE TABLE v (k text COLLATE NOCASE PRIMARY KEY, n bigint)")
    else:
        sqlite.db.run("CREATE TABLE v (k text, n bigint)", "CREATE UNIQUE INDEX i ON v (k COLLATE NOCASE)")
    sink, first = sqlite.sink("v", mode="upsert", keys=["k"]), transaction(1)
    reason = sqlite.reason_against(sink, pa.table({"k": ["a", "A", "b"], "n": [1, 2, 3]}))
    assert "are not unique in the epoch's rows, among them: a" in reason.lower()
    sqlite.epoch(sink, first, None, pa.table({"k": ["a", "b"], "n": [1, 3]}))
    sqlite.epoch(sink, transaction(2), first, pa.table({"k": ["A"], "n": [7]}))
    assert sqlite.db.run("SELECT k, n FROM v ORDER BY n") == [("b", 3), ("a", 7)]


def test_an_upsert_writes_into_no_table_of_a_user(pg: SqlWorld) -> None:
    assert isinstance(pg.db, PostgresDb)
    pg.db.run(
        "CREATE TABLE v (id bigint PRIMARY KEY, n bigint)", "CREATE TABLE airflow_epochs_rows (id bigint, n bigint)"
    )
    options = {"options": f"-c search_path={pg.db.schema},pg_temp"}
    pg.env.connections["db"] = pg.db.connection(extra=options)
    pg.epoch(pg.sink("v", **UPSERT), transaction(1), None, rows(1, n=[0]))
    assert (pg.ids("v"), pg.ids("airflow_epochs_rows")) == ([1], [])


def test_an_upsert_into_sqlite_leaves_a_table_of_its_name_alone(sqlite: SqlWorld) -> None:
    sqlite.db.run("CREATE TABLE v (id bigint PRIMARY KEY)", "CREATE TABLE airflow_epochs_rows (id bigint)")
    sqlite.epoch(sqlite.sink("v", **UPSERT), transaction(1), None, rows(1))
    assert (sqlite.ids("v"), sqlite.ids("airflow_epochs_rows")) == ([1], [])


# -- values that a column cuts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "kept"),
    [
        ('"char"', "xyz", "x"),
        ("name", "x" * 70, "x" * 63),
        ("money", "1.239", "$1.24"),
        ("interval hour", "1:30", "01:00:00"),
        ("interval(0)", "1.7 seconds", "00:00:02"),
        ("time(0)", "12:00:00.7", "12:00:01"),
        ("timetz(3)", "12:00:00.1239+00", "12:00:00.124+00"),
        ("timestamp(0)[]", "{2026-01-01 12:00:00.7}", '{"2026-01-01 12:00:01"}'),
        ("numeric(8,2)[]", "{1.239}", "{1.24}"),
        ("varchar(3)[]", '{"a    "}', '{"a  "}'),
        ("cents", "{1.239}", "{1.24}"),
        ("wrapped", "(1.239)", "(1.24)"),
        ("date[]", '{"2026-01-01 10:11:12"}', "{2026-01-01}"),
        ("day_of_days", "2026-01-01 10:11:12", "2026-01-01"),
        ("daterange", "[2026-01-01 10:11:12,2026-02-01)", "[2026-01-01,2026-02-01)"),
        ("on_a_day", "(2026-01-01 10:11:12)", "(2026-01-01)"),
        ("timestamp[]", '{"2026-01-01 10:00:00+05"}', '{"2026-01-01 10:00:00"}'),
        ("tsrange", "[2026-01-01 10:00+05,)", '["2026-01-01 10:00:00",)'),
        ("datemultirange", "{[2026-01-01 10:11:12,2026-02-01)}", "{[2026-01-01,2026-02-01)}"),
        ("tsmultirange", "{[2026-01-01 10:00+05,)}", '{["2026-01-01 10:00:00",)}'),
        ("prices", "{[1.239,2)}", "{[1.24,2.00)}"),
        ("time[]", "{10:00:00+05}", "{10:00:00}"),
        ("timetz[]", '{"2026-01-01 10:00:00+05"}', "{10:00:00+05}"),
    ],
)
def test_a_type_that_keeps_only_a_part_of_a_text_is_a_vote_against(
    pg: SqlWorld, kind: str, text: str, kept: str
) -> None:
    pg.db.run(
        "CREATE DOMAIN cents AS numeric(8,2)[]",
        "CREATE TYPE wrapped AS (n numeric(8,2))",
        "CREATE DOMAIN day AS date",
        "CREATE DOMAIN price AS numeric(8,2)",
        "CREATE TYPE price_range AS RANGE (subtype = price, multirange_type_name = prices)",
        "CREATE DOMAIN day_of_days AS day",
        "CREATE TYPE on_a_day AS (d date)",
        f"CREATE TABLE v (c {kind})",
        f"INSERT INTO v VALUES ('{text}')",
    )
    assert pg.db.run("SELECT c::text FROM v") == [(kept,)], "what PostgreSQL would do"
    assert "column 'c' is string in the rows and " in pg.reason_against(pg.sink("v"), pa.table({"c": [text]}))


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("varchar(3)", "abc  ", "is too long for character varying(3): 'abc  '"),
        ("char(3)", "abc  ", "is too long for character(3)"),
        ("once", "abc  ", "is too long for character varying(3)"),
        ("twice", "a    ", "is too long for character varying(3): 'a    '"),
        ("time", "12:00:00.1234567", "has more than six decimals, which time"),
        ("time", "2026-01-01 10:11:12", "is not only a time of day, and time without time zone would drop the rest"),
        ("time", "10:11:12+05", "is not only a time of day"),
        ("time(6)", "10:00 PST", "is not only a time of day, and time(6) without time zone would"),
        ("timetz", "2026-01-01 10:11:12+05", "is not only a time of day, and time with time zone would"),
        ("tstzrange", "[2026-01-01 10:00:00.1234567+00,)", "has more than six decimals, which tstzrange"),
        ("interval", "0.1234567 s", "has more than six decimals, which interval"),
    ],
)
def test_a_value_of_which_a_part_would_be_lost_is_named(pg: SqlWorld, kind: str, text: str, expected: str) -> None:
    pg.db.run("CREATE DOMAIN once AS varchar(3)", "CREATE DOMAIN twice AS once")
    pg.db.run(f"CREATE TABLE v (id bigint, c {kind})")
    goods = {
        "timetz": "T101112.5 -05:30",
        "time(6)": "04:05 PM",
        "time": "12:00:00.123456",
        "interval": "1.1 s",
        "tstzrange": "empty",
    }
    good = goods.get(kind, "ab ")
    given = {"topic": ["t"] * 2, "partition": [3] * 2, "offset": [16, 17], "c": [good, text]}
    pg.db.run("ALTER TABLE v ADD topic text, ADD partition int8, ADD offset_ text", 'ALTER TABLE v ADD "offset" int8')
    for rehearse in (True, False):
        reason = pg.reason_against(pg.sink("v", rehearse=rehearse), pa.table(given))
        assert f"the record at topic 't', partition 3, offset 17: column 'c' {expected}" in reason
    pg.epoch(pg.sink("v"), transaction(1), None, pa.table({"c": [good, None]}))


def test_whole_numbers_go_into_no_column_that_rounds_them(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE v (n numeric(5,-2), m numeric(20,0))")
    given = pa.table({"n": pa.array([149], pa.int32()), "m": [149]})
    assert "column 'n' is integer in the rows and numeric(5,-2) in the table" in pg.reason_against(pg.sink("v"), given)


# -- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["-c deadlock_timeout=2s", "-c temp_buffers=8MB --clock_timeout=1"])
def test_a_setting_that_only_sounds_alike_switches_no_limit_off(pg: SqlWorld, options: str) -> None:
    connection = pg.db.connection(extra={"options": options.split(" --")[0]})
    with Database().connect(connection, ["test"]) as session:
        assert session.execute("SHOW lock_timeout") == [("30s",)]


@pytest.mark.parametrize("options", ["-c lock_timeout=7s", "--lock-timeout=7s", "-cLOCK_TIMEOUT=7s"])
def test_a_limit_of_ones_own_stands_however_it_is_spelled(pg: SqlWorld, options: str) -> None:
    with Database().connect(pg.db.connection(extra={"options": options}), ["test"]) as session:
        assert session.execute("SHOW lock_timeout") == [("7s",)]


def test_a_limit_of_the_role_stands(pg: SqlWorld) -> None:
    assert isinstance(pg.db, PostgresDb)
    user = f"u{pg.db.schema}"
    pg.db.run(f"CREATE USER {user} PASSWORD 'x'", f"ALTER ROLE {user} SET statement_timeout = '3h'")
    with Database().connect(pg.db.connection(login=user, password="x"), ["test"]) as session:
        assert session.execute("SHOW statement_timeout") == [("3h",)]
        assert session.execute("SHOW lock_timeout") == [("30s",)]


@pytest.mark.parametrize("setting", ["datestyle = German", "datestyle = 'SQL, DMY'", "quote_all_identifiers = on"])
def test_a_setting_of_the_role_that_the_sink_cannot_do_with_does_not_count(pg: SqlWorld, setting: str) -> None:
    assert isinstance(pg.db, PostgresDb)
    user = f"u{pg.db.schema}"
    pg.db.run(f"CREATE USER {user} SUPERUSER PASSWORD 'x'", f"ALTER ROLE {user} SET {setting}")
    pg.db.run("CREATE TABLE v (id bigint, day date, x bytea)")
    pg.env.connections["db"] = pg.db.connection(login=user, password="x")
    first, day = transaction(1), dt.date(2026, 3, 4)
    sink, data = pg.sink("v"), rows(1).append_column("day", [[day]]).append_column("x", [[b"x"]])
    pg.epoch(sink, first, None, data)
    pg.epoch(sink, transaction(2), first, data)
    assert pg.db.run("SELECT id, day, x FROM v") == [(1, day, b"x")] * 2


# -- a standby that must have the rows ------------------------------------------------------------------------------

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def behind(own_server: Postgres, tmp_path: Path) -> SqlWorld:
    """A database whose server waits for a standby that does not exist, once ``standby`` has said so."""
    world = SqlWorld(new_postgres(own_server), tmp_path)
    world.db.run("CREATE TABLE orders (id bigint)")
    return world


def standby(world: SqlWorld, name: str) -> None:
    """Which standby every COMMIT waits for; none if it has no name."""
    world.db.run("SET synchronous_commit = local", f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    world.db.run("SELECT pg_reload_conf()")
    seen = "SELECT setting FROM pg_settings WHERE name = 'synchronous_standby_names'"
    wait_until(lambda: world.db.run(seen) == [(name,)], what="the setting is seen")


def connect_within(world: SqlWorld, commit_timeout: float) -> None:
    extra = {"commit_timeout": commit_timeout, "options": "-c lock_timeout=300ms"}
    world.env.connections["db"] = world.db.connection(extra=extra)


def test_a_commit_that_waits_for_a_standby_gives_up_and_is_found_once_the_standby_is_there(behind: SqlWorld) -> None:
    sink = behind.sink()
    attempt = behind.second_epoch(sink)
    staged = behind.staged(sink, attempt, rows(2))
    standby(behind, "gone")
    connect_within(behind, 0.3)
    with pytest.raises(
        OutcomeUnknown, match=r"did not confirm the COMMIT, so its result is unknown: no answer within 0\.3 s"
    ):
        sink.commit(attempt, staged, behind.env)
    with pytest.raises(OutcomeUnknown, match="waits for a synchronous standby"):
        sink.commit(attempt, staged, behind.env)
    assert behind.ids() == [1], "no standby has it, so nobody sees it"
    standby(behind, "")
    connect_within(behind, 60)
    wait_until(lambda: not behind.db.run(WAITING), what="the first COMMIT is through")
    assert sink.commit(attempt, staged, behind.env).rows == 1
    assert behind.ids() == [1, 2]


def test_a_session_that_the_server_ended_because_it_was_idle_is_told_of_with_the_setting_that_helps(
    pg: SqlWorld,
) -> None:
    pg.env.connections["db"] = pg.db.connection(extra={"options": "-c idle_in_transaction_session_timeout=500ms"})
    with Database().connect(pg.env.connections["db"], ["idle"]) as session:
        there = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idle'"
        wait_until(lambda: pg.db.run(there) == [(0,)], what="the server ends the session")
        with pytest.raises(NotApplied, match="idle_in_transaction_session_timeout=30min"):
            session.execute("SELECT 1")


def test_a_session_that_ended_without_a_word_is_told_of_with_the_limits_of_which_the_servers_log_names_one(
    pg: SqlWorld,
) -> None:
    """The server's last words are lost on their way, as they are if the client writes while the server hangs up."""
    assert isinstance(pg.db, PostgresDb)
    server, user = pg.db.server, f"u{pg.db.schema}"
    pg.db.run(
        "CREATE TABLE v (id bigint)",
        f"CREATE USER {user} SUPERUSER PASSWORD 'x'",
        f"ALTER ROLE {user} SET idle_in_transaction_session_timeout = '1ms'",
    )
    log = server.processes[-1].log
    before = len(log.read_text())
    with Proxy(server.port) as network:
        there = pg.db.connection(login=user, password="x", port=network.port)
        opened = psycopg.connect(**_parameters(there, "idle"))
        network.lose(ANSWERS)
        with pytest.raises(NotApplied) as ended:
            PostgresSession("PostgreSQL", opened, ["idle"], 1.0).begin()
    assert "server closed the connection unexpectedly" in ended.value.what
    assert "its log" in ended.value.remedy
    [limit] = re.findall(r"terminating connection due to (\S+) timeout", log.read_text()[before:])
    [extra] = [each for each in re.findall(r"\{.*?\}", ended.value.remedy) if limit.replace("-", "_") in each]
    pg.env.connections["db"] = pg.db.connection(login=user, password="x", extra=json.loads(extra))
    pg.epoch(pg.sink("v"), transaction(1), None, rows(1))
    assert pg.ids("v") == [1]


def test_a_wait_for_a_lock_that_was_too_short_is_told_of_with_the_setting_that_helps(pg: SqlWorld) -> None:
    pg.env.connections["db"] = pg.db.connection(extra={"options": "-c lock_timeout=50ms"})
    with (
        Database().connect(pg.env.connections["db"], ["a"]) as one,
        Database().connect(pg.env.connections["db"], ["b"]) as other,
    ):
        one.execute("SELECT pg_advisory_lock(7)")
        with pytest.raises(NotApplied, match="lock_timeout=5min"):
            other.execute("SELECT pg_advisory_lock(7)")


@pytest.mark.parametrize("given", ["5min", -1, "nan", "inf", [300]])
def test_a_commit_timeout_that_is_no_number_of_seconds_is_refused_before_an_epoch(pg: SqlWorld, given: Any) -> None:
    pg.env.connections["db"] = pg.db.connection(extra={"commit_timeout": given})
    with pytest.raises(Refused, match="EPOCHS-SQL-CONNECTION: `commit_timeout` in the extra of connection 'db' is"):
        pg.sink().require_ready("orders", None, pg.env)


@pytest.mark.parametrize("given", ["300", 0, None, ""])
def test_a_commit_timeout_may_be_left_empty_or_be_a_text(pg: SqlWorld, given: Any) -> None:
    pg.env.connections["db"] = pg.db.connection(extra={"commit_timeout": given})
    pg.db.run("CREATE TABLE orders (id bigint)")
    pg.sink().require_ready("orders", None, pg.env)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("stop", "options"),
    [("pg_cancel_backend", ""), ("pg_cancel_backend", "-c client_min_messages=error"), ("pg_terminate_backend", "")],
)
def test_no_receipt_is_written_for_rows_that_no_standby_has(behind: SqlWorld, stop: str, options: str) -> None:
    sink = behind.sink()
    behind.env.connections["db"] = behind.db.connection(extra={"options": options})
    attempt = behind.second_epoch(sink)
    staged = behind.staged(sink, attempt, rows(2))
    standby(behind, "gone")
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            commit = pool.submit(sink.commit, attempt, staged, behind.env)
            wait_until(lambda: behind.db.run(WAITING), what="the COMMIT waits")
            behind.db.run(f"SELECT {stop}(pid) FROM ({WAITING}) AS waiting")
            with pytest.raises(OutcomeUnknown, match=r"committed, but warned|did not confirm the COMMIT"):
                commit.result(30)
            assert behind.ids() == [1, 2], "the server shows it all the same"
    standby(behind, "")
    assert sink.commit(attempt, staged, behind.env).rows == 1
    assert behind.ids() == [1, 2]
