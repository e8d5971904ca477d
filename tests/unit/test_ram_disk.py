"""Where tests put their files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.support import ram_disk

GB = 2**30


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(ram_disk, "DISK", tmp_path)
    yield tmp_path


def a_machine(monkeypatch: pytest.MonkeyPatch, disk_gb: int, memory_gb: int, flag: int = 0) -> None:
    disk = SimpleNamespace(f_bavail=disk_gb, f_frsize=GB, f_flag=flag)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=memory_gb * GB))


def test_files_lie_in_memory_where_there_is_room(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    a_machine(monkeypatch, disk_gb=12, memory_gb=20)
    ram_disk.use()
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(place)


@pytest.mark.parametrize(
    ("disk_gb", "memory_gb", "flag"),
    [(0, 20, 0), (12, 10, 0), (12, 20, os.ST_NOEXEC)],
    ids=["the 64 MB of a container", "little memory", "no programs may run there"],
)
def test_files_lie_on_disk_where_there_is_no_room_in_memory(
    monkeypatch: pytest.MonkeyPatch, place: Path, disk_gb: int, memory_gb: int, flag: int
) -> None:
    a_machine(monkeypatch, disk_gb, memory_gb, flag)
    ram_disk.use()
    assert "TMPDIR" not in os.environ and tempfile.gettempdir() != str(place)


def test_files_lie_on_disk_on_a_system_without_a_disk_in_memory(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(ram_disk, "DISK", place / "none")
    ram_disk.use()
    assert "TMPDIR" not in os.environ


def test_a_place_that_the_user_names_counts(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    a_machine(monkeypatch, disk_gb=12, memory_gb=20)
    monkeypatch.setenv("TMPDIR", str(named := place / "named"))
    named.mkdir()
    ram_disk.use()
    assert tempfile.gettempdir() == str(named)
