"""Compiles schemas of Protobuf, as a schema registry keeps them, with protoc out of grpcio-tools."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.transforms.avro_schemas import SchemaFlaw

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

_TIMEOUT_S = 60.0
_MAIN, _OUT = "main.proto", "out"
_OF_GOOGLE = (
    "calendar_period color date datetime dayofweek decimal expr fraction interval latlng localized_text money month "
    "phone_number postal_address quaternion timeofday"
)
_OF_CONFLUENT = ("meta", "type.decimal", "types.decimal")
_BUILT_IN = (
    *(f"google.type.{name}_pb2" for name in _OF_GOOGLE.split()),
    *(f"confluent_kafka.schema_registry.confluent.{name}_pb2" for name in _OF_CONFLUENT),
)
"""The Python modules generated from the files that Confluent's registry has built in."""
_LOGGED = re.compile(r"WARNING: All log messages before|[IWEF]\d{4} ")


def compiled(schema: str, references: Mapping[str, str]) -> bytes:
    """Compile a schema. The same texts give the same bytes.

    Args:
        schema: The text of a .proto file; or a FileDescriptorProto in base64, as Confluent's client for Python
            registers it.
        references: What it imports, and what that imports: name in the ``import`` -> the same. Without being named,
            the files below ``google/protobuf/`` are there, and those that Confluent's registry has built in.

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
        sources, binary = Path(folder, "in"), Path(folder, "binary")
        sources.mkdir()
        binary.write_bytes(_written({**references, main: schema}, sources).SerializeToString())
        return _run(sources, binary, main, Path(folder, _OUT))


def _written(schemas: Mapping[str, str], sources: Path) -> FileDescriptorSet:
    """Write the texts below ``sources``; return the other files: the built-in ones, and schemas in base64."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    binary = FileDescriptorSet(file=[each for each in _built_in() if each.name not in schemas])
    for name, schema in schemas.items():
        if (found := _in_base64(schema)) is not None:
            found.name = name
            binary.file.append(found)
            continue
        path = sources / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(schema, "utf-8")
    return binary


def _in_base64(schema: str) -> FileDescriptorProto | None:
    """The file that base64 encodes; None if ``schema`` is text: text has characters that base64 lacks."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(b64decode(schema, validate=True)) if schema else None
    except (ValueError, DecodeError):
        return None


@cache
def _built_in() -> list[FileDescriptorProto]:
    """Files that Confluent's registry lets a schema import without a reference, as far as they are installed here."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    found = []
    for name in _BUILT_IN:
        with suppress(ImportError):
            found.append(FileDescriptorProto.FromString(importlib.import_module(name).DESCRIPTOR.serialized_pb))
    return found


def _require_paths(references: Mapping[str, str]) -> None:
    """Refuse names that would write outside of the folder."""
    for name in references:
        if PurePosixPath(name).is_absolute() or {*name.split("/")} & {"", ".", ".."} or not name.isprintable():
            raise SchemaFlaw(f"has a reference with the name {name!r}, which no import can have")


def _run(sources: Path, binary: Path, main: str, out: Path) -> bytes:
    # grpc_tools adds the folder of the well-known types by itself, as the last one.
    given = [f"-I{sources}", f"--descriptor_set_in={binary}"]
    options = [*given, "--include_imports", f"--descriptor_set_out={out}", main]
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
