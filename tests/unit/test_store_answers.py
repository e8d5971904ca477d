"""What an object store answers is told by its code and message, with what to do about it and in which connection."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from airflow_epochs.delta.table import TableLocation, open_table
from airflow_epochs.errors import EpochError
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.storage.files import open_files
from tests.support.records import open_record
from tests.support.s3_answers import AnsweringS3, answering_s3

KEYS = "Correct the access key, the secret key and the session token in connection 'aws_lake'. Then"
ANSWERS = [
    (400, "ExpiredToken", "Put a new session token into connection 'aws_lake': a retry fails until then. Then"),
    (403, "InvalidAccessKeyId", KEYS),
    (403, "SignatureDoesNotMatch", KEYS),
    (403, "RequestTimeTooSkewed", "Set the clock of the worker: it differs too much from the store's. Then"),
    (403, "AccessDenied", "Grant the credentials in connection 'aws_lake' the permissions to read and list there, and"),
    (404, "NoSuchBucket", "Create the bucket, or correct its name in {place}. Then"),
]
EACH = pytest.mark.parametrize(("status", "code", "remedy"), ANSWERS, ids=[code for _, code, _ in ANSWERS])


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringS3]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with answering_s3() as found:
        yield found


@pytest.fixture
def hook(s3: AnsweringS3, monkeypatch: pytest.MonkeyPatch) -> EpochsHook:
    extra = {"ledger_root": "s3://bucket/epochs", "storage_conn_id": "aws_lake"}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps({"conn_type": "epochs", "extra": extra}))
    aws = {"region_name": "eu-1", "endpoint_url": s3.endpoint}
    given = {"conn_type": "aws", "login": "id", "password": "hunter2hunter2", "extra": aws}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_LAKE", json.dumps(given))
    return EpochsHook()


def told(ask: Callable[[], object], s3: AnsweringS3, status: int, code: str) -> EpochError:
    """The error while S3 answers so. Its cause has S3's words, and nothing of its client's dump."""
    s3.says = (status, code, "S3 says\nwhy.")
    with pytest.raises(EpochError) as error:
        ask()
    s3.says = None
    said = str(error.value)
    assert re.search(rf"{code} \(S3 says why\.\) to (GET|PUT) /bucket\S*$", error.value.what.rstrip("."))
    assert len(error.value.what) < 250 and not any(word in said for word in ("Debug source", "<", "xml", "Generic"))
    return error.value


@EACH
def test_a_ledger_that_is_read_or_written_in_vain_is_told_by_what_its_store_says(
    hook: EpochsHook, s3: AnsweringS3, status: int, code: str, remedy: str
) -> None:
    ledger, record = hook.ledger("p"), open_record(1)
    asks: list[Callable[[], object]] = [ledger.identity, hook.pipelines, lambda: ledger.put(record)]
    for ask in asks:
        error = told(ask, s3, status, code)
        assert error.remedy.startswith(remedy.format(place="`ledger_root` of the ledger's connection"))
        assert error.remedy.endswith("Then let Airflow retry, or clear the failed task: it goes on where it stopped.")
    assert ledger.put(record) == record, "after the correction it goes on"
    assert hook.ledger("p").open_record(1, 1) == record


@pytest.mark.proof
@EACH
def test_the_button_test_tells_what_the_store_says(
    hook: EpochsHook, s3: AnsweringS3, status: int, code: str, remedy: str
) -> None:
    s3.says = (status, code, "S3 says why.")
    fine, text = hook.test_connection()
    assert not fine and f"{code} (S3 says why.)" in text and "Debug source" not in text
    assert remedy.format(place="`ledger_root` of the ledger's connection") in text
    s3.says = None
    assert hook.test_connection()[0]


@EACH
def test_files_and_tables_that_are_asked_for_in_vain_are_told_by_what_their_store_says(
    s3: AnsweringS3, status: int, code: str, remedy: str
) -> None:
    url = "s3://bucket/lake/orders"
    files, table = open_files(url, s3.options, "aws_lake"), TableLocation(url, url, s3.options, "aws_lake")
    asks: list[Callable[[], object]] = [
        lambda: files.read("a"),
        lambda: files.sizes("a"),
        lambda: files.write_new("a", b"x"),
        lambda: open_table(table),
    ]
    for ask in asks:
        error = told(ask, s3, status, code)
        assert error.remedy.startswith(remedy.format(place="the path"))
    assert open_table(table) is None
    assert files.write_new("a", b"x") and files.read("a") == b"x"


def test_a_look_that_is_denied_without_a_word_is_told_with_both_causes(s3: AnsweringS3) -> None:
    """S3's answers to HEAD have no body."""
    s3.says = (403, "InvalidAccessKeyId", "S3 says why.")
    with pytest.raises(EpochError) as error:
        open_files("s3://bucket/lake/orders", s3.options, "aws_lake").missing(["a"])
    assert error.value.remedy.startswith("Check the access key in connection 'aws_lake'. If it is right, grant it the")
    assert "Debug source" not in str(error.value)


def test_files_are_not_missing_where_the_whole_bucket_is(s3: AnsweringS3) -> None:
    """S3 tells the two apart in the body of an answer, and an answer to HEAD has none."""
    files = open_files("s3://bucket/lake/orders", s3.options, "aws_lake")
    error = told(lambda: files.missing(["a", "b"]), s3, 404, "NoSuchBucket")
    assert error.remedy.startswith("Create the bucket, or correct its name in the path.")
    files.write_new("b", b"x")
    assert files.missing(["a", "b"]) == {"a"}


@pytest.mark.parametrize(
    ("conn_id", "holder"),
    [(None, "the store's connection, or in the worker's environment:"), ("epochs_default", "connection 'epochs_")],
)
def test_the_connection_is_named_that_has_the_credentials_if_one_has(
    conn_id: str | None, holder: str, s3: AnsweringS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"ledger_root": "s3://bucket/epochs", "storage_options": s3.options}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps({"conn_type": "epochs", "extra": extra}))
    files = open_files("s3://bucket/lake", s3.options)
    ask = EpochsHook().ledger("p").identity if conn_id else lambda: files.read("a")
    assert f"Put a new session token into {holder}" in told(ask, s3, 400, "ExpiredToken").remedy
