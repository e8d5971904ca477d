"""What a refusal of Spark's says about a commit: the table is asked, for Spark may refuse after it has committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import SparkJob
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.delta.table import App
from airflow_epochs.errors import Corrupt, EpochError, NotApplied, OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.spark_commit import Insertion, insert
from airflow_epochs.spark.driver import failures
from airflow_epochs.spark.driver.delta.layout import DEFAULT
from airflow_epochs.spark.driver.delta.plans import Committed, SeenTable
from airflow_epochs.spark.driver.wire import as_json
from airflow_epochs.staged.staging import Staging
from tests.support.delta_world import seen, transaction
from tests.support.environment import Environment, NoSpark

TXN = transaction(7)


@dataclass
class RefusingSpark(NoSpark):
    """Answers the commit by ``answer``, and later questions by what the table shows."""

    shown: Callable[[], SeenTable]
    answer: Callable[[], JsonDict]

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        if job.kind == "delta_commit":
            return self.answer()
        return as_json(self.shown())


def refuse() -> JsonDict:
    raise Refused("The plan is not valid.", remedy="correct it.")


def refusal(shown: Callable[[], SeenTable], answer: Callable[[], JsonDict] = refuse) -> EpochError:
    shape = TableShape.of_actions(
        {"minReaderVersion": 1, "minWriterVersion": 2},
        {"id": "t", "schemaString": '{"type": "struct", "fields": []}', "partitionColumns": []},
    )
    staging = Staging(place="p", version=1, shape=shape, files=(), user_metadata={}, counted=None)
    app = App.of("orders", "orders")
    this = Insertion(
        target="/t", place="/t/p", app=app, txn=TXN, previous=None, staging=staging, properties={}, layout=DEFAULT
    )
    with pytest.raises(EpochError) as raised:
        insert(this, Environment(spark=RefusingSpark(shown, answer)))
    return raised.value


def unreachable() -> Any:
    raise NotApplied("Spark does not answer.", remedy="start it.")


def test_a_refusal_before_the_commit_says_that_nothing_was_written() -> None:
    assert isinstance(refusal(lambda: seen(exists=False)), Corrupt)
    assert isinstance(refusal(lambda: seen(epoch=7, txn=str(transaction(7)))), Corrupt)


@pytest.mark.parametrize(
    ("told", "change"),
    [
        ("CHECK constraint c ((a > 0) OR (v < 5)) violated by row", "DROP CONSTRAINT `c`"),
        ("CHECK constraint Generated Column (g <=> (v + a)) violated by row", "…"),
        ("NOT NULL constraint violated for column: v.", "…"),
    ],
)
def test_a_rule_that_merged_values_break_is_named_with_what_to_do_and_the_waiver(told: str, change: str) -> None:
    def refuse() -> JsonDict:
        raise Refused(told, code=codes.DELTA_ROWS_UNFIT)

    error = refusal(lambda: seen(exists=False), refuse)
    assert error.code is codes.DELTA_COMMIT_REFUSED and told in error.what
    assert f"ALTER TABLE delta.`file:///t` {change} in Spark" in error.remedy
    assert "airflow epochs waive orders 7 orders" in error.remedy and "transform" not in error.remedy


def test_a_merge_that_cannot_tell_which_row_counts_is_told_with_the_waiver_and_no_change_of_the_table() -> None:
    told = "[DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE] Cannot perform Merge …"

    def refuse() -> JsonDict:
        raise failures.of_spark(Exception(told), "The Spark job")

    error = refusal(lambda: seen(exists=False), refuse)
    assert error.code is codes.DELTA_COMMIT_REFUSED and told in error.what
    assert "airflow epochs waive orders 7 orders" in error.remedy
    assert "ALTER TABLE" not in error.remedy and "undo" not in error.remedy


def test_a_folder_that_spark_cannot_make_for_a_partition_is_told_with_the_property_that_makes_it_needless() -> None:
    def fail() -> JsonDict:
        raise NotApplied("Caused by: java.io.IOException: Mkdirs failed to create file:/t/p=xxx", remedy="")

    remedy = refusal(lambda: seen(exists=False), fail).remedy
    assert "ALTER TABLE delta.`file:///t` SET TBLPROPERTIES ('delta.randomizeFilePrefixes' = 'true')" in remedy
    assert "airflow epochs waive orders 7 orders" in remedy


@pytest.mark.parametrize(
    ("told", "remedy"),
    [
        ("Malformed input or input contains unmappable characters: /t/p=Köln", "LC_ALL=C.UTF-8"),
        ("[DELTA_CONCURRENT_APPEND.WITH_PARTITION_HINT] …", "another program changed the same files of the table"),
    ],
)
def test_what_spark_says_of_a_commit_that_failed_is_told_with_what_helps(told: str, remedy: str) -> None:
    def fail() -> JsonDict:
        raise NotApplied(told, remedy="")

    assert remedy in refusal(lambda: seen(exists=False), fail).remedy


def test_a_value_that_cannot_be_computed_at_the_commit_is_no_matter_of_the_transform() -> None:
    def refuse() -> JsonDict:
        raise Refused("long overflow", code=codes.SPARK_VALUE_INVALID)

    remedy = refusal(lambda: seen(exists=False), refuse).remedy
    assert remedy.startswith("Correct the row of the table") and "transform" not in remedy


def test_a_refusal_after_the_commit_does_not_say_that_nothing_was_written() -> None:
    error = refusal(lambda: seen(epoch=7, txn=str(TXN)))
    assert isinstance(error, OutcomeUnknown) and f"Spark committed {TXN} into /t" in error.what


def test_a_refusal_of_which_the_table_cannot_be_asked_leaves_the_outcome_open() -> None:
    error = refusal(unreachable)
    assert isinstance(error, OutcomeUnknown) and "start it." in error.remedy


def test_an_epoch_of_which_the_log_has_lost_the_commit_is_no_second_ledgers() -> None:
    def answered(txn: str | None) -> Callable[[], JsonDict]:
        return lambda: as_json(Committed(**vars(seen(epoch=7, txn=txn))))

    forgotten = refusal(unreachable, answered(None))
    assert forgotten.code is codes.DELTA_COMMIT_FORGOTTEN and "removed the commit" in forgotten.what
    assert "the rows that are staged at /t/p" in forgotten.remedy and "do not backfill it" in forgotten.remedy
    another = refusal(unreachable, answered(str(transaction(7, attempt=2))))
    assert another.code is codes.TWO_LEDGERS


def test_a_report_of_a_commit_that_cannot_be_read_leaves_the_outcome_open_unless_the_table_tells() -> None:
    def unfit() -> JsonDict:
        return {"marker": {}}

    landed = refusal(lambda: seen(epoch=7, txn=str(TXN)), unfit)
    assert isinstance(landed, OutcomeUnknown) and f"Spark committed {TXN} into /t" in landed.what
    unseen = refusal(unreachable, unfit)
    assert isinstance(unseen, OutcomeUnknown) and unseen.code is codes.DELTA_COMMIT_UNKNOWN
    assert (
        "cannot read the report of the Spark job 'delta_commit'. This is no Committed: about is missing" in unseen.what
    )
    assert isinstance(refusal(lambda: seen(exists=False), unfit), Corrupt)
