"""The shape of a Delta table: what must stay equal from stage to commit, and whether deltalake can commit to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_epochs.model import JsonDict
from airflow_epochs.spark.driver.delta.plans import DescribedTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LEGACY_WRITERS = range(1, 6)
"""deltalake refuses writer version 6, even if the table has no identity column."""
_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
_OF_OTHER_WRITERS = frozenset({"allowColumnDefaults", "checkpointProtection", "clustering", "domainMetadata"})
"""Features that deltalake does not know, and to which a log entry of the provider keeps all the same: it gives each
column a value and statistics, and leaves domains and old checkpoints as they are. Spark cannot drop all of these."""
_COPIES = ("delta.compatibility.symlinkFormatManifest.enabled", "delta.universalFormat.enabledFormats")
"""Properties by which each commit of Spark renews what other readers read: manifests, metadata of Hudi. No feature of
the protocol tells of these, and a commit of deltalake leaves them old."""
RANDOM_PREFIXES = "delta.randomizeFilePrefixes"
_TYPES = re.compile(
    r"string|long|integer|short|byte|float|double|decimal\(\d+,\s*-?\d+\)|boolean|binary|date|timestamp|timestamp_ntz|variant"
)
"""The types of Delta's protocol that are not nested."""
_FEATURE_OF = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
"""Type -> the table feature that it needs. Delta adds it to a new table only, not to one that gets such a column."""
_PREVIEW = "-preview"
_NOT_FOR_STAGING = ("delta.autoOptimize.", "delta.checkpointInterval", "delta.checkpointPolicy")
_NESTED = {"elementType": "element", "keyType": "key", "valueType": "value"}
PHYSICAL_NAME = "delta.columnMapping.physicalName"
"""The key in a field's metadata by which files, statistics and partition values call the field."""
CONSTRAINTS = "delta.constraints."
"""How the property of a CHECK constraint begins."""
_RULES = (CONSTRAINTS, "delta.columnMapping.")
_NOTES = ("comment", "CURRENT_DEFAULT")
"""Keys in a field's metadata. A default stands in for a column that an INSERT does not name."""
_LEGACY_MAPPING = 2
"""The version of readers that admits column mapping without a list of features."""
_TELLS_OF_MAPPING = ("columnMapping", "checkpointProtection")


@dataclass(frozen=True, kw_only=True)
class TableShape:
    """A table's protocol and metadata, as its log has them."""

    id: str
    schema: JsonDict
    partition_by: tuple[str, ...]
    properties: dict[str, str]
    min_reader: int
    min_writer: int
    reader_features: tuple[str, ...] | None
    writer_features: tuple[str, ...] | None

    @classmethod
    def of_actions(cls, protocol: JsonDict, metadata: JsonDict) -> TableShape:
        """The shape in the log's ``protocol`` and ``metaData`` actions."""
        return cls(
            id=metadata["id"],
            schema=json.loads(metadata["schemaString"]),
            partition_by=tuple(metadata["partitionColumns"]),
            properties=dict(metadata.get("configuration") or {}),
            min_reader=protocol["minReaderVersion"],
            min_writer=protocol["minWriterVersion"],
            reader_features=_sorted(protocol.get("readerFeatures")),
            writer_features=_sorted(protocol.get("writerFeatures")),
        )

    @classmethod
    def of_table(cls, table: DeltaTable) -> TableShape:
        """The shape of the table that deltalake has opened."""
        protocol, metadata = table.protocol(), table.metadata()
        return cls(
            id=str(metadata.id),
            schema=json.loads(table.schema().to_json()),
            partition_by=tuple(metadata.partition_columns),
            properties=dict(metadata.configuration),
            min_reader=protocol.min_reader_version,
            min_writer=protocol.min_writer_version,
            reader_features=_sorted(protocol.reader_features),
            writer_features=_sorted(protocol.writer_features),
        )

    @classmethod
    def of_description(cls, table: DescribedTable) -> TableShape:
        """The shape in Spark's description (the ``delta_describe`` job)."""
        return cls(
            id=table.id,
            schema=table.schema,
            partition_by=table.partition_by,
            properties=table.properties,
            min_reader=table.min_reader,
            min_writer=table.min_writer,
            reader_features=None,
            writer_features=table.features,
        )

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that must not be NULL in a row."""
        return tuple(field["name"] for field in self.schema["fields"] if not field["nullable"])

    @property
    def features(self) -> frozenset[str]:
        """The table features that the protocol lists. One that is still a preview counts as its successor."""
        listed = (*(self.reader_features or ()), *(self.writer_features or ()))
        return frozenset(name.removesuffix(_PREVIEW) for name in listed)

    @property
    def features_of_types(self) -> frozenset[str]:
        """The features that the types of the columns need, nested ones too."""
        return frozenset(_FEATURE_OF[kind] for kind in _plain_types(self.schema) if kind in _FEATURE_OF)

    @property
    def refused_features(self) -> list[str]:
        """What keeps deltalake from committing to this table; empty if it can.

        A feature counts as soon as the protocol lists it, even if its property is off. A property counts if it is on.
        """
        named = {*(self.reader_features or ()), *(self.writer_features or ())} - _FEATURES
        if self.min_writer != 7 and self.min_writer not in _LEGACY_WRITERS:
            named.add(f"writer version {self.min_writer}")
        copies = {name: self.properties.get(name, "") for name in _COPIES}
        named |= {f"{name}={value}" for name, value in copies.items() if value.lower() not in ("", "false")}
        return sorted(named)

    @property
    def refused_to_states(self) -> list[str]:
        """What keeps the provider from committing to this table by a log entry of its own, as it does to states."""
        return [name for name in self.refused_features if name not in _OF_OTHER_WRITERS]

    @property
    def unreadable(self) -> list[tuple[str, str]]:
        """Columns that keep every reader but Spark from opening the table, each with its type."""
        return unreadable(self.schema)

    @property
    def renamed(self) -> list[str]:
        """Columns, and fields within them, that the files call by another name."""
        return renamed(self.schema)

    @property
    def may_have_mapped(self) -> bool:
        """Whether the table may have mapped columns in a version that the log still describes.

        To turn column mapping off leaves the feature on. To drop the feature cleans the log up, or protects it.
        """
        features = {*(self.reader_features or ()), *(self.writer_features or ())}
        return self.min_reader == _LEGACY_MAPPING or not features.isdisjoint(_TELLS_OF_MAPPING)

    def actions(self, new_id: str, now_ms: int) -> list[JsonDict]:
        """The ``protocol`` and ``metaData`` actions for version 0 of a table of this shape."""
        features = {"readerFeatures": self.reader_features, "writerFeatures": self.writer_features}
        metadata = {
            "id": new_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(self.schema, separators=(",", ":")),
            "partitionColumns": list(self.partition_by),
            "configuration": self.properties,
            "createdTime": now_ms,
        }
        protocol = {
            "minReaderVersion": self.min_reader,
            "minWriterVersion": self.min_writer,
            **{key: list(value) for key, value in features.items() if value is not None},
        }
        return [{"protocol": protocol}, {"metaData": metadata}]

    def for_staging(self) -> TableShape:
        """The shape of the staging table: it keeps the table's rules, and leaves out its upkeep.

        Random prefixes keep partition values out of file paths. If a path were percent-encoded, Spark's VACUUM would
        delete the file.
        """
        kept = {key: value for key, value in self.properties.items() if not key.startswith(_NOT_FOR_STAGING)}
        return replace(self, properties={**kept, RANDOM_PREFIXES: "true"})

    def with_properties(self, properties: Mapping[str, str]) -> TableShape:
        """This shape with more properties."""
        return replace(self, properties={**self.properties, **properties})

    def without(self, names: Iterable[str]) -> TableShape:
        """This shape without some properties."""
        return replace(self, properties={k: v for k, v in self.properties.items() if k not in names})

    def widened_for(self, staged: TableShape) -> TableShape:
        """This shape with the nullable columns that only ``staged`` has, at its end."""
        known = {field["name"] for field in self.schema["fields"]}
        new = [field for field in staged.schema["fields"] if field["name"] not in known and field["nullable"]]
        return replace(self, schema={**self.schema, "fields": [*self.schema["fields"], *new]})

    def difference_for(self, staged: TableShape) -> str | None:
        """Why files staged for the shape ``staged`` must not be added to this table unchanged; None if they may.

        The table may have gained nullable columns, and may have changed properties that set no rule for rows.
        """
        if self.partition_by != staged.partition_by:
            return f"it is partitioned by {list(self.partition_by)}, and was by {list(staged.partition_by)} at stage"
        if (rules := _rules_of(self)) != (promised := _rules_of(staged)):
            changed = sorted(key for key in rules.keys() | promised.keys() if rules.get(key) != promised.get(key))
            return f"these properties, which set rules for its rows, were changed: {', '.join(changed)}"
        return _columns_difference(self.schema["fields"], staged.schema["fields"])

    def difference_for_state(self, staged: TableShape) -> str | None:
        """As ``difference_for``, for a state: its files have every column, so comments and defaults change no row.

        The table is ``widened_for`` the files, and this may not give it two columns of one name.
        """
        now, then = (replace(shape, schema=_without_notes(shape.schema)) for shape in (self, staged))
        return now.difference_for(then) or _same_names(self.schema["fields"])


def metadata_of(table: DeltaTable) -> JsonDict:
    """The table's ``metaData`` action."""
    known = table.metadata()
    metadata = {
        "id": str(known.id),
        "name": known.name,
        "description": known.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": list(known.partition_columns),
        "configuration": dict(known.configuration),
        "createdTime": known.created_time,
    }
    return {"metaData": {key: value for key, value in metadata.items() if value is not None}}


def unreadable(schema: JsonDict) -> list[tuple[str, str]]:
    """Columns that only Spark can read, each with its type."""
    return list(_unreadable(schema))


def _unreadable(kind: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if not isinstance(kind, dict):
        if not _TYPES.fullmatch(kind):
            yield path, kind
        return
    parts = [(field["name"], field["type"]) for field in kind.get("fields", ())]
    parts += [(name, kind[key]) for key, name in _NESTED.items() if key in kind]
    for name, part in parts:
        yield from _unreadable(part, f"{path}.{name}" if path else name)


def _plain_types(kind: Any) -> Iterator[str]:
    """The types within a type that are not nested themselves."""
    if not isinstance(kind, dict):
        yield str(kind)
        return
    for part in [*(field["type"] for field in kind.get("fields", ())), *(kind[key] for key in _NESTED if key in kind)]:
        yield from _plain_types(part)


def _fields(kind: Any) -> Iterator[JsonDict]:
    """The fields of a type, and those within them."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        yield field
        yield from _fields(field["type"])
    for key in _NESTED:
        yield from _fields(kind.get(key))


def renamed(schema: JsonDict) -> list[str]:
    """Columns of a schema, and fields within them, that the files call by another name."""
    return [field["name"] for field in _fields(schema) if physical_name(field) != field["name"]]


def physical_name(field: JsonDict) -> str:
    """What files call a column, or a field within one."""
    return str((field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]))


def _sorted(features: Any) -> tuple[str, ...] | None:
    return None if features is None else tuple(sorted(str(feature) for feature in features))


def _rules_of(shape: TableShape) -> dict[str, str]:
    # maxColumnId is the highest id used so far. It grows with each new column and sets no rule for rows.
    return {
        key: value
        for key, value in shape.properties.items()
        if key.startswith(_RULES) and key != "delta.columnMapping.maxColumnId"
    }


def _without_notes(part: Any) -> Any:
    """A part of a schema without what only readers and other writers of the table look at."""
    if isinstance(part, dict):
        return {key: _without_notes(value) for key, value in part.items() if key not in _NOTES}
    return [_without_notes(each) for each in part] if isinstance(part, list) else part


def _same_names(fields: list[JsonDict]) -> str | None:
    """A clause about two columns whose names differ only by case, the same to Delta; None without such a pair."""
    known: dict[str, str] = {}
    for name in (field["name"] for field in fields):
        if known.setdefault(name.lower(), name) != name:
            return f"it has the column {known[name.lower()]!r}, and the rows have {name!r}, which is the same to Delta"
    return None


def _columns_difference(now: list[JsonDict], staged: list[JsonDict]) -> str | None:
    by_name = {field["name"]: field for field in now}
    for field in staged:
        if field["name"] not in by_name:
            return f"its column {field['name']!r} is gone"
        if by_name.pop(field["name"]) != field:
            return f"its column {field['name']!r} was changed"
    required = [name for name, field in by_name.items() if not field["nullable"]]
    return f"its new column {required[0]!r} is NOT NULL" if required else None
