"""A setting that a transform changes does not hold at Spark's commit: the stage job warns of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_epochs.spark.driver import settings_changed

ZONE, ANSI = "spark.sql.session.timeZone", "spark.sql.ansi.enabled"


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ({ZONE: "UTC"}, {ZONE: "Asia/Tokyo", ANSI: "false"}, f"({ANSI}, {ZONE})"),
        ({ZONE: "UTC"}, {}, f"({ZONE})"),
    ],
)
def test_settings_that_the_transform_changes_are_named_with_where_to_set_them(
    before: dict[str, str], after: dict[str, str], named: str
) -> None:
    (warning,) = settings_changed.warnings(before, after)
    assert named in warning and "Set them in `session_conf` of SparkConnect or in `conf` of SparkSubmit" in warning


def test_only_settings_on_which_values_depend_count_and_only_where_spark_commits() -> None:
    spark = SimpleNamespace(conf=SimpleNamespace(getAll={ZONE: "UTC", "spark.sql.shuffle.partitions": "7"}))
    asked: Any = spark
    assert settings_changed.at_work(asked, {"orders": {"committer": "spark"}}) == {ZONE: "UTC"}
    unasked: Any = None
    assert settings_changed.at_work(unasked, {"a": {"committer": "deltalake"}, "b": {"kind": "mine"}}) is None
    assert settings_changed.warnings(None, None) == settings_changed.warnings({ZONE: "UTC"}, {ZONE: "UTC"}) == []
