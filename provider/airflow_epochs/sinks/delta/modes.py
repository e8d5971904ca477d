"""How an epoch's rows change a Delta table: they are appended, merged by key, or replace other rows.

Spark commits everything but a plain append, in one transaction (``spark.driver.delta.merge``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_epochs.model import JsonDict
    from airflow_epochs.spark.driver.delta.plans import How

APPEND, UPSERT, MERGE = "append", "upsert", "merge"
OVERWRITE, OVERWRITE_PARTITIONS = "overwrite", "overwrite_partitions"
MODES = (APPEND, UPSERT, MERGE, OVERWRITE, OVERWRITE_PARTITIONS)
ADD_COLUMNS = "add_columns"
KEEP, TRUNCATE = "keep", "truncate"
APPEND_ONLY = "delta.appendOnly"

_OF_MODES = {
    "keys": (UPSERT, MERGE),
    "sequence_by": (UPSERT,),
    "delete_when": (UPSERT,),
    "merge": (MERGE,),
    "on": (MERGE,),
    "empty": (OVERWRITE,),
    "replaces_others": (OVERWRITE, OVERWRITE_PARTITIONS),
}
"""Option -> the modes that accept it. With any other mode it is an error."""
_CLAUSES = re.compile(r"\s*WHEN\s", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A sink's mode with its options. ``DeltaSink`` documents them."""

    mode: str = APPEND
    keys: tuple[str, ...] = ()
    sequence_by: str | None = None
    delete_when: str | None = None
    merge: str | None = None
    on: str | None = None
    schema_evolution: str | None = None
    empty: str = KEEP
    replaces_others: bool = False

    @classmethod
    def of(cls, *, keys: Sequence[str] = (), **options: Any) -> Mode:
        """The mode with these options, checked.

        Raises:
            ValueError: An option is unknown, does not fit the mode, or is missing.
        """
        if isinstance(keys, str):
            raise ValueError(f"keys is a list of columns, like [{keys!r}]")
        mode = cls(keys=tuple(keys), **options)
        mode._check()
        return mode

    def _check(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is not known: {_any_of(MODES)}")
        for option, modes in _OF_MODES.items():
            if getattr(self, option) != getattr(Mode, option) and self.mode not in modes:
                raise ValueError(f"{option} goes with mode {_any_of(modes)}, not with {self.mode!r}")
        if self.schema_evolution not in (None, ADD_COLUMNS):
            raise ValueError(f"schema_evolution {self.schema_evolution!r} is not known: {ADD_COLUMNS!r} or None")
        if self.empty not in (KEEP, TRUNCATE):
            raise ValueError(f"empty {self.empty!r} is not known: {_any_of((KEEP, TRUNCATE))}")
        self._check_keys()
        self._check_sql()

    def _check_keys(self) -> None:
        if self.mode in (UPSERT, MERGE) and not self.keys:
            raise ValueError(f"mode {self.mode!r} needs keys: the columns that tell one row from another")
        if len({key.lower() for key in self.keys}) < len(self.keys):
            raise ValueError(f"keys names a column twice: {list(self.keys)}")
        if self.sequence_by is not None and self.sequence_by.lower() in {key.lower() for key in self.keys}:
            raise ValueError(f"sequence_by {self.sequence_by!r} is one of the keys: it cannot order rows of one key")

    def _check_sql(self) -> None:
        for option in ("sequence_by", "delete_when", "on"):
            value = getattr(self, option)
            if value is not None and not value.strip():
                raise ValueError(f"{option} is empty")
        if self.mode == MERGE and not _CLAUSES.match(self.merge or ""):
            raise ValueError(
                "mode 'merge' needs merge: the clauses of MERGE, like 'WHEN MATCHED THEN UPDATE SET t.n = t.n + s.n "
                "WHEN NOT MATCHED THEN INSERT *'"
            )

    @property
    def is_plain_append(self) -> bool:
        """Whether rows are only added, unchanged. Only such a commit needs no more than metadata."""
        return self == Mode()

    @property
    def notes_deletions(self) -> bool:
        """Whether the sink notes deleted keys beside the table, so that older rows cannot bring them back."""
        return self.delete_when is not None and self.sequence_by is not None

    def spares_others(self, rows: int) -> bool:
        """Whether an epoch with ``rows`` rows replaces rows, but must not replace those of other pipelines."""
        if self.mode not in (OVERWRITE, OVERWRITE_PARTITIONS) or self.replaces_others:
            return False
        return rows > 0 or (self.mode, self.empty) == (OVERWRITE, TRUNCATE)

    def require_committer(self, commit: str | None, properties: Mapping[str, str]) -> str | None:
        """The committer that the user chose, or ``spark`` if only Spark can commit this mode.

        Raises:
            ValueError: The user chose another committer, or made an append-only table for a mode that changes rows.
        """
        if self.is_plain_append:
            return commit
        if self.mode == APPEND and commit != "spark":
            raise ValueError("schema_evolution of appended rows needs commit='spark'")
        if commit not in (None, "spark"):
            raise ValueError(f"mode {self.mode!r} is committed by Spark: leave commit out instead of {commit!r}")
        if self.mode != APPEND and properties.get(APPEND_ONLY, "").lower() == "true":
            raise ValueError(f"mode {self.mode!r} changes rows, which {APPEND_ONLY} forbids")
        return "spark"

    def spec(self) -> JsonDict:
        """The options that differ from their defaults, as JSON, and always ``mode``."""
        options = {key: value for key, value in asdict(self).items() if value != getattr(Mode, key)}
        return options | {"mode": self.mode} | ({"keys": list(self.keys)} if self.keys else {})

    def plan(self) -> How:
        """The options that ``spark.driver.delta.merge`` needs. The vote alone uses ``replaces_others``."""
        from airflow_epochs.spark.driver.delta.plans import How

        options = asdict(self)
        del options["replaces_others"]
        return How(**options)


def _any_of(names: Sequence[str]) -> str:
    return " or ".join(repr(name) for name in names)
