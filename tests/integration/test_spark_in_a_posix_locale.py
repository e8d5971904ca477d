"""A Spark server without a locale, as systemd starts one: it cannot name folders after texts that are not ASCII."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.errors import OutcomeUnknown
from airflow_epochs.sinks.delta.sink import DeltaSink
from stack.connect import ConnectServer
from stack.jars import Jars
from tests.support.delta_modes_world import values
from tests.support.delta_world import SparkOn, attempt_of, promised, seen_by_duckdb, stage_with_spark, transaction
from tests.support.environment import Environment
from tests.support.spark_world import FEW_ROWS

pytestmark = [pytest.mark.jvm, pytest.mark.long]


@contextmanager
def in_locale(monkeypatch: pytest.MonkeyPatch, folder: Path, jars: Jars, locale: str) -> Iterator[Any]:
    """A session of a server of its own."""
    monkeypatch.setenv("LC_ALL", locale)
    with ConnectServer(folder / locale, jars, memory="1g", conf=FEW_ROWS) as server:
        session = server.session()
        try:
            yield session
        finally:
            session.stop()


@pytest.mark.parametrize("exists", [False, True])
def test_a_text_that_is_not_ascii_gets_its_folder_once_the_server_has_the_locale_of_the_remedy(
    tmp_path: Path, jars: Jars, monkeypatch: pytest.MonkeyPatch, table: str, exists: bool
) -> None:
    sink, attempt = DeltaSink("bronze", table, partition_by=["p"], commit="spark"), attempt_of(transaction(1))
    with in_locale(monkeypatch, tmp_path, jars, "C") as session:
        world = Environment(spark=SparkOn(session))
        if exists:
            first = stage_with_spark(sink, attempt, values(session, "id, p", "(0L, 'Bonn')"), world)
            sink.commit(attempt, promised(sink.vote(attempt, first, world)), world)
            attempt = attempt_of(transaction(2), attempt.txn)
        claim = stage_with_spark(sink, attempt, values(session, "id, p", "(1L, 'Köln')", "(2L, '東京')"), world)
        staged = promised(sink.vote(attempt, claim, world))
        with pytest.raises(OutcomeUnknown, match="unmappable characters") as unknown:
            sink.commit(attempt, staged, world)
    assert "LC_ALL=C.UTF-8" in unknown.value.remedy
    with in_locale(monkeypatch, tmp_path, jars, "C.UTF-8") as session:
        sink.commit(attempt, staged, Environment(spark=SparkOn(session)))
    assert seen_by_duckdb(table) == ([0, 1, 2] if exists else [1, 2])
