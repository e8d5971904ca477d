"""The local store: durable before it answers, whole or absent, whatever happens to the writer."""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.store import VALUE_BYTES_MAX, LocalStore, open_store
from airflow_epochs.storage.blobs import TooLarge


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was synced and linked, in order; each call goes through."""
    seen: list[tuple[str, str]] = []
    fsync, link = os.fsync, os.link

    def watched_fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        seen.append((f"fsync {kind}", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def watched_link(source: os.PathLike[str], target: os.PathLike[str]) -> None:
        seen.append(("link", str(target)))
        link(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    return seen


def test_a_put_syncs_the_file_before_it_is_visible_and_the_folder_before_it_answers(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "a").mkdir()
    assert store.put_if_absent("a/b", b"x")
    assert [call for call, _ in calls] == ["fsync folder", "fsync file", "link", "fsync folder"]
    assert calls[0][1] == str(tmp_path), "whoever made the folder may have died before it was durable"
    assert calls[2][1] == str(tmp_path / "a" / "b") and calls[3][1] == str(tmp_path / "a")


def test_new_folders_are_synced_into_their_parents_before_a_record_lies_in_them(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    LocalStore(tmp_path / "new").put_if_absent("p/q/r", b"x")
    linked = [call for call, _ in calls].index("link")
    synced = [path for call, path in calls[:linked] if call == "fsync folder"]
    assert synced == [str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new/p")]


def test_the_loser_of_a_put_syncs_the_winners_record_too(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a/b", b"x")
    calls.clear()
    assert not store.put_if_absent("a/b", b"y")
    assert calls[-1] == ("fsync folder", str(tmp_path / "a"))


def test_a_reader_syncs_the_folder_before_it_acts_on_a_record(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a/b", b"x")
    calls.clear()
    assert store.get("a/b") == b"x"
    assert calls == [("fsync folder", str(tmp_path / "a"))]


@pytest.mark.parametrize("mark", "#?")
def test_a_root_with_a_fragment_or_a_query_is_refused_and_its_remedy_leads_to_the_ledger_that_is_there(
    tmp_path: Path, mark: str
) -> None:
    for root in (f"{tmp_path}/ledger{mark}prod", f"file://{tmp_path}/ledger{mark}test", f"s3://bucket/ledger{mark}a"):
        with pytest.raises(Refused, match="has a '#' or a '\\?'") as refused:
            open_store(root)
        meant = root.partition(mark)[0]
        assert f"Set `ledger_root` of the connection of type epochs to {meant!r}" in refused.value.remedy
    open_store(f"{tmp_path}/ledger").put_if_absent("k", b"v")
    assert (tmp_path / "ledger" / "k").exists()


@pytest.mark.parametrize("failing", ["fsync", "link"])
def test_a_full_disk_leaves_neither_a_record_nor_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    (tmp_path / "a").mkdir()
    store = LocalStore(tmp_path)
    real = os.fsync

    def full(*args: Any) -> None:
        if failing == "link" or not stat.S_ISDIR(os.fstat(args[0]).st_mode):
            raise OSError(errno.ENOSPC, "no space left on device")
        real(args[0])

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="no space left"):
        store.put_if_absent("a/b", b"x")
    assert os.listdir(tmp_path / "a") == []


@pytest.mark.parametrize("key", ["a", "p/a", "p/q/a"])
def test_a_root_that_cannot_hold_records_is_an_error_and_not_a_lost_race(tmp_path: Path, key: str) -> None:
    root = tmp_path / "ledger"
    root.write_text("not a folder")
    with pytest.raises(OSError):
        LocalStore(root).put_if_absent(key, b"x")
    assert root.read_text() == "not a folder"


SIZE = 200_000

WRITER = """
import sys
from pathlib import Path
from airflow_epochs.ledger.store import LocalStore
store = LocalStore(Path(sys.argv[1]))
first = int(sys.argv[2])
for n in range(first, first + 100_000):
    store.put_if_absent(f"p/{n:07d}", bytes([n % 251]) * int(sys.argv[3]))
"""


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert process.poll() is None, "the writer died by itself"
        assert time.monotonic() < deadline


@pytest.fixture
def killed_writers(tmp_path: Path) -> Iterator[Path]:
    """A store in which writers were killed in the midst of their puts, at different moments."""
    for turn in range(4):
        arguments = [str(tmp_path), str(turn * 100_000), str(SIZE)]
        process = subprocess.Popen([sys.executable, "-c", WRITER, *arguments])
        try:
            key = tmp_path / "p" / f"{turn * 100_000 + turn * 2:07d}"
            wait_until(key.exists, process)
            if turn % 2:  # ... while a temporary file is there
                wait_until(lambda: any(tmp_path.glob("p/.*.tmp")), process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    yield tmp_path


@pytest.mark.proof
def test_a_writer_killed_in_the_midst_of_a_put_leaves_no_half_written_record(killed_writers: Path) -> None:
    store = LocalStore(killed_writers)
    keys = store.list("p")
    assert len(keys) >= 4 + 2 * 6
    for key in keys:
        number = int(key.removeprefix("p/"))
        assert store.get(key) == bytes([number % 251]) * SIZE


@pytest.mark.parametrize("login", ["", "me:hunter2@", "hunter2@", "me:hunter2/x@"])
def test_a_file_url_with_two_slashes_is_refused_and_told_where_its_ledger_has_been(login: str) -> None:
    with pytest.raises(Refused, match="names the host 'lake'") as refused:
        open_store(f"file://{login}lake/ledger")
    assert refused.value.code is codes.LEDGER_ROOT_UNUSABLE
    assert "hunter2" not in str(refused.value)
    assert "to 'file:///ledger' to go on" in refused.value.remedy
    assert "write 'file:///lake/ledger'" in refused.value.remedy


@pytest.mark.parametrize("begin", ["file://", "file://localhost", "file:"])
def test_a_file_url_without_another_host_is_a_path(begin: str, tmp_path: Path) -> None:
    assert vars(open_store(f"{begin}{tmp_path}/ledger"))["root"] == f"{tmp_path}/ledger"


@pytest.mark.parametrize("url", ["{}/a b", "file://{}/a%20b"])
def test_a_path_and_a_file_url_name_the_same_store(tmp_path: Path, url: str) -> None:
    open_store(url.format(tmp_path)).put_if_absent("k", b"v")
    assert (tmp_path / "a b" / "k").read_bytes() == b"v"


@pytest.mark.parametrize("folder", ["a%20b", "a%2520b", "a%23b%3Fc"])
def test_a_path_with_hexadecimal_characters_is_refused_and_its_remedy_leads_to_the_ledger_that_is_there(
    tmp_path: Path, folder: str
) -> None:
    LocalStore(tmp_path / unquote(folder)).put_if_absent("k", b"version 0.1 has put this")
    with pytest.raises(Refused, match=r"is a path with '%2[053]'. So far it meant ") as refused:
        open_store(f"{tmp_path}/{folder}")
    assert refused.value.code is codes.LEDGER_ROOT_UNUSABLE
    to_go_on, for_a_new_one = re.findall(r"'(file://[^']+)'", refused.value.remedy)
    assert open_store(to_go_on).get("k") == b"version 0.1 has put this"
    open_store(for_a_new_one).put_if_absent("k", b"new")
    assert (tmp_path / folder / "k").read_bytes() == b"new"


@pytest.mark.parametrize("url", ["ledger", "./ledger", ""])
def test_a_relative_ledger_root_is_refused(url: str) -> None:
    with pytest.raises(Refused, match=r"(?s)is neither an absolute path nor a URL.*Correct the field `ledger_root`"):
        open_store(url)


def test_every_memory_url_is_a_store_of_its_own() -> None:
    one, other = open_store("memory://"), open_store("memory://")
    one.put_if_absent("k", b"v")
    assert not other.exists("k")


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_value_beyond_the_bound_is_not_read(kind: str, tmp_path: Path) -> None:
    store = open_store(str(tmp_path) if kind == "local" else "memory://")
    store.put_if_absent("p/largest", b"x" * VALUE_BYTES_MAX)
    store.put_if_absent("p/larger", b"x" * (VALUE_BYTES_MAX + 1))
    assert len(store.get("p/largest") or b"") == VALUE_BYTES_MAX
    with pytest.raises(TooLarge, match="larger than 8388608 bytes"):
        store.get("p/larger")
