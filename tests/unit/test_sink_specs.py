"""A sink is rebuilt from what the ledger says about it, whichever version of this package wrote that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_epochs import DeltaSink, KafkaSink, SqlSink, StateTable
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.codec import decode, encode
from airflow_epochs.model import JsonDict, OpenRecord
from airflow_epochs.sinks import from_spec
from airflow_epochs.testing import MemorySink
from tests.support.scenario import Scenario, in_doubt, run

OWN = f"{__name__}:OwnSink"
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


@pytest.mark.parametrize(
    "sink",
    [DeltaSink("orders", "/lake/orders"), StateTable("orders", "/lake/orders", schema="id INT, n INT", keys=["id"])],
    ids=["delta", "state"],
)
def test_properties_of_a_table_are_recorded_as_spark_spells_them(sink: DeltaSink) -> None:
    sink.properties = cast(Any, {"a": True, "b": 20})  # Airflow, where templates become what they look like
    again = cast(DeltaSink, from_spec(json.loads(json.dumps(sink.spec()))))
    assert again.properties == {"a": "true", "b": "20"}


def test_properties_of_a_table_may_be_given_as_numbers_and_truths() -> None:
    given = cast(Any, {"a": True, "b": 20})
    assert DeltaSink("orders", "/lake/orders", properties=given).properties == {"a": "true", "b": "20"}


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


class OwnSink(MemorySink):
    """A sink of somebody who keeps it beside his DAG."""

    def spec(self) -> JsonDict:
        return {**super().spec(), "kind": OWN}


def register(folder: Path, value: str) -> None:
    """What pip leaves of a package that registers a sink."""
    info = folder / "somebodys_sinks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-sinks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[airflow_epochs.sinks]\nown = {value}\n")


def test_a_class_that_the_dag_names_is_used_for_the_records_that_name_it() -> None:
    own = OwnSink(name="orders", world="w")
    assert isinstance(from_spec(own.spec(), [own]), OwnSink)


def test_a_class_that_neither_the_dag_nor_an_entry_point_names_is_refused() -> None:
    own = OwnSink(name="orders", world="w")
    for today in ((), (SINKS["delta"], SINKS["memory"])):
        with pytest.raises(Refused, match=rf"(?s)kind '{OWN}'.*register the class in the entry point group"):
            from_spec(own.spec(), today)


@pytest.mark.parametrize("kind", ["own", OWN])
def test_a_class_that_is_registered_is_found_by_its_name_and_by_its_place(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, OWN)
    monkeypatch.syspath_prepend(tmp_path)
    sink = from_spec({**OwnSink(name="orders", world="w").spec(), "kind": kind})
    assert type(sink).__name__ == "OwnSink"


def test_a_registered_class_that_is_gone_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(tmp_path, "no_such_module:OwnSink")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Refused, match=r"no_such_module:OwnSink, and this worker cannot import it"):
        from_spec({"kind": "own", "name": "orders"})
