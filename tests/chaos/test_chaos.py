"""Three minutes of chaos, as a test; ``make chaos MINUTES=60`` is the same for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_epochs.testing.checkers import Verdict
from tests.chaos.chaos import run
from tests.chaos.verdict import as_markdown

SEED = 7

pytestmark = [pytest.mark.jvm, pytest.mark.chaos, pytest.mark.timeout(2_700)]


def test_three_minutes_of_every_fault_lose_nothing_double_nothing_and_tear_nothing(tmp_path: Path) -> None:
    outcome = run(tmp_path, minutes=3, seed=SEED)
    print(as_markdown(outcome))
    assert outcome.verdict is Verdict.PASS
