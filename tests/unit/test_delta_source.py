"""A DeltaSource without Spark: its options, the versions that it plans, and the tables that it will not read."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import DeltaSink, DeltaSource, EpochPipeline, SparkConnect, codes, records_waiting
from airflow_epochs.config import Pipeline, Transform
from airflow_epochs.contracts import Limits, PlannedEpoch, Position
from airflow_epochs.errors import BadArgument, Code, Corrupt, EpochError, Refused
from airflow_epochs.event_time import EventTime
from airflow_epochs.model import OffsetRange, Ranges
from airflow_epochs.sources import from_spec
from airflow_epochs.sources.delta import moves, reader
from airflow_epochs.sources.delta.table_now import TableNow
from airflow_epochs.spark.driver.plans import TableRead
from airflow_epochs.spark.driver.wire import from_json
from airflow_epochs.storage.local import LocalFiles
from tests.support.environment import Environment
from tests.support.table_lab import TableLab, entry, maps_in, renamed_in

FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def lab(tmp_path: Path) -> TableLab:
    return TableLab(tmp_path)


def plan(lab: TableLab, after: PlannedEpoch | None = None, **limits: Any) -> PlannedEpoch | None:
    """The epoch that follows ``after``."""
    position = Position(ranges=after.ranges, state=after.state) if after else None
    return lab.source.plan(position, Limits(**limits), Environment())


def planned(lab: TableLab, after: PlannedEpoch | None = None, **limits: Any) -> PlannedEpoch:
    found = plan(lab, after, **limits)
    assert found
    return found


def versions(epoch: PlannedEpoch) -> tuple[int, int]:
    ((only,),) = epoch.ranges.values()
    return only.start, only.end


def read_of(lab: TableLab, epoch: PlannedEpoch) -> TableRead:
    """What Spark is told to read."""
    return from_json(TableRead, lab.source.spark_read(epoch.ranges, Environment()).table or {})


def stopped(lab: TableLab, after: PlannedEpoch | None = None) -> EpochError:
    with pytest.raises((Corrupt, Refused)) as error:
        plan(lab, after)
    return error.value


def code_of(error: EpochError) -> tuple[Code | None, str]:
    return error.code, str(error)


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"table": ""}, "`table` is ''. It must be a text that is not empty"),
        ({"table": "lake/orders"}, "It must be an absolute path, or a URL"),
        ({"table": "main.silver.orders"}, "a name in a catalog"),
        ({"table": "s3://me:secret@lake/orders"}, "`table` is a URL with a login"),
        ({"changes": "all"}, "`changes` is 'all'. It must be 'appends' or 'feed'"),
        ({"starting": "soon"}, "`starting` is 'soon'. It must be 'earliest', 'latest', a version"),
        ({"starting": -1}, "`starting` is -1. It must be"),
        ({"starting": True}, "`starting` is True. It must be"),
        ({"starting": 10**30}, f"`starting` is {10**30}. It must be"),
        ({"starting": {"/lake/orders": {"1": 5}}}, "`starting` is {'/lake/orders': {'1': 5}}. It must be"),
        ({"starting": "{nonsense"}, "`starting` is '{nonsense'. It must be"),
        ({"starting": {"/lake/other": {"0": 5}}}, "`starting` has a version of '/lake/other', and `table` is"),
        ({"max_files": 0}, "`max_files` is 0. It must be a whole number, 1 or larger"),
        ({"max_bytes": "much"}, "`max_bytes` is 'much'. It must be a number of bytes, 1 or larger, or a text like"),
        ({"max_versions": 0}, "`max_versions` is 0. It must be a whole number, 1 or larger"),
        ({"max_versions": "many"}, "`max_versions` is 'many'. It must be a whole number"),
        ({"max_wait": -1}, "`max_wait` is -1. It must be a number of seconds from 0 to 86400"),
        ({"storage_conn_id": 5}, "`storage_conn_id` is 5. It must be a text"),
    ],
)
def test_an_option_that_is_not_valid_is_refused_when_the_dag_is_parsed(options: Any, complaint: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(complaint)) as error:
        DeltaSource(**{"table": "/lake/orders", **options})
    assert error.value.code is codes.DELTA_SOURCE_ARGUMENT


def test_a_login_in_a_url_is_not_repeated() -> None:
    with pytest.raises(BadArgument) as error:
        DeltaSource("s3://me:secret@lake/orders")
    assert "secret" not in str(error.value)


def test_the_ledgers_description_makes_the_same_source_also_with_another_connection() -> None:
    source = DeltaSource("file:///lake//orders/", "s3", changes="feed", starting=7, max_versions=3, max_wait=1)
    spec = json.loads(json.dumps(source.spec()))
    again = from_spec(spec)
    assert isinstance(again, DeltaSource)
    assert again.spec() == spec
    assert (again.table, again.starting) == ("/lake/orders", 7)
    other = from_spec(spec, "s3_other")
    assert isinstance(other, DeltaSource)
    assert other.storage_conn_id == "s3_other"


@pytest.mark.parametrize("rendered", [False, True], ids=["when the DAG is parsed", "when it is rendered"])
def test_a_file_url_with_two_slashes_is_refused_and_told_what_it_has_meant(rendered: bool) -> None:
    with pytest.raises((BadArgument, Refused), match=r"names the host 'lake'.* So far it meant /orders") as refused:
        source = DeltaSource("file://{{ var.value.lake }}/orders" if rendered else " file://lake/orders")
        source.table = "file://lake/orders"
        source.prepare("p", set(), None, Environment())
    assert isinstance(refused.value, Refused if rendered else BadArgument)
    assert "write file:///orders." in str(refused.value) and "write file:///lake/orders." in str(refused.value)


def test_a_login_in_a_file_url_is_in_no_error() -> None:
    with pytest.raises(BadArgument, match="names the host 'lake'") as refused:
        DeltaSource("file://ada:word@lake/orders")
    assert "word" not in str(refused.value)


def test_a_source_on_record_with_a_file_url_with_two_slashes_means_what_it_has_meant() -> None:
    recorded = {**DeltaSource("/orders").spec(), "table": "file://lake/orders"}
    assert DeltaSource.from_spec(recorded) == DeltaSource("/orders")


def test_options_may_be_templates() -> None:
    source = DeltaSource("{{ var.value.table }}", starting="{{ params.at }}", max_versions="{{ params.n }}")
    assert source.reads() == set()
    source.table, source.starting, source.max_versions = "/lake/orders", "5", "2"
    assert source.reads() == {"/lake/orders"}


def test_records_of_a_table_are_not_counted_for_an_asset() -> None:
    with pytest.raises(BadArgument, match="`source` is a DeltaSource") as error:
        records_waiting("p", DeltaSource("/lake/orders"))  # type: ignore[arg-type]  # what a user may try
    assert "Schedule a DAG that reads a table on the asset of the table" in str(error.value)


def pipeline(source: DeltaSource, **options: Any) -> Pipeline:
    sinks = (DeltaSink("rows", "/lake/rows"),)
    transform = Transform(path="app.py", function="f")
    return Pipeline(name="p", dag_id="dag", source=source, sinks=sinks, transform=transform, **options)


def test_event_time_is_refused_because_a_table_has_no_partitions_to_watch() -> None:
    with pytest.raises(BadArgument, match="`event_time` cannot be set in a pipeline with a DeltaSource"):
        pipeline(DeltaSource("/lake/orders"), event_time=EventTime("1 minute"))


def test_a_wait_in_the_triggerer_is_refused_when_the_dag_is_parsed() -> None:
    with (
        DAG("d", max_active_runs=1),
        pytest.raises(BadArgument, match="`deferrable` cannot be set in a pipeline with a DeltaSource"),
    ):
        EpochPipeline(
            "p",
            source=DeltaSource("/lake/orders"),
            transform="app.py:f",
            sinks=[DeltaSink("rows", "/lake/rows")],
            spark=SparkConnect(),
            deferrable=True,
        )


def test_a_pipeline_cannot_write_to_the_table_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "rows")
    with pytest.raises(Refused) as error:
        pipeline(DeltaSource("/lake/rows"))
    assert error.value.code is codes.LOOP
    source = DeltaSource(f"{tmp_path}/link")
    with pytest.raises(Refused, match="read its own rows") as late:
        source.prepare("p", {str(tmp_path / "rows")}, None, Environment())
    assert late.value.code is codes.LOOP


@pytest.mark.parametrize("name", ["max_records", "min_records", "max_delay", "target_duration"])
def test_a_param_that_counts_records_is_refused(lab: TableLab, name: str) -> None:
    lab.write(1)
    with pytest.raises(Refused, match=f"The run has the param {name}"):
        lab.source.plan(None, Limits(**{name: 5}), Environment())  # type: ignore[arg-type]  # one name of many


# -- which versions --------------------------------------------------------------------------------------------------


def test_the_first_epoch_reads_the_whole_table_and_later_ones_what_is_new(lab: TableLab) -> None:
    lab.write(1)
    lab.write(2)
    first = planned(lab)
    lab.write(3)
    second = planned(lab, first)
    assert (versions(first), versions(second)) == ((0, 2), (2, 3))
    assert plan(lab, second) is None
    assert not read_of(lab, first).files
    assert len(read_of(lab, second).files) == 1


def test_a_pipeline_begins_where_starting_says(lab: TableLab) -> None:
    for number in range(4):
        lab.write(number)
    assert versions(planned(lab, starting="3")) == (3, 4)
    lab.options["starting"] = 2
    assert versions(planned(lab)) == (2, 4)
    assert len(read_of(lab, planned(lab)).files) == 2
    lab.options["starting"] = "latest"
    pinned = planned(lab)
    assert versions(pinned) == (4, 4)
    lab.write(5)
    assert versions(planned(lab, pinned)) == (4, 5)
    lab.options["starting"] = 6
    code, text = code_of(stopped(lab))
    assert code is codes.STARTING_UNUSABLE
    assert "`starting` is 6, and the newest version" in text


def test_an_epoch_has_at_most_max_versions_but_for_the_whole_table(lab: TableLab) -> None:
    for number in range(6):
        lab.write(number)
    lab.options["max_versions"] = 2
    first = planned(lab)
    assert versions(first) == (0, 6)
    lab.options["starting"] = 0
    first = planned(lab)
    second = planned(lab, first)
    assert (versions(first), versions(second)) == ((0, 2), (2, 4))
    assert [each.backlog and each.backlog.offsets for each in (first, second, planned(lab, second))] == [4, 2, 0]


def bytes_of(lab: TableLab, *numbers: int) -> int:
    actions = [json.loads(line) for number in numbers for line in entry(lab, number).read_text().splitlines()]
    return sum(action["add"]["size"] for action in actions if "add" in action)


def test_an_epoch_has_at_most_so_many_files_and_bytes_and_one_version_whatever_its_size(lab: TableLab) -> None:
    for number in range(3):
        lab.write(number)
    lab.write(*range(3, 3000))
    lab.write(3000)
    lab.options |= {"starting": 1, "max_bytes": bytes_of(lab, 1, 2)}
    first = planned(lab)
    second = planned(lab, first)
    third = planned(lab, second)
    assert [versions(epoch) for epoch in (first, second, third)] == [(1, 3), (3, 4), (4, 5)]
    assert versions(planned(lab, max_bytes=1)) == (1, 2)
    lab.options |= {"max_bytes": None, "max_files": 3}
    assert versions(planned(lab)) == (1, 4)


def test_the_bounds_count_the_files_of_changes_in_a_feed(lab: TableLab) -> None:
    lab.write(1, 2, configuration=FEED)
    lab.write(3)
    lab.delta.update(updates={"amount": "9"}, predicate="id = 1")
    lab.write(4)
    lab.options |= {"changes": "feed", "starting": 1, "max_files": 2}
    assert versions(planned(lab)) == (1, 3)


def test_the_history_of_a_table_comes_in_steps_from_version_0_on(lab: TableLab) -> None:
    for number in range(4):
        lab.write(number)
    lab.options |= {"starting": 0, "max_files": 3}
    first = planned(lab)
    assert (versions(first), versions(planned(lab, first))) == ((0, 3), (3, 4))


@pytest.mark.parametrize("starting", [0, 1])
def test_a_bounded_epoch_looks_at_no_version_behind_the_first_one_that_is_too_much(
    lab: TableLab, starting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        lab.write(number)
    asked = list[int]()
    read = LocalFiles.read

    def noted(files: LocalFiles, path: str) -> bytes | None:
        asked.extend(int(found[1]) for found in [re.search(r"_delta_log/0*(\d+)\.json", path)] if found)
        return read(files, path)

    monkeypatch.setattr(LocalFiles, "read", noted)
    lab.options |= {"starting": starting, "max_files": 2}
    assert versions(planned(lab)) == (starting, starting + 2)
    assert set(asked) <= set(range(starting + 3))


def moved(lab: TableLab, after: PlannedEpoch, starting: object) -> PlannedEpoch:
    """Where ``reset-source --starting …`` lets the next epoch begin."""
    position = Position(ranges=after.ranges, state=after.state)
    to = lab.source.to_another(position, [], starting, Environment()).position
    return PlannedEpoch(ranges=to.ranges, state=to.state)


@pytest.mark.parametrize("starting", ["latest", 0])
def test_a_command_to_begin_at_the_earliest_reads_the_whole_table_whatever_starting_is(
    lab: TableLab, starting: object
) -> None:
    lab.write(0)
    first = planned(lab)
    for number in range(1, 5):
        lab.write(number)
    lab.options = {"changes": "feed", "starting": starting, "max_versions": 3}
    whole = moved(lab, first, "earliest")
    assert versions(planned(lab, whole)) == (0, 5)
    assert moves.WHOLE not in planned(lab, whole).state, "only the next epoch does"
    stays = lab.source.past_losses(Position(ranges=whole.ranges, state=whole.state), [], Environment()).position
    assert stays.state == whole.state
    assert versions(planned(lab, moved(lab, first, "0"))) == (0, 3), "in steps"
    lab.options["max_files"] = 2
    code, text = code_of(stopped(lab, whole))
    assert code is codes.FIRST_EPOCH_TOO_LARGE and "reset-source PIPELINE --starting 0" in text


def test_a_whole_table_that_is_larger_than_an_epoch_may_be_is_refused(lab: TableLab) -> None:
    lab.write(*range(3000))
    lab.options["max_bytes"] = 1
    assert versions(planned(lab)) == (0, 1)
    lab.write(1)
    code, text = code_of(stopped(lab))
    assert code is codes.FIRST_EPOCH_TOO_LARGE
    assert f"in 2 files with {bytes_of(lab, 0, 1)} bytes, and the source has max_bytes=1." in text
    lab.options["max_bytes"] = bytes_of(lab, 0, 1)
    assert versions(planned(lab)) == (0, 2)


def test_a_history_that_is_gone_cannot_be_read_in_steps_but_the_table_of_today_can(lab: TableLab) -> None:
    for number in range(3):
        lab.write(number)
    lab.delta.optimize.compact()
    vacuumed(lab)
    lab.delta.create_checkpoint()
    entry(lab, 1).unlink()
    for bounds, text in (({"max_versions": 1}, "1 of its files are gone"), ({"max_files": 1}, "entry of version 1 is")):
        lab.options = {"starting": 0, **bounds}
        code, told = code_of(stopped(lab))
        assert (code, text in told) == (codes.VERSIONS_GONE, True), told
        assert "Set `starting` of the DeltaSource to 'earliest'" in told
    lab.options = {"starting": "earliest"}
    assert versions(planned(lab)) == (0, lab.delta.version() + 1)


@pytest.mark.parametrize("gone", ["the log entry", "the files"])
def test_a_start_at_a_version_that_is_gone_is_refused_with_the_first_one_that_is_there(
    lab: TableLab, gone: str
) -> None:
    lab.write(0)
    lab.write(1)
    lab.write(2)
    lab.delta.optimize.compact()
    vacuumed(lab)
    if gone == "the log entry":
        lab.delta.create_checkpoint()
        for number in range(3):
            entry(lab, number).unlink()
    lab.options["starting"] = 1
    code, text = code_of(stopped(lab))
    assert code is codes.STARTING_UNUSABLE
    assert "Version 1 of the table" in text
    assert "to 3, the first version after it that can be read" in text
    assert "airflow epochs" not in text
    lab.options["starting"] = 3
    assert versions(planned(lab))[0] == 3


def test_a_start_at_a_version_without_a_change_feed_is_refused_with_the_first_one_that_has_it(lab: TableLab) -> None:
    lab.write(1)
    lab.write(2)
    lab.options |= {"changes": "feed", "starting": 1}
    code, text = code_of(stopped(lab))
    assert (code, "Or set it to 'latest'" in text) == (codes.STARTING_UNUSABLE, True)
    lab.delta.alter.set_table_properties(FEED)
    code, text = code_of(stopped(lab))
    assert "the table did not record its changes" in text
    assert "to 2, the first version after it" in text


def long_without_feed(lab: TableLab) -> PlannedEpoch:
    """A table of 300 versions, with the feed on from version 298 on; an epoch that has read version 0."""
    lab.write(1)
    lab.options["changes"] = "feed"
    first = planned(lab)
    for number in range(1, 298):
        entry(lab, number).write_text('{"commitInfo": {"operation": "WRITE", "timestamp": 1}}')
    lab.delta.alter.set_table_properties(FEED)
    lab.write(2)
    assert lab.delta.version() == 299
    return first


@pytest.mark.proof
def test_a_search_for_the_first_version_with_a_feed_opens_the_table_only_where_its_metadata_changes(
    lab: TableLab,
) -> None:
    first = long_without_feed(lab)
    with patch.object(TableNow, "at", autospec=True, side_effect=TableNow.at) as opened:
        lab.options["starting"] = 1
        assert "to 298, the first version after it that can be read" in str(stopped(lab))
        assert opened.call_count <= 5
        position = Position(ranges=first.ranges, state=first.state)
        moved = lab.source.past_losses(position, [], Environment()).position
    assert [r.end for of in moved.ranges.values() for r in of] == [298]
    assert opened.call_count <= 10


def test_a_search_behind_many_lost_versions_of_a_feed_does_not_open_the_table_at_each(lab: TableLab) -> None:
    """The files of versions 1 to 39 and 41 to 99 are gone. The entries of versions 1 and 2 are gone as well."""
    lab.write(1, configuration=FEED)
    lab.options["changes"] = "feed"
    first = planned(lab)
    add = {"partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True, "stats": '{"numRecords": 1}'}
    for number in (*range(1, 40), *range(41, 100)):
        entry(lab, number).write_text(json.dumps({"add": {**add, "path": f"lost-{number}.parquet"}}))
        if number == 39:
            lab.write(2)
    lab.delta.create_checkpoint()
    for number in (1, 2):
        entry(lab, number).unlink()
    lab.write(3)
    position = Position(ranges=first.ranges, state=first.state)
    with patch.object(TableNow, "at", autospec=True, side_effect=TableNow.at) as opened:
        for expected in (40, 100):
            moved = lab.source.past_losses(position, [], Environment()).position
            assert [r.end for of in moved.ranges.values() for r in of] == [expected]
            entry(lab, 40).write_text(json.dumps({"add": {**add, "path": "lost-40.parquet"}}))
    assert opened.call_count <= 10


@pytest.mark.proof
def test_an_error_names_no_version_far_behind_the_one_where_a_pipeline_cannot_begin(
    lab: TableLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SEARCHED_MAX", 100)
    long_without_feed(lab)
    lab.options["starting"] = 1
    assert "Or set it to 'latest'" in str(stopped(lab))
    lab.options["starting"] = 250
    assert "to 298, the first version after it that can be read" in str(stopped(lab))


def test_a_pipeline_begins_at_the_savepoint_of_another_one(lab: TableLab) -> None:
    for number in range(3):
        lab.write(number)
    for starting in ({str(lab.table): {"0": 2}}, json.dumps({str(lab.table): {"0": 2}})):
        lab.options["starting"] = starting
        assert versions(planned(lab)) == (2, 3)


def test_a_wait_is_no_longer_than_what_is_left_of_the_tasks_time(
    lab: TableLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write(1)
    first = planned(lab)
    lab.options["max_wait"] = 3600
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits"))
    assert plan(lab, first, wait_at_most=0.0) is None


def test_a_version_that_comes_while_open_waits_is_read(lab: TableLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.write(1)
    first = planned(lab)
    lab.options["max_wait"] = 30
    monkeypatch.setattr(time, "sleep", lambda seconds: lab.write(2))
    assert versions(planned(lab, first)) == (1, 2)


def test_a_table_that_is_not_there_is_refused(lab: TableLab) -> None:
    assert code_of(stopped(lab))[0] is codes.DELTA_SOURCE_MISSING


def test_a_folder_or_a_file_that_is_no_table_is_refused_as_a_source(lab: TableLab) -> None:
    lab.table.mkdir()
    (lab.table / "orders.csv").write_text("1,2")
    code, text = code_of(stopped(lab))
    assert code is codes.DELTA_SOURCE_MISSING
    assert "is not a Delta table, and not empty: it has orders.csv" in text
    assert "correct `table` of the DeltaSource" in text
    lab.table = lab.table / "orders.csv"
    assert code_of(stopped(lab))[0] is codes.DELTA_SOURCE_UNREADABLE


@pytest.mark.parametrize("url", ["hdfs://host/lake/orders", "nonsense://lake/orders", "s3://lake"])
def test_a_place_that_deltalake_does_not_know_is_an_error_with_a_remedy(url: str) -> None:
    source = DeltaSource(url, max_wait=0)
    with pytest.raises(EpochError) as error:
        source.plan(None, Limits(), Environment())
    assert error.value.remedy


def test_a_table_whose_name_looks_like_a_pattern_is_read(lab: TableLab) -> None:
    lab.write(1)
    first = planned(lab)
    lab.write(2)
    lab.table = lab.table.rename(lab.folder / "orders [a]{1} 50%*")
    second = planned(lab, first)
    assert (versions(second), len(read_of(lab, second).files)) == ((1, 2), 1)


def test_an_optimize_brings_no_rows(lab: TableLab) -> None:
    lab.write(1)
    first = planned(lab)
    lab.write(2)
    lab.write(3)
    lab.delta.optimize.compact()
    second = planned(lab, first)
    read = read_of(lab, second)
    assert (versions(second), len(read.files), read.records) == ((1, 4), 2, 2)


@pytest.mark.parametrize(("before", "after", "values"), [([], ["day"], ()), (["id", "day"], ["day"], ("2", "tue"))])
def test_versions_from_before_an_overwrite_are_read_by_the_partitions_of_their_time(
    lab: TableLab, before: list[str], after: list[str], values: tuple[str, ...]
) -> None:
    for number, day in ((1, "mon"), (2, "tue")):
        data = pa.table({"id": pa.array([number], pa.int64()), "amount": [0.5], "day": [day]})
        write_deltalake(str(lab.table), data, mode="append", partition_by=before)
    lab.options["starting"] = 1
    epoch = planned(lab)
    read = read_of(lab, epoch)
    assert (versions(epoch), read.partition_by, list(read.files.values())) == ((1, 2), tuple(before), [values])
    data = pa.table({"id": pa.array([9], pa.int64()), "amount": [9.0], "day": ["wed"]})
    write_deltalake(str(lab.table), data, mode="overwrite", schema_mode="overwrite", partition_by=after)
    assert read_of(lab, epoch) == read
    assert versions(planned(lab)) == (1, 2)


# -- what cannot be read ---------------------------------------------------------------------------------------------


def test_an_epoch_ends_before_a_version_that_deletes_rows_and_the_next_one_stops_there(lab: TableLab) -> None:
    lab.write(1)
    first = planned(lab)
    lab.write(2)
    lab.delta.delete("id = 1")
    lab.write(3)
    second = planned(lab, first)
    assert versions(second) == (1, 2)
    code, text = code_of(stopped(lab, second))
    assert code is codes.ROWS_CHANGED
    assert re.search(r"Version 2 of the table .* cannot be read: it updates or deletes rows \(DELETE\)", text)


def vacuumed(lab: TableLab) -> None:
    """Only the files of the newest version are left."""
    lab.delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def test_versions_whose_files_a_vacuum_has_deleted_stop_the_pipeline(lab: TableLab) -> None:
    lab.write(1)
    first = planned(lab)
    lab.write(2)
    lab.write(3)
    second = planned(lab, first)
    lab.source.check(second.ranges, second.state, Environment())
    lab.delta.optimize.compact()
    vacuumed(lab)
    code, text = code_of(stopped(lab, first))
    assert code is codes.VERSIONS_GONE
    assert "Version 1 of the table" in text
    assert "1 of the files with its rows are gone" in text
    with pytest.raises(Corrupt, match="Version 1 of the table"):
        lab.source.check(second.ranges, second.state, Environment())
    with pytest.raises(Corrupt, match="Version 1 of the table"):
        read_of(lab, second)


def test_a_whole_table_of_which_files_are_gone_is_not_read(lab: TableLab) -> None:
    lab.write(1)
    lab.write(2)
    first = planned(lab)
    lab.delta.optimize.compact()
    vacuumed(lab)
    with pytest.raises(Corrupt, match="2 of its files are gone") as error:
        lab.source.check(first.ranges, first.state, Environment())
    assert "airflow epochs replan" in str(error.value)
    assert versions(planned(lab)) == (0, lab.delta.version() + 1)


def test_versions_whose_log_was_cleaned_up_stop_the_pipeline(lab: TableLab) -> None:
    lab.write(1, configuration={"delta.logRetentionDuration": "interval 0 days"})
    first = planned(lab)
    lab.write(2)
    lab.write(3)
    lab.delta.create_checkpoint()
    entry(lab, 1).unlink()
    code, text = code_of(stopped(lab, first))
    assert code is codes.VERSIONS_GONE
    assert "its entry is gone from the table's log" in text


def test_a_table_that_was_created_again_is_not_taken_for_the_old_one(lab: TableLab) -> None:
    lab.write(1)
    first = planned(lab)
    shutil.rmtree(lab.table)
    lab.write(1)
    lab.write(2)
    code, text = code_of(stopped(lab, first))
    assert code is codes.SOURCE_TABLE_REPLACED
    assert "and the pipeline has read the table with the id" in text
    for look in (lab.source.check, lab.source.confirm):
        with pytest.raises(Corrupt, match="has the id"):
            look(first.ranges, first.state, Environment())


def test_a_table_that_went_back_to_an_older_copy_is_noticed_also_when_it_has_grown_since(lab: TableLab) -> None:
    lab.write(1)
    shutil.copytree(lab.table, lab.folder / "backup")
    lab.write(2)
    first = planned(lab)
    shutil.rmtree(lab.table)
    shutil.copytree(lab.folder / "backup", lab.table)
    code, text = code_of(stopped(lab, first))
    assert code is codes.SOURCE_TABLE_REPLACED
    assert "ends with version 0, and the pipeline has got to version 1" in text
    lab.write(3)
    lab.write(4)
    code, text = code_of(stopped(lab, first))
    assert code is codes.SOURCE_TABLE_REPLACED
    assert "has another version 1 than the one that the pipeline has got to" in text


def test_a_table_that_was_moved_with_its_log_goes_on(lab: TableLab) -> None:
    lab.write(1)
    first = planned(lab)
    lab.write(2)
    lab.table = lab.table.rename(lab.folder / "elsewhere")
    assert planned(lab, first).ranges == {str(lab.table): (OffsetRange(0, 1, 2),)}


def test_a_pipeline_that_has_read_something_else_does_not_read_a_table_from_there(lab: TableLab) -> None:
    lab.write(1)
    topics = PlannedEpoch(ranges={"orders": (OffsetRange(0, 0, 1),)}, state={"topic_ids": {}})
    code, text = code_of(stopped(lab, topics))
    assert code is codes.SOURCE_TABLE_REPLACED
    assert "The pipeline has read from orders" in text


def test_a_rebuilt_ledger_knows_the_table_by_its_name_alone(lab: TableLab) -> None:
    lab.write(1)
    first = planned(lab)
    lab.write(2)
    assert versions(planned(lab, PlannedEpoch(ranges=first.ranges, state={}))) == (1, 2)
    other = PlannedEpoch(ranges={"/lake/other": (OffsetRange(0, 0, 1),)}, state={})
    assert code_of(stopped(lab, other))[0] is codes.SOURCE_TABLE_REPLACED


def test_column_mapping_is_refused_where_files_are_read_without_the_log(lab: TableLab) -> None:
    lab.write(1)
    log = entry(lab, 0)
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
    log.write_text("\n".join(map(json.dumps, actions)))
    code, text = code_of(stopped(lab))
    assert code is codes.DELTA_SOURCE_UNREADABLE
    assert "column mapping" in text


@pytest.mark.parametrize(
    ("name", "mapped", "epochs", "flaw", "goes_on"),
    [
        ("price", (2, 3), [(1, 2)], 2, (3, 4)),
        ("price", (1, 3), [], 1, (3, 4)),
        ("amount", (2, 3), [(1, 4)], None, None),
    ],
    ids=["renamed", "renamed in the first version", "not renamed"],
)
def test_rows_that_were_written_while_files_called_a_column_by_another_name_are_not_read_without_it(
    lab: TableLab,
    name: str,
    mapped: tuple[int, int],
    epochs: list[tuple[int, int]],
    flaw: int | None,
    goes_on: tuple[int, int] | None,
) -> None:
    lab.write(0)
    last = planned(lab)
    for number in (1, 2, 3):
        lab.write(number)
    maps_in(lab, mapped[0], name)
    maps_in(lab, mapped[1], None)
    found = []
    for _ in epochs:
        last = planned(lab, last)
        found.append(versions(last))
        lab.source.check(last.ranges, last.state, Environment())
    assert found == epochs
    if flaw:
        code, text = code_of(stopped(lab, last))
        assert code is codes.COLUMNS_CHANGED
        assert f"Version {flaw} of the table" in text and "call the column amount by another name" in text
        lab.options["starting"] = mapped[1] - 1
        assert code_of(stopped(lab))[0] is codes.STARTING_UNUSABLE
        moved = lab.source.past_losses(Position(ranges=last.ranges, state=last.state), [], Environment()).position
        assert (
            versions(planned(lab, PlannedEpoch(ranges=moved.ranges, state=moved.state, backlog=last.backlog)))
            == goes_on
        )


def test_a_column_that_is_renamed_ends_an_epoch_of_appends_and_stops_none_if_no_rows_have_the_other_name(
    lab: TableLab,
) -> None:
    lab.write(1)
    first = planned(lab)
    lab.write(2)
    lab.delta.alter.set_table_properties({"delta.appendOnly": "false"})
    lab.delta.alter.set_table_properties({"delta.appendOnly": "false"})
    lab.write(3)
    maps_in(lab, 2, "price")
    maps_in(lab, 3, None)
    second = planned(lab, first)
    third = planned(lab, second)
    assert (versions(second), versions(third)) == ((1, 2), (2, 5))


def test_a_file_without_a_value_of_a_partition_column_is_refused_and_not_read_as_null(lab: TableLab) -> None:
    lab.write(1, partition_by=["id"])
    lab.write(2)
    log = entry(lab, 1)
    log.write_text(log.read_text().replace('"partitionValues":{"id":"2"}', '"partitionValues":{}'))
    epoch = planned(lab, starting="1")
    with pytest.raises(Refused, match="does not tell the partition column 'id' of the file ") as error:
        read_of(lab, epoch)
    assert error.value.code is codes.DELTA_SOURCE_UNREADABLE


# -- the change data feed --------------------------------------------------------------------------------------------


def test_a_feed_reads_versions_that_delete_rows(lab: TableLab) -> None:
    lab.write(1, 2, configuration=FEED)
    first = planned(lab)
    lab.delta.delete("id = 1")
    lab.options["changes"] = "feed"
    second = planned(lab, first)
    assert versions(second) == (1, 2)
    assert read_of(lab, second).feed


def test_a_feed_that_is_not_on_stops_the_pipeline_at_the_first_version_without(lab: TableLab) -> None:
    lab.options["changes"] = "feed"
    lab.write(1)
    first = planned(lab)
    lab.write(2)
    code, text = code_of(stopped(lab, first))
    assert code is codes.CHANGE_FEED_OFF
    assert "Version 1 of the table" in text
    lab.delta.alter.set_table_properties(FEED)
    lab.write(3)
    lab.delta.alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    lab.write(4)
    lab.options["starting"] = 2
    second = planned(lab)
    assert versions(second) == (2, 4)
    assert "Version 4 of the table" in code_of(stopped(lab, second))[1]


@pytest.mark.parametrize(
    ("columns", "partition_by", "names", "goes_on"),
    [
        ({"id": pa.array(["9"])}, None, "the column id", 3),
        ({"id": pa.array([9])}, None, "the column amount", 2),
        ({"id": pa.array([9]), "amount": pa.array([0.5])}, ["id"], "by other columns", 3),
        ({"id": pa.array([9]), "amount": pa.array([0.5]), "note": pa.array(["n"])}, None, None, 1),
    ],
    ids=["another type", "removed", "partitioned", "added"],
)
def test_a_feed_stops_before_columns_past_which_spark_does_not_read(
    lab: TableLab, columns: dict[str, Any], partition_by: list[str] | None, names: str | None, goes_on: int
) -> None:
    lab.options["changes"] = "feed"
    lab.write(1, configuration=FEED)
    first = planned(lab)
    lab.write(2)
    newer = pa.table(columns)
    write_deltalake(
        str(lab.table), newer, mode="overwrite", schema_mode="overwrite", partition_by=partition_by, configuration=FEED
    )
    write_deltalake(str(lab.table), newer, mode="append")
    if names:
        code, text = code_of(stopped(lab, first))
        assert code is codes.COLUMNS_CHANGED
        assert "Version 1 of the table" in text and names in text
    position = Position(ranges=first.ranges, state=first.state)
    moved = lab.source.past_losses(position, [], Environment(lab.connections)).position
    after = PlannedEpoch(ranges=moved.ranges, state=moved.state, backlog=first.backlog)
    assert versions(planned(lab, after)) == (goes_on, 4)


def test_a_column_that_is_renamed_ends_an_epoch_and_is_in_no_range_that_is_read_at_once(lab: TableLab) -> None:
    lab.options["changes"] = "feed"
    lab.write(1, configuration=FEED)
    lab.write(2)
    lab.write(3)
    renamed_in(lab, 2)
    first = planned(lab, starting="1")
    second = planned(lab, first)
    assert (versions(first), versions(second)) == ((1, 2), (2, 3))
    for live in (first, second):
        lab.source.check(live.ranges, live.state, Environment())
    wide: Ranges = {str(lab.table): (OffsetRange(0, 1, 3),)}
    with pytest.raises(Corrupt, match=r"Version 2 of .*changes the column amount.*together with version 1") as error:
        lab.source.check(wide, second.state, Environment())
    assert error.value.code is codes.COLUMNS_CHANGED


def test_a_feed_needs_the_files_of_changes(lab: TableLab) -> None:
    lab.options["changes"] = "feed"
    lab.write(1, 2, configuration=FEED)
    first = planned(lab)
    lab.delta.update(updates={"amount": "9"}, predicate="id = 1")
    second = planned(lab, first)
    assert versions(second) == (1, 2)
    shutil.rmtree(lab.table / "_change_data")
    assert code_of(stopped(lab, first))[0] is codes.VERSIONS_GONE


def test_the_table_is_read_by_whoever_may_not_write_to_it(lab: TableLab) -> None:
    lab.write(1)
    before = sorted(map(str, lab.table.rglob("*")))
    read_of(lab, planned(lab))
    assert sorted(map(str, lab.table.rglob("*"))) == before
    assert DeltaTable(str(lab.table)).version() == 0
