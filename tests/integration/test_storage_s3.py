"""Files on S3: which are missing, and how they are made young; and that a stranger's VACUUM then lets them be."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.request import Request, urlopen

import obstore
import pytest
from deltalake import DeltaTable

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.table import TableLocation, open_table
from airflow_epochs.errors import NotApplied, OutcomeUnknown, Refused, RowsGone
from airflow_epochs.model import Staged
from airflow_epochs.sinks.delta import publish as delta_publish
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.storage.files import Files, open_files
from airflow_epochs.storage.objects import object_store
from airflow_epochs.storage.options import storage_options
from tests.support.delta_world import attempt_of, promised, rows, stage_with_deltalake, transaction
from tests.support.environment import Environment
from tests.support.s3_access import connection
from tests.support.s3_proxy import AgeingProxy, WriteOnceProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.proof

STRANGE = "p=a%20b ü%2F=+'/part-0.parquet"
SIX_DAYS = timedelta(days=6)


def options(s3: Any, endpoint: str | None = None) -> dict[str, str]:
    return storage_options(connection(s3, endpoint))


@pytest.fixture
def files(s3: Any, s3_url: str) -> Files:
    return open_files(s3_url, options(s3))


@pytest.fixture
def write_once(s3: Any) -> Iterator[WriteOnceProxy]:
    with WriteOnceProxy(s3.endpoint) as proxy:
        yield proxy


def times(s3: Any, url: str) -> dict[str, datetime]:
    """When each file was written, as S3 says it."""
    found = obstore.list(object_store(url, options(s3))).collect()
    return {meta["path"]: meta["last_modified"] for meta in found}


def wait_for_the_next_second() -> None:
    """S3 tells no more of a file's time than the second."""
    now = datetime.now(timezone.utc).replace(microsecond=0)
    wait_until(lambda: datetime.now(timezone.utc).replace(microsecond=0) > now)


# -- missing --------------------------------------------------------------------------------------------------------


def test_files_that_are_not_there_are_missing_and_so_are_folders(files: Files) -> None:
    for name in ("a/b.parquet", STRANGE):
        files.write_new(name, b"x")
    asked = ["a/b.parquet", "a/b", "a", "a/c.parquet", STRANGE, STRANGE.replace("%20", " "), "a/b.parquet"]
    assert files.missing(asked) == {"a/b", "a", "a/c.parquet", STRANGE.replace("%20", " ")}
    assert files.missing([]) == set()


def test_of_more_files_than_are_asked_for_at_a_time_each_is_found_or_missed(files: Files) -> None:
    names = [f"{number}.parquet" for number in range(50)]
    for name in names[::2]:
        files.write_new(name, b"x")
    assert files.missing(names) == set(names[1::2])


def test_no_file_is_missing_only_because_the_store_does_not_answer(s3: Any, s3_url: str) -> None:
    unreachable = open_files(s3_url, options(s3, "http://127.0.0.1:9"))
    with pytest.raises(NotApplied, match=r"A request to the object store at .* failed") as error:
        unreachable.missing(["a"])
    assert not isinstance(error.value, Refused)


# -- empty objects that show a folder --------------------------------------------------------------------------------


def show_folder(s3: Any, url: str) -> None:
    """Do what S3's console and Hadoop do. obstore would leave the last slash out."""
    scope = "AWS4-HMAC-SHA256 Credential=test-key/20300101/us-east-1/s3/aws4_request"
    address = f"{s3.endpoint}/{url.removeprefix('s3://')}/"
    with urlopen(Request(address, method="PUT", data=b"", headers={"Authorization": scope})) as answer:
        assert answer.status == 200


def test_an_object_that_shows_a_folder_is_not_in_it(s3: Any, s3_url: str, files: Files) -> None:
    for folder in (s3_url, f"{s3_url}/a"):
        show_folder(s3, folder)
    assert files.names("a") == set() and files.sizes("a") == {}
    files.write_new("a/b", b"x")
    assert files.names("") == {"a"}
    assert files.names("a") == {"b"} and files.sizes("a") == {"a/b": 1}


def test_a_folder_that_a_console_has_made_is_an_empty_place_for_a_table(s3: Any, s3_url: str) -> None:
    show_folder(s3, s3_url)
    assert open_table(TableLocation("orders", s3_url, options(s3))) is None


# -- renew ----------------------------------------------------------------------------------------------------------


def test_files_are_made_young_with_the_same_bytes_and_what_is_gone_stays_gone(
    s3: Any, s3_url: str, files: Files
) -> None:
    contents = {"a/1.parquet": b"1" * 5_000_000, STRANGE: b"2", "a/other": b"3"}
    for name, content in contents.items():
        files.write_new(name, content)
    before = times(s3, s3_url)
    wait_for_the_next_second()
    files.renew(["a/gone.parquet", "a/1.parquet", STRANGE])
    after = times(s3, s3_url)
    assert after.keys() == before.keys() == contents.keys()
    assert {name for name in after if after[name] > before[name]} == {"a/1.parquet", STRANGE}
    assert {name: files.read(name) for name in contents} == contents


def test_a_store_that_refuses_to_write_keeps_the_file_as_it_was(
    s3: Any, s3_url: str, files: Files, write_once: WriteOnceProxy
) -> None:
    files.write_new("a.parquet", b"x")
    with pytest.raises(Refused, match="denies access"):
        open_files(s3_url, options(s3, write_once.endpoint)).renew(["a.parquet"])
    assert files.read("a.parquet") == b"x"


def test_a_store_that_does_not_answer_makes_nothing_young(s3: Any, s3_url: str) -> None:
    with pytest.raises((NotApplied, OutcomeUnknown)):
        open_files(s3_url, options(s3, "http://127.0.0.1:9")).renew(["a.parquet"])


# -- what it is for: a commit of files that VACUUM would take soon ---------------------------------------------------


Aged = tuple[SinkAttempt, Staged, AgeingProxy]


@pytest.fixture
def aged(s3_sink: DeltaSink, s3_world: Environment, s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aged]:
    """An epoch in doubt for six days; a table with the epoch before it; S3 as others see it that day."""
    first, second = transaction(1), transaction(2)
    previous, staged = attempt_of(first), attempt_of(second, first)
    s3_sink.commit(previous, promise(s3_sink, previous, s3_world, 1), s3_world)
    what = promise(s3_sink, staged, s3_world, 2, 3)
    until = datetime.now(timezone.utc)
    wait_for_the_next_second()
    later_ms = int((until + SIX_DAYS).timestamp() * 1000)
    monkeypatch.setattr(delta_publish, "now_ms", lambda: later_ms)
    with AgeingProxy(s3.endpoint, until, SIX_DAYS) as proxy:
        yield staged, what, proxy


def promise(sink: DeltaSink, attempt: SinkAttempt, world: Environment, *ids: int) -> Staged:
    plan = sink.plan_stage(attempt, uuid.uuid4().hex, world)
    claim = stage_with_deltalake(plan, rows(*ids), storage_options(world.connections["s3"]))
    return promised(sink.vote(attempt, claim, world))


def vacuum(sink: DeltaSink, s3: Any, proxy: AgeingProxy, *, dry_run: bool = False) -> list[str]:
    """What a stranger's VACUUM takes that keeps five days."""
    table = DeltaTable(sink.target, storage_options=options(s3, proxy.endpoint))
    taken: list[str] = table.vacuum(120, dry_run=dry_run, enforce_retention_duration=False, full=True)
    return taken


def of_place(staged: Staged, taken: list[str]) -> list[str]:
    """Without the version checksum, which only saves work to Spark's append."""
    place = staged.place.rpartition("/")[2]
    return [path for path in taken if f"/{place}/" in path and not path.endswith(".crc")]


def ids_in(sink: DeltaSink, s3: Any) -> list[int]:
    table = DeltaTable(sink.target, storage_options=options(s3))
    return sorted(table.to_pyarrow_table()["id"].to_pylist())


def at(world: Environment, phase: str, action: Callable[[], object]) -> None:
    def act() -> None:
        del world.at[phase]
        action()

    world.at[phase] = act


def test_a_vacuum_of_strangers_spares_old_staged_files_from_their_renewal_on(
    s3_sink: DeltaSink, s3_world: Environment, s3: Any, aged: Aged
) -> None:
    attempt, staged, proxy = aged
    assert len(of_place(staged, vacuum(s3_sink, s3, proxy, dry_run=True))) == staged.files + 1 + 1, "rows, log"

    def vacuum_and_stop() -> None:
        assert of_place(staged, vacuum(s3_sink, s3, proxy)) == []
        raise KeyboardInterrupt

    at(s3_world, "delta.commit.before", vacuum_and_stop)
    with pytest.raises(KeyboardInterrupt):
        s3_sink.commit(attempt, staged, s3_world)
    assert s3_sink.commit(attempt, staged, s3_world).place == staged.place
    vacuum(s3_sink, s3, proxy)
    assert ids_in(s3_sink, s3) == [1, 2, 3]


def test_of_old_staged_files_that_are_gone_the_rows_are_staged_again(
    s3_sink: DeltaSink, s3_world: Environment, s3: Any, aged: Aged
) -> None:
    attempt, staged, proxy = aged
    taken = [path for path in vacuum(s3_sink, s3, proxy) if path.endswith(".parquet")]
    assert len(of_place(staged, taken)) == staged.files
    with pytest.raises(RowsGone):
        s3_sink.commit(attempt, staged, s3_world)
    assert s3_sink.commit(attempt, promise(s3_sink, attempt, s3_world, 2, 3), s3_world).rows == 2
    assert ids_in(s3_sink, s3) == [1, 2, 3]


def test_files_that_cannot_be_made_young_are_committed_as_they_are(
    s3_sink: DeltaSink,
    s3_world: Environment,
    s3: Any,
    aged: Aged,
    write_once: WriteOnceProxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempt, staged, proxy = aged
    s3_world.connections["s3"] = connection(s3, write_once.endpoint)
    with caplog.at_level(logging.WARNING, "airflow_epochs"):
        assert s3_sink.commit(attempt, staged, s3_world).place == staged.place
    assert "could not be renewed" in caplog.text
    assert "denies access" in caplog.text
    vacuum(s3_sink, s3, proxy)
    assert ids_in(s3_sink, s3) == [1, 2, 3]
