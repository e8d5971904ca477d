"""URLs of tables and staging folders that Spark and deltalake would read differently are refused."""

from __future__ import annotations

import pytest
from obstore.store import S3Store

from airflow_epochs import codes
from airflow_epochs.contracts import Sink
from airflow_epochs.errors import BadArgument, Refused
from airflow_epochs.names import unclear_in
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.kafka.sink import KafkaSink
from airflow_epochs.sinks.sql.sink import SqlSink
from airflow_epochs.sources.delta.source import DeltaSource
from airflow_epochs.storage.objects import object_store


def sinks_at(location: str) -> list[Sink]:
    return [
        DeltaSink("one", location),
        KafkaSink("two", "t", staging=location),
        SqlSink("three", "c", "t", staging=location),
    ]


UNCLEAR = ("a#b", "a?b", "a%20b", "a\tb")


@pytest.mark.parametrize(
    "location", [f"{scheme}://lake/{folder}/t" for scheme in ("s3", "s3a", "gs") for folder in UNCLEAR]
)
def test_a_url_that_is_not_read_alike_by_all_is_refused(location: str) -> None:
    unclear = unclear_in(location)
    assert unclear
    for sink in sinks_at(location):
        with pytest.raises(Refused, match="which Spark and deltalake read differently") as refused:
            sink.destination()
        assert f"has {unclear!r} in it" in str(refused.value) and " a URL without '#'" in str(refused.value)
    with pytest.raises(BadArgument, match="which Spark and deltalake read differently"):
        DeltaSource(location)


def test_a_url_of_azure_without_the_account_is_refused_because_spark_cannot_open_it() -> None:
    for sink in (*sinks_at("az://lake/t"), *sinks_at("AZ://lake/t")):
        with pytest.raises(Refused, match="has the scheme az, which Spark cannot open") as refused:
            sink.destination()
        assert "a URL such as abfss://container@account.dfs.core.windows.net/" in refused.value.remedy


@pytest.mark.parametrize(
    "location",
    [
        *("s3://lake/a b/50 %/{1}*/ü/x=y+z", "abfss://lake@account.dfs.core.windows.net/a", "file:///lake/a%20b%23c"),
        *("s3://lake/[1]/^|", "/lake/a#b/[1]/50 %/q?x/a%20b/^|", "s3://lake/{{ params['folder'] }}"),
    ],
)
def test_other_locations_are_taken(location: str) -> None:
    for sink in sinks_at(location):
        sink.destination()
    DeltaSource(location)


@pytest.mark.parametrize("folder", ["plain", "a b", "50 %", "[1]", "{x}*", "^|", "ü", *UNCLEAR])
def test_a_url_that_is_taken_leads_obstore_to_the_folder_of_this_name(folder: str) -> None:
    url = f"s3://lake/{folder}/t"
    store = object_store(url, {})
    assert isinstance(store, S3Store)
    assert (store.prefix == f"{folder}/t") == (unclear_in(url) is None)


@pytest.mark.parametrize(
    ("what", "sink"),
    [
        ("table", DeltaSink("orders", "file://lake/orders")),
        ("staging", SqlSink("orders", "db", "orders", staging="file://lake/orders")),
        ("staging", KafkaSink("orders", "out", staging="file://lake/orders")),
    ],
    ids=["delta", "sql", "kafka"],
)
def test_a_file_url_with_two_slashes_is_refused_and_told_what_it_has_meant(what: str, sink: Sink) -> None:
    with pytest.raises(Refused, match=r"names the host 'lake'.* So far it meant /orders") as refused:
        sink.destination()
    assert refused.value.code is codes.SINK_MISCONFIGURED
    assert f"Set `{what}` to file:///orders" in refused.value.remedy
    assert "write file:///lake/orders" in refused.value.remedy


def test_a_file_url_whose_beginning_is_a_template_waits_for_its_rendering() -> None:
    KafkaSink("orders", "out", staging="file://{{ var.value.lake }}/orders").destination()


@pytest.mark.parametrize(("written", "wanted"), [("file:///lake/o#1", "%231"), ("FILE:///lake/o?1", "%3F1")])
def test_a_file_url_that_ends_before_its_last_character_is_refused_and_told_what_it_has_meant(
    written: str, wanted: str
) -> None:
    """It meant /lake/o, so that two tables, o#1 and o#2, were one."""
    for sink in sinks_at(written):
        with pytest.raises(Refused, match="So far it meant /lake/o") as refused:
            sink.destination()
        assert refused.value.code is codes.SINK_MISCONFIGURED and written in refused.value.what
        assert "to file:///lake/o to go on where the sink has been" in refused.value.remedy
        assert f"If it is new, write file:///lake/o{wanted}" in refused.value.remedy
    with pytest.raises(BadArgument, match=f"So far it meant /lake/o.* write file:///lake/o{wanted}"):
        DeltaSource(written)


def test_what_the_refusal_of_a_cut_file_url_says_to_write_leads_to_the_whole_name() -> None:
    assert DeltaSink("one", "file:///lake/o%231").destination() == "/lake/o#1"
    assert DeltaSink("one", "file:///lake/o%3F1").destination() == "/lake/o?1"
