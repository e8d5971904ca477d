"""One mapping from a connection to object-store options; files on local disks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.names import normalised
from airflow_epochs.storage.files import Files, open_files
from airflow_epochs.storage.local import LocalFiles
from airflow_epochs.storage.objects import ObjectFiles, Objects, object_store
from airflow_epochs.storage.options import storage_options


def connection(conn_type: str, **values: Any) -> Connection:
    return Connection(conn_id="c", conn_type=conn_type, **values)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (connection("aws", login="id", password="key"), {"aws_access_key_id": "id", "aws_secret_access_key": "key"}),
        (
            connection("aws", extra={"region_name": "eu-1", "endpoint_url": "http://minio:9000", "verify": False}),
            {
                "aws_region": "eu-1",
                "aws_endpoint": "http://minio:9000",
                "allow_http": "true",
                "allow_invalid_certificates": "true",
            },
        ),
        (
            connection("aws", extra={"service_config": {"s3": {"endpoint_url": "https://s3"}}, "endpoint_url": "x"}),
            {"aws_endpoint": "https://s3"},
        ),
        (
            connection("aws", login="id", extra={"aws_session_token": "t"}),
            {"aws_access_key_id": "id", "aws_session_token": "t"},
        ),
        (connection("google_cloud_platform", extra={"key_path": "/k.json"}), {"google_service_account": "/k.json"}),
        (
            connection("google_cloud_platform", extra={"keyfile_dict": {"a": 1}}),
            {"google_service_account_key": '{"a": 1}'},
        ),
        (
            connection("wasb", login="account", password="key"),
            {"azure_storage_account_name": "account", "azure_storage_account_key": "key"},
        ),
        (
            connection("wasb", login="account", password="other", extra={"shared_access_key": "key"}),
            {"azure_storage_account_name": "account", "azure_storage_account_key": "key"},
        ),
        (
            connection("adls", login="app", password="s", extra={"tenant_id": "t", "account_name": "account"}),
            {
                "azure_client_id": "app",
                "azure_client_secret": "s",
                "azure_tenant_id": "t",
                "azure_storage_account_name": "account",
            },
        ),
        (
            connection("epochs", extra={"storage_options": '{"AWS_REGION": "x", "allow_http": true}'}),
            {"aws_region": "x", "allow_http": "true"},
        ),
        (
            connection("aws", login="id", extra={"storage_options": {"aws_access_key_id": "other"}}),
            {"aws_access_key_id": "other"},
        ),
        (connection("generic"), {}),
        (None, {}),
    ],
)
def test_connections_become_object_store_options(given: Connection | None, expected: dict[str, str]) -> None:
    assert storage_options(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        connection("aws", extra={"role_arn": "arn"}),
        connection("aws", login="id", password="key", extra={"role_arn": "arn", "region_name": "eu-1"}),
        connection("aws", extra={"profile_name": "lake"}),
        connection("google_cloud_platform", extra={"impersonation_chain": "a@b", "key_path": "/k.json"}),
        connection("google_cloud_platform", extra={"key_secret_name": "secret"}),
        connection("google_cloud_platform", extra={"credential_config_file": "/c.json"}),
        connection("wasb", login="account", extra={"connection_string": "AccountKey=hunter2"}),
    ],
    ids=lambda given: next(iter(given.extra)),
)
def test_a_connection_that_means_another_identity_is_refused_by_the_fields_name(given: Connection) -> None:
    with pytest.raises(Refused, match=f"extra of connection 'c' has {next(iter(given.extra))}, which") as refused:
        storage_options(given)
    assert refused.value.code is codes.STORE_UNUSABLE and "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            connection("aws", extra={"role_arn": "arn", "storage_options": {"aws_access_key_id": "id"}}),
            {"aws_access_key_id": "id"},
        ),
        (
            connection("aws", login="id", password="key", extra={"profile_name": "lake"}),
            {"aws_access_key_id": "id", "aws_secret_access_key": "key"},
        ),
        (
            connection("wasb", login="account", password="key", extra={"connection_string": "x"}),
            {"azure_storage_account_name": "account", "azure_storage_account_key": "key"},
        ),
        (connection("aws", extra={"role_arn": "", "config_kwargs": {}, "assume_role_method": "assume_role"}), {}),
    ],
)
def test_a_connection_with_credentials_or_options_of_its_own_goes_on_with_them(
    given: Connection, expected: dict[str, str]
) -> None:
    assert storage_options(given) == expected


@pytest.mark.parametrize("conn_type", ["generic", "http", "none", ""])
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"login": "key", "password": "secret"}, "login, password"),
        ({"extra": {"role_arn": "arn:aws:iam::1:role/lake"}}, "role_arn"),
        ({"extra": {"keyfile_dict": {"a": 1}}}, "keyfile_dict"),
        ({"extra": {"key_path": "/k.json"}}, "key_path"),
        ({"extra": {"shared_access_key": "key", "account_name": "account"}}, "shared_access_key"),
        ({"extra": {"sas_token": "s", "account_key": "key"}}, "sas_token, account_key"),
    ],
)
def test_credentials_in_a_connection_of_another_type_are_refused_not_ignored(
    conn_type: str, values: dict[str, Any], named: str
) -> None:
    with pytest.raises(Refused, match=rf"has the type '{conn_type}'\. .* and the connection has {named}") as refused:
        storage_options(Connection(conn_id="c", conn_type=conn_type, **values))
    assert refused.value.code is codes.STORE_UNUSABLE
    remedy, own = refused.value.remedy, "Take these fields out to go on with the worker's own credentials"
    assert remedy.startswith(own) or f"unless this one is right. {own}" in remedy
    assert remedy.startswith("Name a connection of type aws, ") is (conn_type in ("http", "none"))


@pytest.mark.parametrize(
    "extra",
    [
        {"region_name": "eu-1"},
        {"endpoint_url": "https://minio:9000"},
        {"service_config": {"s3": {"endpoint_url": "https://minio:9000"}}},
        {"tenant_id": "t", "account_name": "account"},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_a_place_in_a_connection_of_another_type_is_ignored_with_a_warning(
    extra: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    conn_id = f"c_{next(iter(extra))}"  # a process warns once of each text
    assert storage_options(Connection(conn_id=conn_id, conn_type="s3", extra=extra)) == {}
    assert f"connection {conn_id}: {', '.join(extra)} are ignored" in caplog.text


@pytest.mark.parametrize("nothing", [{}, "{}"])
def test_empty_storage_options_say_that_the_workers_own_credentials_are_meant(nothing: object) -> None:
    given = Connection(conn_id="c", conn_type="http", login="x", password="y", extra={"storage_options": nothing})
    assert storage_options(given) == {}


def test_a_field_that_the_form_left_empty_is_no_storage_options() -> None:
    with pytest.raises(Refused, match="the connection has login"):
        storage_options(Connection(conn_id="c", conn_type="http", login="x", extra={"storage_options": ""}))


@pytest.mark.parametrize("conn_type", ["epochs", "generic"])
def test_the_key_of_a_ledger_is_no_password_of_its_store(conn_type: str) -> None:
    extra = {"ledger_root": "s3://lake/ledger"}
    assert storage_options(Connection(conn_id="c", conn_type=conn_type, password="a key", extra=extra)) == {}


def test_a_connection_of_another_type_with_storage_options_or_nothing_at_all_is_taken() -> None:
    options = {"storage_options": {"aws_region": "eu"}}
    assert storage_options(Connection(conn_id="c", conn_type="http", login="x", extra=options)) == {"aws_region": "eu"}
    assert storage_options(Connection(conn_id="c", conn_type="generic")) == {}


@pytest.mark.parametrize("wrong", ["not json", "[1]", 5])
def test_storage_options_that_are_no_object_are_refused(wrong: Any) -> None:
    with pytest.raises(Refused, match="storage_options of connection 'c'"):
        storage_options(connection("epochs", extra={"storage_options": wrong}))


def test_secrets_show_in_no_error_of_a_wrong_store() -> None:
    options = {"aws_secret_access_key": "hunter2", "aws_access_key_id": "id", "aws_conditional_put": "nonsense"}
    with pytest.raises(Refused) as refused:
        object_store("s3://bucket/x", options)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/a/b/", "/a/b"),
        ("//a//./b/.", "/a/b"),
        ("file:///a//b", "/a/b"),
        ("/a/../b", "/a/../b"),
        ("s3://b//k", "s3://b//k"),
        ("file:///a%20b/c", "/a b/c"),
        ("file:/a/b", "/a/b"),
        ("s3a://b/k/", "s3://b/k"),
        ("s3n://b/k", "s3://b/k"),
        ("S3://B/K", "s3://B/K"),
        ("File:///a/b", "/a/b"),
        ("main.silver.orders", "main.silver.orders"),
        ("/a%20b", "/a%20b"),
        ("gs://b/k", "gs://b/k"),
        ("", ""),
        ("/", "/"),
    ],
)
def test_a_place_has_one_spelling(url: str, expected: str) -> None:
    assert normalised(url) == expected


def test_a_relative_root_is_refused() -> None:
    with pytest.raises(Refused, match="not absolute"):
        open_files("a/b")


def test_put_if_absent_never_overwrites_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert files.write_new("a/b", b"1")
    assert not files.write_new("a/b", b"2")
    assert files.read("a/b") == b"1"
    assert files.sizes("") == {"a/b": 1}


@pytest.fixture(params=["local", "object store"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    if request.param == "local":
        return LocalFiles(tmp_path)
    from obstore.store import MemoryStore

    return ObjectFiles("memory:///", MemoryStore())


def test_an_opened_file_can_be_read_from_anywhere_in_it(files: Files) -> None:
    content = bytes(range(256)) * 20_000  # more than is read at once
    files.write_new("folder/file", content)
    with files.open("folder/file") as file:
        assert file.seek(-7, os.SEEK_END) == len(content) - 7
        assert file.read() == content[-7:]
        assert file.seek(300) == 300
        assert file.read(10) == content[300:310]
        assert file.tell() == 310
        assert file.read(len(content)) == content[310:]


def test_a_parquet_file_is_read_through_an_opened_file(files: Files) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    table, written = pa.table({"id": range(1_000)}), io.BytesIO()
    pq.write_table(table, written, row_group_size=100)
    files.write_new("file", written.getvalue())
    with files.open("file") as file, pq.ParquetFile(file, pre_buffer=False, buffer_size=4_096) as parquet:
        assert parquet.read() == table


def test_a_file_of_the_local_disk_is_uploaded_whole(files: Files, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(6_000_000))  # more than one part of an upload
    files.upload("folder/file", source)
    assert files.read("folder/file") == source.read_bytes()
    assert files.sizes("folder") == {"folder/file": 6_000_000}


def test_absent_files_and_folders_are_no_error(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "nope")
    assert files.read("x") is None
    assert files.names("x") == set()
    assert files.sizes("x") == {}
    files.delete("x")


def test_a_file_at_which_the_disk_does_not_let_one_look_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    files = LocalFiles(tmp_path)
    assert files.missing(["none", "folder", "loops/none"]) == {"none", "folder", "loops/none"}
    with pytest.raises(NotApplied, match="symbolic links") as error:
        files.missing(["none", "loop"])
    assert error.value.code is codes.STORE_UNREACHABLE


def test_deleting_a_folder_deletes_all_in_it_and_nothing_beside_it(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    for name in ("a/b/c", "a/d", "ab"):
        files.write_new(name, b"x")
    files.delete("a")
    files.delete("a")
    assert files.sizes("") == {"ab": 1}


def test_deleting_a_folder_goes_on_behind_an_object_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from obstore.store import LocalStore

    files = ObjectFiles("file:///", LocalStore(tmp_path))
    for number in range(20):
        files.write_new(f"a/{number}", b"x")
    listed = Objects.sizes
    monkeypatch.setattr(Objects, "sizes", lambda self, folder: {"a/marker": 0, **listed(self, folder)})
    files.delete("a")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_deleting_a_link_spares_what_it_points_to(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.write_new("kept/x", b"x")
    os.symlink(tmp_path / "kept", tmp_path / "link")
    files.delete("link")
    assert files.sizes("kept") == {"kept/x": 1}


def test_a_full_disk_is_not_applied_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotApplied, match="No space left"):
        LocalFiles(tmp_path).write_new("a", b"x")
    assert list(tmp_path.iterdir()) == []


def test_options_are_plain_json(tmp_path: Path) -> None:
    options = storage_options(connection("aws", login="i", password="p", extra={"verify": False}))
    assert json.loads(json.dumps(options)) == options


@pytest.mark.parametrize("url", ["hdfs://name-node/lake/orders", "dbfs:/lake/orders"])
def test_a_place_that_only_spark_can_read_is_refused(url: str) -> None:
    with pytest.raises(Refused, match=f"cannot open the object store at {url}"):
        open_files(url)
