"""Whatever is done to the records of an epoch in flight, nothing outside of its own staging places is touched."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_epochs.errors import EpochError
from airflow_epochs.ledger.signing import Keys, message
from tests.support.faults_golden import PHASES, resealed, unpack
from tests.support.faults_world import DiskWorld, start
from tests.support.forging import files_below

MODULE = "a_module_of_somebody_else"
NONCE = "f" * 32
FORGED: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(
            "",
            "..",
            "/etc",
            "{outside}",
            "{outside}/../outside",
            "{ledger}",
            f"{MODULE}:Sink",
            "delta",
            "memory",
            "sql",
        ),
        *(f"orders/2/1/{NONCE}", f"orders/2/2/{NONCE}", f"theirs/2/1/{NONCE}", "orders/1/1", NONCE),
        *(None, True, -1, 0, 7, 2**62, 1.5, [], {}, ["x"], {"x": {}}),
    ]
)
KINDS = ["truncate", "swap", "add", "edit", "edit", "edit"]
"""What is done; what is no JSON any more cannot be edited."""
HARMFUL = {
    "kind": st.just(f"{MODULE}:Sink"),
    "previous": st.just("orders/1/1"),
    "place": st.sampled_from(["{outside}", "/etc"]),
    "ledger_id": st.just("../../outside/epochs/x"),
}
"""What somebody would put there who knows what it is for."""
HIS_KEY = Keys(("a key of somebody else",))
Path_ = tuple[str | int, ...]


def leaves(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """The places of all values within a record, those of whole objects included."""
    yield at
    if isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*at, key))


def forge(world: DiskWorld, path: Path, data: st.DataObject, ledger_id: str | None = None) -> None:
    """One thing that somebody with access to the ledger does to a record."""
    value = path.read_bytes()
    match data.draw(st.sampled_from(KINDS if is_whole(value) else KINDS[:3]), label="what"):
        case "truncate":
            path.write_bytes(value[: data.draw(st.integers(0, max(0, len(value) - 1)))])
        case "swap":
            other = data.draw(st.sampled_from(sorted(world.records.rglob("*.json"))), label="with")
            theirs = other.read_bytes()
            other.write_bytes(value)
            path.write_bytes(theirs)
        case "add":
            name = data.draw(st.sampled_from(["0000000002.open", f"0000000001.try.{NONCE}", "0000000001.decision"]))
            path.with_name(f"{name}.json").write_bytes(value)
        case "edit":
            edit(world, path, data, ledger_id)


def is_whole(value: bytes) -> bool:
    try:
        return isinstance(json.loads(value), dict)
    except ValueError:
        return False


def edit(world: DiskWorld, path: Path, data: st.DataObject, ledger_id: str | None) -> None:
    """Another value in one place of a record, with a checksum that is right, and perhaps a signature that is not."""
    record = json.loads(path.read_bytes())
    del record["sha256"]
    record.pop("hmac", None)
    at = data.draw(st.sampled_from([each for each in leaves(record) if each]), label="where")
    new = data.draw(HARMFUL.get(str(at[-1]), FORGED) | FORGED, label="forged")
    if isinstance(new, str):
        new = new.replace("{outside}", str(world.folder / "outside")).replace("{ledger}", str(world.ledger_root))
    within = record
    for key in at[:-1]:
        within = within[key]
    within[at[-1]] = new
    body = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
    if ledger_id is not None and data.draw(st.booleans(), label="signed"):
        signed = message(ledger_id, f"{world.name}/{path.relative_to(world.records)}", body)
        body = b'{"hmac":"' + HIS_KEY.sign(signed).encode() + b'",' + body[1:]
    path.write_bytes(resealed(b'{"sha256":"' + b"0" * 16 + b'",' + body[1:]))


@pytest.mark.few(2)
@pytest.mark.proof
@pytest.mark.parametrize("phase", PHASES)
def test_forged_records_change_nothing_outside_and_end_in_errors_of_ours(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{MODULE}.py").write_text("class Sink: ...\n")
    monkeypatch.syspath_prepend(tmp_path)

    @settings(max_examples=30, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = unpack(phase, Path(folder))
            outside = world.folder / "outside" / f"epochs/x.orders/2-1-{NONCE}"
            outside.mkdir(parents=True)
            (outside / "module.py").write_text("pass\n")
            before = files_below(world.folder / "outside") | shown(world)
            records = st.sampled_from(read_next(world))
            for path in data.draw(st.lists(records, min_size=1, max_size=2, unique=True), label="records"):
                forge(world, path, data)
            for number in (2, 3):
                error = world.run(number)
                assert error is None or isinstance(error, EpochError), repr(error)
            assert before.items() <= (files_below(world.folder / "outside") | shown(world)).items()
            assert MODULE not in sys.modules

    holds()


@pytest.mark.few(2)
@pytest.mark.proof
@pytest.mark.parametrize("phase", PHASES)
def test_forged_records_of_a_signed_ledger_are_named_and_change_nothing(phase: str, tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    sound = start(DiskWorld(tmp_path / "world", password="a key that only the workers have"))
    one_epoch = sound.rows("orders")
    sound.crash_at(phase)
    identity = sound.ledger.identity()
    assert identity
    shutil.copytree(sound.folder, tmp_path / "copy")

    @settings(max_examples=25, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        shutil.rmtree(sound.folder)
        shutil.copytree(tmp_path / "copy", sound.folder)
        before = {path: path.read_bytes() for path in sound.records.rglob("*.json")}
        first, everything = shown(sound), sorted(sound.source.all_rows())
        for path in data.draw(st.lists(st.sampled_from(read_next(sound)), min_size=1, max_size=2, unique=True)):
            forge(sound, path, data, identity.ledger_id)
        forged = {path for path in sound.records.rglob("*.json") if before.get(path) != path.read_bytes()}
        for number in (2, 3):
            error = sound.run(number)
            assert error is None or isinstance(error, EpochError), error
            told = any(str(path.relative_to(sound.ledger_root)) in str(error) for path in forged)
            assert told or (error is None and not any(map(is_decisive, forged))), error
            assert first.items() <= sound.snapshot_of_tables().items()
            assert all(sound.rows(sink) in (one_epoch, everything) for sink in sound.sinks)
        for path in forged:
            path.write_bytes(before[path]) if path in before else path.unlink()
        assert sound.run(4) is None
        assert sound.rows("orders") == sound.rows("audit") == sorted(sound.source.all_rows())

    holds()


def is_decisive(path: Path) -> bool:
    """What the next run must read. It asks tries only what to clear away, and nothing of an epoch that is complete.

    Of complete epochs, only the newest one's completion record matters.
    """
    newest = path.parents[1] / f"{2:020}" / "complete.json"
    if path.parent.name in (f"{1:020}", f"{2:020}") and newest.exists():
        return path == newest
    in_flight = path.parent.name == f"{2:020}" and ".try." not in path.name
    return in_flight or path.name in ("complete.json", "pipeline.json")


def read_next(world: DiskWorld) -> list[Path]:
    """The records that the next run reads."""
    ended = world.records / "epochs" / f"{1:020}" / "complete.json"
    return [*sorted((world.records / "epochs" / f"{2:020}").glob("*.json")), ended, world.records / "pipeline.json"]


def shown(world: DiskWorld) -> dict[str, str]:
    """The files of the first epoch, which are the tables'."""
    tables = world.snapshot_of_tables()
    return {name: digest for name, digest in tables.items() if "/1-1-" in name and name.endswith(".parquet")}
