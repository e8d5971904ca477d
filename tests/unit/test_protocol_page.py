"""docs/protocol.md shows the tables that the code runs by."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "state_diagram.py"


def test_the_diagrams_on_the_protocol_page_are_those_of_the_code() -> None:
    script = runpy.run_path(str(SCRIPT))
    assert script["main"](["--check"]) == 0, "run python scripts/state_diagram.py"


def test_a_changed_diagram_is_noticed_and_mended() -> None:
    script = runpy.run_path(str(SCRIPT))
    page = script["PAGE"].read_text()
    drifted = page.replace("GLOBAL_COMMIT\n", "GLOBAL_MAYBE\n", 1)
    assert drifted != page and script["updated"](drifted) == page


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="no <!-- states -->"):
        runpy.run_path(str(SCRIPT))["updated"]("# nothing here")
