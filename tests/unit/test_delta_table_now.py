"""What a Delta source holds of a table's files."""

from __future__ import annotations

import pyarrow as pa

from airflow_epochs.sources.delta.table_now import whole


class _Wide:
    """A table whose statistics cannot be made Python values: who tries fails."""

    def get_add_actions(self, *, flatten: bool) -> pa.RecordBatch:
        broken = pa.array([b"\xff"], pa.binary()).view(pa.string())
        return pa.RecordBatch.from_pydict(
            {"path": ["a%20b"], "size_bytes": [7], "num_records": [3], "min.name": broken}
        )


def test_a_look_at_all_files_leaves_their_statistics_of_columns_out() -> None:
    found = whole(_Wide())
    assert (found.files, found.records, found.size.files) == (("a b",), 3, 1)
