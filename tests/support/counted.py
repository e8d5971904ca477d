"""Counts what a commit asks of the store that its rows were staged in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_epochs.storage.local import LocalFiles

if TYPE_CHECKING:
    import pytest


def log_entries_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The log entries below a local root that are read from now on, one for each time that one is read."""
    found: list[str] = []
    read = LocalFiles.read

    def noted(files: LocalFiles, path: str) -> bytes | None:
        content = read(files, path)
        if "_delta_log/" in path and content is not None:
            found.append(path)
        return content

    monkeypatch.setattr(LocalFiles, "read", noted)
    return found
