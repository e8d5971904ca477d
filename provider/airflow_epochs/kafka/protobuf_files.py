"""Compiles schemas of Protobuf, as a schema registry keeps them, with protoc out of grpcio-tools."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.transforms.avro_schemas import SchemaFlaw

_TIMEOUT_S = 60.0
_MAIN, _OUT = "main.proto", "out"
_LOGGED = re.compile(r"WARNING: All log messages before|[IWEF]\d{4} ")


def compiled(proto_text: str, references: Mapping[str, str]) -> bytes:
    """Compile a schema. The same texts give the same bytes.

    Args:
        proto_text: The text of a .proto file.
        references: What it imports, and what that imports: name in the ``import`` -> text. The files below
            ``google/protobuf/`` are there without.

    Returns:
        A FileDescriptorSet for ``parse_protobuf``: the imports, and as its last file the schema itself.

    Raises:
        SchemaFlaw: The schema is not valid, or imports what is not there.
        Refused: grpcio-tools is not installed.
        NotApplied: protoc did not end with an answer.
    """
    if importlib.util.find_spec("grpc_tools") is None:
        raise Refused("A schema of Protobuf cannot be compiled: there is no grpcio-tools.", code=codes.PROTOC_MISSING)
    _require_paths(references)
    main = _MAIN
    while main in references:
        main = f"_{main}"
    with tempfile.TemporaryDirectory(prefix="epochs-proto-") as folder:
        sources = Path(folder, "in")
        for name, text in {**references, main: proto_text}.items():
            path = sources / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return _run(sources, main, Path(folder, _OUT))


def _require_paths(references: Mapping[str, str]) -> None:
    """Refuse names that would write outside of the folder."""
    for name in references:
        if PurePosixPath(name).is_absolute() or {*name.split("/")} & {"", ".", ".."} or not name.isprintable():
            raise SchemaFlaw(f"has a reference with the name {name!r}, which no import can have")


def _run(sources: Path, main: str, out: Path) -> bytes:
    # grpc_tools adds the folder of the well-known types by itself, as the last one.
    options = [f"-I{sources}", "--include_imports", f"--descriptor_set_out={out}", main]
    command = [sys.executable, "-m", "grpc_tools.protoc", *options]
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise NotApplied(f"protoc did not end within {_TIMEOUT_S:.0f} s.", code=codes.PROTOC_FAILED) from error
    # A reason must be the same in each try: no name of a folder, and no line of a log with its time.
    told = done.stderr.decode("utf-8", "replace").replace(f"{sources}/", "").splitlines()
    said = "\n".join(line for line in told if not _LOGGED.match(line)).strip()
    if done.returncode == 0:
        return out.read_bytes()
    if done.returncode != 1 or "Traceback" in said:
        raise NotApplied(f"protoc ended with {done.returncode}: {said}", code=codes.PROTOC_FAILED)
    raise SchemaFlaw(f"cannot be compiled: {'; '.join(said.splitlines())}")
