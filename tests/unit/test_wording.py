"""What remedies say where the pipeline is one task."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_epochs import codes
from airflow_epochs.operators.wording import in_dry_run, in_one_task

PACKAGE = Path(codes.__file__).parent
CLEARS = re.compile(r"\bclear\b[^.:;]*\b(?:tasks?|`\w+`)", re.IGNORECASE)
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


def test_no_text_that_says_to_clear_a_task_names_one_that_a_run_of_one_task_lacks() -> None:
    told = {match[0] for text in texts() for match in CLEARS.finditer(text)}
    assert len(told) > 10
    changed = {text: in_one_task(text) for text in told}
    wrong = {text: says for text, says in changed.items() if OTHERS.search(says)}
    assert wrong == {}


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
        (codes.RECEIPT_MISSING.remedy, "Clear the task."),
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
        ("Choose another epoch.", "Choose another epoch."),
    ],
)
def test_a_remedy_of_a_dry_run_says_to_run_the_command_again(said: str, says: str) -> None:
    assert in_dry_run(said) == says
