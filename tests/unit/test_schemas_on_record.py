"""The schemas that a source asks for are facts of the epoch, like its ranges."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.config import Pipeline
from airflow_epochs.contracts import Environment
from airflow_epochs.coordinator.inspection.preview import preview
from airflow_epochs.errors import Corrupt
from airflow_epochs.ledger.keys import key_of
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.model import JsonDict, OpenRecord, SchemaRecord
from airflow_epochs.schemas import WriterSchema
from airflow_epochs.testing import DictStore, MemorySource, MemorySpark
from tests.support.scenario import Scenario, abort, in_doubt, run

FIRST = {"1": WriterSchema(kind="AVRO", text='"int"')}
SECOND = {**FIRST, "2": WriterSchema(kind="AVRO", text='"long"')}


@dataclass(frozen=True, kw_only=True)
class Registered(MemorySource):
    """A source that asks a registry, which knows ``schemas``."""

    told: dict[str, WriterSchema] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def registry(self) -> JsonDict | None:
        return {"registry_conn_id": "registry", "subjects": ["orders-value"]}

    def schemas(self, env: Environment) -> dict[str, WriterSchema]:
        self.asked.append("asked")
        return self.told


@dataclass
class WithRegistry(Scenario):
    """A DAG whose source asks a registry."""

    schemas: dict[str, WriterSchema] = field(default_factory=lambda: dict(FIRST))
    asked: list[str] = field(default_factory=list)

    @property
    def pipeline(self) -> Pipeline:
        plain = super().pipeline
        assert isinstance(plain.source, MemorySource)
        source = Registered(world=plain.source.world, topics=plain.source.topics, told=self.schemas, asked=self.asked)
        return replace(plain, source=source)

    def opened(self, epoch: int, attempt: int = 1) -> OpenRecord:
        record = self.ledger.open_record(epoch, attempt)
        assert record
        return record

    def on_record(self) -> list[str]:
        return sorted(key for key in self.world.store.values if key.startswith("orders/schemas/"))


def told_to_spark(spark: MemorySpark) -> Any:
    return spark.jobs[-1].args["registry"]


def test_the_schemas_are_on_record_before_the_epoch_is_opened_and_spark_is_told_them() -> None:
    scenario, spark = WithRegistry(), MemorySpark()
    seen: list[str] = []
    scenario.world.observe(seen.append)
    assert scenario.airflow_run(run(1), scenario.coordinator(spark=spark)) is None
    [record] = scenario.on_record()
    assert record == f"orders/schemas/{scenario.opened(1).schemas}.json"
    puts = [moment for moment in seen if "schemas/" in moment or "open.json" in moment]
    assert "schemas/" in puts[0], puts
    assert told_to_spark(spark) == {
        "conn_id": "registry",
        "schemas": {"1": {"kind": "AVRO", "text": '"int"', "flaw": None}},
    }


def test_epochs_share_a_record_until_a_schema_is_new() -> None:
    scenario = WithRegistry()
    for number in (1, 2, 3):
        scenario.schemas = SECOND if number == 3 else dict(FIRST)
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(2)
    first, second, third = (scenario.opened(number).schemas for number in (1, 2, 3))
    assert first == second != third
    assert len(scenario.on_record()) == 2
    assert len(scenario.asked) == 3


def test_the_next_attempt_has_the_schemas_of_the_first_one_and_asks_nobody() -> None:
    scenario, spark = WithRegistry(), MemorySpark()
    coordinator = scenario.coordinator()
    coordinator.open(run(1))
    abort(coordinator, run(1))
    scenario.schemas = SECOND
    assert scenario.airflow_run(run(2), scenario.coordinator(spark=spark)) is None
    assert (scenario.opened(1, 2).schemas, len(scenario.asked)) == (scenario.opened(1, 1).schemas, 1)
    assert told_to_spark(spark)["schemas"].keys() == {"1"}


def test_an_epoch_without_its_schemas_is_not_staged_until_they_are_back() -> None:
    scenario = WithRegistry()
    coordinator = scenario.coordinator()
    coordinator.open(run(1))
    [key] = scenario.on_record()
    saved = scenario.world.store.values.pop(key)
    with pytest.raises(Corrupt, match=r"schemas/\w{64}\.json") as lost:
        scenario.coordinator().stage(run(1))
    assert lost.value.code is codes.SCHEMAS_LOST
    scenario.world.store.values[key] = saved
    assert scenario.airflow_run(run(2)) is None
    assert scenario.ledger.newest_complete() == 1


def test_a_source_that_asks_no_registry_has_none_on_record() -> None:
    scenario, spark = Scenario(), MemorySpark()
    assert scenario.airflow_run(run(1), scenario.coordinator(spark=spark)) is None
    record = scenario.ledger.open_record(1, 1)
    assert record and record.schemas is None
    assert told_to_spark(spark) == {"conn_id": "", "schemas": {}}


def test_promised_rows_are_staged_again_with_the_same_schemas() -> None:
    scenario, spark = WithRegistry(), MemorySpark()
    in_doubt(scenario)
    scenario.world.places.clear()
    scenario.schemas = SECOND
    assert scenario.airflow_run(run(2), scenario.coordinator(spark=spark)) is None
    assert told_to_spark(spark)["schemas"].keys() == {"1"}
    assert len(scenario.asked) == 1


@pytest.mark.parametrize("aborted", [False, True], ids=["new", "aborted"])
def test_a_preview_tells_spark_the_schemas_and_puts_none_on_record(aborted: bool) -> None:
    scenario, spark = WithRegistry(), MemorySpark()
    if aborted:
        coordinator = scenario.coordinator()
        coordinator.open(run(1))
        abort(coordinator, run(1))
    before, scenario.schemas = scenario.on_record(), SECOND
    preview(scenario.coordinator(spark=spark).task, 100, 1)
    assert scenario.on_record() == before
    assert told_to_spark(spark)["schemas"].keys() == ({"1"} if aborted else {"1", "2"})


# -- who vouches for them ----------------------------------------------------------------------------------------------


def test_a_signed_ledger_believes_schemas_by_the_digest_that_a_signed_record_names() -> None:
    store, record = DictStore(), SchemaRecord(schemas=FIRST)
    ledger = Ledger(store, "p", Keys.parse("the key of this ledger's owner"))
    ledger.register("dag", at="now", writer="w")
    assert ledger.put_schemas(record) == ledger.put_schemas(record) == record
    stored = store.values[f"p/{key_of(record)}"]
    assert b"hmac" not in stored
    for password in ("the key of this ledger's owner", "another key, of whoever came later"):
        assert Ledger(store, "p", Keys.parse(password)).schemas(record.digest) == record


@pytest.mark.parametrize(
    "other",
    [
        SECOND,
        {"1": WriterSchema(kind="JSON", text='"int"')},
        {"1": WriterSchema(kind="AVRO", text='"int"', flaw="is bad")},
        {"3": FIRST["1"]},
        {},
    ],
)
def test_schemas_under_the_digest_of_others_are_not_believed(other: dict[str, WriterSchema]) -> None:
    store, ours, others = DictStore(), SchemaRecord(schemas=FIRST), SchemaRecord(schemas=other)
    Ledger(store, "p").put_schemas(others)
    store.values[f"p/{key_of(ours)}"] = store.values.pop(f"p/{key_of(others)}")
    with pytest.raises(Corrupt, match=f"it belongs to {key_of(others)}"):
        Ledger(store, "p").schemas(ours.digest)
