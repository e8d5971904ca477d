"""Random histories of what others do to a state table: rows added and deleted, OPTIMIZE, RESTORE, VACUUM.

The rows themselves say whether a change must be found: each version of the table is compared with the version that an
epoch has pinned. How a version came about says what must not be taken for a change.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_epochs import codes
from airflow_epochs.delta.table import TableLocation
from airflow_epochs.errors import Corrupt
from airflow_epochs.sinks.delta.state.table_log import require_unchanged

pytestmark = pytest.mark.proof

EXAMPLES = int(os.environ.get("EPOCHS_EXAMPLES", "20"))
PHASES = [Phase.generate, *([Phase.shrink] if os.environ.get("EPOCHS_SHRINK") == "1" else [])]
PINNED = 2
"""The version of the last epoch: three epochs have added three rows each."""


@dataclass
class Table:
    """The real table. ``made_of``: per version, the pinned version or the change that made its rows what they are."""

    path: str
    made_of: list[int] = field(default_factory=list)
    next_id: int = 0
    found: int = 0
    undone: int = 0

    def __post_init__(self) -> None:
        for _ in range(PINNED + 1):
            self.add_rows(0)
        assert self.made_of[-1] == PINNED
        self.pinned_rows = self.rows(PINNED)

    @property
    def version(self) -> int:
        return int(DeltaTable(self.path).version())

    def rows(self, version: int | None = None) -> list[int]:
        found: list[int] = DeltaTable(self.path, version=version).to_pyarrow_table()["id"].to_pylist()
        return sorted(found)

    def came_from(self, origin: int | None = None) -> None:
        """Note the newest versions, if there are new ones. None: their rows are their own."""
        newest = self.version
        new = range(len(self.made_of), newest + 1)
        self.made_of += [newest if origin is None else origin for _ in new]

    # -- what others do -------------------------------------------------------------------------------------------

    def add_rows(self, _: int) -> None:
        ids = list(range(self.next_id, self.next_id + 3))
        self.next_id += 3
        write_deltalake(self.path, pa.table({"id": ids}), mode="append")
        self.came_from()

    def delete_a_row(self, which: int) -> None:
        if rows := self.rows():
            DeltaTable(self.path).delete(f"id = {rows[which % len(rows)]}")
            self.came_from()

    def optimize(self, _: int) -> None:
        DeltaTable(self.path).optimize.compact()
        self.came_from(self.made_of[-1])

    def restore(self, which: int) -> None:
        """To a version since the pinned one, if its files are there."""
        if self.version > PINNED:
            to = PINNED + which % (self.version - PINNED)
            try:
                DeltaTable(self.path).restore(to)
            except DeltaError:
                return
            self.came_from(self.made_of[to])

    def vacuum(self, _: int) -> None:
        DeltaTable(self.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        self.came_from(self.made_of[-1])

    # -- what an epoch sees ---------------------------------------------------------------------------------------

    def error(self) -> Corrupt | None:
        try:
            require_unchanged(TableLocation(self.path, self.path, {}), PINNED, self.version, "begin anew.")
        except Corrupt as error:
            assert error.code is codes.STATE_CHANGED
            return error
        return None

    def judge(self) -> None:
        error = self.error()
        if self.rows() != self.pinned_rows:
            assert error, "rows were changed, and nobody has seen it"
            self.found += 1
            named = re.search(r"restore\((\d+)\)", error.remedy)
            assert named and self.made_of[int(named[1])] == PINNED, "the version that is told has other rows"
        if self.made_of[-1] == PINNED:
            assert error is None, "no row was changed, and the epoch is stopped"

    def obey(self) -> None:
        """What the error says, to the letter: it ends, if the files are there."""
        if (error := self.error()) is None:
            return
        (named,) = re.findall(r"restore\((\d+)\)", error.remedy)
        try:
            DeltaTable(self.path).restore(int(named))
        except DeltaError:
            return
        self.came_from(PINNED)
        assert self.rows() == self.pinned_rows and self.error() is None
        self.undone += 1


DEEDS = [Table.add_rows, Table.delete_a_row, Table.optimize, Table.optimize, Table.restore, Table.restore, Table.vacuum]


def test_others_change_no_row_of_a_state_unseen_and_may_do_all_else_to_its_files() -> None:
    found, undone = 0, 0

    @settings(
        max_examples=EXAMPLES, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    @given(
        st.lists(
            st.tuples(st.sampled_from(range(len(DEEDS) + 1)), st.integers(0, 20)),
            min_size=3,
            max_size=9,
        )
    )
    def histories(deeds: list[tuple[int, int]]) -> None:
        nonlocal found, undone
        with TemporaryDirectory() as folder:
            table = Table(str(Path(folder) / "state"))
            for number, which in deeds:
                if number == len(DEEDS):
                    table.obey()
                else:
                    DEEDS[number](table, which)
                table.judge()
            table.obey()
            found, undone = found + table.found, undone + table.undone

    histories()
    assert found and undone, "the histories were not about changes"
