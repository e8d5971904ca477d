"""Ledgers and tables as an earlier version left them, each in one file; the root they lie at is left open.

Records carry absolute places, a checksum and, from format 2 on, a signature: putting a root in means computing these
anew, which this module does on its own, so that the format of records is pinned by something else than the code that
writes it.

``python -m tests.support.faults_golden`` records what the version at hand leaves, for the phases that have no file yet.
Files of released versions are never recorded again: a new phase is recorded by the code of that version.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import tempfile
from pathlib import Path

from tests.support.faults_world import DiskWorld, start

FOLDER = Path(__file__).parents[1] / "faults" / "golden"
PASSWORDS = {1: "", 2: "the key of the golden ledgers"}
"""Format of the records -> the password of the ledger's connection. Format 1 is that of records without a signature."""
PHASES = ("open.landed", "stage.done", "decision.landed", "commit.audit", "complete.put", "complete.landed")
"""Where the old version stopped, in its second epoch. A vote leaves nothing in the ledger, so it has no phase."""
ABORTED = "aborted"
"""Not a phase: the old version has aborted what it had staged."""
_ROOT = "@ROOT@"
_LEDGER = "ledger/"


def golden(phase: str, format: int) -> Path:
    return FOLDER / f"format-{format}.{phase}.json"


def record(phase: str, format: int) -> None:
    """Write the golden file of one phase."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _leave(start(DiskWorld(root, password=PASSWORDS[format])), phase)
        files = {str(p.relative_to(root)): _packed(p, root) for p in sorted(root.rglob("*")) if p.is_file()}
    golden(phase, format).write_text(json.dumps(files, indent=1) + "\n")


def _leave(world: DiskWorld, phase: str) -> None:
    if phase != ABORTED:
        world.crash_at(phase)
        return
    world.crash_at("stage.done")
    world.crash_at("open.put", number=3)  # the next run aborts what it finds, and dies before it opens it again


def _packed(path: Path, root: Path) -> str | list[str]:
    """Text as it is; other bytes as lines of Base64."""
    value = path.read_bytes()
    if path.suffix == ".parquet":
        text = base64.b64encode(value).decode()
        return [text[start : start + 120] for start in range(0, len(text), 120)]
    return value.decode().replace(str(root), _ROOT)


def unpack(phase: str, root: Path, format: int = 1) -> DiskWorld:
    """Put the files of a golden file below ``root``."""
    files = json.loads(golden(phase, format).read_text())
    ledger_id = json.loads(files[f"{_LEDGER}orders/pipeline.json"])["ledger_id"]
    for name, packed in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(packed, list):
            path.write_bytes(base64.b64decode("".join(packed)))
        else:
            value = packed.replace(_ROOT, str(root)).encode()
            if name.startswith(_LEDGER):
                value = resealed(_signed_anew(value, ledger_id, name.removeprefix(_LEDGER), PASSWORDS[format]))
            path.write_bytes(value)
    return DiskWorld(root, password=PASSWORDS[format])


def _signed_anew(value: bytes, ledger_id: str, key: str, password: str) -> bytes:
    """A record whose content was changed, with the signature that belongs to it now, if it has one.

    A signature covers the ledger's id, but for the record that holds the id.
    """
    ledger_id = "" if key.endswith("/pipeline.json") else ledger_id
    head, rest = value[:29], value[29:]
    if not rest.startswith(b'"hmac":"'):
        return value
    body = b"{" + rest[74:]
    message = b"\n".join([b"airflow-epochs ledger record", ledger_id.encode(), key.encode(), body])
    signature = hmac.new(password.encode(), message, hashlib.sha256).hexdigest().encode()
    return head + b'"hmac":"' + signature + b'",' + body[1:]


def resealed(value: bytes) -> bytes:
    """A record whose content was changed, with the checksum that belongs to it now."""
    head, body = value[:29], b"{" + value[29:]
    assert head.startswith(b'{"sha256":"') and head.endswith(b'",')
    return b'{"sha256":"' + hashlib.sha256(body).hexdigest()[:16].encode() + b'",' + body[1:]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in (*PHASES, ABORTED):
        for of_records in PASSWORDS:
            if not golden(each, of_records).exists():
                record(each, of_records)
