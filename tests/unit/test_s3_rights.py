"""S3 without s3:ListBucket: it denies to read a file that is not there, and the error names the permission."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import OutcomeUnknown, Refused
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.storage.files import Files, open_files
from airflow_epochs.storage.vacuum import tables_around
from tests.support.s3_answers import Answering

DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
LACKS = "s3:ListBucket: without it, S3 denies to read a file that is not there"


class Bucket(Answering):
    """Keeps objects; answers 403 to whatever asks for one that is not there, and to a listing."""

    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        value = self.rfile.read(int(self.headers["Content-Length"]))
        taken = self.path in self.objects
        if not taken:
            self.objects[self.path] = value
        self.answer(412 if taken else 200)

    def do_GET(self) -> None:
        value = self.objects.get(self.path)
        self.answer(403, DENIED) if value is None else self.answer(200, value)

    def do_HEAD(self) -> None:
        self.answer(200 if self.path in self.objects else 403)

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self.answer(204)


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    kept = type("Kept", (Bucket,), {"objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), kept) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield {
            "aws_endpoint": f"http://127.0.0.1:{server.server_port}",
            "allow_http": "true",
            "aws_region": "eu-1",
            "aws_access_key_id": "id",
            "aws_secret_access_key": "key",
        }
        server.shutdown()


@pytest.fixture
def hook(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> EpochsHook:
    extra = {"ledger_root": "s3://bucket/epochs", "storage_options": options}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps({"conn_type": "epochs", "extra": extra}))
    return EpochsHook()


@pytest.mark.parametrize(
    "ask",
    [
        lambda hook: hook.ledger("orders").identity(),
        lambda hook: hook.ledger("orders").newest_complete(),
        lambda hook: hook.pipelines(),
    ],
    ids=["a read", "a look", "a listing"],
)
def test_a_ledger_that_may_not_be_listed_is_told_with_the_permission(
    ask: Callable[[EpochsHook], object], hook: EpochsHook
) -> None:
    with pytest.raises(OutcomeUnknown) as error:
        ask(hook)
    assert error.value.code is codes.LEDGER_UNREADABLE
    assert LACKS in error.value.remedy and "clear the failed task" in error.value.remedy


def test_the_button_test_finds_out_that_a_ledger_may_not_be_listed(hook: EpochsHook) -> None:
    """The probe writes and reads only what it has written."""
    fine, text = hook.test_connection()
    assert not fine and LACKS in text


@pytest.mark.parametrize(
    "ask",
    [lambda files: files.read("a"), lambda files: files.missing(["a"]), lambda files: files.sizes("a")],
    ids=["a read", "a look", "a listing"],
)
def test_files_that_may_not_be_listed_are_told_with_the_permission(
    ask: Callable[[Files], object], options: dict[str, str]
) -> None:
    with pytest.raises(Refused) as error:
        ask(open_files("s3://bucket/lake", options))
    assert error.value.code is codes.STORE_FORBIDDEN and LACKS in error.value.remedy


def test_a_bucket_that_denies_to_list_it_says_nothing_of_tables_around_a_place(options: dict[str, str]) -> None:
    assert list(tables_around("s3://bucket/bronze/orders", options)) == []
