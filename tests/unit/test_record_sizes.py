"""The size of a record, as SQL. What Spark makes of it is in tests/integration/test_dead_letters.py."""

from __future__ import annotations

import re
from typing import Any

from airflow_epochs.spark.driver.flaws import flaws
from airflow_epochs.spark.driver.plans import Fit

TEXTS = {"type": "array", "elementType": "string", "containsNull": True}


def size(**fields: Any) -> str:
    inside = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    column = {"name": "c", "type": {"type": "struct", "fields": inside}, "nullable": True, "metadata": {}}
    (found,) = flaws({"type": "struct", "fields": [column]}, Fit(is_topic=True, utf8=False, record_bytes=100))
    return found[1]


def test_fractions_are_left_out_of_times_and_of_nothing_else() -> None:
    times = size(texts=TEXTS, at="timestamp", local="timestamp_ntz", day="date")
    assert re.findall(r"extract\(SECOND FROM (\S+)\)", times) == ["`c`.`at`", "`c`.`local`"]
    assert "regexp" not in times


def test_the_name_of_a_field_is_not_taken_for_its_type() -> None:
    assert size(timestamp=TEXTS).replace("timestamp", "written") == size(written=TEXTS).replace("timestamp", "written")
