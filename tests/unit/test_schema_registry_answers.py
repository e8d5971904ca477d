"""What the answers of a server mean that should be a schema registry."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_epochs.contracts import Connection
from airflow_epochs.errors import EpochError, NotApplied, Refused
from airflow_epochs.hooks.schema_registry import SchemaRegistryHook
from airflow_epochs.kafka.schema_registry import id_of, known_id_of, require_answer, schemas_of
from airflow_epochs.schemas import WriterSchema
from tests.support.registry_answers import answering

SCHEMA = WriterSchema(kind="AVRO", text='{"type": "string"}')
NO_SUBJECT = b'{"error_code": 40401, "message": "Subject not found."}'
ASKING: dict[str, Callable[[Connection], object]] = {
    "open of a sink": lambda at: require_answer(at, "s"),
    "open of a source": lambda at: schemas_of(at, ["s"]),
    "vote that registers": lambda at: id_of(at, "s", SCHEMA, register=True),
    "vote that looks up": lambda at: id_of(at, "s", SCHEMA, register=False),
    "preview": lambda at: known_id_of(at, "s", SCHEMA),
}


def at(url: str) -> Connection:
    return Connection(conn_id="r", conn_type="schema_registry", host=url, extra={"max.retries": 0})


def failure(url: str, ask: Callable[[Connection], object]) -> EpochError:
    with pytest.raises(EpochError) as failed:
        ask(at(url))
    return failed.value


def code_of(error: EpochError) -> str:
    assert error.code
    return error.code.name


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (401, b"{}", Refused, "EPOCHS-REGISTRY-REFUSED"),
        (403, b'{"error_code": 40301, "message": "no"}', Refused, "EPOCHS-REGISTRY-REFUSED"),
        (422, b"{}", NotApplied, "EPOCHS-REGISTRY-UNREACHABLE"),
        (200, b"<html>a proxy</html>", NotApplied, "EPOCHS-REGISTRY-UNREACHABLE"),
    ],
)
def test_an_answer_that_is_no_answer_has_a_code_that_tells_what_to_do(
    status: int, body: bytes, kind: type[EpochError], code: str
) -> None:
    with answering(status, body) as url:
        failed = failure(url, ASKING["open of a source"])
    assert (type(failed), code_of(failed)) == (kind, code)
    assert "connection 'r'" in failed.what


ELSEWHERE = [
    (404, b"<html>not here</html>"),
    (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'),  # a registry, at a path that it does not have
    (404, b'{"error": "not found"}'),
    (404, b"[]"),
    (200, b'{"hello": 1}'),
    (200, b'["a"]'),
    (200, b"null"),
    (200, b'"yes"'),
    (200, b""),
]


@pytest.mark.parametrize("asked", ASKING)
@pytest.mark.parametrize(("status", "body"), ELSEWHERE)
def test_what_answers_at_a_wrong_address_is_no_registry_and_the_error_says_which_address_is_wrong(
    status: int, body: bytes, asked: str
) -> None:
    with answering(status, body) as url:
        failed = failure(url, ASKING[asked])
    assert (type(failed), code_of(failed)) == (Refused, "EPOCHS-REGISTRY-CONNECTION")
    assert f"The schema registry of connection 'r' is not at {url}." in failed.what
    assert "register_schemas" not in failed.remedy
    assert "Correct the host of the connection" in failed.remedy


@pytest.mark.parametrize("code", [40401, 40402, 40403, 40404])
def test_a_subject_that_a_registry_does_not_have_is_no_wrong_address(code: int) -> None:
    with answering(404, json.dumps({"error_code": code, "message": "no"}).encode()) as url:
        require_answer(at(url), "s")
        assert known_id_of(at(url), "s", SCHEMA) == 0
        assert code_of(failure(url, ASKING["open of a source"])) == "EPOCHS-REGISTRY-SUBJECT-MISSING"
        assert code_of(failure(url, ASKING["vote that looks up"])) == "EPOCHS-REGISTRY-SCHEMA-UNKNOWN"


def test_the_address_in_the_error_has_no_password_and_the_answer_is_cut() -> None:
    with answering(404, b"x" * 10_000) as url:
        text = str(failure(url.replace("://", "://me:s3cr3t@"), ASKING["open of a sink"]))
    assert f"is not at {url}." in text
    assert "s3cr3t" not in text
    assert len(text) < 1000


def test_the_test_button_says_that_something_else_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, b'{"hello": 1}') as url:
        told: dict[str, Any] = {"conn_type": "schema_registry", "host": url}
        monkeypatch.setenv("AIRFLOW_CONN_R", json.dumps(told))
        fine, text = SchemaRegistryHook("r").test_connection()
    assert not fine
    assert f"is not at {url}." in text
