"""What remedies say where tasks stand behind, where the pipeline is one task, and where no task has failed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException
from fastapi import Request

from airflow_epochs import DeltaSink, codes
from airflow_epochs.errors import Code, EpochError, NotApplied, Refused, filled
from airflow_epochs.ledger.overview import overview
from airflow_epochs.model import Vote, VoteKind
from airflow_epochs.operators.wording import in_one_task, of_command, with_downstream, without_task
from airflow_epochs.page.render import error_page
from airflow_epochs.protocol import State
from tests.support.faults_world import DiskWorld
from tests.support.one_task import run_in_one_task

PACKAGE = Path(codes.__file__).parent
CLEARS = re.compile(r"\bclear\b[^.:;]*\b(?:tasks?|`\w+`)", re.IGNORECASE)
HEADLESS = re.compile(r"(?:Of|(?:That|Those|This|These) of|That|Those)\b(?!,)|None of (?:which|them|these|it)\b")
"""How a docstring begins that leaves out its noun: "Of a note." for "The length of a note."."""
LOGS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[-#0 +]*[\d*.]*[a-zA-Z]")
OTHERS = re.compile(r"\b(?:open|stage|vote|commit|complete|abort|failed) (?:tasks?\b|`)|downstream|tasks of")


def texts() -> Iterator[str]:
    """Every text of tasks, as it is told: no commands, no docstrings, and {} for what a text is filled with."""
    for path in {*PACKAGE.rglob("*.py")} - {*PACKAGE.glob("commands/*.py")}:
        tree = ast.parse(path.read_text())
        skipped = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        skipped |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
                yield node.value


def docstrings() -> Iterator[tuple[str, str]]:
    """Every docstring of the package, of attributes and constants too, with its file and line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node.value.value.strip()


def log_formats() -> Iterator[tuple[str, str]]:
    """The format of every log call of the package that is written as a text, with its file and line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOGS:
                of_log = node.args[1:] if node.func.attr == "log" else node.args
                if of_log and isinstance(of_log[0], ast.Constant) and isinstance(of_log[0].value, str):
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", of_log[0].value


@pytest.mark.proof
def test_no_docstring_begins_without_its_noun() -> None:
    found = list(docstrings())
    assert len(found) > 3000
    assert {where: text.splitlines()[0] for where, text in found if HEADLESS.match(text)} == {}


@pytest.mark.proof
def test_every_log_line_has_words_that_one_can_search_for() -> None:
    found = list(log_formats())
    assert len(found) > 100
    assert {where: text for where, text in found if not re.search("[a-z]{3}", PLACEHOLDER.sub("", text))} == {}


@pytest.mark.proof
def test_no_text_that_says_to_clear_a_task_names_one_that_a_run_of_one_task_lacks() -> None:
    told = {match[0] for text in texts() for match in CLEARS.finditer(text)}
    assert len(told) > 10
    changed = {text: in_one_task(text) for text in told}
    wrong = {text: says for text, says in changed.items() if OTHERS.search(says)}
    assert wrong == {}


@pytest.mark.proof
def test_every_text_that_says_to_clear_a_task_says_to_clear_what_is_behind_it_too() -> None:
    told = {match[0] for text in texts() for match in re.finditer(r"\bclear the [^.:;,]*", text, re.IGNORECASE)}
    of_tasks = {text: with_downstream(text) for text in told if CLEARS.search(text)}
    assert len(of_tasks) > 10
    wrong = {text: says for text, says in of_tasks.items() if not re.search("with (its|their|all) .*tasks", says)}
    assert wrong == {}


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (
            "Correct it. Then clear the failed task.",
            "Correct it. Then clear the failed task with its downstream tasks.",
        ),
        ("Clear the task: it goes on.", "Clear the task with its downstream tasks: it goes on."),
        ("Clear the task `open`, or wait.", "Clear the task `open` with its downstream tasks, or wait."),
        ("Clear the open task with its downstream tasks.", "Clear the open task with its downstream tasks."),
        ("Clear the air, and the tasks.", "Clear the air, and the tasks."),
    ],
)
def test_a_remedy_says_to_clear_what_is_behind_the_task(said: str, says: str) -> None:
    assert with_downstream(said) == says == with_downstream(says)


def test_no_line_that_a_run_of_one_task_logs_of_an_abort_names_a_task_that_it_lacks(
    no_epoch: DiskWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    against = Refused("column x is a STRING.", code=codes.DELTA_ROWS_UNFIT)
    assert "clear the stage task" in against.reason
    monkeypatch.setattr(DeltaSink, "vote", lambda *_: Vote(vote=VoteKind.VOTE_ABORT, reason=against.reason))
    sinks = [DeltaSink("orders", str(no_epoch.table("orders")))]
    with caplog.at_level("INFO"), pytest.raises(AirflowFailException) as failed:
        run_in_one_task(no_epoch.run_of(1), sinks, no_epoch.coordinator)
    logged = "\n".join(record.getMessage() for record in caplog.records)
    causes = "; ".join(f"{sink}: {against.cause}" for sink in ("orders", "audit"))
    assert re.search(rf"GLOBAL_ABORT orders/1/1/\w+ \({re.escape(causes)}\)$", logged, re.M)
    assert not OTHERS.search(logged) and not OTHERS.search(str(failed.value))
    decision = no_epoch.ledger.decision_record(1, 1)
    assert decision and against.reason in decision.reason, "the other layout may show it"
    assert no_epoch.ledger.view(1).state is State.ABORTED
    [row] = overview(["orders"], lambda _: no_epoch.ledger)
    assert row.problem == causes


def test_a_commit_that_fails_in_one_task_is_logged_with_the_remedy_for_one_task(
    no_epoch: DiskWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise NotApplied("It is full.", remedy="Clear the commit task when it is empty.")

    monkeypatch.setattr(DeltaSink, "commit", fails)
    sinks = [DeltaSink("orders", str(no_epoch.table("orders")))]
    with pytest.raises(NotApplied):
        run_in_one_task(no_epoch.run_of(1), sinks, no_epoch.coordinator)
    logged = [record.getMessage() for record in caplog.records if "It is full." in record.getMessage()]
    assert logged and all("Clear the task when" in line for line in logged)


@pytest.mark.proof
def test_the_place_that_an_error_knows_is_filled_into_each_command_that_a_text_names() -> None:
    place = {"PIPELINE": "orders", "EPOCH": 3, "SINK": "lake"}
    filled_texts = {filled(text, **place) for text in texts() if "airflow epochs" in text}
    assert len(filled_texts) > 100
    assert {text for text in filled_texts if re.search(r"\b(PIPELINE|EPOCH|SINK)\b", text)} == set()


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("Correct the sink. Then clear the stage task.", "Correct the sink. Then clear the task."),
        ("Clear the open task with its downstream tasks: the run goes on.", "Clear the task: the run goes on."),
        (
            "Then clear the failed tasks of the run, or let the next run take the same offsets.",  # of an older record
            "Then clear the task, or let the next run take the same offsets.",
        ),
        (
            codes.GLOBAL_ABORT.remedy.partition(". ")[2],
            "Then clear the task, or let the next run take the same offsets.",
        ),
        ("Clear the task `open` with its downstream tasks, or start a new run.", "Clear the task, or start a new run."),
        ("Clear it, then clear the air.", "Clear it, then clear the air."),
    ],
)
def test_a_remedy_says_to_clear_the_one_task(said: str, says: str) -> None:
    assert in_one_task(said) == says


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("Correct {}. Then clear the failed task.", "Correct {}. Then run the command again."),
        (codes.STATE_KEYS.remedy, f"{codes.STATE_KEYS.remedy.partition('. ')[0]}. Then run the command again."),
        ("Clear the open task with its downstream tasks: it goes on.", "Run the command again: it goes on."),
        ("Let Airflow retry, or clear the failed task: it looks first.", "Run the command again: it looks first."),
        ("Let Airflow retry the task, or clear the failed task later: so.", "Run the command again later: so."),
        ("Wait. If it is right, let Airflow retry.", "Wait. If it is right, run the command again."),
        (
            f"Correct it. {codes.SINK_FAULTY.remedy.partition('raises. ')[2]}",
            "Correct it. Then run the command again.",
        ),
        ("Choose another epoch.", "Choose another epoch."),
    ],
)
def test_a_remedy_where_no_task_has_failed_says_to_run_the_command_again(said: str, says: str) -> None:
    assert without_task(said) == says


OF_TASKS = re.compile(r"\bclear (?:the|its?|this)\b|Airflow retr|tries again", re.IGNORECASE)
OF_RUNS = (
    *(codes.RUN_AT_WORK, codes.NOTHING_TO_ABORT, codes.RESTORE_LACKS_SINK),
    *(codes.INTERVAL_MISSED, codes.INTERVAL_HELD, codes.LOOP),
)
"""Their remedies are about runs, whose tasks may have failed; or only tasks raise them."""


@pytest.mark.parametrize("code", [code for code in codes.BY_NAME.values() if code not in OF_RUNS])
def test_no_remedy_of_a_command_says_to_clear_a_task_or_to_wait_for_one(code: Code) -> None:
    told = of_command(EpochError("It failed.", code=code))
    assert not OF_TASKS.search(told.remedy)


@pytest.mark.proof
def test_no_text_of_an_error_says_to_clear_a_task_where_none_has_failed() -> None:
    told = {match[0] for text in texts() for match in CLEARS.finditer(without_task(text))}
    assert [text for text in told if OTHERS.search(text)] == []


def test_an_error_on_the_page_says_to_try_again() -> None:
    asked = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "root_path": "/epochs"})
    for code in (codes.SIGNING_PASSWORD_MISSING, codes.LEDGER_UNREADABLE):
        told = bytes(error_page(asked, EpochError("It failed.", code=code)).body).decode()
        assert "Then try again" in told and not OF_TASKS.search(told)


def test_the_remedy_of_an_error_of_a_command_alone_stays_as_it_is() -> None:
    """To finish an epoch in doubt, it is no help to abort it again."""
    told = of_command(Refused("The epoch is in doubt.", code=codes.ATTEMPT_NOT_OPEN))
    assert told.remedy == codes.ATTEMPT_NOT_OPEN.remedy and "airflow epochs retry" in told.remedy
