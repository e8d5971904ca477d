"""Typing ``airflow epochs rebuild`` as an error says, for a pipeline that no DAG file defines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from airflow_epochs.config import Pipeline
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import EpochError
from airflow_epochs.model import Ranges
from airflow_epochs.operators import definitions
from tests.support.remedies import typed


@dataclass(frozen=True)
class Found:
    """What ``definitions.find`` makes of a DAG. ``task`` returns a new task of its pipeline each time."""

    task: Callable[[], TaskTry]

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline as the DAG defines it."""
        return self.task().pipeline


def offsets_file(folder: Path, ranges: Ranges) -> str:
    """A file for ``--offsets``: where these ranges end."""
    file = folder / "FILE"
    file.write_text(json.dumps({topic: {str(r.partition): r.end for r in of} for topic, of in ranges.items()}))
    return str(file)


def typed_rebuild(task: Callable[[], TaskTry], error: EpochError, *more: str, ledger_root: Path) -> str:
    """The command in the error's remedy, and ``more`` words, at a terminal that says yes; what the screen shows."""
    with patch.object(definitions, "find", lambda *asked: Found(task)):
        return typed(ledger_root, error, "rebuild", *more)
