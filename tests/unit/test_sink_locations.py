"""Locations of tables and staging folders that Spark and deltalake would read differently are refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs.contracts import Sink
from airflow_epochs.errors import BadArgument, Refused
from airflow_epochs.names import unclear_in
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.kafka.sink import KafkaSink
from airflow_epochs.sinks.sql.sink import SqlSink
from airflow_epochs.sources.delta.source import DeltaSource


def sinks_at(location: str) -> list[Sink]:
    return [
        DeltaSink("one", location),
        KafkaSink("two", "t", staging=location),
        SqlSink("three", "c", "t", staging=location),
    ]


IN_BOTH = ["a^b", "a|b", "a\\b", "a%20b", "a\tb"]
IN_URLS = ["a#b", "a?b", "a[b", "a]b"]
URLS = [f"{scheme}://lake/{folder}/t" for scheme in ("s3", "s3a", "gs") for folder in [*IN_BOTH, *IN_URLS]]


@pytest.mark.parametrize("location", [*URLS, *(f"/lake/{folder}/t" for folder in IN_BOTH)])
def test_a_location_that_is_not_read_alike_by_all_is_refused(location: str) -> None:
    unclear = unclear_in(location)
    assert unclear
    for sink in sinks_at(location):
        with pytest.raises(Refused, match="which Spark and deltalake read differently") as refused:
            sink.destination()
        assert f"has {unclear!r} in it" in str(refused.value) and " a location without '^'" in str(refused.value)
    with pytest.raises(BadArgument, match="which Spark and deltalake read differently"):
        DeltaSource(location)


@pytest.mark.parametrize(
    "location",
    [
        *("s3://lake/a b/50 %/{1}*/ü/x=y+z", "abfss://lake@account.dfs.core.windows.net/a", "file:///lake/a%20b%23c"),
        *("/lake/a#b/[1]/50 %/q?x", "s3://lake/{{ params['folder'] }}"),
    ],
)
def test_other_locations_are_taken(location: str) -> None:
    for sink in sinks_at(location):
        sink.destination()
    DeltaSource(location)


@pytest.mark.parametrize("folder", ["a#b", "50 %", "q?x", "{1}*", "a;b&c", "\"'`", "ü", "a:b", "~", "<x>"])
def test_deltalake_finds_a_table_at_a_path_that_is_taken(tmp_path: Path, folder: str) -> None:
    table = tmp_path / folder / "t"
    assert DeltaSink("one", str(table)).destination() == str(table)
    write_deltalake(table, pa.table({"id": [1]}))
    assert (table / "_delta_log").is_dir() and DeltaTable(table).version() == 0
