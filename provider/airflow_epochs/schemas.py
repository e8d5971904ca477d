"""A schema of a schema registry: on record in the ledger, and in the hands of the parsers of ``transforms``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WriterSchema:
    """A schema that records were written with, as a schema registry has it.

    Attributes:
        kind: AVRO, PROTOBUF or JSON: the registry's ``schemaType``.
        text: The schema, complete in itself. Of PROTOBUF: a FileDescriptorSet, in base64. Empty if there is a flaw.
        flaw: Why it cannot be used, as the end of a sentence; None if it can.
    """

    kind: str
    text: str
    flaw: str | None = None
