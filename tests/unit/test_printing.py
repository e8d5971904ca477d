"""What commands print: the answer alone on stdout, and text as it stands."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import yaml

from airflow_epochs.commands.asking import tells_refusals
from airflow_epochs.commands.dry_run import show_dry_run
from airflow_epochs.commands.preview import show_preview
from airflow_epochs.commands.printing import print_document, print_rows
from airflow_epochs.commands.verify import show_verification
from airflow_epochs.model import OffsetRange
from airflow_epochs.operators import definitions
from tests.support.faults_world import DiskWorld
from tests.support.rebuilt import Found

NOISE = ("from a DAG file", "from Airflow's log", "from a child process")


@contextmanager
def real_stdout(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """Stdout as a process has it, with its file descriptor; and a log that holds on to it, as Airflow's does."""
    with open(1, "w", closefd=False) as stdout, monkeypatch.context() as context:
        context.setattr(sys, "stdout", stdout)
        log = logging.Logger("of Airflow")  # without a parent, whose handlers pytest has
        log.addHandler(logging.StreamHandler(stdout))
        yield log


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
@pytest.mark.parametrize("command", [show_verification, show_dry_run, show_preview])
def test_stdout_has_the_document_alone_whatever_is_printed_while_dag_files_are_read(
    seven_unread: DiskWorld,
    command: Callable[[Namespace], None],
    output: str,
    read: Callable[[str], object],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = {"epochs": 10, "epoch": 1, "records": 10, "sample": 1, "transform": None}
    with real_stdout(monkeypatch) as log:

        def find(*_: object, **__: object) -> Found:
            print(NOISE[0])
            log.warning(NOISE[1])
            subprocess.run(["echo", NOISE[2]], check=True)
            return Found(lambda: seven_unread.coordinator().task)

        monkeypatch.setattr(definitions, "find", find)
        command(Namespace(pipeline="orders", dag_id=None, ledger_conn_id=None, output=output, **usual))
    out, err = capfd.readouterr()
    assert read(out)
    assert all(line in err for line in NOISE)


@pytest.mark.parametrize("text", ["disk [/lake] full", "columns [id, amount] are new", "a [b] c", ":warning:", "\\"])
@pytest.mark.parametrize("output", ["table", "plain", "json", "yaml"])
def test_text_is_printed_as_it_stands(text: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"why": text}], output)
    told = capsys.readouterr().out
    assert (json.dumps(text) if output == "json" else text) in told


def test_yaml_says_what_json_says(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"range": OffsetRange(0, 1, 3), "topics": ("a", "b"), "text": "“é”: [x]", "none": None, "rate": 0.5}
    print_document(value, "json")
    found = json.loads(capsys.readouterr().out)
    print_document(value, "yaml")
    assert yaml.safe_load(capsys.readouterr().out) == found == {**value, "range": [0, 1, 3], "topics": ["a", "b"]}


def test_clients_log_what_fails_while_a_command_runs_and_nothing_of_their_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tells_refusals
    def command(args: Namespace) -> None:
        logging.getLogger("kafka.net.connection").info("connected")
        logging.getLogger("kafka.net.connection").warning("refused")

    caplog.set_level(logging.NOTSET, "kafka")  # a test of an operator may have set it
    caplog.set_level(logging.INFO)
    command(Namespace())
    assert caplog.messages == ["refused"]
    assert logging.getLogger("kafka").level == logging.NOTSET, "in a task, the operator sets it"


def test_a_command_leaves_the_level_of_a_client_that_somebody_has_set(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kafka")
    tells_refusals(lambda args: logging.getLogger("kafka.net").info("connected"))(Namespace())
    assert caplog.messages == ["connected"]
