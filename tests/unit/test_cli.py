from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_epochs import cli
from airflow_epochs.errors import Refused
from airflow_epochs.ledger import Ledger
from airflow_epochs.model import Run
from airflow_epochs.sources.kafka import KafkaSource
from airflow_epochs.store import LocalStore
from airflow_epochs.testing import MemoryWorld, memory_coordinator, memory_pipeline, run_epoch


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryWorld:
    """Two complete epochs and one that is open, in a ledger on disk."""
    connection = {"conn_type": "epochs", "extra": {"ledger_root": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))
    world = MemoryWorld()
    coordinator = memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path))
    for number in (1, 2):
        world.produce("orders", 0, ["row"] * number)
        run_epoch(coordinator, Run("dag", f"r{number}"))
    world.produce("orders", 0, ["row"])
    coordinator.open(Run("dag", "r3"))
    return world


def _args(**values: object) -> Namespace:
    return Namespace(
        **{"pipeline": "orders", "ledger_conn_id": "epochs_default", "limit": 20, "output": "json", **values}
    )


def test_list_prints_the_newest_epochs_first_with_state_rows_and_versions(
    world: MemoryWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.list_epochs(_args())
    rows = json.loads(capsys.readouterr().out)
    assert [(row["epoch"], row["state"], row["rows"], row["versions"]) for row in rows] == [
        ("3", "open", "0", ""),
        ("2", "complete", "2", "orders=1"),
        ("1", "complete", "1", "orders=0"),
    ]


def test_list_prints_no_more_than_the_limit(world: MemoryWorld, capsys: pytest.CaptureFixture[str]) -> None:
    cli.list_epochs(_args(limit=1))
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_show_prints_the_completion_record_of_a_complete_epoch(
    world: MemoryWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.show_epoch(_args(epoch=2))
    shown = json.loads(capsys.readouterr().out)
    assert shown["state"] == "complete"
    assert shown["complete"]["ranges"] == {"orders": [[0, 1, 3]]}


def test_show_prints_the_records_of_the_newest_attempt_of_any_other_epoch(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path))
    coordinator.vote(Run("dag", "r3"), coordinator.stage(Run("dag", "r3")).stage)
    coordinator.commit(Run("dag", "r3"), "orders")
    cli.show_epoch(_args(epoch=3))
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["open"]["run_id"], shown["complete"]) == ("in doubt", "r3", None)
    assert shown["decision"]["votes"].keys() == shown["receipts"].keys() == {"orders"}


def test_show_of_an_epoch_that_is_not_there_says_where_to_look(world: MemoryWorld) -> None:
    with pytest.raises(SystemExit, match="airflow epochs list orders"):
        cli.show_epoch(_args(epoch=9))


def test_takeover_lets_another_dag_run_the_pipeline_and_locks_the_old_one_out(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.take_over(_args(dag_id="new", why="moved"))
    assert "now belongs to DAG new" in capsys.readouterr().out
    ledger = Ledger(LocalStore(tmp_path), "orders")
    ledger.claim("new", at="now", writer="w")
    with pytest.raises(Refused, match="belongs to DAG 'new'"):
        ledger.claim("dag", at="now", writer="w")


def test_takeover_of_an_unknown_pipeline_is_refused_and_creates_nothing(world: MemoryWorld, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="nothing to take over"):
        cli.take_over(_args(pipeline="orderz", dag_id="new", why="moved"))
    assert not (tmp_path / "orderz").exists()


def test_a_waived_sink_is_not_waited_for_any_more(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = memory_coordinator(world, memory_pipeline(world, ("orders", "gone")), store=LocalStore(tmp_path))
    run = Run("dag", "r4")
    coordinator.open(run)
    coordinator.vote(run, coordinator.stage(run).stage)
    coordinator.commit(run, "orders")
    with pytest.raises(SystemExit, match="waits for: gone"):
        cli.waive(_args(epoch=3, sink="orders", why="typo"))
    cli.waive(_args(epoch=3, sink="gone", why="the table was dropped"))
    assert "without sink gone" in capsys.readouterr().out
    assert coordinator.complete(run).state == "complete"
    assert set(coordinator.newest_complete().receipts) == {"orders"}


def test_only_an_epoch_in_doubt_can_be_waived(world: MemoryWorld) -> None:
    for epoch, state in ((1, "complete"), (3, "open"), (9, "new")):
        with pytest.raises(SystemExit, match=f"is {state}"):
            cli.waive(_args(epoch=epoch, sink="orders", why="typo"))


def test_airflow_has_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    [group] = cli.get_cli_commands()
    assert [command.name for command in group.subcommands] == ["list", "show", "in-doubt", "takeover", "waive"]  # type: ignore[union-attr]


def test_in_doubt_names_the_unfinished_epoch_and_the_sinks_that_it_waits_for(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.show_in_doubt(_args())
    assert capsys.readouterr().out.startswith("Epoch 3 is open (orders/3/1/")
    coordinator = memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path))
    coordinator.vote(Run("dag", "r3"), coordinator.stage(Run("dag", "r3")).stage)
    cli.show_in_doubt(_args())
    assert capsys.readouterr().out.startswith("Epoch 3 is in doubt: waits for orders (orders/3/1/")
    coordinator.commit(Run("dag", "r3"), "orders")
    coordinator.complete(Run("dag", "r3"))
    cli.show_in_doubt(_args())
    assert capsys.readouterr().out == "No epoch is unfinished; the newest complete one is 3.\n"


def test_in_doubt_prints_the_transactions_that_keep_the_source_from_being_read(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[str] = []
    monkeypatch.setattr(KafkaSource, "waiting", lambda source, env: [*waiting, *()])
    opened = Ledger(LocalStore(tmp_path), "orders").open_record(3, 1)
    assert opened
    kafka = replace(opened, source=KafkaSource(["orders"]).spec())
    monkeypatch.setattr(Ledger, "open_record", lambda *_: kafka)
    cli.show_in_doubt(_args())
    assert capsys.readouterr().out.endswith("No open transaction keeps records of its topics from being read.\n")
    waiting += ["5 records wait.", "1 record waits."]
    cli.show_in_doubt(_args())
    assert capsys.readouterr().out.endswith("5 records wait.\n1 record waits.\n")
