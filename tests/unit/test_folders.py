"""Which values make names of folders that a disk does not take."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_epochs.spark.driver.delta import folders


@pytest.mark.parametrize(
    ("value", "escaped"),
    [("x" * 253, "x" * 253), ("é" * 126, "é" * 126), ("a/" * 63, "a%2F" * 63), ("\t" + "x" * 250, "%09" + "x" * 250)],
    ids=["plain", "of two bytes", "escaped", "a control character"],
)
def test_a_value_is_unfit_where_a_disk_refuses_the_folder_that_spark_would_make(
    tmp_path: Path, value: str, escaped: str
) -> None:
    assert not folders.is_unfit("p", value)
    (tmp_path / f"p={escaped}").mkdir()
    assert folders.is_unfit("p", f"{value}é")
    with pytest.raises(OSError, match="File name too long"):
        (tmp_path / f"p={escaped}é").mkdir()


@pytest.mark.parametrize("value", ["\0", "a\0", "a\0b"], ids=repr)
def test_a_value_with_a_nul_character_is_unfit(value: str) -> None:
    assert folders.is_unfit("p", value)


def test_the_name_of_the_column_takes_room_too() -> None:
    assert not folders.is_unfit("a:b", "x" * 249)
    assert folders.is_unfit("a:b", "x" * 250)
