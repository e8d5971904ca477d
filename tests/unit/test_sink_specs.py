"""A sink is rebuilt from what the ledger says about it, whichever version of this package wrote that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_epochs import DeltaSink, KafkaSink, SqlSink
from airflow_epochs.codec import decode, encode
from airflow_epochs.model import OpenRecord
from airflow_epochs.sinks import from_spec
from airflow_epochs.testing import MemorySink
from scenario import Scenario, in_doubt, run

SINKS: dict[str, Any] = {
    "delta": DeltaSink("orders", "/lake/orders", mode="upsert", keys=["id"], delete_when="gone"),
    "kafka": KafkaSink("orders", "out", staging="/lake/staging"),
    "sql": SqlSink("orders", "postgres_default", "sales.orders", staging="/lake/staging"),
    "memory": MemorySink(name="orders", world="w", table="t"),
}


@pytest.mark.parametrize("kind", SINKS)
def test_what_a_newer_version_has_added_to_a_specification_is_left_out_and_named(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = SINKS[kind].spec()
    assert spec["kind"] == kind
    again = from_spec({**spec, "option_of_version_0_3": {"deeply": ["nested"]}})
    assert again.spec() == spec
    assert "a newer version has written option_of_version_0_3, which this one ignores" in caplog.text


def test_an_epoch_that_a_newer_version_left_in_doubt_is_finished_by_this_one() -> None:
    scenario = Scenario()
    in_doubt(scenario)
    [key] = [key for key in scenario.world.store.values if key.endswith(".open.json")]
    record = decode(scenario.world.store.values[key], OpenRecord)
    plan = record.sinks["orders"]
    newer = replace(record, sinks={"orders": replace(plan, spec={**plan.spec, "since_0_3": True})})
    scenario.world.store.values[key] = encode(newer)
    assert scenario.airflow_run(run(2)) is None
    scenario.check_every_row()
