"""What the tests saw: which fault fired at which step, and what came of it. The page docs/faults.md is made of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

FOLDER = Path(os.environ.get("EPOCHS_CELLS", Path(__file__).parents[2] / "build" / "cells"))

Outcome = Literal["A", "C", "=", "X"]
"""A: the epoch was aborted and opened again; C: committed by roll-forward; =: no visible change; X: refused loudly."""


def fired(fault: str, step: int, outcome: Outcome) -> None:
    """Record that ``fault`` ("F1" … "F22") was seen to fire at ``step`` (row of the matrix) and what came of it.

    Call it at the end of a test, with what the test measured: a test that fails records nothing.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
    line = json.dumps({"fault": fault, "step": step, "outcome": outcome, "test": test})
    with (FOLDER / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(line + "\n")
