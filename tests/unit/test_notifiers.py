"""Notifiers tell of an epoch in doubt and of a lag, and of nothing else. In a running Airflow: tests/e2e."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseNotifier

from airflow_epochs.contracts import Unread
from airflow_epochs.coordinator.inspection import lag as lags
from airflow_epochs.coordinator.inspection.lag import Lag
from airflow_epochs.errors import BadArgument
from airflow_epochs.notifiers import InDoubtNotifier, LagNotifier
from tests.support.faults_world import DiskWorld, start


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskWorld:
    world = start(DiskWorld(tmp_path))
    described = {"conn_type": "epochs", "extra": {"ledger_root": str(world.ledger_root)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(described))
    return world


def told(notifier: Callable[..., Any], alerts: list[str]) -> list[str]:
    notifier({"dag": None})
    return alerts


def test_an_epoch_in_doubt_is_told_with_the_sink_that_it_waits_for(world: DiskWorld) -> None:
    alerts: list[str] = []
    notifier = InDoubtNotifier("{{ 'orders' }}", lambda context: alerts.append(context["epochs_alert"]))  # type: ignore[typeddict-item]
    assert told(notifier, alerts) == []
    world.crash_at("committed.orders")
    [alert] = told(notifier, alerts)
    assert alert.startswith("Pipeline orders: Epoch 2 is in doubt: waits for audit, orders")
    alerts.clear()
    assert world.run(3) is None
    assert told(notifier, alerts) == []


def test_a_ledger_is_found_whose_connection_id_a_native_template_renders_to_a_number(
    world: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_123", os.environ["AIRFLOW_CONN_EPOCHS_DEFAULT"])
    alerts: list[str] = []
    notifier = InDoubtNotifier("orders", lambda context: alerts.append("told"), ledger_conn_id="{{ id }}")
    world.crash_at("committed.orders")
    with DAG("dag", schedule=None, render_template_as_native_obj=True) as dag:
        notifier({"dag": dag, "id": "123"})
    assert alerts == ["told"]


def test_an_epoch_in_doubt_is_told_though_all_sinks_have_receipts(world: DiskWorld) -> None:
    alerts: list[str] = []
    world.crash_at("complete.put")
    notifier = InDoubtNotifier("orders", lambda context: alerts.append(context["epochs_alert"]))  # type: ignore[typeddict-item]
    [alert] = told(notifier, alerts)
    assert alert.startswith("Pipeline orders: Epoch 2 is in doubt (orders/2/1/")


def test_an_open_or_aborted_epoch_is_not_in_doubt(world: DiskWorld) -> None:
    alerts: list[str] = []
    notifier = InDoubtNotifier("orders", lambda context: alerts.append("told"))
    world.coordinator().open(world.run_of(2))
    assert told(notifier, alerts) == []
    world.coordinator().abort(world.run_of(2), "a test")
    assert told(notifier, alerts) == []


def test_a_young_doubt_is_not_told(world: DiskWorld) -> None:
    alerts: list[str] = []
    world.crash_at("committed.orders")
    assert told(InDoubtNotifier("orders", lambda context: alerts.append("told"), older_than_s=60), alerts) == []


@pytest.mark.parametrize(
    ("limits", "tells"),
    [
        ({"records_above": 9}, True),
        ({"records_above": 10}, False),
        ({"seconds_above": 1}, True),
        ({"seconds_above": 10**10}, False),
        ({"records_above": 10, "seconds_above": 1}, True),
    ],
)
def test_a_lag_is_told_if_it_is_above_one_of_the_limits(
    world: DiskWorld, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], tells: bool
) -> None:
    lag = Lag((Unread(topic="t", partition=0, start=5, end=15, ms=0),))
    monkeypatch.setattr(lags, "lag_of", lambda *of: lag)
    alerts: list[str] = []
    told(LagNotifier("orders", lambda context: alerts.append(context["epochs_alert"]), **limits), alerts)  # type: ignore[typeddict-item]
    assert [alert.partition(" The first")[0] for alert in alerts] == (
        ["Pipeline orders: 10 records are unread."] if tells else []
    )


def test_a_pipeline_whose_lag_nobody_knows_tells_nothing(world: DiskWorld) -> None:
    alerts: list[str] = []
    assert told(LagNotifier("orders", lambda context: alerts.append("told"), records_above=0), alerts) == []


class Mail(BaseNotifier):
    """As the notifiers of Airflow's providers: its text is a template."""

    template_fields = ("text",)

    def __init__(self, text: str, sent: list[str]) -> None:
        super().__init__()
        self.text, self.sent = text, sent

    def notify(self, context: Any) -> None:
        self.sent.append(self.text)


def test_a_notifier_that_several_share_sends_the_text_of_each(
    world: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    lag = Lag((Unread(topic="t", partition=0, start=5, end=15, ms=0),))
    monkeypatch.setattr(lags, "lag_of", lambda *of: lag)
    sent: list[str] = []
    mail = Mail("{{ epochs_alert }}", sent)
    for pipeline in ("orders", "payments"):
        told(LagNotifier(pipeline, mail, records_above=0), sent)
    assert [text.partition(":")[0] for text in sent] == ["Pipeline orders", "Pipeline payments"]


def test_a_lag_notifier_without_a_limit_is_refused() -> None:
    with pytest.raises(BadArgument, match="Give it `records_above` or `seconds_above`"):
        LagNotifier("orders", print)
