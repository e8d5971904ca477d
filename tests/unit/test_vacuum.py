"""Which Delta tables lie around a place: their VACUUM would delete what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_epochs.storage import vacuum
from airflow_epochs.storage.vacuum import endangers, tables_around


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are looked at: each is a table."""
    folders: list[str] = []

    def look(folder: str, options: object) -> bool:
        folders.append(folder)
        return True

    monkeypatch.setattr(vacuum, "_is_table", look)
    return folders


@pytest.mark.parametrize(
    ("place", "around"),
    [
        ("/lake/bronze/orders", ["/lake/bronze", "/lake", "/"]),
        ("/orders", ["/"]),
        ("/", []),
        ("/lake/_mine/orders", ["/lake/_mine", "/"]),
        ("/lake/../orders", ["/"]),
        ("s3://lake/bronze/orders", ["s3://lake/bronze", "s3://lake"]),
        ("s3://lake/.mine", []),
        ("s3://lake", []),
        ("abfss://lake@account.dfs.core.windows.net/orders", ["abfss://lake@account.dfs.core.windows.net"]),
    ],
)
def test_every_folder_around_a_place_up_to_its_disk_or_bucket_is_looked_at_once(
    asked: list[str], place: str, around: list[str]
) -> None:
    found = list(tables_around(place, {}))
    assert [folder for folder, _ in found] == asked == around
    assert all(endangers(folder, inner) for folder, inner in found)


def test_a_link_on_the_way_leads_to_the_folders_on_both_sides(asked: list[str], tmp_path: Path) -> None:
    (tmp_path / "there" / "deep").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "there" / "deep")
    found = set(tables_around(f"{tmp_path}/here/link/orders", {}))
    assert (f"{tmp_path}/there", f"{tmp_path}/there/deep/orders") in found
    assert (f"{tmp_path}/here", f"{tmp_path}/here/link/orders") in found


def test_a_folder_with_an_empty_log_or_with_a_file_in_its_place_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "_delta_log").touch()
    (tmp_path / "a" / "_delta_log").mkdir()
    assert list(tables_around(f"{tmp_path}/a/b/orders", {})) == []


@pytest.mark.parametrize("place", ["hdfs://lake/bronze/orders", "dbfs:/orders"])
def test_a_store_that_the_provider_does_not_know_says_nothing(place: str) -> None:
    assert list(tables_around(place, {})) == []


def test_a_folder_that_may_not_be_read_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(folder: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(folder))

    (tmp_path / "_delta_log").mkdir()
    monkeypatch.setattr("os.listdir", denied)
    assert list(tables_around(f"{tmp_path}/orders", {})) == []
