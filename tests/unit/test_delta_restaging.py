"""The digest of staged rows is one of content; rows that are gone are told from rows that are not the promised ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.log import StagedFile
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.errors import Corrupt, RowsGone
from airflow_epochs.model import Staged
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.plans import RowDigest
from airflow_epochs.staged.digest import (
    CONTENT_OF_STATISTICS,
    CONTENT_OF_TYPED,
    CONTENT_SCHEME,
    SCHEME,
    SCHEME_OF_LOG,
    content_of,
    digest_of,
    needs_statistics,
)
from airflow_epochs.staged.staging import Staging
from tests.support.delta_world import attempt_of, ids_in, promised, rows, run_epoch, stage, transaction
from tests.support.environment import Environment


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "lake" / "orders")


def staged_of(sink: DeltaSink, attempt: SinkAttempt, data: pa.Table, world: Environment) -> Staged:
    return promised(sink.vote(attempt, stage(sink, attempt, data, world), world))


BY_DAY = rows(1, 2, 3, day=["a", "b", None], note=["x", None, "y"])


@pytest.mark.parametrize("exists", [False, True], ids=["new table", "existing table"])
def test_the_same_rows_staged_again_have_the_same_digest(table: str, world: Environment, exists: bool) -> None:
    sink = DeltaSink("bronze", table, partition_by=["day"])
    previous = None
    if exists:
        previous = transaction(1)
        run_epoch(sink, previous, None, BY_DAY, world)
    attempt = attempt_of(transaction(2), previous)
    first, second = (staged_of(sink, attempt, BY_DAY, world) for _ in range(2))
    assert first.place != second.place
    assert first.digest == second.digest
    assert first.digest.startswith(SCHEME_OF_LOG)


@pytest.mark.parametrize(
    "other",
    [
        rows(1, 2, day=["a", "b"], note=["x", None]),
        rows(1, 2, 4, day=["a", "b", None], note=["x", None, "y"]),
        rows(1, 2, 3, day=["a", "b", "c"], note=["x", None, "y"]),
        rows(1, 2, 3, day=["a", "b", None], note=["x", "x", "y"]),
        rows(1, 2, 3, day=["a", "b", None], note=["x", None, "y"], more=pa.nulls(3, pa.int64())),
        rows(1, 2, 3, day=["a", "b", None], other=["x", None, "y"]),
        rows(1, 1, 2, 3, day=["a", "a", "b", None], note=["x", "x", None, "y"]),
    ],
    ids=["row missing", "another value", "another partition", "no null", "a column more", "renamed", "row twice"],
)
def test_other_rows_have_another_digest(table: str, world: Environment, other: pa.Table) -> None:
    sink = DeltaSink("bronze", table, partition_by=["day"])
    attempt = attempt_of(transaction(1))
    digests = {staged_of(sink, attempt, data, world).digest for data in (BY_DAY, other)}
    assert len(digests) == 2


def mapped(prefix: str, *, files: int = 1, **more: Any) -> Staging:
    """A staging table with mapped columns, whose physical names begin with ``prefix``."""

    def column(name: str, kind: Any) -> dict[str, Any]:
        metadata = {"delta.columnMapping.physicalName": prefix + name, "delta.columnMapping.id": 1}
        return {"name": name, "type": kind, "nullable": True, "metadata": metadata}

    nested = {"type": "struct", "fields": [column("inner", "long")]}
    fields = [
        column("day", "string"),
        column("outer", nested),
        column("tags", {"type": "array", "elementType": "string"}),
    ]
    shape = TableShape(
        id=prefix,
        schema={"type": "struct", "fields": fields},
        partition_by=("day",),
        properties={},
        min_reader=2,
        min_writer=5,
        reader_features=None,
        writer_features=None,
    )
    bounds = {f"{prefix}outer": {f"{prefix}inner": 7}}
    stats = {"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": bounds, "tightBounds": True}
    staged = tuple(
        StagedFile(
            path=f"{prefix}{number}.parquet",
            logged_path=f"{prefix}{number}.parquet",
            size=100 + number,
            partition_values={f"{prefix}day": "a"},
            stats=json.dumps(stats),
            modified_ms=len(prefix),
        )
        for number in range(files)
    )
    return replace(
        Staging(place=prefix, version=1, shape=shape, files=staged, user_metadata={"table_id": "t"}, counted=None),
        **more,
    )


def test_names_times_and_order_of_files_and_physical_names_of_columns_do_not_count() -> None:
    staging = mapped("col-1-", files=3)
    assert digest_of(staging) == digest_of(mapped("column-2-", files=3))
    assert digest_of(staging) == digest_of(replace(staging, files=tuple(reversed(staging.files))))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: mapped("col-", files=2),
        lambda s: replace(s, files=(*s.files, s.files[0])),
        lambda s: replace(s, user_metadata={"table_id": "another"}),
        lambda s: replace(s, files=(replace(s.files[0], size=99),)),
        lambda s: replace(s, files=(replace(s.files[0], stats=s.files[0].stats.replace("7", "8")),)),
        lambda s: replace(s, files=(replace(s.files[0], partition_values={"col-day": None}),)),
    ],
    ids=["files", "a file twice", "table", "size", "statistics", "partition"],
)
def test_every_other_fact_of_a_file_and_its_table_counts(change: Callable[[Staging], Staging]) -> None:
    staging = mapped("col-")
    assert digest_of(change(staging)) != digest_of(staging)


TOLD = RowDigest(rows=3, sums=(1, 2), columns="names and types")


def of_files(*files: dict[str, Any]) -> Staging:
    """A staging table whose files have these partition values and rows."""
    staging = mapped("col-")
    staged = tuple(
        replace(
            staging.files[0],
            partition_values={"col-day": file["day"]},
            size=number,
            stats=json.dumps({"numRecords": file["rows"], "nullCount": {"col-outer": {"col-inner": file["nulls"]}}}),
        )
        for number, file in enumerate(files)
    )
    return replace(staging, files=staged)


A2 = {"day": "a", "rows": 2, "nulls": 1}
A1 = {"day": "a", "rows": 1, "nulls": 1}
B1 = {"day": "b", "rows": 1, "nulls": 0}


def test_the_digest_of_the_rows_is_the_same_in_other_files_and_counts_what_the_log_says_of_them() -> None:
    digest = content_of(of_files(A2, B1), TOLD)
    assert digest and digest.startswith(CONTENT_OF_STATISTICS)
    assert content_of(of_files(B1, {**A1, "nulls": 0}, A1), TOLD) == digest
    for other in (
        content_of(of_files(A2, B1), replace(TOLD, sums=(1, 3))),
        content_of(of_files(A2, B1), replace(TOLD, columns="others")),
        content_of(of_files(A2, {**B1, "nulls": 1}), TOLD),
        content_of(of_files(A1, B1, B1), TOLD),
        content_of(replace(of_files(A2, B1), user_metadata={"table_id": "another"}), TOLD),
    ):
        assert other and other != digest


def test_nulls_that_footers_count_are_not_in_the_digest_of_the_rows_since_a_footer_may_not_count_them() -> None:
    def content(*files: dict[str, Any], told: RowDigest = TOLD) -> str | None:
        return content_of(replace(of_files(*files), from_footers=True), told)

    digest = content(A2, B1)
    assert digest and digest.startswith(CONTENT_SCHEME)
    assert content({**A2, "nulls": 0}, B1) == digest
    assert digest not in (content(A1, B1, B1), content(A2, B1, told=replace(TOLD, sums=(1, 3))))
    assert digest_of(replace(of_files(A2), from_footers=True)).startswith(SCHEME)


def test_rows_whose_variants_count_with_their_types_have_a_digest_that_says_so() -> None:
    typed, plain = (replace(TOLD, rows=2, typed=typed) for typed in (True, False))
    found = [content_of(replace(of_files(A2), from_footers=True), told) for told in (typed, plain)]
    assert [(digest or "").startswith(CONTENT_OF_TYPED) for digest in found] == [True, False]
    assert content_of(of_files(A2), typed) == found[0], "whoever has counted the NULLs"


@pytest.mark.parametrize(
    ("content", "needed"),
    [
        (None, True),
        (f"{CONTENT_OF_STATISTICS}1", True),
        (f"{CONTENT_SCHEME}1", False),
        (f"{CONTENT_OF_TYPED}1", False),
    ],
)
def test_rows_that_were_promised_by_statistics_of_delta_are_staged_again_with_them(
    content: str | None, needed: bool
) -> None:
    assert (
        needs_statistics(Staged(place="a", version=1, files=1, rows=3, bytes=9, digest="d", content=content)) is needed
    )


def test_a_count_of_other_rows_than_lie_there_gives_no_digest_of_the_rows() -> None:
    assert content_of(of_files(A2), TOLD) is None


def test_without_a_digest_of_the_rows_on_both_sides_the_stricter_one_of_the_files_decides() -> None:
    first = Staged(place="a", version=1, files=1, rows=3, bytes=9, digest="files", content="rows")
    moved = replace(first, place="b", digest="other files")
    assert moved.has_rows_of(first)
    assert not replace(moved, content="other rows").has_rows_of(first)
    assert not replace(moved, content=None).has_rows_of(first)
    assert replace(moved, content=None, digest="files").has_rows_of(first)


LOSSES: dict[str, Callable[[Path], object]] = {
    "a file": lambda place: next(place.glob("*.parquet")).unlink(),
    "half of a file": lambda place: os.truncate(next(place.glob("*.parquet")), 100),
    "the log": lambda place: shutil.rmtree(place / "_delta_log"),
    "all": shutil.rmtree,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_that_vanish_after_the_vote_can_be_replaced_by_the_same_rows_staged_again(
    table: str, world: Environment, loss: str
) -> None:
    sink = DeltaSink("bronze", table)
    previous, attempt = transaction(1), attempt_of(transaction(2))
    attempt = replace(attempt, previous=previous)
    run_epoch(sink, previous, None, rows(1), world)
    lost = staged_of(sink, attempt, rows(2, 3), world)
    LOSSES[loss](Path(lost.place))
    with pytest.raises(RowsGone, match="Clear the commit task"):
        sink.commit(attempt, lost, world)
    again = staged_of(sink, attempt, rows(2, 3), world)
    assert again.digest == lost.digest
    receipt = sink.commit(attempt, again, world)
    assert receipt.place == again.place
    assert sink.commit(attempt, lost, world) == receipt, "whoever still holds the lost place is told what stands"
    sink.discard(attempt, lost.place, world, published=False)
    sink.discard(attempt, again.place, world, published=True)
    assert not Path(lost.place).exists()
    assert ids_in(table) == [1, 2, 3]


def test_a_digest_of_another_version_is_never_compared_and_nothing_is_published(table: str, world: Environment) -> None:
    sink = DeltaSink("bronze", table)
    attempt = attempt_of(transaction(1))
    staged = replace(staged_of(sink, attempt, rows(1), world), digest="0" * 64)
    shutil.rmtree(staged.place)
    with pytest.raises(Corrupt, match="Another version of the provider") as caught:
        sink.commit(attempt, staged, world)
    assert not isinstance(caught.value, RowsGone)
    assert "waive" in caught.value.remedy
    assert not Path(table, "_delta_log").exists()


def test_a_staging_table_that_was_changed_after_the_vote_is_not_published(table: str, world: Environment) -> None:
    sink = DeltaSink("bronze", table)
    attempt = attempt_of(transaction(1))
    staged = staged_of(sink, attempt, rows(1), world)
    other = staged_of(sink, attempt, rows(2), world)
    shutil.rmtree(staged.place)
    shutil.copytree(other.place, staged.place)
    with pytest.raises(Corrupt, match="the staging table was changed"):
        sink.commit(attempt, staged, world)


def test_rows_for_a_table_that_was_replaced_do_not_pass_for_the_promised_ones(table: str, world: Environment) -> None:
    sink = DeltaSink("bronze", table)
    run_epoch(DeltaSink("other", table), transaction(1), None, rows(1), world)
    attempt = attempt_of(transaction(1))
    staged = staged_of(sink, attempt, rows(2), world)
    shutil.rmtree(table)
    assert staged_of(sink, attempt, rows(2), world).digest != staged.digest
