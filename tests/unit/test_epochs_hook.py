"""The connection of type ``epochs``: what is missing or wrong in it is said, and its test says whether it would do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.hooks import epochs
from airflow_epochs.hooks.epochs import AirflowEnvironment, EpochsHook
from airflow_epochs.hooks.schema_registry import SchemaRegistryHook
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.spark.runners import SparkConnect

KEY = "a key that nobody can guess"


def given(monkeypatch: pytest.MonkeyPatch, conn_id: str, conn_type: str = "epochs", **fields: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": conn_type, **fields}))


def test_a_connection_that_is_not_there_is_named() -> None:
    with pytest.raises(NotApplied, match="Airflow has no connection 'nowhere'"):
        EpochsHook("nowhere").get_conn()


def test_a_connection_without_a_root_says_which_field_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, "epochs_default", extra={})
    with pytest.raises(Refused, match="Set `ledger_root` to an absolute path"):
        EpochsHook().get_conn()


@pytest.mark.parametrize(
    ("extra", "lacks"),
    [
        *(("[1,2]", "a JSON object"), ('"s3cret"', "a JSON object"), ("5", "a JSON object"), ("null", "a JSON object")),
        ("{s3cret", "JSON"),
    ],
)
@pytest.mark.parametrize("conn_type", ["epochs", "kafka"])
def test_an_extra_that_is_no_json_object_is_refused_with_what_to_write_and_without_what_it_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, conn_type: str, extra: str, lacks: str
) -> None:
    given(monkeypatch, "odd", conn_type, extra=extra)
    with pytest.raises(Refused) as caught:
        AirflowEnvironment(SparkConnect()).connection("odd")
    told = str(caught.value).splitlines()
    assert told[0] == f"EPOCHS-STORAGE-OPTIONS-UNREADABLE: The extra of connection 'odd' is not {lacks}."
    assert told[1].startswith("What to do: Write it as a JSON object")
    assert "s3cret" not in str(caught.value) + caplog.text
    assert SchemaRegistryHook("odd").test_connection() == (False, str(caught.value))
    given(monkeypatch, "odd", conn_type, extra='{"name": "value"}')  # as the text says
    assert AirflowEnvironment(SparkConnect()).connection("odd").extra == {"name": "value"}


@pytest.mark.parametrize("extra", [None, "", " ", {}])
def test_an_empty_extra_has_no_fields(monkeypatch: pytest.MonkeyPatch, extra: object) -> None:
    given(monkeypatch, "plain", "kafka", extra=extra)
    assert AirflowEnvironment(SparkConnect()).connection("plain").extra == {}


def test_a_number_as_the_id_of_a_connection_is_taken_as_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given(monkeypatch, "epochs_default", extra={"ledger_root": str(tmp_path), "storage_conn_id": 5})
    with pytest.raises(NotApplied, match="Airflow has no connection '5'"):
        EpochsHook().get_conn()


@pytest.mark.parametrize("as_text", [False, True], ids=["an object", "an object as text"])
def test_the_ledgers_own_options_win_over_those_of_the_connection_with_the_credentials(
    monkeypatch: pytest.MonkeyPatch, as_text: bool
) -> None:
    own = {"aws_region": "eu-north-1", "allow_http": True}
    options = json.dumps(own) if as_text else own
    extra = {"ledger_root": "s3://bucket/epochs", "storage_conn_id": "aws_lake", "storage_options": options}
    given(monkeypatch, "epochs_default", extra=extra)
    given(monkeypatch, "aws_lake", "aws", login="key", password="secret", extra={"region_name": "eu-west-1"})
    opened: dict[str, Any] = {}

    def open_store(root: str, options: dict[str, str], conn_id: str) -> None:
        opened.update(root=root, conn_id=conn_id, **options)

    monkeypatch.setattr("airflow_epochs.ledger.store.open_store", open_store)
    EpochsHook().get_conn()
    assert opened == {
        "root": "s3://bucket/epochs",
        "conn_id": "aws_lake",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        "aws_region": "eu-north-1",
        "allow_http": "true",
    }


def test_options_that_are_no_object_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, "epochs_default", extra={"ledger_root": "/ledger", "storage_options": "aws_region=eu"})
    with pytest.raises(Refused, match="is not a JSON object"):
        EpochsHook().get_conn()


@pytest.mark.proof
def test_the_test_button_tries_put_if_absent_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given(monkeypatch, "epochs_default", password=KEY, extra={"ledger_root": str(tmp_path)})
    ok, told = EpochsHook().test_connection()
    assert ok and told == (
        "The ledger's store honours put-if-absent: a probe was written, read back and removed. Every worker must see "
        f"the same folder at {tmp_path}. Records are signed."
    )
    assert list(tmp_path.iterdir()) == []


def test_the_test_button_creates_no_misspelled_folder_unless_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "ledgre"
    given(monkeypatch, "epochs_default", password=KEY, extra={"ledger_root": str(root)})
    ok, told = EpochsHook().test_connection()
    assert not ok and not root.exists()
    assert told.startswith(
        f"EPOCHS-LEDGER-FOLDER-MISSING: The folder {root} does not exist on this machine. The field `ledger_root` of "
        "connection 'epochs_default' names it. Nothing was created.\nWhat to do: Correct"
    )
    given(monkeypatch, "epochs_default", password=KEY, extra={"ledger_root": str(root), "create": True})
    ok, told = EpochsHook().test_connection()
    assert ok and list(root.iterdir()) == []


def test_the_test_button_names_the_place_that_takes_no_folder_and_no_pipeline_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    given(monkeypatch, "epochs_default", password=KEY, extra={"ledger_root": "/proc/nowhere", "create": True})
    ok, told = EpochsHook().test_connection()
    assert not ok and "cannot write to the ledger at /proc/nowhere: [Errno 2] No such file or" in told
    assert "What to do: Correct `ledger_root`" in told
    assert epochs.PROBED not in told and "probe" not in caplog.text
    given(monkeypatch, "epochs_default", password=KEY, extra={"ledger_root": str(tmp_path / "new"), "create": True})
    ok, told = EpochsHook().test_connection()
    assert ok and list((tmp_path / "new").iterdir()) == []


def test_a_probe_that_could_not_be_put_is_not_said_to_be_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    class Full(LocalStore):
        def put_if_absent(self, key: str, value: bytes) -> bool:
            raise OSError(28, "No space left on device")

        def delete(self, key: str) -> None:
            raise OSError(5, "Input/output error")

    given(monkeypatch, "epochs_default", password=KEY, extra={"ledger_root": str(tmp_path)})
    monkeypatch.setattr(EpochsHook, "get_conn", lambda self: Full(tmp_path))
    ok, told = EpochsHook().test_connection()
    assert not ok and "No space left on device" in told and "Free space on the ledger's disk" in told
    assert "cannot delete the probe" not in caplog.text


def test_a_root_that_is_a_link_to_what_is_away_is_left_to_the_store_which_may_be_there_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ledger").symlink_to(tmp_path / "mount" / "ledger")
    given(monkeypatch, "epochs_default", password=KEY, extra={"ledger_root": str(tmp_path / "ledger")})
    assert EpochsHook().get_conn()


def test_a_root_that_is_a_file_is_refused_and_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "afile"
    file.write_text("precious")
    for root in (file, file / "epochs"):
        given(monkeypatch, "epochs_default", password=KEY, extra={"ledger_root": str(root), "create": True})
        ok, told = EpochsHook().test_connection()
        assert not ok and told.startswith(f"{codes.LEDGER_ROOT_UNUSABLE.name}: ")
        assert f"connection 'epochs_default' is '{root}', and {file} is not a folder" in told
    assert file.read_text() == "precious"


def test_the_test_button_leaves_the_ledgers_that_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = tmp_path / "connection-test" / "pipeline.json"
    kept.parent.mkdir()
    kept.write_text("{}")
    given(monkeypatch, "epochs_default", extra={"ledger_root": str(tmp_path)})
    EpochsHook().test_connection()
    assert kept.read_text() == "{}"


def test_the_test_button_says_why_a_store_will_not_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Overwriting(LocalStore):
        def put_if_absent(self, key: str, value: bytes) -> bool:
            self.delete(key)
            return super().put_if_absent(key, value)

    given(monkeypatch, "epochs_default", extra={"ledger_root": str(tmp_path)})
    monkeypatch.setattr(EpochsHook, "get_conn", lambda self: Overwriting(tmp_path))
    ok, why = EpochsHook().test_connection()
    assert not ok
    assert "does not support put-if-absent" in why


def test_credentials_do_not_show_in_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, "aws_lake", "aws", login="key", password="hunter2")
    assert "hunter2" not in repr(epochs.connection("aws_lake"))


@pytest.mark.parametrize(
    ("password", "told"),
    [
        (None, "THE LEDGER IS NOT SIGNED: connection 'epochs_default' has no password"),
        ("", "THE LEDGER IS NOT SIGNED"),
        ("hunter2", "is easy to guess"),
        (f"{KEY},hunter2", "is easy to guess"),
    ],
)
def test_without_a_good_key_the_log_says_so_loudly_and_once_and_the_test_button_too(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    password: str | None,
    told: str,
) -> None:
    monkeypatch.setattr(secrecy, "_warned", set())
    given(monkeypatch, "epochs_default", password=password, extra={"ledger_root": str(tmp_path)})
    for _ in range(3):
        EpochsHook().ledger("orders")
    [record] = [record for record in caplog.records if told in record.getMessage()]
    assert record.levelname == "WARNING" and "\nWhat to do: " in record.getMessage()
    ok, text = EpochsHook().test_connection()
    assert ok and told in text
    assert "hunter2" not in caplog.text + text


@pytest.mark.proof
def test_each_key_of_the_list_is_a_secret_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given(monkeypatch, "epochs_default", password=f"{KEY},another key", extra={"ledger_root": str(tmp_path)})
    EpochsHook().ledger("orders")
    text = secrecy.scrubbed(f"<{KEY}> <another key>")
    assert KEY not in text and "another key" not in text


@pytest.mark.parametrize("truth", [True, "true", "True"])
def test_a_connection_that_requires_signatures_needs_a_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, truth: object
) -> None:
    given(monkeypatch, "epochs_default", extra={"ledger_root": str(tmp_path), "require_signed": truth})
    with pytest.raises(Refused, match="has `require_signed`, but it has no password") as refused:
        EpochsHook().ledger("orders")
    assert "secrets.token_urlsafe" in refused.value.remedy


def test_what_is_neither_true_nor_false_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given(monkeypatch, "epochs_default", extra={"ledger_root": str(tmp_path), "require_signed": "yes, please"})
    with pytest.raises(Refused, match=r"is 'yes, please'. It must be true or false"):
        EpochsHook().ledger("orders")


@pytest.mark.proof
def test_blanks_around_the_root_of_a_ledger_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for blanks in (" {}\n", "{} ", "file://{} "):
        given(monkeypatch, "epochs_default", extra={"ledger_root": blanks.format(tmp_path)})
        assert EpochsHook().ledger("orders").root == str(tmp_path)


@pytest.mark.parametrize("given_as", ["{} ", "file://{} "])
def test_a_ledger_in_a_folder_with_a_blank_at_its_end_is_found_as_the_error_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_as: str
) -> None:
    plain, blank = tmp_path / "ledger", tmp_path / "ledger "
    blank.mkdir()
    given(monkeypatch, "epochs_default", extra={"ledger_root": given_as.format(plain)})
    with pytest.raises(Refused, match="a ledger may be there") as refused:
        EpochsHook().ledger("orders")
    assert refused.value.code is codes.LEDGER_ROOT_UNUSABLE
    for name, root in zip(re.findall(r"'(\S+)'", refused.value.remedy), [blank, plain], strict=True):
        given(monkeypatch, "epochs_default", extra={"ledger_root": name})
        assert EpochsHook().ledger("orders").root == str(root)
