"""An upsert that is new to a pipeline takes earlier epochs, which share keys, one after the other."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import DeltaSink, SqlSink, codes
from airflow_epochs.contracts import Sink
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.backfills import backfill as backfills
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.inspection.dry_run import dry_run
from airflow_epochs.coordinator.rebuilding import planning, recording, wording
from airflow_epochs.errors import Refused
from airflow_epochs.model import OpenRecord, Run
from stack.postgres import Postgres
from tests.support.environment import Action
from tests.support.remedies import restored
from tests.support.sql_pipeline import COLUMNS, Related
from tests.support.sql_world import Db, new_postgres, new_sqlite
from tests.support.state_clicks import EPOCH
from tests.support.state_lab import Lab

PLAIN: dict[str, Any] = {"mode": "upsert", "keys": ["page"]}
ORDERED = {**PLAIN, "sequence_by": "nth", "delete_when": "n < 0"}
OPTIONS = {"plain": PLAIN, "ordered": ORDERED}
Clicks = list[tuple[Any, ...]]
EPOCHS: tuple[Clicks, ...] = (
    [(0, "a", 1, 10), (1, "b", 1, 10), (2, "c", 1, 10)],
    [(0, "a", 2, 20), (1, "b", -1, 30), (2, "d", 2, 20)],
    [(0, "a", 3, 15), (1, "b", 3, 20), (2, "e", 4, 40)],
)
"""Clicks: partition, page, a number, which deletes the page if it is negative, and the order of the page's clicks."""


def pipeline(lab: Lab, db: Db, *suffixes: str) -> Coordinator:
    """Upserts into a Delta table and tables of a database. Those with a second suffix begin with the first epoch."""
    sinks = [sink for suffix in suffixes for sink in upserts(lab, db, suffix)]
    firsts = {sink.name: 1 for suffix in suffixes[1:] for sink in upserts(lab, db, suffix)}
    function = "copied_upserts" if suffixes[1:] else "upserts"
    return lab.task("keyed", function, tuple(sinks), None, backfill=firsts)


def upserts(lab: Lab, db: Db, suffix: str) -> list[Sink]:
    staging = str(lab.folder / "staging")
    lake = DeltaSink(f"ordered{suffix}", lab.at(f"ordered{suffix}"), **ORDERED)
    names = {f"db_{name}{suffix}": given for name, given in OPTIONS.items()}
    return [lake, *(SqlSink(name, "db", db.table(name), staging=staging, **given) for name, given in names.items())]


def shown(lab: Lab, db: Db, suffix: str) -> list[list[tuple[Any, ...]]]:
    """What DuckDB and psycopg read."""
    tables = (db.table(f"db_{name}{suffix}") for name in OPTIONS)
    return [
        sorted(lab.rows(f"ordered{suffix}", f"page, n, nth - {EPOCH}")),
        *(db.run(f"SELECT page, n, nth - {EPOCH} FROM {table} ORDER BY page") for table in tables),
    ]


@pytest.mark.jvm
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("epochs", "plain", "ordered"),
    [
        (
            EPOCHS[:2],
            [("a", 2, 20), ("b", -1, 30), ("c", 1, 10), ("d", 2, 20)],
            [("a", 2, 20), ("c", 1, 10), ("d", 2, 20)],
        ),
        pytest.param(
            EPOCHS,
            [("a", 3, 15), ("b", 3, 20), ("c", 1, 10), ("d", 2, 20), ("e", 4, 40)],
            [("a", 2, 20), ("c", 1, 10), ("d", 2, 20), ("e", 4, 40)],
            marks=pytest.mark.long,
        ),
    ],
    ids=["one earlier epoch", "two earlier epochs"],
)
def test_a_new_upsert_shows_what_it_would_show_had_it_been_there_when_earlier_epochs_changed_its_keys(
    lab: Lab, postgres: Postgres, epochs: Sequence[Clicks], plain: Clicks, ordered: Clicks
) -> None:
    db = new_postgres(postgres)
    lab.connections["db"] = db.connection()
    for name in (f"db_{name}{suffix}" for name in OPTIONS for suffix in ("", "_new")):
        db.run(f"CREATE TABLE {db.table(name)} (page text PRIMARY KEY, n bigint, nth bigint)")
    for clicks in epochs[:-1]:
        lab.produce(*clicks)
        lab.run(pipeline(lab, db, ""))
    lab.produce(*epochs[-1])
    lab.run(pipeline(lab, db, "", "_new"))
    assert shown(lab, db, "_new") == shown(lab, db, "")
    assert shown(lab, db, "_new") == [ordered, plain, ordered]


def newest_in(folder: Path, **options: Any) -> Related:
    """Two epochs, each with one record of each partition; a database has the newest record of each one."""
    world = Related(folder, new_sqlite(folder), names=("orders",))
    for name in ("orders", "gold"):
        world.db.run(f"CREATE TABLE {name} ({COLUMNS}, PRIMARY KEY (partition))")
    world = replace(world, options={"mode": "upsert", "keys": ["partition"], **options})
    for number in (1, 2):
        world.source.produce(2)
        assert world.run(number) is None
    world.source.produce(2)
    return replace(world, names=("orders", "gold"), backfill={"gold": 1})


def test_an_upsert_that_cannot_take_its_epochs_one_by_one_says_so_and_goes_on_as_the_error_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = newest_in(tmp_path)
    monkeypatch.setattr(backfills, "REPLAYED_MAX", 1)
    error = world.run(3)
    assert isinstance(error, Refused) and error.code is codes.GLOBAL_ABORT
    assert "EPOCHS-SQL-ROWS-UNFIT" in str(error)
    told = "`backfill` gives the sink the rows of earlier epochs together with this one's as the rows of one epoch"
    assert told in str(error)
    assert "let `backfill` name a later epoch, or remove the sink from it" in str(error)
    assert replace(world, backfill={}).run(3) is None
    assert world.shown("gold") == world.shown("orders")


def test_an_upsert_whose_earlier_epochs_were_pruned_takes_a_later_one_as_the_error_says(tmp_path: Path) -> None:
    world = newest_in(tmp_path)
    (record,) = world.folder.glob(f"ledger/**/*{1:010}/*.open.json")
    record.unlink()
    error = world.run(3)
    assert "EPOCHS-SQL-ROWS-UNFIT" in str(error)
    assert replace(world, backfill={"gold": 2}).run(3) is None
    assert world.shown("gold") == world.shown("orders")


def test_an_upsert_in_a_pipeline_without_state_replays_the_epochs_that_it_begins_with(tmp_path: Path) -> None:
    world = newest_in(tmp_path)
    opened = world.coordinator().open(Run("dag", "run 3"))
    assert isinstance(opened, OpenRecord) and opened.sinks["gold"].replayed_from == 1
    assert world.run(3) is None
    assert world.shown("gold") == world.shown("orders")


# -- over a ledger that was rebuilt -----------------------------------------------------------------------------------

BY = Account(who="ann", why="the disk is gone")


def keyed_pair(folder: Path) -> Related:
    keys = {"mode": "upsert", "keys": ["partition", "offset"]}
    world = Related(folder, new_sqlite(folder), names=("orders", "audit"), options=keys)
    for name in world.names:
        world.db.run(f'CREATE TABLE {name} ({COLUMNS}, PRIMARY KEY (partition, "offset"))')
    return world


@pytest.fixture
def old_copy(tmp_path: Path) -> Related:
    """`audit` has epoch 1 of three. The copy of the ledger that is left has epoch 3 undecided."""
    world = keyed_pair(tmp_path)
    after(world, 1)
    after(replace(world, names=("orders",)), 2)
    ledger, backup = tmp_path / "ledger", tmp_path / "backup"
    after(replace(world, names=("orders",)), 3, {"decision.put": lambda: shutil.copytree(ledger, backup)})
    restored(ledger, backup)
    return world


def after(world: Related, number: int, at: Mapping[str, Action] | None = None) -> None:
    world.source.produce(4)
    assert world.run(number, at) is None


def rebuilt_without_audit(world: Related) -> Related:
    """The pipeline as the command says: `audit` has another name, and a backfill."""
    plan = planning.plan(world.coordinator().task, ["audit"])
    assert plan
    recording.carry_out(world.coordinator().task, plan, by=BY)
    (first,) = re.findall(r'backfill=\{"<the new name>": (\d+)\}', "".join(wording.announced(plan)))
    return replace(world, names=("orders", "audit_2"), tables={"audit_2": "audit"}, backfill={"audit_2": int(first)})


def test_an_upsert_left_out_by_a_rebuild_gets_all_that_it_lacks_though_the_open_record_that_is_left_has_less(
    old_copy: Related, caplog: pytest.LogCaptureFixture
) -> None:
    after(rebuilt_without_audit(old_copy), 4)
    old_copy.require_all_shown("orders", "audit")
    assert "as one, in which no key may come twice. Epoch 3 was rebuilt `--without` a sink" in caplog.text


@pytest.fixture
def fork(tmp_path: Path) -> Related:
    """`audit` has epochs 1 and 2 of three. The ledger that is left opened another epoch 3, with less input."""
    world = keyed_pair(tmp_path)
    ledger, before, other = tmp_path / "ledger", tmp_path / "before", tmp_path / "other"
    after(world, 1)
    after(world, 2, {"complete.landed": lambda: shutil.copytree(ledger, before)})
    orders = replace(world, names=("orders",))
    orders.source.produce(4)
    orders.coordinator().open(Run("dag", "run 3"))
    ledger.rename(other)
    restored(ledger, before)
    after(orders, 3)
    restored(ledger, other)
    return world


def test_the_open_record_of_another_transaction_is_not_replayed_for_an_upsert(
    fork: Related, caplog: pytest.LogCaptureFixture
) -> None:
    after(rebuilt_without_audit(fork), 4)
    fork.require_all_shown("orders", "audit")
    assert "Epoch 3 was rebuilt, and its open record belongs to another transaction" in caplog.text


def test_a_rebuilt_epoch_is_played_again_with_the_input_that_its_sinks_got(old_copy: Related) -> None:
    rebuilt_without_audit(old_copy)
    played = dry_run(replace(old_copy, names=("orders",)).coordinator().task, 3, sample=0)
    assert played.metrics["rows_in"] == 4
