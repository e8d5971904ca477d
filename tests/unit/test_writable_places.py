"""A place that can never be written is found out before an epoch is opened, and the probe leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_epochs import DeltaSink, KafkaSink, SqlSink, codes
from airflow_epochs.contracts import Connection, Probing, Sink
from airflow_epochs.coordinator import preflight
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.model import Run, SinkPlan
from airflow_epochs.sinks.delta.state.table import StateTable
from airflow_epochs.storage.blobs import PROBE
from airflow_epochs.storage.local import LocalFiles
from airflow_epochs.testing import MemoryWorld, memory_coordinator, memory_pipeline
from tests.support.environment import connected
from tests.support.faults_rights import allow
from tests.support.faults_world import DiskWorld, start
from tests.unit.test_s3_rights import DENIED, Bucket

MODIFIED = "<LastModified>2026-01-31T00:00:00.000Z</LastModified>"


def sinks_at(place: str) -> list[Sink]:
    """A sink of each kind that writes to this place."""
    return [
        DeltaSink("out", place),
        StateTable("out", place, schema="id STRING", keys=["id"]),
        KafkaSink("out", "orders", conn_id="kafka", staging=place),
        SqlSink("out", "database", "orders", staging=place),
    ]


def refusal(sink: Sink) -> Refused:
    refused = preflight.unwritable(sink, "orders", connected())
    assert refused, "it can write"
    return refused


def below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize("kind", range(4), ids=["delta", "state", "kafka", "sql"])
def test_a_sink_below_a_file_is_refused_with_the_file_by_name(tmp_path: Path, kind: int) -> None:
    (tmp_path / "afile").write_text("precious")
    sink = sinks_at(f"{tmp_path}/afile/orders")[kind]
    refused = refusal(sink)
    assert refused.code is codes.STORE_PLACE_UNUSABLE and refused.sink == "out"
    assert f"{tmp_path}/afile is not a folder" in refused.what
    assert "Correct the path in the DAG, or move the file away" in refused.remedy
    os.replace(tmp_path / "afile", tmp_path / "moved")
    assert preflight.unwritable(sink, "orders", connected()) is None
    assert below(tmp_path) == {tmp_path / "moved"}, "the probe has left nothing, and created no folder"


@pytest.mark.parametrize("kind", range(4), ids=["delta", "state", "kafka", "sql"])
def test_a_sink_in_a_file_system_without_folders_of_users_is_refused(kind: int) -> None:
    refused = refusal(sinks_at("/proc/nowhere/x")[kind])
    assert refused.code is codes.STORE_PLACE_UNUSABLE
    assert refused.what.startswith("/proc takes no new folders, so /proc/nowhere/x")


def test_a_link_that_leads_nowhere_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert f"{tmp_path}/link is not a folder" in refusal(DeltaSink("out", f"{tmp_path}/link/orders")).what


ASKED = """
    import sys
    from pathlib import Path
    from airflow_epochs import DeltaSink
    from airflow_epochs.coordinator import preflight
    from tests.support.environment import connected
    from tests.support.faults_rights import forbid_writing_to

    forbid_writing_to(Path(sys.argv[1]))
    refused = preflight.unwritable(DeltaSink("out", sys.argv[2]), "orders", connected())
    print(refused.code.name, refused.what)
"""


@pytest.mark.proof
@pytest.mark.parametrize("table", ["", "/new"], ids=["its folder", "the folder that it will be in"])
def test_a_sink_without_the_right_to_write_is_refused_until_it_has_the_right(tmp_path: Path, table: str) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    place = f"{lake}{table}"
    told = subprocess.run(
        [sys.executable, "-c", dedent(ASKED), str(lake), place], capture_output=True, text=True, check=True
    ).stdout
    assert told.startswith(f"{codes.STORE_FORBIDDEN.name} The user of the Airflow worker has no permission for {lake}/")
    allow(lake)
    assert preflight.unwritable(DeltaSink("out", place), "orders", connected()) is None
    assert below(tmp_path) == {lake}


@pytest.mark.proof
def test_a_probe_that_a_killed_check_has_left_does_not_stop_the_first_epoch(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path)
    Path(world.table("orders"), f"{PROBE}killed").mkdir(parents=True)
    start(world)
    assert world.run(2) is None


def test_no_epoch_is_opened_for_a_table_that_can_never_be_written(tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    world = MemoryWorld()
    world.produce("orders", 0, ["row"])
    pipeline = replace(memory_pipeline(world), sinks=(DeltaSink("out", f"{tmp_path}/afile/orders"),))
    with pytest.raises(Refused) as refused:
        memory_coordinator(world, pipeline).open_epoch(Run("dag", "run 1"))
    assert refused.value.code is codes.STORE_PLACE_UNUSABLE
    assert not [key for key in world.store.values if key.endswith(".open.json")]


@pytest.mark.proof
def test_the_first_open_refuses_a_table_below_a_file_and_later_ones_write_no_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = start(DiskWorld(tmp_path))
    task = world.coordinator().task
    probes: list[str] = []
    real = LocalFiles.probe

    def counted(files: LocalFiles, folder: str) -> None:
        probes.append(folder)
        real(files, folder)

    monkeypatch.setattr(LocalFiles, "probe", counted)
    world.one_more_epoch(2)
    assert probes == [], "the sinks have an epoch"
    (tmp_path / "afile").touch()
    sink = DeltaSink("orders", f"{tmp_path}/afile/orders")
    new = replace(task, pipeline=replace(task.pipeline, sinks=(sink,)))
    with pytest.raises(Refused) as refused:
        preflight.require_ready(new, {"orders": SinkPlan(spec=sink.spec(), previous=None)})
    assert refused.value.code is codes.STORE_PLACE_UNUSABLE and len(probes) == 1


def test_a_sink_of_the_users_own_need_not_know_of_probes(tmp_path: Path) -> None:
    class Own:
        name = "own"

    sink: Any = Own()
    assert not isinstance(sink, Probing) and preflight.unwritable(sink, "orders", connected()) is None


def test_a_read_only_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("airflow_epochs.storage.local.TemporaryDirectory", refused)
    with pytest.raises(NotApplied, match=r"Read-only file system(.|\n)*Mount the disk so that it can be written"):
        preflight.unwritable(DeltaSink("out", f"{tmp_path}/orders"), "orders", connected())


# -- in an object store -----------------------------------------------------------------------------------------------


class Listing(Bucket):
    """A bucket that may be listed. It notes what it is asked, and denies what ``denied`` names."""

    asked: list[str]
    port: int
    denied: str = ""

    def do_GET(self) -> None:
        if "list-type" not in self.path:
            return super().do_GET()
        keys = "".join(f"<Contents><Key>{key}</Key><Size>1</Size>{MODIFIED}</Contents>" for key in self._keys())
        return self.answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{keys}</ListBucketResult>".encode())

    def do_PUT(self) -> None:
        self._unless_denied(super().do_PUT)

    def do_POST(self) -> None:
        """A request to delete many: obstore sends no other."""
        self._unless_denied(self._delete)

    def _delete(self) -> None:
        told = self.rfile.read(int(self.headers["Content-Length"])).decode()
        keys = re.findall("<Key>([^<]*)</Key>", told)
        for key in keys:
            self.objects.pop(f"/bucket/{key}", None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _keys(self) -> list[str]:
        prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
        keys = [path.removeprefix("/bucket/") for path in self.objects]
        return [key for key in keys if key.startswith(prefix)]

    def _unless_denied(self, answer: Callable[[], None]) -> None:
        self.asked.append(self.command)
        if self.command != self.denied:
            return answer()
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return self.answer(403, DENIED)


@pytest.fixture
def bucket() -> Iterator[type[Listing]]:
    kept: type[Listing] = type("Kept", (Listing,), {"objects": {}, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kept) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        kept.port = server.server_port
        yield kept
        server.shutdown()


def at_bucket(bucket: type[Listing], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    options = {
        "aws_endpoint": f"http://127.0.0.1:{bucket.port}",
        "allow_http": "true",
        "aws_region": "eu-1",
        "aws_access_key_id": "id",
        "aws_secret_access_key": "key",
    }
    return connected(Connection(conn_id="lake", conn_type="generic", extra={"storage_options": options}))


STORED = [
    DeltaSink("out", "s3://bucket/orders", storage_conn_id="lake"),
    SqlSink("out", "database", "orders", staging="s3://bucket/staging", storage_conn_id="lake"),
]


@pytest.mark.parametrize("sink", STORED, ids=["delta", "sql"])
@pytest.mark.parametrize("denied", ["PUT", "POST"], ids=["to write", "to delete"])
def test_a_bucket_in_which_the_sink_lacks_a_right_is_refused_until_it_has_the_right(
    bucket: type[Listing], monkeypatch: pytest.MonkeyPatch, sink: Sink, denied: str
) -> None:
    env = at_bucket(bucket, monkeypatch)
    bucket.denied = denied
    refused = preflight.unwritable(sink, "orders", env)
    assert refused and refused.code is codes.STORE_FORBIDDEN
    bucket.objects.clear()
    bucket.denied, bucket.asked = "", []
    assert preflight.unwritable(sink, "orders", env) is None
    assert bucket.objects == {}
    assert bucket.asked == (["PUT", "PUT", "POST"] if isinstance(sink, DeltaSink) else ["PUT", "POST"])
