"""Sources as the ledger describes them: what this version cannot make is an error that says what to do."""

from __future__ import annotations

import pytest

from airflow_epochs import DeltaSource, KafkaSource, codes
from airflow_epochs.coordinator.inspection.lag import source_in
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict

KAFKA, DELTA = KafkaSource(["orders"], conn_id="c"), DeltaSource("/lake/orders")


@pytest.mark.parametrize("source", [KAFKA, DELTA])
def test_a_source_on_record_is_made_again_without_options_of_a_newer_version(source: KafkaSource | DeltaSource) -> None:
    assert source_in({**source.spec(), "novel": 1}) == source


def test_a_source_of_the_users_own_kind_is_not_made() -> None:
    assert source_in({"kind": "mine"}) is None


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({**KAFKA.spec(), "bounds": "novel"}, "`bounds` is 'novel'"),
        ({"kind": "kafka"}, "missing 1 required positional argument: 'topics'"),
        ({**DELTA.spec(), "changes": "novel"}, "`changes` is 'novel'"),
    ],
)
def test_a_source_on_record_that_cannot_be_made_names_the_versions_that_can(spec: JsonDict, cause: str) -> None:
    with pytest.raises(Refused) as raised:
        source_in(spec)
    what, remedy = str(raised.value).split("\n")
    assert raised.value.code is codes.LEDGER_TOO_NEW and cause in what and what.count("EPOCHS-") == 1
    assert remedy.startswith("What to do: Upgrade airflow-provider-epochs") and remedy.endswith("from a backup.")
