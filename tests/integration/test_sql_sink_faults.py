"""The SQL sink where something dies, stops or does not answer: rows and marker are there together, once."""

from __future__ import annotations

import re
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Corrupt, NotApplied, OutcomeUnknown, RowsGone
from airflow_epochs.model import Receipt, StagedClaim
from airflow_epochs.sinks.sql import sqlite as sql_sqlite
from stack.postgres import Postgres
from tests.support.cells import fired
from tests.support.delta_world import attempt_of, rows, transaction
from tests.support.environment import Environment
from tests.support.sql_world import Db, SqlWorld, new_postgres, new_sqlite
from tests.support.tcp_proxy import ANSWERS, Proxy

pytestmark = pytest.mark.proof

TABLE = "CREATE TABLE orders (id bigint)"
"""Without a unique key: nothing but the marker keeps rows from coming twice."""


@pytest.fixture
def sql_tables() -> Sequence[str]:
    return (TABLE,)


@dataclass
class Late(Environment):
    """A world that tells when its connection is asked for."""

    asked: threading.Event = field(default_factory=threading.Event)

    def connection(self, conn_id: str) -> Connection:
        self.asked.set()
        return super().connection(conn_id)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("phase", "mode"),
    [
        ("sql.locked", "append"),
        ("sql.copied", "append"),
        ("sql.commit.before", "append"),
        ("sql.commit.before", "upsert"),
        ("sql.commit.after", "append"),
    ],
)
def test_a_writer_killed_at_any_phase_shows_all_or_nothing_and_a_repeat_shows_it_once(
    sql_world: SqlWorld, phase: str, mode: str
) -> None:
    if mode == "upsert":
        sql_world.db.run("CREATE UNIQUE INDEX one ON orders (id)")
    sink = sql_world.sink(mode=mode, keys=["id"] if mode == "upsert" else [])
    attempt = sql_world.second_epoch(sink)
    staged = sql_world.staged(sink, attempt, rows(2, 3))
    with sql_world.commit_elsewhere(sink, attempt, staged, {phase: signal.SIGKILL}) as killed:
        killed.wait_killed()
    landed = phase == "sql.commit.after"
    assert sql_world.ids() == ([1, 2, 3] if landed else [1])
    receipt = sink.commit(attempt, staged, sql_world.env)
    assert (sql_world.ids(), receipt.rows) == ([1, 2, 3], 2)
    assert sql_world.marker_rows()[0][2:4] == (2, str(attempt.txn))
    fired("F1", 9 if landed else 8, "C")


def test_a_server_that_dies_between_vote_and_commit_is_waited_for(own_server: Postgres, tmp_path: Path) -> None:
    world = SqlWorld(new_postgres(own_server), tmp_path)
    world.db.run(TABLE)
    sink = world.sink()
    attempt = world.second_epoch(sink)
    staged = world.staged(sink, attempt, rows(2))
    own_server.kill()
    with pytest.raises(OutcomeUnknown, match="could not connect to PostgreSQL"):
        sink.commit(attempt, staged, world.env)
    with pytest.raises(NotApplied):
        sink.vote(attempt, StagedClaim(place=staged.place), world.env)
    own_server.start_again()
    own_server.wait_ready()
    sink.commit(attempt, staged, world.env)
    assert world.ids() == [1, 2]


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", ["sql.locked", "sql.commit.before"])
def test_a_server_that_dies_within_the_transaction_has_rolled_it_back(
    own_server: Postgres, tmp_path: Path, phase: str
) -> None:
    world = SqlWorld(new_postgres(own_server), tmp_path)
    world.db.run(TABLE)
    sink = world.sink()
    attempt = world.second_epoch(sink)
    staged = world.staged(sink, attempt, rows(2))
    world.env.at[phase] = own_server.kill
    with pytest.raises(OutcomeUnknown):
        sink.commit(attempt, staged, world.env)
    del world.env.at[phase]
    own_server.start_again()
    own_server.wait_ready()
    assert world.ids() == [1]
    sink.commit(attempt, staged, world.env)
    assert world.ids() == [1, 2]


def test_a_commit_whose_answer_is_lost_is_found_and_not_repeated(pg: SqlWorld) -> None:
    sink = pg.sink()
    attempt = pg.second_epoch(sink)
    staged = pg.staged(sink, attempt, rows(2))
    direct = pg.env.connections["db"]
    with Proxy(direct.port or 0) as proxy:
        pg.env.connections["db"] = pg.db.connection(port=proxy.port)
        pg.env.at["sql.commit.before"] = lambda: proxy.lose(ANSWERS, cut=True)
        with pytest.raises(OutcomeUnknown, match="did not confirm the COMMIT, so its result is unknown"):
            sink.commit(attempt, staged, pg.env)
    assert pg.ids() == [1, 2]
    pg.env.connections["db"], before = direct, list(pg.env.phases)
    receipt = sink.commit(attempt, staged, pg.env)
    assert (pg.ids(), receipt.rows) == ([1, 2], 1)
    assert pg.env.phases == before
    fired("F6", 9, "C")


@pytest.mark.long
def test_a_stopped_writer_holds_the_marker_and_both_end_with_the_same_receipt(pg: SqlWorld) -> None:
    sink = pg.sink()
    attempt = pg.second_epoch(sink)
    staged = pg.staged(sink, attempt, rows(2))
    with pg.commit_elsewhere(sink, attempt, staged, {"sql.commit.before": signal.SIGSTOP}) as zombie:
        zombie.wait_stopped()
        pg.env.connections["db"] = pg.db.connection(extra={"options": "-c lock_timeout=100ms"})
        with pytest.raises(OutcomeUnknown, match="lock timeout"):
            sink.commit(attempt, staged, pg.env)
        zombie.signal(signal.SIGCONT)
        theirs = zombie.answer()
    assert sink.commit(attempt, staged, pg.env) == theirs
    assert pg.ids() == [1, 2]


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", ["sql.locked", "sql.copied", "sql.commit.before"])
def test_a_writer_stopped_for_too_long_is_ended_by_the_server_and_changes_nothing_when_woken(
    pg: SqlWorld, phase: str
) -> None:
    sink = pg.sink()
    attempt = pg.second_epoch(sink)
    staged = pg.staged(sink, attempt, rows(2))
    plain = pg.env.connections["db"]
    pg.env.connections["db"] = pg.db.connection(extra={"options": "-c idle_in_transaction_session_timeout=1s"})
    with pg.commit_elsewhere(sink, attempt, staged, {phase: signal.SIGSTOP}) as zombie:
        zombie.wait_stopped()
        pg.env.connections["db"] = plain
        receipt = sink.commit(attempt, staged, pg.env)
        later = attempt_of(transaction(3), attempt.txn)
        sink.commit(later, pg.staged(sink, later, rows(3)), pg.env)
        zombie.signal(signal.SIGCONT)
        assert zombie.answer() == "OutcomeUnknown"
    assert receipt.rows == 1
    assert pg.ids() == [1, 2, 3]
    with pytest.raises(Corrupt):
        sink.commit(attempt, staged, pg.env)
    assert pg.ids() == [1, 2, 3]
    fired("F4", 8, "C")


def test_a_writer_stopped_in_sqlite_holds_the_file_until_it_has_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SqlWorld(new_sqlite(tmp_path), tmp_path)
    world.db.run(TABLE)
    sink = world.sink()
    attempt = world.second_epoch(sink)
    staged = world.staged(sink, attempt, rows(2))
    with world.commit_elsewhere(sink, attempt, staged, {"sql.commit.before": signal.SIGSTOP}) as zombie:
        zombie.wait_stopped()
        monkeypatch.setattr(sql_sqlite, "WAIT_S", 0.1)
        with pytest.raises(OutcomeUnknown, match="locked"):
            sink.commit(attempt, staged, world.env)
        zombie.signal(signal.SIGCONT)
        theirs = zombie.answer()
    assert isinstance(theirs, Receipt)
    assert sink.commit(attempt, staged, world.env) == theirs
    assert world.ids() == [1, 2]


def test_a_reader_of_a_sqlite_file_holds_up_a_commit_until_it_ends_but_not_in_wal_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SqlWorld(new_sqlite(tmp_path), tmp_path)
    world.db.run(TABLE)
    monkeypatch.setattr(sql_sqlite, "WAIT_S", 0.1)
    sink = world.sink()
    attempt = world.second_epoch(sink)
    staged = world.staged(sink, attempt, rows(2))
    with reading(world.db), pytest.raises(OutcomeUnknown, match="locked") as held:
        sink.commit(attempt, staged, world.env)
    assert "writes to the file, or reads from it, for a long time" in held.value.remedy
    sink.commit(attempt, staged, world.env)  # the first remedy: the reader has ended
    (statement,) = re.findall("`(.*?)`", held.value.remedy)
    assert world.db.run(statement) == [("wal",)]
    with reading(world.db) as ids:
        world.epoch(sink, transaction(3), attempt.txn, rows(3))
        assert ids() == [1, 2]
    assert world.ids() == [1, 2, 3]


@contextmanager
def reading(db: Db) -> Iterator[Callable[[], list[int]]]:
    """A reader of a SQLite file in its transaction: what it sees."""
    with closing(sqlite3.connect(str(db.connection().host), isolation_level=None)) as reader:

        def ids() -> list[int]:
            return [row[0] for row in reader.execute("SELECT id FROM orders ORDER BY id")]

        reader.execute("BEGIN")
        ids()
        yield ids


def test_staged_rows_found_damaged_in_the_middle_of_a_commit_leave_nothing(sql_world: SqlWorld) -> None:
    sink = sql_world.sink()
    attempt = sql_world.second_epoch(sink)
    staged = sql_world.staged(sink, attempt, rows(*range(2, 50_000)))
    file = next(Path(staged.place).rglob("*.parquet"))
    sound, middle = file.read_bytes(), file.stat().st_size // 2
    file.write_bytes(
        sound[:middle] + bytes(byte ^ 0xFF for byte in sound[middle : middle + 500]) + sound[middle + 500 :]
    )
    with pytest.raises(RowsGone, match="is damaged"):
        sink.commit(attempt, staged, sql_world.env)
    assert sql_world.ids() == [1]
    assert "is damaged" in (sink.vote(attempt, StagedClaim(place=staged.place), sql_world.env).reason or "")
    file.write_bytes(sound)
    sink.commit(attempt, staged, sql_world.env)
    assert len(sql_world.ids()) == 49_999
    fired("F10", 8, "C")


@pytest.mark.few(1)
def test_a_million_rows_are_committed_in_constant_memory(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE wide (id bigint, what text)")
    sink, attempt = sql_world.sink("wide", rehearse=False), attempt_of(transaction(1))
    many = pa.table({"id": range(1_000_000), "what": pa.array(["x" * 100]).take(pa.array([0] * 1_000_000))})
    staged = sql_world.staged(sink, attempt, many)
    with sql_world.commit_elsewhere(sink, attempt, staged, {}) as writer:
        receipt = writer.answer()
    assert isinstance(receipt, Receipt)
    assert receipt.rows == 1_000_000
    assert writer.grown_mb < 100, "the rows alone are 108 MB in memory"
    assert sql_world.db.run("SELECT count(*), sum(id), min(length(what)) FROM wide") == [
        (1_000_000, 499_999_500_000, 100)
    ]


def test_a_second_writer_waits_for_the_first_and_finds_its_work_done(sql_world: SqlWorld) -> None:
    sink = sql_world.sink()
    attempt = sql_world.second_epoch(sink)
    staged = sql_world.staged(sink, attempt, rows(2))
    with ThreadPoolExecutor(1) as pool:
        late = Late(connections=sql_world.env.connections)
        second: list[Future[Receipt]] = []

        def meanwhile() -> None:
            second.append(pool.submit(sink.commit, attempt, staged, late))
            assert late.asked.wait(30)

        sql_world.env.at["sql.locked"] = meanwhile
        receipt = sink.commit(attempt, staged, sql_world.env)
        assert second[0].result(30) == receipt
    assert (sql_world.ids(), late.phases) == ([1, 2], [])


@pytest.mark.few(1)
def test_many_processes_that_commit_one_epoch_show_it_once(sql_world: SqlWorld) -> None:
    sink = sql_world.sink()
    attempt = attempt_of(transaction(1))
    staged = sql_world.staged(sink, attempt, rows(1, 2))
    writers = [sql_world.commit_elsewhere(sink, attempt, staged, {}) for _ in range(3)]
    receipts = [writer.answer() for writer in writers]
    for writer in writers:
        writer.process.join()
    assert all(isinstance(receipt, Receipt) and receipt == receipts[0] for receipt in receipts)
    assert sql_world.ids() == [1, 2]
    fired("F13", 8, "C")
