"""How large files are to be, and how compressed: what a sink and a table's properties may say, and what they mean."""

from __future__ import annotations

import json

import pytest
from deltalake import WriterProperties

from airflow_epochs.errors import BadArgument
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver import kafka_read
from airflow_epochs.spark.driver.delta.layout import CODECS, DEFAULT, MB, FileLayout

SIZES = {
    "134217728": 128 * MB,
    "100mb": 100 * MB,
    "1 GB": 1024 * MB,
    "64MiB": 64 * MB,
    "2048 k": 2 * MB,
    " 8m ": 8 * MB,
}


@pytest.mark.parametrize("told", SIZES)
def test_a_size_is_understood_as_spark_and_databricks_write_it(told: str) -> None:
    assert DeltaSink("orders", "/x", target_file_size=told).layout.file_bytes == SIZES[told]
    assert DEFAULT.of({"delta.targetFileSize": told}).file_bytes == SIZES[told]


@pytest.mark.parametrize("told", ["", "large", "-1", "1.5 GB", "12 parsecs", "1023 KB", "2 GB", 5, True])
def test_a_size_that_is_none_or_that_files_cannot_have_is_refused_with_what_is_allowed(told: int | str) -> None:
    with pytest.raises(BadArgument, match=r"number of bytes, or text such as '128 MB', from 1 MB to 1024 MB"):
        DeltaSink("orders", "/x", target_file_size=told)


def test_a_codec_that_not_every_reader_has_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(BadArgument, match=r"`compression` is 'lzo'\. It must be 'zstd' or 'snappy' or 'gzip' or"):
        DeltaSink("orders", "/x", compression="lzo")


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_is_one_that_deltalake_writes_when_it_compacts(codec: str) -> None:
    layout = DeltaSink("orders", "/x", compression=codec).layout
    assert str(WriterProperties(compression=layout.codec.upper()))


def test_a_table_that_says_nothing_usable_is_written_as_the_sink_says_and_the_log_names_the_property(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = FileLayout(file_bytes=8 * MB, codec="gzip")
    assert sink.of({"delta.targetFileSize": "auto", "delta.parquet.compression.codec": "LZO"}) == sink
    assert "delta.targetFileSize is 'auto'" in caplog.text and "compression.codec is 'LZO'" in caplog.text
    assert sink.of({"delta.parquet.compression.codec": "NONE"}) == FileLayout(file_bytes=8 * MB, codec="uncompressed")


def test_a_record_of_an_epoch_from_before_there_were_sizes_and_codecs_is_understood() -> None:
    old = DeltaSink("orders", "/x").spec()
    assert not {"target_file_size", "compression"} & old.keys()
    assert DeltaSink.from_spec(old).layout == FileLayout(file_bytes=128 * MB, codec="zstd")


def test_a_size_and_a_codec_of_its_own_are_on_record() -> None:
    sink = DeltaSink("orders", "/x", target_file_size="64 MB", compression="snappy")
    again = DeltaSink.from_spec(json.loads(json.dumps(sink.spec())))
    assert again.layout == FileLayout(file_bytes=64 * MB, codec="snappy") and again.spec() == sink.spec()


@pytest.mark.parametrize(
    ("ends", "options", "tasks"),
    [
        ({"0": 5, "1": 9, "2": 3}, {}, 2),  # nothing of partition 2
        ({"0": 5, "1": 9, "2": 3}, {"minPartitions": "8"}, 8),
        ({"0": 0, "1": 0, "2": 3}, {}, 1),
    ],
    ids=["one for each partition with records", "as many as asked for", "at least one"],
)
def test_the_tasks_that_read_a_batch_are_counted(ends: dict[str, int], options: dict[str, str], tasks: int) -> None:
    offsets = {"startingOffsets": {"0": 0, "1": 0, "2": 3}, "endingOffsets": ends}
    assert kafka_read.tasks({key: json.dumps({"t": of}) for key, of in offsets.items()} | options) == tasks
