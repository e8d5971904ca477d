from __future__ import annotations

import json
import os
import pwd
import socket
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand

from airflow_epochs import cli
from airflow_epochs.commands import asking, finding, history, looking, orders
from airflow_epochs.commands.code import acknowledge_code
from airflow_epochs.commands.verify import show_verification
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.errors import Corrupt, NoNewData, Refused
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.ledger.codec import encode
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import JsonDict, Run, TakeoverRecord, TryRecord
from airflow_epochs.operators import definitions
from airflow_epochs.sources.kafka.source import KafkaSource
from airflow_epochs.testing import MemoryWorld, memory_coordinator, memory_pipeline, run_epoch
from tests.support.airflow_harness import initialised
from tests.support.records import rebuilt_to
from tests.support.terminal import terminal

TRY: JsonDict = {"try_id": "a" * 32, "places": {}, "session": {}, "started_at": "now"}


def connect(monkeypatch: pytest.MonkeyPatch, root: Path, password: str = "", **extra: object) -> None:
    """Make the default connection that of the ledger in this folder."""
    connection = {"conn_type": "epochs", "password": password, "extra": {"ledger_root": str(root), **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryWorld:
    """Two complete epochs and one that is open, in a ledger on disk."""
    connect(monkeypatch, tmp_path)
    world = MemoryWorld()
    coordinator = memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path))
    for number in (1, 2):
        world.produce("orders", 0, ["row"] * number)
        run_epoch(coordinator, Run("dag", f"r{number}"))
    world.produce("orders", 0, ["row"])
    coordinator.open(Run("dag", "r3"))
    return world


@pytest.fixture
def in_doubt(world: MemoryWorld, tmp_path: Path) -> MemoryWorld:
    """Epoch 3 is decided and waits for `orders`."""
    coordinator = memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path))
    coordinator.vote(Run("dag", "r3"), coordinator.stage(Run("dag", "r3")).stage)
    return world


def _args(**values: object) -> Namespace:
    return Namespace(
        **{
            "pipeline": "orders",
            "ledger_conn_id": "epochs_default",
            "limit": 20,
            "output": "json",
            "yes": True,
            **values,
        }
    )


def test_list_prints_the_newest_epochs_first_with_state_rows_and_versions(
    world: MemoryWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.list_epochs(_args())
    rows = json.loads(capsys.readouterr().out)
    assert [(row["epoch"], row["state"], row["rows"], row["versions"]) for row in rows] == [
        (3, "open", 0, {}),
        (2, "complete", 2, {"orders": 1}),
        (1, "complete", 1, {"orders": 0}),
    ]


def test_list_tells_why_an_epoch_was_aborted(world: MemoryWorld, capsys: pytest.CaptureFixture[str]) -> None:
    cli.abort(_args(why="it hangs"))
    capsys.readouterr()
    cli.list_epochs(_args())
    reasons = [row["reason"] for row in json.loads(capsys.readouterr().out)]
    assert "it hangs" in reasons[0] and reasons[1:] == [None, None]


def test_list_prints_no_more_than_the_limit(world: MemoryWorld, capsys: pytest.CaptureFixture[str]) -> None:
    cli.list_epochs(_args(limit=1))
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_list_prints_as_many_complete_epochs_as_the_limit_says(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_epoch(memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path)), Run("dag", "r3"))
    cli.list_epochs(_args(limit=2))
    assert [row["epoch"] for row in json.loads(capsys.readouterr().out)] == [3, 2]


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "x", str(10**18 + 1), "9" * 30])
@pytest.mark.parametrize(
    "command",
    ["list p --limit", "history p --limit", "verify p --epochs", "export p f --epochs", "preview p --records"],
)
def test_a_number_of_epochs_or_records_that_there_cannot_be_is_refused_with_what_is_allowed(
    command: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _parsed(*command.split(), number)
    option = command.split()[-1]
    assert ended.value.code == 2
    told = f"argument {option}: '{number}' is no whole number from 1 to 1000000000000000000"
    assert told in capsys.readouterr().err
    for taken in (1, 10**18):
        assert vars(_parsed(*command.split(), str(taken)))[option.strip("-")] == taken


@pytest.mark.parametrize("command", ["dry-run p --epoch 1", "preview p"])
def test_a_sample_may_have_no_row_but_not_fewer(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _parsed(*command.split(), "--sample", "0").sample == 0
    for number in ("-1", "9" * 20, "9" * 5000):
        with pytest.raises(SystemExit):
            _parsed(*command.split(), "--sample", number)
        assert f"'{number[:40]}' is no whole number from 0 to 1" in capsys.readouterr().err


def _parsed(name: str, *words: str) -> Namespace:
    """What is behind ``airflow epochs``, as the command takes it."""
    [group] = cli.get_cli_commands()
    assert isinstance(group, GroupCommand)
    [command] = [each for each in group.subcommands if each.name == name]
    assert isinstance(command, ActionCommand)
    parser = ArgumentParser()
    for each in command.args:
        each.add_to_parser(parser)
    return parser.parse_args(words)


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


@pytest.mark.parametrize("epoch", [0, -1])
def test_show_names_the_number_that_no_epoch_has(world: MemoryWorld, epoch: int) -> None:
    with pytest.raises(SystemExit, match=f"The pipeline has no epoch {epoch}\\."):
        cli.show_epoch(_args(epoch=epoch))


@pytest.mark.parametrize("command", [cli.list_epochs, cli.show_epoch, cli.show_in_doubt, cli.waive])
def test_a_name_that_no_pipeline_can_have_is_refused_without_a_traceback(
    world: MemoryWorld, command: Callable[[Namespace], None]
) -> None:
    with pytest.raises(SystemExit, match=r"EPOCHS-NAME: The pipeline name '../x' is not valid.*\nWhat to do: Choose"):
        command(_args(pipeline="../x", epoch=1, sink="orders", why="w"))


def test_takeover_lets_another_dag_run_the_pipeline_and_locks_the_old_one_out(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.take_over(_args(dag_id="new", why="moved"))
    assert "now belongs to DAG new" in capsys.readouterr().out
    ledger = Ledger(LocalStore(tmp_path), "orders")
    ledger.register("new", at="now", writer="w")
    with pytest.raises(Refused, match="belongs to DAG 'new'"):
        ledger.register("dag", at="now", writer="w")


def test_takeover_of_an_unknown_pipeline_is_refused_and_creates_nothing(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.take_over(_args(pipeline="orderz", dag_id="new", why="moved"))
    assert "has no pipeline 'orderz'. It has: orders." in capsys.readouterr().err
    assert not (tmp_path / "orderz").exists()


@pytest.mark.parametrize("dag_id", ["", " ", "new dag", "new/dag", "n" * 251])
def test_takeover_to_an_id_that_no_dag_can_have_is_refused(world: MemoryWorld, tmp_path: Path, dag_id: str) -> None:
    with pytest.raises(SystemExit, match=f"EPOCHS-COMMAND-OPTIONS: No DAG can have the id {dag_id!r}"):
        cli.take_over(_args(dag_id=dag_id, why="moved"))
    assert admin.owner_of(Ledger(LocalStore(tmp_path), "orders"), "orders") == "dag"


def test_code_of_a_misspelled_pipeline_is_not_acknowledged(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        acknowledge_code(_args(pipeline="orderz", code="a" * 64, dag_id=None, why="w", ledger_conn_id=None))
    assert "has no pipeline 'orderz'. It has: orders." in capsys.readouterr().err
    assert not (tmp_path / "orderz").exists()
    acknowledge_code(_args(code="a" * 64, dag_id=None, why="w", ledger_conn_id=None))
    told = capsys.readouterr().out
    assert "The next run opens an epoch with it." in told and "`airflow epochs retry orders --why …`" in told


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


def test_list_tells_who_waived_a_sink_while_the_epoch_is_in_doubt_when_it_is_complete_and_of_no_later_epoch(
    in_doubt: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(**of: object) -> str:
        capsys.readouterr()
        cli.list_epochs(_args(**of))
        return capsys.readouterr().out

    waive("the table was dropped")
    waived = {"orders": f"by {pwd.getpwuid(os.geteuid()).pw_name}: the table was dropped"}
    assert [row["waived"] for row in json.loads(listed())] == [waived, {}, {}]
    coordinator = memory_coordinator(in_doubt, memory_pipeline(in_doubt), store=LocalStore(tmp_path))
    coordinator.complete(Run("dag", "r3"))
    in_doubt.produce("orders", 0, ["row"])
    later = memory_coordinator(in_doubt, memory_pipeline(in_doubt, ("another",)), store=LocalStore(tmp_path))
    run_epoch(later, Run("dag", "r4"))
    assert [row["waived"] for row in json.loads(listed())] == [{}, waived, {}, {}]
    assert "the table was dropped" in listed(output="plain")


def test_show_tells_who_waived_a_sink_of_a_complete_epoch_also_after_it_was_pruned(
    in_doubt: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.waive(_args(epoch=3, sink="orders", why="table dropped"))
    memory_coordinator(in_doubt, memory_pipeline(in_doubt), store=LocalStore(tmp_path)).complete(Run("dag", "r3"))
    Ledger(LocalStore(tmp_path), "orders").pruning.prune(3)
    capsys.readouterr()
    cli.show_epoch(_args(epoch=3))
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["open"], shown["waived"]["orders"]["why"]) == ("complete", None, "table dropped")
    history.show_history(_args(limit=2))
    [deed] = json.loads(capsys.readouterr().out)
    assert (deed["command"], deed["epoch"], deed["why"]) == ("waive orders", 3, "table dropped")
    assert deed["who"].startswith(f"{pwd.getpwuid(os.geteuid()).pw_name}@{socket.gethostname()}")


def test_only_an_epoch_in_doubt_can_be_waived(world: MemoryWorld) -> None:
    no_epoch = {epoch: f"The pipeline has no epoch {epoch}" for epoch in (-1, 0, 4, 99, 10**30)}
    for epoch, stands in {1: "The epoch is complete", 3: "The epoch is open", **no_epoch}.items():
        with pytest.raises(SystemExit) as refused:
            cli.waive(_args(epoch=epoch, sink="orders", why="typo"))
        what, where, remedy = str(refused.value).splitlines()
        assert what == f"EPOCHS-EPOCH-NOT-IN-DOUBT: {stands}. Only an epoch in doubt has rows to waive."
        assert where == f"Where: pipeline orders, epoch {epoch}, sink orders"
        assert "`airflow epochs in-doubt orders`" in remedy


def waive(why: str = "the table was dropped", yes: bool = True) -> None:
    cli.waive(_args(epoch=3, sink="orders", why=why, yes=yes))


def take_over(why: str = "moved", yes: bool = True) -> None:
    cli.take_over(_args(dag_id="new", why=why, yes=yes))


COMMANDS = pytest.mark.parametrize("command", [waive, take_over])


def words(folder: Path) -> list[dict[str, object]]:
    """What operators said, as whoever looks into the ledger's folder finds it."""
    found = [*folder.glob("orders/epochs/*/*.waived.json"), *folder.glob("orders/takeovers/*.json")]
    return [json.loads(path.read_text()) for path in found]


@COMMANDS
def test_the_effective_user_and_the_host_are_recorded_and_the_name_in_the_environment_is_only_a_claim(
    command: Callable[[], None], in_doubt: MemoryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("SUDO_USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("LOGNAME", "USER"):
        monkeypatch.setenv(variable, "somebody-else")
    command()
    [record] = words(tmp_path)
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert (record["who"], record["host"], record["login"]) == (user, socket.gethostname(), "somebody-else")


@COMMANDS
@pytest.mark.parametrize(("sudo", "login"), [("alice", "alice"), (None, "")])
def test_whoever_became_another_user_by_sudo_is_named_too(
    sudo: str | None,
    login: str,
    command: Callable[[], None],
    in_doubt: MemoryWorld,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGNAME", pwd.getpwuid(os.geteuid()).pw_name)
    monkeypatch.delenv("SUDO_USER", raising=False)
    if sudo:
        monkeypatch.setenv("SUDO_USER", sudo)
    command()
    assert [record["login"] for record in words(tmp_path)] == [login]


@COMMANDS
def test_a_user_without_a_name_is_recorded_by_number_and_a_claim_of_any_bytes_is_taken(
    command: Callable[[], None], in_doubt: MemoryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 3_999_999_999)
    monkeypatch.setenv("SUDO_USER", os.fsdecode(b"al\xffice"))
    command()
    assert [(record["who"], record["login"]) for record in words(tmp_path)] == [("3999999999", r"al\udcffice")]


@COMMANDS
@pytest.mark.parametrize("why", ["", " \t\n"])
def test_an_empty_reason_is_refused(
    command: Callable[[str], None], why: str, in_doubt: MemoryWorld, tmp_path: Path
) -> None:
    with pytest.raises(
        SystemExit, match=r"\(--why\) is empty.*\nWhere: pipeline orders\nWhat to do: Write after --why"
    ):
        command(why)
    assert words(tmp_path) == []


@COMMANDS
def test_a_reason_that_fills_a_screen_is_refused_with_how_long_it_may_be(
    command: Callable[[str], None], in_doubt: MemoryWorld, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as refused:
        command("é" * 1001)
    told = str(refused.value)
    assert "EPOCHS-REASON-TOO-LONG: The reason (--why) has 1001 characters, and may have 1000." in told
    assert "What to do: Write a shorter reason." in told and words(tmp_path) == []
    command(f" {'é' * 1000}\n")
    assert [record["why"] for record in words(tmp_path)] == ["é" * 1000]


@COMMANDS
def test_a_reason_of_any_bytes_is_taken_and_shown_without_what_would_move_the_cursor(
    command: Callable[[str], None], in_doubt: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(os.fsdecode(b"gone\xff") + "\x1b[2J")
    assert [record["why"] for record in words(tmp_path)] == ["gone\\udcff\x1b[2J"]
    assert r"because: gone\udcff\x1b[2J" in capsys.readouterr().out


@COMMANDS
@pytest.mark.parametrize("closed", [False, True], ids=["a pipe", "nothing"])
def test_without_a_terminal_and_without_yes_nothing_is_changed_and_the_error_says_how_to_go_on(
    command: Callable[..., None],
    closed: bool,
    in_doubt: MemoryWorld,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if closed:
        monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(SystemExit, match=r"no terminal to ask at.*\nWhere: pipeline orders\nWhat to do: .*add --yes"):
        command(yes=False)
    assert words(tmp_path) == []
    printed = capsys.readouterr().out
    assert "Will be recorded: " in printed and "Recorded" not in printed, "nothing is on record yet"


@COMMANDS
@pytest.mark.parametrize("answer", ["n\n", "what?\nno\n", "\x04"], ids=["no", "no at last", "Ctrl-D"])
def test_at_a_terminal_nothing_is_changed_unless_the_answer_is_yes(
    command: Callable[..., None], answer: str, in_doubt: MemoryWorld, tmp_path: Path
) -> None:
    with terminal(answer), pytest.raises(SystemExit, match="The answer was no"):
        command(yes=False)
    assert words(tmp_path) == []


def test_before_it_is_confirmed_a_waiver_says_which_rows_are_lost(in_doubt: MemoryWorld, tmp_path: Path) -> None:
    with terminal("y\n") as screen:
        waive(yes=False)
    question, _, after = screen.text.partition("Proceed? [y/n]")
    assert "Epoch 3 of pipeline orders will be complete without sink orders." in question
    assert "Rows that sink orders loses for good: 1, staged at" in question
    assert "because: the table was dropped" in question
    assert "will be completed without sink orders" in after
    assert [record["why"] for record in words(tmp_path)] == ["the table was dropped"]


def test_before_it_is_confirmed_a_takeover_says_whose_the_pipeline_is_and_what_it_has_under_way(
    in_doubt: MemoryWorld, tmp_path: Path
) -> None:
    with terminal("y\n") as screen:
        take_over(yes=False)
    question, _, after = screen.text.partition("Proceed? [y/n]")
    assert "Pipeline orders will go from DAG dag to DAG new." in question
    assert "Epoch 3 is in doubt: waits for orders" in question
    assert "now belongs to DAG new" in after
    assert [record["dag_id"] for record in words(tmp_path)] == ["new"]


def test_a_promise_that_is_kept_while_the_question_stands_is_not_waived(
    in_doubt: MemoryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = memory_coordinator(in_doubt, memory_pipeline(in_doubt), store=LocalStore(tmp_path))

    def meanwhile(question: str) -> bool:
        coordinator.commit(Run("dag", "r3"), "orders")
        coordinator.complete(Run("dag", "r3"))
        return True

    monkeypatch.setattr(asking, "ask_yesno", meanwhile)
    with terminal(""), pytest.raises(SystemExit, match="The epoch is complete"):
        waive(yes=False)
    assert words(tmp_path) == []


def test_a_pipeline_that_is_handed_over_while_the_question_stands_is_left_to_its_new_owner(
    in_doubt: MemoryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(LocalStore(tmp_path), "orders")

    def meanwhile(question: str) -> bool:
        ledger.take_over("third", who="them", why="x", at="now", writer="w")
        return True

    monkeypatch.setattr(asking, "ask_yesno", meanwhile)
    with terminal(""), pytest.raises(SystemExit, match="Somebody handed the pipeline to another DAG"):
        take_over(yes=False)
    assert [record["dag_id"] for record in words(tmp_path)] == ["third"]


def test_airflow_has_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    [group] = cli.get_cli_commands()
    assert isinstance(group, GroupCommand)
    names = [command.name for command in group.subcommands]
    assert names == [
        *("pipelines", "lag", "list", "show", "in-doubt", "state", "history", "find", "verify", "export"),
        *("dry-run", "preview", "check"),
        *("takeover", "waive", "abort", "pause", "unpause", "retry", "sign", "rebuild", "acknowledge-code"),
        *("skip", "reset-source", "rewind", "replan", "adopt-sink"),
        *("savepoint", "savepoints", "describe-savepoint", "dispose-savepoint"),
        *("adopt-checkpoint", "adopt-group", "export-checkpoint", "export-group", "kafka-credentials"),
    ]


@pytest.mark.parametrize("command", [cli.list_epochs, cli.pause, cli.take_over, orders.replan])
def test_a_ledger_that_has_vanished_is_told_from_a_misspelled_pipeline(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: asking.CommandFunction
) -> None:
    away = tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}-away"))
    with pytest.raises(SystemExit, match="2"):
        command(_args(why="so", dag_id="new_dag"))
    cause, remedy = capsys.readouterr().err.splitlines()
    assert cause.endswith(f"names the folder {tmp_path}, which does not exist on this machine.")
    assert cause.startswith("EPOCHS-PIPELINE-UNKNOWN: The ledger of connection epochs_default has no pipeline 'orders'")
    assert remedy.endswith("correct `ledger_root`, mount its disk, or restore the ledger from a backup.")
    assert not tmp_path.exists()
    away.rename(tmp_path)  # as the text says
    cli.list_epochs(_args())
    assert [row["epoch"] for row in json.loads(capsys.readouterr().out)] == [3, 2, 1]


def test_a_list_of_pipelines_says_at_which_connections_nothing_is_stored(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    initialised()
    root = tmp_path.with_name(f"{tmp_path.name}-new")
    for name, at in (("NEW", str(root)), ("MEMORY", "memory://")):
        other = {"conn_type": "epochs", "extra": {"ledger_root": at}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(other))
    looking.list_pipelines(_args(ledger_conn_id=None))
    printed = capsys.readouterr()
    assert [row["pipeline"] for row in json.loads(printed.out)] == ["orders"]
    memory, first, new, second = printed.err.splitlines()
    assert memory.endswith("connection 'memory' names a store, and nothing is stored there.")
    assert new.endswith(f"connection 'new' names the folder {root}, which does not exist on this machine.")
    assert first == second and first.startswith("What to do: Start the first run of a pipeline")
    fresh = MemoryWorld()
    fresh.produce("orders", 0, ["row"])
    run_epoch(memory_coordinator(fresh, memory_pipeline(fresh, name="fresh"), store=LocalStore(root)), Run("d", "r"))
    looking.list_pipelines(_args(ledger_conn_id="new"))
    printed = capsys.readouterr()
    assert [row["pipeline"] for row in json.loads(printed.out)] == ["fresh"] and printed.err == ""


def test_a_ledger_without_the_key_that_it_needs_is_an_error_of_the_command_and_not_of_a_task(
    world: MemoryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(monkeypatch, tmp_path, require_signed=True)
    with pytest.raises(SystemExit, match="EPOCHS-SIGNING-PASSWORD-MISSING") as ended:
        cli.list_epochs(_args())
    assert str(ended.value.code).endswith("Then run the command again.")


@pytest.mark.parametrize("command", ["list_epochs", "show_epoch", "show_in_doubt", "waive"])
def test_an_unknown_pipeline_or_connection_ends_with_what_to_do_and_exit_code_2(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    more = {"epoch": 3, "sink": "orders", "why": "so"}
    with pytest.raises(SystemExit, match="2"):
        getattr(cli, command)(_args(pipeline="orderz", **more))
    cause, remedy = capsys.readouterr().err.splitlines()
    assert cause.endswith("The ledger of connection epochs_default has no pipeline 'orderz'. It has: orders.")
    assert remedy.startswith("What to do: ") and remedy.endswith("--ledger-conn-id.")
    with pytest.raises(SystemExit, match="2"):
        getattr(cli, command)(_args(ledger_conn_id="nowhere", **more))
    cause, remedy = capsys.readouterr().err.splitlines()
    assert cause.startswith("EPOCHS-CONNECTION-MISSING: Airflow has no connection 'nowhere', or its secrets backend ")
    assert "AIRFLOW_CONN_NOWHERE" in remedy and "let Airflow retry" not in remedy and "clear" not in remedy


@pytest.mark.proof
def test_pipelines_lists_every_pipeline_of_every_connection_with_real_types(
    in_doubt: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    initialised()
    world, root = MemoryWorld(), tmp_path / "more"
    world.produce("orders", 0, ["row"])
    run_epoch(
        memory_coordinator(world, memory_pipeline(world, name="users"), store=LocalStore(tmp_path)), Run("d", "r")
    )
    EpochsHook().ledger("connection-test").probe()  # leaves a folder that is no pipeline
    root.mkdir()
    world = MemoryWorld()
    memory_coordinator(world, memory_pipeline(world, name="fresh"), store=LocalStore(root)).task.ledger.register(
        "dag", at="now", writer="w"
    )
    other = {"conn_type": "epochs", "extra": {"ledger_root": str(root)}}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(other))
    looking.list_pipelines(_args(ledger_conn_id=None))
    rows = json.loads(capsys.readouterr().out)
    told = {row["pipeline"]: (row["state"], row["epoch"], row["rows"], row["waits_for"], row["ledger"]) for row in rows}
    assert told == {
        "orders": ("in doubt", 2, 2, ["orders"], "epochs_default"),
        "users": ("idle", 1, 1, [], "epochs_default"),
        "fresh": ("new", None, None, [], "other"),
    }
    looking.list_pipelines(_args(ledger_conn_id="other", output="table"))
    assert "fresh" in capsys.readouterr().out


def test_pipelines_rounds_the_seconds_that_the_steps_of_an_epoch_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, tmp_path)
    world = MemoryWorld()
    world.produce("orders", 0, ["row"])
    coordinator, run = memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path)), Run("d", "r")
    coordinator.open(run)
    coordinator.vote(run, coordinator.stage(run).stage)
    coordinator.commit(run, "orders")
    coordinator.complete(run, {"seconds": {"open": 0.1, "stage": 0.2}})
    looking.list_pipelines(_args(ledger_conn_id="epochs_default"))
    (row,) = json.loads(capsys.readouterr().out)
    assert row["seconds"] == 0.3


def test_a_pipeline_that_no_dag_has_ends_a_command_that_needs_its_dag_with_exit_code_2(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(definitions, "_bags", lambda: iter(()))
    with pytest.raises(SystemExit, match="2"):
        show_verification(_args(pipeline="orderz", epochs=1, dag_id=None, ledger_conn_id=None))
    assert "No DAG of this installation has a pipeline 'orderz'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "extra", "code"),
    [
        ("pipelines", {"ledger_root": "relative"}, "EPOCHS-LEDGER-ROOT-UNUSABLE"),
        ("find", {"ledger_root": "relative"}, "EPOCHS-LEDGER-ROOT-UNUSABLE"),
        ("pipelines", "[1,2]", "EPOCHS-STORAGE-OPTIONS-UNREADABLE"),
        ("find", "no json", "EPOCHS-STORAGE-OPTIONS-UNREADABLE"),
    ],
)
def test_a_connection_that_cannot_be_read_does_not_hide_the_others(
    in_doubt: MemoryWorld,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    extra: object,
    code: str,
) -> None:
    initialised()
    monkeypatch.setenv("AIRFLOW_CONN_A_BROKEN_ONE", json.dumps({"conn_type": "epochs", "extra": extra}))
    unasked = dict.fromkeys(("run_id", "dag_id", "table", "version", "row_file"))
    record = _args(ledger_conn_id=None, topic="orders", partition=0, offset=0, **unasked)
    with pytest.raises(SystemExit, match=code) as ended:
        {"pipelines": looking.list_pipelines, "find": finding.find}[command](record)
    assert isinstance(ended.value.code, str), "Python prints the text, and exits with 1"
    assert [row["pipeline"] for row in json.loads(capsys.readouterr().out)] == ["orders"]
    told = ended.value.code
    assert f"The ledger of connection a_broken_one was left out.\n{code}" in told
    assert "run the command again" in told and "clear the failed task" not in told
    record.ledger_conn_id = "epochs_default"  # as the text says
    {"pipelines": looking.list_pipelines, "find": finding.find}[command](record)
    assert [row["pipeline"] for row in json.loads(capsys.readouterr().out)] == ["orders"]


@pytest.mark.parametrize(
    ("question", "nothing"),
    [
        ({"topic": "orders", "partition": 0, "offset": 99}, "No complete epoch of any pipeline of the other ledgers"),
        ({"run_id": "r99"}, "No pipeline of the other ledgers has an epoch of run r99"),
    ],
    ids=["a record", "a run"],
)
def test_what_no_readable_ledger_has_is_not_found_and_the_ledger_that_was_left_out_is_named(
    in_doubt: MemoryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: JsonDict, nothing: str
) -> None:
    initialised()
    (tmp_path / "afile").touch()
    broken = {"conn_type": "epochs", "extra": {"ledger_root": f"{tmp_path}/afile"}}
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER_FILE", json.dumps(broken))
    unasked = dict.fromkeys(("run_id", "dag_id", "topic", "partition", "offset", "table", "version", "row_file"))
    with pytest.raises(SystemExit) as ended:
        finding.find(_args(**{**unasked, **question, "ledger_conn_id": None}))
    told = str(ended.value.code)
    assert nothing in told
    assert "The ledger of connection ledger_file was left out." in told and "afile is not a folder" in told
    assert "`--ledger-conn-id`" in told and "Airflow retry" not in told
    with pytest.raises(SystemExit) as ended:
        finding.find(_args(**{**unasked, **question, "ledger_conn_id": "epochs_default"}))
    assert nothing.replace(" of the other ledgers", "") in str(ended.value.code)
    assert "ledger_file" not in str(ended.value.code)


def test_show_without_a_number_shows_the_newest_epoch_and_the_attempts_before_it(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path))
    coordinator.stage(Run("dag", "r3"))
    coordinator.abort(Run("dag", "r3"), "somebody wants it")
    run_epoch(memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path)), Run("dag", "r4"))
    cli.show_epoch(_args(epoch=None))
    shown = json.loads(capsys.readouterr().out)
    assert (shown["number"], shown["state"]) == (3, "complete")
    assert [(each["number"], each["decision"]["decision"]) for each in shown["attempts"]] == [
        (1, "GLOBAL_ABORT"),
        (2, "GLOBAL_COMMIT"),
    ]
    assert shown["attempts"][0]["decision"]["reason"] == "somebody wants it"
    assert [len(each["tries"]) for each in shown["attempts"]] == [1, 1]


@pytest.mark.proof
def test_abort_tells_what_it_aborts_and_the_next_run_takes_the_same_input(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.abort(_args(why="it hangs"))
    told = capsys.readouterr().out
    assert "Attempt 1 of epoch 3 of pipeline orders will be aborted (orders/3/1/" in told
    assert "the same 1 offsets again" in told and "because: it hangs" in told
    run_epoch(memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path)), Run("dag", "r4"))
    assert world.table("orders").values() == ["row"] * 4
    with pytest.raises(SystemExit, match=r"EPOCHS-ATTEMPT-NOT-OPEN(.|\n)*What to do: Do nothing if"):
        cli.abort(_args(why="again"))


def test_pause_lets_runs_be_skipped_until_unpause_and_says_nothing_to_do_the_second_time(
    world: MemoryWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path))
    run_epoch(coordinator, Run("dag", "r3"))
    world.produce("orders", 0, ["row"])
    cli.pause(_args(why="the lake moves"))
    told = capsys.readouterr().out
    assert "Pipeline orders will take no new epoch" in told and "airflow epochs unpause orders --why" in told
    cli.pause(_args(why="again"))
    assert "has paused the pipeline" in capsys.readouterr().out
    with pytest.raises(NoNewData, match="the lake moves"):
        coordinator.open(Run("dag", "r4"))
    looking.list_pipelines(_args(ledger_conn_id="epochs_default"))
    [row] = json.loads(capsys.readouterr().out)
    assert row["state"] == "paused" and "the lake moves" in row["paused"]
    history.show_history(_args(limit=10))
    assert [each["command"] for each in json.loads(capsys.readouterr().out)] == ["pause"]
    cli.unpause(_args(why="it has moved"))
    run_epoch(coordinator, Run("dag", "r4"))
    assert Ledger(LocalStore(tmp_path), "orders").newest_complete() == 4


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


@pytest.fixture
def with_key(world: MemoryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledger of ``world``, which is not signed, behind a connection that has a key by now."""
    connect(monkeypatch, tmp_path, "a key that is long enough")
    return tmp_path / "orders"


def test_sign_lists_what_nobody_signed_and_lets_it_count(with_key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    EpochsHook().ledger("orders").register("dag", at="now", writer="w")
    late = with_key / "epochs" / f"{3:020}" / f"{1:010}.try.{'a' * 32}.json"
    record = TryRecord(txn_id=EpochsHook().ledger("orders").view(3).opened.txn_id, **TRY)
    late.write_bytes(encode(record))
    with pytest.raises(Corrupt, match="not signed") as corrupt:
        EpochsHook().ledger("orders").tries(3)
    assert "airflow epochs sign orders --why" in corrupt.value.remedy
    cli.sign(_args(why="it was ours"))
    printed = capsys.readouterr().out
    assert f"  epochs/{3:020}/{late.name}" in printed and "is signed from epoch 3 on" in printed
    assert EpochsHook().ledger("orders").tries(3) == [record]
    signing = json.loads((with_key / "signing" / f"{2:010}.json").read_bytes())
    assert (signing["who"], signing["why"]) == (pwd.getpwuid(os.geteuid()).pw_name, "it was ours")
    cli.sign(_args(why="once more"))
    assert "Nothing to do" in capsys.readouterr().out
    assert not (with_key / "signing" / f"{3:010}.json").exists()


@pytest.mark.proof
@pytest.mark.parametrize("rebuilt", [False, True])
@pytest.mark.parametrize("password, required", [("the key that gets lost", False), ("", True)])
def test_sign_lets_the_records_of_a_lost_key_count_or_those_from_before_all_had_to_be_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str, required: bool, rebuilt: bool
) -> None:
    connect(monkeypatch, tmp_path, password)
    world = MemoryWorld()
    world.produce("orders", 0, ["row"])
    coordinator = memory_coordinator(world, memory_pipeline(world))
    coordinator.task.ledger = EpochsHook().ledger("orders")
    run_epoch(coordinator, Run("dag", "r1"))
    newest = coordinator.task.ledger.complete_record(1)
    if rebuilt and newest:
        coordinator.task.ledger.put(rebuilt_to(newest))
    connect(monkeypatch, tmp_path, "the key that is new", require_signed=required)
    with pytest.raises(Corrupt, match="airflow epochs sign orders --why"):
        EpochsHook().ledger("orders").register("dag", at="now", writer="w")
    cli.sign(_args(why="the key is lost"))
    coordinator.task.ledger = EpochsHook().ledger("orders")
    world.produce("orders", 0, ["row"])
    assert run_epoch(coordinator, Run("dag", "r2")).epoch == 2


def test_sign_names_a_pipeline_that_is_not_there(with_key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.sign(_args(pipeline="orderz", why="a test"))
    assert "has no pipeline 'orderz'. It has: orders." in capsys.readouterr().err


def test_sign_asks_first_and_changes_nothing_without_a_yes(with_key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    EpochsHook().ledger("orders").register("dag", at="now", writer="w")
    (with_key / "takeovers").mkdir()
    (with_key / "takeovers" / f"{1:010}.json").write_bytes(
        encode(TakeoverRecord(dag_id="his", who="somebody", why="x", at="now", writer="w"))
    )
    before = sorted(with_key.rglob("*"))
    with pytest.raises(SystemExit, match="Nothing was changed"):
        cli.sign(_args(why="a test", yes=False))
    assert sorted(with_key.rglob("*")) == before


def test_sign_without_a_key_says_how_to_get_one(world: MemoryWorld) -> None:
    with pytest.raises(SystemExit, match=r"no key to sign with(.|\n)*token_urlsafe"):
        cli.sign(_args(why="a test"))
