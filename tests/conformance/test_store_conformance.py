"""One suite for every store: local disk, S3 (moto), memory, and the double that ships with the package."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier

import pytest

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import Store, open_store
from airflow_epochs.storage.options import storage_options
from airflow_epochs.testing import DictStore
from stack.spark import S3Access
from tests.conformance import store_racer
from tests.support.s3_access import connection

RACERS = 4
KEYS = 25


@dataclass
class Place:
    """A fresh store, and how another process opens it."""

    store: Store
    url: str
    options: dict[str, str] = field(default_factory=dict)


def local_place(folder: Path) -> Place:
    url = f"{folder}/a ledger"
    return Place(open_store(url), url)


def s3_place(folder: Path, s3: S3Access) -> Place:
    url, options = f"s3://{s3.bucket}/{folder.name}", storage_options(connection(s3))
    return Place(open_store(url, options), url, options)


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A store that several processes can open."""
    if request.param == "local":
        return local_place(tmp_path)
    return s3_place(tmp_path, request.getfixturevalue("s3"))


@pytest.fixture(params=["local", "s3", "obstore memory", "dict"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "local":
            return local_place(tmp_path).store
        case "s3":
            return s3_place(tmp_path, request.getfixturevalue("s3")).store
        case "obstore memory":
            return open_store("memory://")
        case _:
            return DictStore()


def test_a_key_that_was_never_put_is_absent(store: Store) -> None:
    assert store.get("a/b") is None
    assert not store.exists("a/b")
    assert store.list("a") == []


@pytest.mark.parametrize("value", [b"", b"x", bytes(range(256)) * 1000], ids=["empty", "one byte", "256 kB"])
def test_what_was_put_is_there(store: Store, value: bytes) -> None:
    assert store.put_if_absent("a/b.json", value) is True
    assert store.get("a/b.json") == value
    assert store.exists("a/b.json")


def test_a_second_put_is_refused_and_changes_nothing(store: Store) -> None:
    store.put_if_absent("a/b", b"first")
    assert store.put_if_absent("a/b", b"second") is False
    assert store.put_if_absent("a/b", b"first") is False
    assert store.get("a/b") == b"first"


def test_list_shows_a_folder_recursively_sorted_and_no_neighbour(store: Store) -> None:
    for key in ("p/e/2/x", "p/e/1/b", "p/e/1/a", "p/e.json", "p/ee/1", "q/e/1"):
        store.put_if_absent(key, b"x")
    assert store.list("p/e") == ["p/e/1/a", "p/e/1/b", "p/e/2/x"]


def test_delete_removes_one_key_and_may_be_repeated(store: Store) -> None:
    for key in ("a/1", "a/2"):
        store.put_if_absent(key, b"x")
    for _ in range(2):
        store.delete("a/1")
    store.delete("never/there")
    assert store.list("a") == ["a/2"]
    assert store.get("a/1") is None and not store.exists("a/1")


def test_a_folder_is_no_key(store: Store) -> None:
    store.put_if_absent("a/b/c", b"x")
    assert not store.exists("a/b/c/d") and store.get("a/b/c/d") is None


def test_of_many_threads_that_put_a_key_one_wins(store: Store) -> None:
    barrier = Barrier(RACERS)

    def race(name: int) -> list[int]:
        barrier.wait(timeout=30)
        return [n for n in range(KEYS) if store.put_if_absent(f"race/{n:04d}", f"{name} {n}".encode())]

    with ThreadPoolExecutor(RACERS) as pool:
        wins = {str(name): won for name, won in enumerate(pool.map(race, range(RACERS)))}
    check_race(store, wins)


@pytest.mark.proof
def test_of_many_processes_that_put_a_key_one_wins(place: Place) -> None:
    wins = race_of_processes(place.url, place.options)
    check_race(place.store, wins)


def race_of_processes(url: str, options: dict[str, str]) -> dict[str, list[int]]:
    command = [sys.executable, store_racer.__file__, url, json.dumps(options)]
    racers = {
        str(name): subprocess.Popen(
            [*command, str(name), str(KEYS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in range(RACERS)
    }
    try:
        for racer in racers.values():
            assert racer.stdout and racer.stdout.readline() == "ready\n"
        for racer in racers.values():
            assert racer.stdin
            racer.stdin.write("go\n")
            racer.stdin.flush()
        return {name: json.loads(racer.communicate(timeout=60)[0]) for name, racer in racers.items()}
    finally:
        for racer in racers.values():
            racer.kill()
            racer.communicate()


def check_race(store: Store, wins: dict[str, list[int]]) -> None:
    assert sorted(n for won in wins.values() for n in won) == list(range(KEYS)), "one winner for every key"
    for name, won in wins.items():
        for n in won:
            assert store.get(f"race/{n:04d}") == f"{name} {n}".encode(), "the winner's value stands"


def test_a_ledger_finds_the_store_fit(store: Store) -> None:
    ledger = Ledger(store, "p")
    identity = ledger.register("dag", at="now", writer="w")
    assert ledger.register("dag", at="later", writer="x") == identity
    assert store.list("p") == ["p/pipeline.json"]
