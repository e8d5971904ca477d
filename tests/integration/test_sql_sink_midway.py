"""The SQL sink with its rows on the way: a writer killed or stopped in the middle of them, two that meet at one key."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_epochs.errors import OutcomeUnknown
from stack.postgres import Postgres
from tests.support.cells import fired
from tests.support.delta_world import attempt_of, rows, transaction
from tests.support.sql_world import PostgresDb, SqlWorld, new_sqlite
from tests.support.waiting import wait_until

pytestmark = pytest.mark.proof

TABLE = "CREATE TABLE orders (id bigint)"
GATE = 4711
"""An advisory lock that rows wait for on their way into the table."""
AWAITED = "SELECT count(*) FROM pg_stat_progress_copy JOIN pg_stat_activity USING (pid) WHERE wait_event = 'ClientRead'"
MANY = 50_000
"""Rows of 1,000 characters: more than lies in the buffers between client and server."""


def server_of(pg: SqlWorld) -> Postgres:
    assert isinstance(pg.db, PostgresDb)
    return pg.db.server


@contextmanager
def gate(pg: SqlWorld, row: int) -> Iterator[Callable[[], object]]:
    """Let the COPY of ``row`` wait in the middle, until what this yields is called."""
    with server_of(pg).connect() as holder:
        holder.execute(b"SELECT pg_advisory_lock(%d)" % GATE)
        pg.db.run(
            f"CREATE FUNCTION pass() RETURNS trigger AS 'BEGIN PERFORM pg_advisory_xact_lock_shared({GATE});"
            " RETURN NEW; END' LANGUAGE plpgsql",
            f"CREATE TRIGGER gate BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = {row}) EXECUTE FUNCTION pass()",
        )
        yield lambda: holder.execute(b"SELECT pg_advisory_unlock(%d)" % GATE)


@pytest.fixture
def sql_tables() -> Sequence[str]:
    return (TABLE,)


def in_the_middle(pg: SqlWorld) -> bool:
    """Whether a COPY has come to the gate, with rows before it."""
    copies = "SELECT 1 FROM pg_stat_progress_copy p JOIN pg_locks l USING (pid) WHERE NOT l.granted"
    return bool(pg.db.run(f"{copies} AND l.locktype = 'advisory' AND p.tuples_processed > 1000"))


def test_a_writer_killed_in_the_middle_of_its_rows_leaves_none(pg: SqlWorld) -> None:
    sink = pg.sink()
    attempt = pg.second_epoch(sink)
    staged = pg.staged(sink, attempt, rows(*range(2, 50_000)))
    with gate(pg, row=40_000) as opened:
        with pg.commit_elsewhere(sink, attempt, staged, {}) as killed:
            wait_until(lambda: in_the_middle(pg), what="rows are on their way")
            killed.signal(signal.SIGKILL)
            killed.wait_killed()
        assert pg.ids() == [1]
        opened()
        sink.commit(attempt, staged, pg.env)
    assert pg.ids() == [*range(1, 50_000)]
    fired("F1", 8, "C")


@pytest.mark.few(1)
@pytest.mark.parametrize("first", [True, False], ids=["first epoch", "later epoch"])
def test_a_writer_stopped_in_the_middle_of_its_rows_is_ended_by_who_gives_up_waiting(
    pg: SqlWorld, first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sink = pg.sink()
    attempt = attempt_of(transaction(1)) if first else pg.second_epoch(sink)
    pg.db.run("ALTER TABLE orders ADD COLUMN what text")
    wide = pa.array(["x" * 1000]).take(pa.array([0] * MANY))
    staged = pg.staged(sink, attempt, pa.table({"id": range(2, MANY + 2), "what": wide}))
    before = pg.ids()
    with gate(pg, row=5_000) as opened, pg.commit_elsewhere(sink, attempt, staged, {}) as zombie:
        wait_until(lambda: in_the_middle(pg), what="rows are on their way")
        zombie.signal(signal.SIGSTOP)
        zombie.wait_stopped()
        opened()
        wait_until(lambda: pg.db.run(AWAITED) == [(1,)], what="the server has read all that was sent")
        pg.env.connections["db"] = pg.db.connection(extra={"options": "-c lock_timeout=500ms"})
        with pytest.raises(OutcomeUnknown, match="lock timeout"):
            sink.commit(attempt, staged, pg.env)
        assert "which is stopped in its COPY" in caplog.text
        assert sink.commit(attempt, staged, pg.env).rows == MANY
        zombie.signal(signal.SIGCONT)
        assert zombie.answer() == "OutcomeUnknown"
    assert pg.ids() == [*before, *range(2, MANY + 2)]
    fired("F4", 8, "C")


def test_a_slow_writer_is_waited_for_and_not_ended(pg: SqlWorld) -> None:
    sink = pg.sink()
    attempt = pg.second_epoch(sink)
    staged = pg.staged(sink, attempt, rows(*range(2, 50_000)))
    with gate(pg, row=40_000) as opened, pg.commit_elsewhere(sink, attempt, staged, {}) as slow:
        wait_until(lambda: in_the_middle(pg), what="rows are on their way")
        direct = pg.env.connections["db"]
        pg.env.connections["db"] = pg.db.connection(extra={"options": "-c lock_timeout=500ms"})
        with pytest.raises(OutcomeUnknown, match="lock timeout"):
            sink.commit(attempt, staged, pg.env)
        opened()
        theirs = slow.answer()
    pg.env.connections["db"] = direct
    assert sink.commit(attempt, staged, pg.env) == theirs
    assert pg.ids() == [*range(1, 50_000)]


def test_a_writer_killed_while_sqlites_file_grows_leaves_no_row(tmp_path: Path) -> None:
    world = SqlWorld(new_sqlite(tmp_path), tmp_path)
    world.db.run(TABLE)
    sink = world.sink()
    attempt = world.second_epoch(sink)
    staged = world.staged(sink, attempt, rows(*range(2, 1_000_000)))
    file = tmp_path / "test.db"
    before = file.stat().st_size
    with world.commit_elsewhere(sink, attempt, staged, {}) as killed:
        wait_until(lambda: file.stat().st_size > before + 2**20, what="rows are on their way")
        killed.signal(signal.SIGKILL)
        killed.wait_killed()
    assert Path(f"{file}-journal").exists()
    assert world.ids() == [1]
    assert sink.commit(attempt, staged, world.env).rows == 999_998
    assert world.db.run("SELECT count(*), sum(id) FROM orders") == [(999_999, 499_999_500_000)]
    fired("F1", 8, "C")


def test_upserts_of_the_same_keys_in_opposite_order_wait_for_each_other(pg: SqlWorld) -> None:
    pg.db.run("CREATE UNIQUE INDEX one ON orders (id)", "INSERT INTO orders VALUES (1), (2), (3)")
    attempts = {name: attempt_of(transaction(1, pipeline=name)) for name in ("up", "down")}
    sink = pg.sink(mode="upsert", keys=["id"])
    pg.epoch(sink, transaction(1), None, rows(1))  # makes the table of markers
    pg.db.run("ALTER TABLE orders ADD COLUMN n bigint")
    staged = {
        name: pg.staged(sink, attempts[name], rows(*ids, n=[0, 0, 0]))
        for name, ids in (("up", (1, 2, 3)), ("down", (3, 2, 1)))
    }
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT%orders%'"
    with server_of(pg).connect(autocommit=False) as holder, ThreadPoolExecutor(2) as pool:
        holder.execute(f"SELECT FROM {pg.db.table()} WHERE id = 2 FOR UPDATE".encode())
        commits = [pool.submit(sink.commit, attempts[name], staged[name], pg.env) for name in staged]
        wait_until(lambda: pg.db.run(waiting) == [(2,)], what="both wait")
        holder.rollback()
        assert [commit.result(30).rows for commit in commits] == [3, 3]
