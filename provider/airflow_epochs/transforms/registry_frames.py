"""Records in the wire format of Confluent's schema registry: what ``parse_avro`` and ``parse_protobuf`` share.

The format (https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/, "Wire format"): a
zero byte, the id of the writer's schema in four bytes, the most significant one first, and what the format of the
schema puts there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_epochs.transforms import registries
from airflow_epochs.transforms.checks import Checks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HEADER = 5
"""Bytes of the zero byte and the id."""
NO_VALUE, NO_HEADER, NOT_UTF8 = "no value", "no magic byte and schema id", "a text that is not UTF-8"
"""Why a record is corrupt, whatever the format of its schema is."""
_ID_MAX = 2**31 - 1


def head_of(number: int) -> bytes:
    """The magic byte and the id, which stand before each record of a schema."""
    return b"\0" + number.to_bytes(HEADER - 1, "big")


def written(
    checks: Checks, schemas: Mapping[int, Any] | None, registry: str | None, kind: str
) -> tuple[Mapping[int, Any], Mapping[int, str]]:
    """The schemas that records may have, by their ids, and why others cannot be used: the user's, or a registry's.

    Args:
        checks: The parser's checks.
        schemas: The schemas as the user gives them.
        registry: In place of ``schemas``: the connection of the registry.
        kind: The registry's name for the format.
    """
    if registry is not None and schemas is None:
        return registries.schemas_of(registry, kind, checks.operator)
    if schemas is None or registry is not None:
        wanted, remedy = "given if registry is not, and left out if it is", "schemas or registry, and not both"
        raise checks.argument("schemas", schemas, wanted, remedy=f"Give {checks.operator}() {remedy}")
    wrong = [key for key in schemas if not isinstance(key, int) or not 0 <= key <= _ID_MAX]
    if wrong or not schemas:
        given = wrong or dict(schemas)
        raise checks.argument("schemas", given, f"a dict of at least one schema, by ids from 0 to {_ID_MAX}")
    return schemas, {}


def require_binary(checks: Checks, batch: DataFrame, value: str) -> None:
    """Refuse a column that cannot have such records."""
    checks.has("the batch", batch, [value])
    if (kind := batch.schema[value].dataType.simpleString()) != "binary":
        raise checks.argument("value", value, "the name of a binary column", f"this one is {kind}")
