"""A state table on S3, read as of its epochs."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.errors import Refused
from airflow_epochs.read import state
from airflow_epochs.storage.files import open_files
from airflow_epochs.storage.options import storage_options
from tests.support.s3_access import connection
from tests.support.state_written import DELETED, WrittenState, at

pytestmark = pytest.mark.proof


def test_a_state_on_s3_is_read_with_storage_options_and_a_lost_file_is_told(s3: Any, tmp_path: Path) -> None:
    options = storage_options(connection(s3))
    written = WrittenState(tmp_path, url=f"s3://{s3.bucket}/{uuid.uuid4().hex}/open", options=options)
    written.epoch(("a", 10, 1), ("b", 10, 1), watermarks=(None, None))
    written.epoch(("a", 50, 2), ("c", 50, 1, DELETED), watermarks=(10, None))
    found = state("p", "open", ledger_root=written.root, storage_options=options)
    assert found.to_arrow().to_pylist() == [{"page": "a", "until": at(50), "n": 2}]
    assert s3.secret not in repr(found)
    files = open_files(written.place, options)
    files.delete(next(path for path in files.sizes("") if path.endswith(".parquet")))
    with pytest.raises(Refused, match="1 of its files are gone"):
        state("p", "open", ledger_root=written.root, storage_options=options)
    with pytest.raises(Refused, match="EPOCHS-STATE-EPOCH-GONE"):
        found.to_arrow()
